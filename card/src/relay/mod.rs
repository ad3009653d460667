// SPDX-License-Identifier: GPL-2.0-or-later
//! The relay interface of `docs/card.md`: the words and the memory that driver and card share.

mod entry;
mod order;
mod record;

pub use entry::{Entry, ENTRY_SIZE};
pub use order::Order;
pub use record::{Reason, Record};

use std::sync::atomic::{AtomicU64, Ordering};

/// Result registers of a context.
pub const RESULTS: usize = 16;
/// `RELAY_CAPS`: version 1, one held order, the result registers.
pub const CAPS: u64 = 1 | 1 << 8 | (RESULTS as u64) << 16;
/// The most entries of a context table.
const MAX_CONTEXTS: u64 = 0x1_0000;
/// Records and EVENTS of one slot.
const SLOT_STRIDE: u64 = 0x400;
/// Where EVENTS stands in that.
const EVENTS: u64 = 0x200;
/// Records of a slot.
const RECORDS: u32 = 8;
const PAGE: u64 = 4096;

/// The registers that all slots share: where the memory is.
#[derive(Debug, Default)]
pub struct Tables {
    table: AtomicU64,
    count: AtomicU64,
    records: AtomicU64,
}

impl Tables {
    /// `CTX_TABLE`
    pub fn table(&self) -> u64 {
        self.table.load(Ordering::Acquire)
    }

    /// `CTX_COUNT`
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// `RECORDS`
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    /// Writes `CTX_TABLE`.
    pub fn set_table(&self, iova: u64) {
        self.table.store(iova & !(PAGE - 1), Ordering::Release);
    }

    /// Writes `CTX_COUNT`; a value beyond the limit is ignored.
    pub fn set_count(&self, count: u64) {
        if Self::is_count(count) {
            self.count.store(count, Ordering::Release);
        }
    }

    /// Whether `CTX_COUNT` takes that value.
    pub fn is_count(count: u64) -> bool {
        count <= MAX_CONTEXTS
    }

    /// Writes `RECORDS`.
    pub fn set_records(&self, iova: u64) {
        self.records.store(iova & !(PAGE - 1), Ordering::Release);
    }

    /// As after power-on.
    pub fn clear(&self) {
        self.set_table(0);
        self.set_count(0);
        self.set_records(0);
    }

    /// Where the entry of a context is; `None` beyond the table. As with the other addresses, what
    /// would be beyond the last address is there, where no memory answers.
    pub fn entry_at(&self, context: u64) -> Option<u64> {
        let within = context * ENTRY_SIZE as u64;
        (context < self.count()).then(|| self.table().saturating_add(within))
    }

    /// Where the record of a run of a slot goes.
    pub fn record_at(&self, slot: usize, run: u32) -> u64 {
        let within = u64::from(run % RECORDS) * Record::SIZE as u64;
        self.of_slot(slot).saturating_add(within)
    }

    /// Where EVENTS of a slot goes.
    pub fn events_at(&self, slot: usize) -> u64 {
        self.of_slot(slot).saturating_add(EVENTS)
    }

    fn of_slot(&self, slot: usize) -> u64 {
        self.records().saturating_add(SLOT_STRIDE * slot as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tables = Tables::default();
        tables.set_table(0x1_2345);
        tables.set_count(2);
        tables.set_count(0x1_0001);
        tables.set_records(0x2_0fff);
        assert_eq!(tables.entry_at(1), Some(0x1_2080));
        assert_eq!(tables.entry_at(2), None);
        assert_eq!(tables.record_at(3, 9), 0x2_0c40);
        assert_eq!(tables.events_at(1), 0x2_0600);
        tables.set_table(u64::MAX);
        tables.set_count(33);
        tables.set_records(u64::MAX);
        assert_eq!(tables.entry_at(31), Some(u64::MAX - 127));
        assert_eq!(tables.entry_at(32), Some(u64::MAX), "not 0");
        assert_eq!(tables.record_at(3, 7), u64::MAX - 0x23f);
        assert_eq!(tables.record_at(4, 7), u64::MAX, "not 0x1c0");
        assert_eq!(tables.events_at(7), u64::MAX);
    }
}
