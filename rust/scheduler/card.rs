// SPDX-License-Identifier: GPL-2.0

//! The operations that the driver implements for the scheduler, and the data of one call.

use super::values::{
    ContextId, Duration, Order, PauseCause, RunEnd, SlotId, StartTimes, Time, Wake,
};

/// A card, as the driver sees it. Each call is carried out at once, under the lock that protects
/// the scheduler. The scheduler is generic over it, so no call is indirect, and no request is
/// stored.
///
/// On a slot with a relay, [`Card::start`] and [`Card::pause`] are reports: an order starts or
/// stops the job.
pub trait Card {
    /// Writes registers of a context to a vacant slot: as many as may be written with interrupts
    /// off. Returns whether all are written; if not, the call is repeated, in another section. A
    /// call for another context starts from its first register. The last call opens the window.
    fn load(&mut self, slot: SlotId, ctx: ContextId) -> bool;
    /// Writes START_RESUME or START_NEW.
    fn start(&mut self, slot: SlotId, ctx: ContextId, begin: &Begin);
    /// Writes PAUSE or PAUSE_AT_BOUNDARY.
    fn pause(&mut self, slot: SlotId, ctx: ContextId, pause: &Pause);
    /// Relay: writes what has changed of a context to the memory that the card reads.
    fn publish(&mut self, slot: SlotId, ctx: ContextId);
    /// Relay: writes an order.
    fn order(&mut self, slot: SlotId, order: &Order);
    /// Sets (`hold`) or clears the reset bit, before a run of the context or after it.
    fn reset(&mut self, slot: SlotId, ctx: ContextId, hold: bool);
    /// Closes the window, which is that of the context.
    fn unload(&mut self, slot: SlotId, ctx: ContextId);
    /// The run of a context has ended. Unless it was aborted, the declared result registers may be
    /// read now, and only now.
    fn ended(&mut self, slot: SlotId, ctx: ContextId, run: &RunEnd);
    /// Reads the status after the present call into the scheduler has returned, and reports it.
    fn read_status(&mut self, slot: SlotId);
    /// (Re-)arms the one timer of the slot.
    fn arm(&mut self, slot: SlotId, at: Time);
    /// Tells the owner of a context, after the lock was dropped.
    fn notify(&mut self, ctx: ContextId, notice: Notice);
    /// The slot is out of use: it must be held in reset, and the memory of the context must stay
    /// mapped, until the whole card is reset.
    fn quarantine(&mut self, slot: SlotId, ctx: Option<ContextId>);
    /// For reports.
    fn trace(&mut self, slot: SlotId, ctx: ContextId, what: Trace);
}

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// It resumes from the snapshot.
    pub resume: bool,
    /// The starvation boost has its turn: the policy would have started another context.
    pub boosted: bool,
    /// For measuring.
    pub times: StartTimes,
}

/// How a job is told to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// At the next boundary of its work.
    pub boundary: bool,
    /// Why.
    pub cause: PauseCause,
    /// How late the timer of the slot was, if it has caused the pause.
    pub late: Option<Duration>,
}

/// A notification of the owner of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something has become of the job.
    Job(Wake),
    /// The context, which was closed, can be reached by no slot, and its name is free.
    Released,
    /// The card is gone: nothing that callers wait for on the context will happen any more.
    Lost,
    /// A slot that is out of use may reach the context's memory.
    Stuck,
}

/// The trace of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The slot is kept vacant for the work that the context has announced.
    Reserved,
    /// The job of the context has kept work that preempts it at once waiting for a boundary for too
    /// long, by this much; zero: it is stopped where it is.
    Overrun(Duration),
}

/// For how many gangs one call looks for slots.
const GANGS_MAX: u8 = 4;

/// One call into the scheduler.
pub(super) struct Call<'a, C> {
    pub(super) card: &'a mut C,
    pub(super) now: Time,
    /// Registers were loaded: another slot is filled by its timer.
    pub(super) has_loaded: bool,
    /// For how many gangs slots may still be looked for: others wait for a timer.
    pub(super) gangs: u8,
}

impl<'a, C: Card> Call<'a, C> {
    pub(super) fn new(card: &'a mut C, now: Time) -> Self {
        Self {
            card,
            now,
            has_loaded: false,
            gangs: GANGS_MAX,
        }
    }

    /// Tells an owner what has become of the job.
    pub(super) fn tell(&mut self, ctx: ContextId, wake: Wake) {
        self.card.notify(ctx, Notice::Job(wake));
    }
}
