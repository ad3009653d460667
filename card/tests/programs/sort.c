// SPDX-License-Identifier: GPL-2.0-or-later
/* Sorts random numbers `arg` times, by heapsort and by quicksort, and compares the results. */
#include "runtime.h"

#define COUNT 1024

static u32 first[COUNT], second[COUNT];

static void swap(u32 *a, u32 *b)
{
	u32 t = *a;

	*a = *b;
	*b = t;
}

static void sift(u32 *heap, u32 at, u32 count)
{
	for (;;) {
		u32 child = 2 * at + 1;

		if (child >= count)
			return;
		if (child + 1 < count && heap[child + 1] > heap[child])
			child++;
		if (heap[at] >= heap[child])
			return;
		swap(&heap[at], &heap[child]);
		at = child;
	}
}

static void heap_sort(u32 *data, u32 count)
{
	u32 i;

	for (i = count / 2; i-- > 0;)
		sift(data, i, count);
	for (i = count; i-- > 1;) {
		swap(&data[0], &data[i]);
		sift(data, 0, i);
	}
}

static void quicksort(u32 *data, int low, int high)
{
	while (low < high) {
		u32 pivot = data[(low + high) / 2];
		int i = low, j = high;

		while (i <= j) {
			while (data[i] < pivot)
				i++;
			while (data[j] > pivot)
				j--;
			if (i <= j)
				swap(&data[i++], &data[j--]);
		}
		quicksort(data, low, j);
		low = i;
	}
}

u32 program(u32 arg)
{
	u32 state = 0x2545f491, sum = 0, i;

	while (arg--) {
		for (i = 0; i < COUNT; i++) {
			first[i] = next_random(&state);
			second[i] = first[i];
		}
		heap_sort(first, COUNT);
		quicksort(second, 0, COUNT - 1);
		for (i = 0; i < COUNT; i++) {
			if (first[i] != second[i] || (i && first[i - 1] > first[i]))
				return 1;
			sum = checksum(sum, first[i]);
		}
		print("sorted ");
		print_hex(sum);
		print("\n");
	}
	return 0;
}
