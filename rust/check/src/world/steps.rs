// SPDX-License-Identifier: GPL-2.0

//! What can happen in a state.

use fermata_sched_host::sched::SlotState;

use super::{slot_id, Owner, World};
use crate::card::{CardSlot, Engine};
use crate::Step;

impl World {
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        if self.broken.is_some() {
            return;
        }
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
        for i in 0..self.slots.len() {
            self.slot_steps(i, steps);
        }
        if self.bounds.freeze && !self.frozen {
            steps.push(Step::Freeze);
        } else if self.machine.is_at_rest() {
            steps.push(Step::Thaw);
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

    fn slot_steps(&self, i: usize, steps: &mut Vec<Step>) {
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
        } else if faults {
            steps.push(Step::Spurious(i));
        }
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
                }
            }
            Engine::Saving if !slot.hang => steps.push(Step::Saved(i)),
            _ => {}
        }
        if faults && !self.slots.iter().any(CardSlot::misbehaves) {
            self.misbehaviours(i, steps);
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
        let (slot, base) = (&self.slots[i], self.bounds.base);
        match slot.engine {
            Engine::Working => {
                steps.extend([Step::Hang(i), Step::LosePause(i)]);
                if !base {
                    steps.push(Step::Fault(i));
                }
            }
            Engine::Saving => steps.push(Step::Tear(i)),
            _ => {}
        }
        // The settle time covers the time for which a status may be old.
        if slot.active() && !slot.lag {
            steps.extend([Step::IgnoreResetOnce(i), Step::IgnoreResets(i)]);
        }
        if !slot.active() && !slot.quarantined {
            steps.push(Step::LoseStart(i));
        }
        // A read is made under the lock and pushes what was written, so that none is older than the last reset; one
        // that is older than the last START would be the card's own doing.
        let state = self.machine.slot_state(slot_id(i));
        let running = matches!(state, Some(SlotState::Running(_) | SlotState::Pausing(_)));
        if slot.active() && running && !base {
            steps.push(Step::Stale(i));
        }
    }
}
