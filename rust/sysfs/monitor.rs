// SPDX-License-Identifier: GPL-2.0

//! The file `monitor` of a card: the counters of its slots and of all its contexts, for readers
//! that may know them of every tenant (docs/security.md).
//!
//! All lines have [`LINE`] bytes, so that an offset in the file always belongs to the same slot or
//! context index, in whatever pieces the file is read: first the slots, then the contexts by their
//! indices. The line of an index that no context has is blank.

use super::values::{number_on, state_name};
use crate::{card::Card, client::Client, fdinfo, sched::SlotId};
use core::{fmt::Write, slice};
use kernel::{bindings, container_of, prelude::*};

/// Bytes of a line, its newline included. A page is a multiple of it.
const LINE: usize = 1024;

/// A line that is being written.
struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Line {
    /// Blanks the line.
    fn clear(&mut self) {
        self.bytes.fill(b' ');
        self.bytes[LINE - 1] = b'\n';
        self.length = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes[..LINE - 1].get_mut(self.length..end);
        room.ok_or(core::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The attribute of the file.
pub(super) const ATTRIBUTE: bindings::bin_attribute = {
    let mut attribute: bindings::bin_attribute = pin_init::zeroed();
    attribute.attr.name = super::files::char_ptr(c"monitor");
    // A udev rule gives the file to the group fermata-monitor.
    attribute.attr.mode = 0o440;
    attribute.read = Some(read);
    attribute
};

/// Writes line number `index` of the file to `line`. `None`: the file has no such line.
fn fill(line: &mut Line, card: &Card, index: usize) -> Option<()> {
    line.clear();
    let slots = usize::from(card.identity.slots);
    // What does not fit into the line is cut off.
    if index < slots {
        // CAST: below 8.
        let _ = write_slot(line, card, SlotId::new(index as u8)?);
    } else {
        let wanted = index - slots;
        let (found, client) = card.next_client(wanted)?;
        if found == wanted {
            let _ = write_context(line, card, &client);
        }
    }
    Some(())
}

/// Writes the state and the counters of a slot.
fn write_slot(line: &mut Line, card: &Card, slot: SlotId) -> core::fmt::Result {
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
fn write_context(line: &mut Line, card: &Card, client: &Client) -> core::fmt::Result {
    let view = client.id().and_then(|id| card.view(id));
    let (Ok(number), Ok(view)) = (client.number(), view) else {
        return Ok(());
    };
    let (stats, params) = (&view.stats, &view.params);
    line.write_fmt(fmt!(
        "context={} pid={} group={} state={} slots={:#x}",
        number,
        client.opener.pid,
        client.group().0,
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
    ))
}

/// Reads lines of the file.
///
/// # Safety
///
/// Called by sysfs for a file of a device whose driver data is a [`Card`] that outlives the call;
/// `page` has `count` bytes.
unsafe extern "C" fn read(
    _file: *mut bindings::file,
    kobject: *mut bindings::kobject,
    _attribute: *const bindings::bin_attribute,
    page: *mut c_char,
    offset: bindings::loff_t,
    count: usize,
) -> isize {
    // SAFETY: By the safety requirement `kobject` is that of the device, and nobody else uses the
    // page meanwhile.
    let (card, mut page) = unsafe {
        let device = container_of!(kobject, bindings::device, kobj);
        (
            &*(*device).driver_data.cast::<Card>(),
            slice::from_raw_parts_mut(page.cast::<u8>(), count),
        )
    };
    let Ok(mut at) = usize::try_from(offset) else {
        return 0;
    };
    let mut line = Line {
        bytes: [0; LINE],
        length: 0,
    };
    while !page.is_empty() && fill(&mut line, card, at / LINE).is_some() {
        let rest = &line.bytes[at % LINE..];
        let length = rest.len().min(page.len());
        let (filled, left) = page.split_at_mut(length);
        filled.copy_from_slice(&rest[..length]);
        page = left;
        at += length;
    }
    // CAST: at most a page.
    (count - page.len()) as isize
}
