// SPDX-License-Identifier: GPL-2.0

//! One state: the machine, the card, the owners; and what one step does to it.

use std::fmt;
use std::hash::{Hash, Hasher};

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Entry, Event, Failure, GroupKey, JobState, Machine,
    MachineConfig, Params, PolicyKind, Profile, Refusal, SlotConfig, SlotId, SlotState, Status,
    Stops, Time, Urgency, Wake,
};

use crate::card::{CardSlot, Deaf, Engine, FAULT, SNAPSHOT_ERROR};
use crate::key::Key;
use crate::{Bounds, Rule, Step};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
const TIMESLICE: u64 = 2 * MS;
const TIMEOUT: u64 = 2 * MS;
/// Longer than the wait between two looks at a reset.
const SETTLE: u64 = 3 * MS;
/// So far ahead are hints.
const AHEAD: u64 = MS;
/// No hint holds for longer than this after its time.
const GRACE: u64 = MS;
/// Hints of a context that starts no job between them are no closer than this.
const INTERVAL: u64 = 100 * US;
/// A timer that is late is so late that all others are due as well.
const LATE: u64 = 70 * MS;
/// A base status that is older than this after START spoils the job.
const LAG_MAX: u64 = 50 * MS;

/// The bytes in a context's snapshot buffer, as far as the current job is concerned.
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
    /// The engine came to its end.
    finished: bool,
    /// A misbehaviour has hit it, so that it may fail.
    spoilt: bool,
    /// Its owner was told of the end.
    pub(crate) ended: bool,
    /// Its owner was told that it is held, and did not ask for Resume since.
    pub(crate) held: bool,
}

/// An owner and its context.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) id: ContextId,
    pub(crate) mask: u8,
    pub(crate) closed: bool,
    pub(crate) group: GroupKey,
    /// Preempt with hold was accepted, and not taken back.
    pub(crate) hold: bool,
    pub(crate) enabled: bool,
    /// Who has the same number is preempted, held and resumed together.
    gang: usize,
    /// When it will want a slot, as it said; and when it said so, unless it has started a job since.
    hint: Option<u64>,
    hinted: Option<u64>,
    pub(crate) job: Option<Job>,
    snapshot: Snapshot,
}

impl Owner {
    fn new(id: ContextId, mask: u8, group: GroupKey, gang: usize) -> Self {
        Self {
            id,
            mask,
            closed: false,
            group,
            hold: false,
            enabled: true,
            gang,
            hint: None,
            hinted: None,
            job: None,
            snapshot: Snapshot::None,
        }
    }

    /// A job that has begun and not ended.
    pub(crate) fn live(&self) -> Option<Job> {
        self.job.filter(|job| !job.ended)
    }

    /// Is Resume for it, with `usable` slots in use?
    fn may_resume(&self, usable: u8) -> bool {
        self.live()
            .is_some_and(|job| !job.held || usable & self.mask != 0)
    }

    fn resume(&mut self) {
        self.hold = false;
        if let Some(job) = &mut self.job {
            job.held = false;
        }
    }
}

/// A state.
#[derive(Clone)]
pub struct World {
    pub(crate) bounds: Bounds,
    pub(crate) machine: Machine<Box<[Entry]>>,
    pub(crate) now: u64,
    pub(crate) slots: Vec<CardSlot>,
    pub(crate) owners: Vec<Option<Owner>>,
    /// The last id of each index that was released.
    dead: Vec<Option<ContextId>>,
    /// The card answers no more.
    pub(crate) vanished: bool,
    /// The machine was told so.
    pub(crate) gone: bool,
    /// No job may be on the card.
    pub(crate) frozen: bool,
    /// The only group that the slots serve.
    pub(crate) exclusive: Option<GroupKey>,
    pub(crate) seen: Seen,
    broken: Option<(Rule, String)>,
    key: u64,
}

/// Where the machine's actions go.
type Out<'a> = &'a mut dyn FnMut(Action);

/// What happened in the last step: that it happens at all shows that the model is not empty.
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
    pub(crate) kept: bool,
    pub(crate) hint_wasted: bool,
    pub(crate) hint_ignored: bool,
    pub(crate) together: bool,
    pub(crate) thawed: bool,
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

/// Does an action write a register?
fn writes(action: &Action) -> bool {
    matches!(
        action,
        Action::Load { .. }
            | Action::Unload { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Reset { .. }
    )
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let mut config = MachineConfig::default();
        for slot in config.slots.iter_mut().take(bounds.slots) {
            *slot = Some(SlotConfig {
                profile: if bounds.base {
                    Profile::Base {
                        settle: Duration::from_ns(SETTLE),
                    }
                } else {
                    Profile::Fermata
                },
                class: 0,
                reset_before_resume: bounds.reset_before_resume,
                stops: if bounds.boundary {
                    Stops::BoundaryToo
                } else {
                    Stops::Anywhere
                },
                start_count: 0,
            });
        }
        let storage = vec![Entry::EMPTY; 2 * bounds.contexts].into_boxed_slice();
        let mut world = Self {
            bounds,
            machine: Machine::new(config, bounds.contexts, storage),
            now: 100 * MS,
            slots: vec![CardSlot::new(); bounds.slots],
            owners: vec![None; bounds.contexts],
            dead: vec![None; bounds.contexts],
            vanished: false,
            gone: false,
            frozen: false,
            exclusive: None,
            seen: Seen::default(),
            broken: None,
            key: 0,
        };
        let policy = if bounds.fair {
            PolicyKind::Fair
        } else {
            PolicyKind::RoundRobin
        };
        let now = world.time();
        let machine = &mut world.machine;
        let set = machine.set_policy(now, policy, &mut |_| ());
        assert_eq!(set, Ok(()), "a policy that exists");
        for _ in 0..bounds.contexts {
            world.open();
        }
        world.rekey();
        world
    }

    pub(crate) fn broken(&self, rule: Rule) -> bool {
        self.broken
            .as_ref()
            .is_some_and(|(broken, _)| *broken == rule)
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

    /// The first breach counts.
    fn must(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some((rule, what()));
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
                word |= u64::from(owner.enabled) << 10;
                word |= owner.group.0 << 11;
                word |= (owner.gang as u64) << 40;
                word |= u64::from(owner.mask) << 32;
                if let Some(job) = owner.live() {
                    word |= (owner.snapshot as u64) << 4;
                    let flags = [job.begun, job.finished, job.spoilt, job.ended, job.held];
                    for (bit, flag) in flags.into_iter().enumerate() {
                        word |= u64::from(flag) << (16 + bit);
                    }
                    word |= 1 << 24;
                }
            }
            key.word(word);
            if let Some(owner) = owner.as_ref().filter(|_| self.bounds.hints) {
                let early = owner.hinted.is_some_and(|at| self.now < at + INTERVAL);
                key.word(u64::from(early));
                key.deadline(owner.hint.unwrap_or_default());
            }
        }
        key.word(u64::from(self.vanished) | u64::from(self.gone) << 1);
        // Else the state is one that was met before, without the card having lost its state.
        key.word(u64::from(self.seen.thawed));
        if let Some((rule, _)) = &self.broken {
            key.text(rule.text());
        }
        self.key = key.finish();
    }

    /// What can happen.
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        if self.broken.is_some() {
            return;
        }
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
            steps.extend([Step::Start(i), Step::Close(i)]);
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
            if self.bounds.gangs {
                steps.push(Step::Gang(i, self.members(i).len() == 1));
            }
            if self.bounds.control {
                steps.extend([Step::Preempt(i), Step::Hold(i), Step::Resume(i)]);
                if self.bounds.slots > 1 && self.bounds.masks {
                    steps.extend(
                        (1..4)
                            .filter(|&m| m != owner.mask)
                            .map(|m| Step::Mask(i, m)),
                    );
                }
            }
        }
        for i in 0..self.slots.len() {
            self.slot_steps(i, steps);
        }
        if self.bounds.freeze && !self.frozen {
            steps.push(Step::Freeze);
        } else if self.machine.is_at_rest() {
            steps.push(Step::Thaw);
        }
        if self.bounds.gone && !self.gone {
            steps.push(Step::Gone);
            if !self.vanished {
                steps.push(Step::Vanish);
            }
        }
    }

    fn slot_steps(&self, i: usize, steps: &mut Vec<Step>) {
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
            steps.extend([Step::Interrupt(i), Step::LoseInterrupt(i)]);
        } else if faults {
            steps.push(Step::Spurious(i));
        }
        if slot.lag {
            steps.push(Step::LagOver(i));
        }
        match slot.engine {
            Engine::Restoring => steps.push(Step::Restored(i)),
            Engine::Working if !slot.hang => {
                steps.push(Step::Finish(i));
                if slot.asked {
                    steps.push(Step::Boundary(i));
                }
            }
            Engine::Saving if !slot.hang => steps.push(Step::Saved(i)),
            _ => {}
        }
        if faults && !self.slots.iter().any(CardSlot::misbehaves) {
            self.misbehaviours(i, steps);
        }
    }

    /// One at a time, but one after the other without end.
    fn misbehaviours(&self, i: usize, steps: &mut Vec<Step>) {
        let (slot, base) = (&self.slots[i], self.bounds.base);
        match slot.engine {
            Engine::Working => {
                steps.extend([Step::Hang(i), Step::LosePause(i)]);
                if !base {
                    steps.push(Step::Fault(i));
                }
            }
            Engine::Saving => steps.push(Step::Tear(i)),
            _ => {}
        }
        // The settle time covers the time for which a status may be old.
        if slot.active() && !slot.lag {
            steps.extend([Step::DeafOnce(i), Step::DeafEver(i)]);
        }
        if !slot.active() && !slot.quarantined {
            steps.push(Step::LoseStart(i));
        }
        // A read is made under the lock and pushes what was written, so that none is older than the last reset; one
        // that is older than the last START would be the card's own doing.
        let state = self.machine.slot_state(slot_id(i));
        let running = matches!(state, Some(SlotState::Running(_) | SlotState::Pausing(_)));
        if slot.active() && running && !base {
            steps.push(Step::Stale(i));
        }
    }

    /// The state after a step, or none if nothing changed.
    pub(crate) fn after(&self, step: Step) -> Option<Self> {
        let mut world = self.clone();
        world.seen = Seen {
            gone: self.gone,
            ..Seen::default()
        };
        world.step(step);
        world.check();
        world.rekey();
        (world.key != self.key).then_some(world)
    }

    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Open => self.open(),
            Step::Start(i) => self.start(i),
            Step::Preempt(i) => self.preempt(i, false),
            Step::Hold(i) => self.preempt(i, true),
            Step::Resume(i) => self.resume(i),
            Step::Close(i) => self.close(i),
            Step::Enable(i, enabled) => self.enable(i, enabled),
            Step::Gang(i, joins) => self.gang(i, joins),
            Step::Hint(i, given) => self.hint(i, given),
            Step::Exclusive(i) => self.reserve(i),
            Step::Mask(i, mask) => self.mask(i, mask),
            Step::Timer(i) => {
                let at = self.slots[i].timer.take().unwrap_or_default();
                self.now = self.now.max(at);
                self.card_event(Event::Timer { slot: slot_id(i) });
            }
            Step::TimerLate(i) => {
                let at = self.slots[i].timer.take().unwrap_or_default();
                self.now = self.now.max(at) + LATE;
                self.card_event(Event::Timer { slot: slot_id(i) });
            }
            Step::TimerEarly(i) => {
                // The one that is armed stays armed only if the machine arms it again.
                self.slots[i].timer = None;
                self.card_event(Event::Timer { slot: slot_id(i) });
            }
            Step::Interrupt(i) => {
                self.slots[i].irq = false;
                self.read(i);
            }
            Step::LoseInterrupt(i) => self.slots[i].irq = false,
            Step::Spurious(i) => self.read(i),
            Step::Stale(i) => {
                self.seen.stale = true;
                let status = Status::from_raw(self.slots[i].old);
                let slot = slot_id(i);
                self.card_event(Event::Status { slot, status });
            }
            Step::LagOver(i) => self.slots[i].lag = false,
            Step::Restored(i) => self.slots[i].engine = Engine::Working,
            Step::Finish(i) => {
                if let Some(job) = self.job_on(i) {
                    job.finished = true;
                }
                self.ended(i, Engine::Finished, 0);
            }
            Step::Fault(i) => {
                self.spoil(i);
                self.ended(i, Engine::Finished, FAULT);
            }
            Step::Boundary(i) => {
                self.seen.boundary = true;
                self.save(i);
            }
            Step::Saved(i) => {
                if let Some(owner) = self.owner_on(i) {
                    owner.snapshot = Snapshot::Complete;
                }
                self.ended(i, Engine::Paused, 0);
            }
            Step::Tear(i) => {
                self.spoil(i);
                if self.bounds.base {
                    self.slots[i].hang = true;
                } else {
                    self.seen.snapshot_failed = true;
                    self.ended(i, Engine::Finished, SNAPSHOT_ERROR);
                }
            }
            Step::Hang(i) => {
                self.slots[i].hang = true;
                self.spoil(i);
            }
            Step::LosePause(i) => self.slots[i].lose_pause = true,
            Step::LoseStart(i) => self.slots[i].lose_start = true,
            Step::DeafOnce(i) => self.slots[i].deaf = Deaf::Once,
            Step::DeafEver(i) => self.slots[i].deaf = Deaf::Ever,
            Step::Freeze => self.freeze(),
            Step::Thaw => self.thaw(),
            Step::Vanish => self.vanished = true,
            Step::Gone => {
                self.vanished = true;
                self.card_event(Event::Gone);
            }
        }
    }

    fn owner_on(&mut self, slot: usize) -> Option<&mut Owner> {
        let last = self.slots[slot].last?;
        self.owners.get_mut(last)?.as_mut()
    }

    fn job_on(&mut self, slot: usize) -> Option<&mut Job> {
        self.owner_on(slot)?.job.as_mut()
    }

    fn spoil(&mut self, slot: usize) {
        if let Some(job) = self.job_on(slot) {
            job.spoilt = true;
        }
    }

    fn ended(&mut self, i: usize, engine: Engine, bits: u64) {
        let base = self.bounds.base;
        let slot = &mut self.slots[i];
        slot.engine = engine;
        slot.asked = false;
        slot.bits = bits;
        slot.irq = !base;
    }

    /// The status register is read and told.
    fn read(&mut self, i: usize) {
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

    /// Calls the machine, and does what it says.
    fn call(
        &mut self,
        event: impl fmt::Debug,
        call: impl FnOnce(&mut Machine<Box<[Entry]>>, &mut Vec<Action>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let before = self.machine.clone();
        let mut actions = Vec::new();
        let rests = self.frozen && self.machine.is_at_rest();
        let result = call(&mut self.machine, &mut actions);
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
        result
    }

    fn act(&mut self, action: Action, reads: &mut Vec<usize>) {
        let quiet = matches!(
            action,
            Action::Wake { .. } | Action::Released { .. } | Action::Disarm { .. }
        );
        self.must(!self.gone || quiet, Rule::AfterGone, || {
            format!("{action:?}")
        });
        match action {
            Action::Arm { slot, at } => {
                self.slots[slot.index()].timer = Some(at.as_ns().max(self.now));
            }
            Action::Disarm { slot } => self.slots[slot.index()].timer = None,
            Action::ReadStatus { slot } => reads.push(slot.index()),
            Action::Wake { ctx, wake } => self.woken(ctx, wake),
            Action::Released { ctx } => self.released(ctx),
            Action::Quarantine { slot, .. } => {
                self.seen.quarantined = true;
                let slot = &mut self.slots[slot.index()];
                let deaf = slot.engine != Engine::Idle && !slot.quarantined;
                slot.quarantined = true;
                let allowed = deaf || self.vanished;
                self.must(allowed, Rule::Quarantine, || "without a reason".into());
            }
            // Writes to a card that went away unnoticed are lost.
            _ if self.vanished => {}
            Action::Load { slot, ctx } => {
                self.touch(slot.index(), "Load");
                self.slots[slot.index()].window = Some(ctx.index());
            }
            Action::Unload { slot } => {
                self.touch(slot.index(), "Unload");
                self.slots[slot.index()].window = None;
            }
            Action::Start { slot, ctx, resume } => self.started(slot.index(), ctx, resume),
            Action::Pause { slot, boundary } => self.pause_written(slot.index(), boundary),
            Action::Reset { slot, hold } => self.reset_written(slot.index(), hold),
            Action::Capture { slot, ctx } => {
                let slot = &mut self.slots[slot.index()];
                slot.captured = true;
                let ended = matches!(slot.engine, Engine::Paused | Engine::Finished);
                let own = slot.last == Some(ctx.index()) && slot.window == slot.last;
                self.must(ended && own, Rule::Captured, || "too early or late".into());
            }
        }
    }

    /// The window or the registers are about to change hands.
    fn touch(&mut self, i: usize, what: &str) {
        let slot = &self.slots[i];
        let still = !slot.may_touch(self.now, self.settle());
        let quarantined = slot.quarantined;
        self.must(!quarantined, Rule::Quarantine, || what.into());
        self.must(still, Rule::WindowStill, || format!("{what} on slot {i}"));
        self.must_be_captured(i);
    }

    /// What ended by itself has been read, unless nobody wants it any more or it is worth nothing.
    fn must_be_captured(&mut self, i: usize) {
        let slot = &self.slots[i];
        let ended = matches!(slot.engine, Engine::Paused | Engine::Finished);
        let captured = slot.captured;
        let wanted = self
            .owner_on(i)
            .is_some_and(|owner| !owner.closed && owner.job.is_some_and(|job| !job.spoilt));
        self.must(!ended || !wanted || captured, Rule::Captured, || {
            "lost".into()
        });
    }

    fn started(&mut self, i: usize, ctx: ContextId, resume: bool) {
        let index = ctx.index();
        let active = self.slots[i].active();
        self.must(!active, Rule::OneJobPerSlot, || {
            format!("START on slot {i}")
        });
        let group = self.owners[index].as_ref().map(|owner| owner.group);
        let served = self.exclusive.is_none() || self.exclusive == group;
        self.must(served, Rule::Reserved, || format!("{group:?} on slot {i}"));
        self.touch(i, "START");
        let (now, settle) = (self.now, self.settle());
        let other = self
            .slots
            .iter()
            .enumerate()
            .any(|(j, slot)| j != i && slot.last == Some(index) && slot.may_touch(now, settle));
        self.must(!other, Rule::OneSlotPerJob, || format!("context {index}"));
        let slot = &self.slots[i];
        let idle = !self.bounds.base || slot.engine == Engine::Idle;
        let taken = !slot.in_reset && slot.window == Some(index) && idle;
        self.must(taken, Rule::StartTaken, || format!("slot {i}"));
        let own = self.owners[index].as_mut().filter(|owner| owner.id == ctx);
        let Some(owner) = own.filter(|owner| !owner.closed && owner.job.is_some()) else {
            self.must(false, Rule::RunOnce, || "nobody's job".into());
            return;
        };
        let (hold, snapshot) = (owner.hold, owner.snapshot);
        let allowed = owner.enabled && owner.mask & slot_id(i).bit() != 0;
        let Some(job) = &mut owner.job else { return };
        let was = *job;
        job.begun = true;
        let lost = std::mem::take(&mut self.slots[i].lose_start);
        job.spoilt |= lost;
        if !lost {
            owner.snapshot = if resume {
                Snapshot::Used
            } else {
                Snapshot::None
            };
        }
        self.must(!hold && !was.held, Rule::HoldKept, || {
            format!("context {index} runs")
        });
        self.must(allowed, Rule::StartTaken, || "not allowed".into());
        self.must(!was.finished, Rule::FinishedStays, || {
            format!("resume: {resume}")
        });
        self.must(!was.ended, Rule::RunOnce, || "ended before".into());
        self.must(resume || !was.begun, Rule::RunOnce, || "begun again".into());
        let complete = snapshot == Snapshot::Complete;
        self.must(!resume || complete, Rule::ResumeComplete, || {
            format!("{snapshot:?}")
        });
        let fresh = !self.bounds.reset_before_resume || self.slots[i].fresh;
        self.must(!resume || fresh, Rule::ResumeReset, || format!("slot {i}"));
        self.seen.resumed |= resume;
        if lost {
            return;
        }
        let (base, now) = (self.bounds.base, self.now);
        let slot = &mut self.slots[i];
        slot.old = slot.raw(base);
        slot.lag = base;
        slot.started = now;
        slot.count = slot.count.wrapping_add(1);
        slot.bits = 0;
        slot.last = Some(index);
        slot.fresh = false;
        slot.dirty = base;
        slot.arrived = None;
        slot.captured = false;
        slot.pauses = 0;
        slot.asked = false;
        slot.engine = if resume {
            Engine::Restoring
        } else {
            Engine::Working
        };
    }

    fn pause_written(&mut self, i: usize, boundary: bool) {
        let now = self.now;
        let last = self.slots[i].last.and_then(|index| self.id(index));
        let params = last.and_then(|ctx| self.machine.params(ctx).ok());
        let cooperative = params.is_some_and(|params| params.cooperative);
        let critical = last.is_some_and(|ctx| self.is_critical(ctx));
        // There is one such context, so nobody is its equal, and nobody goes before it.
        let asked = !self.bounds.hints || self.bounds.control || self.bounds.access;
        self.must(!critical || asked, Rule::Kept, || {
            format!("slot {i}: PAUSE")
        });
        self.must(boundary == cooperative, Rule::Boundary, || {
            format!("slot {i}: {boundary}")
        });
        let slot = &mut self.slots[i];
        let quarantined = slot.quarantined;
        if slot.pauses == 0 {
            slot.first_pause = now;
        }
        slot.pauses = (slot.pauses + 1).min(4);
        match slot.engine {
            Engine::Working if slot.hang => {}
            Engine::Working if slot.lose_pause => {
                slot.lose_pause = false;
                self.seen.pause_lost = true;
            }
            Engine::Working if boundary => slot.asked = true,
            Engine::Working => self.save(i),
            Engine::Restoring => self.seen.pause_in_restore = true,
            Engine::Finished => self.seen.finish_won = true,
            _ => {}
        }
        self.must(!quarantined, Rule::Quarantine, || "PAUSE".into());
    }

    fn save(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        slot.asked = false;
        slot.engine = Engine::Saving;
        if let Some(owner) = self.owner_on(i) {
            owner.snapshot = Snapshot::Torn;
        }
    }

    fn reset_written(&mut self, i: usize, hold: bool) {
        let quarantined = self.slots[i].quarantined;
        self.must(!quarantined, Rule::Quarantine, || "RESET".into());
        if !hold {
            self.slots[i].in_reset = false;
            return;
        }
        self.must_be_captured(i);
        let (base, now, settle) = (self.bounds.base, self.now, self.settle());
        let slot = &self.slots[i];
        let patient = slot.pauses == 4 && now >= slot.first_pause + TIMEOUT;
        let active = slot.active();
        if active {
            let timeout = self.machine_timeout(i);
            if let Some(owner) = self.owner_on(i) {
                let closed = owner.closed;
                if let Some(job) = &mut owner.job {
                    job.spoilt |= patient;
                    let reason = closed || job.spoilt;
                    self.seen.timeout |= timeout;
                    self.must(reason, Rule::Innocent, || "reset while it runs".into());
                }
            }
        }
        let slot = &mut self.slots[i];
        // What had settled before stays so.
        slot.dirty = base && slot.may_touch(now, settle);
        slot.posted = base;
        slot.arrived = None;
        if slot.deaf != Deaf::No && (active || base) {
            self.seen.reset_retried = slot.deaf == Deaf::Once;
            if slot.deaf == Deaf::Once {
                slot.deaf = Deaf::No;
            } else {
                self.spoil(i);
            }
            return;
        }
        slot.unflushed |= active && !base;
        slot.engine = Engine::Idle;
        slot.asked = false;
        slot.bits = 0;
        slot.hang = false;
        slot.lose_pause = false;
        slot.lag = false;
        slot.in_reset = true;
        slot.fresh = true;
    }

    fn machine_timeout(&self, i: usize) -> bool {
        let stats = self.machine.slot_stats(slot_id(i), self.time());
        stats.is_some_and(|stats| stats.timeouts > 0)
    }

    fn woken(&mut self, ctx: ContextId, wake: Wake) {
        let index = ctx.index();
        let (now, settle, gone) = (self.now, self.settle(), self.gone);
        let quarantined = self.quarantined();
        let all = self.all_slots();
        let quiet = self.vanished
            || gone
            || !self.slots.iter().any(|slot| {
                let stuck = slot.quarantined;
                slot.last == Some(index) && !stuck && slot.may_touch(now, settle)
            });
        let owner = self.owners[index].as_mut();
        let Some(owner) = owner.filter(|owner| owner.id == ctx && !owner.closed) else {
            self.must(false, Rule::ReleasedQuiet, || "told after Close".into());
            return;
        };
        let (hold, snapshot, mask) = (owner.hold, owner.snapshot, owner.mask);
        let Some(job) = &mut owner.job else {
            self.must(false, Rule::RunOnce, || "told of no job".into());
            return;
        };
        let was = *job;
        job.held |= wake == Wake::Held;
        job.ended |= wake != Wake::Held;
        if wake != Wake::Held {
            owner.hold = false;
        }
        self.must(!was.ended, Rule::RunOnce, || "told of its end twice".into());
        self.must(quiet, Rule::ToldQuiet, || format!("{wake:?}"));
        match wake {
            Wake::Held => {
                self.seen.held = true;
                self.must(hold, Rule::HoldKept, || "held, but nobody asked".into());
                let kept = !was.finished && (!was.begun || snapshot == Snapshot::Complete);
                self.must(kept, Rule::JobKept, || "held without a snapshot".into());
            }
            Wake::Done => {
                self.must(was.finished, Rule::JobKept, || "done before its end".into());
            }
            Wake::Failed(Failure::Gone) => {
                self.must(gone, Rule::Innocent, || "the card is there".into());
            }
            Wake::Failed(failure) => {
                let stranded = failure == Failure::Protocol && all & mask & !quarantined == 0;
                self.must(was.spoilt || stranded, Rule::Innocent, || {
                    format!("{failure:?}")
                });
            }
        }
    }

    fn released(&mut self, ctx: ContextId) {
        self.seen.released = true;
        let index = ctx.index();
        let closed = self.owners[index]
            .as_ref()
            .is_some_and(|owner| owner.id == ctx && owner.closed);
        self.must(closed, Rule::ReleasedQuiet, || "not closed".into());
        let (now, settle) = (self.now, self.settle());
        if !self.vanished && !self.gone {
            let reach = self.slots.iter().any(|slot| {
                let last = slot.last == Some(index) && slot.may_touch(now, settle);
                last || slot.window == Some(index)
            });
            self.must(!reach, Rule::ReleasedQuiet, || {
                "within reach of a slot".into()
            });
        }
        for slot in &mut self.slots {
            if slot.last == Some(index) {
                slot.last = None;
            }
        }
        self.exclusive = self.exclusive.filter(|group| {
            let mut others = self.owners.iter().flatten();
            others.any(|owner| owner.group == *group && owner.id != ctx)
        });
        self.owners[index] = None;
        self.dead[index] = Some(ctx);
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

    fn open(&mut self) {
        let first = self.owners.first().is_some_and(Option::is_none);
        let mut others = self.owners.iter().flatten();
        let critical = self.bounds.hints && !others.any(|owner| self.is_critical(owner.id));
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

    fn id(&self, i: usize) -> Option<ContextId> {
        self.owners[i].as_ref().map(|owner| owner.id)
    }

    fn start(&mut self, i: usize) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let stuck = (self.slots.iter()).any(|slot| slot.quarantined && slot.last == Some(i));
        let usable = self.all_slots() & !self.quarantined() & owner.mask;
        let may = !self.gone && owner.live().is_none() && !stuck && usable != 0;
        if may {
            // Before the call: START may be written within it.
            if let Some(owner) = &mut self.owners[i] {
                owner.hold = false;
                owner.hint = None;
                owner.hinted = None;
                owner.job = Some(Job {
                    begun: false,
                    finished: false,
                    spoilt: false,
                    ended: false,
                    held: false,
                });
            }
        }
        let result = self.event(Event::Start { ctx: owner.id });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("start: {result:?}")
        });
    }

    fn preempt(&mut self, i: usize, hold: bool) {
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

    fn mask(&mut self, i: usize, mask: u8) {
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
    fn hint(&mut self, i: usize, given: bool) {
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let stuck = (self.slots.iter()).any(|slot| slot.quarantined && slot.last == Some(i));
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

    /// Those who are preempted and resumed together with context `i`, itself included.
    fn members(&self, i: usize) -> Vec<usize> {
        let gang = |i: usize| {
            let owner = self.owners[i].as_ref().filter(|owner| !owner.closed)?;
            Some(owner.gang)
        };
        let all = 0..self.owners.len();
        all.filter(|&other| gang(other).is_some() && gang(other) == gang(i))
            .collect()
    }

    /// A gang that nobody is in.
    fn new_gang(&self) -> usize {
        let taken = |gang| self.owners.iter().flatten().any(|owner| owner.gang == gang);
        let mut gangs = 0..=self.owners.len();
        gangs.find(|&gang| !taken(gang)).unwrap_or_default()
    }

    /// Joins the gang of the next context, or leaves the one that it is in.
    fn gang(&mut self, i: usize, joins: bool) {
        let Some(ctx) = self.id(i) else { return };
        let with = (i + 1) % self.owners.len();
        let other = self.owners[with].as_ref().filter(|owner| !owner.closed);
        let with = other.map(|owner| (owner.id, owner.gang));
        if joins && with.is_none() {
            return;
        }
        let gang = match with.filter(|_| joins) {
            Some((_, gang)) => gang,
            None => self.new_gang(),
        };
        if let Some(owner) = &mut self.owners[i] {
            owner.gang = gang;
        }
        let with = with.filter(|_| joins).map(|(other, _)| other);
        let result = self.call("gang", |machine, _| machine.set_gang(ctx, with));
        self.must(result.is_ok(), Rule::Refused, || {
            format!("gang: {result:?}")
        });
        let (size, members) = (self.machine.gang_size(ctx), self.members(i).len());
        self.must(size == Ok(members as u32), Rule::Refused, || {
            format!("a gang of {size:?}, not {members}")
        });
    }

    fn enable(&mut self, i: usize, enabled: bool) {
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
        if may {
            self.exclusive = group;
        }
        let result = self.call("reserve", |machine, actions| {
            machine.set_exclusive(now, slots, group, &mut |action| actions.push(action))
        });
        self.must(result.is_ok() == may, Rule::Refused, || {
            format!("reserve: {result:?}")
        });
    }

    fn freeze(&mut self) {
        self.frozen = true;
        self.tell("freeze", |machine, now, out| machine.freeze(now, out));
    }

    /// The card lost its state, and is set up anew.
    fn thaw(&mut self) {
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[i];
            let still = slot.quarantined || !slot.active();
            slot.lose_state();
            self.must(still, Rule::Rest, || format!("a job is on slot {i}"));
        }
        for i in 0..self.slots.len() {
            let (slot, status) = (slot_id(i), Status::from_raw(0));
            self.tell("renew", |machine, now, out| {
                machine.renew(now, slot, status, out);
            });
        }
        self.frozen = false;
        let before = self.resumes();
        self.tell("thaw", |machine, now, out| machine.thaw(now, out));
        self.seen.thawed = self.resumes() > before;
    }

    /// Tells the machine what it cannot refuse, and does what it says.
    fn tell(
        &mut self,
        event: &str,
        what: impl FnOnce(&mut Machine<Box<[Entry]>>, Time, &mut Out<'_>),
    ) {
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

    /// What must hold after every step.
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
        self.check_kept(i);
        let quarantined = state == Some(SlotState::Quarantined);
        let same = gone || quarantined == self.slots[i].quarantined;
        self.must(same, Rule::Quarantine, || format!("{state:?}"));
    }

    /// A slot that is kept for a hint, if it is.
    fn check_kept(&mut self, i: usize) {
        let Some(keeper) = self.machine.kept_for(slot_id(i)) else {
            return;
        };
        let (now, gone) = (self.now, self.gone);
        let armed = self.slots.iter().any(|slot| slot.timer.is_some());
        self.must(armed, Rule::TimerArmed, || "a slot is kept for ever".into());
        let stands = self.owners[keeper.index()].as_ref().is_some_and(|owner| {
            let idle = owner.id == keeper && !owner.closed && owner.live().is_none();
            let timely = owner.hint.is_some_and(|at| now <= at + GRACE);
            idle && timely && owner.enabled && owner.mask & slot_id(i).bit() != 0
        });
        self.must(stands && !gone, Rule::Kept, || {
            format!("slot {i}: {:?}", keeper.index())
        });
        let vacant = self.machine.slot_state(slot_id(i)) == Some(SlotState::Vacant);
        let waiting = self.owners.iter().flatten().filter(|owner| {
            let stats = self.machine.stats(owner.id, self.time());
            let waits = stats.is_ok_and(|stats| stats.state == JobState::Queued && !stats.parked);
            let serves = self.exclusive.is_none_or(|group| group == owner.group);
            waits && serves && owner.enabled && owner.mask & slot_id(i).bit() != 0
        });
        let waiting: Vec<_> = waiting.map(|owner| owner.id).collect();
        let right = self.is_critical(keeper) && !waiting.iter().any(|&id| self.is_critical(id));
        if vacant && !waiting.is_empty() {
            self.seen.kept = true;
            self.must(right, Rule::Kept, || format!("slot {i} from its betters"));
        }
    }

    fn is_critical(&self, ctx: ContextId) -> bool {
        let params = self.machine.params(ctx);
        params.is_ok_and(|params| params.urgency == Urgency::LatencyCritical)
    }

    fn check_owner(&mut self, i: usize, users: &mut [u32]) {
        let now = self.time();
        if let Some(dead) = self.dead[i] {
            let refused = self.machine.stats(dead, now).is_err();
            self.must(refused, Rule::Refused, || "a dead id is taken".into());
        }
        let Some(owner) = self.owners[i].clone() else {
            return;
        };
        let stats = self.machine.stats(owner.id, now);
        if owner.closed {
            let on = (0..self.slots.len()).any(|i| {
                matches!(
                    self.machine.slot_state(slot_id(i)),
                    Some(SlotState::Running(ctx) | SlotState::Pausing(ctx) | SlotState::Resetting(ctx))
                        if ctx == owner.id
                ) || self.slots[i].quarantined
            });
            self.must(stats.is_err(), Rule::Refused, || {
                "a closed id is taken".into()
            });
            self.must(on, Rule::ReleasedQuiet, || "closed, and on no slot".into());
            return;
        }
        let Ok(stats) = stats else {
            self.must(false, Rule::JobKept, || "a context is lost".into());
            return;
        };
        self.seen.hint_wasted |= stats.hints_wasted > 0;
        self.seen.hint_ignored |= stats.hints_ignored > 0;
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
        if let Some(slot) = stats.slot {
            users[slot.index()] += 1;
        }
        if state == JobState::Running {
            let on = stats.slot.and_then(|slot| self.machine.slot_state(slot));
            let there = matches!(
                on,
                Some(SlotState::Running(ctx) | SlotState::Pausing(ctx) | SlotState::Resetting(ctx))
                    if ctx == owner.id
            );
            self.must(there, Rule::JobKept, || {
                format!("runs on a slot that is {on:?}")
            });
        }
        let complete = self.vanished || owner.snapshot == Snapshot::Complete;
        self.must(!stats.saved || complete, Rule::ResumeComplete, || {
            format!("counts as saved: {:?}", owner.snapshot)
        });
        let alive = self.gone && state.is_live();
        self.must(!alive, Rule::AfterGone, || format!("{state:?}"));
        if state == JobState::Queued {
            let usable = self.all_slots() & owner.mask & !self.quarantined();
            let idles = (0..self.slots.len()).any(|i| {
                let vacant = self.machine.slot_state(slot_id(i)) == Some(SlotState::Vacant);
                let serves = self.exclusive.is_none_or(|group| group == owner.group);
                let kept = self.machine.kept_for(slot_id(i)).is_some();
                let idles = vacant && !kept && !self.frozen;
                idles && serves && owner.enabled && usable & slot_id(i).bit() != 0
            });
            self.must(!idles, Rule::NoneIdles, || format!("context {i} waits"));
            self.must(usable != 0, Rule::JobKept, || "waits for nothing".into());
        }
    }

    /// Why a rule is broken.
    pub fn breach(&self) -> Option<(Rule, &str)> {
        self.broken
            .as_ref()
            .map(|(rule, what)| (*rule, what.as_str()))
    }
}
