// SPDX-License-Identifier: GPL-2.0
/* Control of the machine from outside, and sleep states. */
#include <poll.h>
#include <sys/swap.h>
#include <sys/utsname.h>

#include "fm.h"

#define PORT		"/dev/virtio-ports/fermata.host"
#define ALARM		"/sys/class/rtc/rtc0/wakealarm"
#define WAKEUP_COUNT	"/sys/power/wakeup_count"
#define BUTTON		"/sys/module/button"
#define STATE		"/sys/power/state"
#define MEM_SLEEP	"/sys/power/mem_sleep"
#define PM_TEST		"/sys/power/pm_test"
#define DISK_MODE	"/sys/power/disk"
#define DISK		"/dev/vda"
#define PM_TEST_DELAY	"/sys/module/suspend/parameters/pm_test_delay"

bool host_present(void)
{
	return !access(PORT, R_OK | W_OK);
}

/* Reads a line of at most size bytes, without its newline, within the guard time. */
static void get_line(int fd, char *line, size_t size)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t n = 0;

	for (;;) {
		if (poll(&p, 1, FM_GUARD_MS) != 1)
			fm_die("%s: no answer", PORT);
		if (read(fd, line + n, 1) != 1)
			fm_die("%s: %s", PORT, strerror(errno));
		if (line[n] == '\n')
			break;
		if (n + 1 < size)
			n++;
	}
	line[n] = 0;
}

const char *host_ask(const char *verb, unsigned int number)
{
	static char answer[256];
	static unsigned int requests;
	char request[64], id[32];
	int fd = open(PORT, O_RDWR | O_CLOEXEC), n;

	if (fd < 0)
		fm_die("%s: %s", PORT, strerror(errno));
	n = snprintf(id, sizeof(id), "%d.%u ", (int)getpid(), ++requests);
	snprintf(request, sizeof(request), "%s%s %u\n", id, verb, number);
	if (write(fd, request, strlen(request)) != (ssize_t)strlen(request))
		fm_die("%s: %s", PORT, strerror(errno));
	/* Skip replies to processes that have died. */
	do {
		get_line(fd, answer, sizeof(answer));
	} while (strncmp(answer, id, n));
	close(fd);
	return strcmp(answer + n, "ok") ? answer + n : NULL;
}

/* The beginning of a file; empty if the file cannot be read. */
static const char *get(const char *path)
{
	static char text[256];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = -1;

	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = 0;
	return text;
}

/*
 * After suspend, virtio_console of Linux 7.3 asks for the state of its ports before it can receive
 * the answer, and takes them for closed: neither the card's control socket nor our output recovers.
 */
static bool ports_are_lost(void)
{
	struct utsname name;

	return !uname(&name) && !strncmp(name.release, "7.3.", 4);
}

static const char *cannot_hibernate(enum fm_sleep how)
{
	if (!strstr(get(STATE), "disk"))
		return "the kernel cannot hibernate";
	if (how == FM_DISK_REHEARSAL)
		return NULL;
	if (access(DISK, W_OK))
		return "no disk for an image";
	if (how == FM_DISK_TEST_RESUME)
		return NULL;
	if (how == FM_DISK_PLATFORM && !strstr(get(DISK_MODE), "platform"))
		return "the machine has no S4";
	return host_present() ? NULL : "nobody boots the machine again";
}

const char *fm_cannot_sleep(enum fm_sleep how)
{
	if (ports_are_lost())
		return "this kernel's virtio ports are closed after suspend";
	/* The driver of virtio-iommu neither saves nor restores the device's state. */
	if (!access("/sys/module/virtio_iommu", F_OK))
		return "nothing behind a virtio-iommu does DMA after suspend";
	if (access(PM_TEST, W_OK) || !strstr(get(STATE), "mem"))
		return "the kernel cannot suspend, or not rehearse it";
	if (how == FM_REHEARSAL || how == FM_SHORT_REHEARSAL)
		return NULL;
	if (how >= FM_DISK_REHEARSAL)
		return cannot_hibernate(how);
	if (how == FM_TO_IDLE) {
		if (!strstr(get(STATE), "freeze"))
			return "the kernel cannot suspend to idle";
		return host_present() && !access(BUTTON, F_OK) ? NULL : "nobody presses a button";
	}
	if (access(ALARM, W_OK) || access(WAKEUP_COUNT, R_OK | W_OK))
		return "no clock that wakes the machine";
	if (!strstr(get(MEM_SLEEP), "deep"))
		return "the machine has no S3";
	return NULL;
}

/*
 * The address of the power management registers of QEMU's q35 (00:1f.0, 0x40 to 0x47). SeaBIOS sets
 * it at boot but not after S3, and without it neither the next S3 nor power-off works.
 */
struct pm_base {
	int fd;
	u8 value[8];
};

static void pm_base_save(struct pm_base *base)
{
	u32 id = 0;

	base->fd = open("/sys/bus/pci/devices/0000:00:1f.0/config", O_RDWR | O_CLOEXEC);
	if (base->fd < 0)
		return;
	if (pread(base->fd, &id, 4, 0) == 4 && id == 0x29188086 &&
	    pread(base->fd, base->value, 8, 0x40) == 8)
		return;
	close(base->fd);
	base->fd = -1;
}

static void pm_base_restore(struct pm_base *base)
{
	u8 now[8];

	if (base->fd < 0)
		return;
	if (pread(base->fd, now, 8, 0x40) == 8 && memcmp(now, base->value, 8) &&
	    pwrite(base->fd, base->value, 8, 0x40) != 8)
		fm_die("the power management registers cannot be restored");
	close(base->fd);
}

static void must_put(const char *path, const char *text)
{
	int rc = fm_put(path, text);

	if (rc)
		fm_die("%s > %s: %s", text, path, strerror(-rc));
}

/* 0 or a negative errno. */
static int rehearse(const char *state, const char *seconds)
{
	int rc;

	must_put(PM_TEST, "devices");
	must_put(PM_TEST_DELAY, seconds);
	rc = fm_put(STATE, state);
	must_put(PM_TEST, "none");
	return rc;
}

/* Sleeps until the clock wakes the machine: 0 or a negative errno. */
static int sleep_for(int seconds)
{
	char alarm[16];
	struct pm_base base;
	int rc;

	must_put(PM_TEST, "none");
	must_put(MEM_SLEEP, "deep");
	must_put(ALARM, "0");
	snprintf(alarm, sizeof(alarm), "+%d", seconds);
	must_put(ALARM, alarm);
	pm_base_save(&base);
	rc = fm_put(STATE, "mem");
	pm_base_restore(&base);
	must_put(ALARM, "0");
	return rc;
}

/* Sleeps until the power button is pressed. Presses again if the machine was still awake. */
static int sleep_until_pressed(void)
{
	int rc;

	must_put(PM_TEST, "none");
	if (host_ask("button", 1500))
		fm_die("the button cannot be pressed");
	rc = fm_put(STATE, "freeze");
	if (host_ask("button", 0))
		fm_die("the button cannot be let go");
	return rc;
}

/* Makes the disk the swap space that the image is written to. */
static void swap_on(void)
{
	if (swapon(DISK, 0) && errno != EBUSY &&
	    (system("mkswap " DISK " >/dev/null") || swapon(DISK, 0)))
		fm_die("no swap space on " DISK ": %s", strerror(errno));
}

/* Writes an image and is restored from it: 0 or a negative errno. */
static int hibernate(const char *mode)
{
	bool boots = strcmp(mode, "test_resume");
	int rc;

	swap_on();
	must_put(PM_TEST, "none");
	must_put(DISK_MODE, mode);
	if (boots && host_ask("boots", 1))
		fm_die("the machine does not boot again");
	rc = fm_put(STATE, "disk");
	if (boots && host_ask("boots", 0))
		fm_die("the machine boots again and again");
	return rc;
}

/* Time from setting the alarm until it goes off, at first and at most, in seconds. */
#define ALARM_MIN	4
#define ALARM_MIN_SLOW	20
#define ALARM_MAX	80

/*
 * An alarm that goes off before the machine sleeps would be missed. With
 * wakeup_count it aborts the attempt, which is repeated with more time.
 */
int fm_sleep_and_wake(enum fm_sleep how)
{
	int rc = -EBUSY, seconds;

	fm_tally("suspends", 1);
	if (how == FM_REHEARSAL)
		return rehearse("mem", "1");
	if (how == FM_SHORT_REHEARSAL)
		return rehearse("mem", "0");
	if (how == FM_DISK_REHEARSAL)
		return rehearse("disk", "0");
	if (how == FM_DISK_TEST_RESUME)
		return hibernate("test_resume");
	if (how == FM_DISK_REBOOT)
		return hibernate("reboot");
	if (how == FM_DISK_PLATFORM)
		return hibernate("platform");
	if (how == FM_TO_IDLE)
		return sleep_until_pressed();
	seconds = fm_is_slow() ? ALARM_MIN_SLOW : ALARM_MIN;
	for (; rc == -EBUSY && seconds <= ALARM_MAX; seconds *= 2) {
		if (!fm_put(WAKEUP_COUNT, get(WAKEUP_COUNT)))
			rc = sleep_for(seconds);
	}
	return rc;
}
