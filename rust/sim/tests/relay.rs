// SPDX-License-Identifier: GPL-2.0

//! Cards with a relay: short histories that were reckoned by hand, to the nanosecond, and that no other protocol is in use.

use fermata_sim::arrivals::{Arrivals, Work};
use fermata_sim::compare::{compare, on_trace, Settings, REFERENCES};
use fermata_sim::mode::Mode;
use fermata_sim::sim::{run, Costs, Outcome, Plan};
use fermata_sim::workload::{ClientPlan, Kind, Phases, Workload};
use fermata_sim::{fleet, trace, MS, S, US};

/// An order takes its time here, too.
const COSTS: Costs = Costs {
    order: 2 * US,
    ..Costs::DEFAULT
};

/// A client whose requests come at these times, with so much work each.
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

/// BE, LC.
fn outcome(mode: Mode, costs: Costs, be: &[(u64, u64)], lc: &[(u64, u64)]) -> Outcome {
    let clients = vec![client(Kind::Be, be), client(Kind::Lc, lc)];
    let outcome = run(&Plan {
        mode,
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
/// From the end of a job until its program knows.
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

/// The first slice ends when the job has worked for that long, and the next job follows without the host.
#[test]
fn the_card_ends_a_slice_and_goes_on() {
    let mode = Mode::slices(2 * MS).on_relay();
    let seen = outcome(mode, COSTS, &[(0, 5 * MS)], &[(MS, MS)]);
    let lc_end = BEGIN + 2 * MS + COSTS.save + COSTS.load + MS;
    assert_eq!(seen.lc, [lc_end + END - MS]);
    // LC ends by itself, before its slice is over: BE is named since the slice began.
    let resume = COSTS.load + COSTS.restore;
    assert_eq!(seen.be, [lc_end + resume + 3 * MS + END]);
    assert_eq!(
        (seen.starts, seen.saves, seen.orders, seen.relayed),
        (3, 1, 3, 2)
    );
}

/// The card goes back to BE by itself.
#[test]
fn lc_waits_for_an_order_and_a_save() {
    let mode = Mode::LC_BE.on_relay();
    let seen = outcome(mode, COSTS, &[(0, 5 * MS)], &[(MS, MS)]);
    let before = COSTS.call + COSTS.order + COSTS.save + COSTS.load;
    assert_eq!(seen.lc, [before + MS + END]);
    let lc_end = MS + before + MS;
    let left = 5 * MS - (MS + COSTS.call + COSTS.order - BEGIN);
    assert_eq!(seen.be, [lc_end + COSTS.load + COSTS.restore + left + END]);
    assert_eq!(
        (seen.starts, seen.saves, seen.orders, seen.relayed),
        (3, 1, 2, 2)
    );
}

/// LC comes while BE is restored: the restore is broken off, and there is nothing to save.
#[test]
fn a_restore_is_broken_off() {
    let costs = Costs {
        restore: 400 * US,
        ..COSTS
    };
    let mode = Mode::LC_BE.on_relay();
    let first_end = MS + COSTS.call + COSTS.order + COSTS.save + COSTS.load + MS;
    let restores_at = first_end + COSTS.load;
    let second = restores_at + 100 * US;
    let seen = outcome(mode, costs, &[(0, 5 * MS)], &[(MS, MS), (second, MS)]);
    assert_eq!(seen.lc[1], BEGIN + MS + END);
    assert_eq!((seen.starts, seen.saves, seen.relayed), (5, 1, 4));
    let second_end = second + BEGIN + MS;
    let resume = COSTS.load + costs.restore;
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

/// With a hint the slot is vacant when LC comes, as on a card without a relay.
#[test]
fn announced_lc_waits_for_no_save() {
    let lc = ClientPlan {
        preparation: 200 * US,
        ..client(Kind::Lc, &[(MS, MS), (20 * MS, MS)])
    };
    let seen = run(&Plan {
        mode: Mode::HINTS.on_relay(),
        costs: COSTS,
        cards: 1,
        slots: 1,
        clients: vec![vec![client(Kind::Be, &[(0, 50 * MS)]), lc]],
        gangs: false,
        seed: 0,
        warm_up: 10 * MS,
        end: S,
        drain: S,
    });
    assert_eq!(seen.lc, [COSTS.call + 200 * US + BEGIN + MS + END]);
    assert_eq!((seen.hints_used, seen.saves, seen.pauses), (2, 2, 0));
}

/// Every mode serves every request on both cards, and each card is told in its own way only.
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
            // Each START follows an order, or BACK of an order before.
            assert!(
                !mode.relay || row.orders + row.relayed >= row.starts,
                "{row:?}"
            );
            assert_eq!(!mode.relay && row.saves_per_s > 0.0, row.pauses > 0);
            assert!(row.relayed <= row.starts && (mode.relay || row.relayed == 0));
        }
    }
}

#[test]
fn traces_and_fleets_run_on_relays() {
    let text = "time_us,client,kind,work_us\n0,a,BE,5000\n1000,b,LC,1000\n20000,b,LC,1000\n";
    let (clients, last) = trace::parse(text, 0).unwrap();
    let modes = [Mode::LC_BE, Mode::LC_BE.on_relay()];
    let rows = on_trace(&clients, last, &modes, Costs::ZERO, 1);
    // Nothing costs anything: the cards differ in how they are told.
    assert_eq!(rows[2].lc, rows[3].lc);
    assert_eq!((rows[2].pauses, rows[3].pauses, rows[2].orders), (1, 0, 0));
    assert_eq!((rows[3].starts, rows[3].orders, rows[3].relayed), (4, 3, 2));

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
