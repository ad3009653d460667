// SPDX-License-Identifier: GPL-2.0-or-later
//! queue: takes jobs from a ring in memory until a job says END. docs/queues.md defines what it
//! does, and in which order.

use super::sha256::{Midstate, BLOCK};
use super::{AppRegs, Bus, Coalescing, Engine, Progress, Refused, StateReader};
use std::sync::atomic::{fence, Ordering};

/// The number of jobs in progress at once.
const LANES: usize = 4;
const OP_END: u32 = 5;
const EFAULT: u32 = 14;
const EINVAL: u32 = 22;

/// A queue that is being worked on. Its snapshot is 400 bytes: u64 head, completed, the lane that
/// is next, whether END was taken, the number of that job; then its lanes.
pub struct Queue {
    /// `None`: the registers have invalid values.
    layout: Option<Layout>,
    coalescing: Option<Coalescing>,
    head: u64,
    completed: u64,
    lanes: [Option<Lane>; LANES],
    /// The lane that is worked on next.
    next: usize,
    /// The number of the END job, if it was taken.
    end: Option<u64>,
    error: u32,
    /// It has told its program that it is on its slot.
    awake: bool,
    idle: bool,
}

impl Queue {
    pub(super) fn new(regs: &AppRegs) -> Self {
        let layout = Layout::new(regs);
        Self {
            layout,
            coalescing: Coalescing::new(regs.get(0x58), regs.get(0x60)),
            head: 0,
            completed: 0,
            lanes: Default::default(),
            next: 0,
            end: None,
            error: if layout.is_some() { 0 } else { EINVAL },
            awake: false,
            idle: false,
        }
    }

    pub(super) fn resume(regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let [head, completed, next, ended, end] = std::array::from_fn(|_| state.u64());
        Self {
            head,
            completed,
            lanes: std::array::from_fn(|_| Lane::load(state)),
            next: next as usize % LANES,
            end: (ended != 0).then_some(end),
            ..Self::new(regs)
        }
    }

    fn in_hand(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    fn done(&self) -> bool {
        self.error != 0 || (self.end.is_some() && !self.in_hand())
    }

    /// Works on up to `budget` units, or until there is nothing to do.
    fn run(&mut self, layout: &Layout, budget: u64, bus: &mut dyn Bus) -> Result<u64, Refused> {
        let mut units = 0;
        self.wake(layout, bus)?;
        while units < budget && !self.done() && !bus.attention() {
            let taken = self.take(layout, bus)?;
            let worked = self.work(layout, budget - units, bus)?;
            self.idle = !taken && worked == 0;
            if self.idle {
                break;
            }
            units += worked.max(LINE);
        }
        Ok(units)
    }

    /// Writes the first words after the engine has come to its slot.
    fn wake(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<(), Refused> {
        if std::mem::replace(&mut self.awake, true) {
            return Ok(());
        }
        layout.count_completed(self.completed, bus)?;
        layout.count_head(self.head, bus)?;
        layout.tell_idle(false, bus)
    }

    /// Takes the job at the head, if there is one and a lane is free.
    fn take(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let free = self.lanes.iter_mut().find(|lane| lane.is_none());
        let Some(free) = free.filter(|_| self.end.is_none()) else {
            return Ok(false);
        };
        let number = self.head;
        if !layout.is_valid(number, bus)? {
            return Ok(false);
        }
        let job = layout.read_job(number, bus)?;
        layout.started(number, job.tag, bus)?;
        self.head = number.wrapping_add(1);
        layout.count_head(self.head, bus)?;
        if job.op == OP_END && job.clean {
            self.end = Some(number);
        } else {
            *free = Some(Lane::new(number, &job));
        }
        Ok(true)
    }

    /// Works on the next job in progress. Returns the units; 0 if no job is in progress.
    fn work(&mut self, layout: &Layout, most: u64, bus: &mut dyn Bus) -> Result<u64, Refused> {
        let order = (0..LANES).map(|i| (self.next + i) % LANES);
        let Some(turn) = order.into_iter().find(|i| self.lanes[*i].is_some()) else {
            return Ok(0);
        };
        self.next = (turn + 1) % LANES;
        let Some(lane) = &mut self.lanes[turn] else {
            return Ok(0);
        };
        let (units, outcome) = lane.work(most, bus)?;
        if let Some(outcome) = outcome {
            let number = lane.number;
            self.lanes[turn] = None;
            layout.complete(number, outcome.error, outcome.result, bus)?;
            self.count(layout, bus)?;
        }
        Ok(units)
    }

    fn count(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<(), Refused> {
        self.completed = self.completed.wrapping_add(1);
        layout.count_completed(self.completed, bus)
    }
}

impl Engine for Queue {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        self.idle = false;
        let units = match self.layout {
            Some(layout) => self.run(&layout, budget, bus),
            None => Ok(0),
        };
        if units.is_err() {
            self.error = EFAULT;
        }
        Ok(Progress {
            units: units?,
            done: self.done(),
        })
    }

    /// Completes END; all other jobs must be complete.
    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let (Some(layout), Some(number)) = (self.layout, self.end) else {
            return Ok(());
        };
        layout.complete(number, 0, 0, bus)?;
        self.count(&layout, bus)
    }

    fn save(&mut self) -> Vec<u8> {
        let ended = u64::from(self.end.is_some());
        let words = [
            self.head,
            self.completed,
            self.next as u64,
            ended,
            self.end.unwrap_or(0),
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for lane in &self.lanes {
            Lane::store(lane.as_ref(), &mut bytes);
        }
        bytes
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[
            (0x30, self.head),
            (0x38, self.completed),
            (0x40, u64::from(self.error)),
        ])
    }

    fn idle(&self) -> bool {
        self.idle
    }

    fn leave(&mut self, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let Some(layout) = self.layout else {
            return Ok(false);
        };
        if self.in_hand() || self.done() {
            return Ok(false);
        }
        layout.tell_idle(true, bus)?;
        let posted = layout.is_valid(self.head, bus)?;
        if posted {
            layout.tell_idle(false, bus)?;
        }
        Ok(!posted)
    }

    fn completed(&self) -> u64 {
        self.completed
    }

    fn coalescing(&self) -> Option<Coalescing> {
        self.coalescing
    }
}

const JOB: u64 = 64;
const STATUS: u64 = 32;
/// Alignment of jobs, statuses and the control block.
const ALIGN: u64 = 64;
const ENTRIES: std::ops::RangeInclusive<u64> = 2..=65536;

const VALID: u32 = 1;
const STARTED: u32 = 1;
const COMPLETE: u32 = 1 << 1;

/// Offsets in the control block.
const COMPLETED: u64 = 0;
const HEAD: u64 = 8;
const IDLE: u64 = 16;

/// The contents of a job, except its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    op: u32,
    tag: u64,
    src: u64,
    dst: u64,
    length: u64,
    arg: u64,
    /// Whether all fields that must be 0 are 0.
    clean: bool,
}

/// The layout of a queue in memory: device addresses, and a mask for numbers of jobs.
#[derive(Clone, Copy, Debug)]
struct Layout {
    jobs: u64,
    statuses: u64,
    control: u64,
    mask: u64,
}

impl Layout {
    /// Returns the layout that the registers describe; `None` if they have invalid values.
    fn new(regs: &AppRegs) -> Option<Self> {
        let [jobs, statuses, entries, control] = [0x30, 0x38, 0x40, 0x48].map(|at| regs.get(at));
        let aligned = [jobs, statuses, control].iter().all(|at| at % ALIGN == 0);
        (aligned && ENTRIES.contains(&entries) && entries.is_power_of_two()).then(|| Self {
            jobs,
            statuses,
            control,
            mask: entries - 1,
        })
    }

    fn job(&self, number: u64) -> u64 {
        self.jobs.wrapping_add((number & self.mask) * JOB)
    }

    fn status(&self, number: u64) -> u64 {
        self.statuses.wrapping_add((number & self.mask) * STATUS)
    }

    /// Returns whether job `number` may be taken. What its program wrote before it marked the job
    /// valid is visible after this.
    fn is_valid(&self, number: u64, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let mut header = [0; 4];
        bus.read(self.job(number), &mut header)?;
        fence(Ordering::Acquire);
        Ok(u32::from_le_bytes(header) & VALID != 0)
    }

    /// Reads job `number`, once.
    fn read_job(&self, number: u64, bus: &mut dyn Bus) -> Result<Job, Refused> {
        let mut bytes = [0; JOB as usize - 4];
        bus.read(self.job(number).wrapping_add(4), &mut bytes)?;
        let mut bytes = StateReader(&bytes);
        Ok(Job {
            op: bytes.u32(),
            tag: bytes.u64(),
            src: bytes.u64(),
            dst: bytes.u64(),
            length: bytes.u64(),
            arg: bytes.u64(),
            clean: bytes.u64() | bytes.u64() == 0,
        })
    }

    /// Reports that job `number` was read.
    fn started(&self, number: u64, tag: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let at = self.status(number);
        bus.write(at.wrapping_add(8), &tag.to_le_bytes())?;
        publish(at, header(STARTED, 0), bus)
    }

    /// Reports that job `number` is complete. Whoever sees the report sees all that the job wrote.
    fn complete(
        &self,
        number: u64,
        error: u32,
        result: u64,
        bus: &mut dyn Bus,
    ) -> Result<(), Refused> {
        let at = self.status(number);
        bus.write(at.wrapping_add(16), &result.to_le_bytes())?;
        publish(at, header(STARTED | COMPLETE, error), bus)
    }

    /// Reports how many jobs are complete.
    fn count_completed(&self, n: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(COMPLETED), n, bus)
    }

    /// Reports how many jobs were taken.
    fn count_head(&self, n: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(HEAD), n, bus)
    }

    /// Reports whether a job that is posted needs a doorbell. Reads that follow happen after all
    /// sides can see the word.
    fn tell_idle(&self, idle: bool, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(IDLE), u64::from(idle), bus)?;
        fence(Ordering::SeqCst);
        Ok(())
    }
}

fn header(bits: u32, error: u32) -> u64 {
    u64::from(bits) | u64::from(error) << 32
}

/// Writes a word after everything that was written before it.
fn publish(at: u64, word: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
    fence(Ordering::Release);
    bus.write(at, &word.to_le_bytes())
}

/// What a copy reads before it writes; jobs are worked on in multiples of it.
const LINE: u64 = BLOCK as u64;
/// The most work on a job before the next job's turn.
const PIECE: u64 = 1024;
/// The longest job.
const MAX_LENGTH: u64 = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Copy,
    Fill,
    Sha256,
    Crc32c,
    /// Something invalid: the job completes without doing anything.
    Invalid,
}

/// Stands for an invalid operation in a snapshot.
const INVALID: u32 = u32::MAX;

impl Op {
    fn of(code: u32) -> Self {
        match code {
            1 => Self::Copy,
            2 => Self::Fill,
            3 => Self::Sha256,
            4 => Self::Crc32c,
            _ => Self::Invalid,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Copy => 1,
            Self::Fill => 2,
            Self::Sha256 => 3,
            Self::Crc32c => 4,
            Self::Invalid => INVALID,
        }
    }
}

/// A job in progress. In a snapshot: u32 op (0: no job), u32 0; u64 number, src, dst, length, arg,
/// bytes done; 32 bytes of midstate.
struct Lane {
    op: Op,
    /// The number of the job in the queue.
    number: u64,
    src: u64,
    dst: u64,
    length: u64,
    /// The pattern, or the CRC so far.
    arg: u64,
    /// A multiple of a line, except at the end.
    done: u64,
    hash: Midstate,
}

/// What became of a job that is complete.
struct Outcome {
    error: u32,
    result: u64,
}

impl Lane {
    fn new(number: u64, job: &Job) -> Self {
        let allowed = job.clean && job.length <= MAX_LENGTH;
        let op = if allowed { Op::of(job.op) } else { Op::Invalid };
        Self {
            op,
            number,
            src: job.src,
            dst: job.dst,
            length: if op == Op::Invalid { 0 } else { job.length },
            arg: job.arg,
            done: 0,
            hash: Midstate::NEW,
        }
    }

    /// Appends the bytes of a lane in a snapshot.
    fn store(lane: Option<&Self>, out: &mut Vec<u8>) {
        let Some(lane) = lane else {
            out.resize(out.len() + STORED, 0);
            return;
        };
        out.extend(u64::from(lane.op.code()).to_le_bytes());
        for word in [
            lane.number,
            lane.src,
            lane.dst,
            lane.length,
            lane.arg,
            lane.done,
        ] {
            out.extend(word.to_le_bytes());
        }
        out.extend(lane.hash.store());
    }

    /// Loads a lane from a snapshot. Any bytes make some job.
    fn load(state: &mut StateReader<'_>) -> Option<Self> {
        let code = state.u64() as u32;
        let [number, src, dst, length, arg, done] = std::array::from_fn(|_| state.u64());
        let hash = Midstate::load(state);
        let length = length.min(MAX_LENGTH);
        (code != 0).then(|| Self {
            op: Op::of(code),
            number,
            src,
            dst,
            length,
            arg,
            // Whole lines only, and never beyond the end.
            done: done.min(length) & !(LINE - 1),
            hash,
        })
    }

    /// Works on up to about `most` bytes, at least a line. Returns the number of bytes, and the
    /// outcome if the job has ended.
    fn work(&mut self, most: u64, bus: &mut dyn Bus) -> Result<(u64, Option<Outcome>), Refused> {
        let left = self.length - self.done;
        let len = left.min(most.clamp(LINE, PIECE) & !(LINE - 1));
        let last = len == left;
        match self.op {
            Op::Copy => self.copy(len, bus)?,
            Op::Fill => self.fill(len, bus)?,
            Op::Sha256 => self.sha256(len, last, bus)?,
            Op::Crc32c => self.crc32c(len, bus)?,
            Op::Invalid => {}
        }
        self.done += len;
        Ok((len.max(LINE), last.then(|| self.outcome())))
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            error: if self.op == Op::Invalid { EINVAL } else { 0 },
            result: if self.op == Op::Crc32c { self.arg } else { 0 },
        }
    }

    /// Copies line by line if writes change bytes that are read later: in a copy all at once, the
    /// reads would miss the change.
    fn copy(&self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let (from, to) = (
            self.src.wrapping_add(self.done),
            self.dst.wrapping_add(self.done),
        );
        let at_once = if to.wrapping_sub(from) < len {
            LINE
        } else {
            PIECE
        };
        let mut buf = [0; PIECE as usize];
        let mut at = 0;
        for line in buf[..len as usize].chunks_mut(at_once as usize) {
            bus.read(from.wrapping_add(at), line)?;
            bus.write(to.wrapping_add(at), line)?;
            at += line.len() as u64;
        }
        Ok(())
    }

    fn fill(&self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&self.arg.to_le_bytes());
        }
        if len == 0 {
            return Ok(());
        }
        bus.write(self.dst.wrapping_add(self.done), &buf[..len as usize])
    }

    fn read<'a>(
        &self,
        buf: &'a mut [u8; PIECE as usize],
        len: u64,
        bus: &mut dyn Bus,
    ) -> Result<&'a [u8], Refused> {
        let buf = &mut buf[..len as usize];
        if len > 0 {
            bus.read(self.src.wrapping_add(self.done), buf)?;
        }
        Ok(buf)
    }

    fn sha256(&mut self, len: u64, last: bool, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        let bytes = self.read(&mut buf, len, bus)?;
        if !last {
            self.hash.blocks(bytes);
            return Ok(());
        }
        let digest = self.hash.close(bytes, self.length);
        bus.write(self.dst, &digest)
    }

    fn crc32c(&mut self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        let bytes = self.read(&mut buf, len, bus)?;
        self.arg = u64::from(crc32c::crc32c_append(self.arg as u32, bytes));
        Ok(())
    }
}

/// Bytes of a lane in a snapshot.
const STORED: usize = 7 * 8 + 32;
