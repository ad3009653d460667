// SPDX-License-Identifier: GPL-2.0
/*
 * A client of version 2 of the interface: it is built with the header of that version, with old
 * structures and sizes (selftests/version2/fermata.h), and works as that header says. What such a
 * client cannot do any more it is told by an error (docs/user-interface.md, "Versions").
 */
#include "kselftest_harness.h"
#include "lib/fm.h"

_Static_assert(FERMATA_UAPI_VERSION == 2, "the header of version 2");
/* These structures have grown since. */
_Static_assert(sizeof(struct fermata_context_info) == 120, "as it was");
_Static_assert(sizeof(struct fermata_group_set) == 72, "as it was");

FM_FIXTURE_CARD(version2);

/* Half a minute at speed 1. */
#define STEPS	30000000

#define CALL(fd, name, ...)							\
({										\
	struct fermata_##name arg_ = { .size = sizeof(arg_), __VA_ARGS__ };	\
										\
	fm_ioctl(fd, CMD_##name, &arg_);					\
})
#define CMD_start	FERMATA_IOC_START
#define CMD_preempt	FERMATA_IOC_PREEMPT
#define CMD_resume	FERMATA_IOC_RESUME
#define CMD_hint	FERMATA_IOC_HINT
#define CMD_wait	FERMATA_IOC_WAIT
#define CMD_param	FERMATA_IOC_PARAM
#define CMD_doorbell	FERMATA_IOC_DOORBELL
#define CMD_reserve	FERMATA_IOC_RESERVE

/* A context of the list engine with an arena and a snapshot buffer. */
static void make(struct fm_ctx *c)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 64 * 1024 };
	struct fermata_snapshot_create snapshot = { .size = sizeof(snapshot) };
	int rc;

	*c = (struct fm_ctx){
		.engine = FM_LIST, .slot = fm_slot_of(FM_LIST), .token = fm_token(),
		.fd = fm_open_dev(0), .len = arena.length
	};
	setup.slot_mask = 1U << c->slot;
	fm_must(c->fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	fm_must(c->fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	c->mem = mmap(NULL, c->len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, arena.mmap_offset);
	if (c->mem == MAP_FAILED)
		fm_die("the arena at %llx cannot be mapped: %m", (unsigned long long)arena.mmap_offset);
	c->base = (uintptr_t)c->mem;
	fm_agent_add(getpid(), c->mem, c->len, c->token);
	fm_must(c->fd, FERMATA_IOC_SNAPSHOT_CREATE, &snapshot, "SNAPSHOT_CREATE");
	if (!snapshot.length)
		fm_die("an empty snapshot buffer");
	/* A slow emulator must not be taken for a hung engine. */
	rc = CALL(c->fd, param, .flags = FERMATA_SET, .param = FERMATA_PARAM_PREEMPT_TIMEOUT,
		  .value = 10000 * FM_MS);
	if (rc)
		fm_die("PARAM: %s", strerror(-rc));
}

static struct fermata_status status(struct fm_ctx *c)
{
	struct fermata_status st = { .size = sizeof(st) };

	fm_must(c->fd, FERMATA_IOC_STATUS, &st, "STATUS");
	return st;
}

static void wait_for(struct fm_ctx *c, u32 event)
{
	int rc = CALL(c->fd, wait, .events = event, .deadline = fm_now() + FM_GUARD_MS * FM_MS);

	if (rc)
		fm_die("WAIT: %s", strerror(-rc));
}

/* A job is preempted, held, resumed, and ends with the right result. */
FM_TEST(version2, a_job_from_beginning_to_end)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;

	make(&c);
	EXPECT_EQ(FERMATA_STATE_IDLE, status(&c).state);
	EXPECT_EQ(-ENOENT, CALL(c.fd, preempt, .flags = 0));
	EXPECT_EQ(-ENOENT, CALL(c.fd, resume, .flags = 0));
	fm_job_list(&c, 64, STEPS, 1, &e);
	card_speed(c.slot, 1);
	ASSERT_EQ(0, CALL(c.fd, start, .flags = 0));
	EXPECT_EQ(-EBUSY, CALL(c.fd, start, .flags = 0));
	card_until_runs(c.slot, c.token);
	EXPECT_EQ(FERMATA_STATE_RUNNING, status(&c).state);
	EXPECT_EQ(0, CALL(c.fd, preempt, .flags = FERMATA_PREEMPT_HOLD));
	EXPECT_EQ(0, CALL(c.fd, preempt, .flags = FERMATA_PREEMPT_HOLD));
	wait_for(&c, FERMATA_EVENT_HELD);
	st = status(&c);
	EXPECT_EQ(FERMATA_STATE_HELD, st.state);
	EXPECT_EQ(FERMATA_NO_SLOT, st.slot);
	EXPECT_EQ(-ETIMEDOUT, CALL(c.fd, wait, .events = FERMATA_EVENT_DONE));
	card_speed(c.slot, 0);
	EXPECT_EQ(0, CALL(c.fd, resume, .flags = 0));
	wait_for(&c, FERMATA_EVENT_DONE);
	fm_list_expect(&c, STEPS, 1, &e);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	st = status(&c);
	EXPECT_EQ(FERMATA_STATE_DONE, st.state);
	EXPECT_EQ(1, st.job);
	EXPECT_EQ(1, st.finished);
	EXPECT_EQ(0, st.failed);
	EXPECT_EQ(c.len, st.arena_length);
	EXPECT_EQ(c.base, st.device_base);
	EXPECT_LT(0, st.run_ns);
	EXPECT_LE(1, st.slices);
	EXPECT_EQ(-ENOENT, CALL(c.fd, doorbell, .flags = 0));
}

/* Flags and reserved members of calls that have new flags or members. */
FM_TEST(version2, what_was_refused_is_refused)
{
	struct fm_ctx c;

	make(&c);
	EXPECT_EQ(-EINVAL, CALL(c.fd, start, .flags = 1U << 31));
	EXPECT_EQ(-EINVAL, CALL(c.fd, preempt, .reserved = 1));
	EXPECT_EQ(-EINVAL, CALL(c.fd, resume, .flags = 1));
	EXPECT_EQ(-ESRCH, CALL(c.fd, preempt, .context = ~0U));
	EXPECT_EQ(-EINVAL, CALL(c.fd, param, .param = 7));
	EXPECT_EQ(-ERANGE, CALL(c.fd, hint, .at = 1));
	EXPECT_EQ(-ERANGE, CALL(c.fd, hint, .at = fm_now() + 20000 * FM_MS));
	EXPECT_EQ(-ERANGE, CALL(c.fd, reserve, .flags = FERMATA_SET, .budget_ns = 1));
	/* The magic number of version 1. */
	EXPECT_EQ(-ENOTTY, fm_ioctl(c.fd, _IO(0xfe, 0x33), &c));
}

/* Structures that have grown: the rest of the memory is not written. */
FM_TEST(version2, structures_of_their_old_sizes)
{
	struct {
		struct fermata_context_info info;
		u64 rest[4];
	} a = { .info.size = sizeof(a.info), .rest = { ~0ULL, ~0ULL, ~0ULL, ~0ULL } };
	struct fermata_card_info card = { .size = sizeof(card) };
	struct fermata_group group = { .size = sizeof(group) };
	struct fm_ctx c;

	make(&c);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_CARD_INFO, &card));
	EXPECT_EQ(3, card.uapi_version);
	EXPECT_LE(1, card.contexts);
	do {
		ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_CONTEXT_INFO, &a));
	} while (a.info.context != status(&c).context);
	EXPECT_EQ(getpid(), a.info.pid);
	EXPECT_EQ(sizeof(a.info), a.info.size);
	EXPECT_EQ(~0ULL, a.rest[0] & a.rest[1] & a.rest[2] & a.rest[3]);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_GROUP, &group));
	EXPECT_EQ(status(&c).group, group.number);
	EXPECT_EQ(100, group.weight);
}

/*
 * Hints that nothing follows were ignored after a while, and counted. They are refused instead, and
 * the count is 0.
 */
FM_TEST(version2, hints_are_refused_instead_of_ignored)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_ctx be, lc;
	int rc;

	make(&be);
	fm_job_endless(&be);
	card_speed(be.slot, 1);
	ASSERT_EQ(0, CALL(be.fd, start, .flags = 0));
	card_until_runs(be.slot, be.token);
	make(&lc);
	ASSERT_EQ(0, CALL(lc.fd, param, .flags = FERMATA_SET, .param = FERMATA_PARAM_LATENCY_CRITICAL,
			  .value = 1));
	/* A hint less than 100 us after another one is refused, too. */
	do {
		ASSERT_LT(fm_now(), end);
		fm_sleep_us(500);
		rc = CALL(lc.fd, hint, .at = fm_now() + FM_MS / 4);
	} while (!rc || rc == -ERANGE);
	EXPECT_EQ(-EAGAIN, rc);
	EXPECT_EQ(0, status(&lc).hints_ignored);
	EXPECT_EQ(0, status(&lc).hints_used);
	card_speed(be.slot, 0);
	fm_list_cut(&be, FM_ENDLESS_NODES);
	wait_for(&be, FERMATA_EVENT_DONE);
}

/* Memory of another process takes a module parameter, and some registers are not read any more. */
FM_TEST(version2, what_became_impossible_gives_an_error)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = FM_PAGE, .pid = getpid()
	};
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_card_info card = { .size = sizeof(card) };
	struct fermata_reg reg = { .offset = FERMATA_REG_LAST };
	struct fermata_regs regs = { .size = sizeof(regs), .count = 1, .regs = (uintptr_t)&reg };
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &card));
	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	/* Bit 33: FERMATA_FEATURE_FOREIGN_MEMORY of a later header. */
	arena.user_addr = (uintptr_t)mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!(card.features >> 33 & 1))
		EXPECT_EQ(-EPERM, fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena));
	/* On a base card the register might give no answer; elsewhere it is no result: as before. */
	EXPECT_EQ(card_base() ? -EACCES : -EAGAIN, fm_ioctl(fd, FERMATA_IOC_REGS_READ, &regs));
	close(fd);
}

TEST_HARNESS_MAIN
