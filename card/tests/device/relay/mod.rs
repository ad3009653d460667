// SPDX-License-Identifier: GPL-2.0-or-later
//! Orders: a client that uses the relay interface as docs/registers.md defines it, and what it
//! sees.

mod orders;
mod records;
mod timing;
mod verdicts;

use crate::common::*;
use fermata_card::config::{IrqKind, Profile};
use fermata_card::dma::Remote;
use fermata_card::engine::EngineKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const TABLE: u64 = 0x1000;
pub const RECORDS: u64 = 0x2000;
pub const RESULTS: u64 = 0x4000;
pub const REGS: u64 = 0x1_0000;
pub const ARENA: u64 = 0x10_0000;
pub const SNAP: u64 = 0x40_0000;
pub const COUNT: u64 = 24;

pub const ORDER: u64 = 0x300;
pub const RELAY: u64 = 0x340;

pub const NEVER: u64 = 0xff_ffff << 40;
pub const VACANT: u64 = 1 << 33;
pub const RESUME: u64 = 1 << 34;
pub const BOUNDARY: u64 = 1 << 36;
pub const DROP: u64 = 1 << 37;

pub const R_PAUSED: u64 = 1;
pub const R_FINISH: u64 = 2;
pub const R_EMPTY: u64 = 3;
pub const R_FAULT: u64 = 4;
pub const R_SAVE_ERROR: u64 = 5;
pub const R_RESTORE_ERROR: u64 = 6;
pub const R_NOT_RUN: u64 = 7;
pub const R_DROPPED: u64 = 8;
pub const R_REFUSED: u64 = 9;

/// An IOVA that is not mapped.
pub const UNMAPPED: u64 = 1 << 40;

/// A client that answers for its own memory, which is everything unmapped, once `open` is set.
#[derive(Default)]
pub struct Client {
    pub asked: AtomicBool,
    pub open: AtomicBool,
}

impl Client {
    /// Takes the place of a card's client.
    pub fn of(card: &Driver) -> Arc<Self> {
        let client = Arc::new(Self::default());
        let memory = &card.rig.card().host().memory;
        memory.set_remote(Some(client.clone()));
        client
    }

    /// Waits until the card is waiting for an answer.
    pub fn wait_asked(&self) {
        let begin = Instant::now();
        while !self.asked.load(Ordering::Acquire) {
            assert!(begin.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn answer(&self, give_up: &AtomicBool) -> bool {
        self.asked.store(true, Ordering::Release);
        loop {
            if self.open.load(Ordering::Acquire) {
                return true;
            }
            if give_up.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Remote for Client {
    fn read(&self, _iova: u64, _buf: &mut [u8], give_up: &AtomicBool) -> bool {
        self.answer(give_up)
    }

    fn write(&self, _iova: u64, _data: &[u8], give_up: &AtomicBool) -> bool {
        self.answer(give_up)
    }
}

/// Returns AT for an order.
pub fn at(us: u64) -> u64 {
    us << 40
}

/// Returns NEXT for the context with this index.
pub fn next(context: u64) -> u64 {
    (context + 1) << 16
}

/// A record as it is in memory.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub cookie: u64,
    pub began: u64,
    pub worked: u64,
    pub stopped: u64,
    pub left: u64,
    pub fault_addr: u64,
    pub next: u64,
    pub fault_info: u64,
    pub run: u64,
    pub reason: u64,
    pub lost: bool,
    pub void: bool,
}

impl Record {
    pub fn work_us(&self) -> u64 {
        (self.stopped - self.worked) / 1000
    }
}

/// A driver that uses orders on all slots of a card.
pub struct Driver {
    pub rig: Rig,
}

pub fn driver(set: &[&'static str]) -> Driver {
    use EngineKind::{Linkedlist, Membench, Sha256};
    driver_of(vec![Linkedlist, Membench, Sha256], set)
}

pub fn driver_of(engines: Vec<EngineKind>, set: &[&'static str]) -> Driver {
    let slots = engines.len() as u64;
    let mut rig = Rig::new(Options {
        profile: Profile::Relay,
        irq: IrqKind::Msix,
        engines,
        set: set.to_vec(),
    });
    enable(&mut rig, slots);
    Driver { rig }
}

/// Sets up the tables, and switches RELAY on in the slots of a card.
pub fn enable(rig: &mut Rig, slots: u64) {
    rig.w(0x120, TABLE);
    rig.w(0x128, COUNT);
    rig.w(0x130, RECORDS);
    (0..slots).for_each(|slot| rig.w(RELAY + 8 * slot, 1));
}

impl Driver {
    /// Writes an entry of the table whose program may touch all memory.
    pub fn context(&self, context: u64, regs: &[(u64, u64)]) {
        let entry = TABLE + 128 * context;
        self.rig.put(entry, &[0; 128]);
        self.rig.put(REGS + 0x1000 * context, &[0; 4096]);
        self.field(context, 0x18, RAM);
        self.field(context, 0x20, SNAP + 0x1_0000 * context);
        self.field(context, 0x28, 0x1_0000);
        self.field(context, 0x30, REGS + 0x1000 * context);
        self.field(context, 0x38, RESULTS + 128 * context);
        self.field(context, 0x60, 0xc00 + context);
        self.field(context, 0, 1);
        for &(off, val) in regs {
            self.reg(context, off, val);
        }
    }

    pub fn field(&self, context: u64, off: u64, val: u64) {
        self.rig.put64(TABLE + 128 * context + off, val);
    }

    pub fn reg(&self, context: u64, off: u64, val: u64) {
        self.rig.put64(REGS + 0x1000 * context + off, val);
    }

    /// Sets up a membench job of `count` accesses, of the tenant 0xa0 + `context`.
    pub fn membench(&self, context: u64, count: u64) {
        let regs = [
            (0x30, ARENA + 0x1_0000 * context),
            (0x38, 0x1000),
            (0x40, count),
            (0x48, context),
            (0x50, 0xa0 + context),
            (0x58, 1),
        ];
        self.context(context, &regs);
        let offsets = 0x30 | 0x48 << 16 | 0x50 << 48;
        self.field(context, 0x40, offsets);
    }

    /// Sets up a walk of linkedlist that does not end by itself; there is a boundary every 1,024
    /// nodes.
    pub fn endless_list(&self, context: u64) {
        let head = self.rig.endless(ARENA + 0x1_0000 * context);
        self.context(context, &[(0x30, head), (0x50, 0xa0 + context)]);
        self.field(context, 0x40, 0x38);
    }

    /// Sets up a blockmix job of sixteen blocks, each of which takes 65 ms at a speed of 1.
    pub fn blockmix(&self, context: u64) {
        let regs = [
            (0x30, ARENA),
            (0x38, 0x10_0000),
            (0x40, 0x1_0000),
            (0x50, 0xa0 + context),
        ];
        self.context(context, &regs);
    }

    /// Sets up a membench job that does not end by itself.
    pub fn endless(&self, context: u64) {
        self.membench(context, 1 << 40);
    }

    pub fn order(&mut self, slot: u64, word: u64) {
        self.rig.w(ORDER + 8 * slot, word);
    }

    /// Starts a context on a vacant slot.
    pub fn begin(&mut self, slot: u64, after: u64, context: u64) {
        self.order(slot, after | next(context) | VACANT | NEVER);
    }

    /// Returns RUN, from a read of the status.
    pub fn run(&mut self, slot: u64) -> u64 {
        self.rig.sr(slot, CTL) >> 32
    }

    pub fn word7(&self, slot: u64, run: u64) -> u64 {
        self.rig.get64(RECORDS + 0x400 * slot + 64 * (run % 8) + 56)
    }

    pub fn has_record(&self, slot: u64, run: u64) -> bool {
        let last = self.word7(slot, run);
        last & 0xffff_ffff == run && last >> 32 & 0xff != 0
    }

    /// Returns the record of a run, which must be in memory.
    #[track_caller]
    pub fn record(&self, slot: u64, run: u64) -> Record {
        assert!(self.has_record(slot, run), "no record of run {run}");
        let at = RECORDS + 0x400 * slot + 64 * (run % 8);
        let word = |i: u64| self.rig.get64(at + 8 * i);
        Record {
            cookie: word(0),
            began: word(1),
            worked: word(2),
            stopped: word(3),
            left: word(4),
            fault_addr: word(5),
            next: word(6) & 0xffff_ffff,
            fault_info: word(6) >> 32,
            run: word(7) & 0xffff_ffff,
            reason: word(7) >> 32 & 0xff,
            lost: word(7) >> 40 & 1 != 0,
            void: word(7) >> 41 & 1 != 0,
        }
    }

    /// Waits for the record of a run, without reading a register.
    #[track_caller]
    pub fn wait(&self, slot: u64, run: u64) -> Record {
        let begin = Instant::now();
        while !self.has_record(slot, run) {
            assert!(begin.elapsed() < LIMIT, "no record of run {run}");
            std::thread::sleep(Duration::from_micros(50));
        }
        self.record(slot, run)
    }

    /// Waits until the present run of a slot works.
    pub fn wait_working(&self, slot: u64) {
        self.rig.wait_running(slot);
    }

    pub fn result(&self, context: u64, word: u64) -> u64 {
        self.rig.get64(RESULTS + 128 * context + 8 * word)
    }

    #[track_caller]
    pub fn held(&self, slot: u64, word: u64) {
        assert_eq!(self.rig.table(&format!("state slot={slot}"))["held"], word);
    }

    /// Checks that a driver was free of violations, both at run time and in the log.
    #[track_caller]
    pub fn clean(self) {
        self.rig.clean();
        let (online, offline) = self.rig.replay();
        assert_eq!((online.as_str(), offline.as_str()), ("total=0", "total=0"));
    }

    /// Checks that exactly one kind was seen, at run time and by the replay.
    #[track_caller]
    pub fn saw(self, kind: &str, n: u64) {
        self.rig.saw(kind, n);
        let (online, offline) = self.rig.replay();
        assert_eq!(online, offline);
    }
}

impl Driver {
    pub fn wait_restoring(&self, slot: u64) {
        self.wait_phase(slot, "restoring");
    }

    pub fn wait_phase(&self, slot: u64, phase: &str) {
        let begin = Instant::now();
        let want = format!("phase={phase}");
        while !self.rig.ask(&format!("state slot={slot}")).contains(&want) {
            assert!(begin.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
