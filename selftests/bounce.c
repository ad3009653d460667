// SPDX-License-Identifier: GPL-2.0
/*
 * A machine whose DMA goes through bounce buffers (swiotlb=force, as in confidential guests): an
 * engine would work on a copy of its arena, so without an IOMMU arenas are refused.
 */
#include "kselftest_harness.h"
#include "lib/mem.h"

FM_FIXTURE_CARD(bounce);

static bool bounces(void)
{
	FILE *file = fopen("/proc/cmdline", "r");
	char line[2048] = "";

	if (file && fgets(line, sizeof(line), file))
		fclose(file);
	return strstr(line, "swiotlb=force");
}

FM_TEST(bounce, defect_07_no_arena_behind_a_bounce_buffer)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 64 * 1024 };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fm_expect e;
	struct fm_ctx c;
	u64 pins = fm_pins();
	int i;

	if (!bounces())
		SKIP(return, "the machine has no bounce buffers (swiotlb=force)");
	if (fm_translated()) {
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		fm_job_list(&c, 100, 1000, 3, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		return;
	}
	fm_ctx_setup(&c, FM_LIST, -1);
	/* Attempts leave nothing behind, however often they are repeated. */
	for (i = 0; i < 100; i++) {
		ASSERT_EQ(-EOPNOTSUPP, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
		ASSERT_EQ(-EOPNOTSUPP, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	}
	EXPECT_EQ(0, fm_charged());
	EXPECT_EQ(pins, fm_pins());
	EXPECT_EQ(-ENXIO, fm_start(c.fd));
	close(c.fd);
}

TEST_HARNESS_MAIN
