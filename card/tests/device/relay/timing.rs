// SPDX-License-Identifier: GPL-2.0-or-later
//! AT: when the present run stops, and how.

use super::*;

#[test]
fn at_counts_work() {
    let mut card = driver(&["slot=1,speed=20,restore_us=20000"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    // A busy machine may be late at times; the card is never early.
    let exact = (2..40).any(|run| {
        card.order(1, (run - 1) | next(0) | VACANT | RESUME | NEVER);
        card.order(1, run | at(5000));
        let record = card.wait(1, run);
        assert_eq!(record.reason, R_PAUSED);
        assert!(record.worked - record.began >= 20_000_000);
        assert!(record.work_us() >= 5000, "{record:?}");
        record.work_us() < 5200
    });
    assert!(exact);
    card.clean();
}

#[test]
fn an_engine_without_pace_stops_in_time() {
    let mut card = driver(&["slot=1,speed=0"]);
    card.endless(0);
    let exact = (1..100).any(|run| {
        card.begin(1, run - 1, 0);
        card.order(1, run | DROP | at(2000));
        let record = card.wait(1, run);
        assert_eq!(record.reason, R_DROPPED);
        assert!(record.work_us() >= 2000);
        record.work_us() < 2200
    });
    assert!(exact);
    card.clean();
}

#[test]
fn an_at_that_is_past_is_due_at_once() {
    let mut card = driver(&["slot=1,speed=20"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.wait_working(1);
    std::thread::sleep(Duration::from_millis(20));
    card.order(1, 1 | next(1) | at(10_000));
    let record = card.wait(1, 1);
    assert!(record.work_us() >= 20_000);
    card.order(1, 2 | at(60_000));
    let record = card.wait(1, 2);
    assert!(record.work_us() >= 60_000, "from the begin of its own work");
    card.clean();
}

#[test]
fn at_zero_aborts_a_restore() {
    let mut card = driver(&["slot=1,speed=20,restore_us=10000000"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.order(1, 1 | at(0));
    card.wait(1, 1);
    card.order(1, 1 | next(0) | VACANT | RESUME | NEVER);
    card.wait_restoring(1);
    card.order(1, 2 | next(1) | at(1));
    std::thread::sleep(Duration::from_millis(10));
    assert!(!card.has_record(1, 2), "only 0 aborts");
    for bits in [0, DROP, BOUNDARY] {
        let run = card.run(1);
        card.order(1, run | bits);
        let record = card.wait(1, run);
        assert_eq!(record.reason, R_NOT_RUN);
        assert_eq!((record.worked, record.stopped), (0, 0));
        assert!(record.left > record.began);
        assert_eq!(card.rig.sr(1, CTL) & 0xfff, IDLE);
        card.order(1, run | next(0) | VACANT | RESUME | NEVER);
    }
    card.order(1, 5 | next(1) | at(0));
    assert_eq!(card.wait(1, 5).reason, R_NOT_RUN, "and the next one runs");
    card.rig.ask("set slot=1 restore_us=0");
    card.order(1, 6 | next(0) | RESUME | at(0));
    assert_eq!(card.wait(1, 6).reason, R_PAUSED);
    card.order(1, 7 | at(1000));
    assert_eq!(card.wait(1, 7).reason, R_PAUSED, "the snapshot was good");
    // The log has the time that is in the record.
    let log = card.rig.log_text();
    let time = |line: &str| line.split(',').next().map(str::to_owned);
    let of = |what: &str| {
        log.lines()
            .filter(|line| line.contains(what))
            .map(time)
            .collect::<Vec<_>>()
    };
    let records = of("\"reason\":\"not_run\"");
    assert!(
        !records.is_empty() && records.iter().all(|t| of("\"phase\":\"idle\"").contains(t)),
        "{log}"
    );
    let history = card.rig.ask("history from=0");
    assert!(history.contains("1:resume:0xa0,1:notrun:0xa0"), "{history}");
    let runs = card.rig.ask("runs slot=1");
    assert!(
        runs.contains("0xa0:1:5:6:0:"),
        "all of its runs were stopped: {runs}"
    );
    card.clean();
}

#[test]
fn at_zero_lets_a_new_job_load() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    for run in 1..30 {
        card.begin(1, run - 1, 0);
        card.order(1, run | at(0));
        let record = card.wait(1, run);
        assert_eq!(record.reason, R_PAUSED);
        assert!(record.worked != 0 && record.stopped >= record.worked);
    }
    card.clean();
}

#[test]
fn nobody_with_an_at_leaves_the_slot_vacant() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.order(1, 1 | at(3000));
    let record = card.wait(1, 1);
    assert_eq!(
        (record.reason, record.next, record.void),
        (R_PAUSED, 0, false)
    );
    assert_eq!(card.rig.sr(1, CTL) & 0xfff, PAUSED);
    assert_eq!(card.run(1), 1);
    card.clean();
}

#[test]
fn drop_saves_nothing() {
    let mut card = driver(&["slot=1,speed=20,save_us=50000"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.order(1, 1 | DROP);
    let record = card.wait(1, 1);
    assert_eq!(record.reason, R_DROPPED);
    assert!(record.left - record.stopped < 40_000_000);
    assert_eq!(card.rig.get(SNAP, 4096), vec![0; 4096]);
    assert_eq!(card.rig.sr(1, CTL) & 0xfff, IDLE);
    card.clean();
}

#[test]
fn a_stop_at_a_boundary() {
    let mut card = driver(&["slot=0,speed=1"]);
    card.endless_list(0);
    card.begin(0, 0, 0);
    let begin = Instant::now();
    while card.rig.sr(0, 0x48) == 0 {
        assert!(begin.elapsed() < LIMIT);
    }
    card.order(0, 1 | BOUNDARY);
    let record = card.wait(0, 1);
    assert_eq!(record.reason, R_PAUSED);
    let history = card.rig.ask("history from=0");
    assert!(
        history.ends_with("0:boundary:0xa0,0:paused:0xa0"),
        "{history}"
    );
    let count = u64::from_le_bytes(card.rig.get(SNAP + 24, 8).try_into().unwrap());
    assert!(count > 0 && count % 1024 == 0, "{count}");
    card.order(0, 1 | next(0) | VACANT | NEVER);
    card.wait_working(0);
    card.order(0, 2 | BOUNDARY | DROP);
    assert_eq!(card.wait(0, 2).reason, R_DROPPED);
    card.clean();
}

/// Returns the record of a run that had begun to stop at a boundary, 65 ms away, when the order
/// `word` arrived. On a busy machine, the order may be too late: then everything starts over.
fn stopped_meanwhile(word: u64) -> Record {
    for _ in 0..50 {
        let mut card = driver_of(vec![EngineKind::Blockmix], &["slot=0,speed=1"]);
        (0..2).for_each(|context| card.blockmix(context));
        card.begin(0, 0, 0);
        let begin = Instant::now();
        while card.rig.table("counters slot=0")["dma_writes"] == 0 {
            assert!(begin.elapsed() < LIMIT);
        }
        card.order(0, 1 | BOUNDARY);
        card.order(0, 1 | word);
        let record = card.wait(0, 1);
        let counters = card.rig.table("counters slot=0");
        card.run(0);
        if counters["orders_dropped"] == 0 && record.reason != R_FINISH {
            card.clean();
            return record;
        }
    }
    panic!("the machine is too slow");
}

#[test]
fn stopping_that_has_begun_is_not_taken_back() {
    for word in [
        NEVER | next(1),
        NEVER,
        at(60_000) | next(1) | BOUNDARY,
        at(60_000) | next(1),
    ] {
        let record = stopped_meanwhile(word);
        let next = word >> 16 & 0xffff;
        assert_eq!((record.reason, record.next), (R_PAUSED, next));
        assert!(record.work_us() < 1_000_000);
    }
}

#[test]
fn a_stop_at_a_boundary_becomes_a_drop() {
    let record = stopped_meanwhile(next(1) | DROP | at(60_000));
    assert_eq!((record.reason, record.next), (R_DROPPED, 2));
}

#[test]
fn a_stop_at_a_boundary_becomes_one_at_once() {
    let mut card = driver(&["slot=0,speed=1"]);
    card.endless_list(0);
    // The boundary is 1,024 us after the start; on a busy machine, it may be later.
    let at_once = (1..200).any(|run| {
        card.begin(0, run - 1, 0);
        card.order(0, run | BOUNDARY | at(400));
        let begin = Instant::now();
        while card.rig.table("counters slot=0")["pauses_at_boundary"] < run {
            assert!(begin.elapsed() < LIMIT);
        }
        card.order(0, run | at(60_000));
        assert_eq!(card.wait(0, run).reason, R_PAUSED);
        let count = u64::from_le_bytes(card.rig.get(SNAP + 24, 8).try_into().unwrap());
        count % 1024 != 0
    });
    assert!(at_once);
    card.clean();
}

#[test]
fn an_engine_without_boundaries_stops_at_once() {
    let mut card = driver(&["slot=1,speed=20"]);
    card.endless(0);
    card.begin(1, 0, 0);
    card.order(1, 1 | BOUNDARY | at(100));
    assert_eq!(card.wait(1, 1).reason, R_PAUSED);
    card.clean();
}

#[test]
fn an_engine_that_stops_at_boundaries_only_is_dropped_anywhere() {
    let mut card = driver_of(vec![EngineKind::Blockmix], &["slot=0,speed=1"]);
    card.blockmix(0);
    card.begin(0, 0, 0);
    card.wait_working(0);
    card.order(0, 1 | DROP);
    let record = card.wait(0, 1);
    assert_eq!(record.reason, R_DROPPED);
    assert!(record.work_us() < 60_000, "a block takes 65 ms");
    card.clean();
}

#[test]
fn a_drop_at_once_is_not_taken_back() {
    for word in [at(0), at(60_000) | BOUNDARY | next(1), NEVER | next(1)] {
        let mut card = driver_of(vec![EngineKind::Blockmix], &["slot=0,speed=1"]);
        (0..2).for_each(|context| card.blockmix(context));
        // The engine waits for memory in the middle of a block.
        let client = Client::of(&card);
        card.reg(0, 0x30, UNMAPPED);
        card.field(0, 0x18, u64::MAX);
        card.begin(0, 0, 0);
        client.wait_asked();
        card.order(0, 1 | DROP);
        card.order(0, 1 | word);
        client.open.store(true, Ordering::Release);
        let record = card.wait(0, 1);
        assert_eq!(
            (record.reason, record.next),
            (R_DROPPED, word >> 16 & 0xffff)
        );
        card.run(0);
        card.clean();
    }
}

#[test]
fn a_save_that_has_begun_is_not_dropped() {
    let mut card = driver(&["slot=1,speed=20,save_us=30000"]);
    (0..2).for_each(|context| card.endless(context));
    card.begin(1, 0, 0);
    card.wait_working(1);
    card.order(1, 1);
    card.wait_phase(1, "saving");
    card.order(1, 1 | next(1) | DROP);
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.next), (R_PAUSED, 2));
    card.order(1, 2);
    card.wait(1, 2);
    card.clean();
}

#[test]
fn finish_beside_at() {
    let mut card = driver(&["slot=1,speed=64"]);
    card.membench(0, 1000);
    card.endless(1);
    card.rig.ask("fault slot=1 finish_on_pause");
    card.begin(1, 0, 0);
    card.order(1, 1 | next(1) | at(3000));
    let record = card.wait(1, 1);
    assert_eq!((record.reason, record.next), (R_FINISH, 2));
    card.order(1, 2);
    card.wait(1, 2);
    card.clean();
}
