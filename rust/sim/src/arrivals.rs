// SPDX-License-Identifier: GPL-2.0

//! When requests come, and how much work each is.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A request of a trace: when, and its work if it has its own, in ns.
pub type TraceRequest = (u64, Option<u64>);

/// How the requests of one client follow one another.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// One in each period.
    Periodic {
        /// In ns.
        period: u64,
        /// When the first one comes.
        phase: Phase,
    },
    /// A Poisson process.
    Poisson {
        /// The mean distance of two requests, in ns.
        mean: f64,
    },
    /// By time, ascending.
    Trace(Arc<[TraceRequest]>),
}

/// When the first request of a periodic client comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// At this time, in ns.
    At(u64),
    /// At a time within the first period, drawn once.
    Random {
        /// The client's clock is fast or slow by up to this part, drawn once, so that clients of one rate pass one another.
        drift: f64,
    },
}

/// How much work a request is, in ns of an engine to itself.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Each the same.
    Fixed(u64),
    /// Exponentially distributed around this mean.
    Exponential(f64),
}

/// The requests of one client, in order. Two sources of the same seed and stream give the same requests, whatever happens
/// to them: so modes are compared on the same requests.
#[derive(Clone, Debug)]
pub struct Source {
    arrivals: Arrivals,
    work: Work,
    rng: Xoshiro256PlusPlus,
    /// Start of the next period (periodic), time of the last request (Poisson), index (trace).
    at: u64,
}

impl Source {
    /// The source number `stream` of `seed`.
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
    /// When a request comes, and how much work it is.
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
