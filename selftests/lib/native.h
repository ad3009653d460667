/* SPDX-License-Identifier: GPL-2.0 */
/* Programs of the riscv engine (card/tests/programs) as a part of a test, and their output. */
#ifndef _FM_NATIVE_H
#define _FM_NATIVE_H

#include <stdint.h>

uint32_t native_sort(uint32_t arg);
uint32_t native_matrix(uint32_t arg);
uint32_t native_mixture(uint32_t arg);
uint32_t native_unpack(uint32_t arg);

/* The test defines these. */
void print(const char *text);
void print_hex(uint32_t value);

#endif
