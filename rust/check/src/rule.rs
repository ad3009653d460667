// SPDX-License-Identifier: GPL-2.0

//! What must hold in every state (docs/proof.md).

macro_rules! rules {
    ($($name:ident = $text:literal,)*) => {
        /// A rule, and the name of its property.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the text of each is its name")]
        pub enum Rule { $($name,)* }

        impl Rule {
            /// The rule in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// One property for each rule that is broken in a step.
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
    ResumeComplete = "a resume only from a complete and unused snapshot of the same job",
    ResumeReset = "an engine that needs it is reset before a resume",
    FinishedStays = "a finished job is never run again",
    RunOnce = "no job is begun twice or ends twice",
    JobKept = "no job is lost: it waits, is held, is on a slot, or has ended",
    Boundary = "a cooperative job is stopped at its boundary if nobody who goes first waits too long, and any other one at once",
    Bounded = "a job that lets one that goes first wait for its boundary has a timer armed for the bound",
    Innocent = "only a job that the card or its owner spoilt fails, and with a reason",
    HoldKept = "a job that shall be held does not run again before Resume",
    Captured = "results are read while they are the job's own, after every run that ended by itself",
    WindowStill = "a window never changes while the engine may touch memory",
    StartTaken = "START is written to a slot that can take it, with the job's own window",
    ToldQuiet = "an owner is told of an end only when its memory is quiet",
    ReleasedQuiet = "a context is released once, after Close, when nothing can touch its memory",
    Doorbell = "no job waits for a doorbell while there is work in its queue",
    TimerArmed = "a slot that waits for something has a timer armed",
    Quarantine = "a slot is quarantined only if it does not come out of reset, and nothing is written to it after",
    AfterGone = "no register is touched and no job lives after the card is gone",
    Reserved = "a slot that is reserved for a group serves no other, as long as the group is registered",
    Kept = "a slot is kept vacant only for a hint that stands, for a time, and from best-effort work",
    NoneIdles = "no slot stands vacant while a job waits that may use it, but for a gang whose members do not all have one yet",
    StartTogether = "members of a gang that wait start together: each that waited when another was started has a slot at the next decision",
    PauseTogether = "members of a gang on slots are told to pause together",
    Rest = "no job is on a card that loses its state, and no register of it is written",
    EntryStill = "entry and registers of a context in memory do not change while a slot may load it, or runs it",
    NamedOnce = "a context is named on one slot only, and never to follow itself",
    OrderFollows = "an order follows the run that is known to be on its slot, or starts one on a slot known to be vacant",
    Belief = "once orders have arrived and records were read, the scheduler knows what is on a slot and what it holds",
    ResetKnown = "a slot with a relay is reset only when a flush has shown who is on it, and that it will take nobody",
    NotBehind = "latency-critical work does not wait behind best-effort work that was not taken: it is named, and the job there is told to stop at once",
    Withdrawn = "a context that shall not run is not named any longer, unless too many were withdrawn before",
    Refused = "a request is refused for a reason, and then nothing changes",
}
