// SPDX-License-Identifier: GPL-2.0

//! Work that concerns every context, done for a few contexts at a time.
//!
//! A change of policy, a slot that goes out of use or comes back, and the end of the card concern
//! all contexts. The caller holds its lock with interrupts off, so no call visits all of them: the
//! work is noted, and [`Scheduler::sweep`] does the next part. The caller drops its lock between
//! two parts. Visiting a context twice does no harm, so a request during a sweep restarts the
//! sweep.
//!
//! A new policy is in force at once. Until a sweep has visited a context, its job waits where the
//! old policy put it.

use super::context::{JobState, Linked};
use super::event::Cx;
use super::ids::ContextIndex;
use super::policy::PolicyKind;
use super::state::{Pass, Scheduler, Sweep};
use super::{Action, Failure, Time};

impl Scheduler {
    /// Returns whether there is work left for [`Scheduler::sweep`].
    pub fn is_sweeping(&self) -> bool {
        self.sweep.pass != Pass::None
    }

    /// Does the next part of the work that concerns every context: for at most `most` contexts or
    /// groups, O(log n) each. Returns whether work is left.
    ///
    /// When [`Scheduler::is_sweeping`] returns `true` after any other call, this must be called
    /// until no work is left. The caller should drop its lock between two calls.
    pub fn sweep(&mut self, now: Time, most: u32, out: &mut dyn FnMut(Action)) -> bool {
        if !self.is_sweeping() {
            return false;
        }
        let cx = &mut Cx::new(now, out);
        let end = match self.sweep.pass {
            Pass::ResetGroup => self.entities.group_places(),
            _ => self.entities.context_places(),
        };
        let first = self.sweep.next;
        let next = end.min(first.saturating_add(most));
        for index in first..next {
            self.visit(cx, index);
        }
        self.sweep.next = next;
        if next == end {
            self.sweep = match self.sweep.pass {
                Pass::ResetGroup => Sweep::new(Pass::ResetContext),
                _ => Sweep::NONE,
            };
        }
        self.reschedule_all(cx);
        self.is_sweeping()
    }

    /// Puts another policy into force. Running jobs stay; their slices continue under the new
    /// rules.
    pub(super) fn change_policy(&mut self, now: Time, policy: PolicyKind) {
        self.charge_runs(now);
        self.policy = policy;
        // A gang of which a member was started is started as a whole.
        self.keep_claims(|claim| claim.begun);
        self.for_runs(|scheduler, ctx| scheduler.reset_context(now, ctx));
        self.forget_all_plans();
        self.sweep = Sweep::new(Pass::ResetGroup);
    }

    fn visit(&mut self, cx: &mut Cx<'_>, index: u32) {
        if self.sweep.pass == Pass::ResetGroup {
            if let Some(group) = self.entities.group_at(index) {
                self.reset_group_vruntime(group);
            }
            return;
        }
        let Some(ctx) = self.entities.context_at(index) else {
            return;
        };
        let context = &self.entities[ctx];
        let queued = context.state == JobState::Queued;
        let is_stranded = queued && self.check_mask(context.class, context.params.mask).is_err();
        if self.gone {
            self.lose_context(cx, ctx);
        } else if is_stranded {
            self.stop_waiting(cx.now, ctx, JobState::Idle);
            let wake = self.fail(cx.now, ctx, Failure::Protocol);
            let ctx = self.entities.id(ctx);
            cx.act(Action::Wake { ctx, wake });
        } else if self.sweep.pass == Pass::ResetContext {
            self.reset_context(cx.now, ctx);
        } else if queued && (context.linked == Linked::Ineligible) != self.has_no_slot(ctx) {
            self.change_access(cx.now, ctx);
        }
    }

    /// Resets a context for the policy in force.
    fn reset_context(&mut self, now: Time, ctx: ContextIndex) {
        let change = self.begin_change(now, ctx, true);
        if self.entities[ctx].charging {
            self.refill_caps(now, ctx);
        }
        self.reset_vruntime(ctx);
        self.end_change(now, ctx, change);
    }

    /// Handles a context of a card that is gone: its job fails, or the context is released if it
    /// was closed.
    fn lose_context(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        let context = &mut self.entities[ctx];
        context.stuck = false;
        let (closing, state) = (context.closing, context.state);
        if state == JobState::Queued {
            self.stop_waiting(cx.now, ctx, JobState::Idle);
        }
        if closing {
            return self.release(cx, ctx);
        }
        let name = self.entities.id(ctx);
        if state.is_live() {
            let wake = self.fail(cx.now, ctx, Failure::Gone);
            cx.act(Action::Wake { ctx: name, wake });
        }
        cx.act(Action::Lost { ctx: name });
    }
}
