// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long things took, and how often.

use crate::{uapi, Context, Histogram, Result, BUCKETS};

/// What is measured of a slot, since the driver was bound to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SlotHistogram {
    /// From the status that showed the end of a run until the next START, where the slot was
    /// wanted.
    Gap = uapi::HISTOGRAM_GAP,
    /// From the first PAUSE to PAUSED.
    Save = uapi::HISTOGRAM_SAVE,
    /// Restores, as the card tells it.
    Restore = uapi::HISTOGRAM_RESTORE,
    /// From the end of a slice until its PAUSE was written.
    Overrun = uapi::HISTOGRAM_OVERRUN,
    /// From the arrival of latency-critical jobs until their first START.
    Latency = uapi::HISTOGRAM_LATENCY,
}

impl SlotHistogram {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Gap,
        Self::Save,
        Self::Restore,
        Self::Overrun,
        Self::Latency,
    ];
}

/// What is measured of a context, since it was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ContextHistogram {
    /// Time queued before each START.
    Wait = uapi::HISTOGRAM_WAIT,
    /// From a job's start, or a doorbell for an empty queue, until the first START that followed.
    Arrival = uapi::HISTOGRAM_ARRIVAL,
    /// From each START to the end of the run.
    Run = uapi::HISTOGRAM_RUN,
}

impl ContextHistogram {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Wait, Self::Arrival, Self::Run];
}

impl Context {
    /// How long things took on a slot. The 99th percentile is [`Histogram::quantile`] of 990,000:
    /// at most 25 % (or 16 ns) too long, never too short.
    ///
    /// ```no_run
    /// # use fermata::{Context, SlotHistogram};
    /// # let context = Context::open("/dev/fermata0")?;
    /// let gap = context.slot_histogram(0, SlotHistogram::Gap)?;
    /// println!("{} switches, P50 {:?} ns, P99 {:?} ns", gap.count, gap.quantile(500_000), gap.quantile(990_000));
    /// # Ok::<(), fermata::Error>(())
    /// ```
    pub fn slot_histogram(&self, slot: u32, which: SlotHistogram) -> Result<Histogram> {
        self.histogram(which as u32, slot)
    }

    /// How long things took for a context: the caller's own, or that with this number.
    /// [`Error::NotPermitted`](crate::Error::NotPermitted): another user opened it.
    pub fn context_histogram(
        &self,
        number: Option<u32>,
        which: ContextHistogram,
    ) -> Result<Histogram> {
        self.histogram(which as u32, number.unwrap_or(0))
    }

    fn histogram(&self, kind: u32, number: u32) -> Result<Histogram> {
        let mut buckets = [0; BUCKETS];
        let argument = uapi::Histogram {
            kind,
            number,
            buckets: BUCKETS as u32,
            counts: buckets.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer is that of an array of this length, which may be written.
        let read = unsafe { self.call(uapi::IOC_HISTOGRAM, argument) }?;
        Ok(Histogram {
            count: read.count,
            sum: read.sum_ns,
            min: read.min_ns,
            max: read.max_ns,
            buckets,
        })
    }
}
