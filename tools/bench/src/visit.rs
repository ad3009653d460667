// SPDX-License-Identifier: GPL-2.0-or-later
//! What is measured: cells of a table, each visited once a round. Known to both ends: the guest
//! makes the visits, the host reads the card's log.

use serde::{Deserialize, Serialize};

/// Who shares the card among its tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// fermata.ko.
    Fermata,
    /// A daemon on vfio-pci that sleeps between events.
    Sleep,
    /// The same under `SCHED_FIFO`.
    SleepFifo,
    /// A daemon that polls.
    Poll,
    /// The same under `SCHED_FIFO`.
    PollFifo,
    /// No preemption: fermata.ko with slices longer than any job, and nobody latency-critical.
    Completion,
    /// The lower bound: a handler that reads the status and writes the next START
    /// (tools/bench/module).
    Bound,
}

/// The driver that a variant needs the card bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Fermata,
    Vfio,
    Bound,
}

impl Driver {
    pub(crate) const ALL: [Self; 3] = [Self::Fermata, Self::Vfio, Self::Bound];

    /// As sysfs has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fermata => "fermata",
            Self::Vfio => "vfio-pci",
            Self::Bound => "fermata_bound",
        }
    }
}

impl Variant {
    /// Those that preempt, in the order of the tables.
    pub(crate) const PREEMPTIVE: [Self; 5] = [
        Self::Fermata,
        Self::Sleep,
        Self::SleepFifo,
        Self::Poll,
        Self::PollFifo,
    ];

    pub(crate) fn driver(self) -> Driver {
        match self {
            Self::Fermata | Self::Completion => Driver::Fermata,
            Self::Sleep | Self::SleepFifo | Self::Poll | Self::PollFifo => Driver::Vfio,
            Self::Bound => Driver::Bound,
        }
    }

    /// Whether the card is in the hands of fermata.ko.
    pub(crate) fn is_own(self) -> bool {
        self.driver() == Driver::Fermata
    }

    /// For tables and plots.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fermata => "fermata",
            Self::Sleep => "daemon",
            Self::SleepFifo => "daemon, FIFO",
            Self::Poll => "daemon, polls",
            Self::PollFifo => "daemon, polls, FIFO",
            Self::Completion => "no preemption",
            Self::Bound => "lower bound",
        }
    }
}

/// What else the machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// On each CPU a program of normal priority computes.
    Busy,
}

impl Load {
    pub(crate) const ALL: [Self; 2] = [Self::Idle, Self::Busy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

/// What a save and a restore take on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Costs {
    /// 100 us each.
    Even,
    /// Those of EPOCH: 62.2 us and 67.4 us.
    Epoch,
}

impl Costs {
    pub(crate) const ALL: [Self; 2] = [Self::Even, Self::Epoch];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Even => "100 us",
            Self::Epoch => "EPOCH",
        }
    }

    /// As the card's control socket takes them (docs/card.md).
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Even => "save_us=100 restore_us=100 frame_save_ns=0 frame_restore_ns=0",
            Self::Epoch => "save_us=0 restore_us=0 frame_save_ns=62200 frame_restore_ns=67400",
        }
    }
}

/// Who wants the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tenants {
    /// Four with long jobs, one after the other, and a latency-critical one that comes at random
    /// times. What comes out is compared.
    Mixed,
    /// So many with jobs that never end: nothing but switches.
    Endless(u32),
    /// The one job of the lower bound, which takes turns with itself.
    Alone,
}

/// Best-effort tenants of [`Tenants::Mixed`].
pub(crate) const BEST_EFFORT: u32 = 4;

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) variant: Variant,
    pub(crate) load: Load,
    pub(crate) costs: Costs,
    pub(crate) tenants: Tenants,
    /// Length of a slice; 0: none.
    pub(crate) slice_us: u32,
}

/// One visit, as the guest saw it. What the card saw is in its log, between the marks of this
/// number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) number: u32,
    pub(crate) round: u32,
    pub(crate) cell: Cell,
    /// Jobs that ended and whose results were compared.
    pub(crate) jobs: u64,
    /// Of these, wrong.
    pub(crate) wrong: u64,
    pub(crate) usage: Usage,
}

/// What the machine spent between the marks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Time that passed.
    pub(crate) wall_ns: u64,
    /// Context switches of the kernel.
    pub(crate) context_switches: u64,
    /// Time that the daemon ran, where there is one.
    pub(crate) daemon_ns: u64,
}

/// What the guest leaves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// A read of a register by the CPU, in ns: median.
    pub(crate) read_ns: u64,
    /// What a write of a register adds to the time until a read behind it is answered, in ns:
    /// median.
    pub(crate) write_ns: u64,
    pub(crate) cpus: u64,
    pub(crate) made: Vec<Visit>,
}

/// How much is visited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Slices of these lengths.
    pub(crate) slices_us: &'static [u32],
    /// How often each cell is visited.
    pub(crate) rounds: u32,
    /// A visit lasts for about so many slices.
    pub(crate) slices: u32,
    /// Many contexts.
    pub(crate) crowd: u32,
}

/// The length of slices where one is enough.
pub(crate) const SLICE_US: u32 = 1000;
/// Few contexts.
pub(crate) const FEW: u32 = 2;

impl Extent {
    /// `make bench`.
    pub(crate) const FULL: Self = Self {
        slices_us: &[500, 1000, 2000, 5000, 10_000],
        rounds: 5,
        slices: 200,
        crowd: 1000,
    };
    /// Whether all of it works.
    pub(crate) const QUICK: Self = Self {
        slices_us: &[SLICE_US],
        rounds: 1,
        slices: 60,
        crowd: 64,
    };

    /// The cells that need the card bound to a driver.
    pub(crate) fn cells(&self, driver: Driver) -> Vec<Cell> {
        let mut cells = Vec::new();
        for load in Load::ALL {
            let cell = |variant, slice_us| Cell {
                variant,
                load,
                costs: Costs::Even,
                tenants: Tenants::Mixed,
                slice_us,
            };
            for variant in Variant::PREEMPTIVE {
                cells.extend(self.slices_us.iter().map(|us| cell(variant, *us)));
            }
            cells.push(cell(Variant::Completion, 0));
            for variant in [Variant::Fermata, Variant::Sleep] {
                let costs = Costs::Epoch;
                cells.push(Cell {
                    costs,
                    ..cell(variant, SLICE_US)
                });
            }
            for costs in Costs::ALL {
                let tenants = Tenants::Alone;
                cells.push(Cell {
                    costs,
                    tenants,
                    ..cell(Variant::Bound, SLICE_US)
                });
            }
        }
        let switches = Variant::PREEMPTIVE.map(|variant| (variant, FEW));
        for (variant, contexts) in switches.into_iter().chain([(Variant::Fermata, self.crowd)]) {
            cells.push(Cell {
                variant,
                load: Load::Idle,
                costs: Costs::Even,
                tenants: Tenants::Endless(contexts),
                slice_us: SLICE_US,
            });
        }
        cells.retain(|cell| cell.variant.driver() == driver);
        cells
    }
}
