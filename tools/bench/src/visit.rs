// SPDX-License-Identifier: GPL-2.0-or-later
//! What is measured: cells of a table, each of which is visited once in a round. The guest makes
//! the visits, and the host evaluates the card's log. The jobs of the tenants: `membench` reads a
//! page again and again, and computes a sum (docs/emulated-card.md). The card is set to 64 bytes a
//! microsecond, so an access takes a microsecond.

use fermata::work::REG_TAG;
use fermata_card::dma::LINE;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The scheduler that shares the card among tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// fermata.ko.
    Fermata,
    /// fermata.ko that does not use the card's relay (module parameter `relay=0`).
    NoRelay,
    /// The sleeping daemon, which uses the card's relay.
    Relay,
    /// A daemon on vfio-pci that sleeps between events.
    Sleep,
    /// The sleeping daemon under `SCHED_FIFO`.
    SleepFifo,
    /// A daemon that polls.
    Poll,
    /// The polling daemon under `SCHED_FIFO`.
    PollFifo,
    /// No preemption: fermata.ko with slices longer than any job, and without latency-critical
    /// work.
    Completion,
    /// The bound of interrupt-driven drivers: a handler that reads the status and writes the next START
    /// (tools/bench/module).
    Bound,
    /// The bound of the card: two contexts that alternate by orders, without a scheduler
    /// (tools/bench/module).
    CardBound,
}

/// The driver that the card is bound to for a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Fermata,
    /// fermata.ko with the parameter `relay=0`.
    NoRelay,
    Vfio,
    Bound,
    CardBound,
}

impl Driver {
    pub(crate) const ALL: [Self; 5] = [
        Self::Fermata,
        Self::Vfio,
        Self::CardBound,
        Self::NoRelay,
        Self::Bound,
    ];

    /// Returns the driver's name in sysfs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fermata | Self::NoRelay => "fermata",
            Self::Vfio => "vfio-pci",
            Self::Bound => "fermata_bound",
            Self::CardBound => "fermata_card_bound",
        }
    }

    /// Returns whether the driver is fermata.ko.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Fermata | Self::NoRelay)
    }
}

impl Variant {
    /// The preemptive variants, in the order of the tables.
    pub(crate) const PREEMPTIVE: [Self; 7] = [
        Self::Fermata,
        Self::NoRelay,
        Self::Relay,
        Self::Sleep,
        Self::SleepFifo,
        Self::Poll,
        Self::PollFifo,
    ];

    pub(crate) fn driver(self) -> Driver {
        match self {
            Self::Fermata | Self::Completion => Driver::Fermata,
            Self::NoRelay => Driver::NoRelay,
            Self::Relay | Self::Sleep | Self::SleepFifo | Self::Poll | Self::PollFifo => {
                Driver::Vfio
            }
            Self::Bound => Driver::Bound,
            Self::CardBound => Driver::CardBound,
        }
    }

    /// Returns whether the card is bound to fermata.ko.
    pub(crate) fn is_own(self) -> bool {
        self.driver().is_own()
    }

    /// Returns whether the variant is a bound, which needs no programs.
    pub(crate) fn is_bound(self) -> bool {
        matches!(self, Self::Bound | Self::CardBound)
    }

    /// Returns the name in tables and plots.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fermata => "fermata",
            Self::NoRelay => "fermata, no relay",
            Self::Relay => "daemon, relay",
            Self::Sleep => "daemon",
            Self::SleepFifo => "daemon, FIFO",
            Self::Poll => "daemon, polls",
            Self::PollFifo => "daemon, polls, FIFO",
            Self::Completion => "no preemption",
            Self::Bound => "bound of interrupt-driven drivers",
            Self::CardBound => "card bound",
        }
    }
}

/// Other load of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// No other load.
    Idle,
    /// A program of normal priority computes on each CPU.
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

/// Time of a save and a restore on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Costs {
    /// 100 us each.
    Even,
    /// The times of EPOCH: 62.2 us and 67.4 us.
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

    /// Returns the time of a save and a restore.
    pub(crate) fn save_and_restore_us(self) -> f64 {
        match self {
            Self::Even => 200.0,
            Self::Epoch => 129.6,
        }
    }

    /// Returns the settings for the card's control port (docs/emulated-card.md).
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Even => "save_us=100 restore_us=100 frame_save_ns=0 frame_restore_ns=0",
            Self::Epoch => "save_us=0 restore_us=0 frame_save_ns=62200 frame_restore_ns=67400",
        }
    }
}

/// The tenants that compete for the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tenants {
    /// Four tenants that run long jobs one after the other, and a latency-critical tenant that runs
    /// jobs at random times. Results are compared.
    Mixed,
    /// This number of tenants whose jobs never end, so that the slot does nothing but switches.
    Endless(u32),
    /// The jobs of a bound, which the bound's module starts.
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
    /// Length of a slice; 0 without slices.
    pub(crate) slice_us: u32,
}

/// A visit, as the guest saw it. The card's log has the rest, between the marks of this number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) number: u32,
    pub(crate) round: u32,
    pub(crate) cell: Cell,
    /// Jobs that ended and whose results were compared.
    pub(crate) jobs: u64,
    /// Number of jobs with a wrong result.
    pub(crate) wrong: u64,
    pub(crate) usage: Usage,
}

/// What the machine used between the marks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Elapsed time.
    pub(crate) wall_ns: u64,
    /// The kernel's count of context switches.
    pub(crate) context_switches: u64,
    /// CPU time of the daemon, 0 without a daemon.
    pub(crate) daemon_ns: u64,
}

/// The guest's file for the report.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Median time of a register read by the CPU, in ns.
    pub(crate) read_ns: u64,
    /// Median time that a register write adds to the next read, in ns.
    pub(crate) write_ns: u64,
    pub(crate) cpus: u64,
    pub(crate) made: Vec<Visit>,
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Lengths of slices.
    pub(crate) slices_us: &'static [u32],
    /// Number of visits of each cell.
    pub(crate) rounds: u32,
    /// Length of a visit in slices, about.
    pub(crate) slices: u32,
    /// Number of contexts for the visit with many contexts.
    pub(crate) crowd: u32,
}

/// The length of slices of visits that are made with one length only.
pub(crate) const SLICE_US: u32 = 1000;
/// Number of contexts for visits with few contexts.
pub(crate) const FEW: u32 = 2;

impl Extent {
    /// The extent of `make bench`.
    pub(crate) const FULL: Self = Self {
        slices_us: &[500, 1000, 2000, 5000, 10_000],
        rounds: 5,
        slices: 200,
        crowd: 1000,
    };
    /// The extent of a smoke test.
    pub(crate) const QUICK: Self = Self {
        slices_us: &[SLICE_US],
        rounds: 1,
        slices: 400,
        crowd: 64,
    };

    /// Returns the cells whose variants need a driver.
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
            for variant in [
                Variant::Fermata,
                Variant::NoRelay,
                Variant::Relay,
                Variant::Sleep,
            ] {
                let costs = Costs::Epoch;
                cells.push(Cell {
                    costs,
                    ..cell(variant, SLICE_US)
                });
            }
            for variant in [Variant::Bound, Variant::CardBound] {
                let tenants = Tenants::Alone;
                cells.extend(Costs::ALL.map(|costs| Cell {
                    costs,
                    tenants,
                    ..cell(variant, SLICE_US)
                }));
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

/// Time limit for all waits; only a hang reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Tag of the latency-critical tenant.
pub(crate) const URGENT_TAG: u64 = 0x4c43;
/// First tag of the other tenants.
pub(crate) const TAGS: u64 = 0x1_0000;
/// Bytes that a tenant shares with the engine: a page for the result, and a page of data.
pub(crate) const MEMORY: usize = 2 * DATA;

/// Microseconds that a latency-critical job takes.
pub(crate) const SHORT: u64 = 100;

/// Offset of the data, behind the page for the result.
const DATA: usize = 4096;
const WORDS: usize = DATA / 8;

/// A job, the same each time it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Identifies the job's tenant.
    pub(crate) tag: u64,
    /// Number of accesses, each of which takes a microsecond.
    pub(crate) accesses: u64,
}

impl Job {
    /// Returns a job that never ends.
    pub(crate) fn endless(tag: u64) -> Self {
        let accesses = u64::MAX;
        Self { tag, accesses }
    }

    /// Returns a word of the data.
    fn value(self, word: usize) -> u64 {
        (self.tag << 32 | word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Writes the data by calling `store` with an offset and a word.
    pub(crate) fn fill(self, store: impl Fn(usize, u64)) {
        for word in 0..WORDS {
            store(DATA + word * 8, self.value(word));
        }
    }

    /// Returns the registers for memory at a device address.
    pub(crate) fn registers(self, base: u64) -> [(u32, u64); 7] {
        [
            (0x30, base + DATA as u64),
            (0x38, DATA as u64),
            (0x40, self.accesses),
            (0x48, 0),
            (0x58, 0),
            (0x60, base),
            (REG_TAG, self.tag),
        ]
    }

    /// Returns the first two words of the result: number of accesses, and sum.
    pub(crate) fn result(self) -> [u64; 2] {
        let per_line = LINE as usize / 8;
        let mut sum = 0_u64;
        for access in 0..self.accesses {
            let line = access as usize % (WORDS / per_line);
            for word in line * per_line..(line + 1) * per_line {
                sum = sum.rotate_left(5) ^ self.value(word);
            }
        }
        [self.accesses, sum]
    }
}
