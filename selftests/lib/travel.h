/* SPDX-License-Identifier: GPL-2.0 */
/* A context made anew from what it was: of a held job all is read, and a job of another context goes on from it. */
#ifndef _FM_TRAVEL_H
#define _FM_TRAVEL_H

#include "fm.h"

/* The calls: 0 or an errno; fm_regs_list(): how many there are. */
int fm_regs_list(int fd, u32 flags, struct fermata_reg *regs, u32 room);
int fm_snapshot_read(int fd, void *to, u64 offset, u64 len);
int fm_snapshot_write(int fd, const void *from, u64 offset, u64 len);
int fm_start_saved(int fd);
/* Of the snapshot buffer, in bytes. */
u64 fm_snapshot_size(int fd);

/* All that a held job is, but for its arena. */
struct fm_parcel {
	u8 *state;
	u64 state_len;
	struct fermata_reg regs[FERMATA_MAX_REGS], results[FERMATA_MAX_RESULTS];
	int nregs, nresults;
	u64 digest;	/* of the state, as the card has it */
};

void fm_pack(struct fm_ctx *c, struct fm_parcel *p);
/* A context with an arena like that of another one, at the same device address; on a slot, or -1. */
void fm_twin(struct fm_ctx *c, const struct fm_ctx *of, int slot);
/* Lets the job go on in another context, whose token its registers then have: 0 or an errno. */
int fm_unpack(struct fm_ctx *c, const struct fm_parcel *p);

#endif
