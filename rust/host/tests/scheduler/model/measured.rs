// SPDX-License-Identifier: GPL-2.0

//! What is measured of a world, and what it must agree with: what the scheduler counts itself.

use std::collections::HashMap;

use fermata_sched_host::measure::{ContextMeter, Histogram, SlotHistograms};
use fermata_sched_host::sched::{Action, ContextId, JobState, Scheduler, Time, MAX_SLOTS};

use super::world::{sid, SlotPlan};

pub struct Measured {
    pub slots: [SlotHistograms; MAX_SLOTS],
    pub contexts: HashMap<ContextId, ContextMeter>,
    plans: Vec<SlotPlan>,
    /// Runs have ended that nothing was said of.
    cut: bool,
}

impl Measured {
    pub fn new(plans: &[SlotPlan]) -> Self {
        Self {
            slots: [const { SlotHistograms::EMPTY }; MAX_SLOTS],
            contexts: HashMap::new(),
            plans: plans.to_vec(),
            cut: false,
        }
    }

    /// After the scheduler was called.
    pub fn follow(&mut self, machine: &Scheduler, now: Time, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Start {
                    slot, ctx, times, ..
                } => {
                    self.slots[slot.index()].note_start(times, now);
                    self.meter(*ctx).note_start(times, now);
                }
                Action::Pause { slot, late, .. } => self.slots[slot.index()].note_pause(*late),
                Action::Ended { slot, ctx, run } => {
                    self.slots[slot.index()].note_end(run);
                    self.meter(*ctx).note_end(run);
                }
                _ => {}
            }
        }
        self.check(machine, now);
    }

    fn meter(&mut self, ctx: ContextId) -> &mut ContextMeter {
        self.contexts.entry(ctx).or_insert(ContextMeter::NEW)
    }

    /// Runs end, of which the machine says nothing.
    pub fn cut_off(&mut self) {
        self.cut = true;
    }

    fn check(&self, machine: &Scheduler, now: Time) {
        let lost = self.cut || machine.is_gone();
        for (ctx, meter) in &self.contexts {
            self.check_context(machine, now, *ctx, meter, lost);
        }
        for (i, measured) in self.slots.iter().enumerate() {
            for histogram in histograms(measured) {
                assert_eq!(histogram.count, histogram.buckets.iter().sum::<u64>());
            }
            let Some(stats) = machine.slot_stats(sid(i), now) else {
                continue;
            };
            // Between two STARTs there is one gap at the most.
            assert!(measured.gap.count < stats.starts.max(1));
            let plan = &self.plans[i];
            let measurable = !plan.relay && !plan.queues && plan.granularity == Default::default();
            assert!(measured.save.count <= stats.saves);
            if measurable {
                assert_eq!(measured.save.count, stats.saves, "slot {i}");
            }
            assert_eq!(measured.save.max, stats.save_max.as_ns());
            assert!(measured.overrun.count <= stats.pauses);
            if measured.restore.count != 0 {
                assert_eq!(measured.restore.max, stats.restore_max.as_ns());
            }
        }
    }

    fn check_context(
        &self,
        machine: &Scheduler,
        now: Time,
        ctx: ContextId,
        meter: &ContextMeter,
        lost: bool,
    ) {
        let Ok(stats) = machine.stats(ctx, now) else {
            return;
        };
        let measured = &meter.histograms;
        assert_eq!(measured.wait.count, stats.slices);
        assert!(measured.wait.sum <= stats.wait.as_ns());
        if machine.slot_of(ctx).is_some() {
            assert_eq!(measured.wait.sum, stats.wait.as_ns());
        }
        // Each job, and each doorbell for an empty queue.
        assert!(measured.arrival.count <= stats.slices);
        if lost {
            return;
        }
        // While one is on a slot its last run may have ended or not.
        let running = u64::from(stats.state == JobState::Running);
        assert!(measured.run.count + running >= stats.slices && measured.run.count <= stats.slices);
        if measured.run.count == stats.slices {
            assert_eq!(measured.run.sum, stats.run.as_ns());
        }
    }
}

fn histograms(slot: &SlotHistograms) -> [&Histogram; 5] {
    [
        &slot.gap,
        &slot.save,
        &slot.restore,
        &slot.overrun,
        &slot.latency,
    ]
}
