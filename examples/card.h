/* SPDX-License-Identifier: GPL-2.0 */
/* Used by both examples: an open card, calls that succeed, memory for the engine. */
#ifndef CARD_H
#define CARD_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include "fermata.h"

/* The emulated card's engine. docs/emulated-card.md describes it and its registers. */
#define SHA256_ENGINE { .size = sizeof(struct fermata_setup), \
			.afu_id_hi = 0x5348413235360000, .afu_id_lo = 3 }

static inline void die(const char *what, int error)
{
	fprintf(stderr, "%s: %s\n", what, strerror(error));
	exit(1);
}

static inline int open_card(const char *device)
{
	int card = open(device, O_RDWR | O_CLOEXEC);

	if (card < 0)
		die(device, errno);
	return card;
}

static inline void call(int card, unsigned long number, void *argument)
{
	while (ioctl(card, number, argument) < 0)
		if (errno != EINTR)
			die("ioctl", errno);
}

/* The engine has the memory at the same addresses. */
static inline void *map_arena(int card, const struct fermata_arena_create *arena)
{
	void *mem = mmap(NULL, arena->length, PROT_READ | PROT_WRITE, MAP_SHARED, card,
			 arena->mmap_offset);

	if (mem == MAP_FAILED)
		die("mmap of the arena", errno);
	return mem;
}

#endif
