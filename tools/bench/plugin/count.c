// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Plugin for QEMU's TCG: counts the instructions that run in kernel modules,
 * block by block, and looks for the longest sections under a raw spinlock that
 * modules take with interrupts off.  It writes out both each time the guest
 * runs a label (tools/bench/src/guest/count.rs): an instruction that does
 * nothing, whose last four of eight bytes hold the number of the label.
 *
 *	qemu-system-x86_64 -plugin file=count.so,out=FILE
 *
 * A line is one of:
 *
 *	block LABEL ADDRESS INSTRUCTIONS
 *		instructions run in the block at that address since the machine
 *		was started
 *	section LABEL ADDRESS INSTRUCTIONS ACCESSES
 *		a section that began at that address since the last label:
 *		first the section with the most instructions, then the section
 *		with the most accesses to registers of the device
 *
 * Kernel functions that modules call are not counted.  By labels, the guest
 * tells the addresses of the kernel functions that begin and end a section and
 * that access a register: the bits of the address, the highest first, and then
 * which function it is.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

EXPORT int qemu_plugin_version = 7;

#define MODULES		0xffffffffc0000000	/* where x86-64 puts them */
#define CPUS		8
#define NESTED		4	/* locks, each taken by an interrupt of the other */
#define LABEL_SIZE	8
#define LABEL_MAGIC	0x5e9c
#define CALL		0xe8	/* with a displacement of 32 bits */
#define JUMP		0xe9	/* the same: the last call of a function */
#define CALL_SIZE	5

enum { BIT = 0xfff0, IS_LOCK = 0xfff2, IS_UNLOCK, IS_READ, IS_WRITE };

/* A translation; the same address may have several. */
struct block {
	struct block *next;
	unsigned long long address, end, instructions;
	unsigned long long calls;	/* at its end; 0: nothing, or unknown */
	unsigned long long runs[CPUS];
};

struct section {
	unsigned long long caller, instructions, accesses;
};

/*
 * The state of a processor.  Until the function that takes a lock has disabled
 * interrupts, an interrupt handler may run and take other locks.  So the section
 * begins at the return address of that function.
 */
struct cpu {
	int taking;
	unsigned long long returns_to[NESTED];
	int depth;		/* of raw locks that modules hold */
	struct section now;
	struct section most_instructions, most_accesses;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static struct cpu cpus[CPUS];
static unsigned long long told, functions[IS_WRITE - IS_LOCK + 1];
static FILE *out;

static int is_call(const struct block *block, int function)
{
	return block->calls && block->calls == functions[function - IS_LOCK];
}

static void end_section(struct cpu *cpu)
{
	if (cpu->now.instructions > cpu->most_instructions.instructions)
		cpu->most_instructions = cpu->now;
	if (cpu->now.accesses > cpu->most_accesses.accesses)
		cpu->most_accesses = cpu->now;
}

/* Follows the section into a block; the block makes its call at its end. */
static void follow_section(struct cpu *cpu, const struct block *block)
{
	if (cpu->taking && cpu->returns_to[cpu->taking - 1] == block->address) {
		cpu->taking--;
		if (!cpu->depth++)
			cpu->now = (struct section){ .caller = block->address };
	}
	if (cpu->depth)
		cpu->now.instructions += block->instructions;
	if (is_call(block, IS_LOCK)) {
		if (cpu->taking < NESTED)
			cpu->returns_to[cpu->taking++] = block->end;
	} else if (is_call(block, IS_UNLOCK)) {
		if (cpu->depth && !--cpu->depth)
			end_section(cpu);
	} else if (is_call(block, IS_READ) || is_call(block, IS_WRITE)) {
		cpu->now.accesses++;
	}
}

static void ran(unsigned int cpu, void *data)
{
	struct block *block = data;

	block->runs[cpu % CPUS]++;
	follow_section(&cpus[cpu % CPUS], block);
}

static void print_section(unsigned int label, const struct section *section)
{
	fprintf(out, "section %u %llx %llu %llu\n", label, section->caller,
		section->instructions, section->accesses);
}

static void labelled(unsigned int cpu, void *data)
{
	unsigned int label = (uintptr_t)data;
	struct block *block;

	if (label >= IS_LOCK && label <= IS_WRITE) {
		functions[label - IS_LOCK] = told;
		return;
	}
	if (label >= BIT) {
		told = told << 1 | (label & 1);
		return;
	}
	pthread_mutex_lock(&lock);
	for (int i = 0; i < CPUS; i++) {
		print_section(label, &cpus[i].most_instructions);
		print_section(label, &cpus[i].most_accesses);
		memset(&cpus[i].most_instructions, 0, sizeof(struct section));
		memset(&cpus[i].most_accesses, 0, sizeof(struct section));
	}
	for (block = blocks; block; block = block->next) {
		unsigned long long runs = 0;

		for (int i = 0; i < CPUS; i++)
			runs += block->runs[i];
		if (runs)
			fprintf(out, "block %u %llx %llu\n", label, block->address,
				runs * block->instructions);
	}
	fflush(out);
	pthread_mutex_unlock(&lock);
}

static void find_label(struct qemu_plugin_insn *insn)
{
	static const uint8_t nop[4] = { 0x0f, 0x1f, 0x84, 0x00 };
	uint8_t bytes[LABEL_SIZE];
	uint32_t word;

	if (qemu_plugin_insn_size(insn) != LABEL_SIZE)
		return;
	qemu_plugin_insn_data(insn, bytes, LABEL_SIZE);
	memcpy(&word, bytes + sizeof(nop), sizeof(word));
	if (!memcmp(bytes, nop, sizeof(nop)) && word >> 16 == LABEL_MAGIC)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, labelled, NO_REGISTERS,
						       (void *)(uintptr_t)(word & 0xffff));
}

/* Returns the address that the last instruction of a block calls; 0: no call, or unknown. */
static unsigned long long called(const struct qemu_plugin_insn *insn)
{
	uint8_t bytes[CALL_SIZE];
	int32_t distance;

	if (qemu_plugin_insn_size(insn) != CALL_SIZE)
		return 0;
	qemu_plugin_insn_data(insn, bytes, CALL_SIZE);
	memcpy(&distance, bytes + 1, sizeof(distance));
	if (bytes[0] != CALL && bytes[0] != JUMP)
		return 0;
	return qemu_plugin_insn_vaddr(insn) + CALL_SIZE + distance;
}

static void block_translated(struct qemu_plugin_tb *tb, void *data)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	uint64_t address = qemu_plugin_tb_vaddr(tb);
	struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, count - 1);
	struct block *block;

	if (address < MODULES) {
		for (size_t i = 0; i < count; i++)
			find_label(qemu_plugin_tb_get_insn(tb, i));
		return;
	}
	block = calloc(1, sizeof(*block));
	if (!block)
		abort();
	block->address = address;
	block->instructions = count;
	block->calls = called(last);
	block->end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
	pthread_mutex_lock(&lock);
	block->next = blocks;
	blocks = block;
	pthread_mutex_unlock(&lock);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, ran, NO_REGISTERS, block);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	if (argc != 1 || strncmp(argv[0], "out=", 4)) {
		fprintf(stderr, "count: usage: -plugin file=count.so,out=FILE\n");
		return 1;
	}
	out = fopen(argv[0] + 4, "w");
	if (!out) {
		perror(argv[0] + 4);
		return 1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, block_translated, NULL);
	return 0;
}
