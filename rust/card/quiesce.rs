// SPDX-License-Identifier: GPL-2.0

//! Bringing all engines of a card to rest, without its scheduler.

use super::slot_ids;
use crate::{
    bar::{Bar, Identity},
    image::AppRegister,
    limits::Limits,
    relay::Relay,
    scheduler::{Phase, Status},
};
use kernel::prelude::*;

/// Stops all engines, closes all windows and clears all application registers, whose contents are
/// unknown. No context is on a slot.
// Not part of its caller's frame, which is large.
#[inline(never)]
pub(super) fn quiesce(bar: &Bar, identity: &Identity, limits: &Limits) {
    bar.reset(u8::MAX);
    settle(bar, identity, limits);
    // An earlier driver may have left the relay on: then no other register could be written.
    switch_off(bar, identity);
    if identity.has_window() {
        slot_ids(identity.slots)
            .for_each(|slot| bar.set_window(slot, None, &Default::default(), identity));
    }
    bar.reset(0);
    // A slot of a base card ignores what is written while it is held in reset.
    for slot in slot_ids(identity.slots) {
        AppRegister::all().for_each(|register| bar.write_application(slot, register.offset(), 0));
    }
}

/// Lets the slots of a card obey orders, after `quiesce`. `ENODEV`: a slot does not.
pub(super) fn switch_on(bar: &Bar, identity: &Identity, relay: &Relay) -> Result {
    relay.clear_records();
    let (table, entries) = (relay.table_address(), relay.table_length());
    let records = relay.records_address();
    bar.set_relay_memory(table, entries, records);
    for slot in slot_ids(identity.slots) {
        bar.set_relay(slot, true);
    }
    // A card that was gone for a moment has lost some of the writes.
    let all_obey = slot_ids(identity.slots).all(|slot| bar.obeys_orders(slot));
    match all_obey && bar.has_relay_memory(table, entries, records) {
        true => Ok(()),
        false => Err(ENODEV),
    }
}

/// Stops slots that are held in reset, and are at rest, from obeying orders, so that a driver that
/// does not know orders can use the card.
pub(super) fn switch_off(bar: &Bar, identity: &Identity) {
    if !identity.has_relay {
        return;
    }
    for slot in slot_ids(identity.slots) {
        let status = Status::from_raw(bar.status(slot));
        if status.is_gone() {
            return;
        }
        if status.phase() == Phase::Idle {
            bar.set_relay(slot, false);
        }
    }
}

/// Waits until no DMA of slots that are held in reset can arrive any more.
pub(super) fn settle(bar: &Bar, identity: &Identity, limits: &Limits) {
    // On a card that is quiescent the read itself waits for the last DMA; on others it only pushes
    // the reset.
    flush(bar, identity);
    if !identity.is_quiescent() {
        kernel::time::delay::fsleep(kernel::time::Delta::from_nanos(limits.settle.as_ns() as i64));
        // What has left an engine by now may still be on its way: a read returns after it.
        flush(bar, identity);
    }
}

/// Reads a register of each slot, or of the manager of a base card, whose slots answer no read while
/// they are held in reset.
fn flush(bar: &Bar, identity: &Identity) {
    if identity.is_base {
        bar.push_reset();
        return;
    }
    // Each read of a card that is gone may take as long as the link's time-out.
    let _ = slot_ids(identity.slots).all(|slot| !Status::from_raw(bar.status(slot)).is_gone());
}
