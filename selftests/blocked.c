// SPDX-License-Identifier: GPL-2.0
/*
 * Every pointer of every call points to memory whose page faults are not handled: an unbind of the
 * driver and a reset of the function still end, and the neighbours continue.
 */
#include "kselftest_harness.h"
#include "lib/calls.h"
#include "lib/mem.h"

FM_FIXTURE_ANY(blocked);

#define MAX	128	/* calls that block at once */

/* Which access of the call is blocked. */
enum block {
	ARGUMENT,	/* reading the structure */
	ANSWER,		/* writing it */
	IN,		/* reading what the structure points to */
	OUT,		/* writing there */
};

static const char * const block_names[] = { "argument", "answer", "array", "array's answer" };

struct blocked {
	pthread_t thread;
	const struct fm_call *call;
	enum block block;
	union fm_arg arg;
	u8 *page;	/* the page whose access blocks */
	void *argument;
	int fd;
	int rc;
	volatile bool returned;
};

static struct blocked all[MAX];
static int count;

static void *new_page(void)
{
	void *page = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		fm_die("mmap: %s", strerror(errno));
	return page;
}

/* Whether the structure has members that the driver writes. */
static bool has_answer(const struct fm_call *call)
{
	switch (call->cmd) {
	case FERMATA_IOC_SNAPSHOT_READ:
	case FERMATA_IOC_SNAPSHOT_WRITE:
	case FERMATA_IOC_REGS_WRITE:
	case FERMATA_IOC_REGS_READ:
	case FERMATA_IOC_RESULTS:
	case FERMATA_IOC_PREEMPT:
	case FERMATA_IOC_RESUME:
	case FERMATA_IOC_DOORBELL:
	case FERMATA_IOC_EVENTFD:
	case FERMATA_IOC_HINT:
	case FERMATA_IOC_OUTCOME:
		return false;
	}
	return !call->sets;
}

static void *run(void *arg)
{
	struct blocked *b = arg;

	b->rc = fm_ioctl(b->fd, b->call->cmd, b->argument);
	b->returned = true;
	return NULL;
}

/* Makes the call in a thread, which blocks. */
static void begin(int uffd, const struct fm_call *call, enum block block, int fd)
{
	struct blocked *b = &all[count++];
	bool in, out;
	u64 *pointer;

	if (count > MAX)
		fm_die("more than %d calls", MAX);
	memset(b, 0, sizeof(*b));
	b->call = call;
	b->block = block;
	b->fd = fd;
	b->page = new_page();
	fm_call_fill(call, &b->arg);
	/* WAIT must not sleep if the write of its answer is to block. */
	if (call->cmd == FERMATA_IOC_WAIT)
		b->arg.wait.deadline = 0;
	b->argument = b->page;
	if (block == IN || block == OUT) {
		pointer = fm_call_pointer(call->cmd, &b->arg, &in, &out);
		if (block == OUT && *pointer)
			memcpy(b->page, (void *)(uintptr_t)*pointer, 32);
		*pointer = (uintptr_t)b->page;
		b->argument = &b->arg;
	} else if (block == ANSWER) {
		memcpy(b->page, &b->arg, sizeof(b->arg));
	}
	if (block == ARGUMENT || block == IN)
		fm_uffd_missing(uffd, b->page);
	else
		fm_uffd_protect(uffd, b->page);
	if (pthread_create(&b->thread, NULL, run, b))
		fm_die("pthread_create: %s", strerror(errno));
}

/* Makes every call, blocked at each of its pointers. */
static void begin_all(int uffd, const int *fds)
{
	const struct fm_call *call;
	union fm_arg arg;
	bool in, out;
	size_t i;

	count = 0;
	for (i = 0; i < FM_CALLS; i++) {
		call = &fm_calls[i];
		fm_call_fill(call, &arg);
		begin(uffd, call, ARGUMENT, fds[call->stage]);
		if (has_answer(call))
			begin(uffd, call, ANSWER, fds[call->stage]);
		fm_call_pointer(call->cmd, &arg, &in, &out);
		if (in)
			begin(uffd, call, IN, fds[call->stage]);
		if (out)
			begin(uffd, call, OUT, fds[call->stage]);
	}
	fm_uffd_until_blocked(uffd, count);
}

static void answer_all(int uffd)
{
	static const struct fermata_reg regs[2] = { { .offset = 0x38 }, { .offset = 0x40 } };
	struct blocked *b;
	int i;

	for (i = 0; i < count; i++) {
		b = &all[i];
		if (b->block == ARGUMENT)
			fm_uffd_fill(uffd, b->page, &b->arg, sizeof(b->arg));
		else if (b->block == IN)
			fm_uffd_fill(uffd, b->page, regs, sizeof(regs));
		else
			fm_uffd_unprotect(uffd, b->page);
	}
	for (i = 0; i < count; i++) {
		pthread_join(all[i].thread, NULL);
		munmap(all[i].page, FM_PAGE);
	}
}

/* How many calls have returned, although their faults were not handled. */
static int returned(void)
{
	int i, n = 0;

	for (i = 0; i < count; i++) {
		if (!all[i].returned)
			continue;
		n++;
		printf("# %s (%s) came back with %d\n", all[i].call->name,
		       block_names[all[i].block], all[i].rc);
	}
	return n;
}

FM_TEST(blocked, defect_01_unbind_ends)
{
	int uffd = fm_uffd_open(), fds[FM_STAGES], i;
	struct fm_expect e;
	struct fm_ctx c;

	if (uffd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	ASSERT_NE(NULL, fm_pci());
	fm_foreign_memory();
	fm_stages_make(fds);
	begin_all(uffd, fds);
	EXPECT_LT(50, count);
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(0, returned());
	fm_agent_gone(fm_ready.token);
	fm_agent_gone(fm_held.token);
	/* The card can be bound again while the calls are still blocked. */
	ASSERT_EQ(0, fm_bind());
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
	answer_all(uffd);
	for (i = 0; i < count; i++) {
		/* A call that blocks at its answer may have taken effect before. */
		bool acted = !all[i].rc && (all[i].block == ANSWER || all[i].block == OUT);

		EXPECT_TRUE(acted || all[i].rc == -ENODEV) {
			TH_LOG("%s (%s): %d", all[i].call->name, block_names[all[i].block],
			       all[i].rc);
		}
	}
	for (i = 0; i < FM_STAGES; i++)
		close(fds[i]);
	close(uffd);
}

FM_TEST(blocked, defect_01_reset_ends)
{
	int uffd = fm_uffd_open(), fds[FM_STAGES], i;
	struct fm_expect e;
	struct fm_ctx c;

	if (uffd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	if (!fm_pci() || !fm_reset_by("flr"))
		SKIP(return, "the function cannot be reset");
	fm_foreign_memory();
	fm_stages_make(fds);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	begin_all(uffd, fds);
	ASSERT_EQ(0, fm_reset());
	EXPECT_EQ(0, returned());
	fm_job_list(&c, 100, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	answer_all(uffd);
	for (i = 0; i < count; i++)
		EXPECT_NE(-ENODEV, all[i].rc);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
	fm_ctx_close(&fm_ready);
	fm_ctx_close(&fm_held);
	close(fds[FM_FRESH]);
	close(fds[FM_SETUP]);
	close(uffd);
}

/* The same with a file of FUSE: a structure, an array, and memory to be pinned. */
FM_TEST(blocked, defect_01_unbind_ends_beside_fuse)
{
	/* A structure of zeros has no size, and there is no register 0. */
	static const struct {
		unsigned long cmd;
		int rc;
	} calls[] = {
		{ FERMATA_IOC_STATUS, -EINVAL },
		{ FERMATA_IOC_REGS_WRITE, -EINVAL },
		{ FERMATA_IOC_ARENA_CREATE, -ENODEV }
	};
	int file = fm_fuse_open(16 * FM_PAGE), fds[FM_STAGES], i, j;
	bool in, out;
	u64 *pointer;

	if (file < 0)
		SKIP(return, "this kernel has no FUSE");
	ASSERT_NE(NULL, fm_pci());
	fm_foreign_memory();
	fm_stages_make(fds);
	count = 3;
	for (i = 0; i < count; i++) {
		struct blocked *b = &all[i];

		memset(b, 0, sizeof(*b));
		for (j = 0; j < FM_CALLS; j++)
			if (fm_calls[j].cmd == calls[i].cmd)
				b->call = &fm_calls[j];
		b->fd = fds[b->call->stage];
		b->page = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file,
			       4 * i * FM_PAGE);
		ASSERT_NE(MAP_FAILED, b->page);
		/* Faults that read ahead share the file's window, and one may read another's page. */
		ASSERT_EQ(0, madvise(b->page, FM_PAGE, MADV_RANDOM));
		fm_call_fill(b->call, &b->arg);
		pointer = fm_call_pointer(calls[i].cmd, &b->arg, &in, &out);
		if (pointer)
			*pointer = (uintptr_t)b->page;
		b->argument = pointer ? (void *)&b->arg : b->page;
		ASSERT_EQ(0, pthread_create(&b->thread, NULL, run, b));
	}
	if (!fm_fuse_until_blocked(count)) {
		returned();
		fm_fuse_close();
		ASSERT_TRUE(false);
	}
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(0, returned());
	fm_agent_gone(fm_ready.token);
	fm_agent_gone(fm_held.token);
	fm_fuse_answer();
	for (i = 0; i < count; i++) {
		pthread_join(all[i].thread, NULL);
		EXPECT_EQ(calls[i].rc, all[i].rc);
		munmap(all[i].page, FM_PAGE);
	}
	ASSERT_EQ(0, fm_bind());
	close(file);
	fm_fuse_close();
	for (i = 0; i < FM_STAGES; i++)
		close(fds[i]);
}

TEST_HARNESS_MAIN
