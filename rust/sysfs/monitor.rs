// SPDX-License-Identifier: GPL-2.0

//! The file `monitor` of a card: the counters of its slots and of all its contexts, for readers
//! that may monitor all tenants (docs/security.md).
//!
//! The lines of the slots come first, then those of the contexts, by index. The line of an index
//! that no context has is blank.
//!
//! The file `histograms` of a card: how long gaps, saves, restores, overruns and the wait of
//! latency-critical jobs took on each slot. It says nothing about a single tenant.

use super::{
    lines::{Lines, Part},
    values::number_on,
};
use crate::{
    card::Card,
    client::Client,
    fdinfo,
    measure::{Histogram, SlotHistograms},
    measurement,
    scheduler::{SlotId, WaitReason},
    uapi::waits,
};
use core::fmt::Write;
use kernel::prelude::*;

/// The file.
pub(super) enum Monitor {}

impl Lines for Monitor {
    const NAME: &'static CStr = c"monitor";
    const LENGTH: usize = 1024;

    fn write(card: &Card, index: usize, line: &mut Part<'_>) -> Result<bool> {
        let slots = usize::from(card.identity.slots);
        if index < slots {
            // CAST: below 8.
            let slot = SlotId::new(index as u8).ok_or(EINVAL)?;
            let _ = write_slot(line, card, slot);
            return Ok(true);
        }
        let wanted = index - slots;
        let Some((found, client)) = card.next_client(wanted) else {
            return Ok(false);
        };
        if found == wanted {
            let _ = write_context(line, card, &client);
        }
        Ok(true)
    }
}

/// Writes the state and the counters of a slot.
fn write_slot(line: &mut Part<'_>, card: &Card, slot: SlotId) -> core::fmt::Result {
    let view = card.slot_view(slot);
    let stats = &view.stats;
    line.write_fmt(fmt!(
        "slot={} engine={} state={} context={}",
        slot.index(),
        card.engine_id(slot),
        view.state.name(),
        number_on(view.state),
    ))?;
    line.write_fmt(fmt!(
        " starts={} resumes={} preemptions={} finished={} faults={} resets={} timeouts={}",
        stats.starts,
        stats.resumes,
        stats.saves,
        view.finished,
        view.faults,
        stats.resets,
        stats.timeouts,
    ))?;
    line.write_fmt(fmt!(
        " overruns={} overrun_ns={} storms={} spurious_interrupts={} throttled_interrupts={}",
        stats.overruns,
        stats.overrun.as_ns(),
        view.storms,
        view.spurious,
        view.throttled,
    ))?;
    line.write_fmt(fmt!(
        " timer_storms={} standstills={}",
        view.watch.timer_storms,
        view.watch.standstills,
    ))?;
    line.write_fmt(fmt!(
        " busy_ns={} save_ns={} restore_ns={}",
        stats.busy.as_ns(),
        stats.save.as_ns(),
        stats.restore.as_ns(),
    ))
}

/// Writes the state and the counters of a context, or nothing if the context was closed meanwhile.
fn write_context(line: &mut Part<'_>, card: &Card, client: &Client) -> core::fmt::Result {
    let figures = client
        .id()
        .and_then(|id| Ok((card.view(id)?, card.group(id)?)));
    let (Ok(number), Ok((view, (group, of_group)))) = (client.number(), figures) else {
        return Ok(());
    };
    let (stats, params) = (&view.stats, &view.params);
    line.write_fmt(fmt!(
        "context={} pid={} group={} state={} slots={:#x}",
        number,
        client.opener.pid(),
        group.0,
        fdinfo::state_name(stats.state),
        params.mask,
    ))?;
    if let Some(slot) = stats.slot {
        line.write_fmt(fmt!(" slot={}", slot.index()))?;
    }
    line.write_fmt(fmt!(
        " priority={} weight={} job={} run_ns={} wait_ns={} slices={} preemptions={}",
        params.priority,
        params.weight,
        stats.job,
        stats.run.as_ns(),
        stats.wait.as_ns(),
        stats.slices,
        stats.preemptions,
    ))?;
    line.write_fmt(fmt!(
        " finished={} failed={} faults={} overruns={} overrun_ns={}",
        stats.finished,
        stats.failed,
        view.faults,
        view.overruns,
        view.overrun.as_ns(),
    ))?;
    line.write_fmt(fmt!(
        " group_run_ns={} waits={} state_ns={}",
        of_group.run.as_ns(),
        waits::number_of(stats.waits),
        stats.lasted.as_ns(),
    ))?;
    match stats.waits {
        Some(WaitReason::GroupCap(group)) => line.write_fmt(fmt!(" waits_group={}", group.0)),
        _ => Ok(()),
    }
}

/// A histogram of a slot: its name, and a function that selects it among those of the slot.
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

/// Writes how many times were measured, their sum, and the count of each bucket that is not empty.
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
