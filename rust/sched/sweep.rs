// SPDX-License-Identifier: GPL-2.0

//! What concerns every context, done for a few contexts at a time.
//!
//! Another policy, a slot that goes out of use or comes back, and the end of the card concern all contexts. The caller holds
//! its lock with interrupts off, so no call visits all of them. What is to be done is noted, and [`Machine::sweep`] does the next part;
//! the caller lets go of its lock between two parts. Visiting a context twice does no harm, so a request that comes while a
//! sweep is under way lets the sweep begin again.
//!
//! Another policy is in force at once. Until a sweep has visited a context, its job waits where the old policy put it, and its
//! group stands for it or not as under the old policy; both are noted in the entry.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::{Action, ContextId, Entry, Failure, JobState, PolicyKind, Time};

/// What is done with each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Nothing: no sweep is under way.
    None,
    /// A group begins anew under the policy in force; then the contexts do.
    BeginGroup,
    /// A context begins anew under the policy in force, and is brought in line as by `Settle`.
    BeginContext,
    /// A context is brought in line with the slots that are in use, or with the end of the card.
    Settle,
}

/// A sweep over all entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    pass: Pass,
    /// The index of the entry to visit next.
    next: u32,
}

impl Sweep {
    /// None is under way.
    pub(super) const NONE: Self = Self {
        pass: Pass::None,
        next: 0,
    };
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Is there something left for [`Machine::sweep`]?
    pub fn is_sweeping(&self) -> bool {
        self.sweep.pass != Pass::None
    }

    /// Does the next part of what concerns every context: for at most `most` contexts or groups, O(log n) each. Returns
    /// whether something is left.
    ///
    /// To be called until nothing is left when [`Machine::is_sweeping`] after any other call. The caller should let go of its
    /// lock between two calls.
    pub fn sweep(&mut self, now: Time, most: u32, out: &mut impl FnMut(Action)) -> bool {
        let out: &mut Out<'_> = out;
        if !self.is_sweeping() {
            return false;
        }
        let (_, end) = self.swept();
        let begin = self.sweep.next;
        let next = end.min(begin.saturating_add(most));
        for index in begin..next {
            self.visit(now, index, out);
        }
        self.sweep.next = next;
        if next == end {
            match self.sweep.pass {
                Pass::BeginGroup => self.begin_pass(Pass::BeginContext),
                Pass::None | Pass::BeginContext | Pass::Settle => self.sweep = Sweep::NONE,
            }
        }
        self.press_all(now, out);
        self.is_sweeping()
    }

    /// The slots in use have changed, or the card is gone.
    pub(super) fn settle_all(&mut self) {
        match self.sweep.pass {
            // The next pass does that too.
            Pass::BeginGroup if !self.gone => {}
            Pass::BeginContext if !self.gone => self.begin_pass(Pass::BeginContext),
            _ => self.begin_pass(Pass::Settle),
        }
    }

    /// Another policy decides from now on. Jobs that run stay; their slices go on by the new rules.
    pub(super) fn change_policy(&mut self, now: Time, policy: PolicyKind) {
        let running = self.slots.each_ref().map(|slot| slot.state.ctx());
        for ctx in running.into_iter().flatten() {
            self.leave_slots(now, ctx);
        }
        self.policy = policy;
        for ctx in running.into_iter().flatten() {
            self.begin_context_anew(now, ctx);
        }
        self.begin_pass(Pass::BeginGroup);
    }

    fn begin_pass(&mut self, pass: Pass) {
        self.sweep.pass = pass;
        self.sweep.next = self.swept().0;
    }

    /// Where the entries that the pass visits begin and end.
    fn swept(&self) -> (u32, u32) {
        let records = self.slab.record_places();
        match self.sweep.pass {
            Pass::BeginGroup => records,
            Pass::None | Pass::BeginContext | Pass::Settle => (0, records.0),
        }
    }

    fn visit(&mut self, now: Time, index: u32, out: &mut Out<'_>) {
        if self.sweep.pass == Pass::BeginGroup {
            return self.begin_group_anew(index);
        }
        let Some(ctx) = self.slab.id_at(index) else {
            return;
        };
        if self.gone {
            return self.context_gone(now, ctx, out);
        }
        if self.is_stranded(ctx) {
            return self.fail_stranded(now, ctx, out);
        }
        if self.sweep.pass == Pass::BeginContext {
            self.begin_context_anew(now, ctx);
        } else {
            self.line_up_aside(now, ctx);
        }
    }

    /// Its run is charged until now, and its group stands for it no more.
    fn leave_slots(&mut self, now: Time, ctx: ContextId) {
        if self.slab.get(ctx).is_some_and(Entry::is_metered) {
            self.meter(now, ctx);
            self.leave_lane(ctx);
        }
    }

    /// What the context had under another policy counts no more.
    fn begin_context_anew(&mut self, now: Time, ctx: ContextId) {
        let queued = self.is_queued(ctx);
        self.leave_slots(now, ctx);
        if queued {
            self.step_out(ctx);
        }
        let hint = self.take_hint(ctx);
        self.put_hint(ctx, hint);
        self.begin_anew(ctx);
        if self.slab.get(ctx).is_some_and(Entry::is_metered) {
            self.enter_lane(ctx);
        }
        self.weigh(ctx);
        if queued {
            self.line_up(now, ctx, false);
        }
    }

    /// Lets a job wait for a slot again that was set aside and may use a slot now.
    fn line_up_aside(&mut self, now: Time, ctx: ContextId) {
        let aside = |entry: &&Entry| entry.aside && !self.has_no_slot(entry);
        if self.slab.get(ctx).filter(aside).is_some() {
            self.change_access(now, ctx, |_| ());
        }
    }

    /// Does its job wait for slots none of which is in use any more?
    fn is_stranded(&self, ctx: ContextId) -> bool {
        self.slab.get(ctx).is_some_and(|entry| {
            entry.state == JobState::Queued
                && self.check_mask(entry.queue, entry.params.mask).is_err()
        })
    }

    fn fail_stranded(&mut self, now: Time, ctx: ContextId, out: &mut Out<'_>) {
        self.dequeue(now, ctx, JobState::Idle);
        let wake = self.fail(ctx, Failure::Protocol);
        out(Action::Wake { ctx, wake });
    }

    /// The card is gone: the job fails, and a context that was closed is released.
    fn context_gone(&mut self, now: Time, ctx: ContextId, out: &mut Out<'_>) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        entry.stuck = false;
        let (closing, state) = (entry.is_closing(), entry.state);
        if state == JobState::Queued {
            self.dequeue(now, ctx, JobState::Idle);
        }
        if closing {
            return self.release(ctx, out);
        }
        if state.is_live() {
            let wake = self.fail(ctx, Failure::Gone);
            out(Action::Wake { ctx, wake });
        }
        out(Action::Lost { ctx });
    }

    fn is_queued(&self, ctx: ContextId) -> bool {
        let entry = self.slab.get(ctx);
        entry.is_some_and(|entry| entry.state == JobState::Queued)
    }
}
