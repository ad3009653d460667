// SPDX-License-Identifier: GPL-2.0
/*
 * Dumps of hangs: each cause leaves one dump with the state of the driver, at most one a minute,
 * which keeps no module loaded, and which has nothing of tenants.
 */
#include "kselftest_harness.h"
#include <dirent.h>
#include <sys/prctl.h>
#include "lib/mem.h"

FM_FIXTURE_CARD(dump);

#define DUMPS	"/sys/class/devcoredump"
/* What tenants own, and no dump may have. */
#define PATTERN	0x5ec2e7da7a5ec2e7ULL
#define NAME	"sEcr3t-tenant"
/* Within the time in which what follows from a cause becomes part of its dump. */
#define TIMEOUT	(20 * FM_MS)

static char dump[1 << 17];

#define NEED_DUMPS()								\
({										\
	if (access(DUMPS, F_OK))						\
		SKIP(return, "a kernel without CONFIG_DEV_COREDUMP");		\
})

/* The file of the card's dump, or NULL. */
static const char *dump_file(void)
{
	static char file[512];
	const char *found = NULL;
	char path[300], device[300];
	struct dirent *entry;
	DIR *dir = opendir(DUMPS);

	while (dir && !found && (entry = readdir(dir))) {
		ssize_t n;

		snprintf(path, sizeof(path), DUMPS "/%s/failing_device", entry->d_name);
		n = readlink(path, device, sizeof(device) - 1);
		if (n < 0)
			continue;
		device[n] = 0;
		snprintf(file, sizeof(file), DUMPS "/%s/data", entry->d_name);
		if (!strcmp(strrchr(device, '/') + 1, fm_pci()))
			found = file;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* A card that was removed and found again is another device: its dumps may be several. */
static void delete_dump(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	const char *file;

	while ((file = dump_file())) {
		if (fm_now() > end)
			fm_die("%s was not deleted", file);
		fm_put(file, "1");
		fm_sleep_us(1000);
	}
}

/* Lets the driver forget the last dump: the next cause leaves one. */
static void begin(void)
{
	if (!fm_pci() || fm_unbind())
		fm_die("unbind");
	delete_dump();
	if (fm_bind())
		fm_die("bind");
}

static void read_dump(void)
{
	const char *file = dump_file();
	size_t length = 0;
	ssize_t n;
	int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;

	if (fd < 0)
		fm_die("no dump: %s", strerror(errno));
	while ((n = read(fd, dump + length, sizeof(dump) - 1 - length)) > 0)
		length += n;
	dump[length] = 0;
	close(fd);
}

static void until_dump(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (!dump_file())
		if (fm_now() > end)
			fm_die("no dump");
	read_dump();
}

static bool has(const char *text)
{
	return strstr(dump, text);
}

/* Whether the dump lists the event. */
static bool has_event(const char *cause)
{
	char text[64];

	snprintf(text, sizeof(text), ": %s", cause);
	return has(text);
}

static bool has_reason(const char *cause)
{
	char text[64];

	snprintf(text, sizeof(text), "\nreason: %s\n", cause);
	return has(text);
}

/* Smaller numbers may occur by chance. */
static bool has_number(u64 number)
{
	char text[32];

	if (number < 1 << 24)
		return false;

	snprintf(text, sizeof(text), "%llx", (unsigned long long)number);
	if (strcasestr(dump, text))
		return true;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	return strstr(dump, text);
}

/* Whether the dump has an address of the kernel: ffff and 12 more digits. */
static bool has_kernel_address(void)
{
	const char *at = dump;

	while ((at = strcasestr(at, "ffff"))) {
		size_t digits = strspn(at, "0123456789abcdefABCDEF");

		/* All-ones are no address. */
		if (digits == 16 && strncasecmp(at, "ffffffffffffffff", 16))
			return true;
		at += digits;
	}
	return false;
}

/* What of the tenant the dump has, or NULL. */
static const char *leak(const struct fm_ctx *c)
{
	if (has(NAME))
		return "the name of the process";
	if (has_number(PATTERN) || memmem(dump, sizeof(dump), &(u64){ PATTERN }, 8))
		return "a register or data";
	if (has_number(c->token))
		return "the value of a register";
	if (has_number(c->base) || has_number((u64)(uintptr_t)c->mem) || has_number(c->head))
		return "an address of the program";
	if (has_number(fm_gpa(c->mem)) || has_number(fm_gpa(c->mem) >> 6))
		return "an address of memory";
	if (has_kernel_address())
		return "an address of the kernel";
	return NULL;
}

/* The parts that each dump has. */
static const char *lacks(void)
{
	static const char *const parts[] = {
		"\ntime: ", "\nkernel: ", "\ndriver: ", "\nmissed: ", "\n[events]\n", "\n[counts]\n",
		"\n[card]\nprofile: ", "\nRESET: ", "\n[slot 0]\nengine: ", "\nstate: ", "\n[writes]\n", "\n[end]\n",
	};
	size_t i;

	if (strncmp(dump, "fermata-dump 1\n", 15))
		return "fermata-dump 1";
	for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (!has(parts[i]))
			return parts[i];
	return NULL;
}

/* A job without end of a tenant whose name, registers and data are to be found in no dump. */
static void tenant(struct fm_ctx *c)
{
	size_t i;

	prctl(PR_SET_NAME, NAME);
	fm_ctx_new(c, FM_LIST, 64 * 1024);
	fm_job_endless(c);
	for (i = c->len / 2; i < c->len; i += 8)
		memcpy(c->mem + i, &(u64){ PATTERN }, 8);
	if (fm_reg_write(c->fd, 0x80, PATTERN) || fm_param_set(c->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, TIMEOUT))
		fm_die("registers and parameters");
}

static void tenant_runs(struct fm_ctx *c)
{
	tenant(c);
	if (fm_start(c->fd))
		fm_die("START");
	card_until_runs(c->slot, c->token);
}

/* The job does not pause. */
static void stop_in_vain(struct fm_ctx *c)
{
	card_fault(c->slot, "hang=1");
	if (fm_preempt(c->fd, FERMATA_PREEMPT_HOLD))
		fm_die("PREEMPT");
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	card_fault(c->slot, "hang=0");
}

/* Unbinding makes a dump that is under way: there is no other one. */
static void no_other(struct __test_metadata *_metadata)
{
	delete_dump();
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(NULL, dump_file());
	ASSERT_EQ(0, fm_bind());
}

FM_TEST(dump, job_that_does_not_pause)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	stop_in_vain(&c);
	until_dump();
	EXPECT_TRUE(has_reason("preempt-timeout"));
	EXPECT_TRUE(has("\npreempt-timeout: 1\n"));
	EXPECT_FALSE(has_event("reset-failed"));
	ASSERT_GOOD(lacks());
	ASSERT_GOOD(leak(&c));
	/* What the driver has written: the reset. */
	EXPECT_TRUE(has(": RESET 0x1\n"));
	EXPECT_TRUE(has(card_relay() ? ": ORDER[0] after=" : ": TRANSACTION_CTL[0] 0x6\n"));
	EXPECT_EQ(card_relay(), has("\n[records]\n0.0: 0x"));
	/* The values of registers with addresses are left out. */
	EXPECT_TRUE(has(" (address)\n"));
	fm_ctx_close(&c);
	no_other(_metadata);
}

FM_TEST(dump, one_a_minute)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	stop_in_vain(&c);
	until_dump();
	delete_dump();
	fm_ctx_close(&c);
	tenant_runs(&c);
	stop_in_vain(&c);
	fm_ctx_close(&c);
	no_other(_metadata);
}

/* What happens between two dumps is counted in the second. FERMATA_DUMPS: this takes a minute. */
SLOW_TEST(dump, events_in_between_are_counted)
{
	struct fm_ctx c;
	int i;

	NEED_DUMPS();
	if (!getenv("FERMATA_DUMPS"))
		SKIP(return, "FERMATA_DUMPS is not set: this takes a minute");
	begin();
	for (i = 0; i < 4; i++) {
		tenant_runs(&c);
		stop_in_vain(&c);
		fm_ctx_close(&c);
		if (!i) {
			until_dump();
			delete_dump();
		}
		/* No dump is due, but after the last one but one it is. */
		if (i == 2) {
			EXPECT_EQ(NULL, dump_file());
			fm_sleep_us(61000000);
		}
	}
	until_dump();
	EXPECT_TRUE(has("\nmissed: 2\n"));
	EXPECT_TRUE(has("\npreempt-timeout: 4\n"));
	no_other(_metadata);
}

/* The dump of a hang shows what followed from it: the slot could not be reset. */
FM_TEST(dump, slot_that_cannot_be_reset)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	card_fault(c.slot, "reset_fails=1");
	stop_in_vain(&c);
	until_dump();
	EXPECT_TRUE(has_reason("preempt-timeout"));
	EXPECT_TRUE(has_event("reset-failed slot=0"));
	ASSERT_GOOD(leak(&c));
	card_fault(c.slot, "clear");
	no_other(_metadata);
	fm_agent_gone(c.token);
	fm_ctx_close(&c);
}

/* Nobody has waited for the job: its context was closed. */
FM_TEST(dump, closed_context_on_a_slot_that_cannot_be_reset)
{
	struct fm_ctx c;
	u64 token;
	int slot;

	NEED_DUMPS();
	if (card_relay())
		SKIP(return, "a relay drops the job of a closed context without a reset");
	begin();
	tenant_runs(&c);
	(slot = c.slot, token = c.token);
	card_fault(slot, "reset_fails=1");
	munmap(c.mem, c.len);
	close(c.fd);
	until_dump();
	EXPECT_TRUE(has_reason("reset-failed"));
	EXPECT_TRUE(has("\nstate: quarantined\n"));
	/* The card has not taken what the driver wrote. */
	EXPECT_TRUE(has("\nRESET: 0x1\nRESET_read: 0x"));
	card_fault(slot, "clear");
	no_other(_metadata);
	fm_agent_gone(token);
}

/* On base, the answer of a job that is gone looks like a wrong answer of the next one. */
FM_TEST(dump, invalid_status)
{
	struct fm_ctx gone, c;

	NEED_DUMPS();
	if (!card_base())
		SKIP(return, "a status tells whose it is");
	begin();
	tenant_runs(&gone);
	card_fault(gone.slot, "save_takes_us=60000000");
	card_fault(gone.slot, "late_paused=1000000");
	ASSERT_EQ(0, fm_param_set(gone.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS));
	ASSERT_EQ(0, fm_preempt(gone.fd, FERMATA_PREEMPT_HOLD));
	while (card_counter(gone.slot, "pauses_written") == 0)
		;
	fm_ctx_close(&gone);
	tenant(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	until_dump();
	EXPECT_TRUE(has_reason("invalid-status"));
	EXPECT_TRUE(has("\nstatus: 0x4\n"));
	ASSERT_GOOD(leak(&c));
	fm_ctx_close(&c);
	no_other(_metadata);
}

FM_TEST(dump, invalid_record)
{
	struct fm_ctx c;

	NEED_DUMPS();
	if (!card_relay())
		SKIP(return, "the card has no relay");
	begin();
	tenant_runs(&c);
	card_fault(c.slot, "lose_record=1");
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	until_dump();
	EXPECT_TRUE(has_reason("invalid-record"));
	ASSERT_GOOD(leak(&c));
	EXPECT_LT(0, card_violations());
	card_cmd("violations clear");
	fm_ctx_close(&c);
	no_other(_metadata);
}

FM_TEST(dump, card_that_is_gone)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	card_fault(0, "dead=1");
	fm_preempt(c.fd, FERMATA_PREEMPT_HOLD);
	until_dump();
	EXPECT_TRUE(has_reason("card-gone"));
	EXPECT_TRUE(has("\nstatus: 0xffffffffffffffff\n"));
	ASSERT_GOOD(leak(&c));
	card_fault(0, "dead=0");
	no_other(_metadata);
	fm_ctx_close(&c);
}

FM_TEST(dump, error_of_the_link)
{
	struct fm_ctx c;

	NEED_DUMPS();
	if (fm_no_link_errors())
		SKIP(return, "no aer_inject");
	begin();
	tenant_runs(&c);
	ASSERT_EQ(0, fm_link_error(false, 0, FM_UNC_DATA_LINK));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	until_dump();
	EXPECT_TRUE(has_reason("link-error"));
	ASSERT_GOOD(lacks());
	ASSERT_GOOD(leak(&c));
	fm_ctx_close(&c);
	no_other(_metadata);
}

/* An unbind is no hang. */
FM_TEST(dump, removal_leaves_none)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	no_other(_metadata);
	fm_ctx_close(&c);
}

/* Neither is the end of a tenant whose job runs. */
FM_TEST(dump, closing_leaves_none)
{
	struct fm_ctx c;

	NEED_DUMPS();
	begin();
	tenant_runs(&c);
	fm_ctx_close(&c);
	while (fm_contexts())
		;
	no_other(_metadata);
}

/* The access goes where a value of the tenant's data points. */
FM_TEST(dump, access_outside_the_window)
{
	static const struct {
		u64 beyond;
		const char *shown;
	} accesses[] = {
		{ 0x10000, "\nFAULT_INFO: read\nFAULT_ADDR: arena+" },
		{ 1ULL << 40, "\nFAULT_INFO: read\nFAULT_ADDR: (address)\n" },
	};
	struct fm_ctx c;
	size_t i;

	NEED_DUMPS();
	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	for (i = 0; i < 2; i++) {
		u64 address;

		begin();
		tenant(&c);
		address = c.base + c.len + accesses[i].beyond;
		ASSERT_EQ(0, fm_reg_write(c.fd, 0x30, address));
		ASSERT_EQ(0, fm_start(c.fd));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		/* A fault is the program's, not the card's. */
		EXPECT_EQ(NULL, dump_file());
		fm_job_endless(&c);
		ASSERT_EQ(0, fm_start(c.fd));
		card_until_runs(c.slot, c.token);
		stop_in_vain(&c);
		until_dump();
		EXPECT_TRUE(has(accesses[i].shown));
		EXPECT_FALSE(has_number(address));
		EXPECT_FALSE(has_number(c.len + (1ULL << 40)));
		ASSERT_GOOD(leak(&c));
		fm_ctx_close(&c);
		no_other(_metadata);
	}
}

FM_TEST(dump, dump_outlives_the_module)
{
	struct fm_ctx c;

	NEED_DUMPS();
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	begin();
	tenant_runs(&c);
	stop_in_vain(&c);
	fm_ctx_close(&c);
	/* The module is removed before the dump has been written, perhaps. */
	ASSERT_EQ(0, fm_module_remove());
	read_dump();
	EXPECT_TRUE(has_reason("preempt-timeout"));
	ASSERT_GOOD(lacks());
	fm_module_load(getenv("FERMATA_MODULE_ARGS"));
	fm_until_node();
	read_dump();
	EXPECT_TRUE(has_reason("preempt-timeout"));
	delete_dump();
}

TEST_HARNESS_MAIN
