// SPDX-License-Identifier: GPL-2.0
/*
 * The card can be gone at any moment: it dies at the first read or write of a register, then at the
 * second, and so on until the scene has no more accesses. A call returns ENODEV, or has done its
 * work; all-ones is never taken for a value, nothing hangs, and the card can be bound again.
 *
 * The link can lose a read, which then gives all-ones, too: nobody notices. A slot that does not
 * answer costs the jobs that need the slot, and no others.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"
#include "lib/mem.h"

#define READS_MAX	400
#define ALL_ONES	(~0ULL)

FM_FIXTURE_CARD(allones);

/* --- the card ---------------------------------------------------------------- */

static bool is_dead(void)
{
	return card_key(card_cmd("state slot=0"), "dead");
}

/* What happens at the nth access from now; n = 0: nothing any more. */
enum trouble { DIES_AT_READ, DIES_AT_WRITE, LOSES_READ };

static void set_trouble(enum trouble trouble, int n)
{
	static const char *const kinds[] = { "dead_at_read", "dead_at_write", "lose_read_at" };

	card_cmd("fault slot=0 %s=%d", kinds[trouble], n);
}

static void die_at_read(int n)
{
	set_trouble(DIES_AT_READ, n);
}

static u64 lost_reads(void)
{
	return card_key(card_cmd("state slot=0"), "lost_reads");
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

/* The function is reset during a job, which is saved before and restored afterwards. */
static int reset_under_a_job(struct scene *s)
{
	int rc = begin_job(s);

	if (!rc)
		rc = fm_reset();
	fm_list_cut(&s->c, FM_ENDLESS_NODES);
	if (!rc)
		rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	return rc ? rc : results(&s->c, NULL);
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

/* How many accesses apart the card dies. */
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

/* Lets trouble happen once at each access, of which there must be at least `least`. */
static void walk(struct __test_metadata *_metadata, scene_fn play, enum trouble trouble, int least)
{
	bool unbinds = play == unbind_under_a_job, dead, happened = true;
	int most = play == sleep_under_a_job ? 50 * READS_MAX : READS_MAX;
	const char *wrong;
	struct scene s;
	int n, rc, last = 0;
	u64 lost;

	ASSERT_NE(NULL, fm_pci());
	for (n = 1; happened && n < most; n = next_read(play, n)) {
		last = n;
		scene_begin(&s);
		lost = lost_reads();
		set_trouble(trouble, n);
		rc = play(&s);
		set_trouble(trouble, 0);
		dead = is_dead();
		happened = dead || lost_reads() != lost;
		if (rc && !(dead && rc == -ENODEV))
			TH_LOG("access %d: %s", n, strerror(-rc));
		wrong = !dead ? rc ? "it lives, and a step fails" : NULL :
			unbinds ? NULL : is_noticed(&s, rc);
		ASSERT_GOOD(wrong);
		if (dead || unbinds)
			bring_back(_metadata, !unbinds);
		scene_end(&s);
	}
	EXPECT_FALSE(happened);
	TH_LOG("%d accesses at most", last - 1);
	EXPECT_LE(least, last - 1);
}

SLOW_TEST(allones, point_01_while_jobs_are_saved_and_restored)
{
	/* A relay switches without reads of the status: the remaining reads are of registers. */
	walk(_metadata, save_and_restore, DIES_AT_READ, card_relay() ? 8 : 10);
}

SLOW_TEST(allones, point_01_while_a_slot_is_reset)
{
	walk(_metadata, reset_of_slot, DIES_AT_READ, card_relay() ? 2 : 4);
}

SLOW_TEST(allones, point_01_while_a_job_is_closed)
{
	walk(_metadata, close_under_a_job, DIES_AT_READ, card_relay() ? 0 : 3);
}

SLOW_TEST(allones, point_01_while_it_is_unbound)
{
	walk(_metadata, unbind_under_a_job, DIES_AT_READ, 3);
}

SLOW_TEST(allones, point_01_while_a_fault_is_read)
{
	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	walk(_metadata, fault, DIES_AT_READ, card_relay() ? 0 : 3);
}

SLOW_TEST(allones, point_01_while_the_machine_sleeps)
{
	const char *why = fm_cannot_sleep(FM_SHORT_REHEARSAL);

	if (why)
		SKIP(return, "%s", why);
	walk(_metadata, sleep_under_a_job, DIES_AT_READ, 6);
}

SLOW_TEST(allones, dies_at_a_write_while_jobs_are_saved_and_restored)
{
	walk(_metadata, save_and_restore, DIES_AT_WRITE, card_relay() ? 4 : 20);
}

SLOW_TEST(allones, dies_at_a_write_while_a_slot_is_reset)
{
	walk(_metadata, reset_of_slot, DIES_AT_WRITE, card_relay() ? 4 : 10);
}

SLOW_TEST(allones, loses_a_read_while_jobs_are_saved_and_restored)
{
	walk(_metadata, save_and_restore, LOSES_READ, card_relay() ? 8 : 10);
}

SLOW_TEST(allones, loses_a_read_while_a_slot_is_reset)
{
	walk(_metadata, reset_of_slot, LOSES_READ, card_relay() ? 2 : 4);
}

SLOW_TEST(allones, loses_a_read_while_a_fault_is_read)
{
	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	walk(_metadata, fault, LOSES_READ, card_relay() ? 0 : 3);
}

SLOW_TEST(allones, loses_a_read_while_the_function_is_reset)
{
	if (!fm_pci() || !fm_reset_by("flr"))
		SKIP(return, "no function reset");
	walk(_metadata, reset_under_a_job, LOSES_READ, 10);
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

/* A card that was bound in spite of lost reads is the same card. */
SLOW_TEST(allones, loses_a_read_while_it_is_bound)
{
	struct fermata_slot_info before = { .size = sizeof(before) }, now = before;
	struct fermata_card_info card, card_now;
	int n, fd, last = 0;
	u64 lost = ~0ULL;

	ASSERT_NE(NULL, fm_pci());
	fm_card_info(&card);
	fd = fm_open_dev(0);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &before));
	close(fd);
	for (n = 1; lost_reads() != lost && n < READS_MAX; n += step()) {
		last = n;
		lost = lost_reads();
		ASSERT_EQ(0, fm_unbind());
		set_trouble(LOSES_READ, n);
		ASSERT_EQ(0, fm_bind());
		set_trouble(LOSES_READ, 0);
		fm_card_info(&card_now);
		EXPECT_EQ(0, memcmp(&card, &card_now, sizeof(card)));
		fd = fm_open_dev(0);
		ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &now));
		close(fd);
		EXPECT_EQ(before.state_pages, now.state_pages);
		EXPECT_EQ(before.flags, now.flags);
	}
	EXPECT_LE(10, last - 1);
	ASSERT_GOOD(works());
}

/* A register that says what the card is, and is not answered at all, is not guessed. */
FM_TEST(allones, a_card_whose_identity_is_not_answered)
{
	static const unsigned int offsets[] = {
		0x100 /* MAGIC */, 0x110 /* FEATURES */, 0x280 /* SLOT_CAPS */,
	};
	int i;

	ASSERT_NE(NULL, fm_pci());
	if (card_base())
		SKIP(return, "a base card has none of them");
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, fm_unbind());
		card_cmd("fault slot=0 lose_read=%u:all", offsets[i]);
		EXPECT_EQ(-ENODEV, fm_bind());
		card_fault(0, "clear");
		ASSERT_EQ(0, fm_bind());
	}
	ASSERT_GOOD(works());
}

/*
 * Runs a job while as many reads are lost as the driver makes of one register and of the status:
 * the job has its results, or its slot or the card has failed.
 */
static const char *job_has_results(struct scene *s, bool *failed)
{
	struct fermata_status st = {};
	int rc = fm_start(s->other.fd);

	if (!rc)
		rc = wait_for(&s->other, FERMATA_EVENT_DONE);
	if (!rc)
		rc = status_of(&s->other, &st);
	*failed = rc || st.state == FERMATA_STATE_FAILED;
	if (!*failed)
		return results(&s->other, &s->e) ? "it is done without its results" : NULL;
	return (rc && rc != -ENODEV) || (!rc && st.error != EPROTO) ? "it fails otherwise" : NULL;
}

/* A card whose status and manager do not answer is gone: bus mastering is off, whatever still runs. */
static void forgive_stopped_dma(void)
{
	if (strstr(card_cmd("violations"), "total=1 master_busy=1"))
		card_cmd("violations clear");
}

SLOW_TEST(allones, loses_results)
{
	bool failed, happened = true;
	int n, last = 0;
	struct scene s;
	u64 lost;

	ASSERT_NE(NULL, fm_pci());
	if (card_relay())
		SKIP(return, "a relay writes the results to memory");
	for (n = 1; happened && n < READS_MAX; n++) {
		last = n;
		scene_begin(&s);
		lost = lost_reads();
		card_cmd("fault slot=0 lose_read_at=%d:4", n);
		ASSERT_GOOD(job_has_results(&s, &failed));
		set_trouble(LOSES_READ, 0);
		happened = lost_reads() != lost;
		scene_end(&s);
		if (failed) {
			forgive_stopped_dma();
			bring_back(_metadata, true);
		}
	}
	EXPECT_FALSE(happened);
	EXPECT_LE(3, last - 1);
	TH_LOG("%d reads at most", last - 1);
}

/* --- a slot that does not answer ----------------------------------------------------- */

FM_TEST(allones, a_slot_that_does_not_answer_at_probe)
{
	ASSERT_NE(NULL, fm_pci());
	ASSERT_EQ(0, fm_unbind());
	card_cmd("fault slot=0 lose_read=%d:all", 0x1018 /* its status */);
	fm_log_clear();
	EXPECT_EQ(-ENODEV, fm_bind());
	EXPECT_TRUE(fm_log_has("slot 0 does not answer"));
	card_fault(0, "clear");
	ASSERT_EQ(0, fm_bind());
	ASSERT_GOOD(works());
}

FM_TEST(allones, a_slot_that_does_not_answer)
{
	struct fm_expect e, healthy;
	struct fermata_status st;
	struct fm_ctx c, other;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_ctx_new(&other, FM_MEM, 4 << 20);
	card_speed(c.slot, 1);
	card_speed(other.slot, 1);
	fm_job_endless(&c);
	fm_job_any(&other, 2000000, 1, &healthy);
	fm_must_start(&c);
	fm_must_start(&other);
	card_until_runs(c.slot, c.token);
	card_until_runs(other.slot, other.token);
	card_cmd("fault slot=0 lose_read=%d:all", 0x1000 * (c.slot + 1) + 0x18);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(EPROTO, st.error);
	card_speed(other.slot, 0);
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&other, &healthy));
	card_fault(0, "clear");
	/* The slot is out of use, unless its reset was seen. */
	fm_ctx_close(&c);
	fm_ctx_close(&other);
	ASSERT_EQ(0, fm_unbind());
	ASSERT_EQ(0, fm_bind());
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
}

/* --- the card drops off in the middle of a switch -------------------------------------- */

/* A job that is switched, one that waits for its slot, one on another slot; and none. */
enum { SWITCHED, WAITS, ELSEWHERE, IDLE, ALL };

static void until_phase(int slot, const char *phase)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (!strstr(card_cmd("state slot=%d", slot), phase))
		if (fm_now() > end)
			fm_die("never %s", phase);
}

/* Brings the first job into its save or restore, with the others around it. */
static void begin_switch(struct fm_ctx *c, const char *phase)
{
	bool restores = !strcmp(phase, "phase=restoring");
	int i;

	for (i = 0; i < ALL; i++) {
		fm_ctx_new(&c[i], i == ELSEWHERE ? FM_MEM : FM_LIST, 64 * 1024);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		card_speed(c[i].slot, 1);
		fm_job_endless(&c[i]);
	}
	fm_param(c[SWITCHED].fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	fm_must_start(&c[ELSEWHERE]);
	fm_must_start(&c[SWITCHED]);
	card_until_works(c[SWITCHED].slot, c[SWITCHED].token);
	if (restores) {
		fm_hold(&c[SWITCHED]);
		card_set(c[SWITCHED].slot, "restore_us=60000000");
		fm_must_resume(&c[SWITCHED]);
		until_phase(c[SWITCHED].slot, phase);
		fm_must_start(&c[WAITS]);
		return;
	}
	card_fault(c[SWITCHED].slot, "save_takes_us=60000000");
	fm_must_start(&c[WAITS]);
	if (fm_preempt(c[SWITCHED].fd, 0))
		fm_die("PREEMPT");
	until_phase(c[SWITCHED].slot, phase);
}

/* The driver lets go of a card that is still gone, and finds the card when it is back. */
static void leave_and_come_back(struct __test_metadata *_metadata, int slot)
{
	ASSERT_EQ(0, fm_unbind());
	if (fm_module_known()) {
		ASSERT_EQ(0, fm_module_remove());
		fm_module_load(getenv("FERMATA_MODULE_ARGS"));
		EXPECT_NE(0, access(fm_dev(), F_OK));
	}
	card_fault(slot, "clear");
	card_set(slot, "restore_us=0");
	card_fault(0, "dead=0");
	ASSERT_EQ(0, fm_bind());
	ASSERT_GOOD(works());
}

static void drop_off(struct __test_metadata *_metadata, const char *phase)
{
	u64 pins = fm_pins(), charged = fm_charged();
	struct fm_gone_waiter w[IDLE];
	struct fm_gone_poller idle;
	struct fm_ctx c[ALL];
	int i, slot;

	ASSERT_NE(NULL, fm_pci());
	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	begin_switch(c, phase);
	slot = c[SWITCHED].slot;
	for (i = 0; i < IDLE; i++)
		fm_gone_waiter_start(&w[i], c[i].fd);
	fm_gone_poller_start(&idle, c[IDLE].fd);
	fm_log_clear();
	card_fault(slot, "dead=1");
	for (i = 0; i < IDLE; i++) {
		pthread_join(w[i].t.thread, NULL);
		EXPECT_EQ(-ENODEV, w[i].rc);
	}
	pthread_join(idle.t.thread, NULL);
	EXPECT_EQ(POLLERR | POLLHUP, idle.revents);
	EXPECT_TRUE(fm_log_has("the card is gone, and all jobs fail"));
	for (i = 0; i < ALL; i++) {
		EXPECT_EQ(0, fm_calls_not_gone(c[i].fd));
		fm_ctx_close(&c[i]);
	}
	leave_and_come_back(_metadata, slot);
	EXPECT_EQ(pins, fm_pins());
	EXPECT_EQ(charged, fm_charged());
}

FM_TEST(allones, drops_off_during_a_save)
{
	drop_off(_metadata, "phase=saving");
}

FM_TEST(allones, drops_off_during_a_restore)
{
	drop_off(_metadata, "phase=restoring");
}

/* --- the card is gone when its state is to be saved --------------------------------- */

static void *reset_function(void *arg)
{
	*(int *)arg = fm_reset();
	return NULL;
}

/*
 * Checks both jobs: they continue. If the card was dead for a moment, both owners are notified that
 * it is gone, or the slot is out of use, because only the slot was seen not to answer.
 */
static const char *go_on_or_are_told(struct scene *s, bool was_dead)
{
	struct fermata_status st = {};
	int rc;

	/* The other job does not wait for the end of a long slice. */
	fm_list_cut(&s->c, FM_ENDLESS_NODES);
	rc = wait_for(&s->c, FERMATA_EVENT_DONE);
	if (!rc)
		rc = status_of(&s->c, &st);
	if (!rc && st.state == FERMATA_STATE_FAILED)
		rc = -(int)st.error;
	else if (!rc && results(&s->c, NULL))
		return "results of a job that went on";
	if (!rc)
		rc = other_job(s);
	if (!rc)
		return NULL;
	if (!was_dead)
		return "the card lived, and a job fails";
	if (rc == -EPROTO || rc == -EIO)
		return NULL;
	if (rc != -ENODEV)
		return "another error than ENODEV, EPROTO and EIO";
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
		ASSERT_GOOD(go_on_or_are_told(&s, dead));
		if (dead)
			bring_back(_metadata, true);
		scene_end(&s);
	}
	EXPECT_FALSE(dead);
	EXPECT_LE(4, last - 1);
	TH_LOG("%d reads at most", last - 1);
}

TEST_HARNESS_MAIN
