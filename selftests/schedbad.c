// SPDX-License-Identifier: GPL-2.0
/*
 * The scheduler's calls with bad input: they return the errno that the header
 * names, and change no parameter, reservation or policy; the job of a neighbour
 * that runs meanwhile ends well.
 */
#include "kselftest_harness.h"
#include <grp.h>
#include "lib/fm.h"

FM_FIXTURE_ANY(schedbad);

#define PARAM_LAST	FERMATA_PARAM_ENABLED
/* The parameter "share" of version 1. */
#define PARAM_RETIRED	7

/* The neighbour runs; the other two have no job. */
enum { OWN, OTHER, NEIGHBOUR, CONTEXTS };

static struct fm_ctx ctx[CONTEXTS];
static struct fm_expect expect;
static u32 number[CONTEXTS];

/* Everything that a refused call could have changed. */
struct settings {
	u64 param[CONTEXTS][PARAM_LAST + 1];
	struct fermata_reserve reserve[CONTEXTS];
	struct fermata_status status[2];	/* of contexts without a job */
	struct fm_policy policy;
};

static int reserve(int fd, u32 context, u64 budget, u64 deadline, u64 period)
{
	struct fermata_reserve r = {
		.size = sizeof(r), .flags = FERMATA_SET, .context = context,
		.budget_ns = budget, .deadline_ns = deadline, .period_ns = period
	};

	return fm_ioctl(fd, FERMATA_IOC_RESERVE, &r);
}

static void look(struct settings *s)
{
	int i, param;

	memset(s, 0, sizeof(*s));
	for (i = 0; i < CONTEXTS; i++) {
		for (param = 1; param <= PARAM_LAST; param++)
			if (param != PARAM_RETIRED)
				s->param[i][param] = fm_param_get(ctx[i].fd, param);
		s->reserve[i].size = sizeof(s->reserve[i]);
		fm_must(ctx[i].fd, FERMATA_IOC_RESERVE, &s->reserve[i], "RESERVE");
	}
	fm_status(ctx[OWN].fd, &s->status[0]);
	fm_status(ctx[OTHER].fd, &s->status[1]);
	fm_policy_get(&s->policy);
}

static void begin(void)
{
	struct fermata_status st;
	int i;

	for (i = 0; i < CONTEXTS; i++) {
		fm_ctx_new(&ctx[i], FM_LIST, 64 * 1024);
		fm_status(ctx[i].fd, &st);
		number[i] = st.context;
	}
	fm_job_list(&ctx[NEIGHBOUR], 1000, 100000, 7, &expect);
	if (fm_start(ctx[NEIGHBOUR].fd))
		fm_die("START");
}

/* NULL or what is wrong with the neighbour's job. */
static const char *neighbour_wrong(void)
{
	fm_wait(ctx[NEIGHBOUR].fd, FERMATA_EVENT_DONE);
	return fm_job_wrong(&ctx[NEIGHBOUR], &expect);
}

/* The call's result must be want, a positive errno, and nothing may have changed. */
#define REFUSED(want, call)							\
do {										\
	struct settings before_, after_;					\
										\
	look(&before_);								\
	EXPECT_EQ(-(want), call) {						\
		TH_LOG("%s", #call);						\
	}									\
	look(&after_);								\
	EXPECT_EQ(0, memcmp(&before_, &after_, sizeof(before_))) {		\
		TH_LOG("%s changed something", #call);				\
	}									\
} while (0)

/* For the caller's own context and, by number, for another. */
#define PARAM_REFUSED(want, param, value)					\
do {										\
	REFUSED(want, fm_param_set(ctx[OWN].fd, param, value));			\
	REFUSED(want, fm_param_set_of(ctx[OWN].fd, number[OTHER], param, value));	\
} while (0)

FM_TEST(schedbad, zero)
{
	begin();
	PARAM_REFUSED(ERANGE, FERMATA_PARAM_TIMESLICE, 0);
	PARAM_REFUSED(ERANGE, FERMATA_PARAM_PREEMPT_TIMEOUT, 0);
	PARAM_REFUSED(ERANGE, FERMATA_PARAM_WEIGHT, 0);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, 0);
	PARAM_REFUSED(EINVAL, 0, 1);
	ASSERT_GOOD(neighbour_wrong());
}

/* Including values that would be in range if truncated. */
FM_TEST(schedbad, huge_and_negative_looking)
{
	static const struct {
		u32 param;
		u64 most;
	} ranges[] = {
		{ FERMATA_PARAM_TIMESLICE, 10000 * FM_MS },
		{ FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS },
		{ FERMATA_PARAM_PRIORITY, 31 },
		{ FERMATA_PARAM_WEIGHT, 10000 },
		{ FERMATA_PARAM_LATENCY_CRITICAL, 1 },
		{ FERMATA_PARAM_CAP, 100 },
		{ FERMATA_PARAM_COOPERATIVE, 1 },
	};
	size_t i;

	begin();
	for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		u32 param = ranges[i].param;

		PARAM_REFUSED(ERANGE, param, ranges[i].most + 1);
		PARAM_REFUSED(ERANGE, param, (1ULL << 63) + 1);
		PARAM_REFUSED(ERANGE, param, UINT64_MAX);
		if (ranges[i].most <= 10000) {
			PARAM_REFUSED(ERANGE, param, (1ULL << 16) + 1);
			PARAM_REFUSED(ERANGE, param, (1ULL << 32) + 1);
			PARAM_REFUSED(ERANGE, param, (u32)-1);
		}
	}
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, parameters_that_do_not_exist)
{
	begin();
	PARAM_REFUSED(EINVAL, 11, 1);
	PARAM_REFUSED(EINVAL, 0x80000003, 1);
	PARAM_REFUSED(EINVAL, 0xffffffff, 1);
	ASSERT_GOOD(neighbour_wrong());
}

/* No context of an engine without boundaries is cooperative; if it stops only there, all are. */
FM_TEST(schedbad, cooperative_against_the_engine)
{
	int engine;

	begin();
	for (engine = 0; engine < FM_ENGINES; engine++) {
		struct fermata_slot_info slot = { .size = sizeof(slot) };
		struct fermata_param p = {
			.size = sizeof(p), .param = FERMATA_PARAM_COOPERATIVE
		};
		struct fm_ctx c;
		bool can, must;

		if (fm_slot_of(engine) < 0)
			continue;
		fm_ctx_new(&c, engine, 64 * 1024);
		slot.slot = c.slot;
		fm_must(c.fd, FERMATA_IOC_SLOT_INFO, &slot, "SLOT_INFO");
		can = slot.flags & FERMATA_SLOT_BOUNDARY;
		must = slot.flags & FERMATA_SLOT_BOUNDARY_ONLY;
		EXPECT_TRUE(can || !must);
		fm_must(c.fd, FERMATA_IOC_PARAM, &p, "PARAM");
		EXPECT_EQ(must, p.min);
		EXPECT_EQ(can, p.max);
		EXPECT_EQ(must, p.value);
		REFUSED(can ? 0 : ERANGE, fm_param_set(c.fd, FERMATA_PARAM_COOPERATIVE, 1));
		REFUSED(must ? ERANGE : 0, fm_param_set(c.fd, FERMATA_PARAM_COOPERATIVE, 0));
		EXPECT_EQ(must, fm_param_get(c.fd, FERMATA_PARAM_COOPERATIVE));
		fm_ctx_close(&c);
	}
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, masks_without_a_slot_of_the_engine)
{
	struct fermata_param p = { .size = sizeof(p), .param = FERMATA_PARAM_SLOT_MASK };
	int sha = fm_slot_of(FM_SHA);

	begin();
	fm_must(ctx[OWN].fd, FERMATA_IOC_PARAM, &p, "PARAM");
	EXPECT_NE(0, p.max & 1ULL << ctx[OWN].slot);
	EXPECT_EQ(p.max & -p.max, p.min);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, p.max | 1ULL << FERMATA_MAX_SLOTS);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, p.max << FERMATA_MAX_SLOTS);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, p.max << 32);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, p.max | 1ULL << 63);
	PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, UINT64_MAX);
	if (sha >= 0) {
		PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, 1ULL << sha);
		PARAM_REFUSED(EINVAL, FERMATA_PARAM_SLOT_MASK, p.max | 1ULL << sha);
	}
	EXPECT_EQ(0, fm_param_set(ctx[OWN].fd, FERMATA_PARAM_SLOT_MASK, p.max));
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, reservations_out_of_range)
{
	static const u64 bad[][3] = {
		{ FM_MS, 0, 0 },
		{ 0, FM_MS, FM_MS },
		{ FM_MS, FM_MS, 0 },
		{ 0, 0, FM_MS },
		{ 100000 - 1, 10 * FM_MS, 10 * FM_MS },		/* too little */
		{ 5 * FM_MS, 4 * FM_MS, 10 * FM_MS },		/* budget after deadline */
		{ FM_MS, 11 * FM_MS, 10 * FM_MS },		/* deadline after period */
		{ 100000, FM_MS - 1, FM_MS - 1 },		/* period too short */
		{ FM_MS, 10 * FM_MS, 10000 * FM_MS + 1 },	/* too long */
		{ UINT64_MAX, UINT64_MAX, UINT64_MAX },
		{ 1ULL << 63, 1ULL << 63, 1ULL << 63 },
		{ FM_MS, 10 * FM_MS, UINT64_MAX },
		{ UINT64_MAX, 10 * FM_MS, 10 * FM_MS },
	};
	size_t i;

	begin();
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		REFUSED(ERANGE, reserve(ctx[OWN].fd, 0, bad[i][0], bad[i][1], bad[i][2]));
		REFUSED(ERANGE, reserve(ctx[OWN].fd, number[OTHER], bad[i][0], bad[i][1],
					bad[i][2]));
	}
	ASSERT_GOOD(neighbour_wrong());
}

static bool one_slot(void)
{
	struct fermata_param p = { .size = sizeof(p), .param = FERMATA_PARAM_SLOT_MASK };

	fm_must(ctx[OWN].fd, FERMATA_IOC_PARAM, &p, "PARAM");
	return !(p.max & (p.max - 1));
}

FM_TEST(schedbad, deadline_that_cannot_be_admitted)
{
	begin();
	if (!one_slot())
		SKIP(return, "the engine has several slots");
	REFUSED(EBUSY, reserve(ctx[OWN].fd, 0, 10 * FM_MS, 10 * FM_MS, 10 * FM_MS));
	REFUSED(EBUSY, reserve(ctx[OWN].fd, 0, 9 * FM_MS + 10000, 10 * FM_MS, 1000 * FM_MS));
	/* Two reservations that are too much together; the admitted one stays. */
	ASSERT_EQ(0, reserve(ctx[OWN].fd, 0, 5 * FM_MS, 10 * FM_MS, 20 * FM_MS));
	REFUSED(EBUSY, reserve(ctx[OWN].fd, number[OTHER], 5 * FM_MS, 10 * FM_MS, 10 * FM_MS));
	REFUSED(EBUSY, reserve(ctx[OWN].fd, 0, 10 * FM_MS, 10 * FM_MS, 10 * FM_MS));
	ASSERT_EQ(0, reserve(ctx[OWN].fd, 0, 0, 0, 0));
	EXPECT_EQ(0, reserve(ctx[OWN].fd, number[OTHER], 5 * FM_MS, 10 * FM_MS, 10 * FM_MS));
	/* The reservation of a closed context is free. */
	REFUSED(EBUSY, reserve(ctx[OWN].fd, 0, 5 * FM_MS, 10 * FM_MS, 10 * FM_MS));
	ASSERT_GOOD(neighbour_wrong());
	fm_ctx_close(&ctx[OTHER]);
	EXPECT_EQ(0, reserve(ctx[OWN].fd, 0, 5 * FM_MS, 10 * FM_MS, 10 * FM_MS));
}

/* A parameter of releases before version 2 of the interface. */
FM_TEST(schedbad, share_is_retired)
{
	begin();
	PARAM_REFUSED(EINVAL, PARAM_RETIRED, 10);
	REFUSED(ENOENT, fm_policy_set("share"));
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, policy_names)
{
	static const char *const none[] = {
		"\n", "Fair", "fai", "fairer", "fair share", "round_robin", "roundrobin", "none",
		"fair\nfair", "fifteen bytes!!", "round-robin-fair"
	};
	size_t i;

	begin();
	for (i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		REFUSED(ENOENT, fm_policy_set(none[i]));
	/* No text. */
	REFUSED(EINVAL, fm_policy_set("\xff\xfe"));
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, boost_intervals_out_of_range)
{
	static const u64 bad[] = { 1, 9, 60001, 1ULL << 63, UINT64_MAX };
	struct fm_policy p;
	size_t i;

	begin();
	fm_policy_get(&p);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		REFUSED(ERANGE, fm_boost_set(bad[i]));
	EXPECT_EQ(0, fm_policy_set(p.name));
	EXPECT_EQ(0, fm_boost_set(p.boost_ms));
	ASSERT_GOOD(neighbour_wrong());
}

FM_TEST(schedbad, dead_context)
{
	struct fermata_reserve r = { .size = sizeof(r) };
	struct fm_ctx dead;
	struct fermata_status st;
	u32 numbers[4], i;

	begin();
	fm_ctx_new(&dead, FM_LIST, 4096);
	fm_status(dead.fd, &st);
	fm_ctx_close(&dead);
	numbers[0] = st.context;
	numbers[1] = number[OTHER] ^ 0x8000;
	numbers[2] = 0xffffffff;
	numbers[3] = 1;
	for (i = 0; i < 4; i++) {
		u32 n = numbers[i];
		int param;

		for (param = 1; param <= PARAM_LAST; param++)
			if (param != PARAM_RETIRED)
				REFUSED(ESRCH, fm_param_set_of(ctx[OWN].fd, n, param, 1));
		REFUSED(ESRCH, reserve(ctx[OWN].fd, n, FM_MS, 10 * FM_MS, 10 * FM_MS));
		REFUSED(ESRCH, reserve(ctx[OWN].fd, n, 0, 0, 0));
		r.context = n;
		REFUSED(ESRCH, fm_ioctl(ctx[OWN].fd, FERMATA_IOC_RESERVE, &r));
	}
	/* 0 is the caller's own context. */
	EXPECT_EQ(0, fm_param_set_of(ctx[OWN].fd, 0, FERMATA_PARAM_WEIGHT, 1));
	EXPECT_EQ(1, fm_param_get(ctx[OWN].fd, FERMATA_PARAM_WEIGHT));
	ASSERT_GOOD(neighbour_wrong());
}

/* Runs without any capability; 0 or the number of the check that failed. */
static int unprivileged(void)
{
	static const struct {
		u32 param;
		u64 above;
		u64 free;
	} above[] = {
		{ FERMATA_PARAM_PRIORITY, 17, 16 },
		{ FERMATA_PARAM_WEIGHT, 101, 100 },
		{ FERMATA_PARAM_LATENCY_CRITICAL, 1, 0 },
	};
	struct fermata_reserve r = { .size = sizeof(r), .context = number[OTHER] };
	struct fm_policy policy;
	int fd = ctx[OWN].fd, i;

	for (i = 0; i < 3; i++) {
		struct fermata_param p = { .size = sizeof(p), .param = above[i].param };

		if (fm_param_set(fd, above[i].param, above[i].above) != -EPERM)
			return 10 + i;
		if (fm_ioctl(fd, FERMATA_IOC_PARAM, &p) || p.value != above[i].free ||
		    p.max != above[i].free)
			return 20 + i;
		if (fm_param_set(fd, above[i].param, above[i].free))
			return 30 + i;
	}
	if (reserve(fd, 0, FM_MS, 10 * FM_MS, 10 * FM_MS) != -EPERM)
		return 40;
	if (reserve(fd, 0, 0, 0, 0))
		return 41;
	if (reserve(fd, number[OTHER], 0, 0, 0) != -EPERM)
		return 42;
	if (fm_ioctl(fd, FERMATA_IOC_RESERVE, &r) != -EPERM)
		return 43;
	/* Nor does it learn whether there is such a context. */
	if (reserve(fd, 0xfffffff0, 0, 0, 0) != -EPERM)
		return 44;
	if (fm_policy_set(FERMATA_POLICY_FAIR) != -EACCES || fm_boost_set(100) != -EACCES)
		return 50;
	fm_policy_get(&policy);
	if (fm_param_set(fd, FERMATA_PARAM_ENABLED, 1) != -EPERM)
		return 51;
	/* Lowering needs no capability. */
	if (fm_param_set(fd, FERMATA_PARAM_PRIORITY, 0) || fm_param_set(fd, FERMATA_PARAM_CAP, 50) ||
	    fm_param_set(fd, FERMATA_PARAM_CAP, 0) || fm_param_set(fd, FERMATA_PARAM_PRIORITY, 16))
		return 60;
	return 0;
}

FM_TEST(schedbad, point_16_unprivileged_caller)
{
	struct settings before, after;
	struct fm_child ch;
	int status;

	begin();
	look(&before);
	fm_fork(&ch);
	if (!ch.pid) {
		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(1);
		_exit(unprivileged());
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	look(&after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
	ASSERT_GOOD(neighbour_wrong());
}

TEST_HARNESS_MAIN
