// SPDX-License-Identifier: GPL-2.0

//! The card loses its state: all jobs are taken off it before, and go on afterwards.

use fermata_sched_host::sched::{Scheduler, Status, Time};

use super::{slot_id, Out, World};
use crate::Rule;

impl World {
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
        self.tell("freeze", |machine, now, out| machine.freeze(now, out));
    }

    /// The card lost its state, and is set up anew.
    pub(super) fn thaw(&mut self) {
        let none = self.posted.is_empty();
        self.must(none, Rule::Rest, || "an order is on its way".into());
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[i];
            let still = slot.quarantined || !slot.active();
            slot.lose_state();
            self.must(still, Rule::Rest, || format!("a job is on slot {i}"));
        }
        for i in 0..self.slots.len() {
            let (slot, status) = (slot_id(i), Status::from_raw(0));
            self.tell("renew", |machine, _, out| {
                machine.renew(slot, status, out);
            });
        }
        self.frozen = false;
        let before = self.resumes();
        self.tell("thaw", |machine, now, out| machine.thaw(now, out));
        self.seen.thawed = self.resumes() > before;
    }

    /// Tells the machine what it cannot refuse, and does what it says.
    fn tell(&mut self, event: &str, what: impl FnOnce(&mut Scheduler, Time, &mut Out<'_>)) {
        let now = self.time();
        let told = self.call(event, |machine, actions| {
            let mut out: Out<'_> = &mut |action| actions.push(action);
            what(machine, now, &mut out);
            Ok(())
        });
        assert_eq!(told, Ok(()), "nothing was asked");
    }

    /// Resumes on all slots.
    fn resumes(&self) -> u64 {
        let stats = |i| self.machine.slot_stats(slot_id(i), self.time());
        (0..self.slots.len())
            .filter_map(stats)
            .map(|stats| stats.resumes)
            .sum()
    }
}
