/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * fermata: share a preemptible accelerator card between programs.
 *
 * /dev/fermataN is card N.  One open file description is one context: one
 * tenant's use of the card, with at most one job at a time.  A process that the
 * descriptor is passed to controls the context, too.
 *
 * The usual order of calls:
 *
 *	FERMATA_IOC_CARD_INFO, FERMATA_IOC_SLOT_INFO	what is there
 *	FERMATA_IOC_SETUP				choose an engine
 *	FERMATA_IOC_ARENA_CREATE, mmap()		memory for the engine
 *	FERMATA_IOC_SNAPSHOT_CREATE			room for preempted state
 *	FERMATA_IOC_RESULTS				registers wanted at the end
 *	FERMATA_IOC_REGS_WRITE, FERMATA_IOC_START	a job
 *	FERMATA_IOC_WAIT or poll()			its end
 *	FERMATA_IOC_REGS_READ				its results
 *
 * Rules that hold for every call:
 *
 * - The argument is a pointer to the structure named at the call.  Its first
 *   member, size, is sizeof() of the structure as the program knows it.  A
 *   structure that is larger than the driver's gives E2BIG unless its tail is
 *   zero, and so does a structure of more than a page.  A smaller structure
 *   works: members beyond its end count as zero and are not written.  A size
 *   below 8 gives EINVAL.
 * - Unknown flags, undefined values and reserved members that are not zero
 *   give EINVAL.  Output members need not be set: they are zeroed before they
 *   are filled in.
 * - On an error, nothing was changed and the structure was not written, except
 *   where a call says so, and except as described below for EFAULT.
 * - The layout is the same for 32-bit and 64-bit programs.
 * - FERMATA_IOC_PREEMPT, _RESUME, _HOLD, _PARAM, _RESERVE and _GROUP act on the context
 *   that @context names: 0 is the caller's own; any other value is the number of
 *   a context of the card (struct fermata_context_info), whoever opened it.  A
 *   number takes CAP_SYS_ADMIN (EPERM), even that of the caller's own context,
 *   in addition to what the call takes anyway; only _RESUME also takes the number of
 *   a context that the caller's user has opened.  It works even if the caller's
 *   own context is not set up.  ESRCH: no context has the number, or the context
 *   is being closed.
 * - Times are in nanoseconds; points in time are on CLOCK_MONOTONIC of the
 *   caller's time namespace.
 * - Any thread of any process that has the descriptor may make any call, at any
 *   time.
 * - Capabilities are those that the caller has at the time of the call, in the
 *   initial user namespace; it does not matter who opened the file.  A call
 *   checks its argument (EINVAL), then the capability (EPERM), then the objects
 *   that it names (ESRCH, ENOENT), then values (ERANGE).
 *
 * Errors that every call can return, besides those listed with it:
 *
 *	EFAULT	a pointer is not accessible.  A call with an answer makes sure that
 *		the answer can be written before it changes anything.  If the page
 *		goes away meanwhile (another thread unmaps it, or there is no memory
 *		to bring it back), the call has succeeded, and only its answer is
 *		missing.  FERMATA_IOC_SETUP, _ARENA_CREATE and _SNAPSHOT_CREATE give
 *		EEXIST when they are called again.  FERMATA_IOC_STATUS has what they
 *		have made and what _START has started (@mmap_offset is 0)
 *	EINVAL	see the rules above
 *	E2BIG	see the rules above
 *	ENODEV	the card is gone (unplugged, unbound or dead): close the file
 *	ENOTTY	not a call of this interface
 *	EINTR	a fatal signal came while the call waited for another call
 *
 * Memory ordering: what the program wrote to its arena before FERMATA_IOC_START
 * is visible to the engine (the call has release semantics), and what the
 * engine wrote before it finished is visible to the program after
 * FERMATA_IOC_WAIT, FERMATA_IOC_STATUS, poll() or a read of the eventfd has
 * told it that the job is done (acquire semantics).  While a job runs, program
 * and engine share the arena as two CPUs do: each has to use atomic accesses.
 */
#ifndef _UAPI_FERMATA_H
#define _UAPI_FERMATA_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Version of this interface, reported by FERMATA_IOC_CARD_INFO. */
#define FERMATA_UAPI_VERSION	3

/* Not assigned in Documentation/userspace-api/ioctl/ioctl-number.rst. */
#define FERMATA_IOC_MAGIC	0xFA

#define FERMATA_MAX_SLOTS	8
/* Maximum number of registers that are read for a context at the end of a job. */
#define FERMATA_MAX_RESULTS	16
/* Application registers of a slot: byte offsets, multiples of 8. */
#define FERMATA_REG_FIRST	0x30
#define FERMATA_REG_LAST	0xff8
/*
 * Maximum number of entries of one FERMATA_IOC_REGS_WRITE or _READ.  There are
 * 506 registers, and none may be named twice.
 */
#define FERMATA_MAX_REGS	512

/* enum-like constants are macros, so that #ifdef can find new ones. */

/* --- the card ----------------------------------------------------------- */

/* features */
#define FERMATA_FEATURE_IRQ		(1ULL << 0) /* slots interrupt */
#define FERMATA_FEATURE_WINDOW		(1ULL << 1) /* DMA window check */
#define FERMATA_FEATURE_QUIESCENT	(1ULL << 2) /* PAUSED: DMA complete */
#define FERMATA_FEATURE_SNAPSHOT_UNIT	(1ULL << 3) /* snapshots unforgeable */
#define FERMATA_FEATURE_RELAY		(1ULL << 4) /* slots switch by themselves */
#define FERMATA_FEATURE_IOMMU		(1ULL << 32) /* card behind an IOMMU */
#define FERMATA_FEATURE_FOREIGN_MEMORY	(1ULL << 33) /* @pid is allowed (foreign_memory) */

/**
 * struct fermata_card_info - FERMATA_IOC_CARD_INFO: what the card is
 * @size:		in: sizeof(struct fermata_card_info)
 * @flags:		in: 0
 * @uapi_version:	out: FERMATA_UAPI_VERSION of the driver
 * @slots:		out: number of slots, 1 to FERMATA_MAX_SLOTS
 * @features:		out: FERMATA_FEATURE_*
 * @contexts:		out: contexts that are set up now
 * @max_contexts:	out: contexts that can be set up at once
 * @max_arena:		out: largest arena that is accepted, in bytes
 *
 * Works at any time, also before FERMATA_IOC_SETUP.
 */
struct fermata_card_info {
	__u32 size;
	__u32 flags;
	__u32 uapi_version;
	__u32 slots;
	__aligned_u64 features;
	__u32 contexts;
	__u32 max_contexts;
	__aligned_u64 max_arena;
};

/* slot flags */
#define FERMATA_SLOT_QUARANTINED	(1U << 0) /* dead: not used any more */
#define FERMATA_SLOT_BOUNDARY		(1U << 1) /* can stop at boundaries */
#define FERMATA_SLOT_BOUNDARY_ONLY	(1U << 2) /* and nowhere else */
#define FERMATA_SLOT_EXCLUSIVE		(1U << 3) /* serves one group only */
#define FERMATA_SLOT_POLLED		(1U << 4) /* its interrupts are off for a while */

/**
 * struct fermata_slot_info - FERMATA_IOC_SLOT_INFO: what a slot is
 * @size:		in: sizeof(struct fermata_slot_info)
 * @slot:		in: number of the slot
 * @afu_id_lo:		out: the engine's UUID, low 64 bits
 * @afu_id_hi:		out: high 64 bits
 * @state_pages:	out: size of a snapshot in 4 KiB pages
 * @flags:		out: FERMATA_SLOT_*
 * @switches:		out: jobs started or resumed on it
 * @busy_ns:		out: time for which it had a job
 * @resets:		out: resets because of a hang, a fault or a death
 * @save_ns:		out: mean time from PAUSE to PAUSED, where recent times weigh
 *			more and stops at a boundary do not count; the same as
 *			@restore_ns if no save was measured
 * @restore_ns:		out: mean time of a restore, as the card reports it; the same
 *			as @save_ns if the card reports none
 * @group:		out: with FERMATA_SLOT_EXCLUSIVE: the group, as in struct
 *			fermata_status; 0: none, or the caller may not know of it
 * @storms:		out: how often its interrupts were switched off because
 *			too many were spurious
 * @resumes:		out: of @switches, jobs resumed
 * @preemptions:	out: jobs preempted before their end, and saved
 * @finished:		out: jobs finished
 * @faults:		out: jobs stopped at an access outside their arenas
 * @timeouts:		out: jobs that did not pause within their preempt timeout
 * @spurious:		out: spurious interrupts, of all slots that share the vector
 *
 * Not everybody may know what jobs of all users have done on the slot: @switches,
 * @busy_ns, @resets and all members from @storms on are 0 unless the caller has
 * CAP_PERFMON or CAP_SYS_ADMIN.
 *
 * Works at any time, also before FERMATA_IOC_SETUP.  EINVAL: no such slot.
 */
struct fermata_slot_info {
	__u32 size;
	__u32 slot;
	__aligned_u64 afu_id_lo;
	__aligned_u64 afu_id_hi;
	__u32 state_pages;
	__u32 flags;
	__aligned_u64 switches;
	__aligned_u64 busy_ns;
	__aligned_u64 resets;
	__aligned_u64 save_ns;
	__aligned_u64 restore_ns;
	__aligned_u64 group;
	__aligned_u64 storms;
	__aligned_u64 resumes;
	__aligned_u64 preemptions;
	__aligned_u64 finished;
	__aligned_u64 faults;
	__aligned_u64 timeouts;
	__aligned_u64 spurious;
};

/* --- the context -------------------------------------------------------- */

/* fermata_config flags */
#define FERMATA_CONFIG_EVENTFD	(1U << 0) /* @fd is the eventfd of the context */
#define FERMATA_CONFIG_IN_PLACE	(1U << 1) /* @pid has the program's own memory in place */

/**
 * struct fermata_config - FERMATA_IOC_CONFIG: how a context was made
 * @size:		in: sizeof(struct fermata_config)
 * @flags:		in: 0; out: FERMATA_CONFIG_*
 * @arena_flags:	out: FERMATA_ARENA_USER or _SHARED; 0: the arena was allocated, or
 *			there is none
 * @snapshot_flags:	out: FERMATA_SNAPSHOT_USER; 0: allocated, or none
 * @arena_addr:		out: with FERMATA_ARENA_USER: @user_addr of struct
 *			fermata_arena_create
 * @arena_offset:	out: with FERMATA_ARENA_SHARED: offset of the arena in the memory of
 *			@lender, in bytes
 * @snapshot_addr:	out: with FERMATA_SNAPSHOT_USER: @user_addr of struct
 *			fermata_snapshot_create
 * @lender:		out: with FERMATA_ARENA_SHARED: number of the context that is
 *			charged for the memory
 * @start_flags:	out: FERMATA_START_REPLAYABLE of the current or last job
 * @events:		out: FERMATA_EVENT_* that an eventfd is signalled for; 0: there
 *			is no eventfd
 * @fd:			in: descriptor of an eventfd to compare, or -1
 * @gang:		out: the same number for all members of a gang, and for no other
 *			context of the card; 0: the context is in no gang
 * @pid:		in: a process in the caller's pid namespace, or 0
 * @hint_ns:		out: nanoseconds until @at of the current hint
 *			(FERMATA_IOC_HINT), 1 if @at has passed; 0: there is no hint
 *
 * FERMATA_CONFIG_IN_PLACE: the arena or the snapshot buffer is a program's own memory, and
 * the process @pid has these pages mapped at @arena_addr and @snapshot_addr now.  Reading
 * this memory of the process gives what the engine has.
 *
 * Together with struct fermata_status, FERMATA_IOC_REGS_LIST, _PARAM and _RESERVE this is
 * all that is needed to recreate the context elsewhere.
 *
 * EBADF: @fd is not a descriptor.  EINVAL: also if @fd is not an eventfd.  With @pid:
 * EPERM, ESRCH: as with FERMATA_ARENA_USER, whatever memory the context has.  EINTR: a
 * fatal signal came.
 */
struct fermata_config {
	__u32 size;
	__u32 flags;
	__u32 arena_flags;
	__u32 snapshot_flags;
	__aligned_u64 arena_addr;
	__aligned_u64 arena_offset;
	__aligned_u64 snapshot_addr;
	__u32 lender;
	__u32 start_flags;
	__u32 events;
	__s32 fd;
	__u32 gang;
	__u32 pid;
	__aligned_u64 hint_ns;
};

/**
 * struct fermata_setup - FERMATA_IOC_SETUP: choose the engine
 * @size:		in: sizeof(struct fermata_setup)
 * @flags:		in: 0
 * @afu_id_lo:		in: the engine's UUID, low 64 bits
 * @afu_id_hi:		in: high 64 bits
 * @slot_mask:		in: bit i: slot i may be used; 0: every slot that has
 *			the engine.  Slots of another engine give EINVAL
 * @context:		out: number of the context on this card; no other context
 *			has this number while the context lives
 *
 * Once per context, before any of the calls below (they give ENXIO until then).
 *
 * EEXIST: the context is set up already.  ENOENT: no slot has this engine.
 * ENOSPC: @max_contexts are set up.  EDQUOT: the group (struct fermata_status) has
 * as many contexts as the module parameter max_contexts_group or FERMATA_IOC_GROUP_SET
 * allows, and the caller lacks CAP_SYS_RESOURCE.  EBUSY: the card has no DMA
 * window check, and a context of another user is set up.  EPERM: the card has no DMA window
 * check, and is not behind an IOMMU or not alone in its IOMMU group (other than bridges):
 * this takes CAP_SYS_RAWIO and a kernel without lockdown.  ENOMEM.
 */
struct fermata_setup {
	__u32 size;
	__u32 flags;
	__aligned_u64 afu_id_lo;
	__aligned_u64 afu_id_hi;
	__u32 slot_mask;
	__u32 context;
};

/* fermata_arena_create flags */
#define FERMATA_ARENA_FIXED_BASE	(1U << 0) /* @device_base is given */
#define FERMATA_ARENA_USER		(1U << 1) /* @user_addr is given */
#define FERMATA_ARENA_SHARED		(1U << 2) /* @fd and @offset are given */

/* The mmap() offset at which the arena of the context with this number begins. */
#define FERMATA_MMAP_OFFSET(context)	((__u64)(((context) & 0xffff) + 1) << 47)

/**
 * struct fermata_arena_create - FERMATA_IOC_ARENA_CREATE: make the arena
 * @size:		in: sizeof(struct fermata_arena_create)
 * @flags:		in: FERMATA_ARENA_*
 * @length:		in: bytes, a multiple of the page size, up to @max_arena
 * @device_base:	in, with FERMATA_ARENA_FIXED_BASE: the device address
 *			of its first byte, a multiple of the page size; @device_base +
 *			@length is at most 2^47.  Without the flag: 0; the device
 *			address becomes the address at which the whole arena is first
 *			mapped, or @user_addr
 * @mmap_offset:	out: offset for mmap()
 * @user_addr:		in, with FERMATA_ARENA_USER: address of the program's own
 *			memory, a multiple of the page size; else 0
 * @offset:		in, with FERMATA_ARENA_SHARED: offset in the other context's
 *			arena in bytes, a multiple of the page size; else 0
 * @fd:			in, with FERMATA_ARENA_SHARED: descriptor of another
 *			context of the card; else 0
 * @pid:		in, with FERMATA_ARENA_USER: the process whose memory @user_addr
 *			is, in the caller's pid namespace; 0: the caller.  Else 0
 *
 * The arena is the memory that the engine may touch.  It is pinned, and contiguous
 * for the card.  It lives as long as the context.  Its pages are charged to the user
 * who opened the file, against the caller's RLIMIT_MEMLOCK, unless the caller has
 * CAP_IPC_LOCK.
 *
 * Without FERMATA_ARENA_USER and FERMATA_ARENA_SHARED the arena is allocated, and
 * zeroed.  Map it with mmap() and MAP_SHARED, at any offset within it.  Mappings are
 * not inherited across fork(), not dumped, and not executable.  A mapping keeps the
 * context, and what is charged for it, after the descriptor is closed.
 *
 * FERMATA_ARENA_USER: the arena is the memory that is mapped at @user_addr now:
 * private or shared anonymous memory, huge pages, a memfd, a mapping of another
 * context's arena (then both contexts are charged), in one mapping or several.
 * The arena keeps these pages, whatever is done to the mapping later (munmap(),
 * mremap(), madvise(), truncation of the memfd): the engine continues to use
 * them, and they are freed when the context ends.  There is nothing to
 * mmap(), and @mmap_offset is 0.  The memory of another process (@pid) is for
 * programs that restore processes.
 *
 * FERMATA_ARENA_SHARED: the arena is a part of the arena of the context @fd.  Each
 * context has its own device addresses.  Both contexts' jobs, and programs that map
 * either arena, see the same bytes.  The context for which the pages were pinned is
 * charged for them; for the mapping, this context is charged a 64th of @length.  The
 * arena keeps the context that is charged open, with its job, after its descriptor is
 * closed, as a mapping does.  Whoever has @fd may share.  mmap() works if the other
 * arena was allocated by the driver.  If the other arena is a program's own memory,
 * FERMATA_ARENA_FIXED_BASE is needed.
 *
 * EPERM: as with FERMATA_IOC_START.
 * EEXIST: there is an arena already.  ENOMEM: there is not enough memory (without an
 * IOMMU: contiguous memory), in the machine or in the caller's memory
 * cgroup; more than RLIMIT_MEMLOCK allows; more than the module parameter
 * max_pinned_group_mib or FERMATA_IOC_GROUP_SET allows the group, and the caller
 * lacks CAP_IPC_LOCK; or, without an IOMMU, more in pieces
 * above 4 MiB than the module parameter max_contiguous_mib allows the user and
 * the group.  EINTR: a fatal signal came.  EOPNOTSUPP: DMA needs a bounce buffer
 * (swiotlb=force, confidential guests), which an engine cannot use.
 * FERMATA_ARENA_USER: EFAULT: not all of it is mapped and writable, or some of
 * it cannot stay pinned: device memory, memfd_secret(), a shared mapping of a file
 * that is kept on a device.  EOPNOTSUPP: the card cannot reach it at one range
 * of addresses: there is no IOMMU, and it is not physically contiguous; or it is a
 * file of a DAX file system.  With @pid: EPERM: the module parameter foreign_memory
 * is 0, as it is by default (FERMATA_FEATURE_FOREIGN_MEMORY), or the caller has neither
 * CAP_SYS_ADMIN nor both CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE in the initial user
 * namespace.
 * ESRCH: there is no such process, or the process has no memory (any more).
 * FERMATA_ARENA_SHARED: EBADF: @fd is not a descriptor.  EINVAL: @fd is not a context; its
 * arena has no such part; or FERMATA_ARENA_FIXED_BASE is missing and the other arena
 * cannot be mapped.  ENXIO: @fd has no arena.  EXDEV: @fd is a context of another card.
 *
 * /proc/PID/maps tells which context a mapping belongs to: the offset is
 * FERMATA_MMAP_OFFSET() of the context's number + the offset in the arena.  mmap()
 * takes such an offset, too.
 *
 * Errors of mmap(): EINVAL: MAP_SHARED is missing; PROT_EXEC is given; the range is
 * beyond the end of the arena; the offset has the number of another context; or the
 * arena is a program's own memory.  ENXIO: there is no arena yet.  ENODEV: the card is
 * gone.  An access to a mapping gives SIGBUS when the card is gone, but the program
 * keeps its own memory.
 */
struct fermata_arena_create {
	__u32 size;
	__u32 flags;
	__aligned_u64 length;
	__aligned_u64 device_base;
	__aligned_u64 mmap_offset;
	__aligned_u64 user_addr;
	__aligned_u64 offset;
	__s32 fd;
	__u32 pid;
};

/* fermata_snapshot_create flags */
#define FERMATA_SNAPSHOT_USER	(1U << 0) /* @user_addr and @length are given */

/**
 * struct fermata_snapshot_create - FERMATA_IOC_SNAPSHOT_CREATE: make the
 *				    buffer for preempted state
 * @size:		in: sizeof(struct fermata_snapshot_create)
 * @flags:		in: FERMATA_SNAPSHOT_*
 * @length:		out: its size in bytes; with FERMATA_SNAPSHOT_USER in, too:
 *			a multiple of the page size, at least @state_pages of the
 *			slots (struct fermata_slot_info), at most 16 MiB
 * @user_addr:		in, with FERMATA_SNAPSHOT_USER: address of the program's own
 *			memory, a multiple of the page size; else 0
 * @pid:		in, with FERMATA_SNAPSHOT_USER: the process whose memory @user_addr
 *			is, as in struct fermata_arena_create; else 0
 * @reserved:		in: 0
 *
 * The buffer is pinned, belongs to the kernel and cannot be written by the
 * program; on a card with FERMATA_FEATURE_SNAPSHOT_UNIT no engine can write it
 * either.  It lives as long as the context.
 * It is charged as the arena is (struct fermata_arena_create).
 *
 * FERMATA_SNAPSHOT_USER: the buffer is the program's own memory, of the same kinds as
 * with FERMATA_ARENA_USER, and should not be part of the arena.  While the job is held,
 * the buffer has its state.  If the program writes to the buffer, the engine resumes
 * from what was written, which affects only the program's own job and arena.
 *
 * EEXIST: there is a buffer already.  ENOMEM, EINTR, EOPNOTSUPP: as with
 * FERMATA_IOC_ARENA_CREATE.
 * EPROTO: the card reports an impossible size (0, or above 4096 pages).
 * FERMATA_SNAPSHOT_USER: EFAULT, EPERM, ESRCH: as with FERMATA_ARENA_USER.  EOPNOTSUPP: also
 * if the card lacks FERMATA_FEATURE_WINDOW or FERMATA_FEATURE_SNAPSHOT_UNIT, so
 * that nothing would confine an engine whose state is forged.
 */
struct fermata_snapshot_create {
	__u32 size;
	__u32 flags;
	__aligned_u64 length;
	__aligned_u64 user_addr;
	__u32 pid;
	__u32 reserved;
};

/**
 * struct fermata_snapshot_read - FERMATA_IOC_SNAPSHOT_READ: copy of the state
 * @size:		in: sizeof(struct fermata_snapshot_read)
 * @flags:		in: 0
 * @offset:		in: first byte
 * @length:		in: bytes; @offset + @length at most the buffer's size
 * @buffer:		in: pointer to @length bytes
 *
 * ENXIO: no snapshot buffer.  EBUSY: the job is not held (FERMATA_STATE_HELD).
 * ENODATA: the job is held at its beginning, so there is no state: it has never run,
 * or its state was lost and it will run again (FERMATA_START_REPLAYABLE).
 * On EFAULT, part of @buffer may have been written.
 */
struct fermata_snapshot_read {
	__u32 size;
	__u32 flags;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 buffer;
};

/**
 * struct fermata_snapshot_write - FERMATA_IOC_SNAPSHOT_WRITE: write a state
 * @size:		in: sizeof(struct fermata_snapshot_write)
 * @flags:		in: 0
 * @offset:		in: first byte
 * @length:		in: bytes; @offset + @length at most the buffer's size
 * @buffer:		in: pointer to @length bytes
 *
 * The next job can resume from this state (FERMATA_START_SAVED), which
 * FERMATA_IOC_SNAPSHOT_READ has read from the same engine, here or elsewhere.
 * Several calls may write the state.  What none of them writes stays as the last
 * job has left it; at first it is zero.
 *
 * The driver neither examines nor trusts a state.  An engine that resumes from it can
 * do what the program could make it do by its registers, and touch this context's arena.
 *
 * The state is copied in pieces.  On EFAULT, some of it may have been written; then,
 * and while the call is under way, there is no state to start from, not even that
 * of an earlier call.
 *
 * EINVAL: also if the range goes beyond the buffer's end.  EPERM: the card lacks
 * FERMATA_FEATURE_WINDOW or FERMATA_FEATURE_SNAPSHOT_UNIT, so that nothing confines an
 * engine whose state is forged: this takes CAP_SYS_RAWIO and a kernel without lockdown.
 * ENXIO: no snapshot buffer.  EBUSY: a job has not ended.  ENOMEM.
 */
struct fermata_snapshot_write {
	__u32 size;
	__u32 flags;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 buffer;
};

/* --- registers ---------------------------------------------------------- */

/* fermata_regs flags */
#define FERMATA_REGS_RESULTS	(1U << 0) /* FERMATA_IOC_REGS_LIST: the results */

/**
 * struct fermata_reg - one application register
 * @offset:	byte offset in the slot's page, FERMATA_REG_FIRST to
 *		FERMATA_REG_LAST, a multiple of 8
 * @reserved:	0
 * @value:	written, or read
 */
struct fermata_reg {
	__u32 offset;
	__u32 reserved;
	__aligned_u64 value;
};

/**
 * struct fermata_regs - FERMATA_IOC_REGS_WRITE, FERMATA_IOC_REGS_READ,
 *			 FERMATA_IOC_RESULTS and FERMATA_IOC_REGS_LIST
 * @size:		in: sizeof(struct fermata_regs)
 * @flags:		in: 0; FERMATA_IOC_REGS_LIST: FERMATA_REGS_*
 * @count:		in: entries, at most FERMATA_MAX_REGS
 *			(FERMATA_IOC_RESULTS: FERMATA_MAX_RESULTS);
 *			FERMATA_IOC_REGS_LIST: out: how many there are
 * @reserved:		in: 0
 * @regs:		in: pointer to @count struct fermata_reg
 *
 * FERMATA_IOC_REGS_WRITE: write registers, in order, all or none.  While the
 * context is on a slot, the writes are forwarded at once; else they are kept, and
 * made when the context is next put on a slot.  A card that switches by itself (a
 * relay) loads the registers of a context from memory: with such a card, all writes are
 * kept for the next start of the context, other than one by which the card itself
 * resumes a job that was preempted by urgent work.  The context may be put on a slot,
 * or taken off, between any two of the writes.  Before each START the driver replays every
 * register that was ever written, so application registers must have no side effects.
 *
 * FERMATA_IOC_RESULTS: declare the registers to be read when the job ends or
 * is preempted, before the slot goes to another context; @value is not used
 * and must be 0.  Replaces the earlier declaration; @count 0 clears it.
 * EBUSY: a job has not ended.
 *
 * FERMATA_IOC_REGS_READ: read registers; @value is filled.  While the context
 * is on a slot, the registers are read from the card, where results are 0 until
 * the job begins to work.  While the context is on no slot, and on cards of the
 * irq and relay profiles also while the card restores the job, only declared
 * result registers can be read: their values are those of the moment at which the
 * job left its slot.  A base card does not tell when a restore is over: results
 * read 0 until then.  EAGAIN: the card cannot be read now, and one of the
 * registers is not a declared result or has no value yet; or the card does not answer,
 * and its link may be reset.  EACCES: on a base card, one
 * of the registers is neither a declared result nor was ever written by the context
 * (the module parameter base_read_any lifts this), because an offset at which no
 * register is may give no answer, which is an error of the link.  EIO: a register
 * gives no answer, and reading took more than 25 ms.  If such a register is a declared
 * result, the job fails (EPROTO) when it leaves its slot.
 * On EFAULT, part of the array may have been written.
 *
 * FERMATA_IOC_REGS_LIST: list the registers that were ever written, in ascending order,
 * with the values that are replayed; with FERMATA_REGS_RESULTS, list the declared results,
 * in the order of declaration, with the value 0.  With these lists a context can be
 * recreated elsewhere.  As many entries as there is room for are filled in.  On EFAULT,
 * part of the array may have been written.
 *
 * EINVAL: an offset is out of range, is not a multiple of 8, or is named twice.  ENOMEM.
 */
struct fermata_regs {
	__u32 size;
	__u32 flags;
	__u32 count;
	__u32 reserved;
	__aligned_u64 regs;
};

/* --- jobs --------------------------------------------------------------- */

/* fermata_start flags */
#define FERMATA_START_REPLAYABLE	(1U << 0) /* may run again from its start */
#define FERMATA_START_SAVED		(1U << 1) /* resume from a saved state */
#define FERMATA_START_HELD		(1U << 2) /* held until FERMATA_IOC_RESUME */
/* Maximum number of times that a job is run again. */
#define FERMATA_MAX_REPLAYS	3

/**
 * struct fermata_start - FERMATA_IOC_START: start a job
 * @size:		in: sizeof(struct fermata_start)
 * @flags:		in: FERMATA_START_*
 * @job:		out: number of the job in this context, from 1
 *
 * Returns at once; the job runs when its turn comes.
 *
 * FERMATA_START_REPLAYABLE: the program agrees that the job is run again from
 * its beginning, whatever it has written to its arena by then.
 * This is done when the job's state is lost, so that it would otherwise fail with
 * EIO: the card reports that a save or a restore broke off, or a link error took
 * the card away while the job was on a slot.  A save has overwritten the previous
 * snapshot, so there is none to go back to.
 * The job does not begin with the same contents as the first time: the arena stays
 * as job and program have left it, and the registers have all values that the
 * program has written until then, also since this call.
 * The job waits again as after FERMATA_IOC_PREEMPT, and stays the same job, with
 * the same number.  A job that was to be held is held, at its beginning.
 * After FERMATA_MAX_REPLAYS times it fails with EIO.  Every other failure is
 * final.  With ETIME, nobody can tell whether the engine hung or its save broke
 * off: a card without FERMATA_FEATURE_QUIESCENT reports both in the same way.
 * struct fermata_status has how often the job was run again.  EINVAL if the card
 * reports that the engine reads a queue: nobody knows how far the job had come in
 * the queue.
 *
 * FERMATA_START_SAVED: the job is put on a slot like a preempted job: it resumes
 * from the state that FERMATA_IOC_SNAPSHOT_WRITE has written since the last
 * START, or from what is in the program's own memory (FERMATA_SNAPSHOT_USER).
 * Registers are written first, as always.  ENODATA: no state was written.
 *
 * FERMATA_START_HELD: the job is in FERMATA_STATE_HELD at once, and does not wait for
 * a slot before FERMATA_IOC_RESUME.  All that START checks is checked now.  With
 * FERMATA_START_SAVED, FERMATA_IOC_SNAPSHOT_READ reads the state that was written;
 * without, there is no state to read (ENODATA).  The other members of a gang are
 * not held, and FERMATA_IOC_RESUME of a member resumes this job, too.  A hint is
 * taken back.
 *
 * A job without an arena may touch no memory.  A card without
 * FERMATA_FEATURE_WINDOW cannot ensure this, so its jobs need an arena.
 *
 * EPERM: the card has no DMA window check, and other devices have joined its IOMMU
 * group: as with FERMATA_IOC_SETUP.  All jobs were held when the first one came.
 * EBUSY: the last job has not ended.  ENXIO: no SETUP, or no snapshot buffer.
 * EDESTADDRREQ: the arena has no device_base yet: map it, or give one; or the
 * card needs an arena.
 * EIO: no slot that this context may use is in service any more.
 * EPROTO: a slot that the context may use has a larger state than the snapshot
 * buffer holds.
 */
struct fermata_start {
	__u32 size;
	__u32 flags;
	__aligned_u64 job;
};

/* fermata_preempt flags */
#define FERMATA_PREEMPT_HOLD	(1U << 0) /* until FERMATA_IOC_RESUME, see there */

/**
 * struct fermata_preempt - FERMATA_IOC_PREEMPT: take the job off its slot
 * @size:		in: sizeof(struct fermata_preempt)
 * @flags:		in: FERMATA_PREEMPT_*
 * @context:		in: 0: the caller's own; else the number of a context
 * @reserved:		in: 0
 *
 * Returns at once; the job is saved as soon as the engine allows.  Without
 * FERMATA_PREEMPT_HOLD the job waits again, behind the next job that waits for
 * its slot; if no other job waits, it resumes.  With FERMATA_PREEMPT_HOLD the job
 * stays off slots until FERMATA_IOC_RESUME (wait for FERMATA_EVENT_HELD), even if the
 * caller exits: programs that read a held job use FERMATA_IOC_HOLD.  A job that
 * finishes first is finished.  Holding a held job is not an error.
 *
 * ENOENT: no job, or it has ended.
 */
struct fermata_preempt {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 reserved;
};

/**
 * struct fermata_resume - FERMATA_IOC_RESUME: resume a held job
 * @size:		in: sizeof(struct fermata_resume)
 * @flags:		in: 0
 * @context:		in: 0: the caller's own; else the number of a context
 * @reserved:		in: 0
 *
 * Ends what FERMATA_PREEMPT_HOLD and FERMATA_START_HELD have begun, whoever has
 * asked for it.  While there are holds by FERMATA_IOC_HOLD, the job stays held until
 * these are closed.  A job that is not held stays as it is.
 *
 * ENOENT: no job, or it has ended.  EIO: no slot that the context may use is in
 * service any more; the job stays held.  EPERM: as with FERMATA_IOC_START.
 */
struct fermata_resume {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 reserved;
};

/**
 * struct fermata_hold - FERMATA_IOC_HOLD: hold the jobs while a descriptor is open
 * @size:		in: sizeof(struct fermata_hold)
 * @flags:		in: 0
 * @context:		in: 0: the caller's own; else the number of a context
 * @fd:			out: a new descriptor, O_CLOEXEC, which is the hold
 *
 * Takes the job off its slot as FERMATA_IOC_PREEMPT with FERMATA_PREEMPT_HOLD does, and
 * returns at once (wait for FERMATA_EVENT_HELD).  There may be no job: one that is started
 * meanwhile begins held.  The hold ends when the last duplicate of @fd is closed,
 * by close(), exit or SIGKILL, and in no other way.  Holds count: when none is
 * left, the job waits for a slot again, unless FERMATA_PREEMPT_HOLD or
 * FERMATA_START_HELD holds it, too, or no slot that it may use is in service; then
 * FERMATA_IOC_RESUME ends that.
 *
 * A hold of a member of a gang holds the jobs of all members.  While there is a hold,
 * FERMATA_STATUS_HOLD is set.  @fd does not keep the context open; it can be duplicated
 * and passed on, and nothing else.  /proc/PID/fdinfo/FD has the number of the
 * context ("fermata-hold:").
 *
 * EINVAL: also if @size does not include @fd.  EMFILE, ENFILE: too many descriptors.
 * ENOMEM.  ENOSPC: 2^32 - 1 holds.  If the answer cannot be written (EFAULT), nothing
 * is held.
 */
struct fermata_hold {
	__u32 size;
	__u32 flags;
	__u32 context;
	__s32 fd;
};

/* fermata_status state */
#define FERMATA_STATE_NEW	0 /* no SETUP */
#define FERMATA_STATE_IDLE	1 /* no job was started */
#define FERMATA_STATE_QUEUED	2 /* waits for a slot */
#define FERMATA_STATE_RUNNING	3 /* on a slot, or named to run there next */
#define FERMATA_STATE_HELD	4 /* off the slot: FERMATA_IOC_PREEMPT, _HOLD */
#define FERMATA_STATE_DONE	5 /* the job finished */
#define FERMATA_STATE_FAILED	6 /* the job failed, see @error */
#define FERMATA_STATE_EMPTY	7 /* off the slot until FERMATA_IOC_DOORBELL */

/* fermata_status and fermata_context_info attributes */
#define FERMATA_STATUS_DISABLED	(1U << 0) /* FERMATA_PARAM_ENABLED is 0 */
#define FERMATA_STATUS_THROTTLED	(1U << 1) /* queued, its budget or cap used up */
#define FERMATA_STATUS_NO_SLOT	(1U << 2) /* no slot that it may use, even if enabled */
#define FERMATA_STATUS_HOLD	(1U << 3) /* a hold of FERMATA_IOC_HOLD, also of a gang's member */

/* fermata_status fault_flags */
#define FERMATA_FAULT_WRITE	(1U << 0) /* the access was a write */

/* fermata_status slot: on none */
#define FERMATA_NO_SLOT		0xffffffffU

/**
 * struct fermata_status - FERMATA_IOC_STATUS: state and counters
 * @size:		in: sizeof(struct fermata_status)
 * @flags:		in: 0
 * @state:		out: FERMATA_STATE_*
 * @error:		out: why the job failed, a positive errno, else 0:
 *			ETIME: it did not pause within its preempt timeout, and
 *			the slot was reset;
 *			EFAULT: its engine touched memory outside the arena
 *			(@fault_addr and @fault_flags: the first such access);
 *			EIO: its state could not be saved or restored (with
 *			FERMATA_START_REPLAYABLE: FERMATA_MAX_REPLAYS + 1 times);
 *			EPROTO: the card broke its protocol;
 *			ENODEV: the card is gone
 * @context:		out: number of the context
 * @slot:		out: slot it is on, or FERMATA_NO_SLOT
 * @job:		out: number of the current or last job, 0: none yet
 * @run_ns:		out: time on slots, all jobs
 * @wait_ns:		out: time queued, all jobs
 * @slices:		out: times it was put on a slot
 * @preemptions:	out: times it was preempted before its end, and saved
 * @finished:		out: jobs finished
 * @failed:		out: jobs failed
 * @fault_addr:		out: with EFAULT: the refused device address
 * @arena_length:	out: bytes, 0: no arena
 * @device_base:	out: device address of the arena's first byte
 * @snapshot_length:	out: bytes, 0: no snapshot buffer
 * @attributes:		out: FERMATA_STATUS_*
 * @fault_flags:	out: with EFAULT: FERMATA_FAULT_*
 * @group:		out: number of its group, never 0
 * @hints:		out: hints given (FERMATA_IOC_HINT), all jobs
 * @hints_used:		out: of these, followed by a job before they expired
 * @hints_wasted:	out: not followed by a job, or taken back after a slot had been
 *			made vacant
 * @reserved:		out: 0
 * @faults:		out: jobs that failed with EFAULT
 * @replays:		out: times that the current or last job was run again from
 *			its beginning, because its state was lost; 0 to
 *			FERMATA_MAX_REPLAYS, 0 without FERMATA_START_REPLAYABLE
 *
 * The group of a context is a registered cgroup (version 2), a child of one, or a
 * user.  Of the cgroup that the opener was in at open() and the cgroups above, the
 * nearest one that is registered (FERMATA_IOC_GROUP_SET) is the group; if it is
 * registered with its children, the child on the way to the opener's cgroup is.  The
 * number of a cgroup is that of the inode of its directory.  If none is registered, the
 * group is the opener's user, with the number FERMATA_USER_GROUP | uid, in the
 * initial user namespace: the real uid; in another user namespace, the owner of that
 * ancestor of it whose parent is the initial one.  So neither cgroups that a user makes
 * in a delegated subtree nor subordinate users are further groups.
 *
 * Works before FERMATA_IOC_SETUP.
 */
struct fermata_status {
	__u32 size;
	__u32 flags;
	__u32 state;
	__u32 error;
	__u32 context;
	__u32 slot;
	__aligned_u64 job;
	__aligned_u64 run_ns;
	__aligned_u64 wait_ns;
	__aligned_u64 slices;
	__aligned_u64 preemptions;
	__aligned_u64 finished;
	__aligned_u64 failed;
	__aligned_u64 fault_addr;
	__aligned_u64 arena_length;
	__aligned_u64 device_base;
	__aligned_u64 snapshot_length;
	__u32 attributes;
	__u32 fault_flags;
	__aligned_u64 group;
	__aligned_u64 hints;
	__aligned_u64 hints_used;
	__aligned_u64 hints_wasted;
	__aligned_u64 reserved;
	__aligned_u64 faults;
	__aligned_u64 replays;
};

/**
 * struct fermata_outcome - FERMATA_IOC_OUTCOME: how jobs have ended elsewhere
 * @size:		in: sizeof(struct fermata_outcome)
 * @flags:		in: 0
 * @state:		in: FERMATA_STATE_DONE or _FAILED: of the last job;
 *			FERMATA_STATE_HELD: only the results of the held job are given
 * @error:		in: with FERMATA_STATE_FAILED: ETIME, EFAULT, EIO or EPROTO, as
 *			in struct fermata_status; else 0
 * @finished:		in: jobs finished; with FERMATA_STATE_DONE at least 1
 * @failed:		in: jobs failed; with FERMATA_STATE_FAILED at least 1.  The sum
 *			of both is at most 2^62.  With FERMATA_STATE_HELD both are 0
 * @fault_addr:		in: with EFAULT: as in struct fermata_status; else 0
 * @fault_flags:	in: with EFAULT: FERMATA_FAULT_*; else 0
 * @count:		in: entries, at most FERMATA_MAX_RESULTS
 * @regs:		in: pointer to @count struct fermata_reg: declared results
 *			(FERMATA_IOC_RESULTS) and their values
 *
 * For a program that recreates a context elsewhere.  FERMATA_IOC_STATUS, _WAIT, poll()
 * and FERMATA_IOC_REGS_READ then report for the context what they reported for the
 * original, and the number of the next job is @finished + @failed + 1.  Nothing that is
 * given here counts for the card, the group or the time on slots.
 *
 * FERMATA_STATE_DONE and _FAILED: before the first job of the context.  With
 * FERMATA_STATE_HELD: while the job is held; FERMATA_IOC_REGS_READ returns the values
 * until the job has been on a slot.
 *
 * EBUSY: a job was started, or the outcome was given before; with FERMATA_STATE_HELD:
 * the job is not held.  EINVAL: also if a register is not declared, or is named twice.
 */
struct fermata_outcome {
	__u32 size;
	__u32 flags;
	__u32 state;
	__u32 error;
	__aligned_u64 finished;
	__aligned_u64 failed;
	__aligned_u64 fault_addr;
	__u32 fault_flags;
	__u32 count;
	__aligned_u64 regs;
};

/**
 * struct fermata_hint - FERMATA_IOC_HINT: a job will be started
 * @size:		in: sizeof(struct fermata_hint)
 * @flags:		in: 0
 * @at:			in: when FERMATA_IOC_START will be called: CLOCK_MONOTONIC
 *			time in ns, from now to 10 s ahead; 0: take the hint back
 *
 * If the job would preempt another job at once (FERMATA_PARAM_LATENCY_CRITICAL, a
 * higher priority, a reservation), a slot is made vacant in time.  It is kept
 * vacant until the job is started, or until shortly after @at (the time of a
 * save; 50 us to 1 ms).  A job may be started sooner or later nevertheless.  A
 * context has one hint at a time: a new hint replaces the last one.
 *
 * The time for which a vacant slot is kept is charged to the owner as time on the slot,
 * also to caps, and so is the save of the job that makes way.  What unused hints of a
 * group (struct fermata_status) cost may come to 2 % of one slot, and a second's part of
 * that at once; then further hints are refused for a while.
 *
 * In FERMATA_STATE_EMPTY a hint announces FERMATA_IOC_DOORBELL.
 *
 * ERANGE: @at is past, or more than 10 s ahead.  EBUSY: a job has not ended.
 * EAGAIN: the last hint was given less than 100 us ago, and no job was started since
 * (FERMATA_START_HELD does not count); or unused hints of the group have cost too much.
 * EIO: no slot that this context may use is in service any more.
 */
struct fermata_hint {
	__u32 size;
	__u32 flags;
	__aligned_u64 at;
};

/**
 * struct fermata_doorbell - FERMATA_IOC_DOORBELL: there is work in the queue
 * @size:		in: sizeof(struct fermata_doorbell)
 * @flags:		in: 0
 *
 * For the job of an engine that reads a queue (docs/queues.md).  The job leaves its
 * slot when the queue is empty (FERMATA_STATE_EMPTY), and this call brings it
 * back; priorities, slices and hints apply as they do to FERMATA_IOC_START.  A
 * program rings the doorbell if it has posted a job and the control block of the
 * queue says that the engine is leaving.  The engine writes this to the control block
 * before it checks the queue for the last time, so either the engine sees the job or
 * the program sees that the engine is leaving.  A doorbell that comes while the job is
 * still on its slot is not lost: the job does not stay away.  A needless doorbell costs
 * its context a check of the queue.  A held job stays held.
 *
 * ENOENT: no job, or it has ended.  It may have ended before the doorbell came
 * because the last check of the queue has found FERMATA_QUEUE_OP_END.  EIO: no
 * slot that this context may use is in service any more.  EPERM: as with
 * FERMATA_IOC_START.
 */
struct fermata_doorbell {
	__u32 size;
	__u32 flags;
};

/* events */
#define FERMATA_EVENT_DONE	(1U << 0) /* the job finished or failed */
#define FERMATA_EVENT_HELD	(1U << 1) /* the job is off its slot and held */
#define FERMATA_EVENT_EMPTY	(1U << 2) /* it is off its slot, its queue empty */
#define FERMATA_EVENT_COMPLETED	(1U << 3) /* something in its queue is complete */

/**
 * struct fermata_wait - FERMATA_IOC_WAIT: wait for the job
 * @size:		in: sizeof(struct fermata_wait)
 * @events:		in: FERMATA_EVENT_* to wait for, at least one
 * @deadline:		in: CLOCK_MONOTONIC time in ns at which to give up;
 *			0: do not wait; U64_MAX: never
 * @happened:		out: those of @events that hold now
 * @error:		out: as in struct fermata_status
 *
 * FERMATA_EVENT_DONE holds from the end of a job until the next START,
 * FERMATA_EVENT_HELD while the job is held, FERMATA_EVENT_EMPTY while it waits
 * for FERMATA_IOC_DOORBELL.  FERMATA_EVENT_COMPLETED holds from a completion event of
 * the engine, whose coalescing registers say how often there is one, or from the end
 * of a run, until this call has reported it to one caller.  Sometimes it holds although
 * the program has already seen all that is complete.  After a signal handler with
 * SA_RESTART, the call is restarted with the same deadline.
 *
 * ENOENT: no job was started.  ETIMEDOUT: @deadline came first, or @deadline is 0
 * and none of @events holds.  EAGAIN: the file is O_NONBLOCK and nothing has happened.
 * EINTR: a signal.
 *
 * poll(): POLLIN: FERMATA_EVENT_DONE holds.  POLLPRI: FERMATA_EVENT_HELD
 * holds.  POLLOUT: FERMATA_EVENT_EMPTY holds.  POLLRDBAND:
 * FERMATA_EVENT_COMPLETED holds.  POLLERR and POLLHUP: the card is gone.
 */
struct fermata_wait {
	__u32 size;
	__u32 events;
	__aligned_u64 deadline;
	__u32 happened;
	__u32 error;
};

/**
 * struct fermata_eventfd - FERMATA_IOC_EVENTFD: events to an eventfd
 * @size:		in: sizeof(struct fermata_eventfd)
 * @events:		in: FERMATA_EVENT_*; 0 with @fd -1: remove the eventfd
 * @fd:			in: descriptor of an eventfd, or -1
 * @reserved:		in: 0
 *
 * Adds 1 to the eventfd each time one of @events begins to hold, and when the
 * card goes away.  Events that come in quick succession may be added as one: a card
 * that goes away under a job ends the job, too, and adds 1 or 2.  Replaces the
 * eventfd that was set before.
 *
 * EBADF: @fd is not a descriptor.  EINVAL: @fd is not an eventfd; or @events is 0
 * with an @fd, or not 0 without.  ENOMEM.
 */
struct fermata_eventfd {
	__u32 size;
	__u32 events;
	__s32 fd;
	__u32 reserved;
};

/* parameters */
#define FERMATA_PARAM_TIMESLICE		1 /* ns, 100 us to 10 s */
#define FERMATA_PARAM_PREEMPT_TIMEOUT	2 /* ns, 1 ms to 10 s */
#define FERMATA_PARAM_PRIORITY		3 /* 0 to 31, default 16 */
#define FERMATA_PARAM_WEIGHT		4 /* 1 to 10000, default 100 */
#define FERMATA_PARAM_LATENCY_CRITICAL	5 /* 0 or 1, default 0 */
#define FERMATA_PARAM_CAP		6 /* percent, 0 to 100, default 0 */
#define FERMATA_PARAM_SLOT_MASK		8 /* bit i: slot i */
#define FERMATA_PARAM_COOPERATIVE	9 /* 0 or 1 */
#define FERMATA_PARAM_ENABLED		10 /* 0 or 1, default 1 */

/* fermata_param and fermata_reserve flags */
#define FERMATA_SET	(1U << 0) /* set it; without: only report */

/**
 * struct fermata_param - FERMATA_IOC_PARAM: a parameter of a context
 * @size:		in: sizeof(struct fermata_param)
 * @flags:		in: FERMATA_SET or 0
 * @context:		in: 0: the caller's own; else the number of a context
 * @param:		in: FERMATA_PARAM_*
 * @value:		in with FERMATA_SET, else out: its value
 * @min:		in with FERMATA_SET: 0; else out: smallest value that the caller
 *			may set; above @max if the caller may set none
 * @max:		in with FERMATA_SET: 0; else out: largest such value
 *
 * With FERMATA_SET the structure is not written.
 *
 * Every parameter may be changed while a job runs, and takes effect at once, also
 * for the current slice.  Time that was used before the change is charged as it was.
 *
 * FERMATA_PARAM_TIMESLICE: how long the context runs while others wait; the
 * driver lengthens it where saves take so long that little else would be done.
 * Default: module parameter timeslice_us.
 * FERMATA_PARAM_PREEMPT_TIMEOUT: how long its engine may take to pause before
 * the slot is reset and the job fails.  Default: module parameter
 * preempt_timeout_us.
 * FERMATA_PARAM_PRIORITY: under the policy "priority"; higher goes first.
 * FERMATA_PARAM_WEIGHT: under the policy "fair" (and under "deadline", for the time
 * that reservations leave): time on slots is in proportion to the weights, between the
 * contexts of a group (FERMATA_IOC_GROUP; groups have weights of their own).
 * FERMATA_PARAM_LATENCY_CRITICAL: 1: under every policy the context's jobs go before
 * those of contexts with 0, and preempt them at once.
 * FERMATA_PARAM_CAP: upper limit of the time on slots, in percent of one slot, even
 * while slots are free (FERMATA_STATUS_THROTTLED meanwhile); 0: no cap.  Has no effect
 * while a reservation is in force.
 * FERMATA_PARAM_SLOT_MASK: the slots that the context may use, at least one; at first
 * those of FERMATA_IOC_SETUP.  A job that is on another slot is moved.  @min is
 * the lowest slot of the engine, @max is all of them; every value in between
 * whose bits are in @max may be set.
 *
 * FERMATA_PARAM_COOPERATIVE: 1: the context's job is stopped at the next boundary of the
 * engine's work.  The time until then counts as the job's own, and is bounded by
 * FERMATA_PARAM_PREEMPT_TIMEOUT.  While a job waits that would preempt it at once, the
 * time is bounded by boundary_wait_us of the card in sysfs, if the engine can also be
 * stopped elsewhere.  The value can only be 0 without FERMATA_SLOT_BOUNDARY, and only 1
 * with FERMATA_SLOT_BOUNDARY_ONLY; default: the smallest value.
 *
 * FERMATA_PARAM_ENABLED: 0: the context's jobs are kept off slots.  A job on a slot is
 * preempted at once, and all jobs, also those started meanwhile, wait
 * (FERMATA_STATUS_DISABLED) until the context is enabled.  This makes no job fail.  A
 * job that is also held waits for FERMATA_IOC_RESUME, too.  Setting the current value
 * again is not an error.
 *
 * EINVAL: no such parameter.  ERANGE: the value is out of range; this is checked before
 * CAP_SYS_NICE.
 * EPERM: FERMATA_PARAM_TIMESLICE, _PREEMPT_TIMEOUT, _PRIORITY and _WEIGHT
 * above the default and _LATENCY_CRITICAL 1 take CAP_SYS_NICE;
 * FERMATA_PARAM_ENABLED takes CAP_SYS_ADMIN, also of the caller's own context;
 * FERMATA_PARAM_PRIORITY is above what FERMATA_IOC_GROUP_SET allows the group.
 * EBUSY: FERMATA_PARAM_SLOT_MASK leaves out a slot of the engine, and the
 * context has a reservation.
 * FERMATA_PARAM_SLOT_MASK: EINVAL: 0, or a slot of another engine; EIO: none of
 * the slots is in service; EPROTO: the card reports a larger state for one of
 * them than the snapshot buffer holds.
 */
struct fermata_param {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 param;
	__aligned_u64 value;
	__aligned_u64 min;
	__aligned_u64 max;
};

/**
 * struct fermata_reserve - FERMATA_IOC_RESERVE: reserve time on a slot
 * @size:		in: sizeof(struct fermata_reserve)
 * @flags:		in: FERMATA_SET or 0
 * @context:		in: 0: the caller's own; else the number of a context
 * @reserved:		in: 0
 * @budget_ns:		in with FERMATA_SET, else out: time on a slot in each
 *			period, its saves and restores included; from 100 us
 *			up to @deadline_ns
 * @deadline_ns:	in with FERMATA_SET, else out: time after the beginning of a period
 *			by which the budget is given; up to @period_ns
 * @period_ns:		in with FERMATA_SET, else out: 1 ms to 10 s
 *
 * With FERMATA_SET the structure is not written.
 *
 * A reservation is in force under the policy "deadline".  It is admitted under every
 * policy, so that "deadline" can keep all reservations whenever it is chosen.  Jobs
 * with a reservation go before all others, the earliest deadline first, until their
 * budgets are used up; then they wait for their next period (FERMATA_STATUS_THROTTLED).
 * All three values 0: no reservation (any more).
 *
 * ERANGE.  EBUSY: the reservation cannot be admitted.  On one slot, the densities
 * (budget divided by deadline) for an engine may add up to 90 %.  On m slots, each may
 * be at most 50 %, they may add up to 90 % of (m + 1) / 2, and the context must be
 * allowed to use all m slots.
 * EPERM: FERMATA_SET takes CAP_SYS_NICE, unless all three values are 0.
 */
struct fermata_reserve {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 reserved;
	__aligned_u64 budget_ns;
	__aligned_u64 deadline_ns;
	__aligned_u64 period_ns;
};

/* --- other contexts ------------------------------------------------------ */

/* fermata_context_info pid: gone, not shown, or not in the caller's pid namespace */
#define FERMATA_NO_PID		0

/* fermata_context_info waits: why a job is FERMATA_STATE_QUEUED; the first that applies */
#define FERMATA_WAITS_NOT	0 /* it is not queued, or the caller may not know */
#define FERMATA_WAITS_DISABLED	1 /* FERMATA_PARAM_ENABLED is 0 */
#define FERMATA_WAITS_NO_SLOT	2 /* FERMATA_STATUS_NO_SLOT */
#define FERMATA_WAITS_CARD	3 /* the card is suspended or being reset */
#define FERMATA_WAITS_BUDGET	4 /* the budget of its reservation is used up */
#define FERMATA_WAITS_CAP	5 /* FERMATA_PARAM_CAP is used up */
#define FERMATA_WAITS_GROUP_CAP	6 /* the cap of a group is used up */
#define FERMATA_WAITS_GANG	7 /* its gang gets slots together */
#define FERMATA_WAITS_TURN	8 /* for its turn under the policy */

/**
 * struct fermata_context_info - FERMATA_IOC_CONTEXT_INFO: who uses the card
 * @size:		in: sizeof(struct fermata_context_info)
 * @flags:		in: 0
 * @cursor:		in: 0 for the first context, then the value given back;
 *			out: for the next call
 * @context:		out: number of the context
 * @pid:		out: process that opened it, in the caller's pid
 *			namespace; FERMATA_NO_PID if it has ended, or is not there,
 *			or if it is another user's and the caller lacks CAP_SYS_ADMIN
 * @state:		out: FERMATA_STATE_*
 * @slot:		out: slot it is on, or FERMATA_NO_SLOT
 * @slot_mask:		out: FERMATA_PARAM_SLOT_MASK
 * @job:		out: number of the current or last job, 0: none yet
 * @run_ns:		out: time on slots
 * @wait_ns:		out: time queued
 * @slices:		out: times it was put on a slot
 * @preemptions:	out: times it was preempted before its job's end
 * @priority:		out: FERMATA_PARAM_PRIORITY
 * @weight:		out: FERMATA_PARAM_WEIGHT
 * @attributes:		out: as in struct fermata_status
 * @latency_critical:	out: FERMATA_PARAM_LATENCY_CRITICAL
 * @group:		out: its group, as in struct fermata_status; 0 if it is not
 *			that of the caller's context and the caller lacks
 *			CAP_SYS_ADMIN
 * @timeslice_ns:	out: FERMATA_PARAM_TIMESLICE
 * @preempt_timeout_ns:	out: FERMATA_PARAM_PREEMPT_TIMEOUT
 * @cap:		out: FERMATA_PARAM_CAP
 * @waits:		out: FERMATA_WAITS_*
 * @waits_group:	out: with FERMATA_WAITS_GROUP_CAP: the group whose cap it is, the
 *			context's own or one above; 0 where @group would be 0 for it
 * @state_ns:		out: how long the job has been queued, or on its slot without a
 *			break; in other states, for how long the context has had no
 *			job that wants a slot
 *
 * For contexts of other users, @slot is FERMATA_NO_SLOT, and @job to
 * @latency_critical and all members from @timeslice_ns on are 0, unless the caller
 * has CAP_PERFMON or CAP_SYS_ADMIN.
 *
 * Lists the contexts that are set up, in no particular order; a context that comes
 * or goes meanwhile may be listed or not.  Works at any time, also before
 * FERMATA_IOC_SETUP.  ENOENT: there are no more.
 */
struct fermata_context_info {
	__u32 size;
	__u32 flags;
	__u32 cursor;
	__u32 context;
	__s32 pid;
	__u32 state;
	__u32 slot;
	__u32 slot_mask;
	__aligned_u64 job;
	__aligned_u64 run_ns;
	__aligned_u64 wait_ns;
	__aligned_u64 slices;
	__aligned_u64 preemptions;
	__u32 priority;
	__u32 weight;
	__u32 attributes;
	__u32 latency_critical;
	__aligned_u64 group;
	__aligned_u64 timeslice_ns;
	__aligned_u64 preempt_timeout_ns;
	__u32 cap;
	__u32 waits;
	__aligned_u64 waits_group;
	__aligned_u64 state_ns;
};

/* fermata_histogram kind: of a slot, since the driver was bound to the card */
#define FERMATA_HISTOGRAM_GAP		1 /* run seen to end, to next START */
#define FERMATA_HISTOGRAM_SAVE		2 /* PAUSE to PAUSED */
#define FERMATA_HISTOGRAM_RESTORE	3 /* restores, as the card reports them */
#define FERMATA_HISTOGRAM_OVERRUN	4 /* end of a slice to its PAUSE */
#define FERMATA_HISTOGRAM_LATENCY	5 /* latency-critical arrival to START */
/* of a context, since FERMATA_IOC_SETUP */
#define FERMATA_HISTOGRAM_WAIT		16 /* time queued before a START */
#define FERMATA_HISTOGRAM_ARRIVAL	17 /* arrival to START */
#define FERMATA_HISTOGRAM_RUN		18 /* START to the end of the run */

#define FERMATA_HISTOGRAM_BUCKETS	128

/* Returns the shortest time, in ns, that @bucket, 0 to 128, counts. */
static inline __u64 fermata_histogram_lower(__u32 bucket)
{
	if (bucket < 4)
		return bucket * 16;
	return (4ULL + bucket % 4) << (bucket / 4 + 3);
}

/**
 * struct fermata_histogram - FERMATA_IOC_HISTOGRAM: how often it took how long
 * @size:		in: sizeof(struct fermata_histogram)
 * @flags:		in: 0
 * @kind:		in: FERMATA_HISTOGRAM_*
 * @number:		in: of a slot: its number; of a context: 0: the caller's own,
 *			else its number
 * @count:		out: how many times were measured
 * @sum_ns:		out: their sum
 * @min_ns:		out: the shortest; 0 if there are none
 * @max_ns:		out: the longest; 0 if there are none
 * @buckets:		in: entries that @counts has room for, any number; out: how
 *			many there are, FERMATA_HISTOGRAM_BUCKETS
 * @reserved:		in: 0
 * @counts:		in: pointer to @buckets __u64; as many as there is room for are
 *			filled in: how many of the times are in each bucket
 *
 * Bucket i has the times from fermata_histogram_lower(i) to below
 * fermata_histogram_lower(i + 1): a quarter of an octave, so that a percentile
 * that is read from them is at most 25 % (or 16 ns) too long.  The last bucket also
 * has all longer times.  The buckets add up to @count.
 *
 * FERMATA_HISTOGRAM_GAP: from the status that showed PAUSED or FINISH until the
 * next START was written, unless the slot was left vacant in between because no job
 * wanted it, or for a hint.  Includes resets of the slot, if there were any.
 * FERMATA_HISTOGRAM_SAVE: from the first PAUSE; not for jobs that are stopped at
 * boundaries, and not for queues that were empty.
 * FERMATA_HISTOGRAM_RESTORE: empty without FERMATA_FEATURE_QUIESCENT, or if the card
 * does not report the times.
 * FERMATA_HISTOGRAM_OVERRUN: how late the timer that ends a slice was when it wrote
 * PAUSE.
 * FERMATA_HISTOGRAM_LATENCY: FERMATA_HISTOGRAM_ARRIVAL of all contexts with
 * FERMATA_PARAM_LATENCY_CRITICAL, at the slot where their jobs began.
 * FERMATA_HISTOGRAM_WAIT: a job that is preempted waits again, so this counts every
 * START.
 * FERMATA_HISTOGRAM_ARRIVAL: from FERMATA_IOC_START, or FERMATA_IOC_DOORBELL in
 * FERMATA_STATE_EMPTY, until the next START was written.  A job that is held before
 * that is not counted.
 * FERMATA_HISTOGRAM_RUN: includes the restore and the save.
 *
 * Histograms of slots can be read at any time, also before FERMATA_IOC_SETUP.
 *
 * EINVAL: no such kind or slot.  ESRCH: no context has this number.  EPERM:
 * the histogram is of a slot, or another user opened the context, and the caller has
 * neither CAP_PERFMON nor CAP_SYS_ADMIN.  On EFAULT, part of the array may have been
 * written.  ENOMEM.
 */
struct fermata_histogram {
	__u32 size;
	__u32 flags;
	__u32 kind;
	__u32 number;
	__aligned_u64 count;
	__aligned_u64 sum_ns;
	__aligned_u64 min_ns;
	__aligned_u64 max_ns;
	__u32 buckets;
	__u32 reserved;
	__aligned_u64 counts;
};

/* --- the whole card ------------------------------------------------------ */

/*
 * Names of policies: how a card shares its slots.  The file policy of the card in
 * sysfs has the name of the current policy, and another name can be written to it.
 * At first it is that of the module parameter policy
 * (docs/ABI/testing/sysfs-class-fermata).
 *
 * FERMATA_POLICY_FAIR: time on slots in proportion to the weights of groups
 * (FERMATA_IOC_GROUP), and in a group in proportion to FERMATA_PARAM_WEIGHT.
 * FERMATA_POLICY_ROUND_ROBIN: one slice each, in turn.
 * FERMATA_POLICY_PRIORITY: the highest FERMATA_PARAM_PRIORITY first, at once.
 * FERMATA_POLICY_DEADLINE: reservations by earliest deadline, then as "fair".
 */
#define FERMATA_POLICY_FAIR		"fair"
#define FERMATA_POLICY_ROUND_ROBIN	"round-robin"
#define FERMATA_POLICY_PRIORITY		"priority"
#define FERMATA_POLICY_DEADLINE		"deadline"

/**
 * struct fermata_group - FERMATA_IOC_GROUP: contexts that share a part of the time
 * @size:		in: sizeof(struct fermata_group)
 * @flags:		in: 0
 * @context:		in: 0: the caller's own; else the number of a context of the
 *			group
 * @weight:		out: its weight, 100 unless FERMATA_IOC_GROUP_SET has set another
 * @contexts:		out: its contexts that are set up on the card
 * @reserved:		in and out: 0
 * @number:		out: as @group of struct fermata_status
 * @run_ns:		out: time on slots that its contexts have had, also closed ones
 *
 * Under the policies "fair" and "deadline", time that is not reserved goes to the
 * groups that want it in proportion to their weights, and within a group to its
 * contexts in proportion to theirs.  So nobody gets more time by opening more contexts.
 * Because of the choice of groups (struct fermata_status), nobody gets more time by
 * making more cgroups or subordinate users either.  @run_ns is kept while the group is
 * registered (FERMATA_IOC_GROUP_SET) or has a context, and for a while after that; then
 * it restarts from 0.
 */
struct fermata_group {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 weight;
	__u32 contexts;
	__u32 reserved;
	__aligned_u64 number;
	__aligned_u64 run_ns;
};

/* fermata_group_set flags */
#define FERMATA_GROUP_WEIGHT		(1U << 0) /* @weight is given */
#define FERMATA_GROUP_MAX_PRIORITY	(1U << 1) /* @max_priority is given */
#define FERMATA_GROUP_CAP		(1U << 2) /* @cap is given */
#define FERMATA_GROUP_MAX_CONTEXTS	(1U << 3) /* @max_contexts is given */
#define FERMATA_GROUP_MAX_BYTES		(1U << 4) /* @max_bytes is given */
#define FERMATA_GROUP_EXCLUSIVE		(1U << 5) /* @slot_mask is given */
#define FERMATA_GROUP_REMOVE		(1U << 6) /* end the registration */
#define FERMATA_GROUP_CHILDREN		(1U << 7) /* @children is given */
#define FERMATA_GROUP_USER		(1U << 8) /* of user @uid, not of a cgroup */

/* Set in the number of a user's group; the other bits are the user's number. */
#define FERMATA_USER_GROUP		(1ULL << 63)

/* Groups that can be registered on a card. */
#define FERMATA_MAX_GROUPS	256

/**
 * struct fermata_group_set - FERMATA_IOC_GROUP_SET: register a cgroup or a user
 * @size:		in: sizeof(struct fermata_group_set)
 * @flags:		in: FERMATA_GROUP_*; 0: only report
 * @cgroup:		in: descriptor of the directory of a cgroup (version 2); with
 *			FERMATA_GROUP_USER: 0
 * @weight:		in or out: its weight, 1 to 10000, at first 100
 * @max_priority:	in or out: the highest FERMATA_PARAM_PRIORITY of its
 *			contexts, 0 to 31, at first 31
 * @cap:		in or out: time on slots of all its contexts together, in
 *			percent of one slot, 1 to 800; 0, at first: no cap
 * @max_contexts:	in or out: maximum number of contexts that are set up, 1 to 65536;
 *			0, at first: that of the module parameter max_contexts_group;
 *			with @children: no limit for all together, and that one for
 *			those in the cgroup itself
 * @slot_mask:		in or out: slots that serve only its contexts, a bit each; at
 *			first 0
 * @contexts:		out: contexts of the group, and of those below it, that are set up
 * @children:		in or out: 1: each child of the cgroup is a group of its own;
 *			0, at first: the cgroup and its subtree are one group
 * @max_bytes:		in or out: maximum number of bytes of the arenas and snapshot
 *			buffers of all its contexts; 0, at first: that of the module
 *			parameter max_pinned_group_mib; with @children: no limit
 * @bytes:		out: bytes that they have
 * @number:		out: as @group of struct fermata_status
 * @run_ns:		out: as in struct fermata_group
 * @uid:		in: with FERMATA_GROUP_USER: a user, by its number in the initial
 *			user namespace; a program whose @size does not have it: 0, root
 * @reserved:		in and out: 0
 *
 * Makes the cgroup with its whole subtree one group, and sets what the flags name;
 * the rest stays as it is.  Contexts whose openers are in the subtree belong to
 * the group, unless a cgroup in between is registered, too.  With @children, they belong
 * to the child of the cgroup that they are in or below, and openers in the cgroup itself
 * to the cgroup.  With FERMATA_GROUP_USER, what is set holds for the contexts of this
 * user that belong to no registered cgroup.  This includes contexts
 * that are open already.  A context that moves to the group takes its job with it,
 * counts as new among the contexts of the group, and leaves a gang that has members in
 * another group.
 *
 * Registered groups nest, at most four deep: a group competes by its weight
 * with its siblings below the nearest registered group above, and its contexts
 * are bound by the cap, the priority ceiling and the limits of all groups above.
 * If no group above is registered, the group competes at the top, as users do.  A
 * cgroup for which only @children was ever given does not count: its children compete
 * where it would, and @contexts, @bytes and @run_ns are those of the cgroup itself.
 *
 * The registration is in force as long as the cgroup exists, whether the group
 * has contexts or not, and can be made before there are any.  It ends at the latest a
 * second after the cgroup was removed.  FERMATA_GROUP_REMOVE ends it at once; the
 * structure then has what was set.  The contexts then belong to the groups that they
 * would have been in without the registration.
 *
 * FERMATA_GROUP_MAX_PRIORITY: contexts with a higher priority are set to this one.
 * FERMATA_GROUP_CAP: holds even while slots are free (FERMATA_STATUS_THROTTLED meanwhile).
 * Contexts with a reservation in force are neither bound by it nor counted.
 * FERMATA_GROUP_MAX_CONTEXTS, FERMATA_GROUP_MAX_BYTES: what exists stays, but nothing is
 * added beyond the limit.  The first does not bind callers with CAP_SYS_RESOURCE, the
 * second does not bind callers with CAP_IPC_LOCK.
 * FERMATA_GROUP_EXCLUSIVE: jobs of other groups on the slots are preempted at once;
 * contexts that have no other slot wait (FERMATA_STATUS_NO_SLOT).  Reservations of
 * other groups that depend on the slots are not kept meanwhile.
 *
 * Works at any time, also before FERMATA_IOC_SETUP.
 *
 * EINVAL: FERMATA_GROUP_REMOVE is given with another flag than FERMATA_GROUP_USER, or this
 * one with @cgroup or FERMATA_GROUP_CHILDREN; or @slot_mask has a slot that does not
 * exist.  EPERM: the caller lacks CAP_SYS_ADMIN.  EBADF: @cgroup is not a descriptor of a
 * cgroup's directory (version 2).  ENOENT: the cgroup was removed; or, without flags and
 * with FERMATA_GROUP_REMOVE, it is not registered.  ERANGE: a value is out of range.
 * EBUSY: a slot serves only another group.  E2BIG: registered groups would nest more than
 * four deep.  ENOSPC: FERMATA_MAX_GROUPS are registered, all of users and of cgroups that
 * exist.  ENOMEM.
 */
struct fermata_group_set {
	__u32 size;
	__u32 flags;
	__s32 cgroup;
	__u32 weight;
	__u32 max_priority;
	__u32 cap;
	__u32 max_contexts;
	__u32 slot_mask;
	__u32 contexts;
	__u32 children;
	__aligned_u64 max_bytes;
	__aligned_u64 bytes;
	__aligned_u64 number;
	__aligned_u64 run_ns;
	__u32 uid;
	__u32 reserved;
};

/* fermata_gang flags */
#define FERMATA_GANG_JOIN		(1U << 0) /* join the gang of @context */
#define FERMATA_GANG_LEAVE		(1U << 1) /* leave the gang */

#define FERMATA_MAX_GANG	8

/**
 * struct fermata_gang - FERMATA_IOC_GANG: contexts that are on slots together
 * @size:		in: sizeof(struct fermata_gang)
 * @flags:		in: FERMATA_GANG_JOIN or _LEAVE; 0: only report
 * @context:		in: with FERMATA_GANG_JOIN: the number of another context, as
 *			in struct fermata_status; else 0
 * @members:		out: members of the caller's gang, itself included, 1 to
 *			FERMATA_MAX_GANG; 1: it is in none
 *
 * The jobs of a gang are put on slots together, each on a slot of its own, and
 * leave the slots together at the end of a slice: no job runs while one that it
 * depends on waits.  The STARTs follow each other immediately, once all slots are
 * vacant; each engine begins to work when its own state is loaded.
 *
 * When a member has its turn under the policy, its gang claims the slots that it can
 * have soonest; the jobs on them continue until all of them can be vacant.  If that
 * would take longer than a slice, other contexts go first.  A member whose job starts
 * while the others run gets a slot as any context does.  The others do not wait for a
 * member that is throttled (FERMATA_STATUS_THROTTLED).  If the members cannot all be on
 * slots (FERMATA_PARAM_ENABLED, a quarantined slot, FERMATA_PARAM_SLOT_MASK,
 * FERMATA_GROUP_EXCLUSIVE), each gets slots by itself.
 *
 * FERMATA_IOC_PREEMPT and FERMATA_IOC_RESUME of one member apply to the jobs of all
 * members, at once.  They succeed or fail as for the member that they name.  A member
 * that has no job is not affected, and does not start its next job held.  A member
 * whose slots are all out of service stays held.
 *
 * FERMATA_GANG_JOIN: the context leaves the gang that it was in; the jobs stay as they
 * are, unless a member has a hold (FERMATA_IOC_HOLD), which holds the jobs of all.
 * With a context that is in no gang it forms a gang of two.  A context that is
 * closed leaves its gang.
 *
 * EINVAL: both flags; @context is 0 or the caller's own, or of another group (see
 * @group of struct fermata_status).  ESRCH: no context of the card has this
 * number.  EPERM: another user opened it, and the caller lacks CAP_SYS_ADMIN.
 * ENOSPC: the card does not have that many slots that the members may use.
 */
struct fermata_gang {
	__u32 size;
	__u32 flags;
	__u32 context;
	__u32 members;
};

/* --- job queues --------------------------------------------------------- */

/*
 * A queue engine is started once (FERMATA_IOC_START) and then takes jobs from
 * a ring in the arena, so that a job costs no call.  For the driver it is one
 * job, which is preempted and resumed like any other; its state holds the jobs
 * that are half done.  docs/queues.md gives the reasons for what is stated here.
 *
 * The arena holds three pieces of memory, at device addresses that are multiples
 * of 64: an array of jobs, an array of statuses with as many entries, and
 * one control block.  Job n of the queue, counted from 0, is in entry n modulo
 * the number of entries of both arrays.  All of it is zeroed before the START.
 * Numbers are little-endian.  Both sides write a word with a single access.
 *
 * Posting.  One thread posts at a time.  It counts the jobs that it has posted; this
 * count is the tail.  It needs two free pairs: the headers of the job at the tail, of
 * its status and of the next job are 0.  Then, in this order, the thread has to:
 *
 *	fill in the job, all but its header
 *	write FERMATA_QUEUE_VALID to its header (release)
 *	increment the tail
 *	issue a full fence
 *	read @idle of the control block: if it is not 0, call FERMATA_IOC_DOORBELL
 *
 * Several jobs may be posted before one fence and one read of @idle.
 *
 * The engine takes valid jobs in order, works on up to four at a time, and may
 * complete them in another order.  For each job, in this order, the engine:
 *
 *	reads the job's header (acquire), then the rest of it, once
 *	writes @tag to the status, then FERMATA_QUEUE_STARTED to its header
 *	increments @head of the control block
 *	...
 *	writes the data, then @result, then FERMATA_QUEUE_STARTED |
 *	FERMATA_QUEUE_COMPLETE and @error (release)
 *	increments @completed of the control block
 *
 * Reaping.  Entries whose statuses have FERMATA_QUEUE_COMPLETE may be reaped in any
 * order.  For each of them, in this order, the program has to:
 *
 *	read the header of the status (acquire), then the rest of it
 *	write 0 to the header of the job
 *	write 0 to the header of the status (release)
 *
 * With this order there is never a status of 0 beside a job that was reaped and still
 * looks valid.  Data and result are those of the job once FERMATA_QUEUE_COMPLETE is
 * seen, and no sooner.
 *
 * While no other job waits for the card, polling @completed (acquire) is all that is
 * needed: the data and the status of each job are written before it is counted.
 *
 * Empty.  On a card with FERMATA_FEATURE_QUIESCENT, an engine that finds no valid
 * job at the head, and is working on none, leaves its slot after a moment: it writes 1
 * to @idle and checks the head once more after a full fence.  If there is still no job,
 * the engine stops and is saved.  The driver puts it back after FERMATA_IOC_DOORBELL;
 * the engine then writes 0 to @idle, and checks the head.  Either the engine sees the
 * job, or the program sees @idle: no job is missed.  A needless doorbell does no harm.
 *
 * FERMATA_START_REPLAYABLE is not for a queue: the engine would begin at job 0 again.
 *
 * A program that breaks these rules harms only itself: in its own arena, jobs are
 * lost, done twice, or done with whatever their entries contain.
 */

/* Engine id of the emulated card's queue engine (FERMATA_IOC_SETUP). */
#define FERMATA_QUEUE_AFU_ID_HI		0x5155455545000000ULL
#define FERMATA_QUEUE_AFU_ID_LO		6ULL

/*
 * Its application registers: the engine reads them at START.  An address that is
 * not a multiple of 64, or a number of entries that is not a power of two or is out
 * of range, ends the job at once, with EINVAL in FERMATA_QUEUE_REG_ERROR.
 */
#define FERMATA_QUEUE_REG_JOBS		0x30 /* W: device address of the jobs */
#define FERMATA_QUEUE_REG_STATUSES	0x38 /* W: device address of the statuses */
#define FERMATA_QUEUE_REG_ENTRIES	0x40 /* W: entries of each array */
#define FERMATA_QUEUE_REG_CONTROL	0x48 /* W: address of the control block */
#define FERMATA_QUEUE_REG_TAG		0x50 /* W: free for the program */
/*
 * Completion events (FERMATA_FEATURE_IRQ).  Of the jobs that are complete and that no
 * event has reported yet: an event is raised when there are COALESCE_COUNT of them, or
 * when the first of them has been complete for COALESCE_US; 0 jobs: no events.
 */
#define FERMATA_QUEUE_REG_COALESCE_COUNT	0x58 /* W: jobs */
#define FERMATA_QUEUE_REG_COALESCE_US	0x60 /* W: microseconds, 0: at once */
#define FERMATA_QUEUE_REG_HEAD		0x30 /* R: jobs taken since START_NEW */
#define FERMATA_QUEUE_REG_COMPLETED	0x38 /* R: of these, complete */
/*
 * R: why the engine's job ended: 0: by FERMATA_QUEUE_OP_END, or not yet; EINVAL: bad
 * registers; EFAULT: it touched memory outside the arena.
 */
#define FERMATA_QUEUE_REG_ERROR		0x40

#define FERMATA_QUEUE_MIN_ENTRIES	2
#define FERMATA_QUEUE_MAX_ENTRIES	65536
/* Largest @length of a job. */
#define FERMATA_QUEUE_MAX_BYTES		(1ULL << 32)

/* fermata_queue_job header; the other bits are 0 and are ignored */
#define FERMATA_QUEUE_VALID		(1U << 0) /* the engine may take it */

/* fermata_queue_job op */
#define FERMATA_QUEUE_OP_COPY		1 /* @length bytes from @src to @dst */
#define FERMATA_QUEUE_OP_FILL		2 /* @dst with the 8 bytes of @arg */
#define FERMATA_QUEUE_OP_SHA256		3 /* of @src; 32 bytes to @dst */
#define FERMATA_QUEUE_OP_CRC32C		4 /* of @src, going on from @arg */
#define FERMATA_QUEUE_OP_END		5 /* the last: ends the engine's job */

/**
 * struct fermata_queue_job - one job, in memory: written by the program
 * @header:		FERMATA_QUEUE_VALID
 * @op:			FERMATA_QUEUE_OP_*
 * @tag:		free for the program: copied to the status
 * @src:		device address
 * @dst:		device address
 * @length:		bytes, 0 to FERMATA_QUEUE_MAX_BYTES
 * @arg:		see below
 * @reserved:		0
 *
 * The engine never writes a job.  From FERMATA_QUEUE_VALID on until the status has
 * FERMATA_QUEUE_COMPLETE, the program must not change the job.  Addresses and @length
 * may have any value.  Other members that an operation does not name are ignored, except
 * for @reserved.
 *
 * FERMATA_QUEUE_OP_COPY: copies pieces of 64 bytes, from the beginning on; each is read
 * whole and then written.  So if @dst is less than @length above @src, copies are copied
 * again, unlike with memmove().
 * FERMATA_QUEUE_OP_FILL: repeats @arg, in memory order; the last copy may be cut.
 * FERMATA_QUEUE_OP_SHA256: writes the digest to @dst.
 * FERMATA_QUEUE_OP_CRC32C: CRC-32C (Castagnoli).  The low 32 bits of @arg are the CRC of
 * what comes before, 0 at the beginning; @result is the CRC of both.
 * FERMATA_QUEUE_OP_END: completes after all other jobs; then the engine's job
 * is finished (FERMATA_STATE_DONE).  Jobs that are posted after it are ignored.
 *
 * An access outside the arena ends the engine's job as with any engine (EFAULT in
 * struct fermata_status), and with it all jobs that are not complete.
 */
struct fermata_queue_job {
	__u32 header;
	__u32 op;
	__aligned_u64 tag;
	__aligned_u64 src;
	__aligned_u64 dst;
	__aligned_u64 length;
	__aligned_u64 arg;
	__aligned_u64 reserved[2];
};

/* fermata_queue_status header */
#define FERMATA_QUEUE_STARTED		(1U << 0) /* the engine has read the job */
#define FERMATA_QUEUE_COMPLETE		(1U << 1) /* and is done with it */

/**
 * struct fermata_queue_status - what became of a job, in memory
 * @header:		the engine sets FERMATA_QUEUE_STARTED, then both bits;
 *			the program writes 0 when it has reaped it
 * @error:		with FERMATA_QUEUE_COMPLETE: 0, or EINVAL: no such operation,
 *			@length out of range, @reserved not 0; nothing was done
 * @tag:		with FERMATA_QUEUE_STARTED: that of the job
 * @result:		with FERMATA_QUEUE_COMPLETE: FERMATA_QUEUE_OP_CRC32C: the
 *			CRC; else 0
 * @reserved:		0
 *
 * The program writes 0 to @header, and nothing else.  The engine does not read a status.
 */
struct fermata_queue_status {
	__u32 header;
	__u32 error;
	__aligned_u64 tag;
	__aligned_u64 result;
	__aligned_u64 reserved;
};

/**
 * struct fermata_queue_control - what program and engine tell each other
 * @completed:		jobs complete since the START, with or without error,
 *			modulo 2^64
 * @head:		jobs taken since the START, modulo 2^64
 * @idle:		1: the engine is about to leave or has left: a job that
 *			is posted needs a FERMATA_IOC_DOORBELL; else 0
 * @pad:		0
 * @reserved:		not touched by the engine
 * @program:		the program's own: the engine neither reads nor writes it
 *
 * The first 64 bytes are written by the engine and read by the program.  The
 * engine never reads them.
 */
struct fermata_queue_control {
	__aligned_u64 completed;
	__aligned_u64 head;
	__u32 idle;
	__u32 pad;
	__aligned_u64 reserved[5];
	__aligned_u64 program[8];
};

/* --- the calls ---------------------------------------------------------- */

/*
 * The structure's size is in its first member and not in the number, so a
 * call keeps its number when its structure grows.
 */
#define FERMATA_IOC_CARD_INFO		_IO(FERMATA_IOC_MAGIC, 0x00)
#define FERMATA_IOC_SLOT_INFO		_IO(FERMATA_IOC_MAGIC, 0x01)
#define FERMATA_IOC_SETUP		_IO(FERMATA_IOC_MAGIC, 0x10)
#define FERMATA_IOC_ARENA_CREATE	_IO(FERMATA_IOC_MAGIC, 0x11)
#define FERMATA_IOC_SNAPSHOT_CREATE	_IO(FERMATA_IOC_MAGIC, 0x12)
#define FERMATA_IOC_SNAPSHOT_READ	_IO(FERMATA_IOC_MAGIC, 0x13)
#define FERMATA_IOC_SNAPSHOT_WRITE	_IO(FERMATA_IOC_MAGIC, 0x14)
#define FERMATA_IOC_REGS_WRITE		_IO(FERMATA_IOC_MAGIC, 0x20)
#define FERMATA_IOC_REGS_READ		_IO(FERMATA_IOC_MAGIC, 0x21)
#define FERMATA_IOC_RESULTS		_IO(FERMATA_IOC_MAGIC, 0x22)
#define FERMATA_IOC_REGS_LIST		_IO(FERMATA_IOC_MAGIC, 0x23)
#define FERMATA_IOC_START		_IO(FERMATA_IOC_MAGIC, 0x30)
#define FERMATA_IOC_PREEMPT		_IO(FERMATA_IOC_MAGIC, 0x31)
#define FERMATA_IOC_RESUME		_IO(FERMATA_IOC_MAGIC, 0x32)
#define FERMATA_IOC_STATUS		_IO(FERMATA_IOC_MAGIC, 0x33)
#define FERMATA_IOC_WAIT		_IO(FERMATA_IOC_MAGIC, 0x34)
#define FERMATA_IOC_EVENTFD		_IO(FERMATA_IOC_MAGIC, 0x35)
#define FERMATA_IOC_HINT		_IO(FERMATA_IOC_MAGIC, 0x36)
#define FERMATA_IOC_DOORBELL		_IO(FERMATA_IOC_MAGIC, 0x37)
#define FERMATA_IOC_OUTCOME		_IO(FERMATA_IOC_MAGIC, 0x38)
#define FERMATA_IOC_HOLD		_IO(FERMATA_IOC_MAGIC, 0x39)
#define FERMATA_IOC_PARAM		_IO(FERMATA_IOC_MAGIC, 0x40)
#define FERMATA_IOC_RESERVE		_IO(FERMATA_IOC_MAGIC, 0x41)
#define FERMATA_IOC_CONTEXT_INFO	_IO(FERMATA_IOC_MAGIC, 0x50)
#define FERMATA_IOC_HISTOGRAM		_IO(FERMATA_IOC_MAGIC, 0x51)
#define FERMATA_IOC_CONFIG		_IO(FERMATA_IOC_MAGIC, 0x52)
#define FERMATA_IOC_GROUP		_IO(FERMATA_IOC_MAGIC, 0x60)
#define FERMATA_IOC_GROUP_SET		_IO(FERMATA_IOC_MAGIC, 0x61)
#define FERMATA_IOC_GANG		_IO(FERMATA_IOC_MAGIC, 0x62)

#endif /* _UAPI_FERMATA_H */
