// SPDX-License-Identifier: GPL-2.0-or-later
//! The DMA path of a slot: window check, offset, memory, log.

use super::state::{Posted, State};
use super::Slot;
use crate::dma::{Access, DmaTrace};
use crate::engine::{Bus, Refused};
use crate::event::{now_ns, Range, Unit, What};
use crate::regs::IOVA_BITS;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The slot's offset and window as they stand now; the engine sees a change at its next access.
#[derive(Default)]
pub(super) struct Window {
    offset: AtomicU64,
    base: AtomicU64,
    size: AtomicU64,
}

impl Window {
    pub(super) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub(super) fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn set_offset(&self, value: u64) {
        self.offset.store(value, Ordering::Release);
    }

    pub(super) fn set_base(&self, value: u64) {
        self.base.store(value, Ordering::Release);
    }

    pub(super) fn set_size(&self, value: u64) {
        self.size.store(value, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.set_offset(0);
        self.set_base(0);
        self.set_size(0);
    }

    pub(super) fn iova(&self, addr: u64) -> u64 {
        addr.wrapping_add(self.offset()) & IOVA_BITS
    }

    fn admits(&self, addr: u64, len: u64) -> bool {
        let (base, size) = (self.base(), self.size());
        addr.checked_sub(base)
            .is_some_and(|at| at <= size && len <= size - at)
    }
}

/// When the engine must return by itself, without a request; `u64::MAX`: never.
pub(super) struct Deadline {
    at_once: AtomicU64,
    at_boundary: AtomicU64,
}

impl Default for Deadline {
    fn default() -> Self {
        Self {
            at_once: AtomicU64::new(u64::MAX),
            at_boundary: AtomicU64::new(u64::MAX),
        }
    }
}

impl Deadline {
    /// Sets the time, and whether the engine returns at a boundary only; `None` clears it.
    pub(super) fn set(&self, deadline: Option<(u64, bool)>) {
        let due = |at_boundary| {
            deadline
                .filter(|(_, boundary)| *boundary == at_boundary)
                .map_or(u64::MAX, |(due, _)| due)
        };
        self.at_once.store(due(false), Ordering::Release);
        self.at_boundary.store(due(true), Ordering::Release);
    }

    /// Returns the earlier time.
    fn first(&self) -> Option<u64> {
        let at_once = self.at_once.load(Ordering::Acquire);
        let due = at_once.min(self.at_boundary.load(Ordering::Acquire));
        (due != u64::MAX).then_some(due)
    }

    fn has_come(due: &AtomicU64) -> bool {
        match due.load(Ordering::Acquire) {
            u64::MAX => false,
            due => now_ns() >= due,
        }
    }
}

/// The most writes that a base card has issued but not completed.
const IN_FLIGHT: usize = 4;
/// How long DMA is gathered before it is logged.
const GATHER_NS: u64 = 2_000_000;

/// The bus of one job.
pub(super) struct SlotBus<'a> {
    slot: &'a Slot,
    tag: u64,
    trace: DmaTrace,
    flushed_at: u64,
    posted: VecDeque<(u64, Vec<u8>)>,
    /// The last access: a write after PAUSED repeats it.
    last: (u64, [u8; 8]),
    /// Where the last read was.
    last_read: Option<u64>,
}

impl<'a> SlotBus<'a> {
    pub(super) fn new(slot: &'a Slot, tag: u64) -> Self {
        Self {
            slot,
            tag,
            trace: DmaTrace::default(),
            flushed_at: now_ns(),
            posted: VecDeque::new(),
            last: (0, [0; 8]),
            last_read: None,
        }
    }

    /// Logs the gathered DMA when it is due, or at once with `force`.
    pub(super) fn flush(&mut self, force: bool) {
        let now = now_ns();
        if force || now.saturating_sub(self.flushed_at) > GATHER_NS {
            self.flushed_at = now;
            self.slot.log_dma(&mut self.trace, self.tag, Unit::Engine);
        }
    }

    /// Completes all writes, because no further write would push them out.
    pub(super) fn settle(&mut self) {
        self.complete_posted(0);
    }

    /// Takes the writes that have not been completed, and on a base card a repetition of the last
    /// read; they complete between `now` and `drain_ns` later.
    pub(super) fn take_posted(&mut self, now: u64, drain_ns: u64) -> Vec<Posted> {
        let read = self.last_read.filter(|_| self.slot.is_base());
        let read = read.map(|addr| (addr, vec![0; 8], false));
        let writes = self.posted.drain(..);
        let writes = writes.map(|(addr, data)| (addr, data, true));
        let posted: Vec<_> = writes.chain(read).collect();
        let n = posted.len() as u64;
        let due = |i: u64| now.saturating_add(drain_ns.saturating_mul(i + 1) / n);
        let tag = self.tag;
        (0..n)
            .zip(posted)
            .map(|(i, (addr, data, write))| Posted {
                addr,
                data,
                write,
                tag,
                due: due(i),
            })
            .collect()
    }

    /// Returns the write of a card that still writes after PAUSED.
    pub(super) fn late_write(&self, due: u64) -> Posted {
        Posted {
            addr: self.last.0,
            data: self.last.1.to_vec(),
            write: true,
            tag: self.tag,
            due,
        }
    }

    fn admit(&self, addr: u64, len: u64, write: bool) -> Result<(), Refused> {
        self.slot.admit(addr, len, write, None)
    }

    fn complete_posted(&mut self, keep: usize) {
        while self.posted.len() > keep {
            if let Some((addr, data)) = self.posted.pop_front() {
                self.transfer(addr, Access::Write(&data));
            }
        }
    }

    fn transfer(&mut self, addr: u64, access: Access<'_>) -> bool {
        let give_up = Some(&self.slot.abandoned);
        self.slot
            .transfer(
                self.slot.window.iova(addr),
                access,
                Unit::Engine,
                give_up,
                &mut self.trace,
            )
            .is_some()
    }

    fn remember(&mut self, addr: u64, data: &[u8]) {
        if let Some(word) = data.first_chunk() {
            self.last = (addr, *word);
        }
    }
}

impl Bus for SlotBus<'_> {
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused> {
        self.admit(addr, buf.len() as u64, false)?;
        let overlaps = |(at, data): &(u64, Vec<u8>)| {
            addr.wrapping_sub(*at) < data.len() as u64 || at.wrapping_sub(addr) < buf.len() as u64
        };
        if self.posted.iter().any(overlaps) {
            self.complete_posted(0);
        }
        if !self.transfer(addr, Access::Read(buf)) {
            buf.fill(0);
        }
        self.last_read = Some(addr);
        self.remember(addr, buf);
        Ok(())
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused> {
        self.admit(addr, data.len() as u64, true)?;
        self.remember(addr, data);
        if self.slot.is_base() {
            self.posted.push_back((addr, data.to_vec()));
            self.complete_posted(IN_FLIGHT);
        } else {
            self.transfer(addr, Access::Write(data));
        }
        Ok(())
    }

    fn attention(&self) -> bool {
        let slot = self.slot;
        slot.attention.load(Ordering::Acquire) || Deadline::has_come(&slot.deadline.at_once)
    }

    fn wants_boundary(&self) -> bool {
        let slot = self.slot;
        slot.wants_boundary.load(Ordering::Acquire)
            || Deadline::has_come(&slot.deadline.at_boundary)
    }

    fn deadline(&self) -> Option<u64> {
        self.slot.deadline.first()
    }
}

impl Slot {
    /// Checks an access against the window. The fault registers keep the first refused access.
    fn admit(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        state: Option<&mut State>,
    ) -> Result<(), Refused> {
        if self.is_base() || self.window.admits(addr, len) {
            return Ok(());
        }
        self.host.recorder.record(What::Refused {
            slot: self.index,
            addr,
            len,
            write,
        });
        let note = |state: &mut State| {
            if state.fault_info & 1 == 0 {
                state.fault_info = 1 | u64::from(write) << 1 | (len & 0xff_ffff) << 8;
                state.fault_addr = addr;
            }
        };
        match state {
            Some(state) => note(state),
            None => note(&mut self.lock()),
        }
        Err(Refused)
    }

    /// Makes one access to memory by IOVA.
    pub(super) fn transfer(
        &self,
        iova: u64,
        access: Access<'_>,
        unit: Unit,
        give_up: Option<&AtomicBool>,
        trace: &mut DmaTrace,
    ) -> Option<Vec<Range>> {
        let write = matches!(access, Access::Write(_));
        let answer = self.host.dma(iova, access, give_up);
        match &answer {
            Some(ranges) => trace.add(write, ranges),
            // Not refused: the access was never made. What the slot did is void.
            None if self.host.is_dead() => {}
            // The slot was reset while the client was being asked.
            None if give_up.is_some_and(|give_up| give_up.load(Ordering::Acquire)) => {}
            None => drop(self.host.recorder.record(What::DmaError {
                slot: Some(self.index),
                unit,
                write,
                iova,
            })),
        }
        answer
    }

    pub(super) fn log_dma(&self, trace: &mut DmaTrace, tag: u64, unit: Unit) {
        for what in trace.take(Some(self.index), tag, unit) {
            self.host.recorder.record(what);
        }
    }

    /// Completes the accesses of past jobs that are due at `t`, at wherever the offset now points.
    /// Accesses to memory without a descriptor are lost: a register access must not wait for the
    /// client.
    pub(super) fn deliver(&self, state: &mut State, t: u64) {
        let (due, rest): (VecDeque<_>, _) = std::mem::take(&mut state.posted)
            .into_iter()
            .partition(|p: &Posted| p.due <= t);
        state.posted = rest;
        for Posted {
            addr,
            mut data,
            write,
            tag,
            ..
        } in due
        {
            if self
                .admit(addr, data.len() as u64, write, Some(state))
                .is_ok()
            {
                let mut trace = DmaTrace::default();
                let access = if write {
                    Access::Write(&data)
                } else {
                    Access::Read(&mut data)
                };
                self.transfer(
                    self.window.iova(addr),
                    access,
                    Unit::Engine,
                    None,
                    &mut trace,
                );
                self.log_dma(&mut trace, tag, Unit::Engine);
            }
        }
    }
}
