// SPDX-License-Identifier: GPL-2.0
/*
 * Every call with every kind of bad input: the errno that the header names,
 * the argument untouched, and the context as it was (STATUS byte for byte).
 */
#include "kselftest_harness.h"
#include <grp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "lib/fm.h"

FM_FIXTURE_ANY(bad);

#define EVENTS	(FERMATA_EVENT_DONE | FERMATA_EVENT_HELD | FERMATA_EVENT_EMPTY |	\
		 FERMATA_EVENT_COMPLETED)

/* What a context has when a call is tried on it. */
enum stage { FRESH, SETUP, READY, HELD, STAGES };

static struct fermata_reg good_regs[2] = {
	{ .offset = 0x38, .value = 1 }, { .offset = 0x40, .value = 2 }
};
static struct fermata_reg good_results[2] = { { .offset = 0x38 }, { .offset = 0x40 } };
static struct fermata_reg listed[2];
static u64 counts[2];
static u8 snapshot[64];
static int event_fd;

union arg {
	u32 size;
	u8 bytes[256];
	struct fermata_card_info card;
	struct fermata_slot_info slot;
	struct fermata_setup setup;
	struct fermata_arena_create arena;
	struct fermata_snapshot_create snap;
	struct fermata_snapshot_read read;
	struct fermata_snapshot_write write;
	struct fermata_regs regs;
	struct fermata_start start;
	struct fermata_preempt preempt;
	struct fermata_resume resume;
	struct fermata_status status;
	struct fermata_wait wait;
	struct fermata_eventfd event;
	struct fermata_hint hint;
	struct fermata_doorbell doorbell;
	struct fermata_param param;
	struct fermata_context_info info;
	struct fermata_histogram histogram;
	struct fermata_control control;
	struct fermata_reserve reserve;
	struct fermata_policy policy;
	struct fermata_group group;
	struct fermata_exclusive exclusive;
	struct fermata_gang gang;
};

static const struct call {
	const char *name;
	unsigned long cmd;
	enum stage stage;
	u32 size;
	u32 known;	/* flags that exist, or ~0: the second word is no flags */
	u32 reserved;	/* offset of a reserved word, or 0 */
} calls[] = {
#define C(name, stage, type, known, reserved)					\
	{ #name, FERMATA_IOC_##name, stage, sizeof(struct type), known, reserved }
	C(CARD_INFO, FRESH, fermata_card_info, 0, 0),
	C(SLOT_INFO, FRESH, fermata_slot_info, ~0U, 0),
	C(SETUP, FRESH, fermata_setup, 0, 0),
	C(ARENA_CREATE, SETUP, fermata_arena_create,
	  FERMATA_ARENA_FIXED_BASE | FERMATA_ARENA_USER, 0),
	C(SNAPSHOT_CREATE, SETUP, fermata_snapshot_create, FERMATA_SNAPSHOT_USER, 0),
	C(SNAPSHOT_READ, HELD, fermata_snapshot_read, 0, 0),
	C(SNAPSHOT_WRITE, READY, fermata_snapshot_write, 0, 0),
	C(REGS_WRITE, READY, fermata_regs, 0, 12),
	C(REGS_READ, HELD, fermata_regs, 0, 12),
	C(RESULTS, READY, fermata_regs, 0, 12),
	C(REGS_LIST, READY, fermata_regs, FERMATA_REGS_RESULTS, 12),
	C(START, READY, fermata_start, FERMATA_START_REPLAYABLE | FERMATA_START_SAVED, 0),
	C(PREEMPT, HELD, fermata_preempt, FERMATA_PREEMPT_HOLD, 0),
	C(RESUME, HELD, fermata_resume, 0, 0),
	C(STATUS, HELD, fermata_status, 0, 0),
	C(WAIT, HELD, fermata_wait, EVENTS, 0),
	C(EVENTFD, HELD, fermata_eventfd, EVENTS, 12),
	C(DOORBELL, HELD, fermata_doorbell, 0, 0),
	C(HINT, READY, fermata_hint, 0, 0),
	C(PARAM_GET, READY, fermata_param, ~0U, 0),
	C(PARAM_SET, READY, fermata_param, ~0U, 0),
	C(CONTEXT_INFO, FRESH, fermata_context_info, 0, 0),
	C(HISTOGRAM, READY, fermata_histogram, 0, 52),
	C(CONTROL, FRESH, fermata_control, ~0U, 0),
	C(RESERVE, READY, fermata_reserve, 0, 12),
	C(RESERVE_GET, READY, fermata_reserve, 0, 12),
	C(POLICY_GET, FRESH, fermata_policy, 0, 0),
	C(POLICY_SET, FRESH, fermata_policy, 0, 0),
	C(GROUP, READY, fermata_group, FERMATA_GROUP_SET_WEIGHT, 20),
	C(EXCLUSIVE, READY, fermata_exclusive, FERMATA_EXCLUSIVE_RELEASE, 0),
	C(GANG, READY, fermata_gang, FERMATA_GANG_JOIN | FERMATA_GANG_LEAVE, 0),
#undef C
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

static u32 held_number;

/* A valid argument; what is output holds poison. */
static void fill(const struct call *k, union arg *a)
{
	memset(a, 0, sizeof(*a));
	a->size = k->size;
	switch (k->cmd) {
	case FERMATA_IOC_SETUP:
		a->setup.afu_id_lo = fm_afu[FM_LIST][0];
		a->setup.afu_id_hi = fm_afu[FM_LIST][1];
		a->setup.context = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_ARENA_CREATE:
		a->arena.length = 16384;
		a->arena.mmap_offset = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_SNAPSHOT_CREATE:
		a->snap.length = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_SNAPSHOT_READ:
		a->read.length = sizeof(snapshot);
		a->read.buffer = (uintptr_t)snapshot;
		break;
	case FERMATA_IOC_SNAPSHOT_WRITE:
		a->write.length = sizeof(snapshot);
		a->write.buffer = (uintptr_t)snapshot;
		break;
	case FERMATA_IOC_REGS_LIST:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)listed;
		break;
	case FERMATA_IOC_REGS_WRITE:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)good_regs;
		break;
	case FERMATA_IOC_REGS_READ:
	case FERMATA_IOC_RESULTS:
		a->regs.count = 2;
		a->regs.regs = (uintptr_t)good_results;
		break;
	case FERMATA_IOC_START:
		a->start.job = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_WAIT:
		a->wait.events = FERMATA_EVENT_HELD;
		a->wait.deadline = UINT64_MAX;
		a->wait.happened = 0xa5a5a5a5;
		a->wait.error = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_EVENTFD:
		a->event.events = FERMATA_EVENT_DONE;
		a->event.fd = event_fd;
		break;
	case FERMATA_IOC_PARAM_GET:
		a->param.param = FERMATA_PARAM_TIMESLICE;
		a->param.value = 0xa5a5a5a5a5a5a5a5;
		a->param.min = 0xa5a5a5a5a5a5a5a5;
		a->param.max = 0xa5a5a5a5a5a5a5a5;
		break;
	case FERMATA_IOC_PARAM_SET:
		a->param.param = FERMATA_PARAM_TIMESLICE;
		a->param.value = 1000000;
		break;
	case FERMATA_IOC_CONTEXT_INFO:
		memset(a->bytes + 12, 0xa5, k->size - 12);
		break;
	case FERMATA_IOC_HISTOGRAM:
		a->histogram.kind = FERMATA_HISTOGRAM_WAIT;
		memset(&a->histogram.count, 0xa5, 32);
		a->histogram.buckets = 2;
		a->histogram.counts = (uintptr_t)counts;
		break;
	case FERMATA_IOC_CONTROL:
		a->control.operation = FERMATA_CONTROL_HOLD;
		a->control.context = held_number;
		break;
	case FERMATA_IOC_RESERVE:
		a->reserve.budget_ns = 1000000;
		a->reserve.deadline_ns = 10000000;
		a->reserve.period_ns = 10000000;
		break;
	case FERMATA_IOC_RESERVE_GET:
		memset(&a->reserve.budget_ns, 0xa5, 24);
		break;
	case FERMATA_IOC_POLICY_SET:
		strcpy(a->policy.name, FERMATA_POLICY_PRIORITY);
		a->policy.guard_ns = FERMATA_GUARD_KEEP;
		break;
	case FERMATA_IOC_GROUP:
		memset(&a->group.weight, 0xa5, 8);
		memset(&a->group.number, 0xa5, 16);
		break;
	case FERMATA_IOC_EXCLUSIVE:
		a->exclusive.slot_mask = 1;
		break;
	case FERMATA_IOC_GANG:
		a->gang.members = 0xa5a5a5a5;
		break;
	case FERMATA_IOC_POLICY_GET:
	case FERMATA_IOC_STATUS:
	case FERMATA_IOC_CARD_INFO:
		memset(a->bytes + 8, 0xa5, k->size - 8);
		break;
	}
}

static struct fm_ctx full[2];	/* ready, held */
static int fds[STAGES];

static void make_stages(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_status st;
	struct fm_expect e;

	event_fd = eventfd(0, EFD_CLOEXEC);
	fds[FRESH] = fm_open_dev(0);
	fds[SETUP] = fm_open_dev(0);
	if (event_fd < 0 || fds[FRESH] < 0 || fds[SETUP] < 0)
		fm_die("open: %s", strerror(errno));
	fm_must(fds[SETUP], FERMATA_IOC_SETUP, &setup, "SETUP");
	fm_ctx_new(&full[0], FM_LIST, 16384);
	fm_job_list(&full[0], 16, 100, 3, &e);
	fds[READY] = full[0].fd;
	fm_ctx_new(&full[1], FM_LIST, 16384);
	fm_job_endless(&full[1]);
	fds[HELD] = full[1].fd;
	if (fm_start(fds[HELD]))
		fm_die("START");
	/* It must have run, so that it has a state to be read. */
	fm_until_state(fds[HELD], FERMATA_STATE_RUNNING);
	if (fm_preempt(fds[HELD], FERMATA_PREEMPT_HOLD))
		fm_die("PREEMPT");
	fm_wait(fds[HELD], FERMATA_EVENT_HELD);
	fm_status(fds[HELD], &st);
	held_number = st.context;
}

/* Tries the call; the errno, and nothing else, must come of it. */
static int refused(const struct call *k, void *arg, u32 len, int want)
{
	struct fermata_status before[STAGES], after[STAGES];
	u8 copy[sizeof(union arg)];
	int i, rc;

	for (i = 0; i < STAGES; i++)
		fm_status(fds[i], &before[i]);
	if (len)
		memcpy(copy, arg, len);
	rc = fm_ioctl(fds[k->stage], k->cmd, arg);
	if (rc != -want) {
		printf("# %s: %s, expected %s\n", k->name, rc ? strerror(-rc) : "success",
		       strerror(want));
		return 1;
	}
	if (len && memcmp(copy, arg, len)) {
		printf("# %s: the argument was written in spite of %s\n", k->name, strerror(want));
		return 1;
	}
	for (i = 0; i < STAGES; i++) {
		fm_status(fds[i], &after[i]);
		if (memcmp(&before[i], &after[i], sizeof(after[i]))) {
			printf("# %s: STATUS changed in spite of %s\n", k->name, strerror(want));
			return 1;
		}
	}
	return 0;
}

FM_TEST(bad, size_below_8_is_einval)
{
	size_t i, n;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		for (n = 0; n < 8; n++) {
			union arg a;

			fill(&calls[i], &a);
			a.size = n;
			EXPECT_EQ(0, refused(&calls[i], &a, sizeof(a), EINVAL));
		}
	}
}

FM_TEST(bad, larger_with_nonzero_tail_is_e2big)
{
	size_t i;
	u32 extra;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		for (extra = 1; extra < 64; extra = extra * 3 + 1) {
			union arg a;

			fill(&calls[i], &a);
			a.size += extra;
			a.bytes[a.size - 1] = 1;
			EXPECT_EQ(0, refused(&calls[i], &a, sizeof(a), E2BIG)) {
				TH_LOG("%s with %u bytes more", calls[i].name, extra);
			}
		}
	}
}

FM_TEST(bad, absurd_size_is_refused)
{
	size_t i;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		union arg a, copy;
		int rc;

		fill(&calls[i], &a);
		a.size = 0xffffffff;
		copy = a;
		rc = fm_ioctl(fds[calls[i].stage], calls[i].cmd, &a);
		EXPECT_TRUE(rc == -E2BIG || rc == -EFAULT) {
			TH_LOG("%s: %d", calls[i].name, rc);
		}
		EXPECT_EQ(0, memcmp(&a, &copy, sizeof(a)));
	}
}

FM_TEST(bad, unknown_flag_is_einval)
{
	size_t i;
	int bit;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		if (calls[i].known == ~0U)
			continue;
		for (bit = 0; bit < 32; bit++) {
			union arg a;

			if (calls[i].known & 1U << bit)
				continue;
			fill(&calls[i], &a);
			((u32 *)a.bytes)[1] |= 1U << bit;
			EXPECT_EQ(0, refused(&calls[i], &a, sizeof(a), EINVAL)) {
				TH_LOG("%s with flag bit %d", calls[i].name, bit);
			}
		}
	}
}

FM_TEST(bad, nonzero_reserved_is_einval)
{
	size_t i;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		union arg a;

		if (!calls[i].reserved)
			continue;
		fill(&calls[i], &a);
		a.bytes[calls[i].reserved] = 1;
		EXPECT_EQ(0, refused(&calls[i], &a, sizeof(a), EINVAL));
		fill(&calls[i], &a);
		a.bytes[calls[i].reserved + 3] = 0x80;
		EXPECT_EQ(0, refused(&calls[i], &a, sizeof(a), EINVAL));
	}
}

FM_TEST(bad, inaccessible_argument_is_efault)
{
	u8 *two = mmap(NULL, 2 * FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	size_t i;

	ASSERT_NE(MAP_FAILED, two);
	ASSERT_EQ(0, mprotect(two + FM_PAGE, FM_PAGE, PROT_NONE));
	make_stages();
	for (i = 0; i < CALLS; i++) {
		const struct call *k = &calls[i];
		union arg a;
		u8 *at;

		EXPECT_EQ(0, refused(k, NULL, 0, EFAULT));
		EXPECT_EQ(0, refused(k, two + FM_PAGE, 0, EFAULT));
		EXPECT_EQ(0, refused(k, (void *)(uintptr_t)(sizeof(long) == 8 ?
				     0xffff888000000000ULL : 0xfffff000), 0, EFAULT));
		/* Its last word, then its first but one, on a page that is not there. */
		fill(k, &a);
		at = two + FM_PAGE - (k->size - 4);
		memcpy(at, &a, k->size - 4);
		EXPECT_EQ(0, refused(k, at, k->size - 4, EFAULT));
		at = two + FM_PAGE - 4;
		memcpy(at, &a, 4);
		EXPECT_EQ(0, refused(k, at, 4, EFAULT));
		/* All there, but a tail that it claims to have. */
		at = two + FM_PAGE - k->size;
		fill(k, &a);
		a.size += 8;
		memcpy(at, &a, k->size);
		EXPECT_EQ(0, refused(k, at, k->size, EFAULT));
	}
}

/* What cannot be answered is not done either. */
FM_TEST(bad, read_only_argument_changes_nothing)
{
	static const unsigned long outputs[] = {
		FERMATA_IOC_CARD_INFO, FERMATA_IOC_SLOT_INFO, FERMATA_IOC_SETUP,
		FERMATA_IOC_ARENA_CREATE, FERMATA_IOC_SNAPSHOT_CREATE, FERMATA_IOC_START,
		FERMATA_IOC_STATUS, FERMATA_IOC_WAIT, FERMATA_IOC_PARAM_GET,
		FERMATA_IOC_RESERVE_GET, FERMATA_IOC_POLICY_GET, FERMATA_IOC_GROUP
	};
	u8 *page = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i, j;

	ASSERT_NE(MAP_FAILED, page);
	make_stages();
	for (i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
		for (j = 0; j < CALLS; j++) {
			if (calls[j].cmd != outputs[i])
				continue;
			ASSERT_EQ(0, mprotect(page, FM_PAGE, PROT_READ | PROT_WRITE));
			fill(&calls[j], (union arg *)page);
			ASSERT_EQ(0, mprotect(page, FM_PAGE, PROT_READ));
			EXPECT_EQ(0, refused(&calls[j], page, 64, EFAULT));
		}
	}
}

FM_TEST(bad, before_setup_is_enxio)
{
	size_t i;

	make_stages();
	for (i = 0; i < CALLS; i++) {
		struct call k = calls[i];
		union arg a;

		if (k.cmd == FERMATA_IOC_CARD_INFO || k.cmd == FERMATA_IOC_SLOT_INFO ||
		    k.cmd == FERMATA_IOC_SETUP || k.cmd == FERMATA_IOC_STATUS ||
		    k.cmd == FERMATA_IOC_CONTEXT_INFO || k.cmd == FERMATA_IOC_CONTROL ||
		    k.cmd == FERMATA_IOC_POLICY_GET || k.cmd == FERMATA_IOC_POLICY_SET)
			continue;
		k.stage = FRESH;
		fill(&k, &a);
		EXPECT_EQ(0, refused(&k, &a, sizeof(a), ENXIO));
	}
}

static const struct call *find(unsigned long cmd, enum stage stage)
{
	static struct call k;
	size_t i;

	for (i = 0; calls[i].cmd != cmd; i++)
		;
	k = calls[i];
	k.stage = stage;
	return &k;
}

/* One member changed from what is valid. */
#define REFUSED(cmd, stage, want, change)					\
do {										\
	const struct call *k_ = find(FERMATA_IOC_##cmd, stage);			\
	union arg a;								\
										\
	fill(k_, &a);								\
	change;									\
	EXPECT_EQ(0, refused(k_, &a, sizeof(a), want)) {			\
		TH_LOG("%s %s", #cmd, #change);					\
	}									\
} while (0)

FM_TEST(bad, card_and_slot_info)
{
	struct fermata_card_info info;

	make_stages();
	fm_card_info(&info);
	REFUSED(SLOT_INFO, FRESH, EINVAL, a.slot.slot = info.slots);
	REFUSED(SLOT_INFO, FRESH, EINVAL, a.slot.slot = FERMATA_MAX_SLOTS);
	REFUSED(SLOT_INFO, FRESH, EINVAL, a.slot.slot = 0x80000000);
	REFUSED(SLOT_INFO, FRESH, EINVAL, a.slot.slot = 0xffffffff);
}

FM_TEST(bad, setup_values)
{
	struct fermata_card_info info;
	int other = fm_slot_of(FM_SHA);

	make_stages();
	fm_card_info(&info);
	REFUSED(SETUP, FRESH, ENOENT, a.setup.afu_id_lo ^= 1);
	REFUSED(SETUP, FRESH, ENOENT, a.setup.afu_id_hi ^= 1);
	REFUSED(SETUP, FRESH, ENOENT, a.setup.afu_id_lo = a.setup.afu_id_hi = 0);
	REFUSED(SETUP, FRESH, EINVAL, a.setup.slot_mask = 1U << 31);
	if (info.slots < 32)
		REFUSED(SETUP, FRESH, EINVAL, a.setup.slot_mask = 1U << info.slots);
	if (other >= 0) {
		REFUSED(SETUP, FRESH, EINVAL, a.setup.slot_mask = 1U << other);
		REFUSED(SETUP, FRESH, EINVAL,
			a.setup.slot_mask = 1U << other | 1U << fm_slot_of(FM_LIST));
	}
	REFUSED(SETUP, SETUP, EEXIST, (void)0);
	REFUSED(SETUP, READY, EEXIST, (void)0);
	REFUSED(SETUP, HELD, EEXIST, (void)0);
}

FM_TEST(bad, arena)
{
	void *own = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_card_info info;

	make_stages();
	fm_card_info(&info);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = 0);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = 4095);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = 4097);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = info.max_arena + 4096);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = 1ULL << 63);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.length = -4096ULL);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.device_base = 0x10000);
	REFUSED(ARENA_CREATE, SETUP, EINVAL,
		a.arena.flags = FERMATA_ARENA_FIXED_BASE; a.arena.device_base = 0x10001);
	REFUSED(ARENA_CREATE, SETUP, EINVAL,
		a.arena.flags = FERMATA_ARENA_FIXED_BASE; a.arena.device_base = 1ULL << 47);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_FIXED_BASE;
		a.arena.device_base = (1ULL << 47) - 16384 + 4096);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_FIXED_BASE;
		a.arena.device_base = -4096ULL);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.user_addr = (uintptr_t)own);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own + 8);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = 1ULL << 47);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = -16384ULL);
	REFUSED(ARENA_CREATE, SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own; a.arena.device_base = 0x10000);
	REFUSED(ARENA_CREATE, READY, EEXIST, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own);
	REFUSED(ARENA_CREATE, READY, EEXIST, (void)0);
	REFUSED(ARENA_CREATE, HELD, EEXIST, (void)0);
}

FM_TEST(bad, arena_mapping)
{
	int rw = PROT_READ | PROT_WRITE;
	off_t off;

	make_stages();
	off = full[0].off;
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[FRESH], off));
	EXPECT_EQ(ENXIO, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[SETUP], off));
	EXPECT_EQ(ENXIO, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_PRIVATE, fds[READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fds[READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 16384 + 4096, rw, MAP_SHARED, fds[READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 8192, rw, MAP_SHARED, fds[READY], off + 16384 - 4096));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[READY], off + 16384));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[READY], off + (1LL << 40)));
	EXPECT_EQ(EINVAL, errno);
}

FM_TEST(bad, snapshot)
{
	struct fermata_status st;
	u64 length;

	make_stages();
	fm_status(fds[HELD], &st);
	length = st.snapshot_length;
	ASSERT_LT(sizeof(snapshot), length);
	REFUSED(SNAPSHOT_CREATE, READY, EEXIST, (void)0);
	REFUSED(SNAPSHOT_READ, SETUP, ENXIO, (void)0);
	REFUSED(SNAPSHOT_READ, READY, EBUSY, (void)0);
	REFUSED(SNAPSHOT_READ, HELD, EINVAL, a.read.offset = length);
	REFUSED(SNAPSHOT_READ, HELD, EINVAL, a.read.length = length + 1);
	REFUSED(SNAPSHOT_READ, HELD, EINVAL, a.read.offset = length - 8; a.read.length = 9);
	REFUSED(SNAPSHOT_READ, HELD, EINVAL, a.read.offset = -8ULL; a.read.length = 16);
	REFUSED(SNAPSHOT_READ, HELD, EINVAL, a.read.length = -1ULL);
	REFUSED(SNAPSHOT_READ, HELD, EFAULT, a.read.buffer = 8);
	REFUSED(SNAPSHOT_READ, HELD, EFAULT, a.read.buffer = 0xffff888000000000ULL);
}

FM_TEST(bad, registers_out_of_range)
{
	static const u32 offsets[] = {
		0x00, 0x08, 0x18, 0x20, 0x28, 0x2f, 0x31, 0x34, 0x3c, 0xff4, 0xff9, 0xffc, 0x1000,
		0x1018, 0x7ffffff8, 0x80000000, 0xfffffff8
	};
	size_t i;

	make_stages();
	for (i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		/* Behind a good one: all or none. */
		struct fermata_reg regs[2] = { { .offset = 0x40 }, { .offset = offsets[i] } };

		REFUSED(REGS_WRITE, READY, EINVAL, a.regs.regs = (uintptr_t)regs);
		REFUSED(REGS_READ, HELD, EINVAL, a.regs.regs = (uintptr_t)regs);
		REFUSED(RESULTS, READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	}
}

FM_TEST(bad, registers_arrays)
{
	struct fermata_reg regs[2] = { { .offset = 0x38 }, { .offset = 0x40, .reserved = 1 } };
	static struct fermata_reg many[FERMATA_MAX_REGS + 1];
	int i;

	make_stages();
	for (i = 0; i <= FERMATA_MAX_REGS; i++)
		many[i].offset = 0x80;
	REFUSED(REGS_WRITE, READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(REGS_READ, HELD, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(RESULTS, READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	regs[1].reserved = 0;
	regs[1].value = 1;
	REFUSED(RESULTS, READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(REGS_WRITE, READY, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_REGS + 1);
	REFUSED(REGS_READ, HELD, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_REGS + 1);
	REFUSED(RESULTS, READY, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_RESULTS + 1);
	REFUSED(REGS_WRITE, READY, EINVAL, a.regs.count = 0xffffffff);
	REFUSED(REGS_READ, HELD, EINVAL, a.regs.count = 0x80000001);
	REFUSED(REGS_WRITE, READY, EFAULT, a.regs.regs = 0);
	REFUSED(REGS_WRITE, READY, EFAULT, a.regs.regs = 0xffff888000000000ULL);
	REFUSED(REGS_READ, HELD, EFAULT, a.regs.regs = 16);
	REFUSED(RESULTS, READY, EFAULT, a.regs.regs = 16);
	REFUSED(RESULTS, HELD, EBUSY, (void)0);
	/* As many as are allowed. */
	EXPECT_EQ(0, fm_regs_write(fds[READY], many, FERMATA_MAX_REGS));
}

/* "All or none": the job after a refused write runs with the old values. */
FM_TEST(bad, refused_register_write_writes_none)
{
	struct fermata_reg regs[3] = {
		{ .offset = 0x40, .value = 99 }, { .offset = 0x38, .value = 5 },
		{ .offset = 0x18, .value = 6 },
	};
	struct fm_expect e;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 16384);
	fm_job_list(&c, 16, 100, 3, &e);
	ASSERT_EQ(-EINVAL, fm_regs_write(c.fd, regs, 3));
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(bad, start_in_wrong_order)
{
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 8192 };
	int fd;

	make_stages();
	fd = fds[SETUP];
	REFUSED(START, SETUP, ENXIO, (void)0);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena));
	REFUSED(START, SETUP, ENXIO, (void)0);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	REFUSED(START, SETUP, EDESTADDRREQ, (void)0);
	/* A part of it is not the whole. */
	ASSERT_NE(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, arena.mmap_offset));
	REFUSED(START, SETUP, EDESTADDRREQ, (void)0);
	REFUSED(START, HELD, EBUSY, (void)0);
}

FM_TEST(bad, preempt_and_resume_without_job)
{
	struct fm_expect e;

	make_stages();
	REFUSED(PREEMPT, READY, ENOENT, (void)0);
	REFUSED(PREEMPT, READY, ENOENT, a.preempt.flags = FERMATA_PREEMPT_HOLD);
	REFUSED(RESUME, READY, ENOENT, (void)0);
	fm_job_list(&full[0], 16, 100, 3, &e);
	ASSERT_GOOD(fm_job_run(&full[0], &e));
	REFUSED(PREEMPT, READY, ENOENT, (void)0);
	REFUSED(PREEMPT, READY, ENOENT, a.preempt.flags = FERMATA_PREEMPT_HOLD);
	REFUSED(RESUME, READY, ENOENT, (void)0);
}

FM_TEST(bad, wait_values)
{
	make_stages();
	REFUSED(WAIT, HELD, EINVAL, a.wait.events = 0);
	REFUSED(WAIT, READY, ENOENT, (void)0);
	REFUSED(WAIT, READY, ENOENT, a.wait.deadline = 0);
	REFUSED(WAIT, HELD, ETIMEDOUT, a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = 0);
	REFUSED(WAIT, HELD, ETIMEDOUT, a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = 1);
	REFUSED(WAIT, HELD, ETIMEDOUT,
		a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = fm_now() + 1000000);
}

FM_TEST(bad, eventfd)
{
	int closed = dup(event_fd), file = open("/dev/null", O_RDWR);

	make_stages();
	close(closed);
	closed = 1000;
	REFUSED(EVENTFD, HELD, EBADF, a.event.fd = closed);
	REFUSED(EVENTFD, HELD, EINVAL, a.event.fd = file);
	REFUSED(EVENTFD, HELD, EINVAL, a.event.events = 0);
	REFUSED(EVENTFD, HELD, EINVAL, a.event.fd = -1);
	REFUSED(EVENTFD, HELD, EBADF, a.event.fd = -2);
	REFUSED(EVENTFD, HELD, EINVAL, a.event.fd = fds[READY]);
}

FM_TEST(bad, params)
{
	static const u32 params[] = { FERMATA_PARAM_TIMESLICE, FERMATA_PARAM_PREEMPT_TIMEOUT };
	static const u64 least[] = { 100000, 1000000 };
	int i;

	make_stages();
	REFUSED(PARAM_GET, READY, EINVAL, a.param.param = 0);
	REFUSED(PARAM_GET, READY, EINVAL, a.param.param = 11);
	REFUSED(PARAM_GET, READY, EINVAL, a.param.param = 0xffffffff);
	REFUSED(PARAM_SET, READY, EINVAL, a.param.param = 0);
	REFUSED(PARAM_SET, READY, EINVAL, a.param.param = 11);
	for (i = 0; i < 2; i++) {
		u64 before = fm_param_get(fds[READY], params[i]);

		REFUSED(PARAM_SET, READY, ERANGE,
			a.param.param = params[i]; a.param.value = 0);
		REFUSED(PARAM_SET, READY, ERANGE,
			a.param.param = params[i]; a.param.value = least[i] - 1);
		REFUSED(PARAM_SET, READY, ERANGE,
			a.param.param = params[i]; a.param.value = 10000000001);
		REFUSED(PARAM_SET, READY, ERANGE,
			a.param.param = params[i]; a.param.value = UINT64_MAX);
		EXPECT_EQ(before, fm_param_get(fds[READY], params[i]));
	}
}

/* More than the default takes a capability, of the caller, at the call. */
FM_TEST(bad, params_of_an_unprivileged_caller)
{
	struct fermata_param get = { .size = sizeof(get), .param = FERMATA_PARAM_TIMESLICE };
	struct fm_child ch;
	u64 value;
	int status;

	make_stages();
	value = fm_param_get(fds[SETUP], FERMATA_PARAM_TIMESLICE);
	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_param set = get;

		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(1);
		if (fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_GET, &get))
			_exit(2);
		if (get.value != value || get.max != value || get.min != 100000)
			_exit(3);
		set.value = value + 1;
		if (fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_SET, &set) != -EPERM)
			_exit(4);
		set.value = 10000000001;
		if (fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_SET, &set) != -ERANGE)
			_exit(5);
		set.value = get.min;
		if (fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_SET, &set))
			_exit(6);
		/* Back up to the default is allowed. */
		set.value = value;
		if (fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_SET, &set))
			_exit(7);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(value, fm_param_get(fds[SETUP], FERMATA_PARAM_TIMESLICE));
	ASSERT_EQ(0, fm_ioctl(fds[SETUP], FERMATA_IOC_PARAM_GET, &get));
	EXPECT_EQ(10000000000, get.max);
	EXPECT_EQ(0, fm_param_set(fds[SETUP], FERMATA_PARAM_TIMESLICE, 10000000000));
}

/* What another user gets from open() and SETUP: 0 or an errno. */
static int setup_of_another_user(void)
{
	struct fm_child ch;
	int status;

	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};
		int fd;

		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(255);
		fd = fm_open_dev(0);
		_exit(fd < 0 ? -fd : -fm_ioctl(fd, FERMATA_IOC_SETUP, &setup));
	}
	status = fm_reap(&ch);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/*
 * Only the card's window separates tenants: without it an IOMMU allows one user at a
 * time, and nothing at all allows only who may touch all memory anyway.
 */
FM_TEST(bad, point_18_setup_without_a_window)
{
	const char *dev = getenv("FERMATA_DEV") ?: "/dev/fermata0";
	struct fermata_card_info info = { .size = sizeof(info) };
	int with_us = 0, alone = 0;
	struct fm_ctx ours;

	fm_card_info(&info);
	if (!(info.features & FERMATA_FEATURE_WINDOW)) {
		with_us = info.features & FERMATA_FEATURE_IOMMU ? EBUSY : EPERM;
		alone = info.features & FERMATA_FEATURE_IOMMU ? 0 : EPERM;
	}
	ASSERT_EQ(0, chmod(dev, 0666));
	fm_ctx_new(&ours, FM_LIST, 4096);
	EXPECT_EQ(with_us, setup_of_another_user());
	fm_ctx_close(&ours);
	EXPECT_EQ(alone, setup_of_another_user());
	ASSERT_EQ(0, chmod(dev, 0600));
}

/* Opens and sets up as this user until one is refused; returns how many were not. */
static int many_of(uid_t uid, int *fd, int max, int *refusal)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int n;

	if (setresuid(0, 0, 0) || setresuid(uid, uid, 0))
		fm_die("setresuid: %s", strerror(errno));
	for (n = 0; n < max; n++) {
		fd[n] = fm_open_dev(0);
		*refusal = fd[n] < 0 ? fd[n] : fm_ioctl(fd[n], FERMATA_IOC_SETUP, &setup);
		if (*refusal)
			break;
	}
	return n;
}

/* No user has all contexts of the card, unless it may have more resources than others. */
FM_TEST(bad, contexts_of_a_user_are_bounded)
{
	struct rlimit files = { 8300, 8300 };
	struct fermata_card_info info;
	static int fd[8200];
	int n, refusal = 0, one, i;

	fm_card_info(&info);
	if (info.max_contexts > 8192 || setrlimit(RLIMIT_NOFILE, &files) || !fm_has_window())
		SKIP(return, "too many contexts, or of one user only");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	n = many_of(4711, fd, info.max_contexts, &refusal);
	EXPECT_EQ(-EDQUOT, refusal);
	ASSERT_GT(info.max_contexts, n);
	/* Others have their own; the opener counts, and the caller's capability. */
	EXPECT_EQ(1, many_of(4712, &one, 1, &refusal));
	close(one);
	EXPECT_EQ(1, many_of(0, &one, 1, &refusal));
	{
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};

		EXPECT_EQ(0, fm_ioctl(fd[n], FERMATA_IOC_SETUP, &setup));
	}
	close(one);
	EXPECT_EQ(0, many_of(4711, &one, 1, &refusal));
	EXPECT_EQ(-EDQUOT, refusal);
	close(one);
	/* Room again. */
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(1, many_of(4711, &one, 1, &refusal));
	close(one);
	for (i = 2; i <= n; i++)
		close(fd[i]);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* As many contexts as the card takes; the next is ENOSPC, and after a close there is room. */
FM_TEST(bad, contexts_are_bounded)
{
	struct fermata_card_info info = { .size = sizeof(info) };
	static int fd[8200];
	struct rlimit files = { 8300, 8300 };
	int n, i, spare;

	fm_card_info(&info);
	if (info.max_contexts > 8192 || setrlimit(RLIMIT_NOFILE, &files))
		SKIP(return, "%u contexts are more than this test opens", info.max_contexts);
	for (n = 0; n <= info.max_contexts; n++) {
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};

		fd[n] = fm_open_dev(0);
		ASSERT_LE(0, fd[n]);
		ASSERT_EQ(n < info.max_contexts ? 0 : -ENOSPC,
			  fm_ioctl(fd[n], FERMATA_IOC_SETUP, &setup));
	}
	ASSERT_EQ(0, fm_ioctl(fd[0], FERMATA_IOC_CARD_INFO, &info));
	EXPECT_EQ(info.max_contexts, info.contexts);
	close(fd[1]);
	spare = fd[n - 1];
	{
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};

		EXPECT_EQ(0, fm_ioctl(spare, FERMATA_IOC_SETUP, &setup));
	}
	for (i = 0; i < n; i++)
		if (i != 1)
			close(fd[i]);
}

TEST_HARNESS_MAIN
