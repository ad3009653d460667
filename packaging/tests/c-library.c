// SPDX-License-Identifier: GPL-2.0
/*
 * c-library NAME: one test of the C library on /dev/fermata0, which has a counter_up, a sha256 and
 * a queue;
 * c-library all: all of them but the last, which takes the card away.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libfermata.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD "/dev/fermata0"
#define PAGE 4096
#define MS 1000000ULL

static void fail(int line, const char *what, long got)
{
	fprintf(stderr, "line %d: %s is %ld: %s\n", line, what, got, fermata_message());
	exit(1);
}

#define IS(call, wanted) do { \
	long got = (call); \
	if (got != (long)(wanted)) \
		fail(__LINE__, #call, got); \
} while (0)
#define OK(call) IS(call, 0)
#define TRUE(condition) IS(!!(condition), 1)
#define SAYS(words) TRUE(strstr(fermata_message(), words))

static const unsigned char abc[32] = {
	0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
	0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
	0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
};

/* A context with arena and snapshot buffer. */
struct tenant {
	fermata_context *context;
	fermata_arena *arena;
	unsigned char *memory;
};

static struct tenant begin(const char *engine)
{
	struct tenant t;
	size_t snapshot = 0;

	OK(fermata_open(CARD, &t.context));
	OK(fermata_setup(t.context, engine, 0));
	OK(fermata_create_arena(t.context, 2 * PAGE, &t.arena));
	OK(fermata_create_snapshot(t.context, &snapshot));
	TRUE(snapshot >= PAGE && snapshot % PAGE == 0);
	t.memory = fermata_arena_address(t.arena);
	return t;
}

static void end(struct tenant t)
{
	fermata_unmap_arena(t.arena);
	fermata_close(t.context);
}

static void write_registers(fermata_context *context, uint64_t a, uint64_t b, uint64_t c)
{
	const struct fermata_reg registers[] = {
		{ .offset = 0x30, .value = a },
		{ .offset = 0x38, .value = b },
		{ .offset = 0x40, .value = c },
	};

	OK(fermata_write_registers(context, registers, 3));
}

/* Starts a job that counts; 0: endlessly. */
static struct tenant counts(uint64_t count)
{
	struct tenant t = begin("counter_up");

	write_registers(t.context, count, 0, fermata_arena_base(t.arena));
	return t;
}

static struct tenant hashes(void)
{
	struct tenant t = begin("sha256");
	const uint32_t results[] = { 0x38, 0x58, 0x60, 0x68, 0x70 };
	uint64_t base = fermata_arena_base(t.arena);

	memcpy(t.memory + PAGE, "abc", 3);
	write_registers(t.context, base + PAGE, 3, base);
	OK(fermata_declare_results(t.context, results, 5));
	return t;
}

static void wait_for(struct tenant t, uint32_t event)
{
	uint32_t happened = 0;

	OK(fermata_wait(t.context, event, UINT64_MAX, &happened));
	IS(happened, event);
}

static struct fermata_status status(struct tenant t)
{
	struct fermata_status status;

	OK(fermata_get_status(t.context, &status, sizeof(status)));
	return status;
}

static void arena(void)
{
	struct tenant t = begin("sha256");
	fermata_arena *second = (void *)1;
	int i;

	IS(fermata_arena_length(t.arena), 2 * PAGE);
	IS((uintptr_t)t.memory % PAGE, 0);
	IS(fermata_arena_base(t.arena), (uintptr_t)t.memory);
	for (i = 0; i < 2 * PAGE; i++)
		IS(t.memory[i], 0);
	IS(fermata_create_arena(t.context, PAGE, &second), -EEXIST);
	SAYS("open another context");
	IS((uintptr_t)second, 1);
	/* The mapping lives longer than the context. */
	fermata_close(t.context);
	t.memory[PAGE] = 1;
	fermata_unmap_arena(t.arena);
}

static void job(void)
{
	struct tenant t = hashes();
	struct fermata_reg results[] = {
		{ .offset = 0x38 }, { .offset = 0x58 }, { .offset = 0x60 },
		{ .offset = 0x68 }, { .offset = 0x70 },
	};
	uint64_t number = 0;
	int i;

	IS(fermata_job_result(t.context), -ENOENT);
	for (i = 1; i <= 3; i++) {
		memset(t.memory, 0, 32);
		OK(fermata_start(t.context, 0, &number));
		IS(number, i);
		wait_for(t, FERMATA_EVENT_DONE);
		OK(fermata_job_result(t.context));
		OK(memcmp(t.memory, abc, 32));
	}
	OK(fermata_read_registers(t.context, results, 5));
	IS(results[0].value, 3);
	for (i = 0; i < 4; i++)
		OK(memcmp(&results[i + 1].value, abc + 8 * i, 8));
	IS(status(t).finished, 3);
	IS(status(t).state, FERMATA_STATE_DONE);
	end(t);
}

static void deadline(void)
{
	struct tenant t = counts(0);
	uint64_t before = fermata_deadline_in(0);

	IS(fermata_wait(t.context, FERMATA_EVENT_DONE, UINT64_MAX, NULL), -ENOENT);
	OK(fermata_start(t.context, 0, NULL));
	IS(fermata_wait(t.context, FERMATA_EVENT_DONE, 0, NULL), -ETIMEDOUT);
	IS(fermata_wait(t.context, FERMATA_EVENT_DONE, before + 50 * MS, NULL), -ETIMEDOUT);
	TRUE(fermata_deadline_in(0) >= before + 50 * MS);
	SAYS("the deadline came first");
	IS(fermata_wait(t.context, 0, 0, NULL), -EINVAL);
	IS(fermata_job_result(t.context), -EBUSY);
	IS(fermata_start(t.context, 0, NULL), -EBUSY);
	SAYS(CARD ": start a job: busy (wait for the end of the job");
	IS(fermata_deadline_in(UINT64_MAX), UINT64_MAX);
	end(t);
}

static void by_poll(void)
{
	struct tenant t = hashes();
	struct pollfd fd = { .fd = fermata_fd(t.context), .events = POLLIN };

	IS(poll(&fd, 1, 0), 0);
	OK(fermata_start(t.context, 0, NULL));
	IS(poll(&fd, 1, -1), 1);
	IS(fd.revents, POLLIN);
	OK(fermata_job_result(t.context));
	end(t);
}

static void by_eventfd(void)
{
	struct tenant t = hashes();
	struct pollfd fd = { .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN };
	uint64_t count;

	OK(fermata_set_eventfd(t.context, fd.fd, FERMATA_EVENT_DONE));
	IS(read(fd.fd, &count, 8), -1);
	OK(fermata_start(t.context, 0, NULL));
	IS(poll(&fd, 1, -1), 1);
	IS(read(fd.fd, &count, 8), 8);
	IS(count, 1);
	OK(fermata_job_result(t.context));
	OK(fermata_set_eventfd(t.context, -1, 0));
	OK(fermata_start(t.context, 0, NULL));
	wait_for(t, FERMATA_EVENT_DONE);
	IS(poll(&fd, 1, 0), 0);
	IS(fermata_set_eventfd(t.context, fermata_fd(t.context), FERMATA_EVENT_DONE), -EINVAL);
	IS(fermata_set_eventfd(t.context, -1, FERMATA_EVENT_DONE), -EINVAL);
	close(fd.fd);
	end(t);
}

static void hold(void)
{
	struct tenant t = counts(0);
	struct pollfd fd = { .fd = fermata_fd(t.context), .events = POLLPRI };
	uint64_t run, slices;
	char state[PAGE];
	int held;

	IS(fermata_preempt(t.context, FERMATA_PREEMPT_HOLD), -ENOENT);
	IS(fermata_preempt(t.context, 6), -EINVAL);
	OK(fermata_start(t.context, 0, NULL));
	while (!status(t).slices)
		usleep(1000);
	IS(fermata_read_snapshot(t.context, 0, state, PAGE), -EBUSY);
	OK(fermata_preempt(t.context, 0));
	OK(fermata_preempt(t.context, FERMATA_PREEMPT_HOLD));
	wait_for(t, FERMATA_EVENT_HELD);
	IS(poll(&fd, 1, -1), 1);
	IS(status(t).state, FERMATA_STATE_HELD);
	TRUE(status(t).preemptions >= 1);
	OK(fermata_read_snapshot(t.context, 0, state, PAGE));
	IS(fermata_read_snapshot(t.context, 0, state, 1ULL << 40), -EINVAL);
	run = status(t).run_ns;
	slices = status(t).slices;
	usleep(20000);
	IS(status(t).run_ns, run);
	IS(fermata_hold(t.context, NULL), -EINVAL);
	OK(fermata_hold(t.context, &held));
	OK(fermata_resume(t.context));
	IS(status(t).state, FERMATA_STATE_HELD);
	IS(close(held), 0);
	while (status(t).slices == slices || status(t).run_ns <= run)
		usleep(1000);
	end(t);
}

/* A job continues in another context, in memory of the program's own. */
static void snapshot(void)
{
	struct tenant t = counts(6000000);
	fermata_context *other;
	uint64_t *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_status there;
	char state[PAGE];

	TRUE(memory != MAP_FAILED);
	OK(fermata_start(t.context, FERMATA_START_HELD, NULL));
	IS(fermata_read_snapshot(t.context, 0, state, PAGE), -ENODATA);
	OK(fermata_resume(t.context));
	while (!status(t).slices)
		usleep(1000);
	OK(fermata_preempt(t.context, FERMATA_PREEMPT_HOLD));
	wait_for(t, FERMATA_EVENT_HELD);
	OK(fermata_read_snapshot(t.context, 0, state, PAGE));

	OK(fermata_open(CARD, &other));
	OK(fermata_setup(other, "434f554e-5445-5255-0000-000000000007", 0));
	OK(fermata_use_memory(other, memory, PAGE, fermata_arena_base(t.arena)));
	IS(fermata_write_snapshot(other, 0, state, PAGE), -ENXIO);
	OK(fermata_create_snapshot(other, NULL));
	IS(fermata_start(other, FERMATA_START_SAVED, NULL), -ENODATA);
	OK(fermata_write_snapshot(other, 0, state, PAGE));
	write_registers(other, 6000000, 0, fermata_arena_base(t.arena));
	OK(fermata_start(other, FERMATA_START_SAVED, NULL));
	OK(fermata_wait(other, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
	OK(fermata_job_result(other));
	IS(memory[0], 6000000);
	OK(fermata_get_status(other, &there, sizeof(there)));
	IS(there.finished, 1);
	fermata_close(other);
	munmap(memory, PAGE);
	end(t);
}

static void failing(void)
{
	struct tenant t = hashes();
	uint64_t base = fermata_arena_base(t.arena);

	write_registers(t.context, base + 16 * PAGE, 3, base);
	OK(fermata_start(t.context, 0, NULL));
	OK(fermata_wait(t.context, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
	IS(fermata_job_result(t.context), -EFAULT);
	SAYS(CARD ": tell the result of the job: the engine read at 0x");
	SAYS("outside of the arena");
	IS(status(t).failed, 1);
	end(t);
}

static void errors(void)
{
	fermata_context *context = (void *)1;
	fermata_arena *arena;
	size_t found;

	IS(fermata_open("/dev/fermata99", &context), -ENOENT);
	SAYS("/dev/fermata99: open the card: there is no such thing (");
	IS((uintptr_t)context, 1);
	IS(fermata_open(NULL, &context), -EINVAL);
	IS(fermata_open(CARD, NULL), -EINVAL);
	SAYS("open the card: context is NULL");
	IS(fermata_open_engine("sha257", &context), -EINVAL);
	SAYS("\"sha257\" is no engine");
	IS(fermata_open_engine("membench", &context), -ENOENT);
	IS(fermata_fd(NULL), -1);
	TRUE(!fermata_arena_address(NULL));
	fermata_close(NULL);
	fermata_unmap_arena(NULL);
	IS(fermata_start(NULL, 0, NULL), -EINVAL);
	IS(fermata_cards(NULL, 1, &found), -EINVAL);
	OK(fermata_open(CARD, &context));
	IS(fermata_start(context, 0, NULL), -ENXIO);
	SAYS("choose the engine");
	IS(fermata_create_arena(context, PAGE, &arena), -ENXIO);
	IS(fermata_setup(context, "membench", 0), -ENOENT);
	OK(fermata_setup(context, "sha256", 0));
	IS(fermata_setup(context, "sha256", 0), -EEXIST);
	IS(fermata_create_arena(context, PAGE + 1, &arena), -EINVAL);
	IS(fermata_map_arena(context, &arena), -ENOENT);
	IS(fermata_write_registers(context, NULL, 1), -EINVAL);
	IS(fermata_write_registers(context, (void *)PAGE, FERMATA_MAX_REGS + 1), -EINVAL);
	IS(fermata_write_registers(context, &(struct fermata_reg){ .offset = 8 }, 1), -EINVAL);
	IS(fermata_resume(context), -ENOENT);
	IS(fermata_ring(context), -ENOENT);
	fermata_close(context);
}

static void descriptor(void)
{
	struct tenant t = hashes();
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	fermata_context *second;
	fermata_arena *arena;

	IS(fermata_from_fd(null, &second), -ENOTTY);
	TRUE(fcntl(null, F_GETFD) >= 0);
	IS(fermata_from_fd(-1, &second), -EINVAL);
	IS(fermata_from_fd(12345, &second), -EBADF);
	OK(fermata_from_fd(dup(fermata_fd(t.context)), &second));
	OK(fermata_map_arena(second, &arena));
	IS(fermata_arena_base(arena), fermata_arena_base(t.arena));
	OK(memcmp((char *)fermata_arena_address(arena) + PAGE, "abc", 3));
	OK(fermata_start(second, 0, NULL));
	wait_for(t, FERMATA_EVENT_DONE);
	OK(memcmp(fermata_arena_address(arena), abc, 32));
	fermata_unmap_arena(arena);
	fermata_close(second);
	OK(fermata_job_result(t.context));
	close(null);
	end(t);
}

static void share(void)
{
	struct tenant t = hashes();
	fermata_context *other;
	fermata_arena *arena;

	OK(fermata_open(CARD, &other));
	OK(fermata_setup(other, "counter_up", 0));
	IS(fermata_share_arena(other, t.context, PAGE, 2 * PAGE, &arena), -EINVAL);
	OK(fermata_share_arena(other, t.context, PAGE, PAGE, &arena));
	OK(memcmp(fermata_arena_address(arena), "abc", 3));
	fermata_unmap_arena(arena);
	fermata_close(other);
	end(t);
}

static void parameters(void)
{
	struct tenant t = begin("sha256");
	uint64_t value = 0;

	OK(fermata_set_param(t.context, FERMATA_PARAM_WEIGHT, 77));
	OK(fermata_get_param(t.context, FERMATA_PARAM_WEIGHT, &value));
	IS(value, 77);
	IS(fermata_set_param(t.context, FERMATA_PARAM_WEIGHT, 1000000), -ERANGE);
	IS(fermata_get_param(t.context, 7, &value), -EINVAL);
	SAYS("there is no parameter 7");
	OK(fermata_hint(t.context, 100 * MS));
	OK(fermata_hint(t.context, UINT64_MAX));
	IS(fermata_hint(t.context, 100000 * MS), -ERANGE);
	OK(fermata_reserve(t.context, MS, 10 * MS, 20 * MS));
	IS(fermata_reserve(t.context, MS, 30 * MS, 20 * MS), -ERANGE);
	IS(fermata_reserve(t.context, 19 * MS, 20 * MS, 20 * MS), -EBUSY);
	OK(fermata_reserve(t.context, 0, 0, 0));
	IS(fermata_join_gang(t.context, 12345), -ESRCH);
	OK(fermata_join_gang(t.context, 0));
	end(t);
}

#define ENTRIES 8
#define POSTED (ENTRIES + 3)
static void post(struct tenant t, fermata_queue *queue, struct fermata_queue_job job)
{
	uint64_t number = UINT64_MAX;
	int rc;

	OK(fermata_post(queue, &job, &number));
	IS(number, job.tag);
	if (!fermata_needs_doorbell(queue))
		return;
	/* The engine may have come back for an earlier job, and have found the end of its queue. */
	rc = fermata_ring(t.context);
	TRUE(rc == 0 || (rc == -ENOENT && job.op == FERMATA_QUEUE_OP_END));
}

/* Waits for jobs, in the order of their completion. */
static void reap(struct tenant t, fermata_queue *queue, struct fermata_queue_status *all, int count)
{
	const uint32_t events = FERMATA_EVENT_COMPLETED | FERMATA_EVENT_DONE;
	struct fermata_queue_status status;
	uint64_t number = 0;
	uint32_t happened = 0;
	int rc;

	while (count) {
		rc = fermata_reap(queue, &status, &number);
		if (rc == -EAGAIN) {
			TRUE(!(happened & FERMATA_EVENT_DONE));
			OK(fermata_wait(t.context, events, UINT64_MAX, &happened));
			continue;
		}
		OK(rc);
		TRUE(number < POSTED);
		IS(status.tag, number);
		IS(status.header, FERMATA_QUEUE_STARTED | FERMATA_QUEUE_COMPLETE);
		IS(all[number].header, 0);
		all[number] = status;
		count--;
	}
}

static void by_queue(void)
{
	struct tenant t = begin("queue");
	uint64_t base = fermata_arena_base(t.arena), i;
	struct fermata_queue_job copy = {
		.op = FERMATA_QUEUE_OP_COPY, .src = base + PAGE, .dst = base + PAGE + 512,
		.length = 9
	};
	struct fermata_queue_job crc = {
		.op = FERMATA_QUEUE_OP_CRC32C, .tag = ENTRIES, .src = base + PAGE, .length = 9
	};
	struct fermata_queue_job bad = { .op = 99, .tag = ENTRIES + 1 };
	struct fermata_queue_job last = { .op = FERMATA_QUEUE_OP_END, .tag = ENTRIES + 2 };
	struct fermata_queue_status all[POSTED] = { 0 };
	struct fermata_reg registers[5] = {
		[4] = { .offset = FERMATA_QUEUE_REG_COALESCE_COUNT, .value = 1 }
	};
	fermata_queue *queue = (void *)1;

	IS(fermata_queue_length(ENTRIES), ENTRIES * 96 + 128);
	IS(fermata_create_queue(t.arena, 0, 6, &queue), -EINVAL);
	SAYS("6 entries at offset 0: entries is a power of two");
	IS(fermata_create_queue(t.arena, 8, ENTRIES, &queue), -EINVAL);
	IS(fermata_create_queue(t.arena, 2 * PAGE - 64, ENTRIES, &queue), -EINVAL);
	IS((uintptr_t)queue, 1);
	OK(fermata_create_queue(t.arena, 0, ENTRIES, &queue));
	OK(fermata_queue_registers(queue, registers));
	OK(fermata_write_registers(t.context, registers, 5));
	IS(fermata_reap(queue, &all[0], NULL), -EAGAIN);
	SAYS("no job of the queue is complete: wait for");

	memcpy(t.memory + PAGE, "123456789", 9);
	for (i = 0; i < ENTRIES - 1; i++, copy.dst += 16, copy.tag++)
		post(t, queue, copy);
	IS(fermata_post(queue, &copy, NULL), -EAGAIN);
	SAYS("the queue is full: reap jobs first");
	IS(fermata_queue_outstanding(queue), ENTRIES - 1);
	OK(fermata_start(t.context, 0, NULL));
	reap(t, queue, all, ENTRIES - 1);
	for (i = 0; i < ENTRIES - 1; i++) {
		IS(all[i].error, 0);
		OK(memcmp(t.memory + PAGE + 512 + i * 16, "123456789", 9));
	}

	/* The engine has left its slot. */
	OK(fermata_wait(t.context, FERMATA_EVENT_EMPTY, UINT64_MAX, NULL));
	IS(fermata_needs_doorbell(queue), 1);
	copy.length = 0;
	post(t, queue, copy);
	post(t, queue, crc);
	post(t, queue, bad);
	post(t, queue, last);
	reap(t, queue, all, 4);
	IS(all[copy.tag].error, 0);
	IS(all[crc.tag].error, 0);
	IS(all[crc.tag].result, 0xe3069283);
	IS(all[bad.tag].error, EINVAL);
	IS(all[last.tag].error, 0);
	wait_for(t, FERMATA_EVENT_DONE);
	OK(fermata_job_result(t.context));
	IS(fermata_queue_completed(queue), POSTED);
	IS(fermata_queue_outstanding(queue), 0);

	/* The memory stays as long as the queue exists. */
	fermata_unmap_arena(t.arena);
	IS(fermata_queue_completed(queue), POSTED);
	fermata_free_queue(queue);
	fermata_free_queue(NULL);
	fermata_close(t.context);
}

/* Programs and libraries of different versions: structures of other sizes. */
static void sizes(void)
{
	struct tenant t = begin("sha256");
	struct { struct fermata_status status; unsigned char beyond[8]; } s;
	struct fermata_card_info card;
	struct fermata_slot_info slot;

	memset(&s, 0xa5, sizeof(s));
	OK(fermata_get_status(t.context, &s.status, 16));
	IS(s.status.size, 16);
	IS(s.status.state, FERMATA_STATE_IDLE);
	IS(s.status.context, 0xa5a5a5a5);
	OK(fermata_get_status(t.context, &s.status, sizeof(s)));
	IS(s.status.size, sizeof(s.status));
	IS(s.beyond[0] | s.beyond[7], 0);
	IS(fermata_get_status(t.context, &s.status, 4), -EINVAL);
	OK(fermata_get_card_info(t.context, &card, sizeof(card)));
	IS(card.slots, 3);
	IS(card.uapi_version, FERMATA_UAPI_VERSION);
	OK(fermata_get_slot_info(t.context, 1, &slot, sizeof(slot)));
	IS(slot.afu_id_lo, 3);
	IS(fermata_get_slot_info(t.context, 3, &slot, sizeof(slot)), -EINVAL);
	end(t);
}

static volatile sig_atomic_t handled;
static void handler(int signal)
{
	handled = signal;
}

static void interrupt(int flags, int wanted)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	/* Repeatedly, because the first signal may come before the wait. */
	struct itimerval often = { .it_interval.tv_usec = 50000, .it_value.tv_usec = 50000 };
	uint64_t deadline = UINT64_MAX;
	struct tenant t = counts(0);

	if (wanted == -ETIMEDOUT)
		deadline = fermata_deadline_in(1000 * MS);
	handled = 0;
	OK(sigaction(SIGALRM, &action, NULL));
	OK(fermata_start(t.context, 0, NULL));
	OK(setitimer(ITIMER_REAL, &often, NULL));
	IS(fermata_wait(t.context, FERMATA_EVENT_DONE, deadline, NULL), wanted);
	OK(setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL));
	IS(handled, SIGALRM);
	end(t);
}

static void signals(void)
{
	interrupt(0, -EINTR);
	interrupt(SA_RESTART, -ETIMEDOUT);
}

static void *thread(void *unused)
{
	int i;

	OK(strcmp(fermata_message(), ""));
	for (i = 0; i < 10; i++) {
		struct tenant t = hashes();

		OK(fermata_start(t.context, 0, NULL));
		wait_for(t, FERMATA_EVENT_DONE);
		OK(memcmp(t.memory, abc, 32));
		end(t);
	}
	IS(fermata_job_result(NULL), -EINVAL);
	SAYS("context is NULL");
	return unused;
}

static void threads(void)
{
	pthread_t all[4];
	int i;

	IS(fermata_open("/nowhere", &(fermata_context *){ NULL }), -ENOENT);
	for (i = 0; i < 4; i++)
		OK(pthread_create(&all[i], NULL, thread, NULL));
	for (i = 0; i < 4; i++)
		OK(pthread_join(all[i], NULL));
	SAYS("/nowhere");
}

static void cards(void)
{
	uint32_t number = 99;
	size_t found = 0;
	fermata_context *context;

	OK(fermata_cards(NULL, 0, &found));
	IS(found, 1);
	OK(fermata_cards(&number, 1, &found));
	IS(number, 0);
	OK(fermata_open_engine("sha256", &context));
	IS(fermata_setup(context, "sha256", 0), -EEXIST);
	fermata_close(context);
}

/* A child frees its copies of its parent's objects, and has its own memory at the same address. */
static void child(struct tenant t, fermata_queue *queue)
{
	const struct fermata_queue_job nothing = { .op = FERMATA_QUEUE_OP_END };
	unsigned char *own = mmap(t.memory, 2 * PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	fermata_queue *other;
	struct tenant mine;

	IS((uintptr_t)own, (uintptr_t)t.memory);
	memset(own, 7, 2 * PAGE);
	IS((uintptr_t)fermata_arena_address(t.arena), 0);
	IS(fermata_post(queue, &nothing, NULL), -EINVAL);
	SAYS("not mapped in a child of fork(): open a context in the child");
	IS(fermata_create_queue(t.arena, 0, 2, &other), -EINVAL);
	IS(fermata_needs_doorbell(queue), 0);
	IS(fermata_queue_completed(queue), 0);
	IS(fermata_queue_outstanding(queue), 0);
	mine = hashes();
	OK(fermata_start(mine.context, 0, NULL));
	fermata_free_queue(queue);
	end(t);
	wait_for(mine, FERMATA_EVENT_DONE);
	OK(memcmp(mine.memory, abc, sizeof(abc)));
	end(mine);
	IS(own[0] + own[2 * PAGE - 1], 14);
	OK(munmap(own, 2 * PAGE));
}

static void by_fork(void)
{
	struct tenant t = counts(0);
	fermata_queue *queue;
	int ended = -1;
	uint64_t job;
	pid_t pid;

	OK(fermata_create_queue(t.arena, PAGE, 4, &queue));
	OK(fermata_start(t.context, 0, &job));
	pid = fork();
	if (!pid) {
		child(t, queue);
		exit(0);
	}
	IS(waitpid(pid, &ended, 0), pid);
	IS(ended, 0);
	/* The parent's job goes on, and its memory is there. */
	IS(fermata_wait(t.context, FERMATA_EVENT_HELD | FERMATA_EVENT_DONE,
			fermata_deadline_in(50 * MS), NULL), -ETIMEDOUT);
	IS(status(t).job, job);
	t.memory[0] = 1;
	IS(fermata_queue_completed(queue), 0);
	fermata_free_queue(queue);
	end(t);
}

static const char *pci;
static void *unbind(void *unused)
{
	FILE *file = fopen("/sys/bus/pci/drivers/fermata/unbind", "w");

	usleep(100000);
	TRUE(file && fputs(pci, file) >= 0 && fclose(file) == 0);
	return unused;
}

static void gone(void)
{
	struct tenant t = counts(0);
	pthread_t other;

	pci = getenv("FERMATA_PCI");
	TRUE(pci);
	OK(fermata_start(t.context, 0, NULL));
	OK(pthread_create(&other, NULL, unbind, NULL));
	IS(fermata_wait(t.context, FERMATA_EVENT_HELD, UINT64_MAX, NULL), -ENODEV);
	SAYS("the card is gone (close the context");
	OK(pthread_join(other, NULL));
	IS(fermata_start(t.context, 0, NULL), -ENODEV);
	end(t);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "arena", arena }, { "job", job }, { "deadline", deadline }, { "poll", by_poll },
	{ "eventfd", by_eventfd }, { "hold", hold }, { "snapshot", snapshot },
	{ "failing", failing }, { "errors", errors }, { "descriptor", descriptor },
	{ "share", share }, { "parameters", parameters }, { "queue", by_queue }, { "sizes", sizes },
	{ "signals", signals }, { "threads", threads }, { "cards", cards }, { "fork", by_fork },
	{ "gone", gone },
};

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	bool all = !strcmp(name, "all"), found = false;
	size_t i;

	for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!strcmp(name, tests[i].name) || (all && tests[i].run != gone)) {
			tests[i].run();
			found = true;
		}
	if (!found)
		fprintf(stderr, "there is no test %s\n", name);
	return !found;
}
