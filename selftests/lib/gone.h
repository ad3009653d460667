/* SPDX-License-Identifier: GPL-2.0 */
/* What every call must say when the card is gone. Shared by unbind and cardfault. */
#ifndef _FM_GONE_H
#define _FM_GONE_H

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

static sigjmp_buf fm_bus_jump;

static void fm_on_bus(int sig)
{
	siglongjmp(fm_bus_jump, sig);
}

/* The signal that an access gives, or 0. */
static inline int fm_access_signal(u8 *mem)
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

/* 0, or the number of calls that said something else. */
static inline int fm_calls_not_gone(int fd)
{
	static u8 buf[16];
	struct fermata_reg reg = { .offset = 0x38 };
	struct fermata_card_info card = { .size = sizeof(card) };
	struct fermata_slot_info slot = { .size = sizeof(slot) };
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 4096 };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fermata_snapshot_read read = {
		.size = sizeof(read), .length = 16, .buffer = (uintptr_t)buf
	};
	struct fermata_snapshot_write write = {
		.size = sizeof(write), .length = 16, .buffer = (uintptr_t)buf
	};
	struct fermata_regs regs = {
		.size = sizeof(regs), .count = 1, .regs = (uintptr_t)&reg
	};
	struct fermata_start start = { .size = sizeof(start) };
	struct fermata_preempt preempt = { .size = sizeof(preempt) };
	struct fermata_resume resume = { .size = sizeof(resume) };
	struct fermata_doorbell doorbell = { .size = sizeof(doorbell) };
	struct fermata_status status = { .size = sizeof(status) };
	struct fermata_wait wait = {
		.size = sizeof(wait), .events = FERMATA_EVENT_DONE, .deadline = UINT64_MAX
	};
	struct fermata_eventfd event = { .size = sizeof(event), .fd = -1 };
	struct fermata_group group = { .size = sizeof(group) };
	struct fermata_exclusive exclusive = { .size = sizeof(exclusive), .slot_mask = 1 };
	struct fermata_gang gang = { .size = sizeof(gang) };
	struct fermata_hint hint = { .size = sizeof(hint) };
	struct fermata_context_info info = { .size = sizeof(info) };
	struct fermata_histogram histogram = {
		.size = sizeof(histogram), .kind = FERMATA_HISTOGRAM_WAIT
	};
	struct fermata_control control = {
		.size = sizeof(control), .operation = FERMATA_CONTROL_PREEMPT
	};
	struct fermata_param param = {
		.size = sizeof(param), .param = FERMATA_PARAM_TIMESLICE, .value = 1000000
	};
	struct fermata_reserve reserve = { .size = sizeof(reserve) };
	struct fermata_policy policy = {
		.size = sizeof(policy), .name = FERMATA_POLICY_FAIR, .guard_ns = FERMATA_GUARD_KEEP
	};
	const struct {
		const char *name;
		unsigned long cmd;
		void *arg;
	} calls[] = {
		{ "CARD_INFO", FERMATA_IOC_CARD_INFO, &card },
		{ "SLOT_INFO", FERMATA_IOC_SLOT_INFO, &slot },
		{ "SETUP", FERMATA_IOC_SETUP, &setup },
		{ "ARENA_CREATE", FERMATA_IOC_ARENA_CREATE, &arena },
		{ "SNAPSHOT_CREATE", FERMATA_IOC_SNAPSHOT_CREATE, &snap },
		{ "SNAPSHOT_READ", FERMATA_IOC_SNAPSHOT_READ, &read },
		{ "SNAPSHOT_WRITE", FERMATA_IOC_SNAPSHOT_WRITE, &write },
		{ "REGS_WRITE", FERMATA_IOC_REGS_WRITE, &regs },
		{ "REGS_READ", FERMATA_IOC_REGS_READ, &regs },
		{ "RESULTS", FERMATA_IOC_RESULTS, &regs },
		{ "REGS_LIST", FERMATA_IOC_REGS_LIST, &regs },
		{ "START", FERMATA_IOC_START, &start },
		{ "PREEMPT", FERMATA_IOC_PREEMPT, &preempt },
		{ "RESUME", FERMATA_IOC_RESUME, &resume },
		{ "DOORBELL", FERMATA_IOC_DOORBELL, &doorbell },
		{ "STATUS", FERMATA_IOC_STATUS, &status },
		{ "WAIT", FERMATA_IOC_WAIT, &wait },
		{ "EVENTFD", FERMATA_IOC_EVENTFD, &event },
		{ "HINT", FERMATA_IOC_HINT, &hint },
		{ "PARAM_GET", FERMATA_IOC_PARAM_GET, &param },
		{ "PARAM_SET", FERMATA_IOC_PARAM_SET, &param },
		{ "CONTEXT_INFO", FERMATA_IOC_CONTEXT_INFO, &info },
		{ "HISTOGRAM", FERMATA_IOC_HISTOGRAM, &histogram },
		{ "CONTROL", FERMATA_IOC_CONTROL, &control },
		{ "RESERVE", FERMATA_IOC_RESERVE, &reserve },
		{ "RESERVE_GET", FERMATA_IOC_RESERVE_GET, &reserve },
		{ "POLICY_GET", FERMATA_IOC_POLICY_GET, &policy },
		{ "POLICY_SET", FERMATA_IOC_POLICY_SET, &policy },
		{ "GROUP", FERMATA_IOC_GROUP, &group },
		{ "EXCLUSIVE", FERMATA_IOC_EXCLUSIVE, &exclusive },
		{ "GANG", FERMATA_IOC_GANG, &gang },
	};
	int bad = 0, rc;
	size_t i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		rc = fm_ioctl(fd, calls[i].cmd, calls[i].arg);
		if (rc == -ENODEV)
			continue;
		bad++;
		printf("# %s of a card that is gone: %s\n", calls[i].name,
		       rc ? strerror(-rc) : "success");
	}
	return bad;
}

static inline int fm_poll_gone(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };

	if (poll(&p, 1, FM_GUARD_MS) < 0)
		return -errno;
	return p.revents & (POLLERR | POLLHUP);
}

struct fm_gone_waiter {
	struct fm_thread t;
	int fd;
	int rc;
};

static void fm_gone_wait(void *arg)
{
	struct fm_gone_waiter *w = arg;

	w->rc = fm_wait_until(w->fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
}

/* The context has a job that does not end before the card does. */
static inline void fm_gone_waiter_start(struct fm_gone_waiter *w, int fd)
{
	w->fd = fd;
	fm_thread_asleep(&w->t, fm_gone_wait, w, SYS_ioctl);
}

#endif /* _FM_GONE_H */
