// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of fermata (`uapi/fermata.h`) for Rust programs.
//!
//! A [`Context`] is one open file of a card: one tenant, with at most one job at a time. Its
//! [`Arena`] is the memory that it shares with the engine, at the same addresses on both sides.
//!
//! ```no_run
//! use fermata::{Context, EngineId, Events};
//!
//! # fn main() -> fermata::Result<()> {
//! let context = Context::open("/dev/fermata0")?;
//! context.setup(EngineId::SHA256, 0)?;
//! let arena = context.create_arena(1 << 20)?;
//! context.create_snapshot()?;
//! arena.write(4096, b"abc");
//! let base = arena.base();
//! context.write_registers(&[(0x30, base + 4096), (0x38, 3), (0x40, base)])?;
//! context.start()?;
//! context.wait(Events::DONE, None)?;
//! let digest = arena.read(0, 32);
//! # Ok(())
//! # }
//! ```

mod arena;
mod cards;
mod engine;
mod error;
mod fork;
#[path = "../../../rust/measure/histogram.rs"]
#[allow(dead_code, reason = "what the module does with it is not done here")]
mod histogram;
pub mod owner;
pub mod queue;
pub mod riscv;
mod schedule;
mod travel;
pub mod uapi;
pub mod work;

pub use arena::Arena;
pub use cards::{card_number, card_numbers, devices, major, major_in};
pub use engine::{EngineId, NoUuid, UnknownEngine};
pub use error::{Error, Result};
pub use fork::Process;
pub use histogram::{bucket_of, lower_bound, Histogram, BUCKETS};
pub use schedule::{
    user_of_group, Control, Group, GroupOf, GroupSettings, Param, Policy, Reservation,
};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Events of a context that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events(u32);

impl Events {
    /// The job finished or failed.
    pub const DONE: Self = Self(uapi::EVENT_DONE);
    /// The job is off its slot until [`Context::resume`].
    pub const HELD: Self = Self(uapi::EVENT_HELD);
    /// The job is off its slot until [`Context::ring`]: its queue is empty.
    pub const EMPTY: Self = Self(uapi::EVENT_EMPTY);
    /// Something in the job's queue is complete, or may be.
    pub const COMPLETED: Self = Self(uapi::EVENT_COMPLETED);
    /// The job finished, failed, or is held.
    pub const ANY: Self = Self(uapi::EVENT_DONE | uapi::EVENT_HELD);

    /// Returns the events of a mask of `uapi::EVENT_*`. The driver refuses any other bit.
    pub const fn from_bits(mask: u32) -> Self {
        Self(mask)
    }

    /// Returns the mask of these events.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether these events include all of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A hold of a context's jobs, which lasts until all duplicates of its descriptor are closed. When
/// it is dropped, or when the process ends, it is over.
#[derive(Debug)]
pub struct Hold(OwnedFd);

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Hold> for OwnedFd {
    fn from(hold: Hold) -> Self {
        hold.0
    }
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No [`Context::setup`] yet.
    New,
    /// No job was started.
    Idle,
    /// Waits for a slot.
    Queued,
    /// On a slot.
    Running,
    /// Off its slot, because of [`Context::preempt`] or [`Context::open_hold`].
    Held,
    /// The job finished.
    Done,
    /// The job failed; see [`uapi::Status::error`].
    Failed,
    /// Off its slot until [`Context::ring`]: its queue is empty.
    Empty,
    /// A state that this library does not know, of a later driver.
    Unknown(u32),
}

impl From<u32> for State {
    fn from(state: u32) -> Self {
        match state {
            uapi::STATE_NEW => Self::New,
            uapi::STATE_IDLE => Self::Idle,
            uapi::STATE_QUEUED => Self::Queued,
            uapi::STATE_RUNNING => Self::Running,
            uapi::STATE_HELD => Self::Held,
            uapi::STATE_DONE => Self::Done,
            uapi::STATE_FAILED => Self::Failed,
            uapi::STATE_EMPTY => Self::Empty,
            other => Self::Unknown(other),
        }
    }
}

/// One open file of a card: a tenant.
#[derive(Debug)]
pub struct Context {
    file: File,
}

/// An argument of a call to the driver. Its first member is its size.
trait Argument: Default {
    fn set_size(&mut self, size: u32);
}

macro_rules! arguments {
    ($($name:ident),*) => {
        $(impl Argument for uapi::$name {
            fn set_size(&mut self, size: u32) {
                self.size = size;
            }
        })*
    };
}

arguments!(
    CardInfo,
    SlotInfo,
    Setup,
    ArenaCreate,
    SnapshotCreate,
    SnapshotRead,
    SnapshotWrite,
    Regs,
    Config,
    Outcome,
    Start,
    Preempt,
    Resume,
    Hold,
    Status,
    Hint,
    Doorbell,
    Wait,
    Eventfd,
    Param,
    ContextInfo,
    Histogram,
    Reserve,
    Group,
    GroupSet,
    Gang
);

impl Context {
    /// Opens a card and returns a new context.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.map(|file| Self { file })
            .map_err(|error| Error::from_io(&error))
    }

    /// # Safety
    ///
    /// Pointers in the argument must be valid for what the call does with them.
    unsafe fn call<T: Argument>(&self, number: u32, mut argument: T) -> Result<T> {
        argument.set_size(size_of::<T>() as u32);
        // SAFETY: the call number belongs to the type of the argument, whose size was just set; the
        // caller guarantees that pointers in the argument are valid.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), number.into(), &raw mut argument) };
        if done < 0 {
            return Err(Error::last());
        }
        Ok(argument)
    }

    /// Returns the properties of the card.
    pub fn card_info(&self) -> Result<uapi::CardInfo> {
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_CARD_INFO, uapi::CardInfo::default()) }
    }

    /// Returns the properties and counters of a slot.
    pub fn slot_info(&self, slot: u32) -> Result<uapi::SlotInfo> {
        let argument = uapi::SlotInfo {
            slot,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_SLOT_INFO, argument) }
    }

    /// Returns the slots that have this engine.
    pub fn slots_of(&self, engine: EngineId) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for slot in 0..self.card_info()?.slots {
            let info = self.slot_info(slot)?;
            if (info.afu_id_lo, info.afu_id_hi) == (engine.low, engine.high) {
                found.push(slot);
            }
        }
        Ok(found)
    }

    /// Chooses the engine, and the slots by a mask (0: all slots that have the engine). Returns the
    /// number of the context.
    pub fn setup(&self, engine: EngineId, slot_mask: u32) -> Result<u32> {
        let argument = uapi::Setup {
            afu_id_lo: engine.low,
            afu_id_hi: engine.high,
            slot_mask,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_SETUP, argument) }.map(|done| done.context)
    }

    /// Creates the arena and maps it. Its device address is the address of the mapping.
    pub fn create_arena(&self, length: usize) -> Result<Arena> {
        let argument = uapi::ArenaCreate {
            length: length as u64,
            ..Default::default()
        };
        // SAFETY: no pointers.
        let made = unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }?;
        let mut arena = Arena::map(self.file.as_fd(), length, made.mmap_offset, None)?;
        arena.set_base(self.status()?.device_base);
        Ok(arena)
    }

    /// Creates the snapshot buffer, for the state of a preempted job. Returns its size in bytes.
    pub fn create_snapshot(&self) -> Result<usize> {
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_SNAPSHOT_CREATE, uapi::SnapshotCreate::default()) }
            .map(|made| made.length as usize)
    }

    /// Copies a part of the state of a held job.
    pub fn read_snapshot(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let argument = uapi::SnapshotRead {
            offset,
            length: buffer.len() as u64,
            buffer: buffer.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer refers to a buffer of this length.
        unsafe { self.call(uapi::IOC_SNAPSHOT_READ, argument) }.map(drop)
    }

    /// Writes registers, given as pairs of offset and value: all of them or none.
    pub fn write_registers(&self, registers: &[(u32, u64)]) -> Result<()> {
        let mut array = to_array(registers);
        self.registers(uapi::IOC_REGS_WRITE, &mut array)
    }

    /// Reads registers. While the context is on a slot and its job is restored, any register can be
    /// read; otherwise only declared results can, and another register gives [`Error::Again`].
    pub fn read_registers(&self, offsets: &[u32]) -> Result<Vec<u64>> {
        let mut array = to_array(&offsets.iter().map(|o| (*o, 0)).collect::<Vec<_>>());
        self.registers(uapi::IOC_REGS_READ, &mut array)?;
        Ok(array.iter().map(|r| r.value).collect())
    }

    /// Declares the registers that the driver reads when a job leaves its slot.
    pub fn declare_results(&self, offsets: &[u32]) -> Result<()> {
        let mut array = to_array(&offsets.iter().map(|o| (*o, 0)).collect::<Vec<_>>());
        self.registers(uapi::IOC_RESULTS, &mut array)
    }

    fn registers(&self, number: u32, array: &mut [uapi::Reg]) -> Result<()> {
        let argument = uapi::Regs {
            count: array.len() as u32,
            regs: array.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer refers to an array of this length, which may be written.
        unsafe { self.call(number, argument) }.map(drop)
    }

    /// Starts a job. The engine sees what was written to the arena before. Returns the job's
    /// number.
    pub fn start(&self) -> Result<u64> {
        self.start_with(0)
    }

    /// Like [`Context::start`], for a job that may be run again from its beginning, whatever it has
    /// written to its arena by then. If the state of the job is lost, the job is started over, at
    /// most [`uapi::MAX_REPLAYS`] times, instead of failing. [`uapi::Status::replays`] is the
    /// number of times.
    pub fn start_replayable(&self) -> Result<u64> {
        self.start_with(uapi::START_REPLAYABLE)
    }

    /// Like [`Context::start`], but the job is held, as by [`Context::preempt`], until
    /// [`Context::resume`].
    pub fn start_held(&self) -> Result<u64> {
        self.start_with(uapi::START_HELD)
    }

    /// Like [`Context::start`], with a mask of `uapi::START_*`.
    pub fn start_with(&self, flags: u32) -> Result<u64> {
        let argument = uapi::Start {
            flags,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_START, argument) }.map(|done| done.job)
    }

    /// Takes the job off its slot: until [`Context::resume`] if `hold` is set, otherwise behind the
    /// next job that waits for the slot.
    pub fn preempt(&self, hold: bool) -> Result<()> {
        self.preempt_context(0, hold)
    }

    /// Takes the job off its slot, and waits until the job is held, for `limit` at most (`None`: as
    /// long as needed). Waits even if the file is `O_NONBLOCK`, which another process may have set.
    /// Returns whether the job is held; `false`: there is no job, or the job has ended. After an
    /// error the job continues.
    pub fn hold(&self, limit: Option<Duration>) -> Result<bool> {
        match self.preempt(true) {
            Err(Error::NotFound) => return Ok(false),
            done => done?,
        }
        let waited = until_ready(self, limit, || self.wait_until(Events::ANY, 0));
        if waited.is_err() {
            // The job may have ended.
            let _ = self.resume();
        }
        Ok(waited?.contains(Events::HELD))
    }

    /// Holds the job, and jobs that are started meanwhile, until the result is dropped, or this
    /// process ends. Returns at once: [`Context::wait`] for [`Events::HELD`].
    pub fn open_hold(&self) -> Result<Hold> {
        // SAFETY: no pointers.
        let made = unsafe { self.call(uapi::IOC_HOLD, uapi::Hold::default()) }?;
        // SAFETY: The driver has made the descriptor for us.
        Ok(Hold(unsafe { OwnedFd::from_raw_fd(made.fd) }))
    }

    /// Does what [`Context::open_hold`] does, and waits until the job is held, for `limit` at most
    /// (`None`: as long as needed), even if the file is `O_NONBLOCK`. Also returns whether the job
    /// is held; `false`: there is no job, or the job has ended. After an error the job continues.
    pub fn hold_open(&self, limit: Option<Duration>) -> Result<(Hold, bool)> {
        let hold = self.open_hold()?;
        match until_ready(self, limit, || self.wait_until(Events::ANY, 0)) {
            Ok(events) => Ok((hold, events.contains(Events::HELD))),
            Err(Error::NotFound) => Ok((hold, false)),
            Err(error) => Err(error),
        }
    }

    /// Preempts the job of the context with this number; 0: of this context.
    pub(crate) fn preempt_context(&self, context: u32, hold: bool) -> Result<()> {
        let argument = uapi::Preempt {
            flags: if hold { uapi::PREEMPT_HOLD } else { 0 },
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_PREEMPT, argument) }.map(drop)
    }

    /// Resumes a job that [`Context::preempt`] holds. Holds ([`Context::open_hold`]) stay.
    pub fn resume(&self) -> Result<()> {
        self.resume_context(0)
    }

    /// Resumes the held job of the context with this number; 0: of this context.
    pub(crate) fn resume_context(&self, context: u32) -> Result<()> {
        let argument = uapi::Resume {
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_RESUME, argument) }.map(drop)
    }

    /// Rings the doorbell: the queue of the job has work again. [`Error::NotFound`]: there is no
    /// job, or it has ended. A job also ends when its engine finds an
    /// [`End`](queue::Operation::End) without a doorbell.
    pub fn ring(&self) -> Result<()> {
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_DOORBELL, uapi::Doorbell::default()) }.map(drop)
    }

    /// Returns the state and the counters of the context.
    pub fn status(&self) -> Result<uapi::Status> {
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_STATUS, uapi::Status::default()) }
    }

    /// Returns `Ok` if the last job has finished. [`Error::NotFound`]: there was no job;
    /// [`Error::Busy`]: the job has not ended; any other error: why the job failed.
    pub fn job_result(&self) -> Result<()> {
        let status = self.status()?;
        match State::from(status.state) {
            State::Done => Ok(()),
            State::Failed => Err(Error::from_errno(status.error as i32)),
            State::New | State::Idle => Err(Error::NotFound),
            _ => Err(Error::Busy),
        }
    }

    /// Waits until one of `events` holds, for at most `limit`, and returns those that hold. A signal
    /// handler does not end the wait.
    pub fn wait(&self, events: Events, limit: Option<Duration>) -> Result<Events> {
        let deadline = limit.map_or(u64::MAX, deadline_in);
        loop {
            match self.wait_until(events, deadline) {
                Err(Error::Interrupted) => {}
                done => return done,
            }
        }
    }

    /// Waits until one of `events` holds, or until `deadline` (on the clock of [`now_ns`]; 0: does
    /// not wait; `u64::MAX`: forever). [`Error::Interrupted`]: a signal handler ran that was
    /// installed without `SA_RESTART`.
    pub fn wait_until(&self, events: Events, deadline: u64) -> Result<Events> {
        let argument = uapi::Wait {
            events: events.0,
            deadline,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_WAIT, argument) }.map(|done| Events(done.happened))
    }

    /// Registers an eventfd to which 1 is added each time one of `events` begins to hold, and when
    /// the card goes away. It replaces the previous eventfd. `None` only removes the previous
    /// eventfd.
    pub fn set_eventfd(&self, eventfd: Option<(BorrowedFd<'_>, Events)>) -> Result<()> {
        let argument = uapi::Eventfd {
            events: eventfd.map_or(0, |(_, events)| events.0),
            fd: eventfd.map_or(-1, |(fd, _)| fd.as_raw_fd()),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_EVENTFD, argument) }.map(drop)
    }
}

impl AsFd for Context {
    /// The descriptor for `poll()`: readable when the job is done, urgent when it is held, error
    /// and hang-up when the card is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn to_array(registers: &[(u32, u64)]) -> Vec<uapi::Reg> {
    registers
        .iter()
        .map(|&(offset, value)| uapi::Reg {
            offset,
            reserved: 0,
            value,
        })
        .collect()
}

/// Returns the deadline that is `limit` from now.
pub fn deadline_in(limit: Duration) -> u64 {
    let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    now_ns().saturating_add(limit)
}

/// Returns the time of `CLOCK_MONOTONIC`, on which deadlines are, in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid clock and a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times that are measured for a slot, since the driver was bound to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SlotHistogram {
    /// From the status that showed the end of a run until the next START, if a job was waiting for
    /// the slot.
    Gap = uapi::HISTOGRAM_GAP,
    /// From the first PAUSE to PAUSED.
    Save = uapi::HISTOGRAM_SAVE,
    /// Restores, as the card reports them.
    Restore = uapi::HISTOGRAM_RESTORE,
    /// From the end of a slice until its PAUSE was written.
    Overrun = uapi::HISTOGRAM_OVERRUN,
    /// From the arrival of latency-critical jobs until their first START.
    Latency = uapi::HISTOGRAM_LATENCY,
}

impl SlotHistogram {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Gap,
        Self::Save,
        Self::Restore,
        Self::Overrun,
        Self::Latency,
    ];
}

/// Times that are measured for a context, since it was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ContextHistogram {
    /// Time queued before each START.
    Wait = uapi::HISTOGRAM_WAIT,
    /// From a job's start, or a doorbell for an empty queue, until the first START that followed.
    Arrival = uapi::HISTOGRAM_ARRIVAL,
    /// From each START to the end of the run.
    Run = uapi::HISTOGRAM_RUN,
}

impl ContextHistogram {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Wait, Self::Arrival, Self::Run];
}

impl Context {
    /// Returns the histogram of a time that is measured for a slot. The 99th percentile is
    /// [`Histogram::quantile`] of 990,000: at most 25 % (or 16 ns) too long, never too short.
    ///
    /// ```no_run
    /// # use fermata::{Context, SlotHistogram};
    /// # let context = Context::open("/dev/fermata0")?;
    /// let gap = context.slot_histogram(0, SlotHistogram::Gap)?;
    /// println!("{} switches, P50 {:?} ns, P99 {:?} ns", gap.count, gap.quantile(500_000), gap.quantile(990_000));
    /// # Ok::<(), fermata::Error>(())
    /// ```
    pub fn slot_histogram(&self, slot: u32, which: SlotHistogram) -> Result<Histogram> {
        self.histogram(which as u32, slot)
    }

    /// Returns the histogram of a time that is measured for a context: the caller's own, or the
    /// context with this number. [`Error::NotPermitted`]: another user
    /// opened it.
    pub fn context_histogram(
        &self,
        number: Option<u32>,
        which: ContextHistogram,
    ) -> Result<Histogram> {
        self.histogram(which as u32, number.unwrap_or(0))
    }

    fn histogram(&self, kind: u32, number: u32) -> Result<Histogram> {
        let mut buckets = [0; BUCKETS];
        let argument = uapi::Histogram {
            kind,
            number,
            buckets: BUCKETS as u32,
            counts: buckets.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer refers to an array of this length, which may be written.
        let read = unsafe { self.call(uapi::IOC_HISTOGRAM, argument) }?;
        Ok(Histogram {
            count: read.count,
            sum: read.sum_ns,
            min: read.min_ns,
            max: read.max_ns,
            buckets,
        })
    }
}

/// Calls `look`, which does not wait, each time `file` reports that the job is done or held, until
/// `look` returns anything but [`Error::Again`] or [`Error::TimedOut`].
///
/// # Errors
///
/// [`Error::TimedOut`]: `limit` has passed. Other errors are those of `look`.
fn until_ready<T>(
    file: &impl AsFd,
    limit: Option<Duration>,
    look: impl Fn() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        match look() {
            Err(Error::Again | Error::TimedOut) => {}
            done => return done,
        }
        let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return Err(Error::TimedOut);
        }
        // A limit that a `Timespec` cannot hold is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::new(file, PollFlags::IN | PollFlags::PRI)];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::from_errno(error.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    /// Reads a byte from a stream that does not block.
    fn look(stream: &UnixStream) -> Result<u8> {
        let mut byte = [0];
        let mut stream = stream;
        let read = stream.read_exact(&mut byte);
        read.map_err(|error| Error::from_io(&error))?;
        Ok(byte[0])
    }

    #[test]
    fn a_file_that_does_not_block_is_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let limit = Duration::from_millis(20);
        let looked = until_ready(&ours, Some(limit), || look(&ours));
        assert_eq!(looked, Err(Error::TimedOut));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(limit);
            theirs.write_all(&[7]).unwrap();
            theirs
        });
        assert_eq!(until_ready(&ours, None, || look(&ours)), Ok(7));
        writer.join().unwrap();
    }
}
