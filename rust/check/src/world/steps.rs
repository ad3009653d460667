// SPDX-License-Identifier: GPL-2.0

//! What can happen in a state.

use fermata_sched_host::sched::SlotState;

use super::relay::IN_FLIGHT;
use super::{slot_id, Owner, World};
use crate::card::{CardSlot, Engine, IgnoredResets};
use crate::Step;

impl World {
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        if self.broken.is_some() {
            return;
        }
        // The driver holds its lock while it waits for an answer.
        let is_free = self.reads.is_empty() && self.posted.len() < IN_FLIGHT;
        if is_free {
            self.all_owner_steps(steps);
        }
        for i in 0..self.slots.len() {
            if is_free {
                self.driver_steps(i, steps);
            }
            if !self.vanished && !self.gone {
                self.card_steps(i, steps);
            }
        }
        if is_free {
            self.administrator_steps(steps);
        }
        if !self.reads.is_empty() {
            steps.push(Step::Answer);
        }
        if !self.posted.is_empty() {
            steps.push(Step::Arrive);
        }
    }

    fn all_owner_steps(&self, steps: &mut Vec<Step>) {
        for (i, owner) in self.owners.iter().enumerate() {
            let Some(owner) = owner else {
                if !self.gone && self.bounds.reopen {
                    steps.push(Step::Open);
                }
                continue;
            };
            if owner.closed {
                continue;
            }
            self.owner_steps(i, owner, steps);
        }
    }

    /// What an administrator, or the end of the card, may bring.
    fn administrator_steps(&self, steps: &mut Vec<Step>) {
        if self.bounds.freeze && !self.frozen {
            steps.push(Step::Freeze);
        } else if self.machine.is_at_rest() {
            steps.push(Step::Thaw);
        }
        if self.bounds.cut && !self.frozen && !self.gone {
            steps.push(Step::CutOff);
        }
        if self.bounds.gone && !self.gone {
            steps.push(Step::Gone);
            if !self.vanished {
                steps.push(Step::Vanish);
            }
        }
    }

    /// What the owner of a context that is open may ask.
    fn owner_steps(&self, i: usize, owner: &Owner, steps: &mut Vec<Step>) {
        steps.push(Step::Start(i));
        if self.bounds.imports && self.bounds.control {
            steps.push(Step::StartHeld(i));
        }
        if !self.bounds.calm {
            steps.push(Step::Close(i));
        }
        if self.bounds.hints {
            steps.extend([Step::Hint(i, true), Step::Hint(i, false)]);
        }
        if self.bounds.access {
            steps.push(Step::Enable(i, !owner.enabled));
        }
        if self.bounds.groups {
            steps.push(Step::Exclusive(match self.exclusive {
                Some(_) => None,
                None => Some(i),
            }));
        }
        if self.takes_work(i) && !owner.queue.work && owner.live().is_some() {
            steps.push(Step::Post(i));
        }
        if self.bounds.gangs {
            steps.push(Step::Gang(i, self.members(i).len() == 1));
        }
        if self.bounds.control {
            steps.extend([Step::Preempt(i), Step::Hold(i), Step::Resume(i)]);
            if self.bounds.slots > 1 && self.bounds.masks {
                steps.extend(
                    (1..4)
                        .filter(|&m| m != owner.mask)
                        .map(|m| Step::Mask(i, m)),
                );
            }
        }
    }

    /// What timers and interrupts of a slot may bring.
    fn driver_steps(&self, i: usize, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        let faults = self.bounds.faults;
        if slot.timer.is_some() {
            steps.push(Step::Timer(i));
            if faults {
                steps.push(Step::TimerEarly(i));
            }
            if slot.lag {
                steps.push(Step::TimerLate(i));
            }
        }
        if self.vanished || self.gone {
            return;
        }
        if slot.irq {
            steps.push(Step::Interrupt(i));
            if !self.bounds.calm {
                steps.push(Step::LoseInterrupt(i));
            }
        } else if self.bounds.reads || (faults && !self.bounds.relay) {
            steps.push(Step::Spurious(i));
        }
        // An interrupt that does not come is one that comes later.
        let unread = slot.relay.records.len();
        steps.extend((1..=unread).map(|visible| Step::Look(i, visible)));
    }

    /// What a slot may do by itself.
    fn card_steps(&self, i: usize, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        if slot.lag {
            steps.push(Step::LagOver(i));
        }
        match slot.engine {
            Engine::Restoring => steps.push(Step::Restored(i)),
            Engine::Working if !slot.hang => {
                steps.push(Step::Finish(i));
                if slot.last.is_some_and(|last| self.takes_work(last)) {
                    steps.push(if self.has_work(i) {
                        Step::Take(i)
                    } else {
                        Step::Leave(i)
                    });
                }
                if slot.asked {
                    steps.push(Step::Boundary(i));
                } else if slot.relay.has_limit() {
                    steps.push(Step::Due(i));
                }
            }
            Engine::Saving if !slot.hang => steps.push(Step::Saved(i)),
            _ => {}
        }
        let idle = self.reads.is_empty() && !self.slots.iter().any(CardSlot::misbehaves);
        if self.bounds.faults && idle {
            self.misbehaviours(i, steps);
        }
        if self.bounds.relay_faults && self.reads.is_empty() {
            self.relay_misbehaviours(i, idle, steps);
        }
    }

    /// Has the context a queue? The first one has; that of another one is never empty.
    fn takes_work(&self, i: usize) -> bool {
        self.bounds.queues && i == 0
    }

    /// Is there work in the queue of the job on the slot?
    pub(super) fn has_work(&self, i: usize) -> bool {
        let last = self.slots[i].last.filter(|&last| self.takes_work(last));
        let owner = last.and_then(|last| self.owners[last].as_ref());
        owner.is_none_or(|owner| owner.queue.work)
    }

    /// One at a time, but one after the other without end.
    fn misbehaviours(&self, i: usize, steps: &mut Vec<Step>) {
        let (slot, base, relay) = (&self.slots[i], self.bounds.base, self.bounds.relay);
        match slot.engine {
            Engine::Working => {
                steps.push(Step::Hang(i));
                if !relay {
                    steps.push(Step::LosePause(i));
                }
                if !base {
                    steps.push(Step::Fault(i));
                }
            }
            Engine::Saving => steps.push(Step::Tear(i)),
            Engine::Restoring if relay => steps.push(Step::Tear(i)),
            _ => {}
        }
        // The settle time covers the time for which a status may be old.
        if slot.active() && !slot.lag {
            steps.extend([Step::IgnoreResetOnce(i), Step::IgnoreResets(i)]);
        }
        if !relay && !slot.active() && !slot.quarantined {
            steps.push(Step::LoseStart(i));
        }
        // A read is made under the lock and pushes what was written, so that none is older than the last reset; one
        // that is older than the last START would be the card's own doing.
        let state = self.machine.slot_state(slot_id(i));
        let running = matches!(state, Some(SlotState::Running(_) | SlotState::Pausing(_)));
        let awaited = self.machine.awaited_run(slot_id(i));
        let known = awaited.is_none_or(|(_, run)| run == slot.count);
        if slot.active() && running && known && !base {
            steps.push(Step::Stale(i));
        }
    }

    /// The same of a relay; `idle`: none is under way.
    fn relay_misbehaviours(&self, i: usize, idle: bool, steps: &mut Vec<Step>) {
        let slot = &self.slots[i];
        // The slot that is reset because of a record keeps what it may have taken.
        let resists = slot.ignored_resets != IgnoredResets::None;
        if slot.relay.lost.is_some() && slot.active() && !resists {
            steps.push(Step::IgnoreResets(i));
        }
        if slot.quarantined || !idle {
            return;
        }
        if slot.active() {
            steps.extend([Step::LoseRecord(i), Step::DelayRecord(i)]);
        }
        if self.posted.first().is_some_and(|(j, _)| *j == i) && self.may_ignore_order() {
            steps.push(Step::IgnoreOrder);
        }
        steps.push(Step::Refuse(i));
    }
}
