// SPDX-License-Identifier: GPL-2.0-or-later
//! The save and restore unit, which moves a job's state to and from memory, frame by frame.
//!
//! If the same run began with a restore from the same address, a save omits the frames that have
//! not changed since then, because the snapshot still contains them. The unit compares with what
//! this restore read, and with nothing older: between two runs, the memory belongs to the driver. A
//! run that began new is saved whole, and so is a run whose snapshot has another address.

use super::bus::SlotBus;
use super::state::Job;
use super::worker::{publish, wait_until, End, FAULT, SNAPSHOT_ERROR};
use super::Slot;
use crate::config::Settings;
use crate::dma::{Access, DmaTrace};
use crate::engine::{Engine, Refused};
use crate::event::{now_ns, us, Frames, Range, SavePart, Unit, What};
use crate::regs::status;
use sha2::{Digest, Sha256};
use std::sync::PoisonError;

pub(super) const PAGE: usize = 4096;
/// The first bytes of a save are written when it begins, so that a save that is cut short is
/// visible in memory.
const HEAD: usize = 16;

/// What a restore read, and where.
pub(super) struct Snapshot {
    iova: u64,
    bytes: Vec<u8>,
}

/// Returns the IOVA of the snapshot: `at` itself on an irq or relay card; on a base card, `at` is a
/// device address.
fn snapshot_iova(slot: &Slot, at: u64) -> u64 {
    if slot.is_base() {
        slot.window.iova(at)
    } else {
        at
    }
}

fn digest(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes)
        .first_chunk()
        .map_or(0, |head| u64::from_le_bytes(*head))
}

/// The save and restore unit while it works for one job.
struct Mover<'a> {
    slot: &'a Slot,
    tag: u64,
    iova: u64,
    trace: DmaTrace,
    /// The ranges that were written or read, merged where possible.
    touched: Vec<Range>,
}

impl<'a> Mover<'a> {
    fn new(slot: &'a Slot, tag: u64, at: u64) -> Self {
        Self {
            slot,
            tag,
            iova: snapshot_iova(slot, at),
            trace: DmaTrace::default(),
            touched: Vec::new(),
        }
    }

    fn transfer(&mut self, from: usize, access: Access<'_>) -> bool {
        let iova = self.iova.wrapping_add(from as u64);
        let give_up = Some(&self.slot.abandoned);
        let unit = Unit::Snapshot;
        let answer = self
            .slot
            .transfer(iova, access, unit, give_up, &mut self.trace);
        let ok = answer.is_some();
        for range in answer.into_iter().flatten() {
            self.touch(range);
        }
        ok
    }

    fn touch(&mut self, (at, len): Range) {
        match self.touched.last_mut() {
            Some(last) if last.0 + last.1 == at => last.1 += len,
            _ => self.touched.push((at, len)),
        }
    }

    fn write(&mut self, from: usize, bytes: &[u8]) -> bool {
        bytes.is_empty() || self.transfer(from, Access::Write(bytes))
    }

    fn tell(&self, part: SavePart, hash: u64, frames: Frames) {
        self.slot.host.recorder.record(What::Save {
            slot: self.slot.index,
            tag: self.tag,
            part,
            at: self.touched.clone(),
            hash,
            frames,
        });
    }

    fn log(&mut self) {
        self.slot.log_dma(&mut self.trace, self.tag, Unit::Snapshot);
    }
}

/// Reads the snapshot and makes a job from it, which then runs. Also returns what was read, if
/// memory answered.
pub(super) fn restore(slot: &Slot, job: &Job) -> Result<(Box<dyn Engine>, Option<Snapshot>), End> {
    let (at, settings, reach) = {
        let state = slot.lock();
        (state.snapshot, state.settings, slot.reach(&state))
    };
    let mut mover = Mover::new(slot, job.tag(), at);
    let mut bytes = vec![0; settings.state_pages as usize * PAGE];
    let ok = read_frames(&mut mover, settings, &mut bytes);
    mover.log();
    let restored = match ok {
        None => return Err(cut_short(slot)),
        Some(true) => {
            slot.host.recorder.record(What::Restore {
                slot: slot.index,
                tag: job.tag(),
                at: mover.touched,
                hash: digest(&bytes),
            });
            Some(mover.iova)
        }
        Some(false) if !slot.is_base() => return Err(SNAPSHOT_ERROR),
        // An Optimus card is not told, and continues with what it has.
        Some(false) => {
            bytes.fill(0);
            None
        }
    };
    let made = slot.maker.resume(&job.written, &job.reads, &bytes, &reach);
    let engine = made.map_err(|Refused| FAULT)?;
    publish(slot, engine.as_ref());
    let mut state = slot.lock();
    if state.aborted() {
        return Err(End::Aborted);
    }
    let now = now_ns();
    let took = now.saturating_sub(job.at).div_ceil(1000);
    state.restore_us = took.clamp(1, status::RESTORE_MAX);
    state.works(now);
    slot.tell_phase(&state, now);
    Ok((engine, restored.map(|iova| Snapshot { iova, bytes })))
}

/// Returns why a restore was given up.
fn cut_short(slot: &Slot) -> End {
    if slot.lock().aborted() {
        End::Aborted
    } else {
        End::NotRun
    }
}

/// Reads all frames. Returns whether memory answered, or `None` if the restore is to be given up.
fn read_frames(mover: &mut Mover<'_>, settings: Settings, bytes: &mut [u8]) -> Option<bool> {
    let mut due = now_ns().saturating_add(us(settings.restore_us));
    let size = settings.frame();
    for (i, frame) in bytes.chunks_mut(size).enumerate() {
        due = due.saturating_add(settings.frame_restore_ns);
        if !wait_until(mover.slot, due) {
            return None;
        }
        if !mover.transfer(i * size, Access::Read(frame)) {
            return Some(false);
        }
    }
    (!mover.slot.lock().cut_short()).then_some(true)
}

/// How to save.
struct Plan<'a> {
    settings: Settings,
    /// The present contents at the address of the save, if known.
    before: Option<&'a [u8]>,
    /// Number of bytes to write: all, or fewer for a torn save.
    end: usize,
    /// The time for the whole save, set by a misbehaviour.
    takes_us: Option<u64>,
}

/// Stops the job and writes its state to the present snapshot address. `restored` is the snapshot
/// with which this run began.
pub(super) fn save(
    slot: &Slot,
    job: &Job,
    engine: &mut dyn Engine,
    bus: &mut SlotBus<'_>,
    restored: Option<&Snapshot>,
    empty: bool,
) -> End {
    let mut bytes = engine.save();
    publish(slot, engine);
    bus.flush(true);
    let (at, settings, torn, takes_us) = {
        let mut state = slot.lock();
        let misbehaviour = &mut state.misbehaviour;
        let (torn, takes) = (
            misbehaviour.save_torn.take(),
            misbehaviour.save_takes_us.take(),
        );
        (state.snapshot, state.settings, torn, takes)
    };
    bytes.resize(settings.state_pages as usize * PAGE, 0);
    let mut mover = Mover::new(slot, job.tag(), at);
    let here = |old: &&Snapshot| old.iova == mover.iova && old.bytes.len() == bytes.len();
    let plan = Plan {
        settings,
        before: restored.filter(here).map(|old| &*old.bytes),
        end: torn.map_or(bytes.len(), |n| bytes.len().min(n as usize)),
        takes_us,
    };
    let written = write_frames(&mut mover, &plan, &bytes);
    let whole = written.filter(|_| torn.is_none());
    match whole {
        Some(frames) => mover.tell(SavePart::Done, digest(&bytes), frames),
        None => mover.tell(SavePart::Torn, digest(&bytes), Frames::default()),
    }
    mover.log();
    if slot.lock().aborted() {
        return End::Aborted;
    }
    match (whole.is_some(), slot.is_base(), torn.is_some()) {
        (true, ..) | (false, true, false) => End::Paused { empty },
        (false, false, _) => SNAPSHOT_ERROR,
        (false, true, true) => wait_for_reset(slot),
    }
}

/// Returns what was written, or `None` if memory did not answer or a reset aborted the job.
fn write_frames(mover: &mut Mover<'_>, plan: &Plan<'_>, bytes: &[u8]) -> Option<Frames> {
    let (settings, end) = (plan.settings, plan.end);
    let (size, head) = (settings.frame(), HEAD.min(end));
    let cost = plan.takes_us.map_or(settings.frame_save_ns, |_| 0);
    let mut due = now_ns().saturating_add(us(plan.takes_us.unwrap_or(settings.save_us)));
    let ok = mover.write(0, &bytes[..head]);
    mover.tell(SavePart::Begin, 0, Frames::default());
    let mut frames = Frames::default();
    for (i, frame) in bytes.chunks(size).enumerate() {
        let (from, len) = (i * size, frame.len());
        // The beginning of the save has overwritten part of the first frame.
        if i > 0 && plan.before.is_some_and(|old| old[from..][..len] == *frame) {
            frames.skipped += 1;
            frames.skipped_bytes += len as u64;
            frames.skipped_ns += cost;
            continue;
        }
        due = due.saturating_add(cost);
        if !wait_until(mover.slot, due) {
            return None;
        }
        let done = if i == 0 { head } else { 0 };
        let upto = len.min(end.saturating_sub(from));
        if !mover.write(from + done, &frame[done..upto]) {
            return None;
        }
        frames.saved += 1;
        frames.saved_bytes += len as u64;
    }
    ok.then_some(frames)
}

/// Waits for a reset: a base card whose save stopped half-way reads RUNNING until then.
fn wait_for_reset(slot: &Slot) -> End {
    let mut state = slot.lock();
    while !state.aborted() {
        state = slot
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
    End::Aborted
}
