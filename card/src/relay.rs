// SPDX-License-Identifier: GPL-2.0-or-later
//! The relay interface of `docs/registers.md`: the words and the memory that driver and card share,
//! and the clock for the times in them.

use crate::event::now_ns;
use crate::regs::APP_FIRST;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of result registers of a context.
pub const RESULTS: usize = 16;
/// `RELAY_CAPS`: version 1, one held order, the result registers.
pub const CAPS: u64 = 1 | 1 << 8 | (RESULTS as u64) << 16;
/// The most entries of a context table.
const MAX_CONTEXTS: u64 = 0x1_0000;
/// Bytes of records and EVENTS of one slot.
const SLOT_STRIDE: u64 = 0x400;
/// Offset of EVENTS in them.
const EVENTS: u64 = 0x200;
/// Number of records of a slot.
const RECORDS: u32 = 8;
const PAGE: u64 = 4096;

/// The registers that all slots share: the addresses of the memory.
#[derive(Debug, Default)]
pub struct Tables {
    table: AtomicU64,
    count: AtomicU64,
    records: AtomicU64,
}

impl Tables {
    /// Returns `CTX_TABLE`.
    pub fn table(&self) -> u64 {
        self.table.load(Ordering::Acquire)
    }

    /// Returns `CTX_COUNT`.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns `RECORDS`.
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

    /// Returns whether `CTX_COUNT` accepts the value.
    pub fn is_count(count: u64) -> bool {
        count <= MAX_CONTEXTS
    }

    /// Writes `RECORDS`.
    pub fn set_records(&self, iova: u64) {
        self.records.store(iova & !(PAGE - 1), Ordering::Release);
    }

    /// Clears all registers, as after power-on.
    pub fn clear(&self) {
        self.set_table(0);
        self.set_count(0);
        self.set_records(0);
    }

    /// Returns the address of the entry of a context; `None` beyond the table. Like the other
    /// addresses, it is clamped to the last address, where no memory answers.
    pub fn entry_at(&self, context: u64) -> Option<u64> {
        let within = context * ENTRY_SIZE as u64;
        (context < self.count()).then(|| self.table().saturating_add(within))
    }

    /// Returns the address of the record of a slot's run.
    pub fn record_at(&self, slot: usize, run: u32) -> u64 {
        let within = u64::from(run % RECORDS) * Record::SIZE as u64;
        self.of_slot(slot).saturating_add(within)
    }

    /// Returns the address of EVENTS of a slot.
    pub fn events_at(&self, slot: usize) -> u64 {
        self.of_slot(slot).saturating_add(EVENTS)
    }

    fn of_slot(&self, slot: usize) -> u64 {
        self.records().saturating_add(SLOT_STRIDE * slot as u64)
    }
}

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 128;
/// Offset of the result offsets.
const OFFSETS: usize = 0x40;
/// Offset of the last application register.
const APP_LAST: u16 = 0xff8;

/// A valid entry, as the card reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/registers.md
pub struct Entry {
    pub dma_offset: u64,
    pub window_base: u64,
    pub window_size: u64,
    pub snapshot_addr: u64,
    pub regs: u64,
    pub results: u64,
    pub offsets: [u16; RESULTS],
    pub cookie: u64,
}

fn word(bytes: &[u8; ENTRY_SIZE], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl Entry {
    /// Parses the entry in `bytes`, for an engine whose state takes `state_size` bytes; `None`:
    /// REFUSED.
    pub fn parse(bytes: &[u8; ENTRY_SIZE], state_size: u64) -> Option<Self> {
        let at = |at| word(bytes, at);
        let mut offsets = [0; RESULTS];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = u16::from_le_bytes([bytes[OFFSETS + 2 * i], bytes[OFFSETS + 2 * i + 1]]);
        }
        let entry = Self {
            dma_offset: at(0x08),
            window_base: at(0x10),
            window_size: at(0x18),
            snapshot_addr: at(0x20),
            regs: at(0x30),
            results: at(0x38),
            offsets,
            cookie: Self::cookie_of(bytes),
        };
        let reserved = [0x68, 0x70, 0x78].iter().any(|o| at(*o) != 0);
        let valid = at(0x00) == 1
            && !reserved
            && entry.snapshot_addr % 64 == 0
            && entry.snapshot_addr < 1 << 48
            && at(0x28) >= state_size
            && entry.regs % 8 == 0
            && entry.results % 8 == 0
            && entry.offsets.into_iter().all(is_result_offset);
        valid.then_some(entry)
    }

    /// Returns the cookie of any entry, valid or not.
    pub fn cookie_of(bytes: &[u8; ENTRY_SIZE]) -> u64 {
        word(bytes, 0x60)
    }

    /// Returns the address of the registers, of any entry.
    pub fn regs_of(bytes: &[u8; ENTRY_SIZE]) -> u64 {
        word(bytes, 0x30)
    }
}

fn is_result_offset(offset: u16) -> bool {
    offset == 0 || offset % 8 == 0 && (APP_FIRST..=APP_LAST).contains(&offset)
}

/// What is written to `ORDER[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Order(pub u64);

/// AT of a run that only ends by itself.
const NEVER: u64 = 0xff_ffff;
/// Bits 39:38, and 35.
const RESERVED: u64 = 0b1100_1000 << 32;

impl Order {
    /// Returns the run that this order follows, mod 2^16.
    pub fn after(self) -> u16 {
        self.0 as u16
    }

    /// Returns NEXT: the index of the context + 1, or 0.
    pub fn next(self) -> u64 {
        self.0 >> 16 & 0x1_ffff
    }

    /// Returns the context that the order names.
    pub fn context(self) -> Option<u64> {
        self.next().checked_sub(1)
    }

    /// VACANT
    pub fn vacant(self) -> bool {
        self.bit(33)
    }

    /// RESUME
    pub fn resume(self) -> bool {
        self.bit(34)
    }

    /// BOUNDARY
    pub fn boundary(self) -> bool {
        self.bit(36)
    }

    /// DROP
    pub fn drops(self) -> bool {
        self.bit(37)
    }

    /// Returns AT in microseconds; `None`: never.
    pub fn at_us(self) -> Option<u64> {
        Some(self.0 >> 40).filter(|at| *at != NEVER)
    }

    /// Returns whether a reserved bit is set.
    pub fn reserved(self) -> bool {
        self.0 & RESERVED != 0
    }

    /// Returns whether this order withdraws the held order.
    pub fn withdraws(self) -> bool {
        self.next() == 0 && self.at_us().is_none()
    }

    fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }
}

/// Why a run ended; the values are those of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // named as in docs/registers.md
pub enum Reason {
    Paused = 1,
    Finish = 2,
    Empty = 3,
    Fault = 4,
    SaveError = 5,
    RestoreError = 6,
    NotRun = 7,
    Dropped = 8,
    Refused = 9,
}

/// The report of the card about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/registers.md
pub struct Record {
    pub cookie: u64,
    pub began: u64,
    pub worked: u64,
    pub stopped: u64,
    pub left: u64,
    pub fault_addr: u64,
    pub next: u32,
    pub fault_info: u32,
    pub run: u32,
    pub reason: Reason,
    pub results_lost: bool,
    pub void: bool,
}

impl Record {
    /// Bytes of a record.
    pub const SIZE: usize = 64;
    /// Offset of word 7, which is written last.
    pub const LAST: usize = 56;

    /// Returns the record as it is in memory.
    pub fn bytes(&self) -> [u8; Self::SIZE] {
        let last = u64::from(self.run)
            | (self.reason as u64) << 32
            | u64::from(self.results_lost) << 40
            | u64::from(self.void) << 41;
        let words = [
            self.cookie,
            self.began,
            self.worked,
            self.stopped,
            self.left,
            self.fault_addr,
            u64::from(self.next) | u64::from(self.fault_info) << 32,
            last,
        ];
        let mut bytes = [0; Self::SIZE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The clock of a card, in nanoseconds.
#[derive(Debug, Default)]
pub struct Clock {
    /// Card's time minus host's time, modulo 2^64.
    ahead: AtomicU64,
}

impl Clock {
    /// Converts a time of the host's clock to the card's time, which is never 0.
    pub fn told(&self, local: u64) -> u64 {
        local
            .wrapping_add(self.ahead.load(Ordering::Acquire))
            .max(1)
    }

    /// Converts a time of the card's clock to the host's time; not in the future, and not 0. A time
    /// before the host's clock began is negative, modulo 2^64.
    pub fn local(&self, told: u64) -> u64 {
        let local = told.wrapping_sub(self.ahead.load(Ordering::Acquire));
        match (local as i64).min(now_ns() as i64) {
            0 => 1,
            local => local as u64,
        }
    }

    /// Returns the host's time `later` nanoseconds after a time that [`Clock::local`] has returned;
    /// 0 if the result is before the host's clock began.
    pub fn after(local: u64, later: u64) -> u64 {
        let due = (local as i64).saturating_add_unsigned(later);
        due.max(0) as u64
    }

    /// Sets the card's clock.
    pub fn set(&self, told: u64) {
        self.ahead
            .store(told.wrapping_sub(now_ns()), Ordering::Release);
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

    fn bytes(words: &[(usize, u64)]) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        let valid = [(0, 1), (0x20, 0x40), (0x28, 4096), (0x30, 8), (0x60, 7)];
        for &(at, word) in valid.iter().chain(words) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_valid_entry() {
        let entry = Entry::parse(&bytes(&[(0x38, 16), (0x40, 0xff8_0030)]), 4096).unwrap();
        assert_eq!((entry.snapshot_addr, entry.cookie), (0x40, 7));
        assert_eq!(entry.offsets[..3], [0x30, 0xff8, 0]);
    }

    #[test]
    fn malformed_entries() {
        for (at, word) in [
            (0, 0),
            (0, 3),
            (0x20, 0x20),
            (0x20, 1 << 48),
            (0x28, 4095),
            (0x30, 4),
            (0x38, 4),
            (0x40, 0x28),
            (0x48, 0x34),
            (0x58, 0x1000 << 48),
            (0x68, 1),
            (0x78, 1 << 63),
        ] {
            assert_eq!(Entry::parse(&bytes(&[(at, word)]), 4096), None, "{at:#x}");
        }
    }

    #[test]
    fn fields() {
        let order = Order(0x1234_5678_9abc_def0);
        assert_eq!((order.after(), order.next()), (0xdef0, 0x9abc));
        assert_eq!(order.at_us(), Some(0x12_3456));
        assert!(!order.vacant() && !order.resume() && order.boundary() && order.drops());
        assert!(order.reserved());
        assert_eq!(Order(u64::MAX).next(), 0x1_ffff);
        assert_eq!(Order(u64::MAX).at_us(), None);
        for bit in [35, 38, 39] {
            assert!(Order(1 << bit).reserved(), "{bit}");
        }
        assert!(!Order(!(0b1100_1000 << 32)).reserved());
        assert!(Order(NEVER << 40).withdraws() && !Order(0).withdraws());
    }

    #[test]
    fn layout() {
        let record = Record {
            cookie: 1,
            began: 2,
            worked: 3,
            stopped: 4,
            left: 5,
            fault_addr: 6,
            next: 7,
            fault_info: 8,
            run: 9,
            reason: Reason::Refused,
            results_lost: true,
            void: true,
        };
        let words: Vec<u64> = record
            .bytes()
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 8 << 32 | 7, 0x309 << 32 | 9]);
    }

    #[test]
    fn a_clock_that_is_set_goes_on_from_there() {
        let clock = Clock::default();
        let hour = 3_600_000_000_000;
        assert_eq!(clock.told(5), 5);
        for told in [now_ns() + hour, 2 * hour, u64::MAX / 2] {
            clock.set(told);
            let now = now_ns();
            assert!(clock.told(now) >= told && clock.told(now) < told + hour);
            assert!(clock.local(told) <= now_ns());
            assert_eq!(clock.told(now) - clock.told(now - 7), 7);
        }
        clock.set(now_ns() + hour);
        assert!(clock.local(u64::MAX / 2) <= now_ns(), "in the future");
    }

    #[test]
    fn times_before_the_hosts_clock_stay_as_they_are() {
        let clock = Clock::default();
        clock.set(u64::MAX / 2);
        for told in [1, 1000, u64::MAX / 2] {
            assert_eq!(clock.told(clock.local(told)), told);
        }
        let began = clock.local(u64::MAX / 2 - now_ns() - 50);
        assert_eq!(Clock::after(began, 20), 0);
        assert!((1..now_ns()).contains(&Clock::after(began, 1_000_000_000)));
        assert_eq!(Clock::after(7, 5), 12);
        assert!(Clock::after(7, u64::MAX) > now_ns());
    }
}
