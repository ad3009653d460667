// SPDX-License-Identifier: GPL-2.0-or-later
//! An emulated preemptible accelerator card: a vfio-user server with the register interface of
//! `docs/registers.md`, engines that work on guest memory, a log of everything that the card sees,
//! and a checker over that log.

pub mod card;
pub mod checker;
pub mod config;
pub mod control;
pub mod device;
pub mod dma;
pub mod engine;
pub mod event;
pub mod foreign;
pub mod ledger;
pub mod log;
pub mod misbehave;
pub mod pci;
pub mod ram;
pub mod regs;
pub mod relay;
pub mod slot;
pub mod vfio;
