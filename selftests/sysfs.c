// SPDX-License-Identifier: GPL-2.0
/*
 * The files of card and slots below /sys/class/fermata, compared with what calls return; who may
 * read and write them; unbinding under readers.
 */
#include "kselftest_harness.h"
#include <dirent.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_ANY(sysfs);
FM_FIXTURE_CARD(card);

static const char *const of_card[] = {
	"profile", "uapi_version", "slots", "contexts", "max_contexts", "policy", "boost_ms",
	"boundary_wait_us", "monitor", "histograms"
};
static const char *const of_slot[] = {
	"engine", "state", "context", "starts", "resumes", "preemptions", "finished", "faults",
	"resets", "timeouts", "overruns", "overrun_ns", "storms", "spurious_interrupts", "throttled_interrupts", "polled", "exclusive", "busy_ns",
	"save_ns", "restore_ns"
};

/* Files about tenants are for root only, "monitor" and "histograms" also for a group. */
static const char *const for_all[] = {
	"engine", "state", "polled", "exclusive", "save_ns", "restore_ns"
};

#define COUNT(a)	(sizeof(a) / sizeof((a)[0]))

/* The folder of the card; cached for the time when it is missing. */
static const char *folder(void)
{
	static char path[64];
	struct stat st;

	if (*path)
		return path;
	if (stat(fm_dev(), &st))
		fm_die("%s: %s", fm_dev(), strerror(errno));
	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u", major(st.st_rdev), minor(st.st_rdev));
	return path;
}

/* A file of the card (slot -1) or of a slot. */
static const char *path_of(int slot, const char *name)
{
	static char path[512];

	if (slot < 0)
		snprintf(path, sizeof(path), "%s/%s", folder(), name);
	else
		snprintf(path, sizeof(path), "%s/slot%d/%s", folder(), slot, name);
	return path;
}

/* Reads an open file, without its newline: the length, or a negative errno. */
static int read_open(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);

	if (n < 0)
		return -errno;
	text[n] = 0;
	if (!n || strchr(text, '\n') != text + n - 1)
		return -EPROTO;
	text[n - 1] = 0;
	return n - 1;
}

static int read_file(int slot, const char *name, char *text, size_t size)
{
	int fd = open(path_of(slot, name), O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = read_open(fd, text, size);
	close(fd);
	return rc;
}

static const char *text_of(int slot, const char *name)
{
	static char text[128];
	int rc = read_file(slot, name, text, sizeof(text));

	if (rc < 0)
		fm_die("%s: %s", path_of(slot, name), strerror(-rc));
	return text;
}

static u64 number_of(int slot, const char *name)
{
	const char *text = text_of(slot, name);
	char *end;
	u64 n = strtoull(text, &end, 10);

	if (end == text || *end)
		fm_die("%s: no number: %s", path_of(slot, name), text);
	return n;
}

FM_TEST(sysfs, the_card)
{
	struct fm_policy policy;
	struct fermata_card_info info;
	struct fm_ctx c;

	fm_card_info(&info);
	EXPECT_EQ(info.slots, number_of(-1, "slots"));
	EXPECT_EQ(info.uapi_version, number_of(-1, "uapi_version"));
	EXPECT_EQ(info.max_contexts, number_of(-1, "max_contexts"));
	EXPECT_STREQ(info.features & FERMATA_FEATURE_RELAY ? "relay" :
		     info.features & FERMATA_FEATURE_QUIESCENT ? "irq" : "base",
		     text_of(-1, "profile"));
	fm_policy_get(&policy);
	EXPECT_STREQ(policy.name, text_of(-1, "policy"));
	EXPECT_EQ(policy.boost_ms, number_of(-1, "boost_ms"));
	EXPECT_EQ(0, number_of(-1, "contexts"));
	fm_ctx_new(&c, FM_LIST, 65536);
	EXPECT_EQ(1, number_of(-1, "contexts"));
	/* A folder for each slot, and no more. */
	EXPECT_EQ(0, access(path_of(info.slots - 1, "engine"), R_OK));
	EXPECT_NE(0, access(path_of(info.slots, "engine"), F_OK));
}

static void check_slot(struct __test_metadata *_metadata, int slot)
{
	struct fermata_slot_info info;
	char engine[40];

	fm_slot_info(slot, &info);
	snprintf(engine, sizeof(engine), "%08x-%04x-%04x-%04x-%012llx",
		 (u32)(info.afu_id_hi >> 32), (u32)(info.afu_id_hi >> 16 & 0xffff),
		 (u32)(info.afu_id_hi & 0xffff), (u32)(info.afu_id_lo >> 48),
		 (unsigned long long)(info.afu_id_lo & 0xffffffffffff));
	EXPECT_STREQ(engine, text_of(slot, "engine"));
	EXPECT_EQ(info.switches, number_of(slot, "starts"));
	EXPECT_EQ(info.resumes, number_of(slot, "resumes"));
	EXPECT_EQ(info.preemptions, number_of(slot, "preemptions"));
	EXPECT_EQ(info.finished, number_of(slot, "finished"));
	EXPECT_EQ(info.faults, number_of(slot, "faults"));
	EXPECT_EQ(info.resets, number_of(slot, "resets"));
	EXPECT_EQ(info.timeouts, number_of(slot, "timeouts"));
	EXPECT_EQ(info.storms, number_of(slot, "storms"));
	/* A late interrupt may count at any time. */
	EXPECT_LE(info.spurious, number_of(slot, "spurious_interrupts"));
	EXPECT_EQ(info.busy_ns, number_of(slot, "busy_ns"));
	EXPECT_EQ(info.save_ns, number_of(slot, "save_ns"));
	EXPECT_EQ(info.restore_ns, number_of(slot, "restore_ns"));
	EXPECT_EQ(!!(info.flags & FERMATA_SLOT_EXCLUSIVE), number_of(slot, "exclusive"));
	EXPECT_STREQ(info.flags & FERMATA_SLOT_QUARANTINED ? "quarantined" : "vacant",
		     text_of(slot, "state"));
	EXPECT_EQ(0, number_of(slot, "context"));
}

FM_TEST(sysfs, slots_as_the_calls_have_them)
{
	struct fermata_card_info card;
	struct fm_expect e;
	struct fm_ctx c;
	u32 slot;

	fm_ctx_new(&c, FM_LIST, 65536);
	fm_job_list(&c, 100, 0, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_card_info(&card);
	for (slot = 0; slot < card.slots; slot++)
		check_slot(_metadata, slot);
	EXPECT_LT(0, number_of(c.slot, "starts"));
	EXPECT_LT(0, number_of(c.slot, "finished"));
	EXPECT_LT(0, number_of(c.slot, "busy_ns"));
}

#define HISTOGRAM_LINE	4096

/* Makes a line of the histograms from what the call returns for the same histogram. */
static void expected_line(int slot, const char *name, const struct fm_histogram *h, char *line)
{
	int n, i;

	n = sprintf(line, "slot=%d histogram=%s count=%llu sum_ns=%llu", slot, name,
		    (unsigned long long)h->count, (unsigned long long)h->sum);
	for (i = 0; i < FERMATA_HISTOGRAM_BUCKETS; i++)
		if (h->buckets[i])
			n += sprintf(line + n, " %d=%llu", i, (unsigned long long)h->buckets[i]);
	memset(line + n, ' ', HISTOGRAM_LINE - 1 - n);
	line[HISTOGRAM_LINE - 1] = '\n';
}

static const char *const histograms[] = { "gap", "save", "restore", "overrun", "latency" };

FM_TEST(sysfs, histograms_as_the_calls_have_them)
{
	char want[2 * HISTOGRAM_LINE], text[2 * HISTOGRAM_LINE];
	struct fermata_card_info card;
	struct fm_histogram h;
	struct fm_ctx c;
	u32 slot, i;
	int fd, n;

	fm_tenant(&c, FM_LONG_SLICE);
	fm_job_endless(&c);
	fm_must_start(&c);
	/* A job that is held before the card has restored it is not saved. */
	do {
		fm_hold(&c);
		fm_must_resume(&c);
		fm_histogram(c.fd, FERMATA_HISTOGRAM_SAVE, c.slot, &h);
	} while (h.count < 20);
	fm_end_endless(&c);
	fm_card_info(&card);
	fd = open(path_of(-1, "histograms"), O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	for (slot = 0; slot < card.slots; slot++) {
		for (i = 0; i < COUNT(histograms); i++) {
			off_t at = (slot * COUNT(histograms) + i) * HISTOGRAM_LINE;

			fm_histogram(c.fd, FERMATA_HISTOGRAM_GAP + i, slot, &h);
			expected_line(slot, histograms[i], &h, want);
			ASSERT_EQ(HISTOGRAM_LINE, pread(fd, text, HISTOGRAM_LINE, at));
			EXPECT_EQ(0, memcmp(want, text, HISTOGRAM_LINE));
			/* A read in pieces gives the same. */
			for (n = 0; n < HISTOGRAM_LINE; n += 7)
				ASSERT_LT(0, pread(fd, text + n, 7, at + n));
			EXPECT_EQ(0, memcmp(want, text, HISTOGRAM_LINE));
		}
	}
	EXPECT_EQ(0, pread(fd, text, sizeof(text), card.slots * COUNT(histograms) * HISTOGRAM_LINE));
	close(fd);
}

/* The time of a group includes that of closed contexts. */
FM_TEST(sysfs, monitor_has_the_time_of_groups)
{
	struct fermata_group group = { .size = sizeof(group) };
	char line[1025], want[64];
	struct fm_expect e;
	struct fm_ctx c[2];
	u64 own;
	FILE *file;
	u32 i;

	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 65536);
		fm_job_list(&c[i], 100, 0, 5, &e);
		ASSERT_GOOD(fm_job_run(&c[i], &e));
	}
	own = fm_fdinfo_number(c[0].fd, "drm-engine-linkedlist");
	fm_must(c[0].fd, FERMATA_IOC_GROUP, &group, "GROUP");
	EXPECT_LT(own, group.run_ns);
	fm_ctx_close(&c[1]);
	snprintf(want, sizeof(want), " group_run_ns=%llu ", (unsigned long long)group.run_ns);
	file = fopen(path_of(-1, "monitor"), "re");
	ASSERT_NE(NULL, file);
	for (i = 0; fgets(line, sizeof(line), file);)
		i += strstr(line, want) && !strncmp(line, "context=", 8);
	fclose(file);
	EXPECT_EQ(1, i);
}

/* The file shows the context on a slot for as long as it is there. */
FM_TEST(card, the_context_on_a_slot)
{
	u64 starts, card_starts;
	struct fm_ctx c;

	fm_tenant(&c, FM_LONG_SLICE);
	fm_job_endless(&c);
	card_speed(c.slot, 1);
	starts = number_of(c.slot, "starts");
	card_starts = card_counter(c.slot, "starts");
	EXPECT_STREQ("vacant", text_of(c.slot, "state"));
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	EXPECT_STREQ("running", text_of(c.slot, "state"));
	EXPECT_EQ(fm_number(c.fd), number_of(c.slot, "context"));
	fm_hold(&c);
	EXPECT_STREQ("vacant", text_of(c.slot, "state"));
	EXPECT_EQ(0, number_of(c.slot, "context"));
	fm_must_resume(&c);
	fm_end_endless(&c);
	EXPECT_EQ(2, number_of(c.slot, "starts") - starts);
	EXPECT_EQ(1, card_counter(c.slot, "starts") - card_starts);
}

static bool is_standard(const char *name)
{
	static const char *const standard[] = {
		".", "..", "dev", "device", "power", "subsystem", "uevent", "waiting_for_supplier"
	};
	size_t i;

	for (i = 0; i < COUNT(standard); i++)
		if (!strcmp(name, standard[i]))
			return true;
	return false;
}

/* How many files of the folder, without slot folders, are unexpected or missing. */
static int differing(int slot, const char *const *names, size_t count)
{
	DIR *dir = opendir(path_of(slot, ""));
	struct dirent *entry;
	int bad = 0;
	size_t i;

	if (!dir)
		fm_die("%s: %s", path_of(slot, ""), strerror(errno));
	while ((entry = readdir(dir))) {
		for (i = 0; i < count && strcmp(entry->d_name, names[i]); i++)
			;
		if (i < count || is_standard(entry->d_name) ||
		    (slot < 0 && !strncmp(entry->d_name, "slot", 4) && entry->d_type == DT_DIR))
			continue;
		printf("# %s is not known\n", path_of(slot, entry->d_name));
		bad++;
	}
	closedir(dir);
	for (i = 0; i < count; i++)
		bad += access(path_of(slot, names[i]), F_OK) ? 1 : 0;
	return bad;
}

FM_TEST(sysfs, no_files_but_those_documented)
{
	EXPECT_EQ(0, differing(-1, of_card, COUNT(of_card)));
	EXPECT_EQ(0, differing(0, of_slot, COUNT(of_slot)));
}

FM_TEST(sysfs, policy_and_boost_are_written)
{
	struct fm_policy policy;

	ASSERT_EQ(0, fm_put(path_of(-1, "policy"), "priority"));
	ASSERT_EQ(0, fm_put(path_of(-1, "boost_ms"), "50\n"));
	fm_policy_get(&policy);
	EXPECT_STREQ("priority", policy.name);
	EXPECT_EQ(50, policy.boost_ms);
	EXPECT_STREQ("priority", text_of(-1, "policy"));
	EXPECT_EQ(50, number_of(-1, "boost_ms"));
	EXPECT_EQ(-ENOENT, fm_put(path_of(-1, "policy"), "none"));
	EXPECT_EQ(-ENOENT, fm_put(path_of(-1, "policy"), "fair share"));
	EXPECT_EQ(-EINVAL, fm_put(path_of(-1, "boost_ms"), "soon"));
	EXPECT_EQ(-EINVAL, fm_put(path_of(-1, "boost_ms"), "-1"));
	EXPECT_EQ(-EINVAL, fm_put(path_of(-1, "boost_ms"), "99999999999999999999"));
	EXPECT_EQ(-ERANGE, fm_put(path_of(-1, "boost_ms"), "1"));
	EXPECT_EQ(-ERANGE, fm_put(path_of(-1, "boost_ms"), "60001"));
	EXPECT_EQ(-ERANGE, fm_put(path_of(-1, "boost_ms"), "18446744073709551615"));
	fm_policy_get(&policy);
	EXPECT_STREQ("priority", policy.name);
	EXPECT_EQ(50, policy.boost_ms);
	/* No user can write the other files. */
	EXPECT_NE(0, fm_put(path_of(-1, "slots"), "8"));
	EXPECT_NE(0, fm_put(path_of(0, "starts"), "0"));
	ASSERT_EQ(0, fm_put(path_of(-1, "boost_ms"), "0"));
	EXPECT_EQ(0, number_of(-1, "boost_ms"));
}

FM_TEST(sysfs, boundary_wait_is_written)
{
	u64 before = number_of(-1, "boundary_wait_us");
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)before);
	ASSERT_EQ(0, fm_put(path_of(-1, "boundary_wait_us"), "10000000"));
	EXPECT_EQ(10000000, number_of(-1, "boundary_wait_us"));
	EXPECT_EQ(-EINVAL, fm_put(path_of(-1, "boundary_wait_us"), "soon"));
	EXPECT_EQ(-ERANGE, fm_put(path_of(-1, "boundary_wait_us"), "10000001"));
	EXPECT_EQ(-ERANGE, fm_put(path_of(-1, "boundary_wait_us"), "18446744073709551615"));
	EXPECT_EQ(10000000, number_of(-1, "boundary_wait_us"));
	ASSERT_EQ(0, fm_put(path_of(-1, "boundary_wait_us"), "0"));
	EXPECT_EQ(0, number_of(-1, "boundary_wait_us"));
	ASSERT_EQ(0, fm_put(path_of(-1, "boundary_wait_us"), text));
}

static void drop_admin(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data))
		fm_die("capget: %s", strerror(errno));
	data[0].effective &= ~(1U << CAP_SYS_ADMIN);
	if (syscall(SYS_capset, &head, data))
		fm_die("capset: %s", strerror(errno));
}

static int in_child(int (*test)(void))
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		fm_die("fork: %s", strerror(errno));
	if (!pid)
		_exit(test());
	if (waitpid(pid, &status, 0) != pid)
		fm_die("waitpid: %s", strerror(errno));
	return status;
}

/* Root by file permissions, but without the administrator's capability. */
static int without_admin(void)
{
	drop_admin();
	if (fm_put(path_of(-1, "policy"), "fair") != -EPERM)
		return 1;
	if (fm_put(path_of(-1, "boost_ms"), "100") != -EPERM)
		return 2;
	if (fm_put(path_of(-1, "boundary_wait_us"), "100") != -EPERM)
		return 3;
	/* The capability is checked before the value. */
	if (fm_put(path_of(-1, "policy"), "none") != -EPERM ||
	    fm_put(path_of(-1, "boost_ms"), "1") != -EPERM)
		return 4;
	return 0;
}

static bool is_for_all(const char *name)
{
	size_t i;

	for (i = 0; i < COUNT(for_all); i++)
		if (!strcmp(name, for_all[i]))
			return true;
	return false;
}

static int as_nobody(void)
{
	char text[128];
	size_t i;

	fm_drop_privileges();
	if (fm_put(path_of(-1, "policy"), "fair") != -EACCES)
		return 1;
	for (i = 0; i < COUNT(of_card); i++) {
		bool allowed = strcmp(of_card[i], "monitor") && strcmp(of_card[i], "histograms");

		if ((read_file(-1, of_card[i], text, sizeof(text)) == -EACCES) == allowed)
			return 10 + i;
	}
	for (i = 0; i < COUNT(of_slot); i++) {
		bool allowed = is_for_all(of_slot[i]);

		if ((read_file(0, of_slot[i], text, sizeof(text)) == -EACCES) == allowed)
			return 30 + i;
	}
	return 0;
}

FM_TEST(sysfs, who_may_read_and_write)
{
	folder();
	EXPECT_EQ(0, in_child(without_admin));
	EXPECT_EQ(0, in_child(as_nobody));
}

static void read_all(void)
{
	char text[128];
	size_t i;
	int slot;

	for (;;) {
		for (i = 0; i < COUNT(of_card); i++)
			read_file(-1, of_card[i], text, sizeof(text));
		for (slot = 0; slot < 2; slot++)
			for (i = 0; i < COUNT(of_slot); i++)
				read_file(slot, of_slot[i], text, sizeof(text));
		fm_put(path_of(-1, "policy"), "fair");
	}
}

#define READERS	2

/* Files are constantly read and written, and kept open, while the card comes and goes. */
FM_TEST(sysfs, unbound_under_readers)
{
	int open_files[2], i, status;
	pid_t readers[READERS];
	char text[128];

	folder();
	for (i = 0; i < READERS; i++) {
		readers[i] = fork();
		ASSERT_LE(0, readers[i]);
		if (!readers[i])
			read_all();
	}
	for (i = 0; i < 10; i++) {
		open_files[0] = open(path_of(0, "state"), O_RDONLY | O_CLOEXEC);
		open_files[1] = open(path_of(-1, "policy"), O_RDWR | O_CLOEXEC);
		ASSERT_LE(0, open_files[0]);
		ASSERT_LE(0, open_files[1]);
		ASSERT_LT(0, read_open(open_files[0], text, sizeof(text)));
		ASSERT_EQ(0, fm_unbind());
		EXPECT_EQ(-ENODEV, read_open(open_files[0], text, sizeof(text)));
		EXPECT_EQ(-1, write(open_files[1], "fair", 4));
		EXPECT_EQ(ENODEV, errno);
		EXPECT_NE(0, access(path_of(0, "state"), F_OK));
		ASSERT_EQ(0, fm_bind());
		/* Open files still belong to the card that is gone. */
		EXPECT_EQ(-ENODEV, read_open(open_files[0], text, sizeof(text)));
		close(open_files[0]);
		close(open_files[1]);
		EXPECT_STREQ("vacant", text_of(0, "state"));
		EXPECT_EQ(0, number_of(0, "starts"));
	}
	for (i = 0; i < READERS; i++) {
		kill(readers[i], SIGKILL);
		ASSERT_EQ(readers[i], waitpid(readers[i], &status, 0));
		/* The process has not died from another cause. */
		EXPECT_EQ(SIGKILL, status);
	}
}

TEST_HARNESS_MAIN
