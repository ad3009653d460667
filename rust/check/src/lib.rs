// SPDX-License-Identifier: GPL-2.0

//! Checks every state that the scheduler and slot protocol of `fermata.ko` can reach with a card
//! that may misbehave at any time.
//!
//! The machine is the one that the module compiles. docs/proof.md says what is checked, how the
//! state space is kept finite, and what the results are.

#![forbid(unsafe_code)]

mod card;
mod configurations;
mod key;
mod recovery;
mod world;

pub use configurations::{LARGE, QUICK};
pub use world::World;

use std::fmt::Write;
use std::thread::available_parallelism;
use std::time::Duration;

use stateright::{Checker, CheckerBuilder, Expectation, HasDiscoveries, Model, Path, Property};

/// A step of a card, its owners or time. Slots and contexts are identified by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the text of each group is enough")]
pub enum Step {
    // The owners.
    Open,
    Start(usize),
    StartHeld(usize),
    Preempt(usize),
    Hold(usize),
    Resume(usize),
    /// A hold of a context begins, or one of its holds ends.
    BeginHold(usize),
    EndHold(usize),
    Close(usize),
    Mask(usize, u8),
    Enable(usize, bool),
    /// A context posts work, and rings the doorbell if the engine has announced that it leaves.
    Post(usize),
    /// A context joins a gang, or leaves its gang.
    Gang(usize, bool),
    /// A context gives a hint, or takes it back.
    Hint(usize, bool),
    /// All slots are reserved for the group of a context, or for none.
    Exclusive(Option<usize>),
    // Time: it advances to the next timer of a slot, or far beyond, or a timer fires needlessly.
    Timer(usize),
    TimerLate(usize),
    TimerEarly(usize),
    // The card behaves.
    Restored(usize),
    Finish(usize),
    Boundary(usize),
    /// The engine takes the work in its queue.
    Take(usize),
    /// The engine finds its queue empty, and leaves.
    Leave(usize),
    Saved(usize),
    LagOver(usize),
    // A slot with a relay.
    /// The order that was posted first arrives.
    Arrive,
    /// The time of the order that the slot holds is over.
    Due(usize),
    /// An interrupt occurs, and this many unread records are in memory.
    Look(usize, usize),
    /// The read of a status completes.
    Answer,
    Interrupt(usize),
    // The card misbehaves.
    LoseInterrupt(usize),
    Spurious(usize),
    Stale(usize),
    Fault(usize),
    Tear(usize),
    Hang(usize),
    LosePause(usize),
    LoseStart(usize),
    IgnoreOrder,
    LoseRecord(usize),
    DelayRecord(usize),
    Refuse(usize),
    IgnoreResetOnce(usize),
    IgnoreResets(usize),
    Vanish,
    Gone,
    // The card is about to lose its state, and has been set up again.
    Freeze,
    Thaw,
    /// The link of the card has failed, and the card loses its state.
    CutOff,
}

/// A configuration: how large the world is, and what may happen in it. Nothing is bounded in number.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent switches of a configuration"
)]
pub struct Bounds {
    /// Its name.
    pub name: &'static str,
    /// The base profile; otherwise irq, or relay.
    pub base: bool,
    /// The relay profile.
    pub relay: bool,
    /// One or two slots, of one class.
    pub slots: usize,
    /// Contexts open at a time.
    pub contexts: usize,
    /// The engine needs a reset before a resume.
    pub reset_before_resume: bool,
    /// The weighted fair policy; otherwise round-robin.
    pub fair: bool,
    /// The engine has boundaries, and the first context is cooperative.
    pub boundary: bool,
    /// All contexts but the first are latency-critical.
    pub urgent: bool,
    /// The first context is latency-critical.
    pub first_urgent: bool,
    /// The engine takes the first context's work from a queue, and leaves when that is empty.
    pub queues: bool,
    /// Owners preempt, hold and resume.
    pub control: bool,
    /// The first context may have up to two holds.
    pub holds: bool,
    /// Jobs of the second context begin from imported states.
    pub imports: bool,
    /// Owners change their masks.
    pub masks: bool,
    /// Contexts are disabled and enabled.
    pub access: bool,
    /// Each context has its own group, for which slots are reserved.
    pub groups: bool,
    /// Contexts join each other's gangs, and leave them.
    pub gangs: bool,
    /// The first two contexts are a gang from the beginning.
    pub gang: bool,
    /// No interrupt is lost, and no context is closed: two slots have many states.
    pub calm: bool,
    /// Limit of steps from the beginning; states further away are not visited.
    pub depth: Option<usize>,
    /// Contexts give hints; the first context is latency-critical.
    pub hints: bool,
    /// Places of closed contexts are reused.
    pub reopen: bool,
    /// The card misbehaves, and timers are late or fire needlessly.
    pub faults: bool,
    /// Owners read registers of jobs on slots with a relay, for which the status is read.
    pub reads: bool,
    /// The relay misbehaves: records are lost or late, orders are ignored, entries refused.
    pub relay_faults: bool,
    /// The card goes away.
    pub gone: bool,
    /// The card loses its state, with all jobs taken off it before.
    pub freeze: bool,
    /// The link of the card fails: the card loses its state with the jobs on it.
    pub cut: bool,
}

impl Model for Bounds {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(*self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = Rule::properties();
        properties.push(Property::always(RECOVERS, |_, world: &World| {
            world.recovery().is_ok()
        }));
        let reached = self.reached().into_iter().filter(|row| row.0);
        properties.extend(reached.map(|(_, name, seen)| Property::sometimes(name, seen)));
        properties
    }
}

/// Whether an event can occur in a configuration, the name of the event, and whether it occurred in
/// the step to a state.
type Reached = (bool, &'static str, fn(&Bounds, &World) -> bool);

impl Bounds {
    /// Returns the events that must occur on some path, so that the rules are not vacuous.
    #[rustfmt::skip]
    fn reached(&self) -> [Reached; 42] {
        let Self { relay, control, holds, hints, boundary, faults, relay_faults, gone, .. } = *self;
        // Otherwise each context always has a slot.
        let contended = (self.gangs || self.gang) && (control || self.contexts > self.slots);
        let one_slot = relay && self.slots == 1;
        let withdrawing = one_slot && (control || !self.calm || self.contexts > 2);
        let faults_unless_base = faults && !self.base;
        [
            (true, "a job is resumed", |_, world| world.seen.resumed),
            (true, "FINISH comes before PAUSE", |_, world| world.seen.finish_won),
            (!self.calm, "a context is released", |_, world| world.seen.released),
            (self.imports, "a job starts from an imported state", |_, world| world.seen.imported),
            (self.imports && control, "a job starts held", |_, world| world.seen.started_held),
            (control, "a job is held", |_, world| world.seen.held),
            (holds, "a job is held by two holds", |_, world| world.seen.held_twice),
            (holds && !relay, "a job goes on because its last hold has ended", |_, world| world.seen.hold_ended),
            (control, "PAUSE arrives during a restore", |_, world| world.seen.pause_in_restore),
            (self.gangs && control, "members of a gang are held together", |_, world| world.seen.together),
            (contended, "a slot is claimed for a gang", |_, world| world.seen.claimed),
            (contended, "a member of a gang is due to follow another one onto a slot", |_, world| world.seen.followed),
            (hints, "a slot is reserved while a job waits", |_, world| world.seen.kept),
            (hints, "a hint is wasted", |_, world| world.seen.hint_wasted),
            (self.queues, "a job leaves its slot because its queue is empty", |_, world| world.seen.emptied),
            (self.queues, "a doorbell rings while its job is on the slot", |_, world| world.seen.rung),
            (boundary, "a job is stopped at a boundary", |_, world| world.seen.boundary),
            (boundary && self.urgent, "a cooperative job is told to stop before its boundary", |_, world| world.seen.bounded),
            (faults, "a preempt timeout expires", |_, world| world.seen.timeout),
            (faults && !relay, "a PAUSE is lost", |_, world| world.seen.pause_lost),
            (faults, "a reset is repeated", |_, world| world.seen.reset_retried),
            (faults, "a slot is quarantined", |_, world| world.seen.quarantined),
            (faults_unless_base, "a stale status is read", |_, world| world.seen.stale),
            (faults_unless_base, "a save or restore fails", |_, world| world.seen.snapshot_failed),
            (self.freeze, "a job resumes after the card has lost its state", |_, world| world.seen.thawed),
            (self.cut, "a job fails because the link of the card has failed", |_, world| world.seen.cut_off),
            (gone, "the card is gone", |_, world| world.seen.gone),
            (relay, "a relay switches to the next context", |_, world| world.seen.relayed),
            (relay, "an order arrives too late and is dropped", |_, world| world.seen.order_late),
            (one_slot, "two records are unread at once", |_, world| world.seen.two_unread),
            (one_slot && self.contexts > 2, "four orders are in flight", |_, world| world.seen.four_posted),
            (one_slot && self.contexts > 2, "a named context is replaced by another one", |_, world| world.seen.replaced),
            (one_slot, "a named context is withdrawn", |_, world| world.seen.withdrawn),
            (withdrawing, "a relay takes a context before the withdrawal arrives", |_, world| world.seen.taken_late),
            (relay && !self.calm, "a job is dropped without a save", |_, world| world.seen.dropped),
            (one_slot, "a restore is aborted", |_, world| world.seen.not_run),
            (relay && self.first_urgent, "latency-critical work is named", |_, world| world.seen.urgent_named),
            (relay_faults, "an order is ignored", |_, world| world.seen.order_ignored),
            (relay_faults, "a record is lost", |_, world| world.seen.record_lost),
            (relay_faults, "a record arrives too late", |_, world| world.seen.record_late),
            (relay_faults, "an entry is refused", |_, world| world.seen.refused),
            (relay_faults, "a named context stays in reach of a quarantined slot", |_, world| world.seen.stuck),
        ]
    }
}

/// The result of a search.
pub struct Search {
    /// Number of different states.
    pub unique_states: usize,
    /// Number of steps taken.
    pub states: usize,
    /// Length of the longest path.
    pub depth: usize,
    /// The first rule that is broken, with the path to the state; `None`: all rules hold in all visited states.
    pub breach: Option<String>,
    /// The first event that must occur on some path and did not.
    pub unreached: Option<String>,
}

/// Searches the states of a configuration, for at most `limit` if given, and up to about `most` states if given. Not generic, so that
/// the search is compiled and optimised once, and not in each program.
pub fn search(bounds: &Bounds, limit: Option<Duration>, most: Option<usize>) -> Search {
    let mut builder = checker(bounds);
    if let Some(limit) = limit {
        builder = builder.timeout(limit);
    }
    if let Some(most) = most {
        builder = builder.target_state_count(most);
    }
    let checker = builder.spawn_bfs().join();
    Search {
        unique_states: checker.unique_state_count(),
        states: checker.state_count(),
        depth: checker.max_depth(),
        breach: breach(&checker),
        unreached: unreached(&checker),
    }
}

/// Sets up a checker of a configuration, which stops at the first failure.
fn checker(bounds: &Bounds) -> CheckerBuilder<Bounds> {
    let checker = bounds.checker().finish_when(HasDiscoveries::AnyFailures);
    match bounds.depth {
        // The first state counts, too. With several threads a state may first be met by a path that
        // is not the shortest one, so that later states seem further away than they are.
        Some(depth) => checker.target_max_depth(depth + 1).threads(1),
        None => checker.threads(available_parallelism().map_or(1, usize::from)),
    }
}

/// The property of recovery (`recovery.rs`).
pub const RECOVERS: &str =
    "once the card behaves, waiting jobs run, jobs end and closed contexts are released";

/// Returns the first rule that is broken, with the path to the state; `None`: all rules hold in all visited states.
fn breach(checker: &impl Checker<Bounds>) -> Option<String> {
    let properties = checker.model().properties();
    let mut rules = properties.iter().filter(|property| !is_reached(property));
    rules.find_map(|property| {
        let path = checker.discovery(property.name)?;
        Some(story(property.name, path))
    })
}

/// Returns the first event that must occur on some path and did not.
fn unreached(checker: &impl Checker<Bounds>) -> Option<String> {
    let properties = checker.model().properties();
    let mut reached = properties.iter().filter(|property| is_reached(property));
    let missing = reached.find(|property| checker.discovery(property.name).is_none())?;
    Some(format!("never reached: {}", missing.name))
}

fn is_reached(property: &Property<Bounds>) -> bool {
    property.expectation == Expectation::Sometimes
}

fn story(name: &str, path: Path<World, Step>) -> String {
    let path = path.into_vec();
    let last = path.last().map(|(world, _)| world);
    let all = Rule::ALL
        .iter()
        .filter(|&&rule| last.is_some_and(|world| world.broken(rule)));
    let others = all.map(|rule| rule.text()).filter(|&text| text != name);
    let names: Vec<_> = std::iter::once(name).chain(others).collect();
    let mut text = format!("broken: {}\n", names.join("; "));
    for (world, step) in path {
        let why = world.recovery().err().unwrap_or_default();
        let step = step.map_or(String::new(), |step| format!("{step:?}"));
        let _ = write!(text, "    {world:?} {why}\n  {step}\n");
    }
    text
}

// The rules: invariants of every state and of every step.
macro_rules! rules {
    ($($name:ident = $text:literal,)*) => {
        /// A rule; its text is the name of its property.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the text of each is its name")]
        pub enum Rule { $($name,)* }

        impl Rule {
            /// Returns the invariant as a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns a property for each rule: the rule is not broken.
            pub(crate) fn properties() -> Vec<stateright::Property<crate::Bounds>> {
                vec![$(stateright::Property::always($text, |_, world: &crate::World| {
                    !world.broken(Rule::$name)
                }),)*]
            }
        }
    };
}

rules! {
    OneJobPerSlot = "never two jobs on a slot",
    OneSlotPerJob = "never a job on two slots",
    ResumeComplete = "a job resumes only from a complete and unused snapshot of its own",
    ResumeReset = "an engine that needs a reset before a resume gets one",
    FinishedStays = "a finished job never runs again",
    RunOnce = "no job begins or ends more than once",
    JobKept = "no job is lost: it is queued, held, EMPTY, named to run next, on a slot, or has ended",
    Boundary = "a job stops at a boundary exactly if it is cooperative and no urgent work waits too long",
    Bounded = "while urgent work waits for a boundary, a timer is armed within the boundary wait",
    Innocent = "a job fails only after a fault, a preempt timeout, Close, or the loss of all its slots",
    HoldKept = "a job to be held does not start before Resume (relay: it and closed jobs are told to stop)",
    Captured = "the results of every run that is not aborted are read before another run can change them",
    WindowStill = "a window never changes while the engine may access memory",
    StartTaken = "START goes only to a ready slot that the context may use, with the context's window loaded",
    ToldQuiet = "an owner is notified only when no slot in use can access the context's memory",
    ReleasedQuiet = "a context is released exactly once, after Close, when no slot can access its memory",
    Doorbell = "no job waits for a doorbell while its queue has work",
    TimerArmed = "a timer is armed while a slot runs, pauses or resets a job, or is reserved for a hint",
    TimerAhead = "a timer is armed for no time that has passed, and not again and again if it fires without effect",
    Quarantine = "only a slot whose reset fails is quarantined, and a quarantined slot is not written to",
    AfterGone = "after the card is gone, no register is accessed and no job is live",
    Reserved = "an exclusive slot serves only its group, as long as the group is registered",
    Kept = "a slot is reserved only for an unexpired hint, never at the cost of latency-critical work",
    NoneIdles = "no job or gang waits while enough unclaimed, unreserved slots that it may use are vacant",
    StartTogether = "waiting members of a gang start together: each gets a claimed slot at the next decision",
    PauseTogether = "members of a gang that are on slots are told to pause together",
    Rest = "while a frozen scheduler is at rest, no job is on a slot in use and no register is written",
    EntryStill = "a context's entry and registers in memory do not change while a slot may load or run it",
    NamedOnce = "a context is named for one slot only, and never as its own successor",
    OrderFollows = "each order follows the run known to be on its slot, or starts one on a vacant slot",
    Belief = "with no order or record in flight, the scheduler knows each slot's run and held order",
    ResetKnown = "a slot with a relay is reset only if no run can follow the known one, or a record was lost",
    NotBehind = "latency-critical work that waits is named, and the best-effort job is told to stop at once",
    Outranked = "latency-critical work waits for no slot whose best-effort job stays, unless as many slots become vacant",
    OneStart = "one call starts one job",
    Withdrawn = "a context that must not run is not named, unless too many withdrawals are unresolved",
    Refused = "a request is refused only for a specified reason, and a refused request changes nothing",
}
