// SPDX-License-Identifier: GPL-2.0

//! What the simulator promises: the same numbers for the same seed, the same requests for every mode, no request lost.

use fermata_sim::arrivals::{Arrivals, Work};
use fermata_sim::compare::{compare, on_trace, Row, Settings, REFERENCES};
use fermata_sim::mode::Mode;
use fermata_sim::sim::{run, Costs, Plan};
use fermata_sim::workload::{ClientPlan, Kind, Phases, Workload};
use fermata_sim::{fleet, gangs, trace, MS, S, US};

fn settings(seed: u64) -> Settings {
    Settings {
        workloads: Workload::all(),
        loads: vec![None, Some(0.7)],
        modes: Mode::ALL.to_vec(),
        costs: Costs::DEFAULT,
        // All phase differences, and not only one.
        phases: Phases::Drifting,
        seconds: 2,
        seed,
    }
}

fn json(seed: u64) -> String {
    serde_json::to_string(&compare(&settings(seed))).unwrap()
}

#[test]
fn a_seed_gives_the_same_numbers_bit_for_bit() {
    let first = json(1);
    assert_eq!(first, json(1));
    assert_ne!(first, json(2));
}

#[test]
fn every_mode_has_the_same_requests_and_loses_none() {
    for rows in compare(&settings(3)).chunks(REFERENCES + Mode::ALL.len()) {
        let requests = rows[REFERENCES].requests;
        let lc = |row: &Row| row.lc.count as u64 + row.lc_skipped;
        assert_eq!(lc(&rows[0]), lc(&rows[1]), "isolated and alone");
        for row in &rows[REFERENCES..] {
            assert_eq!(row.requests, requests, "{} {}", row.workload, row.mode);
            assert_eq!(lc(row), lc(&rows[0]), "{}: LC", row.mode);
            let be = row.be.count as u64 + row.be_skipped;
            assert_eq!(lc(row) + be, requests, "{}: BE", row.mode);
            assert_eq!(row.unfinished, 0, "{} {}", row.workload, row.mode);
        }
    }
}

fn one(arrivals: &[(u64, Option<u64>)], kind: Kind) -> ClientPlan {
    ClientPlan {
        kind,
        arrivals: Arrivals::Trace(arrivals.into()),
        work: Work::Fixed(MS),
        preparation: 0,
        skips_late: false,
        stream: None,
        gang: None,
    }
}

/// A short history, reckoned by hand: BE begins at 0 with 5 ms, LC comes at 1 ms with 1 ms.
#[test]
fn a_switch_takes_what_the_costs_say() {
    let costs = Costs::DEFAULT;
    let clients = vec![
        one(&[(0, Some(5 * MS))], Kind::Be),
        one(&[(MS, Some(MS))], Kind::Lc),
    ];
    let plan = |mode| Plan {
        mode,
        costs,
        cards: 1,
        slots: 1,
        clients: vec![clients.clone()],
        gangs: false,
        seed: 0,
        warm_up: 0,
        end: S,
        drain: S,
    };
    let seen = costs.irq + costs.read;
    let waits = run(&plan(Mode::NO_PREEMPTION));
    let be_end = costs.call + costs.start + 5 * MS + seen;
    let lc_end = be_end + costs.start + MS + seen;
    assert_eq!(waits.be, [be_end + costs.wake]);
    assert_eq!(waits.lc, [lc_end + costs.wake - MS]);
    assert_eq!((waits.starts, waits.saves), (2, 0));

    let slices = run(&plan(Mode::slices(2 * MS)));
    let pause = costs.call + 2 * MS + costs.timer;
    let lc_end = pause + costs.save + seen + costs.start + MS + seen;
    assert_eq!(slices.lc, [lc_end + costs.wake - MS]);
    let left = 5 * MS - (pause - costs.call - costs.start);
    let be_end = lc_end + costs.start + costs.restore + left + seen;
    assert_eq!(slices.be, [be_end + costs.wake]);
    assert_eq!((slices.starts, slices.saves), (3, 1));
}

/// The history above. BE, which came before the warm-up, ends within the time that counts; or it is saved after that time.
#[test]
fn throughput_counts_what_ends_between_the_warm_up_and_the_end() {
    let plan = |mode, warm_up, end| Plan {
        mode,
        costs: Costs::DEFAULT,
        cards: 1,
        slots: 1,
        clients: vec![vec![
            one(&[(0, Some(5 * MS))], Kind::Be),
            one(&[(MS, Some(MS))], Kind::Lc),
        ]],
        gangs: false,
        seed: 0,
        warm_up,
        end,
        drain: S,
    };
    let across = run(&plan(Mode::NO_PREEMPTION, 500 * US, S));
    assert_eq!((across.be_done, across.be.len()), (1, 0));
    let before = run(&plan(Mode::NO_PREEMPTION, 10 * MS, S));
    assert_eq!((before.be_done, before.be.len()), (0, 0));
    let beyond = run(&plan(Mode::slices(2 * MS), 0, 3 * MS / 2));
    assert_eq!((beyond.be_done, beyond.be.len()), (0, 1));
    assert_eq!((beyond.starts, beyond.saves), (3, 0));
}

#[test]
fn a_trace_is_followed() {
    let text = "time_us,client,kind,work_us\n0,a,BE,5000\n1000,b,LC,1000\n20000,b,LC,1000\n";
    let (clients, last) = trace::parse(text, 0).unwrap();
    let rows = on_trace(&clients, last, &Mode::ALL, Costs::ZERO, 1);
    let names: Vec<_> = rows.iter().map(|row| row.mode.as_str()).collect();
    assert_eq!(names[..3], ["isolated", "alone", "no-preemption"]);
    let us = |i: usize| {
        let lc = &rows[i].lc;
        (lc.count, lc.p50_us as u64, lc.max_us as u64)
    };
    assert_eq!(us(0), (2, 1_000, 1_000));
    assert_eq!(us(1), (2, 1_000, 1_000));
    assert_eq!(us(2), (2, 1_000, 5_000));
    // Round robin by 2 ms: the slice that runs ends at 2 ms.
    assert_eq!(
        (rows[4].mode.as_str(), us(4)),
        ("slices-2000us", (2, 1_000, 2_000))
    );
}

#[test]
fn a_fleet_is_the_sum_of_its_cards() {
    let settings = |cards, slots| fleet::Settings {
        mode: Mode::slices(500 * US),
        cards,
        slots,
        contexts: 50,
        load: 0.8,
        costs: Costs::DEFAULT,
        ms: 500,
        seed: 5,
    };
    let (one, many) = (
        fleet::fleet(&settings(1, 2)),
        fleet::fleet(&settings(40, 2)),
    );
    assert_eq!((many.cards, many.slots, many.contexts), (40, 80, 2_000));
    let per_card = many.requests as f64 / 40.0;
    assert!((one.requests as f64 / per_card - 1.0).abs() < 0.2);
    assert_eq!(many.lc.count + many.be.count, many.requests as usize);
}

/// What LC costs when it comes while BE runs: the save of the other, and what every START costs.
#[test]
fn lc_waits_for_one_save() {
    let costs = Costs::DEFAULT;
    let clients = vec![
        one(&[(0, Some(5 * MS))], Kind::Be),
        one(&[(MS, Some(MS))], Kind::Lc),
    ];
    let outcome = run(&Plan {
        mode: Mode::LC_BE,
        costs,
        cards: 1,
        slots: 1,
        clients: vec![clients],
        gangs: false,
        seed: 0,
        warm_up: 0,
        end: S,
        drain: S,
    });
    let seen = costs.irq + costs.read;
    let expected = costs.call + costs.save + seen + costs.start + MS + seen + costs.wake;
    assert_eq!(outcome.lc, [expected]);
    assert_eq!((outcome.starts, outcome.saves), (3, 1));
}

/// LC clients that never queue behind one another are as fast alone as with a slot each; those that do are not.
#[test]
fn alone_is_slower_than_isolated_only_by_queueing() {
    let rows = compare(&Settings {
        seconds: 20,
        modes: Vec::new(),
        loads: vec![None],
        ..settings(4)
    });
    for rows in rows.chunks(REFERENCES) {
        let (isolated, alone) = (rows[0].lc, rows[1].lc);
        match rows[0].workload.as_str() {
            "D" | "E" => {
                let times = isolated.p99_us / alone.p99_us;
                assert!(times < 0.9, "{isolated:?} {alone:?}");
            }
            _ => assert_eq!(isolated, alone),
        }
    }
}

/// With a hint LC waits for nothing: the save is over when it comes.
#[test]
fn announced_lc_waits_for_no_save() {
    let costs = Costs::DEFAULT;
    // The first one tells what a save takes.
    let lc = ClientPlan {
        preparation: 200 * US,
        ..one(&[(MS, Some(MS)), (20 * MS, Some(MS))], Kind::Lc)
    };
    let clients = vec![one(&[(0, Some(50 * MS))], Kind::Be), lc];
    let outcome = run(&Plan {
        mode: Mode::HINTS,
        costs,
        cards: 1,
        slots: 1,
        clients: vec![clients],
        gangs: false,
        seed: 0,
        warm_up: 10 * MS,
        end: S,
        drain: S,
    });
    let seen = costs.irq + costs.read;
    let expected = 2 * costs.call + 200 * US + costs.start + MS + seen + costs.wake;
    assert_eq!(outcome.lc, [expected]);
    assert_eq!((outcome.starts, outcome.saves), (5, 2));
    assert_eq!((outcome.hints, outcome.hints_used), (2, 2));
}

/// What hints are for: LC as good as alone, although the slot is full, and hardly less for BE.
#[test]
fn hints_keep_lc_as_good_as_alone() {
    let rows = compare(&Settings {
        modes: vec![Mode::NO_PREEMPTION, Mode::HINTS, Mode::HINTS.on_relay()],
        seconds: 10,
        ..settings(4)
    });
    for rows in rows.chunks(REFERENCES + 3) {
        let [.., plain, relayed] = rows else {
            panic!("three modes");
        };
        let (plain, relayed) = (plain.lc.p99_us, relayed.lc.p99_us);
        assert!(
            relayed < 1.005 * plain,
            "{}: {plain} {relayed}",
            rows[0].workload
        );
    }
    let of = |name: &str| {
        let rows = rows.iter();
        rows.filter(|row| row.mode == "hints" && row.workload == name)
            .collect::<Vec<_>>()
    };
    for row in [of("A"), of("B")].concat() {
        assert!(row.lc_p50_added < 0.05, "{row:?}");
        assert!(row.lc_p99_added < 0.10, "{row:?}");
        assert_eq!(row.hints, row.hints_used);
    }
    for row in of("C") {
        assert!(row.be_kept > Some(0.9), "{row:?}");
    }
}

/// Hints that are wrong are as good as none: LC hardly later, BE hardly fewer, than without.
#[test]
fn wrong_hints_harm_nobody() {
    for preparation_off in [50, 100] {
        let costs = Costs {
            preparation_off,
            ..Costs::DEFAULT
        };
        let rows = compare(&Settings {
            modes: vec![Mode::LC_BE, Mode::HINTS],
            costs,
            loads: vec![None],
            seconds: 10,
            ..settings(4)
        });
        for rows in rows.chunks(REFERENCES + 2) {
            let [without, with] = &rows[REFERENCES..] else {
                panic!("two modes");
            };
            assert!(with.hints > with.hints_used, "some are wrong: {with:?}");
            assert!(
                with.lc.p99_us < 1.02 * without.lc.p99_us,
                "{with:?} {without:?}"
            );
            assert!(
                with.be_per_s > 0.99 * without.be_per_s,
                "{with:?} {without:?}"
            );
        }
    }
}

/// Members of a gang start within one switch, and gangs cost at most 5 % of the work that gets done.
#[test]
fn gangs_start_together_and_lose_little() {
    for mode in [Mode::LC_BE, Mode::LC_BE.on_relay()] {
        for slots in gangs::SIZES {
            for members in gangs::SIZES.into_iter().filter(|&members| members <= slots) {
                for singles in [0, slots] {
                    let row = gangs::gangs(&gangs::Settings {
                        mode,
                        slots,
                        members,
                        singles,
                        rate: 100.0,
                        costs: Costs::DEFAULT,
                        seconds: 5,
                        seed: 1,
                    });
                    assert_eq!(row.mode, mode.name());
                    assert!(row.skew_switches <= 1.0, "{row:?}");
                    assert!(row.loss <= 0.05, "{row:?}");
                    assert!(row.lc.count > 450, "{row:?}");
                }
            }
        }
    }
}
