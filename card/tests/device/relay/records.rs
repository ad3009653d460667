// SPDX-License-Identifier: GPL-2.0-or-later
//! What a run leaves in memory: record, results, events. How runs end.

use super::*;

#[test]
fn times_ascend() {
    let mut card = driver(&["slot=1,speed=20,save_us=3000,restore_us=2000"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | at(2000));
    let first = card.wait(1, 1);
    card.order(1, 2 | next(0) | RESUME | at(2000));
    let second = card.wait(1, 2);
    card.order(1, 3 | at(2000));
    let third = card.wait(1, 3);
    for record in [first, second, third] {
        let times = [record.began, record.worked, record.stopped, record.left];
        assert!(times.is_sorted() && record.began > 0, "{record:?}");
        assert!(record.left - record.stopped >= 3_000_000, "the save");
    }
    assert!(third.worked - third.began >= 2_000_000, "the restore");
    assert_eq!((second.began, third.began), (first.left, second.left));
    assert_eq!(card.rig.table("gaps slot=1")["count"], 2);
    card.clean();
}

#[test]
fn eight_records_and_one_interrupt_each() {
    let mut card = driver(&["slot=1,speed=0"]);
    (0..2).for_each(|context| card.membench(context, 1));
    for run in 1..21 {
        card.begin(1, run - 1, run % 2);
        let record = card.wait(1, run);
        assert_eq!((record.run, record.reason), (run, R_FINISH));
        assert_eq!(record.cookie, 0xc00 + run % 2, "word 7 came last");
        assert_eq!(card.rig.wait_irq(1), 1);
        assert!(run < 8 || card.has_record(1, run - 7));
    }
    assert!(!card.has_record(1, 12));
    let below = card.rig.get(RECORDS, 0x400);
    let above = card.rig.get(RECORDS + 0x600, 0x200);
    assert!(below.iter().chain(&above).all(|byte| *byte == 0));
    card.clean();
}

#[test]
fn the_log_has_a_record_before_its_last_word_is_in_memory() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.membench(0, 1);
    card.begin(1, 0, 0);
    card.wait(1, 1);
    card.run(1);
    let log = card.rig.log_text();
    let (_, after) = log.split_once("\"record\"").unwrap();
    let record = RECORDS + 0x400 + 64;
    assert!(
        after.contains(&format!("\"ranges\":[[{record},64]]")),
        "{log}"
    );
    card.clean();
}

#[test]
fn results() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.membench(0, 7);
    card.membench(1, 9);
    (0..16).for_each(|word| card.rig.put64(RESULTS + 8 * word, 99));
    card.field(1, 0x38, 0);
    card.begin(1, 0, 0);
    card.wait(1, 1);
    assert_eq!([0, 1, 2, 3].map(|word| card.result(0, word)), {
        let reads = [0x30, 0x48].map(|off| card.rig.sr(1, off));
        [reads[0], reads[1], 0, 0xa0]
    });
    assert!((4..16).all(|word| card.result(0, word) == 0));
    card.begin(1, 1, 1);
    assert!(!card.wait(1, 2).lost);
    assert!((0..16).all(|word| card.result(1, word) == 0), "none wanted");
    card.clean();
}

#[test]
fn results_that_are_lost() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.rig.map_read_only();
    card.membench(0, 7);
    card.field(0, 0x38, READ_ONLY);
    card.begin(1, 0, 0);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.lost), (R_FINISH, true));
    card.saw("unmapped_dma", 1);
}

#[test]
fn a_fault() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.membench(1, 5);
    card.field(0, 0x10, 0x8000);
    card.field(0, 0x18, 0x1000);
    card.field(0, 0x08, 0x4000);
    card.begin(1, 0, 0);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.fault_addr), (R_FAULT, ARENA));
    assert_eq!(record.fault_info, 0b11 | 64 << 8);
    let window = [0x30 + 8, 0x188, 0x1c8].map(|off| card.rig.r(off));
    assert_eq!(window, [0x4000, 0x8000, 0]);
    card.begin(1, 1, 1);
    let record = card.wait(1, 2);
    assert_eq!(
        (record.reason, record.fault_addr, record.fault_info),
        (R_FINISH, 0, 0)
    );
    card.clean();
}

#[test]
fn a_save_that_fails() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.rig.map_read_only();
    card.endless(0);
    card.field(0, 0x20, READ_ONLY);
    card.begin(1, 0, 0);
    card.order(1, 1 | at(1000));
    let record = card.wait(1, 1);
    assert_eq!(record.reason, R_SAVE_ERROR);
    assert!(record.worked > 0 && record.stopped > record.worked);
    assert_eq!(card.rig.sr(1, CTL) & 0xfff, FINISH | 1 << 9);
    assert!(card.rig.violations()["unmapped_dma"] > 0);
}

#[test]
fn a_restore_that_fails() {
    let mut card = driver(&["slot=1,speed=20,restore_us=400000"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.order(1, 1 | at(1000));
    card.wait(1, 1);
    // The record arrives when the card may write again.
    card.rig.ask("fault slot=1 delay_record=400000");
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.wait_restoring(1);
    std::thread::sleep(Duration::from_millis(5));
    card.rig.no_master();
    card.wait_phase(1, "finished");
    card.rig.master();
    let record = card.wait(1, 2);
    assert_eq!((record.reason, record.worked), (R_RESTORE_ERROR, 0));
    assert_eq!(card.rig.sr(1, CTL) & 0xfff, FINISH | 1 << 9);
}

#[test]
fn entries_that_are_refused() {
    let forms = [
        (0x00, 0),
        (0x00, 3),
        (0x20, SNAP + 32),
        (0x20, 1 << 48),
        (0x28, 4095),
        (0x30, REGS + 4),
        (0x38, RESULTS + 4),
        (0x40, 0x28),
        (0x40, 0x34),
        (0x58, 0x1000 << 48),
        (0x68, 1),
        (0x78, 1),
    ];
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 1);
    let mut run = 1;
    for (off, val) in forms {
        card.endless(0);
        card.field(0, off, val);
        card.order(1, run | next(0) | DROP);
        let before = card.wait(1, run);
        assert_eq!(
            (before.reason, before.next, before.void),
            (R_DROPPED, 1, false)
        );
        let refused = card.wait(1, run + 1);
        assert_eq!(refused.reason, R_REFUSED, "{off:#x}: {val:#x}");
        assert_eq!((refused.cookie, refused.next), (0xc00, 0));
        assert_eq!(
            (refused.began, refused.worked, refused.stopped),
            (before.left, 0, 0)
        );
        assert_eq!(card.rig.sr(1, CTL), (run + 1) << 32 | IDLE);
        assert_eq!(card.rig.sr(1, TAG), 0, "nothing of it was loaded");
        card.begin(1, run + 1, 1);
        run += 2;
    }
    let history = card.rig.ask("history from=0");
    assert_eq!(history.matches("refused").count(), forms.len());
    card.clean();
}

#[test]
fn registers_beyond_the_last_address_are_refused() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    // The sum of REGS and 0x30 is 0x28, mod 2^64, where there is memory.
    card.field(0, 0x30, u64::MAX - 7);
    card.begin(1, 0, 0);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.cookie), (R_REFUSED, 0xc00));
    card.saw("unmapped_dma", 1);
}

#[test]
fn an_entry_beyond_the_last_address_is_refused() {
    let mut card = driver(&[]);
    (0..3).for_each(|slot| card.rig.w(RELAY + 8 * slot, 0));
    card.rig.w(0x120, u64::MAX);
    card.rig.w(0x128, 64);
    card.rig.w(RELAY + 8, 1);
    card.endless(0);
    // If the table wrapped, its entry 32 would be at 0.
    let entry = card.rig.get(TABLE, 128);
    card.rig.put(0, &entry);
    card.begin(1, 0, 32);
    assert_eq!(card.wait(1, 1).reason, R_REFUSED);
    card.saw("unmapped_dma", 1);
}

#[test]
fn a_record_beyond_the_last_address_is_lost() {
    let engines = vec![EngineKind::Membench; 5];
    let mut card = driver_of(engines, &["slot=all,speed=0"]);
    (0..5).for_each(|slot| card.rig.w(RELAY + 8 * slot, 0));
    card.rig.w(0x130, u64::MAX);
    card.rig.w(RELAY + 8 * 4, 1);
    card.membench(0, 1);
    card.begin(4, 0, 0);
    assert_eq!(card.rig.wait_irq(4), 1);
    let seen = card.rig.violations();
    assert_eq!((seen["unmapped_dma"], seen["record_missing"]), (1, 1));
    assert_eq!(card.rig.get(0, 0x400), vec![0; 0x400]);
}

#[test]
fn a_refused_run_ends_with_a_choice() {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.field(0, 0, 0);
    // The order must arrive before the card has read the entry.
    let followed = (1..1000).step_by(2).any(|run| {
        card.begin(1, run - 1, 0);
        card.order(1, run | next(1) | NEVER);
        let refused = card.wait(1, run);
        assert_eq!(refused.reason, R_REFUSED);
        if refused.next == 0 {
            card.begin(1, run, 1);
        }
        card.order(1, run + 1 | at(0));
        assert_eq!(card.wait(1, run + 1).reason, R_PAUSED);
        refused.next == 2
    });
    assert!(followed);
    card.clean();
}

#[test]
fn a_context_beyond_the_table_is_refused() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.begin(1, 0, COUNT);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.cookie), (R_REFUSED, 0));
    card.begin(1, 1, 0);
    card.order(1, 2 | next(0xffff) | at(0));
    assert_eq!(card.wait(1, 2).next, 0x1_0000);
    assert_eq!(card.wait(1, 3).reason, R_REFUSED);
    card.saw("order_bad", 2);
}

const QUEUE: u64 = 0x20_0000;

fn queue(card: &Driver, count: u64) {
    let regs = [
        (0x30, QUEUE),
        (0x38, QUEUE + 0x1000),
        (0x40, 16),
        (0x48, QUEUE + 0x2000),
        (TAG, 5),
        (0x58, count),
        (0x60, 60_000_000),
    ];
    card.context(0, &regs);
}

/// Posts jobs that fill 8 bytes to the ring.
fn post(card: &Driver, jobs: std::ops::Range<u64>) {
    for i in jobs {
        let at = QUEUE + 64 * i;
        let words = [i, 0, QUEUE + 0x4000, 8, i];
        for (k, word) in (1u64..).zip(words) {
            card.rig.put64(at + 8 * k, word);
        }
        card.rig.put64(at, 1 | 2 << 32);
    }
}

#[test]
fn an_engine_without_work_leaves() {
    let mut card = driver_of(vec![EngineKind::Queue], &["slot=0,speed=0"]);
    queue(&card, 0);
    card.begin(0, 0, 0);
    let record = card.wait(0, 1);
    assert_eq!(record.reason, R_EMPTY);
    assert!(record.stopped >= record.worked && record.worked > 0);
    assert_eq!(card.rig.sr(0, CTL) & 0xfff, PAUSED | 1 << 10);
    card.order(0, 1 | next(0) | VACANT | RESUME | NEVER);
    assert_eq!(card.wait(0, 2).reason, R_EMPTY);
    card.run(0);
    assert_eq!(card.rig.irqs(0), 2);
    card.clean();
}

#[test]
fn events_are_in_memory_before_the_interrupt() {
    let set = &["slot=0,speed=0,linger_us=60000000"];
    let mut card = driver_of(vec![EngineKind::Queue], set);
    queue(&card, 3);
    card.begin(0, 0, 0);
    for n in 1..4 {
        post(&card, 3 * n - 3..3 * n);
        assert_eq!(card.rig.wait_irq(0), 1);
        assert_eq!(card.rig.get64(RECORDS + 0x200), n);
        assert_eq!(card.rig.r(0x2c0), n);
    }
    card.clean();
}
