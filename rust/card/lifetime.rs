// SPDX-License-Identifier: GPL-2.0

//! Shutting a card down; saving its jobs before a reset or sleep, and bringing it back afterwards.

use super::{
    execute::Outbox,
    now,
    quiesce::{quiesce, settle, switch_off, switch_on},
    slot_ids,
    state::State,
    Card,
};
use crate::{
    client,
    scheduler::{Duration, SlotId, Status},
    shim::{pci_clear_master, pci_set_master},
    trace::CardEvent,
};
use kernel::{
    dev_err,
    prelude::*,
    time::{delay::fsleep, Delta},
};

/// How long a card that does not answer may take until the kernel begins to reset its link.
pub(super) const LINK_WAIT_MS: u32 = 2000;

/// The interval at which a card that is being saved is polled.
const REST_LOOK: Delta = Delta::from_millis(1);

impl Card {
    /// Disables bus mastering of the card. The device must be bound.
    pub(super) fn stop_dma(&self) {
        pci_clear_master(&self.pci);
    }

    /// Shuts the card down. Afterwards no register is touched, no DMA happens, no memory of a
    /// context is mapped for the card, and every call on an open file gives `ENODEV`. Process
    /// context, while the device is bound; called once.
    pub(crate) fn shut_down(&self) {
        self.bus_watch.stop();
        self.presence.close();
        self.note(CardEvent::Removed);
        let clients = {
            let mut registry = self.registry.lock();
            self.halt();
            registry.take_all()
        };
        for events in &self.events {
            events.stop();
        }
        client::revoke(&clients, &self.delivery);
        self.sweeper.stop();
        self.dumper.stop();
        let relay = self.state.lock().relay.take();
        // Not under the raw lock.
        drop(relay);
    }

    /// Gives up a card that will lose its state: every job fails, and every call gives `ENODEV`
    /// from now on. Process context.
    pub(crate) fn disconnect(&self) {
        let _registry = self.registry.lock();
        self.halt();
    }

    /// Fails all jobs and stops the card's DMA. The caller holds the registry's lock, so that no
    /// context whose job has failed frees its memory before the card has stopped.
    fn halt(&self) {
        self.presence.die(|| {
            let mut state = self.state.lock();
            state.silent_since = None;
            // The scheduler does not act on the card any more, so nothing takes a slot out of the
            // reset that follows.
            self.note(CardEvent::Gone);
            self.act(&mut state, |scheduler, card, at| {
                scheduler.disconnect(card, at)
            });
            self.bar.reset(u8::MAX);
            self.tell_bystanders();
        });
        // A card that did not answer may be back, so this is done for such a card, too.
        settle(&self.bar, &self.identity, &self.limits);
        switch_off(&self.bar, &self.identity);
        self.stop_dma();
        self.sweep();
    }

    /// Gives up a card whose link was not reset in time. Process context.
    pub(super) fn end_wait_for_link(&self) {
        // As in `disconnect`. The lock keeps `abort_all` out.
        let _registry = self.registry.lock();
        let since = self.state.lock().silent_since;
        if since.is_some_and(|at| now().since(at) >= Duration::from_ms(LINK_WAIT_MS.into())) {
            dev_err!(
                self.device,
                "the link was not reset: the card is gone, and all jobs fail\n"
            );
            self.halt();
        }
    }

    /// Takes all jobs off the card, which will lose its state; [`Card::restore`] puts them back. A
    /// job that cannot be saved fails, within its preempt timeout; all of them fail if the card does
    /// not answer. Afterwards no register is touched. Process context.
    pub(crate) fn save(&self) {
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.freeze(card, at);
        });
        while !self.state.lock().scheduler.is_at_rest() {
            if self.is_silent() {
                return self.abort_all();
            }
            fsleep(REST_LOOK);
        }
        // A quarantined slot, which is held in reset, may have obeyed by now.
        settle(&self.bar, &self.identity, &self.limits);
        self.note(CardEvent::Frozen);
    }

    /// Gives up the state of a card that cannot be reached: jobs that were on the card fail. Jobs
    /// that wait or are held continue after [`Card::restore`]. Process context.
    pub(crate) fn abort_all(&self) {
        self.note(CardEvent::CutOff);
        // As in `disconnect`: no memory is freed before the card has stopped.
        let _registry = self.registry.lock();
        {
            let mut state = self.state.lock();
            state.silent_since = None;
            self.cut_off(&mut state);
        }
        settle(&self.bar, &self.identity, &self.limits);
        self.stop_dma();
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.lose_runs(card, at);
        });
    }

    /// Gives up what runs on a card that cannot be reached. Resets the slots, in case it can.
    pub(super) fn cut_off(&self, state: &mut State) {
        state.scheduler.cut_off(now());
        state.slots.in_reset = u8::MAX;
        state.slots.clear_unread();
        self.bar.reset(u8::MAX);
    }

    /// Returns whether the card does not answer, and its link may be reset.
    pub(super) fn is_silent(&self) -> bool {
        self.state.lock().silent_since.is_some()
    }

    /// Brings the card back after it lost its state, with the jobs that [`Card::save`] took off it.
    /// Quarantined slots that work now are used again. Process context.
    pub(crate) fn restore(&self) {
        if self.is_gone() {
            return;
        }
        let is_at_rest = self.state.lock().scheduler.is_at_rest();
        if !is_at_rest || self.is_silent() {
            // Another recovery has ended since (the PCI core allows several at a time), and has put
            // jobs back on the card before the card was reset again.
            self.abort_all();
        }
        quiesce(&self.bar, &self.identity, &self.limits);
        if let Some(slot) = self.changed_slot() {
            let status = Status::from_raw(self.bar.status(slot));
            let what = match status == Status::UNANSWERED {
                true => "does not answer after the reset",
                false => "has another engine than before the reset",
            };
            dev_err!(
                self.device,
                "slot {} {what}: bind the driver anew\n",
                slot.index()
            );
            return self.disconnect();
        }
        if self.switch_on().is_err() {
            dev_err!(
                self.device,
                "the card does not take orders after the reset\n"
            );
            return self.disconnect();
        }
        pci_set_master(&self.pci);
        self.renew();
        self.sweep();
        self.free_left_behind();
    }

    /// Lets slots with a relay obey orders. `ENODEV`.
    fn switch_on(&self) -> Result {
        match &self.state.lock().relay {
            Some(relay) => switch_on(&self.bar, &self.identity, relay),
            None => Ok(()),
        }
    }

    /// Returns a slot that is not what it was at probe, or has no engine any more. `None` also if
    /// the card does not answer.
    fn changed_slot(&self) -> Option<SlotId> {
        slot_ids(self.identity.slots).find(|&slot| {
            match self.bar.identify_slot(slot, &self.identity) {
                Ok(identity) => identity != self.slots[slot.index()],
                Err(_) => !Status::from_raw(self.bar.status(slot)).is_gone(),
            }
        })
    }

    /// Tells the scheduler the status of the slots, and lets it put jobs on them.
    fn renew(&self) {
        let mut state = self.state.lock();
        state.slots.reset();
        for slot in slot_ids(self.identity.slots) {
            let status = Status::from_raw(self.bar.status(slot));
            state.slots[slot].status = Some((status.raw(), now()));
            if status.is_gone() {
                self.note_status(&mut state, slot, status);
                return self.report_status(&mut state, slot, status, &mut Outbox::default());
            }
            self.act(&mut state, |scheduler, card, at| {
                scheduler.renew(card, at, slot, status);
            });
        }
        self.note(CardEvent::Thawed);
        self.act(&mut state, |scheduler, card, at| scheduler.thaw(card, at));
    }
}
