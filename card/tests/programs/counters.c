// SPDX-License-Identifier: GPL-2.0-or-later
/* Reads and writes the counters between divisions: the output contains the cycles of each step. */
#include "runtime.h"

#define READ_CSR(name)								\
	({									\
		u32 value_;							\
										\
		asm volatile("csrr %0, " #name : "=r"(value_) : : "memory");	\
		value_;								\
	})
#define WRITE_CSR(name, value) asm volatile("csrw " #name ", %0" : : "r"(value) : "memory")

static u64 cycles(void)
{
	u32 high, low;

	do {
		high = READ_CSR(mcycleh);
		low = READ_CSR(mcycle);
	} while (high != READ_CSR(mcycleh));
	return (u64)high << 32 | low;
}

u32 program(u32 arg)
{
	u32 random = 0xc0ffee11, sum = 0;
	u64 begin;

	WRITE_CSR(mscratch, 0x5ca1ab1e);
	/* The low half overflows soon. */
	WRITE_CSR(mcycle, 0xfffff000u);
	WRITE_CSR(minstret, 0xffffff00u);
	begin = cycles();
	while (arg--) {
		u32 i;

		for (i = 0; i < 100; i++) {
			u32 a = next_random(&random), b = next_random(&random) >> (a & 31);

			sum = checksum(sum, b ? a / b : 0);
			sum += (u32)((int)a % (int)(b | 1));
			sum = checksum(sum, (u32)cycles());
		}
		print("cycle ");
		print_hex((u32)(cycles() >> 32));
		print_hex((u32)cycles());
		print(" instruction ");
		print_hex(READ_CSR(minstreth));
		print_hex(READ_CSR(minstret));
		print(" sum ");
		print_hex(sum);
		print("\n");
	}
	if (cycles() <= begin || READ_CSR(mscratch) != 0x5ca1ab1e)
		return 1;
	return 0;
}
