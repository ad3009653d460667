// SPDX-License-Identifier: GPL-2.0-or-later
//! What a run leaves in memory: results, record, events.

use super::state::State;
use super::Slot;
use crate::dma::{Access, DmaTrace};
use crate::event::{RecordFate, Unit, What};
use crate::misbehave::Misbehaviour;
use crate::regs::SlotReg;
use crate::relay::{Record, RESULTS};
use std::sync::Arc;
use std::time::Duration;

/// Where the last word of a record stands.
const LAST: u64 = Record::LAST as u64;
/// How much later the rest of a torn record comes.
const TEAR: Duration = Duration::from_millis(2);

/// Writes the results of the run that has become quiescent. Whether they are lost.
pub(super) fn lose_results(slot: &Slot) -> bool {
    let Some((at, bytes)) = results(slot) else {
        return false;
    };
    let mut trace = DmaTrace::default();
    let give_up = Some(&slot.abandoned);
    let written = slot.transfer(
        at,
        Access::Write(&bytes),
        Unit::Control,
        give_up,
        &mut trace,
    );
    slot.log_dma(&mut trace, 0, Unit::Control);
    written.is_none()
}

/// Where results go, and what they are; `None`: there are none.
fn results(slot: &Slot) -> Option<(u64, [u8; 8 * RESULTS])> {
    let state = slot.lock();
    let run = state.relay.run.as_ref().filter(|_| !state.aborted())?;
    if run.worked == 0 || run.results == 0 {
        return None;
    }
    let mut bytes = [0; 8 * RESULTS];
    for (to, &offset) in bytes.chunks_exact_mut(8).zip(&run.offsets) {
        if offset != 0 {
            let value = slot.value(&state, SlotReg::App(offset), 0);
            to.copy_from_slice(&value.to_le_bytes());
        }
    }
    Some((run.results, bytes))
}

/// What becomes of the next record, and how much later it comes.
fn fate(misbehaviour: &mut Misbehaviour) -> (RecordFate, Duration) {
    if misbehaviour.lose_record.take() {
        (RecordFate::Lost, Duration::ZERO)
    } else if let Some(us) = misbehaviour.delay_record.take() {
        (RecordFate::Late, Duration::from_micros(us))
    } else if misbehaviour.tear_record.take() {
        (RecordFate::Torn, TEAR)
    } else {
        (RecordFate::Posted, Duration::ZERO)
    }
}

impl Slot {
    /// Posts a record, or does with it what a misbehaviour wants. Whether the interrupt comes now.
    pub(super) fn post(self: &Arc<Self>, state: &mut State, record: &Record, context: u64) -> bool {
        // From the record on the context may change.
        let seen = self.peek(context);
        let at = self.host.relay.record_at(self.index, record.run);
        let bytes = record.bytes();
        let (head, last) = bytes.split_at(Record::LAST);
        let (wanted, delay) = fate(&mut state.misbehaviour);
        let fate = if wanted == RecordFate::Posted && !self.put(at, head) {
            RecordFate::Lost
        } else {
            wanted
        };
        // The driver may act on the last word as soon as that is in memory.
        self.host.recorder.record(What::Record {
            slot: self.index,
            run: record.run,
            context,
            reason: record.reason,
            next: u64::from(record.next),
            void: record.void,
            back: record.back,
            results_lost: record.results_lost,
            fate,
            seen,
        });
        let last_comes = matches!(fate, RecordFate::Posted | RecordFate::Torn);
        if last_comes && !self.put(at.saturating_add(LAST), last) {
            self.host.recorder.record(What::RecordLost {
                slot: self.index,
                run: record.run,
            });
            return true;
        }
        match fate {
            RecordFate::Late => self.post_later(state, delay, at, bytes.to_vec()),
            RecordFate::Torn => self.post_later(state, delay, at, head.to_vec()),
            RecordFate::Lost | RecordFate::Posted => {}
        }
        fate != RecordFate::Late
    }

    /// Writes a record, or the first words of a torn one, after `delay`, unless the card is reset
    /// before. With a whole record comes the interrupt.
    fn post_later(self: &Arc<Self>, state: &State, delay: Duration, at: u64, bytes: Vec<u8>) {
        let (slot, epoch, run) = (self.clone(), state.relay.epoch, state.start_count);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let mut state = slot.lock();
            if state.relay.epoch != epoch || state.quit {
                return;
            }
            let (head, last) = bytes.split_at(Record::LAST);
            let (index, irq) = (slot.index, !last.is_empty());
            let recorder = &slot.host.recorder;
            if !slot.put(at, head) || irq && !slot.put(at.saturating_add(LAST), last) {
                recorder.record(What::RecordLost { slot: index, run });
                return;
            }
            recorder.record(What::RecordLanded {
                slot: index,
                run,
                irq,
            });
            if irq {
                slot.interrupt(&mut state);
            }
        });
    }

    /// Writes EVENTS, before the interrupt of a completion event.
    pub(super) fn post_events(&self, state: &State) {
        if state.relay.on {
            let at = self.host.relay.events_at(self.index);
            let events = self.value(state, SlotReg::Events, 0);
            self.put(at, &events.to_le_bytes());
        }
    }

    /// Writes control memory under the slot's lock. A register access must not wait for the client,
    /// so only shared memory is reached.
    fn put(&self, at: u64, bytes: &[u8]) -> bool {
        let mut trace = DmaTrace::default();
        let access = Access::Write(bytes);
        let answer = self.transfer(at, access, Unit::Control, None, &mut trace);
        self.log_dma(&mut trace, 0, Unit::Control);
        answer.is_some()
    }
}
