// SPDX-License-Identifier: GPL-2.0

//! The scheduler of `rust/scheduler` in place of `rust/sched`, behind the interface of the latter:
//! `make FERMATA_SUCCESSOR=1`. It replaces `rust/sched` once it does all that `rust/sched` does.

#[path = "sched/mod.rs"]
mod present;
#[path = "host/src/recording.rs"]
mod recording;

pub use crate::scheduler::Storage;
pub use present::*;
pub use recording::Scheduler;
