// SPDX-License-Identifier: GPL-2.0

//! The scheduler of `fermata.ko` over virtual time (docs/simulator.md).
//!
//! Decisions are made by `rust/scheduler`, the same source files that the module compiles, by way of
//! `rust/host`. The cards, the delays of the machine between scheduler and card, and the programs
//! that request slots are simulated. Nothing reads a clock: the same arguments give the same
//! numbers, bit for bit.

pub mod compare;
pub mod config;
pub mod fleet;
pub mod gangs;
pub mod mode;
pub mod placement;
pub mod report;
pub mod sim;
pub mod workload;

mod card;

/// A microsecond in nanoseconds.
pub const US: u64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second in nanoseconds.
pub const S: u64 = 1_000_000_000;
