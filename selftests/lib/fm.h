/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests share: contexts, jobs with their expected results, the
 * emulated card's control socket and the agent that tells it who owns what.
 *
 * Helpers end the test with a message (fm_die) when something that is not
 * under test goes wrong; a test judges by the harness's ASSERT and EXPECT.
 */
#ifndef _FM_H
#define _FM_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "fermata.h"

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

#define FM_PAGE		4096UL
/* No test waits longer for anything: a guard against hangs, not a criterion. */
#define FM_GUARD_MS	40000
#define FM_MS		1000000ULL

#define FM_TEST(fixture, name)	TEST_F_TIMEOUT(fixture, name, fm_timeout())

/* Seconds that a test may take with its teardown where it says nothing else: a guard as well. */
int fm_timeout(void);

__attribute__((noreturn, format(printf, 1, 2)))
void fm_die(const char *fmt, ...);
u64 fm_now(void);
void fm_sleep_us(unsigned int us);
/* The number that a variable of the environment has. */
u32 fm_number_from(const char *name, u32 otherwise);
/* Writes a text into a file of the kernel's: 0 or a negative errno. */
int fm_put(const char *path, const char *text);
/* Path of a file of the card below /sys, or of one of its slots (else -1). */
const char *fm_sysfs_path(int slot, const char *name);
/*
 * Adds to the count of something in the file that FERMATA_TALLY names: what a
 * run did to the module ("kills"), and what must be none ("lost jobs").
 */
void fm_tally(const char *what, u64 n);
/* Tells of something that was measured there. */
void fm_figure(const char *what, u64 value);

/* --- calls: 0 or a negative errno ----------------------------------------- */

int fm_ioctl(int fd, unsigned long cmd, void *arg);
/* The same, where failing is not what is tested. */
void fm_must(int fd, unsigned long cmd, void *arg, const char *what);
const char *fm_dev(void);
int fm_open_dev(int flags);
void fm_status(int fd, struct fermata_status *st);
u32 fm_state(int fd);
int fm_start(int fd);
int fm_start_replayable(int fd);
int fm_preempt(int fd, u32 flags);
int fm_preempt_of(int fd, u32 context, u32 flags);
int fm_resume(int fd);
int fm_resume_of(int fd, u32 context);
int fm_ring(int fd);
int fm_hint(int fd, u64 at);
int fm_wait_until(int fd, u32 events, u64 deadline, struct fermata_wait *w);
/* Waits within the guard time; dies when nothing comes. */
void fm_wait(int fd, u32 events);
int fm_param_set(int fd, u32 param, u64 value);
int fm_param_set_of(int fd, u32 context, u32 param, u64 value);
u64 fm_param_get(int fd, u32 param);
int fm_regs_write(int fd, const struct fermata_reg *regs, u32 count);
int fm_reg_write(int fd, u32 offset, u64 value);
int fm_reg_read(int fd, u32 offset, u64 *value);
/* The same, where failing is not what is tested. */
u64 fm_reg_get(int fd, u32 offset);
int fm_results(int fd, const u32 *offsets, u32 count);
/* A new eventfd that counts the context's jobs as they end. */
int fm_eventfd(int fd);
int fm_eventfd_of(int fd, u32 events);
/* How often its job was preempted. */
u64 fm_preemptions(int fd);
/* Waits until it was, however late the host makes the ends of slices. */
void fm_until_preempted(int fd, u64 times);
/* Waits until the driver says so. */
void fm_until_state(int fd, u32 state);

/* --- the card as the driver sees it ----------------------------------------- */

enum fm_engine {
	FM_LIST, FM_MEM, FM_SHA, FM_MIX, FM_ENGINES,
	/* These have tests of their own, and no jobs here. */
	FM_RISCV = FM_ENGINES, FM_COUNT_UP, FM_COUNT_DOWN, FM_QUEUE,
	FM_ALL_ENGINES
};

extern const u64 fm_afu[FM_ALL_ENGINES][2];	/* low, high */
void fm_card_info(struct fermata_card_info *info);
/* How many contexts are set up. */
u32 fm_contexts(void);
bool fm_has_window(void);
/* Whether an engine whose state is forged reaches no more than its context's arena. */
bool fm_confines(void);
/* First slot with the engine, or -1. */
int fm_slot_of(enum fm_engine engine);
/* All of them, a bit each. */
u32 fm_slots_of(enum fm_engine engine);
u64 fm_slot_resets(int slot);

/* Name of its PCI function, or NULL; remembered once it was known. */
const char *fm_pci(void);
/* A descriptor of the function's configuration space. */
int fm_pci_config(int flags);
/* Chooses how fm_reset() resets the function ("flr", "bus"); false: it cannot be done so. */
bool fm_reset_by(const char *method);
/* Resets the function: 0 or a negative errno. */
int fm_reset(void);
int fm_unbind(void);
int fm_bind(void);
/* How often it is enabled, or a negative errno. */
int fm_pci_enabled(void);
/*
 * From now on every call of a kernel function by the task of this name begins so late; false:
 * FERMATA_DELAY does not name the module that does it (selftests/delay).
 */
bool fm_delay(const char *function, const char *comm, unsigned int ms);
void fm_delay_no_more(void);
/* FERMATA_MODULE names the module's file. */
bool fm_module_known(void);
int fm_module_remove(void);
/* Loads it; dies when that fails. */
void fm_module_load(const char *args);
void fm_until_node(void);
/* Removes it, loads it, and waits for the card; dies when one of that fails. */
void fm_module_reload(const char *args);

/* --- contexts ---------------------------------------------------------------- */

struct fm_ctx {
	int fd;
	int slot;
	enum fm_engine engine;
	u64 token;
	u8 *mem;
	size_t len;
	off_t off;	/* for mmap() */
	u64 base;
	u64 head;	/* of the last list */
};

u64 fm_token(void);
/* Everything up to the first START, on one slot (-1: the engine's first). */
void fm_ctx_new_on(struct fm_ctx *c, enum fm_engine engine, size_t len, int slot);
void fm_ctx_new(struct fm_ctx *c, enum fm_engine engine, size_t len);
/* The steps of it: the engine; an arena of the program's own memory, 0 or an errno; the rest. */
void fm_ctx_setup(struct fm_ctx *c, enum fm_engine engine, int slot);
int fm_arena_own(struct fm_ctx *c, void *mem, size_t len);
void fm_ctx_snapshot(struct fm_ctx *c);
/* A context like fm_ctx_new()'s with such an arena; 0 or an errno. */
int fm_ctx_own(struct fm_ctx *c, enum fm_engine engine, void *mem, size_t len);
/* With an arena of len bytes of that of another, from offset on; base: its device address, 0: where it is mapped. */
int fm_ctx_share(struct fm_ctx *c, const struct fm_ctx *of, size_t offset, size_t len, u64 base);
/* Closes a context while another has the pages, which the card knows by the same token. */
void fm_ctx_unshare(struct fm_ctx *c);
void fm_ctx_close(struct fm_ctx *c);
/* Tells the card which pages [mem, mem + len) of process pid are token's. */
void fm_agent_add(pid_t pid, const void *mem, size_t len, u64 token);
void fm_agent_gone(u64 token);
void fm_agent_all_gone(void);
/* Guest-physical address of a page of this process. */
u64 fm_gpa(const void *mem);

/* --- jobs ---------------------------------------------------------------------- */

/* The arena begins with the result that the engine writes. */
struct fm_result {
	u64 count;
	u64 checksum;
};

#define FM_DATA		0x1000UL	/* offset of the data in the arena */

#define FM_REG_TAG	0x50

struct fm_expect {
	struct fm_result r;
	u8 digest[32];
	size_t len;	/* of what the digest covers */
};

u64 fm_splitmix(u64 x);
void fm_fill(void *mem, size_t len, u64 seed);
void fm_sha256(const void *data, size_t len, u8 digest[32]);

/*
 * Registers and data of a job, and what must come out of it.
 * List: nodes in a ring, scattered; limit steps (0: until a next of 0, so for
 * ever, until fm_list_cut()).
 */
void fm_job_list(struct fm_ctx *c, u32 nodes, u64 limit, u64 seed, struct fm_expect *e);
/* What the list of the last job comes to with another limit. */
void fm_list_expect(struct fm_ctx *c, u64 limit, u64 seed, struct fm_expect *e);
void fm_list_cut(struct fm_ctx *c, u32 nodes);
/* A mode: that of a register that was never written, 0. */
#define FM_NO_MODE	(1ULL << 63)
void fm_job_mem(struct fm_ctx *c, size_t len, u64 count, u64 seed, u64 mode,
		struct fm_expect *e);
void fm_job_sha(struct fm_ctx *c, size_t len, u64 seed, struct fm_expect *e);
/* len: whole lines of 64 bytes; block: 64 to 65536, a multiple of 64. */
void fm_job_mix(struct fm_ctx *c, size_t len, size_t block, u64 seed, struct fm_expect *e);
/* Mixes the first blocks of mem as blockmix does; returns the digest of the last one. */
u64 fm_mix(void *mem, size_t len, size_t block, u64 blocks, u64 seed);
/* A job of the context's engine that takes about us microseconds at speed 1. */
void fm_job_any(struct fm_ctx *c, u64 us, u64 seed, struct fm_expect *e);
/*
 * A job without end (sha256 and blockmix: as long as the arena). A list's ends by
 * fm_list_cut(c, FM_ENDLESS_NODES).
 */
#define FM_ENDLESS_NODES	16
void fm_job_endless(struct fm_ctx *c);
/* Compares arena and result registers: NULL or what is wrong. */
const char *fm_job_wrong(struct fm_ctx *c, const struct fm_expect *e);
/* Start, wait, check: NULL or what is wrong. */
/* Writes registers and the token of a job, and declares what of it is wanted. */
void fm_job_regs(struct fm_ctx *c, const struct fermata_reg *regs, u32 count,
		 const u32 *results, u32 nresults);
const char *fm_job_run(struct fm_ctx *c, const struct fm_expect *e);
/* Start, and hold it as soon as the engine runs it: NULL or the call that failed. */
const char *fm_job_hold(struct fm_ctx *c);
/* Resumes a held job, on an engine that is slow no more, and checks it: NULL or what is wrong. */
const char *fm_job_finish(struct fm_ctx *c, const struct fm_expect *e);

/* --- a job queue in an arena, as a program uses it (uapi/fermata.h, "job queues") ---- */

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

/* --- the emulated card's control socket ------------------------------------------- */

bool card_present(void);
/* Sends a request and returns its reply's keys; dies on err or silence. */
const char *card_cmd(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
u64 card_key(const char *reply, const char *key);
bool card_base(void);		/* base profile, or a card of which nothing is known */
bool card_relay(void);		/* the driver writes orders */
void card_speed(int slot, unsigned int speed);
void card_set(int slot, const char *settings);
void card_fault(int slot, const char *kind);
u64 card_counter(int slot, const char *name);
/* Writes to registers of the slot, orders left out. */
u64 card_register_writes(int slot);
u64 card_violations(void);
const char *card_why(void);

struct card_run {
	u64 starts, resumes, pauses, finishes, run_ns;
};

/* What one tenant had of a slot; all 0 if it never ran. */
void card_run_of(int slot, u64 token, struct card_run *run);
/* The engine runs the job of this tenant now. */
bool card_runs(int slot, u64 token);
void card_until_runs(int slot, u64 token);
/* The same, and its restore is over: an order that comes before aborts the restore. */
void card_until_works(int slot, u64 token);

/*
 * --- the machine from outside, where it is one of vm/boot's ---
 *
 * A port whose other end unplugs and plugs cards, and presses the power button (vm/fermatavm/host.py).
 */

bool host_present(void);
/* One request; NULL, or why it was refused. Dies when nobody answers. */
const char *host_ask(const char *verb, unsigned int number);

/*
 * The machine sleeps: S3, in which the card loses its power; to idle, in which it keeps it, and
 * which the power button ends (QEMU's clock raises no ACPI event while the machine runs); or the
 * kernel's rehearsals, in which devices are suspended and resumed, a second later or at once.
 *
 * Or the machine hibernates (vm/boot --disk): devices are frozen and thawed only (rehearsal); an
 * image is written and restored at once (test_resume); the machine resets or switches itself off
 * (platform), boots again, and restores the image.
 */
enum fm_sleep {
	FM_S3, FM_TO_IDLE, FM_REHEARSAL, FM_SHORT_REHEARSAL,
	FM_DISK_REHEARSAL, FM_DISK_TEST_RESUME, FM_DISK_REBOOT, FM_DISK_PLATFORM
};

/* NULL, or why the machine cannot sleep like that and wake up by itself. */
const char *fm_cannot_sleep(enum fm_sleep how);
/* Sleeps and wakes: 0 or a negative errno. */
int fm_sleep_and_wake(enum fm_sleep how);

/* --- processes ------------------------------------------------------------------------ */

struct fm_child {
	pid_t pid;	/* 0 in the child */
	int rd;
	int wr;
};

/* The child dies with its parent. */
void fm_fork(struct fm_child *ch);
void fm_say(struct fm_child *ch, u64 word);
u64 fm_hear(struct fm_child *ch);
/* Exit status of wait(), after at most the guard time. */
int fm_reap(struct fm_child *ch);
int fm_reap_within(struct fm_child *ch, u64 ns);
void fm_kill(struct fm_child *ch);
/* Waits until a thread sleeps in a system call. */
void fm_until_blocked(pid_t tid, long call);

struct fm_thread {
	pthread_t thread;
	pid_t tid;	/* 0: it is not up yet */
	void (*run)(void *arg);
	void *arg;
};

/* Starts a thread, and returns when it sleeps in the system call. */
void fm_thread_asleep(struct fm_thread *t, void (*run)(void *arg), void *arg, long call);

/* --- the fixture ------------------------------------------------------------------------ */

#define FM_TOKENS	4096	/* tenants at once */

struct fm_policy {
	char name[16];
	u64 boost_ms;
};

/* The files policy and boost_ms of the card: 0 or a negative errno. */
int fm_policy_set(const char *name);
int fm_boost_set(u64 ms);
void fm_policy_get(struct fm_policy *policy);

struct fm_shared {
	pthread_mutex_t lock;	/* of the control socket */
	u32 requests;
	u64 token[FM_TOKENS];	/* 0: none */
	struct fm_policy policy;	/* before the test; no name: not known */
};

/* NULL, or why the test cannot run. */
const char *fm_setup(struct fm_shared *sh, bool card);
/*
 * Ends the process after three quarters of this time. The harness does at its end, and would kill the
 * one that does the teardown too: what a test that takes too long leaves behind (a policy, pages that
 * are some tenant's) would be the others'.
 */
void fm_end_before(int timeout);
/* NULL, or what the card says against the test. */
const char *fm_teardown(struct fm_shared *sh);
bool fm_require_card(void);
/* FERMATA_SLOW: what programs do comes late, and what must be in time for it proves nothing. */
bool fm_is_slow(void);

#define FM_FIXTURE_(fixture, card)						\
FIXTURE(fixture)								\
{										\
	struct fm_shared sh;							\
};										\
FIXTURE_SETUP(fixture)								\
{										\
	const char *why = fm_setup(&self->sh, card);				\
										\
	if (why && fm_require_card()) {						\
		TH_LOG("%s", why);						\
		ASSERT_EQ(NULL, why);						\
	}									\
	if (why)								\
		SKIP(return, "%s", why);					\
	fm_end_before(_metadata->timeout);					\
}										\
FIXTURE_TEARDOWN_PARENT(fixture)						\
{										\
	const char *why = fm_teardown(&self->sh);				\
										\
	if (why)								\
		TH_LOG("%s", why);						\
	EXPECT_EQ(NULL, why);							\
}

/* Tests that need the emulated card, and tests that run on any card. */
#define FM_FIXTURE_CARD(fixture)	FM_FIXTURE_(fixture, true)
#define FM_FIXTURE_ANY(fixture)		FM_FIXTURE_(fixture, false)

#define ASSERT_GOOD(expr)							\
do {										\
	const char *wrong_ = (expr);						\
										\
	if (wrong_)								\
		TH_LOG("%s", wrong_);						\
	ASSERT_EQ(NULL, wrong_);						\
} while (0)

/* Of the library itself. */
struct fm_shared;
extern struct fm_shared *fm_sh;

#endif /* _FM_H */
