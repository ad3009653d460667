// SPDX-License-Identifier: GPL-2.0-or-later
//! A queue in memory, as `uapi/fermata.h` has it: what the engine reads and writes of it, each in
//! the order of docs/queues.md.

use super::super::{AppRegs, Bus, Refused, StateReader};
use std::sync::atomic::{fence, Ordering};

const JOB: u64 = 64;
const STATUS: u64 = 32;
/// Jobs, statuses and the control block begin at multiples of it.
const ALIGN: u64 = 64;
const ENTRIES: std::ops::RangeInclusive<u64> = 2..=65536;

const VALID: u32 = 1;
const STARTED: u32 = 1;
const COMPLETE: u32 = 1 << 1;

/// Offsets in the control block.
const COMPLETED: u64 = 0;
const HEAD: u64 = 8;
const IDLE: u64 = 16;

/// What stands in a job, but for its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) op: u32,
    pub(super) tag: u64,
    pub(super) src: u64,
    pub(super) dst: u64,
    pub(super) length: u64,
    pub(super) arg: u64,
    /// Whether all that must be 0 is 0.
    pub(super) clean: bool,
}

/// Where a queue lies: device addresses, and a mask for numbers of jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    jobs: u64,
    statuses: u64,
    control: u64,
    mask: u64,
}

impl Layout {
    /// That of the registers; `None` where they are not allowed.
    pub(super) fn new(regs: &AppRegs) -> Option<Self> {
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

    /// Whether job `number` may be taken. What its program wrote before it said so is seen after
    /// this.
    pub(super) fn is_valid(&self, number: u64, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let mut header = [0; 4];
        bus.read(self.job(number), &mut header)?;
        fence(Ordering::Acquire);
        Ok(u32::from_le_bytes(header) & VALID != 0)
    }

    /// Reads job `number`, once.
    pub(super) fn read_job(&self, number: u64, bus: &mut dyn Bus) -> Result<Job, Refused> {
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

    /// Tells that job `number` was read.
    pub(super) fn started(&self, number: u64, tag: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let at = self.status(number);
        bus.write(at.wrapping_add(8), &tag.to_le_bytes())?;
        publish(at, header(STARTED, 0), bus)
    }

    /// Tells that job `number` is complete: all that it wrote is seen by who sees that.
    pub(super) fn complete(
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

    /// Tells how many jobs are complete.
    pub(super) fn count_completed(&self, n: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(COMPLETED), n, bus)
    }

    /// Tells how many jobs were taken.
    pub(super) fn count_head(&self, n: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(HEAD), n, bus)
    }

    /// Tells whether a job that is posted needs a doorbell. What is read after it is read after all
    /// sides can see it.
    pub(super) fn tell_idle(&self, idle: bool, bus: &mut dyn Bus) -> Result<(), Refused> {
        publish(self.control.wrapping_add(IDLE), u64::from(idle), bus)?;
        fence(Ordering::SeqCst);
        Ok(())
    }
}

fn header(bits: u32, error: u32) -> u64 {
    u64::from(bits) | u64::from(error) << 32
}

/// Writes a word behind all that was written before it.
fn publish(at: u64, word: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
    fence(Ordering::Release);
    bus.write(at, &word.to_le_bytes())
}
