// SPDX-License-Identifier: GPL-2.0-or-later
//! Misbehaviours of a card with orders: what the driver sees, and what the checker says.

use super::*;

/// Two contexts, the first on slot 1.
fn rig(fault: &str) -> Driver {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.rig.ask(&format!("fault slot=1 {fault}"));
    card
}

fn pending(card: &Driver) -> u64 {
    card.rig.table("state slot=1")["pending_faults"]
}

#[test]
fn lose_record() {
    let mut card = rig("lose_record");
    assert_eq!(pending(&card), 1);
    card.order(1, 1 | next(1) | at(0));
    assert_eq!(card.rig.wait_irq(1), 1);
    assert_eq!(card.run(1), 2, "the slot goes on");
    assert!(!card.has_record(1, 1));
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    assert_eq!(card.rig.table("counters slot=1")["records"], 1);
    card.saw("record_missing", 1);
}

#[test]
fn tear_record() {
    let mut card = rig("tear_record");
    card.order(1, 1 | at(0));
    let torn = card.wait(1, 1);
    assert_eq!((torn.run, torn.reason, torn.cookie), (1, R_PAUSED, 0));
    let cookie = RECORDS + 0x400 + 64;
    assert!(card.rig.comes_to_hold(cookie, &0xc00u64.to_le_bytes()));
    // The card counts the record once it has written all of it.
    card.run(1);
    assert_eq!(card.rig.table("counters slot=1")["records"], 1);
    assert_eq!(card.rig.wait_irq(1), 1);
    card.clean();
}

#[test]
fn a_context_is_loaded_before_the_rest_of_a_torn_record() {
    let mut card = rig("tear_record=all");
    // A busy machine may load the context only after the 2 ms.
    let early = (1..50).any(|run| {
        card.order(1, run | next(run % 2) | DROP);
        card.wait(1, run);
        card.wait_working(1);
        card.rig.violations().contains_key("early_load")
    });
    assert!(early);
    let seen = card.rig.violations();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn delay_record() {
    let mut card = rig("delay_record=30000");
    card.order(1, 1 | next(1) | at(0));
    let begin = Instant::now();
    while card.run(1) == 1 {
        assert!(begin.elapsed() < LIMIT);
    }
    card.wait_working(1);
    assert!(!card.has_record(1, 1), "RUN moved on");
    assert_eq!(card.rig.irqs(1), 0);
    assert_eq!(card.wait(1, 1).next, 2);
    assert_eq!(card.rig.wait_irq(1), 1);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.saw("early_load", 1);
}

#[test]
fn a_late_record_does_not_outlive_a_reset_of_the_function() {
    let mut card = rig("delay_record=30000");
    card.order(1, 1 | at(0));
    card.rig.wait(1, |status| status == PAUSED);
    card.rig.client.region_write(CONFIG, 0x69, &[0x80]).unwrap();
    card.rig.master();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(card.word7(1, 1), 0);
}

#[test]
fn a_late_record_that_memory_refuses_is_missing() {
    let mut card = rig("delay_record=30000");
    card.order(1, 1 | at(0));
    card.rig.wait(1, |status| status == PAUSED);
    card.rig.no_master();
    let begin = Instant::now();
    while !card.rig.violations().contains_key("record_missing") {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    card.rig.master();
    card.begin(1, 1, 0);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    let seen = card.rig.violations();
    assert_eq!(seen.get("record_missing"), Some(&1));
    assert!(!seen.contains_key("early_load"), "nothing comes any more");
}

#[test]
fn ignore_order() {
    let mut card = rig("ignore_order=2");
    card.order(1, 1 | next(1) | at(0));
    card.order(1, 1 | at(0));
    card.held(1, 0);
    card.order(1, 1 | at(0));
    assert_eq!(card.wait(1, 1).next, 0);
    card.clean();
}

#[test]
fn stale_order() {
    let mut card = rig("stale_order");
    card.order(1, next(1) | at(0));
    let record = card.wait(1, 1);
    assert_eq!(record.next, 2);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.saw("stale_order_taken", 1);
}

#[test]
fn late_at() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.rig.ask("fault slot=1 late_at=20000");
    card.begin(1, 0, 0);
    card.order(1, 1 | at(1000));
    assert!(card.wait(1, 1).work_us() >= 21_000);
    assert_eq!(pending(&card), 0);
    card.clean();
}

#[test]
fn entry_error() {
    let mut card = rig("entry_error");
    card.order(1, 1 | next(1) | at(0));
    assert_eq!(card.wait(1, 1).next, 2);
    let record = card.wait(1, 2);
    assert_eq!((record.reason, record.cookie), (R_REFUSED, 0));
    let shown = [0x30, 0x38, 0x40, 0x48, 0x50].map(|off| card.rig.sr(1, off));
    assert_eq!(shown, [0; 5], "nothing of the context before");
    card.begin(1, 2, 1);
    card.order(1, 3 | at(0));
    assert_eq!(card.wait(1, 3).reason, R_PAUSED);
    card.clean();
}

#[test]
fn an_at_that_is_ignored() {
    let mut card = rig("ignore_pause");
    card.order(1, 1 | at(0));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!card.has_record(1, 1));
    assert_eq!(pending(&card), 0);
    card.order(1, 1 | at(0));
    assert_eq!(card.wait(1, 1).reason, R_PAUSED);
    card.clean();
}

#[test]
fn a_hang_ends_with_a_reset() {
    let mut card = rig("hang");
    card.order(1, 1 | next(1) | at(0));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!card.has_record(1, 1));
    card.order(1, 1 | NEVER);
    assert_eq!(card.run(1), 1);
    card.rig.reset(1);
    assert_eq!(card.rig.sr(1, CTL), 1 << 32);
    card.begin(1, 1, 1);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).reason, R_PAUSED);
    card.clean();
}

#[test]
fn a_write_after_the_context_has_left() {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.rig
        .ask(&format!("tenant token=0xa0 pages={ARENA:#x}+0x1000"));
    let other = ARENA + 0x1_0000;
    card.rig
        .ask(&format!("tenant token=0xa1 pages={other:#x}+0x1000"));
    card.rig.ask("fault slot=1 write_after_paused=30000");
    card.begin(1, 0, 0);
    card.wait_working(1);
    // The late write of the first context goes where the second one's offset leads.
    card.field(1, 0x08, 0x1_0000);
    card.reg(1, 0x30, ARENA);
    card.order(1, 1 | next(1) | at(2000));
    card.wait(1, 1);
    card.order(1, 2 | at(500_000));
    card.wait(1, 2);
    card.saw("foreign_dma", 1);
}

#[test]
fn a_torn_save_and_a_lost_interrupt() {
    let mut card = rig("save_torn=100");
    card.rig.ask("fault slot=1 lose_irq");
    card.order(1, 1 | next(1) | at(0));
    let record = card.wait(1, 1);
    assert_eq!(
        (record.reason, record.next),
        (R_SAVE_ERROR, 2),
        "the next one runs"
    );
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    assert_eq!(card.rig.wait_irq(1), 1);
    card.clean();
}
