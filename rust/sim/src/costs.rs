// SPDX-License-Identifier: GPL-2.0

//! What the card and the machine around it cost.

use serde::Serialize;

use crate::US;

/// What the card and the machine between card and scheduler cost, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::Args)]
pub struct Costs {
    /// Save of a snapshot, ns
    #[arg(long = "save-ns", default_value_t = Costs::DEFAULT.save)]
    #[serde(rename = "save_ns")]
    pub save: u64,
    /// Restore of a snapshot, ns
    #[arg(long = "restore-ns", default_value_t = Costs::DEFAULT.restore)]
    #[serde(rename = "restore_ns")]
    pub restore: u64,
    /// From the card's interrupt to the handler, ns
    #[arg(long = "irq-ns", default_value_t = Costs::DEFAULT.irq)]
    #[serde(rename = "irq_ns")]
    pub irq: u64,
    /// A status read, ns
    #[arg(long = "read-ns", default_value_t = Costs::DEFAULT.read)]
    #[serde(rename = "read_ns")]
    pub read: u64,
    /// The writes of a START until it takes effect, ns
    #[arg(long = "start-ns", default_value_t = Costs::DEFAULT.start)]
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// An order on its way to a relay, ns
    #[arg(long = "order-ns", default_value_t = Costs::DEFAULT.order)]
    #[serde(rename = "order_ns")]
    pub order: u64,
    /// A relay's reads of the next context's entry and registers in memory, ns
    #[arg(long = "load-ns", default_value_t = Costs::DEFAULT.load)]
    #[serde(rename = "load_ns")]
    pub load: u64,
    /// How late a timer fires, ns
    #[arg(long = "timer-ns", default_value_t = Costs::DEFAULT.timer)]
    #[serde(rename = "timer_ns")]
    pub timer: u64,
    /// A program's call into the driver, ns
    #[arg(long = "call-ns", default_value_t = Costs::DEFAULT.call)]
    #[serde(rename = "call_ns")]
    pub call: u64,
    /// From the end of a job to its program, ns
    #[arg(long = "wake-ns", default_value_t = Costs::DEFAULT.wake)]
    #[serde(rename = "wake_ns")]
    pub wake: u64,
    /// Preparing a request takes up to so much more or less than its program believes, percent
    #[arg(long = "preparation-off", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    #[serde(rename = "preparation_off_percent")]
    pub preparation_off: u8,
}

impl Costs {
    /// An A100 as `GPreempt` has it (44 MB of state at 1.1 TB/s: 40 us each way), and a common machine with `PCIe`.
    pub const DEFAULT: Self = Self {
        save: 40 * US,
        restore: 40 * US,
        irq: 3 * US,
        read: US,
        start: US,
        order: 0,
        load: 2 * US,
        timer: US,
        call: US,
        wake: 5 * US,
        preparation_off: 0,
    };
    /// Nothing costs anything, as in a textbook.
    pub const ZERO: Self = Self {
        save: 0,
        restore: 0,
        irq: 0,
        read: 0,
        start: 0,
        order: 0,
        load: 0,
        timer: 0,
        call: 0,
        wake: 0,
        preparation_off: 0,
    };
}
