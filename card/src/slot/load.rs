// SPDX-License-Identifier: GPL-2.0-or-later
//! Loads a context: table entry and registers by DMA, then a START.

use super::state::{Job, State};
use super::worker::End;
use super::Slot;
use crate::dma::{Access, DmaTrace};
use crate::engine::AppRegs;
use crate::event::{now_ns, Unit, What};
use crate::regs::{APP_FIRST, TAG};
use crate::relay::{Entry, ENTRY_SIZE};
use std::hash::{DefaultHasher, Hasher};

const PAGE: u64 = 4096;

/// What the card has read of a context.
struct Context {
    entry: Entry,
    regs: Vec<u8>,
    /// Digest of all that was read.
    seen: u64,
}

fn digest(entry: &[u8], regs: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(entry);
    hasher.write(regs);
    hasher.finish()
}

/// Makes the context the slot's. The job that runs from here, or how the run ends instead.
pub(super) fn load(slot: &Slot, context: u64) -> Result<Job, End> {
    let mut trace = DmaTrace::default();
    let (cookie, read) = fetch(slot, context, &mut trace);
    slot.log_dma(&mut trace, 0, Unit::Control);
    let mut state = slot.lock();
    if state.aborted() {
        return Err(End::Aborted);
    }
    if let Some(run) = state.relay.run.as_mut() {
        run.cookie = cookie;
    }
    match read {
        Some(read) => Ok(slot.start_context(&mut state, &read)),
        None => Err(End::Refused),
    }
}

/// Reads entry and registers: the cookie, and all of it if it is valid.
fn fetch(slot: &Slot, context: u64, trace: &mut DmaTrace) -> (u64, Option<Context>) {
    let (error, state_size) = {
        let mut state = slot.lock();
        let error = state.misbehaviour.entry_error.take();
        (error, state.settings.state_pages * PAGE)
    };
    let mut bytes = [0; ENTRY_SIZE];
    let at = slot.host.relay.entry_at(context).filter(|_| !error);
    if !at.is_some_and(|at| read(slot, at, &mut bytes, trace)) {
        return (0, None);
    }
    let cookie = Entry::cookie_of(&bytes);
    let Some(entry) = Entry::parse(&bytes, state_size) else {
        return (cookie, None);
    };
    let mut regs = vec![0; slot.register_bytes()];
    let from = entry.regs.saturating_add(u64::from(APP_FIRST));
    let read = read(slot, from, &mut regs, trace).then(|| Context {
        entry,
        seen: digest(&bytes, &regs),
        regs,
    });
    (cookie, read)
}

fn read(slot: &Slot, iova: u64, buf: &mut [u8], trace: &mut DmaTrace) -> bool {
    let give_up = Some(&slot.abandoned);
    slot.transfer(iova, Access::Read(buf), Unit::Control, give_up, trace)
        .is_some()
}

impl Slot {
    /// Bytes from the first application register of the engine to the end of its last one.
    fn register_bytes(&self) -> usize {
        let last = self.engine.writable().iter().max().copied();
        usize::from(last.map_or(0, |last| last + 8 - APP_FIRST))
    }

    /// The digest of a context as it stands in memory now, for the checker: the card itself has no
    /// use for it. `None` where that cannot be read.
    pub(super) fn peek(&self, context: u64) -> Option<u64> {
        let mut bytes = [0; ENTRY_SIZE];
        let mut regs = vec![0; self.register_bytes()];
        let at = self.host.relay.entry_at(context)?;
        self.host.dma(at, Access::Read(&mut bytes), None)?;
        let from = Entry::regs_of(&bytes).saturating_add(u64::from(APP_FIRST));
        self.host.dma(from, Access::Read(&mut regs), None)?;
        Some(digest(&bytes, &regs))
    }

    /// Sets the registers of the slot, and starts.
    fn start_context(&self, state: &mut State, read: &Context) -> Job {
        let Context { entry, regs, seen } = read;
        self.window.set_offset(entry.dma_offset);
        self.window.set_base(entry.window_base);
        self.window.set_size(entry.window_size);
        state.snapshot = entry.snapshot_addr;
        state.written = AppRegs::default();
        for &offset in self.engine.writable() {
            let at = usize::from(offset - APP_FIRST);
            let mut word = [0; 8];
            word.copy_from_slice(&regs[at..at + 8]);
            state.written.set(offset, u64::from_le_bytes(word));
        }
        if self.engine.needs_reset() {
            state.reads = AppRegs::default();
        }
        let (context, resume, began) = match state.relay.run.as_mut() {
            Some(run) => {
                run.loaded(entry);
                (run.context, run.resume, run.began)
            }
            None => (0, false, now_ns()),
        };
        let loaded = |&offset: &u16| (offset, state.written.get(offset));
        self.host.recorder.record(What::Load {
            slot: self.index,
            run: state.start_count,
            context,
            seen: *seen,
            regs: self.engine.writable().iter().map(loaded).collect(),
        });
        self.host.recorder.record(What::Start {
            slot: self.index,
            resume,
            accepted: true,
            tag: state.written.get(TAG),
        });
        let job = self.begin(state, resume, began);
        self.stop_when_due(state, now_ns());
        job
    }
}
