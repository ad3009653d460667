// SPDX-License-Identifier: GPL-2.0

//! Histograms of slots and contexts.

use super::Histogram;
use crate::scheduler::{Duration, EndReason, RunEnd, StartTimes, Time};

/// Histograms and counters of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SlotHistograms {
    /// From the status that showed PAUSED or FINISH until the next START was written, if the slot
    /// was not left vacant in between.
    pub gap: Histogram,
    /// From the first PAUSE to PAUSED; not for jobs that stop at boundaries, and not for queues
    /// that were empty.
    pub save: Histogram,
    /// The times of restores that the card reported.
    pub restore: Histogram,
    /// How late a PAUSE was written after the time that the timer was set to.
    pub overrun: Histogram,
    /// From the arrival of a latency-critical job until its first START was written.
    pub latency: Histogram,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs that the card stopped at an access outside their windows.
    pub faults: u64,
}

impl SlotHistograms {
    /// Nothing was measured. All of its bytes are zero.
    pub const EMPTY: Self = Self {
        gap: Histogram::EMPTY,
        save: Histogram::EMPTY,
        restore: Histogram::EMPTY,
        overrun: Histogram::EMPTY,
        latency: Histogram::EMPTY,
        finished: 0,
        faults: 0,
    };

    /// Notes that a START was written at `written`.
    pub fn note_start(&mut self, times: &StartTimes, written: Time) {
        if let Some(since) = times.idle_since {
            self.gap.add(written.since(since).as_ns());
        }
        if let Some(arrived) = times.arrived.filter(|_| times.latency_critical) {
            self.latency.add(written.since(arrived).as_ns());
        }
    }

    /// Notes that a PAUSE was written; `late`: how late, if a timer caused it.
    pub fn note_pause(&mut self, late: Option<Duration>) {
        if let Some(late) = late {
            self.overrun.add(late.as_ns());
        }
    }

    /// Notes the end of a run.
    pub fn note_end(&mut self, run: &RunEnd) {
        if let Some(save) = run.save {
            self.save.add(save.as_ns());
        }
        if run.restore != Duration::ZERO {
            self.restore.add(run.restore.as_ns());
        }
        self.finished += u64::from(run.reason == EndReason::Finished);
        self.faults += u64::from(run.reason == EndReason::Fault);
    }
}

/// Histograms of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ContextHistograms {
    /// Time queued before each START, since the previous START.
    pub wait: Histogram,
    /// From when a job was requested, or a doorbell found its queue empty, until its first START
    /// was written; not counted if the job was held before that.
    pub arrival: Histogram,
    /// From each START to the observed end of the run.
    pub run: Histogram,
}

impl ContextHistograms {
    /// Nothing was measured. All of its bytes are zero.
    pub const EMPTY: Self = Self {
        wait: Histogram::EMPTY,
        arrival: Histogram::EMPTY,
        run: Histogram::EMPTY,
    };
}

/// Measures a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextMeter {
    /// What was measured.
    pub histograms: ContextHistograms,
    /// The time in the queue that is already in the histogram.
    pub waited: Duration,
}

impl ContextMeter {
    /// The meter of a new context.
    pub const NEW: Self = Self {
        histograms: ContextHistograms::EMPTY,
        waited: Duration::ZERO,
    };

    /// Notes that a START was written for the context at `written`.
    pub fn note_start(&mut self, times: &StartTimes, written: Time) {
        let more = times.wait.as_ns().saturating_sub(self.waited.as_ns());
        self.histograms.wait.add(more);
        self.waited = times.wait;
        if let Some(arrived) = times.arrived {
            self.histograms.arrival.add(written.since(arrived).as_ns());
        }
    }

    /// Notes the end of a run of the context.
    pub fn note_end(&mut self, run: &RunEnd) {
        self.histograms.run.add(run.span.as_ns());
    }
}
