// SPDX-License-Identifier: GPL-2.0

//! Gangs: who is in which, and that members start and pause together.

use fermata_sched_host::sched::{JobState, Refusal, SlotState};

use super::{slot_id, World};
use crate::Rule;

impl World {
    /// Those who are preempted and resumed together with context `i`, itself included.
    pub(super) fn members(&self, i: usize) -> Vec<usize> {
        let gang = |i: usize| {
            let owner = self.owners[i].as_ref().filter(|owner| !owner.closed)?;
            Some(owner.gang)
        };
        let all = 0..self.owners.len();
        all.filter(|&other| gang(other).is_some() && gang(other) == gang(i))
            .collect()
    }

    /// A gang that nobody is in.
    pub(super) fn new_gang(&self) -> usize {
        let taken = |gang| self.owners.iter().flatten().any(|owner| owner.gang == gang);
        let mut gangs = 0..=self.owners.len();
        gangs.find(|&gang| !taken(gang)).unwrap_or_default()
    }

    /// Joins the gang of the next context, or leaves the one that it is in.
    pub(super) fn gang(&mut self, i: usize, joins: bool) {
        let Some(ctx) = self.id(i) else { return };
        let next = (i + 1) % self.owners.len();
        let other = self.owners[next].as_ref().filter(|owner| !owner.closed);
        let with = other.map(|owner| (owner.id, owner.gang));
        if joins && with.is_none() {
            return;
        }
        let with = with.filter(|_| joins);
        let may = with.is_none() || self.members(next).len() < self.slots.len();
        let gang = match with {
            Some((_, gang)) => gang,
            None => self.new_gang(),
        };
        if let Some(owner) = self.owners[i].as_mut().filter(|_| may) {
            owner.gang = gang;
        }
        let (now, with) = (self.time(), with.map(|(other, _)| other));
        let result = self.call("gang", |machine, actions| {
            machine.set_gang(now, ctx, with, &mut |action| actions.push(action))
        });
        let right = if may {
            result.is_ok()
        } else {
            result == Err(Refusal::NoSpace)
        };
        self.must(right, Rule::Refused, || format!("gang: {result:?}"));
        let (size, members) = (self.machine.gang_size(ctx), self.members(i).len());
        self.must(size == Ok(members as u32), Rule::Refused, || {
            format!("a gang of {size:?}, not {members}")
        });
    }

    /// Is the job of a context on a slot, and was not told to leave it?
    fn runs(&self, i: usize) -> bool {
        let id = self.id(i);
        (0..self.slots.len()).any(|slot| {
            let state = self.machine.slot_state(slot_id(slot));
            matches!(state, Some(SlotState::Running(ctx)) if Some(ctx) == id)
        })
    }

    /// Does the job of a context wait, and could it be put on a slot?
    fn could_run(&self, i: usize) -> bool {
        let usable = self.all_slots() & !self.quarantined();
        self.owners[i].as_ref().is_some_and(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            let waits =
                stats.is_ok_and(|stats| stats.state == JobState::Queued && !stats.throttled);
            waits && owner.enabled && !owner.closed && usable & owner.mask != 0
        })
    }

    /// Is a member of the gang of `i` on its way off a slot, so that the others wait for it?
    pub(super) fn gathers(&self, i: usize) -> bool {
        let members = self.members(i).into_iter().filter_map(|i| self.id(i));
        let members: Vec<_> = members.collect();
        (0..self.slots.len()).any(|slot| {
            let state = self.machine.slot_state(slot_id(slot));
            matches!(
                state,
                Some(SlotState::Pausing(ctx) | SlotState::Resetting(ctx)) if members.contains(&ctx)
            )
        })
    }

    /// How many slots the job of `i`, which waits, needs: one for each member that waits with it.
    pub(super) fn needed_slots(&self, i: usize) -> usize {
        let members = self.members(i).into_iter();
        members.filter(|&i| self.could_run(i)).count().max(1)
    }

    /// Members that wait together start together, and members on slots are told to pause together.
    pub(super) fn check_gangs(&mut self) {
        for i in std::mem::take(&mut self.paused) {
            for mate in self.members(i) {
                let stays = mate != i && self.runs(mate);
                self.must(!stays, Rule::PauseTogether, || {
                    format!("context {i} is paused, {mate} runs on")
                });
            }
        }
        for i in std::mem::take(&mut self.started) {
            for mate in self.members(i) {
                if let Some(owner) = self.owners[mate].as_mut().filter(|_| mate != i) {
                    owner.follows |= owner.waited;
                }
            }
        }
        for i in 0..self.owners.len() {
            self.check_follower(i);
            let waits = self.could_run(i);
            if let Some(owner) = &mut self.owners[i] {
                owner.waited = waits;
            }
        }
    }

    /// A member that waited when another one was started has a vacant slot to itself, which it gets
    /// at the next decision: each starts one job.
    fn check_follower(&mut self, i: usize) {
        if !self.owners[i].as_ref().is_some_and(|owner| owner.follows) {
            return;
        }
        let members = self.members(i);
        let others = members.iter().filter(|&&mate| mate != i);
        let led = others.filter(|&&mate| self.runs(mate)).count() != 0;
        let usable = self.all_slots() & !self.quarantined();
        let fits = members.len() <= usable.count_ones() as usize;
        let follows = led && fits && self.could_run(i) && !self.frozen && !self.gone;
        if let Some(owner) = &mut self.owners[i] {
            owner.follows = follows;
        }
        if !follows {
            return;
        }
        self.seen.followed = true;
        let id = self.id(i);
        let comes = (0..self.slots.len()).any(|slot| {
            let vacant = self.machine.slot_state(slot_id(slot)) == Some(SlotState::Vacant);
            let timely = self.slots[slot].timer.is_some_and(|at| at <= self.now);
            vacant && timely && self.machine.claimed_for(slot_id(slot)) == id
        });
        self.must(comes, Rule::StartTogether, || {
            format!("context {i} is left behind")
        });
    }
}
