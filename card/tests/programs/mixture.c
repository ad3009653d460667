// SPDX-License-Identifier: GPL-2.0-or-later
/* The usual benchmarks of embedded processors: a list, a matrix, a state machine; `arg` times. */
#include "runtime.h"

#define NODES 128
#define SIDE 12

struct node {
	struct node *next;
	short value;
	unsigned short key;
};

enum state { START, SIGN, INTEGER, POINT, FRACTION, EXPONENT, BAD, STATES };

static struct node nodes[NODES];
static short left[SIDE * SIDE], right[SIDE * SIDE];
static int product[SIDE * SIDE];
static char text[256];

static unsigned short crc16(unsigned short crc, u32 value)
{
	int i;

	for (i = 0; i < 32; i++, value >>= 1) {
		u32 bit = (crc ^ value) & 1;

		crc >>= 1;
		if (bit)
			crc ^= 0xa001;
	}
	return crc;
}

/* Sorts the list by key: merges runs of growing length. */
static struct node *merge_sort(struct node *list)
{
	u32 run;

	for (run = 1;; run *= 2) {
		struct node *p = list, *head = 0, **tail = &head;
		u32 merges = 0;

		while (p) {
			struct node *q = p;
			u32 left_count = 0, right_count = run;

			merges++;
			while (q && left_count < run) {
				q = q->next;
				left_count++;
			}
			while (left_count || (right_count && q)) {
				struct node *taken;

				if (!left_count || (right_count && q && q->key < p->key)) {
					taken = q;
					q = q->next;
					right_count--;
				} else {
					taken = p;
					p = p->next;
					left_count--;
				}
				*tail = taken;
				tail = &taken->next;
			}
			p = q;
		}
		*tail = 0;
		list = head;
		if (merges <= 1)
			return list;
	}
}

static unsigned short use_list(u32 *random, unsigned short crc)
{
	struct node *node;
	u32 i;

	for (i = 0; i < NODES; i++) {
		u32 r = next_random(random);

		nodes[i].value = (short)r;
		nodes[i].key = (unsigned short)(r >> 16);
		nodes[i].next = i + 1 < NODES ? &nodes[i + 1] : 0;
	}
	for (node = merge_sort(nodes); node; node = node->next)
		crc = crc16(crc, (u32)node->key << 16 | (unsigned short)node->value);
	return crc;
}

static unsigned short use_matrix(u32 *random, unsigned short crc)
{
	u32 i, j, k;

	for (i = 0; i < SIDE * SIDE; i++) {
		left[i] = (short)next_random(random);
		right[i] = (short)(next_random(random) >> 8);
	}
	for (i = 0; i < SIDE; i++)
		for (j = 0; j < SIDE; j++) {
			int sum = 0;

			for (k = 0; k < SIDE; k++)
				sum += left[i * SIDE + k] * right[k * SIDE + j];
			product[i * SIDE + j] = sum;
			crc = crc16(crc, (u32)sum);
		}
	return crc;
}

static enum state step(enum state state, char c)
{
	int digit = c >= '0' && c <= '9';

	switch (state) {
	case START:
		return digit ? INTEGER : c == '+' || c == '-' ? SIGN : c == '.' ? POINT : BAD;
	case SIGN:
		return digit ? INTEGER : c == '.' ? POINT : BAD;
	case INTEGER:
		return digit ? INTEGER : c == '.' ? FRACTION : BAD;
	case POINT:
		return digit ? FRACTION : BAD;
	case FRACTION:
		return digit ? FRACTION : c == 'e' ? EXPONENT : BAD;
	case EXPONENT:
		return digit || c == '-' ? EXPONENT : BAD;
	default:
		return BAD;
	}
}

static unsigned short use_states(u32 *random, unsigned short crc)
{
	u32 counts[STATES] = { 0 };
	enum state state = START;
	u32 i;

	for (i = 0; i < sizeof(text); i++)
		text[i] = "0123456789+-.e,,"[next_random(random) >> 9 & 15];
	for (i = 0; i < sizeof(text); i++) {
		state = text[i] == ',' ? START : step(state, text[i]);
		counts[state]++;
	}
	for (i = 0; i < STATES; i++)
		crc = crc16(crc, counts[i]);
	return crc;
}

u32 program(u32 arg)
{
	u32 random = 0x12345678;
	unsigned short crc = 0;

	while (arg--) {
		crc = use_list(&random, crc);
		crc = use_matrix(&random, crc);
		crc = use_states(&random, crc);
		print("crc ");
		print_hex(crc);
		print("\n");
	}
	return 0;
}
