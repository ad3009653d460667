// SPDX-License-Identifier: GPL-2.0
/*
 * What contexts take of the machine's memory, seen from outside: the kernel's free pages. On a
 * kernel that keeps freed memory to look at it (KASAN), kmemleak is who tells.
 */
#include "kselftest_harness.h"
#include <sys/resource.h>
#include "lib/mem.h"
#include "lib/sched.h"

#define CONTEXTS	1000
#define SLACK		(2LL << 20)	/* what else comes and goes in a machine */

FM_FIXTURE_ANY(memory);

/* The free pages that processors keep at hand, tens of MiB, which are not in MemFree. */
static u64 pages_at_hand(void)
{
	FILE *zones = fopen("/proc/zoneinfo", "r");
	unsigned long long pages;
	bool any = false;
	char line[256];
	u64 sum = 0;

	while (zones && fgets(line, sizeof(line), zones)) {
		if (sscanf(line, " count: %llu", &pages) == 1) {
			sum += pages;
			any = true;
		}
	}
	if (zones)
		fclose(zones);
	if (!any)
		fm_die("/proc/zoneinfo tells no count");
	return sum;
}

/* Bytes that nobody has. */
static u64 free_now(void)
{
	int rc = fm_put("/proc/sys/vm/drop_caches", "3");

	if (rc)
		fm_die("drop_caches: %s", strerror(-rc));
	return fm_number_in("/proc/meminfo", "MemFree:") * 1024 + pages_at_hand() * FM_PAGE;
}

/*
 * Bytes that nobody has, when what waited to be freed is: what RCU frees in bulk is first looked
 * at after 5 seconds.
 */
static u64 free_at_rest(void)
{
	u64 most = free_now(), now;
	int quiet = 0;

	while (quiet < 70) {
		fm_sleep_us(100000);
		now = free_now();
		quiet = now > most + 64 * 1024 ? 0 : quiet + 1;
		most = now > most ? now : most;
	}
	return most;
}

/* How much less than before is free, once it is no more than that or nothing comes back. */
static int64_t gone_since(u64 before)
{
	u64 end = fm_now() + 20000 * FM_MS;
	int64_t gone;

	do {
		fm_sleep_us(100000);
		gone = before - free_now();
	} while (gone > SLACK && fm_now() < end);
	return gone > 0 ? gone : 0;
}

static const char *cannot_measure(void)
{
	if (!access("/sys/kernel/debug/kmemleak", F_OK))
		return "this kernel keeps freed memory";
	if (geteuid())
		return "not root";
	return NULL;
}

static int set_up(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd = fm_open_dev(0);

	if (fd < 0)
		fm_die("open: %s", strerror(-fd));
	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	return fd;
}

/* The arena and the snapshot of a context; how many bytes they have. */
static u64 give_memory(int fd)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = FM_PAGE };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };

	fm_must(fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	fm_must(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap, "SNAPSHOT_CREATE");
	return arena.length + snap.length;
}

static void run_one(u64 seed)
{
	struct fm_expect e;
	struct fm_ctx c;
	const char *wrong;

	fm_ctx_new(&c, FM_LIST, 2 * FM_PAGE);
	fm_job_list(&c, 16, 100, seed, &e);
	wrong = fm_job_run(&c, &e);
	if (wrong)
		fm_die("job %llu: %s", (unsigned long long)seed, wrong);
	fm_ctx_close(&c);
}

/* n contexts, one after the other, some with a job. */
static void cycle(u32 n)
{
	u32 i;
	int fd;

	for (i = 0; i < n; i++) {
		if (i % 20 == 0) {
			run_one(i);
			continue;
		}
		fd = set_up();
		give_memory(fd);
		close(fd);
	}
}

TEST_F_TIMEOUT(memory, per_open_context, 600)
{
	const char *why = cannot_measure();
	struct rlimit files = { CONTEXTS + 64, CONTEXTS + 64 };
	u64 at_first, with_setup, ready, asked = 0;
	int *fds, i;

	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &files));
	fds = calloc(CONTEXTS, sizeof(*fds));
	cycle(100);
	at_first = free_at_rest();
	for (i = 0; i < CONTEXTS; i++)
		fds[i] = set_up();
	with_setup = free_now();
	for (i = 0; i < CONTEXTS; i++)
		asked += give_memory(fds[i]);
	ready = free_now();
	fm_figure("bytes of a context that is set up", (at_first - with_setup) / CONTEXTS);
	fm_figure("bytes of a context with arena and snapshot, without these",
		  (at_first - ready - asked) / CONTEXTS);
	TH_LOG("set up: %llu bytes each; ready: %llu, and %llu of arena and snapshot",
	       (unsigned long long)(at_first - with_setup) / CONTEXTS,
	       (unsigned long long)(at_first - ready - asked) / CONTEXTS,
	       (unsigned long long)asked / CONTEXTS);
	/* A page of it is for the histograms. For a relay two more are for registers and results. */
	EXPECT_GT(12288, (at_first - with_setup) / CONTEXTS);
	EXPECT_GT(12288 + (card_relay() ? 2 * FM_PAGE : 0), (at_first - ready - asked) / CONTEXTS);
	for (i = 0; i < CONTEXTS; i++)
		close(fds[i]);
	EXPECT_GE(SLACK, gone_since(at_first));
}

/* A context that leaves as little as 210 bytes behind is seen. */
TEST_F_TIMEOUT(memory, point_06_of_many_that_came_and_went, 24 * 3600)
{
	u32 n = fm_number_from("FERMATA_CYCLES", 10000);
	const char *why = cannot_measure();
	int64_t gone;
	u64 before;

	if (why)
		SKIP(return, "%s", why);
	if (card_present())
		card_speed(fm_slot_of(FM_LIST), 0);
	cycle(500);
	before = free_at_rest();
	cycle(n);
	gone = gone_since(before);
	fm_tally("contexts opened and closed", n);
	fm_figure("bytes gone after these contexts were closed", gone);
	TH_LOG("%u contexts: %lld bytes gone", n, (long long)gone);
	EXPECT_GE(SLACK, gone);
}

TEST_HARNESS_MAIN
