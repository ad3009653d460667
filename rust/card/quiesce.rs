// SPDX-License-Identifier: GPL-2.0

//! Bringing all engines of a card to rest, without its scheduler.

use super::slot_ids;
use crate::{
    bar::{Bar, Identity},
    image::AppRegister,
    limits::Limits,
};

/// Stops all engines, closes all windows and clears all application registers, of which nobody
/// knows what stands in them. There is no scheduler yet, so no context is on a slot.
pub(super) fn quiesce(bar: &Bar, identity: &Identity, limits: &Limits) {
    bar.reset(u8::MAX);
    settle(bar, identity, limits);
    for slot in slot_ids(identity.slots) {
        if identity.has_window() {
            bar.set_window(slot, None, &Default::default(), true);
        }
        AppRegister::all().for_each(|register| bar.write_application(slot, register.offset(), 0));
    }
    bar.reset(0);
}

/// Waits until no DMA of slots that are held in reset can arrive any more.
pub(super) fn settle(bar: &Bar, identity: &Identity, limits: &Limits) {
    let read_each = || {
        for slot in slot_ids(identity.slots) {
            let _ = bar.status(slot);
        }
    };
    // On a card that is quiescent the read itself waits for the last DMA; on others it only pushes
    // the reset.
    read_each();
    if !identity.is_quiescent() {
        kernel::time::delay::fsleep(kernel::time::Delta::from_nanos(limits.settle.as_ns() as i64));
        // What has left an engine by now may be on its way still: a read comes behind it.
        read_each();
    }
}
