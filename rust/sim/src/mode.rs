// SPDX-License-Identifier: GPL-2.0

//! The ways to share a slot that are compared, in terms of what the scheduler offers. Everything
//! that the simulator knows about policies and parameters is in this file.

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
    /// Weighted fair, but no job leaves its slot before it is done: at the end of each job the
    /// client with the smallest virtual time runs next.
    RunToCompletion,
    /// Round robin with slices.
    Slices(u64),
    /// Weighted fair with slices.
    Fair(u64),
    /// LC preempts BE at once; weighted fair within each, LC with these slices, BE with 2 ms.
    LcBe(u64),
    /// As [`Mode::LC_BE`], and before they prepare a request LC clients give a hint when they will
    /// want the slot.
    Hints,
}

/// A way to share a slot, on a card of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// How the slot is shared.
    pub sharing: Sharing,
    /// The card has a relay, and switches by itself.
    pub relay: bool,
}

/// Suffix of the name of a mode on a card with a relay.
const RELAY: &str = "-relay";

/// The names of all modes.
pub const NAMES: &str = "no-preemption, run-to-completion, slices-Nus, fair-Nus, lc-be, lc-be-Nus, hints, and each of them with -relay";

impl Mode {
    /// [`Sharing::NoPreemption`].
    pub const NO_PREEMPTION: Self = Self::of(Sharing::NoPreemption);
    /// [`Sharing::RunToCompletion`].
    pub const RUN_TO_COMPLETION: Self = Self::of(Sharing::RunToCompletion);
    /// [`Sharing::LcBe`] with the slice that `GPreempt` gives to LC, which is practically
    /// unlimited.
    pub const LC_BE: Self = Self::of(Sharing::LcBe(1_000 * MS));
    /// [`Sharing::Hints`].
    pub const HINTS: Self = Self::of(Sharing::Hints);

    /// The modes of the overview: what preemption, urgency and hints each change.
    pub const OVERVIEW: [Self; 4] = [
        Self::NO_PREEMPTION,
        Self::slices(2 * MS),
        Self::LC_BE,
        Self::HINTS,
    ];

    /// The modes that `make sim SIM=all` compares: on both cards if a relay makes a difference.
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

    /// The modes in which LC preempts BE.
    pub const URGENT: [Self; 4] = [
        Self::LC_BE,
        Self::LC_BE.on_relay(),
        Self::HINTS,
        Self::HINTS.on_relay(),
    ];

    /// The modes of fleets.
    pub const FLEET: [Self; 3] = [Self::NO_PREEMPTION, Self::LC_BE, Self::HINTS];

    /// The modes of gangs.
    pub const GANGS: [Self; 1] = [Self::LC_BE];

    /// Returns the mode on a card without a relay.
    pub const fn of(sharing: Sharing) -> Self {
        Self {
            sharing,
            relay: false,
        }
    }

    /// Returns [`Sharing::Slices`] with slices of `ns` ns.
    pub const fn slices(ns: u64) -> Self {
        Self::of(Sharing::Slices(ns))
    }

    /// Returns the mode on a card with a relay.
    #[must_use]
    pub const fn on_relay(self) -> Self {
        Self {
            relay: true,
            ..self
        }
    }

    /// Returns its name on the command line and in reports.
    pub fn name(self) -> String {
        let card = if self.relay { RELAY } else { "" };
        self.sharing.name() + card
    }

    /// Returns the mode with a name.
    ///
    /// # Errors
    ///
    /// The names of all modes.
    pub fn parse(name: &str) -> Result<Self, String> {
        let sharing = name.strip_suffix(RELAY);
        let mode = Self::of(Sharing::parse(sharing.unwrap_or(name))?);
        Ok(match sharing {
            Some(_) => mode.on_relay(),
            None => mode,
        })
    }

    /// Returns the scheduler of a card with this many slots of one engine, and room for `contexts`.
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

    /// Does a client give hints?
    pub fn hints(self, kind: Kind) -> bool {
        self.sharing == Sharing::Hints && kind == Kind::Lc
    }

    /// Returns the configuration of a client's context.
    pub fn context(self, kind: Kind) -> ContextConfig {
        let (timeslice, urgency) = self.sharing.share(kind);
        ContextConfig {
            class: 0,
            group: GroupKey(0).into(),
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

    /// Returns the slice and the urgency of a client.
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
