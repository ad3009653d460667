// SPDX-License-Identifier: GPL-2.0

//! The steps that are possible in a state, and requests of owners with the answers that are due.

use fermata_sched_host::sched::{
    ContextConfig, Duration, Event, GroupKey, GroupSettings, JobState, NewJob, Params, Refusal,
    Scheduler, SlotState, Status, Time, Urgency,
};

use super::relay::IN_FLIGHT;
use super::{slot_id, Job, Out, Owner, Queue, Snapshot, World, INTERVAL, MS, TIMEOUT};
use crate::card::{CardSlot, Engine, IgnoredResets};
use crate::{Rule, Step};

impl World {
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        if self.broken.is_some() {
            return;
        }
        // The driver holds its lock while it waits for a read.
        let is_free = self.reads.is_empty() && self.posted.len() < IN_FLIGHT;
        if is_free {
            self.all_owner_steps(steps);
        }
        for i in 0..self.slots.len() {
            if is_free {
                self.driver_steps(i, steps);
            }
            if !self.vanished && !self.gone {
                self.card_steps(i, steps);
            }
        }
        if is_free {
            self.administrator_steps(steps);
        }
        if !self.reads.is_empty() {
            steps.push(Step::Answer);
        }
        if !self.posted.is_empty() {
            steps.push(Step::Arrive);
        }
    }

    fn all_owner_steps(&self, steps: &mut Vec<Step>) {
        for (i, owner) in self.owners.iter().enumerate() {
            let Some(owner) = owner else {
                if !self.gone && self.bounds.reopen {
                    steps.push(Step::Open);
                }
                continue;
            };
            if owner.closed {
                continue;
            }
            self.owner_steps(i, owner, steps);
        }
    }

    /// Adds steps of an administrator, and the end of the card.
    fn administrator_steps(&self, steps: &mut Vec<Step>) {
        if self.bounds.freeze && !self.frozen {
            steps.push(Step::Freeze);
        } else if self.machine.is_at_rest() {
            steps.push(Step::Thaw);
        }
        if self.bounds.cut && !self.frozen && !self.gone {
            steps.push(Step::CutOff);
        }
        if self.bounds.gone && !self.gone {
            steps.push(Step::Gone);
            if !self.vanished {
                steps.push(Step::Vanish);
            }
        }
    }

    /// Adds the requests that the owner of an open context may make.
    fn owner_steps(&self, i: usize, owner: &Owner, steps: &mut Vec<Step>) {
        steps.push(Step::Start(i));
        if self.bounds.imports && self.bounds.control {
            steps.push(Step::StartHeld(i));
        }
        if !self.bounds.calm {
            steps.push(Step::Close(i));
        }
        if self.bounds.hints {
            steps.extend([Step::Hint(i, true), Step::Hint(i, false)]);
        }
        if self.bounds.access {
            steps.push(Step::Enable(i, !owner.enabled));
        }
        if self.bounds.groups {
            steps.push(Step::Exclusive(match self.exclusive {
                Some(_) => None,
                None => Some(i),
            }));
        }
        if self.takes_work(i) && !owner.queue.work && owner.live().is_some() {
            steps.push(Step::Post(i));
        }
        if self.bounds.gangs {
            steps.push(Step::Gang(i, self.members(i).len() == 1));
        }
        if self.bounds.control {
            steps.extend([Step::Preempt(i), Step::Hold(i), Step::Resume(i)]);
            if self.bounds.holds && i == 0 {
                steps.extend((owner.holds < 2).then_some(Step::BeginHold(i)));
                steps.extend((owner.holds > 0).then_some(Step::EndHold(i)));
            }
            if self.bounds.slots > 1 && self.bounds.masks {
                steps.extend(
                    (1..4)
                        .filter(|&m| m != owner.mask)
                        .map(|m| Step::Mask(i, m)),
                );
            }
        }
    }

    /// Adds steps of timers and interrupts of a slot.
    fn driver_steps(&self, i: usize, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        let faults = self.bounds.faults;
        if slot.timer.is_some() {
            steps.push(Step::Timer(i));
            if faults {
                steps.push(Step::TimerEarly(i));
            }
            if slot.lag {
                steps.push(Step::TimerLate(i));
            }
        }
        if self.vanished || self.gone {
            return;
        }
        if slot.irq {
            steps.push(Step::Interrupt(i));
            if !self.bounds.calm {
                steps.push(Step::LoseInterrupt(i));
            }
        } else if self.bounds.reads || (faults && !self.bounds.relay) {
            steps.push(Step::Spurious(i));
        }
        // A lost interrupt is equivalent to a later one.
        let unread = slot.relay.records.len();
        steps.extend((1..=unread).map(|visible| Step::Look(i, visible)));
    }

    /// Adds the steps that a slot may take by itself.
    fn card_steps(&self, i: usize, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        if slot.lag {
            steps.push(Step::LagOver(i));
        }
        match slot.engine {
            Engine::Restoring => steps.push(Step::Restored(i)),
            Engine::Working if !slot.hang => {
                steps.push(Step::Finish(i));
                if slot.last.is_some_and(|last| self.takes_work(last)) {
                    steps.push(if self.has_work(i) {
                        Step::Take(i)
                    } else {
                        Step::Leave(i)
                    });
                }
                if slot.asked {
                    steps.push(Step::Boundary(i));
                } else if slot.relay.has_limit() {
                    steps.push(Step::Due(i));
                }
            }
            Engine::Saving if !slot.hang => steps.push(Step::Saved(i)),
            _ => {}
        }
        let idle = self.reads.is_empty() && !self.slots.iter().any(CardSlot::misbehaves);
        if self.bounds.faults && idle {
            self.misbehaviours(i, steps);
        }
        if self.bounds.relay_faults && self.reads.is_empty() {
            self.relay_misbehaviours(i, idle, steps);
        }
    }

    /// Has the context a queue that can be empty? Only the first one has.
    fn takes_work(&self, i: usize) -> bool {
        self.bounds.queues && i == 0
    }

    /// Is there work in the queue of the job on the slot?
    pub(super) fn has_work(&self, i: usize) -> bool {
        let last = self.slots[i].last.filter(|&last| self.takes_work(last));
        let owner = last.and_then(|last| self.owners[last].as_ref());
        owner.is_none_or(|owner| owner.queue.work)
    }

    /// Adds misbehaviours: one at a time, but without a limit of their number.
    fn misbehaviours(&self, i: usize, steps: &mut Vec<Step>) {
        let (slot, base, relay) = (&self.slots[i], self.bounds.base, self.bounds.relay);
        match slot.engine {
            Engine::Working => {
                steps.push(Step::Hang(i));
                if !relay {
                    steps.push(Step::LosePause(i));
                }
                if !base {
                    steps.push(Step::Fault(i));
                }
            }
            Engine::Saving => steps.push(Step::Tear(i)),
            Engine::Restoring if relay => steps.push(Step::Tear(i)),
            _ => {}
        }
        // The settle time covers the time for which a status may be old.
        if slot.active() && !slot.lag {
            steps.extend([Step::IgnoreResetOnce(i), Step::IgnoreResets(i)]);
        }
        if !relay && !slot.active() && !slot.quarantined {
            steps.push(Step::LoseStart(i));
        }
        // A read is made under the lock and flushes writes, so no status is older than the last
        // reset. Only a misbehaving card gives a status that is older than the last START.
        let state = self.machine.slot_state(slot_id(i));
        let running = matches!(state, Some(SlotState::Running(_) | SlotState::Pausing(_)));
        let awaited = self.machine.awaited_run(slot_id(i));
        let known = awaited.is_none_or(|(_, run)| run == slot.count);
        if slot.active() && running && known && !base {
            steps.push(Step::Stale(i));
        }
    }

    /// Adds misbehaviours of a relay; `idle`: none is under way.
    fn relay_misbehaviours(&self, i: usize, idle: bool, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        // The slot that is reset because of a lost record keeps the context that it may have taken.
        let resists = slot.ignored_resets != IgnoredResets::None;
        if slot.relay.lost.is_some() && slot.active() && !resists {
            steps.push(Step::IgnoreResets(i));
        }
        if slot.quarantined || !idle {
            return;
        }
        if slot.active() {
            steps.extend([Step::LoseRecord(i), Step::DelayRecord(i)]);
        }
        if self.posted.first().is_some_and(|(j, _)| *j == i) && self.may_ignore_order() {
            steps.push(Step::IgnoreOrder);
        }
        steps.push(Step::Refuse(i));
    }
}

const TIMESLICE: u64 = 2 * MS;
/// How far ahead hints are.
const AHEAD: u64 = MS;

impl World {
    pub(super) fn open(&mut self) {
        let first = self.owners.first().is_some_and(Option::is_none);
        let mut others = self.owners.iter().flatten();
        let one = self.bounds.hints || self.bounds.first_urgent;
        let critical = (one && !others.any(|owner| self.is_critical(owner.id)))
            || (self.bounds.urgent && !first);
        let params = Params {
            timeslice: Duration::from_ns(TIMESLICE),
            preempt_timeout: Duration::from_ns(TIMEOUT),
            cooperative: self.bounds.boundary && first,
            urgency: if critical {
                Urgency::LatencyCritical
            } else {
                Urgency::BestEffort
            },
            ..Params::DEFAULT
        };
        let usable = self.all_slots() & !self.quarantined();
        let mut others = self.owners.iter().flatten();
        let taken = self.bounds.groups && others.any(|owner| owner.group == GroupKey(0));
        let group = GroupKey(taken.into());
        let config = ContextConfig {
            class: 0,
            params,
            group: group.into(),
        };
        match self.machine.add(Time::from_ns(self.now), config) {
            Ok(id) => {
                let owner = Owner::new(id, self.all_slots(), group, self.new_gang());
                let free = self.owners[id.index()].replace(owner).is_none();
                let reused = self.dead[id.index()] == Some(id);
                self.must(free && !reused, Rule::Refused, || "an id in use".into());
            }
            Err(refusal) => {
                let right = self.gone || (usable == 0 && refusal == Refusal::NoSlot);
                self.must(right, Rule::Refused, || format!("open: {refusal:?}"));
            }
        }
    }

    pub(super) fn start(&mut self, i: usize, held: bool) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let stuck = self.is_stuck(i);
        let usable = self.all_slots() & !self.quarantined() & owner.mask;
        let may = !self.gone && owner.live().is_none() && !stuck && usable != 0;
        let saved = self.bounds.imports && i == 1;
        if may {
            // Before the call, within which START may be written.
            if let Some(owner) = &mut self.owners[i] {
                owner.hold = held;
                owner.hint = None;
                owner.hinted = None;
                owner.queue = Queue::default();
                owner.results_due = false;
                if saved {
                    owner.snapshot = Snapshot::Complete;
                }
                owner.job = Some(Job {
                    begun: saved,
                    finished: false,
                    spoilt: false,
                    ended: false,
                    held: false,
                });
            }
        }
        let result = self.event(Event::Start {
            ctx: owner.id,
            job: NewJob {
                saved,
                held,
                ..NewJob::default()
            },
        });
        self.seen.imported |= saved && may;
        self.seen.started_held |= held && may;
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("start: {result:?}")
        });
    }

    pub(super) fn preempt(&mut self, i: usize, hold: bool) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let may = !self.gone && owner.live().is_some();
        for mate in self.members(i).into_iter().filter(|_| may && hold) {
            if let Some(owner) = self.owners[mate]
                .as_mut()
                .filter(|owner| owner.live().is_some())
            {
                owner.hold = true;
                self.seen.together |= mate != i;
            }
        }
        let result = self.event(Event::Preempt {
            ctx: owner.id,
            hold,
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("preempt: {result:?}")
        });
    }

    pub(super) fn begin_hold(&mut self, i: usize) {
        let Some(owner) = &mut self.owners[i] else {
            return;
        };
        let may = !self.gone;
        owner.holds += u8::from(may);
        let ctx = owner.id;
        let result = self.event(Event::Hold { ctx });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("begin of a hold: {result:?}")
        });
    }

    pub(super) fn end_hold(&mut self, i: usize) {
        let usable = self.all_slots() & !self.quarantined();
        let may = !self.gone;
        let Some(owner) = &mut self.owners[i] else {
            return;
        };
        owner.holds -= u8::from(may);
        if may && !owner.is_to_be_held() && owner.may_resume(usable) {
            self.seen.hold_ended |= owner.live().is_some_and(|job| job.held);
            owner.resume();
        }
        let ctx = owner.id;
        let result = self.event(Event::EndHold { ctx });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("end of a hold: {result:?}")
        });
    }

    pub(crate) fn resume(&mut self, i: usize) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let usable = self.all_slots() & !self.quarantined();
        let may = !self.gone && owner.may_resume(usable);
        for mate in self.members(i).into_iter().filter(|_| may) {
            if let Some(owner) = &mut self.owners[mate] {
                if owner.may_resume(usable) {
                    owner.resume();
                }
            }
        }
        let result = self.event(Event::Resume { ctx: owner.id });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("resume: {result:?}")
        });
    }

    pub(crate) fn close(&mut self, i: usize) {
        let Some(ctx) = self.id(i) else { return };
        if let Some(owner) = &mut self.owners[i] {
            owner.closed = true;
        }
        let result = self.event(Event::Close { ctx });
        self.must(result.is_ok(), Rule::Refused, || {
            format!("close: {result:?}")
        });
    }

    pub(super) fn mask(&mut self, i: usize, mask: u8) {
        let Some(ctx) = self.id(i) else { return };
        let usable = self.all_slots() & !self.quarantined() & mask;
        let may = !self.gone && usable != 0;
        let Ok(params) = self.machine.params(ctx) else {
            self.must(false, Rule::JobKept, || "no parameters".into());
            return;
        };
        if let (true, Some(owner)) = (may, &mut self.owners[i]) {
            owner.mask = mask;
        }
        let now = self.time();
        let params = Params { mask, ..params };
        let result = self.call(mask, |machine, actions| {
            machine.set_params(now, ctx, params, &mut |action| actions.push(action))
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("mask: {result:?}")
        });
    }

    /// Gives a hint of a context, or takes the hint back.
    pub(super) fn hint(&mut self, i: usize, given: bool) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let stuck = self.is_stuck(i);
        let usable = self.all_slots() & !self.quarantined() & owner.mask;
        let early = owner.hinted.is_some_and(|at| self.now < at + INTERVAL);
        let may = !self.gone && owner.live().is_none();
        let may = may && (!given || (!stuck && usable != 0 && !early));
        let at = if given { self.now + AHEAD } else { 0 };
        if let (true, Some(owner)) = (may, &mut self.owners[i]) {
            owner.hint = given.then_some(at);
            if given {
                owner.hinted = Some(self.now);
            }
        }
        let result = self.event(Event::Hint {
            ctx: owner.id,
            at: Time::from_ns(at),
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("hint: {result:?}")
        });
    }

    /// Posts work to the queue, and rings the doorbell if the engine has announced that it leaves.
    /// A program whose doorbell is refused takes its work back.
    pub(super) fn post(&mut self, i: usize) {
        let now = self.time();
        let Some(owner) = &mut self.owners[i] else {
            return;
        };
        owner.queue.work = true;
        let (ctx, idle, live, mask) = (owner.id, owner.queue.idle, owner.live(), owner.mask);
        if !idle {
            return;
        }
        let state = self.machine.stats(ctx, now).map(|stats| stats.state);
        let usable = self.all_slots() & !self.quarantined() & mask;
        let off = state == Ok(JobState::Empty);
        let may = !self.gone && live.is_some() && (!off || usable != 0);
        let result = self.event(Event::Ring { ctx });
        self.seen.rung |= may && state == Ok(JobState::Running);
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("ring: {result:?}")
        });
        if let (false, Some(owner)) = (may, &mut self.owners[i]) {
            owner.queue.work = false;
        }
    }

    pub(super) fn enable(&mut self, i: usize, enabled: bool) {
        let Some(ctx) = self.id(i) else { return };
        let (now, may) = (self.time(), !self.gone);
        if let (true, Some(owner)) = (may, &mut self.owners[i]) {
            owner.enabled = enabled;
        }
        let result = self.call("enable", |machine, actions| {
            machine.set_enabled(now, ctx, enabled, &mut |action| actions.push(action))
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("enable: {result:?}")
        });
    }

    /// Reserves all slots for the group of a context, or ends the reservation.
    pub(crate) fn reserve(&mut self, i: Option<usize>) {
        let owner = i.and_then(|i| self.owners[i].clone());
        let group = owner.as_ref().map(|owner| owner.group);
        let (now, slots, may) = (self.time(), self.all_slots(), !self.gone);
        let before = self.exclusive;
        if may {
            self.exclusive = group;
        }
        let settings = GroupSettings {
            slots,
            ..GroupSettings::DEFAULT
        };
        let all = self.owners.iter().flatten();
        let all: Vec<_> = all.map(|owner| (owner.id, owner.group)).collect();
        let result = self.call("reserve", |machine, actions| {
            let mut out = |action| actions.push(action);
            match (group, before) {
                (Some(group), _) => machine.set_group(now, group, None, settings, &mut out)?,
                (None, Some(group)) => machine.remove_group(now, group, &mut out)?,
                (None, None) if machine.is_gone() => return Err(Refusal::Gone),
                (None, None) => {}
            }
            machine.regroup(now, all.into_iter(), &mut out);
            Ok(())
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("reserve: {result:?}")
        });
    }
}

/// The card loses its state: all jobs are taken off the card before, and resume afterwards.
impl World {
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
        self.tell("freeze", |machine, now, out| machine.freeze(now, out));
    }

    /// Handles a failure of the card's link: the driver stops the card, and jobs on slots are lost.
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

    /// Returns how many jobs of open contexts have failed.
    fn failed(&self) -> usize {
        let states = self.owners.iter().flatten().filter(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            stats.is_ok_and(|stats| matches!(stats.state, JobState::Failed(_)))
        });
        states.count()
    }

    /// Sets up the card again after the loss of its state.
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

    /// Makes a request that the machine cannot refuse, and executes its actions.
    fn tell(&mut self, event: &str, what: impl FnOnce(&mut Scheduler, Time, &mut Out<'_>)) {
        let now = self.time();
        let told = self.call(event, |machine, actions| {
            let mut out: Out<'_> = &mut |action| actions.push(action);
            what(machine, now, &mut out);
            Ok(())
        });
        assert_eq!(told, Ok(()), "nothing was asked");
    }

    /// Returns the number of resumes on all slots.
    fn resumes(&self) -> u64 {
        let stats = |i| self.machine.slot_stats(slot_id(i), self.time());
        (0..self.slots.len())
            .filter_map(stats)
            .map(|stats| stats.resumes)
            .sum()
    }
}
