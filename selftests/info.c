// SPDX-License-Identifier: GPL-2.0
/*
 * What calls report about card, slots and contexts: arena and device_base; counters compared
 * with the card's; the keys and values of /proc/PID/fdinfo.
 */
#include "kselftest_harness.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_ANY(info);
FM_FIXTURE_CARD(card);

FM_TEST(info, point_19_outputs_are_zeroed_then_filled)
{
	struct fermata_card_info card;
	struct fermata_slot_info slot;
	struct fermata_status st;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	memset(&card, 0xa5, sizeof(card));
	card.size = sizeof(card);
	card.flags = 0;
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &card));
	EXPECT_EQ(FERMATA_UAPI_VERSION, card.uapi_version);
	EXPECT_LT(0, card.slots);
	EXPECT_GE(FERMATA_MAX_SLOTS, card.slots);
	EXPECT_EQ(0, card.contexts);
	EXPECT_LT(0, card.max_contexts);
	EXPECT_LE(1 << 20, card.max_arena);
	EXPECT_EQ(0, card.features & ~(0x1fULL | FERMATA_FEATURE_IOMMU | FERMATA_FEATURE_FOREIGN_MEMORY));

	memset(&slot, 0xa5, sizeof(slot));
	slot.size = sizeof(slot);
	slot.slot = 0;
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &slot));
	EXPECT_LT(0, slot.state_pages);
	EXPECT_GE(4096, slot.state_pages);
	EXPECT_EQ(0, slot.flags & ~(FERMATA_SLOT_BOUNDARY | FERMATA_SLOT_BOUNDARY_ONLY));

	/* A context that is not set up has no status. */
	memset(&st, 0xa5, sizeof(st));
	st.size = sizeof(st);
	st.flags = 0;
	ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_STATUS, &st));
	EXPECT_EQ(FERMATA_STATE_NEW, st.state);
	EXPECT_EQ(FERMATA_NO_SLOT, st.slot);
	EXPECT_EQ(0, st.error);
	EXPECT_EQ(0, st.job | st.run_ns | st.wait_ns | st.slices | st.preemptions | st.finished |
		     st.failed | st.fault_addr | st.arena_length | st.device_base |
		     st.snapshot_length);
}

FM_TEST(info, status_follows_the_context)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	u32 context;

	fm_ctx_new(&c, FM_LIST, 65536);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_IDLE, st.state);
	EXPECT_EQ(65536, st.arena_length);
	EXPECT_EQ((uintptr_t)c.mem, st.device_base);
	EXPECT_EQ(4096, st.snapshot_length);
	EXPECT_EQ(0, st.job);
	context = st.context;
	fm_job_list(&c, 100, 0, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_DONE, st.state);
	EXPECT_EQ(FERMATA_NO_SLOT, st.slot);
	EXPECT_EQ(context, st.context);
	EXPECT_EQ(1, st.job);
	EXPECT_EQ(1, st.slices);
	EXPECT_EQ(0, st.preemptions);
	EXPECT_EQ(1, st.finished);
	EXPECT_EQ(0, st.failed);
	EXPECT_EQ(0, st.error);
	EXPECT_LT(0, st.run_ns);
}

FM_TEST(info, contexts_have_numbers_of_their_own)
{
	struct fermata_card_info card;
	struct fermata_status a, b;
	struct fm_ctx one, two;

	fm_ctx_new(&one, FM_LIST, 4096);
	fm_ctx_new(&two, FM_LIST, 4096);
	fm_status(one.fd, &a);
	fm_status(two.fd, &b);
	EXPECT_NE(a.context, b.context);
	fm_card_info(&card);
	EXPECT_EQ(2, card.contexts);
	fm_ctx_close(&one);
	fm_card_info(&card);
	EXPECT_EQ(1, card.contexts);
	fm_ctx_close(&two);
	fm_card_info(&card);
	EXPECT_EQ(0, card.contexts);
}

/* A new arena has no data of the previous owner of its memory. */
FM_TEST(info, point_19_new_arena_is_zero)
{
	struct fm_ctx c;
	size_t i, round;

	for (round = 0; round < 4; round++) {
		fm_ctx_new(&c, FM_LIST, 256 * 1024);
		for (i = 0; i < c.len; i++)
			ASSERT_EQ(0, c.mem[i]);
		memset(c.mem, 0x77, c.len);
		fm_ctx_close(&c);
	}
}

/* Free pages after count contexts, each with an arena of a megabyte, were opened and closed. */
static long free_after(int count)
{
	while (count--) {
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};
		struct fermata_arena_create arena = { .size = sizeof(arena), .length = 1 << 20 };
		int fd = fm_open_dev(0);

		fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
		fm_must(fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
		close(fd);
	}
	return sysconf(_SC_AVPHYS_PAGES);
}

FM_TEST(info, point_06_closed_contexts_free_their_memory)
{
	int count = 128, tries = 5;
	long before, after;

	/* Other programs use memory, too, but hardly this much each time. */
	do {
		before = free_after(1);
		after = free_after(count);
	} while (before - after > count * 128 && --tries);
	TH_LOG("%ld pages free before, %ld after", before, after);
	EXPECT_LT(0, tries);
}

FM_TEST(info, largest_arena)
{
	struct fermata_card_info card;
	struct fm_ctx c;
	size_t i;

	fm_card_info(&card);
	/* Larger arenas may be refused for lack of memory. */
	fm_ctx_new(&c, FM_SHA, card.max_arena < 2 << 20 ? card.max_arena : 2 << 20);
	for (i = 0; i < c.len; i += 8)
		*(u64 *)(c.mem + i) = i;
	for (i = 0; i < c.len; i += 8)
		ASSERT_EQ(i, *(u64 *)(c.mem + i));
}

/* The engine uses the addresses that the program chose, wherever the arena is mapped. */
FM_TEST(info, fixed_device_base)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_FIXED_BASE, .length = 65536,
		.device_base = (1ULL << 47) - 65536
	};
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fm_ctx c = { .engine = FM_LIST, .len = 65536 };
	struct fermata_status st;
	struct fm_expect e;

	c.token = fm_token();
	c.slot = fm_slot_of(FM_LIST);
	c.fd = fm_open_dev(0);
	ASSERT_LE(0, c.fd);
	setup.slot_mask = 1U << c.slot;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SETUP, &setup));
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	c.mem = mmap(NULL, c.len, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, arena.mmap_offset);
	ASSERT_NE(MAP_FAILED, c.mem);
	fm_agent_add(getpid(), c.mem, c.len, c.token);
	fm_status(c.fd, &st);
	c.base = st.device_base;
	EXPECT_EQ((1ULL << 47) - 65536, c.base);
	fm_job_list(&c, 64, 0, 9, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
}

FM_TEST(info, arena_can_be_mapped_in_parts_and_twice)
{
	struct fm_ctx c;
	u8 *part, *again;

	fm_ctx_new(&c, FM_LIST, 16384);
	part = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, c.off + 8192);
	again = mmap(NULL, 16384, PROT_READ, MAP_SHARED, c.fd, c.off);
	ASSERT_NE(MAP_FAILED, part);
	ASSERT_NE(MAP_FAILED, again);
	strcpy((char *)part, "here");
	EXPECT_EQ(0, strcmp((char *)c.mem + 8192, "here"));
	EXPECT_EQ(0, strcmp((char *)again + 8192, "here"));
}

/* The driver's counters agree with those of the card. */
FM_TEST(card, counters_agree_with_the_card)
{
	struct fermata_slot_info before = { .size = sizeof(before) }, after;
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	fm_ctx_new(&c, FM_LIST, 65536);
	before.slot = c.slot;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SLOT_INFO, &before));
	for (i = 0; i < 5; i++) {
		fm_job_list(&c, 100, 1000, i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
	after = (struct fermata_slot_info) { .size = sizeof(after), .slot = c.slot };
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SLOT_INFO, &after));
	fm_status(c.fd, &st);
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(5, st.finished);
	EXPECT_EQ(5, run.finishes);
	EXPECT_EQ(st.slices, run.starts + run.resumes);
	EXPECT_EQ(st.slices, after.switches - before.switches);
	EXPECT_EQ(before.resets, after.resets);
	EXPECT_LT(before.busy_ns, after.busy_ns);
}

FM_TEST(card, profile_is_what_the_card_has)
{
	struct fermata_card_info card;

	fm_card_info(&card);
	EXPECT_EQ(!card_base(), !!(card.features & FERMATA_FEATURE_WINDOW));
	EXPECT_EQ(!card_base(), !!(card.features & FERMATA_FEATURE_QUIESCENT));
	EXPECT_EQ(!card_base(), !!(card.features & FERMATA_FEATURE_SNAPSHOT_UNIT));
}

/* The costs of switches are measured. */
FM_TEST(info, costs_of_a_switch)
{
	struct fermata_slot_info slot = { .size = sizeof(slot) };
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	slot.slot = c.slot;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SLOT_INFO, &slot));
	EXPECT_LT(0, slot.save_ns);
	EXPECT_LT(0, slot.restore_ns);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SLOT_INFO, &slot));
	EXPECT_LT(0, slot.restore_ns);
	fm_ctx_close(&c);
}

/* --- what users can learn about each other ------------------------------------------- */

#define USER	1234
#define GROUP	4321

/* Becomes a user of one more group (0: none), with no capability but those of the mask. */
static void become_user(gid_t group, u64 caps)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = {
		{ .effective = (u32)caps, .permitted = (u32)caps },
		{ .effective = caps >> 32, .permitted = caps >> 32 },
	};

	if (prctl(PR_SET_KEEPCAPS, 1) || setgroups(!!group, &group) ||
	    setresgid(USER, USER, USER) || setresuid(USER, USER, USER) ||
	    syscall(SYS_capset, &head, data))
		fm_die("another user: %s", strerror(errno));
}

static int slot_histogram(int fd, int slot)
{
	struct fermata_histogram h = {
		.size = sizeof(h), .kind = FERMATA_HISTOGRAM_GAP, .number = slot
	};

	return fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h);
}

static int context_histogram(int fd, u32 number)
{
	struct fermata_histogram h = {
		.size = sizeof(h), .kind = FERMATA_HISTOGRAM_RUN, .number = number
	};

	return fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h);
}

/* What the list reports of a context, without the fields that are public. */
static struct fermata_context_info listed(int fd, u32 number)
{
	struct fermata_context_info info = { .size = sizeof(info) };
	int rc;

	do {
		rc = fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, &info);
		if (rc)
			fm_die("no context %u in the list: %s", number, strerror(-rc));
	} while (info.context != number);
	info.cursor = 0;
	info.context = 0;
	info.state = 0;
	info.slot_mask = 0;
	/* Owners of the file learn the group of its opener: group.is_the_cgroup. */
	info.group = 0;
	return info;
}

/* Is it without any information about the tenant? */
static bool tells_nothing(const struct fermata_context_info *info)
{
	struct fermata_context_info none = {
		.size = sizeof(none), .pid = FERMATA_NO_PID, .slot = FERMATA_NO_SLOT
	};

	return !memcmp(&none, info, sizeof(none));
}

/* The same of a slot. */
static bool slot_tells_nothing(int fd, int slot)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	return info.afu_id_hi && info.state_pages && !info.switches && !info.busy_ns &&
	       !info.resets && !info.storms && !info.resumes && !info.preemptions &&
	       !info.finished && !info.faults && !info.timeouts && !info.spurious;
}

/* Opens a file of sysfs: 0 or a negative errno. */
static int opens(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

/* Whether the file `monitor` of the card has the figures of a context. */
static bool is_monitored(const char *path, u32 number)
{
	unsigned long long run_ns = 0;
	char line[2048], start[32];
	FILE *file = fopen(path, "re");
	char *found;

	if (!file)
		return false;
	snprintf(start, sizeof(start), "context=%u ", number);
	while (fgets(line, sizeof(line), file) && strncmp(line, start, strlen(start)))
		;
	fclose(file);
	found = strstr(line, " run_ns=");
	return found && sscanf(found, " run_ns=%llu", &run_ns) == 1 && run_ns;
}

struct known {
	int bare;		/* a file without SETUP */
	u32 number;		/* of root's context */
	int slot;
	char monitor[512];
	char counter[512];
};

static int known_to_a_stranger(const struct known *k)
{
	struct fermata_context_info info;

	become_user(0, 0);
	if (slot_histogram(k->bare, k->slot) != -EPERM)
		return 1;
	if (slot_histogram(k->bare, 99) != -EINVAL)
		return 2;
	if (context_histogram(k->bare, k->number) != -EPERM)
		return 3;
	if (!slot_tells_nothing(k->bare, k->slot))
		return 4;
	info = listed(k->bare, k->number);
	if (!tells_nothing(&info))
		return 5;
	if (opens(k->monitor) != -EACCES || opens(k->counter) != -EACCES)
		return 6;
	return 0;
}

static int known_to_a_member(const struct known *k)
{
	become_user(GROUP, 0);
	if (!is_monitored(k->monitor, k->number))
		return 1;
	/* Nothing else is allowed. */
	if (slot_histogram(k->bare, k->slot) != -EPERM || opens(k->counter) != -EACCES)
		return 2;
	if (open(k->monitor, O_WRONLY) >= 0)
		return 3;
	return 0;
}

static int known_by_perfmon(const struct known *k)
{
	struct fermata_context_info info;

	become_user(0, 1ULL << CAP_PERFMON);
	if (slot_histogram(k->bare, k->slot) || context_histogram(k->bare, k->number))
		return 1;
	if (slot_tells_nothing(k->bare, k->slot))
		return 2;
	info = listed(k->bare, k->number);
	/* The owner is revealed only with more capabilities. */
	if (!info.run_ns || info.pid != FERMATA_NO_PID)
		return 3;
	return 0;
}

/* Both the process that opened a context and any holder of its descriptor count as owners. */
static int known_to_the_owner(const struct known *k, int own, u32 number)
{
	struct fermata_context_info info;

	become_user(0, 0);
	if (context_histogram(own, 0) || context_histogram(k->bare, number))
		return 1;
	info = listed(k->bare, number);
	if (tells_nothing(&info) || !info.timeslice_ns)
		return 2;
	info = listed(own, k->number);
	if (!tells_nothing(&info))
		return 3;
	return 0;
}

#define IN_CHILD(expr)						\
({								\
	struct fm_child ch_;					\
	int status_;						\
								\
	fm_fork(&ch_);						\
	if (!ch_.pid)						\
		_exit(expr);					\
	status_ = fm_reap(&ch_);				\
	WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;		\
})

FM_TEST(info, defect_16_figures_of_others)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct known k;
	struct fm_expect e;
	struct fm_ctx c;
	int own;

	fm_ctx_new(&c, FM_LIST, 65536);
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	k.number = fm_number(c.fd);
	k.slot = c.slot;
	k.bare = fm_open_dev(0);
	ASSERT_LE(0, k.bare);
	strcpy(k.monitor, fm_sysfs_path(-1, "monitor"));
	strcpy(k.counter, fm_sysfs_path(c.slot, "starts"));
	/* Root may know everything. */
	EXPECT_EQ(0, slot_histogram(k.bare, c.slot));
	EXPECT_FALSE(slot_tells_nothing(k.bare, c.slot));
	EXPECT_LT(0, fm_sysfs_number(c.slot, "starts"));
	EXPECT_TRUE(is_monitored(k.monitor, k.number));
	EXPECT_EQ(0, IN_CHILD(known_to_a_stranger(&k)));
	EXPECT_EQ(0, IN_CHILD(known_by_perfmon(&k)));
	/* As the udev rule does. */
	ASSERT_EQ(0, chown(k.monitor, -1, GROUP));
	EXPECT_EQ(0, IN_CHILD(known_to_a_stranger(&k)));
	EXPECT_EQ(0, IN_CHILD(known_to_a_member(&k)));
	ASSERT_EQ(0, chown(k.monitor, -1, 0));
	if (!fm_has_window())
		return;
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	own = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_LE(0, own);
	fm_must(own, FERMATA_IOC_SETUP, &setup, "SETUP");
	EXPECT_EQ(0, IN_CHILD(known_to_the_owner(&k, own, setup.context)));
	close(own);
}

#define TRACING	"/sys/kernel/tracing"
#define ASKED	"events/kprobes/fermata_asked"

static int put_trace(const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), TRACING "/%s", file);
	return fm_put(path, text);
}

/* Records no longer what is asked. */
static void stop_asked(void)
{
	put_trace(ASKED "/enable", "0");
	put_trace("kprobe_events", "-:kprobes/fermata_asked");
}

/* Records what this process asks security modules about capabilities; false: not possible. */
static bool record_asked(void)
{
	char filter[64];

	stop_asked();
	snprintf(filter, sizeof(filter), "common_pid == %d", getpid());
	return !put_trace("kprobe_events", "p:kprobes/fermata_asked security_capable options=$arg4:x32") &&
	       !put_trace(ASKED "/filter", filter) && !put_trace(ASKED "/enable", "1");
}

static void clear_asked(void)
{
	/* Opening the file with O_TRUNC clears the buffer. */
	int fd = open(TRACING "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd < 0)
		fm_die("trace: %s", strerror(errno));
	close(fd);
}

/* How often this process asked so that a denial is logged, or is not. */
static int asked(bool logged)
{
	unsigned int options;
	char line[512], *at;
	int n = 0;
	FILE *file;

	file = fopen(TRACING "/trace", "re");
	if (!file)
		fm_die("trace: %s", strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		at = strstr(line, " options=");
		/* CAP_OPT_NOAUDIT of include/linux/security.h */
		if (at && sscanf(at, " options=%x", &options) == 1)
			n += logged == !(options & 2);
	}
	fclose(file);
	return n;
}

/* A call that succeeds without a capability does not fill the log of SELinux with denials. */
FM_TEST(info, denials_are_logged_only_where_a_call_fails)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = FM_PAGE };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_PRIORITY };
	struct fermata_param enabled = { .size = sizeof(enabled), .param = FERMATA_PARAM_ENABLED };
	struct fermata_slot_info slot = { .size = sizeof(slot) };
	struct fermata_status st;
	int fd = fm_open_dev(0);
	u32 number;

	ASSERT_LE(0, fd);
	if (!record_asked())
		SKIP(return, "no kprobe events");
	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	number = fm_number(fd);
	clear_asked();
	fm_must(fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	fm_must(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap, "SNAPSHOT_CREATE");
	fm_must(fd, FERMATA_IOC_SLOT_INFO, &slot, "SLOT_INFO");
	fm_must(fd, FERMATA_IOC_PARAM, &param, "PARAM");
	fm_must(fd, FERMATA_IOC_PARAM, &enabled, "PARAM");
	listed(fd, number);
	fm_status(fd, &st);
	EXPECT_EQ(0, asked(true));
	EXPECT_LE(7, asked(false));
	ASSERT_EQ(0, slot_histogram(fd, 0));
	EXPECT_LE(1, asked(true));
	stop_asked();
	close(fd);
}

#define LINE	1024

/* The file `monitor`, read in pieces, has a line for each slot and each context. */
FM_TEST(info, defect_16_monitor_has_all)
{
	struct fermata_card_info card;
	char text[2 * LINE], line[64];
	u32 slot, number[3];
	struct fm_ctx c[3];
	int fd, i, n;

	fm_card_info(&card);
	for (i = 0; i < 3; i++)
		fm_ctx_new(&c[i], FM_LIST, 4096);
	for (i = 0; i < 3; i++)
		number[i] = fm_number(c[i].fd);
	/* An unused index. */
	fm_ctx_close(&c[1]);
	fd = open(fm_sysfs_path(-1, "monitor"), O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	for (slot = 0; slot < card.slots; slot++) {
		snprintf(line, sizeof(line), "slot=%u engine=", slot);
		ASSERT_EQ(LINE, pread(fd, text, LINE, slot * LINE));
		EXPECT_EQ(0, strncmp(line, text, strlen(line)));
		EXPECT_EQ('\n', text[LINE - 1]);
		/* A read at any offset gives the same. */
		ASSERT_EQ(7, pread(fd, text + LINE, 7, slot * LINE + 5));
		EXPECT_EQ(0, memcmp(text + 5, text + LINE, 7));
	}
	for (i = 0; i < 3; i++) {
		n = pread(fd, text, LINE, (card.slots + (number[i] & 0xffff)) * LINE);
		snprintf(line, sizeof(line), "context=%u pid=%d ", number[i], getpid());
		if (i == 1) {
			/* After the last line comes the end of the file. */
			EXPECT_TRUE(!n || (n == LINE && text[0] == ' '));
			continue;
		}
		ASSERT_EQ(LINE, n);
		EXPECT_EQ(0, strncmp(line, text, strlen(line)));
		EXPECT_EQ('\n', text[LINE - 1]);
	}
	EXPECT_EQ(0, pread(fd, text, 1, (card.slots + card.max_contexts) * LINE));
	close(fd);
}

/* Whether the line of a context in the file `monitor` begins with this pid. */
static bool monitor_has_pid(u32 number, int pid)
{
	char text[LINE], line[64];
	struct fermata_card_info card;
	int fd, n;

	fm_card_info(&card);
	fd = open(fm_sysfs_path(-1, "monitor"), O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, text, LINE, (card.slots + (number & 0xffff)) * LINE) != LINE)
		fm_die("monitor: %s", strerror(errno));
	close(fd);
	n = snprintf(line, sizeof(line), "context=%u pid=%d ", number, pid);
	return !strncmp(line, text, n);
}

/* The context lives on in another process; the number of its opener may be another's by then. */
FM_TEST(info, pid_of_a_process_that_is_gone)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_child ch;
	int pidfd, fd;

	fm_fork(&ch);
	if (!ch.pid) {
		fd = fm_open_dev(0);
		fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
		fm_say(&ch, fd);
		fm_hear(&ch);
		_exit(0);
	}
	fd = fm_hear(&ch);
	pidfd = syscall(SYS_pidfd_open, ch.pid, 0);
	ASSERT_LE(0, pidfd);
	fd = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	ASSERT_LE(0, fd);
	close(pidfd);
	EXPECT_EQ(ch.pid, listed(fd, fm_number(fd)).pid);
	EXPECT_TRUE(monitor_has_pid(fm_number(fd), ch.pid));
	fm_say(&ch, 0);
	ASSERT_EQ(0, fm_reap(&ch));
	EXPECT_EQ(FERMATA_NO_PID, listed(fd, fm_number(fd)).pid);
	EXPECT_TRUE(monitor_has_pid(fm_number(fd), 0));
	/* Nothing else is hidden from its user. */
	EXPECT_LT(0, listed(fd, fm_number(fd)).timeslice_ns);
	close(fd);
}

/* Has the context had no job that wants a slot since a time from first to last? */
static bool is_idle_since(const struct fm_ctx *c, u64 first, u64 last)
{
	u64 begin = fm_now(), ns = listed(c->fd, fm_number(c->fd)).state_ns, end = fm_now();

	if (ns < begin - last || ns > end - first)
		printf("# idle for %llu ns, not %llu to %llu\n", (unsigned long long)ns,
		       (unsigned long long)(begin - last), (unsigned long long)(end - first));
	return ns >= begin - last && ns <= end - first;
}

FM_TEST(info, idle_time_begins_when_the_job_leaves)
{
	struct fm_ctx c;
	u64 begin;

	begin = fm_now();
	fm_tenant(&c, FM_LONG_SLICE);
	EXPECT_TRUE(is_idle_since(&c, begin, fm_now()));
	fm_sleep_us(1000);
	fm_job_endless(&c);
	fm_must_start(&c);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	fm_sleep_us(1000);
	begin = fm_now();
	fm_hold(&c);
	EXPECT_TRUE(is_idle_since(&c, begin, fm_now()));
	fm_must_resume(&c);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	fm_sleep_us(1000);
	begin = fm_now();
	fm_end_endless(&c);
	EXPECT_TRUE(is_idle_since(&c, begin, fm_now()));
	fm_ctx_close(&c);
}

/* --- /proc/PID/fdinfo/FD, against the status of the context and the card ------------- */

FM_FIXTURE_ANY(fdinfo);

#define LINES	64

struct fdinfo {
	char text[8192];
	int n;
	struct {
		char *key, *value;
	} line[LINES];
};

static void read_fdinfo(int fd, struct fdinfo *info)
{
	char path[64], *at = info->text, *end;
	ssize_t have = 0, n;
	int f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		fm_die("%s: %s", path, strerror(errno));
	while ((n = read(f, info->text + have, sizeof(info->text) - 1 - have)) > 0)
		have += n;
	close(f);
	info->text[have] = 0;
	for (info->n = 0; *at && info->n < LINES; at = end + 1) {
		end = strchr(at, '\n');
		if (!end)
			fm_die("%s ends in the middle of a line", path);
		*end = 0;
		info->line[info->n].key = at;
		at = strchr(at, ':');
		if (!at)
			fm_die("%s: no key: %s", path, info->line[info->n].key);
		*at++ = 0;
		info->line[info->n++].value = at + strspn(at, " \t");
	}
}

/* The value of a key, NULL if it is missing. */
static const char *get(const struct fdinfo *info, const char *key)
{
	int i;

	for (i = 0; i < info->n; i++)
		if (!strcmp(info->line[i].key, key))
			return info->line[i].value;
	return NULL;
}

/* A number and its unit. */
static u64 get_number(const struct fdinfo *info, const char *key, const char *unit)
{
	const char *value = get(info, key);
	char *end;
	u64 n;

	if (!value)
		fm_die("fdinfo has no %s", key);
	n = strtoull(value, &end, 10);
	if (end == value || strcmp(end, unit))
		fm_die("%s is %s", key, value);
	return n;
}

static const char *const engine_names[FM_ALL_ENGINES] = {
	[FM_LIST] = "linkedlist", [FM_MEM] = "membench", [FM_SHA] = "sha256", [FM_MIX] = "blockmix",
	[FM_RISCV] = "riscv", [FM_COUNT_UP] = "counter_up", [FM_COUNT_DOWN] = "counter_down",
	[FM_QUEUE] = "queue",
};

static void engine_key(enum fm_engine engine, const char *prefix, char *key, size_t size)
{
	snprintf(key, size, "%s%s", prefix, engine_names[engine]);
}

static u64 engine_ns(int fd, enum fm_engine engine)
{
	struct fdinfo info;
	char key[96];

	read_fdinfo(fd, &info);
	engine_key(engine, "drm-engine-", key, sizeof(key));
	return get_number(&info, key, " ns");
}

static bool state_is(int fd, const char *state)
{
	struct fdinfo info;
	const char *is;

	read_fdinfo(fd, &info);
	is = get(&info, "fermata-state");
	if (!is || strcmp(is, state))
		printf("# fermata-state is %s, not %s\n", is ?: "missing", state);
	return is && !strcmp(is, state);
}

FM_TEST(fdinfo, keys_as_parsers_expect_them)
{
	struct fermata_status st;
	struct fdinfo info;
	struct fm_ctx c;
	char key[96];
	int i, j;

	fm_ctx_new(&c, FM_LIST, 65536);
	fm_status(c.fd, &st);
	read_fdinfo(c.fd, &info);
	for (i = 0; i < info.n; i++) {
		EXPECT_EQ(NULL, strpbrk(info.line[i].key, " \t"));
		for (j = 0; j < i; j++)
			EXPECT_NE(0, strcmp(info.line[i].key, info.line[j].key));
	}
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	EXPECT_EQ(st.context, get_number(&info, "drm-client-id", ""));
	EXPECT_EQ(st.arena_length + st.snapshot_length, get_number(&info, "drm-total-memory", ""));
	EXPECT_EQ(st.arena_length + st.snapshot_length,
		  get_number(&info, "drm-resident-memory", ""));
	EXPECT_EQ(st.arena_length, get_number(&info, "fermata-arena", ""));
	EXPECT_EQ(st.snapshot_length, get_number(&info, "fermata-snapshot", ""));
	engine_key(FM_LIST, "drm-engine-", key, sizeof(key));
	EXPECT_EQ(0, get_number(&info, key, " ns"));
	engine_key(FM_LIST, "drm-engine-capacity-", key, sizeof(key));
	EXPECT_EQ(__builtin_popcount(fm_slots_of(FM_LIST)), get_number(&info, key, ""));
	/* Only its own engine. */
	engine_key(FM_SHA, "drm-engine-", key, sizeof(key));
	EXPECT_EQ(NULL, get(&info, key));
}

FM_TEST(fdinfo, names_of_engines)
{
	struct fdinfo info;
	struct fm_ctx c;
	char key[96];
	int engine;

	for (engine = 0; engine < FM_ALL_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		fm_ctx_new(&c, engine, 65536);
		read_fdinfo(c.fd, &info);
		engine_key(engine, "drm-engine-", key, sizeof(key));
		EXPECT_EQ(0, get_number(&info, key, " ns"));
		fm_ctx_close(&c);
	}
}

FM_TEST(fdinfo, before_setup)
{
	struct fdinfo info;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	read_fdinfo(fd, &info);
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	EXPECT_STREQ("new", get(&info, "fermata-state"));
	EXPECT_EQ(0, get_number(&info, "drm-total-memory", ""));
	EXPECT_EQ(NULL, get(&info, "drm-client-id"));
	EXPECT_EQ(NULL, get(&info, "fermata-job"));
}

/* Each line that corresponds to a member of STATUS has the same value. */
FM_TEST(fdinfo, counts_as_status_does)
{
	struct fermata_status st;
	struct fdinfo info;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	fm_ctx_new(&c, FM_LIST, 65536);
	for (i = 0; i < 3; i++) {
		fm_job_list(&c, 100, 0, i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
	fm_status(c.fd, &st);
	read_fdinfo(c.fd, &info);
	EXPECT_EQ(3, st.finished);
	EXPECT_LT(0, get_number(&info, "fermata-idle", " ns"));
	EXPECT_EQ(st.run_ns, engine_ns(c.fd, FM_LIST));
	EXPECT_EQ(st.wait_ns, get_number(&info, "fermata-wait", " ns"));
	EXPECT_EQ(st.job, get_number(&info, "fermata-job", ""));
	EXPECT_EQ(st.slices, get_number(&info, "fermata-slices", ""));
	EXPECT_EQ(st.preemptions, get_number(&info, "fermata-preemptions", ""));
	EXPECT_EQ(st.finished, get_number(&info, "fermata-finished", ""));
	EXPECT_EQ(st.failed, get_number(&info, "fermata-failed", ""));
	EXPECT_EQ(st.faults, get_number(&info, "fermata-faults", ""));
	EXPECT_EQ(NULL, get(&info, "fermata-slot"));
}

/* Time on the engine grows while the job runs, never goes back, and is no less than the card's. */
FM_TEST(card, time_on_the_engine)
{
	u64 before = 0, now, held;
	struct card_run run;
	struct fdinfo info;
	struct fm_ctx c;
	int i;

	fm_tenant(&c, FM_LONG_SLICE);
	EXPECT_TRUE(state_is(c.fd, "idle"));
	fm_job_endless(&c);
	card_speed(c.slot, 1);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	EXPECT_TRUE(state_is(c.fd, "running"));
	read_fdinfo(c.fd, &info);
	EXPECT_EQ(c.slot, get_number(&info, "fermata-slot", ""));
	EXPECT_EQ(NULL, get(&info, "fermata-idle"));
	for (i = 0; i < 50; i++) {
		now = engine_ns(c.fd, FM_LIST);
		EXPECT_LT(before, now);
		before = now;
		fm_sleep_us(100);
	}
	fm_hold(&c);
	EXPECT_TRUE(state_is(c.fd, "held"));
	held = engine_ns(c.fd, FM_LIST);
	EXPECT_LE(before, held);
	fm_sleep_us(5000);
	EXPECT_EQ(held, engine_ns(c.fd, FM_LIST));
	card_run_of(c.slot, c.token, &run);
	EXPECT_LT(0, run.run_ns);
	/* Two clocks never agree exactly. */
	EXPECT_LE(run.run_ns, held + held / 100);
	fm_must_resume(&c);
	fm_end_endless(&c);
	EXPECT_TRUE(state_is(c.fd, "done"));
	EXPECT_LT(held, engine_ns(c.fd, FM_LIST));
}

FM_TEST(fdinfo, of_a_card_that_is_gone)
{
	struct fdinfo info;
	struct fm_ctx c;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	fm_ctx_new(&c, FM_LIST, 65536);
	ASSERT_EQ(0, fm_unbind());
	EXPECT_TRUE(state_is(c.fd, "gone"));
	EXPECT_TRUE(state_is(fd, "gone"));
	read_fdinfo(c.fd, &info);
	EXPECT_STREQ("fermata", get(&info, "drm-driver"));
	EXPECT_STREQ(fm_pci(), get(&info, "drm-pdev"));
	/* The memory has been taken away. */
	EXPECT_EQ(0, get_number(&info, "drm-resident-memory", ""));
	ASSERT_EQ(0, fm_bind());
}

TEST_HARNESS_MAIN
