// SPDX-License-Identifier: GPL-2.0

//! What must hold after every step.

use fermata_sched_host::sched::{ContextId, JobState, Refusal, SlotId, SlotState, Stats, Urgency};

use super::actions::AHEAD;
use super::{slot_id, Owner, Snapshot, World, MS, TIMEOUT};
use crate::Rule;

/// A hint expires no later than this after its time.
const GRACE: u64 = MS;

impl World {
    pub(crate) fn check(&mut self) {
        if self.broken.is_some() {
            return;
        }
        self.seen.gone = self.gone;
        for i in 0..self.slots.len() {
            self.check_slot(i);
        }
        let mut users = vec![0; self.slots.len()];
        for i in 0..self.owners.len() {
            self.check_owner(i, &mut users);
        }
        self.check_gangs();
        let alone = users.iter().all(|&n| n <= 1);
        self.must(alone, Rule::OneJobPerSlot, || format!("{users:?}"));
        let count = self.owners.iter().flatten().count();
        let same =
            (0..self.slots.len()).all(|i| self.machine.exclusive(slot_id(i)) == self.exclusive);
        let group = self.exclusive;
        self.must(same, Rule::Reserved, || format!("{group:?}"));
        let kept = self.machine.contexts() as usize == count;
        self.must(kept, Rule::ReleasedQuiet, || "contexts differ".into());
    }

    fn check_slot(&mut self, i: usize) {
        let state = self.machine.slot_state(slot_id(i));
        let waits = matches!(
            state,
            Some(SlotState::Running(_) | SlotState::Pausing(_) | SlotState::Resetting(_))
        );
        let armed = self.slots[i].timer;
        let soon = armed.is_some_and(|at| at <= self.now + 1_000 * MS);
        self.must(!waits || soon, Rule::TimerArmed, || format!("{state:?}"));
        let gone = state == Some(SlotState::Gone);
        self.must(gone == self.gone, Rule::AfterGone, || format!("{state:?}"));
        self.seen.claimed |= self.machine.successor(slot_id(i)).is_some();
        if self.bounds.relay {
            self.check_relay(i);
        }
        self.check_kept(i);
        self.check_bound(i);
        self.check_outranked(i);
        let quarantined = state == Some(SlotState::Quarantined);
        let same = gone || quarantined == self.slots[i].quarantined;
        self.must(same, Rule::Quarantine, || format!("{state:?}"));
    }

    /// Does latency-critical work wait for a slot, or is it named for a slot not known to have
    /// taken it?
    pub(super) fn critical_waits(&self) -> bool {
        let now = self.time();
        self.owners.iter().flatten().any(|owner| {
            let stats = self.machine.stats(owner.id, now);
            let waits = stats.is_ok_and(|stats| stats.state == JobState::Queued);
            (waits || self.is_next(owner.id.index())) && self.is_critical(owner.id)
        })
    }

    /// Checks the timer of a job on its way to a boundary that urgent work waits for.
    fn check_bound(&mut self, i: usize) {
        let Some(SlotState::Pausing(ctx)) = self.machine.slot_state(slot_id(i)) else {
            return;
        };
        let slot = &self.slots[i];
        let params = self.machine.params(ctx);
        let cooperative = params.is_ok_and(|params| params.cooperative);
        let given_up = self.now >= slot.first_pause + TIMEOUT;
        let waits = self.frozen || self.critical_waits();
        if !cooperative || slot.bounded || given_up || !waits {
            return;
        }
        let bound = self.now + self.machine.boundary_wait().as_ns();
        let timely = slot.timer.is_some_and(|at| at <= bound);
        self.must(timely, Rule::Bounded, || format!("slot {i}"));
    }

    /// Checks that a best-effort job makes way if more latency-critical work waits for its slot than
    /// slots become vacant. Slots with a relay: [`Rule::NotBehind`].
    fn check_outranked(&mut self, i: usize) {
        let Some(SlotState::Running(ctx)) = self.machine.slot_state(slot_id(i)) else {
            return;
        };
        let slot = &self.slots[i];
        let is_due = slot.timer.is_some_and(|at| at <= self.now);
        let alone = !self.bounds.gangs && !self.bounds.gang;
        let stays = slot.boosted || self.is_critical(ctx) || self.frozen || is_due;
        if self.bounds.relay || stays || !alone {
            return;
        }
        let waits = self.owners.iter().flatten().filter(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            let waits =
                stats.is_ok_and(|stats| stats.state == JobState::Queued && !stats.throttled);
            let serves = self.exclusive.is_none_or(|group| group == owner.group);
            let may = serves && owner.enabled && owner.mask & slot_id(i).bit() != 0;
            waits && may && self.is_critical(owner.id)
        });
        let leaving = (0..self.slots.len()).filter(|&other| {
            let state = self.machine.slot_state(slot_id(other));
            !matches!(state, Some(SlotState::Running(_) | SlotState::Quarantined))
        });
        let (waits, leaving) = (waits.count(), leaving.count());
        self.must(waits <= leaving, Rule::Outranked, || {
            format!("slot {i}: {waits} wait, {leaving} slots become vacant")
        });
    }

    /// Checks the reservation of a slot for a hint, if there is one.
    fn check_kept(&mut self, i: usize) {
        let Some(holder) = self.machine.reserved_for(slot_id(i)) else {
            return;
        };
        let (now, gone) = (self.now, self.gone);
        let armed = self.slots.iter().any(|slot| slot.timer.is_some());
        self.must(armed, Rule::TimerArmed, || {
            "a reserved slot, and no timer".into()
        });
        let stands = self.owners[holder.index()].as_ref().is_some_and(|owner| {
            let idle = owner.id == holder && !owner.closed && owner.live().is_none();
            let timely = owner.hint.is_some_and(|at| now <= at + GRACE);
            idle && timely && owner.enabled && owner.mask & slot_id(i).bit() != 0
        });
        self.must(stands && !gone, Rule::Kept, || {
            format!("slot {i}: {:?}", holder.index())
        });
        let vacant = self.machine.slot_state(slot_id(i)) == Some(SlotState::Vacant);
        let waiting = self.owners.iter().flatten().filter(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            let waits =
                stats.is_ok_and(|stats| stats.state == JobState::Queued && !stats.throttled);
            let serves = self.exclusive.is_none_or(|group| group == owner.group);
            waits && serves && owner.enabled && owner.mask & slot_id(i).bit() != 0
        });
        let waiting: Vec<_> = waiting.map(|owner| owner.id).collect();
        let right = self.is_critical(holder) && !waiting.iter().any(|&id| self.is_critical(id));
        let runs = matches!(
            self.machine.slot_state(slot_id(i)),
            Some(SlotState::Running(_))
        );
        if (vacant || !runs) && !waiting.is_empty() {
            self.seen.kept |= vacant;
            self.must(right, Rule::Kept, || {
                format!("slot {i} is kept from LC work")
            });
        }
    }

    pub(super) fn is_critical(&self, ctx: ContextId) -> bool {
        let params = self.machine.params(ctx);
        params.is_ok_and(|params| params.urgency == Urgency::LatencyCritical)
    }

    fn check_owner(&mut self, i: usize, users: &mut [u32]) {
        let now = self.time();
        if let Some(dead) = self.dead[i] {
            let refused = self.machine.stats(dead, now).is_err();
            self.must(refused, Rule::Refused, || {
                "a released id is accepted".into()
            });
        }
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        if owner.closed {
            self.check_closed(&owner);
            return;
        }
        let Ok(stats) = self.machine.stats(owner.id, now) else {
            self.must(false, Rule::JobKept, || "a context is lost".into());
            return;
        };
        self.seen.hint_wasted |= stats.hints_wasted > 0;
        if let Some(slot) = stats.slot.filter(|&slot| self.is_on(slot, owner.id)) {
            users[slot.index()] += 1;
        }
        self.check_job(i, &owner, &stats);
        if stats.state == JobState::Queued {
            self.check_waiting(i, &owner);
        }
    }

    /// Does the slot deal with the context?
    fn is_on(&self, slot: SlotId, id: ContextId) -> bool {
        let slot_state = self.machine.slot_state(slot);
        slot_state.and_then(SlotState::context) == Some(id)
    }

    /// Checks a context that is closed and not released yet.
    fn check_closed(&mut self, owner: &Owner) {
        let refused = self.machine.stats(owner.id, self.time()).is_err();
        let index = owner.id.index();
        let on = (0..self.slots.len()).any(|i| self.is_on(slot_id(i), owner.id));
        let on = on || self.is_named(index) || self.is_stuck(index);
        self.must(refused, Rule::Refused, || "a closed id is accepted".into());
        self.must(on, Rule::ReleasedQuiet, || "closed, and on no slot".into());
    }

    /// Checks that the scheduler, the owner and the card agree on the job of a context.
    fn check_job(&mut self, i: usize, owner: &Owner, stats: &Stats) {
        let state = stats.state;
        let live = owner.live();
        let told = live.is_some() == state.is_live();
        self.must(told, Rule::JobKept, || {
            format!("{state:?}, {:?}", owner.job)
        });
        let held = live.is_some_and(|job| job.held) == (state == JobState::Held);
        self.must(held, Rule::HoldKept, || {
            format!("{state:?}, {:?}", owner.job)
        });
        let usable = self.all_slots() & owner.mask & !self.quarantined();
        let waits = state == JobState::Empty && owner.queue.work && usable != 0;
        self.must(!waits, Rule::Doorbell, || format!("context {i}"));
        if state == JobState::Running {
            let there = stats.slot.is_some_and(|slot| self.is_on(slot, owner.id));
            let there = there || self.is_named(i);
            self.must(there, Rule::JobKept, || {
                format!("runs, but not on {:?}", stats.slot)
            });
        }
        // A context that is named may have been taken.
        let complete = self.vanished || owner.snapshot == Snapshot::Complete || self.is_named(i);
        self.must(!stats.saved || complete, Rule::ResumeComplete, || {
            format!("counts as saved: {:?}", owner.snapshot)
        });
        let alive = self.gone && state.is_live();
        self.must(!alive, Rule::AfterGone, || format!("{state:?}"));
    }

    /// Checks that a waiting job has a slot that it may use, and that too few of these are vacant for the job and its gang.
    fn check_waiting(&mut self, i: usize, owner: &Owner) {
        let usable = self.all_slots() & owner.mask & !self.quarantined();
        let idle = (0..self.slots.len()).filter(|&i| {
            let id = slot_id(i);
            let vacant = self.machine.slot_state(id) == Some(SlotState::Vacant);
            let kept = self.machine.reserved_for(id).is_some();
            let claimed = self.machine.successor(id).is_some();
            // Each decision starts one job, and the timer triggers the next decision at once.
            let follows = self.slots[i].timer.is_some_and(|at| at <= self.now + AHEAD);
            vacant && !kept && !claimed && !follows && usable & id.bit() != 0
        });
        let idle = idle.count();
        let serves = self.exclusive.is_none_or(|group| group == owner.group);
        // A successor waits for its own slot, even if another one becomes vacant meanwhile.
        let mut slots = (0..self.slots.len()).map(slot_id);
        let bound = slots.any(|id| self.machine.successor(id) == Some(owner.id));
        let may = serves && owner.enabled && !self.frozen && !self.gathers(i) && !bound;
        let idles = may && idle >= self.needed_slots(i);
        self.must(!idles, Rule::NoneIdles, || format!("context {i} waits"));
        self.must(usable != 0, Rule::JobKept, || {
            "waits, but has no slot".into()
        });
    }
}

/// Gangs: their members, which start and pause together.
impl World {
    /// Returns the contexts that are preempted and resumed together with context `i`, including
    /// `i`.
    pub(super) fn members(&self, i: usize) -> Vec<usize> {
        let gang = |i: usize| {
            let owner = self.owners[i].as_ref().filter(|owner| !owner.closed)?;
            Some(owner.gang)
        };
        let all = 0..self.owners.len();
        all.filter(|&other| gang(other).is_some() && gang(other) == gang(i))
            .collect()
    }

    /// Returns the number of a new gang.
    pub(super) fn new_gang(&self) -> usize {
        let taken = |gang| self.owners.iter().flatten().any(|owner| owner.gang == gang);
        let mut gangs = 0..=self.owners.len();
        gangs.find(|&gang| !taken(gang)).unwrap_or_default()
    }

    /// Lets a context join the gang of the next context, or leave its gang.
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

    /// Is the job of a context on a slot, without having been told to leave?
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

    /// Is a member of the gang of `i` leaving a slot, so that the others wait for it?
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

    /// Returns how many slots the waiting job of `i` needs: one for each member that waits with it.
    pub(super) fn needed_slots(&self, i: usize) -> usize {
        let members = self.members(i).into_iter();
        members.filter(|&i| self.could_run(i)).count().max(1)
    }

    /// Checks that members that wait together start together, and that members on slots are told to
    /// pause together.
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
            let comes_later =
                !self.is_claimed(i) && self.members(i).iter().any(|&mate| self.is_claimed(mate));
            if let Some(owner) = &mut self.owners[i] {
                // A member that comes when another one has its slot already goes by itself.
                owner.waited = waits && (owner.waited || !comes_later);
            }
        }
    }

    /// Is a context the successor on a slot?
    fn is_claimed(&self, i: usize) -> bool {
        let id = self.id(i);
        let mut slots = (0..self.slots.len()).map(|slot| self.machine.successor(slot_id(slot)));
        id.is_some() && slots.any(|next| next == id)
    }

    /// Checks that a member that waited when another one was started has its own vacant slot, which
    /// it gets at the next decision: each decision starts one job.
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
            let timely = self.slots[slot]
                .timer
                .is_some_and(|at| at <= self.now + AHEAD);
            vacant && timely && self.machine.successor(slot_id(slot)) == id
        });
        self.must(comes, Rule::StartTogether, || {
            format!("context {i} is left behind")
        });
    }
}
