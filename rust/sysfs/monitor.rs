// SPDX-License-Identifier: GPL-2.0

//! The file `monitor` of a card: the counters of its slots and of all its contexts, for readers
//! that may know them of every tenant (docs/security.md).
//!
//! First there are lines of the slots, then of the contexts by their indices. The line of an index
//! that no context has is blank.

use super::{
    lines::{Lines, Part},
    values::{number_on, state_name},
};
use crate::{card::Card, client::Client, fdinfo, sched::SlotId};
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
        state_name(view.state),
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
        client.opener.pid,
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
    line.write_fmt(fmt!(" group_run_ns={}", of_group.run.as_ns()))
}
