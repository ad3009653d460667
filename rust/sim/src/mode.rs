// SPDX-License-Identifier: GPL-2.0

//! The ways to share a slot that are compared, in terms of what the scheduler offers. All that the simulator knows of
//! policies and parameters is in this file.

use fermata_sched_host::sched::{
    ContextConfig, Duration, GroupKey, Params, PolicyKind, Profile, Scheduler, Time, Urgency,
};
use fermata_sched_host::{card, storage};

use crate::workload::Kind;
use crate::{MS, US};

/// How a slot is shared. Slices are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
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

/// A way to share a slot, on a card of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// How the slot is shared.
    pub sharing: Sharing,
    /// The card has a relay: it switches by itself.
    pub relay: bool,
}

/// What the name of a mode on a card with a relay ends with.
const RELAY: &str = "-relay";

/// What modes there are.
pub const NAMES: &str = "no-preemption, run-to-completion, slices-Nus, fair-Nus, lc-be, lc-be-Nus, hints, and each of them with -relay";

impl Mode {
    /// [`Sharing::NoPreemption`].
    pub const NO_PREEMPTION: Self = Self::of(Sharing::NoPreemption);
    /// [`Sharing::RunToCompletion`].
    pub const RUN_TO_COMPLETION: Self = Self::of(Sharing::RunToCompletion);
    /// [`Sharing::LcBe`] with the slice that `GPreempt` gives to LC: as good as none.
    pub const LC_BE: Self = Self::of(Sharing::LcBe(1_000 * MS));
    /// [`Sharing::Hints`].
    pub const HINTS: Self = Self::of(Sharing::Hints);

    /// What `make sim` compares: where a relay tells something, both cards.
    pub const ALL: [Self; 10] = [
        Self::NO_PREEMPTION,
        Self::RUN_TO_COMPLETION,
        Self::slices(2 * MS),
        Self::slices(200 * US),
        Self::slices(200 * US).on_relay(),
        Self::of(Sharing::Fair(2 * MS)),
        Self::LC_BE,
        Self::LC_BE.on_relay(),
        Self::HINTS,
        Self::HINTS.on_relay(),
    ];

    /// Those in which LC goes before BE.
    pub const URGENT: [Self; 4] = [
        Self::LC_BE,
        Self::LC_BE.on_relay(),
        Self::HINTS,
        Self::HINTS.on_relay(),
    ];

    /// What fleets are run with.
    pub const FLEET: [Self; 3] = [Self::NO_PREEMPTION, Self::LC_BE, Self::HINTS];

    /// What gangs are run with.
    pub const GANGS: [Self; 1] = [Self::LC_BE];

    /// The mode on a card without a relay.
    pub const fn of(sharing: Sharing) -> Self {
        Self {
            sharing,
            relay: false,
        }
    }

    /// [`Sharing::Slices`] of so many ns.
    pub const fn slices(ns: u64) -> Self {
        Self::of(Sharing::Slices(ns))
    }

    /// The same on a card with a relay.
    #[must_use]
    pub const fn on_relay(self) -> Self {
        Self {
            relay: true,
            ..self
        }
    }

    /// Its name on the command line and in reports.
    pub fn name(self) -> String {
        let card = if self.relay { RELAY } else { "" };
        self.sharing.name() + card
    }

    /// The mode of a name.
    ///
    /// # Errors
    ///
    /// What names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let sharing = name.strip_suffix(RELAY);
        let mode = Self::of(Sharing::parse(sharing.unwrap_or(name))?);
        Ok(match sharing {
            Some(_) => mode.on_relay(),
            None => mode,
        })
    }

    /// The machine of a card with this many slots of one engine, and room for `contexts`.
    pub fn machine(self, slots: usize, contexts: usize) -> Scheduler {
        let mut config = card(slots);
        for slot in config.slots.iter_mut().flatten().filter(|_| self.relay) {
            slot.profile = Profile::Relay;
        }
        let mut machine = Scheduler::new(&config, storage(contexts, contexts));
        let set = machine.set_policy(Time::ZERO, self.sharing.policy());
        set.expect("the card is there");
        while machine.sweep(Time::ZERO, u32::MAX, &mut |_| {}) {}
        machine
    }

    /// Does a client say when it will want the slot?
    pub fn hints(self, kind: Kind) -> bool {
        self.sharing == Sharing::Hints && kind == Kind::Lc
    }

    /// What a client's context is.
    pub fn context(self, kind: Kind) -> ContextConfig {
        let (timeslice, urgency) = self.sharing.share(kind);
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

impl Sharing {
    fn name(self) -> String {
        match self {
            Self::NoPreemption => "no-preemption".into(),
            Self::RunToCompletion => "run-to-completion".into(),
            Self::Slices(ns) => format!("slices-{}us", ns / US),
            Self::Fair(ns) => format!("fair-{}us", ns / US),
            _ if self == Mode::LC_BE.sharing => "lc-be".into(),
            Self::LcBe(ns) => format!("lc-be-{}us", ns / US),
            Self::Hints => "hints".into(),
        }
    }

    fn parse(name: &str) -> Result<Self, String> {
        let slice = |prefix| {
            let us = name.strip_prefix(prefix)?.strip_suffix("us")?.parse().ok();
            us.filter(|us| (100..=10_000_000).contains(us))
                .map(|us: u64| us * US)
        };
        let whole = [
            Self::NoPreemption,
            Self::RunToCompletion,
            Mode::LC_BE.sharing,
            Self::Hints,
        ];
        whole
            .into_iter()
            .filter(|sharing| sharing.name() == name)
            .chain(slice("slices-").map(Self::Slices))
            .chain(slice("fair-").map(Self::Fair))
            .chain(slice("lc-be-").map(Self::LcBe))
            .next()
            .ok_or_else(|| format!("{NAMES}; N is 100 to 10000000"))
    }

    fn policy(self) -> PolicyKind {
        match self {
            Self::NoPreemption | Self::Slices(_) => PolicyKind::RoundRobin,
            Self::RunToCompletion | Self::Fair(_) | Self::LcBe(_) | Self::Hints => PolicyKind::Fair,
        }
    }

    /// The slice and the urgency of a client.
    fn share(self, kind: Kind) -> (Duration, Urgency) {
        if self == Self::Hints {
            return Mode::LC_BE.sharing.share(kind);
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
        (timeslice, urgency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let more = Mode::of(Sharing::LcBe(2 * MS));
        for mode in Mode::ALL.into_iter().chain([more]) {
            assert_eq!(Mode::parse(&mode.name()), Ok(mode));
            let relayed = mode.on_relay();
            assert_eq!(Mode::parse(&relayed.name()), Ok(relayed));
        }
        for bad in [
            "",
            "slices",
            "slices-0us",
            "slices-99us",
            "slices--1us",
            "slices-200",
            "-relay",
            "relay",
            "hints-relay-relay",
            "slices-relay-200us",
        ] {
            assert!(Mode::parse(bad).is_err(), "{bad}");
        }
    }
}
