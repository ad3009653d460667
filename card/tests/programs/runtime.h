/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The environment of a program for the riscv engine: its calls, and nothing else. Programs are
 * freestanding; the core sets the stack, and starts at _start with the job's argument.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

/* The program. Returns the job's exit code. */
u32 program(u32 arg);

/* Writes text to the output of the job, as far as there is room. */
void print(const char *text);
/* Writes a number, in eight hexadecimal digits. */
void print_hex(u32 value);

/* Returns the next number of a sequence that contains all numbers but 0 (xorshift). */
static inline u32 next_random(u32 *state)
{
	u32 x = *state;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return *state = x;
}

/* Adds a number to a checksum. */
static inline u32 checksum(u32 sum, u32 value)
{
	return (sum << 5 | sum >> 27) ^ value;
}

#endif
