// SPDX-License-Identifier: GPL-2.0
/*
 * The control socket of the emulated card: a virtio port in the guest. The
 * port can be open only once, so the process that opens it first shares it
 * with its children, under the lock in fm_shared. Every request has an id, by
 * which replies to a process that has died are skipped.
 */
#include <poll.h>
#include <stdarg.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "fm.h"

#define REPLY	(256 << 10)

static int port = -1;
static char reply_text[REPLY];

static const char *port_path(void)
{
	const char *v = getenv("FERMATA_CONTROL");

	return v && *v ? v : "/dev/virtio-ports/fermata.card0";
}

bool card_present(void)
{
	u64 end;

	if (port >= 0)
		return true;
	if (access(port_path(), F_OK))
		return false;
	/* The process of the previous test may still be closing the port as it dies. */
	end = fm_now() + FM_GUARD_MS * FM_MS;
	while ((port = open(port_path(), O_RDWR | O_CLOEXEC | O_NONBLOCK)) < 0) {
		if (errno != EBUSY || fm_now() > end)
			fm_die("%s: %s", port_path(), strerror(errno));
		fm_sleep_us(1000);
	}
	return true;
}

static void lock(void)
{
	if (pthread_mutex_lock(&fm_sh->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&fm_sh->lock);
}

static void send_text(const char *text, size_t len)
{
	struct pollfd p = { .fd = port, .events = POLLOUT };

	while (len) {
		ssize_t n = write(port, text, len);

		if (n > 0) {
			text += n;
			len -= n;
		} else if (n < 0 && errno != EAGAIN && errno != EINTR) {
			fm_die("control socket: %s", strerror(errno));
		} else if (poll(&p, 1, 10000) != 1) {
			fm_die("control socket: the card does not read");
		}
	}
}

/* Reads one line, without its newline. */
static void get_line(char *line, size_t size)
{
	struct pollfd p = { .fd = port, .events = POLLIN };
	static char buf[4096];
	static size_t have, at;
	static pid_t owner;
	size_t n = 0;

	if (owner != getpid()) {
		owner = getpid();
		have = 0;
		at = 0;
	}
	for (;;) {
		ssize_t got;

		while (at < have) {
			char c = buf[at++];

			if (c == '\n') {
				line[n] = 0;
				return;
			}
			if (n + 1 < size)
				line[n++] = c;
		}
		got = read(port, buf, sizeof(buf));
		if (got > 0) {
			have = got;
			at = 0;
		} else if (got < 0 && errno != EAGAIN && errno != EINTR) {
			fm_die("control socket: %s", strerror(errno));
		} else if (got == 0) {
			fm_die("control socket: nobody at the other end");
		} else if (poll(&p, 1, 10000) != 1) {
			fm_die("control socket: no reply");
		}
	}
}

const char *card_cmd(const char *fmt, ...)
{
	char text[1200], id[32];
	size_t n, idlen;
	va_list ap;

	if (!card_present())
		fm_die("no control socket");
	lock();
	snprintf(id, sizeof(id), "t%d.%u ", (int)getpid(),
		 __atomic_add_fetch(&fm_sh->requests, 1, __ATOMIC_RELAXED));
	idlen = strlen(id);
	n = snprintf(text, sizeof(text), "%s", id);
	va_start(ap, fmt);
	n += vsnprintf(text + n, sizeof(text) - n, fmt, ap);
	va_end(ap);
	if (n + 2 > sizeof(text))
		fm_die("control request too long");
	text[n] = '\n';
	send_text(text, n + 1);
	do {
		get_line(reply_text, sizeof(reply_text));
	} while (strncmp(reply_text, id, idlen));
	pthread_mutex_unlock(&fm_sh->lock);
	text[n] = 0;
	if (strncmp(reply_text + idlen, "ok", 2))
		fm_die("card: '%s': %s", text + idlen, reply_text + idlen);
	memmove(reply_text, reply_text + idlen + 2, strlen(reply_text + idlen + 2) + 1);
	return reply_text;
}

static const char *find_key(const char *reply, const char *key)
{
	size_t n = strlen(key);
	const char *p = reply;

	while ((p = strstr(p, key))) {
		if ((p == reply || p[-1] == ' ') && p[n] == '=')
			return p + n + 1;
		p += n;
	}
	return NULL;
}

u64 card_key(const char *reply, const char *key)
{
	const char *v = find_key(reply, key);

	if (!v)
		fm_die("card: no %s in '%s'", key, reply);
	return strtoull(v, NULL, 0);
}

static bool has_profile(const char *name)
{
	const char *v = find_key(card_cmd("ping"), "profile");
	size_t n = strlen(name);

	return v && !strncmp(v, name, n) && (v[n] == ' ' || !v[n]);
}

bool card_base(void)
{
	static int base = -1;

	if (!card_present())
		return !fm_has_window();
	if (base < 0)
		base = has_profile("base");
	return base;
}

bool card_relay(void)
{
	static int relay = -1;
	struct fermata_card_info info = { .size = sizeof(info) };
	int fd;

	if (relay >= 0)
		return relay;
	fd = fm_open_dev(0);
	/* No driver is bound to the card: ask the card itself whether it has a relay. */
	if (fd < 0)
		return card_present() && has_profile("relay");
	relay = !fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &info) && info.features & FERMATA_FEATURE_RELAY;
	close(fd);
	return relay;
}

void card_set(int slot, const char *settings)
{
	card_cmd("set slot=%d %s", slot, settings);
}

void card_speed(int slot, unsigned int speed)
{
	char text[32];

	snprintf(text, sizeof(text), "speed=%u", speed);
	card_set(slot, text);
}

void card_fault(int slot, const char *kind)
{
	card_cmd("fault slot=%d %s", slot, kind);
	if (strcmp(kind, "clear"))
		fm_tally("faults of the card", 1);
}

u64 card_counter(int slot, const char *name)
{
	return card_key(card_cmd("counters slot=%d", slot), name);
}

u64 card_register_writes(int slot)
{
	const char *reply = card_cmd("counters slot=%d", slot);

	return card_key(reply, "writes") - card_key(reply, "orders");
}

u64 card_violations(void)
{
	return card_key(card_cmd("violations"), "total");
}

const char *card_why(void)
{
	static char why[512];

	snprintf(why, sizeof(why), "%s", card_cmd("why"));
	return why;
}

void card_run_of(int slot, u64 token, struct card_run *run)
{
	const char *p = card_cmd("runs slot=%d", slot);
	char *end;

	memset(run, 0, sizeof(*run));
	while (*p) {
		unsigned long long tag, v[5];

		if (*p < '0' || *p > '9') {
			p++;
			continue;
		}
		tag = strtoull(p, &end, 0);
		if (*end == ':' && tag == token &&
		    sscanf(end, ":%llu:%llu:%llu:%llu:%llu", &v[0], &v[1], &v[2], &v[3],
			   &v[4]) == 5) {
			run->starts = v[0];
			run->resumes = v[1];
			run->pauses = v[2];
			run->finishes = v[3];
			run->run_ns = v[4];
			return;
		}
		p = end;
		while (*p && *p != ',' && *p != ' ')
			p++;
	}
}

bool card_runs(int slot, u64 token)
{
	const char *reply = card_cmd("state slot=%d", slot);

	return card_key(reply, "tag") == token && (card_key(reply, "status") & 0xff) == 1;
}

static bool card_works(int slot, u64 token)
{
	const char *reply = card_cmd("state slot=%d", slot);

	return card_key(reply, "tag") == token && strstr(reply, "phase=running");
}

static void until(bool (*is_so)(int, u64), int slot, u64 token)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (!is_so(slot, token)) {
		if (fm_now() > end)
			fm_die("tenant %llx is never seen running: %s", (unsigned long long)token,
			       card_cmd("state slot=%d", slot));
		fm_sleep_us(200);
	}
}

void card_until_runs(int slot, u64 token)
{
	until(card_runs, slot, token);
}

void card_until_works(int slot, u64 token)
{
	until(card_works, slot, token);
}

/* The card as a PCI function: unbinding and binding its driver; the driver's module. */

#define DRIVER	"/sys/bus/pci/drivers/fermata"

static char function[64];

const char *fm_pci(void)
{
	char path[64], real[4096], *base;
	struct stat st;

	if (*function)
		return function;
	if (stat(fm_dev(), &st))
		return NULL;
	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/device", major(st.st_rdev),
		 minor(st.st_rdev));
	if (!realpath(path, real))
		return NULL;
	base = strrchr(real, '/') + 1;
	snprintf(function, sizeof(function), "%s", base);
	return function;
}

int fm_pci_config(int flags)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", fm_pci());
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		fm_die("%s: %s", path, strerror(errno));
	return fd;
}

static int put_to_function(const char *file, const char *text)
{
	char path[128];

	if (!fm_pci())
		return -ENOENT;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", fm_pci(), file);
	return fm_put(path, text);
}

bool fm_reset_by(const char *method)
{
	return !put_to_function("reset_method", method);
}

int fm_reset(void)
{
	fm_tally("resets", 1);
	return put_to_function("reset", "1");
}

/* All arenas end with the binding: their pages may be reused, even by the next binding. */
int fm_unbind(void)
{
	int rc = fm_pci() ? fm_put(DRIVER "/unbind", fm_pci()) : -ENOENT;

	fm_tally("unbinds", 1);
	if (!rc)
		fm_agent_all_gone();
	return rc;
}

#define AER_INJECT	"/dev/aer_inject"

/* The argument of the kernel's aer_inject. */
struct aer_error {
	u8 bus;
	u8 dev;
	u8 fn;
	u32 uncorrectable;
	u32 correctable;
	u32 header_log[4];
	u32 domain;
};

const char *fm_port_file(const char *name)
{
	static char path[4096 + 64];
	char link[128], real[4096];

	if (!fm_pci() || !strncmp(fm_pci(), "0000:00:", 8))
		return NULL;
	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s/..", fm_pci());
	if (!realpath(link, real))
		fm_die("%s: %s", link, strerror(errno));
	snprintf(path, sizeof(path), "%s%s", real, name);
	return path;
}

bool fm_no_link_errors(void)
{
	return access(AER_INJECT, W_OK) || !fm_port_file("");
}

int fm_link_error(bool by_port, u32 correctable, u32 uncorrectable)
{
	struct aer_error error = { .correctable = correctable, .uncorrectable = uncorrectable };
	const char *name = by_port ? strrchr(fm_port_file(""), '/') + 1 : fm_pci();
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	unsigned int domain, bus, dev, fn;
	int fd, rc;

	if (sscanf(name, "%x:%x:%x.%x", &domain, &bus, &dev, &fn) != 4)
		return -ENOENT;
	error.domain = domain;
	error.bus = bus;
	error.dev = dev;
	error.fn = fn;
	fd = open(AER_INJECT, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* Retry while the kernel has not handled the last error yet. */
	do {
		rc = write(fd, &error, sizeof(error)) < 0 ? -errno : 0;
		fm_sleep_us(1000);
	} while (rc == -EBUSY && fm_now() < end);
	fm_tally("errors of the link", 1);
	close(fd);
	return rc;
}

/* The kernel's log from here on. */
void fm_log_clear(void)
{
	klogctl(5, NULL, 0);
}

bool fm_log_has(const char *text)
{
	static char log[1 << 20];
	int n = klogctl(3, log, sizeof(log) - 1);

	log[n < 0 ? 0 : n] = 0;
	return strstr(log, text);
}

/* Returns when the device node exists. */
int fm_bind(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int fd, rc = fm_put(DRIVER "/bind", fm_pci());

	if (rc)
		return rc;
	while ((fd = fm_open_dev(0)) < 0) {
		if (fm_now() > end)
			return fd;
		fm_sleep_us(1000);
	}
	close(fd);
	return 0;
}

int fm_pci_enabled(void)
{
	char path[128];
	int n = -EIO;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", fm_pci());
	file = fopen(path, "r");
	if (!file)
		return -errno;
	if (fscanf(file, "%d", &n) != 1)
		n = -EIO;
	fclose(file);
	return n;
}

bool fm_delay(const char *function, const char *comm, unsigned int ms)
{
	const char *file = getenv("FERMATA_DELAY");
	char args[160];
	int fd;

	if (!file || !*file)
		return false;
	snprintf(args, sizeof(args), "symbol=%s comm=%s ms=%u", function, comm, ms);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || syscall(SYS_finit_module, fd, args, 0))
		fm_die("%s %s: %s", file, args, strerror(errno));
	close(fd);
	return true;
}

void fm_delay_no_more(void)
{
	if (syscall(SYS_delete_module, "delay", O_NONBLOCK))
		fm_die("removing the module that delays: %s", strerror(errno));
}

bool fm_module_known(void)
{
	const char *file = getenv("FERMATA_MODULE");

	return file && *file;
}

int fm_module_remove(void)
{
	return syscall(SYS_delete_module, "fermata", O_NONBLOCK) ? -errno : 0;
}

void fm_module_load(const char *args)
{
	int fd = open(getenv("FERMATA_MODULE"), O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, args ? args : "", 0))
		fm_die("loading with '%s': %s", args ? args : "", strerror(errno));
	close(fd);
	fm_tally("loads of the module", 1);
}

void fm_until_node(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (access(fm_dev(), R_OK | W_OK)) {
		if (fm_now() >= end)
			fm_die("no %s", fm_dev());
		fm_sleep_us(1000);
	}
}

void fm_module_reload(const char *args)
{
	int rc = fm_module_remove();

	if (rc)
		fm_die("removing the module: %s", strerror(-rc));
	fm_module_load(args);
	fm_until_node();
}

bool fm_foreign_memory(void)
{
	const char *given = getenv("FERMATA_MODULE_ARGS");
	struct fermata_card_info info;
	char args[512];

	fm_card_info(&info);
	if (info.features & FERMATA_FEATURE_FOREIGN_MEMORY)
		return true;
	if (!fm_module_known())
		return false;
	snprintf(args, sizeof(args), "%s foreign_memory=1", given ? given : "");
	fm_module_reload(args);
	return true;
}
