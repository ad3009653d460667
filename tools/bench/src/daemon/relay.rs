// SPDX-License-Identifier: GPL-2.0-or-later
//! The relay of slot 0 (docs/card.md, Relay): contexts and records in memory that the card reads
//! and writes, and orders.

use super::device::{Device, JobAddresses};
use super::protocol::REGISTERS;
use super::schedule::ClientId;
use crate::mapping::Mapping;
use anyhow::{ensure, Result};
use fermata_card::regs::APP_FIRST;
use fermata_card::relay::{self, ENTRY_SIZE};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

/// Registers (docs/card.md, Relay registers).
const CTX_TABLE: usize = 0x120;
const CTX_COUNT: usize = 0x128;
const RECORDS: usize = 0x130;
const ORDER: usize = 0x300;
const RELAY: usize = 0x340;
/// Bits of an order.
const NEXT_SHIFT: u32 = 16;
const VACANT: u64 = 1 << 33;
const RESUME: u64 = 1 << 34;
const BACK: u64 = 1 << 35;
const AT_SHIFT: u32 = 40;
/// The run ends by itself only.
const NEVER_US: u64 = 0xff_ffff;

/// Records of a slot.
const SLOT_RECORDS: u32 = 8;

/// REASON in a record.
const PAUSED: u64 = relay::Reason::Paused as u64;
const FINISH: u64 = relay::Reason::Finish as u64;
const NOT_RUN: u64 = relay::Reason::NotRun as u64;

/// Number of clients that there is room for.
const CLIENTS: usize = 64;
const PAGE: usize = 4096;
/// The memory: a table, the records, and a page of registers for each client.
const TABLE_AT: usize = 0;
const RECORDS_AT: usize = CLIENTS * ENTRY_SIZE;
const REGISTERS_AT: usize = RECORDS_AT + 2 * PAGE;
const BYTES: usize = REGISTERS_AT + CLIENTS * PAGE;
/// I/O virtual address of the memory, below the address spaces of the clients.
const IOVA: u64 = 1 << 30;

/// What follows the run on the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// The client whose job is next.
    pub(super) client: ClientId,
    /// The job is resumed from its snapshot.
    pub(super) resume: bool,
}

/// An order (docs/card.md, Orders).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The run that the order follows.
    pub(super) after: u32,
    /// Microseconds for which that run may work; `None`: it ends by itself.
    pub(super) at_us: Option<u32>,
    pub(super) next: Option<Next>,
    /// If that run is saved, its job goes on after the next one.
    pub(super) back: bool,
}

impl Order {
    fn word(self) -> u64 {
        let at = self.at_us.map_or(NEVER_US, u64::from) << AT_SHIFT;
        let next = self.next.map_or(0, |next| {
            (next.client as u64 + 1) << NEXT_SHIFT | u64::from(next.resume) * RESUME
        });
        at | next | u64::from(self.back) * BACK | u64::from(self.after as u16)
    }
}

/// What the card tells of a run (docs/card.md, Records).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) reason: Reason,
    /// The client whose job the card has gone on with.
    pub(super) next: Option<ClientId>,
    /// The card goes on with the job of this run after that.
    pub(super) back: bool,
    /// How long the job worked.
    pub(super) worked_us: u32,
    /// How long load, restore and save took.
    pub(super) switch_us: u32,
}

/// Why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Paused,
    Finished,
    /// Its restore was aborted; its snapshot is as it was.
    NotRun,
    /// The job failed; the number is REASON.
    Failed(u64),
}

/// The slot, and the memory by which the card is told and tells.
pub(super) struct Relay {
    pub(super) device: Device,
    memory: Mapping,
}

impl Relay {
    /// Switches the relay of the slot on. The slot was not used since the card was reset.
    pub(super) fn new(device: Device) -> Result<Self> {
        let file = memfd_create("relay", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES as u64)?;
        let memory = Mapping::new(&file, BYTES, 0)?;
        device.map(IOVA, &memory)?;
        device.write(CTX_TABLE, IOVA + TABLE_AT as u64);
        device.write(CTX_COUNT, CLIENTS as u64);
        device.write(RECORDS, IOVA + RECORDS_AT as u64);
        device.write(RELAY, 1);
        Ok(Self { device, memory })
    }

    /// Writes the entry of a client.
    pub(super) fn attach(&self, client: ClientId, addresses: JobAddresses) -> Result<()> {
        ensure!(client < CLIENTS, "more than {CLIENTS} clients");
        let registers = IOVA + (REGISTERS_AT + client * PAGE) as u64;
        let entry = [
            1,
            addresses.offset,
            addresses.window.0,
            addresses.window.1,
            addresses.snapshot,
            self.device.snapshot_bytes() as u64,
            registers,
        ];
        for (number, word) in entry.into_iter().enumerate() {
            self.memory
                .write(TABLE_AT + client * ENTRY_SIZE + 8 * number, word);
        }
        Ok(())
    }

    /// Writes the registers with which the next job of a client begins.
    pub(super) fn load(&self, client: ClientId, registers: &[u64; REGISTERS]) {
        let page = REGISTERS_AT + client * PAGE;
        for (number, value) in registers.iter().enumerate() {
            self.memory
                .write(page + usize::from(APP_FIRST) + 8 * number, *value);
        }
    }

    /// Posts an order for the run on the slot.
    pub(super) fn order(&self, order: Order) {
        self.device.write(ORDER, order.word());
    }

    /// Starts a job on the slot, which run `after` has left vacant.
    pub(super) fn start(&self, after: u32, next: Next) {
        let order = Order {
            after,
            at_us: Some(0),
            next: Some(next),
            back: false,
        };
        self.device.write(ORDER, order.word() | VACANT);
    }

    /// Returns the record of a run, if the run has ended.
    pub(super) fn record(&self, run: u32) -> Option<Record> {
        let at = RECORDS_AT + relay::Record::SIZE * (run % SLOT_RECORDS) as usize;
        let last = self.memory.read(at + relay::Record::LAST);
        let reason = match last >> 32 & 0xff {
            0 => return None,
            PAUSED => Reason::Paused,
            FINISH => Reason::Finished,
            NOT_RUN => Reason::NotRun,
            other => Reason::Failed(other),
        };
        if last as u32 != run {
            return None;
        }
        let next = self.memory.read(at + 0x30) as u32;
        let next = next.checked_sub(1).map(|client| client as ClientId);
        let back = last >> 42 & 1 != 0;
        let [began, worked, stopped, left] =
            [0x08, 0x10, 0x18, 0x20].map(|offset| self.memory.read(at + offset));
        let did_work = worked != 0;
        let us = |ns: u64| if did_work { (ns / 1000) as u32 } else { 0 };
        Some(Record {
            reason,
            next,
            back,
            worked_us: us(stopped.saturating_sub(worked)),
            switch_us: us(worked.saturating_sub(began) + left.saturating_sub(stopped)),
        })
    }
}

#[cfg(test)]
impl Relay {
    /// Writes the record of a run, as the card does.
    pub(super) fn write_record(&self, record: &relay::Record) {
        let at = RECORDS_AT + relay::Record::SIZE * (record.run % SLOT_RECORDS) as usize;
        for (number, word) in record.bytes().chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            self.memory.write(at + 8 * number, word);
        }
    }

    /// Returns the order that was written last.
    pub(super) fn last_order(&self) -> relay::Order {
        relay::Order(self.device.written(ORDER))
    }
}

#[cfg(test)]
mod tests {
    use super::{relay, Next, Order};

    #[test]
    fn orders_are_as_the_card_reads_them() {
        let next = Next {
            client: 4,
            resume: true,
        };
        let order = |at_us, next| Order {
            after: 0x1_0007,
            at_us,
            next,
            back: next.is_some(),
        };
        let word = relay::Order(order(Some(1000), Some(next)).word());
        assert_eq!((word.after(), word.context()), (7, Some(4)));
        assert_eq!((word.at_us(), word.resume()), (Some(1000), true));
        assert!(word.back() && !word.vacant() && !word.reserved());
        assert!(relay::Order(order(None, None).word()).withdraws());
    }
}
