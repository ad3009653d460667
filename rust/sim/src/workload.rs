// SPDX-License-Identifier: GPL-2.0

//! The workloads of `GPreempt`'s evaluation. Rates, arrival processes and preparation times are
//! those of its configuration files, which [`config`](crate::config) reads. The files do not say
//! how long a request occupies the accelerator, so [`PROGRAMS`] chooses durations
//! (docs/simulator.md gives the reasons), and a sweep scales the whole table by one factor to reach
//! a load.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Result};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::US;

/// What a client is to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Kind {
    /// Latency-critical.
    Lc,
    /// Best-effort.
    Be,
}

/// A program that clients run, and how long one request of it occupies the accelerator when it runs
/// alone.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// In us, before scaling.
    pub us: u64,
}

const fn program(name: &'static str, us: u64) -> Program {
    Program { name, us }
}

const VGG: Program = program("VGG", 1_000);
const RESNET: Program = program("ResNet152", 3_000);
const DENSENET: Program = program("DenseNet", 2_400);
const INCEPTION: Program = program("Inception", 1_600);
const BERT: Program = program("BERT", 1_000);
const WEATHER: Program = program("miniWeather", 3_000);
const BFS: Program = program("BFS", 800);
const SSSP: Program = program("SSSP", 1_600);
const PAGERANK: Program = program("PageRank", 3_200);
const CC: Program = program("CC", 1_600);

/// All programs.
pub const PROGRAMS: [Program; 10] = [
    VGG, RESNET, DENSENET, INCEPTION, BERT, WEATHER, BFS, SSSP, PAGERANK, CC,
];
const NETWORKS: [Program; 5] = [VGG, RESNET, DENSENET, INCEPTION, BERT];

/// How far the clock of a periodic client may be off under [`Phases::Drifting`].
pub const DRIFT: f64 = 0.005;
/// How long a client prepares the data of a request before it needs the accelerator; a hint is
/// given this far ahead.
const PREPARATION: u64 = 200 * US;

/// One client: a program that has requests at a rate, and handles them one after the other.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// LC or BE.
    pub kind: Kind,
    /// When its requests arrive.
    pub arrivals: Arrivals,
    /// The work of each request.
    pub work: Work,
    /// How long it prepares each request, in ns.
    pub preparation: u64,
    /// If several requests wait, the client takes the newest and skips the others.
    pub skips_late: bool,
    /// Number of the random sequence from which the client draws its requests; if absent, the
    /// client's index among the clients of all cards.
    pub stream: Option<u64>,
    /// Clients of a card with the same number begin their requests together, when each has one, and
    /// are a gang if the plan says so.
    pub gang: Option<u32>,
}

impl ClientPlan {
    /// Returns a client that prepares nothing, skips nothing and is in no gang.
    pub fn new(kind: Kind, arrivals: Arrivals, work: Work) -> Self {
        Self {
            kind,
            arrivals,
            work,
            preparation: 0,
            skips_late: false,
            stream: None,
            gang: None,
        }
    }
}

/// When the first requests of the periodic clients of a workload arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Phases {
    /// Clients of one rate begin one after the other, as in `GPreempt`: a client begins later than the client before it by what a
    /// request of that client takes alone
    Staggered,
    /// Clients begin at random, and their clocks are wrong by up to 0.5 %, so that a run has all phase differences of clients of one
    /// rate
    #[default]
    Drifting,
}

/// A named set of clients on one slot. The clients skip requests that are late.
#[derive(Clone, Debug)]
pub struct Workload {
    /// A to E, Y, Z, or the name of a configuration file.
    pub name: String,
    /// A description, in one line.
    pub text: String,
    /// Seconds for which requests arrive, if the workload sets them.
    pub seconds: Option<u64>,
    /// The clients, by their names.
    parts: Vec<Part>,
}

/// A client of a workload, before its work is scaled.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name, by which clients are ordered.
    pub id: String,
    /// LC or BE.
    pub kind: Kind,
    /// The duration of a request, in us.
    pub us: u64,
    /// Requests per second.
    pub rate: f64,
    /// When they arrive.
    pub arrivals: Arrivals,
    /// A periodic client is staggered with the other staggered clients of its rate; otherwise the
    /// client begins at 0.
    pub staggered: bool,
    /// How long each request is prepared, in ns.
    pub preparation: u64,
}

impl Workload {
    /// Returns a workload of these clients, ordered by name as in `GPreempt`.
    pub fn new(name: String, text: String, seconds: Option<u64>, mut parts: Vec<Part>) -> Self {
        parts.sort_by(|one, other| one.id.cmp(&other.id));
        Self {
            name,
            text,
            seconds,
            parts,
        }
    }

    /// Returns the clients.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the workloads by their names in `GPreempt`'s evaluation, except REAL, a trace of 50
    /// kB, whose file can be given ([`config`](crate::config)).
    pub fn all() -> Vec<Self> {
        let lc = |rate| vec![Part::periodic(Kind::Lc, VGG, rate)];
        let five = |kind, rate| {
            NETWORKS
                .map(|program| Part::periodic(kind, program, rate))
                .to_vec()
        };
        let graph = [BFS, SSSP, PAGERANK, CC];
        let graph = graph.map(|program| Part::periodic(Kind::Be, program, 100.0));
        let weather = Part {
            preparation: 0,
            ..Part::periodic(Kind::Be, WEATHER, 150.0)
        };
        let mixed = [five(Kind::Lc, 20.0), five(Kind::Be, 100.0)].concat();
        let poisson = mixed.iter().map(|part| Part {
            arrivals: poisson(part.rate),
            ..part.clone()
        });
        let workload =
            |name: &str, text: &str, parts| Self::new(name.into(), text.into(), None, parts);
        vec![
            workload(
                "A",
                "LC VGG 100/s; BE ResNet152 100/s",
                [lc(100.0), vec![Part::periodic(Kind::Be, RESNET, 100.0)]].concat(),
            ),
            workload(
                "B",
                "LC VGG 220/s; BE ResNet152 220/s",
                [lc(220.0), vec![Part::periodic(Kind::Be, RESNET, 220.0)]].concat(),
            ),
            workload(
                "C",
                "LC VGG 100/s; BE five networks at 100/s each",
                [lc(100.0), five(Kind::Be, 100.0)].concat(),
            ),
            workload(
                "D",
                "LC five networks at 20/s each; BE five networks at 100/s each",
                mixed.clone(),
            ),
            workload("E", "as D, Poisson", poisson.collect()),
            workload(
                "Y",
                "LC VGG 100/s; BE miniWeather 150/s without preparation",
                [lc(100.0), vec![weather]].concat(),
            ),
            workload(
                "Z",
                "LC VGG 100/s; BE BFS, SSSP, PageRank, CC at 100/s each",
                [lc(100.0), graph.to_vec()].concat(),
            ),
        ]
    }

    /// Returns the part of a slot's time that the requests demand with the durations of
    /// [`PROGRAMS`], which may exceed 1.
    pub fn natural_load(&self) -> f64 {
        let us = self.parts.iter().map(|part| part.rate * part.us as f64);
        us.sum::<f64>() / 1e6
    }

    /// Returns the requests per second of a kind.
    pub fn rate(&self, kind: Kind) -> f64 {
        let parts = self.parts.iter().filter(|part| part.kind == kind);
        parts.map(|part| part.rate).sum()
    }

    /// Returns the clients, with all work scaled so that they demand `load` of a slot.
    pub fn clients(&self, load: f64, phases: Phases) -> Vec<ClientPlan> {
        let scale = load / self.natural_load();
        // When the next client of each rate begins. Rates are whole requests per second, as
        // GPreempt groups them.
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let clients = self.parts.iter().map(|part| {
            let work = ((part.us * US) as f64 * scale) as u64;
            let mut arrivals = part.arrivals.clone();
            if let Arrivals::Periodic { phase, .. } = &mut arrivals {
                if phases == Phases::Drifting {
                    *phase = Phase::Random { drift: DRIFT };
                } else if part.staggered {
                    let next = next.entry(part.rate as u64).or_default();
                    *phase = Phase::At(*next);
                    *next += part.preparation + work;
                }
            }
            ClientPlan {
                preparation: part.preparation,
                skips_late: true,
                ..ClientPlan::new(part.kind, arrivals, Work::Fixed(work))
            }
        });
        clients.collect()
    }
}

/// Returns periodic arrivals of `rate` requests per second.
pub fn periodic(rate: f64, phase: Phase) -> Arrivals {
    Arrivals::Periodic {
        period: (crate::S as f64 / rate) as u64,
        phase,
    }
}

/// Returns Poisson arrivals of a mean of `rate` requests per second.
pub fn poisson(rate: f64) -> Arrivals {
    let mean = crate::S as f64 / rate;
    Arrivals::Poisson { mean }
}

impl Part {
    fn periodic(kind: Kind, program: Program, rate: f64) -> Self {
        let suffix = match kind {
            Kind::Lc => "rt",
            Kind::Be => "be",
        };
        Self {
            id: format!("{}_{suffix}", program.name.to_lowercase()),
            kind,
            us: program.us,
            rate,
            arrivals: periodic(rate, Phase::At(0)),
            staggered: true,
            preparation: PREPARATION,
        }
    }
}

/// A request of a trace: its time, and its work if given, in ns.
pub type TraceRequest = (u64, Option<u64>);

/// How the requests of one client follow one another.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// One in each period.
    Periodic {
        /// In ns.
        period: u64,
        /// When the first one arrives.
        phase: Phase,
    },
    /// A Poisson process.
    Poisson {
        /// The mean time between two requests, in ns.
        mean: f64,
    },
    /// The requests, in ascending order of time.
    Trace(Arc<[TraceRequest]>),
}

/// When the first request of a periodic client arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// At this time, in ns.
    At(u64),
    /// At a time within the first period, drawn once.
    Random {
        /// The client's clock is fast or slow by up to this part, drawn once, so that the phases of
        /// clients of one rate drift apart.
        drift: f64,
    },
}

/// The work of a request, in ns of exclusive use of an engine.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// The same for each request.
    Fixed(u64),
    /// Exponentially distributed around this mean.
    Exponential(f64),
}

/// The requests of one client, in order. Two sources of the same seed and stream give the same
/// requests, whatever happens to the requests, so that modes are compared on the same requests.
#[derive(Clone, Debug)]
pub struct Source {
    arrivals: Arrivals,
    work: Work,
    rng: Xoshiro256PlusPlus,
    /// Start of the next period (periodic), time of the last request (Poisson), index (trace).
    at: u64,
}

impl Source {
    /// Returns source number `stream` of `seed`.
    pub fn new(mut arrivals: Arrivals, work: Work, seed: u64, stream: u64) -> Self {
        // seed_from_u64 spreads the bits; the odd factor keeps (1, 2) and (2, 1) apart.
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mixed);
        let at = match &mut arrivals {
            Arrivals::Periodic {
                phase: Phase::At(at),
                ..
            } => *at,
            Arrivals::Periodic {
                period,
                phase: Phase::Random { drift },
            } => {
                let off: f64 = rng.random_range(-1.0..=1.0);
                *period = (*period as f64 * (1.0 + off * *drift)).max(1.0) as u64;
                rng.random_range(0..*period)
            }
            Arrivals::Poisson { .. } | Arrivals::Trace(_) => 0,
        };
        Self {
            arrivals,
            work,
            rng,
            at,
        }
    }
}

impl Iterator for Source {
    /// When a request arrives, and its work.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (when, own) = match &self.arrivals {
            Arrivals::Periodic { period, .. } => {
                let when = self.at;
                self.at += period;
                (when, None)
            }
            Arrivals::Poisson { mean } => {
                let gap: f64 = Exp1.sample(&mut self.rng);
                self.at += (gap * mean) as u64;
                (self.at, None)
            }
            Arrivals::Trace(requests) => {
                let request = *requests.get(self.at as usize)?;
                self.at += 1;
                request
            }
        };
        let work = match (own, self.work) {
            (Some(work), _) | (None, Work::Fixed(work)) => work,
            (None, Work::Exponential(mean)) => {
                let draw: f64 = Exp1.sample(&mut self.rng);
                (draw * mean) as u64
            }
        };
        Some((when, work.max(1)))
    }
}

/// The header of a trace file.
const HEADER: &str = "time_us,client,kind,work_us";
/// An hour and a minute: longer times are mistakes.
const TIME_MAX_US: u64 = 3_600_000_000;
const WORK_MAX_US: u64 = 60_000_000;

/// Returns the clients of a trace, ordered by name, and the time of the last request in ns. A trace
/// is a CSV file of requests, in any order; a kind is LC or BE.
///
/// # Errors
///
/// What is wrong, and in which line.
pub fn parse_trace(text: &str, preparation: u64) -> Result<(Vec<ClientPlan>, u64)> {
    let mut lines = text.lines().zip(1..);
    let header = lines.next().map(|(line, _)| line.trim());
    ensure!(
        header == Some(HEADER),
        "line 1: the header must be {HEADER}"
    );
    let mut clients: BTreeMap<&str, (Kind, Vec<TraceRequest>)> = BTreeMap::new();
    let mut last = 0;
    for (line, number) in lines {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (at, name, kind, work) = request(line).with_context(|| format!("line {number}"))?;
        let entry = clients.entry(name).or_insert((kind, Vec::new()));
        ensure!(entry.0 == kind, "line {number}: {name} is both LC and BE");
        entry.1.push((at, Some(work)));
        last = last.max(at);
    }
    ensure!(!clients.is_empty(), "no requests");
    let clients = clients.into_values().map(|(kind, mut requests)| {
        requests.sort_by_key(|request| request.0);
        ClientPlan {
            preparation,
            ..ClientPlan::new(kind, Arrivals::Trace(requests.into()), Work::Fixed(0))
        }
    });
    Ok((clients.collect(), last))
}

fn request(line: &str) -> Result<(u64, &str, Kind, u64)> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [time, name, kind, work] = fields[..] else {
        bail!("{} fields, not 4", fields.len());
    };
    let time: u64 = time.parse().context("time_us")?;
    let work: u64 = work.parse().context("work_us")?;
    ensure!(time <= TIME_MAX_US, "time_us is over an hour");
    ensure!(
        (1..=WORK_MAX_US).contains(&work),
        "work_us is 0 or over a minute"
    );
    ensure!(!name.is_empty(), "no client");
    let kind = match kind {
        "LC" => Kind::Lc,
        "BE" => Kind::Be,
        _ => bail!("kind is neither LC nor BE"),
    };
    Ok((time * US, name, kind, work * US))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_reference() {
        let all = Workload::all();
        let rates: Vec<_> = all
            .iter()
            .map(|w| {
                let rates = [Kind::Lc, Kind::Be].map(|kind| w.rate(kind) as u64);
                (w.name.as_str(), rates[0], rates[1])
            })
            .collect();
        let expected = [
            ("A", 100, 100),
            ("B", 220, 220),
            ("C", 100, 500),
            ("D", 100, 500),
            ("E", 100, 500),
            ("Y", 100, 150),
            ("Z", 100, 400),
        ];
        assert_eq!(rates, expected);
    }

    #[test]
    fn scaled_work_adds_up_to_the_load() {
        for workload in Workload::all() {
            let asked: f64 = workload
                .clients(0.8, Phases::Staggered)
                .iter()
                .map(|client| {
                    let Work::Fixed(work) = client.work else {
                        panic!()
                    };
                    match client.arrivals {
                        Arrivals::Periodic { period, .. } => work as f64 / period as f64,
                        Arrivals::Poisson { mean } => work as f64 / mean,
                        Arrivals::Trace(_) => panic!(),
                    }
                })
                .sum();
            assert!((asked - 0.8).abs() < 1e-3, "{}: {asked}", workload.name);
        }
    }

    /// Returns when the periodic clients begin, in us.
    fn phases(workload: &Workload, load: f64) -> Vec<u64> {
        let clients = workload.clients(load, Phases::Staggered);
        let phases = clients.iter().map(|client| match client.arrivals {
            Arrivals::Periodic {
                phase: Phase::At(at),
                ..
            } => at / US,
            _ => panic!("{client:?}"),
        });
        phases.collect()
    }

    #[test]
    fn clients_of_one_rate_begin_one_after_the_other() {
        let all = Workload::all();
        let [c, d, y] = ["C", "D", "Y"].map(|name| {
            let found = all.iter().find(|workload| workload.name == name);
            found.unwrap()
        });
        // BERT, DenseNet, Inception, ResNet152 and VGG, each with 200 us of preparation; then VGG as LC.
        let natural = phases(c, c.natural_load());
        assert_eq!(natural, [0, 1_200, 3_800, 5_600, 8_800, 10_000]);
        let half = phases(c, c.natural_load() / 2.0);
        assert_eq!(half, [0, 700, 2_100, 3_100, 4_800, 5_500]);
        // BE and LC of each network have different rates.
        let expected = [0, 1_200, 3_800, 5_600, 8_800].map(|at| [at, at]);
        assert_eq!(phases(d, d.natural_load()), expected.concat());
        assert_eq!(phases(y, y.natural_load()), [0, 0], "two rates");
    }

    #[test]
    fn drifting_clients_begin_at_random() {
        for client in Workload::all()
            .iter()
            .flat_map(|it| it.clients(1.0, Phases::Drifting))
        {
            if let Arrivals::Periodic { phase, .. } = client.arrivals {
                assert_eq!(phase, Phase::Random { drift: DRIFT });
            }
        }
    }

    #[test]
    fn requests_are_sorted_by_client_and_time() {
        let text = "time_us,client,kind,work_us\n30,b,BE,5\n\n# more\n20,a,LC,7\n10,b,BE,6\n";
        let (clients, last) = parse_trace(text, 0).unwrap();
        assert_eq!((clients.len(), last), (2, 30 * US));
        let Arrivals::Trace(requests) = &clients[1].arrivals else {
            panic!()
        };
        assert_eq!(
            requests[..],
            [(10 * US, Some(6 * US)), (30 * US, Some(5 * US))]
        );
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (rest, expected) in [
            ("1,a,LC\n", "line 2"),
            ("1,a,LC,5\nx,a,LC,1\n", "line 3"),
            ("-1,a,LC,1\n", "line 2"),
            ("1,a,XX,1\n", "line 2"),
            ("1,,LC,1\n", "line 2"),
            ("1,a,LC,0\n", "line 2"),
            ("18446744073709551615,a,LC,1\n", "line 2"),
            ("1,a,LC,1\n2,a,BE,1\n", "line 3"),
            ("", "no requests"),
        ] {
            let error = parse_trace(&format!("{HEADER}\n{rest}"), 0).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{rest}: {error:#}");
        }
        assert!(parse_trace("", 0).is_err());
    }
}
