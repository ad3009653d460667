// SPDX-License-Identifier: GPL-2.0
/* A job queue in an arena. */
#include "queue.h"

#define ALIGNED(n)	(((n) + 63) & ~63UL)

static u64 at(const struct fm_queue *q, const void *p)
{
	return q->c.base + ((const u8 *)p - q->c.mem);
}

void fm_queue_make(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us)
{
	size_t jobs = ALIGNED(sizeof(*q->control));
	size_t statuses = jobs + entries * sizeof(*q->jobs);
	struct fermata_reg regs[6] = {
		{ .offset = FERMATA_QUEUE_REG_JOBS }, { .offset = FERMATA_QUEUE_REG_STATUSES },
		{ .offset = FERMATA_QUEUE_REG_ENTRIES, .value = entries },
		{ .offset = FERMATA_QUEUE_REG_CONTROL },
		{ .offset = FERMATA_QUEUE_REG_COALESCE_COUNT, .value = count },
		{ .offset = FERMATA_QUEUE_REG_COALESCE_US, .value = us },
	};

	memset(q, 0, sizeof(*q));
	q->entries = entries;
	q->data = ALIGNED(statuses + entries * sizeof(*q->statuses));
	fm_ctx_new(&q->c, FM_QUEUE, (q->data + data + FM_PAGE - 1) & ~(FM_PAGE - 1));
	q->control = (void *)q->c.mem;
	q->jobs = (void *)(q->c.mem + jobs);
	q->statuses = (void *)(q->c.mem + statuses);
	regs[0].value = at(q, q->jobs);
	regs[1].value = at(q, q->statuses);
	regs[3].value = at(q, q->control);
	fm_job_regs(&q->c, regs, 6, NULL, 0);
}

void fm_queue_new(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us)
{
	int rc;

	fm_queue_make(q, entries, data, count, us);
	rc = fm_start(q->c.fd);
	if (rc)
		fm_die("START of a queue: %s", strerror(-rc));
}

bool fm_queue_has_room(const struct fm_queue *q)
{
	u64 here = q->tail % q->entries, next = (q->tail + 1) % q->entries;

	return !__atomic_load_n(&q->jobs[here].header, __ATOMIC_RELAXED) &&
	       !__atomic_load_n(&q->statuses[here].header, __ATOMIC_RELAXED) &&
	       !__atomic_load_n(&q->jobs[next].header, __ATOMIC_RELAXED);
}

void fm_queue_post(struct fm_queue *q, u32 op, u64 src, u64 dst, u64 length, u64 arg)
{
	struct fermata_queue_job *job = &q->jobs[q->tail % q->entries];

	if (!fm_queue_has_room(q))
		fm_die("no room for job %llu", (unsigned long long)q->tail);
	job->op = op;
	job->tag = q->tail;
	job->src = src;
	job->dst = dst;
	job->length = length;
	job->arg = arg;
	memset(job->reserved, 0, sizeof(job->reserved));
	q->ends |= op == FERMATA_QUEUE_OP_END;
	__atomic_store_n(&job->header, FERMATA_QUEUE_VALID, __ATOMIC_RELEASE);
	q->tail++;
}

void fm_queue_tell(struct fm_queue *q)
{
	int rc;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&q->control->idle, __ATOMIC_RELAXED))
		return;
	rc = fm_ring(q->c.fd);
	/* The engine has looked once more, and come to its end. */
	if (rc == -ENOENT && q->ends && fm_state(q->c.fd) == FERMATA_STATE_DONE)
		return;
	if (rc)
		fm_die("DOORBELL: %s", strerror(-rc));
	q->rings++;
}

bool fm_queue_is_complete(const struct fm_queue *q, u64 n)
{
	return __atomic_load_n(&q->statuses[n % q->entries].header, __ATOMIC_ACQUIRE) &
	       FERMATA_QUEUE_COMPLETE;
}

u64 fm_queue_counted(const struct fm_queue *q, u64 n)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (__atomic_load_n(&q->control->completed, __ATOMIC_ACQUIRE) < n && fm_now() < end)
		fm_sleep_us(20);
	return __atomic_load_n(&q->control->completed, __ATOMIC_ACQUIRE);
}

struct fermata_queue_status fm_queue_reap(struct fm_queue *q)
{
	u64 n = q->reaped % q->entries, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_queue_status status;

	while (!fm_queue_is_complete(q, q->reaped)) {
		if (fm_now() > end)
			fm_die("job %llu is never complete: state %u, idle %u",
			       (unsigned long long)q->reaped, fm_state(q->c.fd), q->control->idle);
		fm_sleep_us(20);
	}
	status = q->statuses[n];
	__atomic_store_n(&q->jobs[n].header, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->statuses[n].header, 0, __ATOMIC_RELEASE);
	q->reaped++;
	return status;
}

u32 fm_crc32c(u32 crc, const void *data, size_t len)
{
	const u8 *p = data;
	int bit;

	crc = ~crc;
	while (len--) {
		crc ^= *p++;
		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
	}
	return ~crc;
}
