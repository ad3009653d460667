// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers and jobs.

use crate::context::{given, room, Context};
use crate::failure::{run, Failure};
use fermata::uapi::{self, Reg};
use fermata::{Error, Events};
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// # Safety
///
/// The pointer is NULL, or that of `count` values, valid for `'a`. NULL is right where `count` is 0.
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

/// Makes the buffer for the state of preempted jobs, once, before the first job. *length, if length is not NULL, is its size in bytes.
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

/// Brings a part of a state in, from which a job of FERMATA_START_SAVED goes on.
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
    /// Returns the length, if the snapshot buffer is not shorter.
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

/// Writes registers, all or none: they are written again before each start of a job.
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

/// Reads registers: fills value of each by its offset. -EAGAIN: the context is on no slot, and not all of them are declared results.
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

/// Declares the registers that are read when a job ends or is preempted, by their offsets, 16 at most.
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

/// Starts a job, with FERMATA_START_* or 0; what was written to the arena before is visible to the engine. *job, if job is not NULL, is
/// the job's number. -EBUSY: the last job has not ended.
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

/// Takes the job off its slot: with FERMATA_PREEMPT_HOLD until fermata_resume(), with 0 behind the next job that waits. Returns at once;
/// FERMATA_EVENT_HELD tells that the job is held. -ENOENT: there is no job, or it has ended.
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

/// Lets a held job go on. -ENOENT: there is no job, or it has ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_resume(context: *const Context) -> c_int {
    run("resume the job", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(context.inner.resume())
    })
}

/// Tells that there is work in the queue of the job (docs/queues.md). -ENOENT: there is no job, or it has ended.
#[no_mangle]
pub unsafe extern "C" fn fermata_ring(context: *const Context) -> c_int {
    run("ring the doorbell", || {
        // SAFETY: the caller's pointers.
        let context = unsafe { given(context, "context") }?;
        context.check(context.inner.ring())
    })
}

/// Waits until one of events (FERMATA_EVENT_*) holds, or until the deadline: fermata_deadline_in(), 0: does not wait, UINT64_MAX: for ever.
/// *happened, if happened is not NULL, is which of them hold. -ETIMEDOUT: the deadline came first. -ENOENT: no job was started. -EINTR: a
/// signal handler ran that was installed without SA_RESTART.
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

/// Returns the deadline in so many nanoseconds, on CLOCK_MONOTONIC; the last one, which never comes, if that is beyond it.
#[no_mangle]
pub extern "C" fn fermata_deadline_in(ns: u64) -> u64 {
    fermata::deadline_in(Duration::from_nanos(ns))
}

/// Has 1 added to an eventfd each time one of events (FERMATA_EVENT_*) begins to hold, and when the card goes; instead of the eventfd
/// before. fd -1 and events 0: to none any more. The descriptor stays the caller's.
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
        // SAFETY: used for this call only, by the driver, which refuses what is no eventfd.
        let eventfd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
        let eventfd = eventfd.map(|fd| (fd, Events::from_bits(events)));
        context.check(context.inner.set_eventfd(eventfd))
    })
}

/// Tells whether the last job has finished: 0: it has. -ENOENT: no job was started. -EBUSY: the job has not ended. Else why it failed:
/// -EFAULT: its engine touched memory outside of the arena; -ETIME: it did not pause in time; -EIO: its state was lost; -EPROTO: the card
/// broke its protocol; -ENODEV: the card is gone.
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
