// SPDX-License-Identifier: GPL-2.0

//! What is measured of slots and contexts, pure: from the events that go into the scheduler and the actions that come out of it.
//!
//! The scheduler knows nothing of it, so that its state is what decides and nothing else. As with that, nothing here locks,
//! allocates, reads a clock of its own or imports the kernel; the module and the host crate (`rust/host`) compile these very
//! files.

mod context;
mod histogram;
mod stopwatch;

pub use context::{arriving, ContextHistograms, ContextMeter, Told};
pub use histogram::{bucket_of, lower_bound, Histogram, BUCKETS};
pub use stopwatch::{Cause, SlotHistograms, Stopwatch};
