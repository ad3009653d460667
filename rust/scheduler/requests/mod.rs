// SPDX-License-Identifier: GPL-2.0

//! Calls into the scheduler: requests of owners and administrators, reports of the card and its
//! timers, and statistics.

mod access;
mod freeze;
mod groups;
mod jobs;
mod load;
mod reports;
mod settings;
mod statistics;
mod sweep;
