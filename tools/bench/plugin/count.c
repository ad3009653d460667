// SPDX-License-Identifier: GPL-2.0
/*
 * Plugin for QEMU's TCG: counts the instructions that run in kernel modules,
 * block by block, and writes the counts out each time the guest runs a label
 * (tools/bench/src/guest/count.rs): an instruction that does nothing, of eight
 * bytes, the last four of which tell its number.
 *
 *	qemu-system-x86_64 -plugin file=count.so,out=FILE
 *
 * A line is: label, address of a block, instructions run in it since the
 * machine began.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

EXPORT int qemu_plugin_version = 7;

#define MODULES		0xffffffffc0000000	/* where x86-64 has them */
#define CPUS		8
#define LABEL_SIZE	8
#define LABEL_MAGIC	0x5e9c

/* A translation; the same address may have several. */
struct block {
	struct block *next;
	unsigned long long address, instructions;
	unsigned long long runs[CPUS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static FILE *out;

static void ran(unsigned int cpu, void *data)
{
	struct block *block = data;

	block->runs[cpu % CPUS]++;
}

static void labelled(unsigned int cpu, void *data)
{
	unsigned int label = (uintptr_t)data;
	struct block *block;

	pthread_mutex_lock(&lock);
	for (block = blocks; block; block = block->next) {
		unsigned long long runs = 0;

		for (int i = 0; i < CPUS; i++)
			runs += block->runs[i];
		if (runs)
			fprintf(out, "%u %llx %llu\n", label, block->address,
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

static void block_translated(struct qemu_plugin_tb *tb, void *data)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	uint64_t address = qemu_plugin_tb_vaddr(tb);
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
