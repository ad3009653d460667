// SPDX-License-Identifier: GPL-2.0

//! Events of the card and their sources, and calls of the scheduler.

use super::{
    execute::{cookie, Executor, Outbox},
    lifetime::LINK_WAIT_MS,
    now,
    state::{IrqCause, State},
    Card,
};
use crate::{
    bar::Fault,
    notifier::Notice,
    relay::{Record, RunTimes},
    scheduler::{Duration, LeftReason, Phase, Scheduler, SlotId, SlotState, Status, Time},
    shim::fermata_link_may_recover,
    timer::{Timed, Timer},
    vector::{EventSink, Vector},
};
use core::mem::offset_of;
use kernel::{
    prelude::*,
    time::{hrtimer::AbsolutePinnedHardMode, Monotonic},
};

/// Number of contexts that [`Card::sweep`] visits while it holds the card's lock with interrupts
/// off.
const CONTEXTS_AT_ONCE: u32 = 16;

/// Number of records of a slot that are handled while the card's lock is held with interrupts off.
/// A card that follows the protocol has at most two ready, those of a run and of the next run:
/// every further run needs another order.
const RECORDS_AT_ONCE: usize = 3;
/// How long after that the other records are looked for.
const RECORDS_LATER: Duration = Duration::from_ms(1);

/// The sources of events of one slot, silent until [`Vector::start`].
#[pin_data(PinnedDrop)]
pub(super) struct SlotEvents {
    id: SlotId,
    /// The vector with the slot's number. If there are fewer vectors than slots, other slots share
    /// it. It knows the card.
    #[pin]
    pub(super) vector: Vector<Card>,
    #[pin]
    timer: Timer<Self>,
}

impl SlotEvents {
    /// Returns an initialiser for the sources of slot number `slot`, which are silent. `EINVAL`: no
    /// card has such a slot.
    pub(super) fn new(slot: u8) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            id: SlotId::new(slot).ok_or(EINVAL)?,
            vector <- Vector::new(),
            // SAFETY: `OFFSET` is that of this field, and `drop` stops it first.
            timer <- unsafe { Timer::new() },
        })
    }

    /// Arms the timer for `at`, in place of an earlier time. Any context, under any lock.
    pub(super) fn arm(&self, at: Time) {
        self.timer.arm(at);
    }

    /// Stops both sources, and waits for running handlers. Process context, without the card's
    /// lock.
    pub(super) fn stop(&self) {
        self.vector.stop();
        self.timer.stop();
    }
}

impl Timed for SlotEvents {
    const OFFSET: usize = offset_of!(Self, timer);
    /// On the CPU that arms it, and hard: a slice must not wait for a thread.
    type Mode = AbsolutePinnedHardMode<Monotonic>;

    fn timer_fired(&self) {
        if let Some(card) = self.vector.sink() {
            card.timer(self.id);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for SlotEvents {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}

/// Events of the card.
impl Card {
    /// Handles the timer of `slot`. Interrupt context.
    pub(crate) fn timer(&self, slot: SlotId) {
        self.read_late(slot);
        let mut state = self.state.lock();
        let is_storm = self.act(&mut state, |scheduler, card, at| {
            scheduler.timer(card, at, slot);
            card.slots[slot].watch.note_expiry(at)
        });
        if is_storm {
            self.report_timer_storm(&mut state, slot);
        }
    }

    /// Makes the status read of `slot` that was left to the timer, if it is still needed.
    fn read_late(&self, slot: SlotId) {
        let mut state = self.state.lock();
        let is_unread = core::mem::take(&mut state.slots[slot].is_unread);
        if is_unread && state.is_at_work(slot) {
            self.poll(&mut state, slot);
        }
    }

    /// Reads the status of `slot`, and handles it.
    pub(super) fn poll(&self, state: &mut State, slot: SlotId) {
        self.feed_reads(state, Outbox::with_read(slot));
    }

    /// Handles what the relay of `slot` has written to memory. Returns whether there was a record.
    fn look(&self, state: &mut State, slot: SlotId) -> bool {
        let mut outbox = Outbox::default();
        let found = self.take_records(state, slot, &mut outbox);
        if self.slots[slot.index()].queues && !self.note_completions(state, slot) {
            outbox.reads |= slot.bit();
        }
        self.feed_reads(state, outbox);
        found
    }

    /// Polls a slot with a relay. Returns whether the run that was known to be there still occupies
    /// the slot.
    pub(super) fn still_runs(&self, state: &mut State, slot: SlotId) -> bool {
        let run = state.scheduler.awaited_run(slot);
        self.poll(state, slot);
        run.is_some() && state.scheduler.awaited_run(slot) == run
    }

    /// Returns whether the run on `slot` has restored the state of its job. A base card does not
    /// tell; its runs count as restored. Errors: [`Card::check_alive`].
    pub(super) fn has_restored(&self, state: &mut State, slot: SlotId) -> Result<bool> {
        if !state.scheduler.reports_restore(slot) {
            return Ok(true);
        }
        let status = Status::from_raw(self.bar.status(slot));
        if status.is_gone() {
            self.check_alive(state, Some(slot))?;
            return Ok(false);
        }
        Ok(status.restore() != Duration::ZERO)
    }

    /// Checks after a read of registers that the card is not gone. `suspect` is the slot on which a
    /// register read all-ones: this is the register's value, or the card is gone. The status, which
    /// is all-ones only on a card that is gone, tells. `ENODEV`; `EAGAIN`: the link may be reset.
    pub(super) fn check_alive(&self, state: &mut State, suspect: Option<SlotId>) -> Result {
        if let Some(slot) = suspect {
            self.poll(state, slot);
        }
        if self.is_gone() {
            return Err(ENODEV);
        }
        match state.silent_since {
            Some(_) => Err(EAGAIN),
            None => Ok(()),
        }
    }

    /// Writes the reset bit of `slot`.
    pub(super) fn reset_slot(&self, slots: &mut super::state::Slots, slot: SlotId, hold: bool) {
        let clears = self.slots[slot.index()].reset_clears;
        slots[slot].shadow.note_reset(clears);
        slots.in_reset = if hold {
            slots.in_reset | slot.bit()
        } else {
            slots.in_reset & !slot.bit()
        };
        self.bar.reset(slots.in_reset);
    }
}

/// Calls of the scheduler.
impl Card {
    /// Calls `f` with the scheduler, the card on which the scheduler acts, and the time; then makes
    /// the status reads that the scheduler has requested.
    pub(super) fn act<R>(
        &self,
        state: &mut State,
        f: impl FnOnce(&mut Scheduler, &mut Executor<'_>, Time) -> R,
    ) -> R {
        let mut outbox = Outbox::default();
        let result = self.call(state, &mut outbox, f);
        self.feed_reads(state, outbox);
        result
    }

    /// As [`Card::act`], but leaves status reads in `outbox`.
    pub(super) fn call<R>(
        &self,
        state: &mut State,
        outbox: &mut Outbox,
        f: impl FnOnce(&mut Scheduler, &mut Executor<'_>, Time) -> R,
    ) -> R {
        let State {
            scheduler,
            contexts,
            slots,
            relay,
            ..
        } = state;
        let mut executor = Executor {
            card: self,
            contexts,
            slots,
            relay: relay.as_deref(),
            outbox,
        };
        let was_sweeping = scheduler.is_sweeping();
        let result = f(scheduler, &mut executor, now());
        if scheduler.is_sweeping() && !was_sweeping {
            self.sweeper.queue(0);
        }
        // STARTs follow the loads of all slots, after the time with which the scheduler was called.
        while let Some(slot) = outbox.take_started() {
            state.scheduler.note_start(slot, now());
        }
        self.note_load(state, outbox);
        if let Some(trouble) = outbox.trouble.take() {
            self.dump_slot(state, trouble);
        }
        result
    }

    /// Runs the scheduler's sweep of all contexts, with interrupts on between its parts. Process
    /// context.
    pub(super) fn sweep(&self) {
        while self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.sweep(card, at, CONTEXTS_AT_ONCE)
        }) {}
    }

    /// Makes the status reads that were asked for, and those that follow from them. Once registers
    /// have been loaded, reads that can wait are left to the timers of their slots.
    fn feed_reads(&self, state: &mut State, mut outbox: Outbox) {
        while let Some(slot) = outbox.take_read() {
            if state.silent_since.is_some() {
                return;
            }
            let status = self.status_of(state, slot);
            // The read has pushed records to memory.
            if !status.is_gone() && self.take_records(state, slot, &mut outbox) {
                continue;
            }
            self.note_status(state, slot, status);
            let silence = self.read_more(state, slot, status, &mut outbox);
            let status = silence.unwrap_or(status);
            if status.is_gone() && self.waits_for_link(state, slot) {
                return;
            }
            self.report_status(state, slot, status, &mut outbox);
        }
        for slot in self.slots_in(outbox.reads) {
            self.read_at(state, slot, now());
        }
    }

    /// Returns whether the card, whose `slot` has shown that it does not answer, may answer after a
    /// reset of its link. Then it is cut off until [`Card::abort_all`], or given up after
    /// [`LINK_WAIT_MS`].
    fn waits_for_link(&self, state: &mut State, slot: SlotId) -> bool {
        if self.is_gone() || !fermata_link_may_recover(&self.device) {
            return false;
        }
        dev_err!(
            self.device,
            "slot {}: neither the status nor the manager answers: waiting for a reset of the link\n",
            slot.index()
        );
        self.dump_death(state, slot);
        self.cut_off(state);
        state.silent_since = Some(now());
        self.sweeper.queue(LINK_WAIT_MS);
        true
    }

    /// Reads the status of `slot`. A slot of a base card that is held in reset answers no read, and
    /// is idle by definition: a read of the manager pushes the reset instead.
    fn status_of(&self, state: &mut State, slot: SlotId) -> Status {
        // Each read of a card that is gone may take as long as the link's time-out.
        if self.presence.is_dead() {
            return Status::ALL_ONES;
        }
        let is_held = state.slots.in_reset & slot.bit() != 0;
        if !(self.identity.is_base && is_held) {
            let raw = self.bar.status(slot);
            state.slots[slot].status = Some((raw, now()));
            return Status::from_raw(raw);
        }
        match self.bar.push_reset() {
            true => Status::from_raw(0),
            false => Status::ALL_ONES,
        }
    }

    /// Leaves the next status read of `slot` to its timer, at `at`.
    fn read_at(&self, state: &mut State, slot: SlotId, at: Time) {
        state.slots[slot].is_unread = true;
        self.events[slot.index()].arm(at);
    }

    /// Feeds the records that the relay of `slot` has left to the scheduler. Returns `false` if
    /// there is none.
    fn take_records(&self, state: &mut State, slot: SlotId, outbox: &mut Outbox) -> bool {
        for found in 0..RECORDS_AT_ONCE {
            let Some(record) = self.next_record(state, slot) else {
                return found != 0;
            };
            outbox.results_lost = record.results_lost;
            outbox.times = record.times;
            if record.run.reason == LeftReason::Fault {
                outbox.fault = Fault {
                    address: record.fault_address,
                    is_write: record.fault_is_write,
                };
                self.note_fault(state, slot, outbox.fault);
                self.note_refused(state, slot, outbox.fault);
            }
            self.call(state, outbox, |scheduler, card, at| {
                scheduler.record(card, at, slot, &record.run);
            });
            outbox.times = RunTimes::default();
        }
        self.read_at(state, slot, now() + RECORDS_LATER);
        true
    }

    /// Returns and clears the awaited record of `slot`, if the card has written it.
    fn next_record(&self, state: &State, slot: SlotId) -> Option<Record> {
        let relay = state.relay.as_ref()?;
        let (ctx, run) = state.scheduler.awaited_run(slot)?;
        let record = relay.record(slot, run)?;
        // A context that was refused may have had no entry that could be read.
        let is_own = record.cookie == cookie(ctx) || record.run.reason == LeftReason::Refused;
        is_own.then(|| {
            relay.clear_record(slot, run);
            record
        })
    }

    /// Passes the status of `slot` to the scheduler.
    pub(super) fn report_status(
        &self,
        state: &mut State,
        slot: SlotId,
        status: Status,
        outbox: &mut Outbox,
    ) {
        if status.is_gone() {
            self.dump_death(state, slot);
            self.tell_death(slot);
        }
        self.call(state, outbox, |scheduler, card, at| {
            scheduler.status(card, at, slot, status);
        });
    }

    /// Reads the registers that matter with this `status` of `slot`: those of a fault, the results
    /// of a job that has left, or the counter of completions. Returns what does not answer, if one
    /// of them cannot be read: no job ends without its results.
    fn read_more(
        &self,
        state: &mut State,
        slot: SlotId,
        status: Status,
        outbox: &mut Outbox,
    ) -> Option<Status> {
        if status.is_gone() {
            return None;
        }
        if status.fault() {
            match self.bar.fault(slot) {
                Ok(fault) => {
                    self.note_fault(state, slot, fault);
                    self.note_refused(state, slot, fault);
                    outbox.fault = fault;
                }
                Err(_) => {
                    outbox.fault = Fault::default();
                    if let Some(silence) = self.bar.silence(slot) {
                        return Some(silence);
                    }
                }
            }
        }
        match status.phase() {
            Phase::Finish | Phase::Paused if state.relay.is_none() => {
                let ctx = state.occupant(slot)?;
                state.context(ctx)?.image().capture(&self.bar, slot)
            }
            Phase::Running if self.slots[slot.index()].queues => {
                let is_read = self.note_completions(state, slot);
                (!is_read).then(|| self.bar.silence(slot)).flatten()
            }
            _ => None,
        }
    }

    /// Notes that the card is gone, as a read of the status of `slot` has shown.
    fn tell_death(&self, slot: SlotId) {
        if !self.is_gone() {
            dev_err!(
                self.device,
                "slot {}: neither the status nor the manager answers: the card is gone, and all jobs fail\n",
                slot.index()
            );
        }
        self.presence.note_death();
        self.tell_bystanders();
    }

    /// Notifies the owner of the job on `slot` of completions that the running engine has counted.
    /// If another context came to the slot meanwhile, that context gets a spurious notification.
    /// `false`: the counter reads all-ones.
    fn note_completions(&self, state: &mut State, slot: SlotId) -> bool {
        let events = match &state.relay {
            Some(relay) => relay.completion_events(slot),
            None => self.bar.completion_events(slot),
        };
        if events == u64::MAX {
            return false;
        }
        if core::mem::replace(&mut state.slots[slot].completions, events) == events {
            return true;
        }
        state.slots[slot].await_completion();
        if let Some(ctx) = state.occupant(slot) {
            self.note_queue(state, slot, ctx);
            if let Some(context) = state.context(ctx) {
                context.notify(&self.delivery, Notice::Completed);
            }
        }
        true
    }
}

impl EventSink for Card {
    fn interrupt(&self, vector: &Vector<Self>) -> bool {
        let slots = vector.slots();
        let (mut is_useful, mut is_awaited) = (false, false);
        let mut completed = None;
        for slot in self.slots_in(slots) {
            // Locked for each slot: with a shared vector, each slot may have all registers to load.
            let mut state = self.state.lock();
            let seen = |state: &State| {
                let slot_state = state.scheduler.slot_state(slot);
                (slot_state, state.slots[slot].completions)
            };
            let before = seen(&state);
            is_useful |= self.look_if_busy(&mut state, slot);
            let after = seen(&state);
            is_useful |= after != before;
            // One interrupt reports one event, which may have been read before.
            let told = match is_awaited {
                true => None,
                false => state.slots[slot].take_awaited(),
            };
            is_awaited |= told.is_some();
            if after.0 == before.0 && (after.1 != before.1 || told == Some(IrqCause::Completion)) {
                completed = Some(slot);
            }
        }
        is_useful |= is_awaited;
        self.note_interrupt(slots, is_useful);
        if let Some(slot) = completed {
            self.limit_completions(vector, slot);
        }
        is_useful
    }

    fn report_storm(&self, slots: u8) {
        dev_warn!(
            self.device,
            "interrupt storm: slots {:#x} are polled for a while\n",
            slots
        );
    }

    fn poll_throttled(&self, vector: &Vector<Self>, others: u8) -> Option<Time> {
        for slot in self.slots_in(vector.slots()) {
            let mut state = self.state.lock();
            let save_due = state.scheduler.save_due(slot);
            if others & slot.bit() != 0 || save_due.is_some_and(|due| due <= now()) {
                self.look_if_busy(&mut state, slot);
            }
        }
        self.next_save(&self.state.lock(), vector)
    }
}

impl Card {
    /// Looks what has happened on `slot`. Returns whether there was a record. If the slot is
    /// vacant, or its status is polled by a timer, an interrupt came late or from another slot of a
    /// shared vector. That is not worth a read.
    fn look_if_busy(&self, state: &mut State, slot: SlotId) -> bool {
        let Some(SlotState::Running(_) | SlotState::Pausing(_)) = state.scheduler.slot_state(slot)
        else {
            return false;
        };
        if self.has_relay() {
            return self.look(state, slot);
        }
        // The one trapped read of a switch.
        self.poll(state, slot);
        false
    }

    /// Returns when the next job on the slots of `vector` is to be saved, `None` if none is.
    fn next_save(&self, state: &State, vector: &Vector<Self>) -> Option<Time> {
        self.slots_in(vector.slots())
            .filter_map(|slot| state.scheduler.save_due(slot))
            .min()
    }

    /// Limits the rate of interrupts of `vector`, by which `slot` reported a completion.
    fn limit_completions(&self, vector: &Vector<Self>, slot: SlotId) {
        let mut state = self.state.lock();
        let save_due = self.next_save(&state, vector);
        if vector.completed(slot, self.limits.completion_interval, save_due) {
            self.note_throttled(&mut state, slot);
        }
    }
}
