// SPDX-License-Identifier: GPL-2.0-or-later
//! Checkpoints of contexts, and migration between cards (docs/checkpoint.md).
//!
//! [`save`] writes a context whose job is held to a file. [`restore_file`] makes a context from the
//! file: on another slot or card, after a reboot, or in another machine. [`send`] and [`receive`]
//! migrate a running job.

pub mod container;
mod content;
mod migrate;
mod restore;
mod save;

pub use container::Refusal;
pub use content::{Account, ArenaDescription, Description, Job, ReservationDescription};
pub use content::{Content, Part};
pub use migrate::{listen, receive, send, MoveError, Moved, ReceiveError};
pub use restore::{restore, restore_file, restore_without, Absent, Restored};
pub use save::{create, save, SaveError};
