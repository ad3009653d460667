// SPDX-License-Identifier: GPL-2.0
/*
 * What an engine may access, and what a tenant can find of earlier tenants: with the window
 * alone, the IOMMU alone, or both together, according to the card and the machine.
 */
#include "kselftest_harness.h"
#include <sys/klog.h>
#include "lib/mem.h"
#include "lib/sched.h"
#include "lib/calls.h"

#define ADDRESSES	((1ULL << 48) - 1)	/* of a card */
#define PATTERN		0xb5a93c6d5e8f7142ULL

FM_FIXTURE_CARD(isolation);

/* The offset that the card adds to the engine's addresses while a job of the context runs. */
static u64 offset_of(struct fm_ctx *c)
{
	struct fm_expect e;
	u64 offset;

	fm_job_any(c, 1000, 1, &e);
	/* The job does not end before the card was asked. */
	card_fault(c->slot, "hang=1");
	if (fm_start(c->fd))
		fm_die("START");
	card_until_runs(c->slot, c->token);
	offset = card_key(card_cmd("state slot=%d", c->slot), "dma_offset");
	card_fault(c->slot, "hang=0");
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	return offset;
}

/* --- the window ------------------------------------------------------------------ */

/* How an engine can be led astray: the register that gets the address, and what it does there. */
struct stray {
	enum fm_engine engine;
	u32 reg;
	u64 mode;	/* of membench */
	bool write;
};

static const struct stray strays[] = {
	{ FM_LIST, 0x30, 0, false },	/* HEAD */
	{ FM_LIST, 0x48, 0, true },	/* RESULT */
	{ FM_MEM, 0x30, 0, false },	/* BUF, read */
	{ FM_MEM, 0x30, 1, true },	/* BUF, written */
	{ FM_MEM, 0x30, 4, false },	/* BUF, read, modified and written */
	{ FM_MEM, 0x60, 0, true },	/* RESULT */
	{ FM_SHA, 0x30, 0, false },	/* DATA */
	{ FM_SHA, 0x40, 0, true },	/* DIGEST */
};

#define STRAYS	(sizeof(strays) / sizeof(strays[0]))

static void job(struct fm_ctx *c, const struct stray *s, struct fm_expect *e)
{
	if (s->engine == FM_MEM)
		fm_job_mem(c, 4096, 64, 3, s->mode, e);
	else
		fm_job_any(c, 1000, 3, e);
}

/* A job that accesses the address fails with it, and is counted; the next job ends well. */
static const char *astray(struct fm_ctx *c, const struct stray *s, u64 address)
{
	static char text[160];
	struct fermata_status before, st;
	struct fm_expect e;
	u64 errors = card_counter(c->slot, "dma_errors");

	fm_status(c->fd, &before);
	job(c, s, &e);
	if (fm_reg_write(c->fd, s->reg, address) || fm_start(c->fd))
		return "START";
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	fm_status(c->fd, &st);
	snprintf(text, sizeof(text), "engine %d, register %#x, to %#llx: error %u, a %s at %#llx",
		 s->engine, s->reg, (unsigned long long)address, st.error,
		 st.fault_flags & FERMATA_FAULT_WRITE ? "write" : "read",
		 (unsigned long long)st.fault_addr);
	if (st.state != FERMATA_STATE_FAILED || st.error != EFAULT ||
	    st.context != before.context || st.fault_addr != address ||
	    st.fault_flags != (s->write ? FERMATA_FAULT_WRITE : 0) ||
	    st.faults != before.faults + 1 || st.failed != before.failed + 1)
		return text;
	/* The window refused it; the IOMMU was not asked. */
	if (card_counter(c->slot, "dma_errors") != errors)
		return "the access went on to the IOMMU";
	job(c, s, &e);
	if (fm_job_run(c, &e))
		return "the job after it is wrong";
	fm_status(c->fd, &st);
	if (st.fault_addr || st.fault_flags || st.faults != before.faults + 1)
		return "the fault is told of the job after it";
	return NULL;
}

/*
 * Addresses beside the arena, in a neighbour's arena, in memory of the machine, and beyond all
 * addresses; with an IOMMU and without.
 */
FM_TEST(isolation, point_18_engine_stays_in_its_window)
{
	u64 offset, there, *guard, address[6];
	struct fm_ctx c, other;
	struct fm_expect e;
	size_t i, k;

	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	there = offset_of(&other) + other.base;
	fm_job_list(&other, 1000, 5000, 9, &e);
	guard = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	memset(guard, 0x11, FM_PAGE);
	card_cmd("canary gpa=0x%llx len=4096", (unsigned long long)fm_gpa(guard));
	for (i = 0; i < STRAYS; i++) {
		fm_ctx_new(&c, strays[i].engine, 64 * 1024);
		offset = offset_of(&c);
		address[0] = c.base - 64;
		address[1] = c.base + c.len;
		address[2] = (there + FM_DATA - offset) & ADDRESSES;
		address[3] = (fm_gpa(guard) - offset) & ADDRESSES;
		address[4] = ADDRESSES & ~63ULL;
		address[5] = 64;
		for (k = 0; k < 6; k++)
			ASSERT_GOOD(astray(&c, &strays[i], address[k]));
		fm_ctx_close(&c);
	}
	card_cmd("canary gpa=0x%llx gone", (unsigned long long)fm_gpa(guard));
	for (i = 0; i < FM_PAGE / 8; i++)
		ASSERT_EQ(0x1111111111111111ULL, guard[i]);
	ASSERT_GOOD(fm_job_run(&other, &e));
}

/* --- the IOMMU --------------------------------------------------------------------- */

enum { LOG_CONSOLE_OFF = 6, LOG_CONSOLE_ON = 7 };

/* Does the kernel's log report an access that the IOMMU refused? */
static bool fault_in_log(void)
{
	return fm_log_has("DMAR: [DMA") || fm_log_has("fault from EP");
}

/* Without a window the IOMMU keeps engines out of the machine's memory, and the kernel logs it. */
FM_TEST(isolation, point_18_iommu_protects_the_machine)
{
	u64 offset, *guard, errors, end = fm_now() + FM_GUARD_MS * FM_MS;
	const struct stray write = { FM_MEM, 0x30, 1, true };
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	if (fm_has_window() || !fm_translated())
		SKIP(return, "not by the IOMMU alone");
	guard = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	memset(guard, 0x11, FM_PAGE);
	card_cmd("canary gpa=0x%llx len=4096", (unsigned long long)fm_gpa(guard));
	fm_ctx_new(&c, FM_MEM, 64 * 1024);
	offset = offset_of(&c);
	errors = card_counter(c.slot, "dma_errors");
	ASSERT_FALSE(fault_in_log());
	/* The faults provoked here are no complaints about the driver. */
	klogctl(LOG_CONSOLE_OFF, NULL, 0);
	job(&c, &write, &e);
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x30, (fm_gpa(guard) - offset) & ADDRESSES));
	ASSERT_EQ(0, fm_start(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_LT(errors, card_counter(c.slot, "dma_errors"));
	while (!fault_in_log() && fm_now() < end)
		fm_sleep_us(1000);
	EXPECT_TRUE(fault_in_log());
	fm_log_clear();
	klogctl(LOG_CONSOLE_ON, NULL, 0);
	for (i = 0; i < FM_PAGE / 8; i++)
		ASSERT_EQ(0x1111111111111111ULL, guard[i]);
	card_cmd("canary gpa=0x%llx gone", (unsigned long long)fm_gpa(guard));
	/* The context still works. */
	job(&c, &write, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* --- what is left of earlier tenants -------------------------------------------------- */

static const size_t lengths[] = { FM_PAGE * 16, 2 << 20, 8 << 20 };

#define LENGTHS	(sizeof(lengths) / sizeof(lengths[0]))
#define REGS	((FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1)

/* Is the pattern, or half of it, somewhere in these bytes? */
static bool has_pattern(const void *mem, size_t len)
{
	const u32 *word = mem;

	for (; len >= 4; len -= 4, word++)
		if (*word == (u32)PATTERN || *word == PATTERN >> 32)
			return true;
	return false;
}

static void all_registers(struct fermata_reg *regs, u64 value)
{
	u32 i;

	for (i = 0; i < REGS; i++) {
		memset(&regs[i], 0, sizeof(regs[i]));
		regs[i].offset = FERMATA_REG_FIRST + 8 * i;
		regs[i].value = value;
	}
}

/* Runs the job until it is held. */
static void run(struct fm_ctx *c)
{
	card_speed(c->slot, 1);
	if (fm_start(c->fd))
		fm_die("START");
	card_until_runs(c->slot, c->token);
}

/* Prepares a job without end, and writes only the registers that it needs. */
static void endless(struct fm_ctx *c)
{
	const struct fermata_reg mem[] = {
		{ .offset = 0x30, .value = c->base + FM_DATA }, { .offset = 0x38, .value = 64 },
		{ .offset = 0x40, .value = 1ULL << 62 }, { .offset = FM_REG_TAG, .value = c->token },
	};

	if (c->engine == FM_LIST)
		fm_job_endless(c);
	else if (fm_regs_write(c->fd, mem, 4))
		fm_die("REGS_WRITE");
}

/* Fills everything that a tenant has with the pattern, and closes the context. */
static void leave_traces(enum fm_engine engine, size_t len)
{
	struct fermata_reg regs[REGS];
	struct fm_ctx c;
	size_t i;

	fm_ctx_new(&c, engine, len);
	all_registers(regs, PATTERN);
	if (fm_regs_write(c.fd, regs, REGS))
		fm_die("REGS_WRITE");
	for (i = 0; i < len; i += 8)
		memcpy(c.mem + i, &(u64){ PATTERN }, 8);
	endless(&c);
	run(&c);
	fm_hold(&c);
	fm_ctx_close(&c);
}

/* Searches everything that a tenant can read: NULL or where the pattern was. */
static const char *look_around(enum fm_engine engine, size_t len)
{
	static u8 state[4096 * FM_PAGE];
	struct fermata_reg regs[REGS];
	struct fermata_regs arg = {
		.size = sizeof(arg), .count = REGS, .regs = (uintptr_t)regs
	};
	struct fermata_status st;
	struct fm_ctx c;

	fm_ctx_new(&c, engine, len);
	if (has_pattern(c.mem, c.len))
		return "in the arena";
	all_registers(regs, 0);
	if (fm_ioctl(c.fd, FERMATA_IOC_REGS_READ, &arg) != (card_base() ? -EACCES : -EAGAIN))
		return "registers can be read off the slot";
	endless(&c);
	if (card_base()) {
		u32 results[FERMATA_MAX_RESULTS], i;

		/* Others cannot be read. */
		arg.count = FERMATA_MAX_RESULTS;
		for (i = 0; i < FERMATA_MAX_RESULTS; i++)
			results[i] = regs[i].offset;
		if (fm_results(c.fd, results, FERMATA_MAX_RESULTS))
			return "RESULTS";
	}
	run(&c);
	if (fm_ioctl(c.fd, FERMATA_IOC_REGS_READ, &arg))
		return "registers cannot be read on the slot";
	if (has_pattern(regs, sizeof(regs)))
		return "in the registers";
	fm_hold(&c);
	fm_status(c.fd, &st);
	if (fm_snapshot_read(c.fd, state, 0, st.snapshot_length))
		return "the snapshot cannot be read";
	if (has_pattern(state, st.snapshot_length))
		return "in the snapshot";
	if (has_pattern(c.mem, c.len))
		return "in the arena, afterwards";
	fm_ctx_close(&c);
	return NULL;
}

/* A tenant that searches finds no data of an earlier one, in arenas of every kind of allocation. */
FM_TEST(isolation, point_19_nothing_is_left_for_who_goes_looking)
{
	enum fm_engine engine;
	int round;
	size_t i;

	for (i = 0; i < LENGTHS; i++) {
		for (round = 0; round < 4; round++) {
			engine = round % 2 ? FM_MEM : FM_LIST;
			leave_traces(engine, lengths[i]);
			ASSERT_GOOD(look_around(engine, lengths[i]));
		}
	}
}

/* The DMA address for address 0 of the context that was last on the slot. */
static u64 dma_offset(struct fm_ctx *c)
{
	struct fm_expect e;

	fm_job_mem(c, 4096, 10, 1, 0, &e);
	if (fm_job_run(c, &e))
		fm_die("a job");
	return card_key(card_cmd("state slot=%d", c->slot), "dma_offset");
}

/*
 * Also behind an IOMMU that flushes its IOTLB lazily, which is the default of most distributions:
 * the card cannot access freed pages before they can be reused. On a card without window check the
 * next job tries to access them at once.
 */
FM_TEST(isolation, defect_16_freed_pages_are_out_of_reach)
{
	u64 offset, freed, errors;
	struct fm_ctx a, b;
	struct fm_expect e;
	int i;

	if (!card_base() || !fm_translated())
		SKIP(return, "not by the IOMMU alone");
	/* The kernel logs each refused access, which other runs take for a complaint. */
	if (!getenv("FERMATA_IOMMU_FAULTS"))
		SKIP(return, "faults of the IOMMU are not expected (FERMATA_IOMMU_FAULTS)");
	for (i = 0; i < 5; i++) {
		fm_ctx_new(&b, FM_MEM, 64 * 1024);
		fm_ctx_new(&a, FM_MEM, 64 * 1024);
		card_speed(a.slot, 0);
		offset = dma_offset(&b);
		freed = a.base + dma_offset(&a);
		fm_job_mem(&b, 32 * 1024, 5000, 1, 0, &e);
		ASSERT_EQ(0, fm_reg_write(b.fd, 0x30, freed - offset));
		errors = card_counter(b.slot, "dma_errors");
		/* An access to its pages is a violation from now on. */
		fm_agent_gone(a.token);
		munmap(a.mem, a.len);
		close(a.fd);
		ASSERT_EQ(0, fm_start(b.fd));
		fm_wait(b.fd, FERMATA_EVENT_DONE);
		EXPECT_LT(errors, card_counter(b.slot, "dma_errors"));
		fm_ctx_close(&b);
	}
}

TEST_HARNESS_MAIN
