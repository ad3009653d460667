// SPDX-License-Identifier: GPL-2.0

//! One state, of the machine, the card and the owners, and the step to the next state.

mod actions;
mod check;
mod orders;
mod relay;
mod steps;

use std::fmt;
use std::hash::{Hash, Hasher};

use fermata_sched_host::sched::{
    Action, CardConfig, ContextId, Duration, Event, GroupKey, Order, PolicyKind,
    PreemptGranularity, Profile, Refusal, Scheduler, SlotConfig, SlotId, SlotState, Status, Stop,
    Time,
};

use crate::card::{CardSlot, IgnoredResets};
use crate::key::Key;
use crate::{Bounds, Rule, Step};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
const TIMEOUT: u64 = 2 * MS;
/// Longer than the time between two polls of a reset.
const SETTLE: u64 = 3 * MS;
/// Shorter than the time after which a PAUSE is repeated.
const BOUNDARY_WAIT: u64 = 100 * US;
/// Minimum time between hints of a context that starts no job between them.
const INTERVAL: u64 = 100 * US;
/// The time to the next decision if one decision does not do all.
const SOON: u64 = 50 * US;
/// More decisions in a row than this, each so soon after the one before and without effect, are a
/// storm.
const REFIRES: usize = 4;
/// How late a late timer is: so much that all other timers are due as well.
const LATE: u64 = 70 * MS;
/// A base status that is older than this after START spoils the job.
const LAG_MAX: u64 = 50 * MS;

/// The contents of a context's snapshot buffer, with respect to the current job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshot {
    None,
    Torn,
    Complete,
    Used,
}

/// A job, as owner and card see it.
#[allow(clippy::struct_excessive_bools, reason = "what happened to it")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// `START_NEW` was written for it.
    begun: bool,
    /// The engine has finished the job.
    finished: bool,
    /// A misbehaviour has hit it, so that it may fail.
    spoilt: bool,
    /// Its owner was notified of the end.
    pub(crate) ended: bool,
    /// Its owner was notified that it is held, and has not requested Resume since.
    pub(crate) held: bool,
}

/// The queue of a context.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// The queue has work that the engine has not taken.
    work: bool,
    /// The engine has announced that it leaves: a program that posts must ring the doorbell.
    idle: bool,
}

/// An owner and its context.
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) id: ContextId,
    pub(crate) mask: u8,
    pub(crate) closed: bool,
    pub(crate) group: GroupKey,
    /// Preempt with hold was accepted, and not taken back.
    hold: bool,
    /// How many holds it has.
    pub(crate) holds: u8,
    pub(crate) enabled: bool,
    /// Contexts with the same number are a gang.
    gang: usize,
    /// It waited when another member of its gang was started, and must follow at the next decision.
    follows: bool,
    /// Its job waited for a slot after the last step.
    waited: bool,
    /// The time of its hint; and when it gave the hint, unless it has started a job since.
    hint: Option<u64>,
    hinted: Option<u64>,
    pub(crate) job: Option<Job>,
    queue: Queue,
    snapshot: Snapshot,
    /// Relay: the results of a run were not read yet.
    results_due: bool,
}

impl Owner {
    fn new(id: ContextId, mask: u8, group: GroupKey, gang: usize) -> Self {
        Self {
            id,
            mask,
            closed: false,
            group,
            hold: false,
            holds: 0,
            enabled: true,
            gang,
            follows: false,
            waited: false,
            hint: None,
            hinted: None,
            job: None,
            queue: Queue::default(),
            snapshot: Snapshot::None,
            results_due: false,
        }
    }

    /// Returns the job, if it has not ended.
    pub(crate) fn live(&self) -> Option<Job> {
        self.job.filter(|job| !job.ended)
    }

    /// Must its job stay off slots?
    pub(crate) fn is_to_be_held(&self) -> bool {
        self.hold || self.holds > 0
    }

    /// May it be resumed, with `usable` slots in use?
    fn may_resume(&self, usable: u8) -> bool {
        self.live()
            .is_some_and(|job| !job.held || usable & self.mask != 0)
    }

    /// Notes a START of its job; `lost`: the card ignores it.
    fn begin(&mut self, resume: bool, lost: bool) {
        if let Some(job) = &mut self.job {
            job.begun = true;
            job.spoilt |= lost;
        }
        if !lost {
            self.snapshot = if resume {
                Snapshot::Used
            } else {
                Snapshot::None
            };
        }
    }

    fn resume(&mut self) {
        self.hold = false;
        let holds = self.holds > 0;
        if let Some(job) = &mut self.job {
            job.held &= holds;
        }
    }
}

/// A state.
#[derive(Clone)]
pub struct World {
    pub(crate) bounds: Bounds,
    pub(crate) machine: Scheduler,
    pub(crate) now: u64,
    pub(crate) slots: Vec<CardSlot>,
    pub(crate) owners: Vec<Option<Owner>>,
    /// Orders on their way to the card, each with its slot.
    posted: Vec<(usize, Order)>,
    /// Slots with a relay whose status is being read: the driver holds its lock.
    pub(crate) reads: Vec<usize>,
    /// The last id of each index that was released.
    dead: Vec<Option<ContextId>>,
    /// The card does not respond any more.
    pub(crate) vanished: bool,
    /// The machine was told that the card is gone.
    pub(crate) gone: bool,
    /// No job may be on the card.
    pub(crate) frozen: bool,
    /// The only group that the slots serve.
    pub(crate) exclusive: Option<GroupKey>,
    pub(crate) seen: Seen,
    /// The number of actions since the last timer fired, without timers and reads of the status.
    acts: u32,
    /// The contexts that were started, and that were told to pause, in the last step.
    started: Vec<usize>,
    paused: Vec<usize>,
    /// The first rule that the last step broke, and how.
    broken: Option<(Rule, String)>,
    /// All rules that the last step broke, one bit for each.
    breaches: u64,
    key: u64,
}

/// Where the machine's actions go.
type Out<'a> = &'a mut dyn FnMut(Action);

/// Events of the last step; that they occur at all shows that the model is not vacuous.
#[allow(
    clippy::struct_excessive_bools,
    reason = "one for each thing to happen"
)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) resumed: bool,
    pub(crate) finish_won: bool,
    pub(crate) timeout: bool,
    pub(crate) quarantined: bool,
    pub(crate) pause_lost: bool,
    pub(crate) pause_in_restore: bool,
    pub(crate) stale: bool,
    pub(crate) held: bool,
    pub(crate) released: bool,
    pub(crate) gone: bool,
    pub(crate) reset_retried: bool,
    pub(crate) snapshot_failed: bool,
    pub(crate) boundary: bool,
    pub(crate) bounded: bool,
    pub(crate) emptied: bool,
    pub(crate) rung: bool,
    pub(crate) kept: bool,
    pub(crate) hint_wasted: bool,
    pub(crate) together: bool,
    pub(crate) claimed: bool,
    pub(crate) followed: bool,
    pub(crate) thawed: bool,
    pub(crate) cut_off: bool,
    pub(crate) imported: bool,
    pub(crate) started_held: bool,
    pub(crate) held_twice: bool,
    pub(crate) hold_ended: bool,
    pub(crate) relayed: bool,
    pub(crate) order_late: bool,
    pub(crate) replaced: bool,
    pub(crate) withdrawn: bool,
    pub(crate) taken_late: bool,
    pub(crate) not_run: bool,
    pub(crate) dropped: bool,
    pub(crate) two_unread: bool,
    pub(crate) four_posted: bool,
    pub(crate) urgent_named: bool,
    pub(crate) order_ignored: bool,
    pub(crate) record_lost: bool,
    pub(crate) record_late: bool,
    pub(crate) refused: bool,
    pub(crate) stuck: bool,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.now / US)?;
        for i in 0..self.slots.len() {
            let state = self.machine.slot_state(slot_id(i));
            write!(f, " | slot {i}: {state:?}, card {:?}", self.slots[i].engine)?;
            if self.bounds.relay {
                self.write_relay(f, i)?;
            }
        }
        for owner in self.owners.iter().flatten() {
            let stats = self.machine.stats(owner.id, self.time());
            let state = stats.map(|stats| stats.state);
            write!(f, " | context {}: {state:?}", owner.id.index())?;
        }
        if let Some((rule, what)) = &self.broken {
            write!(f, " | BROKEN: {}: {what}", rule.text())?;
        }
        Ok(())
    }
}

pub(crate) fn slot_id(i: usize) -> SlotId {
    SlotId::new(i as u8).expect("a slot of the model")
}

/// Returns the slots of a configuration.
fn card_config(bounds: Bounds) -> CardConfig {
    let mut config = CardConfig::default();
    for slot in config.slots.iter_mut().take(bounds.slots) {
        *slot = Some(SlotConfig {
            profile: if bounds.relay {
                Profile::Relay
            } else if bounds.base {
                Profile::Base {
                    settle: Duration::from_ns(SETTLE),
                    unsavable: Duration::ZERO,
                }
            } else {
                Profile::Irq
            },
            class: 0,
            reset_before_resume: bounds.reset_before_resume,
            queues: bounds.queues,
            granularity: if bounds.boundary {
                PreemptGranularity::AnywhereOrBoundary
            } else {
                PreemptGranularity::Anywhere
            },
            start_count: 0,
        });
    }
    config
}

/// Does an action write a register?
fn writes(action: &Action) -> bool {
    matches!(
        action,
        Action::Load { .. }
            | Action::Unload { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Reset { .. }
            | Action::Order { .. }
    )
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> Self {
        // A group for each context, and a registered one.
        let room = bounds.contexts + usize::from(bounds.groups);
        // Its text is read in each state.
        let storage = fermata_sched_host::small_storage(bounds.contexts, room, room);
        let mut world = Self {
            bounds,
            machine: Scheduler::new(&card_config(bounds), storage),
            now: 100 * MS,
            slots: vec![CardSlot::new(); bounds.slots],
            owners: vec![None; bounds.contexts],
            posted: Vec::new(),
            reads: Vec::new(),
            dead: vec![None; bounds.contexts],
            vanished: false,
            gone: false,
            frozen: false,
            exclusive: None,
            seen: Seen::default(),
            acts: 0,
            started: Vec::new(),
            paused: Vec::new(),
            broken: None,
            breaches: 0,
            key: 0,
        };
        let wait = Duration::from_ns(BOUNDARY_WAIT);
        let set = world.machine.set_boundary_wait(wait);
        assert_eq!(set, Ok(()), "a wait within its range");
        let policy = if bounds.fair {
            PolicyKind::Fair
        } else {
            PolicyKind::RoundRobin
        };
        let now = world.time();
        let machine = &mut world.machine;
        let set = machine.set_policy(now, policy);
        assert_eq!(set, Ok(()), "a policy that exists");
        while machine.sweep(now, u32::MAX, &mut |_| ()) {}
        for _ in 0..bounds.contexts {
            world.open();
        }
        if bounds.gang {
            world.gang(0, true);
        }
        world.rekey();
        world
    }

    pub(crate) fn broken(&self, rule: Rule) -> bool {
        self.breaches >> rule as u32 & 1 != 0
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn time(&self) -> Time {
        Time::from_ns(self.now)
    }

    fn settle(&self) -> u64 {
        if self.bounds.base {
            SETTLE
        } else {
            0
        }
    }

    /// Checks a rule; only the first breach is kept.
    fn must(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if !holds {
            self.breaches |= 1 << rule as u32;
            self.broken.get_or_insert_with(|| (rule, what()));
        }
    }

    fn rekey(&mut self) {
        let mut key = Key::new(self.now, self.bounds.fair);
        let counts = key.machine(&self.machine);
        for (i, slot) in self.slots.iter().enumerate() {
            let expected = counts.starts.get(i).copied().unwrap_or_default();
            let vacant = self.machine.slot_state(slot_id(i)) == Some(SlotState::Vacant);
            let long = slot.lag && self.now - slot.started > LAG_MAX;
            key.word(u64::from(long));
            slot.key(&mut key, expected, self.bounds.base, self.settle(), vacant);
        }
        for owner in &self.owners {
            let mut word = 0;
            if let Some(owner) = owner {
                word |= 2;
                word |= u64::from(owner.closed) << 8 | u64::from(owner.hold) << 9;
                word |= u64::from(owner.enabled) << 10 | u64::from(owner.holds) << 28;
                word |= owner.group.0 << 11;
                word |= (owner.gang as u64) << 40 | u64::from(owner.follows) << 48;
                word |= u64::from(owner.mask) << 32;
                if let Some(job) = owner.live() {
                    word |= (owner.snapshot as u64) << 4;
                    let flags = [job.begun, job.finished, job.spoilt, job.ended, job.held];
                    for (bit, flag) in flags.into_iter().enumerate() {
                        word |= u64::from(flag) << (16 + bit);
                    }
                    word |= 1 << 24;
                    word |= u64::from(owner.queue.work) << 25 | u64::from(owner.queue.idle) << 26;
                    word |= u64::from(owner.results_due) << 27;
                }
            }
            key.word(word);
            if let Some(owner) = owner.as_ref().filter(|_| self.bounds.hints) {
                let early = owner.hinted.is_some_and(|at| self.now < at + INTERVAL);
                key.word(u64::from(early));
                key.deadline(owner.hint.unwrap_or_default());
            }
        }
        if self.bounds.relay {
            self.relay_key(&mut key);
        }
        key.word(u64::from(self.vanished) | u64::from(self.gone) << 1);
        // Otherwise this would equal a state met before in which the card has not lost its state.
        key.word(u64::from(self.seen.thawed));
        if let Some((rule, _)) = &self.broken {
            key.text(rule.text());
        }
        self.key = key.finish();
    }

    /// Returns the state after a step, or `None` if nothing changed.
    pub(crate) fn after(&self, step: Step) -> Option<Self> {
        let mut world = self.clone();
        world.seen = Seen {
            gone: self.gone,
            ..Seen::default()
        };
        world.started.clear();
        world.paused.clear();
        world.step(step);
        world.prune_orders();
        world.check();
        world.rekey();
        (world.key != self.key).then_some(world)
    }

    pub(crate) fn step(&mut self, step: Step) {
        let waited = !self.reads.is_empty();
        self.make(step);
        // Steps of the card between a read and its answer matter only if an order can still arrive.
        while !self.reads.is_empty() && self.posted.is_empty() && (!waited || step == Step::Answer)
        {
            self.read_next();
        }
    }

    fn make(&mut self, step: Step) {
        match step {
            Step::Open => self.open(),
            Step::Start(i) => self.start(i, false),
            Step::StartHeld(i) => self.start(i, true),
            Step::Preempt(i) => self.preempt(i, false),
            Step::Hold(i) => self.preempt(i, true),
            Step::Resume(i) => self.resume(i),
            Step::BeginHold(i) => self.begin_hold(i),
            Step::EndHold(i) => self.end_hold(i),
            Step::Close(i) => self.close(i),
            Step::Enable(i, enabled) => self.enable(i, enabled),
            Step::Post(i) => self.post(i),
            Step::Gang(i, joins) => self.gang(i, joins),
            Step::Hint(i, given) => self.hint(i, given),
            Step::Exclusive(i) => self.reserve(i),
            Step::Mask(i, mask) => self.mask(i, mask),
            Step::Timer(i) => self.timer(i, 0),
            Step::TimerLate(i) => self.timer(i, LATE),
            Step::TimerEarly(i) => self.timer_early(i),
            Step::Interrupt(i) => self.interrupt(i),
            Step::LoseInterrupt(i) => self.slots[i].irq = false,
            Step::Spurious(i) => self.read(i),
            Step::Stale(i) => self.read_stale(i),
            Step::LagOver(i) => self.slots[i].lag = false,
            Step::Arrive => self.arrive(),
            Step::Due(i) => self.due(i),
            Step::Look(i, visible) => {
                self.look(i, visible);
            }
            Step::Answer => self.read_next(),
            Step::IgnoreOrder => self.ignore_order(),
            Step::LoseRecord(i) => self.slots[i].relay.lose_record = true,
            Step::DelayRecord(i) => self.slots[i].relay.delay_record = true,
            Step::Refuse(i) => self.slots[i].relay.refuse = true,
            Step::Restored(i) => self.restored(i),
            Step::Finish(i) => self.finish(i),
            Step::Fault(i) => self.fault(i),
            Step::Boundary(i) => self.boundary(i),
            Step::Take(i) => self.take_work(i),
            Step::Leave(i) => self.leave(i),
            Step::Saved(i) => self.saved(i),
            Step::Tear(i) => self.tear(i),
            Step::Hang(i) => self.hang(i),
            Step::LosePause(i) => self.slots[i].lose_pause = true,
            Step::LoseStart(i) => self.slots[i].lose_start = true,
            Step::IgnoreResetOnce(i) => self.slots[i].ignored_resets = IgnoredResets::Next,
            Step::IgnoreResets(i) => self.slots[i].ignored_resets = IgnoredResets::All,
            Step::Freeze => self.freeze(),
            Step::Thaw => self.thaw(),
            Step::CutOff => self.cut_off(),
            Step::Vanish | Step::Gone => {
                self.vanished = true;
                self.posted.clear();
                if step == Step::Gone {
                    self.card_event(Event::Gone);
                }
            }
        }
    }

    /// Fires the timer of a slot, `late` ns after the time for which it was armed.
    fn timer(&mut self, i: usize, late: u64) {
        let mut fires = self.fire(i, late).then(|| self.clone());
        for _ in 0..REFIRES {
            fires = fires.and_then(|mut ahead| ahead.fire(i, 0).then_some(ahead));
        }
        self.must(fires.is_none(), Rule::TimerAhead, || {
            format!("the timer of slot {i} has no effect, and fires again and again")
        });
    }

    /// Fires the timer of a slot. Returns whether the timer fires again soon although it had no
    /// effect.
    fn fire(&mut self, i: usize, late: u64) -> bool {
        let at = self.slots[i].timer.take().unwrap_or_default();
        self.now = self.now.max(at) + late;
        self.acts = 0;
        self.card_event(Event::Timer { slot: slot_id(i) });
        self.acts == 0 && self.slots[i].timer.is_some_and(|at| at <= self.now + SOON)
    }

    fn timer_early(&mut self, i: usize) {
        // A timer stays armed only if the machine arms it again.
        self.slots[i].timer = None;
        self.card_event(Event::Timer { slot: slot_id(i) });
    }

    fn interrupt(&mut self, i: usize) {
        self.slots[i].irq = false;
        self.read(i);
    }

    /// Reports the status from before the last START.
    fn read_stale(&mut self, i: usize) {
        if self.bounds.relay {
            return self.read_old(i);
        }
        self.seen.stale = true;
        let status = Status::from_raw(self.slots[i].old);
        let slot = slot_id(i);
        self.card_event(Event::Status { slot, status });
    }

    /// Reads and reports the status register.
    fn read(&mut self, i: usize) {
        if self.bounds.relay {
            if !self.reads.contains(&i) {
                self.reads.push(i);
            }
            return;
        }
        if self.vanished {
            let (slot, status) = (slot_id(i), Status::ALL_ONES);
            self.card_event(Event::Status { slot, status });
            return;
        }
        let (base, now) = (self.bounds.base, self.now);
        let slot = &mut self.slots[i];
        slot.unflushed = false;
        if std::mem::take(&mut slot.posted) {
            slot.arrived = Some(now);
        }
        let status = Status::from_raw(slot.raw(base));
        if slot.lag && now - slot.started > LAG_MAX {
            self.spoil(i);
        }
        let slot = slot_id(i);
        self.card_event(Event::Status { slot, status });
    }

    fn card_event(&mut self, event: Event) {
        let result = self.event(event);
        self.must(result.is_ok(), Rule::Refused, || {
            format!("{event:?} of the card was refused")
        });
    }

    fn event(&mut self, event: Event) -> Result<(), Refusal> {
        let now = self.time();
        self.call(event, |machine, actions| {
            machine.handle(now, event, &mut |action| actions.push(action))
        })
    }

    /// Calls the machine, and executes its actions.
    fn call(
        &mut self,
        event: impl fmt::Debug,
        call: impl FnOnce(&mut Scheduler, &mut Vec<Action>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let before = self.machine.clone();
        let mut actions = Vec::new();
        let rests = self.frozen && self.machine.is_at_rest();
        let result = call(&mut self.machine, &mut actions);
        let now = self.time();
        let mut calls = vec![actions.len()];
        while result.is_ok()
            && self
                .machine
                .sweep(now, u32::MAX, &mut |action| actions.push(action))
        {
            calls.push(actions.len());
        }
        calls.push(actions.len());
        self.check_calls(&actions, &calls);
        let written = actions.iter().find(|action| writes(action));
        self.must(!rests || written.is_none(), Rule::Rest, || {
            format!("{event:?}: {written:?}")
        });
        if let Err(refusal) = result {
            let same = before == self.machine && actions.is_empty();
            self.must(same, Rule::Refused, || {
                format!("{event:?}: {refusal:?}, but {actions:?}")
            });
            return result;
        }
        self.gone = self.machine.is_gone();
        let mut reads = Vec::new();
        for action in actions {
            self.act(action, &mut reads);
        }
        for slot in reads {
            self.read(slot);
        }
        if self.gone {
            self.reads.clear();
            self.posted.clear();
        }
        result
    }

    /// Checks that no call starts two jobs, and notes which were boosted; `ends`: where the actions
    /// of each call end.
    fn check_calls(&mut self, actions: &[Action], ends: &[usize]) {
        for action in actions {
            if let Action::Start { slot, boosted, .. } = *action {
                self.slots[slot.index()].boosted = boosted;
            }
        }
        let begins = |action: &&Action| match action {
            Action::Start { .. } => !self.bounds.relay,
            Action::Order { order, .. } => order.stop == Stop::Vacant,
            _ => false,
        };
        let mut from = 0;
        let mut most = 0;
        for &to in ends {
            let starts = actions[from..to].iter().filter(begins).count();
            most = most.max(starts);
            from = to;
        }
        self.must(most <= 1, Rule::OneStart, || format!("{most} STARTs"));
    }

    pub(crate) fn quarantined(&self) -> u8 {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.quarantined)
            .fold(0, |mask, (i, _)| mask | slot_id(i).bit())
    }

    fn all_slots(&self) -> u8 {
        (0..self.slots.len()).fold(0, |mask, i| mask | slot_id(i).bit())
    }

    fn id(&self, i: usize) -> Option<ContextId> {
        self.owners[i].as_ref().map(|owner| owner.id)
    }

    /// Returns the broken rule, and how it was broken.
    pub fn breach(&self) -> Option<(Rule, &str)> {
        self.broken
            .as_ref()
            .map(|(rule, what)| (*rule, what.as_str()))
    }
}
