// SPDX-License-Identifier: GPL-2.0

//! The scheduler of `rust/sched`, behind the interface of that of `rust/scheduler`, which is to
//! replace it: the actions of `rust/sched` become calls of [`Card`].

#[path = "scheduler/card.rs"]
#[expect(
    unreachable_pub,
    dead_code,
    reason = "rust/scheduler compiles this file, too, and uses all of it"
)]
mod card;

mod values {
    pub(super) use crate::sched::{
        ContextId, Duration, Order, PauseCause, RunEnd, SlotId, StartTimes, Time, Wake,
    };
}

pub(crate) use crate::sched::*;
pub(crate) use card::{Begin, Card, Notice, Pause, Trace};
use core::ops::Deref;

use crate::sched;

/// The scheduler of a card.
pub(crate) struct Scheduler {
    scheduler: sched::Scheduler,
    /// Slots with a relay, a bit each.
    relays: u8,
}

impl Deref for Scheduler {
    type Target = sched::Scheduler;

    fn deref(&self) -> &sched::Scheduler {
        &self.scheduler
    }
}

/// Executes an action on a card.
fn execute<C: Card>(card: &mut C, relays: u8, action: Action) {
    match action {
        Action::Load { slot, ctx } if relays & slot.bit() != 0 => card.publish(slot, ctx),
        Action::Load { slot, ctx } => while !card.load(slot, ctx) {},
        Action::Unload { slot, ctx } => card.unload(slot, ctx),
        Action::Start {
            slot,
            ctx,
            resume,
            boosted,
            times,
        } => {
            let begin = Begin {
                resume,
                boosted,
                times,
            };
            card.start(slot, ctx, &begin);
        }
        Action::Pause {
            slot,
            ctx,
            boundary,
            cause,
            late,
        } => {
            let pause = Pause {
                boundary,
                cause,
                late,
            };
            card.pause(slot, ctx, &pause);
        }
        Action::Order { slot, order } => card.order(slot, &order),
        Action::Reset { slot, ctx, hold } => card.reset(slot, ctx, hold),
        Action::Ended { slot, ctx, run } => card.ended(slot, ctx, &run),
        Action::ReadStatus { slot } => card.read_status(slot),
        Action::Arm { slot, at } => card.arm(slot, at),
        Action::Disarm { slot } => card.arm(slot, Time::NEVER),
        Action::Overrun { slot, ctx, span } => card.trace(slot, ctx, Trace::Overrun(span)),
        Action::Reserve { slot, ctx } => card.trace(slot, ctx, Trace::Reserved),
        Action::Wake { ctx, wake } => card.notify(ctx, Notice::Job(wake)),
        Action::Lost { ctx } => card.notify(ctx, Notice::Lost),
        Action::Stuck { ctx } => card.notify(ctx, Notice::Stuck),
        Action::Released { ctx } => card.notify(ctx, Notice::Released),
        Action::Quarantine { slot, ctx } => card.quarantine(slot, ctx),
        Action::Inconsistent => {
            kernel::warn_on!(true);
        }
    }
}

/// Declares calls of `rust/sched` that may act on the card.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            pub(crate) fn $name<C: Card>(
                &mut self,
                card: &mut C,
                now: Time,
                $($argument: $type),*
            ) $(-> $result)? {
                let relays = self.relays;
                self.scheduler.$name(now, $($argument,)* &mut |action| execute(card, relays, action))
            }
        )*
    };
}

/// Declares requests that are events for `rust/sched`.
macro_rules! events {
    ($($name:ident($event:ident $(, $argument:ident: $type:ty)*);)*) => {
        $(
            pub(crate) fn $name<C: Card>(
                &mut self,
                card: &mut C,
                now: Time,
                ctx: ContextId,
                $($argument: $type),*
            ) -> Result<(), Refusal> {
                self.handle(card, now, Event::$event { ctx $(, $argument)* })
            }
        )*
    };
}

impl Scheduler {
    pub(crate) const GROUPS_MAX: usize = sched::Scheduler::GROUPS_MAX;
    pub(crate) const GROUP_DEPTH_MAX: usize = sched::Scheduler::GROUP_DEPTH_MAX;
    pub(crate) const BOOST_MIN: Duration = sched::Scheduler::BOOST_MIN;
    pub(crate) const BOOST_MAX: Duration = sched::Scheduler::BOOST_MAX;
    pub(crate) const BOUNDARY_WAIT_MAX: Duration = sched::Scheduler::BOUNDARY_WAIT_MAX;

    pub(crate) fn new(config: &CardConfig, storage: Storage) -> Self {
        let scheduler = sched::Scheduler::new(config, storage);
        let slots = (0..).map_while(SlotId::new);
        let relays = slots.filter(|&slot| scheduler.profile(slot) == Some(Profile::Relay));
        let relays = relays.fold(0, |relays, slot| relays | slot.bit());
        Self { scheduler, relays }
    }

    pub(crate) fn group_places(contexts: usize, classes: usize, remembered: usize) -> usize {
        sched::Scheduler::group_places(contexts, classes, remembered)
    }

    fn handle<C: Card>(&mut self, card: &mut C, now: Time, event: Event) -> Result<(), Refusal> {
        let relays = self.relays;
        self.scheduler
            .handle(now, event, &mut |action| execute(card, relays, action))
    }

    events! {
        start(Start, job: NewJob);
        preempt(Preempt, hold: bool);
        resume(Resume);
        hold(Hold);
        end_hold(EndHold);
        ring(Ring);
        hint(Hint, at: Time);
        close(Close);
    }

    calls! {
        set_params(ctx: ContextId, params: Params) -> Result<(), Refusal>;
        set_enabled(ctx: ContextId, enabled: bool) -> Result<(), Refusal>;
        set_gang(ctx: ContextId, with: Option<ContextId>) -> Result<(), Refusal>;
        leave_foreign_gang(ctx: ContextId);
        set_boost(boost: Duration) -> Result<(), Refusal>;
        set_group(key: GroupKey, parent: Option<GroupKey>, settings: GroupSettings)
            -> Result<(), Refusal>;
        remove_group(key: GroupKey) -> Result<(), Refusal>;
        note_load(slot: SlotId, cost: LoadCost);
        freeze();
        lose_runs();
        thaw();
        sweep(most: u32) -> bool;
    }

    pub(crate) fn status<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        slot: SlotId,
        status: Status,
    ) {
        // Events of the card are never refused.
        let _ = self.handle(card, now, Event::Status { slot, status });
    }

    pub(crate) fn timer<C: Card>(&mut self, card: &mut C, now: Time, slot: SlotId) {
        let _ = self.handle(card, now, Event::Timer { slot });
    }

    pub(crate) fn disconnect<C: Card>(&mut self, card: &mut C, now: Time) {
        let _ = self.handle(card, now, Event::Gone);
    }

    pub(crate) fn record<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        slot: SlotId,
        record: &RunRecord,
    ) {
        let relays = self.relays;
        self.scheduler
            .take_record(now, slot, record, &mut |action| {
                execute(card, relays, action)
            });
    }

    pub(crate) fn renew<C: Card>(&mut self, card: &mut C, _: Time, slot: SlotId, status: Status) {
        let relays = self.relays;
        self.scheduler
            .renew(slot, status, &mut |action| execute(card, relays, action));
    }

    pub(crate) fn regroup<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        contexts: impl Iterator<Item = (ContextId, GroupPath)>,
    ) {
        let relays = self.relays;
        self.scheduler
            .regroup(now, contexts, &mut |action| execute(card, relays, action));
    }

    pub(crate) fn set_past(&mut self, ctx: ContextId, past: PastJobs) -> Result<(), Refusal> {
        self.scheduler.set_past(ctx, past)
    }

    pub(crate) fn set_policy(&mut self, now: Time, policy: PolicyKind) -> Result<(), Refusal> {
        self.scheduler.set_policy(now, policy)
    }

    pub(crate) fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        self.scheduler.set_boundary_wait(wait)
    }

    pub(crate) fn add(&mut self, now: Time, config: ContextConfig) -> Result<ContextId, Refusal> {
        self.scheduler.add(now, config)
    }

    pub(crate) fn note_start(&mut self, slot: SlotId, written: Time) {
        self.scheduler.note_start(slot, written);
    }

    pub(crate) fn note_shown(&mut self, now: Time) {
        self.scheduler.note_shown(now);
    }

    pub(crate) fn cut_off(&mut self, now: Time) {
        self.scheduler.cut_off(now);
    }
}
