// SPDX-License-Identifier: GPL-2.0

//! The text of a dump (docs/dumps.md).
//!
//! It has no addresses, no contents of application registers and of memory, and no names of
//! processes: [`Capture`] has none either, but for fault addresses as offsets in an arena.

use super::{Capture, Cause, SlotCapture};
use crate::{
    bar::Identity,
    engine_id::EngineId,
    relay::{RECORDS, RECORD_WORDS},
    scheduler::{Profile, Time},
    shim::{fermata_dump, fermata_kernel_release, ktime_get_real_seconds},
    write_log::{Control, Write as RegisterWrite},
};
use core::fmt::{Result as Written, Write};
use kernel::{device::Device, prelude::*};

/// The version of the driver, that of the programs.
const VERSION: &str = "0.1.0";
/// Bytes for which there is room at first.
const ROOM: usize = 16 << 10;

/// A text in memory that `vfree()` frees.
struct Text(VVec<u8>);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> Written {
        let appended = self.0.extend_from_slice(text.as_bytes(), GFP_KERNEL);
        appended.map_err(|_| core::fmt::Error)
    }
}

/// Writes `capture` as text at the time `at`, and gives the text to the kernel, as a dump of
/// `device`. Process context. `ENOMEM`.
pub(super) fn give(device: &Device, capture: &Capture, at: Time) -> Result {
    let mut text = Text(VVec::with_capacity(ROOM, GFP_KERNEL)?);
    write(&mut text, device, capture, at).map_err(|_| ENOMEM)?;
    let (data, length, _) = text.0.into_raw_parts();
    // SAFETY: `data` has `length` bytes, was allocated by `vmalloc()`, and is the callee's now.
    unsafe { fermata_dump(device, data.cast(), length) };
    Ok(())
}

fn write(text: &mut Text, device: &Device, capture: &Capture, at: Time) -> Written {
    write_head(text, device, capture, at)?;
    write_troubles(text, capture)?;
    write_card(text, capture)?;
    let slots = capture.identity.map_or(0, |identity| identity.slots.into());
    for (number, slot) in capture.slots.iter().take(slots).enumerate() {
        write_slot(text, number, slot)?;
    }
    text.write_str("[writes]\n")?;
    for write in capture.writes.iter().flatten() {
        write_register(text, write)?;
    }
    if capture.profile == Some(Profile::Relay) {
        text.write_str("[records]\n")?;
        for (number, slot) in capture.slots.iter().take(slots).enumerate() {
            write_records(text, number, &slot.records)?;
        }
    }
    text.write_str("[end]\n")
}

fn write_head(text: &mut Text, device: &Device, capture: &Capture, at: Time) -> Written {
    let trouble = capture.troubles[0];
    let cause = trouble.map_or("", |trouble| trouble.cause.name());
    // SAFETY: The kernel's release is a string that does not change.
    let release = unsafe { CStr::from_char_ptr(fermata_kernel_release()) };
    text.write_fmt(fmt!(
        "fermata-dump 1\ntime: {}\nmonotonic_ns: {}\nkernel: {}\ndriver: {}\n",
        ktime_get_real_seconds(),
        at.as_ns(),
        release,
        VERSION,
    ))?;
    text.write_fmt(fmt!(
        "device: {}\ncard: {}\nreason: {}\nmissed: {}\n",
        device.name(),
        capture.card,
        cause,
        capture.missed,
    ))
}

/// Writes what has happened, and how often it has happened since the driver was bound.
fn write_troubles(text: &mut Text, capture: &Capture) -> Written {
    text.write_str("[events]\n")?;
    for trouble in capture.troubles.iter().flatten() {
        text.write_fmt(fmt!("{}: {}", trouble.at.as_ns(), trouble.cause.name()))?;
        if let Some(slot) = trouble.slot {
            text.write_fmt(fmt!(" slot={}", slot.index()))?;
        }
        if trouble.context != 0 {
            text.write_fmt(fmt!(" context={}", trouble.context))?;
        }
        text.write_str("\n")?;
    }
    text.write_str("[counts]\n")?;
    for cause in Cause::ALL {
        let count = capture.counts[cause as usize];
        text.write_fmt(fmt!("{}: {}\n", cause.name(), count))?;
    }
    Ok(())
}

fn write_card(text: &mut Text, capture: &Capture) -> Written {
    let profile = match capture.profile {
        Some(Profile::Base { .. }) => "base",
        Some(Profile::Irq) => "irq",
        Some(Profile::Relay) => "relay",
        None => "",
    };
    text.write_fmt(fmt!("[card]\nprofile: {}\n", profile))?;
    if let Some(Identity {
        slots, features, ..
    }) = capture.identity
    {
        let features = features.into_raw();
        text.write_fmt(fmt!("slots: {}\nFEATURES: {:#x}\n", slots, features))?;
    }
    text.write_fmt(fmt!("RESET: {:#x}\n", capture.in_reset))?;
    match capture.reset_read {
        Some(value) => text.write_fmt(fmt!("RESET_read: {:#x}\n", value)),
        None => Ok(()),
    }
}

fn write_slot(text: &mut Text, number: usize, slot: &SlotCapture) -> Written {
    let (low, high) = slot.engine;
    let engine = EngineId { low, high };
    text.write_fmt(fmt!(
        "[slot {}]\nengine: {}\nstate: {}\n",
        number,
        engine,
        slot.state.name(),
    ))?;
    if slot.context != 0 {
        text.write_fmt(fmt!("context: {}\n", slot.context))?;
    }
    if let Some((status, at)) = slot.status {
        text.write_fmt(fmt!("status: {:#x}\nstatus_ns: {}\n", status, at.as_ns()))?;
    }
    if let Some(size) = slot.window_size {
        text.write_fmt(fmt!("WINDOW_SIZE: {:#x}\n", size))?;
    }
    if let Some(refused) = slot.refused {
        let what = if refused.is_write { "write" } else { "read" };
        text.write_fmt(fmt!("FAULT_INFO: {}\n", what))?;
        match refused.offset {
            Some(offset) => text.write_fmt(fmt!("FAULT_ADDR: arena{:+}\n", offset))?,
            None => text.write_str("FAULT_ADDR: (address)\n")?,
        }
        text.write_fmt(fmt!("fault_ns: {}\n", refused.at.as_ns()))?;
    }
    Ok(())
}

fn write_register(text: &mut Text, write: &RegisterWrite) -> Written {
    text.write_fmt(fmt!("{}: {}", write.at.as_ns(), write.control.name()))?;
    if let Some(slot) = write.slot {
        text.write_fmt(fmt!("[{}]", slot.index()))?;
    }
    match write.value {
        Some(order) if write.control == Control::Order => write_order(text, order),
        Some(value) => text.write_fmt(fmt!(" {:#x}\n", value)),
        None => text.write_str(" (address)\n"),
    }
}

/// Writes the fields of an order. `at`: microseconds, 16777215: never.
fn write_order(text: &mut Text, order: u64) -> Written {
    let (after, next) = (order & 0xffff, order >> 16 & 0x1_ffff);
    let (flags, at) = (order >> 33 & 0x7f, order >> 40);
    text.write_fmt(fmt!(
        " after={} next={} flags={:#x} at={}\n",
        after,
        next,
        flags,
        at
    ))
}

/// Writes the words of the records of a slot, but for the address of a fault.
fn write_records(
    text: &mut Text,
    slot: usize,
    records: &[[u64; RECORD_WORDS]; RECORDS],
) -> Written {
    for (number, words) in records.iter().enumerate() {
        let [cookie, began, worked, stopped, left, _, next, last] = words;
        text.write_fmt(fmt!("{}.{}: {:#x}", slot, number, cookie))?;
        text.write_fmt(fmt!(" {} {} {} {}", began, worked, stopped, left))?;
        text.write_fmt(fmt!(" (address) {:#x} {:#x}\n", next, last))?;
    }
    Ok(())
}
