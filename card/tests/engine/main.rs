// SPDX-License-Identifier: GPL-2.0-or-later
//! Engines by themselves, and parsers: preempted anywhere or not, and with any bytes; the riscv
//! engine compared with another emulator.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

mod arena;
mod properties;
mod queue;
mod riscv;
mod words;
