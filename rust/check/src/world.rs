// SPDX-License-Identifier: GPL-2.0

//! One state: the machine, the card, the owners; and the step to the next one.

mod actions;
mod check;
mod freeze;
mod owners;
mod steps;

use std::fmt;
use std::hash::{Hash, Hasher};

use fermata_sched_host::sched::{
    Action, ContextId, Duration, Entry, Event, GroupKey, Machine, MachineConfig, PolicyKind,
    Profile, Refusal, SlotConfig, SlotId, SlotState, Status, Stops, Time,
};

use crate::card::{CardSlot, Deaf, Engine, EMPTY, FAULT, SNAPSHOT_ERROR};
use crate::key::Key;
use crate::{Bounds, Rule, Step};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
const TIMEOUT: u64 = 2 * MS;
/// Longer than the wait between two looks at a reset.
const SETTLE: u64 = 3 * MS;
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

/// The queue of a context.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// There is work that the engine has not taken.
    work: bool,
    /// The engine has said that it leaves: who posts has to ring.
    idle: bool,
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
    queue: Queue,
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
            queue: Queue::default(),
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
    pub(crate) bounded: bool,
    pub(crate) emptied: bool,
    pub(crate) rung: bool,
    pub(crate) kept: bool,
    pub(crate) hint_wasted: bool,
    pub(crate) hint_ignored: bool,
    pub(crate) together: bool,
    pub(crate) thawed: bool,
    pub(crate) imported: bool,
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
                queues: bounds.queues,
                stops: if bounds.boundary {
                    Stops::BoundaryToo
                } else {
                    Stops::Anywhere
                },
                start_count: 0,
            });
        }
        // A group for each context, and one that is registered.
        let room = 2 * bounds.contexts + usize::from(bounds.groups);
        let storage = vec![Entry::EMPTY; room].into_boxed_slice();
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
        let set = machine.set_policy(now, policy);
        assert_eq!(set, Ok(()), "a policy that exists");
        while machine.sweep(now, u32::MAX, &mut |_| ()) {}
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
                    word |= u64::from(owner.queue.work) << 25 | u64::from(owner.queue.idle) << 26;
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
            Step::Post(i) => self.post(i),
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
            Step::Restored(i) => {
                self.slots[i].engine = Engine::Working;
                self.attend(i);
            }
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
            Step::Take(i) => {
                if let Some(owner) = self.owner_on(i) {
                    owner.queue.work = false;
                }
            }
            Step::Leave(i) => self.leave(i),
            Step::Saved(i) => {
                if let Some(owner) = self.owner_on(i) {
                    owner.snapshot = Snapshot::Complete;
                }
                let bits = if self.slots[i].empty { EMPTY } else { 0 };
                self.ended(i, Engine::Paused, bits);
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

    /// The engine looks at its queue again.
    fn attend(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.idle = false;
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
        let now = self.time();
        while result.is_ok()
            && self
                .machine
                .sweep(now, u32::MAX, &mut |action| actions.push(action))
        {}
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

    /// Why a rule is broken.
    pub fn breach(&self) -> Option<(Rule, &str)> {
        self.broken
            .as_ref()
            .map(|(rule, what)| (*rule, what.as_str()))
    }
}
