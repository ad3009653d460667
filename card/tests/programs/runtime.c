// SPDX-License-Identifier: GPL-2.0-or-later
/* Start and end of a program, its calls, and the functions that a compiler calls implicitly. */
#include "runtime.h"

#define CALL_WRITE 64
#define CALL_EXIT 93

static u32 call(u32 number, u32 first, const void *second, u32 third)
{
	register u32 a0 asm("a0") = first;
	register const void *a1 asm("a1") = second;
	register u32 a2 asm("a2") = third;
	register u32 a7 asm("a7") = number;

	asm volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
	return a0;
}

__attribute__((noreturn, used)) static void begin(u32 arg)
{
	call(CALL_EXIT, program(arg), 0, 0);
	__builtin_unreachable();
}

asm(".pushsection .text._start, \"ax\"\n\t"
	".globl _start\n"
	"_start:\n\t"
	".option push\n\t"
	".option norelax\n\t"
	"la gp, __global_pointer$\n\t"
	".option pop\n\t"
	"tail begin\n\t"
	".popsection");

/* A write takes at most one burst. The rest is tried again, until there is no more room. */
static void output(const char *data, u32 len)
{
	while (len) {
		u32 n = call(CALL_WRITE, 1, data, len);

		if (!n)
			return;
		data += n;
		len -= n;
	}
}

void print(const char *text)
{
	u32 len = 0;

	while (text[len])
		len++;
	output(text, len);
}

void print_hex(u32 value)
{
	char digits[8];
	int i;

	for (i = 7; i >= 0; i--, value >>= 4)
		digits[i] = "0123456789abcdef"[value & 15];
	output(digits, sizeof(digits));
}

void *memcpy(void *to, const void *from, unsigned long len)
{
	const u8 *src = from;
	u8 *dst = to;

	while (len--)
		*dst++ = *src++;
	return to;
}

void *memset(void *to, int value, unsigned long len)
{
	u8 *dst = to;

	while (len--)
		*dst++ = (u8)value;
	return to;
}
