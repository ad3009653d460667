// SPDX-License-Identifier: GPL-2.0

//! The scheduler and the slot protocol, pure: events with timestamps in, actions out.
//!
//! Nothing here locks, allocates, reads a clock or imports the kernel. The module compiles these files into `fermata.ko`
//! and the host crate (`rust/host`) compiles the very same files for unit tests, property tests and models.
//!
//! The caller owns one [`Machine`] per card, feeds it [`Event`]s under its own lock, and carries out each [`Action`] at
//! once and in order. `Machine::handle` may be called from interrupt context: it is O(log n) in the number of
//! contexts except where said, and it does not panic.

mod access;
mod admission;
mod chain;
mod clock;
mod cooperative;
mod doorbell;
mod event;
mod exclusive;
mod freeze;
mod gang;
mod group;
mod guard;
mod hints;
mod limit;
mod load;
mod machine;
mod owner;
mod params;
mod policy;
mod protocol;
mod queue;
mod registration;
mod replay;
mod reset;
mod run;
mod slab;
mod slot;
mod status;
mod sweep;
mod time;
mod tree;

pub use cooperative::Stops;
pub use event::{Action, Event, Failure, PauseCause, Refusal, Wake};
pub use group::{GroupKey, GroupStats};
pub use load::LoadCost;
pub use machine::{ContextConfig, Machine, MachineConfig};
pub use params::{Params, Urgency};
pub use policy::PolicyKind;
pub use registration::GroupSettings;
pub use slab::{ContextId, Entry, JobState, Stats};
pub use slot::{Profile, SlotConfig, SlotId, SlotState, SlotStats, MAX_SLOTS};
pub use status::{Phase, Status};
pub use time::{Duration, Time};
