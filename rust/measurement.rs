// SPDX-License-Identifier: GPL-2.0

//! Memory for what is measured ([`crate::measure`]).

use crate::{
    measure::{ContextHistograms, ContextMeter, Histogram, SlotHistograms},
    scheduler::Duration,
};
use kernel::prelude::*;

// SAFETY: Integers only.
unsafe impl Zeroable for Histogram {}
// SAFETY: Histograms and integers only.
unsafe impl Zeroable for SlotHistograms {}
// SAFETY: Histograms only.
unsafe impl Zeroable for ContextHistograms {}

/// Returns the meter of a new context, charged to the caller's memory cgroup.
pub(crate) fn new_meter() -> Result<KBox<ContextMeter>> {
    KBox::init(
        init!(ContextMeter {
            histograms <- pin_init::init_zeroed(),
            waited: Duration::ZERO,
        }),
        GFP_KERNEL_ACCOUNT,
    )
}

/// Returns room for the copy of a histogram, which is too large for the stack.
pub(crate) fn new_copy() -> Result<KBox<Histogram>> {
    KBox::init(pin_init::init_zeroed(), GFP_KERNEL_ACCOUNT)
}
