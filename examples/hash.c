// SPDX-License-Identifier: GPL-2.0
/* One job from beginning to end: the SHA-256 of a word. */
#include <stdio.h>
#include <string.h>
#include "card.h"

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "abc";
	struct fermata_setup setup = SHA256_ENGINE;
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 8192 };
	struct fermata_snapshot_create snapshot = { .size = sizeof(snapshot) };
	struct fermata_reg args[] = { { .offset = 0x30 }, { .offset = 0x38 }, { .offset = 0x40 } };
	struct fermata_regs regs = { .size = sizeof(regs), .count = 3, .regs = (uintptr_t)args };
	struct fermata_start start = { .size = sizeof(start) };
	struct fermata_wait wait = { .size = sizeof(wait), .events = FERMATA_EVENT_DONE,
				     .deadline = UINT64_MAX };
	int card = open_card(argc > 2 ? argv[2] : "/dev/fermata0");
	unsigned char *mem;
	int i;

	call(card, FERMATA_IOC_SETUP, &setup);
	call(card, FERMATA_IOC_ARENA_CREATE, &arena);
	mem = map_arena(card, &arena);
	call(card, FERMATA_IOC_SNAPSHOT_CREATE, &snapshot);
	args[0].value = (uintptr_t)mem + 4096;		/* what is hashed */
	args[1].value = strnlen(word, 4096);
	memcpy(mem + 4096, word, args[1].value);
	args[2].value = (uintptr_t)mem;			/* where the digest goes */
	call(card, FERMATA_IOC_REGS_WRITE, &regs);
	call(card, FERMATA_IOC_START, &start);
	call(card, FERMATA_IOC_WAIT, &wait);
	if (wait.error)
		die("the job failed", wait.error);
	for (i = 0; i < 32; i++)
		printf("%02x", mem[i]);
	putchar('\n');
	return 0;
}
