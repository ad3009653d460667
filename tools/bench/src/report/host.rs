// SPDX-License-Identifier: GPL-2.0
//! What else the host did: its steal time and load, by the clock of the card's log.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A line that vm/fermatavm/bench.py wrote.
#[derive(Clone, Copy, Deserialize)]
struct Sample {
    /// `CLOCK_MONOTONIC`, ns.
    t: u64,
    /// Ticks since the host booted: stolen by its own host, and all.
    steal: u64,
    all: u64,
    /// Load average of a minute.
    load: f64,
    /// Time that the guest's CPUs ran, ns.
    guest: u64,
}

/// In a part of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Weather {
    /// Part of the time that the host's own host took, in percent.
    pub(crate) steal_percent: f64,
    /// Mean of the load average of a minute.
    pub(crate) load: f64,
}

/// All of the run.
pub(crate) struct Host(Vec<Sample>);

impl Host {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let samples = text.lines().map(serde_json::from_str);
        Ok(Self(samples.collect::<Result<_, _>>()?))
    }

    /// Time that the guest's CPUs ran on the host until `t`, in ns: between two samples in proportion.
    fn guest_until(&self, t: u64) -> Option<f64> {
        let next = self.0.partition_point(|sample| sample.t < t);
        let (before, after) = (self.0.get(next.checked_sub(1)?)?, self.0.get(next)?);
        let part = (t - before.t) as f64 / (after.t - before.t) as f64;
        Some(before.guest as f64 + part * after.guest.checked_sub(before.guest)? as f64)
    }

    /// Time that the guest's CPUs ran on the host in these times, in ns. `None`: there are no samples of it.
    pub(crate) fn guest_in(&self, times: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
        let spent =
            times.map(|(begin, end)| Some(self.guest_until(end)? - self.guest_until(begin)?));
        spent.sum()
    }

    /// In these times.
    pub(crate) fn during(&self, times: impl Iterator<Item = (u64, u64)>) -> Weather {
        let (mut steal, mut all, mut load, mut count) = (0, 0, 0.0, 0);
        for (begin, end) in times {
            let first = self.0.partition_point(|sample| sample.t < begin);
            let last = self.0.partition_point(|sample| sample.t < end);
            // From the sample before the visit to the one after it.
            let last = last.min(self.0.len().saturating_sub(1));
            let samples = self.0.get(first.saturating_sub(1)..=last).unwrap_or(&[]);
            if let [first, .., last] = samples {
                steal += last.steal - first.steal;
                all += last.all - first.all;
            }
            load += samples.iter().map(|sample| sample.load).sum::<f64>();
            count += samples.len();
        }
        Weather {
            steal_percent: 100.0 * steal as f64 / all.max(1) as f64,
            load: load / count.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_around_a_visit() {
        let sample = |t: u64, steal, load| Sample {
            t,
            steal,
            all: t,
            load,
            guest: t / 2,
        };
        let host = Host(vec![
            sample(0, 0, 1.0),
            sample(100, 0, 1.0),
            sample(200, 10, 3.0),
            sample(300, 50, 9.0),
        ]);
        let weather = host.during([(120, 180)].into_iter());
        assert!((weather.steal_percent - 10.0).abs() < 1e-9);
        assert!((weather.load - 2.0).abs() < 1e-9);
        let spent = host.guest_in([(120, 180), (50, 100)].into_iter());
        assert!(spent.is_some_and(|spent| (spent - 55.0).abs() < 1e-9));
        assert_eq!(host.guest_in([(120, 400)].into_iter()), None);
        assert_eq!(
            Host(Vec::new()).during([(1, 2)].into_iter()),
            Weather::default()
        );
    }
}
