// SPDX-License-Identifier: GPL-2.0

//! From every state: once the card behaves, waiting jobs run, jobs end and closed contexts are
//! released.
//!
//! The checker's "eventually" has no fairness. Here fairness is a schedule: the card responds to
//! everything, timers fire in order, and jobs run long enough to be preempted.

use fermata_sched_host::sched::{JobState, SlotState};

use crate::card::{Engine, IgnoredResets};
use crate::world::slot_id;
use crate::{Step, World};

/// Far more than any recovery needs.
const STEPS: usize = 600;
/// Number of timers that fire while an engine works before its job ends, if no job wants the slot.
const PATIENCE: u8 = 3;

impl World {
    /// Does the machine recover from here?
    pub(crate) fn recovery(&self) -> Result<(), String> {
        if self.is_broken() {
            return Ok(());
        }
        let mut world = self.clone();
        let mut runs = vec![0_u8; world.owners.len()];
        world.behave();
        world.allow_all();
        world.end_freeze(&mut runs)?;
        world.serve_all(&mut runs)?;
        world.end_all(&mut runs)?;
        world.close_all(&mut runs)
    }

    /// Makes the card behave from now on, unless it is known to be gone. Hung engines stay hung.
    fn behave(&mut self) {
        while !self.reads.is_empty() {
            self.step(Step::Answer);
        }
        for slot in &mut self.slots {
            slot.lose_pause = false;
            slot.lose_start = false;
            slot.relay.lose_record = false;
            slot.relay.delay_record = false;
            slot.relay.refuse = false;
            if slot.ignored_resets == IgnoredResets::Next {
                slot.ignored_resets = IgnoredResets::None;
            }
        }
        if self.vanished && !self.gone {
            self.step(Step::Gone);
        }
    }

    /// Lets all contexts run on all slots.
    fn allow_all(&mut self) {
        if self.gone {
            return;
        }
        for i in self.open_owners() {
            self.step(Step::Enable(i, true));
        }
        if self.bounds.groups {
            self.step(Step::Exclusive(None));
        }
    }

    fn end_freeze(&mut self, runs: &mut [u8]) -> Result<(), String> {
        if !self.frozen || self.gone {
            return Ok(());
        }
        self.settle_down(runs)?;
        if !self.machine.is_at_rest() {
            return Err("a frozen scheduler never comes to rest".into());
        }
        self.step(Step::Thaw);
        Ok(())
    }

    /// Checks that all waiting jobs run, and all jobs that can end do end.
    fn serve_all(&mut self, runs: &mut [u8]) -> Result<(), String> {
        let waiting = self.owners_in(JobState::Queued);
        self.settle_down(runs)?;
        for i in waiting {
            let failed = matches!(self.job_state(i), Some(JobState::Failed(_)));
            if runs[i] == 0 && !failed {
                return Err(format!("context {i} never runs"));
            }
        }
        self.must_have_ended("at rest", false)
    }

    /// Checks that hung, held and empty jobs end, too.
    fn end_all(&mut self, runs: &mut [u8]) -> Result<(), String> {
        // A hung job stays on its slot until another job wants the slot.
        for i in self.owners_in(JobState::Running) {
            self.step(Step::Preempt(i));
        }
        self.settle_down(runs)?;
        for i in self.open_owners() {
            let holds = self.owners[i].as_ref().map_or(0, |owner| owner.holds);
            for _ in 0..holds {
                self.step(Step::EndHold(i));
            }
        }
        self.settle_down(runs)?;
        for i in self.owners_in(JobState::Held) {
            self.step(Step::Resume(i));
        }
        self.settle_down(runs)?;
        for i in self.owners_in(JobState::Empty) {
            self.step(Step::Post(i));
        }
        self.settle_down(runs)?;
        self.must_have_ended("after Resume", true)
    }

    /// Closes all contexts, and checks that they are released.
    fn close_all(&mut self, runs: &mut [u8]) -> Result<(), String> {
        for i in self.open_owners() {
            self.step(Step::Close(i));
        }
        self.settle_down(runs)?;
        if self.quarantined() != 0 {
            self.step(Step::Gone);
        }
        self.sound()?;
        match self.machine.contexts() {
            0 => Ok(()),
            n => Err(format!("{n} contexts are never released")),
        }
    }

    fn open_owners(&self) -> Vec<usize> {
        let open = |i: &usize| self.owners[*i].as_ref().is_some_and(|owner| !owner.closed);
        (0..self.owners.len()).filter(open).collect()
    }

    fn owners_in(&self, state: JobState) -> Vec<usize> {
        let is_in = |i: &usize| self.job_state(*i) == Some(state);
        (0..self.owners.len()).filter(is_in).collect()
    }

    fn job_state(&self, i: usize) -> Option<JobState> {
        let owner = self.owners[i].as_ref()?;
        let now = fermata_sched_host::sched::Time::from_ns(self.now);
        Some(self.machine.stats(owner.id, now).ok()?.state)
    }

    fn must_have_ended(&self, when: &str, held_too: bool) -> Result<(), String> {
        for i in 0..self.owners.len() {
            let state = self.job_state(i);
            let hung = self
                .slots
                .iter()
                .any(|slot| slot.last == Some(i) && slot.hang);
            let usable = self.owners[i]
                .as_ref()
                .is_some_and(|owner| owner.mask & !self.quarantined() != 0);
            let stays = match state {
                None
                | Some(JobState::Idle | JobState::Empty | JobState::Done | JobState::Failed(_)) => {
                    false
                }
                Some(JobState::Held) => held_too && usable && self.slots_in_use() != 0,
                Some(JobState::Running) => held_too || !hung,
                Some(JobState::Queued) => true,
            };
            if stays {
                return Err(format!("context {i} {when}: {state:?}"));
            }
        }
        Ok(())
    }

    fn slots_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.quarantined).count()
    }

    fn sound(&mut self) -> Result<(), String> {
        self.check();
        match self.breach() {
            Some((rule, what)) => Err(format!("{}: {what}", rule.text())),
            None => Ok(()),
        }
    }

    /// Steps card and timers until nothing happens except polls of hung engines.
    fn settle_down(&mut self, runs: &mut [u8]) -> Result<(), String> {
        let mut patience = vec![0_u8; self.slots.len()];
        let mut counts: Vec<u32> = self.slots.iter().map(|slot| slot.count).collect();
        for _ in 0..STEPS {
            self.sound()?;
            for (i, slot) in self.slots.iter().enumerate() {
                if slot.count != counts[i] {
                    counts[i] = slot.count;
                    patience[i] = 0;
                    if let Some(index) = slot.last {
                        runs[index] = runs[index].saturating_add(1);
                    }
                }
            }
            if let Some(step) = self.answer(runs, &patience) {
                self.step(step);
                continue;
            }
            let next = (0..self.slots.len())
                .filter_map(|i| Some((self.slots[i].timer?, i)))
                .min();
            let Some((_, i)) = next else { return Ok(()) };
            patience[i] = patience[i].saturating_add(1);
            let waits = (0..self.owners.len()).any(|i| self.waits(i));
            let idle = (0..self.slots.len()).all(|i| {
                let state = self.machine.slot_state(slot_id(i));
                let running = matches!(state, Some(SlotState::Running(_)));
                !running || patience[i] > 2 * PATIENCE && self.slots[i].hang
            });
            let leaving = (0..self.slots.len()).any(|i| {
                let state = self.machine.slot_state(slot_id(i));
                matches!(state, Some(SlotState::Pausing(_) | SlotState::Resetting(_)))
            });
            if idle && !leaving && !waits {
                return Ok(());
            }
            self.step(Step::Timer(i));
        }
        Err("the schedule does not end".into())
    }

    /// Does a context wait for a slot, or is it named without being on a slot?
    fn waits(&self, i: usize) -> bool {
        match self.job_state(i) {
            Some(JobState::Queued) => true,
            Some(JobState::Running) => !self.slots.iter().any(|slot| slot.last == Some(i)),
            _ => false,
        }
    }

    /// Returns the next step that the card takes by itself.
    fn answer(&self, runs: &[u8], patience: &[u8]) -> Option<Step> {
        if self.vanished {
            return None;
        }
        if !self.reads.is_empty() {
            return Some(Step::Answer);
        }
        if self.orders_in_flight() != 0 {
            return Some(Step::Arrive);
        }
        for (i, slot) in self.slots.iter().enumerate() {
            if slot.irq {
                return Some(Step::Interrupt(i));
            }
            if slot.lag {
                return Some(Step::LagOver(i));
            }
            match slot.engine {
                _ if slot.hang => {}
                Engine::Restoring => return Some(Step::Restored(i)),
                Engine::Saving => return Some(Step::Saved(i)),
                Engine::Working if slot.asked => return Some(Step::Boundary(i)),
                Engine::Working if slot.relay.has_limit() => return Some(Step::Due(i)),
                Engine::Working => {
                    let often = slot.last.is_some_and(|index| runs[index] >= 2);
                    if often || patience[i] >= PATIENCE {
                        return Some(Step::Finish(i));
                    }
                }
                _ => {}
            }
        }
        None
    }
}
