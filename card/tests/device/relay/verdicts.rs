// SPDX-License-Identifier: GPL-2.0-or-later
//! What a driver or a card does wrong with orders is detected by the checker, and by the driver;
//! the replay of the log agrees.

use super::*;
use fermata_card::checker::{Checker, Kind};
use fermata_card::config::CardConfig;
use fermata_card::event::{Event, IrqFate, OrderFate, Phase, RecordFate, What};
use fermata_card::regs::SlotReg;
use fermata_card::relay::{Order, Reason};

fn rig() -> Driver {
    let mut card = driver(&["slot=1,speed=20", "slot=0,speed=1"]);
    (0..3).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.wait_working(1);
    card
}

#[test]
fn context_changed() {
    for (field, at_) in [(true, 0x60), (false, 0x40)] {
        let mut card = rig();
        card.order(1, 1 | next(1) | NEVER);
        match field {
            true => card.field(1, at_, 77),
            false => card.reg(1, at_, 77),
        }
        card.order(1, 1 | DROP | next(1));
        card.wait(1, 1);
        card.order(1, 2 | at(0));
        card.wait(1, 2);
        card.saw("context_changed", 1);
    }
}

#[test]
fn a_context_that_changes_before_it_is_loaded() {
    let mut card = rig();
    card.order(1, 1 | next(1) | at(200_000));
    card.reg(1, 0x48, 77);
    card.wait(1, 1);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.saw("context_changed", 1);
}

#[test]
fn a_context_that_changes_while_it_runs() {
    let mut card = rig();
    card.reg(0, 0x48, 77);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.reg(0, 0x48, 78);
    card.saw("context_changed", 1);
}

#[test]
fn named_twice() {
    let mut card = rig();
    card.endless_list(4);
    card.begin(0, 0, 4);
    card.order(0, 1 | next(0) | NEVER);
    card.rig.saw("named_twice", 1);
    card.order(0, 1 | NEVER);
    card.order(1, 1 | next(2) | NEVER);
    card.order(0, 1 | next(2) | NEVER);
    card.rig.saw("named_twice", 2);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.order(0, 1 | next(1) | NEVER);
    card.order(0, 1);
    card.wait(0, 1);
    card.saw("named_twice", 2);
}

#[test]
fn control_in_arena() {
    for page in [TABLE, REGS, RESULTS, RECORDS] {
        let mut card = driver(&["slot=1,speed=0"]);
        card.rig
            .ask(&format!("tenant token=0x77 pages={page:#x}+0x1000"));
        card.membench(0, 5);
        card.begin(1, 0, 0);
        card.wait(1, 1);
        let seen = card.rig.violations();
        assert!(seen["control_in_arena"] >= 1 && seen.len() == 1, "{seen:?}");
    }
}

#[test]
fn what_ended_is_not_resumed() {
    for (order, reason) in [(DROP, R_DROPPED), (NEVER, R_FINISH)] {
        let mut card = driver(&["slot=1,speed=0"]);
        card.membench(0, 1 << 30);
        card.begin(1, 0, 0);
        card.order(1, 1 | at(100));
        assert_eq!(card.wait(1, 1).reason, R_PAUSED);
        let saved = card.rig.get(SNAP, 4096);
        card.rig.ask("fault slot=1 finish_on_pause=1");
        if order == DROP {
            card.rig.ask("fault slot=1 clear");
            card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
            card.order(1, 2 | DROP | at(1000));
        } else {
            card.rig.ask("fault slot=1 clear");
            card.reg(0, 0x40, 1);
            card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
        }
        assert_eq!(card.wait(1, 2).reason, reason);
        card.rig.put(SNAP, &saved);
        card.reg(0, 0x40, 1);
        card.order(1, 2 | next(0) | VACANT | RESUME | NEVER);
        card.wait(1, 3);
        card.saw("resume_stale", 1);
    }
}

#[test]
fn a_restore_that_was_aborted_used_no_snapshot_up() {
    let mut card = driver(&["slot=1,speed=20,restore_us=10000000"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).reason, R_NOT_RUN);
    card.rig.ask("set slot=1 restore_us=0");
    card.order(1, 2 | next(0) | VACANT | RESUME | NEVER);
    card.wait_working(1);
    card.order(1, 3 | at(0));
    assert_eq!(card.wait(1, 3).reason, R_PAUSED);
    card.clean();
}

#[test]
fn a_record_that_memory_does_not_take() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.rig.map_read_only();
    (0..3).for_each(|slot| card.rig.w(RELAY + 8 * slot, 0));
    card.rig.w(0x130, READ_ONLY);
    card.rig.w(RELAY + 8, 1);
    card.membench(0, 5);
    card.begin(1, 0, 0);
    assert_eq!(card.rig.wait_irq(1), 1);
    let seen = card.rig.violations();
    assert_eq!((seen["unmapped_dma"], seen["record_missing"]), (1, 1));
    assert_eq!(card.rig.wait_rest(1), FINISH, "the card goes on");
}

#[test]
fn a_reset_while_memory_does_not_answer() {
    let mut card = rig();
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    for (field, resume) in [(0x20, RESUME), (0x30, 0)] {
        card.endless(0);
        card.field(0, field, UNMAPPED);
        let client = Client::of(&card);
        let run = card.run(1);
        card.order(1, run | next(0) | VACANT | NEVER | resume);
        client.wait_asked();
        card.rig.reset(1);
        assert_eq!(card.rig.sr(1, CTL), (run + 1) << 32 | IDLE);
    }
    card.clean();
}

#[test]
fn the_card_of_the_next_client_is_not_dead() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.membench(0, 1);
    card.rig.ask("fault slot=1 dead");
    card.rig.reconnect();
    card.rig.plug(IrqKind::Msix);
    enable(&mut card.rig, 3);
    card.rig.ask("fault slot=1 lose_record");
    card.begin(1, 0, 0);
    assert_eq!(card.rig.wait_irq(1), 1);
    card.saw("record_missing", 1);
}

#[test]
fn a_card_that_died_begins_no_run() {
    let card = driver(&["slot=1,speed=0"]);
    card.endless(0);
    card.rig.ask("fault slot=1 dead");
    // These writes were made before the card died.
    let slot = &card.rig.card().slots()[1];
    slot.write(SlotReg::Relay, RELAY + 8, 1);
    slot.write(SlotReg::Order, ORDER + 8, next(0) | VACANT | NEVER);
    slot.write(SlotReg::Ctl, 0x2018, START_NEW);
    assert_eq!(card.rig.table("state slot=1")["start_count"], 0);
    card.clean();
}

/// The checker, with events of a card that no misbehaviour can cause.
struct Log(Checker);

impl Log {
    fn new() -> Self {
        let engines = [EngineKind::Membench];
        let config = CardConfig::new(Profile::Relay, IrqKind::Msix, &engines).unwrap();
        let mut log = Self(Checker::default());
        log.tell(What::Card { config });
        log
    }

    fn tell(&mut self, what: What) {
        self.0.step(&Event { t: 0, what });
    }

    fn begin(&mut self, run: u32, tag: u64, regs: &[(u16, u64)]) {
        let (slot, context) = (0, u64::from(run));
        self.tell(What::Take { slot, run, context });
        let mut all = vec![(0x50, tag)];
        all.extend(regs);
        self.tell(What::Load {
            slot,
            run,
            context,
            seen: 1,
            regs: all,
        });
        self.tell(What::Start {
            slot,
            resume: false,
            accepted: true,
            tag,
        });
    }

    fn end(&mut self) {
        self.tell(What::Phase {
            slot: 0,
            phase: Phase::Finished,
            fault: false,
            snapshot_error: false,
            empty: false,
        });
    }

    fn record(&mut self, run: u32) {
        self.record_is(run, RecordFate::Posted);
    }

    fn record_is(&mut self, run: u32, fate: RecordFate) {
        self.tell(What::Record {
            slot: 0,
            run,
            context: u64::from(run),
            reason: Reason::Finish,
            next: 0,
            void: false,
            results_lost: false,
            fate,
            seen: Some(1),
        });
    }
}

#[test]
fn a_register_that_is_not_loaded_is_residue() {
    for (regs, n) in [(&[(0x30, 5), (0x38, 0)][..], 0), (&[(0x30, 5)][..], 1)] {
        let mut log = Log::new();
        log.begin(1, 7, &[(0x30, 1), (0x38, 2)]);
        log.end();
        log.record(1);
        log.begin(2, 8, regs);
        let residue = log.0.counts().get(&Kind::RegisterResidue).copied();
        assert_eq!(residue.unwrap_or(0), n);
        assert_eq!(log.0.total(), n);
    }
}

#[test]
fn record_missing() {
    let mut log = Log::new();
    log.begin(1, 7, &[]);
    log.end();
    log.begin(2, 7, &[]);
    assert_eq!(log.0.counts()[&Kind::RecordMissing], 1);
    log.end();
    let status = What::Read {
        off: 0x1018,
        len: 8,
        val: 2 << 32 | FINISH,
    };
    log.tell(status);
    assert_eq!(log.0.counts()[&Kind::RecordMissing], 2);
    log.record(2);
    assert_eq!(
        log.0.counts()[&Kind::RecordMissing],
        3,
        "and then of no run"
    );
}

#[test]
fn early_load() {
    use RecordFate::{Late, Torn};
    for (fate, lands, n) in [
        (Late, true, 0),
        (Late, false, 1),
        (Torn, true, 0),
        (Torn, false, 1),
    ] {
        let mut log = Log::new();
        log.begin(1, 7, &[]);
        log.end();
        log.record_is(1, fate);
        if lands {
            log.tell(What::RecordLanded {
                slot: 0,
                run: 1,
                irq: fate == Late,
            });
        }
        log.begin(2, 7, &[]);
        assert_eq!(log.0.total(), n);
        assert_eq!(
            log.0.counts().get(&Kind::EarlyLoad).copied(),
            (n > 0).then_some(1)
        );
    }
}

#[test]
fn unasked_irq() {
    let irq = || What::Irq {
        slot: 0,
        fate: IrqFate::Sent,
    };
    let relay = |val| What::Write {
        off: RELAY,
        len: 8,
        val,
    };
    for (on, n) in [(1, 1), (0, 0)] {
        let mut log = Log::new();
        log.tell(relay(on));
        log.begin(1, 7, &[]);
        log.end();
        log.tell(irq());
        let counted = log.0.counts().get(&Kind::UnaskedIrq).copied();
        assert_eq!(counted.unwrap_or(0), n);
        log.record(1);
        log.tell(irq());
        assert_eq!(log.0.total(), n, "a record has an interrupt");
    }
    let mut log = Log::new();
    log.tell(relay(1));
    log.begin(1, 7, &[]);
    log.end();
    log.record_is(1, RecordFate::Late);
    log.tell(irq());
    assert_eq!(log.0.counts()[&Kind::UnaskedIrq], 1, "not of a late record");
}

#[test]
fn stale_order_taken() {
    use OrderFate::{Dropped, Held, Taken, Withdrawn};
    let mut log = Log::new();
    for (fate, run, n) in [
        (Held, 0x1_0001, 0),
        (Dropped, 2, 0),
        (Held, 2, 1),
        (Withdrawn, 2, 2),
        (Taken, 0, 3),
    ] {
        log.tell(What::Order {
            slot: 0,
            order: Order(1 | NEVER),
            run,
            fate,
            seen: None,
        });
        assert_eq!(log.0.total(), n);
    }
    assert_eq!(log.0.counts()[&Kind::StaleOrderTaken], 3);
}

#[test]
fn order_bad() {
    let mut card = rig();
    let bad = [
        next(1) | 1 << 39 | NEVER,
        next(1) | 3 << 38 | NEVER,
        next(COUNT) | NEVER,
        next(0) | NEVER,
    ];
    for word in bad {
        card.order(1, 1 | word);
    }
    card.rig.saw("order_bad", 4);
    card.order(1, 1 | NEVER);
    card.order(1, 1 | next(COUNT - 1) | NEVER);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.begin(1, 0, 0);
    card.begin(1, 1, 0);
    card.rig.saw("order_bad", 4);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.rig.w(RELAY + 8, 0);
    card.order(1, 2 | VACANT | NEVER);
    card.saw("order_bad", 5);
}

/// Returns a card with a misbehaviour and two contexts, the first on slot 1.
fn faulty(fault: &str) -> Driver {
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
    let mut card = faulty("lose_record");
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
    let mut card = faulty("tear_record");
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
    let mut card = faulty("tear_record=all");
    // On a busy machine, the context may be loaded only after the 2 ms.
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
    let mut card = faulty("delay_record=30000");
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
    let mut card = faulty("delay_record=30000");
    card.order(1, 1 | at(0));
    card.rig.wait(1, |status| status == PAUSED);
    card.rig.client.region_write(CONFIG, 0x69, &[0x80]).unwrap();
    card.rig.master();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(card.word7(1, 1), 0);
}

#[test]
fn a_late_record_that_memory_refuses_is_missing() {
    let mut card = faulty("delay_record=30000");
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
    let mut card = faulty("ignore_order=2");
    card.order(1, 1 | next(1) | at(0));
    card.order(1, 1 | at(0));
    card.held(1, 0);
    card.order(1, 1 | at(0));
    assert_eq!(card.wait(1, 1).next, 0);
    card.clean();
}

#[test]
fn stale_order() {
    let mut card = faulty("stale_order");
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
    let mut card = faulty("entry_error");
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
    let mut card = faulty("ignore_pause");
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
    let mut card = faulty("hang");
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
    // The late write of the first context goes to where the second context's offset leads.
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
    let mut card = faulty("save_torn=100");
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
