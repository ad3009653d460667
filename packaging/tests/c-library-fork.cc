// SPDX-License-Identifier: GPL-2.0
// The C library in C++: a forked child destroys all objects that it has inherited, in a block and at exit(), and its parent's
// job goes on.
#include <errno.h>
#include <libfermata.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(bool good, const char *what)
{
	if (!good) {
		fprintf(stderr, "%s: %s\n", what, fermata_message());
		_exit(1);
	}
}

// A context with an arena, whose job counts endlessly.
struct Tenant {
	static const size_t length = 8192;
	fermata_context *context = nullptr;
	fermata_arena *arena = nullptr;
	void *memory;

	Tenant()
	{
		check(!fermata_open_engine("counter_up", &context), "open");
		check(!fermata_create_arena(context, length, &arena), "arena");
		check(!fermata_create_snapshot(context, nullptr), "snapshot");
		memory = fermata_arena_address(arena);
		const fermata_reg registers[] = { { 0x30, 0, 0 }, { 0x38, 0, 0 }, { 0x40, 0, fermata_arena_base(arena) } };
		check(!fermata_write_registers(context, registers, 3), "registers");
		check(!fermata_start(context, 0, nullptr), "start");
	}
	Tenant(const Tenant &) = delete;
	~Tenant()
	{
		fermata_unmap_arena(arena);
		fermata_close(context);
	}
	void *map() const
	{
		return mmap(memory, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	bool runs() const
	{
		const uint32_t ended = FERMATA_EVENT_HELD | FERMATA_EVENT_DONE;
		return fermata_wait(context, ended, fermata_deadline_in(50000000), nullptr) == -ETIMEDOUT;
	}
};

// Destroyed after the tenants: the memory that a child has at their addresses is still there.
static struct Memory {
	volatile char *pieces[2] = {};
	~Memory()
	{
		for (volatile char *piece : pieces)
			if (piece)
				*piece = 7;
	}
} own;
static Tenant global;

int main()
{
	int status = -1;
	pid_t child;
	{
		Tenant local;
		child = fork();
		if (child) {
			check(waitpid(child, &status, 0) == child && !status, "the child");
			check(local.runs() && global.runs(), "the parent's jobs");
			*(volatile char *)local.memory = *(volatile char *)global.memory = 1;
		} else {
			own.pieces[0] = (volatile char *)local.map();
			own.pieces[1] = (volatile char *)global.map();
			check(own.pieces[0] == local.memory && own.pieces[1] == global.memory, "the addresses");
		}
	}
	return 0;
}
