// SPDX-License-Identifier: GPL-2.0

//! A card and a caller in virtual time, to drive the machine.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod card;
pub mod world;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
