// SPDX-License-Identifier: GPL-2.0
/* Jobs, and their expected results, computed from the description of the engines only. */
#include "fm.h"

u64 fm_splitmix(u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static u64 rotl(u64 x, int n)
{
	return x << n | x >> (64 - n);
}

void fm_fill(void *mem, size_t len, u64 seed)
{
	u64 *p = mem;
	size_t i;

	for (i = 0; i < len / 8; i++)
		p[i] = fm_splitmix(seed + i);
	for (i *= 8; i < len; i++)
		((u8 *)mem)[i] = fm_splitmix(seed + i);
}

/* --- SHA-256 (FIPS 180-4) ------------------------------------------------------ */

static const u32 sha_k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2
};

static u32 rotr(u32 x, int n)
{
	return x >> n | x << (32 - n);
}

static void sha_block(u32 h[8], const u8 *p)
{
	u32 w[64], s[8], t1, t2;
	int i;

	for (i = 0; i < 16; i++, p += 4)
		w[i] = (u32)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
	for (; i < 64; i++)
		w[i] = w[i - 16] + w[i - 7] +
		       (rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
		       (rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(s, h, sizeof(s));
	for (i = 0; i < 64; i++) {
		t1 = s[7] + (rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25)) +
		     ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha_k[i] + w[i];
		t2 = (rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22)) +
		     ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof(u32));
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (i = 0; i < 8; i++)
		h[i] += s[i];
}

void fm_sha256(const void *data, size_t len, u8 digest[32])
{
	u32 h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
	const u8 *p = data;
	u8 last[128] = {};
	size_t rest = len % 64, blocks = rest < 56 ? 1 : 2, i;

	for (i = 0; i + 64 <= len; i += 64)
		sha_block(h, p + i);
	memcpy(last, p + i, rest);
	last[rest] = 0x80;
	for (i = 0; i < 8; i++)
		last[blocks * 64 - 1 - i] = (u64)len * 8 >> (8 * i);
	for (i = 0; i < blocks; i++)
		sha_block(h, last + 64 * i);
	for (i = 0; i < 32; i++)
		digest[i] = h[i / 4] >> (24 - 8 * (i % 4));
}

/* --- jobs --------------------------------------------------------------------------- */

void fm_job_regs(struct fm_ctx *c, const struct fermata_reg *regs, u32 count,
		 const u32 *results, u32 nresults)
{
	struct fermata_reg tag = { .offset = FM_REG_TAG, .value = c->token };
	int rc = fm_regs_write(c->fd, regs, count);

	if (!rc)
		rc = fm_regs_write(c->fd, &tag, 1);
	if (!rc)
		rc = fm_results(c->fd, results, nresults);
	if (rc)
		fm_die("registers of a job: %s", strerror(-rc));
}

struct node {
	u64 next;
	u64 value;
};

static u64 build_list(struct fm_ctx *c, u32 nodes, u64 seed, bool ring)
{
	struct node *n = (struct node *)(c->mem + FM_DATA);
	u32 *order = malloc(nodes * sizeof(*order)), i, j, t;
	u64 first;

	if (FM_DATA + nodes * sizeof(*n) > c->len || !order)
		fm_die("list of %u nodes: arena too small", nodes);
	for (i = 0; i < nodes; i++)
		order[i] = i;
	for (i = nodes - 1; i > 0; i--) {
		j = fm_splitmix(seed ^ i) % (i + 1);
		t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (i = 0; i < nodes; i++) {
		n[order[i]].value = fm_splitmix(seed * 31 + i);
		n[order[i]].next = c->base + FM_DATA + order[(i + 1) % nodes] * sizeof(*n);
	}
	if (!ring)
		n[order[nodes - 1]].next = 0;
	first = c->base + FM_DATA + order[0] * sizeof(*n);
	free(order);
	return first;
}

static void clear_result(struct fm_ctx *c)
{
	memset(c->mem, 0xee, 64);
}

static void list_regs(struct fm_ctx *c, u64 head, u64 limit, u64 seed)
{
	const u32 results[] = { 0x38, 0x40 };
	const struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = head },
		{ .offset = 0x38, .value = limit },
		{ .offset = 0x40, .value = seed },
		{ .offset = 0x48, .value = c->base },
	};

	clear_result(c);
	fm_job_regs(c, regs, 4, results, 2);
}

static void walk(struct fm_ctx *c, u64 at, u64 limit, u64 seed, struct fm_expect *e)
{
	e->r.count = 0;
	e->r.checksum = seed;
	while (at) {
		const struct node *n = (const struct node *)(c->mem + (at - c->base));

		e->r.checksum = rotl(e->r.checksum, 1) ^ n->value;
		at = ++e->r.count == limit ? 0 : n->next;
	}
}

void fm_job_list(struct fm_ctx *c, u32 nodes, u64 limit, u64 seed, struct fm_expect *e)
{
	c->head = build_list(c, nodes, seed, limit);
	/* No test waits for the end of a longer list; see fm_list_expect(). */
	walk(c, c->head, limit <= 10000000 ? limit : 1, seed, e);
	list_regs(c, c->head, limit, seed);
}

void fm_list_expect(struct fm_ctx *c, u64 limit, u64 seed, struct fm_expect *e)
{
	walk(c, c->head, limit, seed, e);
}

void fm_list_cut(struct fm_ctx *c, u32 nodes)
{
	struct node *n = (struct node *)(c->mem + FM_DATA);
	u32 i;

	for (i = 0; i < nodes; i++)
		__atomic_store_n(&n[i].next, 0, __ATOMIC_RELEASE);
}

void fm_job_endless(struct fm_ctx *c)
{
	const u32 results[] = { 0x38, 0x48 };
	const struct fermata_reg mem[] = {
		{ .offset = 0x30, .value = c->base + FM_DATA },
		{ .offset = 0x38, .value = 64 },
		{ .offset = 0x40, .value = 1ULL << 62 },
		{ .offset = 0x48, .value = 7 },
		{ .offset = 0x58, .value = 0 },
		{ .offset = 0x60, .value = c->base },
	};
	struct fm_expect e;

	if (c->engine == FM_LIST) {
		list_regs(c, build_list(c, FM_ENDLESS_NODES, 1, true), 0, 0);
	} else if (c->engine == FM_MEM) {
		clear_result(c);
		fm_job_regs(c, mem, 6, results + 1, 1);
	} else if (c->engine == FM_MIX) {
		fm_job_mix(c, c->len - FM_DATA, 4096, 1, &e);
	} else {
		/* Ends with its data, after seconds at speed 1. */
		fm_job_sha(c, c->len - FM_DATA, 1, &e);
	}
}

void fm_job_mem(struct fm_ctx *c, size_t len, u64 count, u64 seed, u64 mode,
		struct fm_expect *e)
{
	const u32 results[] = { 0x48, 0x60 };
	const struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = c->base + FM_DATA },
		{ .offset = 0x38, .value = len },
		{ .offset = 0x40, .value = count },
		{ .offset = 0x48, .value = seed },
		{ .offset = 0x60, .value = c->base },
		{ .offset = 0x58, .value = mode },
	};
	bool writes = mode & 1, random = mode & 2, rmw = mode & 4;
	u64 *copy = malloc(len), n, lines = len / 64, sum = 0;
	int k;

	if (FM_DATA + len > c->len || !copy)
		fm_die("membench over %zu bytes: arena too small", len);
	fm_fill(c->mem + FM_DATA, len, seed * 3);
	memcpy(copy, c->mem + FM_DATA, len);
	for (n = 0; n < count; n++) {
		u64 line = (random ? fm_splitmix(seed + n) : n) % lines;

		for (k = 0; k < 8; k++) {
			u64 *word = copy + line * 8 + k;
			u64 pattern = fm_splitmix(seed ^ (line * 8 + k));
			u64 in = writes && !rmw ? pattern : *word;

			sum = rotl(sum, 5) ^ in;
			if (rmw)
				*word ^= pattern;
			else if (writes)
				*word = pattern;
		}
	}
	e->r.count = count;
	e->r.checksum = sum;
	e->len = len;
	fm_sha256(copy, len, e->digest);
	free(copy);
	clear_result(c);
	fm_job_regs(c, regs, mode == FM_NO_MODE ? 5 : 6, results, 2);
}

void fm_job_sha(struct fm_ctx *c, size_t len, u64 seed, struct fm_expect *e)
{
	const u32 results[] = { 0x38, 0x58, 0x60, 0x68, 0x70 };
	const struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = c->base + FM_DATA },
		{ .offset = 0x38, .value = len },
		{ .offset = 0x40, .value = c->base },
	};

	if (FM_DATA + len > c->len)
		fm_die("sha256 of %zu bytes: arena too small", len);
	fm_fill(c->mem + FM_DATA, len, seed);
	fm_sha256(c->mem + FM_DATA, len, e->digest);
	e->r.count = len;
	clear_result(c);
	fm_job_regs(c, regs, 3, results, 5);
}

u64 fm_mix(void *mem, size_t len, size_t block, u64 blocks, u64 seed)
{
	size_t words = len / 8, k;
	u64 digest = seed, *word = mem;

	for (; blocks && words; blocks--) {
		u64 before = digest;

		for (k = 0; k < block / 8 && words; k++, words--, word++) {
			*word ^= fm_splitmix(before + k);
			digest = rotl(digest, 5) ^ *word;
		}
	}
	return digest;
}

void fm_job_mix(struct fm_ctx *c, size_t len, size_t block, u64 seed, struct fm_expect *e)
{
	const u32 results[] = { 0x38, 0x40, 0x58 };
	const struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = c->base + FM_DATA },
		{ .offset = 0x38, .value = len },
		{ .offset = 0x40, .value = block },
		{ .offset = 0x48, .value = seed },
		{ .offset = 0x60, .value = c->base },
	};
	u8 *copy = malloc(len + 1);

	if (FM_DATA + len > c->len || !copy)
		fm_die("blockmix of %zu bytes: arena too small", len);
	fm_fill(c->mem + FM_DATA, len, seed);
	memcpy(copy, c->mem + FM_DATA, len);
	e->r.count = (len + block - 1) / block;
	e->r.checksum = fm_mix(copy, len, block, UINT64_MAX, seed);
	e->len = len;
	fm_sha256(copy, len, e->digest);
	free(copy);
	clear_result(c);
	fm_job_regs(c, regs, 5, results, 3);
}

void fm_job_any(struct fm_ctx *c, u64 us, u64 seed, struct fm_expect *e)
{
	size_t room = c->len - FM_DATA;

	switch (c->engine) {
	case FM_LIST:
		fm_job_list(c, room / 16 < 512 ? room / 16 : 512, us, seed, e);
		break;
	case FM_MEM:
		/* Read-modify-write in random order. */
		fm_job_mem(c, room & ~63UL, us / 64, seed, 6, e);
		break;
	case FM_MIX:
		fm_job_mix(c, (us < room ? us : room) & ~63UL, 4096, seed, e);
		break;
	default:
		fm_job_sha(c, us < room ? us : room, seed, e);
		break;
	}
}

static const char *compare(const char *what, u64 got, u64 want)
{
	static char text[128];

	if (got == want)
		return NULL;
	snprintf(text, sizeof(text), "%s is %#llx, not %#llx", what, (unsigned long long)got,
		 (unsigned long long)want);
	return text;
}

static const char *wrong_of(struct fm_ctx *c, const struct fm_expect *e)
{
	struct fm_result r;
	const char *wrong;
	u8 digest[32];
	int i;

	if (c->engine == FM_SHA) {
		memcpy(digest, c->mem, 32);
		if (memcmp(digest, e->digest, 32))
			return "the digest in the arena is wrong";
		for (i = 0; i < 4; i++) {
			u64 v = fm_reg_get(c->fd, 0x58 + 8 * i);

			if (memcmp(&v, e->digest + 8 * i, 8))
				return "the digest in the registers is wrong";
		}
		return compare("bytes done", fm_reg_get(c->fd, 0x38), e->r.count);
	}
	memcpy(&r, c->mem, sizeof(r));
	wrong = compare("count in the arena", r.count, e->r.count);
	if (!wrong)
		wrong = compare("checksum in the arena", r.checksum, e->r.checksum);
	if (!wrong)
		wrong = compare("count register", fm_reg_get(c->fd, c->engine == FM_MEM ? 0x48 : 0x38),
				e->r.count);
	if (!wrong)
		wrong = compare("checksum register",
				fm_reg_get(c->fd, c->engine == FM_MEM ? 0x60 : 0x40), e->r.checksum);
	if (!wrong && c->engine == FM_MIX)
		wrong = compare("STOPPED_AT", fm_reg_get(c->fd, 0x58), e->r.count);
	if (!wrong && c->engine != FM_LIST) {
		fm_sha256(c->mem + FM_DATA, e->len, digest);
		if (memcmp(digest, e->digest, 32))
			return "the buffer that the engine wrote is wrong";
	}
	return wrong;
}

const char *fm_job_wrong(struct fm_ctx *c, const struct fm_expect *e)
{
	const char *wrong = wrong_of(c, e);

	fm_tally(wrong ? "lost jobs" : "jobs with the right result", 1);
	return wrong;
}

const char *fm_job_run(struct fm_ctx *c, const struct fm_expect *e)
{
	struct fermata_status st;
	int rc = fm_start(c->fd);

	if (rc)
		fm_die("START: %s", strerror(-rc));
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	fm_status(c->fd, &st);
	if (st.state != FERMATA_STATE_DONE)
		return compare("error", st.error, 0) ?: "the job is neither done nor failed";
	return fm_job_wrong(c, e);
}

const char *fm_job_hold(struct fm_ctx *c)
{
	if (fm_start(c->fd))
		return "START";
	card_until_runs(c->slot, c->token);
	if (fm_preempt(c->fd, FERMATA_PREEMPT_HOLD))
		return "PREEMPT";
	fm_wait(c->fd, FERMATA_EVENT_HELD);
	return NULL;
}

const char *fm_job_finish(struct fm_ctx *c, const struct fm_expect *e)
{
	card_speed(c->slot, 0);
	if (fm_resume(c->fd))
		return "RESUME";
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	return fm_job_wrong(c, e);
}

/* --- a job queue in an arena ------------------------------------------------------ */

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
	/* The engine has checked the queue once more, and found the END job. */
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
