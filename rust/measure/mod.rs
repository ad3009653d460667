// SPDX-License-Identifier: GPL-2.0

//! Measurements of slots and contexts: histograms that the scheduler's actions feed.
//!
//! Pure, like the scheduler: the module and the host crate (`rust/host`) compile these very files.

mod histogram;
mod meter;
mod watch;

pub use histogram::{bucket_of, lower_bound, Histogram, BUCKETS};
pub use meter::{ContextHistograms, ContextMeter, SlotHistograms};
pub use watch::SlotWatch;
