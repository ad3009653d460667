// SPDX-License-Identifier: GPL-2.0

//! The ways to share a slot that are compared, in terms of what the scheduler offers. All that the simulator knows of
//! policies and parameters is in this file.

use fermata_sched_host::sched::{
    ContextConfig, Duration, GroupKey, Params, PolicyKind, Scheduler, Time, Urgency,
};
use fermata_sched_host::{card, storage};

use crate::workload::Kind;
use crate::{MS, US};

/// A way to share a slot. Slices are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// First come, first served; no job leaves its slot before it is done.
    NoPreemption,
    /// Weighted fair, but no job leaves its slot before it is done: who had less time goes first at each end of a job.
    RunToCompletion,
    /// Round robin by slices.
    Slices(u64),
    /// Weighted fair by slices.
    Fair(u64),
    /// LC preempts BE at once; weighted fair among themselves, LC by slices of so long, BE by 2 ms.
    LcBe(u64),
    /// As [`Mode::LC_BE`], and LC clients say when they will want the slot, before they prepare a request.
    Hints,
}

impl Mode {
    /// With the slice that `GPreempt` gives to LC: as good as none.
    pub const LC_BE: Self = Self::LcBe(1_000 * MS);

    /// What `make sim` compares.
    pub const ALL: [Self; 7] = [
        Self::NoPreemption,
        Self::RunToCompletion,
        Self::Slices(2 * MS),
        Self::Slices(200 * US),
        Self::Fair(2 * MS),
        Self::LC_BE,
        Self::Hints,
    ];

    /// Those in which LC goes before BE.
    pub const URGENT: [Self; 2] = [Self::LC_BE, Self::Hints];

    /// What fleets are run with.
    pub const FLEET: [Self; 3] = [Self::NoPreemption, Self::LC_BE, Self::Hints];

    /// Its name on the command line and in reports.
    pub fn name(self) -> String {
        match self {
            Self::NoPreemption => "no-preemption".into(),
            Self::RunToCompletion => "run-to-completion".into(),
            Self::Slices(ns) => format!("slices-{}us", ns / US),
            Self::Fair(ns) => format!("fair-{}us", ns / US),
            Self::LC_BE => "lc-be".into(),
            Self::LcBe(ns) => format!("lc-be-{}us", ns / US),
            Self::Hints => "hints".into(),
        }
    }

    /// The mode of a name.
    ///
    /// # Errors
    ///
    /// What names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let slice = |prefix| {
            let us = name.strip_prefix(prefix)?.strip_suffix("us")?.parse().ok();
            us.filter(|us| (100..=10_000_000).contains(us))
                .map(|us: u64| us * US)
        };
        let whole = [
            Self::NoPreemption,
            Self::RunToCompletion,
            Self::LC_BE,
            Self::Hints,
        ];
        whole
            .into_iter()
            .filter(|mode| mode.name() == name)
            .chain(slice("slices-").map(Self::Slices))
            .chain(slice("fair-").map(Self::Fair))
            .chain(slice("lc-be-").map(Self::LcBe))
            .next()
            .ok_or_else(|| {
                "no-preemption, run-to-completion, slices-Nus, fair-Nus, lc-be, lc-be-Nus, hints; N is 100 to 10000000"
                    .into()
            })
    }

    fn policy(self) -> PolicyKind {
        match self {
            Self::NoPreemption | Self::Slices(_) => PolicyKind::RoundRobin,
            Self::RunToCompletion | Self::Fair(_) | Self::LcBe(_) | Self::Hints => PolicyKind::Fair,
        }
    }

    /// The machine of a card with this many slots of one engine, and room for `contexts`.
    pub fn machine(self, slots: usize, contexts: usize) -> Scheduler {
        let mut machine = Scheduler::new(&card(slots), storage(contexts, contexts));
        let set = machine.set_policy(Time::ZERO, self.policy());
        set.expect("the card is there");
        while machine.sweep(Time::ZERO, u32::MAX, &mut |_| {}) {}
        machine
    }

    /// Does a client say when it will want the slot?
    pub fn hints(self, kind: Kind) -> bool {
        self == Self::Hints && kind == Kind::Lc
    }

    /// What a client's context is.
    pub fn context(self, kind: Kind) -> ContextConfig {
        if self == Self::Hints {
            return Self::LC_BE.context(kind);
        }
        let timeslice = match (self, kind) {
            (Self::NoPreemption | Self::RunToCompletion, _) => Params::TIMESLICE_MAX,
            (Self::Slices(ns) | Self::Fair(ns), _) | (Self::LcBe(ns), Kind::Lc) => {
                Duration::from_ns(ns)
            }
            (Self::LcBe(_) | Self::Hints, _) => Duration::from_ms(2),
        };
        let urgency = match (self, kind) {
            (Self::LcBe(_), Kind::Lc) => Urgency::LatencyCritical,
            _ => Urgency::BestEffort,
        };
        ContextConfig {
            class: 0,
            group: GroupKey(0),
            params: Params {
                timeslice,
                urgency,
                ..Params::DEFAULT
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for mode in Mode::ALL.into_iter().chain([Mode::LcBe(2 * MS)]) {
            assert_eq!(Mode::parse(&mode.name()), Ok(mode));
        }
        for bad in [
            "",
            "slices",
            "slices-0us",
            "slices-99us",
            "slices--1us",
            "slices-200",
        ] {
            assert!(Mode::parse(bad).is_err(), "{bad}");
        }
    }
}
