/* SPDX-License-Identifier: GPL-2.0 */
/* A job queue in an arena, as a program uses it (uapi/fermata.h, "job queues"). */
#ifndef _FM_QUEUE_H
#define _FM_QUEUE_H

#include "fm.h"

struct fm_queue {
	struct fm_ctx c;
	u32 entries;
	u64 tail;	/* jobs posted */
	u64 reaped;
	u64 rings;	/* doorbells that were needed */
	bool ends;	/* FERMATA_QUEUE_OP_END was posted */
	struct fermata_queue_control *control;
	struct fermata_queue_job *jobs;
	struct fermata_queue_status *statuses;
	size_t data;	/* offset in the arena of what is left of it */
};

/* A context with an empty queue, its job started; so many jobs, or us microseconds, to an event. */
void fm_queue_new(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us);
/* The same without START. */
void fm_queue_make(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us);
bool fm_queue_has_room(const struct fm_queue *q);
/* Posts a job, for which there must be room, without a call; its tag is its number. */
void fm_queue_post(struct fm_queue *q, u32 op, u64 src, u64 dst, u64 length, u64 arg);
/* Rings if the engine has said that it leaves. */
void fm_queue_tell(struct fm_queue *q);
/* The status of job n, once it is complete. */
bool fm_queue_is_complete(const struct fm_queue *q, u64 n);
/*
 * What the engine has counted, once that is as much as n, or at the end of a long wait: it tells of
 * a job first, and counts it then.
 */
u64 fm_queue_counted(const struct fm_queue *q, u64 n);
/* Waits for the oldest job that was not reaped, looking at memory only; its status. */
struct fermata_queue_status fm_queue_reap(struct fm_queue *q);
/* CRC-32C of bytes, going on from crc. */
u32 fm_crc32c(u32 crc, const void *data, size_t len);

#endif
