// SPDX-License-Identifier: GPL-2.0
/* The machine from outside. */
#include <poll.h>

#include "fm.h"
#include "host.h"

#define PORT	"/dev/virtio-ports/fermata.host"

bool host_present(void)
{
	return !access(PORT, R_OK | W_OK);
}

/* A line of at most size bytes, without its end; within the guard time. */
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
	/* What answers somebody who has died comes before. */
	do {
		get_line(fd, answer, sizeof(answer));
	} while (strncmp(answer, id, n));
	close(fd);
	return strcmp(answer + n, "ok") ? answer + n : NULL;
}
