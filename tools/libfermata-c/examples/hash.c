// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * One job from beginning to end: the SHA-256 of a word.
 *
 *	cc hash.c -o hash $(pkg-config --cflags --libs libfermata)
 *	./hash abc
 */
#include <libfermata.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA 4096

static void check(int error)
{
	if (error) {
		fprintf(stderr, "%s\n", fermata_message());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "abc";
	size_t length = strnlen(word, DATA);
	fermata_context *context;
	fermata_arena *arena;
	unsigned char *memory;
	int i;

	check(fermata_open_engine("sha256", &context));
	check(fermata_create_arena(context, 2 * DATA, &arena));
	check(fermata_create_snapshot(context, NULL));
	memory = fermata_arena_address(arena);
	memcpy(memory + DATA, word, length);

	/*
	 * The registers of the emulated card's engine (docs/emulated-card.md): data, their length,
	 * where the digest goes.
	 */
	const struct fermata_reg registers[] = {
		{ .offset = 0x30, .value = fermata_arena_base(arena) + DATA },
		{ .offset = 0x38, .value = length },
		{ .offset = 0x40, .value = fermata_arena_base(arena) },
	};

	check(fermata_write_registers(context, registers, 3));
	check(fermata_start(context, 0, NULL));
	check(fermata_wait(context, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
	check(fermata_job_result(context));
	for (i = 0; i < 32; i++)
		printf("%02x", memory[i]);
	putchar('\n');

	fermata_unmap_arena(arena);
	fermata_close(context);
	return 0;
}
