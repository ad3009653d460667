// SPDX-License-Identifier: GPL-2.0

//! The scheduler, driven by events and answering by actions: host tests, the model check and the
//! simulator drive it so.

use core::ops::Deref;

use crate::event::{Action, Event};
use crate::scheduler::{
    self, Begin, Card, CardConfig, ContextConfig, ContextId, Duration, GroupKey, GroupPath,
    GroupSettings, LoadCost, Notice, Order, Params, PastJobs, Pause, PolicyKind, Refusal, RunEnd,
    RunRecord, SlotId, Status, Time, Trace, MAX_SLOTS,
};

/// A card that turns calls into actions.
struct Recorder<'a>(&'a mut dyn FnMut(Action), &'a mut Loads);

/// The loads of slots that are under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loads {
    /// In how many parts registers are written.
    parts: u32,
    /// The context, and how many parts are left.
    left: [Option<(ContextId, u32)>; MAX_SLOTS],
}

impl Card for Recorder<'_> {
    fn load(&mut self, slot: SlotId, ctx: ContextId) -> bool {
        let place = &mut self.1.left[slot.index()];
        let left = match place.take() {
            Some((loaded, left)) if loaded == ctx => left,
            _ => self.1.parts,
        };
        if left > 1 {
            *place = Some((ctx, left - 1));
            return false;
        }
        (self.0)(Action::Load { slot, ctx });
        true
    }

    fn start(&mut self, slot: SlotId, ctx: ContextId, begin: &Begin) {
        (self.0)(Action::Start {
            slot,
            ctx,
            resume: begin.resume,
            boosted: begin.boosted,
            times: begin.times,
        });
    }

    fn pause(&mut self, slot: SlotId, ctx: ContextId, pause: &Pause) {
        (self.0)(Action::Pause {
            slot,
            ctx,
            boundary: pause.boundary,
            cause: pause.cause,
            late: pause.late,
        });
    }

    fn publish(&mut self, slot: SlotId, ctx: ContextId) {
        (self.0)(Action::Load { slot, ctx });
    }

    fn order(&mut self, slot: SlotId, order: &Order) {
        let order = *order;
        (self.0)(Action::Order { slot, order });
    }

    fn reset(&mut self, slot: SlotId, ctx: ContextId, hold: bool) {
        (self.0)(Action::Reset { slot, ctx, hold });
    }

    fn unload(&mut self, slot: SlotId, ctx: ContextId) {
        (self.0)(Action::Unload { slot, ctx });
    }

    fn ended(&mut self, slot: SlotId, ctx: ContextId, run: &RunEnd) {
        let run = *run;
        (self.0)(Action::Ended { slot, ctx, run });
    }

    fn read_status(&mut self, slot: SlotId) {
        (self.0)(Action::ReadStatus { slot });
    }

    fn arm(&mut self, slot: SlotId, at: Time) {
        (self.0)(Action::Arm { slot, at });
    }

    fn notify(&mut self, ctx: ContextId, notice: Notice) {
        (self.0)(match notice {
            Notice::Job(wake) => Action::Wake { ctx, wake },
            Notice::Released => Action::Released { ctx },
            Notice::Lost => Action::Lost { ctx },
            Notice::Stuck => Action::Stuck { ctx },
        });
    }

    fn quarantine(&mut self, slot: SlotId, ctx: Option<ContextId>) {
        (self.0)(Action::Quarantine { slot, ctx });
    }

    fn trace(&mut self, slot: SlotId, ctx: ContextId, what: Trace) {
        (self.0)(match what {
            Trace::Reserved => Action::Reserve { slot, ctx },
            Trace::Overrun(span) => Action::Overrun { slot, ctx, span },
        });
    }
}

/// The scheduler of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler(scheduler::Scheduler, Loads);

impl Deref for Scheduler {
    type Target = scheduler::Scheduler;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

type Out<'a> = &'a mut dyn FnMut(Action);

/// Setting up, and events.
impl Scheduler {
    /// The default starvation boost interval.
    pub const BOOST_DEFAULT: Duration = scheduler::Scheduler::BOOST_DEFAULT;
    /// The shortest boost interval.
    pub const BOOST_MIN: Duration = scheduler::Scheduler::BOOST_MIN;
    /// The longest boost interval.
    pub const BOOST_MAX: Duration = scheduler::Scheduler::BOOST_MAX;
    /// The default boundary wait.
    pub const BOUNDARY_WAIT_DEFAULT: Duration = scheduler::Scheduler::BOUNDARY_WAIT_DEFAULT;
    /// The longest boundary wait.
    pub const BOUNDARY_WAIT_MAX: Duration = scheduler::Scheduler::BOUNDARY_WAIT_MAX;
    /// How many groups can be registered.
    pub const GROUPS_MAX: usize = scheduler::Scheduler::GROUPS_MAX;
    /// How deep registered groups may nest.
    pub const GROUP_DEPTH_MAX: usize = scheduler::Scheduler::GROUP_DEPTH_MAX;

    /// Returns a scheduler without contexts.
    pub fn new(config: &CardConfig, storage: scheduler::Storage) -> Self {
        let loads = Loads {
            parts: 1,
            left: [None; MAX_SLOTS],
        };
        Self(scheduler::Scheduler::new(config, storage), loads)
    }

    /// Sets in how many parts the registers of a context are written: 1 at first.
    pub fn set_load_parts(&mut self, parts: u32) {
        self.1.parts = parts;
    }

    /// Adds a context.
    pub fn add(&mut self, now: Time, config: ContextConfig) -> Result<ContextId, Refusal> {
        self.0.add(now, config)
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: Event, out: Out<'_>) -> Result<(), Refusal> {
        let card = &mut Recorder(out, &mut self.1);
        match event {
            Event::Start { ctx, job } => return self.0.start(card, now, ctx, job),
            Event::Preempt { ctx, hold } => return self.0.preempt(card, now, ctx, hold),
            Event::Resume { ctx } => return self.0.resume(card, now, ctx),
            Event::Hold { ctx } => return self.0.hold(card, now, ctx),
            Event::EndHold { ctx } => return self.0.end_hold(card, now, ctx),
            Event::Ring { ctx } => return self.0.ring(card, now, ctx),
            Event::Hint { ctx, at } => return self.0.hint(card, now, ctx, at),
            Event::Close { ctx } => return self.0.close(card, now, ctx),
            Event::Status { slot, status } => self.0.status(card, now, slot, status),
            Event::Timer { slot } => self.0.timer(card, now, slot),
            Event::Gone => self.0.disconnect(card, now),
        }
        Ok(())
    }

    /// Handles the record of the run on a slot with a relay.
    pub fn take_record(&mut self, now: Time, slot: SlotId, record: &RunRecord, out: Out<'_>) {
        self.0
            .record(&mut Recorder(out, &mut self.1), now, slot, record);
    }

    /// Does the next part of the work that concerns every context.
    pub fn sweep(&mut self, now: Time, most: u32, out: Out<'_>) -> bool {
        self.0.sweep(&mut Recorder(out, &mut self.1), now, most)
    }

    /// Sets the results that a context's jobs had before a checkpoint.
    pub fn set_past(&mut self, id: ContextId, past: PastJobs) -> Result<(), Refusal> {
        self.0.set_past(id, past)
    }
}

/// Settings.
impl Scheduler {
    /// Changes the parameters of a context.
    pub fn set_params(
        &mut self,
        now: Time,
        id: ContextId,
        params: Params,
        out: Out<'_>,
    ) -> Result<(), Refusal> {
        self.0
            .set_params(&mut Recorder(out, &mut self.1), now, id, params)
    }

    /// Disables or enables a context.
    pub fn set_enabled(
        &mut self,
        now: Time,
        id: ContextId,
        enabled: bool,
        out: Out<'_>,
    ) -> Result<(), Refusal> {
        self.0
            .set_enabled(&mut Recorder(out, &mut self.1), now, id, enabled)
    }

    /// Selects another policy.
    pub fn set_policy(&mut self, now: Time, policy: PolicyKind) -> Result<(), Refusal> {
        self.0.set_policy(now, policy)
    }

    /// Sets the starvation boost interval.
    pub fn set_boost(&mut self, now: Time, boost: Duration, out: Out<'_>) -> Result<(), Refusal> {
        self.0
            .set_boost(&mut Recorder(out, &mut self.1), now, boost)
    }

    /// Sets how long urgent work waits for a boundary.
    pub fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        self.0.set_boundary_wait(wait)
    }

    /// Registers a group, or changes its settings.
    pub fn set_group(
        &mut self,
        now: Time,
        key: GroupKey,
        parent: Option<GroupKey>,
        settings: GroupSettings,
        out: Out<'_>,
    ) -> Result<(), Refusal> {
        let card = &mut Recorder(out, &mut self.1);
        self.0.set_group(card, now, key, parent, settings)
    }

    /// Ends the registration of a group.
    pub fn remove_group(&mut self, now: Time, key: GroupKey, out: Out<'_>) -> Result<(), Refusal> {
        self.0
            .remove_group(&mut Recorder(out, &mut self.1), now, key)
    }

    /// Moves contexts to the groups given with them.
    pub fn regroup(
        &mut self,
        now: Time,
        contexts: impl Iterator<Item = (ContextId, impl Into<GroupPath>)>,
        out: Out<'_>,
    ) {
        self.0
            .regroup(&mut Recorder(out, &mut self.1), now, contexts);
    }
}

/// The card as a whole.
impl Scheduler {
    /// Notes the cost of loading registers.
    pub fn note_load(&mut self, now: Time, slot: SlotId, cost: LoadCost, out: Out<'_>) {
        self.0
            .note_load(&mut Recorder(out, &mut self.1), now, slot, cost);
    }

    /// Notes when the last START was written.
    pub fn note_start(&mut self, slot: SlotId, written: Time) {
        self.0.note_start(slot, written);
    }

    /// Notes that times until now were shown to users.
    pub fn note_shown(&mut self, now: Time) {
        self.0.note_shown(now);
    }

    /// Takes all jobs off the card.
    pub fn freeze(&mut self, now: Time, out: Out<'_>) {
        self.0.freeze(&mut Recorder(out, &mut self.1), now);
    }

    /// Notes that the card cannot be accessed.
    pub fn cut_off(&mut self, now: Time) {
        self.0.cut_off(now);
    }

    /// Ends the lost runs.
    pub fn lose_runs(&mut self, now: Time, out: Out<'_>) {
        self.0.lose_runs(&mut Recorder(out, &mut self.1), now);
    }

    /// Notes that the card was set up again.
    pub fn renew(&mut self, slot: SlotId, status: Status, out: Out<'_>) {
        self.0
            .renew(&mut Recorder(out, &mut self.1), Time::ZERO, slot, status);
    }

    /// Lets jobs run again.
    pub fn thaw(&mut self, now: Time, out: Out<'_>) {
        self.0.thaw(&mut Recorder(out, &mut self.1), now);
    }
}

/// Gangs.
#[cfg(feature = "gangs")]
impl Scheduler {
    /// Adds a context to the gang of `with`; `None`: the context is to be in no gang.
    pub fn set_gang(
        &mut self,
        now: Time,
        id: ContextId,
        with: Option<ContextId>,
        out: Out<'_>,
    ) -> Result<(), Refusal> {
        self.0
            .set_gang(&mut Recorder(out, &mut self.1), now, id, with)
    }

    /// Removes a context from its gang if the gang has a member of another group.
    pub fn leave_foreign_gang(&mut self, now: Time, id: ContextId, out: Out<'_>) {
        self.0
            .leave_foreign_gang(&mut Recorder(out, &mut self.1), now, id);
    }
}

/// Without gangs, each context is alone.
#[cfg(not(feature = "gangs"))]
impl Scheduler {
    /// Refuses to put a context into a gang.
    pub fn set_gang(
        &mut self,
        _: Time,
        id: ContextId,
        with: Option<ContextId>,
        _: Out<'_>,
    ) -> Result<(), Refusal> {
        self.0.params(id)?;
        with.map_or(Ok(()), |_| Err(Refusal::Range))
    }

    /// A context is in no gang.
    pub fn leave_foreign_gang(&mut self, _: Time, _: ContextId, _: Out<'_>) {}

    /// Returns one member, the context itself.
    pub fn gang_size(&self, id: ContextId) -> Result<u32, Refusal> {
        self.0.params(id).map(|_| 1)
    }

    /// Returns no member.
    pub fn gang_of(&self, id: ContextId) -> Result<Option<ContextId>, Refusal> {
        self.0.params(id).map(|_| None)
    }
}
