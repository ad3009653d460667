/* SPDX-License-Identifier: GPL-2.0 */
/* What every call must say when the card is gone. Shared by unbind and cardfault. */
#ifndef _FM_GONE_H
#define _FM_GONE_H

#include "calls.h"
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

struct fm_gone_poller {
	struct fm_thread t;
	int fd;
	short revents;
};

static void fm_gone_poll(void *arg)
{
	struct fm_gone_poller *poller = arg;
	struct pollfd p = { .fd = poller->fd, .events = POLLIN };
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int rc;

	rc = poll(&p, 1, FM_GUARD_MS);
	/* At the end of its time poll() looks again, and would find what it was not told. */
	poller->revents = rc == 1 && fm_now() < end ? p.revents : 0;
}

/* Returns when the poller sleeps: one that comes later would see for itself. */
static inline void fm_gone_poller_start(struct fm_gone_poller *poller, int fd)
{
	poller->fd = fd;
	fm_thread_asleep(&poller->t, fm_gone_poll, poller, SYS_poll);
}

#endif /* _FM_GONE_H */
