// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers, jobs and job queues.

use crate::context::{check_mapped, give, given, room, Arena, Context};
use crate::{run, Failure};
use fermata::queue::SharedQueue;
use fermata::uapi::{self, QueueJob, QueueStatus, Reg, QUEUE_COMPLETE, QUEUE_STARTED};
use fermata::{Error, Events};
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// # Safety
///
/// The pointer is NULL, or that of `count` values, valid for `'a`. It may be NULL if `count` is 0.
unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    room(pointer.cast_mut(), name)?;
    if count > uapi::MAX_REGS {
        return Err(Failure::Argument(format!(
            "count is {count}, and {} is the most",
            uapi::MAX_REGS
        )));
    }
    // SAFETY: as above, and not NULL.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Creates the buffer for the state of preempted jobs, once, before the first job. Its size in
/// bytes is stored in *length, if length is not NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_create_snapshot(
    context: *const Context,
    length: *mut usize,
) -> c_int {
    run("make the buffer for preempted state", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let made = context.check(context.inner.create_snapshot())?;
        if !length.is_null() {
            // SAFETY: the caller's pointer.
            unsafe { length.write(made) };
        }
        Ok(())
    })
}

/// Copies a part of the state of a held job to the buffer. -EBUSY: the job is not held. -ENODATA: the job has never run.
#[no_mangle]
pub unsafe extern "C" fn fermata_read_snapshot(
    context: *const Context,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
) -> c_int {
    run("read the state of the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let buffer = room(buffer, "buffer")?.cast::<u8>();
        let mut state = vec![0; context.bounded(length)?];
        context.check(context.inner.read_snapshot(offset, &mut state))?;
        // SAFETY: the caller has room for `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(state.as_ptr(), buffer.as_ptr(), length) };
        Ok(())
    })
}

/// Writes a part of the state from which a job started with FERMATA_START_SAVED resumes.
#[no_mangle]
pub unsafe extern "C" fn fermata_write_snapshot(
    context: *const Context,
    offset: u64,
    state: *const c_void,
    length: usize,
) -> c_int {
    run("bring a state in", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let state = room(state.cast_mut(), "state")?.cast::<u8>();
        let length = context.bounded(length)?;
        // SAFETY: the caller's buffer has `length` bytes.
        let state = unsafe { std::slice::from_raw_parts(state.as_ptr(), length) };
        context.check(context.inner.write_snapshot(offset, state))
    })
}

impl Context {
    /// Returns the length if the snapshot buffer is at least as long.
    fn bounded(&self, length: usize) -> Result<usize, Failure> {
        let limit = self.check(self.inner.status())?.snapshot_length;
        if limit == 0 {
            return Err(self.failure(Error::NotReady));
        }
        if length as u64 > limit {
            return Err(Failure::Argument(format!(
                "{length} bytes are more than the {limit} of the buffer"
            )));
        }
        Ok(length)
    }
}

/// Writes registers, all or none. They are written again before each start of a job.
#[no_mangle]
pub unsafe extern "C" fn fermata_write_registers(
    context: *const Context,
    registers: *const Reg,
    count: usize,
) -> c_int {
    run("write registers", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        // SAFETY: the caller's array.
        let registers = unsafe { array(registers, count, "registers") }?;
        let pairs: Vec<_> = registers
            .iter()
            .map(|reg| (reg.offset, reg.value))
            .collect();
        context.check(context.inner.write_registers(&pairs))
    })
}

/// Reads registers: fills in the value of each from its offset. -EAGAIN: the context is not on a
/// slot, and not all of the registers are declared results. -EIO: a register gives no answer.
#[no_mangle]
pub unsafe extern "C" fn fermata_read_registers(
    context: *const Context,
    registers: *mut Reg,
    count: usize,
) -> c_int {
    run("read registers", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        // SAFETY: the caller's array.
        let wanted = unsafe { array(registers, count, "registers") }?;
        let offsets: Vec<_> = wanted.iter().map(|reg| reg.offset).collect();
        let values = context.check(context.inner.read_registers(&offsets))?;
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: within the caller's array, to which no reference is used any more.
            unsafe { (&raw mut (*registers.add(at)).value).write(value) };
        }
        Ok(())
    })
}

/// Declares the registers, by offset, that are read when a job ends or is preempted. 16 at most.
#[no_mangle]
pub unsafe extern "C" fn fermata_declare_results(
    context: *const Context,
    offsets: *const u32,
    count: usize,
) -> c_int {
    run("declare results", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        // SAFETY: the caller's array.
        let offsets = unsafe { array(offsets, count, "offsets") }?;
        context.check(context.inner.declare_results(offsets))
    })
}

/// Starts a job, with FERMATA_START_* or 0. The engine sees what was written to the arena before.
/// The job's number is stored in *job, if job is not NULL. -EBUSY: the last job has not ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_start(
    context: *const Context,
    flags: u32,
    job: *mut u64,
) -> c_int {
    run("start a job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let started = context.check(context.inner.start_with(flags))?;
        if !job.is_null() {
            // SAFETY: the caller's pointer.
            unsafe { job.write(started) };
        }
        Ok(())
    })
}

/// Takes the job off its slot: with FERMATA_PREEMPT_HOLD until fermata_resume(), with 0 behind the
/// next job that waits. Returns at once; FERMATA_EVENT_HELD reports that the job is held. -ENOENT:
/// there is no job, or it has ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_preempt(context: *const Context, flags: u32) -> c_int {
    run("preempt the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        if flags & !uapi::PREEMPT_HOLD != 0 {
            return Err(Failure::Argument(format!(
                "flags are {flags:#x}: give FERMATA_PREEMPT_HOLD or 0"
            )));
        }
        context.check(context.inner.preempt(flags != 0))
    })
}

/// Holds the job, and jobs that are started meanwhile, until the new descriptor that is stored in
/// *hold and all its duplicates are closed, or their processes end. Returns at once;
/// FERMATA_EVENT_HELD reports that the job is held. -EMFILE: too many descriptors.
#[no_mangle]
pub unsafe extern "C" fn fermata_hold(context: *const Context, hold: *mut c_int) -> c_int {
    run("hold the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        if hold.is_null() {
            return Err(Failure::Argument("hold is NULL".into()));
        }
        let begun = context.check(context.inner.open_hold())?;
        // SAFETY: the caller's pointer.
        unsafe { hold.write(OwnedFd::from(begun).into_raw_fd()) };
        Ok(())
    })
}

/// Resumes a job that fermata_preempt() holds. -ENOENT: there is no job, or it has ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_resume(context: *const Context) -> c_int {
    run("resume the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(context.inner.resume())
    })
}

/// Rings the doorbell: there is work in the queue of the job (docs/queues.md). -ENOENT: there is no
/// job, or it has ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_ring(context: *const Context) -> c_int {
    run("ring the doorbell", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(context.inner.ring())
    })
}

/// Waits until one of events (FERMATA_EVENT_*) holds, or until the deadline: a value of
/// fermata_deadline_in(), 0: does not wait, UINT64_MAX: forever. The events that hold are stored in
/// *happened, if happened is not NULL. -ETIMEDOUT: the deadline came first. -ENOENT: no job was
/// started. -EINTR: a signal handler ran that was installed without SA_RESTART.
#[no_mangle]
pub unsafe extern "C" fn fermata_wait(
    context: *const Context,
    events: u32,
    deadline: u64,
    happened: *mut u32,
) -> c_int {
    run("wait for the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let events = Events::from_bits(events);
        let holds = context.check(context.inner.wait_until(events, deadline))?;
        if !happened.is_null() {
            // SAFETY: the caller's pointer.
            unsafe { happened.write(holds.bits()) };
        }
        Ok(())
    })
}

/// Returns the deadline that is this many nanoseconds from now, on CLOCK_MONOTONIC. A deadline
/// beyond the range is UINT64_MAX, which never comes.
#[no_mangle]
pub extern "C" fn fermata_deadline_in(ns: u64) -> u64 {
    fermata::deadline_in(Duration::from_nanos(ns))
}

/// Registers an eventfd to which 1 is added each time one of events (FERMATA_EVENT_*) begins to
/// hold, and when the card goes away. It replaces the previous eventfd. fd -1 with events 0 only
/// removes the previous eventfd. The descriptor stays the caller's.
#[no_mangle]
pub unsafe extern "C" fn fermata_set_eventfd(
    context: *const Context,
    fd: c_int,
    events: u32,
) -> c_int {
    run("set the eventfd", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        if fd < 0 && (fd != -1 || events != 0) {
            return Err(Failure::Argument(format!(
                "{fd} is no descriptor: for no eventfd, give -1 and no events"
            )));
        }
        // SAFETY: used for this call only, by the driver, which refuses anything but an eventfd.
        let eventfd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
        let eventfd = eventfd.map(|fd| (fd, Events::from_bits(events)));
        context.check(context.inner.set_eventfd(eventfd))
    })
}

/// Returns 0 if the last job has finished. -ENOENT: no job was started. -EBUSY: the job has not
/// ended. Any other error is why the job failed: -EFAULT: its engine touched memory outside of the
/// arena; -ETIME: it did not pause in time; -EIO: its state was lost; -EPROTO: the card broke its
/// protocol; -ENODEV: the card is gone.
#[no_mangle]
pub unsafe extern "C" fn fermata_job_result(context: *const Context) -> c_int {
    run("tell the result of the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        let status = context.check(context.inner.status())?;
        match status.failure() {
            Some(why) => Err(Failure::Job(context.name(), status.error as c_int, why)),
            None => context.check(context.inner.job_result()),
        }
    })
}

/// A job queue in an arena, for one job of a queue engine (docs/queues.md, and "job queues" in
/// fermata.h). As with the arena, an access to the queue after the card is gone raises SIGBUS.
pub struct Queue {
    inner: Mutex<SharedQueue>,
    arena: Arc<fermata::Arena>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, SharedQueue> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a queue whose memory is there. In a child of fork() it is not, and another thread of the
/// parent may have had the lock.
///
/// # Safety
///
/// The pointer is NULL or valid for `'a`.
unsafe fn mapped<'a>(queue: *const Queue) -> Result<&'a Queue, Failure> {
    // SAFETY: as above.
    let queue = unsafe { given(queue, "queue") }?;
    check_mapped(&queue.arena).map(|()| queue)
}

/// Returns how many bytes a queue with this many entries takes. One entry always stays free.
#[no_mangle]
pub extern "C" fn fermata_queue_length(entries: u32) -> usize {
    fermata::queue::Queue::bytes(entries as usize)
}

/// Creates a queue in a mapped arena, before the job of the queue engine is started. The bytes from
/// offset, a multiple of 64, are zeroed, and belong to the queue and the engine until the job has
/// ended. entries is a power of two from FERMATA_QUEUE_MIN_ENTRIES to FERMATA_QUEUE_MAX_ENTRIES.
/// The queue keeps the arena mapped until it is freed. -EINVAL: entries or offset is not allowed,
/// or the queue does not fit into the arena.
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
        check_mapped(&arena.inner)?;
        let made = SharedQueue::shared(arena.inner.clone(), offset, entries as usize);
        let inner = made.map_err(|_| {
            Failure::Argument(format!(
                "{entries} entries at offset {offset}: entries is a power of two from 2 to 65536, offset a multiple of 64, and the \
                 queue lies within the arena"
            ))
        })?;
        let made = Queue {
            inner: Mutex::new(inner),
            arena: arena.inner.clone(),
        };
        // SAFETY: the caller's pointer.
        unsafe { give(made, queue) };
        Ok(())
    })
}

/// Fills in the four registers that tell the engine where the queue is, for
/// fermata_write_registers(). FERMATA_EVENT_COMPLETED also needs FERMATA_QUEUE_REG_COALESCE_COUNT:
/// with 0 the engine reports jobs only when it leaves its slot.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_registers(
    queue: *const Queue,
    registers: *mut Reg,
) -> c_int {
    run("tell the registers of the queue", || {
        // SAFETY: the caller's pointers.
        let queue = unsafe { mapped(queue) }?;
        let registers = room(registers, "registers")?;
        for (at, (offset, value)) in queue.lock().registers().into_iter().enumerate() {
            let register = Reg {
                offset,
                value,
                ..Default::default()
            };
            // SAFETY: the caller has room for four registers.
            unsafe { registers.add(at).write(register) };
        }
        Ok(())
    })
}

/// Posts a job: op, tag, src, dst, length and arg of struct fermata_queue_job. The job's number in
/// the queue, from 0 on, is stored in *number, if number is not NULL. -EAGAIN: the queue is full.
/// After the last of several jobs, see fermata_needs_doorbell().
#[no_mangle]
pub unsafe extern "C" fn fermata_post(
    queue: *const Queue,
    job: *const QueueJob,
    number: *mut u64,
) -> c_int {
    run("post a job", || {
        // SAFETY: the caller's pointers.
        let (queue, job) = unsafe { (mapped(queue)?, given(job, "job")?) };
        let posted = queue.lock().push_job(job);
        let posted = posted.ok_or(Failure::Again(c"the queue is full: reap jobs first"))?;
        if !number.is_null() {
            // SAFETY: the caller's pointer.
            unsafe { number.write(posted) };
        }
        Ok(())
    })
}

/// Returns 1 if the engine has left its slot or is about to, so that posted jobs wait for
/// fermata_ring(). Otherwise returns 0, also if queue is NULL. fermata_ring() returns -ENOENT if
/// the engine has reached a job with FERMATA_QUEUE_OP_END in the meantime.
#[no_mangle]
pub unsafe extern "C" fn fermata_needs_doorbell(queue: *const Queue) -> c_int {
    // SAFETY: the caller's pointer.
    let queue = unsafe { mapped(queue) };
    queue
        .is_ok_and(|queue| queue.lock().needs_doorbell())
        .into()
}

/// Takes the oldest complete job out of the queue. *status gets its tag, its result, and its error:
/// 0, or EINVAL if the engine refused the job. The job's number in the queue is stored in *number,
/// if number is not NULL. -EAGAIN: no job is complete; wait for FERMATA_EVENT_COMPLETED, _EMPTY or
/// _DONE.
#[no_mangle]
pub unsafe extern "C" fn fermata_reap(
    queue: *const Queue,
    status: *mut QueueStatus,
    number: *mut u64,
) -> c_int {
    run("reap a job", || {
        // SAFETY: the caller's pointers.
        let queue = unsafe { mapped(queue) }?;
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

/// Returns how many jobs have completed since the queue was created, reaped or not; 0 if queue is
/// NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_completed(queue: *const Queue) -> u64 {
    // SAFETY: the caller's pointer.
    let queue = unsafe { mapped(queue) };
    queue.map_or(0, |queue| queue.lock().completed())
}

/// Returns how many jobs are posted and not reaped; 0 if queue is NULL.
#[no_mangle]
pub unsafe extern "C" fn fermata_queue_outstanding(queue: *const Queue) -> u64 {
    // SAFETY: the caller's pointer.
    let queue = unsafe { mapped(queue) };
    queue.map_or(0, |queue| queue.lock().outstanding())
}

/// Frees a queue, and ends the mapping of its arena if fermata_unmap_arena() was called before. The
/// engine can continue with jobs that were posted. NULL is ignored.
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
