// SPDX-License-Identifier: GPL-2.0-or-later
//! The save and restore unit: a job's state to and from memory, frame by frame.
//!
//! A save leaves out the frames that are as they were when the same run began with a restore from
//! the same place: so they stand there. It knows that by what the restore read, and by nothing
//! older: what is between two runs is the driver's. A run that began new is saved whole, and so is
//! one whose snapshot goes elsewhere.

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
/// The first bytes of a save are written when it begins: one that is cut short is seen in memory.
const HEAD: usize = 16;

/// What a restore read, and where.
pub(super) struct Snapshot {
    iova: u64,
    bytes: Vec<u8>,
}

/// Where the save and restore unit goes: F: an IOVA; base: a device address.
fn snapshot_iova(slot: &Slot, at: u64) -> u64 {
    if slot.fermata() {
        at
    } else {
        slot.window.iova(at)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes)
        .first_chunk()
        .map_or(0, |head| u64::from_le_bytes(*head))
}

/// The unit at work for one job.
struct Mover<'a> {
    slot: &'a Slot,
    tag: u64,
    iova: u64,
    trace: DmaTrace,
    /// What it wrote or read, in as few ranges as can be.
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

/// Reads the snapshot and makes a job of it, which runs from here. With it comes what was read,
/// where it was read at all.
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
        Some(false) if slot.fermata() => return Err(SNAPSHOT_ERROR),
        // An Optimus card gets no word of it, and goes on with what it has.
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
    let took = now_ns().saturating_sub(job.at).div_ceil(1000);
    state.restore_us = took.clamp(1, status::RESTORE_MAX);
    state.works(now_ns());
    slot.tell_phase(&state);
    Ok((engine, restored.map(|iova| Snapshot { iova, bytes })))
}

/// Why a restore was given up.
fn cut_short(slot: &Slot) -> End {
    if slot.lock().aborted() {
        End::Aborted
    } else {
        End::NotRun
    }
}

/// Whether memory answered; None where the restore is to be given up.
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

/// How a save is to go.
struct Plan<'a> {
    settings: Settings,
    /// What stands where the save goes, if that is known.
    before: Option<&'a [u8]>,
    /// So many bytes are written: all, or less of one that is torn.
    end: usize,
    /// What all of it takes, as a misbehaviour.
    takes_us: Option<u64>,
}

/// Stops the job and writes its state to where the snapshot is now. `restored` is what this run
/// began with.
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
    match (whole.is_some(), slot.fermata(), torn.is_some()) {
        (true, ..) | (false, false, false) => End::Paused { empty },
        (false, true, _) => SNAPSHOT_ERROR,
        (false, false, true) => wait_for_reset(slot),
    }
}

/// What was written; None where memory did not answer, or the job was reset away.
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
        // The first one is lost with the beginning of the save.
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

/// A base card whose save stopped half-way reads RUNNING until it is reset.
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
