// SPDX-License-Identifier: GPL-2.0
/* Contexts of others: they are listed, and controlled by number only with CAP_SYS_ADMIN. */
#include "kselftest_harness.h"
#include <grp.h>
#include "lib/fm.h"

FM_FIXTURE_ANY(control);

static u32 number_of(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.context;
}

/* Finds context number @context in the list; 0 or an errno. */
static int look_up(int fd, u32 context, struct fermata_context_info *info)
{
	int rc;

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	do {
		rc = fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, info);
	} while (!rc && info->context != context);
	return rc;
}

#define LISTED	7

/* From any descriptor of the card, each context is listed exactly once, and found by its number. */
FM_TEST(control, list_has_each_context_once)
{
	struct fermata_context_info info = { .size = sizeof(info) };
	int bare = fm_open_dev(0), seen[LISTED] = { }, i, n = 0;
	struct fm_ctx c[LISTED];

	ASSERT_LE(0, bare);
	EXPECT_EQ(-ENOENT, fm_ioctl(bare, FERMATA_IOC_CONTEXT_INFO, &info));
	for (i = 0; i < LISTED; i++)
		fm_ctx_new(&c[i], FM_LIST, 4096);
	/* Contexts in places of earlier ones, and a place that is left empty. */
	for (i = 1; i < 5; i++)
		fm_ctx_close(&c[i]);
	for (i = 4; i > 1; i--)
		fm_ctx_new(&c[i], FM_LIST, 4096);
	while (!fm_ioctl(bare, FERMATA_IOC_CONTEXT_INFO, &info)) {
		ASSERT_GT(LISTED, n++);
		for (i = 0; i < LISTED; i++)
			if (i != 1 && info.context == number_of(c[i].fd))
				seen[i]++;
		EXPECT_EQ(getpid(), info.pid);
		EXPECT_EQ(FERMATA_STATE_IDLE, info.state);
		EXPECT_EQ(FERMATA_NO_SLOT, info.slot);
		EXPECT_EQ(1 << c[0].slot, info.slot_mask);
	}
	EXPECT_EQ(LISTED - 1, n);
	for (i = 0; i < LISTED; i++) {
		EXPECT_EQ(i != 1, seen[i]);
		if (i != 1)
			EXPECT_EQ(0, fm_param_set_of(bare, number_of(c[i].fd), FERMATA_PARAM_WEIGHT, 50));
	}
	close(bare);
}

/* The number of a closed context is not reused for the next context in the same place. */
FM_TEST(control, numbers_are_not_given_again)
{
	struct fm_ctx c;
	u32 old;
	int bare = fm_open_dev(0);

	fm_ctx_new(&c, FM_LIST, 4096);
	old = number_of(c.fd);
	fm_ctx_close(&c);
	fm_ctx_new(&c, FM_LIST, 4096);
	EXPECT_NE(old, number_of(c.fd));
	EXPECT_EQ(-ESRCH, fm_preempt_of(bare, old, 0));
	close(bare);
}

/* The administrator holds, resumes and slows the job of another process. */
FM_TEST(control, job_of_another_process)
{
	struct fermata_context_info info;
	struct fm_expect e;
	struct fm_child ch;
	struct fm_ctx c;
	u64 word;
	int bare = fm_open_dev(0), status;

	fm_fork(&ch);
	if (!ch.pid) {
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		if (card_present())
			card_speed(c.slot, 1);
		fm_job_list(&c, 1000, 3000000, 1, &e);
		fm_say(&ch, number_of(c.fd));
		if (fm_start(c.fd))
			_exit(1);
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		fm_say(&ch, 0);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		_exit(fm_job_wrong(&c, &e) ? 2 : 0);
	}
	word = fm_hear(&ch);
	while (fm_preempt_of(bare, word, FERMATA_PREEMPT_HOLD) == -ENOENT)
		fm_sleep_us(100);
	fm_hear(&ch);
	ASSERT_EQ(0, look_up(bare, word, &info));
	EXPECT_EQ(FERMATA_STATE_HELD, info.state);
	EXPECT_EQ(ch.pid, info.pid);
	EXPECT_EQ(0, fm_preempt_of(bare, word, FERMATA_PREEMPT_HOLD));
	EXPECT_EQ(0, fm_param_set_of(bare, word, FERMATA_PARAM_TIMESLICE, 5 * FM_MS));
	if (card_present())
		card_speed(fm_slot_of(FM_LIST), 0);
	EXPECT_EQ(0, fm_resume_of(bare, word));
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(-ENOENT, look_up(bare, word, &info));
	close(bare);
}

/* Without the capability: no control by number, even of own contexts, and no pids of others. */
FM_TEST(control, point_16_needs_cap_sys_admin)
{
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_ENABLED };
	struct fermata_context_info info;
	struct fm_child ch;
	struct fm_ctx c;
	int status;
	u32 n;

	fm_ctx_new(&c, FM_LIST, 4096);
	n = number_of(c.fd);
	fm_fork(&ch);
	if (!ch.pid) {
		int on;

		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(1);
		if (fm_preempt_of(c.fd, n, 0) != -EPERM ||
		    fm_preempt_of(c.fd, n, FERMATA_PREEMPT_HOLD) != -EPERM)
			_exit(10);
		if (fm_resume_of(c.fd, n) != -EPERM)
			_exit(11);
		for (on = 0; on < 2; on++)
			if (fm_param_set_of(c.fd, n, FERMATA_PARAM_ENABLED, on) != -EPERM ||
			    fm_param_set(c.fd, FERMATA_PARAM_ENABLED, on) != -EPERM)
				_exit(12 + on);
		if (fm_param_set_of(c.fd, n, FERMATA_PARAM_TIMESLICE, FM_MS) != -EPERM)
			_exit(2);
		param.context = n;
		if (fm_ioctl(c.fd, FERMATA_IOC_PARAM, &param) != -EPERM)
			_exit(5);
		param.context = 0;
		/* None of the values may be set. */
		if (fm_ioctl(c.fd, FERMATA_IOC_PARAM, &param) || param.value != 1 ||
		    param.min <= param.max)
			_exit(6);
		/* Nor does it learn whether there is such a context. */
		if (fm_preempt_of(c.fd, 0xfffffff0, 0) != -EPERM)
			_exit(3);
		if (look_up(c.fd, n, &info) || info.pid != FERMATA_NO_PID)
			_exit(4);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, look_up(c.fd, n, &info));
	EXPECT_EQ(getpid(), info.pid);
}

/* Jobs of a disabled context, also new ones, stay off slots; they end when it is enabled. */
FM_TEST(control, disabled_context_waits)
{
	struct fermata_context_info info;
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c, admin;
	u32 n;

	fm_ctx_new(&admin, FM_LIST, 4096);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	n = number_of(c.fd);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 0));
	EXPECT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 0));
	fm_until_state(c.fd, FERMATA_STATE_QUEUED);
	fm_sleep_us(20000);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_DISABLED, st.attributes);
	EXPECT_EQ(1, st.preemptions);
	ASSERT_EQ(0, look_up(admin.fd, n, &info));
	EXPECT_EQ(FERMATA_STATUS_DISABLED, info.attributes);
	EXPECT_EQ(FERMATA_WAITS_DISABLED, info.waits);
	ASSERT_EQ(0, look_up(admin.fd, number_of(admin.fd), &info));
	EXPECT_EQ(0, info.attributes);
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 1));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 0));
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	/* The job is held as well: it waits until both end. */
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 1));
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 0));
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(c.fd));
	ASSERT_EQ(0, fm_param_set_of(admin.fd, n, FERMATA_PARAM_ENABLED, 1));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(0, st.attributes);
	EXPECT_EQ(2, st.finished);
}

FM_TEST(control, bad_input)
{
	struct fermata_context_info info = { .size = sizeof(info), .flags = 1 };
	struct fermata_status before, after;
	struct fm_ctx c;
	u32 n;

	fm_ctx_new(&c, FM_LIST, 4096);
	n = number_of(c.fd);
	fm_status(c.fd, &before);
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_CONTEXT_INFO, &info));
	info.flags = 0;
	info.cursor = UINT32_MAX;
	EXPECT_EQ(-ENOENT, fm_ioctl(c.fd, FERMATA_IOC_CONTEXT_INFO, &info));
	EXPECT_EQ(-EINVAL, fm_param_set_of(c.fd, n, 0, 1));
	EXPECT_EQ(-ERANGE, fm_param_set_of(c.fd, n, FERMATA_PARAM_TIMESLICE, 0));
	EXPECT_EQ(-ERANGE, fm_param_set_of(c.fd, n, FERMATA_PARAM_TIMESLICE, UINT64_MAX));
	EXPECT_EQ(-ESRCH, fm_preempt_of(c.fd, n ^ 0x8000, 0));
	EXPECT_EQ(-ESRCH, fm_param_set_of(c.fd, n ^ 0x8000, FERMATA_PARAM_ENABLED, 0));
	EXPECT_EQ(-ERANGE, fm_param_set_of(c.fd, n, FERMATA_PARAM_ENABLED, 2));
	EXPECT_EQ(-ENOENT, fm_preempt_of(c.fd, n, 0));
	EXPECT_EQ(-ENOENT, fm_resume_of(c.fd, n));
	fm_status(c.fd, &after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
}

/* With a number, calls set and read parameters and the reservation of the other context. */
FM_TEST(control, parameters_of_another_context)
{
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_WEIGHT };
	struct fermata_reserve reserve = {
		.size = sizeof(reserve), .flags = FERMATA_SET, .budget_ns = FM_MS,
		.deadline_ns = 20 * FM_MS, .period_ns = 30 * FM_MS
	};
	struct fm_ctx own, other;

	fm_ctx_new(&own, FM_LIST, 4096);
	fm_ctx_new(&other, FM_LIST, 4096);
	param.context = number_of(other.fd);
	ASSERT_EQ(0, fm_param_set_of(own.fd, param.context, FERMATA_PARAM_WEIGHT, 7));
	ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_PARAM, &param));
	EXPECT_EQ(7, param.value);
	EXPECT_EQ(1, param.min);
	EXPECT_EQ(10000, param.max);
	EXPECT_EQ(7, fm_param_get(other.fd, FERMATA_PARAM_WEIGHT));
	EXPECT_EQ(100, fm_param_get(own.fd, FERMATA_PARAM_WEIGHT));

	ASSERT_EQ(0, fm_param_set_of(own.fd, param.context, FERMATA_PARAM_ENABLED, 0));
	EXPECT_EQ(0, fm_param_get(other.fd, FERMATA_PARAM_ENABLED));
	EXPECT_EQ(1, fm_param_get(own.fd, FERMATA_PARAM_ENABLED));

	reserve.context = param.context;
	ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_RESERVE, &reserve));
	reserve = (struct fermata_reserve){ .size = sizeof(reserve) };
	ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_RESERVE, &reserve));
	EXPECT_EQ(0, reserve.budget_ns);
	reserve.context = param.context;
	ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_RESERVE, &reserve));
	EXPECT_EQ(FM_MS, reserve.budget_ns);
	EXPECT_EQ(20 * FM_MS, reserve.deadline_ns);
	EXPECT_EQ(30 * FM_MS, reserve.period_ns);
}

/* Opens, sets up and closes contexts until it is killed. */
static void come_and_go(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};

	for (;;) {
		int fd = fm_open_dev(0);

		if (fd < 0 || fm_ioctl(fd, FERMATA_IOC_SETUP, &setup))
			_exit(1);
		close(fd);
	}
}

/* The list skips a context that is closed meanwhile; a call on it returns ESRCH. */
FM_TEST(control, contexts_that_close_meanwhile)
{
	struct fm_child ch[3];
	struct fm_ctx stays;
	u32 staying, met = 0, missed = 0;
	int round, i;

	fm_ctx_new(&stays, FM_LIST, 4096);
	staying = number_of(stays.fd);
	for (i = 0; i < 3; i++) {
		fm_fork(&ch[i]);
		if (!ch[i].pid)
			come_and_go();
	}
	for (round = 0; round < 2000 || (!(met && missed) && round < 100000); round++) {
		struct fermata_context_info info = { .size = sizeof(info) };
		struct fermata_reserve none = { .size = sizeof(none) };
		bool listed = false;
		int rc;

		while (!(rc = fm_ioctl(stays.fd, FERMATA_IOC_CONTEXT_INFO, &info))) {
			if (info.context == staying) {
				listed = true;
				continue;
			}
			rc = fm_param_set_of(stays.fd, info.context, FERMATA_PARAM_TIMESLICE, 5 * FM_MS);
			ASSERT_TRUE(rc == 0 || rc == -ESRCH);
			met += rc == 0;
			missed += rc == -ESRCH;
			none.context = info.context;
			none.flags = FERMATA_SET;
			rc = fm_ioctl(stays.fd, FERMATA_IOC_RESERVE, &none);
			ASSERT_TRUE(rc == 0 || rc == -ESRCH);
			none.flags = 0;
			rc = fm_ioctl(stays.fd, FERMATA_IOC_RESERVE, &none);
			ASSERT_TRUE(rc == 0 || rc == -ESRCH);
			rc = fm_preempt_of(stays.fd, info.context, FERMATA_PREEMPT_HOLD);
			ASSERT_TRUE(rc == -ENOENT || rc == -ESRCH);
		}
		ASSERT_EQ(-ENOENT, rc);
		ASSERT_TRUE(listed);
	}
	/* Otherwise there was no race. */
	EXPECT_LT(0, met);
	EXPECT_LT(0, missed);
	for (i = 0; i < 3; i++)
		fm_kill(&ch[i]);
}

/* --- mappings --------------------------------------------------------------------------- */

static void *map_of(int fd, u32 context, u64 offset, u64 length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, FERMATA_MMAP_OFFSET(context) + offset);
}

/* The offset of a mapping, as /proc shows it. */
static u64 offset_of(const void *at)
{
	unsigned long from, offset;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	if (!maps)
		fm_die("/proc/self/maps: %s", strerror(errno));
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%*x %*s %lx", &from, &offset) == 2 && from == (uintptr_t)at) {
			fclose(maps);
			return offset;
		}
	}
	fm_die("no mapping at %p", at);
}

FM_TEST(control, mapping_tells_its_context)
{
	struct fm_ctx c, other;
	u8 *part;

	fm_ctx_new(&c, FM_LIST, 4 * FM_PAGE);
	EXPECT_EQ(FERMATA_MMAP_OFFSET(number_of(c.fd)), offset_of(c.mem));
	part = map_of(c.fd, number_of(c.fd), 2 * FM_PAGE, FM_PAGE);
	ASSERT_NE(MAP_FAILED, part);
	EXPECT_EQ(FERMATA_MMAP_OFFSET(number_of(c.fd)) + 2 * FM_PAGE, offset_of(part));
	part[5] = 0xa7;
	EXPECT_EQ(0xa7, ((u8 *)c.mem)[2 * FM_PAGE + 5]);
	EXPECT_EQ(MAP_FAILED, map_of(c.fd, number_of(c.fd), 4 * FM_PAGE, FM_PAGE));
	EXPECT_EQ(EINVAL, errno);
	/* The offset of another context. */
	fm_ctx_new(&other, FM_LIST, 4 * FM_PAGE);
	EXPECT_EQ(MAP_FAILED, map_of(c.fd, number_of(other.fd), 0, FM_PAGE));
	EXPECT_EQ(EINVAL, errno);
	/* A mapping that is split. */
	ASSERT_EQ(0, munmap((u8 *)c.mem + FM_PAGE, FM_PAGE));
	EXPECT_EQ(FERMATA_MMAP_OFFSET(number_of(c.fd)) + 2 * FM_PAGE, offset_of((u8 *)c.mem + 2 * FM_PAGE));
	EXPECT_EQ(0xa7, ((u8 *)c.mem)[2 * FM_PAGE + 5]);
}

TEST_HARNESS_MAIN
