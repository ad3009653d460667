// SPDX-License-Identifier: GPL-2.0

//! Invariants that hold after every event, and what tests check: actions, measurements and shares.

use std::collections::HashMap;
use std::iter::successors;

use fermata_sched_host::measure::{ContextMeter, Histogram, SlotHistograms};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, EndReason, GroupKey, JobState, Params, PauseCause, PolicyKind,
    RunEnd, Scheduler, SlotId, SlotState, StartTimes, Stats, Time, Urgency, WaitReason, MAX_SLOTS,
};
use proptest::prelude::prop_assert;
use proptest::test_runner::TestCaseError;

use super::{ns, sid, SlotPlan, Tenant, World, GROUPS, MS, US};

/// A timer that is due may be armed for this much later, so that other interrupts are handled first.
const SOON: u64 = 2 * US;

impl World {
    /// Checks the invariants that hold after every event.
    pub(super) fn check(&mut self) {
        self.machine.check_invariants(ns(self.now));
        for i in 0..self.plans.len() {
            let state = self.machine.slot_state(sid(i)).unwrap();
            let busy = matches!(
                state,
                SlotState::Running(_) | SlotState::Pausing(_) | SlotState::Resetting(_)
            );
            if busy {
                let at = self.timers[i].expect("a slot at work without a timer");
                let bound = self.now + 10_000 * MS;
                assert!(at <= bound, "timer of slot {i} too far away");
            }
            assert_eq!(state == SlotState::Gone, self.gone);
            assert_eq!(self.machine.exclusive(sid(i)), self.exclusive[i]);
            if !self.gone {
                let quarantined = self.quarantined & sid(i).bit() != 0;
                assert_eq!(state == SlotState::Quarantined, quarantined);
            }
        }
        let mut owners = vec![0; self.plans.len()];
        let ids: Vec<ContextId> = self.tenants.keys().copied().collect();
        for ctx in ids {
            self.check_context(ctx, &mut owners);
        }
        // Contexts that were named for a slot with a relay count as on that slot.
        let mut slots = owners.iter().zip(&self.plans);
        let is_one = slots.all(|(&n, plan)| n <= 1 || plan.relay);
        assert!(is_one, "two contexts on one slot");
        self.check_sums();
        self.check_gangs();
        self.check_rules();
    }

    /// Checks that the timer of slot `i`, which has just fired, is not armed again for a time that
    /// has come, or for a little later, over and over; `from`: the length of the log before.
    pub(super) fn check_storm(&mut self, i: usize, from: usize) {
        let acts = |(_, action): &(u64, Action)| {
            let is_idle = matches!(action, Action::Arm { .. } | Action::ReadStatus { .. });
            !is_idle
        };
        let is_idle = !self.log[from..].iter().any(acts);
        let within = |span| is_idle && self.timers[i].is_some_and(|at| at <= self.now + span);
        let again = [within(0), within(50 * US)];
        for (refires, again) in self.refires[i].iter_mut().zip(again) {
            *refires = if again { *refires + 1 } else { 0 };
        }
        let [at_once, soon] = self.refires[i];
        assert!(at_once < 24 && soon < 64, "a storm of timers on slot {i}");
    }

    /// The members of the gang of `ctx`, itself included.
    fn gang(&self, ctx: ContextId) -> Vec<ContextId> {
        let gang = self.tenants[&ctx].gang;
        let members = self.tenants.values();
        members
            .filter(|tenant| tenant.gang == gang && !tenant.closed)
            .map(|tenant| tenant.id)
            .collect()
    }

    /// Does a context wait for other members of its gang, which wait or are leaving a slot?
    fn waits_for_gang(&self, ctx: ContextId) -> bool {
        let is_leaving = |mate| {
            let slot = self.stats(mate).slot;
            let state = slot.and_then(|slot| self.machine.slot_state(slot));
            slot.is_some() && !matches!(state, Some(SlotState::Running(_)))
        };
        let mut gang = self.gang(ctx).into_iter();
        gang.any(|mate| mate != ctx && (self.state(mate) == JobState::Queued || is_leaving(mate)))
    }

    /// Is a slot claimed for a member of a gang, and waits for the slots of other members?
    fn is_claimed(&self, slot: SlotId) -> bool {
        let Some(ctx) = self.machine.successor(slot) else {
            return false;
        };
        let slots = (0..self.plans.len()).map(sid);
        let claims = slots.filter(|&slot| {
            let other = self.machine.successor(slot);
            other.is_some_and(|other| self.gang(ctx).contains(&other))
        });
        assert_eq!(self.state(ctx), JobState::Queued);
        let is_vacant = |slot| self.machine.slot_state(slot) == Some(SlotState::Vacant);
        assert!(
            claims.map(is_vacant).any(|vacant| !vacant),
            "all slots of a gang are vacant, and {ctx:?} waits"
        );
        true
    }

    fn check_gangs(&self) {
        for tenant in self.tenants.values().filter(|tenant| !tenant.closed) {
            let size = self.machine.gang_size(tenant.id);
            assert_eq!(size, Ok(self.gang(tenant.id).len() as u32));
        }
    }

    /// Checks a gang for which a hold was just requested: no member waits for a slot.
    pub(super) fn check_held(&self, ctx: ContextId) {
        for mate in self.gang(ctx) {
            assert_ne!(self.state(mate), JobState::Queued);
        }
    }

    /// Checks a gang that was just resumed: no member that may use a slot is held.
    pub(super) fn check_resumed(&self, ctx: ContextId) {
        for mate in self.gang(ctx) {
            let mask = self.machine.params(mate).unwrap().mask;
            let usable = self.class_mask(self.tenants[&mate].class) & !self.quarantined;
            assert!(self.state(mate) != JobState::Held || mask & usable == 0);
        }
    }

    /// Checks the reason why the job of a context waits. `usable`: the slots that it may use now.
    fn check_reason(&self, ctx: ContextId, stats: &Stats, usable: u8) {
        assert_eq!(stats.waits.is_some(), stats.state == JobState::Queued);
        let Some(reason) = stats.waits else { return };
        let tenant = &self.tenants[&ctx];
        match reason {
            WaitReason::Disabled => assert!(!tenant.enabled),
            WaitReason::NoSlot => assert!(tenant.enabled && stats.no_slot),
            WaitReason::Frozen => assert!(self.frozen && usable != 0),
            WaitReason::Budget | WaitReason::Cap => assert!(stats.throttled),
            WaitReason::GroupCap(group) => {
                let is_capped = self.group_settings(group).cap != 0;
                let is_above = self.lineage(tenant.group).any(|above| above == group);
                assert!(stats.throttled && is_capped && is_above);
            }
            WaitReason::Gang => assert!(self.gang(ctx).len() > 1),
            WaitReason::Turn => assert!(!self.frozen && usable != 0),
        }
    }

    fn check_context(&mut self, ctx: ContextId, owners: &mut [u32]) {
        let now = ns(self.now);
        let Ok(stats) = self.machine.stats(ctx, now) else {
            assert!(self.closes.contains(&ctx), "a context was lost");
            return;
        };
        let params = self.machine.params(ctx).unwrap();
        let class = self.tenants[&ctx].class;
        let mut usable = self.class_mask(class) & params.mask & !self.quarantined;
        if stats.state == JobState::Queued {
            let sweeps = self.machine.is_sweeping();
            assert!(usable != 0 || sweeps, "{ctx:?} waits for nothing");
        }
        usable &= !self.foreign(self.tenants[&ctx].group);
        assert!(self.gone || stats.no_slot == (usable == 0));
        if !self.tenants[&ctx].enabled {
            usable = 0;
        }
        self.check_reason(ctx, &stats, usable);
        assert_eq!(stats.has_hold, self.machine.is_kept(ctx));
        let is_off = matches!(stats.state, JobState::Queued | JobState::Empty);
        assert!(!stats.has_hold || !is_off, "{ctx:?} has a hold: {stats:?}");
        assert_eq!(stats.slot.is_some(), stats.state == JobState::Running);
        if let Some(slot) = stats.slot {
            owners[slot.index()] += 1;
        }
        if let Some(slot) = self.machine.slot_of(ctx) {
            assert!(
                !stats.saved,
                "a snapshot in use on slot {slot:?} counts as saved"
            );
        }
        let named = stats.state == JobState::Running;
        if stats.saved && !named && !self.card.gone {
            let job = (ctx, self.tenants[&ctx].job);
            assert!(self.card.can_resume(job), "{job:?} saved, but not complete");
        }
        // Some contexts of a group at its cap may not be throttled yet.
        let capped = self.group_settings(self.tenants[&ctx].group).cap != 0;
        let settled = !self.frozen && !capped && !self.machine.is_sweeping();
        if stats.state == JobState::Queued && !stats.throttled && settled {
            for i in 0..self.plans.len() {
                if usable & sid(i).bit() != 0 {
                    let state = self.machine.slot_state(sid(i)).unwrap();
                    // A decision starts only one job; the next decision follows at once.
                    let left = self.timers[i].is_some_and(|at| at <= self.now + SOON);
                    if state == SlotState::Vacant
                        && !left
                        && !self.is_throttling()
                        && !self.waits_for_gang(ctx)
                        && !self.is_claimed(sid(i))
                        && !self.has_claim(ctx)
                    {
                        self.check_kept(i, &params);
                    }
                }
            }
        }
        assert!(!self.gone || !stats.state.is_live() || self.machine.is_sweeping());
        let tenant = self.tenants.get_mut(&ctx).unwrap();
        let may_run = !stats.throttled && !stats.no_slot && stats.enabled;
        let waits = stats.state == JobState::Queued && may_run;
        match (waits, tenant.queued_at) {
            (true, None) => tenant.queued_at = Some(self.now),
            (true, Some(_)) => {}
            (_, None) => {}
            (_, Some(at)) => {
                tenant.longest_wait = tenant.longest_wait.max(self.now - at);
                tenant.queued_at = None;
            }
        }
        let wants_slot = matches!(stats.state, JobState::Queued | JobState::Running);
        let rests_since = tenant.rests_since.take().unwrap_or(self.now);
        if !wants_slot {
            assert_eq!(stats.lasted.as_ns(), self.now - rests_since);
            tenant.rests_since = Some(rests_since);
        }
        let ended = self.ended.contains(&(ctx, tenant.job));
        assert_eq!(
            ended,
            matches!(stats.state, JobState::Done | JobState::Failed(_))
        );
        assert_eq!(stats.job, tenant.job);
        // The machine may not have noticed yet what happened to a job that is on a slot.
        if stats.state != JobState::Running && !self.gone {
            let replays = self.card.replays.get(&(ctx, tenant.job));
            assert_eq!(stats.replays, replays.copied().unwrap_or(0));
        }
        let live = u64::from(stats.state.is_live());
        assert_eq!(stats.finished + stats.failed + live, stats.job);
        assert!(
            stats.resumes <= stats.preemptions + self.card.imports_of(ctx),
            "resumed more often than saved"
        );
        assert!(
            stats.slices - stats.resumes <= stats.job + self.card.replays_of(ctx),
            "a job began twice"
        );
    }

    /// Is another slot claimed for a context? A decision starts only one job, and the timer of that
    /// slot triggers the next decision.
    fn has_claim(&self, ctx: ContextId) -> bool {
        (0..self.plans.len()).any(|i| self.machine.successor(sid(i)) == Some(ctx))
    }

    /// May contexts of a group at its cap still have to be throttled? If so, a slot may stay vacant
    /// until the next decision, which follows soon.
    fn is_throttling(&self) -> bool {
        let capped = |tenant: &Tenant| self.group_settings(tenant.group).cap != 0;
        let soon = self.now + 50 * US;
        self.tenants.values().any(capped) && self.timers.iter().flatten().any(|&at| at <= soon)
    }

    /// Checks that slot `i`, which is vacant although a context with these parameters waits, is
    /// kept for a context that would preempt the waiter at once, and for a limited time.
    fn check_kept(&self, i: usize, waits: &Params) {
        let holder = self.machine.reserved_for(sid(i));
        let holder = holder.unwrap_or_else(|| panic!("slot {i} idles while one waits"));
        let policy = self.machine.policy();
        let reserves =
            |params: &Params| policy == PolicyKind::Deadline && params.budget != Duration::ZERO;
        let critical = |params: &Params| params.urgency == Urgency::LatencyCritical;
        assert!(
            !critical(waits) && !reserves(waits),
            "slot {i} is kept from its betters"
        );
        let params = self.machine.params(holder).unwrap();
        let higher = policy == PolicyKind::Priority && params.priority > waits.priority;
        assert!(
            critical(&params) || reserves(&params) || higher,
            "slot {i} is kept from equals"
        );
        let stats = self.stats(holder);
        assert!(
            stats.state.wants_nothing(),
            "slot {i} is kept for {:?}",
            stats.state
        );
        assert!(stats.enabled && params.mask & sid(i).bit() != 0);
        // The hint expires one save after its time, but no later than this, and timers are late.
        let most = self.hints[&holder] + MS + 3 * self.timer_delay;
        assert!(self.now <= most, "slot {i} is kept for ever");
    }

    fn check_sums(&self) {
        let now = ns(self.now);
        let living = self
            .tenants
            .keys()
            .filter_map(|&ctx| self.machine.stats(ctx, now).ok());
        let mut sums = [0_i64; 4];
        for stats in living.chain(self.past.values().copied()) {
            let counts = [
                stats.run.as_ns(),
                stats.slices,
                stats.preemptions,
                stats.resumes,
            ];
            add(&mut sums, counts, 1);
        }
        let slots = (0..self.plans.len()).map(|i| self.machine.slot_stats(sid(i), now).unwrap());
        for stats in slots {
            let counts = [stats.busy.as_ns(), stats.starts, stats.saves, stats.resumes];
            add(&mut sums, counts, -1);
        }
        match self.may_drop() {
            // Only its record tells how long it ran until then.
            true => assert!(sums[1..].iter().all(|&sum| sum <= 0), "sums differ"),
            false => assert_eq!(sums, [0; 4], "sums differ"),
        }
        self.check_groups();
    }

    /// May a relay have dropped a job whose context was closed? Its time on the slot since then is
    /// in no context's statistics.
    fn may_drop(&self) -> bool {
        self.plans.iter().any(|plan| plan.relay) && !self.past.is_empty()
    }

    /// Checks that the statistics of groups agree with those of their contexts.
    fn check_groups(&self) {
        let now = ns(self.now);
        let mut sums: HashMap<GroupKey, (u32, u64)> = HashMap::new();
        for (&group, &run) in &self.left {
            for group in self.lineage(group) {
                sums.entry(group).or_default().1 += run;
            }
        }
        for tenant in self.tenants.values() {
            let stats = self.machine.stats(tenant.id, now);
            if stats.is_ok() {
                let group = self.machine.group_of(tenant.id);
                assert_eq!(group, Ok(tenant.group));
            }
            let ran = stats.unwrap_or_else(|_| self.past[&tenant.id]).run;
            for group in self.lineage(tenant.group) {
                let (contexts, run) = sums.entry(group).or_default();
                *contexts += u32::from(!self.released.contains(&tenant.id));
                *run += ran.as_ns() - tenant.ran_before;
            }
        }
        // Three classes, two urgencies; four registrations.
        let forgets = 6 * sums.len() + 4 > self.machine.capacity() + GROUPS;
        for (group, (contexts, run)) in sums {
            let stats = self.machine.group_stats(group, now);
            assert_eq!(stats.contexts, contexts, "{group:?}");
            if self.has_moved || self.may_drop() {
                continue;
            }
            // The statistics of a group that was forgotten restart from zero.
            assert!(stats.run.as_ns() <= run, "{group:?}");
            assert!(stats.run.as_ns() == run || forgets, "{group:?}");
        }
    }

    /// Returns a group and its ancestors.
    pub(super) fn lineage(&self, group: GroupKey) -> impl Iterator<Item = GroupKey> + '_ {
        successors(Some(group), |group| self.parents.get(group).copied())
    }

    /// Returns the slots that are reserved for groups other than `group` and its ancestors.
    pub(super) fn foreign(&self, group: GroupKey) -> u8 {
        let taken = |(i, owner): (usize, &Option<GroupKey>)| match owner {
            Some(owner) if self.lineage(group).all(|own| own != *owner) => sid(i).bit(),
            _ => 0,
        };
        self.exclusive.iter().enumerate().map(taken).sum()
    }
}

fn add(sums: &mut [i64; 4], counts: [u64; 4], sign: i64) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += sign * i64::try_from(count).unwrap();
    }
}

impl World {
    /// Returns the register actions since entry `from` of the log, without timers and wakes, and
    /// without the fields that only reports show.
    pub fn actions(&self, from: usize) -> Vec<Action> {
        let register = |action: &Action| {
            !matches!(
                action,
                Action::Arm { .. }
                    | Action::Wake { .. }
                    | Action::Lost { .. }
                    | Action::Reserve { .. }
                    | Action::Overrun { .. }
                    | Action::Ended {
                        run: RunEnd {
                            reason: EndReason::Aborted(_),
                            ..
                        },
                        ..
                    }
            )
        };
        let actions = self.log[from..].iter().map(|&(_, action)| plain(action));
        actions.filter(register).collect()
    }

    pub fn position(&self, action: Action) -> usize {
        let found = self.log.iter().position(|&(_, a)| plain(a) == action);
        found.unwrap_or_else(|| panic!("no {action:?} in {:?}", self.log))
    }
}

/// Returns an action without the fields that only reports show.
fn plain(action: Action) -> Action {
    match action {
        Action::Start {
            slot,
            ctx,
            resume,
            boosted,
            ..
        } => Action::Start {
            slot,
            ctx,
            resume,
            boosted,
            times: StartTimes::default(),
        },
        Action::Pause {
            slot,
            ctx,
            boundary,
            cause,
            ..
        } => Action::Pause {
            slot,
            ctx,
            boundary,
            cause,
            late: None,
        },
        Action::Ended { slot, ctx, run } if !matches!(run.reason, EndReason::Aborted(_)) => {
            ended(slot, ctx)
        }
        action => action,
    }
}

/// Returns the START of a job that is not boosted, as in [`World::actions`].
pub fn start(slot: SlotId, ctx: ContextId, resume: bool) -> Action {
    Action::Start {
        slot,
        ctx,
        resume,
        boosted: false,
        times: StartTimes::default(),
    }
}

/// Returns a PAUSE that is not at a boundary, as in [`World::actions`].
pub fn pause(slot: SlotId, ctx: ContextId, cause: PauseCause) -> Action {
    Action::Pause {
        slot,
        ctx,
        boundary: false,
        cause,
        late: None,
    }
}

/// Returns the end of a run that was not aborted, as in [`World::actions`].
pub fn ended(slot: SlotId, ctx: ContextId) -> Action {
    let run = RunEnd {
        reason: EndReason::Finished,
        span: Duration::ZERO,
        save: None,
        restore: Duration::ZERO,
    };
    Action::Ended { slot, ctx, run }
}

/// The measurements of a world, which must agree with the scheduler's own counters.
pub struct Measured {
    pub slots: [SlotHistograms; MAX_SLOTS],
    pub contexts: HashMap<ContextId, ContextMeter>,
    plans: Vec<SlotPlan>,
    /// Runs have ended that the machine did not report.
    cut: bool,
}

impl Measured {
    pub fn new(plans: &[SlotPlan]) -> Self {
        Self {
            slots: [const { SlotHistograms::EMPTY }; MAX_SLOTS],
            contexts: HashMap::new(),
            plans: plans.to_vec(),
            cut: false,
        }
    }

    /// Takes measurements from the actions of a call of the scheduler.
    pub fn follow(&mut self, machine: &Scheduler, now: Time, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Start {
                    slot, ctx, times, ..
                } => {
                    self.slots[slot.index()].note_start(times, now);
                    self.meter(*ctx).note_start(times, now);
                }
                Action::Pause { slot, late, .. } => self.slots[slot.index()].note_pause(*late),
                Action::Ended { slot, ctx, run } => {
                    self.slots[slot.index()].note_end(run);
                    self.meter(*ctx).note_end(run);
                }
                _ => {}
            }
        }
        self.check(machine, now);
    }

    fn meter(&mut self, ctx: ContextId) -> &mut ContextMeter {
        self.contexts.entry(ctx).or_insert(ContextMeter::NEW)
    }

    /// Notes that runs end which the machine does not report.
    pub fn cut_off(&mut self) {
        self.cut = true;
    }

    fn check(&self, machine: &Scheduler, now: Time) {
        let lost = self.cut || machine.is_gone();
        for (ctx, meter) in &self.contexts {
            self.check_context(machine, now, *ctx, meter, lost);
        }
        for (i, measured) in self.slots.iter().enumerate() {
            for histogram in histograms(measured) {
                assert_eq!(histogram.count, histogram.buckets.iter().sum::<u64>());
            }
            let Some(stats) = machine.slot_stats(sid(i), now) else {
                continue;
            };
            // Between two STARTs there is one gap at the most.
            assert!(measured.gap.count < stats.starts.max(1));
            let plan = &self.plans[i];
            let measurable = !plan.relay && !plan.queues && plan.granularity == Default::default();
            assert!(measured.save.count <= stats.saves);
            if measurable {
                assert_eq!(measured.save.count, stats.saves, "slot {i}");
            }
            assert_eq!(measured.save.max, stats.save_max.as_ns());
            assert!(measured.overrun.count <= stats.pauses);
            if measured.restore.count != 0 {
                assert_eq!(measured.restore.max, stats.restore_max.as_ns());
            }
        }
    }

    fn check_context(
        &self,
        machine: &Scheduler,
        now: Time,
        ctx: ContextId,
        meter: &ContextMeter,
        lost: bool,
    ) {
        let Ok(stats) = machine.stats(ctx, now) else {
            return;
        };
        let measured = &meter.histograms;
        assert_eq!(measured.wait.count, stats.slices);
        assert!(measured.wait.sum <= stats.wait.as_ns());
        if machine.slot_of(ctx).is_some() {
            assert_eq!(measured.wait.sum, stats.wait.as_ns());
        }
        // An arrival is a job, or a doorbell for an empty queue.
        assert!(measured.arrival.count <= stats.slices);
        if lost {
            return;
        }
        // The last run of a context on a slot may have ended or not.
        let running = u64::from(stats.state == JobState::Running);
        assert!(measured.run.count + running >= stats.slices && measured.run.count <= stats.slices);
        if measured.run.count == stats.slices {
            assert_eq!(measured.run.sum, stats.run.as_ns());
        }
    }
}

fn histograms(slot: &SlotHistograms) -> [&Histogram; 5] {
    [
        &slot.gap,
        &slot.save,
        &slot.restore,
        &slot.overrun,
        &slot.latency,
    ]
}

/// Returns how long a context has run, in ns.
pub fn ran(world: &World, ctx: ContextId) -> f64 {
    world.stats(ctx).run.as_ns() as f64
}

/// Returns the share of each value in the sum.
pub fn shares(had: &[f64]) -> Vec<f64> {
    let all: f64 = had.iter().sum();
    had.iter().map(|had| had / all).collect()
}

/// Checks that each share differs by less than `most` from the share that its weight gives.
pub fn check_shares(had: &[f64], weights: &[u16], most: f64) -> Result<(), TestCaseError> {
    let due: Vec<f64> = weights.iter().map(|&weight| weight.into()).collect();
    for (share, due) in shares(had).into_iter().zip(shares(&due)) {
        prop_assert!((share - due).abs() < most, "{share} for {due}: {weights:?}");
    }
    Ok(())
}
