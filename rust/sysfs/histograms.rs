// SPDX-License-Identifier: GPL-2.0

//! The file `histograms` of a card: how long gaps, saves, restores, overruns and the wait of
//! latency-critical jobs took on each slot. They tell of no single tenant.

use super::lines::{Lines, Part};
use crate::{
    card::Card,
    measure::{Histogram, SlotHistograms},
    measurement,
    sched::SlotId,
};
use core::fmt::Write;
use kernel::prelude::*;

/// A histogram of a slot: its name, and where it is among those of the slot.
type Kind = (&'static str, fn(&SlotHistograms) -> &Histogram);

const KINDS: [Kind; 5] = [
    ("gap", |of| &of.gap),
    ("save", |of| &of.save),
    ("restore", |of| &of.restore),
    ("overrun", |of| &of.overrun),
    ("latency", |of| &of.latency),
];

/// The file. A line has four words of at most 32 bytes, and at most 25 bytes for each bucket.
pub(super) enum Histograms {}

impl Lines for Histograms {
    const NAME: &'static CStr = c"histograms";
    const LENGTH: usize = 4096;

    fn write(card: &Card, index: usize, line: &mut Part<'_>) -> Result<bool> {
        let (slot, (name, which)) = (index / KINDS.len(), KINDS[index % KINDS.len()]);
        if slot >= usize::from(card.identity.slots) {
            return Ok(false);
        }
        // CAST: below 8.
        let slot = SlotId::new(slot as u8).ok_or(EINVAL)?;
        let mut copy = measurement::new_copy()?;
        card.copy_of_slot(slot, which, &mut copy);
        // The line has room for all.
        let _ = write_histogram(line, slot, name, &copy);
        Ok(true)
    }
}

/// Writes how many times were measured, and how many are in each bucket that is not empty.
fn write_histogram(
    line: &mut Part<'_>,
    slot: SlotId,
    name: &str,
    histogram: &Histogram,
) -> core::fmt::Result {
    line.write_fmt(fmt!(
        "slot={} histogram={} count={} sum_ns={}",
        slot.index(),
        name,
        histogram.count,
        histogram.sum,
    ))?;
    let buckets = histogram.buckets.iter().enumerate();
    for (bucket, count) in buckets.filter(|(_, &count)| count != 0) {
        line.write_fmt(fmt!(" {}={}", bucket, count))?;
    }
    Ok(())
}
