// SPDX-License-Identifier: GPL-2.0-or-later
//! The registers, and what a driver may write when. Which orders are held, taken, dropped and void,
//! also by resets. Runs of both kinds on one slot.

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
    let reserved = [35, 38, 39].map(|bit| next(1) | 1 << bit);
    for word in [next(0)].into_iter().chain(reserved) {
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
    for bit in [35, 38, 39] {
        card.order(1, 1 | next(0) | VACANT | 1 << bit | NEVER);
        assert_eq!(card.run(1), 1, "{bit}");
    }
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).cookie, 0xc00);
    card.saw("order_bad", 3);
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

#[test]
fn registers() {
    let mut rig = Rig::with(Profile::Relay, &[]);
    assert_eq!(rig.r(0x110), 0b11111);
    assert_eq!(rig.r(0x118), 0x10_0101);
    assert_eq!((rig.r(0x100), rig.r(0x108)), (0x315f_4154_414d_5246, 1));
    for off in [0x120, 0x128, 0x130, 0x300, 0x310, 0x340, 0x350] {
        assert_eq!(rig.r(off), 0, "{off:#x}");
    }
    rig.w(0x120, 0x1_2345_6789_abcd);
    rig.w(0x128, 65_536);
    rig.w(0x130, 0xffff);
    let all = [0x120, 0x128, 0x130].map(|off| rig.r(off));
    assert_eq!(all, [0x1_2345_6789_a000, 65_536, 0xf000]);
    rig.w(0x348, u64::MAX);
    assert_eq!((rig.r(0x340), rig.r(0x348)), (0, 1));
    rig.w(0x348, 0);
    rig.clean();
    rig.w(0x128, 65_537);
    assert_eq!(rig.r(0x128), 65_536);
    rig.w(0x118, 0);
    rig.r(0x318);
    rig.r(0x138);
    rig.client.region_write(BAR0, 0x300, &[0; 4]).unwrap();
    rig.saw("bad_access", 5);
}

#[test]
fn a_card_without_relay() {
    for profile in [Profile::Base, Profile::Irq] {
        let mut rig = Rig::with(profile, &[]);
        let none = if profile == Profile::Base {
            u64::MAX
        } else {
            assert_eq!(rig.r(0x110) & 16, 0);
            0
        };
        assert_eq!(rig.r(0x118), none);
        rig.clean();
        for off in [0x120, 0x128, 0x130, 0x300, 0x340] {
            rig.w(off, 1);
            assert_eq!(rig.r(off), none);
        }
        rig.saw("bad_access", 10);
    }
}

#[test]
fn relay_changes_while_vacant_only() {
    let mut card = driver(&[]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.rig.w(RELAY + 8, 0);
    assert_eq!(card.rig.r(RELAY + 8), 1);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.rig.w(RELAY + 8, 0);
    assert_eq!(card.rig.r(RELAY + 8), 0);
    card.rig.w(0x18, 2);
    card.rig.w(RELAY + 8, 1);
    assert_eq!(card.rig.r(RELAY + 8), 1, "in reset as well");
    card.saw("bad_access", 1);
}

#[test]
fn tables_change_while_relay_is_off_only() {
    let mut card = driver(&[]);
    for off in [0x120, 0x128, 0x130] {
        card.rig.w(off, 0);
    }
    let all = [0x120, 0x128, 0x130].map(|off| card.rig.r(off));
    assert_eq!(all, [TABLE, COUNT, RECORDS]);
    card.rig.saw("bad_access", 3);
    (0..3).for_each(|slot| card.rig.w(RELAY + 8 * slot, 0));
    card.rig.w(0x130, 0);
    assert_eq!(card.rig.r(0x130), 0);
    card.saw("bad_access", 3);
}

#[test]
fn writes_of_the_driver_are_ignored() {
    let mut card = driver(&[]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.rig.offset(1, 0x1000);
    card.rig.window(1, 0x1000, 0x1000);
    card.rig.sw(1, CTL, PAUSE);
    card.rig.snapshot(1, 0x8000);
    let state = card.rig.table("state slot=1");
    let control = ["dma_offset", "window_base", "window_size"].map(|key| state[key]);
    assert_eq!(control, [0, 0, RAM]);
    card.rig.saw("window_busy", 5);
    card.rig.sw(1, TAG, 7);
    card.rig.sw(1, 0x30, 7);
    assert_eq!(card.rig.sr(1, TAG), 0xa0, "reads show what was loaded");
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.rig.sw(1, CTL, START_NEW);
    assert_eq!(card.run(1), 1);
    let seen = card.rig.violations();
    assert_eq!((seen["window_busy"], seen["write_running"]), (6, 2));
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_reset_voids_the_order_and_leaves_run() {
    let mut card = driver(&["slot=1,speed=20,save_us=20000"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | at(1000));
    card.wait_phase(1, "saving");
    card.rig.reset(1);
    assert_eq!(card.rig.sr(1, CTL), 1 << 32 | IDLE);
    std::thread::sleep(Duration::from_millis(40));
    assert!(!card.has_record(1, 1));
    assert_eq!((card.run(1), card.rig.r(RELAY + 8)), (1, 1));
    card.held(1, 0);
    card.order(1, 1 | next(1) | NEVER);
    assert_eq!(card.run(1), 1, "vacant");
    card.begin(1, 1, 1);
    card.order(1, 2 | at(0));
    assert_eq!(card.wait(1, 2).cookie, 0xc01);
    card.clean();
}

#[test]
fn a_reset_during_a_load_or_a_restore() {
    let mut card = driver(&["slot=1,restore_us=10000000"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.rig.reset(1);
    card.run(1);
    card.begin(1, 1, 0);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.order(1, 2 | next(0) | VACANT | RESUME | NEVER);
    card.wait_restoring(1);
    card.rig.reset(1);
    assert_eq!(card.rig.sr(1, CTL), 3 << 32 | IDLE);
    assert!(!card.has_record(1, 1) && !card.has_record(1, 3));
    card.clean();
}

#[test]
fn a_slot_in_reset_drops_orders() {
    let mut card = driver(&[]);
    card.endless(0);
    card.rig.w(0x18, 2);
    card.begin(1, 0, 0);
    card.order(1, next(0) | NEVER);
    assert_eq!(card.run(1), 0);
    card.rig.w(0x18, 0);
    card.begin(1, 0, 0);
    assert_eq!(card.run(1), 1);
    card.saw("start_busy", 1);
}

#[test]
fn an_order_before_the_flush() {
    let mut card = driver(&[]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.rig.reset(1);
    card.begin(1, 1, 1);
    card.order(1, 2 | at(0));
    card.wait(1, 2);
    card.saw("start_undrained", 1);
}

#[test]
fn a_reset_of_the_function() {
    let mut card = driver(&[]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    // AT is so late that the reset comes first even on a slow machine.
    card.order(1, 1 | next(1) | at(3_000_000));
    card.wait_working(1);
    card.rig.client.region_write(CONFIG, 0x69, &[0x80]).unwrap();
    let all = [0x120, 0x128, 0x130, RELAY + 8].map(|off| card.rig.r(off));
    assert_eq!(all, [0; 4]);
    assert_eq!(card.rig.sr(1, CTL), 0);
    std::thread::sleep(Duration::from_millis(3020));
    assert_eq!(card.word7(1, 1), 0, "no record");
    card.rig.master();
    card.rig.w(0x120, TABLE);
    card.rig.w(0x128, COUNT);
    card.rig.w(0x130, RECORDS);
    card.rig.w(RELAY + 8, 1);
    card.begin(1, 0, 1);
    card.order(1, 1 | at(0));
    assert_eq!(card.wait(1, 1).cookie, 0xc01);
    card.clean();
}

/// Sets up a walk of a list, which a test runs by orders or by hand.
fn walk(card: &Driver) -> (u64, u64) {
    let (head, count, checksum) = card.rig.list(ARENA, 60_000, 3);
    let regs = [(0x30, head), (0x40, 3), (0x48, 0x8000), (TAG, 0xa0)];
    card.context(0, &regs);
    for (off, val) in regs {
        card.reg(0, off, val);
    }
    (count, checksum)
}

fn load_by_hand(card: &mut Driver) {
    card.rig.w(RELAY, 0);
    card.rig.open(0);
    card.rig.snapshot(0, SNAP);
    for off in [0x30, 0x38, 0x40, 0x48, TAG] {
        let value = card.rig.get64(REGS + off);
        card.rig.sw(0, off, value);
    }
}

#[test]
fn a_run_by_hand_goes_on_by_order() {
    let mut card = driver(&["slot=0,speed=4"]);
    let (count, checksum) = walk(&card);
    load_by_hand(&mut card);
    card.rig.sw(0, CTL, START_NEW);
    std::thread::sleep(Duration::from_millis(3));
    card.rig.sw(0, CTL, PAUSE);
    assert_eq!(card.rig.wait_rest(0), PAUSED);
    card.rig.w(RELAY, 1);
    card.order(0, 1 | next(0) | VACANT | RESUME | NEVER);
    card.order(0, 2 | at(3000));
    assert_eq!(card.wait(0, 2).reason, R_PAUSED);
    card.order(0, 2 | next(0) | VACANT | RESUME | NEVER);
    assert_eq!(card.wait(0, 3).reason, R_FINISH);
    let found = [0x8000, 0x8008].map(|gpa| card.rig.get64(gpa));
    assert_eq!(found, [count, checksum]);
    card.clean();
}

#[test]
fn a_run_by_order_goes_on_by_hand() {
    let mut card = driver(&["slot=0,speed=4"]);
    let (count, checksum) = walk(&card);
    card.begin(0, 0, 0);
    card.order(0, 1 | at(3000));
    assert_eq!(card.wait(0, 1).reason, R_PAUSED);
    load_by_hand(&mut card);
    card.rig.reset(0);
    card.rig.status(0);
    for off in [0x30, 0x38, 0x40, 0x48, TAG] {
        let value = card.rig.get64(REGS + off);
        card.rig.sw(0, off, value);
    }
    card.rig.sw(0, CTL, START_RESUME);
    assert_eq!(card.rig.wait_rest(0), FINISH);
    let found = [0x8000, 0x8008].map(|gpa| card.rig.get64(gpa));
    assert_eq!(found, [count, checksum]);
    assert_eq!(card.run(0), 2, "the runs are counted together");
    card.clean();
}
