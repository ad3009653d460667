// SPDX-License-Identifier: GPL-2.0
/*
 * A kernel that is locked down. It stays locked down until the next boot, and loads only
 * signed modules, so this program is the last to run.
 */
#include "kselftest_harness.h"
#include <sys/mount.h>
#include "lib/mem.h"

#define SECURITY	"/sys/kernel/security"

FM_FIXTURE_ANY(lockdown);

static int set_up(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd = fm_open_dev(0), rc = fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);

	close(fd);
	return rc;
}

/* If nothing keeps the card from all memory, it is refused even to a user with every capability. */
FM_TEST(lockdown, point_18_card_that_reaches_all_memory)
{
	FILE *f;

	if (fm_has_window() || fm_translated())
		SKIP(return, "something stands between the card and all memory");
	mount("securityfs", SECURITY, "securityfs", 0, NULL);
	f = fopen(SECURITY "/lockdown", "w");
	if (!f)
		SKIP(return, "this kernel cannot be locked down");
	EXPECT_EQ(0, set_up());
	ASSERT_LE(0, fprintf(f, "integrity\n"));
	ASSERT_EQ(0, fclose(f));
	EXPECT_EQ(-EPERM, set_up());
}

TEST_HARNESS_MAIN
