// SPDX-License-Identifier: GPL-2.0

//! Other devices in the IOMMU group of a card. They share an address space: a card that does not
//! check windows reaches what any of them has mapped, as if there were no IOMMU.

use super::{now, Card};
use crate::{
    bus_watch::Watcher,
    capability,
    scheduler::{Duration, SlotId, SlotState, Time},
    shim::fermata_dma_neighbours,
};
use core::mem::offset_of;
use kernel::{
    dev_err, dev_warn,
    prelude::*,
    sync::atomic::{Acquire, Release},
    time::{delay::fsleep, Delta},
};

/// Longer than every job takes to leave its slot: the longest preempt timeout, and resets.
const HOLD_MAX: Duration = Duration::from_ms(15_000);
/// The interval at which slots are looked at meanwhile.
const HOLD_LOOK: Delta = Delta::from_millis(1);

impl Card {
    /// Watches the card's IOMMU group from now on, if other devices in it matter. Process context;
    /// called once.
    pub(crate) fn watch_neighbours(&self) -> Result {
        if self.identity.has_window() || !self.translated {
            return Ok(());
        }
        // First, so that no device is missed.
        self.bus_watch.start()?;
        self.update_neighbours();
        Ok(())
    }

    /// Returns whether engines may reach what other devices have mapped. Any context.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.neighbours.load(Acquire) != 0
    }

    /// Returns whether the caller may let jobs reach the memory of the devices that are neighbours
    /// now, for [`Card::check_neighbours`]. Process context, not under the card's lock.
    pub(crate) fn may_reach_neighbours(&self) -> bool {
        self.has_neighbours() && capability::may_touch_all_memory()
    }

    /// Checks that a job of the caller may run: there are no neighbours, or the caller may reach
    /// those that there were. Under the card's lock, so that a job that this lets pass is among
    /// those that are held when a neighbour comes. `EPERM`.
    pub(crate) fn check_neighbours(&self, may_reach: bool) -> Result {
        match self.has_neighbours() && !may_reach {
            true => Err(EPERM),
            false => Ok(()),
        }
    }

    /// Counts the other devices of the group, and holds all jobs if the first one has come. Locked,
    /// because several devices may come and go at the same time: none of them gets a driver before
    /// the jobs are saved, and the last count is the latest one. Process context.
    fn update_neighbours(&self) {
        let _updating = self.updating_neighbours.lock();
        if self.count_neighbours() {
            self.hold_all();
        }
    }

    /// Counts the other devices of the group. Returns whether there are some, and were none before.
    fn count_neighbours(&self) -> bool {
        let mut group = 0;
        let count = fermata_dma_neighbours(&self.device, &mut group);
        let had_some = self.has_neighbours();
        self.neighbours.store(count, Release);
        if count == 0 || had_some {
            return false;
        }
        dev_warn!(
            self.device,
            "IOMMU group {} has other devices ({}): engines without window check reach their memory, so jobs take CAP_SYS_RAWIO\n",
            group,
            count
        );
        true
    }

    /// Holds all jobs, and waits until those on slots are saved. Process context.
    fn hold_all(&self) {
        {
            let registry = self.registry.lock();
            for id in registry
                .clients()
                .iter()
                .filter_map(|client| client.id().ok())
            {
                // A context without a job has nothing to be held.
                let _ = self.preempt(id, true);
            }
        }
        let end = now() + HOLD_MAX;
        for slot in self.slots_in(u8::MAX) {
            self.wait_for_vacancy(slot, end);
        }
    }

    /// Waits until the job that is on `slot` now has left it, at most until `end`.
    fn wait_for_vacancy(&self, slot: SlotId, end: Time) {
        let job = || {
            let slot_state = self.state.lock().scheduler.slot_state(slot);
            slot_state.and_then(SlotState::context)
        };
        let held = job();
        while held.is_some() && job() == held {
            if now() >= end {
                dev_err!(
                    self.device,
                    "the job on slot {} is still there beside the new device\n",
                    slot.index()
                );
                return;
            }
            fsleep(HOLD_LOOK);
        }
    }
}

impl Watcher for Card {
    const OFFSET: usize = offset_of!(Self, bus_watch);

    fn bus_changed(&self) {
        self.update_neighbours();
    }
}
