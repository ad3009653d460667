// SPDX-License-Identifier: GPL-2.0-or-later
//! What a driver does wrong with orders is seen; the replay of the log agrees.

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
    // These writes had come before the card died.
    let slot = &card.rig.card().slots()[1];
    slot.write(SlotReg::Relay, RELAY + 8, 1);
    slot.write(SlotReg::Order, ORDER + 8, next(0) | VACANT | NEVER);
    slot.write(SlotReg::Ctl, 0x2018, START_NEW);
    assert_eq!(card.rig.table("state slot=1")["start_count"], 0);
    card.clean();
}

/// The checker over events of a card that no misbehaviour makes.
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
            back: false,
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
