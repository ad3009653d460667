// SPDX-License-Identifier: GPL-2.0
/*
 * Holds (FERMATA_IOC_HOLD): a descriptor keeps the jobs of a context off slots until it is closed,
 * by whatever way its holder ends; nothing else ends a hold.
 */
#include "kselftest_harness.h"
#include <grp.h>
#include <signal.h>
#include <sys/syscall.h>
#include "lib/sched.h"

FM_FIXTURE_ANY(hold);

#define USER	65534

/* A context whose endless job is on a slot, where the test can see that. */
static void run_endless(struct fm_ctx *c)
{
	fm_ctx_new(c, FM_LIST, 64 * 1024);
	fm_job_endless(c);
	fm_must_start(c);
	fm_until_state(c->fd, FERMATA_STATE_RUNNING);
}

static u32 attributes(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.attributes;
}

/* Whether the job stays off slots for a while. */
static bool stays_held(int fd)
{
	fm_sleep_us(20000);
	return fm_state(fd) == FERMATA_STATE_HELD && attributes(fd) == FERMATA_STATUS_HOLD;
}

FM_TEST(hold, ends_when_the_descriptor_is_closed)
{
	int hold, again;
	struct fm_ctx c;

	run_endless(&c);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	EXPECT_EQ(FD_CLOEXEC, fcntl(hold, F_GETFD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_TRUE(stays_held(c.fd));
	/* The last duplicate counts. */
	again = dup(hold);
	ASSERT_LE(0, again);
	close(hold);
	EXPECT_TRUE(stays_held(c.fd));
	close(again);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	EXPECT_EQ(0, attributes(c.fd));
	fm_end_endless(&c);
}

/* It is only what it says: no context, and no file. */
FM_TEST(hold, descriptor_does_nothing_else)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_SHARED, .length = FM_PAGE
	};
	char text[256], number[32];
	struct fm_ctx c, other;
	int hold, fd;
	u64 word = 0;
	ssize_t n;

	fm_ctx_new(&c, FM_LIST, 4096);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	EXPECT_EQ(-1, read(hold, &word, sizeof(word)));
	EXPECT_EQ(-1, write(hold, &word, sizeof(word)));
	EXPECT_EQ(-ENOTTY, fm_resume(hold));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, FM_PAGE, PROT_READ, MAP_SHARED, hold, 0));
	fm_ctx_setup(&other, FM_LIST, -1);
	arena.fd = hold;
	EXPECT_EQ(-EINVAL, fm_ioctl(other.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	close(other.fd);
	snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", hold);
	fd = open(text, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	n = read(fd, text, sizeof(text) - 1);
	ASSERT_LT(0, n);
	text[n] = 0;
	close(fd);
	snprintf(number, sizeof(number), "fermata-hold:\t%u\n", fm_number(c.fd));
	EXPECT_NE(NULL, strstr(text, number));
	close(hold);
}

/* RESUME ends what PREEMPT has begun, and no hold; each waits for the other. */
FM_TEST(hold, resume_does_not_end_it)
{
	struct fm_ctx c;
	int hold;

	run_endless(&c);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_resume(c.fd));
	EXPECT_TRUE(stays_held(c.fd));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	close(hold);
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	EXPECT_EQ(0, attributes(c.fd));
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	/* The other way round. */
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_TRUE(stays_held(c.fd));
	close(hold);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	fm_end_endless(&c);
}

FM_TEST(hold, holds_count)
{
	int hold[3], i;
	struct fm_ctx c;

	run_endless(&c);
	for (i = 0; i < 3; i++) {
		hold[i] = fm_hold_fd(c.fd);
		ASSERT_LE(0, hold[i]);
	}
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	close(hold[1]);
	close(hold[0]);
	EXPECT_TRUE(stays_held(c.fd));
	close(hold[2]);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	fm_end_endless(&c);
}

/* Without a job there is a hold, too: what is started meanwhile begins held. */
FM_TEST(hold, job_that_is_started_meanwhile)
{
	struct fm_expect e;
	struct fm_ctx c;
	int hold;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	EXPECT_EQ(FERMATA_STATE_IDLE, fm_state(c.fd));
	EXPECT_EQ(FERMATA_STATUS_HOLD, attributes(c.fd));
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	EXPECT_TRUE(stays_held(c.fd));
	EXPECT_EQ(-EBUSY, fm_start(c.fd));
	close(hold);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(NULL, fm_job_wrong(&c, &e));
	/* The next job begins as usual. */
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* The holder is killed, or exits, or executes another program. */
FM_TEST(hold, holder_may_die)
{
	struct fm_child ch;
	struct fm_ctx c;
	int how;

	run_endless(&c);
	for (how = 0; how < 3; how++) {
		fm_fork(&ch);
		if (!ch.pid) {
			if (fm_hold_fd(c.fd) < 0)
				fm_die("HOLD");
			fm_say(&ch, 1);
			fm_hear(&ch);
			if (how == 2)
				execl("/bin/sleep", "sleep", "1000", NULL);
			_exit(0);
		}
		fm_hear(&ch);
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		EXPECT_TRUE(stays_held(c.fd));
		if (how)
			fm_say(&ch, 1);
		else
			fm_kill(&ch);
		fm_until_state(c.fd, FERMATA_STATE_RUNNING);
		if (how == 2)
			fm_kill(&ch);
		else if (how)
			fm_reap(&ch);
	}
	EXPECT_EQ(3, fm_preemptions(c.fd));
	fm_end_endless(&c);
}

/* A hold of a context that is closed has no effect on the next context in its place. */
FM_TEST(hold, context_may_be_closed)
{
	struct fm_ctx c, next;
	int hold, of_next;

	run_endless(&c);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	fm_ctx_close(&c);
	run_endless(&next);
	EXPECT_EQ(0, attributes(next.fd));
	of_next = fm_hold_fd(next.fd);
	ASSERT_LE(0, of_next);
	fm_wait(next.fd, FERMATA_EVENT_HELD);
	/* The hold of a closed context is not taken for one of the context in its place. */
	close(hold);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(next.fd));
	close(of_next);
	fm_until_state(next.fd, FERMATA_STATE_RUNNING);
	fm_end_endless(&next);
	fm_ctx_close(&next);
	/* Neither has one that is left when the card goes. */
	if (!fm_pci())
		return;
	fm_ctx_new(&c, FM_LIST, 4096);
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(-ENODEV, fm_hold_fd(c.fd));
	close(hold);
	ASSERT_EQ(0, fm_bind());
}

static void become(uid_t user)
{
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		_exit(100);
}

/* By number: a hold is for administrators; the owner's user ends what they hold with PREEMPT. */
FM_TEST(hold, who_may_hold_and_resume)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = FM_PAGE };
	struct fermata_start start = { .size = sizeof(start), .flags = FERMATA_START_HELD };
	int own, hold, status;
	struct fm_child ch;
	u32 number;

	/* A card without a window admits one user. */
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	own = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_LE(0, own);
	fm_must(own, FERMATA_IOC_SETUP, &setup, "SETUP");
	fm_must(own, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	ASSERT_NE(MAP_FAILED, mmap(NULL, FM_PAGE, PROT_READ, MAP_SHARED, own, arena.mmap_offset));
	fm_must(own, FERMATA_IOC_SNAPSHOT_CREATE, &snap, "SNAPSHOT_CREATE");
	fm_must(own, FERMATA_IOC_START, &start, "START");
	number = setup.context;
	hold = fm_hold_fd_of(fm_open_dev(0), number);
	ASSERT_LE(0, hold);
	fm_fork(&ch);
	if (!ch.pid) {
		int bare = fm_open_dev(0);

		become(USER);
		if (fm_hold_fd_of(bare, number) != -EPERM)
			_exit(1);
		if (fm_preempt_of(bare, number, FERMATA_PREEMPT_HOLD) != -EPERM)
			_exit(2);
		if (fm_resume_of(bare, number))
			_exit(3);
		/* Nor does it learn whether there is another context. */
		if (fm_resume_of(bare, 0xfffffff0) != -EPERM)
			_exit(4);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	/* The hold is still in force. */
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(own));
	fm_fork(&ch);
	if (!ch.pid) {
		int bare = fm_open_dev(0);

		become(USER - 1);
		_exit(fm_resume_of(bare, number) != -EPERM);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	close(hold);
	EXPECT_NE(FERMATA_STATE_HELD, fm_state(own));
	close(own);
}

/* A hold of one member is a hold of its gang, until that member leaves or is closed. */
FM_TEST(hold, members_of_a_gang)
{
	struct fermata_gang gang = { .size = sizeof(gang), .flags = FERMATA_GANG_JOIN };
	struct fermata_gang leave = { .size = sizeof(leave), .flags = FERMATA_GANG_LEAVE };
	struct fm_ctx a, b;
	int hold;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "only one engine");
	run_endless(&a);
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	gang.context = fm_number(a.fd);
	fm_must(b.fd, FERMATA_IOC_GANG, &gang, "GANG");
	hold = fm_hold_fd(b.fd);
	ASSERT_LE(0, hold);
	fm_wait(a.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_resume(a.fd));
	EXPECT_TRUE(stays_held(a.fd));
	fm_must(b.fd, FERMATA_IOC_GANG, &leave, "GANG");
	fm_until_state(a.fd, FERMATA_STATE_RUNNING);
	EXPECT_EQ(0, attributes(a.fd));
	EXPECT_EQ(FERMATA_STATUS_HOLD, attributes(b.fd));
	/* The job of a member that comes later is held, too. */
	fm_must(b.fd, FERMATA_IOC_GANG, &gang, "GANG");
	fm_wait(a.fd, FERMATA_EVENT_HELD);
	EXPECT_TRUE(stays_held(a.fd));
	fm_ctx_close(&b);
	fm_until_state(a.fd, FERMATA_STATE_RUNNING);
	close(hold);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(a.fd));
	fm_end_endless(&a);
}

TEST_HARNESS_MAIN
