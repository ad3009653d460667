// SPDX-License-Identifier: GPL-2.0

//! Cooperative contexts: their jobs are stopped where they say, at the next boundary of the engine's work.
//!
//! From the PAUSE until the boundary the job works on. That time is its own, whoever it makes way for, and tells nothing
//! about what a save takes on the slot. The preempt timeout bounds it.
//!
//! While one waits for the slot before which the policy has the job make way at once (latency-critical work, a higher
//! priority, a reservation), [`Machine::boundary_wait`] bounds the way to the boundary, too: after it the job is stopped
//! where it is. Where the engine cannot be, the time beyond the bound is the job's own as well, and is counted.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::policy::Turn;
use super::slot::{slots_in, State};
use super::{Action, ContextId, Duration, Entry, PauseCause, Refusal, SlotId, Time};

/// Where the engine of a slot can stop for a PAUSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stops {
    /// At any point, and it knows no boundaries: its contexts are never cooperative.
    #[default]
    Anywhere,
    /// At any point, or at its next boundary if told so.
    BoundaryToo,
    /// At a boundary only: its contexts always are cooperative.
    BoundaryOnly,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// How long work that goes first waits for a boundary until another time is set: 1 ms.
    pub const BOUNDARY_WAIT_DEFAULT: Duration = Duration::from_ms(1);
    /// The longest: 10 s, as the longest preempt timeout.
    pub const BOUNDARY_WAIT_MAX: Duration = Duration::from_ms(10_000);

    /// How long a job on its way to a boundary may let one wait that goes before it at once under the policy.
    pub fn boundary_wait(&self) -> Duration {
        self.boundary_wait
    }

    /// Chooses [`Machine::boundary_wait`], zero to [`Machine::BOUNDARY_WAIT_MAX`]. It holds for all that begin to wait from
    /// now on.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        if wait > Self::BOUNDARY_WAIT_MAX {
            return Err(Refusal::Range);
        }
        self.boundary_wait = wait;
        Ok(())
    }

    /// Stops jobs of `slots` that were told to stop at a boundary and that let another one wait for too long.
    pub(super) fn bound_boundaries(&mut self, now: Time, slots: u8, out: &mut Out<'_>) {
        for id in slots_in(slots) {
            // Nearly always there is nothing to do: nothing is copied to find that out.
            let on_its_way = self.slot(id).is_some_and(|slot| match &slot.state {
                State::Pausing(_, pause) => pause.boundary && !pause.last,
                _ => false,
            });
            if !on_its_way {
                continue;
            }
            let Some(State::Pausing(run, mut pause)) = self.slot(id).map(|slot| slot.state) else {
                continue;
            };
            let Some(waiter) = self.outranks(id, run.ctx) else {
                if pause.bound.is_some() {
                    self.end_overrun(now, id, out);
                    pause.bound = None;
                    pause.overrun = false;
                    if let Some(slot) = self.slot_mut(id) {
                        slot.state = State::Pausing(run, pause);
                    }
                }
                continue;
            };
            let bound = *pause.bound.get_or_insert(now + self.boundary_wait);
            let passed = now >= bound && !pause.overrun;
            pause.overrun |= passed;
            let Some(slot) = self.slot_mut(id) else {
                continue;
            };
            let is_stopped = passed && slot.config.stops != Stops::BoundaryOnly;
            slot.stats.overruns += u64::from(passed);
            if is_stopped {
                pause.begin_save(now, slot.save());
            }
            slot.state = State::Pausing(run, pause);
            if is_stopped {
                out(Action::Overrun {
                    slot: id,
                    ctx: run.ctx,
                    span: Duration::ZERO,
                });
                out(Action::Pause {
                    slot: id,
                    boundary: false,
                    cause: PauseCause::Outranked { waiter },
                });
            }
        }
    }

    /// Who will take the slot next, if the job of `ctx` there makes way for that one at once under the policy.
    fn outranks(&self, id: SlotId, ctx: ContextId) -> Option<ContextId> {
        let queue = self.slot(id)?.queue;
        let taker = self.takers(queue).find(|&(slot, _)| slot == id);
        let next = taker.map_or_else(|| self.candidate(id), |(_, next)| next)?;
        (self.turn(ctx, next)? == Turn::Now).then_some(next)
    }

    /// The job on a slot leaves it, or nobody waits any more: counts how long it was on its way to a boundary beyond the
    /// bound.
    pub(super) fn end_overrun(&mut self, now: Time, id: SlotId, out: &mut Out<'_>) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let State::Pausing(run, pause) = slot.state else {
            return;
        };
        if let (Some(bound), true, true) = (pause.bound, pause.overrun, pause.boundary) {
            let span = now.since(bound);
            slot.stats.overrun += span;
            out(Action::Overrun {
                slot: id,
                ctx: run.ctx,
                span,
            });
        }
    }

    /// Is the job of `ctx` stopped at a boundary when it is on `slot`?
    pub(super) fn stops_at_boundary(&self, slot: SlotId, ctx: ContextId) -> bool {
        let cooperative = || {
            self.slab
                .get(ctx)
                .is_some_and(|entry| entry.params.cooperative)
        };
        match self.slot(slot).map(|slot| slot.config.stops) {
            Some(Stops::BoundaryOnly) => true,
            Some(Stops::BoundaryToo) => cooperative(),
            Some(Stops::Anywhere) | None => false,
        }
    }
}
