// SPDX-License-Identifier: GPL-2.0

//! What is measured of a world, and what it must agree with: what the scheduler counts itself.

use std::collections::HashMap;

use fermata_sched_host::measure::{
    arriving, Cause, ContextMeter, Histogram, SlotHistograms, Stopwatch,
};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Entry, Event, JobState, Machine, SlotId, Time, MAX_SLOTS,
};

use super::world::{sid, SlotPlan};

pub struct Measured {
    stopwatch: Stopwatch,
    pub slots: [SlotHistograms; MAX_SLOTS],
    pub contexts: HashMap<ContextId, ContextMeter>,
    plans: Vec<SlotPlan>,
    cause: Option<Cause>,
    arriving: Option<ContextId>,
    /// Runs have ended that nothing was said of.
    cut: bool,
}

impl Measured {
    pub fn new(plans: &[SlotPlan]) -> Self {
        let fermata = (0..).zip(plans).filter(|(_, plan)| plan.base.is_none());
        let tells = fermata.fold(0, |mask, (i, _)| mask | sid(i).bit());
        Self {
            stopwatch: Stopwatch::new(tells),
            slots: [const { SlotHistograms::EMPTY }; MAX_SLOTS],
            contexts: HashMap::new(),
            plans: plans.to_vec(),
            cause: None,
            arriving: None,
            cut: false,
        }
    }

    fn meter(&mut self, ctx: ContextId) -> &mut ContextMeter {
        self.contexts.entry(ctx).or_insert(ContextMeter::NEW)
    }

    /// The run that was just started on a slot begins later.
    pub fn delay(&mut self, slot: SlotId, span: Duration) {
        self.stopwatch.delay(slot, span);
    }

    /// Before an event.
    pub fn begin(&mut self, machine: &Machine<Vec<Entry>>, now: Time, event: Event) {
        self.cause = Some(self.stopwatch.cause(now, Some(&event)));
        self.arriving = arriving(machine, &event);
        if let Some(ctx) = self.arriving {
            self.meter(ctx).arrive(now);
        }
    }

    /// After the machine was called.
    pub fn follow(
        &mut self,
        machine: &Machine<Vec<Entry>>,
        now: Time,
        actions: &[Action],
        refused: bool,
    ) {
        let cause = self.cause.take();
        let cause = cause.unwrap_or_else(|| self.stopwatch.cause(now, None));
        for &action in actions {
            self.stopwatch.note(&mut self.slots, &cause, action, || now);
            if let Action::Wake { ctx, .. } = action {
                self.meter(ctx).withdraw();
            }
        }
        let arriving = self.arriving.take();
        if let (true, Some(ctx)) = (refused, arriving) {
            self.meter(ctx).withdraw();
        }
        let contexts = &mut self.contexts;
        self.stopwatch
            .settle(&mut self.slots, &cause, machine, |ctx, told| {
                contexts.entry(ctx).or_insert(ContextMeter::NEW).tell(told)
            });
        self.check(machine, now);
    }

    /// Runs end, of which the machine says nothing.
    pub fn cut_off(&mut self) {
        self.cut = true;
    }

    fn check(&self, machine: &Machine<Vec<Entry>>, now: Time) {
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
            let measurable = !plan.queues && plan.stops == Default::default();
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
        machine: &Machine<Vec<Entry>>,
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
        if stats.state == JobState::Running {
            assert_eq!(measured.wait.sum, stats.wait.as_ns());
        }
        // Each job, and each doorbell for an empty queue.
        assert!(measured.arrival.count <= stats.slices);
        assert!(meter.arrived.is_none() || stats.state == JobState::Queued);
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
