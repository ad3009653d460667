// SPDX-License-Identifier: GPL-2.0
/*
 * Arenas of another context's memory: both contexts see the same bytes, one is charged, and the
 * memory stays as long as either context.
 */
#include "kselftest_harness.h"
#include "lib/calls.h"
#include "lib/mem.h"
#include "lib/sched.h"

#define LENGTH	(256 * 1024UL)
#define BASE	0x40000000ULL

FM_FIXTURE_CARD(shared);

/* Runs a job, and another one that is held: NULL or what is wrong. */
static const char *use(struct fm_ctx *c, u64 seed)
{
	struct fm_expect e;
	const char *wrong;

	fm_job_any(c, 20000, seed, &e);
	wrong = fm_job_run(c, &e);
	if (wrong)
		return wrong;
	card_speed(c->slot, 1);
	fm_job_any(c, 1000000, seed + 1, &e);
	wrong = fm_job_hold(c);
	if (wrong)
		return wrong;
	return fm_job_finish(c, &e);
}

FM_TEST(shared, both_map_and_use_the_same_bytes)
{
	struct fm_ctx a, b, c;

	fm_ctx_new(&a, FM_MEM, LENGTH);
	ASSERT_EQ(0, fm_ctx_share(&b, &a, LENGTH / 4, LENGTH / 2, 0));
	EXPECT_NE(a.base + LENGTH / 4, b.base);
	a.mem[LENGTH * 3 / 4 - 1] = 77;
	EXPECT_EQ(77, b.mem[LENGTH / 2 - 1]);
	ASSERT_GOOD(use(&a, 1));
	ASSERT_GOOD(use(&b, 2));
	ASSERT_GOOD(use(&a, 3));
	/* A part of an arena that is already shared. */
	ASSERT_EQ(0, fm_ctx_share(&c, &b, LENGTH / 4, LENGTH / 4, 0));
	a.mem[LENGTH * 3 / 4 - 1] = 78;
	EXPECT_EQ(78, c.mem[LENGTH / 4 - 1]);
	ASSERT_GOOD(use(&c, 4));
	fm_ctx_unshare(&c);
	ASSERT_GOOD(use(&a, 5));
	fm_ctx_unshare(&b);
	fm_ctx_close(&a);
}

/* A part of a program's own memory, at another device address, and nothing beside it. */
FM_TEST(shared, a_part_of_own_memory)
{
	const size_t part = FM_HUGE / 4;
	u8 *mem = fm_map_huge(FM_HUGE);
	u64 before = fm_pins();
	struct fermata_card_info info;
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx a, b;

	ASSERT_EQ(0, fm_ctx_own(&a, FM_LIST, mem, FM_HUGE));
	/* This arena cannot be mapped, so it needs an address. */
	EXPECT_EQ(-EINVAL, fm_ctx_share(&b, &a, part, part, 0));
	ASSERT_EQ(0, fm_ctx_share(&b, &a, part, part, BASE));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0));
	fm_status(b.fd, &st);
	EXPECT_EQ(part, st.arena_length);
	EXPECT_EQ(BASE, st.device_base);
	EXPECT_EQ(before + FM_HUGE / FM_PAGE, fm_pins());
	ASSERT_GOOD(use(&b, 1));
	ASSERT_GOOD(use(&a, 2));
	fm_card_info(&info);
	if (info.features & FERMATA_FEATURE_WINDOW) {
		fm_job_list(&b, 10, 100, 3, &e);
		ASSERT_EQ(0, fm_reg_write(b.fd, 0x30, BASE + part));
		ASSERT_EQ(0, fm_start(b.fd));
		fm_wait(b.fd, FERMATA_EVENT_DONE);
		fm_status(b.fd, &st);
		EXPECT_EQ(EFAULT, st.error);
		EXPECT_EQ(BASE + part, st.fault_addr);
	}
	close(b.fd);
	fm_ctx_close(&a);
	EXPECT_EQ(before, fm_pins());
}

/* The pages are charged once, to their first context, which lives on with its last sharer. */
FM_TEST(shared, the_lender_pays_and_lives_on)
{
	u64 alone, snapshot;
	struct fm_ctx a, b;

	fm_ctx_new(&a, FM_LIST, LENGTH);
	alone = fm_charged();
	snapshot = alone - LENGTH;
	ASSERT_EQ(0, fm_ctx_share(&b, &a, 0, LENGTH, 0));
	EXPECT_EQ(alone + snapshot + LENGTH / 64, fm_charged());
	fm_ctx_unshare(&a);
	EXPECT_EQ(alone + snapshot + LENGTH / 64, fm_charged());
	EXPECT_EQ(2, fm_contexts());
	ASSERT_GOOD(use(&b, 1));
	fm_ctx_close(&b);
	EXPECT_EQ(0, fm_charged());
}

FM_TEST(shared, many_share)
{
	struct fm_ctx a, c[20];
	int i;

	fm_ctx_new(&a, FM_LIST, LENGTH);
	for (i = 0; i < 20; i++)
		ASSERT_EQ(0, fm_ctx_share(&c[i], &a, 0, LENGTH, 0));
	ASSERT_GOOD(use(&c[0], 1));
	ASSERT_GOOD(use(&c[19], 2));
	for (i = 0; i < 20; i++)
		fm_ctx_unshare(&c[i]);
	ASSERT_GOOD(use(&a, 3));
	fm_ctx_close(&a);
}

FM_TEST(shared, not_between_cards)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_SHARED, .length = FM_PAGE
	};
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_ctx a;
	int other;

	if (access("/dev/fermata1", F_OK))
		SKIP(return, "needs a second card");
	fm_ctx_new(&a, FM_LIST, LENGTH);
	other = open("/dev/fermata1", O_RDWR | O_CLOEXEC);
	arena.fd = a.fd;
	fm_must(other, FERMATA_IOC_SETUP, &setup, "SETUP");
	EXPECT_EQ(-EXDEV, fm_ioctl(other, FERMATA_IOC_ARENA_CREATE, &arena));
	close(other);
	fm_ctx_close(&a);
}

/* A context that shares the memory of a sharer keeps the context that is charged open, and not the sharer. */
FM_TEST(shared, a_chain_keeps_its_first_only)
{
	struct fm_ctx a, b, c;
	u64 charged;

	fm_ctx_new(&a, FM_LIST, LENGTH);
	charged = fm_charged();
	ASSERT_EQ(0, fm_ctx_share(&b, &a, 0, LENGTH, 0));
	ASSERT_EQ(0, fm_ctx_share(&c, &b, 0, LENGTH, 0));
	EXPECT_EQ(fm_number(a.fd), fm_fdinfo_number(b.fd, "fermata-lender"));
	EXPECT_EQ(fm_number(a.fd), fm_fdinfo_number(c.fd, "fermata-lender"));
	EXPECT_EQ(LENGTH, fm_fdinfo_number(c.fd, "drm-shared-memory"));
	EXPECT_EQ(0, fm_fdinfo_number(a.fd, "drm-shared-memory"));
	fm_ctx_unshare(&b);
	EXPECT_EQ(2, fm_contexts());
	fm_ctx_unshare(&a);
	EXPECT_EQ(2, fm_contexts());
	EXPECT_EQ(2 * charged - LENGTH + LENGTH / 64, fm_charged());
	ASSERT_GOOD(use(&c, 1));
	fm_ctx_close(&c);
	EXPECT_EQ(0, fm_charged());
}

/* When the card is gone all memory is freed, in whichever order the contexts are closed. */
FM_TEST(shared, card_that_goes)
{
	struct fermata_status st = { .size = sizeof(st) };
	int lender_first;

	for (lender_first = 0; lender_first < 2; lender_first++) {
		struct fm_ctx a, b;

		fm_ctx_new(&a, FM_LIST, LENGTH);
		ASSERT_EQ(0, fm_ctx_share(&b, &a, 0, LENGTH, 0));
		ASSERT_EQ(0, fm_unbind());
		EXPECT_EQ(-ENODEV, fm_ioctl(b.fd, FERMATA_IOC_STATUS, &st));
		EXPECT_EQ(SIGBUS, fm_access_signal(b.mem));
		if (lender_first)
			fm_ctx_close(&a);
		fm_ctx_close(&b);
		if (!lender_first)
			fm_ctx_close(&a);
		EXPECT_EQ(0, fm_charged());
		ASSERT_EQ(0, fm_bind());
	}
}

TEST_HARNESS_MAIN
