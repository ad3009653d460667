/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of the scheduler share: policies, parameters, the order of events
 * as the card saw it, a gate behind which jobs are queued, and what the driver measures.
 */
#ifndef _FM_SCHED_H
#define _FM_SCHED_H

#include "fm.h"

/* --- calls: 0 or a negative errno ----------------------------------------- */

u32 fm_number(int fd);
/* The same, where failing is not what is tested. */
/* boost_ns: whole milliseconds. */
void fm_policy(const char *name, u64 boost_ns);
void fm_param(int fd, u32 param, u64 value);

/* Becomes nobody: no capabilities, for good. */
void fm_drop_privileges(void);

/* --- contexts -------------------------------------------------------------- */

/* A slice that no test outlasts. */
#define FM_LONG_SLICE	(10000 * FM_MS)

/* A context of the list engine with this slice, on its engine's first slot. */
void fm_tenant(struct fm_ctx *c, u64 slice_ns);
/* The same with a job of limit steps, a microsecond each at speed 1. */
void fm_tenant_list(struct fm_ctx *c, u64 slice_ns, u64 limit, u64 seed, struct fm_expect *e);
void fm_must_start(struct fm_ctx *c);
void fm_must_hold(struct fm_ctx *c);
void fm_must_resume(struct fm_ctx *c);
/* Returns when it is held. */
void fm_hold(struct fm_ctx *c);
/* Ends a job of fm_job_endless() on a list, whatever state it is in. */
void fm_end_endless(struct fm_ctx *c);

/* --- the gate ---------------------------------------------------------------- */

/*
 * Jobs that are started between the two wait while this one has the slot. So
 * who runs with whom is no matter of luck.
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

struct card_turn {
	int slot;
	enum card_what what;
	u64 token;
};

/* Number of the next event. */
u64 card_history_end(void);
/* Events from number from on, a PAUSE that is repeated or lost left out; returns how many. */
int card_history(u64 from, struct card_turn *turns, int max);
/*
 * Was a PAUSE written again since then? Then the machine was slow to hear the answer, and the driver
 * did not count on that slot: it may have preempted on another one as well.
 */
bool card_pause_repeated(u64 from);
/* Only CARD_START and CARD_RESUME: who came on a slot after whom. */
int card_order(u64 from, struct card_turn *turns, int max);
/* Waits until there are so many of these. */
int card_until_turns(u64 from, struct card_turn *turns, int max, int n);
/* Has the tenant had such an event since then? */
bool card_had(u64 from, enum card_what what, u64 token);
/* How many turns the tenant had since then. */
int card_turns_of(u64 from, u64 token);
/* What several tenants had of a slot, at one and the same time. */
void card_runs_of(int slot, const struct fm_ctx *c, struct card_run *runs, int n);
/* Is part of whole at least low and at most high percent? */
bool fm_percent_within(u64 part, u64 whole, u64 low, u64 high);
/*
 * NULL, or what was lost or done twice: each of these contexts, all of one slot, has had one job, which
 * is done; the card has run it as often as the driver says.
 */
const char *fm_runs_wrong(const struct fm_ctx *c, int n);
/* One event that must come. */
struct fm_turn {
	int slot;	/* -1: any */
	enum card_what what;
	const struct fm_ctx *c;
};

/* NULL, or how the card's events from number from on differ from those wanted. */
const char *fm_turns_wrong(u64 from, const struct fm_turn *want, int n);

/* Cgroups (version 2) of the tests' own. Paths are below the root of the hierarchy. */

#define FM_ROOT		(-1)

/* The path of cgroup number n; all cgroups of a test begin so, and go with the test. */
#define FM_CGROUP	"fermata-test-"

/* There is a tree of cgroups version 2. */
bool fm_has_cgroups(void);
/* This process, and contexts that it opens from now on, belong to the cgroup, which is made. */
void fm_enter(int cgroup);
void fm_enter_path(const char *path);
/* Makes it, in one that there is. */
void fm_cgroup_make(const char *path);
/* Gives it to a user, as one delegates a subtree. */
void fm_cgroup_delegate(const char *path, uid_t uid);
/* A descriptor of its directory. */
int fm_cgroup_open(const char *path);
/* The inode of its directory. */
u64 fm_cgroup_number(int cgroup);
u64 fm_cgroup_number_of(const char *path);
/* Writes to a file of it; dies when that fails. */
void fm_cgroup_put(const char *path, const char *file, const char *text);
/* The number in a file of it, behind key; key "": the first. */
u64 fm_cgroup_get(const char *path, const char *file, const char *key);
/* Removes one where nobody is in it, and leaves its registration to the driver. */
void fm_cgroup_remove(const char *path);
/* FERMATA_IOC_GROUP_SET for it, of the first card, as root: 0 or a negative errno. */
int fm_group_set(const char *path, struct fermata_group_set *g);
/* The same, where failing is not what is tested. */
void fm_group(const char *path, struct fermata_group_set *g);
int fm_group_remove(const char *path);
/* Removes all of the tests' and their registrations, and that of the root: where nobody is in them: the next ones of the same name are others. */
void fm_cgroups_remove(void);

/* --- what the driver measures ----------------------------------------------------- */

struct fm_histogram {
	u64 count, sum, min, max;
	u64 buckets[FERMATA_HISTOGRAM_BUCKETS];
};

void fm_slot_info(int slot, struct fermata_slot_info *info);
/* Of a slot, or of a context (0: that of the file). */
void fm_histogram(int fd, u32 kind, u32 number, struct fm_histogram *h);
/* What stands there, a number. */
u64 fm_sysfs_number(int slot, const char *name);
/* A number of /proc/self/fdinfo of a file; dies if it is not there. */
u64 fm_fdinfo_number(int fd, const char *key);
/* NULL, or what cannot be. */
const char *fm_histogram_wrong(const struct fm_histogram *h);

/* The driver's tracepoints, through a tracing instance of the test's own. */

/* NULL, or why there are none to be had. The end of each test closes it. */
const char *fm_trace_open(void);
void fm_trace_close(void);
/* Forgets what was recorded. */
void fm_trace_begin(void);
/* Switches one of the events, or all ("enable" of the folder): "start/enable", "enable". */
void fm_trace_switch(const char *which, bool on);
/* Events recorded. */
int fm_trace_count(void);
/*
 * NULL, or the first of the n wanted events that was not recorded behind the one before it. One is
 * written "start ctx=%u resume=1": its name without "fermata_", and of its fields those that matter.
 */
const char *fm_trace_wrong(const char *const *want, int n);
/* Waits until they were. */
void fm_trace_until(const char *const *want, int n);

#endif
