// SPDX-License-Identifier: GPL-2.0

//! The rules: invariants of every state and of every step (docs/proof.md).

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
    Withdrawn = "a context that must not run is not named, unless too many withdrawals are unresolved",
    Refused = "a request is refused only for a specified reason, and a refused request changes nothing",
}
