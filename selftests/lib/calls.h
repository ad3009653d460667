/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Every call of the interface with a valid argument, contexts to try it on, and what a call returns
 * when the card is gone.
 */
#ifndef _FM_CALLS_H
#define _FM_CALLS_H

#include "fm.h"

/* How far a context is set up when a call is tried on it. */
enum fm_stage { FM_FRESH, FM_SETUP, FM_READY, FM_HELD, FM_STAGES };

union fm_arg {
	u32 size;
	u8 bytes[256];
	struct fermata_card_info card;
	struct fermata_slot_info slot;
	struct fermata_setup setup;
	struct fermata_arena_create arena;
	struct fermata_snapshot_create snap;
	struct fermata_snapshot_read read;
	struct fermata_snapshot_write write;
	struct fermata_regs regs;
	struct fermata_config config;
	struct fermata_outcome outcome;
	struct fermata_start start;
	struct fermata_preempt preempt;
	struct fermata_resume resume;
	struct fermata_hold hold;
	struct fermata_status status;
	struct fermata_wait wait;
	struct fermata_eventfd event;
	struct fermata_hint hint;
	struct fermata_doorbell doorbell;
	struct fermata_param param;
	struct fermata_context_info info;
	struct fermata_histogram histogram;
	struct fermata_reserve reserve;
	struct fermata_group group;
	struct fermata_gang gang;
	struct fermata_group_set group_set;
};

struct fm_call {
	const char *name;
	unsigned long cmd;
	enum fm_stage stage;
	u32 size;
	u32 known;	/* flags that exist, or ~0: the second word is no flags */
	u32 reserved;	/* offset of a reserved word, or 0 */
	bool sets;	/* with FERMATA_SET: nothing is written to the structure */
};

#define FM_CALLS	31
extern const struct fm_call fm_calls[FM_CALLS];

/* Buffer size of a valid SNAPSHOT_READ or _WRITE, in bytes. */
#define FM_CALL_BYTES	64

/* Events that exist. */
#define FM_EVENTS	(FERMATA_EVENT_DONE | FERMATA_EVENT_HELD | FERMATA_EVENT_EMPTY |	\
			 FERMATA_EVENT_COMPLETED)

/* Fills in a valid argument; output fields hold poison. Arrays are static, of two entries each. */
void fm_call_fill(const struct fm_call *k, union fm_arg *a);
/*
 * The pointer inside an argument, or NULL. The driver reads (in) or writes (out) the memory that it
 * points to. Changes ARENA_CREATE and SNAPSHOT_CREATE so that they take the program's own memory.
 */
u64 *fm_call_pointer(unsigned long cmd, union fm_arg *a, bool *in, bool *out);
/* Makes a context in each stage. */
void fm_stages_make(int fds[FM_STAGES]);
extern struct fm_ctx fm_ready, fm_held;

/* Moving a job: all state of a held job is read, and a job of another context continues from it. */

/* The calls: 0 or an errno; fm_regs_list(): the number of registers. */
int fm_regs_list(int fd, u32 flags, struct fermata_reg *regs, u32 room);
int fm_snapshot_read(int fd, void *to, u64 offset, u64 len);
int fm_snapshot_write(int fd, const void *from, u64 offset, u64 len);
int fm_start_as(int fd, u32 flags);
int fm_start_saved(int fd);
/* Size of the snapshot buffer, in bytes. */
u64 fm_snapshot_size(int fd);

/* The whole state of a held job, except its arena. */
struct fm_parcel {
	u8 *state;
	u64 state_len;
	struct fermata_reg regs[FERMATA_MAX_REGS], results[FERMATA_MAX_RESULTS];
	int nregs, nresults;
	u64 digest;	/* of the state, as the card computes it */
};

void fm_pack(struct fm_ctx *c, struct fm_parcel *p);
/* A context with an arena like that of another context, at the same device address; slot: or -1. */
void fm_twin(struct fm_ctx *c, const struct fm_ctx *of, int slot);
/* Starts the job in another context, with that context's token and more flags: 0 or an errno. */
int fm_unpack(struct fm_ctx *c, const struct fm_parcel *p, u32 flags);

/* --- what every call must return when the card is gone -------------------------------- */

/* The signal that an access raises, or 0. */
int fm_access_signal(u8 *mem);
/* 0, or the number of calls that returned anything else. */
int fm_calls_not_gone(int fd);
int fm_poll_gone(int fd);

struct fm_gone_waiter {
	struct fm_thread t;
	int fd;
	int rc;
};

/* The context must have a job that runs until the card is gone. */
void fm_gone_waiter_start(struct fm_gone_waiter *w, int fd);

struct fm_gone_poller {
	struct fm_thread t;
	int fd;
	short revents;
};

/* Returns when the poller sleeps: a later poll() would see the state without a wake-up. */
void fm_gone_poller_start(struct fm_gone_poller *poller, int fd);

#endif /* _FM_CALLS_H */
