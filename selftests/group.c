// SPDX-License-Identifier: GPL-2.0
/* Groups: who belongs together, and slots that serve one group only. */
#include "kselftest_harness.h"
#include <sys/stat.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(group);

#define CGROUPS		"/sys/fs/cgroup"
#define CGROUP		CGROUPS "/fermata-test"
#define USER		65534

static const char *join(const char *cgroup)
{
	char path[128];
	int fd, rc;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return "no cgroups (version 2)";
	rc = write(fd, "0", 1);
	close(fd);
	return rc == 1 ? NULL : "a process cannot change its cgroup";
}

/* A context of another group than this process's; NULL or why there cannot be one. */
static const char *other_group(struct fm_ctx *c)
{
	const char *why;

	if (mkdir(CGROUP, 0755) && errno != EEXIST)
		return "no cgroups (version 2)";
	why = join(CGROUP);
	if (!why) {
		fm_tenant(c, FM_LONG_SLICE);
		why = join(CGROUPS);
	}
	rmdir(CGROUP);
	return why;
}

static u64 group_of(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.group;
}

/* What the list says of the group of a context. */
static u64 listed_group(int fd, u32 context)
{
	struct fermata_context_info info = { .size = sizeof(info) };
	int rc;

	do {
		rc = fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, &info);
		if (rc)
			fm_die("context %u is not listed: %s", context, strerror(-rc));
	} while (info.context != context);
	return info.group;
}

static int exclusive(int fd, u32 flags, u32 context, u32 slots)
{
	struct fermata_exclusive e = {
		.size = sizeof(e), .flags = flags, .context = context, .slot_mask = slots
	};

	return fm_ioctl(fd, FERMATA_IOC_EXCLUSIVE, &e);
}

static u64 slot_group(int fd, u32 slot, bool *is_exclusive)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	*is_exclusive = info.flags & FERMATA_SLOT_EXCLUSIVE;
	return info.group;
}

FM_TEST(group, is_the_user_in_the_root_cgroup)
{
	int fds[2], other;

	if (join(CGROUPS))
		SKIP(return, "no cgroups (version 2)");
	fds[0] = fm_open_dev(0);
	fds[1] = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	other = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_LE(0, other);
	EXPECT_EQ(1ULL << 63, group_of(fds[0]));
	EXPECT_EQ(1ULL << 63, group_of(fds[1]));
	EXPECT_EQ(1ULL << 63 | USER, group_of(other));
}

/* Taken at open(): where its opener goes afterwards does not matter. */
FM_TEST(group, is_the_cgroup)
{
	struct stat dir;
	struct fm_child ch;
	struct fm_ctx own, other;
	u64 number;
	const char *why;
	int status;

	mkdir(CGROUP, 0755);
	if (stat(CGROUP, &dir))
		SKIP(return, "no cgroups (version 2)");
	why = join(CGROUP);
	if (why)
		SKIP(return, "%s", why);
	fm_tenant(&other, FM_MS);
	ASSERT_EQ(NULL, join(CGROUPS));
	fm_tenant(&own, FM_MS);
	EXPECT_EQ(dir.st_ino, group_of(other.fd));
	EXPECT_NE(dir.st_ino, group_of(own.fd));
	EXPECT_EQ(0, rmdir(CGROUP));
	number = fm_number(other.fd);
	EXPECT_EQ(dir.st_ino, listed_group(own.fd, number));
	/* Not told to others without the capability. */
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (listed_group(own.fd, number) != 0)
			_exit(1);
		if (listed_group(other.fd, number) != dir.st_ino || group_of(other.fd) != dir.st_ino)
			_exit(2);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

/* The slot goes to its group at once; the others' job waits, and goes on when it is lifted. */
FM_TEST(group, slot_for_one_group)
{
	struct fm_ctx own, other;
	struct fermata_status st;
	struct fm_expect e;
	const char *why = other_group(&other);
	bool is_exclusive;
	u64 from;

	if (why)
		SKIP(return, "%s", why);
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	fm_job_endless(&other);
	card_speed(own.slot, 1);
	from = card_history_end();
	fm_must_start(&other);
	card_until_runs(other.slot, other.token);
	ASSERT_EQ(0, exclusive(own.fd, 0, 0, 1U << own.slot));
	fm_until_state(other.fd, FERMATA_STATE_QUEUED);
	ASSERT_GOOD(fm_job_run(&own, &e));
	fm_sleep_us(20000);
	fm_status(other.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_NO_SLOT, st.attributes);
	EXPECT_EQ(group_of(own.fd), slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_TRUE(is_exclusive);
	/* Reserved already; for its own group it may be said again. */
	EXPECT_EQ(-EBUSY, exclusive(own.fd, 0, fm_number(other.fd), 1U << own.slot));
	EXPECT_EQ(0, exclusive(own.fd, 0, fm_number(own.fd), 1U << own.slot));
	ASSERT_EQ(0, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, 1U << own.slot));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
	card_until_runs(other.slot, other.token);
	fm_end_endless(&other);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_START, &own }, { 0, CARD_FINISHED, &own },
		{ 0, CARD_RESUME, &other }, { 0, CARD_FINISHED, &other } }, 7));
}

/* It ends with the last context of the group, whoever waits then goes on. */
FM_TEST(group, slot_of_a_group_that_goes)
{
	struct fm_ctx own, other[2];
	struct fm_expect e;
	const char *why;
	bool is_exclusive;
	int i;

	for (i = 0; i < 2; i++) {
		why = other_group(&other[i]);
		if (why)
			SKIP(return, "%s", why);
	}
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	ASSERT_EQ(0, exclusive(own.fd, 0, fm_number(other[0].fd), 1U << own.slot));
	fm_must_start(&own);
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	/* Their cgroups had one name, but are two. */
	EXPECT_NE(group_of(other[0].fd), group_of(other[1].fd));
	fm_ctx_close(&other[1]);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	fm_ctx_close(&other[0]);
	fm_wait(own.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&own, &e));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
}

FM_TEST(group, exclusive_bad_input)
{
	struct fermata_card_info card;
	struct fm_child ch;
	struct fm_ctx own;
	bool is_exclusive;
	int bare = fm_open_dev(0), status;
	u32 slot;

	fm_card_info(&card);
	fm_tenant(&own, FM_MS);
	slot = 1U << own.slot;
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, 0));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot | 1U << 31));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot | 1U << card.slots));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot << FERMATA_MAX_SLOTS));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, fm_number(own.fd), slot));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, 0));
	EXPECT_EQ(-ESRCH, exclusive(own.fd, 0, 0xfffffff0, slot));
	EXPECT_EQ(-ENXIO, exclusive(bare, 0, 0, slot));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (exclusive(own.fd, 0, 0, slot) != -EPERM)
			_exit(1);
		/* Nor whether there is such a context. */
		if (exclusive(own.fd, 0, 0xfffffff0, slot) != -EPERM)
			_exit(2);
		if (exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, slot) != -EPERM)
			_exit(3);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	slot_group(own.fd, own.slot, &is_exclusive);
	EXPECT_FALSE(is_exclusive);
	/* Of slots that nobody has: no error, from any descriptor. */
	EXPECT_EQ(0, exclusive(bare, FERMATA_EXCLUSIVE_RELEASE, 0, slot));
}

TEST_HARNESS_MAIN
