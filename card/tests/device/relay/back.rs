// SPDX-License-Identifier: GPL-2.0-or-later
//! BACK: after a short run the slot goes on with the job that was stopped for it.

use super::*;

/// What the slot holds in run 2, after BACK in the order for run 1 of context 0.
const BACK_TO_0: u64 = 2 | 1 << 16 | RESUME | NEVER;

/// Context 0 works in slot 1, and has to make way for context 1 at once.
fn displaced(settings: &'static str, count: u64) -> Driver {
    let mut card = driver(&[settings]);
    card.endless(0);
    card.membench(1, count);
    card.endless(2);
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.order(1, 1 | next(1) | at(0) | BACK);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.next), (R_PAUSED, 2));
    assert!(record.back);
    card
}

#[test]
fn the_slot_goes_on_with_the_job_that_made_way() {
    let mut card = displaced("slot=1,speed=20", 10);
    let short = card.wait(1, 2);
    assert_eq!((short.reason, short.next), (R_FINISH, 1));
    assert!(!short.back);
    card.wait_working(1);
    assert_eq!(card.run(1), 3);
    card.order(1, 3 | DROP);
    assert_eq!(card.wait(1, 3).cookie, 0xc00);
    let history = card.rig.ask("history from=0");
    assert!(
        history.ends_with("1:start:0xa1,1:finished:0xa1,1:resume:0xa0,1:pause:0xa0,1:dropped:0xa0"),
        "{history}"
    );
    card.clean();
}

/// It has no AT until an order comes.
#[test]
fn an_order_for_the_short_run_replaces_what_back_left() {
    let mut card = displaced("slot=1,speed=1", 1 << 40);
    card.held(1, BACK_TO_0);
    card.order(1, 2 | next(2) | at(0));
    assert_eq!(card.wait(1, 2).next, 3);
    card.order(1, 3 | at(0));
    assert_eq!(card.wait(1, 3).next, 0);
    card.clean();
}

#[test]
fn a_withdrawal_takes_back_what_back_left() {
    let mut card = displaced("slot=1,speed=1", 20_000);
    card.order(1, 2 | NEVER);
    card.held(1, 0);
    let short = card.wait(1, 2);
    assert_eq!((short.reason, short.next), (R_FINISH, 0));
    card.clean();
}

#[test]
fn a_reset_takes_back_what_back_left() {
    let mut card = displaced("slot=1,speed=1", 1 << 40);
    card.rig.w(0x18, 2);
    card.run(1);
    card.rig.w(0x18, 0);
    card.held(1, 0);
    card.begin(1, 2, 2);
    card.wait_working(1);
    card.order(1, 3 | at(0));
    assert_eq!(card.wait(1, 3).next, 0);
    card.clean();
}

#[test]
fn a_job_that_has_ended_is_not_gone_back_to() {
    let mut card = driver(&["slot=1,speed=1"]);
    card.membench(0, 5000);
    card.membench(1, 10);
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | NEVER | BACK);
    let first = card.wait(1, 1);
    assert_eq!((first.reason, first.back), (R_FINISH, false));
    assert_eq!(card.wait(1, 2).next, 0);
    card.clean();
}

#[test]
fn a_job_whose_restore_was_aborted_is_gone_back_to() {
    let mut card = driver(&["slot=1,speed=20,restore_us=2000000"]);
    card.endless(0);
    card.membench(1, 10);
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.wait_restoring(1);
    card.order(1, 2 | next(1) | at(0) | BACK);
    let record = card.wait(1, 2);
    assert_eq!((record.reason, record.back), (R_NOT_RUN, true));
    assert_eq!(card.wait(1, 3).next, 1);
    card.wait_restoring(1);
    card.order(1, 4 | at(0));
    assert_eq!(card.wait(1, 4).reason, R_NOT_RUN);
    card.clean();
}

#[test]
fn the_job_that_is_gone_back_to_is_in_reach() {
    let card = displaced("slot=1,speed=1", 20_000);
    card.reg(0, 0x48, 77);
    card.wait(1, 2);
    card.wait_working(1);
    card.saw("context_changed", 1);

    let mut card = displaced("slot=1,speed=1", 1 << 40);
    card.begin(2, 0, 0);
    card.saw("named_twice", 1);
}
