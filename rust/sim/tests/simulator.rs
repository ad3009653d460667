// SPDX-License-Identifier: GPL-2.0

//! The simulator's promises: the same numbers for the same seed, the same requests for every mode,
//! and no lost requests.

use fermata_output::say;
use fermata_sim::compare::{compare, on_trace, Row, Settings, REFERENCES};
use fermata_sim::mode::Mode;
use fermata_sim::sim::{run, Costs, Outcome, Plan};
use fermata_sim::workload::{Arrivals, ClientPlan, Kind, Phases, Work, Workload};
use fermata_sim::{fleet, gangs, workload, MS, S, US};

fn settings(seed: u64) -> Settings {
    Settings {
        workloads: Workload::all(),
        loads: vec![None, Some(0.7)],
        modes: Mode::ALL.to_vec(),
        costs: Costs::DEFAULT,
        // Cover all phase differences, not only one.
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

/// Returns a client whose requests arrive at these times, with this work each.
fn client(kind: Kind, requests: &[(u64, u64)]) -> ClientPlan {
    let requests: Vec<_> = requests
        .iter()
        .map(|&(at, work)| (at, Some(work)))
        .collect();
    ClientPlan {
        kind,
        arrivals: Arrivals::Trace(requests.into()),
        work: Work::Fixed(0),
        preparation: 0,
        skips_late: false,
        stream: None,
        gang: None,
    }
}

/// A short history, calculated by hand: BE begins at 0 with 5 ms of work, and LC arrives at 1 ms
/// with 1 ms of work.
#[test]
fn a_switch_takes_what_the_costs_say() {
    let costs = Costs::DEFAULT;
    let clients = vec![
        client(Kind::Be, &[(0, 5 * MS)]),
        client(Kind::Lc, &[(MS, MS)]),
    ];
    let plan = |mode| Plan::one_slot(mode, costs, clients.clone());
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

/// The history above. BE, which arrived before the warm-up, ends within the time that counts, or is
/// saved after that time.
#[test]
fn throughput_counts_what_ends_between_the_warm_up_and_the_end() {
    let plan = |mode, warm_up, end| Plan {
        warm_up,
        end,
        ..Plan::one_slot(
            mode,
            Costs::DEFAULT,
            vec![
                client(Kind::Be, &[(0, 5 * MS)]),
                client(Kind::Lc, &[(MS, MS)]),
            ],
        )
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
    let (clients, last) = workload::parse_trace(text, 0).unwrap();
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
    // Round robin with slices of 2 ms: the current slice ends at 2 ms.
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

/// LC that arrives while BE runs waits for one save, and for the usual costs of a START.
#[test]
fn lc_waits_for_one_save() {
    let costs = Costs::DEFAULT;
    let clients = vec![
        client(Kind::Be, &[(0, 5 * MS)]),
        client(Kind::Lc, &[(MS, MS)]),
    ];
    let outcome = run(&Plan::one_slot(Mode::LC_BE, costs, clients));
    let seen = costs.irq + costs.read;
    let expected = costs.call + costs.save + seen + costs.start + MS + seen + costs.wake;
    assert_eq!(outcome.lc, [expected]);
    assert_eq!((outcome.starts, outcome.saves), (3, 1));
}

/// LC clients that never queue behind one another are as fast alone as with a slot each; clients
/// that do queue are not.
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

/// With a hint LC waits for nothing: the save is over when LC arrives.
#[test]
fn announced_lc_waits_for_no_save() {
    let costs = Costs::DEFAULT;
    // The first request shows how long a save takes.
    let lc = ClientPlan {
        preparation: 200 * US,
        ..client(Kind::Lc, &[(MS, MS), (20 * MS, MS)])
    };
    let clients = vec![client(Kind::Be, &[(0, 50 * MS)]), lc];
    let outcome = run(&Plan {
        warm_up: 10 * MS,
        ..Plan::one_slot(Mode::HINTS, costs, clients)
    });
    let seen = costs.irq + costs.read;
    let expected = 2 * costs.call + 200 * US + costs.start + MS + seen + costs.wake;
    assert_eq!(outcome.lc, [expected]);
    assert_eq!((outcome.starts, outcome.saves), (5, 2));
    assert_eq!((outcome.hints, outcome.hints_used), (2, 2));
}

/// The purpose of hints: LC is as fast as alone, although the slot is full, and BE loses hardly
/// anything.
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

/// Wrong hints do no harm: LC is hardly later, and BE gets hardly less done, than without hints.
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

/// Members of a gang start within one switch, and gangs cost at most 6 % of the useful work; with a
/// relay, which names no member that waits for others, 10 %.
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
                    let most = if mode == Mode::LC_BE { 0.06 } else { 0.1 };
                    assert!(row.loss <= most, "{row:?}");
                    assert!(row.lc.count > 450, "{row:?}");
                }
            }
        }
    }
}

// Comparison with exact results of queueing theory, with all costs at zero. There are many clients
// with few requests each, so that requests of one client hardly ever queue behind one another.

const CLIENTS: usize = 400;
/// Mean work of a request, ns.
const WORK: u64 = 5 * MS;

fn plan(mode: Mode, slots: usize, load: f64, work: Work, seconds: u64) -> Plan {
    let mean = WORK as f64 * CLIENTS as f64 / (load * slots as f64);
    let client = ClientPlan::new(Kind::Lc, Arrivals::Poisson { mean }, work);
    Plan {
        mode,
        costs: Costs::ZERO,
        cards: 1,
        slots,
        clients: vec![vec![client; CLIENTS]],
        gangs: false,
        seed: 7,
        warm_up: 10 * S,
        end: (10 + seconds) * S,
        drain: 100 * S,
    }
}

/// Returns the mean time from arrival to end, in units of the mean work.
fn sojourn(outcome: &Outcome) -> f64 {
    assert_eq!((outcome.unfinished, outcome.failed), (0, 0));
    let sum: f64 = outcome.lc.iter().map(|&ns| ns as f64).sum();
    sum / outcome.lc.len() as f64 / WORK as f64
}

fn close(what: &str, found: f64, expected: f64, within: f64) {
    let off = found / expected - 1.0;
    say!(
        "{what}: {found:.4}, expected {expected:.4}, off by {:.2} %",
        off * 100.0
    );
    assert!(off.abs() < within, "{what}: {found}, expected {expected}");
}

#[test]
fn m_d_1_waits_as_pollaczek_and_khinchine_say() {
    for load in [0.5, 0.8] {
        let plan = plan(Mode::NO_PREEMPTION, 1, load, Work::Fixed(WORK), 1_000);
        let found = sojourn(&run(&plan)) - 1.0;
        close("M/D/1 wait", found, load / (2.0 * (1.0 - load)), 0.02);
    }
}

#[test]
fn m_m_1_waits_twice_as_long() {
    for load in [0.5, 0.8] {
        let work = Work::Exponential(WORK as f64);
        let plan = plan(Mode::NO_PREEMPTION, 1, load, work, 2_000);
        let found = sojourn(&run(&plan)) - 1.0;
        close("M/M/1 wait", found, load / (1.0 - load), 0.03);
    }
}

/// The LC clients of workload E by themselves: their latency is their work and the wait for one
/// another.
#[test]
fn e_alone_waits_as_pollaczek_and_khinchine_say() {
    let workload = Workload::all().into_iter().find(|it| it.name == "E");
    let all = workload.map(|it| it.clients(it.natural_load(), Phases::Staggered));
    let clients = all.unwrap().into_iter().filter(|it| it.kind == Kind::Lc);
    let clients: Vec<ClientPlan> = clients
        .map(|client| ClientPlan {
            preparation: 0,
            skips_late: false,
            ..client
        })
        .collect();
    let found = run(&Plan {
        clients: vec![clients.clone()],
        ..plan(Mode::NO_PREEMPTION, 1, 0.5, Work::Fixed(WORK), 2_000)
    });
    let (mut load, mut second, mut rate) = (0.0, 0.0, 0.0);
    for client in &clients {
        let (Arrivals::Poisson { mean }, Work::Fixed(work)) = (&client.arrivals, client.work)
        else {
            panic!("{client:?}");
        };
        load += work as f64 / mean;
        second += (work as f64).powi(2) / mean;
        rate += 1.0 / mean;
    }
    let expected = second / (2.0 * (1.0 - load)) + load / rate;
    close("E alone", sojourn(&found) * WORK as f64, expected, 0.02);
}

/// Erlang C: two slots that serve one queue.
#[test]
fn m_m_2_waits_as_erlang_says() {
    let load = 0.7;
    let work = Work::Exponential(WORK as f64);
    let found = sojourn(&run(&plan(Mode::NO_PREEMPTION, 2, load, work, 1_000))) - 1.0;
    // With two servers the mean wait is load^2 / (1 - load^2).
    close("M/M/2 wait", found, load * load / (1.0 - load * load), 0.03);
}

/// Round robin with slices much shorter than the work is nearly processor sharing.
#[test]
fn short_slices_come_near_processor_sharing() {
    let load = 0.6;
    let slices = Mode::parse("slices-100us").unwrap();
    let found = sojourn(&run(&plan(slices, 1, load, Work::Fixed(WORK), 200)));
    close("M/D/1-PS time", found, 1.0 / (1.0 - load), 0.03);
}

/// Unless the slot is overloaded, all demanded work is done.
#[test]
fn utilisation_is_the_load() {
    let plan = plan(Mode::NO_PREEMPTION, 4, 0.75, Work::Fixed(WORK), 300);
    close("utilisation", run(&plan).utilisation(&plan), 0.75, 0.01);
}

/// Two jobs without end take turns on a card with a relay. The gap between them depends on the card
/// only: no interrupt, timer or read makes it longer, and slices are exact to the nanosecond.
#[test]
fn a_relay_loses_its_save_and_restore_only() {
    let job = ClientPlan::new(
        Kind::Be,
        Arrivals::Trace([(0, Some(1_000 * S))].into()),
        Work::Fixed(0),
    );
    let costs = Costs {
        irq: 200 * US,
        timer: 20 * US,
        read: 30 * US,
        ..Costs::DEFAULT
    };
    for slice in [MS, 2 * MS, 5 * MS] {
        let plan = |mode| Plan {
            costs,
            clients: vec![vec![job.clone(), job.clone()]],
            warm_up: 0,
            end: S,
            drain: 0,
            ..plan(mode, 1, 0.5, Work::Fixed(WORK), 0)
        };
        let seen = run(&plan(Mode::slices(slice).on_relay()));
        let first = costs.call + costs.order + costs.load + slice + costs.save;
        let turn = costs.load + costs.restore + slice + costs.save;
        let turns = (S - first) / turn + 1;
        assert_eq!(seen.be_work, turns * slice);
        assert_eq!(
            (seen.saves, seen.relayed, seen.starts),
            (turns, turns, turns + 1)
        );
        assert_eq!((seen.pauses, seen.orders_dropped), (0, 0));
        // One for each turn, and at most one that is held.
        assert!((turns + 1..=turns + 2).contains(&seen.orders), "{seen:?}");

        // Without a relay the driver's part is lost, too, and slices end later by the timer's
        // delay.
        let seen = run(&plan(Mode::slices(slice)));
        let gap = costs.save + costs.irq + costs.read + costs.start + costs.restore;
        let turns = S / (slice + costs.timer + gap);
        assert!(seen.saves.abs_diff(turns) <= 2, "{turns}: {seen:?}");
        assert_eq!((seen.orders, seen.relayed), (0, 0));
    }
}

// Cards with a relay: short histories that were calculated by hand, to the nanosecond, and checks
// that no other protocol is in use.

/// Here an order takes time, too.
const COSTS: Costs = Costs {
    order: 2 * US,
    ..Costs::DEFAULT
};

/// Runs a BE client and an LC client.
fn outcome(mode: Mode, costs: Costs, be: &[(u64, u64)], lc: &[(u64, u64)]) -> Outcome {
    let clients = vec![client(Kind::Be, be), client(Kind::Lc, lc)];
    let outcome = run(&Plan::one_slot(mode, costs, clients));
    assert_eq!((outcome.unfinished, outcome.failed), (0, 0));
    assert_eq!(
        (outcome.pauses, outcome.dropped),
        (0, 0),
        "a PAUSE was written"
    );
    outcome
}

/// From the request of a program until the engine works, on a vacant slot.
const BEGIN: u64 = COSTS.call + COSTS.order + COSTS.load;
/// From the end of a job until its program is notified.
const END: u64 = COSTS.irq + COSTS.wake;

#[test]
fn jobs_that_end_are_followed_by_an_order_for_a_vacant_slot() {
    let mode = Mode::NO_PREEMPTION.on_relay();
    let seen = outcome(mode, COSTS, &[(0, 5 * MS)], &[(MS, MS)]);
    let be_end = BEGIN + 5 * MS;
    let lc_end = be_end + COSTS.irq + COSTS.order + COSTS.load + MS;
    assert_eq!(seen.be, [be_end + END]);
    assert_eq!(seen.lc, [lc_end + END - MS]);
    assert_eq!(
        (seen.starts, seen.saves, seen.orders, seen.relayed),
        (2, 0, 2, 0)
    );
}

/// The first slice ends when the job has worked for that long, and the next job follows without
/// action by the host.
#[test]
fn the_card_ends_a_slice_and_goes_on() {
    let mode = Mode::slices(2 * MS).on_relay();
    let seen = outcome(mode, COSTS, &[(0, 5 * MS)], &[(MS, MS)]);
    let lc_end = BEGIN + 2 * MS + COSTS.save + COSTS.load + MS;
    assert_eq!(seen.lc, [lc_end + END - MS]);
    // LC ends by itself, before its slice is over: BE has been named since the slice began.
    let resume = COSTS.load + COSTS.restore;
    assert_eq!(seen.be, [lc_end + resume + 3 * MS + END]);
    assert_eq!(
        (seen.starts, seen.saves, seen.orders, seen.relayed),
        (3, 1, 3, 2)
    );
}

#[test]
fn lc_waits_for_an_order_and_a_save() {
    let mode = Mode::LC_BE.on_relay();
    let seen = outcome(mode, COSTS, &[(0, 5 * MS)], &[(MS, MS)]);
    let before = COSTS.call + COSTS.order + COSTS.save + COSTS.load;
    assert_eq!(seen.lc, [before + MS + END]);
    let lc_end = MS + before + MS;
    let left = 5 * MS - (MS + COSTS.call + COSTS.order - BEGIN);
    // No order names BE for the end of LC.
    let resume = COSTS.irq + COSTS.order + COSTS.load + COSTS.restore;
    assert_eq!(seen.be, [lc_end + resume + left + END]);
    assert_eq!(
        (seen.starts, seen.saves, seen.orders, seen.relayed),
        (3, 1, 3, 1)
    );
}

/// LC arrives while BE is restored: the restore is aborted, and there is nothing to save.
#[test]
fn a_restore_is_broken_off() {
    let costs = Costs {
        restore: 400 * US,
        ..COSTS
    };
    let mode = Mode::LC_BE.on_relay();
    let first_end = MS + COSTS.call + COSTS.order + COSTS.save + COSTS.load + MS;
    let restores_at = first_end + COSTS.irq + COSTS.order + COSTS.load;
    let second = restores_at + 100 * US;
    let seen = outcome(mode, costs, &[(0, 5 * MS)], &[(MS, MS), (second, MS)]);
    assert_eq!(seen.lc[1], BEGIN + MS + END);
    assert_eq!((seen.starts, seen.saves, seen.relayed), (5, 1, 2));
    let second_end = second + BEGIN + MS;
    let resume = COSTS.irq + COSTS.order + COSTS.load + costs.restore;
    let left = 5 * MS - (MS + COSTS.call + COSTS.order - BEGIN);
    assert_eq!(seen.be, [second_end + resume + left + END]);
}

/// The job ends while an order for it is on its way: the card drops the order, and the record says so.
#[test]
fn an_order_that_comes_too_late_is_dropped() {
    let costs = Costs {
        order: 50 * US,
        ..COSTS
    };
    let mode = Mode::LC_BE.on_relay();
    let be_end = costs.call + costs.order + costs.load + MS;
    let came = be_end - 20 * US;
    let seen = outcome(mode, costs, &[(0, MS)], &[(came, MS)]);
    let begins = be_end + costs.irq + costs.order + costs.load;
    assert_eq!(seen.lc, [begins + MS + END - came]);
    assert_eq!((seen.orders, seen.orders_dropped, seen.relayed), (3, 1, 0));
}

/// With a hint the slot is vacant when LC arrives, as on a card without a relay.
#[test]
fn announced_lc_on_a_relay_waits_for_no_save() {
    let lc = ClientPlan {
        preparation: 200 * US,
        ..client(Kind::Lc, &[(MS, MS), (20 * MS, MS)])
    };
    let seen = run(&Plan {
        warm_up: 10 * MS,
        ..Plan::one_slot(
            Mode::HINTS.on_relay(),
            COSTS,
            vec![client(Kind::Be, &[(0, 50 * MS)]), lc],
        )
    });
    assert_eq!(seen.lc, [COSTS.call + 200 * US + BEGIN + MS + END]);
    assert_eq!((seen.hints_used, seen.saves, seen.pauses), (2, 2, 0));
}

/// Every mode serves every request on both cards, and each card is driven only by its own protocol.
#[test]
fn every_mode_serves_all_and_uses_its_own_protocol() {
    let modes = Mode::ALL.map(|mode| [Mode::of(mode.sharing), mode.on_relay()]);
    let settings = Settings {
        workloads: Workload::all(),
        loads: vec![Some(0.7)],
        modes: modes.concat(),
        costs: Costs::DEFAULT,
        phases: Phases::Drifting,
        seconds: 2,
        seed: 6,
    };
    for rows in compare(&settings).chunks(REFERENCES + settings.modes.len()) {
        for (row, mode) in rows[REFERENCES..].iter().zip(&settings.modes) {
            assert_eq!(row.unfinished, 0, "{} {}", row.workload, row.mode);
            assert_eq!(row.requests, rows[REFERENCES].requests, "{}", row.mode);
            assert_eq!(row.mode.ends_with("-relay"), mode.relay);
            assert_eq!(mode.relay, row.orders > 0, "{}: orders", row.mode);
            // Each START follows an order.
            assert!(!mode.relay || row.orders >= row.starts, "{row:?}");
            assert_eq!(!mode.relay && row.saves_per_s > 0.0, row.pauses > 0);
            assert!(row.relayed <= row.starts && (mode.relay || row.relayed == 0));
        }
    }
}

#[test]
fn traces_and_fleets_run_on_relays() {
    let text = "time_us,client,kind,work_us\n0,a,BE,5000\n1000,b,LC,1000\n20000,b,LC,1000\n";
    let (clients, last) = workload::parse_trace(text, 0).unwrap();
    let modes = [Mode::LC_BE, Mode::LC_BE.on_relay()];
    let rows = on_trace(&clients, last, &modes, Costs::ZERO, 1);
    // All costs are zero: the cards differ only in the protocol.
    assert_eq!(rows[2].lc, rows[3].lc);
    assert_eq!((rows[2].pauses, rows[3].pauses, rows[2].orders), (1, 0, 0));
    assert_eq!((rows[3].starts, rows[3].orders, rows[3].relayed), (4, 4, 1));

    let fleet = |mode| {
        fleet::fleet(&fleet::Settings {
            mode,
            cards: 10,
            slots: 4,
            contexts: 50,
            load: 0.8,
            costs: Costs::DEFAULT,
            ms: 500,
            seed: 5,
        })
    };
    let [plain, relayed] = modes.map(fleet);
    assert_eq!(relayed.mode, "lc-be-relay");
    assert_eq!(relayed.requests, plain.requests);
    assert_eq!(
        relayed.lc.count + relayed.be.count,
        relayed.requests as usize
    );
}
