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
#include "lib/calls.h"
#include "lib/sched.h"

FM_FIXTURE_ANY(bad);

static int fds[FM_STAGES];

/* Tries the call: it must return the errno, and have no other effect. */
static int refused(const struct fm_call *k, void *arg, u32 len, int want)
{
	struct fermata_status before[FM_STAGES], after[FM_STAGES];
	u8 copy[sizeof(union fm_arg)];
	int i, rc;

	for (i = 0; i < FM_STAGES; i++)
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
	for (i = 0; i < FM_STAGES; i++) {
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

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		for (n = 0; n < 8; n++) {
			union fm_arg a;

			fm_call_fill(&fm_calls[i], &a);
			a.size = n;
			EXPECT_EQ(0, refused(&fm_calls[i], &a, sizeof(a), EINVAL));
		}
	}
}

FM_TEST(bad, larger_with_nonzero_tail_is_e2big)
{
	size_t i;
	u32 extra;

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		for (extra = 1; extra < 64; extra = extra * 3 + 1) {
			union fm_arg a;

			fm_call_fill(&fm_calls[i], &a);
			a.size += extra;
			a.bytes[a.size - 1] = 1;
			EXPECT_EQ(0, refused(&fm_calls[i], &a, sizeof(a), E2BIG)) {
				TH_LOG("%s with %u bytes more", fm_calls[i].name, extra);
			}
		}
	}
}

FM_TEST(bad, absurd_size_is_refused)
{
	size_t i;

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		union fm_arg a, copy;
		int rc;

		fm_call_fill(&fm_calls[i], &a);
		a.size = 0xffffffff;
		copy = a;
		rc = fm_ioctl(fds[fm_calls[i].stage], fm_calls[i].cmd, &a);
		EXPECT_TRUE(rc == -E2BIG || rc == -EFAULT) {
			TH_LOG("%s: %d", fm_calls[i].name, rc);
		}
		EXPECT_EQ(0, memcmp(&a, &copy, sizeof(a)));
	}
}

FM_TEST(bad, unknown_flag_is_einval)
{
	size_t i;
	int bit;

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		if (fm_calls[i].known == ~0U)
			continue;
		for (bit = 0; bit < 32; bit++) {
			union fm_arg a;

			if (fm_calls[i].known & 1U << bit)
				continue;
			fm_call_fill(&fm_calls[i], &a);
			((u32 *)a.bytes)[1] |= 1U << bit;
			EXPECT_EQ(0, refused(&fm_calls[i], &a, sizeof(a), EINVAL)) {
				TH_LOG("%s with flag bit %d", fm_calls[i].name, bit);
			}
		}
	}
}

FM_TEST(bad, nonzero_reserved_is_einval)
{
	size_t i;

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		union fm_arg a;

		if (!fm_calls[i].reserved)
			continue;
		fm_call_fill(&fm_calls[i], &a);
		a.bytes[fm_calls[i].reserved] = 1;
		EXPECT_EQ(0, refused(&fm_calls[i], &a, sizeof(a), EINVAL));
		fm_call_fill(&fm_calls[i], &a);
		a.bytes[fm_calls[i].reserved + 3] = 0x80;
		EXPECT_EQ(0, refused(&fm_calls[i], &a, sizeof(a), EINVAL));
	}
}

FM_TEST(bad, inaccessible_argument_is_efault)
{
	u8 *two = mmap(NULL, 2 * FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	size_t i;

	ASSERT_NE(MAP_FAILED, two);
	ASSERT_EQ(0, mprotect(two + FM_PAGE, FM_PAGE, PROT_NONE));
	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		const struct fm_call *k = &fm_calls[i];
		union fm_arg a;
		u8 *at;

		EXPECT_EQ(0, refused(k, NULL, 0, EFAULT));
		EXPECT_EQ(0, refused(k, two + FM_PAGE, 0, EFAULT));
		EXPECT_EQ(0, refused(k, (void *)(uintptr_t)(sizeof(long) == 8 ?
				     0xffff888000000000ULL : 0xfffff000), 0, EFAULT));
		/* The last word, then all but the first word, on a missing page. */
		fm_call_fill(k, &a);
		at = two + FM_PAGE - (k->size - 4);
		memcpy(at, &a, k->size - 4);
		EXPECT_EQ(0, refused(k, at, k->size - 4, EFAULT));
		at = two + FM_PAGE - 4;
		memcpy(at, &a, 4);
		EXPECT_EQ(0, refused(k, at, 4, EFAULT));
		/* Complete, but for a tail that the size claims. */
		at = two + FM_PAGE - k->size;
		fm_call_fill(k, &a);
		a.size += 8;
		memcpy(at, &a, k->size);
		EXPECT_EQ(0, refused(k, at, k->size, EFAULT));
	}
}

/* A call whose answer cannot be written does nothing. A call that sets something has no answer. */
FM_TEST(bad, read_only_argument_changes_nothing)
{
	static const unsigned long outputs[] = {
		FERMATA_IOC_CARD_INFO, FERMATA_IOC_SLOT_INFO, FERMATA_IOC_SETUP,
		FERMATA_IOC_ARENA_CREATE, FERMATA_IOC_SNAPSHOT_CREATE, FERMATA_IOC_START,
		FERMATA_IOC_STATUS, FERMATA_IOC_WAIT, FERMATA_IOC_PARAM, FERMATA_IOC_HOLD,
		FERMATA_IOC_RESERVE, FERMATA_IOC_GROUP, FERMATA_IOC_GROUP_SET
	};
	u8 *page = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i, j;

	ASSERT_NE(MAP_FAILED, page);
	fm_stages_make(fds);
	for (i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
		for (j = 0; j < FM_CALLS; j++) {
			if (fm_calls[j].cmd != outputs[i])
				continue;
			ASSERT_EQ(0, mprotect(page, FM_PAGE, PROT_READ | PROT_WRITE));
			fm_call_fill(&fm_calls[j], (union fm_arg *)page);
			ASSERT_EQ(0, mprotect(page, FM_PAGE, PROT_READ));
			if (!fm_calls[j].sets) {
				EXPECT_EQ(0, refused(&fm_calls[j], page, 64, EFAULT));
				continue;
			}
			EXPECT_EQ(0, fm_ioctl(fds[fm_calls[j].stage], fm_calls[j].cmd, page));
		}
	}
}

FM_TEST(bad, before_setup_is_enxio)
{
	size_t i;

	fm_stages_make(fds);
	for (i = 0; i < FM_CALLS; i++) {
		struct fm_call k = fm_calls[i];
		union fm_arg a;

		if (k.cmd == FERMATA_IOC_CARD_INFO || k.cmd == FERMATA_IOC_SLOT_INFO ||
		    k.cmd == FERMATA_IOC_SETUP || k.cmd == FERMATA_IOC_STATUS ||
		    k.cmd == FERMATA_IOC_CONTEXT_INFO || k.cmd == FERMATA_IOC_GROUP_SET)
			continue;
		k.stage = FM_FRESH;
		fm_call_fill(&k, &a);
		EXPECT_EQ(0, refused(&k, &a, sizeof(a), ENXIO));
	}
}

static const struct fm_call *find(unsigned long cmd, bool sets, enum fm_stage stage)
{
	static struct fm_call k;
	size_t i;

	for (i = 0; fm_calls[i].cmd != cmd || fm_calls[i].sets != sets; i++)
		;
	k = fm_calls[i];
	k.stage = stage;
	return &k;
}

/* A valid argument with one member changed. */
#define REFUSED(cmd, stage, want, change)	REFUSED_OF(cmd, false, stage, want, change)
#define REFUSED_SET(cmd, stage, want, change)	REFUSED_OF(cmd, true, stage, want, change)
#define REFUSED_OF(cmd, sets, stage, want, change)				\
do {										\
	const struct fm_call *k_ = find(FERMATA_IOC_##cmd, sets, stage);	\
	union fm_arg a;								\
										\
	fm_call_fill(k_, &a);								\
	change;									\
	EXPECT_EQ(0, refused(k_, &a, sizeof(a), want)) {			\
		TH_LOG("%s %s", #cmd, #change);					\
	}									\
} while (0)

FM_TEST(bad, card_and_slot_info)
{
	struct fermata_card_info info;

	fm_stages_make(fds);
	fm_card_info(&info);
	REFUSED(SLOT_INFO, FM_FRESH, EINVAL, a.slot.slot = info.slots);
	REFUSED(SLOT_INFO, FM_FRESH, EINVAL, a.slot.slot = FERMATA_MAX_SLOTS);
	REFUSED(SLOT_INFO, FM_FRESH, EINVAL, a.slot.slot = 0x80000000);
	REFUSED(SLOT_INFO, FM_FRESH, EINVAL, a.slot.slot = 0xffffffff);
}

FM_TEST(bad, gangs_that_cannot_be)
{
	u32 held, ready;

	fm_stages_make(fds);
	held = fm_number(fm_held.fd);
	ready = fm_number(fm_ready.fd);
	REFUSED(GANG, FM_READY, EINVAL, a.gang.context = held);
	REFUSED(GANG, FM_READY, EINVAL, a.gang.flags = FERMATA_GANG_JOIN);
	REFUSED(GANG, FM_READY, EINVAL, a.gang.flags = FERMATA_GANG_JOIN; a.gang.context = ready);
	REFUSED(GANG, FM_READY, EINVAL, a.gang.flags = FERMATA_GANG_LEAVE; a.gang.context = held);
	REFUSED(GANG, FM_READY, EINVAL,
		a.gang.flags = FERMATA_GANG_JOIN | FERMATA_GANG_LEAVE; a.gang.context = held);
	REFUSED(GANG, FM_READY, ESRCH, a.gang.flags = FERMATA_GANG_JOIN; a.gang.context = ~0U);
	/* Both may use only one slot, which is the same. */
	REFUSED(GANG, FM_READY, ENOSPC, a.gang.flags = FERMATA_GANG_JOIN; a.gang.context = held);
	REFUSED(GANG, FM_HELD, ENOSPC, a.gang.flags = FERMATA_GANG_JOIN; a.gang.context = ready);
}

FM_TEST(bad, groups_that_nest_too_deep)
{
	char path[64] = FM_CGROUP "0";
	struct fermata_group_set g;
	int depth, cgroup;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_stages_make(fds);
	for (depth = 0; depth < 4; depth++, strcat(path, "/a")) {
		fm_cgroup_make(path);
		g = (struct fermata_group_set) { .flags = FERMATA_GROUP_WEIGHT, .weight = 7 };
		fm_group(path, &g);
	}
	fm_cgroup_make(path);
	cgroup = fm_cgroup_open(path);
	REFUSED(GROUP_SET, FM_FRESH, E2BIG, a.group_set.cgroup = cgroup);
	REFUSED(GROUP_SET, FM_FRESH, ENOENT, a.group_set.cgroup = cgroup; a.group_set.flags = 0);
	REFUSED(GROUP_SET, FM_FRESH, ENOENT,
		a.group_set.cgroup = cgroup; a.group_set.flags = FERMATA_GROUP_REMOVE);
	close(cgroup);
}

FM_TEST(bad, setup_values)
{
	struct fermata_card_info info;
	int other = fm_slot_of(FM_SHA);

	fm_stages_make(fds);
	fm_card_info(&info);
	REFUSED(SETUP, FM_FRESH, ENOENT, a.setup.afu_id_lo ^= 1);
	REFUSED(SETUP, FM_FRESH, ENOENT, a.setup.afu_id_hi ^= 1);
	REFUSED(SETUP, FM_FRESH, ENOENT, a.setup.afu_id_lo = a.setup.afu_id_hi = 0);
	REFUSED(SETUP, FM_FRESH, EINVAL, a.setup.slot_mask = 1U << 31);
	if (info.slots < 32)
		REFUSED(SETUP, FM_FRESH, EINVAL, a.setup.slot_mask = 1U << info.slots);
	if (other >= 0) {
		REFUSED(SETUP, FM_FRESH, EINVAL, a.setup.slot_mask = 1U << other);
		REFUSED(SETUP, FM_FRESH, EINVAL,
			a.setup.slot_mask = 1U << other | 1U << fm_slot_of(FM_LIST));
	}
	REFUSED(SETUP, FM_SETUP, EEXIST, (void)0);
	REFUSED(SETUP, FM_READY, EEXIST, (void)0);
	REFUSED(SETUP, FM_HELD, EEXIST, (void)0);
}

#define SHARED_REFUSED(errno, of, at)							\
	REFUSED(ARENA_CREATE, FM_SETUP, errno, a.arena.flags = FERMATA_ARENA_SHARED;	\
		a.arena.fd = (of); a.arena.offset = (at))

FM_TEST(bad, arena)
{
	int eventfd_of_ours = eventfd(0, EFD_CLOEXEC);
	void *own = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_card_info info;
	bool foreign;

	foreign = fm_foreign_memory();
	fm_stages_make(fds);
	fm_card_info(&info);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = 0);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = 4095);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = 4097);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = info.max_arena + 4096);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = 1ULL << 63);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.length = -4096ULL);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.device_base = 0x10000);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL,
		a.arena.flags = FERMATA_ARENA_FIXED_BASE; a.arena.device_base = 0x10001);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL,
		a.arena.flags = FERMATA_ARENA_FIXED_BASE; a.arena.device_base = 1ULL << 47);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_FIXED_BASE;
		a.arena.device_base = (1ULL << 47) - 16384 + 4096);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_FIXED_BASE;
		a.arena.device_base = -4096ULL);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.user_addr = (uintptr_t)own);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own + 8);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = 1ULL << 47);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = -16384ULL);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own; a.arena.device_base = 0x10000);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.fd = fds[FM_READY]);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.offset = FM_PAGE);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.flags = FERMATA_ARENA_SHARED | FERMATA_ARENA_USER;
		a.arena.fd = fds[FM_READY]; a.arena.user_addr = (uintptr_t)own);
	REFUSED(ARENA_CREATE, FM_SETUP, EINVAL, a.arena.pid = getpid());
	REFUSED(ARENA_CREATE, FM_SETUP, foreign ? ESRCH : EPERM, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own; a.arena.pid = 0x7fffffff);
	REFUSED(ARENA_CREATE, FM_SETUP, foreign ? ESRCH : EPERM, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own; a.arena.pid = ~0U);
	REFUSED(ARENA_CREATE, FM_SETUP, foreign ? EFAULT : EPERM, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = FM_PAGE; a.arena.pid = getpid());
	REFUSED(SNAPSHOT_CREATE, FM_SETUP, EINVAL, a.snap.pid = getpid());
	SHARED_REFUSED(EBADF, -1, 0);
	SHARED_REFUSED(EBADF, 10000, 0);
	SHARED_REFUSED(EINVAL, eventfd_of_ours, 0);
	SHARED_REFUSED(ENXIO, fds[FM_SETUP], 0);
	SHARED_REFUSED(ENXIO, fds[FM_FRESH], 0);
	SHARED_REFUSED(EINVAL, fds[FM_READY], 8);
	SHARED_REFUSED(EINVAL, fds[FM_READY], 1ULL << 40);
	SHARED_REFUSED(EINVAL, fds[FM_READY], -4096ULL);
	REFUSED(ARENA_CREATE, FM_READY, EEXIST, a.arena.flags = FERMATA_ARENA_SHARED;
		a.arena.fd = fds[FM_HELD]);
	REFUSED(ARENA_CREATE, FM_READY, EEXIST, a.arena.flags = FERMATA_ARENA_USER;
		a.arena.user_addr = (uintptr_t)own);
	REFUSED(ARENA_CREATE, FM_READY, EEXIST, (void)0);
	REFUSED(ARENA_CREATE, FM_HELD, EEXIST, (void)0);
	close(eventfd_of_ours);
}

FM_TEST(bad, arena_mapping)
{
	int rw = PROT_READ | PROT_WRITE;
	off_t off;

	fm_stages_make(fds);
	off = fm_ready.off;
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[FM_FRESH], off));
	EXPECT_EQ(ENXIO, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[FM_SETUP], off));
	EXPECT_EQ(ENXIO, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw | PROT_EXEC, MAP_SHARED, fds[FM_READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, mprotect(fm_ready.mem, 4096, rw | PROT_EXEC));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_PRIVATE, fds[FM_READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fds[FM_READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 16384 + 4096, rw, MAP_SHARED, fds[FM_READY], off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 8192, rw, MAP_SHARED, fds[FM_READY], off + 16384 - 4096));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[FM_READY], off + 16384));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, rw, MAP_SHARED, fds[FM_READY], off + (1LL << 40)));
	EXPECT_EQ(EINVAL, errno);
}

FM_TEST(bad, snapshot)
{
	struct fermata_status st;
	u64 length;

	fm_stages_make(fds);
	fm_status(fds[FM_HELD], &st);
	length = st.snapshot_length;
	ASSERT_LT(FM_CALL_BYTES, length);
	REFUSED(SNAPSHOT_CREATE, FM_READY, EEXIST, (void)0);
	REFUSED(SNAPSHOT_READ, FM_SETUP, ENXIO, (void)0);
	REFUSED(SNAPSHOT_READ, FM_READY, EBUSY, (void)0);
	REFUSED(SNAPSHOT_READ, FM_HELD, EINVAL, a.read.offset = length);
	REFUSED(SNAPSHOT_READ, FM_HELD, EINVAL, a.read.length = length + 1);
	REFUSED(SNAPSHOT_READ, FM_HELD, EINVAL, a.read.offset = length - 8; a.read.length = 9);
	REFUSED(SNAPSHOT_READ, FM_HELD, EINVAL, a.read.offset = -8ULL; a.read.length = 16);
	REFUSED(SNAPSHOT_READ, FM_HELD, EINVAL, a.read.length = -1ULL);
	REFUSED(SNAPSHOT_READ, FM_HELD, EFAULT, a.read.buffer = 8);
	REFUSED(SNAPSHOT_READ, FM_HELD, EFAULT, a.read.buffer = 0xffff888000000000ULL);
}

FM_TEST(bad, registers_out_of_range)
{
	static const u32 offsets[] = {
		0x00, 0x08, 0x18, 0x20, 0x28, 0x2f, 0x31, 0x34, 0x3c, 0xff4, 0xff9, 0xffc, 0x1000,
		0x1018, 0x7ffffff8, 0x80000000, 0xfffffff8
	};
	size_t i;

	fm_stages_make(fds);
	for (i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		/* After a valid one: all or none. */
		struct fermata_reg regs[2] = { { .offset = 0x40 }, { .offset = offsets[i] } };

		REFUSED(REGS_WRITE, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs);
		REFUSED(REGS_READ, FM_HELD, EINVAL, a.regs.regs = (uintptr_t)regs);
		REFUSED(RESULTS, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	}
}

FM_TEST(bad, registers_arrays)
{
	struct fermata_reg regs[2] = { { .offset = 0x38 }, { .offset = 0x40, .reserved = 1 } };
	static struct fermata_reg many[FERMATA_MAX_REGS + 1];
	const int all = (FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1;
	int i;

	fm_stages_make(fds);
	for (i = 0; i <= FERMATA_MAX_REGS; i++)
		many[i].offset = FERMATA_REG_FIRST + 8 * (i % all);
	REFUSED(REGS_WRITE, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(REGS_READ, FM_HELD, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(RESULTS, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	regs[1].reserved = 0;
	regs[1].value = 1;
	REFUSED(RESULTS, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs);
	REFUSED(REGS_WRITE, FM_READY, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_REGS + 1);
	REFUSED(REGS_READ, FM_HELD, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_REGS + 1);
	REFUSED(RESULTS, FM_READY, EINVAL,
		a.regs.regs = (uintptr_t)many; a.regs.count = FERMATA_MAX_RESULTS + 1);
	REFUSED(REGS_WRITE, FM_READY, EINVAL, a.regs.count = 0xffffffff);
	REFUSED(REGS_READ, FM_HELD, EINVAL, a.regs.count = 0x80000001);
	REFUSED(REGS_WRITE, FM_READY, EFAULT, a.regs.regs = 0);
	REFUSED(REGS_WRITE, FM_READY, EFAULT, a.regs.regs = 0xffff888000000000ULL);
	REFUSED(REGS_READ, FM_HELD, EFAULT, a.regs.regs = 16);
	REFUSED(RESULTS, FM_READY, EFAULT, a.regs.regs = 16);
	REFUSED(RESULTS, FM_HELD, EBUSY, (void)0);
	EXPECT_EQ(0, fm_regs_write(fds[FM_READY], many, all));
}

FM_TEST(bad, defect_04_register_named_twice)
{
	struct fermata_reg regs[3] = { { .offset = 0x40 }, { .offset = 0x48 }, { .offset = 0x40 } };

	fm_stages_make(fds);
	REFUSED(REGS_WRITE, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs; a.regs.count = 3);
	REFUSED(REGS_READ, FM_HELD, EINVAL, a.regs.regs = (uintptr_t)regs; a.regs.count = 3);
	REFUSED(RESULTS, FM_READY, EINVAL, a.regs.regs = (uintptr_t)regs; a.regs.count = 3);
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

	fm_stages_make(fds);
	fd = fds[FM_SETUP];
	REFUSED(START, FM_SETUP, ENXIO, (void)0);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena));
	REFUSED(START, FM_SETUP, ENXIO, (void)0);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	REFUSED(START, FM_SETUP, EDESTADDRREQ, (void)0);
	/* A mapping of a part is not enough. */
	ASSERT_NE(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, arena.mmap_offset));
	REFUSED(START, FM_SETUP, EDESTADDRREQ, (void)0);
	REFUSED(START, FM_HELD, EBUSY, (void)0);
}

FM_TEST(bad, preempt_and_resume_without_job)
{
	struct fm_expect e;

	fm_stages_make(fds);
	REFUSED(PREEMPT, FM_READY, ENOENT, (void)0);
	REFUSED(PREEMPT, FM_READY, ENOENT, a.preempt.flags = FERMATA_PREEMPT_HOLD);
	REFUSED(RESUME, FM_READY, ENOENT, (void)0);
	fm_job_list(&fm_ready, 16, 100, 3, &e);
	ASSERT_GOOD(fm_job_run(&fm_ready, &e));
	REFUSED(PREEMPT, FM_READY, ENOENT, (void)0);
	REFUSED(PREEMPT, FM_READY, ENOENT, a.preempt.flags = FERMATA_PREEMPT_HOLD);
	REFUSED(RESUME, FM_READY, ENOENT, (void)0);
}

FM_TEST(bad, wait_values)
{
	fm_stages_make(fds);
	REFUSED(WAIT, FM_HELD, EINVAL, a.wait.events = 0);
	REFUSED(WAIT, FM_READY, ENOENT, (void)0);
	REFUSED(WAIT, FM_READY, ENOENT, a.wait.deadline = 0);
	REFUSED(WAIT, FM_HELD, ETIMEDOUT, a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = 0);
	REFUSED(WAIT, FM_HELD, ETIMEDOUT, a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = 1);
	REFUSED(WAIT, FM_HELD, ETIMEDOUT,
		a.wait.events = FERMATA_EVENT_DONE; a.wait.deadline = fm_now() + 1000000);
}

FM_TEST(bad, eventfd)
{
	int closed = eventfd(0, EFD_CLOEXEC), file = open("/dev/null", O_RDWR);

	fm_stages_make(fds);
	close(closed);
	closed = 1000;
	REFUSED(EVENTFD, FM_HELD, EBADF, a.event.fd = closed);
	REFUSED(EVENTFD, FM_HELD, EINVAL, a.event.fd = file);
	REFUSED(EVENTFD, FM_HELD, EINVAL, a.event.events = 0);
	REFUSED(EVENTFD, FM_HELD, EINVAL, a.event.fd = -1);
	REFUSED(EVENTFD, FM_HELD, EBADF, a.event.fd = -2);
	REFUSED(EVENTFD, FM_HELD, EINVAL, a.event.fd = fds[FM_READY]);
}

FM_TEST(bad, params)
{
	static const u32 params[] = { FERMATA_PARAM_TIMESLICE, FERMATA_PARAM_PREEMPT_TIMEOUT };
	static const u64 least[] = { 100000, 1000000 };
	int i;

	fm_stages_make(fds);
	REFUSED(PARAM, FM_READY, EINVAL, a.param.param = 0);
	REFUSED(PARAM, FM_READY, EINVAL, a.param.param = 11);
	REFUSED(PARAM, FM_READY, EINVAL, a.param.param = 0xffffffff);
	REFUSED_SET(PARAM, FM_READY, EINVAL, a.param.param = 0);
	REFUSED_SET(PARAM, FM_READY, EINVAL, a.param.param = 11);
	REFUSED_SET(PARAM, FM_READY, EINVAL, a.param.min = 1);
	REFUSED_SET(PARAM, FM_READY, EINVAL, a.param.max = 1);
	REFUSED_SET(PARAM, FM_READY, ESRCH, a.param.context = 0xfffffff0);
	REFUSED(PARAM, FM_READY, ESRCH, a.param.context = 0xfffffff0);
	REFUSED(PREEMPT, FM_HELD, ESRCH, a.preempt.context = 0xfffffff0);
	REFUSED(RESUME, FM_HELD, ESRCH, a.resume.context = 0xfffffff0);
	REFUSED(HOLD, FM_HELD, ESRCH, a.hold.context = 0xfffffff0);
	REFUSED(HOLD, FM_HELD, EINVAL, a.size = 12);
	for (i = 0; i < 2; i++) {
		u64 before = fm_param_get(fds[FM_READY], params[i]);

		REFUSED_SET(PARAM, FM_READY, ERANGE,
			a.param.param = params[i]; a.param.value = 0);
		REFUSED_SET(PARAM, FM_READY, ERANGE,
			a.param.param = params[i]; a.param.value = least[i] - 1);
		REFUSED_SET(PARAM, FM_READY, ERANGE,
			a.param.param = params[i]; a.param.value = 10000000001);
		REFUSED_SET(PARAM, FM_READY, ERANGE,
			a.param.param = params[i]; a.param.value = UINT64_MAX);
		EXPECT_EQ(before, fm_param_get(fds[FM_READY], params[i]));
	}
}

/* Raising a parameter above its default takes a capability of the caller, when it calls. */
FM_TEST(bad, params_of_an_unprivileged_caller)
{
	struct fermata_param get = { .size = sizeof(get), .param = FERMATA_PARAM_TIMESLICE };
	struct fm_child ch;
	u64 value;
	int status;

	fm_stages_make(fds);
	value = fm_param_get(fds[FM_SETUP], FERMATA_PARAM_TIMESLICE);
	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_param set = {
			.size = sizeof(set), .flags = FERMATA_SET, .param = get.param
		};

		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(1);
		if (fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &get))
			_exit(2);
		if (get.value != value || get.max != value || get.min != 100000)
			_exit(3);
		set.value = value + 1;
		if (fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &set) != -EPERM)
			_exit(4);
		set.value = 10000000001;
		if (fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &set) != -ERANGE)
			_exit(5);
		set.value = get.min;
		if (fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &set))
			_exit(6);
		/* Back up to the default is allowed. */
		set.value = value;
		if (fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &set))
			_exit(7);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(value, fm_param_get(fds[FM_SETUP], FERMATA_PARAM_TIMESLICE));
	ASSERT_EQ(0, fm_ioctl(fds[FM_SETUP], FERMATA_IOC_PARAM, &get));
	EXPECT_EQ(10000000000, get.max);
	EXPECT_EQ(0, fm_param_set(fds[FM_SETUP], FERMATA_PARAM_TIMESLICE, 10000000000));
}

/* The result of open() and FM_SETUP for another user: 0 or an errno. */
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
 * Only the card's window separates tenants. With an IOMMU alone, one user at a time is allowed;
 * with neither, only users who may access all memory anyway.
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

/* Opens and sets up contexts as this user until one is refused; returns their number. */
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

/* No user can take all contexts of the card, unless it may exceed resource limits. */
FM_TEST(bad, defect_03_contexts_of_a_user_are_bounded)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct rlimit files = { 8300, 8300 };
	struct fermata_card_info info;
	int n, refusal = 0, one, i;
	static int fd[8200];

	fm_card_info(&info);
	if (info.max_contexts > 8192 || setrlimit(RLIMIT_NOFILE, &files) || !fm_has_window())
		SKIP(return, "too many contexts, or of one user only");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	n = many_of(100000, fd, info.max_contexts, &refusal);
	EXPECT_EQ(-EDQUOT, refusal);
	EXPECT_EQ((info.max_contexts + 3) / 4, n);
	/* Another user has its own limit; the caller's capability counts. */
	EXPECT_EQ(1, many_of(100001, &one, 1, &refusal));
	close(one);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	EXPECT_EQ(0, fm_ioctl(fd[n], FERMATA_IOC_SETUP, &setup));
	EXPECT_EQ(0, many_of(100000, &one, 1, &refusal));
	EXPECT_EQ(-EDQUOT, refusal);
	close(one);
	/* There is room again. */
	close(fd[0]);
	close(fd[1]);
	EXPECT_EQ(1, many_of(100000, &one, 1, &refusal));
	close(one);
	for (i = 2; i <= n; i++)
		close(fd[i]);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* Nor can a registered cgroup, with any number of users. */
FM_TEST(bad, defect_03_contexts_of_a_group_are_bounded)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_CHILDREN | FERMATA_GROUP_WEIGHT, .children = 1, .weight = 200
	};
	struct rlimit files = { 8300, 8300 };
	struct fermata_card_info info;
	int n = 0, refusal = 0, i;
	static int fd[8200];

	fm_card_info(&info);
	if (info.max_contexts > 8192 || setrlimit(RLIMIT_NOFILE, &files) || !fm_has_window() ||
	    !fm_has_cgroups())
		SKIP(return, "too many contexts, of one user only, or no cgroups");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_enter(0);
	for (i = 0; i < 5; i++) {
		/* Not even in a cgroup whose children are groups with limits of their own. */
		if (i == 4) {
			ASSERT_EQ(0, setresuid(0, 0, 0));
			fm_group(FM_CGROUP "0", &g);
		}
		n += many_of(100000 + i, fd + n, info.max_contexts, &refusal);
		EXPECT_EQ(-EDQUOT, refusal);
		close(fd[n]);
	}
	EXPECT_EQ((info.max_contexts + 3) / 4, n);
	for (i = 0; i < n; i++)
		close(fd[i]);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	fm_enter(FM_ROOT);
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* With as many contexts as the card takes, the next gets ENOSPC; after a close there is room. */
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
