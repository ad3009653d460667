// SPDX-License-Identifier: GPL-2.0

//! The scheduler and the slot protocol, pure: events with timestamps in, actions out.
//!
//! Nothing here locks, allocates, reads a clock or imports the kernel. The module compiles these
//! files into `fermata.ko` and the host crate (`rust/host`) compiles the very same files for unit
//! tests, property tests and models. Both provide [`crate::array`].
//!
//! The caller owns one [`Scheduler`] per card, feeds it [`Event`]s under its own lock, and carries
//! out each [`Action`] at once and in order. [`Scheduler::handle`] may be called from interrupt
//! context: it is O(log n) in the number of contexts, and it does not panic.

mod access;
mod admission;
mod bandwidth;
mod boost;
mod charge;
mod context;
mod dispatch;
mod entities;
mod entity;
mod entry;
mod event;
mod fifo;
mod freeze;
mod gang;
mod gang_claim;
mod gang_ring;
mod gang_turn;
mod group;
mod hints;
mod ids;
mod limit;
mod load;
mod nominee;
mod order;
mod params;
mod plan;
mod plan_cache;
mod policy;
mod registration;
mod reservation;
mod run;
mod runqueue;
mod scheduler;
mod seating;
mod slot_config;
mod slot_fsm;
mod slot_relay;
mod slot_reset;
mod slot_run;
mod state;
mod status;
mod sweep;
mod switch;
mod table;
mod throttle;
mod time;
mod tree;
mod turn;

pub use context::{JobState, SchedContext, Stats, WaitReason};
pub use entity::SchedEntity;
pub use event::{
    Action, EndReason, Event, Failure, NewJob, PastJobs, PauseCause, Refusal, RunEnd, StartTimes,
    Wake,
};
pub use group::{GroupStats, Registration, SchedGroup};
pub use ids::{ContextId, GroupKey, GroupPath, SlotId, MAX_SLOTS};
pub use load::LoadCost;
pub use order::{LeftReason, NextRun, Order, RunRecord, Stop};
pub use params::{GroupSettings, Params, Urgency};
pub use policy::PolicyKind;
pub use runqueue::RunQueue;
pub use scheduler::{CardConfig, ContextConfig};
pub use slot_config::{PreemptGranularity, Profile, SlotConfig, SlotState, SlotStats};
pub use state::{Scheduler, Slot, Storage};
pub use status::{Phase, Status};
pub use table::{Bucket, EntityStorage, Place};
pub use time::{Duration, Time};
