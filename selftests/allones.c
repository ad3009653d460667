// SPDX-License-Identifier: GPL-2.0
/*
 * The card can be gone at any moment: it dies at the first read of a register, then at the second,
 * and so on until the scene has no more reads. A call returns ENODEV, or has done its work;
 * all-ones is never taken for a value, nothing hangs, and the card can be bound again.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"

#define READS_MAX	400
#define ALL_ONES	(~0ULL)

FM_FIXTURE_CARD(allones);

/* --- the card ---------------------------------------------------------------- */

static bool is_dead(void)
{
	return card_key(card_cmd("state slot=0"), "dead");
}

static void die_at_read(int n)
{
	card_cmd("fault slot=0 dead_at_read=%d", n);
}

/* --- two tenants ---------------------------------------------------------------- */

struct scene {
	struct fm_ctx c;	/* with a job that has no end */
	struct fm_ctx other;
	struct fm_expect e;
};

static void scene_begin(struct scene *s)
{
	fm_ctx_new(&s->c, FM_LIST, 64 * 1024);
	fm_ctx_new(&s->other, FM_LIST, 64 * 1024);
	fm_param(s->c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	card_speed(s->c.slot, 1);
	fm_job_endless(&s->c);
	fm_job_list(&s->other, 100, 200, 7, &s->e);
}

static void scene_end(struct scene *s)
{
	if (s->c.fd >= 0)
		fm_ctx_close(&s->c);
	if (s->other.fd >= 0)
		fm_ctx_close(&s->other);
}

/* The card works: NULL, or what does not. */
static const char *works(void)
{
	const char *wrong;
	struct scene s;

	scene_begin(&s);
	wrong = fm_job_run(&s.other, &s.e);
	scene_end(&s);
	return wrong;
}

/* --- steps: 0, or a negative errno ------------------------------------------------- */

static int wait_for(struct fm_ctx *c, u32 events)
{
	return fm_wait_until(c->fd, events, fm_now() + FM_GUARD_MS * FM_MS, NULL);
}

static int status_of(struct fm_ctx *c, struct fermata_status *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	return fm_ioctl(c->fd, FERMATA_IOC_STATUS, st);
}

static int until_on_slot(struct fm_ctx *c)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status st;
	int rc;

	do {
		rc = status_of(c, &st);
	} while (!rc && st.slot == FERMATA_NO_SLOT && fm_now() < end);
	return rc;
}

/* Waits until the registers of a resumed job can be read. */
static int until_restored(struct fm_ctx *c)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	u64 tag;
	int rc;

	do {
		rc = fm_reg_read(c->fd, FM_REG_TAG, &tag);
	} while (rc == -EAGAIN && fm_now() < end);
	return rc;
}

/* Reads the result registers of a list's job; -EPROTO: they have wrong values. */
static int results(struct fm_ctx *c, const struct fm_expect *e)
{
	u64 count, checksum;
	int rc = fm_reg_read(c->fd, 0x38, &count);

	if (!rc)
		rc = fm_reg_read(c->fd, 0x40, &checksum);
	if (rc)
		return rc;
	if (e)
		return count == e->r.count && checksum == e->r.checksum ? 0 : -EPROTO;
	return count != ALL_ONES && checksum != ALL_ONES ? 0 : -EPROTO;
}

/* Starts the job that has no end, and waits until it is on its slot. */
static int begin_job(struct scene *s)
{
	int rc = fm_start(s->c.fd);

	return rc ? rc : until_on_slot(&s->c);
}

/* Runs the job of the other context, from its start to its results. */
static int other_job(struct scene *s)
{
	int rc = fm_start(s->other.fd);

	if (!rc)
		rc = wait_for(&s->other, FERMATA_EVENT_DONE);
	if (!rc)
		rc = results(&s->other, &s->e);
	return rc;
}

/* The job is saved, while another job runs, restored, read, and ended. */
static int save_and_restore(struct scene *s)
{
	int rc = begin_job(s);

	if (!rc)
		rc = fm_preempt(s->c.fd, FERMATA_PREEMPT_HOLD);
	if (!rc)
		rc = wait_for(&s->c, FERMATA_EVENT_HELD);
	if (!rc)
		rc = results(&s->c, NULL);
	if (!rc)
		rc = other_job(s);
	if (!rc)
		rc = fm_resume(s->c.fd);
	if (!rc)
		rc = until_on_slot(&s->c);
	if (!rc)
		rc = until_restored(&s->c);
	if (!rc)
		rc = results(&s->c, NULL);
	fm_list_cut(&s->c, FM_ENDLESS_NODES);
	if (!rc)
		rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	return rc ? rc : results(&s->c, NULL);
}

/* The window stops a job: if an address is reported, it is the right one. */
static int fault(struct scene *s)
{
	u64 address = s->other.base + s->other.len;
	struct fermata_status st;
	/* Without declared results, which would be read, too. */
	int rc = fm_results(s->other.fd, NULL, 0);

	if (!rc)
		rc = fm_reg_write(s->other.fd, 0x30, address);
	if (!rc)
		rc = fm_start(s->other.fd);
	if (!rc)
		rc = wait_for(&s->other, FERMATA_EVENT_DONE);
	if (!rc)
		rc = status_of(&s->other, &st);
	if (rc)
		return rc;
	return st.error == EFAULT && st.fault_addr == address && !st.fault_flags ? 0 : -EPROTO;
}

/* The engine hangs: its slot is reset. */
static int reset_of_slot(struct scene *s)
{
	struct fermata_status st;
	int rc = fm_param_set(s->c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 5 * FM_MS);

	if (!rc)
		rc = begin_job(s);
	card_fault(s->c.slot, "hang=1");
	if (!rc)
		rc = fm_preempt(s->c.fd, FERMATA_PREEMPT_HOLD);
	if (!rc)
		rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	if (!rc)
		rc = status_of(&s->c, &st);
	if (!rc && st.error != ETIME)
		rc = -EPROTO;
	return rc ? rc : other_job(s);
}

/* The owner closes the context during a job: nothing waits for ever. */
static int close_under_a_job(struct scene *s)
{
	int rc = begin_job(s);

	fm_ctx_close(&s->c);
	return rc ? rc : other_job(s);
}

/* The driver is unbound during a job. */
static int unbind_under_a_job(struct scene *s)
{
	int rc = begin_job(s), unbound = fm_unbind();

	if (unbound)
		return -EPROTO;
	if (fm_calls_not_gone(s->c.fd) || fm_calls_not_gone(s->other.fd))
		return -EPROTO;
	return rc;
}

/* The machine sleeps during a job, which is saved before and restored afterwards. */
static int sleep_under_a_job(struct scene *s)
{
	int rc = begin_job(s);

	if (fm_sleep_and_wake(FM_SHORT_REHEARSAL))
		return -EPROTO;
	fm_list_cut(&s->c, FM_ENDLESS_NODES);
	if (!rc)
		rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	return rc ? rc : results(&s->c, NULL);
}

/* --- the walk --------------------------------------------------------------------- */

typedef int (*scene_fn)(struct scene *s);

/* Checks the state after the card has died: NULL, or what is wrong. */
static const char *is_noticed(struct scene *s, int rc)
{
	struct fm_ctx *c = s->c.fd >= 0 ? &s->c : &s->other;

	if (rc && rc != -ENODEV)
		return "another error than ENODEV";
	/* It died at the last read, and the next access reveals this. */
	if (!rc)
		rc = fm_start(c->fd);
	if (!rc || rc == -EBUSY)
		rc = wait_for(c, FERMATA_EVENT_DONE);
	if (rc != -ENODEV)
		return "nobody notices";
	return fm_calls_not_gone(c->fd) ? "a call of a card that is gone" : NULL;
}

static void bring_back(struct __test_metadata *_metadata, bool bound)
{
	card_fault(0, "dead=0");
	if (bound)
		ASSERT_EQ(0, fm_unbind());
	ASSERT_EQ(0, fm_bind());
	ASSERT_GOOD(works());
}

/* How many reads apart the card dies. */
static int step(void)
{
	return fm_number_from("FERMATA_READS_STEP", 1);
}

/*
 * The read at which the card dies next.  On a slow kernel the machine takes long to fall asleep,
 * and a polled card is read many hundred times until then: a walk through each read would take
 * hours.
 */
static int next_read(scene_fn play, int n)
{
	if (play != sleep_under_a_job || !fm_is_slow())
		return n + step();
	return n + (n > 40 ? n / 4 : 10);
}

/* Lets the card die once at each read, of which there must be at least `least`. */
static void walk(struct __test_metadata *_metadata, scene_fn play, int least)
{
	bool unbinds = play == unbind_under_a_job, dead = true;
	int most = play == sleep_under_a_job ? 50 * READS_MAX : READS_MAX;
	const char *wrong;
	struct scene s;
	int n, rc, last = 0;

	ASSERT_NE(NULL, fm_pci());
	for (n = 1; dead && n < most; n = next_read(play, n)) {
		last = n;
		scene_begin(&s);
		die_at_read(n);
		rc = play(&s);
		die_at_read(0);
		dead = is_dead();
		if (rc && !(dead && rc == -ENODEV))
			TH_LOG("read %d: %s", n, strerror(-rc));
		wrong = !dead ? rc ? "it lives, and a step fails" : NULL :
			unbinds ? NULL : is_noticed(&s, rc);
		ASSERT_GOOD(wrong);
		if (dead || unbinds)
			bring_back(_metadata, !unbinds);
		scene_end(&s);
	}
	EXPECT_FALSE(dead);
	TH_LOG("%d reads at most", last - 1);
	EXPECT_LE(least, last - 1);
}

SLOW_TEST(allones, point_01_while_jobs_are_saved_and_restored)
{
	/* A relay switches without reads of the status: the remaining reads are of registers. */
	walk(_metadata, save_and_restore, card_relay() ? 8 : 10);
}

SLOW_TEST(allones, point_01_while_a_slot_is_reset)
{
	walk(_metadata, reset_of_slot, card_relay() ? 2 : 4);
}

SLOW_TEST(allones, point_01_while_a_job_is_closed)
{
	walk(_metadata, close_under_a_job, card_relay() ? 0 : 3);
}

SLOW_TEST(allones, point_01_while_it_is_unbound)
{
	walk(_metadata, unbind_under_a_job, 3);
}

SLOW_TEST(allones, point_01_while_a_fault_is_read)
{
	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	walk(_metadata, fault, card_relay() ? 0 : 3);
}

SLOW_TEST(allones, point_01_while_the_machine_sleeps)
{
	const char *why = fm_cannot_sleep(FM_SHORT_REHEARSAL);

	if (why)
		SKIP(return, "%s", why);
	walk(_metadata, sleep_under_a_job, 6);
}

/* If the card dies during probe, probe fails, or the death is noticed later. */
SLOW_TEST(allones, point_01_while_it_is_bound)
{
	struct fermata_slot_info info = { .size = sizeof(info) };
	bool dead = true;
	int n, rc, fd, last = 0;

	ASSERT_NE(NULL, fm_pci());
	for (n = 1; dead && n < READS_MAX; n += step()) {
		last = n;
		ASSERT_EQ(0, fm_unbind());
		die_at_read(n);
		rc = fm_bind();
		die_at_read(0);
		dead = is_dead();
		if (rc) {
			ASSERT_EQ(-ENODEV, rc);
			ASSERT_TRUE(dead);
		} else if (dead) {
			/* All-ones is valid for that read: the next read reveals the death. */
			fd = fm_open_dev(0);
			EXPECT_EQ(-ENODEV, fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &info));
			EXPECT_EQ(0, fm_calls_not_gone(fd));
			close(fd);
		}
		if (dead)
			bring_back(_metadata, !rc);
	}
	EXPECT_FALSE(dead);
	EXPECT_LE(10, last - 1);
	ASSERT_GOOD(works());
}

/* --- the card is gone when its state is to be saved --------------------------------- */

static void *reset_function(void *arg)
{
	*(int *)arg = fm_reset();
	return NULL;
}

/* Checks both jobs: they continue, or both owners are notified that the card is gone. */
static const char *go_on_or_are_told(struct scene *s)
{
	int rc;

	/* The other job does not wait for the end of a long slice. */
	fm_list_cut(&s->c, FM_ENDLESS_NODES);
	rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	if (!rc)
		rc = other_job(s);
	if (!rc)
		return results(&s->c, NULL) ? "results of a job that went on" : NULL;
	if (rc != -ENODEV)
		return "another error than ENODEV";
	return fm_calls_not_gone(s->c.fd) || fm_calls_not_gone(s->other.fd) ?
	       "one of them is not told" : NULL;
}

/* The card comes back before the reset, because the kernel would wait a minute for a dead card. */
SLOW_TEST(allones, point_01_while_the_function_is_reset)
{
	bool dead = true;
	pthread_t thread;
	struct scene s;
	int n, rc, last = 0;

	ASSERT_NE(NULL, fm_pci());
	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	for (n = 1; dead && n < READS_MAX; n += step()) {
		last = n;
		scene_begin(&s);
		fm_must_start(&s.c);
		card_until_runs(s.c.slot, s.c.token);
		rc = 1;
		die_at_read(n);
		ASSERT_EQ(0, pthread_create(&thread, NULL, reset_function, &rc));
		do {
			dead = is_dead();
		} while (!dead && *(volatile int *)&rc == 1);
		if (dead)
			card_fault(0, "dead=0");
		pthread_join(thread, NULL);
		die_at_read(0);
		/* The jobs have resumed by then, and are polled. */
		dead |= is_dead();
		card_fault(0, "dead=0");
		/* The kernel does not reset what it cannot reach. */
		ASSERT_TRUE(!rc || (dead && rc == -ENOTTY));
		ASSERT_GOOD(go_on_or_are_told(&s));
		if (dead)
			bring_back(_metadata, true);
		scene_end(&s);
	}
	EXPECT_FALSE(dead);
	EXPECT_LE(4, last - 1);
	TH_LOG("%d reads at most", last - 1);
}

TEST_HARNESS_MAIN
