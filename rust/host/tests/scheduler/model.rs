// SPDX-License-Identifier: GPL-2.0

//! A card and a caller in virtual time, to drive the machine: owners, timers and interrupts.

pub mod card;
pub mod check;
pub mod rules;

use std::collections::{HashMap, HashSet};

use fermata_sched_host::sched::{
    Action, CardConfig, ContextConfig, ContextId, Duration, EndReason, Event, Failure, GroupKey,
    GroupPath, GroupSettings, JobState, LoadCost, NewJob, Params, Phase, PolicyKind,
    PreemptGranularity, Profile, Refusal, Scheduler, SlotConfig, SlotId, SlotState, Stats, Status,
    Time, Urgency, Wake,
};
use fermata_sched_host::storage;
use proptest::prelude::ProptestConfig;

use card::{Card, CardSlot, Job, Program, Relay};
use check::Measured;
use rules::Rules;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// Work that never ends.
pub const ENDLESS: u64 = 1_000_000 * MS;

/// Returns a configuration of `usual` cases, unless PROPTEST_CASES sets another number, that does
/// not record failed cases.
pub fn cases(usual: u32) -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(usual, |n| n.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A latency-critical context.
pub const CRITICAL: Params = Params {
    urgency: Urgency::LatencyCritical,
    ..Params::DEFAULT
};

/// Room for groups, beyond one for each context.
const GROUPS: usize = 6;

/// One slot as a test wants it.
#[derive(Clone, Copy, Debug)]
pub struct SlotPlan {
    /// Base profile: (settle, drain) in ns.
    pub base: Option<(u64, u64)>,
    /// Base profile: how long after a START no PAUSE may be written, in ns.
    pub unsavable: u64,
    pub class: u8,
    pub reset_before_resume: bool,
    /// A queue engine: it works on posted work, and leaves its slot when the queue is empty.
    pub queues: bool,
    pub granularity: PreemptGranularity,
    /// The slot has a relay.
    pub relay: bool,
}

pub const IRQ: SlotPlan = SlotPlan {
    base: None,
    unsavable: 0,
    class: 0,
    reset_before_resume: false,
    queues: false,
    granularity: PreemptGranularity::Anywhere,
    relay: false,
};

pub const RELAY: SlotPlan = SlotPlan { relay: true, ..IRQ };

pub const BASE: SlotPlan = SlotPlan {
    base: Some((500_000, 200_000)),
    unsavable: 0,
    class: 0,
    reset_before_resume: true,
    queues: false,
    granularity: PreemptGranularity::Anywhere,
    relay: false,
};

#[derive(Clone, Debug)]
pub struct Tenant {
    pub id: ContextId,
    pub group: GroupKey,
    pub class: u8,
    pub job: u64,
    pub work: u64,
    pub closed: bool,
    pub enabled: bool,
    /// Contexts with the same number are preempted, held and resumed together.
    gang: usize,
    /// How long it had run when it joined its group.
    ran_before: u64,
    queued_at: Option<u64>,
    /// Since when it has wanted no slot.
    rests_since: Option<u64>,
    pub longest_wait: u64,
}

pub struct World {
    pub machine: Scheduler,
    pub card: Card,
    pub now: u64,
    pub plans: Vec<SlotPlan>,
    timers: Vec<Option<u64>>,
    /// How often in a row the timer of each slot fired without effect and was armed again at once,
    /// and soon.
    refires: Vec<[u32; 2]>,
    irqs: Vec<(u64, usize)>,
    pub irq_delay: u64,
    pub timer_delay: u64,
    /// If a timer and an event of the card coincide, the timer goes first.
    pub timer_first: bool,
    pub log: Vec<(u64, Action)>,
    pub wakes: Vec<(ContextId, Wake)>,
    pub tenants: HashMap<ContextId, Tenant>,
    /// The last hint of each context.
    hints: HashMap<ContextId, u64>,
    closes: HashSet<ContextId>,
    pub released: HashSet<ContextId>,
    /// Operations on every context are done by [`World::sweep`] only.
    pub lazy: bool,
    /// The state is not checked after each event: what is measured takes long.
    pub lean: bool,
    /// Contexts whose owners were told that the card is gone.
    pub lost: HashSet<ContextId>,
    pub quarantined: u8,
    gone: bool,
    exclusive: Vec<Option<GroupKey>>,
    /// The group above a registered one.
    pub parents: HashMap<GroupKey, GroupKey>,
    /// A group was moved below another one: its earlier time does not count for its new parent.
    pub has_moved: bool,
    /// Time that contexts which have left the group ran in it.
    left: HashMap<GroupKey, u64>,
    gangs: usize,
    frozen: bool,
    ended: HashSet<Job>,
    past: HashMap<ContextId, Stats>,
    pub measured: Measured,
    pub rules: Rules,
}

/// Where the machine's actions go.
type Out<'a> = &'a mut dyn FnMut(Action);

pub fn sid(i: usize) -> SlotId {
    SlotId::new(u8::try_from(i).unwrap()).unwrap()
}

pub fn ns(t: u64) -> Time {
    Time::from_ns(t)
}

/// Returns a world of equal slots under a policy.
pub fn world(slots: usize, policy: PolicyKind) -> World {
    let mut world = World::new(&vec![IRQ; slots], 64);
    world.set_policy(policy).unwrap();
    world
}

impl World {
    pub fn new(plans: &[SlotPlan], capacity: usize) -> Self {
        let mut config = CardConfig::default();
        let mut card = Card::default();
        for (plan, slot) in plans.iter().zip(config.slots.iter_mut()) {
            let profile = match plan.base {
                Some((settle, _)) => Profile::Base {
                    settle: Duration::from_ns(settle),
                    unsavable: Duration::from_ns(plan.unsavable),
                },
                None if plan.relay => Profile::Relay,
                None => Profile::Irq,
            };
            let mut model = CardSlot::new(plan.base, plan.reset_before_resume, plan.granularity);
            model.queues = plan.queues;
            model.relay = plan.relay.then(Relay::default);
            *slot = Some(SlotConfig {
                profile,
                class: plan.class,
                reset_before_resume: plan.reset_before_resume,
                queues: plan.queues,
                granularity: plan.granularity,
                start_count: model.count,
            });
            card.slots.push(model);
        }
        // Tests of the protocol rely on the simplest order; tests of a policy choose their own.
        let storage = storage(capacity, capacity + GROUPS);
        let mut machine = Scheduler::new(&config, storage);
        machine.set_policy(ns(1), PolicyKind::RoundRobin).unwrap();
        while machine.sweep(ns(1), u32::MAX, &mut |_| ()) {}
        Self {
            machine,
            card,
            now: 1,
            plans: plans.to_vec(),
            timers: vec![None; plans.len()],
            refires: vec![[0; 2]; plans.len()],
            irqs: Vec::new(),
            irq_delay: 0,
            timer_delay: 0,
            timer_first: false,
            log: Vec::new(),
            wakes: Vec::new(),
            tenants: HashMap::new(),
            hints: HashMap::new(),
            closes: HashSet::new(),
            released: HashSet::new(),
            lazy: false,
            lean: false,
            lost: HashSet::new(),
            quarantined: 0,
            gone: false,
            exclusive: vec![None; plans.len()],
            parents: HashMap::new(),
            has_moved: false,
            left: HashMap::new(),
            gangs: 0,
            frozen: false,
            ended: HashSet::new(),
            past: HashMap::new(),
            measured: Measured::new(plans),
            rules: Rules::default(),
        }
    }

    /// Opens a context of group 0.
    pub fn open(&mut self, class: u8, params: Params) -> Result<ContextId, Refusal> {
        self.open_in(GroupKey(0), class, params)
    }

    pub fn open_in(
        &mut self,
        group: GroupKey,
        class: u8,
        params: Params,
    ) -> Result<ContextId, Refusal> {
        let before = self.machine.clone();
        let config = ContextConfig {
            class,
            params,
            group: self.path(group),
        };
        let result = self.machine.add(ns(self.now), config);
        match result {
            Ok(id) => {
                let tenant = Tenant {
                    id,
                    group,
                    class,
                    job: 0,
                    work: 0,
                    closed: false,
                    enabled: true,
                    gang: self.next_gang(),
                    ran_before: 0,
                    queued_at: None,
                    rests_since: Some(self.now),
                    longest_wait: 0,
                };
                assert!(self.tenants.insert(id, tenant).is_none(), "id used twice");
            }
            Err(_) => assert_eq!(before, self.machine, "refused, but changed"),
        }
        result
    }

    /// Opens a context of class 0 for every slot, with slices of `slice_ns`.
    pub fn tenant(&mut self, slice_ns: u64) -> ContextId {
        self.tenant_in(GroupKey(0), slice_ns)
    }

    /// The same, in another group.
    pub fn tenant_in(&mut self, group: GroupKey, slice_ns: u64) -> ContextId {
        let params = Params {
            timeslice: Duration::from_ns(slice_ns),
            ..Params::DEFAULT
        };
        self.open_in(group, 0, params).unwrap()
    }

    pub fn start(&mut self, ctx: ContextId, work: u64) -> Result<(), Refusal> {
        self.start_as(ctx, work, false)
    }

    /// `replayable`: the job may be run again from its beginning.
    pub fn start_as(&mut self, ctx: ContextId, work: u64, replayable: bool) -> Result<(), Refusal> {
        let job = NewJob {
            replayable,
            ..NewJob::default()
        };
        self.start_from(ctx, work, job, 0)
    }

    /// `done`: how much of `work` is done in the state from which a saved job resumes.
    pub fn start_from(
        &mut self,
        ctx: ContextId,
        work: u64,
        job: NewJob,
        done: u64,
    ) -> Result<(), Refusal> {
        let mut probe = self.machine.clone();
        let event = Event::Start { ctx, job };
        if probe.handle(ns(self.now), event, &mut |_| ()).is_ok() {
            let tenant = self.tenants.get_mut(&ctx).unwrap();
            tenant.job += 1;
            tenant.work = work;
            if job.replayable {
                self.card.replays.insert((ctx, tenant.job), 0);
            }
            if job.saved {
                self.card.import((ctx, tenant.job), done);
            }
        }
        self.event(event)
    }

    pub fn close(&mut self, ctx: ContextId) -> Result<(), Refusal> {
        let last = self.machine.stats(ctx, ns(self.now));
        if last.is_ok() {
            self.closes.insert(ctx);
            self.tenants.get_mut(&ctx).unwrap().closed = true;
            self.past.extend(last.map(|last| (ctx, last)));
        }
        let result = self.event(Event::Close { ctx });
        assert_eq!(result.is_ok(), last.is_ok());
        result
    }

    pub fn set_params(&mut self, ctx: ContextId, params: Params) -> Result<(), Refusal> {
        self.ask(
            |machine, now, out| machine.set_params(now, ctx, params, out),
            |_| (),
        )
    }

    pub fn set_enabled(&mut self, ctx: ContextId, enabled: bool) -> Result<(), Refusal> {
        self.ask(
            |machine, now, out| machine.set_enabled(now, ctx, enabled, out),
            |world| world.tenants.get_mut(&ctx).unwrap().enabled = enabled,
        )
    }

    pub fn set_gang(&mut self, ctx: ContextId, with: Option<ContextId>) -> Result<(), Refusal> {
        self.ask(
            |machine, now, out| machine.set_gang(now, ctx, with, out),
            |world| {
                let gang = match with {
                    Some(with) => world.tenants[&with].gang,
                    None => world.next_gang(),
                };
                world.tenants.get_mut(&ctx).unwrap().gang = gang;
            },
        )
    }

    /// Returns the number of a new gang.
    fn next_gang(&mut self) -> usize {
        self.gangs += 1;
        self.gangs
    }

    /// Returns the settings of a group, registered or not.
    pub fn group_settings(&self, group: GroupKey) -> GroupSettings {
        self.machine.group_settings(group).unwrap_or_default()
    }

    /// Registers a group with a weight below another one.
    pub fn nest(
        &mut self,
        group: GroupKey,
        parent: Option<GroupKey>,
        weight: u16,
    ) -> Result<(), Refusal> {
        let settings = GroupSettings {
            weight,
            ..self.group_settings(group)
        };
        self.set_group_below(group, parent, settings)
    }

    /// Registers a group or changes its settings, and regroups all contexts.
    pub fn set_group(&mut self, group: GroupKey, settings: GroupSettings) -> Result<(), Refusal> {
        let parent = self.parents.get(&group).copied();
        self.set_group_below(group, parent, settings)
    }

    pub fn set_group_below(
        &mut self,
        group: GroupKey,
        parent: Option<GroupKey>,
        settings: GroupSettings,
    ) -> Result<(), Refusal> {
        let taken = |world: &mut Self| {
            for (i, owner) in world.exclusive.iter_mut().enumerate() {
                if settings.slots & sid(i).bit() != 0 {
                    *owner = Some(group);
                } else if *owner == Some(group) {
                    *owner = None;
                }
            }
            let before = match parent {
                Some(parent) => world.parents.insert(group, parent),
                None => world.parents.remove(&group),
            };
            let has_contexts = world.tenants.values().any(|tenant| tenant.group == group);
            world.has_moved |= before != parent && has_contexts;
        };
        let all = self.groups();
        self.rules.regroups = true;
        self.ask(
            |machine, now, out| {
                machine.set_group(now, group, parent, settings, out)?;
                machine.regroup(now, all.into_iter(), out);
                Ok(())
            },
            taken,
        )
    }

    /// Removes the registration of a group, and regroups all contexts.
    pub fn remove_group(&mut self, group: GroupKey) -> Result<(), Refusal> {
        let mut all = self.groups();
        for (_, path) in &mut all {
            if path.group == group || path.level == Some(group) {
                path.level = None;
            }
        }
        self.rules.regroups = true;
        self.ask(
            |machine, now, out| {
                machine.remove_group(now, group, out)?;
                machine.regroup(now, all.into_iter(), out);
                Ok(())
            },
            |world| {
                let (before, parents) = (world.parents.len(), &mut world.parents);
                parents.retain(|&below, level| below != group && *level != group);
                world.has_moved |= before != parents.len();
                for owner in &mut world.exclusive {
                    *owner = owner.filter(|owner| *owner != group);
                }
            },
        )
    }

    /// Moves a context to another group.
    pub fn move_to(&mut self, ctx: ContextId, group: GroupKey) -> Result<(), Refusal> {
        let now = ns(self.now);
        let tenant = self.tenants.get_mut(&ctx).unwrap();
        if self.machine.is_gone() || tenant.group == group {
            return Ok(());
        }
        let Ok(stats) = self.machine.stats(ctx, now) else {
            return Ok(());
        };
        let run = stats.run.as_ns();
        *self.left.entry(tenant.group).or_default() += run - tenant.ran_before;
        (tenant.group, tenant.ran_before) = (group, run);
        let all = self.groups();
        self.rules.regroups = true;
        self.ask(
            |machine, now, out| {
                machine.regroup(now, all.into_iter(), out);
                machine.leave_foreign_gang(now, ctx, out);
                Ok(())
            },
            |world| {
                let gang = world.tenants[&ctx].gang;
                let foreign =
                    |other: &Tenant| other.gang == gang && !other.closed && other.group != group;
                if world.tenants.values().any(foreign) {
                    let alone = world.next_gang();
                    world.tenants.get_mut(&ctx).unwrap().gang = alone;
                }
            },
        )
    }

    /// Puts a group below a registered one, if the group is not registered itself.
    pub fn put_below(&mut self, group: GroupKey, level: GroupKey) -> Result<(), Refusal> {
        let is_registered = |key| self.machine.group_settings(key).is_some();
        if self.machine.is_gone() || is_registered(group) || !is_registered(level) {
            return Ok(());
        }
        self.has_moved |= self.parents.insert(group, level) != Some(level);
        let all = self.groups();
        self.ask(
            |machine, now, out| {
                machine.regroup(now, all.into_iter(), out);
                Ok(())
            },
            |_| {},
        )
    }

    fn path(&self, group: GroupKey) -> GroupPath {
        let level = self.parents.get(&group).copied();
        GroupPath { group, level }
    }

    /// Returns the group of each context.
    fn groups(&self) -> Vec<(ContextId, GroupPath)> {
        let tenants = self.tenants.values();
        tenants
            .map(|tenant| (tenant.id, self.path(tenant.group)))
            .collect()
    }

    /// Reserves slots for a group, in addition to those that it has; `None`: ends reservations.
    pub fn set_exclusive(&mut self, slots: u8, group: Option<GroupKey>) -> Result<(), Refusal> {
        if let Some(group) = group {
            let mut settings = self.group_settings(group);
            settings.slots |= slots;
            return self.set_group(group, settings);
        }
        let mut owners: Vec<_> = self.exclusive.iter().flatten().copied().collect();
        owners.dedup();
        for owner in owners {
            let mut settings = self.group_settings(owner);
            settings.slots &= !slots;
            self.set_group(owner, settings)?;
        }
        Ok(())
    }

    pub fn set_group_weight(&mut self, group: GroupKey, weight: u16) -> Result<(), Refusal> {
        let settings = GroupSettings {
            weight,
            ..self.group_settings(group)
        };
        self.set_group(group, settings)
    }

    pub fn set_policy(&mut self, policy: PolicyKind) -> Result<(), Refusal> {
        self.ask(|machine, now, _| machine.set_policy(now, policy), |_| ())
    }

    pub fn set_boost(&mut self, boost: Duration) -> Result<(), Refusal> {
        self.ask(
            |machine, now, out| machine.set_boost(now, boost, out),
            |_| (),
        )
    }

    /// Reports how long the Load of the job that was just started on a slot took.
    pub fn note_load(&mut self, i: usize, cost: LoadCost) {
        self.rules.note_load(i);
        self.ask(
            |machine, now, mut out| {
                machine.note_load(now, sid(i), cost, &mut out);
                Ok(())
            },
            |_| (),
        )
        .unwrap();
    }

    pub fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        self.machine.set_boundary_wait(wait)
    }

    /// Removes the card; the driver notices at its next read, or is told.
    pub fn vanish(&mut self) {
        self.card.gone = true;
    }

    pub fn event(&mut self, event: Event) -> Result<(), Refusal> {
        if matches!(event, Event::Gone)
            || matches!(event, Event::Status { status, .. } if status.is_gone())
        {
            self.gone = true;
        }
        self.ask(
            |machine, now, out| machine.handle(now, event, out),
            |world| match event {
                Event::Hint { ctx, at } => {
                    world.hints.insert(ctx, at.as_ns());
                }
                Event::Preempt { ctx, hold: true } | Event::Hold { ctx } => world.check_held(ctx),
                Event::Start { ctx, job } if job.held => {
                    assert_eq!(world.state(ctx), JobState::Held);
                }
                Event::Resume { ctx } if !world.machine.is_kept(ctx) => world.check_resumed(ctx),
                _ => {}
            },
        )
    }

    /// Runs a part of the sweeps, for at most `most` contexts.
    pub fn sweep(&mut self, most: u32) {
        self.tell(|machine, now, out| {
            machine.sweep(now, most, out);
        });
    }

    /// Makes a request to the machine, calls `note` if it was granted, and executes the machine's
    /// actions.
    fn ask(
        &mut self,
        request: impl FnOnce(&mut Scheduler, Time, &mut Out<'_>) -> Result<(), Refusal>,
        note: impl FnOnce(&mut Self),
    ) -> Result<(), Refusal> {
        let before = (!self.lean).then(|| self.machine.clone());
        let mut actions = Vec::new();
        let mut out: Out<'_> = &mut |action| actions.push(action);
        let result = request(&mut self.machine, ns(self.now), &mut out);
        let mut calls = vec![actions.len()];
        let sweeps = result.is_ok() && !self.lazy;
        while sweeps
            && self
                .machine
                .sweep(ns(self.now), u32::MAX, &mut |action| actions.push(action))
        {
            calls.push(actions.len());
        }
        calls.push(actions.len());
        if result.is_ok() {
            note(self);
        }
        let mut from = 0;
        for to in calls {
            self.check_call(&actions[from..to]);
            from = to;
        }
        self.rules.regroups = false;
        if !self.lean {
            self.measured.follow(&self.machine, ns(self.now), &actions);
        }
        self.follow(before.as_ref(), result, actions);
        result
    }

    fn follow(
        &mut self,
        before: Option<&Scheduler>,
        result: Result<(), Refusal>,
        actions: Vec<Action>,
    ) {
        if result.is_err() {
            assert!(actions.is_empty(), "refused, but acted: {actions:?}");
            let same = before.is_none_or(|before| *before == self.machine);
            assert!(same, "refused, but changed");
        }
        let mut reads = Vec::new();
        for action in actions {
            self.log.push((self.now, action));
            self.act(action, &mut reads);
        }
        if !self.lean {
            self.check();
        }
        for slot in reads {
            let status = self.card.read_status(self.now, slot.index());
            if status.is_gone() || !self.read_records(slot.index()) {
                self.event(Event::Status { slot, status }).unwrap();
            }
        }
    }

    fn act(&mut self, action: Action, reads: &mut Vec<SlotId>) {
        if self.gone {
            assert!(
                matches!(
                    action,
                    Action::Wake { .. } | Action::Lost { .. } | Action::Released { .. }
                ),
                "{action:?} after the card was gone"
            );
        }
        // Writes to a card whose removal was not noticed yet are lost.
        let dead = self.card.gone;
        let now = self.now;
        match action {
            Action::Load { slot, ctx } if !dead => {
                let tenant = &self.tenants[&ctx];
                let program = Program {
                    job: (ctx, tenant.job),
                    work: tenant.work,
                };
                match self.plans[slot.index()].relay {
                    true => self.card.write_entry(program),
                    false => self.card.load(now, slot.index(), program),
                }
            }
            Action::Unload { slot, .. } if !dead => self.card.unload(now, slot.index()),
            Action::Start {
                slot, ctx, resume, ..
            } if !dead => {
                assert_eq!(self.quarantined & slot.bit(), 0, "START in quarantine");
                let relayed = self.plans[slot.index()].relay;
                assert!(!self.frozen || relayed, "START while frozen");
                if !relayed {
                    self.card.start(now, slot.index(), ctx, resume);
                }
            }
            Action::Order { slot, order } if !dead => {
                assert_eq!(self.quarantined & slot.bit(), 0, "order in quarantine");
                let names = order.next.is_some();
                assert!(!self.frozen || !names, "named while frozen");
                let irqs = self.card.order(now, slot.index(), order);
                self.raise(irqs);
            }
            Action::Pause { slot, .. } if self.plans[slot.index()].relay => {}
            Action::Pause { slot, boundary, .. } if !dead => {
                let irqs = self.card.pause(now, slot.index(), boundary);
                self.raise(irqs);
            }
            Action::Reset { slot, hold, .. } if !dead => self.card.reset(now, slot.index(), hold),
            Action::Load { .. }
            | Action::Unload { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Order { .. }
            | Action::Reset { .. }
            | Action::Reserve { .. }
            | Action::Overrun { .. } => {}
            Action::Lost { ctx } => assert!(self.lost.insert(ctx), "lost twice"),
            Action::Ended { slot, ctx, run } => {
                if !matches!(run.reason, EndReason::Aborted(_)) && !self.plans[slot.index()].relay {
                    assert_eq!(self.machine_ctx(slot, ctx), ctx);
                }
            }
            Action::Stuck { ctx } => assert!(self.machine.is_stuck(ctx)),
            Action::ReadStatus { slot } => reads.push(slot),
            Action::Arm { slot, at } => {
                assert!(at.as_ns() >= now, "a timer is armed for the past");
                self.timers[slot.index()] = Some(at.as_ns());
            }
            Action::Wake { ctx, wake } => self.woken(ctx, wake),
            Action::Released { ctx } => {
                assert!(self.closes.contains(&ctx), "released, but not closed");
                assert!(self.released.insert(ctx), "released twice");
                self.card.released(now, ctx);
            }
            Action::Quarantine { slot, .. } => {
                assert_eq!(self.quarantined & slot.bit(), 0, "quarantined twice");
                self.quarantined |= slot.bit();
            }
        }
    }

    /// Returns the context that is loaded on a slot. A capture must precede every other step of a
    /// switch, while the registers of its own context are still loaded.
    fn machine_ctx(&self, slot: SlotId, ctx: ContextId) -> ContextId {
        let last = self.log.iter().rev().find_map(|(_, action)| match *action {
            Action::Load { slot: s, ctx } if s == slot => Some(Some(ctx)),
            Action::Unload { slot: s, .. } | Action::Reset { slot: s, .. } if s == slot => {
                // The reset that precedes a resume also precedes its Load.
                Some(None)
            }
            _ => None,
        });
        last.flatten()
            .unwrap_or_else(|| panic!("capture of {ctx:?} too late"))
    }

    fn woken(&mut self, ctx: ContextId, wake: Wake) {
        assert!(!self.closes.contains(&ctx), "woke an owner that is gone");
        let tenant = &self.tenants[&ctx];
        let job = (ctx, tenant.job);
        self.wakes.push((ctx, wake));
        match wake {
            Wake::Held | Wake::Empty => return,
            Wake::Done => assert!(self.card.finished.contains(&job), "{job:?} is not done"),
            Wake::Failed(Failure::Gone) => assert!(self.gone),
            Wake::Failed(failure) => {
                let params = self.machine.params(ctx).unwrap();
                let slots = self.class_mask(tenant.class) & params.mask & !self.quarantined;
                let stranded = slots == 0 && failure == Failure::Protocol;
                let guilty = self.card.guilty.contains(&job);
                assert!(guilty || stranded, "{job:?} is not guilty: {failure:?}");
            }
        }
        assert!(self.ended.insert(job), "{job:?} ended twice");
    }

    fn class_mask(&self, class: u8) -> u8 {
        let of_class = |(i, plan): (usize, &SlotPlan)| {
            if plan.class == class {
                sid(i).bit()
            } else {
                0
            }
        };
        self.plans.iter().enumerate().map(of_class).sum()
    }

    pub fn raise(&mut self, slots: Vec<usize>) {
        for slot in slots {
            self.irqs.push((self.now + self.irq_delay, slot));
        }
    }

    /// Advances time to `end`.
    pub fn run_until(&mut self, end: u64) {
        let mut steps = 0;
        while self.step(end) {
            steps += 1;
            assert!(steps < 1_000_000, "no progress in time");
        }
    }

    /// Advances time to the next timer, interrupt or event of the card, or to `end` if that is
    /// earlier. Returns whether there was one.
    pub fn step(&mut self, end: u64) -> bool {
        let timer = self
            .timers
            .iter()
            .flatten()
            .min()
            .map(|at| at + self.timer_delay);
        let irq = self.irqs.iter().map(|&(at, _)| at).min();
        let next = [timer, irq, self.card.next()].into_iter().flatten().min();
        let Some(next) = next.filter(|&next| next <= end) else {
            self.pass(end);
            let irqs = self.card.advance(self.now);
            self.raise(irqs);
            return false;
        };
        self.pass(next);
        if self.timer_first {
            self.fire();
        }
        let irqs = self.card.advance(self.now);
        self.raise(irqs);
        self.interrupt();
        self.fire();
        true
    }

    pub fn run_for(&mut self, span: u64) {
        self.run_until(self.now + span);
    }

    fn fire(&mut self) {
        for i in 0..self.timers.len() {
            if self.timers[i].is_some_and(|at| at + self.timer_delay <= self.now) {
                self.timers[i] = None;
                self.note_fire(i);
                let from = self.log.len();
                self.event(Event::Timer { slot: sid(i) }).unwrap();
                self.check_storm(i, from);
            }
        }
    }

    fn interrupt(&mut self) {
        let now = self.now;
        while let Some(i) = self.irqs.iter().position(|&(at, _)| at <= now) {
            let (_, slot) = self.irqs.swap_remove(i);
            self.read(slot);
        }
    }

    /// Reads the status register, as an interrupt handler does.
    pub fn read(&mut self, i: usize) {
        if self.plans[i].relay {
            if !self.card.gone {
                self.read_records(i);
            }
            return;
        }
        let status = self.card.read_status(self.now, i);
        self.event(Event::Status {
            slot: sid(i),
            status,
        })
        .unwrap();
    }

    /// Passes the records of a slot to the machine. Returns `false` if there is none.
    fn read_records(&mut self, i: usize) -> bool {
        let mut found = false;
        while let Some((_, run)) = self.machine.awaited_run(sid(i)) {
            let Some(record) = self.card.record(i, run) else {
                break;
            };
            found = true;
            self.ask(
                |machine, now, mut out| {
                    machine.take_record(now, sid(i), &record, &mut out);
                    Ok(())
                },
                |_| (),
            )
            .unwrap();
        }
        found
    }

    /// Posts work as a program does: rings the doorbell only if the engine has announced that it
    /// leaves its slot.
    pub fn post(&mut self, ctx: ContextId, work: u64) {
        if self.card.post(self.now, ctx, work) {
            self.event(Event::Ring { ctx }).unwrap();
        }
    }

    pub fn state(&self, ctx: ContextId) -> JobState {
        self.stats(ctx).state
    }

    pub fn stats(&self, ctx: ContextId) -> Stats {
        self.machine.stats(ctx, ns(self.now)).unwrap()
    }

    /// Returns the state of a context, if its owner has not closed it.
    pub fn stats_of(&self, ctx: ContextId) -> Option<JobState> {
        let stats = self.machine.stats(ctx, ns(self.now)).ok()?;
        Some(stats.state)
    }

    /// Returns the contexts that were started, in order.
    pub fn starts(&self) -> Vec<ContextId> {
        let start = |&(_, action): &(u64, Action)| match action {
            Action::Start { ctx, .. } => Some(ctx),
            _ => None,
        };
        self.log.iter().filter_map(start).collect()
    }

    /// Iterates over the times at which a timer was armed, in order.
    pub fn arms(&self) -> impl Iterator<Item = u64> + '_ {
        let is_arm = |(_, action): &&(u64, Action)| matches!(action, Action::Arm { .. });
        self.log.iter().filter(is_arm).map(|&(at, _)| at)
    }

    pub fn status(&mut self, i: usize, raw: u64) {
        self.event(Event::Status {
            slot: sid(i),
            status: Status::from_raw(raw),
        })
        .unwrap();
    }
}

/// Upper limit of a preempt timeout together with the attempts to reset the slot after it.
const REST: u64 = 11_000 * MS;

/// The card loses its state: all jobs are taken off the card before, and resume afterwards.
impl World {
    pub fn freeze(&mut self) {
        self.frozen = true;
        self.tell(|machine, now, out| machine.freeze(now, out));
    }

    /// Advances time until the frozen machine is at rest.
    pub fn rest(&mut self) {
        let end = self.now + REST;
        while !self.machine.is_at_rest() {
            assert!(self.now < end, "it never rests");
            self.run_for(MS);
        }
    }

    /// Sets up the card again after the loss of its state.
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
        self.cut_off();
        self.end_lost_runs();
    }

    /// The runs that [`World::cut_off`] gave up are over.
    pub fn end_lost_runs(&mut self) {
        self.tell(|machine, now, out| machine.lose_runs(now, out));
    }

    /// The card cannot be reached any more.
    pub fn cut_off(&mut self) {
        self.card.cut_off();
        for i in 0..self.plans.len() {
            self.lose_named(i);
            let state = self.machine.slot_state(sid(i));
            if let Some(SlotState::Running(ctx) | SlotState::Pausing(ctx)) = state {
                let job = (ctx, self.tenants[&ctx].job);
                // A job whose torn save was not noticed yet is lost only once.
                if !self.card.slots[i].tells_of_torn() {
                    self.card.lose(job);
                }
            }
            if let (Some(SlotState::Resetting(ctx)), true) = (state, self.has_ended_well(i)) {
                self.card.lose_last_dma((ctx, self.tenants[&ctx].job));
            }
        }
        self.machine.cut_off(ns(self.now));
        self.measured.cut_off();
        self.frozen = true;
    }

    /// Has the last run on a slot finished, or was it saved?
    fn has_ended_well(&self, i: usize) -> bool {
        let reason = self.log.iter().rev().find_map(|&(_, action)| match action {
            Action::Ended { slot, run, .. } if slot == sid(i) => Some(run.reason),
            _ => None,
        });
        matches!(
            reason,
            Some(EndReason::Paused | EndReason::Empty | EndReason::Finished)
        )
    }

    /// Loses the jobs that were named for a slot: whether the card took them is unknown.
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

    /// Makes a request that the machine cannot refuse, and executes its actions.
    fn tell(&mut self, what: impl FnOnce(&mut Scheduler, Time, &mut Out<'_>)) {
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
