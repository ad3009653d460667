/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libfermata: the calls of fermata for programs. The file is generated from the library's source.
 *
 * Functions that return int return 0 or a negative error number, unless they say otherwise (-ENODEV:
 * the card is gone; fermata.h has the meaning of each error for each call). After an error,
 * fermata_message() says what failed and what helps. EACCES is reported as -EPERM.
 *
 * All functions may be called by several threads at once, also for the same object. The exceptions
 * are closing a context, unmapping an arena and freeing a queue: no other call may use the object
 * then. Structures are those of fermata.h; `size` is their sizeof, so that programs and libraries of
 * different versions work together. Pointers must be valid; NULL gives -EINVAL, unless a function
 * says otherwise.
 *
 * A child of fork() has copies of the objects. It frees them like its own, which leaves the memory
 * and the jobs of its parent alone. Queues and arenas are of no other use to the child (-EINVAL). A
 * context is that of the parent: calls act on the parent's jobs.
 */

#ifndef LIBFERMATA_H
#define LIBFERMATA_H

#include <stddef.h>
#include <stdint.h>
#include <fermata.h>

/**
 * The memory of a context, as the program has it mapped.
 */
typedef struct fermata_arena fermata_arena;

/**
 * One open file of a card: one tenant, with at most one job at a time.
 */
typedef struct fermata_context fermata_context;

/**
 * A job queue in an arena, for one job of a queue engine (docs/queues.md, and "job queues" in
 * fermata.h). As with the arena, an access to the queue after the card is gone raises SIGBUS.
 */
typedef struct fermata_queue fermata_queue;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns why the last failed function call of this thread failed: object, cause and remedy. The
 * text is valid until another function fails in this thread, or the thread ends. It is empty if no
 * function has failed.
 */
const char *fermata_message(void);

/**
 * Returns the version of the library, as "0.1.0".
 */
const char *fermata_version(void);

/**
 * Stores the number of cards of the machine in *found, and the numbers of the first `count` of
 * them, in ascending order, in numbers: card N is /dev/fermataN. numbers may be NULL if count is
 * 0.
 */
int fermata_cards(uint32_t *numbers, size_t count, size_t *found);

/**
 * Opens a card, such as "/dev/fermata0", and stores a new context in *context. fermata_close()
 * closes it.
 */
int fermata_open(const char *device, fermata_context **context);

/**
 * Opens the first card that has the engine and accepts the context, and chooses the engine there,
 * like fermata_setup(). -ENOENT: no card has the engine.
 */
int fermata_open_engine(const char *engine, fermata_context **context);

/**
 * Makes a context of the descriptor of an open card, for example one that was inherited or came
 * over a socket. fermata_close() then closes the descriptor. -ENOTTY: the descriptor is not a
 * card's. After any error the descriptor stays the caller's.
 */
int fermata_from_fd(int fd, fermata_context **context);

/**
 * Closes a context. A job that has not ended is lost, unless memory of the arena is still mapped:
 * this memory stays mapped, and keeps the job running. NULL is ignored.
 */
void fermata_close(fermata_context *context);

/**
 * Returns the descriptor of the context, for poll(). POLLIN: the job is done; POLLPRI: it is held;
 * POLLERR and POLLHUP: the card is gone (struct fermata_wait in fermata.h has the other events).
 * The descriptor stays the context's. -1: context is NULL.
 */
int fermata_fd(const fermata_context *context);

/**
 * Gets the properties of the card.
 */
int fermata_get_card_info(const fermata_context *context, struct fermata_card_info *info, size_t size);

/**
 * Gets the properties and counters of a slot. Slots are counted from 0.
 */
int fermata_get_slot_info(const fermata_context *context, uint32_t slot, struct fermata_slot_info *info, size_t size);

/**
 * Gets the state and the counters of the context.
 */
int fermata_get_status(const fermata_context *context, struct fermata_status *status, size_t size);

/**
 * Chooses the engine, by its UUID or, for engines of the emulated card, by its name, and the slots
 * by a mask (0: all slots that have the engine).
 */
int fermata_setup(const fermata_context *context, const char *engine, uint32_t slot_mask);

/**
 * Gets the value of a parameter (FERMATA_PARAM_*).
 */
int fermata_get_param(const fermata_context *context, uint32_t param, uint64_t *value);

/**
 * Sets a parameter (FERMATA_PARAM_*).
 */
int fermata_set_param(const fermata_context *context, uint32_t param, uint64_t value);

/**
 * Reserves time on a slot: a budget in nanoseconds, by a deadline after the beginning of each
 * period (struct fermata_reserve in fermata.h). All three 0: drops the reservation. -EBUSY: there
 * is not enough unreserved time. -EPERM: this takes CAP_SYS_NICE.
 */
int fermata_reserve(const fermata_context *context, uint64_t budget_ns, uint64_t deadline_ns, uint64_t period_ns);

/**
 * Announces that a job will be started in this many nanoseconds, at most 10 s (struct fermata_hint
 * in fermata.h). UINT64_MAX withdraws the announcement.
 */
int fermata_hint(const fermata_context *context, uint64_t ahead_ns);

/**
 * Joins the gang of the context with this number (struct fermata_gang in fermata.h); 0: leaves the
 * gang.
 */
int fermata_join_gang(const fermata_context *context, uint32_t number);

/**
 * Creates the arena of the context, zeroed, and maps it. length is a multiple of the page size.
 * The device address is the address of the mapping, so that pointers are valid on both sides.
 * A child of fork() does not have the mapping. An access after the card is gone raises SIGBUS.
 */
int fermata_create_arena(const fermata_context *context, size_t length, fermata_arena **arena);

/**
 * Makes a part of the arena of lender, another context of the card, also the arena of this
 * context, and maps it.
 */
int fermata_share_arena(const fermata_context *context, const fermata_context *lender, size_t offset, size_t length, fermata_arena **arena);

/**
 * Maps the arena that the context already has, for example after fermata_from_fd(). -ENOENT: the
 * context has no arena. -EDESTADDRREQ: the arena was never mapped, or its device address is 0.
 */
int fermata_map_arena(const fermata_context *context, fermata_arena **arena);

/**
 * Makes memory of the program's own the arena, with this device address. memory, length and base
 * are multiples of the page size. The pages stay pinned, and accessible to the engine, until the
 * context is closed, even if they are unmapped before.
 */
int fermata_use_memory(const fermata_context *context, void *memory, size_t length, uint64_t base);

/**
 * Returns where the arena is mapped; NULL if arena is NULL, or in a child of fork().
 */
void *fermata_arena_address(const fermata_arena *arena);

/**
 * Returns the device address of the arena's first byte; 0 if arena is NULL.
 */
uint64_t fermata_arena_base(const fermata_arena *arena);

/**
 * Returns the length of the arena in bytes; 0 if arena is NULL.
 */
size_t fermata_arena_length(const fermata_arena *arena);

/**
 * Ends the mapping of an arena, or leaves this to fermata_free_queue() if there are queues in the
 * arena. The arena itself stays the context's. NULL is ignored.
 */
void fermata_unmap_arena(fermata_arena *arena);

/**
 * Creates the buffer for the state of preempted jobs, once, before the first job. Its size in
 * bytes is stored in *length, if length is not NULL.
 */
int fermata_create_snapshot(const fermata_context *context, size_t *length);

/**
 * Copies a part of the state of a held job to the buffer. -EBUSY: the job is not held. -ENODATA: the job has never run.
 */
int fermata_read_snapshot(const fermata_context *context, uint64_t offset, void *buffer, size_t length);

/**
 * Writes a part of the state from which a job started with FERMATA_START_SAVED resumes.
 */
int fermata_write_snapshot(const fermata_context *context, uint64_t offset, const void *state, size_t length);

/**
 * Writes registers, all or none. They are written again before each start of a job.
 */
int fermata_write_registers(const fermata_context *context, const struct fermata_reg *registers, size_t count);

/**
 * Reads registers: fills in the value of each from its offset. -EAGAIN: the context is not on a
 * slot, and not all of the registers are declared results. -EIO: a register gives no answer.
 */
int fermata_read_registers(const fermata_context *context, struct fermata_reg *registers, size_t count);

/**
 * Declares the registers, by offset, that are read when a job ends or is preempted. 16 at most.
 */
int fermata_declare_results(const fermata_context *context, const uint32_t *offsets, size_t count);

/**
 * Starts a job, with FERMATA_START_* or 0. The engine sees what was written to the arena before.
 * The job's number is stored in *job, if job is not NULL. -EBUSY: the last job has not ended.
 */
int fermata_start(const fermata_context *context, uint32_t flags, uint64_t *job);

/**
 * Takes the job off its slot: with FERMATA_PREEMPT_HOLD until fermata_resume(), with 0 behind the
 * next job that waits. Returns at once; FERMATA_EVENT_HELD reports that the job is held. -ENOENT:
 * there is no job, or it has ended.
 */
int fermata_preempt(const fermata_context *context, uint32_t flags);

/**
 * Holds the job, and jobs that are started meanwhile, until the new descriptor that is stored in
 * *hold and all its duplicates are closed, or their processes end. Returns at once;
 * FERMATA_EVENT_HELD reports that the job is held. -EMFILE: too many descriptors.
 */
int fermata_hold(const fermata_context *context, int *hold);

/**
 * Resumes a job that fermata_preempt() holds. -ENOENT: there is no job, or it has ended.
 */
int fermata_resume(const fermata_context *context);

/**
 * Rings the doorbell: there is work in the queue of the job (docs/queues.md). -ENOENT: there is no
 * job, or it has ended.
 */
int fermata_ring(const fermata_context *context);

/**
 * Waits until one of events (FERMATA_EVENT_*) holds, or until the deadline: a value of
 * fermata_deadline_in(), 0: does not wait, UINT64_MAX: forever. The events that hold are stored in
 * *happened, if happened is not NULL. -ETIMEDOUT: the deadline came first. -ENOENT: no job was
 * started. -EINTR: a signal handler ran that was installed without SA_RESTART.
 */
int fermata_wait(const fermata_context *context, uint32_t events, uint64_t deadline, uint32_t *happened);

/**
 * Returns the deadline that is this many nanoseconds from now, on CLOCK_MONOTONIC. A deadline
 * beyond the range is UINT64_MAX, which never comes.
 */
uint64_t fermata_deadline_in(uint64_t ns);

/**
 * Registers an eventfd to which 1 is added each time one of events (FERMATA_EVENT_*) begins to
 * hold, and when the card goes away. It replaces the previous eventfd. fd -1 with events 0 only
 * removes the previous eventfd. The descriptor stays the caller's.
 */
int fermata_set_eventfd(const fermata_context *context, int fd, uint32_t events);

/**
 * Returns 0 if the last job has finished. -ENOENT: no job was started. -EBUSY: the job has not
 * ended. Any other error is why the job failed: -EFAULT: its engine touched memory outside of the
 * arena; -ETIME: it did not pause in time; -EIO: its state was lost; -EPROTO: the card broke its
 * protocol; -ENODEV: the card is gone.
 */
int fermata_job_result(const fermata_context *context);

/**
 * Returns how many bytes a queue with this many entries takes. One entry always stays free.
 */
size_t fermata_queue_length(uint32_t entries);

/**
 * Creates a queue in a mapped arena, before the job of the queue engine is started. The bytes from
 * offset, a multiple of 64, are zeroed, and belong to the queue and the engine until the job has
 * ended. entries is a power of two from FERMATA_QUEUE_MIN_ENTRIES to FERMATA_QUEUE_MAX_ENTRIES.
 * The queue keeps the arena mapped until it is freed. -EINVAL: entries or offset is not allowed,
 * or the queue does not fit into the arena.
 */
int fermata_create_queue(const fermata_arena *arena, size_t offset, uint32_t entries, fermata_queue **queue);

/**
 * Fills in the four registers that tell the engine where the queue is, for
 * fermata_write_registers(). FERMATA_EVENT_COMPLETED also needs FERMATA_QUEUE_REG_COALESCE_COUNT:
 * with 0 the engine reports jobs only when it leaves its slot.
 */
int fermata_queue_registers(const fermata_queue *queue, struct fermata_reg *registers);

/**
 * Posts a job: op, tag, src, dst, length and arg of struct fermata_queue_job. The job's number in
 * the queue, from 0 on, is stored in *number, if number is not NULL. -EAGAIN: the queue is full.
 * After the last of several jobs, see fermata_needs_doorbell().
 */
int fermata_post(const fermata_queue *queue, const struct fermata_queue_job *job, uint64_t *number);

/**
 * Returns 1 if the engine has left its slot or is about to, so that posted jobs wait for
 * fermata_ring(). Otherwise returns 0, also if queue is NULL. fermata_ring() returns -ENOENT if
 * the engine has reached a job with FERMATA_QUEUE_OP_END in the meantime.
 */
int fermata_needs_doorbell(const fermata_queue *queue);

/**
 * Takes the oldest complete job out of the queue. *status gets its tag, its result, and its error:
 * 0, or EINVAL if the engine refused the job. The job's number in the queue is stored in *number,
 * if number is not NULL. -EAGAIN: no job is complete; wait for FERMATA_EVENT_COMPLETED, _EMPTY or
 * _DONE.
 */
int fermata_reap(const fermata_queue *queue, struct fermata_queue_status *status, uint64_t *number);

/**
 * Returns how many jobs have completed since the queue was created, reaped or not; 0 if queue is
 * NULL.
 */
uint64_t fermata_queue_completed(const fermata_queue *queue);

/**
 * Returns how many jobs are posted and not reaped; 0 if queue is NULL.
 */
uint64_t fermata_queue_outstanding(const fermata_queue *queue);

/**
 * Frees a queue, and ends the mapping of its arena if fermata_unmap_arena() was called before. The
 * engine can continue with jobs that were posted. NULL is ignored.
 */
void fermata_free_queue(fermata_queue *queue);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LIBFERMATA_H */
