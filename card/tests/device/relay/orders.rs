// SPDX-License-Identifier: GPL-2.0-or-later
//! Which orders are held, taken, dropped and void.

use super::*;

#[test]
fn an_order_to_a_vacant_slot() {
    let mut card = driver(&[]);
    card.membench(3, 40);
    card.begin(1, 0, 3);
    assert_eq!(card.run(1), 1, "the take shows at once");
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.cookie), (R_FINISH, 0xc03));
    assert_eq!((record.next, record.void, record.lost), (0, false, false));
    assert_eq!(card.rig.sr(1, CTL) & 0xfff, FINISH);
    assert_eq!(card.rig.wait_irq(1), 1);
    card.clean();
}

#[test]
fn a_chain_without_a_read_of_the_host() {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | at(3000));
    let first = card.wait(1, 1);
    assert_eq!(
        (first.reason, first.next, first.cookie),
        (R_PAUSED, 2, 0xc00)
    );
    card.order(1, 2 | next(0) | at(3000) | RESUME);
    let second = card.wait(1, 2);
    assert_eq!(
        (second.reason, second.next, second.cookie),
        (R_PAUSED, 1, 0xc01)
    );
    assert!(second.began >= first.left && second.worked >= second.began);
    card.wait_working(1);
    card.order(1, 3 | DROP);
    let third = card.wait(1, 3);
    assert_eq!((third.reason, third.cookie), (R_DROPPED, 0xc00));
    card.rig.counted(1, "reads", 0);
    let counters = card.rig.table("counters slot=1");
    assert_eq!((counters["orders"], counters["orders_dropped"]), (4, 0));
    assert_eq!((counters["orders_taken"], counters["records"]), (3, 3));
    let history = card.rig.ask("history from=0");
    assert!(
        history.ends_with(
            "1:start:0xa0,1:pause:0xa0,1:paused:0xa0,1:start:0xa1,1:pause:0xa1,1:paused:0xa1,\
             1:resume:0xa0,1:pause:0xa0,1:dropped:0xa0"
        ),
        "{history}"
    );
    card.clean();
}

#[test]
fn a_late_order_is_dropped() {
    let mut card = driver(&[]);
    card.membench(0, 10);
    card.endless(1);
    card.begin(1, 0, 0);
    card.wait(1, 1);
    card.order(1, 1 | next(1) | NEVER);
    assert_eq!(card.run(1), 1, "it lacks VACANT");
    card.begin(1, 0, 1);
    assert_eq!(card.run(1), 1, "another run");
    card.begin(1, 1, 1);
    card.order(1, 1 | next(0) | at(0));
    card.held(1, 0);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).reason, R_PAUSED);
    card.rig.counted(1, "orders_dropped", 3);
    card.clean();
}

#[test]
fn after_has_sixteen_bits() {
    let mut card = driver(&[]);
    card.membench(0, 1);
    card.begin(1, 0, 0);
    card.wait(1, 1);
    card.order(1, 0xffff | next(0) | VACANT | NEVER);
    assert_eq!(card.run(1), 1);
    card.begin(1, 1, 0);
    card.wait(1, 2);
    card.clean();
}

#[test]
fn vacant_is_dropped_by_an_occupied_slot() {
    let mut card = driver(&[]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.begin(1, 1, 1);
    card.held(1, 0);
    card.order(1, 1 | VACANT);
    card.wait_working(1);
    assert_eq!(card.run(1), 1);
    card.order(1, 1 | at(0));
    let record = card.wait(1, 1);
    assert_eq!(
        (record.reason, record.next, record.void),
        (R_PAUSED, 0, false)
    );
    card.order(1, 1 | VACANT);
    card.order(1, 1 | VACANT | NEVER);
    assert_eq!(card.run(1), 1, "nobody is not taken");
    card.clean();
}

#[test]
fn a_later_order_replaces_and_a_withdrawal_takes_back() {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..3).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | at(1_000_000));
    card.held(1, 1 | next(1) | at(1_000_000));
    card.order(1, 1 | next(2) | NEVER);
    card.held(1, 1 | next(2) | NEVER);
    card.order(1, 1 | NEVER);
    card.held(1, 0);
    card.wait_working(1);
    card.order(1, 1 | next(2) | at(0));
    assert_eq!(card.wait(1, 1).next, 3);
    card.order(1, 2 | next(1) | at(300_000));
    card.order(1, 2 | NEVER);
    std::thread::sleep(Duration::from_millis(350));
    assert!(!card.has_record(1, 2), "AT went with the order");
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.clean();
}

#[test]
fn a_job_that_ends_by_itself_takes_the_next_one() {
    let mut card = driver(&["slot=1,speed=1"]);
    card.membench(0, 5000);
    card.membench(1, 10);
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | NEVER);
    let first = card.wait(1, 1);
    assert_eq!((first.reason, first.next), (R_FINISH, 2));
    assert_eq!(card.wait(1, 2).reason, R_FINISH);
    card.clean();
}

#[test]
fn an_order_is_void_at_the_choice() {
    for word in [next(0), next(1) | 1 << 38, next(1) | 1 << 39] {
        let mut card = driver(&["slot=1,speed=20"]);
        (0..2).for_each(|context| card.endless(context));
        card.begin(1, 0, 0);
        card.order(1, 1 | word | at(0));
        let record = card.wait(1, 1);
        assert_eq!((record.next, record.void), (0, true), "{word:#x}");
        assert_eq!(record.reason, R_PAUSED, "AT is obeyed");
        assert_eq!(card.run(1), 1);
        card.saw("order_bad", 1);
    }
}

#[test]
fn a_vacant_slot_drops_reserved_bits_and_takes_the_same_context_again() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.order(1, 1 | next(0) | VACANT | 1 << 38 | NEVER);
    assert_eq!(card.run(1), 1);
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).cookie, 0xc00);
    card.saw("order_bad", 1);
}

#[test]
fn a_slot_without_relay_ignores_orders() {
    let mut card = driver(&[]);
    card.endless(0);
    card.rig.w(RELAY + 8, 0);
    card.begin(1, 0, 0);
    assert_eq!((card.run(1), card.rig.r(ORDER + 8)), (0, 0));
    card.saw("order_bad", 1);
}
