/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers of the scheduler's tests: policies, parameters, the order of events as the
 * card saw it, a gate behind which jobs are queued, and the driver's statistics.
 */
#ifndef _FM_SCHED_H
#define _FM_SCHED_H

#include "fm.h"

/* --- calls: 0 or a negative errno ----------------------------------------- */

u32 fm_number(int fd);
/* These die if the call fails. boost_ns: whole milliseconds. */
void fm_policy(const char *name, u64 boost_ns);
void fm_param(int fd, u32 param, u64 value);

/* Becomes the user nobody, without capabilities, for good. */
void fm_drop_privileges(void);

/* --- contexts -------------------------------------------------------------- */

/* A slice longer than any test. */
#define FM_LONG_SLICE	(10000 * FM_MS)

/* A context of the list engine with this slice, on its engine's first slot. */
void fm_tenant(struct fm_ctx *c, u64 slice_ns);
/* The same with a job of limit steps, a microsecond each at speed 1. */
void fm_tenant_list(struct fm_ctx *c, u64 slice_ns, u64 limit, u64 seed, struct fm_expect *e);
void fm_must_start(struct fm_ctx *c);
void fm_must_hold(struct fm_ctx *c);
void fm_must_resume(struct fm_ctx *c);
/* The same, and waits until the job is held. */
void fm_hold(struct fm_ctx *c);
/* Ends a job of fm_job_endless() on a list, whatever state it is in. */
void fm_end_endless(struct fm_ctx *c);

/* --- the gate ---------------------------------------------------------------- */

/*
 * The gate is a context that occupies the slot: jobs that are started between the two calls wait
 * behind it. This makes their order independent of timing.
 */
void fm_gate_close(struct fm_ctx *gate);
void fm_gate_open(struct fm_ctx *gate);

/* --- the order of events as the card saw it ------------------------------------ */

enum card_what {
	CARD_START, CARD_RESUME, CARD_PAUSE, CARD_BOUNDARY, CARD_LOST, CARD_PAUSED,
	CARD_EMPTIED, CARD_FINISHED,
	/* Of runs by order: the restore was aborted, nothing was saved, nothing was started. */
	CARD_NOT_RUN, CARD_DROPPED, CARD_REFUSED
};

/* How many events the card keeps. */
#define CARD_HISTORY	65536

struct card_turn {
	int slot;
	enum card_what what;
	u64 token;
};

/* Number of the next event. */
u64 card_history_end(void);
/* Events from number from on, without repeated or lost PAUSEs; returns how many. */
int card_history(u64 from, struct card_turn *turns, int max);
/*
 * Was a PAUSE written again since then? If so, the machine was slow to notice the response, and the
 * driver did not count on that slot: it may have preempted another slot as well.
 */
bool card_pause_repeated(u64 from);
/* Only CARD_START and CARD_RESUME: the order in which contexts got a slot. */
int card_order(u64 from, struct card_turn *turns, int max);
/* The same, and sets *from to the number of the next event; max is CARD_HISTORY. */
int card_order_next(u64 *from, struct card_turn *turns, int max);
/* Waits until there are n of these. */
int card_until_turns(u64 from, struct card_turn *turns, int max, int n);
/* Has the tenant had such an event since then? */
bool card_had(u64 from, enum card_what what, u64 token);
/* How many turns the tenant had since then. */
int card_turns_of(u64 from, u64 token);
/* The use of a slot by several tenants, all read at the same time. */
void card_runs_of(int slot, const struct fm_ctx *c, struct card_run *runs, int n);
/* Is part of whole at least low and at most high percent? */
bool fm_percent_within(u64 part, u64 whole, u64 low, u64 high);
/*
 * NULL, or which run was lost or done twice. Each of these contexts, all of one slot, has had one
 * job, which is done; the card must have run it as often as the driver says.
 */
const char *fm_runs_wrong(const struct fm_ctx *c, int n);
/* One expected event. */
struct fm_turn {
	int slot;	/* -1: any */
	enum card_what what;
	const struct fm_ctx *c;
};

/* NULL, or how the card's events from number from on differ from the expected ones. */
const char *fm_turns_wrong(u64 from, const struct fm_turn *want, int n);

/* Cgroups (version 2) of the tests. Paths are relative to the root of the hierarchy. */

#define FM_ROOT		(-1)

/* Prefix of the path of cgroup number n; the end of a test removes all cgroups with it. */
#define FM_CGROUP	"fermata-test-"

/* Whether there is a cgroup v2 hierarchy. */
bool fm_has_cgroups(void);
/* Makes the cgroup and moves this process, and contexts that it opens from now on, to it. */
void fm_enter(int cgroup);
void fm_enter_path(const char *path);
/*
 * Makes a cgroup; its parent must exist.  Registers the root with its children, so that each cgroup
 * below it is a group.
 */
void fm_cgroup_make(const char *path);
/* Delegates the cgroup to a user. */
void fm_cgroup_delegate(const char *path, uid_t uid);
/* A descriptor of its directory. */
int fm_cgroup_open(const char *path);
/* The inode of its directory. */
u64 fm_cgroup_number(int cgroup);
u64 fm_cgroup_number_of(const char *path);
/* Writes to a file of the cgroup; dies if that fails. */
void fm_cgroup_put(const char *path, const char *file, const char *text);
/* The number after key in a file of the cgroup; key "": the first number. */
u64 fm_cgroup_get(const char *path, const char *file, const char *key);
/* Removes an empty cgroup, and leaves its registration to the driver. */
void fm_cgroup_remove(const char *path);
/* FERMATA_IOC_GROUP_SET for the cgroup, on the first card, as root: 0 or a negative errno. */
int fm_group_set(const char *path, struct fermata_group_set *g);
/* The same, but dies if the call fails. */
void fm_group(const char *path, struct fermata_group_set *g);
/* Registers the cgroup, or changes whether each child of it is a group of its own. */
void fm_group_children(const char *path, bool children);
int fm_group_remove(const char *path);
/*
 * Removes all empty cgroups of the tests with their registrations, and the registration of the
 * root, so that cgroups of later tests with the same names start afresh.
 */
void fm_cgroups_remove(void);

/* --- the driver's statistics ------------------------------------------------------ */

struct fm_histogram {
	u64 count, sum, min, max;
	u64 buckets[FERMATA_HISTOGRAM_BUCKETS];
};

void fm_slot_info(int slot, struct fermata_slot_info *info);
/* Histogram of a slot, or of a context (0: that of the file). */
void fm_histogram(int fd, u32 kind, u32 number, struct fm_histogram *h);
/* The number in a file of the card or a slot in sysfs. */
u64 fm_sysfs_number(int slot, const char *name);
/* A number in /proc/self/fdinfo of a file; dies if it is missing. */
u64 fm_fdinfo_number(int fd, const char *key);
/* NULL, or how the histogram contradicts itself. */
const char *fm_histogram_wrong(const struct fm_histogram *h);

/* The driver's tracepoints, through a tracing instance of the test. */

/* NULL, or why tracepoints are unavailable. The end of each test closes the instance. */
const char *fm_trace_open(void);
void fm_trace_close(void);
/* Discards what was recorded. */
void fm_trace_begin(void);
/* Switches one event ("start/enable") or all ("enable") on or off. */
void fm_trace_switch(const char *which, bool on);
/* How many events were recorded. */
int fm_trace_count(void);
/* Records interrupts, and what the scheduler decides, instead of all the driver's events. */
void fm_trace_interrupts(void);

struct fm_interrupts {
	/* Expiries of the driver's timers, and the most of one timer in one interrupt. */
	u64 expiries, most_expiries;
	/* PAUSEs, STARTs, resets and reservations in interrupts, and the most in one of them. */
	u64 decisions, most_decisions;
};

/* Returns what fm_trace_interrupts() has recorded. */
struct fm_interrupts fm_trace_read_interrupts(void);
/*
 * NULL, or the first of the n wanted events that was not recorded after its predecessor. An event
 * is written as "start ctx=%u resume=1": its name without "fermata_", and the fields that matter.
 */
const char *fm_trace_wrong(const char *const *want, int n);
/* Sets value to a field of the nth event, from 0 on, that is like want; false: there is none. */
bool fm_trace_number(const char *want, int n, const char *field, u64 *value);
/* Waits until all of them were recorded. */
void fm_trace_until(const char *const *want, int n);

#endif
