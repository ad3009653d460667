// SPDX-License-Identifier: GPL-2.0-or-later
//! The card as a device: registers, jobs, interrupts and errors, through vfio-user.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

mod common;
mod empty;
mod foreign;
mod frames;
mod jobs;
mod misbehave;
mod process;
mod protocol;
mod registers;
mod relay;
mod stopped;
mod violations;
