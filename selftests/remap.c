// SPDX-License-Identifier: GPL-2.0
/*
 * An arena of the program's own memory consists of pages, not of addresses: changes
 * of the mapping during a job do not affect the engine. Each test has a job before,
 * one that is on the slot meanwhile, and one after.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/mem.h"
#include "lib/calls.h"

#define STEPS	1000000	/* of the job: a second at speed 1 */

FM_FIXTURE_CARD(remap);

struct run {
	struct fm_ctx c;
	struct fm_expect e;
	u8 *mem;
	size_t len;
	int fd;
	u64 pins;
};

/* Without an IOMMU the arena must be contiguous. */
static bool usable(enum fm_kind kind)
{
	return kind >= FM_THP || fm_translated();
}

static const char *registers_wrong(struct run *r)
{
	u64 count = 0, checksum = 0;

	if (fm_reg_read(r->c.fd, 0x38, &count) || fm_reg_read(r->c.fd, 0x40, &checksum))
		return "result registers cannot be read";
	if (count != r->e.r.count || checksum != r->e.r.checksum)
		return "the engine did not find what was in the arena";
	return NULL;
}

/* Makes the arena, and runs the job before. */
static void before(struct run *r, enum fm_kind kind)
{
	memset(r, 0, sizeof(*r));
	r->fd = -1;
	r->len = FM_HUGE;
	r->pins = fm_pins();
	fm_huge_pages(6);
	r->mem = fm_map_kind(kind, r->len, &r->fd);
	memset(r->mem, 0, r->len);
	if (fm_ctx_own(&r->c, FM_LIST, r->mem, r->len))
		fm_die("no arena of %s", fm_kind_names[kind]);
	fm_job_list(&r->c, 5000, STEPS, 1, &r->e);
	if (fm_job_run(&r->c, &r->e))
		fm_die("the first job");
}

/* The same, and starts a job that runs. */
static void begin(struct run *r, enum fm_kind kind)
{
	before(r, kind);
	card_speed(r->c.slot, 1);
	if (fm_start(r->c.fd))
		fm_die("START");
	card_until_runs(r->c.slot, r->c.token);
}

/* The same, with a job that only the end of its context ends. */
static void begin_endless(struct run *r, enum fm_kind kind)
{
	before(r, kind);
	fm_job_endless(&r->c);
	if (fm_start(r->c.fd))
		fm_die("START");
	card_until_runs(r->c.slot, r->c.token);
}

/* Checks the job that was on the slot meanwhile, and runs the same job once more. */
static const char *finish(struct run *r)
{
	const char *wrong;

	/* On a very slow machine the job may already be done. */
	if (!fm_preempt(r->c.fd, FERMATA_PREEMPT_HOLD))
		fm_wait(r->c.fd, FERMATA_EVENT_HELD | FERMATA_EVENT_DONE);
	card_speed(r->c.slot, 0);
	fm_resume(r->c.fd);
	fm_wait(r->c.fd, FERMATA_EVENT_DONE);
	wrong = registers_wrong(r);
	if (wrong)
		return wrong;
	if (fm_start(r->c.fd))
		return "START";
	fm_wait(r->c.fd, FERMATA_EVENT_DONE);
	return registers_wrong(r);
}

/* Checks by another job that the program still has the arena at c.mem: NULL or what is wrong. */
static const char *shared_still(struct run *r)
{
	struct fm_expect e;

	fm_job_list(&r->c, 100, 1000, 77, &e);
	return fm_job_run(&r->c, &e);
}

static const char *end(struct run *r)
{
	fm_ctx_close(&r->c);
	close(r->fd);
	fm_huge_pages(0);
	return fm_pins() == r->pins && !fm_charged() ? NULL : "pages stay pinned or charged";
}

static bool is_filled(const u8 *mem, size_t len, u8 with)
{
	while (len && *mem == with) {
		mem++;
		len--;
	}
	return !len;
}

/* The first kind, from `kind` on, of a set (one bit for each) that is available; FM_KINDS: none. */
static enum fm_kind kind_from(unsigned int kinds, enum fm_kind kind)
{
	while (kind < FM_KINDS && (!(kinds & 1U << kind) || !usable(kind)))
		kind++;
	return kind;
}

#define FOR_EACH(kind, kinds)	\
	for (kind = kind_from(kinds, 0); kind < FM_KINDS; kind = kind_from(kinds, kind + 1))

#define GOOD(expr)									\
do {											\
	const char *wrong_ = (expr);							\
											\
	ASSERT_EQ(NULL, wrong_) {							\
		TH_LOG("%s: %s", fm_kind_names[kind], wrong_);				\
	}										\
} while (0)

/* Memory that is mapped there afterwards is not part of the arena. */
FM_TEST(remap, munmap)
{
	enum fm_kind kind;
	struct run r;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_SHARED | 1 << FM_MEMFD |
		 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		ASSERT_EQ(0, munmap(r.mem, r.len));
		EXPECT_EQ(SIGSEGV, fm_access_signal(r.mem));
		fm_map(r.mem, r.len, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(r.mem, 0xff, r.len);
		GOOD(finish(&r));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0xff));
		GOOD(end(&r));
	}
}

/* The program finds its arena at the new place; the engine has the old addresses. */
FM_TEST(remap, mremap)
{
	enum fm_kind kind;
	struct run r;
	void *to;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_SHARED | 1 << FM_MEMFD |
		 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		to = fm_map_huge(r.len);
		ASSERT_EQ(to, mremap(r.mem, r.len, r.len, MREMAP_MAYMOVE | MREMAP_FIXED, to));
		r.c.mem = to;
		GOOD(finish(&r));
		GOOD(shared_still(&r));
		GOOD(end(&r));
	}
}

FM_TEST(remap, madv_dontfork)
{
	enum fm_kind kind;
	struct fm_child ch;
	struct run r;
	u8 vec[1];

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_SHARED | 1 << FM_MEMFD |
		 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		ASSERT_EQ(0, madvise(r.mem, r.len, MADV_DONTFORK));
		fm_fork(&ch);
		if (!ch.pid)
			_exit(mincore(r.mem, FM_PAGE, vec) && errno == ENOMEM ? 0 : 1);
		EXPECT_EQ(0, fm_reap(&ch));
		GOOD(finish(&r));
		GOOD(shared_still(&r));
		GOOD(end(&r));
	}
}

/* The child of a program with private memory has a copy; the parent keeps the arena. */
FM_TEST(remap, fork_copies_private_memory)
{
	enum fm_kind kind;
	struct fm_child ch;
	struct run r;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_MEMFD_PRIVATE | 1 << FM_THP | 1 << FM_HUGETLB) {
		begin(&r, kind);
		fm_fork(&ch);
		if (!ch.pid) {
			memset(r.mem, 0xff, r.len);
			fm_say(&ch, 1);
			fm_hear(&ch);
			_exit(is_filled(r.mem, r.len, 0xff) ? 0 : 1);
		}
		fm_hear(&ch);
		GOOD(finish(&r));
		/* The same while the child has its copy. */
		GOOD(shared_still(&r));
		fm_say(&ch, 1);
		EXPECT_EQ(0, fm_reap(&ch));
		GOOD(shared_still(&r));
		GOOD(end(&r));
	}
}

/* The child of a program with shared memory has the arena, too. */
FM_TEST(remap, fork_shares_shared_memory)
{
	struct fm_expect e;
	enum fm_kind kind;
	struct fm_child ch;
	struct run r;

	FOR_EACH(kind, 1 << FM_SHARED | 1 << FM_MEMFD |
		 1 << FM_HUGETLB_SHARED | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		fm_fork(&ch);
		if (!ch.pid) {
			fm_hear(&ch);
			fm_list_cut(&r.c, FM_ENDLESS_NODES);
			_exit(0);
		}
		GOOD(finish(&r));
		fm_job_endless(&r.c);
		ASSERT_EQ(0, fm_start(r.c.fd));
		card_until_runs(r.c.slot, r.c.token);
		fm_say(&ch, 1);
		EXPECT_EQ(0, fm_reap(&ch));
		fm_wait(r.c.fd, FERMATA_EVENT_DONE);
		fm_job_list(&r.c, 100, 1000, 5, &e);
		GOOD(fm_job_run(&r.c, &e));
		GOOD(end(&r));
	}
}

/* A program that the process executes has the context if it inherits the descriptor. */
FM_TEST(remap, exec)
{
	enum fm_kind kind;
	struct fermata_card_info info;
	struct fm_child ch;
	struct run r;
	u64 pins = fm_pins(), token;
	int slot = fm_slot_of(FM_LIST), keeps;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_MEMFD | 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		for (keeps = 0; keeps < 2; keeps++) {
			fm_fork(&ch);
			if (!ch.pid) {
				begin_endless(&r, kind);
				if (keeps && fcntl(r.c.fd, F_SETFD, 0))
					fm_die("F_SETFD");
				fm_say(&ch, r.c.token);
				dup2(ch.wr, STDOUT_FILENO);
				execl("/bin/sh", "sh", "-c", "echo 1234567; exec sleep 1000", NULL);
				fm_die("exec: %s", strerror(errno));
			}
			token = fm_hear(&ch);
			/* The word of the running program, after exec has closed files. */
			fm_hear(&ch);
			if (!keeps)
				fm_agent_gone(token);
			fm_card_info(&info);
			EXPECT_EQ(keeps, info.contexts);
			EXPECT_EQ(keeps, card_runs(slot, token));
			EXPECT_EQ(pins + keeps * FM_HUGE / FM_PAGE, fm_pins()) {
				TH_LOG("%s", fm_kind_names[kind]);
			}
			fm_kill(&ch);
			fm_agent_gone(token);
			EXPECT_EQ(pins, fm_pins());
			card_speed(slot, 0);
			fm_huge_pages(0);
		}
	}
}

/* The pages of a killed process are freed when the engine has stopped using them. */
FM_TEST(remap, kill)
{
	u64 pins = fm_pins(), token, errors;
	struct fermata_card_info info;
	int slot = fm_slot_of(FM_LIST);
	enum fm_kind kind;
	struct fm_child ch;
	struct run r;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_SHARED | 1 << FM_MEMFD |
		 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		fm_fork(&ch);
		if (!ch.pid) {
			begin_endless(&r, kind);
			fm_say(&ch, r.c.token);
			pause();
		}
		token = fm_hear(&ch);
		errors = card_counter(slot, "dma_errors");
		fm_kill(&ch);
		fm_agent_gone(token);
		EXPECT_EQ(errors, card_counter(slot, "dma_errors"));
		EXPECT_FALSE(card_runs(slot, token));
		fm_card_info(&info);
		EXPECT_EQ(0, info.contexts);
		EXPECT_EQ(pins, fm_pins());
		card_speed(slot, 0);
		fm_huge_pages(0);
	}
}

/* After truncation and extension the program has new pages; the engine keeps the old ones. */
FM_TEST(remap, truncate)
{
	enum fm_kind kind;
	struct run r;

	FOR_EACH(kind, 1 << FM_MEMFD | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		ASSERT_EQ(0, ftruncate(r.fd, 0));
		EXPECT_EQ(SIGBUS, fm_access_signal(r.mem));
		ASSERT_EQ(0, ftruncate(r.fd, r.len));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(finish(&r));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(end(&r));
	}
}

FM_TEST(remap, punch_hole)
{
	enum fm_kind kind;
	struct run r;

	FOR_EACH(kind, 1 << FM_MEMFD | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		ASSERT_EQ(0, fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, r.len));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(finish(&r));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(end(&r));
	}
}

/* Private memory that was discarded gets new pages. */
FM_TEST(remap, madv_dontneed)
{
	enum fm_kind kind;
	struct run r;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_THP) {
		begin(&r, kind);
		ASSERT_EQ(0, madvise(r.mem, r.len, MADV_DONTNEED));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(finish(&r));
		EXPECT_TRUE(is_filled(r.mem, r.len, 0));
		GOOD(end(&r));
	}
}

/* Protection applies to the program, not to the engine. */
FM_TEST(remap, mprotect)
{
	enum fm_kind kind;
	struct run r;

	FOR_EACH(kind, 1 << FM_PRIVATE | 1 << FM_MEMFD | 1 << FM_THP | 1 << FM_MEMFD_HUGETLB) {
		begin(&r, kind);
		ASSERT_EQ(0, mprotect(r.mem, r.len, PROT_NONE));
		EXPECT_EQ(SIGSEGV, fm_access_signal(r.mem));
		GOOD(finish(&r));
		ASSERT_EQ(0, mprotect(r.mem, r.len, PROT_READ | PROT_WRITE));
		GOOD(shared_still(&r));
		GOOD(end(&r));
	}
}

/* A call that takes a page of the program which is not present yet. */
struct call {
	int fd;
	unsigned long cmd;
	void *arg;	/* in a separate page */
	int rc;
};

static void *make_call(void *arg)
{
	struct call *call = arg;

	call->rc = fm_ioctl(call->fd, call->cmd, call->arg);
	return NULL;
}

/* While the call waits for the page, unmaps the memory that its answer was to be written to. */
static int answer_without_a_place(int fd, unsigned long cmd, const void *arg, size_t size,
				  void *page)
{
	struct call call = { .fd = fd, .cmd = cmd };
	int uffd = fm_uffd_open();
	pthread_t thread;

	fm_uffd_missing(uffd, page);
	call.arg = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(call.arg, arg, size);
	if (pthread_create(&thread, NULL, make_call, &call))
		fm_die("pthread_create");
	fm_uffd_until_blocked(uffd, 1);
	munmap(call.arg, FM_PAGE);
	fm_uffd_fill(uffd, page, NULL, 0);
	pthread_join(thread, NULL);
	close(uffd);
	return call.rc;
}

/* Only the answer is missing: the call has its other effects. */
FM_TEST(remap, answer_has_no_place_any_more)
{
	u8 *own = fm_map(NULL, 2 * FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)own
	};
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)own + FM_PAGE
	};
	u64 pins = fm_pins(), taken = 1;
	int uffd = fm_uffd_open();
	struct fermata_status st;
	struct fm_ctx c;

	if (uffd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	close(uffd);
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(-EFAULT, answer_without_a_place(c.fd, FERMATA_IOC_ARENA_CREATE, &arena,
						  sizeof(arena), own));
	fm_status(c.fd, &st);
	EXPECT_EQ(FM_PAGE, st.arena_length);
	EXPECT_EQ((uintptr_t)own, st.device_base);
	EXPECT_EQ(-EEXIST, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	if (!card_base()) {
		EXPECT_EQ(-EFAULT, answer_without_a_place(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap,
							  sizeof(snap), own + FM_PAGE));
		fm_status(c.fd, &st);
		EXPECT_EQ(FM_PAGE, st.snapshot_length);
		EXPECT_EQ(-EEXIST, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
		taken++;
	}
	EXPECT_EQ(pins + taken, fm_pins());
	close(c.fd);
	EXPECT_EQ(pins, fm_pins());
	EXPECT_EQ(0, fm_charged());
	munmap(own, 2 * FM_PAGE);
}

TEST_HARNESS_MAIN
