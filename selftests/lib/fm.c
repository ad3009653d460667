// SPDX-License-Identifier: GPL-2.0
/* Contexts, processes and the fixture. */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#include "sched.h"

struct fm_shared *fm_sh;

const u64 fm_afu[FM_ALL_ENGINES][2] = {
	[FM_LIST] = { 0x5354000000000001, 0x4c494e4b45444c49 },
	[FM_MEM] = { 0x0000000000000002, 0x4d454d42454e4348 },
	[FM_SHA] = { 0x0000000000000003, 0x5348413235360000 },
	[FM_MIX] = { 0x0000000000000004, 0x424c4f434b4d4958 },
	[FM_RISCV] = { 0x3332000000000005, 0x52495343562d5256 },
	[FM_COUNT_UP] = { 0x0000000000000007, 0x434f554e54455255 },
	[FM_COUNT_DOWN] = { 0x0000000000000008, 0x434f554e54455244 },
	[FM_QUEUE] = { FERMATA_QUEUE_AFU_ID_LO, FERMATA_QUEUE_AFU_ID_HI },
};

void fm_die(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	printf("# ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

u64 fm_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

void fm_sleep_us(unsigned int us)
{
	usleep(us);
}

u32 fm_number_from(const char *name, u32 otherwise)
{
	const char *v = getenv(name);

	return v && *v ? strtoul(v, NULL, 0) : otherwise;
}

int fm_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

static bool is_set(const char *name)
{
	const char *v = getenv(name);

	return v && *v && strcmp(v, "0");
}

bool fm_require_card(void)
{
	return is_set("FERMATA_REQUIRE_CARD");
}

bool fm_is_slow(void)
{
	return is_set("FERMATA_SLOW");
}

int fm_timeout(void)
{
	return fm_is_slow() ? 400 : 80;
}

const char *fm_dev(void)
{
	const char *v = getenv("FERMATA_DEV");

	return v && *v ? v : "/dev/fermata0";
}

/* --- calls ---------------------------------------------------------------- */

int fm_ioctl(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) < 0 ? -errno : 0;
}

void fm_must(int fd, unsigned long cmd, void *arg, const char *what)
{
	int rc = fm_ioctl(fd, cmd, arg);

	if (rc)
		fm_die("%s: %s", what, strerror(-rc));
}

int fm_open_dev(int flags)
{
	int fd = open(fm_dev(), O_RDWR | O_CLOEXEC | flags);

	return fd < 0 ? -errno : fd;
}

static int must_open(void)
{
	int fd = fm_open_dev(0);

	if (fd < 0)
		fm_die("%s: %s", fm_dev(), strerror(-fd));
	return fd;
}

void fm_status(int fd, struct fermata_status *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	fm_must(fd, FERMATA_IOC_STATUS, st, "STATUS");
}

u32 fm_state(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.state;
}

static int start(int fd, u32 flags)
{
	struct fermata_start arg = { .size = sizeof(arg), .flags = flags };

	return fm_ioctl(fd, FERMATA_IOC_START, &arg);
}

int fm_start(int fd)
{
	return start(fd, 0);
}

int fm_start_replayable(int fd)
{
	return start(fd, FERMATA_START_REPLAYABLE);
}

int fm_preempt_of(int fd, u32 context, u32 flags)
{
	struct fermata_preempt arg = {
		.size = sizeof(arg), .flags = flags, .context = context
	};

	return fm_ioctl(fd, FERMATA_IOC_PREEMPT, &arg);
}

int fm_preempt(int fd, u32 flags)
{
	return fm_preempt_of(fd, 0, flags);
}

int fm_hold_fd_of(int fd, u32 context)
{
	struct fermata_hold arg = { .size = sizeof(arg), .context = context };
	int rc = fm_ioctl(fd, FERMATA_IOC_HOLD, &arg);

	return rc ? rc : arg.fd;
}

int fm_hold_fd(int fd)
{
	return fm_hold_fd_of(fd, 0);
}

int fm_hint(int fd, u64 at)
{
	struct fermata_hint arg = { .size = sizeof(arg), .at = at };

	return fm_ioctl(fd, FERMATA_IOC_HINT, &arg);
}

int fm_ring(int fd)
{
	struct fermata_doorbell arg = { .size = sizeof(arg) };

	return fm_ioctl(fd, FERMATA_IOC_DOORBELL, &arg);
}

int fm_resume_of(int fd, u32 context)
{
	struct fermata_resume arg = { .size = sizeof(arg), .context = context };

	return fm_ioctl(fd, FERMATA_IOC_RESUME, &arg);
}

int fm_resume(int fd)
{
	return fm_resume_of(fd, 0);
}

int fm_wait_until(int fd, u32 events, u64 deadline, struct fermata_wait *w)
{
	struct fermata_wait arg = { .size = sizeof(arg), .events = events, .deadline = deadline };
	int rc = fm_ioctl(fd, FERMATA_IOC_WAIT, &arg);

	if (w)
		*w = arg;
	return rc;
}

static const char *state_name(u32 state)
{
	static const char * const names[] = {
		"new", "idle", "queued", "running", "held", "done", "failed"
	};

	return state < 7 ? names[state] : "unknown";
}

void fm_wait(int fd, u32 events)
{
	struct fermata_status st;
	int rc;

	do {
		rc = fm_wait_until(fd, events, fm_now() + FM_GUARD_MS * FM_MS, NULL);
	} while (rc == -EINTR);
	if (!rc)
		return;
	fm_tally("lost jobs", 1);
	fm_status(fd, &st);
	fm_die("waiting for events %x: %s; state %s, slot %d, job %llu, slices %llu, error %u",
	       events, strerror(-rc), state_name(st.state), (int)st.slot,
	       (unsigned long long)st.job, (unsigned long long)st.slices, st.error);
}

int fm_param_set_of(int fd, u32 context, u32 param, u64 value)
{
	struct fermata_param arg = {
		.size = sizeof(arg), .flags = FERMATA_SET, .context = context, .param = param,
		.value = value
	};

	return fm_ioctl(fd, FERMATA_IOC_PARAM, &arg);
}

int fm_param_set(int fd, u32 param, u64 value)
{
	return fm_param_set_of(fd, 0, param, value);
}

u64 fm_param_get(int fd, u32 param)
{
	struct fermata_param arg = { .size = sizeof(arg), .param = param };

	fm_must(fd, FERMATA_IOC_PARAM, &arg, "PARAM");
	return arg.value;
}

int fm_regs_write(int fd, const struct fermata_reg *regs, u32 count)
{
	struct fermata_regs arg = {
		.size = sizeof(arg), .count = count, .regs = (uintptr_t)regs
	};

	return fm_ioctl(fd, FERMATA_IOC_REGS_WRITE, &arg);
}

int fm_reg_write(int fd, u32 offset, u64 value)
{
	struct fermata_reg reg = { .offset = offset, .value = value };

	return fm_regs_write(fd, &reg, 1);
}

int fm_reg_read(int fd, u32 offset, u64 *value)
{
	struct fermata_reg reg = { .offset = offset };
	struct fermata_regs arg = {
		.size = sizeof(arg), .count = 1, .regs = (uintptr_t)&reg
	};
	int rc = fm_ioctl(fd, FERMATA_IOC_REGS_READ, &arg);

	if (!rc)
		*value = reg.value;
	return rc;
}

u64 fm_reg_get(int fd, u32 offset)
{
	u64 value = 0;
	int rc = fm_reg_read(fd, offset, &value);

	if (rc)
		fm_die("register %#x: %s", offset, strerror(-rc));
	return value;
}

int fm_results(int fd, const u32 *offsets, u32 count)
{
	struct fermata_reg regs[FERMATA_MAX_RESULTS + 1] = {};
	struct fermata_regs arg = {
		.size = sizeof(arg), .count = count, .regs = (uintptr_t)regs
	};
	u32 i;

	for (i = 0; i < count; i++)
		regs[i].offset = offsets[i];
	return fm_ioctl(fd, FERMATA_IOC_RESULTS, &arg);
}

int fm_eventfd(int fd)
{
	return fm_eventfd_of(fd, FERMATA_EVENT_DONE);
}

int fm_eventfd_of(int fd, u32 events)
{
	struct fermata_eventfd arg = {
		.size = sizeof(arg), .events = events, .fd = eventfd(0, 0)
	};

	fm_must(fd, FERMATA_IOC_EVENTFD, &arg, "EVENTFD");
	return arg.fd;
}

u64 fm_preemptions(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.preemptions;
}

void fm_until_preempted(int fd, u64 times)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (fm_preemptions(fd) < times) {
		if (fm_now() > end)
			fm_die("not preempted %d times", (int)times);
		fm_sleep_us(1000);
	}
}

void fm_until_state(int fd, u32 state)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	u32 now;

	while ((now = fm_state(fd)) != state) {
		if (fm_now() > end)
			fm_die("state is %s, waited for %s", state_name(now), state_name(state));
		fm_sleep_us(500);
	}
}

/* --- the card ----------------------------------------------------------------- */

void fm_card_info(struct fermata_card_info *info)
{
	int fd = must_open();

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	fm_must(fd, FERMATA_IOC_CARD_INFO, info, "CARD_INFO");
	close(fd);
}

bool fm_has_window(void)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	return info.features & FERMATA_FEATURE_WINDOW;
}

bool fm_is_polled(void)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	return !(info.features & FERMATA_FEATURE_IRQ);
}

u32 fm_contexts(void)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	return info.contexts;
}

bool fm_confines(void)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	return info.features & FERMATA_FEATURE_WINDOW &&
	       info.features & FERMATA_FEATURE_SNAPSHOT_UNIT;
}

static int slot_info(int fd, int slot, struct fermata_slot_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->slot = slot;
	return fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, info);
}

static bool has_engine(const struct fermata_slot_info *info, enum fm_engine engine)
{
	return info->afu_id_lo == fm_afu[engine][0] && info->afu_id_hi == fm_afu[engine][1];
}

u32 fm_slots_of(enum fm_engine engine)
{
	struct fermata_slot_info info;
	int fd = must_open();
	u32 mask = 0;
	int i, rc = 0;

	for (i = 0; !rc; i++) {
		rc = slot_info(fd, i, &info);
		if (!rc && has_engine(&info, engine))
			mask |= 1U << i;
	}
	if (rc != -EINVAL)
		fm_die("SLOT_INFO: %s", strerror(-rc));
	close(fd);
	return mask;
}

int fm_slot_of(enum fm_engine engine)
{
	struct fermata_slot_info info;
	int fd = must_open();
	int found = -1, i, rc;

	for (i = 0; found < 0; i++) {
		rc = slot_info(fd, i, &info);
		if (rc)
			break;
		if (has_engine(&info, engine))
			found = i;
	}
	if (found < 0 && rc != -EINVAL)
		fm_die("SLOT_INFO of slot %d: %s", i, strerror(-rc));
	close(fd);
	return found;
}

u64 fm_slot_resets(int slot)
{
	struct fermata_slot_info info;
	int fd = must_open();
	int rc = slot_info(fd, slot, &info);

	close(fd);
	if (rc)
		fm_die("SLOT_INFO: %s", strerror(-rc));
	return info.resets;
}

/* --- contexts ------------------------------------------------------------------- */

u64 fm_token(void)
{
	static u32 n;

	return (u64)getpid() << 16 | (++n & 0xffff);
}

void fm_ctx_setup(struct fm_ctx *c, enum fm_engine engine, int slot)
{
	struct fermata_setup setup = { .size = sizeof(setup) };

	memset(c, 0, sizeof(*c));
	c->engine = engine;
	c->slot = slot >= 0 ? slot : fm_slot_of(engine);
	if (c->slot < 0)
		fm_die("the card has no slot with engine %d", engine);
	c->token = fm_token();
	c->fd = must_open();
	setup.afu_id_lo = fm_afu[engine][0];
	setup.afu_id_hi = fm_afu[engine][1];
	setup.slot_mask = 1U << c->slot;
	fm_must(c->fd, FERMATA_IOC_SETUP, &setup, "SETUP");
}

void fm_ctx_snapshot(struct fm_ctx *c)
{
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	int rc;

	fm_must(c->fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap, "SNAPSHOT_CREATE");
	/* A slow emulator must not be taken for a hung engine. */
	rc = fm_param_set(c->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	if (rc && rc != -EPERM)
		fm_die("PARAM: %s", strerror(-rc));
}

int fm_arena_own(struct fm_ctx *c, void *mem, size_t len)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = len,
		.user_addr = (uintptr_t)mem
	};
	int rc = fm_ioctl(c->fd, FERMATA_IOC_ARENA_CREATE, &arena);

	if (rc)
		return rc;
	c->mem = mem;
	c->len = len;
	c->base = (uintptr_t)mem;
	fm_agent_add(getpid(), mem, len, c->token);
	return 0;
}

int fm_ctx_own(struct fm_ctx *c, enum fm_engine engine, void *mem, size_t len)
{
	int rc;

	fm_ctx_setup(c, engine, -1);
	rc = fm_arena_own(c, mem, len);
	if (rc)
		close(c->fd);
	else
		fm_ctx_snapshot(c);
	return rc;
}

int fm_ctx_share(struct fm_ctx *c, const struct fm_ctx *of, size_t offset, size_t len, u64 base)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_SHARED, .length = len,
		.offset = offset, .fd = of->fd
	};
	int rc;

	fm_ctx_setup(c, of->engine, -1);
	if (base) {
		arena.flags |= FERMATA_ARENA_FIXED_BASE;
		arena.device_base = base;
	}
	rc = fm_ioctl(c->fd, FERMATA_IOC_ARENA_CREATE, &arena);
	if (rc) {
		close(c->fd);
		return rc;
	}
	c->token = of->token;
	c->len = len;
	c->base = base;
	c->mem = of->mem + offset;
	if (!base) {
		c->mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, arena.mmap_offset);
		if (c->mem == MAP_FAILED)
			fm_die("mmap of a shared arena: %s", strerror(errno));
		c->base = (uintptr_t)c->mem;
	}
	fm_ctx_snapshot(c);
	return 0;
}

void fm_ctx_unshare(struct fm_ctx *c)
{
	munmap(c->mem, c->len);
	close(c->fd);
}

void fm_ctx_new_on(struct fm_ctx *c, enum fm_engine engine, size_t len, int slot)
{
	struct fermata_arena_create arena = { .size = sizeof(arena) };
	struct fermata_status st;

	fm_ctx_setup(c, engine, slot);
	c->len = (len + FM_PAGE - 1) & ~(FM_PAGE - 1);
	arena.length = c->len;
	fm_must(c->fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	c->off = arena.mmap_offset;
	c->mem = mmap(NULL, c->len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, c->off);
	if (c->mem == MAP_FAILED)
		fm_die("mmap of the arena: %s", strerror(errno));
	fm_status(c->fd, &st);
	c->base = st.device_base;
	if (c->base != (uintptr_t)c->mem)
		fm_die("device_base %llx, mapped at %p", (unsigned long long)c->base, c->mem);
	fm_agent_add(getpid(), c->mem, c->len, c->token);
	fm_ctx_snapshot(c);
}

void fm_ctx_new(struct fm_ctx *c, enum fm_engine engine, size_t len)
{
	fm_ctx_new_on(c, engine, len, -1);
}

void fm_ctx_close(struct fm_ctx *c)
{
	if (c->mem)
		munmap(c->mem, c->len);
	close(c->fd);
	fm_agent_gone(c->token);
	memset(c, 0, sizeof(*c));
	c->fd = -1;
}

/* --- the agent ---------------------------------------------------------------------- */

static u64 gpa_of(int fd, uintptr_t va)
{
	u64 entry = 0;

	if (pread(fd, &entry, 8, (off_t)(va / FM_PAGE) * 8) != 8)
		fm_die("pagemap: %s", strerror(errno));
	if (!(entry >> 63))
		fm_die("pagemap: page %lx is not present", (unsigned long)va);
	entry &= (1ULL << 55) - 1;
	if (!entry)
		fm_die("pagemap: no frame numbers, run as root");
	return entry * FM_PAGE;
}

static int open_pagemap(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fm_die("%s: %s", path, strerror(errno));
	return fd;
}

u64 fm_gpa(const void *mem)
{
	int fd = open_pagemap(getpid());
	u64 gpa = gpa_of(fd, (uintptr_t)mem & ~(FM_PAGE - 1));

	close(fd);
	return gpa + ((uintptr_t)mem & (FM_PAGE - 1));
}

static void send_ranges(u64 token, char *list)
{
	if (*list)
		card_cmd("tenant token=0x%llx pages=%s", (unsigned long long)token, list + 1);
	*list = 0;
}

void fm_agent_add(pid_t pid, const void *mem, size_t len, u64 token)
{
	char list[900] = "";
	u64 from = 0, to = 0, gpa;
	size_t off, n = 0;
	u32 i;
	int fd;

	if (!card_present())
		return;
	fd = open_pagemap(pid);
	for (off = 0; off <= len; off += FM_PAGE) {
		if (off < len && pid == getpid())
			(void)((const volatile u8 *)mem)[off];
		gpa = off < len ? gpa_of(fd, (uintptr_t)mem + off) : 0;
		if (off < len && to && gpa == to) {
			to += FM_PAGE;
			continue;
		}
		if (to)
			n += snprintf(list + n, sizeof(list) - n, ",0x%llx+0x%llx",
				      (unsigned long long)from, (unsigned long long)(to - from));
		if (n > sizeof(list) - 64 || off >= len) {
			send_ranges(token, list);
			n = 0;
		}
		from = gpa;
		to = gpa + FM_PAGE;
	}
	close(fd);
	for (i = 0; i < FM_TOKENS; i++) {
		u64 none = 0;

		if (__atomic_compare_exchange_n(&fm_sh->token[i], &none, token, false,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return;
	}
	fm_die("too many tenants at once");
}

void fm_agent_gone(u64 token)
{
	u32 i;

	if (!card_present())
		return;
	for (i = 0; i < FM_TOKENS; i++) {
		if (fm_sh->token[i] != token)
			continue;
		fm_sh->token[i] = 0;
		card_cmd("tenant token=0x%llx gone", (unsigned long long)token);
	}
}

void fm_agent_all_gone(void)
{
	u32 i;

	for (i = 0; i < FM_TOKENS; i++)
		if (fm_sh->token[i])
			fm_agent_gone(fm_sh->token[i]);
}

/* --- processes ------------------------------------------------------------------------- */

void fm_fork(struct fm_child *ch)
{
	int up[2], down[2];
	pid_t parent = getpid();

	if (pipe2(up, O_CLOEXEC) || pipe2(down, O_CLOEXEC))
		fm_die("pipe: %s", strerror(errno));
	fflush(stdout);
	ch->pid = fork();
	if (ch->pid < 0)
		fm_die("fork: %s", strerror(errno));
	ch->rd = ch->pid ? up[0] : down[0];
	ch->wr = ch->pid ? down[1] : up[1];
	close(ch->pid ? up[1] : up[0]);
	close(ch->pid ? down[0] : down[1]);
	if (!ch->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
}

void fm_say(struct fm_child *ch, u64 word)
{
	if (write(ch->wr, &word, 8) != 8)
		fm_die("the other process is gone");
}

u64 fm_hear(struct fm_child *ch)
{
	struct pollfd p = { .fd = ch->rd, .events = POLLIN };
	u64 word;

	if (poll(&p, 1, FM_GUARD_MS) != 1)
		fm_die("the other process is silent");
	if (read(ch->rd, &word, 8) != 8)
		fm_die("the other process ended early");
	return word;
}

int fm_reap(struct fm_child *ch)
{
	return fm_reap_within(ch, FM_GUARD_MS * FM_MS);
}

int fm_reap_within(struct fm_child *ch, u64 ns)
{
	u64 begin = fm_now();
	int status;
	pid_t got;

	for (;;) {
		got = waitpid(ch->pid, &status, WNOHANG);
		if (got == ch->pid)
			break;
		if (got < 0)
			fm_die("waitpid: %s", strerror(errno));
		if (fm_now() - begin > ns)
			fm_die("process %d does not end", (int)ch->pid);
		fm_sleep_us(500);
	}
	close(ch->rd);
	close(ch->wr);
	return status;
}

void fm_kill(struct fm_child *ch)
{
	kill(ch->pid, SIGKILL);
	fm_tally("kills", 1);
	fm_reap(ch);
}

void fm_until_blocked(pid_t tid, long call)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	char path[64];
	FILE *file;
	long nr;

	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)tid);
	for (;;) {
		/* The number of the system call that it sleeps in, or "running". */
		nr = -1;
		file = fopen(path, "r");
		if (file && fscanf(file, "%ld", &nr) != 1)
			nr = -1;
		if (file)
			fclose(file);
		if (nr == call)
			return;
		if (fm_now() > end)
			fm_die("thread %d does not sleep in call %ld", (int)tid, call);
		fm_sleep_us(200);
	}
}

static void *thread_main(void *arg)
{
	struct fm_thread *t = arg;

	__atomic_store_n(&t->tid, gettid(), __ATOMIC_RELEASE);
	t->run(t->arg);
	return NULL;
}

void fm_thread_asleep(struct fm_thread *t, void (*run)(void *arg), void *arg, long call)
{
	pid_t tid;

	*t = (struct fm_thread){ .run = run, .arg = arg };
	if (pthread_create(&t->thread, NULL, thread_main, t))
		fm_die("pthread_create");
	while (!(tid = __atomic_load_n(&t->tid, __ATOMIC_ACQUIRE)))
		fm_sleep_us(100);
	fm_until_blocked(tid, call);
}

/* --- the fixture ---------------------------------------------------------------------------- */

static void reset_card(void)
{
	card_cmd("fault slot=all clear");
	card_cmd("set slot=all speed=0 save_us=0 restore_us=0 frame_bytes=0 frame_save_ns=0 frame_restore_ns=0%s",
		 card_base() ? " start_lag_us=0" : "");
}

const char *fm_sysfs_path(int slot, const char *name)
{
	static _Thread_local char path[512];
	struct stat st;
	int len;

	if (stat(fm_dev(), &st))
		fm_die("%s: %s", fm_dev(), strerror(errno));
	len = snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/", major(st.st_rdev),
		       minor(st.st_rdev));
	if (slot >= 0)
		len += snprintf(path + len, sizeof(path) - len, "slot%d/", slot);
	snprintf(path + len, sizeof(path) - len, "%s", name);
	return path;
}

int fm_policy_set(const char *name)
{
	return fm_put(fm_sysfs_path(-1, "policy"), name);
}

int fm_boost_set(u64 ms)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)ms);
	return fm_put(fm_sysfs_path(-1, "boost_ms"), text);
}

void fm_policy_get(struct fm_policy *policy)
{
	unsigned long long ms;
	FILE *name, *boost;

	memset(policy, 0, sizeof(*policy));
	name = fopen(fm_sysfs_path(-1, "policy"), "re");
	boost = fopen(fm_sysfs_path(-1, "boost_ms"), "re");
	if (!name || fscanf(name, "%15s", policy->name) != 1 ||
	    !boost || fscanf(boost, "%llu", &ms) != 1)
		fm_die("the policy cannot be read");
	policy->boost_ms = ms;
	fclose(name);
	fclose(boost);
}

/* A test that dies may leave another policy behind: teardown restores the one before it. */
static void keep_policy(struct fm_policy *policy)
{
	policy->name[0] = 0;
	if (!access(fm_dev(), F_OK) && !access(fm_sysfs_path(-1, "policy"), R_OK))
		fm_policy_get(policy);
}

static void restore_policy(const struct fm_policy *policy)
{
	if (!policy->name[0] || access(fm_dev(), F_OK))
		return;
	fm_policy_set(policy->name);
	fm_boost_set(policy->boost_ms);
}

const char *fm_setup(struct fm_shared *sh, bool card)
{
	static char why[600];
	pthread_mutexattr_t attr;
	u64 n;

	fm_sh = sh;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&sh->lock, &attr);
	if (access(fm_dev(), F_OK)) {
		snprintf(why, sizeof(why), "no %s", fm_dev());
		return why;
	}
	keep_policy(&sh->policy);
	if (!card_present()) {
		if (card || fm_require_card())
			return "no control socket of an emulated card";
		return NULL;
	}
	n = card_violations();
	if (n) {
		snprintf(why, sizeof(why), "%llu violations since the last test: %s",
			 (unsigned long long)n, card_why());
		card_cmd("violations clear");
		fm_die("%s", why);
	}
	reset_card();
	card_cmd("enforce on");
	return NULL;
}

static void too_long(int sig)
{
	static const char text[] = "# it took too long\n";

	(void)sig;
	(void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

void fm_end_before(int timeout)
{
	fflush(stdout);
	signal(SIGALRM, too_long);
	alarm(timeout - timeout / 4);
}

const char *fm_teardown(struct fm_shared *sh)
{
	static char why[600];
	struct fermata_card_info info = { .size = sizeof(info) };
	u64 end = fm_now() + 10000 * FM_MS;
	bool revived = false;
	u64 n;
	int fd;

	fm_sh = sh;
	fm_trace_close();
	fm_cgroups_remove();
	restore_policy(&sh->policy);
	if (!card_present())
		return NULL;
	fm_pci();
	reset_card();
	*why = 0;
	/* Every process of the test is dead or dying: wait for its contexts. */
	for (;;) {
		fd = fm_open_dev(0);
		if (fd >= 0) {
			int rc = fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &info);

			close(fd);
			if (!rc && !info.contexts)
				break;
			if (rc)
				fd = rc;
		}
		if (fd < 0 && !revived) {
			/* The test ended while the card was pretending to be dead, or unbound. */
			card_fault(0, "dead=0");
			fm_unbind();
			fm_bind();
			revived = true;
			snprintf(why, sizeof(why), "the card was gone after the test");
			continue;
		}
		if (fm_now() > end) {
			if (fd < 0)
				snprintf(why, sizeof(why), "the card is gone after the test: %s",
					 strerror(-fd));
			else
				snprintf(why, sizeof(why), "%u contexts are left after the test",
					 info.contexts);
			break;
		}
		fm_sleep_us(1000);
	}
	fm_agent_all_gone();
	n = card_violations();
	if (n) {
		size_t at = strlen(why);

		fm_tally("violations", n);
		snprintf(why + at, sizeof(why) - at, "%s%llu violations: %s; %s",
			 at ? "; " : "", (unsigned long long)n, card_cmd("violations"),
			 card_why());
		card_cmd("violations clear");
	}
	return *why ? why : NULL;
}
