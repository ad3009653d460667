// SPDX-License-Identifier: GPL-2.0
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "calls.h"
#include "sched.h"
#include "mem.h"

static struct fermata_reg good_regs[2] = {
	{ .offset = 0x38, .value = 1 }, { .offset = 0x40, .value = 2 }
};
static struct fermata_reg good_results[2] = { { .offset = 0x38 }, { .offset = 0x40 } };
static struct fermata_reg listed[2];
static u64 counts[2];
static u8 snapshot[FM_CALL_BYTES];
static int event_fd, cgroup_fd;

struct fm_ctx fm_ready, fm_held;

const struct fm_call fm_calls[FM_CALLS] = {
#define C(name, stage, type, known, reserved)					\
	{ #name, FERMATA_IOC_##name, stage, sizeof(struct type), known, reserved, false }
#define C_SET(name, stage, type, reserved)					\
	{ #name " to set", FERMATA_IOC_##name, stage, sizeof(struct type), FERMATA_SET,	\
	  reserved, true }
	C(CARD_INFO, FM_FRESH, fermata_card_info, 0, 0),
	C(SLOT_INFO, FM_FRESH, fermata_slot_info, ~0U, 0),
	C(SETUP, FM_FRESH, fermata_setup, 0, 0),
	C(ARENA_CREATE, FM_SETUP, fermata_arena_create,
	  FERMATA_ARENA_FIXED_BASE | FERMATA_ARENA_USER | FERMATA_ARENA_SHARED, 0),
	C(SNAPSHOT_CREATE, FM_SETUP, fermata_snapshot_create, FERMATA_SNAPSHOT_USER, 28),
	C(SNAPSHOT_READ, FM_HELD, fermata_snapshot_read, 0, 0),
	C(SNAPSHOT_WRITE, FM_READY, fermata_snapshot_write, 0, 0),
	C(REGS_WRITE, FM_READY, fermata_regs, 0, 12),
	C(REGS_READ, FM_HELD, fermata_regs, 0, 12),
	C(RESULTS, FM_READY, fermata_regs, 0, 12),
	C(REGS_LIST, FM_READY, fermata_regs, FERMATA_REGS_RESULTS, 12),
	C(START, FM_READY, fermata_start, FERMATA_START_REPLAYABLE | FERMATA_START_SAVED | FERMATA_START_HELD, 0),
	C(PREEMPT, FM_HELD, fermata_preempt, FERMATA_PREEMPT_HOLD, 12),
	C(RESUME, FM_HELD, fermata_resume, 0, 12),
	C(HOLD, FM_READY, fermata_hold, 0, 0),
	C(STATUS, FM_HELD, fermata_status, 0, 0),
	C(WAIT, FM_HELD, fermata_wait, FM_EVENTS, 0),
	C(EVENTFD, FM_HELD, fermata_eventfd, FM_EVENTS, 12),
	C(OUTCOME, FM_HELD, fermata_outcome, 0, 0),
	C(CONFIG, FM_HELD, fermata_config, 0, 0),
	C(DOORBELL, FM_HELD, fermata_doorbell, 0, 0),
	C(HINT, FM_READY, fermata_hint, 0, 0),
	C(PARAM, FM_READY, fermata_param, FERMATA_SET, 0),
	C_SET(PARAM, FM_READY, fermata_param, 0),
	C(CONTEXT_INFO, FM_FRESH, fermata_context_info, 0, 0),
	C(HISTOGRAM, FM_READY, fermata_histogram, 0, 52),
	C(RESERVE, FM_READY, fermata_reserve, FERMATA_SET, 12),
	C_SET(RESERVE, FM_READY, fermata_reserve, 12),
	C(GROUP, FM_READY, fermata_group, 0, 20),
	C(GANG, FM_READY, fermata_gang, FERMATA_GANG_JOIN | FERMATA_GANG_LEAVE, 0),
	C(GROUP_SET, FM_FRESH, fermata_group_set, 2 * FERMATA_GROUP_USER - 1, 76),
#undef C_SET
#undef C
};

void fm_call_fill(const struct fm_call *k, union fm_arg *a)
{
	memset(a, 0, sizeof(*a));
	a->size = k->size;
	switch (k->cmd) {
	case FERMATA_IOC_SETUP:
		a->setup.afu_id_lo = fm_afu[FM_LIST][0];
		a->setup.afu_id_hi = fm_afu[FM_LIST][1];
		a->setup.context = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_ARENA_CREATE:
		a->arena.length = 16384;
		a->arena.mmap_offset = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_SNAPSHOT_CREATE:
		a->snap.length = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_SNAPSHOT_READ:
		a->read.length = FM_CALL_BYTES;
		a->read.buffer = (uintptr_t)snapshot;
		break;
	case FERMATA_IOC_SNAPSHOT_WRITE:
		a->write.length = FM_CALL_BYTES;
		a->write.buffer = (uintptr_t)snapshot;
		break;
	case FERMATA_IOC_REGS_LIST:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)listed;
		break;
	case FERMATA_IOC_REGS_WRITE:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)good_regs;
		break;
	case FERMATA_IOC_REGS_READ:
	case FERMATA_IOC_RESULTS:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)good_results;
		break;
	case FERMATA_IOC_START:
		a->start.job = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_HOLD:
		a->hold.fd = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_WAIT:
		a->wait.events = FERMATA_EVENT_HELD;
		a->wait.deadline = UINT64_MAX;
		a->wait.happened = 0xa5a5a5a5;
		a->wait.error = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_EVENTFD:
		a->event.events = FERMATA_EVENT_DONE;
		a->event.fd = event_fd;
		break;
	case FERMATA_IOC_OUTCOME:
		a->outcome.state = FERMATA_STATE_HELD;
		a->outcome.count = 1;
		a->outcome.regs = (uintptr_t)good_results;
		break;
	case FERMATA_IOC_CONFIG:
		memset(a->bytes + 8, 0xa5, k->size - 12);
		a->config.fd = event_fd;
		a->config.pid = 0;
		break;
	case FERMATA_IOC_PARAM:
		a->param.param = FERMATA_PARAM_TIMESLICE;
		a->param.flags = k->sets ? FERMATA_SET : 0;
		a->param.value = k->sets ? 1000000 : 0xa5a5a5a5a5a5a5a5;
		a->param.min = k->sets ? 0 : 0xa5a5a5a5a5a5a5a5;
		a->param.max = k->sets ? 0 : 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_CONTEXT_INFO:
		memset(a->bytes + 12, 0xa5, k->size - 12);
		break;
	case FERMATA_IOC_HISTOGRAM:
		a->histogram.kind = FERMATA_HISTOGRAM_WAIT;
		memset(&a->histogram.count, 0xa5, 32);
		a->histogram.buckets = 2;
		a->histogram.counts = (uintptr_t)counts;
		break;
	case FERMATA_IOC_RESERVE:
		if (!k->sets) {
			memset(&a->reserve.budget_ns, 0xa5, 24);
			break;
		}
		a->reserve.flags = FERMATA_SET;
		a->reserve.budget_ns = 1000000;
		a->reserve.deadline_ns = 10000000;
		a->reserve.period_ns = 10000000;
		break;
	case FERMATA_IOC_GROUP:
		memset(&a->group.weight, 0xa5, 8);
		memset(&a->group.number, 0xa5, 16);
		break;
	case FERMATA_IOC_GANG:
		a->gang.members = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_GROUP_SET:
		memset(&a->group_set.weight, 0xa5, k->size - 12);
		a->group_set.flags = FERMATA_GROUP_WEIGHT;
		a->group_set.cgroup = cgroup_fd;
		a->group_set.weight = 100;
		a->group_set.reserved = 0;
		break;
	case FERMATA_IOC_STATUS:
	case FERMATA_IOC_CARD_INFO:
		memset(a->bytes + 8, 0xa5, k->size - 8);
		break;
	}
}

u64 *fm_call_pointer(unsigned long cmd, union fm_arg *a, bool *in, bool *out)
{
	struct fermata_card_info info;

	*in = *out = false;
	switch (cmd) {
	case FERMATA_IOC_ARENA_CREATE:
		*in = true;
		a->arena.flags = FERMATA_ARENA_USER;
		a->arena.length = FM_PAGE;
		return (u64 *)&a->arena.user_addr;
	case FERMATA_IOC_SNAPSHOT_CREATE:
		*in = fm_confines();
		a->snap.flags = FERMATA_SNAPSHOT_USER;
		a->snap.length = FM_PAGE;
		/* Take the path that pins the memory of any process, if that is allowed. */
		fm_card_info(&info);
		a->snap.pid = info.features & FERMATA_FEATURE_FOREIGN_MEMORY ? getpid() : 0;
		return (u64 *)&a->snap.user_addr;
	case FERMATA_IOC_SNAPSHOT_READ:
		*out = true;
		return (u64 *)&a->read.buffer;
	case FERMATA_IOC_SNAPSHOT_WRITE:
		*in = true;
		return (u64 *)&a->write.buffer;
	case FERMATA_IOC_REGS_WRITE:
	case FERMATA_IOC_RESULTS:
		*in = true;
		return (u64 *)&a->regs.regs;
	case FERMATA_IOC_OUTCOME:
		*in = true;
		return (u64 *)&a->outcome.regs;
	case FERMATA_IOC_REGS_READ:
		*in = *out = true;
		return (u64 *)&a->regs.regs;
	case FERMATA_IOC_REGS_LIST:
		*out = true;
		return (u64 *)&a->regs.regs;
	case FERMATA_IOC_HISTOGRAM:
		*out = true;
		return (u64 *)&a->histogram.counts;
	}
	return NULL;
}

void fm_stages_make(int fds[FM_STAGES])
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_expect e;

	event_fd = eventfd(0, EFD_CLOEXEC);
	cgroup_fd = fm_cgroup_open("");
	fds[FM_FRESH] = fm_open_dev(0);
	fds[FM_SETUP] = fm_open_dev(0);
	if (event_fd < 0 || fds[FM_FRESH] < 0 || fds[FM_SETUP] < 0)
		fm_die("open: %s", strerror(errno));
	fm_must(fds[FM_SETUP], FERMATA_IOC_SETUP, &setup, "SETUP");
	fm_ctx_new(&fm_ready, FM_LIST, 16384);
	fm_job_list(&fm_ready, 16, 100, 3, &e);
	fds[FM_READY] = fm_ready.fd;
	fm_ctx_new(&fm_held, FM_LIST, 16384);
	fm_job_endless(&fm_held);
	fds[FM_HELD] = fm_held.fd;
	if (fm_start(fds[FM_HELD]))
		fm_die("START");
	/* The job must have run, so that there is state to read. */
	fm_until_state(fds[FM_HELD], FERMATA_STATE_RUNNING);
	if (fm_preempt(fds[FM_HELD], FERMATA_PREEMPT_HOLD))
		fm_die("PREEMPT");
	fm_wait(fds[FM_HELD], FERMATA_EVENT_HELD);
}

/* Moving a job to another context. */

int fm_regs_list(int fd, u32 flags, struct fermata_reg *regs, u32 room)
{
	struct fermata_regs arg = {
		.size = sizeof(arg), .flags = flags, .count = room, .regs = (uintptr_t)regs
	};
	int rc = fm_ioctl(fd, FERMATA_IOC_REGS_LIST, &arg);

	return rc ? rc : arg.count;
}

int fm_snapshot_read(int fd, void *to, u64 offset, u64 len)
{
	struct fermata_snapshot_read arg = {
		.size = sizeof(arg), .offset = offset, .length = len, .buffer = (uintptr_t)to
	};

	return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_READ, &arg);
}

int fm_snapshot_write(int fd, const void *from, u64 offset, u64 len)
{
	struct fermata_snapshot_write arg = {
		.size = sizeof(arg), .offset = offset, .length = len, .buffer = (uintptr_t)from
	};

	return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_WRITE, &arg);
}

int fm_start_as(int fd, u32 flags)
{
	struct fermata_start arg = { .size = sizeof(arg), .flags = flags };

	return fm_ioctl(fd, FERMATA_IOC_START, &arg);
}

int fm_start_saved(int fd)
{
	return fm_start_as(fd, FERMATA_START_SAVED);
}

u64 fm_snapshot_size(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.snapshot_length;
}

void fm_pack(struct fm_ctx *c, struct fm_parcel *p)
{
	p->state_len = fm_snapshot_size(c->fd);
	p->state = malloc(p->state_len);
	if (!p->state || fm_snapshot_read(c->fd, p->state, 0, p->state_len))
		fm_die("SNAPSHOT_READ");
	p->nregs = fm_regs_list(c->fd, 0, p->regs, FERMATA_MAX_REGS);
	p->nresults = fm_regs_list(c->fd, FERMATA_REGS_RESULTS, p->results, FERMATA_MAX_RESULTS);
	if (p->nregs < 0 || p->nresults < 0)
		fm_die("REGS_LIST");
	p->digest = card_key(card_cmd("saved token=%llu", (unsigned long long)c->token), "hash");
}

void fm_twin(struct fm_ctx *c, const struct fm_ctx *of, int slot)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_FIXED_BASE, .length = of->len,
		.device_base = of->base
	};

	fm_ctx_setup(c, of->engine, slot);
	fm_must(c->fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	c->len = of->len;
	c->base = of->base;
	c->head = of->head;
	c->mem = fm_map(NULL, c->len, MAP_SHARED, c->fd, arena.mmap_offset);
	fm_agent_add(getpid(), c->mem, c->len, c->token);
	fm_ctx_snapshot(c);
}

int fm_unpack(struct fm_ctx *c, const struct fm_parcel *p, u32 flags)
{
	u32 results[FERMATA_MAX_RESULTS];
	u64 half = p->state_len / 2;
	int i, rc;

	if (fm_regs_write(c->fd, p->regs, p->nregs) || fm_reg_write(c->fd, FM_REG_TAG, c->token))
		fm_die("REGS_WRITE");
	for (i = 0; i < p->nresults; i++)
		results[i] = p->results[i].offset;
	if (fm_results(c->fd, results, p->nresults))
		fm_die("RESULTS");
	/* In two parts, the last one first. */
	rc = fm_snapshot_write(c->fd, p->state + half, half, p->state_len - half);
	if (!rc)
		rc = fm_snapshot_write(c->fd, p->state, 0, half);
	if (rc)
		return rc;
	card_cmd("import token=%llu hash=%llu", (unsigned long long)c->token,
		 (unsigned long long)p->digest);
	return fm_start_as(c->fd, flags | FERMATA_START_SAVED);
}

/* --- what every call must return when the card is gone -------------------------------- */

static sigjmp_buf fm_bus_jump;

static void fm_on_bus(int sig)
{
	siglongjmp(fm_bus_jump, sig);
}

int fm_access_signal(u8 *mem)
{
	struct sigaction sa = { .sa_handler = fm_on_bus }, bus, segv;
	int sig;

	sigaction(SIGBUS, &sa, &bus);
	sigaction(SIGSEGV, &sa, &segv);
	sig = sigsetjmp(fm_bus_jump, 1);
	if (!sig)
		(void)*(volatile u8 *)mem;
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segv, NULL);
	return sig;
}

int fm_calls_not_gone(int fd)
{
	union fm_arg arg;
	int bad = 0, rc;
	size_t i;

	for (i = 0; i < FM_CALLS; i++) {
		fm_call_fill(&fm_calls[i], &arg);
		rc = fm_ioctl(fd, fm_calls[i].cmd, &arg);
		if (rc == -ENODEV)
			continue;
		bad++;
		printf("# %s of a card that is gone: %s\n", fm_calls[i].name,
		       rc ? strerror(-rc) : "success");
	}
	return bad;
}

int fm_poll_gone(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };

	if (poll(&p, 1, FM_GUARD_MS) < 0)
		return -errno;
	return p.revents & (POLLERR | POLLHUP);
}

static void fm_gone_wait(void *arg)
{
	struct fm_gone_waiter *w = arg;

	w->rc = fm_wait_until(w->fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
}

void fm_gone_waiter_start(struct fm_gone_waiter *w, int fd)
{
	w->fd = fd;
	fm_thread_asleep(&w->t, fm_gone_wait, w, SYS_ioctl);
}

static void fm_gone_poll(void *arg)
{
	struct fm_gone_poller *poller = arg;
	struct pollfd p = { .fd = poller->fd, .events = POLLIN };
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int rc;

	rc = poll(&p, 1, FM_GUARD_MS);
	/* When poll() times out it checks once more, and would hide a missing wake-up. */
	poller->revents = rc == 1 && fm_now() < end ? p.revents : 0;
}

void fm_gone_poller_start(struct fm_gone_poller *poller, int fd)
{
	poller->fd = fd;
	fm_thread_asleep(&poller->t, fm_gone_poll, poller, SYS_poll);
}
