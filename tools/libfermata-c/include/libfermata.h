/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libfermata: the calls of fermata for programs. The file is generated from the library's source.
 *
 * Functions that return int return 0, or the negative number of an error (-ENODEV: the card is gone; fermata.h tells what an error means
 * at which call), unless they say otherwise. fermata_message() then tells in words what failed and what helps. EACCES is told as -EPERM.
 *
 * All functions may be called by several threads at once, also for one object, except that a context is closed, an arena unmapped and a
 * queue freed when no other call uses the object. Structures are those of fermata.h; `size` is their sizeof, so that programs and libraries
 * of different versions work together. Pointers must be valid; NULL is -EINVAL, unless a function says otherwise.
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
 * A job queue in an arena, for one job of a queue engine (docs/queues.md, and "job queues" in fermata.h). An access to the queue of a card
 * that is gone raises SIGBUS, as to the arena.
 */
typedef struct fermata_queue fermata_queue;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns why the last function failed that failed in this thread: object, cause and remedy. The text is valid until another
 * function fails in this thread, or the thread ends. Without a failure the text is empty.
 */
const char *fermata_message(void);

/**
 * Returns the version of the library, as "0.1.0".
 */
const char *fermata_version(void);

/**
 * Tells how many cards the machine has, in *found, and the numbers of the first `count` of them in ascending order: card N is
 * /dev/fermataN. numbers may be NULL if count is 0.
 */
int fermata_cards(uint32_t *numbers, size_t count, size_t *found);

/**
 * Opens a card, as "/dev/fermata0": a new context, in *context. fermata_close() closes it.
 */
int fermata_open(const char *device, fermata_context **context);

/**
 * Opens the first card that has the engine and takes the context, and chooses the engine there, as fermata_setup(). -ENOENT: no card has
 * the engine.
 */
int fermata_open_engine(const char *engine, fermata_context **context);

/**
 * Makes a context of the descriptor of an open card, which fermata_close() then closes: one that was inherited, or came over a socket.
 * -ENOTTY: the descriptor is of no card; the descriptor stays the caller's after any error.
 */
int fermata_from_fd(int fd, fermata_context **context);

/**
 * Closes a context; a job that has not ended is lost. Memory of its arena that is still mapped stays mapped, and keeps the job
 * running. NULL is ignored.
 */
void fermata_close(fermata_context *context);

/**
 * Returns the descriptor of the context, for poll(): POLLIN: the job is done, POLLPRI: it is held, POLLERR and POLLHUP: the card is gone
 * (struct fermata_wait of fermata.h has the others). The descriptor stays the context's. -1: context is NULL.
 */
int fermata_fd(const fermata_context *context);

/**
 * Tells what the card is.
 */
int fermata_get_card_info(const fermata_context *context, struct fermata_card_info *info, size_t size);

/**
 * Tells what a slot is, counted from 0.
 */
int fermata_get_slot_info(const fermata_context *context, uint32_t slot, struct fermata_slot_info *info, size_t size);

/**
 * Tells state and counters of the context.
 */
int fermata_get_status(const fermata_context *context, struct fermata_status *status, size_t size);

/**
 * Chooses the engine, by its UUID or, of the emulated card's engines, by its name; and slots by a mask (0: all that have the engine).
 */
int fermata_setup(const fermata_context *context, const char *engine, uint32_t slot_mask);

/**
 * Tells the value of a parameter (FERMATA_PARAM_*).
 */
int fermata_get_param(const fermata_context *context, uint32_t param, uint64_t *value);

/**
 * Sets a parameter (FERMATA_PARAM_*).
 */
int fermata_set_param(const fermata_context *context, uint32_t param, uint64_t value);

/**
 * Reserves time on a slot: so many nanoseconds by a deadline after the beginning of each period (struct fermata_reserve of fermata.h). All
 * three 0: drops the reservation. -EBUSY: there is not so much time to promise. -EPERM: this takes CAP_SYS_NICE.
 */
int fermata_reserve(const fermata_context *context, uint64_t budget_ns, uint64_t deadline_ns, uint64_t period_ns);

/**
 * Announces that a job will be started in so many nanoseconds, at most 10 s (struct fermata_hint of fermata.h). UINT64_MAX takes that
 * back.
 */
int fermata_hint(const fermata_context *context, uint64_t ahead_ns);

/**
 * Joins the gang of the context of this number (struct fermata_gang of fermata.h); 0: leaves the gang.
 */
int fermata_join_gang(const fermata_context *context, uint32_t number);

/**
 * Makes the arena of the context, zeroed, and maps it: length is a multiple of the page size. Its device address is that of the mapping,
 * so that pointers are valid on both sides. After fork() the child does not have the mapping. An access after the card went raises SIGBUS.
 */
int fermata_create_arena(const fermata_context *context, size_t length, fermata_arena **arena);

/**
 * Makes a part of the arena of another context of the card, lender, the arena of this context, too, and maps it.
 */
int fermata_share_arena(const fermata_context *context, const fermata_context *lender, size_t offset, size_t length, fermata_arena **arena);

/**
 * Maps the arena that the context has already, as one of fermata_from_fd() may. -ENOENT: the context has no arena. -EDESTADDRREQ: nobody has mapped
 * the arena before, or its device address is 0.
 */
int fermata_map_arena(const fermata_context *context, fermata_arena **arena);

/**
 * Makes memory of the program's own the arena, with this device address: memory, length and base are multiples of the page size. The pages
 * stay pinned, and the engine's, until the context is closed, whatever becomes of their mapping.
 */
int fermata_use_memory(const fermata_context *context, void *memory, size_t length, uint64_t base);

/**
 * Returns where the arena is mapped; NULL if arena is NULL.
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
 * Ends the mapping of an arena, or leaves that to fermata_free_queue() if there are queues in the arena. The arena itself stays the
 * context's. NULL is ignored.
 */
void fermata_unmap_arena(fermata_arena *arena);

/**
 * Makes the buffer for the state of preempted jobs, once, before the first job. *length, if length is not NULL, is its size in bytes.
 */
int fermata_create_snapshot(const fermata_context *context, size_t *length);

/**
 * Copies a part of the state of a held job to the buffer. -EBUSY: the job is not held. -ENODATA: the job has never run.
 */
int fermata_read_snapshot(const fermata_context *context, uint64_t offset, void *buffer, size_t length);

/**
 * Brings a part of a state in, from which a job of FERMATA_START_SAVED goes on.
 */
int fermata_write_snapshot(const fermata_context *context, uint64_t offset, const void *state, size_t length);

/**
 * Writes registers, all or none: they are written again before each start of a job.
 */
int fermata_write_registers(const fermata_context *context, const struct fermata_reg *registers, size_t count);

/**
 * Reads registers: fills value of each by its offset. -EAGAIN: the context is on no slot, and not all of them are declared results.
 */
int fermata_read_registers(const fermata_context *context, struct fermata_reg *registers, size_t count);

/**
 * Declares the registers that are read when a job ends or is preempted, by their offsets, 16 at most.
 */
int fermata_declare_results(const fermata_context *context, const uint32_t *offsets, size_t count);

/**
 * Starts a job, with FERMATA_START_* or 0; what was written to the arena before is visible to the engine. *job, if job is not NULL, is
 * the job's number. -EBUSY: the last job has not ended.
 */
int fermata_start(const fermata_context *context, uint32_t flags, uint64_t *job);

/**
 * Takes the job off its slot: with FERMATA_PREEMPT_HOLD until fermata_resume(), with 0 behind the next job that waits. Returns at once;
 * FERMATA_EVENT_HELD tells that the job is held. -ENOENT: there is no job, or it has ended.
 */
int fermata_preempt(const fermata_context *context, uint32_t flags);

/**
 * Lets a held job go on. -ENOENT: there is no job, or it has ended.
 */
int fermata_resume(const fermata_context *context);

/**
 * Tells that there is work in the queue of the job (docs/queues.md). -ENOENT: there is no job, or it has ended.
 */
int fermata_ring(const fermata_context *context);

/**
 * Waits until one of events (FERMATA_EVENT_*) holds, or until the deadline: fermata_deadline_in(), 0: does not wait, UINT64_MAX: for ever.
 * *happened, if happened is not NULL, is which of them hold. -ETIMEDOUT: the deadline came first. -ENOENT: no job was started. -EINTR: a
 * signal handler ran that was installed without SA_RESTART.
 */
int fermata_wait(const fermata_context *context, uint32_t events, uint64_t deadline, uint32_t *happened);

/**
 * Returns the deadline in so many nanoseconds, on CLOCK_MONOTONIC; the last one, which never comes, if that is beyond it.
 */
uint64_t fermata_deadline_in(uint64_t ns);

/**
 * Has 1 added to an eventfd each time one of events (FERMATA_EVENT_*) begins to hold, and when the card goes; instead of the eventfd
 * before. fd -1 and events 0: to none any more. The descriptor stays the caller's.
 */
int fermata_set_eventfd(const fermata_context *context, int fd, uint32_t events);

/**
 * Tells whether the last job has finished: 0: it has. -ENOENT: no job was started. -EBUSY: the job has not ended. Else why it failed:
 * -EFAULT: its engine touched memory outside of the arena; -ETIME: it did not pause in time; -EIO: its state was lost; -EPROTO: the card
 * broke its protocol; -ENODEV: the card is gone.
 */
int fermata_job_result(const fermata_context *context);

/**
 * Returns how many bytes a queue with so many entries takes. One entry always stays free.
 */
size_t fermata_queue_length(uint32_t entries);

/**
 * Makes a queue in an arena that is mapped, before the job of the queue engine is started. The bytes from offset, a multiple of 64, are
 * zeroed, and belong to the queue and the engine until the job has ended. entries is a power of two from FERMATA_QUEUE_MIN_ENTRIES to
 * FERMATA_QUEUE_MAX_ENTRIES. The queue keeps the arena mapped until it is freed. -EINVAL: entries or offset is not allowed, or the queue
 * does not fit into the arena.
 */
int fermata_create_queue(const fermata_arena *arena, size_t offset, uint32_t entries, fermata_queue **queue);

/**
 * Fills in the four registers that tell the engine where the queue is, for fermata_write_registers(). FERMATA_EVENT_COMPLETED also needs
 * FERMATA_QUEUE_REG_COALESCE_COUNT: with 0 the engine tells of jobs only when it leaves its slot.
 */
int fermata_queue_registers(const fermata_queue *queue, struct fermata_reg *registers);

/**
 * Posts a job: op, tag, src, dst, length and arg of struct fermata_queue_job. *number, if number is not NULL, is the job's number in the
 * queue, from 0 on. -EAGAIN: the queue is full. After the last of several jobs, see fermata_needs_doorbell().
 */
int fermata_post(const fermata_queue *queue, const struct fermata_queue_job *job, uint64_t *number);

/**
 * Returns 1 if the engine has left its slot or is about to, so that posted jobs wait for fermata_ring(); else 0, also if queue is NULL.
 * fermata_ring() gives -ENOENT if the engine has reached a job with FERMATA_QUEUE_OP_END meanwhile.
 */
int fermata_needs_doorbell(const fermata_queue *queue);

/**
 * Takes the oldest complete job out of the queue. *status has its tag, its result, and its error: 0, or EINVAL: the engine has refused the
 * job. *number, if number is not NULL, is the job's number in the queue. -EAGAIN: no job is complete: wait for FERMATA_EVENT_COMPLETED,
 * _EMPTY or _DONE.
 */
int fermata_reap(const fermata_queue *queue, struct fermata_queue_status *status, uint64_t *number);

/**
 * Returns how many jobs are complete since the queue was made, reaped or not; 0 if queue is NULL.
 */
uint64_t fermata_queue_completed(const fermata_queue *queue);

/**
 * Returns how many jobs were posted and are not reaped; 0 if queue is NULL.
 */
uint64_t fermata_queue_outstanding(const fermata_queue *queue);

/**
 * Frees a queue, and ends the mapping of its arena if fermata_unmap_arena() was called before. The engine can go on with jobs that were
 * posted. NULL is ignored.
 */
void fermata_free_queue(fermata_queue *queue);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LIBFERMATA_H */
