// SPDX-License-Identifier: GPL-2.0
/* What /proc/PID/fdinfo/FD says of a context, against its status and the card. */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_ANY(fdinfo);
FM_FIXTURE_CARD(card);

#define LINES	64

struct fdinfo {
	char text[8192];
	int n;
	struct {
		char *key, *value;
	} line[LINES];
};

static void read_fdinfo(int fd, struct fdinfo *info)
{
	char path[64], *at = info->text, *end;
	ssize_t have = 0, n;
	int f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		fm_die("%s: %s", path, strerror(errno));
	while ((n = read(f, info->text + have, sizeof(info->text) - 1 - have)) > 0)
		have += n;
	close(f);
	info->text[have] = 0;
	for (info->n = 0; *at && info->n < LINES; at = end + 1) {
		end = strchr(at, '\n');
		if (!end)
			fm_die("%s ends in the middle of a line", path);
		*end = 0;
		info->line[info->n].key = at;
		at = strchr(at, ':');
		if (!at)
			fm_die("%s: no key: %s", path, info->line[info->n].key);
		*at++ = 0;
		info->line[info->n++].value = at + strspn(at, " \t");
	}
}

/* The value of a key, NULL if it is not there. */
static const char *get(const struct fdinfo *info, const char *key)
{
	int i;

	for (i = 0; i < info->n; i++)
		if (!strcmp(info->line[i].key, key))
			return info->line[i].value;
	return NULL;
}

/* A number and its unit. */
static u64 get_number(const struct fdinfo *info, const char *key, const char *unit)
{
	const char *value = get(info, key);
	char *end;
	u64 n;

	if (!value)
		fm_die("fdinfo has no %s", key);
	n = strtoull(value, &end, 10);
	if (end == value || strcmp(end, unit))
		fm_die("%s is %s", key, value);
	return n;
}

static const char *const engine_names[FM_ALL_ENGINES] = {
	[FM_LIST] = "linkedlist", [FM_MEM] = "membench", [FM_SHA] = "sha256", [FM_MIX] = "blockmix",
	[FM_RISCV] = "riscv", [FM_COUNT_UP] = "counter_up", [FM_COUNT_DOWN] = "counter_down",
	[FM_QUEUE] = "queue",
};

static void engine_key(enum fm_engine engine, const char *prefix, char *key, size_t size)
{
	snprintf(key, size, "%s%s", prefix, engine_names[engine]);
}

static u64 engine_ns(int fd, enum fm_engine engine)
{
	struct fdinfo info;
	char key[96];

	read_fdinfo(fd, &info);
	engine_key(engine, "drm-engine-", key, sizeof(key));
	return get_number(&info, key, " ns");
}

static bool state_is(int fd, const char *state)
{
	struct fdinfo info;
	const char *is;

	read_fdinfo(fd, &info);
	is = get(&info, "fermata-state");
	if (!is || strcmp(is, state))
		printf("# fermata-state is %s, not %s\n", is ?: "missing", state);
	return is && !strcmp(is, state);
}

FM_TEST(fdinfo, keys_as_parsers_expect_them)
{
	struct fermata_status st;
	struct fdinfo info;
	struct fm_ctx c;
	char key[96];
	int i, j;

	fm_ctx_new(&c, FM_LIST, 65536);
	fm_status(c.fd, &st);
	read_fdinfo(c.fd, &info);
	for (i = 0; i < info.n; i++) {
		EXPECT_EQ(NULL, strpbrk(info.line[i].key, " \t"));
		for (j = 0; j < i; j++)
			EXPECT_NE(0, strcmp(info.line[i].key, info.line[j].key));
	}
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	EXPECT_EQ(st.context, get_number(&info, "drm-client-id", ""));
	EXPECT_EQ(st.arena_length + st.snapshot_length, get_number(&info, "drm-total-memory", ""));
	EXPECT_EQ(st.arena_length + st.snapshot_length,
		  get_number(&info, "drm-resident-memory", ""));
	EXPECT_EQ(st.arena_length, get_number(&info, "fermata-arena", ""));
	EXPECT_EQ(st.snapshot_length, get_number(&info, "fermata-snapshot", ""));
	engine_key(FM_LIST, "drm-engine-", key, sizeof(key));
	EXPECT_EQ(0, get_number(&info, key, " ns"));
	engine_key(FM_LIST, "drm-engine-capacity-", key, sizeof(key));
	EXPECT_EQ(__builtin_popcount(fm_slots_of(FM_LIST)), get_number(&info, key, ""));
	/* One engine, its own. */
	engine_key(FM_SHA, "drm-engine-", key, sizeof(key));
	EXPECT_EQ(NULL, get(&info, key));
}

FM_TEST(fdinfo, names_of_engines)
{
	struct fdinfo info;
	struct fm_ctx c;
	char key[96];
	int engine;

	for (engine = 0; engine < FM_ALL_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		fm_ctx_new(&c, engine, 65536);
		read_fdinfo(c.fd, &info);
		engine_key(engine, "drm-engine-", key, sizeof(key));
		EXPECT_EQ(0, get_number(&info, key, " ns"));
		fm_ctx_close(&c);
	}
}

FM_TEST(fdinfo, before_setup)
{
	struct fdinfo info;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	read_fdinfo(fd, &info);
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	EXPECT_STREQ("new", get(&info, "fermata-state"));
	EXPECT_EQ(0, get_number(&info, "drm-total-memory", ""));
	EXPECT_EQ(NULL, get(&info, "drm-client-id"));
	EXPECT_EQ(NULL, get(&info, "fermata-job"));
}

/* Each line that has a member of STATUS says what that does. */
FM_TEST(fdinfo, counts_as_status_does)
{
	struct fermata_status st;
	struct fdinfo info;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	fm_ctx_new(&c, FM_LIST, 65536);
	for (i = 0; i < 3; i++) {
		fm_job_list(&c, 100, 0, i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
	fm_status(c.fd, &st);
	read_fdinfo(c.fd, &info);
	EXPECT_EQ(3, st.finished);
	EXPECT_EQ(st.run_ns, engine_ns(c.fd, FM_LIST));
	EXPECT_EQ(st.wait_ns, get_number(&info, "fermata-wait", " ns"));
	EXPECT_EQ(st.job, get_number(&info, "fermata-job", ""));
	EXPECT_EQ(st.slices, get_number(&info, "fermata-slices", ""));
	EXPECT_EQ(st.preemptions, get_number(&info, "fermata-preemptions", ""));
	EXPECT_EQ(st.finished, get_number(&info, "fermata-finished", ""));
	EXPECT_EQ(st.failed, get_number(&info, "fermata-failed", ""));
	EXPECT_EQ(st.faults, get_number(&info, "fermata-faults", ""));
	EXPECT_EQ(NULL, get(&info, "fermata-slot"));
}

/* Its time on the engine grows while it runs, never goes back, and is no less than what the card saw. */
FM_TEST(card, time_on_the_engine)
{
	u64 before = 0, now, held;
	struct card_run run;
	struct fdinfo info;
	struct fm_ctx c;
	int i;

	fm_tenant(&c, FM_LONG_SLICE);
	EXPECT_TRUE(state_is(c.fd, "idle"));
	fm_job_endless(&c);
	card_speed(c.slot, 1);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	EXPECT_TRUE(state_is(c.fd, "running"));
	read_fdinfo(c.fd, &info);
	EXPECT_EQ(c.slot, get_number(&info, "fermata-slot", ""));
	for (i = 0; i < 50; i++) {
		now = engine_ns(c.fd, FM_LIST);
		EXPECT_LT(before, now);
		before = now;
		fm_sleep_us(100);
	}
	fm_hold(&c);
	EXPECT_TRUE(state_is(c.fd, "held"));
	held = engine_ns(c.fd, FM_LIST);
	EXPECT_LE(before, held);
	fm_sleep_us(5000);
	EXPECT_EQ(held, engine_ns(c.fd, FM_LIST));
	card_run_of(c.slot, c.token, &run);
	EXPECT_LT(0, run.run_ns);
	/* A clock is not exactly another one. */
	EXPECT_LE(run.run_ns, held + held / 100);
	fm_must_resume(&c);
	fm_end_endless(&c);
	EXPECT_TRUE(state_is(c.fd, "done"));
	EXPECT_LT(held, engine_ns(c.fd, FM_LIST));
}

FM_TEST(fdinfo, of_a_card_that_is_gone)
{
	struct fdinfo info;
	struct fm_ctx c;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	fm_ctx_new(&c, FM_LIST, 65536);
	ASSERT_EQ(0, fm_unbind());
	EXPECT_TRUE(state_is(c.fd, "gone"));
	EXPECT_TRUE(state_is(fd, "gone"));
	read_fdinfo(c.fd, &info);
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	/* It has been taken away. */
	EXPECT_EQ(0, get_number(&info, "drm-resident-memory", ""));
	ASSERT_EQ(0, fm_bind());
}

TEST_HARNESS_MAIN
