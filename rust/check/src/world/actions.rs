// SPDX-License-Identifier: GPL-2.0

//! The effects of the machine's actions on card and owners, and what must hold for each action.

use fermata_sched_host::sched::{
    Action, ContextId, EndReason, Failure, LeftReason, PauseCause, Wake,
};

use super::{slot_id, Job, Owner, Snapshot, World, TIMEOUT, US};
use crate::card::{Engine, IgnoredResets, EMPTY, FAULT, SNAPSHOT_ERROR};
use crate::Rule;

/// An interrupt handler returns before the next timer fires: a timer that is due fires this much
/// later.
pub(super) const AHEAD: u64 = 2 * US;

impl World {
    pub(super) fn act(&mut self, action: Action, reads: &mut Vec<usize>) {
        let quiet = matches!(
            action,
            Action::Wake { .. } | Action::Lost { .. } | Action::Released { .. }
        );
        self.must(!self.gone || quiet, Rule::AfterGone, || {
            format!("{action:?}")
        });
        let is_idle = matches!(action, Action::Arm { .. } | Action::ReadStatus { .. });
        self.acts += u32::from(!is_idle);
        match action {
            Action::Arm { slot, at } => {
                let (now, at) = (self.now, at.as_ns());
                self.must(at >= now + AHEAD, Rule::TimerAhead, || format!("{slot:?}"));
                self.slots[slot.index()].timer = Some(at.max(now));
            }
            Action::ReadStatus { slot } => reads.push(slot.index()),
            Action::Wake { ctx, wake } => self.woken(ctx, wake),
            Action::Released { ctx } => self.released(ctx),
            Action::Reserve { .. } | Action::Overrun { .. } | Action::Lost { .. } => {}
            Action::Quarantine { slot, ctx } => self.given_up(slot.index(), ctx),
            Action::Stuck { ctx } => self.stuck(ctx),
            Action::Order { slot, order } => self.order_posted(slot.index(), order),
            _ if self.bounds.relay => self.act_on_relay(action),
            // Writes to a card whose removal was not noticed yet are lost.
            _ if self.vanished => {}
            Action::Load { slot, ctx } => {
                self.touch(slot.index(), "Load");
                self.slots[slot.index()].window = Some(ctx.index());
            }
            Action::Unload { slot, .. } => {
                self.touch(slot.index(), "Unload");
                self.slots[slot.index()].window = None;
            }
            Action::Start {
                slot, ctx, resume, ..
            } => self.started(slot.index(), ctx, resume),
            Action::Pause {
                slot,
                ctx,
                boundary,
                cause,
                ..
            } => self.pause_written(slot.index(), ctx, boundary, cause),
            Action::Reset { slot, hold, .. } => self.reset_written(slot.index(), hold),
            Action::Ended { run, .. } if matches!(run.reason, EndReason::Aborted(_)) => {}
            Action::Ended { slot, ctx, .. } => self.captured(slot.index(), ctx.index()),
        }
    }

    /// Notes that a slot is quarantined.
    fn given_up(&mut self, i: usize, ctx: Option<ContextId>) {
        self.seen.quarantined = true;
        let slot = &mut self.slots[i];
        // The driver does not know which context is on a slot with a relay.
        slot.relay.stuck |= ctx.map_or(0, |ctx| 1 << ctx.index());
        let is_busy = slot.engine != Engine::Idle && !slot.quarantined;
        slot.relay.resetting = false;
        slot.quarantined = true;
        let allowed = is_busy || self.vanished;
        self.must(allowed, Rule::Quarantine, || "without a reason".into());
    }

    /// Notes that the results of a run are read, and checks that this is neither too early nor too
    /// late.
    fn captured(&mut self, i: usize, index: usize) {
        let slot = &mut self.slots[i];
        slot.captured = true;
        let ended = matches!(slot.engine, Engine::Paused | Engine::Finished);
        let own = slot.last == Some(index) && slot.window == slot.last;
        self.must(ended && own, Rule::Captured, || "too early or late".into());
    }

    /// Checks that the window or the registers may change now.
    fn touch(&mut self, i: usize, what: &str) {
        let slot = &self.slots[i];
        let still = !slot.may_touch(self.now, self.settle());
        let quarantined = slot.quarantined;
        self.must(!quarantined, Rule::Quarantine, || what.into());
        self.must(still, Rule::WindowStill, || format!("{what} on slot {i}"));
        self.must_be_captured(i);
    }

    /// Checks that the results of a run that was not aborted were read, unless the context is closed
    /// or the job was hit by a fault.
    fn must_be_captured(&mut self, i: usize) {
        // Results are in memory until the next run of the same context.
        if self.bounds.relay {
            return;
        }
        let slot = &self.slots[i];
        let ended = matches!(slot.engine, Engine::Paused | Engine::Finished);
        let captured = slot.captured;
        let wanted = self
            .owner_on(i)
            .is_some_and(|owner| !owner.closed && owner.job.is_some_and(|job| !job.spoilt));
        self.must(!ended || !wanted || captured, Rule::Captured, || {
            "lost".into()
        });
    }

    fn started(&mut self, i: usize, ctx: ContextId, resume: bool) {
        self.must_take_start(i, ctx.index());
        let index = ctx.index();
        let own = self.owners[index].as_ref().filter(|owner| owner.id == ctx);
        let job = own
            .filter(|owner| !owner.closed)
            .and_then(|owner| owner.job);
        let Some(job) = job else {
            self.must(false, Rule::RunOnce, || "no such job".into());
            return;
        };
        self.must_be_due(i, index, job, resume);
        self.seen.resumed |= resume;
        self.started.push(index);
        let lost = std::mem::take(&mut self.slots[i].lose_start);
        if let Some(owner) = &mut self.owners[index] {
            owner.begin(resume, lost);
        }
        if lost {
            return;
        }
        let (base, now) = (self.bounds.base, self.now);
        self.slots[i].begin(index, resume, base, now);
        self.slots[i].begin_told();
        if !resume {
            self.attend(i);
        }
    }

    /// Checks that the slot can take a START, has the context's window, and serves the context.
    fn must_take_start(&mut self, i: usize, index: usize) {
        let active = self.slots[i].active();
        self.must(!active, Rule::OneJobPerSlot, || {
            format!("START on slot {i}")
        });
        let group = self.owners[index].as_ref().map(|owner| owner.group);
        let served = self.exclusive.is_none() || self.exclusive == group;
        self.must(served, Rule::Reserved, || format!("{group:?} on slot {i}"));
        self.touch(i, "START");
        let (now, settle) = (self.now, self.settle());
        let other = self
            .slots
            .iter()
            .enumerate()
            .any(|(j, slot)| j != i && slot.last == Some(index) && slot.may_touch(now, settle));
        self.must(!other, Rule::OneSlotPerJob, || format!("context {index}"));
        let slot = &self.slots[i];
        let idle = !self.bounds.base || slot.engine == Engine::Idle;
        let taken = !slot.in_reset && slot.window == Some(index) && idle;
        self.must(taken, Rule::StartTaken, || format!("slot {i}"));
    }

    /// Checks that the job may run, resumes from its own snapshot, and has not ended.
    fn must_be_due(&mut self, i: usize, index: usize, job: Job, resume: bool) {
        let Some(owner) = &self.owners[index] else {
            return;
        };
        let (hold, snapshot) = (owner.is_to_be_held(), owner.snapshot);
        let allowed = owner.enabled && owner.mask & slot_id(i).bit() != 0;
        self.must(!hold && !job.held, Rule::HoldKept, || {
            format!("context {index} runs")
        });
        self.must(allowed, Rule::StartTaken, || "not allowed".into());
        self.must(!job.finished, Rule::FinishedStays, || {
            format!("resume: {resume}")
        });
        self.must(!job.ended, Rule::RunOnce, || "ended before".into());
        self.must(resume || !job.begun, Rule::RunOnce, || "begun again".into());
        let complete = snapshot == Snapshot::Complete;
        self.must(!resume || complete, Rule::ResumeComplete, || {
            format!("{snapshot:?}")
        });
        let fresh = !self.bounds.reset_before_resume || self.slots[i].fresh;
        self.must(!resume || fresh, Rule::ResumeReset, || format!("slot {i}"));
    }

    pub(super) fn pause_written(
        &mut self,
        i: usize,
        ctx: ContextId,
        boundary: bool,
        cause: PauseCause,
    ) {
        if cause != PauseCause::Again {
            self.paused.push(ctx.index());
        }
        let now = self.now;
        let params = self.machine.params(ctx);
        let cooperative = params.is_ok_and(|params| params.cooperative);
        let critical = self.is_critical(ctx);
        let awaited = self.critical_waits() || self.frozen;
        // There is one such context, so none is equal to it or precedes it.
        let asked = !self.bounds.hints || self.bounds.control || self.bounds.access;
        self.must(!critical || asked, Rule::Kept, || {
            format!("slot {i}: PAUSE")
        });
        let slot = &mut self.slots[i];
        let over =
            slot.pauses != 0 && now >= slot.first_pause + self.machine.boundary_wait().as_ns();
        slot.bounded |= cooperative && !boundary && over && awaited;
        let bounded = slot.bounded;
        self.seen.bounded |= bounded;
        self.must(
            boundary == (cooperative && !bounded),
            Rule::Boundary,
            || format!("slot {i}: {boundary}"),
        );
        let drained = !self.has_work(i);
        let slot = &mut self.slots[i];
        let quarantined = slot.quarantined;
        if slot.pauses == 0 {
            slot.first_pause = now;
        }
        slot.pauses = (slot.pauses + 1).min(4);
        self.must(!quarantined, Rule::Quarantine, || "PAUSE".into());
        // An order stops the job.
        if self.bounds.relay {
            return;
        }
        let slot = &mut self.slots[i];
        match slot.engine {
            Engine::Working if slot.hang => {}
            Engine::Working if slot.lose_pause => {
                slot.lose_pause = false;
                self.seen.pause_lost = true;
            }
            Engine::Working if boundary => slot.asked = true,
            Engine::Working if drained => self.leave(i),
            Engine::Working => self.save(i),
            Engine::Restoring => self.seen.pause_in_restore = true,
            Engine::Finished => self.seen.finish_won = true,
            _ => {}
        }
    }

    pub(super) fn reset_written(&mut self, i: usize, hold: bool) {
        let quarantined = self.slots[i].quarantined;
        self.must(!quarantined, Rule::Quarantine, || "RESET".into());
        if !hold {
            self.slots[i].in_reset = false;
            return;
        }
        self.must_be_captured(i);
        let (base, now, settle) = (self.bounds.base, self.now, self.settle());
        let slot = &self.slots[i];
        let repeated = slot.pauses == 4 || self.bounds.relay;
        let patient = repeated && now >= slot.first_pause + TIMEOUT;
        let active = slot.active();
        if active {
            let timeout = self.machine_timeout(i);
            if let Some(owner) = self.owner_on(i) {
                let closed = owner.closed;
                if let Some(job) = &mut owner.job {
                    job.spoilt |= patient;
                    let reason = closed || job.spoilt;
                    self.seen.timeout |= timeout;
                    self.must(reason, Rule::Innocent, || "reset while it runs".into());
                }
            }
        }
        let slot = &mut self.slots[i];
        // A slot that had settled before stays settled.
        slot.dirty = base && slot.may_touch(now, settle);
        slot.posted = base;
        slot.arrived = None;
        if slot.ignored_resets != IgnoredResets::None && (active || base) {
            self.seen.reset_retried = slot.ignored_resets == IgnoredResets::Next;
            if slot.ignored_resets == IgnoredResets::Next {
                slot.ignored_resets = IgnoredResets::None;
            } else {
                self.spoil(i);
            }
            return;
        }
        slot.unflushed |= active && !base;
        slot.engine = Engine::Idle;
        slot.asked = false;
        slot.bits = 0;
        slot.hang = false;
        slot.lose_pause = false;
        slot.lag = false;
        slot.in_reset = true;
        slot.fresh = true;
        if self.bounds.relay {
            slot.window = None;
            slot.relay.reset();
        }
    }

    fn machine_timeout(&self, i: usize) -> bool {
        let stats = self.machine.slot_stats(slot_id(i), self.time());
        stats.is_some_and(|stats| stats.timeouts > 0)
    }

    /// Whether no slot in use can access the memory of the context of this index.
    fn is_quiet(&self, index: usize) -> bool {
        let (now, settle) = (self.now, self.settle());
        self.vanished
            || self.gone
            || !self.slots.iter().enumerate().any(|(i, slot)| {
                let on = slot.last == Some(index) && slot.may_touch(now, settle);
                !slot.quarantined && (on || self.may_take(i, index))
            })
    }

    fn woken(&mut self, ctx: ContextId, wake: Wake) {
        let index = ctx.index();
        let gone = self.gone;
        let quarantined = self.quarantined();
        let all = self.all_slots();
        let quiet = self.is_quiet(index);
        let owner = self.owners[index].as_mut();
        let Some(owner) = owner.filter(|owner| owner.id == ctx && !owner.closed) else {
            self.must(false, Rule::ReleasedQuiet, || "notified after Close".into());
            return;
        };
        let (hold, snapshot, mask) = (owner.is_to_be_held(), owner.snapshot, owner.mask);
        let (work, unread, holds) = (owner.queue.work, owner.results_due, owner.holds);
        let Some(job) = &mut owner.job else {
            self.must(false, Rule::RunOnce, || "notified without a job".into());
            return;
        };
        let was = *job;
        job.held |= wake == Wake::Held;
        let ends = !matches!(wake, Wake::Held | Wake::Empty);
        job.ended |= ends;
        if ends {
            owner.hold = false;
        }
        self.must(!was.ended, Rule::RunOnce, || "told of its end twice".into());
        self.must(quiet, Rule::ToldQuiet, || format!("{wake:?}"));
        let has_results = !unread || was.spoilt || matches!(wake, Wake::Failed(_));
        self.must(has_results, Rule::Captured, || format!("{wake:?}"));
        match wake {
            Wake::Empty => {
                self.seen.emptied = true;
                self.must(!hold, Rule::HoldKept, || "EMPTY instead of held".into());
                self.must(!work, Rule::Doorbell, || {
                    "EMPTY, but the queue has work".into()
                });
                let kept = !was.finished && snapshot == Snapshot::Complete;
                self.must(kept, Rule::JobKept, || "empty without a snapshot".into());
            }
            Wake::Held => {
                self.seen.held = true;
                self.seen.held_twice |= holds == 2;
                self.must(hold, Rule::HoldKept, || "held without a request".into());
                let kept = !was.finished && (!was.begun || snapshot == Snapshot::Complete);
                self.must(kept, Rule::JobKept, || "held without a snapshot".into());
            }
            Wake::Done => {
                self.must(was.finished, Rule::JobKept, || "done before its end".into());
            }
            Wake::Failed(Failure::Gone) => {
                self.must(gone, Rule::Innocent, || "the card is not gone".into());
            }
            Wake::Failed(failure) => {
                let stranded = failure == Failure::Protocol && all & mask & !quarantined == 0;
                self.must(was.spoilt || stranded, Rule::Innocent, || {
                    format!("{failure:?}")
                });
            }
        }
    }

    fn released(&mut self, ctx: ContextId) {
        self.seen.released = true;
        let index = ctx.index();
        let closed = self.owners[index]
            .as_ref()
            .is_some_and(|owner| owner.id == ctx && owner.closed);
        self.must(closed, Rule::ReleasedQuiet, || "not closed".into());
        let (now, settle) = (self.now, self.settle());
        if !self.vanished && !self.gone {
            let reach = self.slots.iter().any(|slot| {
                let last = slot.last == Some(index) && slot.may_touch(now, settle);
                last || slot.window == Some(index)
            }) || self.may_be_taken_soon(index);
            self.must(!reach, Rule::ReleasedQuiet, || {
                "within reach of a slot".into()
            });
        }
        for slot in &mut self.slots {
            if slot.last == Some(index) {
                slot.last = None;
            }
        }
        self.owners[index] = None;
        self.dead[index] = Some(ctx);
    }
}

/// Steps of the engine of a slot.
impl World {
    pub(super) fn owner_on(&mut self, slot: usize) -> Option<&mut Owner> {
        let last = self.slots[slot].last?;
        self.owners.get_mut(last)?.as_mut()
    }

    pub(super) fn job_on(&mut self, slot: usize) -> Option<&mut Job> {
        self.owner_on(slot)?.job.as_mut()
    }

    /// Notes that a misbehaviour hits the job on the slot.
    pub(super) fn spoil(&mut self, slot: usize) {
        if let Some(job) = self.job_on(slot) {
            job.spoilt = true;
        }
    }

    pub(super) fn restored(&mut self, i: usize) {
        let relay = &mut self.slots[i].relay;
        relay.worked = self.now;
        if std::mem::take(&mut relay.refused) {
            return self.choose(i, LeftReason::Refused, Engine::Idle);
        }
        self.slots[i].engine = Engine::Working;
        self.attend(i);
    }

    /// Lets the engine check its queue again.
    pub(super) fn attend(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.idle = false;
        }
    }

    /// Lets the engine take the work in its queue.
    pub(super) fn take_work(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.work = false;
        }
    }

    /// Lets the engine leave: it has found its queue empty, has announced this, and has checked
    /// once more.
    pub(super) fn leave(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.idle = true;
        }
        self.save(i);
        self.slots[i].empty = true;
    }

    pub(super) fn boundary(&mut self, i: usize) {
        self.seen.boundary = true;
        self.save(i);
    }

    pub(super) fn save(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        slot.asked = false;
        slot.empty = false;
        slot.engine = Engine::Saving;
        if let Some(owner) = self.owner_on(i) {
            owner.snapshot = Snapshot::Torn;
        }
    }

    pub(super) fn saved(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.snapshot = Snapshot::Complete;
        }
        let bits = if self.slots[i].empty { EMPTY } else { 0 };
        self.ended(i, Engine::Paused, bits);
    }

    /// Tears the save.
    pub(super) fn tear(&mut self, i: usize) {
        self.spoil(i);
        if self.bounds.base {
            self.slots[i].hang = true;
        } else {
            self.seen.snapshot_failed = true;
            self.ended(i, Engine::Finished, SNAPSHOT_ERROR);
        }
    }

    pub(super) fn finish(&mut self, i: usize) {
        if let Some(job) = self.job_on(i) {
            job.finished = true;
        }
        self.ended(i, Engine::Finished, 0);
    }

    pub(super) fn fault(&mut self, i: usize) {
        self.spoil(i);
        self.ended(i, Engine::Finished, FAULT);
    }

    pub(super) fn hang(&mut self, i: usize) {
        self.slots[i].hang = true;
        self.spoil(i);
    }

    fn ended(&mut self, i: usize, engine: Engine, bits: u64) {
        if self.bounds.relay {
            let reason = match (engine, bits) {
                (_, FAULT) => LeftReason::Fault,
                (_, SNAPSHOT_ERROR) => LeftReason::SnapshotError,
                (_, EMPTY) => LeftReason::Empty,
                (Engine::Paused, _) => LeftReason::Paused,
                _ => LeftReason::Finished,
            };
            return self.choose(i, reason, engine);
        }
        let base = self.bounds.base;
        let slot = &mut self.slots[i];
        slot.engine = engine;
        slot.asked = false;
        slot.bits = bits;
        slot.irq = !base;
    }
}
