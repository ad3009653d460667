// SPDX-License-Identifier: GPL-2.0
/* The driver's tracepoints. */
#include <sys/stat.h>

#include "trace.h"

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
	/* It is the opening that erases. */
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

/* The whole record, in the order of its times; to be freed. */
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

/* Is word one of those that fields consists of? */
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
