// SPDX-License-Identifier: GPL-2.0-or-later
/* Multiplies matrices modulo a prime, and divides, `arg` times: long products and the divider. */
#include "runtime.h"

#define N 24
#define PRIME 2147483647u

static u32 a[N][N], b[N][N], c[N][N];

/* Returns the product modulo 2^31 - 1, from its two halves. */
static u32 times(u32 x, u32 y)
{
	u64 product = (u64)x * y;
	u32 sum = ((u32)product & PRIME) + (u32)(product >> 31);

	return sum >= PRIME ? sum - PRIME : sum;
}

static void multiply(void)
{
	int i, j, k;

	for (i = 0; i < N; i++)
		for (j = 0; j < N; j++) {
			u32 sum = 0;

			for (k = 0; k < N; k++)
				sum = (sum + times(a[i][k], b[k][j])) % PRIME;
			c[i][j] = sum;
		}
}

/* Euclid's algorithm, signed and unsigned. */
static u32 divisor(u32 x, u32 y)
{
	while (y) {
		u32 rest = x % y;

		x = y;
		y = rest;
	}
	return x;
}

static int mean(int x, int y)
{
	return (x / 2 + y / 3) % 1000;
}

u32 program(u32 arg)
{
	u32 state = 0x9e3779b9, sum = 0;
	int i, j;

	for (i = 0; i < N; i++)
		for (j = 0; j < N; j++) {
			a[i][j] = next_random(&state) % PRIME;
			b[i][j] = next_random(&state) % PRIME;
		}
	while (arg--) {
		multiply();
		for (i = 0; i < N; i++)
			for (j = 0; j < N; j++) {
				a[i][j] = c[i][j];
				sum = checksum(sum, c[i][j]);
				sum += divisor(c[i][j], b[j][i] + 1);
				sum += (u32)mean((int)(c[i][j] << 1), -(int)b[i][j]);
			}
		print("product ");
		print_hex(sum);
		print("\n");
	}
	return 0;
}
