// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A small model of Optimus's chip (docs/registers.md, "Optimus's chip") for fermata-card --foreign: the manager, and two slots with the
 * accelerator linked_list. What the authors' RTL does and the emulated card does not is here, too: registers outlive a reset, 0x50 is no
 * TAG, the manager answers all-ones where it has no register, RESET keeps 64 bits, a slot in reset answers nothing and an idle one
 * answers one cycle late after START, memory answers out of the reset's sight, registers act while a job runs.
 *
 * Arguments, separated by commas:
 *   latency=N   cycles until memory answers (130)
 *   race=1      the race of hash_data_en (LL:547): a PAUSE in the cycle of an answer leaves the answer's value for the next job of the
 *               slot, through PAUSED and reset. Here each PAUSE waits for that cycle.
 *   irq=1       the same accelerators on a card of the profile irq, without the chip's oddities: interrupts, windows, snapshots outside of them
 *   liar=1      each tick also makes calls that the interface forbids, and DMA to where nothing is
 *   slots=N     the value of SLOT_COUNT (2)
 */
#include <fermata-card.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 2
#define LINE 64
#define ONES (~0ull)
// Addresses of the bus have 48 bits, those of lines 42.
#define LINES_MASK ((1ull << 42) - 1)

enum state { IDLE, RUN, RESUME, SAVE, PAUSED, END, FINISH };
enum { STATUS_IDLE = 0, STATUS_RUNNING = 1, STATUS_FINISH = 2, STATUS_PAUSED = 4, STATUS_FAULT = 0x100 };

struct slot {
	enum state state;
	// Registers: they outlive a reset, but not power-on.
	uint64_t dma_offset, snapshot, result, start, properties;
	// Of a card of the profile irq: the result's line of the present job, and what a reset of the slot leaves.
	uint64_t window_base, window_size, fault_info, fault_addr, job_result, starts, restored;
	// What the job has reached: the line of the next node, the sum, the nodes, the cycles.
	uint64_t line, sum, nodes, clock;
	// Cycles until memory answers.
	uint64_t wait;
	// A PAUSE waits for the cycle of the answer. A value is left for whoever is next.
	int pause, lags, left, fault;
	uint64_t left_value;
};

struct chip {
	const struct fermata_card_host *host;
	uint64_t reset, latency, count;
	int race, irq, liar;
	struct slot slots[SLOTS];
};

static uint64_t option(const char *argument, const char *name, uint64_t otherwise)
{
	const char *at = strstr(argument, name);

	return at ? strtoull(at + strlen(name), NULL, 0) : otherwise;
}

static int chip_open(const struct fermata_card_host *host, const char *argument, void **card)
{
	struct chip *chip;

	if (host->version != FERMATA_CARD_VERSION)
		return 1;
	// Designs under Verilator print much: more than a pipe holds.
	for (int line = 0; line < 4000; line++)
		puts("optimus: a library may print");
	chip = calloc(1, sizeof(*chip));
	if (!chip)
		return 2;
	chip->host = host;
	chip->latency = option(argument, "latency=", 130);
	chip->count = option(argument, "slots=", SLOTS);
	chip->race = option(argument, "race=", 0);
	chip->irq = option(argument, "irq=", 0);
	chip->liar = option(argument, "liar=", 0);
	*card = chip;
	return 0;
}

static void chip_close(void *card)
{
	free(card);
}

static void chip_reset(void *card)
{
	struct chip *chip = card;

	memset(chip->slots, 0, sizeof(chip->slots));
	chip->reset = 0;
}

// The manager adds the offset to the address: the chip in lines, a card of the profile irq in bytes.
static uint64_t on_bus(const struct chip *chip, const struct slot *slot, uint64_t line)
{
	if (chip->irq)
		return (line * LINE + slot->dma_offset) & (LINES_MASK * LINE | (LINE - 1));
	return ((line + slot->dma_offset) & LINES_MASK) * LINE;
}

// An interrupt comes after the last DMA.
static void rest(struct chip *chip, unsigned int i, enum state state)
{
	chip->slots[i].state = state;
	chip->slots[i].pause = 0;
	if (chip->irq)
		chip->host->interrupt(chip->host->host, i);
}

// A refused access ends the job.
static int admits(struct chip *chip, unsigned int i, uint64_t line, int is_write)
{
	struct slot *slot = &chip->slots[i];
	uint64_t from = line * LINE - slot->window_base;

	if (!chip->irq || (from < slot->window_size && slot->window_size - from >= LINE))
		return 1;
	slot->fault_info = LINE << 8 | (uint64_t)is_write << 1 | 1;
	slot->fault_addr = line * LINE;
	slot->fault = 1;
	rest(chip, i, FINISH);
	return 0;
}

static int read_line(struct chip *chip, unsigned int i, uint64_t line, uint64_t *words)
{
	if (!admits(chip, i, line, 0))
		return 0;
	chip->host->dma_read(chip->host->host, i, on_bus(chip, &chip->slots[i], line), words, LINE);
	return 1;
}

static int write_line(struct chip *chip, unsigned int i, uint64_t line, const uint64_t *words)
{
	if (!admits(chip, i, line, 1))
		return 0;
	chip->host->dma_write(chip->host->host, i, on_bus(chip, &chip->slots[i], line), words, LINE);
	return 1;
}

// On a card of the profile irq the snapshot is not in the window.
static uint64_t snapshot_on_bus(const struct chip *chip, const struct slot *slot)
{
	return chip->irq ? slot->snapshot * LINE : on_bus(chip, slot, slot->snapshot);
}

static void enter(struct chip *chip, struct slot *slot, enum state state)
{
	slot->state = state;
	slot->wait = chip->latency;
}

static void save(struct chip *chip, struct slot *slot)
{
	slot->pause = 0;
	enter(chip, slot, SAVE);
}

// Memory has answered with a node.
static void node(struct chip *chip, unsigned int i)
{
	struct slot *slot = &chip->slots[i];
	uint64_t words[8] = { 0 };

	if (!read_line(chip, i, slot->line, words))
		return;
	slot->sum += words[1];
	slot->nodes++;
	slot->line = words[0] / LINE;
	if (chip->race && slot->pause) {
		slot->left = 1;
		slot->left_value = words[1];
	}
	if (!slot->line)
		enter(chip, slot, END);
	else if (slot->pause)
		save(chip, slot);
	else
		slot->wait = chip->latency;
}

// Memory has answered, or has taken a line.
static void answered(struct chip *chip, unsigned int i)
{
	struct slot *slot = &chip->slots[i];
	uint64_t words[8] = { 0 };

	switch (slot->state) {
	case RUN:
		node(chip, i);
		break;
	case RESUME:
		chip->host->dma_read(chip->host->host, i, snapshot_on_bus(chip, slot), words, LINE);
		slot->restored = 1;
		slot->line = words[0];
		slot->sum += words[1];
		slot->nodes += words[2];
		slot->clock += words[3];
		enter(chip, slot, RUN);
		break;
	case SAVE:
		words[0] = slot->line;
		words[1] = slot->sum;
		words[2] = slot->nodes;
		words[3] = slot->clock;
		chip->host->dma_write(chip->host->host, i, snapshot_on_bus(chip, slot), words, LINE);
		rest(chip, i, PAUSED);
		break;
	case END:
		words[0] = 1;
		words[1] = slot->sum;
		words[2] = slot->clock;
		if (write_line(chip, i, chip->irq ? slot->job_result : slot->result, words))
			rest(chip, i, FINISH);
		break;
	default:
		break;
	}
}

static int works(const struct slot *slot)
{
	return slot->state == RUN || slot->state == RESUME || slot->state == SAVE || slot->state == END;
}

static void run(struct chip *chip, unsigned int i, uint64_t cycles)
{
	struct slot *slot = &chip->slots[i];

	slot->lags = 0;
	while (works(slot) && cycles >= slot->wait) {
		cycles -= slot->wait;
		slot->clock += slot->wait;
		answered(chip, i);
	}
	if (works(slot)) {
		slot->wait -= cycles;
		slot->clock += cycles;
	}
}

static void lie(struct chip *chip)
{
	const struct fermata_card_host *host = chip->host;
	char bytes[8];

	host->dma_read(host->host, 0, 0, NULL, 8);
	host->dma_read(host->host, 0, 0, bytes, 0);
	host->dma_read(host->host, 0, 0, bytes, FERMATA_CARD_DMA_MAX + 1);
	host->dma_write(host->host, SLOTS, 0, bytes, 8);
	host->dma_write(host->host, FERMATA_CARD_NO_SLOT, 0xfffffffffff8ull, bytes, 8);
	host->dma_write(host->host, 0, ONES, bytes, 8);
	host->interrupt(host->host, 0);
	host->interrupt(host->host, 77);
}

static int chip_tick(void *card, uint64_t cycles)
{
	struct chip *chip = card;
	int work = 0;

	for (unsigned int i = 0; i < SLOTS; i++) {
		run(chip, i, cycles);
		work |= works(&chip->slots[i]);
	}
	if (chip->liar)
		lie(chip);
	return work;
}

static void start(struct chip *chip, struct slot *slot, int resume)
{
	if (works(slot) || (chip->irq && chip->reset >> (slot - chip->slots) & 1))
		return;
	slot->lags = !chip->irq;
	slot->pause = 0;
	// Counters are cleared by a reset only.
	if (slot->left) {
		slot->sum += slot->left_value;
		slot->left = 0;
	}
	if (chip->irq) {
		slot->sum = slot->nodes = slot->clock = 0;
		slot->fault_info = slot->fault_addr = 0;
		slot->fault = 0;
		slot->restored = 0;
		slot->starts++;
	}
	slot->line = slot->start;
	slot->job_result = slot->result;
	enter(chip, slot, resume ? RESUME : RUN);
}

static void command(struct chip *chip, struct slot *slot, uint64_t value)
{
	if (value == 1 || value == 5)
		start(chip, slot, value == 5);
	else if (value == 6 && slot->state == RUN) {
		if (chip->race)
			slot->pause = 1;
		else
			save(chip, slot);
	}
}

// An access takes more than the cycle in which the old status is still read.
static uint64_t status(const struct chip *chip, struct slot *slot)
{
	int lags = slot->lags;

	static const uint64_t shown[] = { [IDLE] = STATUS_IDLE, [RUN] = STATUS_RUNNING, [RESUME] = STATUS_RUNNING, [SAVE] = STATUS_RUNNING,
					  [PAUSED] = STATUS_PAUSED, [END] = STATUS_RUNNING, [FINISH] = STATUS_FINISH };

	slot->lags = 0;
	if (chip->irq)
		return shown[slot->state] | (slot->fault ? STATUS_FAULT : 0) | slot->restored << 12 | slot->starts << 32;
	return lags ? STATUS_IDLE : shown[slot->state];
}

static int read_slot(struct chip *chip, struct slot *slot, unsigned int i, uint64_t offset, uint64_t *value)
{
	if (!chip->irq && chip->reset >> i & 1)
		return FERMATA_CARD_UNANSWERED;
	*value = 0;
	switch (offset) {
	case 0x00: *value = 1ull << 60 | 1ull << 40; break;
	case 0x08: *value = 0xae2c62ff4788faddull; break;
	case 0x10: *value = 0x092a3e6281c5499aull; break;
	case 0x18: *value = status(chip, slot); break;
	case 0x20: *value = 1; break;
	case 0x28: *value = 0; break;
	case 0x30: *value = slot->nodes; break;
	case 0x38: *value = slot->clock; break;
	case 0x48: *value = slot->result; break;
	case 0x50: *value = slot->start; break;
	case 0x58: *value = slot->properties; break;
	default: return chip->irq ? FERMATA_CARD_ANSWERED : FERMATA_CARD_UNANSWERED;
	}
	return FERMATA_CARD_ANSWERED;
}

// Interrupts, windows, quiescence, snapshots outside of windows.
enum { MAGIC = 0x100, VERSION = 0x108, FEATURES = 0x110, ALL_FEATURES = 0xf };
// Registers of a slot each, in the manager's page.
enum { DMA_OFFSET = 0x30, WINDOW_BASE = 0x180, WINDOW_SIZE = 0x1c0, FAULT_INFO = 0x200, FAULT_ADDR = 0x240 };

// Returns the register of a slot in the manager's page of a card of the profile irq.
static uint64_t *of_slot(struct chip *chip, uint64_t offset)
{
	// SLOT_COUNT is below the first of them.
	uint64_t i = offset < WINDOW_BASE ? (offset - DMA_OFFSET) / 8 : offset / 8 % 8;
	struct slot *slot = &chip->slots[i];

	if (i >= SLOTS)
		return NULL;
	switch (offset - 8 * i) {
	case DMA_OFFSET: return &slot->dma_offset;
	case WINDOW_BASE: return &slot->window_base;
	case WINDOW_SIZE: return &slot->window_size;
	case FAULT_INFO: return &slot->fault_info;
	case FAULT_ADDR: return &slot->fault_addr;
	}
	return NULL;
}

static uint64_t read_irq(struct chip *chip, uint64_t offset)
{
	const uint64_t *reg = of_slot(chip, offset);

	switch (offset) {
	case MAGIC: return 0x315f4154414d5246ull;
	case VERSION: return 1;
	case FEATURES: return ALL_FEATURES;
	}
	return reg ? *reg : 0;
}

static uint64_t read_manager(struct chip *chip, uint64_t offset)
{
	switch (offset) {
	case 0x00: return 1ull << 60 | 1ull << 40;
	case 0x08: return 0xa0a013a421139e69ull;
	case 0x10: return 0xd1d383aaca4c4c60ull;
	case 0x18: return chip->reset;
	case 0x20: return chip->count;
	}
	return chip->irq ? read_irq(chip, offset) : ONES;
}

static int chip_bar_read(void *card, uint64_t offset, uint32_t length, uint64_t *value)
{
	struct chip *chip = card;
	unsigned int page = offset >> 12;
	uint64_t whole = 0;
	int answer = FERMATA_CARD_ANSWERED;

	// Of shorter reads the length is ignored, and the upper half reads 0.
	(void)length;
	if (chip->liar && offset == 0x1018)
		return 7;
	if (page == 0)
		whole = read_manager(chip, offset & ~7ull);
	else if (page <= SLOTS)
		answer = read_slot(chip, &chip->slots[page - 1], page - 1, offset & 0xff8, &whole);
	else
		whole = ONES;
	*value = offset & 7 ? 0 : whole;
	return answer;
}

static void write_slot(struct chip *chip, struct slot *slot, uint64_t offset, uint64_t value)
{
	switch (offset) {
	case 0x18: command(chip, slot, value); break;
	case 0x28: slot->snapshot = value & LINES_MASK; break;
	case 0x48: slot->result = value & LINES_MASK; break;
	case 0x50: slot->start = value & LINES_MASK; break;
	case 0x58: slot->properties = value; break;
	}
}

static void write_reset(struct chip *chip, uint64_t value)
{
	for (unsigned int i = 0; i < SLOTS; i++) {
		struct slot *slot = &chip->slots[i];

		if (!(value >> i & 1))
			continue;
		slot->state = IDLE;
		slot->lags = slot->pause = slot->fault = 0;
		slot->restored = 0;
		slot->sum = slot->nodes = slot->clock = 0;
	}
	chip->reset = chip->irq ? value & ((1 << SLOTS) - 1) : value;
}

static void write_irq(struct chip *chip, uint64_t offset, uint64_t value)
{
	uint64_t *reg = of_slot(chip, offset);

	if (!reg || offset >= FAULT_ADDR)
		return;
	*reg = value;
	if (offset >= FAULT_INFO)
		*reg = *of_slot(chip, offset + FAULT_ADDR - FAULT_INFO) = 0;
}

static void chip_bar_write(void *card, uint64_t offset, uint32_t length, uint64_t value)
{
	struct chip *chip = card;
	unsigned int page = offset >> 12;

	if (length != 8)
		return;
	if (offset == 0x18)
		write_reset(chip, value);
	else if (page == 0 && chip->irq)
		write_irq(chip, offset, value);
	else if (offset >= 0x30 && offset < 0x30 + 8 * SLOTS)
		chip->slots[(offset - 0x30) / 8].dma_offset = value & LINES_MASK;
	else if (page >= 1 && page <= SLOTS)
		write_slot(chip, &chip->slots[page - 1], offset & 0xff8, value);
}

const struct fermata_card *fermata_card(void)
{
	static const struct fermata_card card = {
#ifdef NEWER_VERSION
		.version = FERMATA_CARD_VERSION + 1,
#else
		.version = FERMATA_CARD_VERSION,
#endif
		.size = sizeof(card),
		.open = chip_open,
		.close = chip_close,
		.reset = chip_reset,
		.bar_read = chip_bar_read,
		.bar_write = chip_bar_write,
		.tick = chip_tick,
	};

	return &card;
}
