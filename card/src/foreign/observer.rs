// SPDX-License-Identifier: GPL-2.0-or-later
//! What can be concluded from the accesses to a foreign card: its log, so that the checker can judge
//! the driver. Phases are known when the driver learns them; saves, restores and runs by order are not.

use super::interface::DMA_MAX;
use crate::config::CardConfig;
use crate::dma::{DmaTrace, LINE};
use crate::event::{IrqFate, PauseFate, Phase, Range, Unit, What};
use crate::log::Recorder;
use crate::regs::{ctl, status, Reg, SlotReg, IOVA_BITS, TAG};

/// The most errors of a kind that are logged between two resets.
const TOLD: u32 = 1000;
/// DMA accesses that are gathered into one line of the log.
const GATHERED: u32 = 1024;

/// A slot, as far as its registers tell.
#[derive(Default)]
struct Seen {
    /// A START was accepted, and no end of the run was read.
    busy: bool,
    in_reset: bool,
    /// Orders begin and end runs, which registers do not tell.
    relays: bool,
    /// The value of TAG, if the engine has one.
    tag: u64,
    running_tag: u64,
    dma_offset: u64,
    snapshot: u64,
    state_bytes: u64,
    /// Interrupts whose reason the driver has not read yet.
    irqs: u32,
    dma: DmaTrace,
}

/// Derives events.
pub(super) struct Observer {
    config: CardConfig,
    recorder: Recorder,
    slots: Vec<Seen>,
    /// DMA for which the design does not tell the slot.
    unknown: DmaTrace,
    gathered: u32,
    bad_calls: u32,
    dma_errors: u32,
}

impl Observer {
    pub(super) fn new(config: &CardConfig, recorder: Recorder) -> Self {
        let slots = config.slots.iter().map(|_| Seen::default()).collect();
        Self {
            config: config.clone(),
            recorder,
            slots,
            unknown: DmaTrace::default(),
            gathered: 0,
            bad_calls: 0,
            dma_errors: 0,
        }
    }

    pub(super) fn has_slot(&self, slot: u32) -> bool {
        (slot as usize) < self.slots.len()
    }

    /// Returns the slot, if the design tells it.
    fn known(&self, slot: u32) -> Option<usize> {
        self.has_slot(slot).then_some(slot as usize)
    }

    /// Handles a reset of the card.
    pub(super) fn reset(&mut self) {
        self.flush();
        *self = Self::new(&self.config, self.recorder.clone());
        self.recorder.record(What::DeviceReset);
    }

    /// Handles a read, by which the driver gets `val`, and which the card may have left unanswered.
    pub(super) fn read(&mut self, off: u64, len: u64, val: u64, is_answered: bool) {
        self.flush();
        self.recorder.record(What::Read { off, len, val });
        if !is_answered {
            self.recorder.record(What::Unanswered { off });
            return;
        }
        match Reg::at(off, self.config.profile, self.slots.len()) {
            Some(Reg::Slot(slot, SlotReg::Ctl)) if len == 8 => self.status(slot, val),
            Some(Reg::Slot(slot, SlotReg::StateSize)) if len == 8 => {
                self.slots[slot].state_bytes = val.min(DMA_MAX as u64) * 4096;
            }
            _ => {}
        }
    }

    /// Handles a status that the driver has read.
    fn status(&mut self, slot: usize, val: u64) {
        let seen = &mut self.slots[slot];
        let phase = match val & 0xff {
            status::FINISH => Phase::Finished,
            status::PAUSED => Phase::Paused,
            _ => return,
        };
        if seen.relays || !std::mem::take(&mut seen.busy) {
            return;
        }
        let irqs = std::mem::take(&mut seen.irqs);
        self.enter(slot, phase, val);
        for _ in 0..irqs {
            let fate = IrqFate::Sent;
            self.recorder.record(What::Irq { slot, fate });
        }
    }

    fn enter(&self, slot: usize, phase: Phase, val: u64) {
        self.recorder.record(What::Phase {
            slot,
            phase,
            fault: val & status::FAULT != 0,
            snapshot_error: val & status::SNAPSHOT_ERROR != 0,
            empty: val & status::EMPTY != 0,
        });
    }

    /// Handles a write.
    pub(super) fn write(&mut self, off: u64, len: u64, val: u64) {
        self.flush();
        self.recorder.record(What::Write { off, len, val });
        match Reg::at(off, self.config.profile, self.slots.len()) {
            _ if len != 8 => {}
            Some(Reg::Reset) => (0..self.slots.len()).for_each(|slot| self.slot_reset(slot, val)),
            Some(Reg::Slot(slot, reg)) => self.slot_write(slot, reg, val),
            _ => {}
        }
    }

    fn slot_reset(&mut self, slot: usize, val: u64) {
        let seen = &mut self.slots[slot];
        let asserted = val >> slot & 1 != 0;
        let was_asserted = std::mem::replace(&mut seen.in_reset, asserted);
        if asserted && !was_asserted {
            let aborted = std::mem::take(&mut seen.busy);
            seen.irqs = 0;
            self.recorder.record(What::SlotReset { slot, aborted });
        }
    }

    fn slot_write(&mut self, slot: usize, reg: SlotReg, val: u64) {
        let seen = &mut self.slots[slot];
        match reg {
            SlotReg::DmaOffset if self.config.profile.is_base() => {
                seen.dma_offset = val.wrapping_mul(LINE);
            }
            SlotReg::Relay => seen.relays = val & 1 != 0,
            SlotReg::SnapshotAddr => seen.snapshot = val.wrapping_mul(LINE),
            SlotReg::App(TAG) if self.config.slots[slot].engine.writable().contains(&TAG) => {
                seen.tag = val;
            }
            SlotReg::Ctl => match val {
                ctl::START_NEW | ctl::START_RESUME => self.start(slot, val == ctl::START_RESUME),
                ctl::PAUSE | ctl::PAUSE_AT_BOUNDARY => {
                    let fate = if seen.busy {
                        PauseFate::Honoured
                    } else {
                        PauseFate::Dropped
                    };
                    let at_boundary = val == ctl::PAUSE_AT_BOUNDARY;
                    self.recorder.record(What::Pause {
                        slot,
                        fate,
                        at_boundary,
                    });
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn start(&mut self, slot: usize, resume: bool) {
        let seen = &mut self.slots[slot];
        let accepted = !seen.busy && !seen.in_reset;
        let tag = seen.tag;
        self.recorder.record(What::Start {
            slot,
            resume,
            accepted,
            tag,
        });
        if accepted {
            seen.busy = true;
            seen.running_tag = tag;
            self.enter(slot, Phase::Running, 0);
        }
    }

    /// Handles a DMA access that touched these guest-physical ranges, or to which memory did not
    /// respond.
    pub(super) fn dma(&mut self, slot: u32, iova: u64, write: bool, touched: Option<Vec<Range>>) {
        let unit = self.unit(slot, iova);
        let Some(ranges) = touched else {
            self.dma_errors += 1;
            if self.dma_errors <= TOLD {
                self.recorder.record(What::DmaError {
                    slot: self.known(slot),
                    unit,
                    write,
                    iova,
                });
            }
            return;
        };
        if unit == Unit::Snapshot {
            self.flush();
        }
        let trace = match self.slots.get_mut(slot as usize) {
            Some(seen) => &mut seen.dma,
            None => &mut self.unknown,
        };
        trace.add(write, &ranges);
        self.gathered += 1;
        if unit == Unit::Snapshot {
            self.flush_as(slot as usize, unit);
        } else if self.gathered >= GATHERED {
            self.flush();
        }
    }

    /// Returns whether a slot accesses its snapshot, or anything else.
    fn unit(&self, slot: u32, iova: u64) -> Unit {
        let is_snapshot = |seen: &Seen| {
            let first = seen.snapshot.wrapping_add(seen.dma_offset) & IOVA_BITS;
            iova.wrapping_sub(first) < seen.state_bytes
        };
        match self.slots.get(slot as usize) {
            Some(seen) if is_snapshot(seen) => Unit::Snapshot,
            _ => Unit::Engine,
        }
    }

    /// Logs the DMA that was gathered.
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.gathered) > 0 {
            (0..self.slots.len()).for_each(|slot| self.flush_as(slot, Unit::Engine));
            for what in self.unknown.take(None, 0, Unit::Engine) {
                self.recorder.record(what);
            }
        }
    }

    fn flush_as(&mut self, slot: usize, unit: Unit) {
        if let Some(seen) = self.slots.get_mut(slot) {
            for what in seen.dma.take(Some(slot), seen.running_tag, unit) {
                self.recorder.record(what);
            }
        }
    }

    /// Handles an interrupt of a slot that the card has.
    pub(super) fn interrupt(&mut self, slot: u32, sent: bool) {
        self.flush();
        let slot = slot as usize;
        let seen = &mut self.slots[slot];
        if sent && seen.busy {
            seen.irqs += 1;
        } else if !(sent && seen.relays) {
            let fate = if sent { IrqFate::Sent } else { IrqFate::Lost };
            self.recorder.record(What::Irq { slot, fate });
        }
    }

    /// Reports what the library must not do.
    pub(super) fn bad_call(&mut self, text: String) {
        self.bad_calls += 1;
        if self.bad_calls <= TOLD {
            self.recorder.record(What::BadCall { text });
        }
    }
}
