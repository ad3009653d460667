// SPDX-License-Identifier: GPL-2.0

//! The memory that a card with a relay uses for its switches: the context table, the records of
//! runs, and the registers and results of each context (docs/registers.md, Relay).
//!
//! All of it is memory of the driver, in no window of a slot. Behind an IOMMU, the card can read
//! the table and the registers but not write them.

use crate::{
    compat::coherent_address,
    dma_memory::{DmaMemory, Kind, UnmappedMemory},
    pages::PageRange,
    regs::MAX_SLOTS,
    scheduler::{Duration, LeftReason, RunRecord, SlotId},
    shim::fermata_dma_rmb,
};
use kernel::{
    device::{Bound, Device},
    dma::{Coherent, DataDirection},
    page::PAGE_SIZE,
    prelude::*,
};

/// Bytes of an entry of the context table.
const ENTRY_SIZE: usize = 128;
/// Words of the part of the records that a slot owns.
const SLOT_WORDS: usize = 0x400 / 8;
/// Records that a slot keeps.
pub(crate) const RECORDS: usize = 8;
/// Words of a record.
pub(crate) const RECORD_WORDS: usize = 8;
/// The first word of a record that is not written yet: no context has this cookie.
const NO_COOKIE: u64 = u64::MAX;
/// The word of a record that has the address of a fault.
const FAULT_WORD: usize = 5;
/// The word that counts completion events, in the part of a slot.
const EVENTS_WORD: usize = 0x200 / 8;
/// Result registers of a context.
pub(crate) const RESULTS: usize = 16;

/// An entry of the context table: what the card loads for a context.
pub(crate) struct TableEntry {
    pub(crate) dma_offset: u64,
    pub(crate) window_base: u64,
    pub(crate) window_size: u64,
    pub(crate) snapshot: u64,
    pub(crate) snapshot_size: u64,
    pub(crate) registers: u64,
    pub(crate) results: u64,
    /// Byte offsets of the result registers; 0: none.
    pub(crate) offsets: [u16; RESULTS],
    pub(crate) cookie: u64,
}

impl TableEntry {
    fn to_bytes(&self) -> [u8; ENTRY_SIZE] {
        let mut words = [0_u64; ENTRY_SIZE / 8];
        words[..8].copy_from_slice(&[
            1,
            self.dma_offset,
            self.window_base,
            self.window_size,
            self.snapshot,
            self.snapshot_size,
            self.registers,
            self.results,
        ]);
        for (word, offsets) in words[8..12].iter_mut().zip(self.offsets.chunks(4)) {
            let shifted = offsets.iter().rev();
            *word = shifted.fold(0, |word, &offset| word << 16 | u64::from(offset));
        }
        words[12] = self.cookie;
        let mut bytes = [0; ENTRY_SIZE];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The times of a run in nanoseconds of the card's clock, as in the record; 0: none.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunTimes {
    pub(crate) began: u64,
    pub(crate) worked: u64,
    pub(crate) stopped: u64,
    pub(crate) left: u64,
}

/// A record: the part for the scheduler, and the rest.
pub(crate) struct Record {
    pub(crate) run: RunRecord,
    pub(crate) times: RunTimes,
    pub(crate) cookie: u64,
    /// Device address of the access that stopped the job.
    pub(crate) fault_address: u64,
    /// That access was a write.
    pub(crate) fault_is_write: bool,
    /// The results were not written.
    pub(crate) results_lost: bool,
}

/// The context table and the records of a card. Must be dropped while the device is bound.
pub(crate) struct Relay {
    table: DmaMemory,
    records: Coherent<[u64]>,
}

impl Relay {
    /// Allocates the memory for `contexts` contexts of `device`. Process context. `ENOMEM`.
    pub(crate) fn new(
        device: &Device<Bound>,
        is_translated: bool,
        contexts: usize,
    ) -> Result<KBox<Self>> {
        let kind = match is_translated {
            true => Kind::Scattered,
            false => Kind::Contiguous,
        };
        let length = (contexts * ENTRY_SIZE).next_multiple_of(PAGE_SIZE);
        let table = UnmappedMemory::new(kind, length, None)?;
        let table = table.map_for(device, DataDirection::ToDevice)?;
        let records = Coherent::zeroed_slice(device, MAX_SLOTS * SLOT_WORDS, GFP_KERNEL)?;
        Ok(KBox::new(Self { table, records }, GFP_KERNEL)?)
    }

    /// Returns the address of the context table for the card.
    pub(crate) fn table_address(&self) -> u64 {
        self.table.iova()
    }

    /// Returns the number of entries.
    pub(crate) fn table_length(&self) -> u64 {
        (self.table.length() / ENTRY_SIZE) as u64
    }

    /// Returns the address of the records for the card.
    pub(crate) fn records_address(&self) -> u64 {
        coherent_address(&self.records)
    }

    /// Writes entry number `index`. The card must not be about to read it. Any context.
    pub(crate) fn write_entry(&self, index: usize, entry: &TableEntry) {
        // The table has an entry for each context of the scheduler.
        let _ = self.table.copy_from(index * ENTRY_SIZE, &entry.to_bytes());
    }

    /// Clears all records. No slot may be occupied.
    pub(crate) fn clear_records(&self) {
        for word in 0..self.records.len() {
            self.write_word(word, 0);
        }
        for place in 0..MAX_SLOTS * RECORDS {
            let (slot, record) = (place / RECORDS, place % RECORDS);
            self.write_word(slot * SLOT_WORDS + record * RECORD_WORDS, NO_COOKIE);
        }
    }

    /// Clears the record of run number `run` of a slot, so that a later record in its place is
    /// valid only once its first word has been written, too. The card must not be about to write
    /// there. Any context.
    pub(crate) fn clear_record(&self, slot: SlotId, run: u32) {
        let first = slot.index() * SLOT_WORDS + run as usize % RECORDS * RECORD_WORDS;
        self.write_word(first, NO_COOKIE);
    }

    /// Writes word number `word` of all records.
    fn write_word(&self, word: usize, value: u64) {
        let place = self.records.as_ptr().cast::<u64>().cast_mut();
        // SAFETY: `word` is within the memory. The card writes there, too, but not now.
        unsafe { place.add(word).write_volatile(value.to_le()) };
    }

    /// Reads word number `word` of the part of a slot.
    fn word(&self, slot: SlotId, word: usize) -> u64 {
        let word = slot.index() * SLOT_WORDS + word % SLOT_WORDS;
        // SAFETY: `word` is within the memory. The card may write there at any time, a whole word
        // at a time, so the read is volatile.
        u64::from_le(unsafe {
            self.records
                .as_ptr()
                .cast::<u64>()
                .add(word)
                .read_volatile()
        })
    }

    /// Returns how many completion events the engine of a slot has counted.
    pub(crate) fn completion_events(&self, slot: SlotId) -> u64 {
        self.word(slot, EVENTS_WORD)
    }

    /// Copies the records of a slot as they are, but for the addresses of faults. Any context.
    pub(crate) fn copy_records(&self, slot: SlotId, records: &mut [[u64; RECORD_WORDS]; RECORDS]) {
        for (n, word) in records.as_flattened_mut().iter_mut().enumerate() {
            *word = match n % RECORD_WORDS {
                FAULT_WORD => 0,
                _ => self.word(slot, n),
            };
        }
    }

    /// Returns the record of run number `run` of a slot, if the card has written one that is
    /// valid. Any context.
    pub(crate) fn record(&self, slot: SlotId, run: u32) -> Option<Record> {
        let first = run as usize % RECORDS * RECORD_WORDS;
        let last = self.word(slot, first + 7);
        // CAST: the low half.
        if last as u32 != run {
            return None;
        }
        let reason = reason(last >> 32 & 0xff)?;
        // The last word is written after all others.
        fermata_dma_rmb();
        let word = |n| self.word(slot, first + n);
        let (began, worked, stopped, left) = (word(1), word(2), word(3), word(4));
        let since = |from: u64, to: u64| Duration::from_ns(to.saturating_sub(from));
        let next = word(6);
        let cookie = word(0);
        if cookie == NO_COOKIE {
            return None;
        }
        Some(Record {
            run: RunRecord {
                run,
                reason,
                span: since(began, left),
                load: match worked {
                    0 => Duration::ZERO,
                    worked => since(began, worked),
                },
                save: match stopped {
                    0 => Duration::ZERO,
                    stopped => since(stopped, left),
                },
                // CAST: the low half, which is 0 if no context follows.
                next: (next as u32).checked_sub(1).map(|index| index as usize),
            },
            times: RunTimes {
                began,
                worked,
                stopped,
                left,
            },
            cookie,
            fault_address: word(FAULT_WORD),
            fault_is_write: next >> 32 & 2 != 0,
            // A run that did not work has written no results.
            results_lost: worked == 0 || last >> 40 & 1 != 0,
        })
    }
}

fn reason(code: u64) -> Option<LeftReason> {
    Some(match code {
        1 => LeftReason::Paused,
        2 => LeftReason::Finished,
        3 => LeftReason::Empty,
        4 => LeftReason::Fault,
        5 | 6 => LeftReason::SnapshotError,
        7 => LeftReason::NotRun,
        8 => LeftReason::Dropped,
        9 => LeftReason::Refused,
        _ => return None,
    })
}

/// The registers and the results of a context in memory. Must be dropped while the device is bound,
/// after the card's last access.
pub(crate) struct ImageMemory {
    registers: DmaMemory,
    results: DmaMemory,
}

/// The memory of an [`ImageMemory`], which the card cannot reach yet.
pub(crate) struct UnmappedImage {
    registers: UnmappedMemory,
    results: UnmappedMemory,
}

impl UnmappedImage {
    /// Allocates the memory. May sleep. `ENOMEM`, `EINTR`.
    pub(crate) fn new() -> Result<Self> {
        let page = || UnmappedMemory::new(Kind::Scattered, PAGE_SIZE, None);
        Ok(Self {
            registers: page()?,
            results: page()?,
        })
    }

    /// Maps the memory for `device`. `ENOMEM`, `EOPNOTSUPP`.
    pub(crate) fn map(self, device: &Device<Bound>) -> Result<ImageMemory> {
        Ok(ImageMemory {
            registers: self.registers.map_for(device, DataDirection::ToDevice)?,
            results: self.results.map_for(device, DataDirection::FromDevice)?,
        })
    }
}

impl ImageMemory {
    /// Returns the driver's side of the memory.
    pub(crate) fn pages(&self) -> ImagePages {
        ImagePages {
            registers: self.registers.pages().clone(),
            registers_address: self.registers.iova(),
            results: self.results.pages().clone(),
            results_address: self.results.iova(),
        }
    }
}

/// The driver's side of the registers and the results of a context in memory.
pub(crate) struct ImagePages {
    registers: PageRange,
    registers_address: u64,
    results: PageRange,
    results_address: u64,
}

impl ImagePages {
    /// Returns the addresses of registers and results for the card.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.registers_address, self.results_address)
    }

    /// Writes the register at byte `offset`, below the size of a slot's page. The card must not be
    /// about to read it. Any context.
    pub(crate) fn write_register(&self, offset: u32, value: u64) {
        let bytes = value.to_le_bytes();
        if let Some(page) = self.registers.get(0) {
            // SAFETY: `bytes` may be read. The page is not part of them, and no reference to its
            // bytes is made.
            let _ = unsafe { page.write_raw(bytes.as_ptr(), offset as usize, bytes.len()) };
        }
    }

    /// Reads the results, after their run has left a record. Any context.
    pub(crate) fn results(&self) -> [u64; RESULTS] {
        let mut results = [0; RESULTS];
        if let Some(page) = self.results.get(0) {
            let place = results.as_mut_ptr().cast::<u8>();
            // SAFETY: `results` may be written, with bytes of any value. If a broken card writes
            // to the page meanwhile, the values are torn.
            let _ = unsafe { page.read_raw(place, 0, size_of_val(&results)) };
        }
        results.map(u64::from_le)
    }
}
