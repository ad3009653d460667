// SPDX-License-Identifier: GPL-2.0
/* The machine sleeps: contexts keep what is theirs, and jobs go on. */
#include "kselftest_harness.h"
#include <sys/utsname.h>
#include "lib/sched.h"
#include "lib/gone.h"
#include "lib/host.h"

#define ALARM		"/sys/class/rtc/rtc0/wakealarm"
#define WAKEUP_COUNT	"/sys/power/wakeup_count"
#define BUTTON		"/sys/module/button"
#define STATE		"/sys/power/state"
#define MEM_SLEEP	"/sys/power/mem_sleep"
#define PM_TEST		"/sys/power/pm_test"
#define PM_TEST_DELAY	"/sys/module/suspend/parameters/pm_test_delay"

/* The beginning of a file; nothing of one that cannot be read. */
static const char *get(const char *path)
{
	static char text[256];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = 0;
	return text;
}

/*
 * How the machine sleeps: S3, in which the card loses its power; to idle, in which it keeps it, and
 * which the power button ends (QEMU's clock raises no ACPI event while the machine runs); or the
 * kernel's rehearsal, in which devices are suspended and resumed a second later.
 */
enum how { S3, TO_IDLE, REHEARSAL };

/*
 * After suspend, virtio_console of Linux 7.3 asks for the state of its ports before it can hear the
 * answer, and takes them for closed: neither the card's control socket nor our output comes back.
 */
static bool ports_are_lost(void)
{
	struct utsname name;

	return !uname(&name) && !strncmp(name.release, "7.3.", 4);
}

/* NULL, or why the machine cannot sleep like that and wake up by itself. */
static const char *cannot_sleep(enum how how)
{
	if (ports_are_lost())
		return "this kernel's virtio ports are closed after suspend";
	/* Its driver neither keeps nor restores what the device knows. */
	if (!access("/sys/module/virtio_iommu", F_OK))
		return "nothing behind a virtio-iommu does DMA after suspend";
	if (access(PM_TEST, W_OK) || !strstr(get(STATE), "mem"))
		return "the kernel cannot suspend, or not rehearse it";
	if (how == REHEARSAL)
		return NULL;
	if (how == TO_IDLE) {
		if (!strstr(get(STATE), "freeze"))
			return "the kernel cannot suspend to idle";
		return host_present() && !access(BUTTON, F_OK) ? NULL : "nobody presses a button";
	}
	if (access(ALARM, W_OK) || access(WAKEUP_COUNT, R_OK | W_OK))
		return "no clock that wakes the machine";
	if (!strstr(get(MEM_SLEEP), "deep"))
		return "the machine has no S3";
	return NULL;
}

/*
 * Where the power management registers of QEMU's q35 are (00:1f.0, 0x40 to 0x47): SeaBIOS says so
 * at boot and not after S3, and without it neither the next S3 nor power-off works.
 */
struct pm_base {
	int fd;
	u8 value[8];
};

static void pm_base_save(struct pm_base *base)
{
	u32 id = 0;

	base->fd = open("/sys/bus/pci/devices/0000:00:1f.0/config", O_RDWR | O_CLOEXEC);
	if (base->fd < 0)
		return;
	if (pread(base->fd, &id, 4, 0) == 4 && id == 0x29188086 &&
	    pread(base->fd, base->value, 8, 0x40) == 8)
		return;
	close(base->fd);
	base->fd = -1;
}

static void pm_base_restore(struct pm_base *base)
{
	u8 now[8];

	if (base->fd < 0)
		return;
	if (pread(base->fd, now, 8, 0x40) == 8 && memcmp(now, base->value, 8) &&
	    pwrite(base->fd, base->value, 8, 0x40) != 8)
		fm_die("the power management registers cannot be restored");
	close(base->fd);
}

static void must_put(const char *path, const char *text)
{
	int rc = fm_put(path, text);

	if (rc)
		fm_die("%s > %s: %s", text, path, strerror(-rc));
}

/* 0 or a negative errno. */
static int rehearse(void)
{
	int rc;

	must_put(PM_TEST, "devices");
	must_put(PM_TEST_DELAY, "1");
	rc = fm_put(STATE, "mem");
	must_put(PM_TEST, "none");
	return rc;
}

/* Sleeps until the clock wakes the machine: 0 or a negative errno. */
static int sleep_for(int seconds)
{
	char alarm[16];
	struct pm_base base;
	int rc;

	must_put(PM_TEST, "none");
	must_put(MEM_SLEEP, "deep");
	must_put(ALARM, "0");
	snprintf(alarm, sizeof(alarm), "+%d", seconds);
	must_put(ALARM, alarm);
	pm_base_save(&base);
	rc = fm_put(STATE, "mem");
	pm_base_restore(&base);
	must_put(ALARM, "0");
	return rc;
}

/* Sleeps until the power button is pressed, which is done again if the machine was still awake. */
static int sleep_until_pressed(void)
{
	int rc;

	must_put(PM_TEST, "none");
	if (host_ask("button", 1500))
		fm_die("the button cannot be pressed");
	rc = fm_put(STATE, "freeze");
	if (host_ask("button", 0))
		fm_die("the button cannot be let go");
	return rc;
}

/*
 * Sleeps and wakes. An alarm that comes before the machine sleeps would be missed: with
 * wakeup_count it ends the attempt, which is made again with more time.
 */
static int sleep_and_wake(enum how how)
{
	int rc = -EBUSY, seconds;

	fm_tally("suspends", 1);
	if (how == REHEARSAL)
		return rehearse();
	if (how == TO_IDLE)
		return sleep_until_pressed();
	for (seconds = 2; rc == -EBUSY && seconds <= 16; seconds *= 2) {
		if (!fm_put(WAKEUP_COUNT, get(WAKEUP_COUNT)))
			rc = sleep_for(seconds);
	}
	return rc;
}

FM_FIXTURE_CARD(suspend);

/* Nodes of a list that is not done until the card is fast. */
#define LONG	3000000

static void idle_contexts_go_on(struct __test_metadata *_metadata, enum how how)
{
	struct fm_ctx done, written, again;
	struct fm_expect e[3];
	const char *why = cannot_sleep(how);
	int i, slot;

	if (why)
		SKIP(return, "%s", why);
	fm_ctx_new(&done, FM_LIST, 64 * 1024);
	fm_ctx_new(&written, FM_LIST, 64 * 1024);
	fm_ctx_new(&again, FM_LIST, 64 * 1024);
	slot = done.slot;
	for (i = 0; i < 3; i++) {
		fm_job_list(&done, 100, 1000, 3 + i, &e[0]);
		ASSERT_GOOD(fm_job_run(&done, &e[0]));
	}
	fm_job_list(&written, 100, 1000, 7, &e[1]);
	for (i = 0; i < 2; i++) {
		ASSERT_LE(3, card_key(card_cmd("state slot=%d", slot), "start_count"));
		ASSERT_EQ(0, sleep_and_wake(how));
		/* S3 took the card's power. */
		if (how == S3)
			ASSERT_EQ(0, card_key(card_cmd("state slot=%d", slot), "start_count"));
		/* What was had before: the arena and the results. */
		ASSERT_GOOD(fm_job_wrong(&done, &e[0]));
		EXPECT_EQ(FERMATA_STATE_DONE, fm_state(done.fd));
		/* What was written before. */
		ASSERT_GOOD(fm_job_run(&written, &e[1]));
		/* Its STARTs, PAUSEs and snapshots count as before. */
		card_speed(slot, 1);
		fm_job_list(&again, 200, LONG, 9, &e[2]);
		ASSERT_EQ(0, fm_start(again.fd));
		card_until_runs(slot, again.token);
		ASSERT_EQ(0, fm_preempt(again.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(again.fd, FERMATA_EVENT_HELD);
		card_speed(slot, 0);
		fm_job_list(&done, 100, 1000, 11 + i, &e[0]);
		ASSERT_GOOD(fm_job_run(&done, &e[0]));
		ASSERT_EQ(0, fm_resume(again.fd));
		fm_wait(again.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&again, &e[2]));
	}
}

FM_TEST(suspend, point_17_idle_contexts_go_on_after_suspend_to_idle)
{
	idle_contexts_go_on(_metadata, TO_IDLE);
}

FM_TEST(suspend, point_17_idle_contexts_go_on_after_a_rehearsal)
{
	idle_contexts_go_on(_metadata, REHEARSAL);
}

/* What the driver knows of registers it forgets, so they are cleared, also where S3 has not. */
FM_TEST(suspend, point_09_nothing_is_left_on_the_card)
{
	const char *why = cannot_sleep(REHEARSAL);
	struct fm_ctx before, after;
	struct fm_expect e;

	if (why)
		SKIP(return, "%s", why);
	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&before, FM_MEM, 64 * 1024);
	fm_job_mem(&before, 4096, 100, 5, 2, &e);
	ASSERT_GOOD(fm_job_run(&before, &e));
	ASSERT_EQ(0, sleep_and_wake(REHEARSAL));
	/* It reads in order, without a word about the mode. */
	fm_ctx_new(&after, FM_MEM, 64 * 1024);
	fm_job_mem(&after, 4096, 100, 6, FM_NO_MODE, &e);
	ASSERT_GOOD(fm_job_run(&after, &e));
}

/* Jobs that run, wait and are held are saved before, and go on after it. */
static void jobs_go_on(struct __test_metadata *_metadata, enum how how)
{
	enum { RUNS, WAITS, HELD, ALL };
	const char *why = cannot_sleep(how);
	struct fm_gone_waiter w;
	struct fm_expect e[ALL];
	struct fermata_status st;
	struct fm_ctx c[ALL];
	int i;

	if (why)
		SKIP(return, "%s", why);
	for (i = 0; i < ALL; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		fm_job_list(&c[i], 200, LONG, 3 + i, &e[i]);
	}
	card_speed(c[RUNS].slot, 1);
	fm_must_start(&c[HELD]);
	card_until_runs(c[HELD].slot, c[HELD].token);
	ASSERT_EQ(0, fm_preempt(c[HELD].fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c[HELD].fd, FERMATA_EVENT_HELD);
	fm_must_start(&c[RUNS]);
	card_until_runs(c[RUNS].slot, c[RUNS].token);
	fm_must_start(&c[WAITS]);
	/* Who waits for a job is frozen and goes on. */
	fm_gone_waiter_start(&w, c[RUNS].fd);
	ASSERT_EQ(0, sleep_and_wake(how));
	fm_status(c[RUNS].fd, &st);
	EXPECT_LE(1, st.preemptions);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c[HELD].fd));
	ASSERT_EQ(0, fm_resume(c[HELD].fd));

	card_speed(c[RUNS].slot, 0);
	pthread_join(w.t.thread, NULL);
	EXPECT_EQ(0, w.rc);
	for (i = 0; i < ALL; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
}

FM_TEST(suspend, point_17_jobs_go_on_after_suspend_to_idle)
{
	jobs_go_on(_metadata, TO_IDLE);
}

FM_TEST(suspend, point_17_jobs_go_on_after_a_rehearsal)
{
	jobs_go_on(_metadata, REHEARSAL);
}

/* A job that cannot be saved fails, and does not keep the machine awake. */
FM_TEST(suspend, point_04_a_job_that_hangs)
{
	const char *why = cannot_sleep(REHEARSAL);
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;

	if (why)
		SKIP(return, "%s", why);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_list(&c, 200, LONG, 3, &e);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	card_fault(c.slot, "hang=1");
	ASSERT_EQ(0, sleep_and_wake(REHEARSAL));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	card_fault(c.slot, "clear");
	card_speed(c.slot, 0);
	fm_job_list(&c, 200, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* Last: after S3 on QEMU the power button wakes nobody, for want of what pm_base restores. */

FM_TEST(suspend, point_17_idle_contexts_go_on_after_s3)
{
	idle_contexts_go_on(_metadata, S3);
}

FM_TEST(suspend, point_17_jobs_go_on_after_s3)
{
	jobs_go_on(_metadata, S3);
}

TEST_HARNESS_MAIN
