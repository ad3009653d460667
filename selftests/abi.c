// SPDX-License-Identifier: GPL-2.0
/*
 * The binary interface: sizes, offsets and numbers, written out. This file is
 * built for 32 and for 64 bits, so both layouts must be the one below. The tests
 * then call the driver with it, in the 32-bit build by the compat call.
 */
#include "kselftest_harness.h"
#include "lib/fm.h"

#define SIZE(type, n)								\
	_Static_assert(sizeof(struct type) == (n), "size of " #type)
#define AT(type, member, at, n)							\
	_Static_assert(offsetof(struct type, member) == (at) &&			\
		       sizeof(((struct type *)0)->member) == (n),		\
		       #type "." #member)
#define CALL(name, n)								\
	_Static_assert(name == (n), #name)

SIZE(fermata_card_info, 40);
AT(fermata_card_info, size, 0, 4);
AT(fermata_card_info, flags, 4, 4);
AT(fermata_card_info, uapi_version, 8, 4);
AT(fermata_card_info, slots, 12, 4);
AT(fermata_card_info, features, 16, 8);
AT(fermata_card_info, contexts, 24, 4);
AT(fermata_card_info, max_contexts, 28, 4);
AT(fermata_card_info, max_arena, 32, 8);
SIZE(fermata_slot_info, 136);
AT(fermata_slot_info, size, 0, 4);
AT(fermata_slot_info, slot, 4, 4);
AT(fermata_slot_info, afu_id_lo, 8, 8);
AT(fermata_slot_info, afu_id_hi, 16, 8);
AT(fermata_slot_info, state_pages, 24, 4);
AT(fermata_slot_info, flags, 28, 4);
AT(fermata_slot_info, switches, 32, 8);
AT(fermata_slot_info, busy_ns, 40, 8);
AT(fermata_slot_info, resets, 48, 8);
AT(fermata_slot_info, save_ns, 56, 8);
AT(fermata_slot_info, restore_ns, 64, 8);
AT(fermata_slot_info, group, 72, 8);
AT(fermata_slot_info, storms, 80, 8);
AT(fermata_slot_info, resumes, 88, 8);
AT(fermata_slot_info, preemptions, 96, 8);
AT(fermata_slot_info, finished, 104, 8);
AT(fermata_slot_info, faults, 112, 8);
AT(fermata_slot_info, timeouts, 120, 8);
AT(fermata_slot_info, spurious, 128, 8);
SIZE(fermata_setup, 32);
AT(fermata_setup, size, 0, 4);
AT(fermata_setup, flags, 4, 4);
AT(fermata_setup, afu_id_lo, 8, 8);
AT(fermata_setup, afu_id_hi, 16, 8);
AT(fermata_setup, slot_mask, 24, 4);
AT(fermata_setup, context, 28, 4);
SIZE(fermata_arena_create, 56);
AT(fermata_arena_create, size, 0, 4);
AT(fermata_arena_create, flags, 4, 4);
AT(fermata_arena_create, length, 8, 8);
AT(fermata_arena_create, device_base, 16, 8);
AT(fermata_arena_create, mmap_offset, 24, 8);
AT(fermata_arena_create, user_addr, 32, 8);
AT(fermata_arena_create, offset, 40, 8);
AT(fermata_arena_create, fd, 48, 4);
AT(fermata_arena_create, pid, 52, 4);
SIZE(fermata_snapshot_create, 32);
AT(fermata_snapshot_create, size, 0, 4);
AT(fermata_snapshot_create, flags, 4, 4);
AT(fermata_snapshot_create, length, 8, 8);
AT(fermata_snapshot_create, user_addr, 16, 8);
AT(fermata_snapshot_create, pid, 24, 4);
AT(fermata_snapshot_create, reserved, 28, 4);
SIZE(fermata_snapshot_read, 32);
AT(fermata_snapshot_read, size, 0, 4);
AT(fermata_snapshot_read, flags, 4, 4);
AT(fermata_snapshot_read, offset, 8, 8);
AT(fermata_snapshot_read, length, 16, 8);
AT(fermata_snapshot_read, buffer, 24, 8);
SIZE(fermata_config, 72);
AT(fermata_config, size, 0, 4);
AT(fermata_config, flags, 4, 4);
AT(fermata_config, arena_flags, 8, 4);
AT(fermata_config, snapshot_flags, 12, 4);
AT(fermata_config, arena_addr, 16, 8);
AT(fermata_config, arena_offset, 24, 8);
AT(fermata_config, snapshot_addr, 32, 8);
AT(fermata_config, lender, 40, 4);
AT(fermata_config, start_flags, 44, 4);
AT(fermata_config, events, 48, 4);
AT(fermata_config, fd, 52, 4);
AT(fermata_config, gang, 56, 4);
AT(fermata_config, pid, 60, 4);
AT(fermata_config, hint_ns, 64, 8);
SIZE(fermata_outcome, 56);
AT(fermata_outcome, size, 0, 4);
AT(fermata_outcome, flags, 4, 4);
AT(fermata_outcome, state, 8, 4);
AT(fermata_outcome, error, 12, 4);
AT(fermata_outcome, finished, 16, 8);
AT(fermata_outcome, failed, 24, 8);
AT(fermata_outcome, fault_addr, 32, 8);
AT(fermata_outcome, fault_flags, 40, 4);
AT(fermata_outcome, count, 44, 4);
AT(fermata_outcome, regs, 48, 8);
SIZE(fermata_snapshot_write, 32);
AT(fermata_snapshot_write, size, 0, 4);
AT(fermata_snapshot_write, flags, 4, 4);
AT(fermata_snapshot_write, offset, 8, 8);
AT(fermata_snapshot_write, length, 16, 8);
AT(fermata_snapshot_write, buffer, 24, 8);
SIZE(fermata_reg, 16);
AT(fermata_reg, offset, 0, 4);
AT(fermata_reg, reserved, 4, 4);
AT(fermata_reg, value, 8, 8);
SIZE(fermata_regs, 24);
AT(fermata_regs, size, 0, 4);
AT(fermata_regs, flags, 4, 4);
AT(fermata_regs, count, 8, 4);
AT(fermata_regs, reserved, 12, 4);
AT(fermata_regs, regs, 16, 8);
SIZE(fermata_start, 16);
AT(fermata_start, size, 0, 4);
AT(fermata_start, flags, 4, 4);
AT(fermata_start, job, 8, 8);
SIZE(fermata_preempt, 16);
AT(fermata_preempt, size, 0, 4);
AT(fermata_preempt, flags, 4, 4);
AT(fermata_preempt, context, 8, 4);
AT(fermata_preempt, reserved, 12, 4);
SIZE(fermata_resume, 16);
AT(fermata_resume, size, 0, 4);
AT(fermata_resume, flags, 4, 4);
AT(fermata_resume, context, 8, 4);
AT(fermata_resume, reserved, 12, 4);
SIZE(fermata_hold, 16);
AT(fermata_hold, size, 0, 4);
AT(fermata_hold, flags, 4, 4);
AT(fermata_hold, context, 8, 4);
AT(fermata_hold, fd, 12, 4);

SIZE(fermata_status, 176);
AT(fermata_status, size, 0, 4);
AT(fermata_status, flags, 4, 4);
AT(fermata_status, state, 8, 4);
AT(fermata_status, error, 12, 4);
AT(fermata_status, context, 16, 4);
AT(fermata_status, slot, 20, 4);
AT(fermata_status, job, 24, 8);
AT(fermata_status, run_ns, 32, 8);
AT(fermata_status, wait_ns, 40, 8);
AT(fermata_status, slices, 48, 8);
AT(fermata_status, preemptions, 56, 8);
AT(fermata_status, finished, 64, 8);
AT(fermata_status, failed, 72, 8);
AT(fermata_status, fault_addr, 80, 8);
AT(fermata_status, arena_length, 88, 8);
AT(fermata_status, device_base, 96, 8);
AT(fermata_status, snapshot_length, 104, 8);
AT(fermata_status, attributes, 112, 4);
AT(fermata_status, fault_flags, 116, 4);
AT(fermata_status, group, 120, 8);
AT(fermata_status, hints, 128, 8);
AT(fermata_status, hints_used, 136, 8);
AT(fermata_status, hints_wasted, 144, 8);
AT(fermata_status, reserved, 152, 8);
AT(fermata_status, faults, 160, 8);
AT(fermata_status, replays, 168, 8);
SIZE(fermata_doorbell, 8);
AT(fermata_doorbell, size, 0, 4);
AT(fermata_doorbell, flags, 4, 4);

SIZE(fermata_hint, 16);
AT(fermata_hint, size, 0, 4);
AT(fermata_hint, flags, 4, 4);
AT(fermata_hint, at, 8, 8);
SIZE(fermata_wait, 24);
AT(fermata_wait, size, 0, 4);
AT(fermata_wait, events, 4, 4);
AT(fermata_wait, deadline, 8, 8);
AT(fermata_wait, happened, 16, 4);
AT(fermata_wait, error, 20, 4);
SIZE(fermata_eventfd, 16);
AT(fermata_eventfd, size, 0, 4);
AT(fermata_eventfd, events, 4, 4);
AT(fermata_eventfd, fd, 8, 4);
AT(fermata_eventfd, reserved, 12, 4);
SIZE(fermata_param, 40);
AT(fermata_param, size, 0, 4);
AT(fermata_param, flags, 4, 4);
AT(fermata_param, context, 8, 4);
AT(fermata_param, param, 12, 4);
AT(fermata_param, value, 16, 8);
AT(fermata_param, min, 24, 8);
AT(fermata_param, max, 32, 8);
SIZE(fermata_context_info, 136);
AT(fermata_context_info, size, 0, 4);
AT(fermata_context_info, flags, 4, 4);
AT(fermata_context_info, cursor, 8, 4);
AT(fermata_context_info, context, 12, 4);
AT(fermata_context_info, pid, 16, 4);
AT(fermata_context_info, state, 20, 4);
AT(fermata_context_info, slot, 24, 4);
AT(fermata_context_info, slot_mask, 28, 4);
AT(fermata_context_info, job, 32, 8);
AT(fermata_context_info, run_ns, 40, 8);
AT(fermata_context_info, wait_ns, 48, 8);
AT(fermata_context_info, slices, 56, 8);
AT(fermata_context_info, preemptions, 64, 8);
AT(fermata_context_info, priority, 72, 4);
AT(fermata_context_info, weight, 76, 4);
AT(fermata_context_info, attributes, 80, 4);
AT(fermata_context_info, latency_critical, 84, 4);
AT(fermata_context_info, group, 88, 8);
AT(fermata_context_info, timeslice_ns, 96, 8);
AT(fermata_context_info, preempt_timeout_ns, 104, 8);
AT(fermata_context_info, cap, 112, 4);
AT(fermata_context_info, waits, 116, 4);
AT(fermata_context_info, waits_group, 120, 8);
AT(fermata_context_info, state_ns, 128, 8);
SIZE(fermata_histogram, 64);
AT(fermata_histogram, size, 0, 4);
AT(fermata_histogram, flags, 4, 4);
AT(fermata_histogram, kind, 8, 4);
AT(fermata_histogram, number, 12, 4);
AT(fermata_histogram, count, 16, 8);
AT(fermata_histogram, sum_ns, 24, 8);
AT(fermata_histogram, min_ns, 32, 8);
AT(fermata_histogram, max_ns, 40, 8);
AT(fermata_histogram, buckets, 48, 4);
AT(fermata_histogram, reserved, 52, 4);
AT(fermata_histogram, counts, 56, 8);
SIZE(fermata_reserve, 40);
AT(fermata_reserve, size, 0, 4);
AT(fermata_reserve, flags, 4, 4);
AT(fermata_reserve, context, 8, 4);
AT(fermata_reserve, reserved, 12, 4);
AT(fermata_reserve, budget_ns, 16, 8);
AT(fermata_reserve, deadline_ns, 24, 8);
AT(fermata_reserve, period_ns, 32, 8);
SIZE(fermata_group, 40);
AT(fermata_group, size, 0, 4);
AT(fermata_group, flags, 4, 4);
AT(fermata_group, context, 8, 4);
AT(fermata_group, weight, 12, 4);
AT(fermata_group, contexts, 16, 4);
AT(fermata_group, reserved, 20, 4);
AT(fermata_group, number, 24, 8);
AT(fermata_group, run_ns, 32, 8);
SIZE(fermata_group_set, 80);
AT(fermata_group_set, size, 0, 4);
AT(fermata_group_set, flags, 4, 4);
AT(fermata_group_set, cgroup, 8, 4);
AT(fermata_group_set, weight, 12, 4);
AT(fermata_group_set, max_priority, 16, 4);
AT(fermata_group_set, cap, 20, 4);
AT(fermata_group_set, max_contexts, 24, 4);
AT(fermata_group_set, slot_mask, 28, 4);
AT(fermata_group_set, contexts, 32, 4);
AT(fermata_group_set, children, 36, 4);
AT(fermata_group_set, max_bytes, 40, 8);
AT(fermata_group_set, bytes, 48, 8);
AT(fermata_group_set, number, 56, 8);
AT(fermata_group_set, run_ns, 64, 8);
AT(fermata_group_set, uid, 72, 4);
AT(fermata_group_set, reserved, 76, 4);

SIZE(fermata_gang, 16);
AT(fermata_gang, size, 0, 4);
AT(fermata_gang, flags, 4, 4);
AT(fermata_gang, context, 8, 4);
AT(fermata_gang, members, 12, 4);
SIZE(fermata_queue_job, 64);
AT(fermata_queue_job, header, 0, 4);
AT(fermata_queue_job, op, 4, 4);
AT(fermata_queue_job, tag, 8, 8);
AT(fermata_queue_job, src, 16, 8);
AT(fermata_queue_job, dst, 24, 8);
AT(fermata_queue_job, length, 32, 8);
AT(fermata_queue_job, arg, 40, 8);
AT(fermata_queue_job, reserved, 48, 16);
SIZE(fermata_queue_status, 32);
AT(fermata_queue_status, header, 0, 4);
AT(fermata_queue_status, error, 4, 4);
AT(fermata_queue_status, tag, 8, 8);
AT(fermata_queue_status, result, 16, 8);
AT(fermata_queue_status, reserved, 24, 8);
SIZE(fermata_queue_control, 128);
AT(fermata_queue_control, completed, 0, 8);
AT(fermata_queue_control, head, 8, 8);
AT(fermata_queue_control, idle, 16, 4);
AT(fermata_queue_control, pad, 20, 4);
AT(fermata_queue_control, reserved, 24, 40);
AT(fermata_queue_control, program, 64, 64);
CALL(FERMATA_IOC_CARD_INFO, 0xfa00);
CALL(FERMATA_IOC_SLOT_INFO, 0xfa01);
CALL(FERMATA_IOC_SETUP, 0xfa10);
CALL(FERMATA_IOC_ARENA_CREATE, 0xfa11);
CALL(FERMATA_IOC_SNAPSHOT_CREATE, 0xfa12);
CALL(FERMATA_IOC_SNAPSHOT_READ, 0xfa13);
CALL(FERMATA_IOC_SNAPSHOT_WRITE, 0xfa14);
CALL(FERMATA_IOC_REGS_WRITE, 0xfa20);
CALL(FERMATA_IOC_REGS_READ, 0xfa21);
CALL(FERMATA_IOC_RESULTS, 0xfa22);
CALL(FERMATA_IOC_REGS_LIST, 0xfa23);
CALL(FERMATA_IOC_START, 0xfa30);
CALL(FERMATA_IOC_PREEMPT, 0xfa31);
CALL(FERMATA_IOC_RESUME, 0xfa32);
CALL(FERMATA_IOC_STATUS, 0xfa33);
CALL(FERMATA_IOC_WAIT, 0xfa34);
CALL(FERMATA_IOC_EVENTFD, 0xfa35);
CALL(FERMATA_IOC_HINT, 0xfa36);
CALL(FERMATA_IOC_DOORBELL, 0xfa37);
CALL(FERMATA_IOC_OUTCOME, 0xfa38);
CALL(FERMATA_IOC_HOLD, 0xfa39);
CALL(FERMATA_IOC_PARAM, 0xfa40);
CALL(FERMATA_IOC_RESERVE, 0xfa41);
CALL(FERMATA_IOC_CONTEXT_INFO, 0xfa50);
CALL(FERMATA_IOC_HISTOGRAM, 0xfa51);
CALL(FERMATA_IOC_CONFIG, 0xfa52);
CALL(FERMATA_IOC_GROUP, 0xfa60);
CALL(FERMATA_IOC_GROUP_SET, 0xfa61);
CALL(FERMATA_IOC_GANG, 0xfa62);

_Static_assert(FERMATA_MAX_SLOTS == 8 && FERMATA_MAX_RESULTS == 16 && FERMATA_MAX_REGS == 512 &&
	       FERMATA_REG_FIRST == 0x30 && FERMATA_REG_LAST == 0xff8, "limits");
_Static_assert(FERMATA_START_REPLAYABLE == 1 && FERMATA_MAX_REPLAYS == 3, "replays");
_Static_assert(FERMATA_START_SAVED == 2 && FERMATA_START_HELD == 4 && FERMATA_REGS_RESULTS == 1 &&
	       FERMATA_CONFIG_EVENTFD == 1 && FERMATA_CONFIG_IN_PLACE == 2,
	       "contexts made anew");
_Static_assert(FERMATA_STATE_NEW == 0 && FERMATA_STATE_IDLE == 1 && FERMATA_STATE_QUEUED == 2 &&
	       FERMATA_STATE_RUNNING == 3 && FERMATA_STATE_HELD == 4 && FERMATA_STATE_DONE == 5 &&
	       FERMATA_STATE_FAILED == 6, "states");
_Static_assert(FERMATA_FEATURE_IRQ == 1 && FERMATA_FEATURE_WINDOW == 2 &&
	       FERMATA_FEATURE_QUIESCENT == 4 && FERMATA_FEATURE_SNAPSHOT_UNIT == 8 &&
	       FERMATA_FEATURE_RELAY == 16 &&
	       FERMATA_FEATURE_IOMMU == 1ULL << 32, "features");
_Static_assert(FERMATA_PARAM_TIMESLICE == 1 && FERMATA_PARAM_PREEMPT_TIMEOUT == 2 &&
	       FERMATA_PARAM_PRIORITY == 3 && FERMATA_PARAM_WEIGHT == 4 &&
	       FERMATA_PARAM_LATENCY_CRITICAL == 5 && FERMATA_PARAM_CAP == 6 &&
	       FERMATA_PARAM_SLOT_MASK == 8 &&
	       FERMATA_PARAM_COOPERATIVE == 9 && FERMATA_PARAM_ENABLED == 10 && FERMATA_SET == 1,
	       "parameters");
_Static_assert(FERMATA_SLOT_QUARANTINED == 1 && FERMATA_SLOT_BOUNDARY == 2 &&
	       FERMATA_SLOT_BOUNDARY_ONLY == 4 && FERMATA_SLOT_EXCLUSIVE == 8 && FERMATA_SLOT_POLLED == 16 &&
	       FERMATA_GROUP_WEIGHT == 1 && FERMATA_GROUP_MAX_PRIORITY == 2 &&
	       FERMATA_GROUP_CAP == 4 && FERMATA_GROUP_MAX_CONTEXTS == 8 &&
	       FERMATA_GROUP_MAX_BYTES == 16 && FERMATA_GROUP_EXCLUSIVE == 32 &&
	       FERMATA_GROUP_REMOVE == 64 && FERMATA_MAX_GROUPS == 256 && FERMATA_GANG_JOIN == 1 &&
	       FERMATA_GANG_LEAVE == 2 && FERMATA_MAX_GANG == 8, "slot, group and gang");
_Static_assert(FERMATA_STATUS_DISABLED == 1 && FERMATA_STATUS_THROTTLED == 2 &&
	       FERMATA_STATUS_NO_SLOT == 4, "attributes");
_Static_assert(FERMATA_WAITS_NOT == 0 && FERMATA_WAITS_DISABLED == 1 &&
	       FERMATA_WAITS_NO_SLOT == 2 && FERMATA_WAITS_CARD == 3 &&
	       FERMATA_WAITS_BUDGET == 4 && FERMATA_WAITS_CAP == 5 &&
	       FERMATA_WAITS_GROUP_CAP == 6 && FERMATA_WAITS_GANG == 7 &&
	       FERMATA_WAITS_TURN == 8, "reasons for waiting");
_Static_assert(FERMATA_HISTOGRAM_GAP == 1 && FERMATA_HISTOGRAM_SAVE == 2 &&
	       FERMATA_HISTOGRAM_RESTORE == 3 && FERMATA_HISTOGRAM_OVERRUN == 4 &&
	       FERMATA_HISTOGRAM_LATENCY == 5 && FERMATA_HISTOGRAM_WAIT == 16 &&
	       FERMATA_HISTOGRAM_ARRIVAL == 17 && FERMATA_HISTOGRAM_RUN == 18 &&
	       FERMATA_HISTOGRAM_BUCKETS == 128, "histograms");
_Static_assert(FERMATA_QUEUE_AFU_ID_HI == 0x5155455545000000ULL && FERMATA_QUEUE_AFU_ID_LO == 6 &&
	       FERMATA_QUEUE_REG_JOBS == 0x30 && FERMATA_QUEUE_REG_STATUSES == 0x38 &&
	       FERMATA_QUEUE_REG_ENTRIES == 0x40 && FERMATA_QUEUE_REG_CONTROL == 0x48 &&
	       FERMATA_QUEUE_REG_TAG == 0x50 && FERMATA_QUEUE_REG_COALESCE_COUNT == 0x58 &&
	       FERMATA_QUEUE_REG_COALESCE_US == 0x60 && FERMATA_QUEUE_REG_HEAD == 0x30 &&
	       FERMATA_QUEUE_REG_COMPLETED == 0x38 && FERMATA_QUEUE_REG_ERROR == 0x40,
	       "registers of a queue");
_Static_assert(FERMATA_QUEUE_MIN_ENTRIES == 2 && FERMATA_QUEUE_MAX_ENTRIES == 65536 &&
	       FERMATA_QUEUE_MAX_BYTES == 1ULL << 32 && FERMATA_QUEUE_VALID == 1 &&
	       FERMATA_QUEUE_STARTED == 1 && FERMATA_QUEUE_COMPLETE == 2 &&
	       FERMATA_QUEUE_OP_COPY == 1 && FERMATA_QUEUE_OP_FILL == 2 &&
	       FERMATA_QUEUE_OP_SHA256 == 3 && FERMATA_QUEUE_OP_CRC32C == 4 &&
	       FERMATA_QUEUE_OP_END == 5, "jobs of a queue");

TEST(layout_is_the_one_written_down)
{
	/* The compiler checks the layout. */
	TH_LOG("%zu-bit program", sizeof(void *) * 8);
}

TEST(bounds_of_a_histogram)
{
	u32 i;

	for (i = 0; i < 4; i++)
		EXPECT_EQ(16 * i, fermata_histogram_lower(i));
	EXPECT_EQ(64, fermata_histogram_lower(4));
	EXPECT_EQ(160, fermata_histogram_lower(9));
	EXPECT_EQ(1 << 20, fermata_histogram_lower(60));
	for (; i < FERMATA_HISTOGRAM_BUCKETS; i += 4)
		EXPECT_EQ(2 * fermata_histogram_lower(i), fermata_histogram_lower(i + 4));
	EXPECT_EQ(1ULL << 37, fermata_histogram_lower(FERMATA_HISTOGRAM_BUCKETS));
}

FM_FIXTURE_ANY(driver);

FM_TEST(driver, every_number_is_known)
{
	static const unsigned int calls[] = {
		FERMATA_IOC_CARD_INFO,
		FERMATA_IOC_SLOT_INFO,
		FERMATA_IOC_SETUP,
		FERMATA_IOC_ARENA_CREATE,
		FERMATA_IOC_SNAPSHOT_CREATE,
		FERMATA_IOC_SNAPSHOT_READ,
		FERMATA_IOC_SNAPSHOT_WRITE,
		FERMATA_IOC_REGS_WRITE,
		FERMATA_IOC_REGS_READ,
		FERMATA_IOC_RESULTS,
		FERMATA_IOC_REGS_LIST,
		FERMATA_IOC_START,
		FERMATA_IOC_PREEMPT,
		FERMATA_IOC_RESUME,
		FERMATA_IOC_STATUS,
		FERMATA_IOC_WAIT,
		FERMATA_IOC_EVENTFD,
		FERMATA_IOC_HINT,
		FERMATA_IOC_DOORBELL,
		FERMATA_IOC_OUTCOME,
		FERMATA_IOC_HOLD,
		FERMATA_IOC_PARAM,
		FERMATA_IOC_RESERVE,
		FERMATA_IOC_CONTEXT_INFO,
		FERMATA_IOC_HISTOGRAM,
		FERMATA_IOC_CONFIG,
		FERMATA_IOC_GROUP,
		FERMATA_IOC_GANG,
		FERMATA_IOC_GROUP_SET,
	};
	int fd = fm_open_dev(0);
	size_t i;

	ASSERT_LE(0, fd);
	/* An inaccessible argument is EFAULT for a call that is known. */
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		EXPECT_EQ(-EFAULT, fm_ioctl(fd, calls[i], NULL));
}

FM_TEST(driver, other_numbers_are_enotty)
{
	static const unsigned int holes[] = {
		0x02, 0x0f, 0x15, 0x1f, 0x24, 0x2f, 0x3a, 0x3f, 0x44, 0x54, 0x63, 0x66, 0x80,
		0xff
	};
	struct fermata_status st = { .size = sizeof(st) };
	int fd = fm_open_dev(0);
	size_t i;

	ASSERT_LE(0, fd);
	for (i = 0; i < sizeof(holes) / sizeof(holes[0]); i++)
		EXPECT_EQ(-ENOTTY, fm_ioctl(fd, _IO(FERMATA_IOC_MAGIC, holes[i]), &st));
	EXPECT_EQ(-ENOTTY, fm_ioctl(fd, _IO(0xfd, 0x33), &st));
	EXPECT_EQ(-ENOTTY, fm_ioctl(fd, _IOWR(FERMATA_IOC_MAGIC, 0x33, struct fermata_status), &st));
	EXPECT_EQ(-ENOTTY, fm_ioctl(fd, _IOR(FERMATA_IOC_MAGIC, 0x00, __u32), &st));
}

/* A larger structure of a later version works if its tail is zero. */
FM_TEST(driver, larger_structure_with_zero_tail_works)
{
	struct {
		struct fermata_card_info info;
		u64 later[4];
	} big = { .info.size = sizeof(big) };
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &big));
	EXPECT_EQ(FERMATA_UAPI_VERSION, big.info.uapi_version);
	EXPECT_LT(0, big.info.slots);
	EXPECT_GE(FERMATA_MAX_SLOTS, big.info.slots);
	EXPECT_EQ(0, big.later[0] | big.later[1] | big.later[2] | big.later[3]);
	big.later[3] = 1ULL << 63;
	EXPECT_EQ(-E2BIG, fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &big));
}

/* A structure of an earlier version: nothing beyond its size is written. */
FM_TEST(driver, smaller_structure_is_filled_to_its_size)
{
	struct fermata_card_info info;
	int fd = fm_open_dev(0);
	u32 size;

	ASSERT_LE(0, fd);
	for (size = 8; size < sizeof(info); size += 4) {
		u8 *p = (u8 *)&info;
		u32 i;

		memset(&info, 0x5a, sizeof(info));
		info.size = size;
		info.flags = 0;
		ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &info));
		EXPECT_EQ(size, info.size);
		for (i = size; i < sizeof(info); i++)
			ASSERT_EQ(0x5a, p[i]);
		if (size >= 12)
			EXPECT_EQ(FERMATA_UAPI_VERSION, info.uapi_version);
	}
}

/* The whole main job, in this program's width. */
FM_TEST(driver, main_job_in_this_width)
{
	struct fm_expect e;
	struct fm_ctx c;
	int engine;

	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		fm_ctx_new(&c, engine, 64 * 1024);
		fm_job_any(&c, 20000, 5, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		EXPECT_EQ(0, fm_preempt(c.fd, 0) + ENOENT);
		fm_ctx_close(&c);
	}
}

TEST_HARNESS_MAIN
