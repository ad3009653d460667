// SPDX-License-Identifier: MIT OR Apache-2.0
//! Job queues.

use crate::arena::Arena;
use crate::context::{give, given, room};
use crate::failure::{run, Failure};
use fermata::queue::SharedQueue;
use fermata::uapi::{QueueJob, QueueStatus, Reg, QUEUE_COMPLETE, QUEUE_STARTED};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A job queue in an arena, for one job of a queue engine (docs/queues.md, and "job queues" in fermata.h). An access to the queue of a card
/// that is gone raises SIGBUS, as to the arena.
pub struct Queue {
    inner: Mutex<SharedQueue>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, SharedQueue> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how many bytes a queue with so many entries takes. One entry always stays free.
#[no_mangle]
pub extern "C" fn fermata_queue_length(entries: u32) -> usize {
    fermata::queue::Queue::bytes(entries as usize)
}

/// Makes a queue in an arena that is mapped, before the job of the queue engine is started. The bytes from offset, a multiple of 64, are
/// zeroed, and belong to the queue and the engine until the job has ended. entries is a power of two from FERMATA_QUEUE_MIN_ENTRIES to
/// FERMATA_QUEUE_MAX_ENTRIES. The queue keeps the arena mapped until it is freed. -EINVAL: entries or offset is not allowed, or the queue
/// does not fit into the arena.
#[no_mangle]
pub unsafe extern "C" fn fermata_create_queue(
    arena: *const Arena,
    offset: usize,
    entries: u32,
    queue: *mut *mut Queue,
) -> c_int {
    run("make a queue", || {
        // SAFETY: the caller's pointers.
        let arena = unsafe { given(arena, "arena") }?;
        let queue = room(queue, "queue")?;
        let made = SharedQueue::shared(arena.inner.clone(), offset, entries as usize);
        let inner = made.map_err(|_| {
            Failure::Argument(format!(
                "{entries} entries at offset {offset}: entries is a power of two from 2 to 65536, offset a multiple of 64, and the \
                 queue lies within the arena"
            ))
        })?;
        let made = Queue {
            inner: Mutex::new(inner),
        };
        // SAFETY: the caller's pointer.
        unsafe { give(made, queue) };
        Ok(())
    })
}

/// Fills in the four registers that tell the engine where the queue is, for fermata_write_registers(). FERMATA_EVENT_COMPLETED also needs
/// FERMATA_QUEUE_REG_COALESCE_COUNT: with 0 the engine tells of jobs only when it leaves its slot.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_registers(
    queue: *const Queue,
    registers: *mut Reg,
) -> c_int {
    run("tell the registers of the queue", || {
        // SAFETY: the caller's pointers.
        let queue = unsafe { given(queue, "queue") }?;
        let registers = room(registers, "registers")?;
        for (at, (offset, value)) in queue.lock().registers().into_iter().enumerate() {
            let register = Reg {
                offset,
                value,
                ..Default::default()
            };
            // SAFETY: the caller has room for four.
            unsafe { registers.add(at).write(register) };
        }
        Ok(())
    })
}

/// Posts a job: op, tag, src, dst, length and arg of struct fermata_queue_job. *number, if number is not NULL, is the job's number in the
/// queue, from 0 on. -EAGAIN: the queue is full. After the last of several jobs, see fermata_needs_doorbell().
#[no_mangle]
pub unsafe extern "C" fn fermata_post(
    queue: *const Queue,
    job: *const QueueJob,
    number: *mut u64,
) -> c_int {
    run("post a job", || {
        // SAFETY: the caller's pointers.
        let (queue, job) = unsafe { (given(queue, "queue")?, given(job, "job")?) };
        let posted = queue.lock().push_job(job);
        let posted = posted.ok_or(Failure::Again(c"the queue is full: reap jobs first"))?;
        if !number.is_null() {
            // SAFETY: the caller's pointer.
            unsafe { number.write(posted) };
        }
        Ok(())
    })
}

/// Returns 1 if the engine has left its slot or is about to, so that posted jobs wait for fermata_ring(); else 0, also if queue is NULL.
/// fermata_ring() gives -ENOENT if the engine has reached a job with FERMATA_QUEUE_OP_END meanwhile.
#[no_mangle]
pub unsafe extern "C" fn fermata_needs_doorbell(queue: *const Queue) -> c_int {
    // SAFETY: the caller's pointer.
    let queue = unsafe { queue.as_ref() };
    queue
        .is_some_and(|queue| queue.lock().needs_doorbell())
        .into()
}

/// Takes the oldest complete job out of the queue. *status has its tag, its result, and its error: 0, or EINVAL: the engine has refused the
/// job. *number, if number is not NULL, is the job's number in the queue. -EAGAIN: no job is complete: wait for FERMATA_EVENT_COMPLETED,
/// _EMPTY or _DONE.
#[no_mangle]
pub unsafe extern "C" fn fermata_reap(
    queue: *const Queue,
    status: *mut QueueStatus,
    number: *mut u64,
) -> c_int {
    run("reap a job", || {
        // SAFETY: the caller's pointers.
        let queue = unsafe { given(queue, "queue") }?;
        let status = room(status, "status")?;
        let reaped = queue.lock().reap();
        let reaped = reaped.ok_or(Failure::Again(
            c"no job of the queue is complete: wait for FERMATA_EVENT_COMPLETED, _EMPTY or _DONE",
        ))?;
        let (result, error) = match reaped.outcome {
            Ok(result) => (result, 0),
            Err(error) => (0, error.errno() as u32),
        };
        let told = QueueStatus {
            header: QUEUE_STARTED | QUEUE_COMPLETE,
            error,
            tag: reaped.tag,
            result,
            reserved: 0,
        };
        // SAFETY: the caller's pointers.
        unsafe {
            status.write(told);
            if !number.is_null() {
                number.write(reaped.number);
            }
        }
        Ok(())
    })
}

/// Returns how many jobs are complete since the queue was made, reaped or not; 0 if queue is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_completed(queue: *const Queue) -> u64 {
    // SAFETY: the caller's pointer.
    let queue = unsafe { queue.as_ref() };
    queue.map_or(0, |queue| queue.lock().completed())
}

/// Returns how many jobs were posted and are not reaped; 0 if queue is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_outstanding(queue: *const Queue) -> u64 {
    // SAFETY: the caller's pointer.
    let queue = unsafe { queue.as_ref() };
    queue.map_or(0, |queue| queue.lock().outstanding())
}

/// Frees a queue, and ends the mapping of its arena if fermata_unmap_arena() was called before. The engine can go on with jobs that were
/// posted. NULL is ignored.
#[no_mangle]
pub unsafe extern "C" fn fermata_free_queue(queue: *mut Queue) {
    let _ = run("free a queue", || -> Result<(), Failure> {
        if let Some(queue) = NonNull::new(queue) {
            // SAFETY: made by `give`, and no other call uses it.
            drop(unsafe { Box::from_raw(queue.as_ptr()) });
        }
        Ok(())
    });
}
