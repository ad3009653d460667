// SPDX-License-Identifier: GPL-2.0

//! The card loses its state: all jobs are taken off it before, and go on afterwards.

use fermata_sched_host::sched::{Phase, Scheduler, SlotState, Status, Time};

use super::{ns, sid, Out, World};
use crate::model::MS;

/// No preempt timeout is longer than this, and the tries to reset a slot after it.
const REST: u64 = 11_000 * MS;

impl World {
    pub fn freeze(&mut self) {
        self.frozen = true;
        self.tell(|machine, now, out| machine.freeze(now, out));
    }

    /// Waits until the frozen machine is at rest.
    pub fn rest(&mut self) {
        let end = self.now + REST;
        while !self.machine.is_at_rest() {
            assert!(self.now < end, "it never rests");
            self.run_for(MS);
        }
    }

    /// The card lost its state, and is set up anew.
    pub fn thaw(&mut self) {
        assert!(self.machine.is_at_rest());
        if !self.card.gone {
            self.card.lose_state(self.now);
        }
        for i in 0..self.plans.len() {
            let status = self.card.read_status(self.now, i);
            self.renew(i, status);
        }
        self.frozen = false;
        self.tell(|machine, now, out| machine.thaw(now, out));
    }

    pub fn renew(&mut self, i: usize, status: Status) {
        if status.phase() == Phase::Idle && !self.gone {
            self.quarantined &= !sid(i).bit();
        }
        self.tell(|machine, _, out| machine.renew(sid(i), status, out));
    }

    /// The card loses its state with jobs on it.
    pub fn lose_runs(&mut self) {
        self.card.cut_off();
        for i in 0..self.plans.len() {
            self.lose_named(i);
            let state = self.machine.slot_state(sid(i));
            if let Some(SlotState::Running(ctx) | SlotState::Pausing(ctx)) = state {
                let job = (ctx, self.tenants[&ctx].job);
                // One whose torn save nobody has noticed is lost once.
                if !self.card.slots[i].tells_of_torn() {
                    self.card.lose(job);
                }
            }
        }
        self.machine.cut_off(ns(self.now));
        self.measured.cut_off();
        self.frozen = true;
        self.tell(|machine, now, out| machine.lose_runs(now, out));
    }

    /// Of the contexts that were named for a slot nobody knows whether they were taken.
    fn lose_named(&mut self, i: usize) {
        let on = match self.machine.slot_state(sid(i)) {
            Some(SlotState::Running(ctx) | SlotState::Pausing(ctx)) => Some(ctx),
            _ => None,
        };
        let tenants: Vec<_> = self.tenants.values().map(|of| (of.id, of.job)).collect();
        for (ctx, job) in tenants {
            let stats = self.machine.stats(ctx, ns(self.now));
            let is_here = stats.is_ok_and(|stats| stats.slot == Some(sid(i)));
            if self.plans[i].relay && is_here && Some(ctx) != on {
                self.card.lose((ctx, job));
            }
        }
    }

    /// Tells the machine what it cannot refuse, and does what it wants done.
    pub(super) fn tell(&mut self, what: impl FnOnce(&mut Scheduler, Time, &mut Out<'_>)) {
        let told = self.ask(
            |machine, now, out| {
                what(machine, now, out);
                Ok(())
            },
            |_| (),
        );
        told.unwrap();
    }
}
