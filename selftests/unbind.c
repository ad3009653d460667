// SPDX-License-Identifier: GPL-2.0
/*
 * The card is taken away under open files and racing calls: rmmod, reload, unbind and bind. The
 * module cannot be taken away under open files.
 */
#include "kselftest_harness.h"
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include "lib/mem.h"
#include "lib/calls.h"

FM_FIXTURE_ANY(unbind);
FM_FIXTURE_CARD(card);

FM_TEST(unbind, point_17_module_with_open_file_stays)
{
	struct fm_expect e;
	struct fm_ctx c;
	int fd, rc;

	fd = fm_open_dev(0);
	ASSERT_LE(0, fd);
	rc = fm_module_remove();
	ASSERT_TRUE(rc == -EAGAIN || rc == -EBUSY);
	close(fd);
	/* A mapping keeps the module as a descriptor does. */
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 3, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	close(c.fd);
	rc = fm_module_remove();
	ASSERT_TRUE(rc == -EAGAIN || rc == -EBUSY);
	munmap(c.mem, c.len);
	fm_agent_gone(c.token);
}

FM_TEST(unbind, point_17_module_is_removed_and_loaded)
{
	const char *file = getenv("FERMATA_MODULE");
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	if (!file || !*file)
		SKIP(return, "FERMATA_MODULE does not name the module");
	for (i = 0; i < 3; i++) {
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		fm_job_list(&c, 100, 1000, 3 + i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_ctx_close(&c);
		ASSERT_EQ(0, fm_module_remove());
		EXPECT_NE(0, access(fm_dev(), F_OK));
		fm_module_load(getenv("FERMATA_MODULE_ARGS"));
		fm_until_node();
	}
}

/* The initial policy of a card; with an unknown policy no card is bound. */
FM_TEST(unbind, policy_of_the_module_parameter)
{
	static const struct {
		const char *args, *name;
		u64 boost;
	} good[] = {
		{ "policy=priority boost_ms=50", FERMATA_POLICY_PRIORITY, 50 * FM_MS },
		{ "policy=round-robin boost_ms=0", FERMATA_POLICY_ROUND_ROBIN, 0 },
		{ "boost_ms=1", FERMATA_POLICY_FAIR, 10 * FM_MS },
		{ "boost_ms=4000000000", FERMATA_POLICY_FAIR, 60000 * FM_MS },
	};
	static const char *const bad[] = { "policy=none", "policy=", "policy=fair,share" };
	const char *file = getenv("FERMATA_MODULE");
	size_t i;
	int fd;

	if (!file || !*file)
		SKIP(return, "FERMATA_MODULE does not name the module");
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct fm_policy p;

		fm_module_reload(good[i].args);
		fd = fm_open_dev(0);
		ASSERT_LE(0, fd);
		fm_policy_get(&p);
		EXPECT_STREQ(good[i].name, p.name);
		EXPECT_EQ(good[i].boost, p.boost_ms * FM_MS);
		close(fd);
	}
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ASSERT_EQ(0, fm_module_remove());
		fm_module_load(bad[i]);
		/* Cards have been bound, or refused, when the load of the module ends. */
		EXPECT_NE(0, access(fm_dev(), F_OK));
	}
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

FM_TEST(unbind, point_17_unbind_with_open_files)
{
	int bare, round, efd = eventfd(0, EFD_NONBLOCK);
	struct fermata_eventfd ev = {
		.size = sizeof(ev), .events = FERMATA_EVENT_DONE, .fd = efd
	};
	struct fm_ctx running, queued, held, done, again;
	struct fm_gone_waiter w[3];
	struct fm_gone_poller poller;
	u64 n, errors = 0;
	struct fm_expect e;
	int i;

	ASSERT_NE(NULL, fm_pci());
	for (round = 0; round < 3; round++) {
		bare = fm_open_dev(0);
		ASSERT_LE(0, bare);
		fm_ctx_new(&done, FM_LIST, 64 * 1024);
		fm_job_list(&done, 100, 1000, 3, &e);
		ASSERT_GOOD(fm_job_run(&done, &e));
		fm_ctx_new(&held, FM_LIST, 64 * 1024);
		fm_ctx_new(&running, FM_LIST, 64 * 1024);
		fm_ctx_new(&queued, FM_LIST, 64 * 1024);
		if (card_present())
			card_speed(held.slot, 1);
		fm_job_endless(&held);
		ASSERT_EQ(0, fm_start(held.fd));
		ASSERT_EQ(0, fm_preempt(held.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(held.fd, FERMATA_EVENT_HELD);
		fm_job_endless(&running);
		fm_job_endless(&queued);
		ASSERT_EQ(0, fm_ioctl(running.fd, FERMATA_IOC_EVENTFD, &ev));
		ASSERT_EQ(0, fm_start(running.fd));
		fm_until_state(running.fd, FERMATA_STATE_RUNNING);
		ASSERT_EQ(0, fm_start(queued.fd));
		fm_gone_waiter_start(&w[0], running.fd);
		fm_gone_waiter_start(&w[1], queued.fd);
		fm_gone_waiter_start(&w[2], held.fd);
		fm_gone_poller_start(&poller, bare);

		if (card_present())
			errors = card_counter(held.slot, "dma_errors");
		EXPECT_EQ(1, fm_pci_enabled());
		ASSERT_EQ(0, fm_unbind());
		/* Otherwise the next probe would only count, and not enable the function again. */
		EXPECT_EQ(0, fm_pci_enabled());
		/* Nor did one when they were unmapped. */
		if (card_present()) {
			EXPECT_EQ(errors, card_counter(held.slot, "dma_errors"));
			/* The next driver may know nothing of orders. */
			EXPECT_EQ(0, card_key(card_cmd("state slot=%d", held.slot), "relay"));
		}
		/* No engine may touch their pages from now on. */
		fm_agent_gone(running.token);
		fm_agent_gone(queued.token);
		fm_agent_gone(held.token);
		fm_agent_gone(done.token);
		for (i = 0; i < 3; i++) {
			pthread_join(w[i].t.thread, NULL);
			EXPECT_EQ(-ENODEV, w[i].rc);
		}
		pthread_join(poller.t.thread, NULL);
		EXPECT_EQ(POLLERR | POLLHUP, poller.revents);
		EXPECT_EQ(8, read(efd, &n, 8));
		EXPECT_EQ(0, fm_calls_not_gone(bare));
		EXPECT_EQ(0, fm_calls_not_gone(running.fd));
		EXPECT_EQ(0, fm_calls_not_gone(queued.fd));
		EXPECT_EQ(0, fm_calls_not_gone(held.fd));
		EXPECT_EQ(0, fm_calls_not_gone(done.fd));
		EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(bare));
		EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(running.fd));
		EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(done.fd));
		EXPECT_EQ(SIGBUS, fm_access_signal(running.mem));
		EXPECT_EQ(SIGBUS, fm_access_signal(held.mem + 4096));
		EXPECT_EQ(SIGBUS, fm_access_signal(done.mem));
		EXPECT_EQ(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_SHARED, done.fd, done.off));
		EXPECT_EQ(ENODEV, errno);
		EXPECT_GT(0, fm_open_dev(0));

		/* The card comes back for new opens; the old files stay dead. */
		ASSERT_EQ(0, fm_bind());
		fm_ctx_new(&again, FM_LIST, 64 * 1024);
		fm_job_list(&again, 100, 1000, 5, &e);
		ASSERT_GOOD(fm_job_run(&again, &e));
		EXPECT_EQ(0, fm_calls_not_gone(running.fd));
		fm_ctx_close(&running);
		fm_ctx_close(&queued);
		fm_ctx_close(&held);
		fm_ctx_close(&done);
		close(bare);
		/* Closing the old files does not affect the new context. */
		ASSERT_GOOD(fm_job_run(&again, &e));
		fm_ctx_close(&again);
	}
}

/* MODE survives a reset of the slot, and the window survives the reset of an aborted job. */
FM_TEST(card, point_09_nothing_is_left_on_the_card)
{
	struct fm_expect e;
	struct fm_ctx a, b;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	ASSERT_NE(NULL, fm_pci());
	fm_ctx_new(&a, FM_MEM, 64 * 1024);
	card_speed(a.slot, 1);
	fm_job_endless(&a);
	ASSERT_EQ(0, fm_reg_write(a.fd, 0x58, 2));
	ASSERT_EQ(0, fm_start(a.fd));
	card_until_runs(a.slot, a.token);
	ASSERT_EQ(0, fm_unbind());
	fm_agent_gone(a.token);
	ASSERT_EQ(0, fm_bind());
	if (!card_base())
		EXPECT_EQ(0, card_key(card_cmd("state slot=%d", a.slot), "window_size"));
	fm_ctx_close(&a);
	/* The job reads in order, although it does not set the mode. */
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	card_speed(b.slot, 0);
	fm_job_mem(&b, 4096, 100, 6, FM_NO_MODE, &e);
	ASSERT_GOOD(fm_job_run(&b, &e));
}

static void bind_anew(const char *settings, int slot)
{
	if (fm_unbind())
		fm_die("unbind: %s", strerror(errno));
	card_set(slot, settings);
	if (fm_bind())
		fm_die("bind: %s", strerror(errno));
}

/* If a reset clears the registers that a tenant has left, the driver writes none of them. */
FM_TEST(card, defect_05_registers_cleared_by_a_reset)
{
	const int all = (FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1;
	struct fermata_reg regs[(FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1];
	int i, clears, slot = fm_slot_of(FM_LIST);
	u64 writes[2];

	if (card_base())
		SKIP(return, "the slots of a base card say nothing of resets");
	ASSERT_NE(NULL, fm_pci());
	for (i = 0; i < all; i++)
		regs[i] = (struct fermata_reg){ .offset = FERMATA_REG_FIRST + 8 * i, .value = 1 };
	for (clears = 0; clears < 2; clears++) {
		struct fm_expect e;
		struct fm_ctx a, b;

		bind_anew(clears ? "reset_clears=1" : "reset_clears=0", slot);
		fm_ctx_new(&a, FM_LIST, 64 * 1024);
		ASSERT_EQ(0, fm_regs_write(a.fd, regs, all));
		fm_job_list(&a, 100, 1000, 3, &e);
		ASSERT_GOOD(fm_job_run(&a, &e));
		fm_ctx_new(&b, FM_LIST, 64 * 1024);
		writes[clears] = card_register_writes(slot);
		fm_job_list(&b, 100, 1000, 4, &e);
		ASSERT_GOOD(fm_job_run(&b, &e));
		writes[clears] = card_register_writes(slot) - writes[clears];
		fm_ctx_close(&a);
		fm_ctx_close(&b);
	}
	bind_anew("reset_clears=0", slot);
	TH_LOG("%d writes, and %d with a reset", (int)writes[0], (int)writes[1]);
	/* A relay loads registers from memory: the driver writes none. */
	if (card_relay()) {
		EXPECT_EQ(0, writes[0] + writes[1]);
		return;
	}
	EXPECT_LT(all - 20, writes[0]);
	EXPECT_GT(20, writes[1]);
}

/* The kernel says nothing of a probe that fails with ENODEV. */
FM_TEST(card, failing_probe_says_why)
{
	int slot = fm_slot_of(FM_LIST);

	ASSERT_NE(NULL, fm_pci());
	ASSERT_EQ(0, fm_unbind());
	card_fault(slot, "no_engine=1");
	fm_log_clear();
	EXPECT_EQ(-ENODEV, fm_bind());
	EXPECT_TRUE(fm_log_has("has no engine, or does not answer"));
	card_fault(slot, "clear");
	ASSERT_EQ(0, fm_bind());
}

#define MAPPER	"fm-mapper"

/* Maps the arena on the first word of the parent, and tries an access on the second. */
static void be_a_mapper(struct fm_child *ch)
{
	struct fm_ctx c;
	u8 *mem;

	prctl(PR_SET_NAME, MAPPER);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_say(ch, c.token);
	fm_hear(ch);
	mem = mmap(NULL, c.len, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, c.off);
	/* This name has no delay: the end of a process also calls the function. */
	prctl(PR_SET_NAME, "fm-mapped");
	fm_hear(ch);
	_exit(mem == MAP_FAILED || fm_access_signal(mem) == SIGBUS ? 0 : 1);
}

/*
 * A processor is busy with something else between the driver's mmap() and the moment at which the
 * kernel can find the mapping, and the card is removed meanwhile.
 */
FM_TEST(card, defect_09_mapping_made_while_the_card_goes)
{
	struct fm_child ch;
	u64 token;

	ASSERT_NE(NULL, fm_pci());
	fm_fork(&ch);
	if (!ch.pid)
		be_a_mapper(&ch);
	token = fm_hear(&ch);
	if (!fm_delay("__vma_start_write", MAPPER, 1500)) {
		fm_kill(&ch);
		SKIP(return, "nothing that delays the kernel (FERMATA_DELAY)");
	}
	fm_say(&ch, 1);
	fm_sleep_us(300000);
	ASSERT_EQ(0, fm_unbind());
	fm_say(&ch, 2);
	fm_agent_gone(token);
	EXPECT_EQ(0, fm_reap(&ch));
	fm_delay_no_more();
	ASSERT_EQ(0, fm_bind());
}

static void set_bus_mastering(bool on)
{
	int fd = fm_pci_config(O_RDWR);
	uint16_t command = 0;

	if (pread(fd, &command, 2, 4) != 2)
		fm_die("reading the command register: %s", strerror(errno));
	command = on ? command | 4 : command & ~4;
	if (pwrite(fd, &command, 2, 4) != 2)
		fm_die("writing the command register: %s", strerror(errno));
	close(fd);
}

/* Starts a membench that reads a page without end, whether memory responds or not. */
static void start_engine(int slot, volatile u64 *bar, u64 page, u64 token)
{
	volatile u64 *regs = bar + (0x1000 * (slot + 1)) / 8;

	bar[0x18 / 8] = 0;
	/* The driver has left the slot to orders. */
	if (card_relay())
		bar[0x340 / 8 + slot] = 0;
	bar[0x30 / 8 + slot] = 0;
	if (!card_base()) {
		bar[0x180 / 8 + slot] = page;
		bar[0x1c0 / 8 + slot] = FM_PAGE;
	}
	regs[0x30 / 8] = page;
	regs[0x38 / 8] = FM_PAGE;
	regs[0x40 / 8] = UINT64_MAX;
	regs[FM_REG_TAG / 8] = token;
	regs[0x18 / 8] = 1;
}

/* An engine that another driver or a crashed kernel left running is stopped before it does DMA. */
FM_TEST(card, defect_02_engine_at_work_when_bound)
{
	u64 token = fm_token(), gpa;
	int slot = fm_slot_of(FM_MEM), fd;
	void *page;
	volatile u64 *bar;
	char path[128];

	if (fm_translated() || slot < 0)
		SKIP(return, "behind an IOMMU the engine has no memory; or no slot with membench");
	page = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);
	ASSERT_NE(MAP_FAILED, page);
	gpa = fm_gpa(page);
	ASSERT_EQ(0, fm_unbind());
	fm_agent_add(getpid(), page, FM_PAGE, token);

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", fm_pci());
	ASSERT_EQ(0, fm_put(path, "1"));
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource0", fm_pci());
	fd = open(path, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd);
	bar = mmap(NULL, 0x9000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, bar);
	set_bus_mastering(true);
	start_engine(slot, bar, gpa, token);
	card_until_runs(slot, token);
	set_bus_mastering(false);
	munmap((void *)bar, 0x9000);
	close(fd);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", fm_pci());
	ASSERT_EQ(0, fm_put(path, "0"));
	/* This test itself caused the violation. */
	EXPECT_EQ(1, card_violations());
	card_cmd("violations clear");

	ASSERT_EQ(0, fm_bind());
	EXPECT_EQ(0, card_violations());
	EXPECT_FALSE(card_runs(slot, token));
	fm_agent_gone(token);
}

/* Calls race with the unbinding: each returns its usual result or ENODEV, and nothing breaks. */
struct racer {
	pthread_t thread;
	int fd;
	volatile bool stop;
	int strange;
	u64 calls;
};

static void *race(void *arg)
{
	struct racer *r = arg;
	struct fermata_status st;
	u64 v;
	int rc;

	while (!r->stop) {
		memset(&st, 0, sizeof(st));
		st.size = sizeof(st);
		rc = fm_ioctl(r->fd, FERMATA_IOC_STATUS, &st);
		if (rc && rc != -ENODEV)
			r->strange = rc;
		rc = fm_reg_read(r->fd, 0x38, &v);
		if (rc && rc != -ENODEV && rc != -EAGAIN)
			r->strange = rc;
		rc = fm_reg_write(r->fd, 0x80, 1);
		if (rc && rc != -ENODEV)
			r->strange = rc;
		rc = fm_preempt(r->fd, 0);
		if (rc && rc != -ENODEV && rc != -ENOENT)
			r->strange = rc;
		r->calls++;
	}
	return NULL;
}

FM_TEST(unbind, point_17_calls_race_with_unbind)
{
	struct racer r[2] = {};
	struct fm_ctx c[2];
	int i, round;

	ASSERT_NE(NULL, fm_pci());
	for (round = 0; round < 3; round++) {
		for (i = 0; i < 2; i++) {
			fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
			fm_job_endless(&c[i]);
			if (card_present())
				card_speed(c[i].slot, 1);
			ASSERT_EQ(0, fm_start(c[i].fd));
			memset(&r[i], 0, sizeof(r[i]));
			r[i].fd = c[i].fd;
			ASSERT_EQ(0, pthread_create(&r[i].thread, NULL, race, &r[i]));
		}
		for (i = 0; i < 2; i++)
			while (!__atomic_load_n(&r[i].calls, __ATOMIC_RELAXED))
				fm_sleep_us(100);
		fm_sleep_us(10000);
		ASSERT_EQ(0, fm_unbind());
		for (i = 0; i < 2; i++)
			fm_agent_gone(c[i].token);
		ASSERT_EQ(0, fm_bind());
		for (i = 0; i < 2; i++) {
			r[i].stop = true;
			pthread_join(r[i].thread, NULL);
			EXPECT_EQ(0, r[i].strange);
			EXPECT_LT(0, r[i].calls);
			fm_ctx_close(&c[i]);
		}
	}
}

TEST_HARNESS_MAIN
