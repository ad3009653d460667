// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs that travel: checkpoints of contexts, and moves between cards (docs/checkpoint.md).
//!
//! A context whose job is held is written to a file by [`save`], and made anew by [`restore_file`]:
//! on another slot, another card, after a reboot, in another machine. [`send`] and [`receive`] move
//! a job that runs.

pub mod container;
mod content;
mod description;
mod migrate;
mod restore;
mod save;

pub use container::Refusal;
pub use content::{Content, Part};
pub use description::{Account, ArenaDescription, Description, Job, ReservationDescription};
pub use migrate::{receive, send, MoveError, Moved, ReceiveError};
pub use restore::{name_of, restore, restore_file, Restored};
pub use save::{save, SaveError};
