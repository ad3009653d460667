// SPDX-License-Identifier: GPL-2.0
/* Helpers of the scheduler's tests. */
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <sys/stat.h>

#include "sched.h"
#include "mem.h"

/* --- calls -------------------------------------------------------------------- */

void fm_policy(const char *name, u64 boost_ns)
{
	int rc = fm_policy_set(name) ?: fm_boost_set(boost_ns / FM_MS);

	if (rc)
		fm_die("policy %s: %s", name, strerror(-rc));
}

u32 fm_number(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.context;
}

void fm_param(int fd, u32 param, u64 value)
{
	int rc = fm_param_set(fd, param, value);

	if (rc)
		fm_die("parameter %u: %s", param, strerror(-rc));
}

void fm_drop_privileges(void)
{
	if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
		fm_die("cannot drop privileges: %s", strerror(errno));
}

/* --- contexts ------------------------------------------------------------------- */

void fm_tenant(struct fm_ctx *c, u64 slice_ns)
{
	fm_ctx_new(c, FM_LIST, 4 * FM_PAGE);
	fm_param(c->fd, FERMATA_PARAM_TIMESLICE, slice_ns);
}

void fm_tenant_list(struct fm_ctx *c, u64 slice_ns, u64 limit, u64 seed, struct fm_expect *e)
{
	fm_tenant(c, slice_ns);
	fm_job_list(c, 64, limit, seed, e);
}

void fm_must_start(struct fm_ctx *c)
{
	int rc = fm_start(c->fd);

	if (rc)
		fm_die("START: %s", strerror(-rc));
}

void fm_must_hold(struct fm_ctx *c)
{
	int rc = fm_preempt(c->fd, FERMATA_PREEMPT_HOLD);

	if (rc)
		fm_die("PREEMPT: %s", strerror(-rc));
}

void fm_must_resume(struct fm_ctx *c)
{
	int rc = fm_resume(c->fd);

	if (rc)
		fm_die("RESUME: %s", strerror(-rc));
}

void fm_hold(struct fm_ctx *c)
{
	fm_must_hold(c);
	fm_wait(c->fd, FERMATA_EVENT_HELD);
}

void fm_end_endless(struct fm_ctx *c)
{
	fm_list_cut(c, FM_ENDLESS_NODES);
	fm_wait(c->fd, FERMATA_EVENT_DONE);
}

/* --- the gate ------------------------------------------------------------------------ */

void fm_gate_close(struct fm_ctx *gate)
{
	fm_tenant(gate, FM_LONG_SLICE);
	/* No policy lets another context run before the gate. */
	fm_param(gate->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	fm_param(gate->fd, FERMATA_PARAM_PRIORITY, 31);
	card_speed(gate->slot, 1);
	fm_job_endless(gate);
	fm_must_start(gate);
	card_until_runs(gate->slot, gate->token);
}

void fm_gate_open(struct fm_ctx *gate)
{
	fm_end_endless(gate);
	fm_ctx_close(gate);
}

/* --- the order of events --------------------------------------------------------------- */

static const char * const names[] = {
	[CARD_START] = "start", [CARD_RESUME] = "resume", [CARD_PAUSE] = "pause",
	[CARD_BOUNDARY] = "boundary", [CARD_LOST] = "lost", [CARD_PAUSED] = "paused",
	[CARD_EMPTIED] = "emptied", [CARD_FINISHED] = "finished", [CARD_NOT_RUN] = "notrun",
	[CARD_DROPPED] = "dropped", [CARD_REFUSED] = "refused"
};

/*
 * The driver's register writes are posted, and the control socket can overtake them. A register
 * read flushes them, and SLOT_INFO does one.
 */
static void push_writes(void)
{
	struct fermata_slot_info info = { .size = sizeof(info) };
	int fd = fm_open_dev(0);

	fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &info);
	close(fd);
}

u64 card_history_end(void)
{
	push_writes();
	return card_key(card_cmd("history"), "next");
}

/* Parses one event of a reply; returns where the next event begins, or NULL. */
static const char *parse_turn(const char *p, struct card_turn *turn)
{
	char what[16], *end;
	int i;

	turn->slot = strtol(p, &end, 10);
	if (end == p || sscanf(end, ":%15[a-z]", what) != 1)
		return NULL;
	for (i = 0; strcmp(what, names[i]); i++)
		if (i == CARD_REFUSED)
			fm_die("the card's log has '%s'", what);
	turn->what = i;
	turn->token = strtoull(end + strlen(what) + 2, &end, 0);
	return *end == ',' ? end + 1 : end;
}

/* A PAUSE that is written again before the engine responds, or after a lost one, is one event. */
static bool repeats(const struct card_turn *turns, int n, const struct card_turn *turn)
{
	if (turn->what != CARD_PAUSE && turn->what != CARD_BOUNDARY)
		return turn->what == CARD_LOST;
	while (n-- > 0)
		if (turns[n].slot == turn->slot)
			return turns[n].what == turn->what;
	return false;
}

/* Reads events from number *from on, and sets *from to the number of the next one. */
static int read_history(u64 *from, struct card_turn *turns, int max, bool all)
{
	int n = 0;

	push_writes();
	for (;;) {
		const char *reply = card_cmd("history from=%llu", (unsigned long long)*from);
		const char *p = strstr(reply, "events=") + 7;
		u64 next = card_key(reply, "next");

		if (card_key(reply, "from") != *from)
			fm_die("the card has forgotten event %llu", (unsigned long long)*from);
		if (next == *from)
			return n;
		*from = next;
		while (p && *p && n < max) {
			p = parse_turn(p, &turns[n]);
			n += p && (all || !repeats(turns, n, &turns[n]));
		}
		if (n == max)
			return n;
	}
}

int card_history(u64 from, struct card_turn *turns, int max)
{
	return read_history(&from, turns, max, false);
}

static int only_starts(struct card_turn *turns, int n)
{
	int i, kept = 0;

	for (i = 0; i < n; i++)
		if (turns[i].what == CARD_START || turns[i].what == CARD_RESUME)
			turns[kept++] = turns[i];
	return kept;
}

bool card_pause_repeated(u64 from)
{
	static struct card_turn all[CARD_HISTORY];
	int n = read_history(&from, all, CARD_HISTORY, true), i;

	for (i = 0; i < n; i++)
		if (repeats(all, i, &all[i]))
			return true;
	return false;
}

int card_order_next(u64 *from, struct card_turn *turns, int max)
{
	return only_starts(turns, read_history(from, turns, max, true));
}

int card_order(u64 from, struct card_turn *turns, int max)
{
	static struct card_turn all[CARD_HISTORY];
	int n = card_order_next(&from, all, CARD_HISTORY);

	if (n > max)
		n = max;
	memcpy(turns, all, n * sizeof(*turns));
	return n;
}

int card_until_turns(u64 from, struct card_turn *turns, int max, int n)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int have;

	while ((have = card_order(from, turns, max)) < n) {
		if (fm_now() > end)
			fm_die("%d turns, not %d", have, n);
		fm_sleep_us(5000);
	}
	return have;
}

bool card_had(u64 from, enum card_what what, u64 token)
{
	static struct card_turn turns[CARD_HISTORY];
	int n = card_history(from, turns, CARD_HISTORY), i;

	for (i = 0; i < n; i++)
		if (turns[i].what == what && turns[i].token == token)
			return true;
	return false;
}

int card_turns_of(u64 from, u64 token)
{
	static struct card_turn turns[CARD_HISTORY];
	int n = card_order(from, turns, CARD_HISTORY), i, found = 0;

	for (i = 0; i < n; i++)
		found += turns[i].token == token;
	return found;
}

void card_runs_of(int slot, const struct fm_ctx *c, struct card_run *runs, int n)
{
	const char *p = card_cmd("runs slot=%d", slot);
	int i;

	memset(runs, 0, n * sizeof(*runs));
	while (p && *p) {
		unsigned long long tag, v[5];

		if (sscanf(p, " %llx:%llu:%llu:%llu:%llu:%llu", &tag, &v[0], &v[1], &v[2], &v[3],
			   &v[4]) == 6)
			for (i = 0; i < n; i++)
				if (c[i].token == tag)
					runs[i] = (struct card_run){ v[0], v[1], v[2], v[3], v[4] };
		p = strchr(p, ',');
		p = p ? p + 1 : NULL;
	}
}

bool fm_percent_within(u64 part, u64 whole, u64 low, u64 high)
{
	return part * 100 >= whole * low && part * 100 <= whole * high;
}

static bool ran_as_told(const struct card_run *run, const struct fermata_status *st)
{
	return st->state == FERMATA_STATE_DONE && run->starts == 1 && run->finishes == 1 &&
	       run->pauses == st->preemptions && run->pauses == run->resumes &&
	       run->starts + run->resumes == st->slices;
}

const char *fm_runs_wrong(const struct fm_ctx *c, int n)
{
	static char text[256];
	struct card_run runs[n], *run = runs;
	struct fermata_status st;
	int i;

	card_runs_of(c[0].slot, c, runs, n);
	for (i = 0; i < n; i++, run++) {
		fm_status(c[i].fd, &st);
		if (ran_as_told(run, &st))
			continue;
		snprintf(text, sizeof(text),
			 "context %d: state %u, %llu preemptions, %llu slices; card: %llu starts, %llu resumes, %llu pauses, %llu finishes",
			 i, st.state, (unsigned long long)st.preemptions,
			 (unsigned long long)st.slices, (unsigned long long)run->starts,
			 (unsigned long long)run->resumes, (unsigned long long)run->pauses,
			 (unsigned long long)run->finishes);
		return text;
	}
	return NULL;
}

/* --- expected events ------------------------------------------------------------------ */

#define TEXT	600

static void describe(char *text, int slot, enum card_what what, int tenant)
{
	size_t n = strlen(text);
	char who = tenant < 0 ? '?' : 'A' + tenant;

	if (slot < 0)
		snprintf(text + n, TEXT - n, " %s:%c", names[what], who);
	else
		snprintf(text + n, TEXT - n, " %d:%s:%c", slot, names[what], who);
}

/* Tenants are numbered in the order in which they are expected. */
static int tenant_of(u64 token, const struct fm_turn *want, int n)
{
	int i, j, place = 0;

	for (i = 0; i < n; i++) {
		for (j = 0; j < i && want[j].c != want[i].c; j++)
			;
		if (j < i)
			continue;
		if (want[i].c->token == token)
			return place;
		place++;
	}
	return -1;
}

const char *fm_turns_wrong(u64 from, const struct fm_turn *want, int n)
{
	static struct card_turn got[CARD_HISTORY];
	static char text[2 * TEXT + 32];
	char wanted[TEXT] = "", seen[TEXT] = "";
	int have = card_history(from, got, CARD_HISTORY), i;
	bool same = have == n;

	for (i = 0; i < n || i < have; i++) {
		if (i < have)
			describe(seen, got[i].slot, got[i].what, tenant_of(got[i].token, want, n));
		if (i < n)
			describe(wanted, want[i].slot, want[i].what,
				 tenant_of(want[i].c->token, want, n));
		if (i < n && i < have)
			same &= got[i].what == want[i].what && got[i].token == want[i].c->token &&
				(want[i].slot < 0 || got[i].slot == want[i].slot);
	}
	if (same)
		return NULL;
	snprintf(text, sizeof(text), "the card saw%s; wanted%s", seen, wanted);
	return text;
}

#define TREE	"/sys/fs/cgroup"

static const char *path_of(const char *path, const char *file)
{
	static char full[4096];

	snprintf(full, sizeof(full), TREE "%s%s%s%s", *path ? "/" : "", path, *file ? "/" : "",
		 file);
	return full;
}

static const char *name_of(int cgroup)
{
	static char name[32];

	if (cgroup == FM_ROOT)
		return "";
	snprintf(name, sizeof(name), FM_CGROUP "%d", cgroup);
	return name;
}

bool fm_has_cgroups(void)
{
	return !access(TREE "/cgroup.procs", W_OK);
}

void fm_cgroup_make(const char *path)
{
	fm_group_children("", true);
	if (mkdir(path_of(path, ""), 0755) && errno != EEXIST)
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
}

void fm_enter_path(const char *path)
{
	fm_cgroup_put(path, "cgroup.procs", "0");
}

void fm_enter(int cgroup)
{
	if (cgroup != FM_ROOT)
		fm_cgroup_make(name_of(cgroup));
	fm_enter_path(name_of(cgroup));
}

void fm_cgroup_delegate(const char *path, uid_t uid)
{
	static const char * const files[] = {
		"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"
	};
	size_t i;

	for (i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (chown(path_of(path, files[i]), uid, uid))
			fm_die("%s: %s", path_of(path, files[i]), strerror(errno));
}

int fm_cgroup_open(const char *path)
{
	int fd = open(path_of(path, ""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
	return fd;
}

u64 fm_cgroup_number_of(const char *path)
{
	struct stat dir;

	if (stat(path_of(path, ""), &dir))
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
	return dir.st_ino;
}

u64 fm_cgroup_number(int cgroup)
{
	return fm_cgroup_number_of(name_of(cgroup));
}

void fm_cgroup_put(const char *path, const char *file, const char *text)
{
	int rc = fm_put(path_of(path, file), text);

	if (rc)
		fm_die("%s > %s: %s", text, path_of(path, file), strerror(-rc));
}

u64 fm_cgroup_get(const char *path, const char *file, const char *key)
{
	return fm_number_in(path_of(path, file), key);
}

int fm_group_set(const char *path, struct fermata_group_set *g)
{
	int fd = fm_open_dev(0), rc;

	g->size = sizeof(*g);
	g->cgroup = fm_cgroup_open(path);
	rc = fd < 0 ? fd : fm_ioctl(fd, FERMATA_IOC_GROUP_SET, g);
	close(g->cgroup);
	close(fd);
	return rc;
}

void fm_group(const char *path, struct fermata_group_set *g)
{
	int rc = fm_group_set(path, g);

	if (rc)
		fm_die("GROUP_SET of %s: %s", path, strerror(-rc));
}

void fm_group_children(const char *path, bool children)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_CHILDREN, .children = children };

	fm_group(path, &g);
}

int fm_group_remove(const char *path)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_REMOVE };

	return fm_group_set(path, &g);
}

/* Removes the registration first: otherwise it would outlive the cgroup for a moment. */
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	if (kind != FTW_DP)
		return 0;
	fm_group_remove(path + strlen(TREE "/"));
	rmdir(path);
	return 0;
}

void fm_cgroup_remove(const char *path)
{
	if (rmdir(path_of(path, "")))
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
}

void fm_cgroups_remove(void)
{
	glob_t found;
	size_t i;

	if (fm_has_cgroups())
		fm_group_remove("");
	if (glob(TREE "/" FM_CGROUP "*", 0, NULL, &found))
		return;
	for (i = 0; i < found.gl_pathc; i++)
		nftw(found.gl_pathv[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
	globfree(&found);
}
