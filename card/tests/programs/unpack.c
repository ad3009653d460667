// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Packs text by references to earlier text (like LZ77), unpacks it, and compares; `arg` rounds,
 * each with different text.
 *
 * Packed data consist of groups: a byte with the number of literals (high half) and the length of
 * the copy less 3 (low half; 15: another byte follows), the literals, and two bytes with the
 * distance, 0 for no copy.
 */
#include "runtime.h"

#define TEXT 8192
#define HASHES 1024
#define LEAST 4
#define MOST (3 + 15 + 255)

static u8 text[TEXT], packed[TEXT + TEXT / 4], unpacked[TEXT];
static unsigned short seen[HASHES];

static void write_text(u32 *random)
{
	static const char *const words[16] = {
		"fermata ", "holds ", "a ", "note ", "for ", "as ", "long ", "the ",
		"player ", "likes, ", "after ", "which ", "music ", "goes ", "on. ", "it stopped\n",
	};
	u32 at = 0;

	while (at < TEXT) {
		const char *word = words[next_random(random) >> 11 & 15];

		while (*word && at < TEXT)
			text[at++] = (u8)*word++;
	}
}

static u32 hash(const u8 *at)
{
	return ((u32)(at[0] | at[1] << 8 | at[2] << 16) * 2654435761u) >> 22;
}

static u32 same(u32 from, u32 at)
{
	u32 len = 0;

	while (at + len < TEXT && len < MOST && text[from + len] == text[at + len])
		len++;
	return len;
}

static u32 group(u32 out, u32 start, u32 literals, u32 len, u32 distance)
{
	u32 low = !distance ? 0 : len - 3 < 15 ? len - 3 : 15, i;

	packed[out++] = (u8)(literals << 4 | low);
	if (low == 15)
		packed[out++] = (u8)(len - 3 - 15);
	for (i = 0; i < literals; i++)
		packed[out++] = text[start + i];
	packed[out++] = (u8)distance;
	packed[out++] = (u8)(distance >> 8);
	return out;
}

static u32 pack(void)
{
	u32 at = 0, start = 0, out = 0, i;

	for (i = 0; i < HASHES; i++)
		seen[i] = 0;
	while (at < TEXT) {
		u32 len = 0, from = 0;

		if (at + LEAST < TEXT) {
			unsigned short *slot = &seen[hash(text + at)];

			from = *slot;
			*slot = (unsigned short)at;
			if (from < at)
				len = same(from, at);
		}
		if (len >= LEAST) {
			out = group(out, start, at - start, len, at - from);
			at += len;
			start = at;
		} else if (++at - start == 15) {
			out = group(out, start, 15, 0, 0);
			start = at;
		}
	}
	return group(out, start, at - start, 0, 0);
}

static u32 unpack(u32 len)
{
	u32 in = 0, out = 0;

	while (in < len) {
		u32 head = packed[in++], literals = head >> 4, copy = (head & 15) + 3, distance;

		if ((head & 15) == 15)
			copy += packed[in++];
		while (literals--)
			unpacked[out++] = packed[in++];
		distance = packed[in] | (u32)packed[in + 1] << 8;
		in += 2;
		if (!distance)
			continue;
		while (copy--) {
			unpacked[out] = unpacked[out - distance];
			out++;
		}
	}
	return out;
}

u32 program(u32 arg)
{
	u32 random = 0x0badcafe, sum = 0, i;

	while (arg--) {
		u32 len;

		write_text(&random);
		len = pack();
		if (unpack(len) != TEXT)
			return 1;
		for (i = 0; i < TEXT; i++) {
			if (unpacked[i] != text[i])
				return 2;
			sum = checksum(sum, text[i]);
		}
		print("packed ");
		print_hex(len);
		print(" text ");
		print_hex(sum);
		print("\n");
	}
	return 0;
}
