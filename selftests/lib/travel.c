// SPDX-License-Identifier: GPL-2.0
/* A context made anew from what it was. */
#include "mem.h"
#include "sched.h"
#include "travel.h"

int fm_regs_list(int fd, u32 flags, struct fermata_reg *regs, u32 room)
{
	struct fermata_regs arg = {
		.size = sizeof(arg), .flags = flags, .count = room, .regs = (uintptr_t)regs
	};
	int rc = fm_ioctl(fd, FERMATA_IOC_REGS_LIST, &arg);

	return rc ? rc : arg.count;
}

int fm_snapshot_read(int fd, void *to, u64 offset, u64 len)
{
	struct fermata_snapshot_read arg = {
		.size = sizeof(arg), .offset = offset, .length = len, .buffer = (uintptr_t)to
	};

	return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_READ, &arg);
}

int fm_snapshot_write(int fd, const void *from, u64 offset, u64 len)
{
	struct fermata_snapshot_write arg = {
		.size = sizeof(arg), .offset = offset, .length = len, .buffer = (uintptr_t)from
	};

	return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_WRITE, &arg);
}

int fm_start_saved(int fd)
{
	struct fermata_start arg = { .size = sizeof(arg), .flags = FERMATA_START_SAVED };

	return fm_ioctl(fd, FERMATA_IOC_START, &arg);
}

u64 fm_snapshot_size(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.snapshot_length;
}

void fm_pack(struct fm_ctx *c, struct fm_parcel *p)
{
	p->state_len = fm_snapshot_size(c->fd);
	p->state = malloc(p->state_len);
	if (!p->state || fm_snapshot_read(c->fd, p->state, 0, p->state_len))
		fm_die("SNAPSHOT_READ");
	p->nregs = fm_regs_list(c->fd, 0, p->regs, FERMATA_MAX_REGS);
	p->nresults = fm_regs_list(c->fd, FERMATA_REGS_RESULTS, p->results, FERMATA_MAX_RESULTS);
	if (p->nregs < 0 || p->nresults < 0)
		fm_die("REGS_LIST");
	p->digest = card_key(card_cmd("saved token=%llu", (unsigned long long)c->token), "hash");
}

void fm_twin(struct fm_ctx *c, const struct fm_ctx *of, int slot)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_FIXED_BASE, .length = of->len,
		.device_base = of->base
	};

	fm_ctx_setup(c, of->engine, slot);
	fm_must(c->fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	c->len = of->len;
	c->base = of->base;
	c->head = of->head;
	c->mem = fm_map(NULL, c->len, MAP_SHARED, c->fd, arena.mmap_offset);
	fm_agent_add(getpid(), c->mem, c->len, c->token);
	fm_ctx_snapshot(c);
}

int fm_unpack(struct fm_ctx *c, const struct fm_parcel *p)
{
	u32 results[FERMATA_MAX_RESULTS];
	u64 half = p->state_len / 2;
	int i, rc;

	if (fm_regs_write(c->fd, p->regs, p->nregs) || fm_reg_write(c->fd, FM_REG_TAG, c->token))
		fm_die("REGS_WRITE");
	for (i = 0; i < p->nresults; i++)
		results[i] = p->results[i].offset;
	if (fm_results(c->fd, results, p->nresults))
		fm_die("RESULTS");
	/* In two parts, the last one first. */
	rc = fm_snapshot_write(c->fd, p->state + half, half, p->state_len - half);
	if (!rc)
		rc = fm_snapshot_write(c->fd, p->state, 0, half);
	if (rc)
		return rc;
	card_cmd("import token=%llu hash=%llu", (unsigned long long)c->token,
		 (unsigned long long)p->digest);
	return fm_start_saved(c->fd);
}
