/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers of all tests: contexts, jobs with their expected results, the
 * emulated card's control socket, and the agent that tells the card which
 * tenant owns which pages.
 *
 * Helpers end the test with a message (fm_die) if something fails that is not
 * under test; tests use the harness's ASSERT and EXPECT for what they check.
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
/* Upper limit of every wait: it guards against hangs, and is no pass criterion. */
#define FM_GUARD_MS	40000
#define FM_MS		1000000ULL

#define FM_TEST(fixture, name)	TEST_F_TIMEOUT(fixture, name, fm_timeout())
/* A test that may take minutes: the card dies many times, or FERMATA_OWNERS is a minute. */
#define SLOW_TEST(fixture, name)	TEST_F_TIMEOUT(fixture, name, 300)

/* Default time limit of a test with its teardown, in seconds: a guard as well. */
int fm_timeout(void);

__attribute__((noreturn, format(printf, 1, 2)))
void fm_die(const char *fmt, ...);
u64 fm_now(void);
void fm_sleep_us(unsigned int us);
/* The value of an environment variable as a number; otherwise, if it is unset or empty. */
u32 fm_number_from(const char *name, u32 otherwise);
/* Writes a text to a file of the kernel: 0 or a negative errno. */
int fm_put(const char *path, const char *text);
/* Path below /sys of a file of a slot, or of the card (slot -1). */
const char *fm_sysfs_path(int slot, const char *name);
/*
 * Adds n to a count in the file that FERMATA_TALLY names. Counts are of what a
 * run did to the module ("kills"), or of what must not occur ("lost jobs").
 */
void fm_tally(const char *what, u64 n);
/* Records a measured value in the same file. */
void fm_figure(const char *what, u64 value);

/* --- calls: 0 or a negative errno ----------------------------------------- */

int fm_ioctl(int fd, unsigned long cmd, void *arg);
/* The same, but dies if the call fails. */
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
/* A new descriptor that holds the context's jobs, or a negative errno. */
int fm_hold_fd(int fd);
int fm_hold_fd_of(int fd, u32 context);
int fm_ring(int fd);
int fm_hint(int fd, u64 at);
int fm_wait_until(int fd, u32 events, u64 deadline, struct fermata_wait *w);
/* Waits for at most the guard time; dies if none of the events occurs. */
void fm_wait(int fd, u32 events);
int fm_param_set(int fd, u32 param, u64 value);
int fm_param_set_of(int fd, u32 context, u32 param, u64 value);
u64 fm_param_get(int fd, u32 param);
int fm_regs_write(int fd, const struct fermata_reg *regs, u32 count);
int fm_reg_write(int fd, u32 offset, u64 value);
int fm_reg_read(int fd, u32 offset, u64 *value);
/* The same, but dies if the call fails. */
u64 fm_reg_get(int fd, u32 offset);
int fm_results(int fd, const u32 *offsets, u32 count);
/* A new eventfd that counts the jobs of the context that have ended. */
int fm_eventfd(int fd);
int fm_eventfd_of(int fd, u32 events);
/* How often the context's job was preempted. */
u64 fm_preemptions(int fd);
/* Waits for this many preemptions, however late slices end on a slow host. */
void fm_until_preempted(int fd, u64 times);
/* Waits until the driver reports this state. */
void fm_until_state(int fd, u32 state);

/* --- the card as the driver sees it ----------------------------------------- */

enum fm_engine {
	FM_LIST, FM_MEM, FM_SHA, FM_MIX, FM_ENGINES,
	/* These have their own tests, and no jobs here. */
	FM_RISCV = FM_ENGINES, FM_COUNT_UP, FM_COUNT_DOWN, FM_QUEUE,
	FM_ALL_ENGINES
};

extern const u64 fm_afu[FM_ALL_ENGINES][2];	/* low, high */
void fm_card_info(struct fermata_card_info *info);
/* How many contexts are set up. */
u32 fm_contexts(void);
bool fm_has_window(void);
/* Whether the driver polls the card, because it has no interrupts, or gets none. */
bool fm_is_polled(void);
/* Whether an engine whose state is forged reaches no more than its context's arena. */
bool fm_confines(void);
/* First slot with the engine, or -1. */
int fm_slot_of(enum fm_engine engine);
/* All slots with the engine, one bit for each. */
u32 fm_slots_of(enum fm_engine engine);
u64 fm_slot_resets(int slot);

/* Name of the card's PCI function, or NULL; cached once it is known. */
const char *fm_pci(void);
/* A descriptor of the function's configuration space. */
int fm_pci_config(int flags);
/* Chooses how fm_reset() resets the function ("flr", "bus"); false: not supported. */
bool fm_reset_by(const char *method);
/* Resets the function: 0 or a negative errno. */
int fm_reset(void);
int fm_unbind(void);
int fm_bind(void);

/* Errors of the card's link, as the kernel's aer_inject reports them: correctable, and not. */
#define FM_COR_RECEIVER		(1U << 0)
/* Not fatal: completion time-out, completer abort, unsupported request. */
#define FM_UNC_TIMEOUT		(1U << 14)
#define FM_UNC_COMPLETER	(1U << 15)
#define FM_UNC_UNSUPPORTED	(1U << 20)
#define FM_UNC_DATA_LINK	(1U << 4)	/* data link protocol: fatal */

/* Whether there is no aer_inject, or the card has no port that could report errors. */
bool fm_no_link_errors(void);
/* Lets the PCI core handle such errors, of the card or of the port above it: 0 or a negative errno. */
int fm_link_error(bool by_port, u32 correctable, u32 uncorrectable);
/* Path of a file of the port above the card; NULL: the card is on the root bus. */
const char *fm_port_file(const char *name);
void fm_log_clear(void);
bool fm_log_has(const char *text);
/* The enable count of the PCI function, or a negative errno. */
int fm_pci_enabled(void);
/*
 * Delays every call of a kernel function by tasks of this name, from now on. Returns false if
 * FERMATA_DELAY does not name the module that does this (selftests/delay).
 */
bool fm_delay(const char *function, const char *comm, unsigned int ms);
void fm_delay_no_more(void);
/* Whether FERMATA_MODULE names the module's file. */
bool fm_module_known(void);
int fm_module_remove(void);
/* Loads the module; dies if that fails. */
void fm_module_load(const char *args);
void fm_until_node(void);
/* Removes the module, loads it, and waits for the card; dies if any of these steps fails. */
void fm_module_reload(const char *args);
/*
 * Lets contexts use memory of other processes from now on, if necessary by loading the module again,
 * for which no context may be open; false: not possible.
 */
bool fm_foreign_memory(void);

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
/* Makes a context that is ready for its first START, on one slot (-1: the engine's first). */
void fm_ctx_new_on(struct fm_ctx *c, enum fm_engine engine, size_t len, int slot);
void fm_ctx_new(struct fm_ctx *c, enum fm_engine engine, size_t len);
/* Its steps: the engine; an arena of the program's own memory, 0 or an errno; the rest. */
void fm_ctx_setup(struct fm_ctx *c, enum fm_engine engine, int slot);
int fm_arena_own(struct fm_ctx *c, void *mem, size_t len);
void fm_ctx_snapshot(struct fm_ctx *c);
/* Like fm_ctx_new(), with an arena of the program's own memory; 0 or an errno. */
int fm_ctx_own(struct fm_ctx *c, enum fm_engine engine, void *mem, size_t len);
/*
 * With an arena of len bytes at offset in the arena of another context. base: its device address,
 * 0: where it is mapped.
 */
int fm_ctx_share(struct fm_ctx *c, const struct fm_ctx *of, size_t offset, size_t len, u64 base);
/* Closes a context that shares its pages: another context keeps them, under the same token. */
void fm_ctx_unshare(struct fm_ctx *c);
void fm_ctx_close(struct fm_ctx *c);
/* Tells the card that the pages [mem, mem + len) of process pid belong to token. */
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
	size_t len;	/* bytes that the digest covers */
};

u64 fm_splitmix(u64 x);
void fm_fill(void *mem, size_t len, u64 seed);
void fm_sha256(const void *data, size_t len, u8 digest[32]);

/*
 * Write the registers and data of a job, and fill in the expected result.
 * List: a ring of scattered nodes; limit steps (0: until a null next pointer,
 * that is for ever, or until fm_list_cut()).
 */
void fm_job_list(struct fm_ctx *c, u32 nodes, u64 limit, u64 seed, struct fm_expect *e);
/* The expected result of the last job's list with another limit. */
void fm_list_expect(struct fm_ctx *c, u64 limit, u64 seed, struct fm_expect *e);
void fm_list_cut(struct fm_ctx *c, u32 nodes);
/* A mode: do not write the register, so that its value is 0. */
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
 * A job without end (sha256 and blockmix: over the whole arena). fm_list_cut(c, FM_ENDLESS_NODES)
 * ends that of a list.
 */
#define FM_ENDLESS_NODES	16
void fm_job_endless(struct fm_ctx *c);
/* Compares arena and result registers: NULL or what is wrong. */
const char *fm_job_wrong(struct fm_ctx *c, const struct fm_expect *e);
/* Writes the registers and the token of a job, and declares its result registers. */
void fm_job_regs(struct fm_ctx *c, const struct fermata_reg *regs, u32 count,
		 const u32 *results, u32 nresults);
/* Starts the job, waits for its end and checks it: NULL or what is wrong. */
const char *fm_job_run(struct fm_ctx *c, const struct fm_expect *e);
/* Starts the job, and holds it as soon as the engine runs it: NULL or the call that failed. */
const char *fm_job_hold(struct fm_ctx *c);
/* Resumes a held job, on an engine at full speed, and checks it: NULL or what is wrong. */
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
	size_t data;	/* offset of the rest of the arena */
};

/* A context with an empty queue, started; one completion event for count jobs, or after us. */
void fm_queue_new(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us);
/* The same without START. */
void fm_queue_make(struct fm_queue *q, u32 entries, size_t data, u32 count, u32 us);
bool fm_queue_has_room(const struct fm_queue *q);
/* Posts a job without a system call; its tag is its number. The queue must have room. */
void fm_queue_post(struct fm_queue *q, u32 op, u64 src, u64 dst, u64 length, u64 arg);
/* Rings the doorbell if the engine has announced that it leaves its slot. */
void fm_queue_tell(struct fm_queue *q);
/* Whether job n is complete. */
bool fm_queue_is_complete(const struct fm_queue *q, u64 n);
/*
 * The engine's count of complete jobs, once it is at least n, or at the end of the guard time. The
 * engine writes the status of a job before it counts the job.
 */
u64 fm_queue_counted(const struct fm_queue *q, u64 n);
/* Waits for the oldest job not yet reaped, without system calls, and returns its status. */
struct fermata_queue_status fm_queue_reap(struct fm_queue *q);
/* CRC-32C of bytes, continued from crc. */
u32 fm_crc32c(u32 crc, const void *data, size_t len);

/* --- the emulated card's control socket ------------------------------------------- */

bool card_present(void);
/* Sends a request and returns the keys of the reply; dies on an error, or without a reply. */
const char *card_cmd(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
u64 card_key(const char *reply, const char *key);
bool card_base(void);		/* base profile; without a control socket: no window check */
bool card_relay(void);		/* the driver writes orders */
void card_speed(int slot, unsigned int speed);
void card_set(int slot, const char *settings);
void card_fault(int slot, const char *kind);
u64 card_counter(int slot, const char *name);
/* How many register writes the slot has had, without orders. */
u64 card_register_writes(int slot);
u64 card_violations(void);
const char *card_why(void);

struct card_run {
	u64 starts, resumes, pauses, finishes, run_ns;
};

/* A tenant's use of a slot; all 0 if the tenant never ran there. */
void card_run_of(int slot, u64 token, struct card_run *run);
/* Whether the engine runs the job of this tenant now. */
bool card_runs(int slot, u64 token);
void card_until_runs(int slot, u64 token);
/* The same, after the restore: an order that arrives during the restore aborts it. */
void card_until_works(int slot, u64 token);

/*
 * --- the machine from outside, if vm/boot started it ---
 *
 * A port whose other end unplugs and plugs cards, and presses the power button (vm/fermatavm/host.py).
 */

bool host_present(void);
/* Sends one request; NULL, or why it was refused. Dies without a reply. */
const char *host_ask(const char *verb, unsigned int number);

/*
 * Ways to sleep: S3, in which the card loses power; suspend to idle, in which the card keeps
 * power, and which the power button ends (QEMU's clock raises no ACPI event while the machine
 * runs); or the kernel's rehearsals, which suspend the devices, and resume them after a second or
 * at once.
 *
 * Ways to hibernate (vm/boot --disk): devices are only frozen and thawed (rehearsal); an image is
 * written and restored at once (test_resume); the machine resets or switches itself off
 * (platform), boots again, and restores the image.
 */
enum fm_sleep {
	FM_S3, FM_TO_IDLE, FM_REHEARSAL, FM_SHORT_REHEARSAL,
	FM_DISK_REHEARSAL, FM_DISK_TEST_RESUME, FM_DISK_REBOOT, FM_DISK_PLATFORM
};

/* NULL, or why the machine cannot sleep that way and wake up by itself. */
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
/* The status as wait() returns it; waits for at most the guard time. */
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
	struct fm_policy policy;	/* before the test; empty name: unknown */
};

/* NULL, or why the test cannot run. */
const char *fm_setup(struct fm_shared *sh, bool card);
/*
 * Ends the process after three quarters of this time, so that its teardown still runs. At the end
 * of the time the harness would kill the process that does the teardown too, and what the test has
 * left behind (a policy, pages of a tenant) would disturb later tests.
 */
void fm_end_before(int timeout);
/* NULL, or what the card or its checker found wrong. */
const char *fm_teardown(struct fm_shared *sh);
bool fm_require_card(void);
/* FERMATA_SLOW: programs run late, so checks that depend on their timing prove nothing. */
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

/* Private to the library. */
struct fm_shared;
extern struct fm_shared *fm_sh;

#endif /* _FM_H */
