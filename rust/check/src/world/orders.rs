// SPDX-License-Identifier: GPL-2.0

//! What must hold for orders, and for the driver's knowledge of slots with a relay.

use fermata_sched_host::sched::{Action, ContextId, EndReason, JobState, Order, SlotState, Stop};

use super::relay::IN_FLIGHT;
use super::{slot_id, Snapshot, World};
use crate::card::{is_at_once, is_later, named, Told};
use crate::Rule;

/// Limit of contexts that are named for a run before the last one stays.
const NAMED_MAX: usize = 3;

impl World {
    /// Executes actions other than orders on a card with relays.
    pub(super) fn act_on_relay(&mut self, action: Action) {
        match action {
            Action::Start { slot, ctx, .. } => self.run_noted(slot.index(), ctx),
            _ if self.vanished => {}
            Action::Load { ctx, .. } => self.entry_written(ctx),
            Action::Pause {
                slot,
                ctx,
                boundary,
                cause,
                ..
            } => self.pause_written(slot.index(), ctx, boundary, cause),
            Action::Reset { slot, ctx, hold } => {
                self.reset_relay(slot.index(), ctx, hold);
                self.reset_written(slot.index(), hold);
            }
            // The driver reads no results of a run that was not saved.
            Action::Ended { run, .. }
                if matches!(run.reason, EndReason::Aborted(_) | EndReason::Dropped) => {}
            Action::Ended { ctx, .. } => self.results_read(ctx.index()),
            // A relay closes the window of a slot itself.
            _ => self.must(false, Rule::OrderFollows, || format!("{action:?}")),
        }
    }

    /// An order is posted. It is lost if the card went away unnoticed.
    pub(super) fn order_posted(&mut self, i: usize, order: Order) {
        let before = self.slots[i].relay.told.posted.as_ref().and_then(named);
        let next = named(&order);
        if !self.vanished {
            self.must_be_right(i, &order, before);
            self.posted.push((i, order));
            self.seen.four_posted |= self.posted.len() == IN_FLIGHT;
        }
        self.seen.replaced |= before.is_some() && next.is_some() && next != before;
        self.seen.withdrawn |= before.is_some() && next.is_none();
        let now = self.now;
        let slot = &mut self.slots[i];
        let told = &mut slot.relay.told;
        if is_at_once(order.stop) && !told.posted.is_some_and(|last| is_at_once(last.stop)) {
            slot.first_pause = now;
        }
        told.posted = (order.stop != Stop::Vacant).then_some(order);
        told.named |= next.map_or(0, |index| 1 << index);
    }

    /// An order may be posted; `before`: who was named in the last one.
    fn must_be_right(&mut self, i: usize, order: &Order, before: Option<usize>) {
        let quarantined = self.slots[i].quarantined;
        self.must(!quarantined, Rule::Quarantine, || "an order".into());
        self.must_follow(i, order);
        self.must_stop_right(i, order);
        let Some(ctx) = order.next.map(|next| next.ctx) else {
            return;
        };
        self.must_be_free(i, ctx, order);
        if before != Some(ctx.index()) {
            self.must_be_nameable(i, order);
        }
        if self.slots[i].relay.lost == Some(order.after) {
            self.spoil_context(ctx.index());
        }
    }

    /// Checks that an order follows the run known to be on the slot, or the last run of a vacant slot.
    fn must_follow(&mut self, i: usize, order: &Order) {
        // As the call that posts the order leaves it.
        let awaited = self.machine.awaited_run(slot_id(i));
        let right = match (order.stop, awaited) {
            (Stop::Vacant, Some((ctx, run))) => {
                let own = order.next.is_some_and(|next| next.ctx == ctx);
                own && order.after.wrapping_add(1) == run
            }
            (_, Some((_, run))) => order.after == run,
            (_, None) => false,
        };
        self.must(right, Rule::OrderFollows, || {
            format!("{order:?}, {awaited:?}")
        });
    }

    /// Checks that a job is told to stop at a boundary exactly if it is cooperative and no urgent
    /// work has waited too long.
    fn must_stop_right(&mut self, i: usize, order: &Order) {
        let Stop::Paused { boundary, .. } = order.stop else {
            return;
        };
        let on = self.machine.awaited_run(slot_id(i));
        let params = on.and_then(|(ctx, _)| self.machine.params(ctx).ok());
        let cooperative = params.is_some_and(|params| params.cooperative);
        let right = boundary == (cooperative && !self.slots[i].bounded);
        self.must(right, Rule::Boundary, || format!("{order:?}"));
    }

    /// Checks that no other slot runs the named context or may take it, and that this slot does not
    /// run it.
    fn must_be_free(&mut self, i: usize, ctx: ContextId, order: &Order) {
        let index = ctx.index();
        // As the driver knows the slot, which may not have taken the context yet.
        let awaited = self.machine.awaited_run(slot_id(i));
        let follows_itself = order.stop != Stop::Vacant && awaited == Some((ctx, order.after));
        let on =
            |j: usize| self.slots[j].last == Some(index) && self.slots[j].may_touch(self.now, 0);
        // The card may have taken it for the same run before, and drops the order then.
        let mut others = (0..self.slots.len()).filter(|&j| j != i);
        let elsewhere = others.any(|j| on(j) || self.may_take(j, index));
        let itself = on(i) && self.slots[i].count == order.after;
        let free = !elsewhere && !itself && !follows_itself;
        self.must(free, Rule::NamedOnce, || format!("context {index}"));
    }

    /// Checks that the job of a newly named context may run, and resumes from its own snapshot.
    fn must_be_nameable(&mut self, i: usize, order: &Order) {
        let Some(next) = order.next else { return };
        let index = next.ctx.index();
        let owner = self.owners[index]
            .as_ref()
            .filter(|owner| owner.id == next.ctx);
        let Some((owner, job)) = owner
            .filter(|owner| !owner.closed)
            .and_then(|owner| Some((owner, owner.job?)))
        else {
            return self.must(false, Rule::RunOnce, || "no such job".into());
        };
        let allowed = owner.enabled && owner.mask & slot_id(i).bit() != 0;
        let served = self.exclusive.is_none_or(|group| group == owner.group);
        let complete = owner.snapshot == Snapshot::Complete;
        let (hold, due) = (owner.is_to_be_held(), owner.results_due);
        self.must(!hold && !job.held, Rule::HoldKept, || {
            format!("context {index} is named")
        });
        self.must(allowed, Rule::StartTaken, || "not allowed".into());
        self.must(served, Rule::Reserved, || format!("context {index}"));
        self.must(!job.finished, Rule::FinishedStays, || {
            format!("context {index}")
        });
        let once = !job.ended && (next.resume || !job.begun);
        self.must(once, Rule::RunOnce, || "begun again".into());
        self.must(!next.resume || complete, Rule::ResumeComplete, || {
            format!("context {index}")
        });
        self.must(!due || job.spoilt, Rule::Captured, || "lost".into());
    }

    /// May a slot still take a context, by an order that it holds or that is on its way?
    pub(super) fn may_take(&self, i: usize, index: usize) -> bool {
        let held = self.slots[i].relay.held.as_ref().and_then(named);
        let mut posted = self.posted.iter().filter(|(j, _)| *j == i);
        held == Some(index)
            || posted.any(|(i, order)| named(order) == Some(index) && self.may_be_taken(*i, order))
    }

    /// May a slot touch the memory of a context, or come to do so?
    pub(super) fn in_reach(&self, index: usize) -> bool {
        (0..self.slots.len()).any(|i| {
            let slot = &self.slots[i];
            let on = slot.last == Some(index) && slot.may_touch(self.now, 0);
            on || self.may_take(i, index)
        })
    }

    /// May a slot take a context, by an order that it holds or that is on its way?
    pub(super) fn may_be_taken_soon(&self, index: usize) -> bool {
        (0..self.slots.len()).any(|i| self.may_take(i, index))
    }

    /// The driver knows that a run of a context begins.
    pub(super) fn run_noted(&mut self, i: usize, ctx: ContextId) {
        self.started.push(ctx.index());
        let slot = &mut self.slots[i];
        slot.begin_told();
        slot.relay.told = Told::default();
    }

    /// The reset bit of a slot is written, after all orders that were posted before.
    pub(super) fn reset_relay(&mut self, i: usize, ctx: ContextId, hold: bool) {
        if hold {
            self.must_be_known(i, ctx);
            while !self.posted.is_empty() {
                self.arrive();
            }
        }
        let relay = &mut self.slots[i].relay;
        relay.resetting = hold;
        // None is posted before the slot is vacant.
        relay.told.posted = None;
    }

    /// The memory of a context stays, because a slot that is out of use may have taken it.
    pub(super) fn stuck(&mut self, ctx: ContextId) {
        self.seen.stuck = true;
        for slot in self.slots.iter_mut().filter(|slot| slot.quarantined) {
            slot.relay.stuck |= 1 << ctx.index();
        }
    }

    /// Is the memory of a context in reach of a slot that is out of use?
    pub(super) fn is_stuck(&self, index: usize) -> bool {
        self.slots.iter().any(|slot| {
            let named = slot.relay.stuck >> index & 1 != 0;
            slot.quarantined && (slot.last == Some(index) || named)
        })
    }

    /// Is a context named in the last order of a slot?
    pub(super) fn is_next(&self, index: usize) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.relay.told.posted.as_ref().and_then(named) == Some(index))
    }

    /// Is a context named on a slot, so that the card may have taken it?
    pub(super) fn is_named(&self, index: usize) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.relay.told.named >> index & 1 != 0)
    }

    /// Entry and registers of a context are written in memory.
    pub(super) fn entry_written(&mut self, ctx: ContextId) {
        let still = !self.in_reach(ctx.index());
        self.must(still, Rule::EntryStill, || {
            format!("context {}", ctx.index())
        });
    }

    /// The results of a run are read from memory.
    fn results_read(&mut self, index: usize) {
        self.must(!self.in_reach(index), Rule::Captured, || {
            "a later run may write".into()
        });
        if let Some(owner) = &mut self.owners[index] {
            owner.results_due = false;
        }
    }

    /// Checks a reset of a slot, by the driver's decision or after a protocol violation of the card.
    pub(super) fn must_be_known(&mut self, i: usize, ctx: ContextId) {
        let mut posted = self.posted.iter().filter(|(j, _)| *j == i);
        let live = posted.any(|(i, order)| self.may_be_taken(*i, order));
        let slot = &self.slots[i];
        let held = slot.relay.held.as_ref().and_then(named);
        let own = slot.active() && slot.last == Some(ctx.index()) && slot.relay.records.is_empty();
        let known = own && held.is_none() && !live;
        let allowed = known || slot.relay.lost.is_some() || slot.relay.resetting;
        self.must(allowed, Rule::ResetKnown, || {
            format!("slot {i}: {held:?} is held, in flight: {live}")
        });
    }

    /// What must hold after every step.
    pub(super) fn check_relay(&mut self, i: usize) {
        let state = self.machine.slot_state(slot_id(i));
        if matches!(state, Some(SlotState::Vacant | SlotState::Gone)) {
            self.slots[i].relay.told = Told::default();
        }
        if self.gone || self.vanished || !self.reads.is_empty() {
            return;
        }
        if let Some(SlotState::Running(ctx)) = state {
            let owner = self.owners[ctx.index()].as_ref();
            let stays = owner.is_none_or(|owner| !owner.is_to_be_held() && !owner.closed);
            self.must(stays, Rule::HoldKept, || {
                format!("slot {i}: not told to stop")
            });
        }
        self.check_belief(i);
        self.check_named(i);
        self.check_urgent(i);
    }

    /// Checks that a context that must not run is not named, unless too many withdrawals are
    /// unresolved: one place is left for the end of the preempt timeout.
    fn check_named(&mut self, i: usize) {
        let told = &self.slots[i].relay.told;
        let Some(index) = told.posted.as_ref().and_then(named) else {
            return;
        };
        let full = told.named.count_ones() as usize >= NAMED_MAX;
        let Some(owner) = &self.owners[index] else {
            return;
        };
        let served = self.exclusive.is_none_or(|group| group == owner.group);
        let allowed = served && owner.enabled && owner.mask & slot_id(i).bit() != 0;
        let stays = owner.is_to_be_held() || owner.closed;
        let wanted = !stays && allowed && !self.frozen;
        self.must(wanted || full, Rule::Withdrawn, || {
            format!("context {index}")
        });
    }

    /// Checks that, with no order or record in flight, the driver knows the run on a slot and the
    /// order that the slot holds.
    fn check_belief(&mut self, i: usize) {
        let id = slot_id(i);
        let slot = &self.slots[i];
        let quiet = self.posted.iter().all(|(j, _)| *j != i) && slot.relay.records.is_empty();
        if !quiet || slot.relay.misbehaves() || slot.relay.resetting || slot.quarantined {
            return;
        }
        let (on, count) = (slot.last.filter(|_| slot.active()), slot.count);
        let awaited = self.machine.awaited_run(id);
        let right = match awaited {
            Some((ctx, run)) => on == Some(ctx.index()) && run == count,
            None => on.is_none(),
        };
        self.must(right, Rule::Belief, || format!("{on:?}, not {awaited:?}"));
        let held =
            |order: Order| (order.next.is_some() || order.stop != Stop::Never).then_some(order);
        let relay = &self.slots[i].relay;
        let (card, told) = (relay.held, relay.told.posted);
        let same = card == told.and_then(held);
        self.must(same, Rule::Belief, || format!("{card:?}, not {told:?}"));
    }

    /// Latency-critical work that waits for a slot of best-effort work is named there, and the job
    /// there is told to stop at once.
    fn check_urgent(&mut self, i: usize) {
        let state = self.machine.slot_state(slot_id(i));
        let (Some(SlotState::Running(on) | SlotState::Pausing(on)), false) = (state, self.frozen)
        else {
            return;
        };
        let relay = &self.slots[i].relay;
        let posted = relay.told.posted;
        let gives_up = posted.is_some_and(|order| order.stop == Stop::Never);
        let alone = !self.bounds.gangs && !self.bounds.gang;
        if self.is_critical(on) || gives_up || !alone {
            return;
        }
        let next = posted.and_then(|order| order.next);
        let serves = next.is_some_and(|next| self.is_critical_job(next.ctx.index()));
        let soon = posted.is_some_and(|order| !is_later(order.stop));
        let waits = self.critical_waits_for(i);
        self.seen.urgent_named |= serves;
        self.must(!serves || soon, Rule::NotBehind, || {
            format!("slot {i}: later")
        });
        self.must(!waits || serves, Rule::NotBehind, || {
            format!("slot {i}: {state:?}, {posted:?}")
        });
    }

    fn is_critical_job(&self, index: usize) -> bool {
        self.id(index).is_some_and(|id| self.is_critical(id))
    }

    /// Does latency-critical work wait that may use a slot?
    fn critical_waits_for(&self, i: usize) -> bool {
        let now = self.time();
        self.owners.iter().flatten().any(|owner| {
            let stats = self.machine.stats(owner.id, now);
            let waits =
                stats.is_ok_and(|stats| stats.state == JobState::Queued && !stats.throttled);
            let serves = self.exclusive.is_none_or(|group| group == owner.group);
            let may = serves && owner.enabled && owner.mask & slot_id(i).bit() != 0;
            waits && may && self.is_critical(owner.id)
        })
    }
}
