// SPDX-License-Identifier: GPL-2.0
//! The riscv engine: against another emulator, preempted at any cycle, and with bytes that are no program.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

mod arena;
mod lockstep;
mod preemption;
mod programs;
mod robust;
