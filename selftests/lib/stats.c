// SPDX-License-Identifier: GPL-2.0
/* The driver's statistics. */
#include <sys/stat.h>

#include "sched.h"

void fm_slot_info(int slot, struct fermata_slot_info *info)
{
	int fd = fm_open_dev(0);

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->slot = slot;
	fm_must(fd, FERMATA_IOC_SLOT_INFO, info, "SLOT_INFO");
	close(fd);
}

void fm_histogram(int fd, u32 kind, u32 number, struct fm_histogram *h)
{
	struct fermata_histogram arg = {
		.size = sizeof(arg), .kind = kind, .number = number,
		.buckets = FERMATA_HISTOGRAM_BUCKETS, .counts = (uintptr_t)h->buckets
	};

	fm_must(fd, FERMATA_IOC_HISTOGRAM, &arg, "HISTOGRAM");
	h->count = arg.count;
	h->sum = arg.sum_ns;
	h->min = arg.min_ns;
	h->max = arg.max_ns;
}

u64 fm_sysfs_number(int slot, const char *name)
{
	const char *path = fm_sysfs_path(slot, name);
	unsigned long long n;
	FILE *file = fopen(path, "re");

	if (!file || fscanf(file, "%llu", &n) != 1)
		fm_die("%s cannot be read", path);
	fclose(file);
	return n;
}

u64 fm_fdinfo_number(int fd, const char *key)
{
	char path[64], line[256];
	unsigned long long n;
	size_t len = strlen(key);
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	if (!file)
		fm_die("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, key, len) && line[len] == ':') {
			n = strtoull(line + len + 1, NULL, 10);
			fclose(file);
			return n;
		}
	}
	fm_die("%s has no %s", path, key);
}

const char *fm_histogram_wrong(const struct fm_histogram *h)
{
	/* The smallest possible sum of the times in the buckets; the first and last used bucket. */
	u64 count = 0, least = 0;
	int i, first = -1, last = -1;

	for (i = 0; i < FERMATA_HISTOGRAM_BUCKETS; i++) {
		if (!h->buckets[i])
			continue;
		if (first < 0)
			first = i;
		last = i;
		count += h->buckets[i];
		least += h->buckets[i] * fermata_histogram_lower(i);
	}
	if (count != h->count)
		return "the buckets together are not the count";
	if (!count)
		return h->sum | h->min | h->max ? "times of nothing" : NULL;
	if (h->min < fermata_histogram_lower(first) || h->min >= fermata_histogram_lower(first + 1))
		return "the shortest is not in the first bucket";
	if (h->max < fermata_histogram_lower(last) ||
	    (last + 1 < FERMATA_HISTOGRAM_BUCKETS && h->max >= fermata_histogram_lower(last + 1)))
		return "the longest is not in the last bucket";
	if (h->sum < least || h->sum < h->max || h->sum / count > h->max)
		return "the sum is not that of such times";
	return NULL;
}

/* Figures of a whole boot: what was done to the module, and the outcome. */

/* One write() for each line, so that lines of concurrent processes do not mix. */
static void tell(const char *kind, const char *what, u64 n)
{
	const char *path = getenv("FERMATA_TALLY");
	char line[128];
	int fd, length;

	if (!path || !*path)
		return;
	length = snprintf(line, sizeof(line), "%s %llu %s\n", kind, (unsigned long long)n, what);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, line, length) != length)
		fm_die("%s: %s", path, strerror(errno));
	close(fd);
}

void fm_tally(const char *what, u64 n)
{
	tell("+", what, n);
}

void fm_figure(const char *what, u64 value)
{
	tell("=", what, value);
}

/* The driver's tracepoints. */

#define TRACING		"/sys/kernel/tracing"
#define INSTANCE	TRACING "/instances/fermata-selftest"

static void put(const char *file, const char *text)
{
	char path[256];
	int rc;

	snprintf(path, sizeof(path), INSTANCE "/%s", file);
	rc = fm_put(path, text);
	if (rc)
		fm_die("%s: %s", path, strerror(-rc));
}

void fm_trace_close(void)
{
	rmdir(INSTANCE);
}

const char *fm_trace_open(void)
{
	if (access(TRACING "/events/fermata", F_OK))
		return "no tracefs, or no tracepoints";
	fm_trace_close();
	if (mkdir(INSTANCE, 0700))
		return "no tracing instance";
	put("buffer_size_kb", "4096");
	put("trace_clock", "mono");
	fm_trace_switch("enable", true);
	return NULL;
}

void fm_trace_begin(void)
{
	/* Opening the file with O_TRUNC clears the buffer. */
	int fd = open(INSTANCE "/trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd < 0)
		fm_die("trace: %s", strerror(errno));
	close(fd);
}

void fm_trace_switch(const char *which, bool on)
{
	char file[128];

	if (strchr(which, '/'))
		snprintf(file, sizeof(file), "events/fermata/fermata_%s", which);
	else
		snprintf(file, sizeof(file), "events/fermata/%s", which);
	put(file, on ? "1" : "0");
}

void fm_trace_interrupts(void)
{
	/* Tracepoints of decisions, and of the begin and the end of interrupts. */
	static const char *const decisions[] = { "pause", "keep", "start", "reset" };
	static const char *const bounds[] = {
		"timer/hrtimer_expire_entry", "timer/hrtimer_expire_exit", "irq/irq_handler_entry",
		"irq/irq_handler_exit"
	};
	char file[128];
	int i;

	fm_trace_switch("enable", false);
	for (i = 0; i < 4; i++) {
		snprintf(file, sizeof(file), "%s/enable", decisions[i]);
		fm_trace_switch(file, true);
		snprintf(file, sizeof(file), "events/%s/enable", bounds[i]);
		put(file, "1");
	}
}

/* Returns the whole trace, in order of time; the caller frees it. */
static char *record(void)
{
	size_t room = 1 << 16, len = 0;
	char *text = malloc(room);
	ssize_t n;
	int fd;

	fd = open(INSTANCE "/trace", O_RDONLY);
	if (fd < 0 || !text)
		fm_die("trace: %s", strerror(errno));
	while ((n = read(fd, text + len, room - len - 1)) > 0) {
		len += n;
		if (room - len < 4096) {
			room *= 2;
			text = realloc(text, room);
			if (!text)
				fm_die("no memory");
		}
	}
	if (n < 0)
		fm_die("trace: %s", strerror(errno));
	close(fd);
	text[len] = 0;
	return text;
}

/* Where the event's name begins in a line, or NULL: "NAME-PID [CPU] FLAGS TIME: fermata_NAME: FIELDS". */
static char *event_in(char *line)
{
	char *at = *line == '#' ? NULL : strstr(line, ": fermata_");

	return at ? at + strlen(": fermata_") : NULL;
}

int fm_trace_count(void)
{
	char *text = record(), *save, *line;
	int n = 0;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		n += event_in(line) != NULL;
	free(text);
	return n;
}

#define CPUS	64

/* A processor, as far as its trace has been read. */
struct processor {
	unsigned long long timer, now;
	u64 expiries, decisions;
	bool in_interrupt;
};

/* Expiries of one timer at one time, and decisions at one time, are of one interrupt. */
static void note_expiry(struct fm_interrupts *all, struct processor *cpu, const char *line)
{
	unsigned long long timer, now;

	if (sscanf(strstr(line, " hrtimer="), " hrtimer=%llx", &timer) != 1 ||
	    sscanf(strstr(line, " now="), " now=%llu", &now) != 1)
		fm_die("a line of the trace: %s", line);
	if (cpu->now != now)
		cpu->decisions = 0;
	if (cpu->now != now || cpu->timer != timer)
		cpu->expiries = 0;
	cpu->timer = timer;
	cpu->now = now;
	cpu->in_interrupt = true;
	all->expiries++;
	if (++cpu->expiries > all->most_expiries)
		all->most_expiries = cpu->expiries;
}

static void note_line(struct fm_interrupts *all, struct processor *cpu, char *line)
{
	if (event_in(line)) {
		if (!cpu->in_interrupt)
			return;
		all->decisions++;
		if (++cpu->decisions > all->most_decisions)
			all->most_decisions = cpu->decisions;
	} else if (strstr(line, ": irq_handler_entry:")) {
		cpu->decisions = 0;
		cpu->in_interrupt = true;
	} else if (strstr(line, ": irq_handler_exit:") || strstr(line, ": hrtimer_expire_exit:")) {
		cpu->in_interrupt = false;
	} else if (strstr(line, ": hrtimer_expire_entry:") && strstr(line, "[fermata]")) {
		note_expiry(all, cpu, line);
	}
}

struct fm_interrupts fm_trace_read_interrupts(void)
{
	char *text = record(), *save, *line, *at;
	struct processor cpus[CPUS] = { };
	struct fm_interrupts all = { };
	unsigned int cpu;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		at = *line == '#' ? NULL : strchr(line, '[');
		if (at && sscanf(at, "[%u]", &cpu) == 1 && cpu < CPUS)
			note_line(&all, &cpus[cpu], line);
	}
	free(text);
	return all;
}

/* Is word one of the words in fields? */
static bool has_word(const char *fields, const char *word, size_t len)
{
	const char *at = fields;

	while ((at = strstr(at, word)) != NULL) {
		if ((at == fields || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
			return true;
		at += len;
	}
	return false;
}

static bool is_wanted(const char *event, const char *want)
{
	char copy[256], *save, *word;
	size_t name = strcspn(event, ":");

	snprintf(copy, sizeof(copy), "%s", want);
	word = strtok_r(copy, " ", &save);
	if (strlen(word) != name || strncmp(event, word, name))
		return false;
	while ((word = strtok_r(NULL, " ", &save)) != NULL)
		if (!has_word(event + name + 1, word, strlen(word)))
			return false;
	return true;
}

const char *fm_trace_wrong(const char *const *want, int n)
{
	static char wrong[300];
	char *text = record(), *save, *line, *event;
	int i = 0;

	for (line = strtok_r(text, "\n", &save); line && i < n; line = strtok_r(NULL, "\n", &save)) {
		event = event_in(line);
		if (event && is_wanted(event, want[i]))
			i++;
	}
	free(text);
	if (i == n)
		return NULL;
	snprintf(wrong, sizeof(wrong), "not recorded, or too early: %s", want[i]);
	return wrong;
}

bool fm_trace_number(const char *want, int n, const char *field, u64 *value)
{
	char *text = record(), *save, *line, *event, *at = NULL;
	char sought[32];

	snprintf(sought, sizeof(sought), " %s=", field);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		event = event_in(line);
		if (event && is_wanted(event, want) && !n--) {
			at = strstr(event, sought);
			break;
		}
	}
	if (at)
		*value = strtoull(at + strlen(sought), NULL, 0);
	free(text);
	return at;
}

void fm_trace_until(const char *const *want, int n)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	const char *wrong;

	while ((wrong = fm_trace_wrong(want, n)) != NULL) {
		if (fm_now() > end)
			fm_die("%s", wrong);
		fm_sleep_us(1000);
	}
}
