// SPDX-License-Identifier: GPL-2.0
/*
 * A card without window check that shares its IOMMU group: its engines reach what other devices of
 * the group have mapped, so it is used as a card without an IOMMU. Runs on a machine with two base
 * cards that are functions of one device (vm/boot --card profile=base,function=0 --card ...=1), or
 * behind ports of one switch (port=switch), where they are plugged and unplugged.
 */
#include "kselftest_harness.h"
#include <limits.h>
#include <stdlib.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(neighbours);

#define OTHER	"/sys/class/fermata/fermata1"

/* The card is behind a port: its parent is a device, too. */
static bool behind_port(void)
{
	char path[PATH_MAX];

	if (!realpath("/sys/class/fermata/fermata0/device", path))
		return false;
	strncat(path, "/../class", sizeof(path) - strlen(path) - 1);
	return !access(path, F_OK);
}

/* Removes the other card from the machine; false: there is none, or nothing translates. */
static bool remove_other(void)
{
	struct fermata_card_info info = { .size = sizeof(info) };
	char path[PATH_MAX];

	fm_card_info(&info);
	if (!(info.features & FERMATA_FEATURE_IOMMU) || !realpath(OTHER "/device", path))
		return false;
	if (behind_port()) {
		if (host_ask("unplug", 1))
			fm_die("the other card is not unplugged");
		return true;
	}
	strncat(path, "/remove", sizeof(path) - strlen(path) - 1);
	return !fm_put(path, "1");
}

static void bring_back(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	if (behind_port() ? host_ask("plug", 1) != NULL : fm_put("/sys/bus/pci/rescan", "1"))
		fm_die("the other card is not plugged in, or the bus is not scanned");
	while (access(OTHER, F_OK)) {
		if (fm_now() > end)
			fm_die("the other card does not come back");
		fm_sleep_us(10000);
	}
}

/* SETUP by a user without privileges, on a file that root has opened: 0 or a negative errno. */
static int set_up_as_nobody(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_child ch;
	int fd = fm_open_dev(0);
	u64 error;

	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		fm_say(&ch, -fm_ioctl(fd, FERMATA_IOC_SETUP, &setup));
		_exit(0);
	}
	error = fm_hear(&ch);
	fm_reap(&ch);
	close(fd);
	return -(int)error;
}

FM_TEST(neighbours, set_up_takes_cap_sys_rawio)
{
	struct fm_ctx c;

	if (access(OTHER, F_OK))
		SKIP(return, "there is no other card");
	EXPECT_EQ(-EPERM, set_up_as_nobody());
	fm_ctx_new(&c, FM_LIST, 2 * FM_PAGE);
	fm_ctx_close(&c);
	if (!remove_other())
		SKIP(return, "the other card is not in an IOMMU group");
	EXPECT_EQ(0, set_up_as_nobody());
	bring_back();
	EXPECT_EQ(-EPERM, set_up_as_nobody());
}

/* Runs an endless job beside no neighbour; false: the other card is in no group, or there is none. */
static bool run_alone(struct fm_ctx *c)
{
	if (!remove_other())
		return false;
	fm_tenant(c, FM_LONG_SLICE);
	fm_job_endless(c);
	fm_must_start(c);
	card_until_runs(c->slot, c->token);
	return true;
}

/* All calls that would let a job reach the new device. */
static void try_as_nobody(struct fm_child *ch, struct fm_ctx *c, struct fm_ctx *idle)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .length = FM_PAGE
	};

	fm_drop_privileges();
	if (fm_resume(c->fd) != -EPERM)
		_exit(1);
	if (fm_start(idle->fd) != -EPERM)
		_exit(2);
	if (fm_ioctl(idle->fd, FERMATA_IOC_ARENA_CREATE, &arena) != -EPERM)
		_exit(3);
	_exit(0);
}

FM_TEST(neighbours, jobs_are_held_when_a_device_joins_the_group)
{
	struct fm_ctx c, idle;
	struct fm_child ch;
	int hold, status;

	if (!run_alone(&c))
		SKIP(return, "there is no other card, or it is not in an IOMMU group");
	fm_ctx_new(&idle, FM_MEM, 2 * FM_PAGE);
	bring_back();
	/* Saved before any driver could bind the new device. */
	EXPECT_FALSE(card_runs(c.slot, c.token));
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	/* The end of a hold does not end the other one. */
	hold = fm_hold_fd(c.fd);
	ASSERT_LE(0, hold);
	close(hold);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	EXPECT_FALSE(card_runs(c.slot, c.token));
	fm_fork(&ch);
	if (!ch.pid)
		try_as_nobody(&ch, &c, &idle);
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	/* Whoever may touch all memory may go on. */
	EXPECT_EQ(0, fm_resume(c.fd));
	card_until_runs(c.slot, c.token);
	fm_end_endless(&c);
}

/* The owner resumes the job once the device is gone. */
FM_TEST(neighbours, a_device_that_leaves_is_no_neighbour)
{
	struct fm_ctx c;
	struct fm_child ch;
	int status;

	if (!run_alone(&c))
		SKIP(return, "there is no other card, or it is not in an IOMMU group");
	bring_back();
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	ASSERT_TRUE(remove_other());
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		_exit(fm_resume(c.fd) ? 1 : 0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	card_until_runs(c.slot, c.token);
	bring_back();
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_end_endless(&c);
}

TEST_HARNESS_MAIN
