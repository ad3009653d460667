// SPDX-License-Identifier: GPL-2.0

//! Where the module keeps what is measured ([`crate::measure`]).

use crate::{
    measure::{ContextHistograms, ContextMeter, Histogram, SlotHistograms},
    sched::Duration,
};
use kernel::prelude::*;

// SAFETY: Integers only.
unsafe impl Zeroable for Histogram {}
// SAFETY: Histograms and integers only.
unsafe impl Zeroable for SlotHistograms {}
// SAFETY: Histograms only.
unsafe impl Zeroable for ContextHistograms {}

/// A meter of a new context, charged to the caller's memory cgroup.
pub(crate) fn new_meter() -> Result<KBox<ContextMeter>> {
    KBox::init(
        init!(ContextMeter {
            histograms <- pin_init::init_zeroed(),
            waited: Duration::ZERO,
        }),
        GFP_KERNEL_ACCOUNT,
    )
}

/// Room for the copy of a histogram: it is larger than what a stack should bear.
pub(crate) fn new_copy() -> Result<KBox<Histogram>> {
    KBox::init(pin_init::init_zeroed(), GFP_KERNEL_ACCOUNT)
}
