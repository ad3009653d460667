// SPDX-License-Identifier: GPL-2.0
/*
 * Programs on the card's RISC-V core, and its counters of four bits: jobs whose snapshot is a whole
 * processor with its memory. In slices, held and resumed, they must end as they do alone: with the
 * same output, and after the same number of cycles.
 *
 * The expected output is computed here: the same source is a part of this test.
 */
#include "kselftest_harness.h"
#include "lib/native.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(riscv);

#define ROOM	8192		/* for the output: more than any program prints */
#define ELF	0x4000		/* offset of the program in the arena, after the output */
#define FILE_ROOM	65536

/* What the engine writes at the end, at the arena's beginning. */
struct end {
	u64 why;
	u64 code;
	u64 cycles;
	u64 instructions;
	u64 output;
	u64 memory;
};

#define END_EXIT	1
#define END_BAD_PROGRAM	2

static char printed[ROOM];

void print(const char *text)
{
	strncat(printed, text, sizeof(printed) - strlen(printed) - 1);
}

void print_hex(u32 value)
{
	char digits[9];

	snprintf(digits, sizeof(digits), "%08x", value);
	print(digits);
}

struct program {
	const char *name;
	u32 (*native)(u32 arg);	/* NULL: its output depends on the engine */
	u32 arg;		/* for about a million cycles */
};

static const struct program programs[] = {
	{ "riscv-sort", native_sort, 3 },
	{ "riscv-matrix", native_matrix, 2 },
	{ "riscv-mixture", native_mixture, 8 },
	{ "riscv-unpack", native_unpack, 3 },
	{ "riscv-counters", NULL, 100 },
};

#define PROGRAMS	(sizeof(programs) / sizeof(programs[0]))

/* How a job ended, and what it printed. */
struct outcome {
	struct end end;
	char text[ROOM + 8];	/* with an end, whatever the engine wrote */
};

/* Reads a file from the folder of this program. */
static size_t read_file(const char *name, void *to)
{
	char path[512];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	char *slash;
	int fd;

	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	if (!slash)
		fm_die("where is this program?");
	snprintf(slash + 1, sizeof(path) - (slash + 1 - path), "%s", name);
	fd = open(path, O_RDONLY);
	n = fd < 0 ? -1 : read(fd, to, FILE_ROOM);
	if (n <= 0 || n == FILE_ROOM)
		fm_die("%s: %s", path, strerror(errno));
	close(fd);
	return n;
}

static void set_job(struct fm_ctx *c, size_t len, u32 arg)
{
	const struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = c->base + ELF },
		{ .offset = 0x38, .value = len },
		{ .offset = 0x40, .value = c->base + FM_DATA },
		{ .offset = 0x48, .value = ROOM },
		{ .offset = 0x58, .value = arg },
		{ .offset = 0x60, .value = c->base },
	};
	const u32 results[] = { 0x38, 0x40, 0x48, 0x58, 0x60 };

	memset(c->mem, 0, FM_DATA + ROOM);
	fm_job_regs(c, regs, sizeof(regs) / sizeof(regs[0]), results,
		    sizeof(results) / sizeof(results[0]));
}

static void new_job(struct fm_ctx *c, const struct program *p)
{
	fm_ctx_new(c, FM_RISCV, ELF + FILE_ROOM);
	set_job(c, read_file(p->name, c->mem + ELF), p->arg);
}

static void take(struct fm_ctx *c, struct outcome *o)
{
	memcpy(&o->end, c->mem, sizeof(o->end));
	memset(o->text, 0, sizeof(o->text));
	memcpy(o->text, c->mem + FM_DATA, ROOM);
}

/* Compares a job that is done with a run alone: NULL, or how they differ. */
static const char *differs(struct fm_ctx *c, const struct outcome *alone)
{
	static char why[200];
	struct outcome o;

	take(c, &o);
	if (!memcmp(&o, alone, sizeof(o)))
		return NULL;
	snprintf(why, sizeof(why), "end %llu %llu, %llu cycles (%llu), %llu instructions (%llu), %s output, %s memory",
		 (unsigned long long)o.end.why, (unsigned long long)o.end.code,
		 (unsigned long long)o.end.cycles, (unsigned long long)alone->end.cycles,
		 (unsigned long long)o.end.instructions, (unsigned long long)alone->end.instructions,
		 strcmp(o.text, alone->text) ? "other" : "the same",
		 o.end.memory == alone->end.memory ? "the same" : "other");
	return why;
}

/* Runs a program alone: NULL, or what is wrong. */
static const char *run_alone(const struct program *p, struct outcome *o)
{
	struct fm_ctx c;
	const char *wrong = NULL;

	new_job(&c, p);
	card_speed(c.slot, 0);
	fm_must_start(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	take(&c, o);
	printed[0] = 0;
	if (o->end.why != END_EXIT || o->end.code)
		wrong = "it does not exit with 0";
	else if (fm_reg_get(c.fd, 0x58) != END_EXIT || fm_reg_get(c.fd, 0x60) ||
		 fm_reg_get(c.fd, 0x38) != o->end.instructions ||
		 fm_reg_get(c.fd, 0x40) != o->end.cycles ||
		 fm_reg_get(c.fd, 0x48) != o->end.output)
		wrong = "registers are not as the result";
	else if (o->end.output != strlen(o->text) || !o->end.output)
		wrong = "length of the output";
	else if (p->native && (p->native(p->arg) || strcmp(printed, o->text)))
		wrong = "it prints something else than on this machine";
	fm_ctx_close(&c);
	return wrong;
}

static void set_all(u32 mask, const char *settings)
{
	for (; mask; mask &= mask - 1)
		card_set(__builtin_ctz(mask), settings);
}

FM_TEST(riscv, programs_print_what_they_print_here)
{
	struct outcome o;
	size_t i;

	if (fm_slot_of(FM_RISCV) < 0)
		SKIP(return, "no slot with a RISC-V core");
	for (i = 0; i < PROGRAMS; i++) {
		TH_LOG("%s", programs[i].name);
		ASSERT_GOOD(run_alone(&programs[i], &o));
		TH_LOG("%llu cycles, %llu instructions", (unsigned long long)o.end.cycles,
		       (unsigned long long)o.end.instructions);
	}
}

/* All programs at once, in slices of 1 ms, on all cores: each ends as alone, to the cycle. */
FM_TEST(riscv, in_slices_they_end_as_alone)
{
	static struct outcome alone[PROGRAMS];
	struct fm_ctx c[PROGRAMS];
	u64 preemptions = 0;
	u32 mask;
	size_t i;

	if (fm_slot_of(FM_RISCV) < 0)
		SKIP(return, "no slot with a RISC-V core");
	mask = fm_slots_of(FM_RISCV);
	for (i = 0; i < PROGRAMS; i++)
		ASSERT_GOOD(run_alone(&programs[i], &alone[i]));
	set_all(mask, "speed=20");
	for (i = 0; i < PROGRAMS; i++) {
		new_job(&c[i], &programs[i]);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS);
		fm_param(c[i].fd, FERMATA_PARAM_SLOT_MASK, mask);
	}
	for (i = 0; i < PROGRAMS; i++)
		fm_must_start(&c[i]);
	for (i = 0; i < PROGRAMS; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(differs(&c[i], &alone[i]));
		preemptions += fm_preemptions(c[i].fd);
	}
	TH_LOG("%llu preemptions", (unsigned long long)preemptions);
	EXPECT_LT(0, preemptions);
}

#define HOLDS	50

/* Held and resumed beside another tenant in slices of 1 ms. Only frames that changed are saved. */
FM_TEST(riscv, held_and_resumed_many_times)
{
	struct outcome alone;
	struct fm_ctx c, other;
	u64 saved, skipped;
	u32 state;
	int i, rc;

	if (fm_slot_of(FM_RISCV) < 0)
		SKIP(return, "no slot with a RISC-V core");
	ASSERT_GOOD(run_alone(&programs[0], &alone));
	new_job(&c, &programs[0]);
	new_job(&other, &programs[0]);
	card_set(c.slot, "speed=1 frame_bytes=404");
	card_cmd("counters clear slot=%d", c.slot);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_param(other.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_must_start(&c);
	fm_must_start(&other);
	for (i = 0; i < HOLDS; i++) {
		rc = fm_preempt(c.fd, FERMATA_PREEMPT_HOLD);
		/* The job may have ended. */
		if (rc == -ENOENT)
			break;
		ASSERT_EQ(0, rc);
		fm_wait(c.fd, FERMATA_EVENT_HELD | FERMATA_EVENT_DONE);
		state = fm_state(c.fd);
		if (state != FERMATA_STATE_HELD)
			break;
		fm_must_resume(&c);
		fm_sleep_us(1000);
	}
	TH_LOG("held %d times", i);
	card_speed(c.slot, 0);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(differs(&c, &alone));
	ASSERT_GOOD(differs(&other, &alone));
	EXPECT_LT(0, i);
	saved = card_counter(c.slot, "frames_saved");
	skipped = card_counter(c.slot, "frames_skipped");
	TH_LOG("%llu frames saved, %llu left out", (unsigned long long)saved,
	       (unsigned long long)skipped);
	if (fm_preemptions(c.fd) > 1)
		EXPECT_LT(0, skipped);
}

/* A file that is no program ends its job with a code, and another job continues. */
FM_TEST(riscv, no_program)
{
	struct outcome alone;
	struct fm_ctx bad, good;
	int i;

	if (fm_slot_of(FM_RISCV) < 0)
		SKIP(return, "no slot with a RISC-V core");
	ASSERT_GOOD(run_alone(&programs[1], &alone));
	new_job(&good, &programs[1]);
	card_speed(good.slot, 20);
	fm_param(good.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_must_start(&good);
	fm_ctx_new(&bad, FM_RISCV, ELF + FILE_ROOM);
	for (i = 0; i < 8; i++) {
		fm_fill(bad.mem + ELF, FILE_ROOM, i);
		set_job(&bad, FILE_ROOM, 0);
		fm_must_start(&bad);
		fm_wait(bad.fd, FERMATA_EVENT_DONE);
		EXPECT_EQ(END_BAD_PROGRAM, ((struct end *)bad.mem)->why);
		EXPECT_EQ(END_BAD_PROGRAM, fm_reg_get(bad.fd, 0x58));
	}
	card_speed(good.slot, 0);
	fm_wait(good.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(differs(&good, &alone));
}

#define COUNTS	200000

/* EPOCH's basic benchmark: a counter up and a counter down, each shared by two tenants. */
FM_TEST(riscv, counters_of_four_bits)
{
	static const enum fm_engine engines[] = { FM_COUNT_UP, FM_COUNT_DOWN };
	struct fm_ctx c[4];
	u64 *result;
	int i;

	if (fm_slot_of(FM_COUNT_UP) < 0 || fm_slot_of(FM_COUNT_DOWN) < 0)
		SKIP(return, "no slots with counters");
	for (i = 0; i < 4; i++) {
		const u32 results[] = { 0x30, 0x38 };

		fm_ctx_new(&c[i], engines[i % 2], FM_PAGE);
		card_speed(c[i].slot, 4);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS);
		fm_job_regs(&c[i], (struct fermata_reg[]) {
			{ .offset = 0x30, .value = COUNTS + i },
			{ .offset = 0x38, .value = 3 },
			{ .offset = 0x40, .value = c[i].base } }, 3, results, 2);
	}
	for (i = 0; i < 4; i++)
		fm_must_start(&c[i]);
	for (i = 0; i < 4; i++) {
		u64 bits = (engines[i % 2] == FM_COUNT_UP ? 3 + COUNTS + i : 3 - (COUNTS + i)) & 15;

		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		result = (u64 *)c[i].mem;
		EXPECT_EQ(COUNTS + i, result[0]);
		EXPECT_EQ(bits, result[1]);
		EXPECT_EQ(bits, fm_reg_get(c[i].fd, 0x30));
		EXPECT_EQ(COUNTS + i, fm_reg_get(c[i].fd, 0x38));
		TH_LOG("%s: %llu preemptions", engines[i % 2] == FM_COUNT_UP ? "up" : "down",
		       (unsigned long long)fm_preemptions(c[i].fd));
	}
}

TEST_HARNESS_MAIN
