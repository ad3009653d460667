// SPDX-License-Identifier: GPL-2.0

//! What owners ask of the machine, and what it must answer.

use fermata_sched_host::sched::{
    ContextConfig, Duration, Event, GroupKey, GroupSettings, JobState, NewJob, Params, Refusal,
    Time, Urgency,
};

use super::{Job, Owner, Queue, Snapshot, World, INTERVAL, MS, TIMEOUT};
use crate::Rule;

const TIMESLICE: u64 = 2 * MS;
/// So far ahead are hints.
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
            group,
        };
        match self.machine.add(config) {
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
            // Before the call: START may be written within it.
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

    /// It will want a slot, or not so.
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

    /// There is work in the queue, and the doorbell is rung if the engine has said that it leaves. A program that is refused takes
    /// its work back.
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

    /// All slots are reserved for the group of a context, or for nobody.
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
