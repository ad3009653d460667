// SPDX-License-Identifier: GPL-2.0

//! The scheduler and the slot protocol of `fermata.ko`, and what it measures, on the host: the very files that the module compiles.

#![no_std]
#![deny(unsafe_code)]

#[path = "../../sched/mod.rs"]
pub mod sched;

#[path = "../../measure/mod.rs"]
pub mod measure;
