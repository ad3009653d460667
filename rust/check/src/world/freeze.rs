// SPDX-License-Identifier: GPL-2.0

//! The card loses its state: all jobs are taken off it before, and go on afterwards.

use fermata_sched_host::sched::{JobState, Scheduler, Status, Time};

use super::{slot_id, Out, World};
use crate::card::CardSlot;
use crate::Rule;

impl World {
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
        self.tell("freeze", |machine, now, out| machine.freeze(now, out));
    }

    /// The link of the card has failed: the driver stops the card, and what is on the slots is lost.
    pub(super) fn cut_off(&mut self) {
        self.frozen = true;
        for i in 0..self.slots.len() {
            self.spoil(i);
            let awaited = self.machine.awaited_run(slot_id(i));
            let named = self.slots[i].relay.told.named;
            let all = 0..self.owners.len();
            let lost = all.filter(|index| named >> index & 1 != 0);
            for index in lost.chain(awaited.map(|(ctx, _)| ctx.index())) {
                self.spoil_context(index);
            }
        }
        let before = self.failed();
        self.machine.cut_off(self.time());
        self.posted.clear();
        self.slots.iter_mut().for_each(CardSlot::be_cut_off);
        self.tell("lose runs", |machine, now, out| {
            machine.lose_runs(now, out);
        });
        self.seen.cut_off = self.failed() > before;
        let at_rest = self.machine.is_at_rest();
        self.must(at_rest, Rule::Rest, || "after the link has failed".into());
    }

    /// Returns how many jobs have failed of contexts that are open.
    fn failed(&self) -> usize {
        let states = self.owners.iter().flatten().filter(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            stats.is_ok_and(|stats| matches!(stats.state, JobState::Failed(_)))
        });
        states.count()
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
