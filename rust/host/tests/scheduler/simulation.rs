// SPDX-License-Identifier: GPL-2.0

//! A random simulation: cards of each profile with one to eight slots and up to 24 contexts, whose
//! owners, administrators and faults follow each other for a while; then the card behaves, and every
//! job must end. The rules of `model/rules.rs` and the invariants of `model/check.rs` are checked
//! after every event; how much slots stand vacant beside work is measured.
//!
//! FERMATA_SEEDS sets the number of seeds of each profile, FERMATA_SEED the first one.

use std::ops::Range;

use crate::model::{SlotPlan, BASE, IRQ, MS, RELAY, US};
use crate::random::{Fault, Op, Play, Setting};
use fermata_sched_host::sched::{
    Action, Duration, GroupSettings, NewJob, Params, PolicyKind, PreemptGranularity, Urgency,
};

/// Seeds of each profile, if FERMATA_SEEDS does not set another number.
const SEEDS: u64 = 12;
/// How long owners and faults go on.
const SPAN: u64 = 60 * MS;
const GROUPS: u64 = 4;

/// Returns a number of the environment.
pub fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |n| n.parse().unwrap())
}

/// Random numbers: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn in_range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The events that occurred: a simulation in which nothing happens shows nothing.
#[derive(Default)]
struct Seen {
    starts: u64,
    resumes: u64,
    relayed: u64,
    kept: u64,
    boosted: u64,
    quarantines: u64,
    faults: u64,
    idled: u64,
    idled_most: (u64, String),
    slot_time: u64,
}

/// Says which seed fails.
struct Label(String);

impl Drop for Label {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

struct Simulation {
    random: Random,
    play: Play,
    /// The card misbehaves.
    faults: bool,
    classes: u8,
    contexts: usize,
}

impl Simulation {
    fn new(seed: u64, plan: SlotPlan) -> Self {
        let mut random = Random(seed.wrapping_mul(77).wrapping_add(1));
        let slots = random.of(&[1, 1, 2, 3, 4, 8]);
        let granularity = match plan.base {
            Some(_) => PreemptGranularity::Anywhere,
            None => random.of(&[
                PreemptGranularity::Anywhere,
                PreemptGranularity::AnywhereOrBoundary,
                PreemptGranularity::BoundaryOnly,
            ]),
        };
        let classes = if slots >= 4 { 2 } else { 1 };
        let plans = (0..slots).map(|i| SlotPlan {
            class: i as u8 % classes,
            granularity,
            ..plan
        });
        let setting = Setting {
            plans: plans.collect(),
            save: random.in_range(30..90) * US,
            restore: random.in_range(30..90) * US,
            start_lag: 0,
            irq_delay: random.below(4) * US,
            timer_delay: random.below(3) * US,
            timer_first: random.one_in(2),
        };
        let contexts = random.in_range(4..24) as usize;
        let play = Play::new(&setting, contexts);
        let faults = !random.one_in(3);
        Self {
            random,
            play,
            faults,
            classes,
            contexts,
        }
    }

    fn params(&mut self) -> Params {
        let random = &mut self.random;
        let urgency = match random.one_in(5) {
            true => Urgency::LatencyCritical,
            false => Urgency::BestEffort,
        };
        Params {
            urgency,
            weight: random.in_range(1..300) as u16,
            priority: random.below(4) as u8 * 8,
            timeslice: Duration::from_us(random.of(&[100, 500, 2_000, 15_000])),
            mask: match random.one_in(3) {
                true => random.in_range(1..256) as u8,
                false => u8::MAX,
            },
            preempt_timeout: Duration::from_ms(random.of(&[5, 100])),
            cooperative: random.one_in(4),
            cap: if random.one_in(12) { 30 } else { 0 },
            ..Params::DEFAULT
        }
    }

    fn open(&mut self) -> Op {
        let params = self.params();
        Op::Open {
            group: self.random.below(GROUPS),
            class: self.random.below(self.classes.into()) as u8,
            params,
        }
    }

    fn start(&mut self, who: usize) -> Op {
        let random = &mut self.random;
        let us = match random.below(4) {
            0 => random.in_range(5..100),
            1 => random.in_range(1..2_000),
            _ => random.in_range(1..12_000),
        };
        let job = NewJob {
            replayable: random.one_in(4),
            saved: false,
            held: random.one_in(30),
        };
        let done = 0;
        Op::Start { who, us, job, done }
    }

    fn group(&mut self) -> Op {
        let random = &mut self.random;
        let settings = GroupSettings {
            weight: random.in_range(1..300) as u16,
            cap: random.of(&[0, 0, 30, 60, 100]),
            ..GroupSettings::DEFAULT
        };
        Op::Group {
            group: random.below(GROUPS),
            settings: (!random.one_in(3)).then_some(settings),
        }
    }

    fn fault(&mut self) -> Op {
        let random = &mut self.random;
        let kind = match random.below(24) {
            0..=5 => Fault::Pauses(1),
            6..=11 => Fault::Irqs(1),
            12..=15 => Fault::FinishOnPause,
            16 | 17 => Fault::Torn,
            18 | 19 => Fault::Window,
            20 => Fault::Hang,
            21 => Fault::Starts,
            22 => Fault::IgnoresPauses,
            _ => Fault::Resets(random.of(&[1, 2, 3])),
        };
        let slot = random.below(8) as usize;
        Op::Fault { slot, kind }
    }

    /// An act of an owner, an administrator or the card.
    fn act(&mut self) -> Op {
        let who = self.random.below(self.play.who.len().max(1) as u64) as usize;
        match self.random.below(32) {
            0 | 1 => self.open(),
            2..=8 | 24.. => self.start(who),
            9 | 10 => Op::Preempt {
                who,
                hold: self.random.one_in(2),
            },
            11..=13 => Op::Resume { who },
            14 if self.random.one_in(3) => Op::Close { who },
            15 => Op::Change {
                who,
                params: self.params(),
            },
            16 => Op::Enable {
                who,
                enabled: !self.random.one_in(4),
            },
            17 | 18 => Op::Hint {
                who,
                us: Some(self.random.below(3_000)),
            },
            19 => Op::Gang {
                who,
                with: (!self.random.one_in(4)).then(|| self.random.below(24) as usize),
            },
            20 => self.group(),
            21 if self.random.one_in(8) => Op::Thaw,
            21 if self.random.one_in(8) => Op::Policy {
                policy: self.random.of(&[
                    PolicyKind::Fair,
                    PolicyKind::Priority,
                    PolicyKind::RoundRobin,
                ]),
            },
            22 | 23 if self.faults => self.fault(),
            _ => self.start(who),
        }
    }

    fn run(mut self, seen: &mut Seen) {
        let policy = self.random.of(&[PolicyKind::Fair, PolicyKind::Priority]);
        self.play.world.set_policy(policy).unwrap();
        let boost = Duration::from_ms(self.random.of(&[10, 1_000]));
        self.play.world.set_boost(boost).unwrap();
        for who in 0..self.contexts {
            let open = self.open();
            self.play.step(open);
            let start = self.start(who);
            self.play.step(start);
        }
        while self.play.world.now < SPAN {
            let us = self.random.in_range(5..300);
            self.play.step(Op::Run { us });
            let op = self.act();
            seen.faults += u64::from(matches!(op, Op::Fault { .. }));
            self.play.step(op);
        }
        let world = &self.play.world;
        seen.idled += world.rules.idled;
        seen.idled_most = seen.idled_most.clone().max(world.rules.idled_most.clone());
        seen.slot_time += world.now * world.plans.len() as u64;
        for (_, action) in &world.log {
            match action {
                Action::Start {
                    resume, boosted, ..
                } => {
                    seen.starts += 1;
                    seen.resumes += u64::from(*resume);
                    seen.boosted += u64::from(*boosted);
                }
                Action::Reserve { .. } => seen.kept += 1,
                Action::Quarantine { .. } => seen.quarantines += 1,
                _ => {}
            }
        }
        let relays = world
            .card
            .slots
            .iter()
            .filter_map(|slot| slot.relay.as_ref());
        seen.relayed += relays.map(|relay| u64::from(relay.relayed)).sum::<u64>();
        // A base card is polled until the last job has ended.
        self.play.world.lean = true;
        self.play.finish();
    }
}

fn simulate(plan: SlotPlan, name: &str) {
    let seeds = number("FERMATA_SEEDS", SEEDS);
    let first = number("FERMATA_SEED", 1);
    let mut seen = Seen::default();
    for seed in first..first + seeds {
        let _label = Label(format!(
            "FERMATA_SEED={seed} FERMATA_SEEDS=1 shows it again, {name}"
        ));
        Simulation::new(seed, plan).run(&mut seen);
    }
    let Seen { starts, .. } = seen;
    println!(
        "{name}: {seeds} seeds, {starts} starts, {} resumes, {} relayed, {} boosted, {} kept, {} quarantines, {} faults, {} of {} us of slots idle",
        seen.resumes, seen.relayed, seen.boosted, seen.kept, seen.quarantines, seen.faults,
        seen.idled / US, seen.slot_time / US,
    );
    if seeds >= SEEDS {
        assert!(seen.resumes > 100 && seen.faults > 50 && seen.boosted > 0 && seen.kept > 0);
        assert_eq!(seen.relayed > 100, plan.relay);
    }
    // A slot that works wants a half of a percent at most.
    let part = seen.idled as f64 / seen.slot_time as f64;
    assert!(
        part < 0.005,
        "slots stand vacant beside work: {part}, {:?}",
        seen.idled_most
    );
}

#[test]
fn base_cards() {
    simulate(BASE, "base");
}

#[test]
fn irq_cards() {
    simulate(IRQ, "irq");
}

#[test]
fn relay_cards() {
    simulate(RELAY, "relay");
}
