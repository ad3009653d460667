// SPDX-License-Identifier: GPL-2.0

//! The card loses its state: all jobs are taken off it before, and go on afterwards.

use fermata_sched_host::sched::{Phase, SlotState, Status};

use super::{ns, sid, World};
use crate::model::MS;

/// No preempt timeout is longer than this, and the tries to reset a slot after it.
const REST: u64 = 11_000 * MS;

impl World {
    pub fn freeze(&mut self) {
        let frozen = self.ask(
            |machine, now, out| {
                machine.freeze(now, out);
                Ok(())
            },
            |world| world.frozen = true,
        );
        frozen.unwrap();
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
        let thawed = self.ask(
            |machine, now, out| {
                machine.thaw(now, out);
                Ok(())
            },
            |world| world.frozen = false,
        );
        thawed.unwrap();
    }

    pub fn renew(&mut self, i: usize, status: Status) {
        let renewed = self.ask(
            |machine, now, out| {
                machine.renew(now, sid(i), status, out);
                Ok(())
            },
            |world| {
                if status.phase() == Phase::Idle && !world.gone {
                    world.quarantined &= !sid(i).bit();
                }
            },
        );
        renewed.unwrap();
    }

    /// The card loses its state with jobs on it.
    pub fn lose_runs(&mut self) {
        self.card.cut_off();
        for i in 0..self.plans.len() {
            let state = self.machine.slot_state(sid(i));
            if let Some(SlotState::Running(ctx) | SlotState::Pausing(ctx)) = state {
                let job = (ctx, self.tenants[&ctx].job);
                self.card.guilty.insert(job);
            }
        }
        self.machine.cut_off(ns(self.now));
        let lost = self.ask(
            |machine, now, out| {
                machine.lose_runs(now, out);
                Ok(())
            },
            |world| world.frozen = true,
        );
        lost.unwrap();
    }
}
