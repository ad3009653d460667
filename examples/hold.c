// SPDX-License-Identifier: GPL-2.0
/*
 * A job that is taken off its slot half-way and resumed later, with nothing lost: the SHA-256 of
 * 32 MiB of zeros. Its events are signalled by an eventfd, as an event loop needs.
 */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "card.h"

#define LENGTH (32 << 20)

/* Waits until the eventfd is signalled. Returns the events that hold. */
static unsigned int next_event(int card, int events)
{
	struct pollfd fds = { .fd = events, .events = POLLIN };
	struct fermata_wait look = { .size = sizeof(look), .deadline = 0,
				     .events = FERMATA_EVENT_DONE | FERMATA_EVENT_HELD };
	uint64_t count;

	while (poll(&fds, 1, -1) < 0)
		if (errno != EINTR)
			die("poll", errno);
	if (read(events, &count, sizeof(count)) != sizeof(count))
		die("the eventfd", errno);
	call(card, FERMATA_IOC_WAIT, &look);
	if (look.error)
		die("the job failed", look.error);
	return look.happened;
}

int main(int argc, char **argv)
{
	int card = open_card(argc > 1 ? argv[1] : "/dev/fermata0");
	int events = eventfd(0, EFD_CLOEXEC);
	struct fermata_setup setup = SHA256_ENGINE;
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = LENGTH + 4096 };
	struct fermata_snapshot_create snapshot = { .size = sizeof(snapshot) };
	struct fermata_eventfd notify = { .size = sizeof(notify), .fd = events,
					  .events = FERMATA_EVENT_DONE | FERMATA_EVENT_HELD };
	struct fermata_reg args[] = { { .offset = 0x30 }, { .offset = 0x38 }, { .offset = 0x40 } };
	struct fermata_regs regs = { .size = sizeof(regs), .count = 3, .regs = (uintptr_t)args };
	struct fermata_start start = { .size = sizeof(start) };
	struct fermata_preempt hold = { .size = sizeof(hold), .flags = FERMATA_PREEMPT_HOLD };
	struct fermata_resume resume = { .size = sizeof(resume) };
	struct fermata_status status = { .size = sizeof(status) };
	unsigned char *mem;
	int i;

	call(card, FERMATA_IOC_SETUP, &setup);
	call(card, FERMATA_IOC_ARENA_CREATE, &arena);
	mem = map_arena(card, &arena);
	call(card, FERMATA_IOC_SNAPSHOT_CREATE, &snapshot);
	call(card, FERMATA_IOC_EVENTFD, &notify);
	args[0].value = (uintptr_t)mem + 4096;
	args[1].value = LENGTH;
	args[2].value = (uintptr_t)mem;
	call(card, FERMATA_IOC_REGS_WRITE, &regs);
	call(card, FERMATA_IOC_START, &start);

	/* Let the job run for a while, then take it off its slot. ENOENT: it is already done. */
	poll(NULL, 0, 50);
	if (ioctl(card, FERMATA_IOC_PREEMPT, &hold) < 0 && errno != ENOENT)
		die("holding the job", errno);
	while (!(next_event(card, events) & FERMATA_EVENT_DONE)) {
		puts("held: the slot is free for others");
		call(card, FERMATA_IOC_RESUME, &resume);
	}
	call(card, FERMATA_IOC_STATUS, &status);
	printf("done in %llu slices, taken off %llu times\n", (unsigned long long)status.slices,
	       (unsigned long long)status.preemptions);
	for (i = 0; i < 32; i++)
		printf("%02x", mem[i]);
	putchar('\n');
	return 0;
}
