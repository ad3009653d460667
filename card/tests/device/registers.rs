// SPDX-License-Identifier: GPL-2.0-or-later
//! The register semantics of docs/registers.md, line by line.

use crate::common::*;
use fermata_card::config::{IrqKind, Profile};
use std::time::Duration;

const LIST: u64 = 0x10_0000;
const BUF: u64 = 0x20_0000;
const OUT: u64 = 0x8000;
const SNAP: u64 = 0x9000;
/// The number of nodes for which a slow card needs 200 ms.
const LONG: u64 = 200_000;

fn slow(profile: Profile) -> Rig {
    Rig::with(profile, &["slot=all,speed=1"])
}

/// Starts a walk over `n` nodes on slot 0. Returns the expected result.
pub fn walk(rig: &mut Rig, n: u64, tag: u64) -> (u64, u64) {
    let (head, count, checksum) = rig.list(LIST, n, 3);
    for (off, val) in [(0x30, head), (0x40, 3), (0x48, OUT), (TAG, tag)] {
        rig.sw(0, off, val);
    }
    rig.snapshot(0, SNAP);
    rig.sw(0, CTL, START_NEW);
    (count, checksum)
}

#[test]
fn manager_page() {
    let mut rig = irq();
    assert_eq!(rig.r(0x00), 1 << 60 | 1 << 40);
    assert_eq!(rig.r(0x08), 0x4d55_535f_4d47_5200);
    assert_eq!(rig.r(0x10), 0x4d47_525f_4f50_5449);
    assert_eq!(rig.r(0x18), 0);
    assert_eq!(rig.r(0x20), 3);
    assert_eq!(&rig.r(0x100).to_le_bytes(), b"FRMATA_1");
    assert_eq!(rig.r(0x108), 1);
    assert_eq!(rig.r(0x110), 0xf);
    assert_eq!((rig.r(0x280), rig.r(0x288), rig.r(0x290)), (3, 0, 2));
    for off in [0x30, 0x40, 0x180, 0x190, 0x1c0, 0x1d0] {
        rig.w(off, 0x1234_5678_9abc_def0);
        assert_eq!(rig.r(off), 0x1234_5678_9abc_def0);
    }
    rig.w(0x18, 5);
    assert_eq!(rig.r(0x18), 5);
    rig.w(0x18, !0);
    assert_eq!(rig.r(0x18), 7);
    rig.clean();
}

#[test]
fn a_card_without_interrupts_says_so() {
    let mut polled = Rig::new(Options {
        irq: IrqKind::None,
        ..Options::default()
    });
    assert_eq!(polled.r(0x110), 0xe);
}

#[test]
fn base_manager_page() {
    let mut rig = base();
    assert_eq!(rig.r(0x00), 1 << 60 | 1 << 40);
    assert_eq!(rig.r(0x08), 0xa0a0_13a4_2113_9e69);
    assert_eq!(rig.r(0x10), 0xd1d3_83aa_ca4c_4c60);
    assert_eq!(rig.r(0x20), 3);
    for off in [0x100, 0x108, 0x110, 0x118, 0x280, 0x288] {
        assert_eq!(rig.r(off), u64::MAX, "{off:#x}");
    }
    rig.w(0x18, 0xff);
    assert_eq!(rig.r(0x18), 0xff, "all bits are kept");
    rig.w(0x18, 0);
    rig.clean();
    rig.w(0x180, 7);
    assert_eq!((rig.r(0x180), rig.r(0x4018)), (u64::MAX, u64::MAX));
    rig.saw("bad_access", 3);
}

#[test]
fn slot_page() {
    let mut rig = irq();
    let ids = [
        (0x4c49_4e4b_4544_4c49, 0x5354_0000_0000_0001),
        (0x4d45_4d42_454e_4348, 0x0000_0000_0000_0002),
        (0x5348_4132_3536_0000, 0x0000_0000_0000_0003),
    ];
    for (slot, (high, low)) in ids.into_iter().enumerate() {
        let slot = slot as u64;
        assert_eq!(rig.sr(slot, 0), 1 << 60 | 1 << 40);
        assert_eq!((rig.sr(slot, 0x10), rig.sr(slot, 8)), (high, low));
        assert_eq!((rig.sr(slot, CTL), rig.sr(slot, 0x20)), (IDLE, 1));
        rig.sw(slot, SNAPSHOT, 0x55);
        assert_eq!(rig.sr(slot, SNAPSHOT), 0);
        rig.sw(slot, 0x800, 7);
        assert_eq!(rig.sr(slot, 0x800), 0);
    }
    rig.clean();
}

#[test]
fn only_aligned_64_bit_accesses_count() {
    let mut rig = irq();
    rig.client.region_write(BAR0, 0x30, &[1; 4]).unwrap();
    rig.client.region_write(BAR0, 0x1030, &[1; 4]).unwrap();
    rig.client.region_write(BAR0, 0x34, &[1; 8]).unwrap();
    let mut small = [9; 4];
    rig.client.region_read(BAR0, 0x20, &mut small).unwrap();
    assert_eq!(small, [0; 4]);
    rig.saw("bad_access", 4);
    assert_eq!(rig.r(0x30), 0);
    rig.ask("violations clear");
    assert_eq!(rig.r(0x28), 0);
    assert_eq!(rig.r(0x4018), 0, "no such slot");
    rig.w(0x20, 9);
    assert_eq!(rig.r(0x20), 3);
    rig.w(0x1018, 3);
    rig.saw("bad_access", 4);
    let mut huge = vec![1; 4096];
    rig.client.region_read(BAR0, 0xfff8, &mut huge).unwrap();
    assert!(huge.iter().all(|b| *b == 0));
}

#[test]
fn registers_alias_and_some_are_kept() {
    let mut rig = irq();
    rig.open(0);
    let (head, count, checksum) = rig.list(LIST, 10, 3);
    for (off, val) in [
        (0x30, head),
        (0x38, 4),
        (0x40, 3),
        (0x48, OUT),
        (TAG, 0xabc),
    ] {
        rig.sw(0, off, val);
        assert_eq!(
            rig.sr(0, off),
            if off == TAG { val } else { 0 },
            "reads are not writes"
        );
    }
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.sr(0, 0x38), rig.sr(0, 0x48)), (4, 4), "LIMIT");
    assert_ne!(rig.sr(0, 0x30), 0);
    // START does not change the written values.
    rig.sw(0, 0x38, 0);
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.sr(0, 0x38), rig.sr(0, 0x40)), (count, checksum));
    rig.reset(0);
    for off in [0x30, 0x38, 0x40, 0x48] {
        assert_eq!(rig.sr(0, off), 0);
    }
    assert_eq!(rig.sr(0, TAG), 0xabc);
    // Everything else was cleared: a walk of no list.
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.sr(0, 0x38), 0);
    rig.clean();
}

#[test]
fn membench_keeps_its_mode() {
    let mut rig = irq();
    rig.open(1);
    rig.sw(1, 0x58, 1);
    rig.sw(1, 0x48, 5);
    rig.reset(1);
    for (off, val) in [(0x30, BUF), (0x38, 64), (0x40, 1)] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    assert_eq!(rig.wait_rest(1), FINISH);
    assert_eq!(
        rig.get64(BUF),
        splitmix64(0),
        "still writes, with the seed cleared"
    );
}

#[test]
fn pause_is_a_pulse() {
    let mut rig = irq();
    rig.open(0);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.status(0), IDLE);
    let want = walk(&mut rig, 10, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.status(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    let counters = rig.table("counters slot=0");
    assert_eq!(
        (counters["pauses_written"], counters["pauses_dropped"]),
        (2, 2)
    );
    // Not during a restore.
    let mut rig = slow(Profile::Irq);
    rig.open(0);
    walk(&mut rig, LONG, 1);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    rig.reset(0);
    let (head, ..) = rig.list(LIST, LONG, 3);
    rig.sw(0, 0x30, head);
    rig.ask("set slot=0 restore_us=1000000 speed=0");
    rig.sw(0, CTL, START_RESUME);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), FINISH);
    rig.counted(0, "pauses_dropped", 1);
    rig.clean();
}

#[test]
fn terminal_states_stay() {
    let mut rig = slow(Profile::Irq);
    rig.open(0);
    let want = walk(&mut rig, LONG, 1);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(rig.status(0), PAUSED);
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    rig.sw(0, 0x48, OUT);
    rig.sw(0, CTL, START_RESUME);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.status(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    rig.clean();
}

#[test]
fn start_count_tells_starts_apart() {
    let mut rig = irq();
    rig.open(0);
    for n in 1..4 {
        walk(&mut rig, 5, 1);
        rig.wait_rest(0);
        assert_eq!(rig.sr(0, CTL), n << 32 | FINISH);
        rig.reset(0);
        assert_eq!(rig.sr(0, CTL), n << 32 | IDLE);
    }
    rig.w(0x18, 1);
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.sr(0, CTL), 3 << 32, "in reset: refused");
    rig.saw("start_busy", 1);
    let mut rig = base();
    walk(&mut rig, 5, 1);
    rig.wait_rest(0);
    assert_eq!(rig.sr(0, CTL), FINISH);
}

#[test]
fn start_is_refused_while_busy() {
    let mut rig = slow(Profile::Irq);
    rig.open(0);
    let head = rig.endless(LIST);
    rig.sw(0, 0x30, head);
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.sr(0, CTL), 1 << 32 | RUNNING, "at once");
    rig.sw(0, CTL, START_NEW);
    rig.sw(0, CTL, START_RESUME);
    rig.put64(head, 0);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.sr(0, CTL), 1 << 32 | FINISH);
    rig.saw("start_busy", 2);
}

#[test]
fn linkedlist_adds_on_resume_without_reset() {
    let mut rig = slow(Profile::Irq);
    rig.open(0);
    let (count, _) = walk(&mut rig, LONG, 1);
    std::thread::sleep(Duration::from_millis(1));
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    let stood = rig.sr(0, 0x38);
    rig.ask("set slot=0 speed=0");
    rig.sw(0, CTL, START_RESUME);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.sr(0, 0x38), count + stood);
    rig.saw("resume_unreset", 1);
}

#[test]
fn reset_stops_at_once() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut rig = slow(profile);
        if profile == Profile::Irq {
            rig.open(0);
        }
        walk(&mut rig, LONG, 1);
        rig.w(0x18, 1);
        if profile == Profile::Irq {
            assert_eq!(rig.status(0), IDLE);
        }
        rig.w(0x18, 0);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(rig.status(0), IDLE);
        assert_eq!(rig.sr(0, 0x38), 0);
        assert_eq!(rig.irqs(0), 0);
        rig.clean();
    }
}

/// As Optimus's engines: only the manager answers.
#[test]
fn a_base_slot_in_reset_answers_nothing_and_takes_nothing() {
    let mut rig = base();
    rig.sw(1, 0x58, 1);
    rig.w(0x18, 2);
    assert_eq!((rig.r(0x18), rig.r(0x38)), (2, 0), "the manager answers");
    assert_eq!(rig.sr(0, CTL), IDLE, "other slots answer");
    rig.clean();
    for off in [0, 8, CTL, 0x20, TAG, 0xff8] {
        assert_eq!(rig.sr(1, off), u64::MAX, "{off:#x}");
    }
    rig.saw("unanswered_read", 6);
    rig.ask("violations clear");
    // MODE, which a reset keeps, keeps what was written before.
    rig.sw(1, 0x58, 0);
    rig.sw(1, TAG, 7);
    rig.w(0x18, 0);
    assert_eq!(rig.sr(1, TAG), 0);
    std::thread::sleep(Duration::from_micros(600));
    for (off, val) in [(0x30, BUF), (0x38, 64), (0x40, 1)] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    assert_eq!(rig.wait_rest(1), FINISH);
    rig.reset_and_settle(1);
    rig.status(1);
    assert_eq!(rig.get64(BUF), splitmix64(0), "still writes");
    rig.clean();
}

#[test]
fn some_base_offsets_never_answer() {
    let mut rig = base();
    assert_eq!(rig.sr(1, 0xf78), 0);
    rig.counted(1, "reads_unanswered", 0);
    assert_eq!((rig.sr(1, 0xf80), rig.sr(1, 0xff8)), (u64::MAX, u64::MAX));
    rig.counted(1, "reads_unanswered", 2);
    assert_eq!(irq().sr(1, 0xff8), 0);
    rig.clean();
}

/// As Optimus's engines; on an irq card a write is for the next START.
#[test]
fn base_registers_act_while_a_job_runs() {
    for profile in [Profile::Base, Profile::Irq] {
        let mut rig = slow(profile);
        if profile == Profile::Irq {
            rig.open(0);
        }
        walk(&mut rig, LONG, 1);
        rig.sw(0, 0x48, OUT + 0x100);
        rig.ask("set slot=0 speed=0");
        assert_eq!(rig.wait_rest(0), FINISH);
        rig.reset_and_settle(0);
        rig.status(0);
        let at = if profile == Profile::Base { 0x100 } else { 0 };
        assert_eq!(
            (rig.get64(OUT + at), rig.get64(OUT + (at ^ 0x100))),
            (LONG, 0)
        );
        rig.clean();
    }
}

/// A read of RESET flushes as a read of the status does: the data, and a last read.
#[test]
fn base_data_arrives_before_reset_is_read() {
    let mut rig = Rig::with(Profile::Base, &["slot=all,drain_us=60000000,speed=0"]);
    let want = walk(&mut rig, 100, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    rig.w(0x18, 1);
    assert_eq!(rig.r(0x18), 1);
    // The settle time of a busy machine may be over.
    let accesses = |rig: &Rig| {
        let counters = rig.table("counters slot=0");
        counters["dma_reads"] + counters["dma_writes"]
    };
    std::thread::sleep(Duration::from_micros(600));
    assert_eq!(rig.r(0x18), 1);
    assert_eq!(
        accesses(&rig),
        100 + 2,
        "all nodes, the result and a late read"
    );
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    rig.clean();
}

#[test]
fn reset_is_a_level() {
    let mut rig = slow(Profile::Base);
    rig.w(0x18, 1);
    // Written again for another slot: the settle time of this slot began with the first write.
    rig.ask("set slot=0 settle_us=1000000");
    rig.w(0x18, 3);
    rig.w(0x18, 1);
    rig.w(0x18, 0);
    rig.counted(0, "resets", 1);
    rig.counted(1, "resets", 1);
    rig.w(0x18, 1);
    rig.counted(0, "resets", 2);
    rig.clean();
}

#[test]
fn dma_offset_is_added_and_cut() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut rig = Rig::with(profile, &[]);
        // A program at device address 0xffff_0000_1000_0000 whose memory is at 0x20_0000.
        let at = 0xffff_0000_1000_0000u64;
        rig.offset(1, BUF.wrapping_sub(at));
        if profile == Profile::Irq {
            rig.window(1, at, 0x1000);
        }
        for (off, val) in [
            (0x30, at),
            (0x38, 0x1000),
            (0x40, 64),
            (0x58, 1),
            (0x60, at + 0x800),
        ] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
        assert_eq!(rig.wait_rest(1), FINISH);
        if profile == Profile::Base {
            rig.reset_and_settle(1);
            rig.status(1);
        }
        assert_eq!(rig.get64(BUF), splitmix64(0));
        assert_eq!(rig.get64(BUF + 0x800), 64);
        rig.counted(1, "dma_errors", 0);
    }
}

#[test]
fn the_table_of_slots_has_offsets_in_bytes() {
    let mut rig = base();
    for (lines, bytes) in [(0x40, 0x1000), (0u64.wrapping_sub(0x40), -0x1000i64 as u64)] {
        rig.w(0x38, lines);
        assert_eq!(rig.r(0x38), lines);
        assert_eq!(rig.table("state slot=1")["dma_offset"], bytes);
    }
}

/// As in Optimus's RTL: a job that adds bytes would work on other memory.
#[test]
fn base_dma_offset_counts_lines() {
    let mut rig = base();
    rig.w(0x38, 0x40);
    for (off, val) in [(0x30, BUF), (0x38, 64), (0x40, 1), (0x58, 1)] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    assert_eq!(rig.wait_rest(1), FINISH);
    rig.reset_and_settle(1);
    rig.status(1);
    assert_eq!(rig.get64(BUF + 0x1000), splitmix64(0));
    rig.clean();
}

#[test]
fn the_window_is_checked() {
    let mut rig = irq();
    rig.put64(BUF + 0x1000, 77);
    rig.window(1, BUF, 0x1000);
    for (off, val) in [(0x30, BUF), (0x38, 0x2000), (0x40, 128), (0x58, 1)] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    assert_eq!(rig.wait_rest(1), FINISH | 1 << 8);
    assert_eq!(rig.sr(1, 0x48), 64, "the lines inside");
    assert_eq!(rig.get64(BUF + 0x1000), 77, "dropped");
    assert_eq!(rig.r(0x208), 1 | 2 | 64 << 8);
    assert_eq!(rig.r(0x248), BUF + 0x1000);
    assert_eq!(rig.wait_irq(1), 1);
    // The fault stays until the next START, or until it is cleared.
    rig.reset(1);
    assert_eq!(rig.r(0x248), BUF + 0x1000);
    rig.sw(1, 0x30, BUF - 64);
    rig.sw(1, 0x38, 0x2000);
    rig.sw(1, 0x40, 1);
    rig.sw(1, 0x58, 0);
    rig.sw(1, CTL, START_NEW);
    assert_eq!(rig.wait_rest(1), FINISH | 1 << 8);
    assert_eq!((rig.r(0x208), rig.r(0x248)), (1 | 64 << 8, BUF - 64));
    rig.w(0x208, 0);
    assert_eq!((rig.r(0x208), rig.r(0x248)), (0, 0));
    rig.clean();
    rig.counted(1, "faults", 2);
}

#[test]
fn window_edges() {
    // (base, size, addr, refused)
    let cases = [
        (0, 0, BUF, true),
        (BUF, 64, BUF, false),
        (BUF, 63, BUF, true),
        (BUF + 1, 1 << 20, BUF, true),
        (BUF, u64::MAX, BUF, false),
        (u64::MAX - 31, 1 << 20, u64::MAX - 63, true),
        (u64::MAX - 63, 64, u64::MAX - 31, true),
    ];
    for (base, size, addr, refused) in cases {
        let mut rig = irq();
        rig.window(1, base, size);
        for (off, val) in [(0x30, addr), (0x38, 64), (0x40, 1)] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
        let status = rig.wait_rest(1);
        assert_eq!(
            status == FINISH | 1 << 8,
            refused,
            "{base:#x} {size:#x} {addr:#x}"
        );
    }
}

#[test]
fn the_snapshot_unit_stands_outside_window_and_offset() {
    let mut rig = slow(Profile::Irq);
    let (head, _, checksum) = rig.list(LIST, LONG, 3);
    // The program sees its list at another address; neither the offset nor the window affects the
    // snapshot.
    let delta = 0x7000_0000_0000u64;
    let nodes = rig.get(LIST, LONG as usize * 16);
    for (i, node) in nodes.chunks_exact(16).enumerate() {
        let next = u64::from_le_bytes(node[..8].try_into().unwrap());
        rig.put64(
            LIST + 16 * i as u64,
            if next == 0 { 0 } else { next + delta },
        );
    }
    rig.offset(0, delta.wrapping_neg());
    rig.window(0, LIST + delta, LONG * 16);
    for (off, val) in [(0x30, head + delta), (0x40, 3), (TAG, 1)] {
        rig.sw(0, off, val);
    }
    rig.snapshot(0, SNAP);
    rig.sw(0, CTL, START_NEW);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    rig.reset(0);
    rig.ask("set slot=0 speed=0");
    rig.sw(0, CTL, START_RESUME);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.sr(0, 0x40), checksum);
    rig.clean();
}

#[test]
fn the_base_snapshot_goes_through_the_offset() {
    let mut rig = slow(Profile::Base);
    rig.offset(0, 0x1000);
    let (head, ..) = rig.list(LIST, 3000, 3);
    rig.sw(0, 0x30, head - 0x1000);
    rig.put64(SNAP + 8, 0);
    rig.snapshot(0, SNAP - 0x1000);
    // The pointers in the list are not shifted: what it walks does not matter.
    rig.sw(0, CTL, START_NEW);
    rig.sw(0, CTL, PAUSE);
    if rig.wait_rest(0) == PAUSED {
        assert_ne!(
            rig.get64(SNAP + 8),
            0,
            "the next node stands in the snapshot"
        );
    }
}

fn one_interrupt_for_each_end(irq: IrqKind) {
    let mut rig = Rig::new(Options {
        irq,
        set: vec!["slot=all,speed=1"],
        ..Options::default()
    });
    rig.open(0);
    walk(&mut rig, LONG, 1);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    assert_eq!(rig.wait_irq(0), 1);
    rig.reset(0);
    rig.ask("set slot=0 speed=0");
    rig.sw(0, CTL, START_RESUME);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.wait_irq(0), 1);
    rig.status(0);
    assert_eq!((rig.irqs(0), rig.irqs(1), rig.irqs(2)), (0, 0, 0));
    rig.counted(0, "irqs", 2);
}

#[test]
fn one_msi_x_for_each_end() {
    one_interrupt_for_each_end(IrqKind::Msix);
}

#[test]
fn one_msi_for_each_end() {
    one_interrupt_for_each_end(IrqKind::Msi);
}

#[test]
fn a_base_card_has_no_interrupts() {
    let mut rig = base();
    walk(&mut rig, 10, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.irqs(0), 0);
    rig.counted(0, "irqs", 0);
}

#[test]
fn base_status_lags_behind_a_start() {
    let mut rig = Rig::with(Profile::Base, &["slot=0,start_lag_us=60000000,speed=1"]);
    walk(&mut rig, LONG, 1);
    assert_eq!(rig.status(0), IDLE, "the old value");
    rig.ask("set slot=0 speed=0 start_lag_us=0");
    assert_eq!(rig.wait(0, |s| s == FINISH), FINISH);
}

#[test]
fn base_data_comes_after_finish() {
    let mut rig = Rig::with(Profile::Base, &["slot=all,drain_us=60000000,speed=0"]);
    let want = walk(&mut rig, 100, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.get64(OUT), 0, "FINISH precedes the data");
    rig.reset_and_settle(0);
    rig.status(0);
    assert_eq!(
        (rig.get64(OUT), rig.get64(OUT + 8)),
        want,
        "the settle time has passed"
    );
    rig.clean();
}

#[test]
fn base_data_lands_in_the_next_window_when_the_driver_is_early() {
    let mut rig = Rig::with(Profile::Base, &["slot=all,drain_us=60000000,speed=0"]);
    let want = walk(&mut rig, 100, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    rig.offset(0, 0x4000);
    rig.saw("start_undrained", 1);
    rig.reset_and_settle(0);
    rig.status(0);
    assert_eq!(rig.get64(OUT), 0);
    assert_eq!(
        (rig.get64(OUT + 0x4000), rig.get64(OUT + 0x4008)),
        want,
        "the Optimus bug"
    );
}

#[test]
fn fermata_data_comes_before_finish() {
    let mut rig = irq();
    rig.open(0);
    for n in 1..20 {
        let want = walk(&mut rig, n, n);
        assert_eq!(rig.wait_rest(0), FINISH);
        assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
        rig.reset(0);
    }
    rig.clean();
}

#[test]
fn a_snapshot_that_cannot_be_reached_is_an_error() {
    let mut rig = slow(Profile::Irq);
    rig.open(0);
    rig.map_read_only();
    walk(&mut rig, LONG, 1);
    rig.snapshot(0, READ_ONLY);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), FINISH | 1 << 9);
    assert_eq!(rig.wait_irq(0), 1);
    assert_eq!(
        rig.violations()["unmapped_dma"],
        2,
        "head and tail of the save"
    );
}

#[test]
fn without_bus_mastering_nothing_moves() {
    let mut rig = irq();
    rig.client.region_write(CONFIG, 4, &[2, 0]).unwrap();
    rig.open(0);
    walk(&mut rig, 10, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.get64(OUT), 0);
    assert!(rig.table("counters slot=0")["dma_errors"] > 0);
    assert_eq!(rig.irqs(0), 0);
}

#[test]
fn resets_of_the_function_are_power_on() {
    for how in 0..3 {
        let mut rig = slow(Profile::Irq);
        rig.open(0);
        walk(&mut rig, LONG, 1);
        match how {
            0 => rig
                .client
                .region_write(CONFIG, 0x68, &[0x00, 0x80])
                .unwrap(),
            1 => rig.client.reset().unwrap(),
            _ => rig.reconnect(),
        }
        assert_eq!(
            (
                rig.r(0x30),
                rig.r(0x180),
                rig.r(0x1c0),
                rig.sr(0, CTL),
                rig.sr(0, TAG)
            ),
            (0, 0, 0, 0, 0)
        );
        let mut command = [0; 2];
        rig.client.region_read(CONFIG, 4, &mut command).unwrap();
        assert_eq!(command, [0, 0]);
        if how == 2 {
            rig.plug(IrqKind::Msix);
        } else {
            rig.master();
        }
        rig.ask("set slot=0 speed=0");
        rig.open(0);
        let want = walk(&mut rig, 1000, 1);
        assert_eq!(rig.wait_rest(0), FINISH);
        assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
        rig.clean();
    }
}

#[test]
fn two_slots_run_side_by_side() {
    let mut rig = irq();
    rig.open(0);
    rig.open(1);
    let want = walk(&mut rig, 1000, 1);
    for (off, val) in [
        (0x30, BUF),
        (0x38, 0x1000),
        (0x40, 1000),
        (0x60, OUT + 64),
        (TAG, 2),
    ] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    assert_eq!((rig.wait_rest(0), rig.wait_rest(1)), (FINISH, FINISH));
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    assert_eq!(rig.get64(OUT + 64), 1000);
    rig.clean();
}
