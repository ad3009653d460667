// SPDX-License-Identifier: GPL-2.0

//! The scheduler of `fermata.ko` over virtual time (docs/simulator.md).
//!
//! What decides here is `rust/sched`, the very files that the module compiles, by way of `rust/host`. Simulated are the
//! cards, the time that the machine between them takes, and the programs that ask for slots. Nothing reads a clock: the same
//! arguments give the same numbers, bit for bit.

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
