// SPDX-License-Identifier: MIT OR Apache-2.0
//! Job queues: jobs are posted and their results reaped without a call (`uapi/fermata.h`, "job
//! queues", and docs/queues.md).

use crate::uapi::{self, QueueControl, QueueJob, QueueStatus};
use crate::{Arena, Error, Result};
use std::mem::offset_of;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;

const VALID: u64 = uapi::QUEUE_VALID as u64;
const COMPLETE: u64 = uapi::QUEUE_COMPLETE as u64;
const WORD: usize = size_of::<u64>();
/// Alignment of jobs, statuses and the control block, on both sides.
const ALIGN: usize = 64;
const ENTRIES: std::ops::RangeInclusive<usize> =
    uapi::QUEUE_MIN_ENTRIES as usize..=uapi::QUEUE_MAX_ENTRIES as usize;

/// What a job does. Addresses are the engine's: they begin at [`Arena::base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies `length` bytes, in pieces of 64, from the beginning.
    Copy {
        /// Where the data are.
        src: u64,
        /// Where the copy goes.
        dst: u64,
        /// Bytes.
        length: u64,
    },
    /// Writes the eight bytes of `pattern`, in their order in memory, repeatedly.
    Fill {
        /// Where the pattern is written.
        dst: u64,
        /// Bytes.
        length: u64,
        /// What is written.
        pattern: u64,
    },
    /// Computes a SHA-256.
    Sha256 {
        /// Where the data are.
        src: u64,
        /// Bytes.
        length: u64,
        /// Where the 32 bytes of the digest go.
        digest: u64,
    },
    /// Computes a CRC-32C. The result is [`Reaped::outcome`].
    Crc32c {
        /// Where the data are.
        src: u64,
        /// Bytes.
        length: u64,
        /// CRC of the data that come before; 0: there are none.
        crc: u32,
    },
    /// Ends the engine's job when all others are complete.
    End,
}

impl Operation {
    fn job(self, tag: u64) -> QueueJob {
        let mut job = QueueJob {
            tag,
            ..QueueJob::default()
        };
        match self {
            Self::Copy { src, dst, length } => {
                (job.op, job.src, job.dst, job.length) = (uapi::QUEUE_OP_COPY, src, dst, length);
            }
            Self::Fill {
                dst,
                length,
                pattern,
            } => {
                (job.op, job.dst, job.length, job.arg) =
                    (uapi::QUEUE_OP_FILL, dst, length, pattern);
            }
            Self::Sha256 {
                src,
                length,
                digest,
            } => {
                (job.op, job.src, job.dst, job.length) =
                    (uapi::QUEUE_OP_SHA256, src, digest, length);
            }
            Self::Crc32c { src, length, crc } => {
                (job.op, job.src, job.length, job.arg) =
                    (uapi::QUEUE_OP_CRC32C, src, length, crc.into());
            }
            Self::End => job.op = uapi::QUEUE_OP_END,
        }
        job
    }
}

/// A job that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its number in this queue, from 0.
    pub number: u64,
    /// Whether the engine has left its slot or is about to, so that a doorbell is needed.
    pub doorbell: bool,
}

/// A job that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Its number in this queue.
    pub number: u64,
    /// The tag that it was posted with.
    pub tag: u64,
    /// Its result, or why the engine has refused it: [`Error::Invalid`].
    pub outcome: Result<u64>,
}

/// The memory of a queue in an arena that the queue keeps mapped.
#[derive(Debug)]
pub struct SharedWords {
    arena: Arc<Arena>,
    offset: usize,
    count: usize,
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        self.arena.words(self.offset, self.count)
    }
}

/// A queue in borrowed memory.
pub type Queue<'a> = QueueIn<&'a [AtomicU64]>;

/// A queue that keeps its arena mapped.
pub type SharedQueue = QueueIn<SharedWords>;

/// A queue in memory, for one START of a queue engine. Only one thread may post and reap at a time.
#[derive(Debug)]
pub struct QueueIn<M> {
    words: M,
    device: u64,
    entries: usize,
    /// Number of the next job to be posted.
    tail: u64,
    /// Number of the first job that is not reaped, or `tail`.
    oldest: u64,
    reaped: u64,
    /// For each entry, whether its job was posted and is not reaped.
    open: Vec<bool>,
}

impl SharedQueue {
    /// Creates a queue in an arena, like [`Queue::new`].
    pub fn shared(arena: Arc<Arena>, offset: usize, entries: usize) -> Result<Self> {
        let count = words_in(&arena, offset, entries)?;
        let device = arena.base() + offset as u64;
        let words = SharedWords {
            arena,
            offset,
            count,
        };
        Self::over(words, device, entries)
    }
}

/// Returns how many words of the arena a queue at `offset` takes. [`Error::Invalid`]: the queue
/// does not fit, or the arena is not mapped.
fn words_in(arena: &Arena, offset: usize, entries: usize) -> Result<usize> {
    let fits = ENTRIES.contains(&entries)
        && offset
            .checked_add(Queue::bytes(entries))
            .is_some_and(|end| end <= arena.length());
    if offset % ALIGN != 0 || !fits || !arena.is_mapped() {
        return Err(Error::Invalid);
    }
    Ok(Queue::bytes(entries) / WORD)
}

impl<'a> Queue<'a> {
    /// Returns the length in bytes of a queue in the arena.
    pub const fn bytes(entries: usize) -> usize {
        entries * (size_of::<QueueJob>() + size_of::<QueueStatus>()) + size_of::<QueueControl>()
    }

    /// Creates a queue in an arena, at `offset`. The [`Queue::bytes`] from there are zeroed and
    /// belong to the queue. `entries` is a power of two, 2 to 65,536, and `offset` a multiple of
    /// 64. The engine must not have started yet.
    pub fn new(arena: &'a Arena, offset: usize, entries: usize) -> Result<Self> {
        let words = arena.words(offset, words_in(arena, offset, entries)?);
        Self::over(words, arena.base() + offset as u64, entries)
    }
}

impl<M: AsRef<[AtomicU64]>> QueueIn<M> {
    /// Creates a queue in words that are at the device address `device` for the engine.
    pub fn over(words: M, device: u64, entries: usize) -> Result<Self> {
        let count = || Queue::bytes(entries) / WORD;
        let allowed = ENTRIES.contains(&entries)
            && entries.is_power_of_two()
            && device % ALIGN as u64 == 0
            && words.as_ref().len() >= count();
        if !allowed {
            return Err(Error::Invalid);
        }
        words.as_ref()[..count()]
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(Self {
            words,
            device,
            entries,
            tail: 0,
            oldest: 0,
            reaped: 0,
            open: vec![false; entries],
        })
    }

    /// Returns the registers that tell the engine where the queue is.
    pub fn registers(&self) -> [(u32, u64); 4] {
        let at = |word| self.device + (word * WORD) as u64;
        [
            (uapi::QUEUE_REG_JOBS, at(0)),
            (uapi::QUEUE_REG_STATUSES, at(self.statuses())),
            (uapi::QUEUE_REG_ENTRIES, self.entries as u64),
            (uapi::QUEUE_REG_CONTROL, at(self.control())),
        ]
    }

    fn entry(&self, number: u64) -> usize {
        number as usize & (self.entries - 1)
    }

    fn statuses(&self) -> usize {
        self.entries * size_of::<QueueJob>() / WORD
    }

    fn control(&self) -> usize {
        self.statuses() + self.entries * size_of::<QueueStatus>() / WORD
    }

    /// Returns the word of a job at a byte offset.
    fn job(&self, number: u64, at: usize) -> &AtomicU64 {
        &self.words.as_ref()[(self.entry(number) * size_of::<QueueJob>() + at) / WORD]
    }

    fn status(&self, number: u64, at: usize) -> &AtomicU64 {
        let entry = self.entry(number) * size_of::<QueueStatus>();
        &self.words.as_ref()[self.statuses() + (entry + at) / WORD]
    }

    fn control_word(&self, at: usize) -> &AtomicU64 {
        &self.words.as_ref()[self.control() + at / WORD]
    }

    /// Returns whether a job can be posted. This takes two free pairs of job and status.
    pub fn has_room(&self) -> bool {
        let free = |word: &AtomicU64| word.load(Ordering::Acquire) & u64::from(u32::MAX) == 0;
        free(self.job(self.tail, 0))
            && free(self.status(self.tail, 0))
            && free(self.job(self.tail.wrapping_add(1), 0))
    }

    /// Posts a job without checking whether the engine is there: call [`Queue::needs_doorbell`]
    /// after the last of several jobs. Returns the job's number; `None`: the queue is full.
    pub fn push(&mut self, operation: Operation, tag: u64) -> Option<u64> {
        self.push_job(&operation.job(tag))
    }

    /// Posts a job given as [`QueueJob`], like [`Queue::push`]. Its `header` and `reserved` are
    /// ignored.
    pub fn push_job(&mut self, job: &QueueJob) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        let number = self.tail;
        let members = [
            (offset_of!(QueueJob, tag), job.tag),
            (offset_of!(QueueJob, src), job.src),
            (offset_of!(QueueJob, dst), job.dst),
            (offset_of!(QueueJob, length), job.length),
            (offset_of!(QueueJob, arg), job.arg),
            (offset_of!(QueueJob, reserved), 0),
            (offset_of!(QueueJob, reserved) + WORD, 0),
        ];
        for (at, value) in members {
            self.job(number, at).store(value, Ordering::Relaxed);
        }
        // Header and operation are one word: a reader that sees VALID also sees the operation, and
        // all members written above.
        let header = VALID | u64::from(job.op) << 32;
        self.job(number, 0).store(header, Ordering::Release);
        let entry = self.entry(number);
        self.open[entry] = true;
        self.tail = number.wrapping_add(1);
        Some(number)
    }

    /// Returns whether the engine has left its slot or is about to, so that posted jobs need a
    /// doorbell.
    pub fn needs_doorbell(&self) -> bool {
        // The engine writes idle, and then looks for jobs after a fence of its own: at least one of
        // the two sides sees what the other has written.
        fence(Ordering::SeqCst);
        let idle = self.control_word(offset_of!(QueueControl, idle));
        idle.load(Ordering::Acquire) & u64::from(u32::MAX) != 0
    }

    /// Posts a job. `None`: the queue is full.
    pub fn post(&mut self, operation: Operation, tag: u64) -> Option<Posted> {
        let number = self.push(operation, tag)?;
        Some(Posted {
            number,
            doorbell: self.needs_doorbell(),
        })
    }

    /// Returns how many jobs are complete since the START, mod 2^64. The data that these jobs wrote
    /// can be read.
    pub fn completed(&self) -> u64 {
        self.control_word(offset_of!(QueueControl, completed))
            .load(Ordering::Acquire)
    }

    /// Returns how many jobs are posted and not reaped.
    pub fn outstanding(&self) -> u64 {
        self.tail.wrapping_sub(self.reaped)
    }

    /// Takes the oldest job that is complete out of the queue.
    pub fn reap(&mut self) -> Option<Reaped> {
        if self.completed() == self.reaped {
            return None;
        }
        let span = self.tail.wrapping_sub(self.oldest);
        (0..span).find_map(|n| self.reap_job(self.oldest.wrapping_add(n)))
    }

    /// Takes the job with this number out of the queue, if it is complete and was not reaped.
    pub fn reap_job(&mut self, number: u64) -> Option<Reaped> {
        let posted = number.wrapping_sub(self.oldest) < self.tail.wrapping_sub(self.oldest);
        let entry = self.entry(number);
        if !posted || !self.open[entry] {
            return None;
        }
        let header = self.status(number, 0).load(Ordering::Acquire);
        if header & COMPLETE == 0 {
            return None;
        }
        let word = |at| self.status(number, at).load(Ordering::Relaxed);
        let (tag, result) = (
            word(offset_of!(QueueStatus, tag)),
            word(offset_of!(QueueStatus, result)),
        );
        self.job(number, 0).store(0, Ordering::Relaxed);
        self.status(number, 0).store(0, Ordering::Release);
        self.forget(number);
        let outcome = match (header >> 32) as i32 {
            0 => Ok(result),
            error => Err(Error::from_errno(error)),
        };
        Some(Reaped {
            number,
            tag,
            outcome,
        })
    }

    fn forget(&mut self, number: u64) {
        let entry = self.entry(number);
        self.open[entry] = false;
        self.reaped = self.reaped.wrapping_add(1);
        while self.oldest != self.tail && !self.open[self.entry(self.oldest)] {
            self.oldest = self.oldest.wrapping_add(1);
        }
    }
}
