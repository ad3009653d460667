// SPDX-License-Identifier: GPL-2.0

//! The simulator against what queueing theory says exactly, with all costs at zero: many clients with few requests each, so
//! that those of one client hardly ever queue behind one another.

use fermata_sim::arrivals::{Arrivals, Work};
use fermata_sim::mode::Mode;
use fermata_sim::sim::{run, Costs, Outcome, Plan};
use fermata_sim::workload::{ClientPlan, Kind, Phases, Workload};
use fermata_sim::{MS, S, US};

const CLIENTS: usize = 400;
/// Mean work of a request, ns.
const WORK: u64 = 5 * MS;

fn plan(mode: Mode, slots: usize, load: f64, work: Work, seconds: u64) -> Plan {
    let mean = WORK as f64 * CLIENTS as f64 / (load * slots as f64);
    let client = ClientPlan {
        kind: Kind::Lc,
        arrivals: Arrivals::Poisson { mean },
        work,
        preparation: 0,
        skips_late: false,
        stream: None,
        gang: None,
    };
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

/// Mean time from arrival to end, in units of the mean work.
fn sojourn(outcome: &Outcome) -> f64 {
    assert_eq!((outcome.unfinished, outcome.failed), (0, 0));
    let sum: f64 = outcome.lc.iter().map(|&ns| ns as f64).sum();
    sum / outcome.lc.len() as f64 / WORK as f64
}

fn close(what: &str, found: f64, expected: f64, within: f64) {
    let off = found / expected - 1.0;
    println!(
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

/// The LC clients of workload E by themselves: what they wait for one another is all that makes their latency longer than their work.
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
    // With two servers the mean wait comes to load^2 / (1 - load^2).
    close("M/M/2 wait", found, load * load / (1.0 - load * load), 0.03);
}

/// Round robin by slices that are short next to the work is nearly processor sharing.
#[test]
fn short_slices_come_near_processor_sharing() {
    let load = 0.6;
    let slices = Mode::parse("slices-100us").unwrap();
    let found = sojourn(&run(&plan(slices, 1, load, Work::Fixed(WORK), 200)));
    close("M/D/1-PS time", found, 1.0 / (1.0 - load), 0.03);
}

/// What is done is what was asked for, when the slot can do it.
#[test]
fn utilisation_is_the_load() {
    let plan = plan(Mode::NO_PREEMPTION, 4, 0.75, Work::Fixed(WORK), 300);
    close("utilisation", run(&plan).utilisation(&plan), 0.75, 0.01);
}

/// Two jobs without end take turns on a card with a relay. The gap between them is the card's own: no interrupt, timer or read
/// makes it longer, and a slice is worked off to the nanosecond.
#[test]
fn a_relay_loses_its_save_and_restore_only() {
    let job = ClientPlan {
        kind: Kind::Be,
        arrivals: Arrivals::Trace([(0, Some(1_000 * S))].into()),
        work: Work::Fixed(0),
        preparation: 0,
        skips_late: false,
        stream: None,
        gang: None,
    };
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
        // One for each turn, and one that is held at most.
        assert!((turns + 1..=turns + 2).contains(&seen.orders), "{seen:?}");

        // Without a relay the driver's part is lost, too, and slices are later by the timer.
        let seen = run(&plan(Mode::slices(slice)));
        let gap = costs.save + costs.irq + costs.read + costs.start + costs.restore;
        let turns = S / (slice + costs.timer + gap);
        assert!(seen.saves.abs_diff(turns) <= 2, "{turns}: {seen:?}");
        assert_eq!((seen.orders, seen.relayed), (0, 0));
    }
}
