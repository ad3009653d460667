// SPDX-License-Identifier: GPL-2.0

//! Properties of a scheduler that binds one successor to each slot, checked after every event and
//! every call beside the invariants of `check.rs`, by the interface of the scheduler.

use std::collections::{BTreeMap, VecDeque};

use fermata_sched_host::sched::{
    Action, ContextId, Duration, JobState, Params, PolicyKind, SlotId, SlotState, Stop, Urgency,
};

use super::{ns, sid, World, MS, US};

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A job is on one slot, bound to one slot, or on none.
    OnePlace,
    /// One call starts one job.
    OneStart,
    /// One call writes the registers of one context. A relay reads them from memory.
    OneLoad,
    /// A run lasts from its START to the moment at which its end is seen.
    Charges,
    /// No context waits that is to preempt the job on a slot at once, unless the job leaves.
    Outranked,
    /// A hint is given no slot that a context of its rank or a better one waits for, also if the
    /// slot is not vacant yet.
    HintBehind,
    /// The timer of a slot fires less than 100 times in a millisecond.
    TimerRate,
    /// A timer is armed for no time before [`AHEAD`] from now.
    TimerAhead,
    /// When the wait for a boundary ends, the job is told to stop where it is, in the same call.
    BoundTold,
    /// Under a fair policy, a job beside which a context of its rank waits is looked at again, or
    /// ends, within a slice.
    LookedAt,
    /// A limit is paid by its owner: the save for other work uses up no cap of the context that is
    /// saved.
    LimitPaid,
    /// A wait for a boundary ends also on a card that is frozen.
    FrozenBound,
    /// A context that is named early is the one whose turn it is at the end of the run.
    TurnAtEnd,
    /// Work yields to no work that it preempts at once.
    YieldRank,
    /// A gang keeps the slots that it has by the turn of its best member.
    GangRank,
    /// Nothing that an owner does at a moment of its choice gains time.
    Gains,
}

/// Checks that a rule is kept; `breach`: how it was broken.
pub fn judge(rule: Rule, breach: Option<String>) {
    assert_eq!(breach, None, "{rule:?}");
}

/// An interrupt handler returns before the next timer fires.
const AHEAD: u64 = 2 * US;
/// Slow saves make no slice longer than this.
const SLICE_FLOOR_MAX: u64 = 10 * MS;
/// Timers of one slot in a millisecond: a storm.
const STORM: usize = 100;

/// A rank: lower goes first, and at once. Contexts that the policy orders in another way are equal.
type Rank = (u8, u8);

/// A run, as it was started.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: u64,
    boosted: bool,
}

/// The state of the rules.
#[derive(Debug, Default)]
pub struct Rules {
    runs: BTreeMap<usize, Run>,
    /// The request is two calls: a group changes, and its contexts do.
    pub regroups: bool,
    fires: BTreeMap<usize, VecDeque<u64>>,
    /// How often timers have fired.
    pub fired: u64,
    /// How often, at most, timers have fired one after the other at one time.
    pub most_at_once: u32,
    at_once: (u64, u32),
    /// The slots that are vacant although a context waits for one of them.
    idle: u8,
    /// For how long slots were so, in ns, and the longest time between two events, with the contexts
    /// that waited.
    pub idled: u64,
    pub idled_most: (u64, String),
}

/// A context that waits and may be started.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    ctx: ContextId,
    rank: Rank,
    /// The slots that it may use.
    slots: u8,
}

impl Rules {
    /// Notes that a part of the loading of the run on slot `i` is charged to others.
    pub fn note_load(&mut self, i: usize) {
        self.runs.remove(&i);
    }
}

impl World {
    fn must(&self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        assert!(holds, "{rule:?}: {} ns: {}", self.now, what());
    }

    /// Checks the actions of one call.
    pub fn check_call(&mut self, actions: &[Action]) {
        let begins = |action: &&Action| match action {
            Action::Start { slot, .. } => !self.plans[slot.index()].relay,
            Action::Order { order, .. } => order.stop == Stop::Vacant,
            _ => false,
        };
        let starts = actions.iter().filter(begins).count();
        let most = 1 + usize::from(self.rules.regroups);
        self.must(starts <= most, Rule::OneStart, || format!("{actions:?}"));
        let loads = |action: &&Action| match action {
            Action::Load { slot, .. } => !self.plans[slot.index()].relay,
            _ => false,
        };
        let loads = actions.iter().filter(loads).count();
        self.must(loads <= most, Rule::OneLoad, || format!("{actions:?}"));
        for action in actions {
            match *action {
                Action::Start { slot, boosted, .. } => {
                    let since = self.now;
                    self.rules.runs.insert(slot.index(), Run { since, boosted });
                }
                Action::Ended { slot, run, .. } if !self.plans[slot.index()].relay => {
                    let since = self.rules.runs.get(&slot.index()).map(|run| run.since);
                    let lasted = since.map(|since| Duration::from_ns(self.now - since));
                    let holds = lasted.is_none_or(|lasted| lasted == run.span);
                    self.must(holds, Rule::Charges, || {
                        format!("{slot:?}: {:?} of {lasted:?}", run.span)
                    });
                }
                Action::Overrun { slot, span, .. } if span == Duration::ZERO => {
                    self.must(is_told(actions, slot), Rule::BoundTold, || {
                        format!("{slot:?}: {actions:?}")
                    });
                }
                Action::Arm { slot, at } => {
                    let ahead = at.as_ns() >= self.now + AHEAD;
                    self.must(ahead, Rule::TimerAhead, || format!("{slot:?}: {at:?}"));
                }
                _ => {}
            }
        }
    }

    /// Notes that the timer of slot `i` fires.
    pub fn note_fire(&mut self, i: usize) {
        let now = self.now;
        let fires = self.rules.fires.entry(i).or_default();
        fires.push_back(now);
        while fires.front().is_some_and(|&at| at + MS < now) {
            fires.pop_front();
        }
        let fires = fires.len();
        let at_once = &mut self.rules.at_once;
        *at_once = (now, if at_once.0 == now { at_once.1 + 1 } else { 1 });
        self.rules.most_at_once = self.rules.most_at_once.max(at_once.1);
        self.rules.fired += 1;
        self.must(fires < STORM, Rule::TimerRate, || {
            format!("{fires} timers of slot {i} in a millisecond")
        });
    }

    /// Lets time pass until `at`.
    pub(super) fn pass(&mut self, at: u64) {
        let span = at.saturating_sub(self.now);
        self.rules.idled += span * u64::from(self.rules.idle.count_ones());
        if self.rules.idle != 0 && span > self.rules.idled_most.0 {
            let (now, idle) = (self.now, self.rules.idle);
            let waiters = self.waiters();
            let reasons = waiters
                .iter()
                .map(|waiter| (waiter, self.stats(waiter.ctx).waits));
            let what = format!(
                "{now} ns: {:?} beside slots {idle:x}",
                reasons.collect::<Vec<_>>()
            );
            self.rules.idled_most = (span, what);
        }
        self.now = self.now.max(at);
    }

    /// Checks the state after an event.
    pub(super) fn check_rules(&mut self) {
        self.rules.idle = 0;
        if self.gone {
            return;
        }
        self.check_places();
        if self.frozen || self.machine.is_sweeping() {
            return;
        }
        let waiters = self.waiters();
        self.check_hints(&waiters);
        self.note_idle(&waiters);
        // A group may be at its cap and not throttled yet; a gang competes by its best member.
        let capped = |world: &Self| {
            let mut tenants = world.tenants.values();
            tenants.any(|tenant| {
                let mut lineage = world.lineage(tenant.group);
                lineage.any(|group| world.group_settings(group).cap != 0)
            })
        };
        if waiters.is_empty() || self.has_gangs() || capped(self) {
            return;
        }
        self.check_outranked(&waiters);
        self.check_looks(&waiters);
    }

    /// A gang may wait beside a vacant slot. A slot may be kept for a hint, or for a member of a gang
    /// until the others have their slots.
    fn note_idle(&mut self, waiters: &[Waiter]) {
        let alone = waiters.iter().filter(|waiter| !self.is_ganged(waiter.ctx));
        let wanted = alone.fold(0, |wanted, waiter| wanted | waiter.slots);
        let is_idle = |&i: &usize| {
            let is_vacant = self.machine.slot_state(sid(i)) == Some(SlotState::Vacant);
            let is_kept = self
                .machine
                .reserved_for(sid(i))
                .or(self.successor(sid(i)))
                .is_some();
            is_vacant && !is_kept && wanted & sid(i).bit() != 0
        };
        let idle = (0..self.plans.len()).filter(is_idle);
        self.rules.idle = idle.fold(0, |idle, i| idle | sid(i).bit());
    }

    fn is_ganged(&self, ctx: ContextId) -> bool {
        self.machine.gang_size(ctx).is_ok_and(|size| size > 1)
    }

    fn has_gangs(&self) -> bool {
        let mut open = self.tenants.values().filter(|tenant| !tenant.closed);
        open.any(|tenant| self.is_ganged(tenant.id))
    }

    fn check_places(&mut self) {
        let ids: Vec<_> = self.tenants.keys().copied().collect();
        for ctx in ids {
            let Ok(stats) = self.machine.stats(ctx, ns(self.now)) else {
                continue;
            };
            let slots = || (0..self.plans.len()).map(sid);
            let on = slots().filter(|&slot| {
                let state = self.machine.slot_state(slot);
                state.and_then(SlotState::context) == Some(ctx)
            });
            let bound = slots().filter(|&slot| self.successor(slot) == Some(ctx));
            let kept = slots().filter(|&slot| self.machine.reserved_for(slot) == Some(ctx));
            let (on, bound, kept) = (on.count(), bound.count(), kept.count());
            let holds = match stats.state {
                JobState::Queued => on == 0 && bound <= 1 && kept == 0,
                // A relay may hold an order with the context.
                JobState::Running => on + bound <= 1 && kept == 0,
                _ => on == 0 && bound == 0 && kept <= 1,
            };
            self.must(holds, Rule::OnePlace, || {
                format!(
                    "{ctx:?}, {:?}: on {on}, bound to {bound}, kept {kept}",
                    stats.state
                )
            });
        }
    }

    /// Returns the context that runs next on a slot, whatever happens, and is not on its way there.
    fn successor(&self, slot: SlotId) -> Option<ContextId> {
        self.machine.successor(slot)
    }

    /// Does a context have its slot, as the successor there?
    fn is_bound(&self, ctx: ContextId) -> bool {
        (0..self.plans.len()).any(|i| self.successor(sid(i)) == Some(ctx))
    }

    fn rank(&self, params: &Params) -> Rank {
        let policy = self.machine.policy();
        if policy == PolicyKind::Deadline && params.budget != Duration::ZERO {
            return (0, 0);
        }
        let urgent = params.urgency == Urgency::LatencyCritical;
        let key = match policy {
            PolicyKind::Priority => Params::PRIORITY_MAX - params.priority,
            _ => 0,
        };
        (if urgent { 1 } else { 2 }, key)
    }

    fn rank_of(&self, ctx: ContextId) -> Option<Rank> {
        // The owner of a job on a slot may have closed its context.
        Some(self.rank(&self.machine.params(ctx).ok()?))
    }

    fn waiters(&self) -> Vec<Waiter> {
        let of = |tenant: &super::Tenant| {
            let ctx = tenant.id;
            let stats = self.machine.stats(ctx, ns(self.now)).ok()?;
            let params = self.machine.params(ctx).ok()?;
            let slots = self.class_mask(tenant.class) & params.mask & !self.quarantined;
            let slots = slots & !self.foreign(tenant.group);
            let waits = stats.state == JobState::Queued && !stats.throttled && tenant.enabled;
            let rank = self.rank(&params);
            (waits && slots != 0).then_some(Waiter { ctx, rank, slots })
        };
        self.tenants.values().filter_map(of).collect()
    }

    /// Is the next decision about a slot due?
    fn is_due(&self, i: usize) -> bool {
        self.timers[i].is_some_and(|at| at <= self.now + AHEAD)
    }

    /// Is the job on a slot one that the starvation boost has started, within its slice?
    fn is_boosted(&self, i: usize, ctx: ContextId) -> bool {
        let run = self.rules.runs.get(&i).filter(|run| run.boosted);
        let most = self.slice(i, ctx) + 2 * self.most_restore(i);
        run.is_some_and(|run| self.now < run.since + most)
    }

    /// Returns how long the slice of a context is on slot `i`, at most.
    fn slice(&self, i: usize, ctx: ContextId) -> u64 {
        let params = self.machine.params(ctx);
        let own = params.map_or(0, |params| params.timeslice.as_ns());
        let stats = self.machine.slot_stats(sid(i), ns(self.now)).unwrap();
        let switch = 2 * (stats.save.as_ns() + stats.restore.as_ns());
        own.max(switch.min(SLICE_FLOOR_MAX))
    }

    fn most_restore(&self, i: usize) -> u64 {
        let stats = self.machine.slot_stats(sid(i), ns(self.now)).unwrap();
        stats.restore_max.max(stats.save_max).as_ns() + 100 * US
    }

    /// Returns the slots whose jobs a waiter is to preempt at once, and that do not leave.
    fn victims(&self, waiter: &Waiter) -> u8 {
        let is_victim = |&i: &usize| {
            let Some(SlotState::Running(ctx)) = self.machine.slot_state(sid(i)) else {
                return false;
            };
            let since = self.rules.runs.get(&i).map_or(0, |run| run.since);
            let unsavable = self.now < since + self.plans[i].unsavable;
            let outranks = self.rank_of(ctx).is_some_and(|rank| waiter.rank < rank);
            outranks && !unsavable && !self.is_boosted(i, ctx) && !self.is_due(i)
        };
        let own = (0..self.plans.len()).filter(|&i| waiter.slots & sid(i).bit() != 0);
        own.filter(is_victim).fold(0, |mask, i| mask | sid(i).bit())
    }

    /// Of the contexts that go first, as many as slots become vacant need no other slot.
    fn check_outranked(&mut self, waiters: &[Waiter]) {
        let leaves = |&i: &usize| {
            let state = self.machine.slot_state(sid(i));
            !matches!(state, Some(SlotState::Running(_) | SlotState::Quarantined))
        };
        let leaving = (0..self.plans.len()).filter(leaves);
        let leaving = leaving.fold(0, |mask, i| mask | sid(i).bit());
        for waiter in waiters {
            let first: Vec<_> = waiters
                .iter()
                .filter(|other| other.rank <= waiter.rank)
                .collect();
            if first.iter().any(|waiter| self.victims(waiter) == 0) {
                continue;
            }
            let slots: Vec<_> = first.iter().map(|waiter| waiter.slots & leaving).collect();
            let served = matched(&slots);
            self.must(served == first.len(), Rule::Outranked, || {
                format!("{first:?}: {served} of them have slots, of {leaving:x}")
            });
        }
    }

    fn check_hints(&mut self, waiters: &[Waiter]) {
        for i in 0..self.plans.len() {
            let holder = self.machine.reserved_for(sid(i));
            let Some(rank) = holder.and_then(|ctx| self.rank_of(ctx)) else {
                continue;
            };
            let takes = !matches!(self.machine.slot_state(sid(i)), Some(SlotState::Running(_)));
            let behind = waiters.iter().find(|waiter| {
                let may_use = waiter.slots & sid(i).bit() != 0;
                // A gang may not have its other slots.
                let waits = !self.is_bound(waiter.ctx) && !self.is_ganged(waiter.ctx);
                may_use && waiter.rank <= rank && waits
            });
            let holds = !takes || behind.is_none() || self.is_due(i);
            self.must(holds, Rule::HintBehind, || {
                format!("slot {i} is kept for {holder:?}, and {behind:?} waits")
            });
        }
    }

    /// The timer of a slot with a relay does not end slices.
    fn check_looks(&mut self, waiters: &[Waiter]) {
        if !matches!(
            self.machine.policy(),
            PolicyKind::Fair | PolicyKind::Deadline
        ) {
            return;
        }
        for i in 0..self.plans.len() {
            let state = self.machine.slot_state(sid(i));
            let (Some(SlotState::Running(ctx)), false) = (state, self.plans[i].relay) else {
                continue;
            };
            // Reservations have no slices, and a load delays what comes after it.
            let rank = self.rank_of(ctx).filter(|rank| rank.0 != 0);
            let rank = rank.filter(|_| self.rules.runs.contains_key(&i));
            let waits = waiters.iter().any(|waiter| {
                let may_use = waiter.slots & sid(i).bit() != 0;
                may_use && Some(waiter.rank) == rank && !self.is_bound(waiter.ctx)
            });
            let latest = self.now + self.slice(i, ctx) + self.most_restore(i);
            let holds = !waits || self.timers[i].is_some_and(|at| at <= latest);
            let at = self.timers[i];
            self.must(holds, Rule::LookedAt, || {
                format!("slot {i}: {at:?}, latest {latest}")
            });
        }
    }
}

/// Do the actions stop the job on a slot where it is?
fn is_told(actions: &[Action], on: SlotId) -> bool {
    actions.iter().any(|action| match *action {
        Action::Pause { slot, boundary, .. } => slot == on && !boundary,
        Action::Order { slot, order } => {
            let now = Stop::Paused {
                after: Duration::ZERO,
                boundary: false,
            };
            slot == on && order.stop == now
        }
        _ => false,
    })
}

/// Returns how many of the contexts, each with the slots that it may use, can have a slot at a time.
fn matched(wanted: &[u8]) -> usize {
    fn seat(i: usize, wanted: &[u8], seats: &mut [Option<usize>; 8], tried: &mut u8) -> bool {
        for slot in 0..8 {
            let bit = 1 << slot;
            if wanted[i] & bit == 0 || *tried & bit != 0 {
                continue;
            }
            *tried |= bit;
            if seats[slot].is_none_or(|other| seat(other, wanted, seats, tried)) {
                seats[slot] = Some(i);
                return true;
            }
        }
        false
    }
    let mut seats = [None; 8];
    let seated = (0..wanted.len()).filter(|&i| seat(i, wanted, &mut seats, &mut 0));
    seated.count()
}
