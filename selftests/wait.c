// SPDX-License-Identifier: GPL-2.0
/*
 * Notification of a job's end: the call, poll(), eventfd, deadlines; signals, O_NONBLOCK,
 * threads, passed descriptors.
 */
#include "kselftest_harness.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "lib/fm.h"

FM_FIXTURE_ANY(wait);

static void start_endless(struct fm_ctx *c)
{
	int rc;

	fm_ctx_new(c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c->slot, 1);
	fm_job_endless(c);
	rc = fm_start(c->fd);
	if (rc)
		fm_die("START: %s", strerror(-rc));
}

static int poll_now(int fd, int timeout)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };

	return poll(&p, 1, timeout) < 0 ? -errno : p.revents;
}

FM_TEST(wait, deadline_and_events)
{
	struct fermata_wait w;
	struct fm_ctx c;
	u64 before;

	start_endless(&c);
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	before = fm_now();
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, before + 20 * FM_MS, NULL));
	EXPECT_LE(before + 20 * FM_MS, fm_now());
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	ASSERT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE | FERMATA_EVENT_HELD, UINT64_MAX, &w));
	EXPECT_EQ(FERMATA_EVENT_HELD, w.happened);
	EXPECT_EQ(0, w.error);
	/* Events that were not asked for are not reported. */
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	ASSERT_EQ(0, fm_resume(c.fd));
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_HELD, 0, NULL));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	ASSERT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE | FERMATA_EVENT_HELD, UINT64_MAX, &w));
	EXPECT_EQ(FERMATA_EVENT_DONE, w.happened);
	/* The event holds until the next START, although the deadline has passed long ago. */
	EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 1, NULL));
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

FM_TEST(wait, poll)
{
	struct fm_ctx c;

	start_endless(&c);
	EXPECT_EQ(0, poll_now(c.fd, 0));
	EXPECT_EQ(0, poll_now(c.fd, 10));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	EXPECT_EQ(POLLPRI, poll_now(c.fd, FM_GUARD_MS));
	ASSERT_EQ(0, fm_resume(c.fd));
	EXPECT_EQ(0, poll_now(c.fd, 0));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	EXPECT_EQ(POLLIN, poll_now(c.fd, FM_GUARD_MS));
	EXPECT_EQ(POLLIN, poll_now(c.fd, 0));
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	EXPECT_EQ(0, poll_now(c.fd, 0));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	EXPECT_EQ(POLLIN, poll_now(c.fd, FM_GUARD_MS));
}

FM_TEST(wait, poll_before_any_job)
{
	struct fm_ctx c;
	int fd = fm_open_dev(0);

	EXPECT_EQ(0, poll_now(fd, 0));
	fm_ctx_new(&c, FM_LIST, 4096);
	EXPECT_EQ(0, poll_now(c.fd, 0));
}

static int set_eventfd(int fd, u32 events, int efd)
{
	struct fermata_eventfd arg = { .size = sizeof(arg), .events = events, .fd = efd };

	return fm_ioctl(fd, FERMATA_IOC_EVENTFD, &arg);
}

FM_TEST(wait, eventfd_counts_events)
{
	int e = eventfd(0, EFD_NONBLOCK), other = eventfd(0, EFD_NONBLOCK), i;
	struct pollfd p = { .fd = e, .events = POLLIN };
	struct fm_ctx c;
	u64 n = 0;

	start_endless(&c);
	ASSERT_EQ(0, set_eventfd(c.fd, FERMATA_EVENT_DONE | FERMATA_EVENT_HELD, e));
	EXPECT_EQ(-1, read(e, &n, 8));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	ASSERT_EQ(1, poll(&p, 1, FM_GUARD_MS));
	/* The event holds when the eventfd is signalled. */
	EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_HELD, 0, NULL));
	ASSERT_EQ(8, read(e, &n, 8));
	EXPECT_EQ(1, n);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	ASSERT_EQ(1, poll(&p, 1, FM_GUARD_MS));
	ASSERT_EQ(8, read(e, &n, 8));
	EXPECT_EQ(1, n);
	EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));

	/* Another eventfd, for only one of the events. */
	ASSERT_EQ(0, set_eventfd(c.fd, FERMATA_EVENT_DONE, other));
	for (i = 0; i < 3; i++) {
		fm_job_endless(&c);
		ASSERT_EQ(0, fm_start(c.fd));
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		ASSERT_EQ(0, fm_resume(c.fd));
		fm_list_cut(&c, FM_ENDLESS_NODES);
		p.fd = other;
		ASSERT_EQ(1, poll(&p, 1, FM_GUARD_MS));
		ASSERT_EQ(8, read(other, &n, 8));
		EXPECT_EQ(1, n);
	}
	EXPECT_EQ(-1, read(e, &n, 8));

	/* No eventfd any more. */
	ASSERT_EQ(0, set_eventfd(c.fd, 0, -1));
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(-1, read(other, &n, 8));
	/* The driver has its own reference, so the descriptor may be closed. */
	ASSERT_EQ(0, set_eventfd(c.fd, FERMATA_EVENT_DONE, e));
	close(e);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

FM_TEST(wait, nonblocking_file)
{
	struct fermata_wait w;
	struct fm_ctx c;

	start_endless(&c);
	ASSERT_EQ(0, fcntl(c.fd, F_SETFL, O_NONBLOCK));
	EXPECT_EQ(-EAGAIN, fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
	EXPECT_EQ(-EAGAIN, fm_wait_until(c.fd, FERMATA_EVENT_HELD, UINT64_MAX, NULL));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	EXPECT_EQ(POLLPRI, poll_now(c.fd, FM_GUARD_MS));
	ASSERT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_HELD, UINT64_MAX, &w));
	EXPECT_EQ(FERMATA_EVENT_HELD, w.happened);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	EXPECT_EQ(POLLIN, poll_now(c.fd, FM_GUARD_MS));
	EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
}

static volatile int signals;

static void on_signal(int sig)
{
	signals++;
}

struct waiter {
	struct fm_thread t;
	int fd;
	u64 deadline;
	int rc;
	volatile bool back;
	struct fermata_wait w;
};

static void waiter(void *arg)
{
	struct waiter *me = arg;

	me->rc = fm_wait_until(me->fd, FERMATA_EVENT_DONE, me->deadline, &me->w);
	me->back = true;
}

/* The deadline must leave a busy machine enough time to see the waiter asleep. */
static void waiter_start(struct waiter *me, int fd, u64 deadline)
{
	memset(me, 0, sizeof(*me));
	me->fd = fd;
	me->deadline = deadline;
	fm_thread_asleep(&me->t, waiter, me, SYS_ioctl);
}

static void handle(int flags)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = flags };

	signals = 0;
	sigaction(SIGUSR1, &sa, NULL);
}

FM_TEST(wait, signal_without_sa_restart_is_eintr)
{
	struct waiter me;
	struct fm_ctx c;

	start_endless(&c);
	handle(0);
	waiter_start(&me, c.fd, UINT64_MAX);
	pthread_kill(me.t.thread, SIGUSR1);
	pthread_join(me.t.thread, NULL);
	EXPECT_EQ(-EINTR, me.rc);
	EXPECT_EQ(1, signals);
	EXPECT_EQ(0, me.w.happened);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

FM_TEST(wait, signal_with_sa_restart_restarts)
{
	struct waiter me;
	struct fm_ctx c;
	int i;

	start_endless(&c);
	handle(SA_RESTART);
	waiter_start(&me, c.fd, UINT64_MAX);
	for (i = 0; i < 5; i++) {
		pthread_kill(me.t.thread, SIGUSR1);
		while (signals <= i)
			fm_sleep_us(200);
		EXPECT_FALSE(me.back);
	}
	fm_list_cut(&c, FM_ENDLESS_NODES);
	pthread_join(me.t.thread, NULL);
	EXPECT_EQ(0, me.rc);
	EXPECT_EQ(FERMATA_EVENT_DONE, me.w.happened);
}

/* A restarted call keeps its deadline, and does not wait for the whole time again. */
FM_TEST(wait, restart_keeps_the_deadline)
{
	struct waiter me;
	struct fm_ctx c;
	int i;

	start_endless(&c);
	handle(SA_RESTART);
	waiter_start(&me, c.fd, fm_now() + 1000 * FM_MS);
	for (i = 0; !me.back && i < 20000; i++) {
		pthread_kill(me.t.thread, SIGUSR1);
		fm_sleep_us(2000);
	}
	EXPECT_TRUE(me.back);
	pthread_join(me.t.thread, NULL);
	EXPECT_EQ(-ETIMEDOUT, me.rc);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

/* Moves this process to a time namespace whose CLOCK_MONOTONIC is ahead by this many seconds. */
static int clock_ahead(int seconds)
{
	int offsets, ns;

	if (unshare(CLONE_NEWTIME))
		return -errno;
	offsets = open("/proc/self/timens_offsets", O_WRONLY);
	if (offsets < 0 || dprintf(offsets, "monotonic %d 0", seconds) < 0)
		return -errno;
	close(offsets);
	ns = open("/proc/self/ns/time_for_children", O_RDONLY);
	if (ns < 0 || setns(ns, CLONE_NEWTIME))
		return -errno;
	close(ns);
	return 0;
}

/* A deadline is in the time of the caller's clock. */
FM_TEST(wait, deadline_of_the_callers_time_namespace)
{
	struct fm_child ch;
	struct fm_ctx c;
	int status;

	start_endless(&c);
	fm_fork(&ch);
	if (!ch.pid) {
		u64 outside = fm_now(), end;

		status = clock_ahead(3600);
		fm_say(&ch, !status);
		if (status)
			_exit(4);
		end = fm_now() + 20 * FM_MS;
		if (end < outside + 3600000 * FM_MS)
			_exit(5);
		if (fm_wait_until(c.fd, FERMATA_EVENT_DONE, end, NULL) != -ETIMEDOUT)
			_exit(6);
		if (fm_now() < end)
			_exit(7);
		/* A time before the clock began: the call only checks the state. */
		if (fm_wait_until(c.fd, FERMATA_EVENT_DONE, 1, NULL) != -ETIMEDOUT)
			_exit(8);
		fm_say(&ch, 1);
		_exit(fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL) ? 9 : 0);
	}
	if (!fm_hear(&ch))
		SKIP(return, "no time namespaces");
	fm_hear(&ch);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

FM_TEST(wait, all_waiters_are_woken)
{
	struct waiter me[4];
	struct fm_ctx c;
	int i, copy;

	start_endless(&c);
	copy = dup(c.fd);
	for (i = 0; i < 4; i++)
		waiter_start(&me[i], i & 1 ? copy : c.fd, UINT64_MAX);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	for (i = 0; i < 4; i++) {
		pthread_join(me[i].t.thread, NULL);
		EXPECT_EQ(0, me[i].rc);
		EXPECT_EQ(FERMATA_EVENT_DONE, me[i].w.happened);
	}
	close(copy);
}

/* The call holds a reference to the file, which another thread's close() does not end. */
FM_TEST(wait, close_while_another_thread_waits)
{
	struct waiter me;
	struct fm_ctx c;

	start_endless(&c);
	waiter_start(&me, c.fd, fm_now() + 2000 * FM_MS);
	close(c.fd);
	pthread_join(me.t.thread, NULL);
	EXPECT_EQ(-ETIMEDOUT, me.rc);
	EXPECT_EQ(-EBADF, fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
	munmap(c.mem, c.len);
}

static void send_fd(int sock, int fd)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u = {};
	char byte = 0;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u,
		.msg_controllen = sizeof(u)
	};

	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	u.h.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&u.h), &fd, sizeof(fd));
	if (sendmsg(sock, &m, 0) != 1)
		fm_die("sendmsg: %s", strerror(errno));
}

static int recv_fd(int sock)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u;
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u,
		.msg_controllen = sizeof(u)
	};
	int fd;

	if (recvmsg(sock, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(&u.h), sizeof(fd));
	return fd;
}

/* The process that has the descriptor has the context, whichever process made it. */
FM_TEST(wait, descriptor_passed_to_another_process)
{
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c;
	int pair[2];

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	fm_fork(&ch);
	if (!ch.pid) {
		int fd = recv_fd(pair[1]);

		if (fd < 0 || fm_start(fd))
			_exit(1);
		fm_wait(fd, FERMATA_EVENT_DONE);
		_exit(fm_state(fd) == FERMATA_STATE_DONE ? 0 : 2);
	}
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 3000, 4, &e);
	send_fd(pair[0], c.fd);
	EXPECT_EQ(0, fm_reap(&ch));
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	/* The context has outlived the receiver. */
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* The maker closes the context; the receiver of the descriptor can still use it. */
FM_TEST(wait, context_lives_as_long_as_the_last_descriptor)
{
	struct fermata_card_info info;
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c.slot, 1);
	fm_job_list(&c, 100, 20000, 4, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_hear(&ch);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		_exit(fm_state(c.fd) == FERMATA_STATE_DONE ? 0 : 2);
	}
	close(c.fd);
	munmap(c.mem, c.len);
	fm_card_info(&info);
	EXPECT_EQ(1, info.contexts);
	fm_say(&ch, 1);
	EXPECT_EQ(0, fm_reap(&ch));
	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
}

TEST_HARNESS_MAIN
