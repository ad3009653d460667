// SPDX-License-Identifier: GPL-2.0

//! From every state: once the card behaves, everything that can run does run, everything ends, and everything closed is
//! released.
//!
//! A checker's "eventually" would have to know which steps are fair. Here fairness is a schedule: every answer of the card
//! comes, every timer fires in order, and no job is so quick that nobody is preempted for its successor.

use fermata_sched_host::sched::{JobState, SlotState};

use crate::card::{Deaf, Engine};
use crate::world::slot_id;
use crate::{Step, World};

/// Far more than any recovery needs.
const STEPS: usize = 600;
/// Timers that fire while an engine works, before it comes to an end although nobody wants its slot.
const PATIENCE: u8 = 3;

impl World {
    /// Does the machine recover from here?
    pub(crate) fn recovery(&self) -> Result<(), String> {
        if self.is_broken() {
            return Ok(());
        }
        let mut world = self.clone();
        for slot in &mut world.slots {
            slot.lose_pause = false;
            slot.lose_start = false;
            if slot.deaf == Deaf::Once {
                slot.deaf = Deaf::No;
            }
        }
        if world.vanished && !world.gone {
            world.step(Step::Gone);
        }
        let all: Vec<usize> = (0..world.owners.len()).collect();
        for &i in &all {
            let open = world.owners[i].as_ref().is_some_and(|owner| !owner.closed);
            if open && !world.gone {
                world.step(Step::Enable(i, true));
            }
        }
        if world.bounds.groups && !world.gone {
            world.step(Step::Exclusive(None));
        }
        let mut runs = vec![0_u8; all.len()];
        if world.frozen && !world.gone {
            world.settle_down(&mut runs)?;
            if !world.machine.is_at_rest() {
                return Err("a frozen machine is never at rest".into());
            }
            world.step(Step::Thaw);
        }
        let waiting: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&i| world.job_state(i) == Some(JobState::Queued))
            .collect();
        world.settle_down(&mut runs)?;
        for i in waiting {
            let failed = matches!(world.job_state(i), Some(JobState::Failed(_)));
            if runs[i] == 0 && !failed {
                return Err(format!("context {i} waits for ever"));
            }
        }
        world.must_have_ended("at rest", false)?;
        // A hung job is left alone while nobody wants its slot.
        for &i in &all {
            if world.job_state(i) == Some(JobState::Running) {
                world.step(Step::Preempt(i));
            }
        }
        world.settle_down(&mut runs)?;
        for &i in &all {
            if world.job_state(i) == Some(JobState::Held) {
                world.step(Step::Resume(i));
            }
        }
        world.settle_down(&mut runs)?;
        for &i in &all {
            if world.job_state(i) == Some(JobState::Empty) && !world.gone {
                world.step(Step::Post(i));
            }
        }
        world.settle_down(&mut runs)?;
        world.must_have_ended("after Resume", true)?;
        for &i in &all {
            if world.owners[i].as_ref().is_some_and(|owner| !owner.closed) {
                world.step(Step::Close(i));
            }
        }
        world.settle_down(&mut runs)?;
        if world.quarantined() != 0 {
            world.step(Step::Gone);
        }
        world.sound()?;
        match world.machine.contexts() {
            0 => Ok(()),
            n => Err(format!("{n} contexts are never released")),
        }
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

    /// Lets card and timers go on until nothing is left to happen but looks at hung engines.
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
            let waits = (0..self.owners.len()).any(|i| self.job_state(i) == Some(JobState::Queued));
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
        Err("it never comes to rest".into())
    }

    /// What the card does next of itself.
    fn answer(&self, runs: &[u8], patience: &[u8]) -> Option<Step> {
        if self.vanished {
            return None;
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
