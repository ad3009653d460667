// SPDX-License-Identifier: GPL-2.0

//! What is measured of a context.

use super::Histogram;
use crate::sched::{ContextId, Duration, Entry, Event, JobState, Machine, Time};
use core::ops::DerefMut;

/// Histograms of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ContextHistograms {
    /// Time queued before each START, beginning with the last START.
    pub wait: Histogram,
    /// From the moment at which a job was asked for, or a doorbell found its queue empty, until its first START was written. Where
    /// it was held before that, it does not count.
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
    /// Its owner wants it to run since then, and no START was written yet.
    pub arrived: Option<Time>,
    /// The time in the queue that stands in the histogram.
    pub waited: Duration,
}

impl ContextMeter {
    /// Of a new context.
    pub const NEW: Self = Self {
        histograms: ContextHistograms::EMPTY,
        arrived: None,
        waited: Duration::ZERO,
    };

    /// Its owner wants it to run from `at` on.
    pub fn arrive(&mut self, at: Time) {
        self.arrived = Some(at);
    }

    /// Its owner does not want it to run after all.
    pub fn withdraw(&mut self) {
        self.arrived = None;
    }

    /// Takes in what was measured. How long after its arrival a START was written, if it has arrived since the last one.
    pub fn tell(&mut self, told: Told) -> Option<Duration> {
        match told {
            Told::Ended { span } => {
                self.histograms.run.add(span.as_ns());
                None
            }
            Told::Begun { wait, written } => {
                let more = wait.as_ns().saturating_sub(self.waited.as_ns());
                self.histograms.wait.add(more);
                self.waited = wait;
                let latency = written.since(self.arrived.take()?);
                self.histograms.arrival.add(latency.as_ns());
                Some(latency)
            }
        }
    }
}

/// What was measured of a context on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The end of its run was observed, which was so long.
    Ended {
        /// From its START on.
        span: Duration,
    },
    /// A START was written for it.
    Begun {
        /// The time for which it was queued until then, altogether.
        wait: Duration,
        /// When.
        written: Time,
    },
}

/// The context whose owner wants it to run by `event`, if the scheduler does not refuse that.
pub fn arriving<S: DerefMut<Target = [Entry]>>(
    machine: &Machine<S>,
    event: &Event,
) -> Option<ContextId> {
    match *event {
        Event::Start { ctx, .. } => Some(ctx),
        Event::Ring { ctx } => {
            let state = machine.stats(ctx, Time::ZERO).ok()?.state;
            (state == JobState::Empty).then_some(ctx)
        }
        _ => None,
    }
}
