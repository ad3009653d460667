// SPDX-License-Identifier: GPL-2.0

//! Where the module keeps what is measured ([`crate::measure`]).

use crate::{
    measure::{ContextHistograms, ContextMeter, Histogram, SlotHistograms, Stopwatch},
    regs::MAX_SLOTS,
    sched::Duration,
};
use kernel::prelude::*;

// SAFETY: Integers only.
unsafe impl Zeroable for Histogram {}
// SAFETY: Histograms and integers only.
unsafe impl Zeroable for SlotHistograms {}
// SAFETY: Histograms only.
unsafe impl Zeroable for ContextHistograms {}

/// What is measured of the slots of a card. Belongs to the card's raw lock (see
/// [`crate::card::State`]).
pub(crate) struct Measurements {
    pub(crate) slots: [SlotHistograms; MAX_SLOTS],
    pub(crate) stopwatch: Stopwatch,
}

impl Measurements {
    /// Nothing yet. `tells`: the slots of the fermata profile, a bit each. Tens of kilobytes.
    pub(crate) fn new(tells: u8) -> Result<KVBox<Self>> {
        KVBox::init(
            init!(Self {
                slots <- pin_init::init_zeroed(),
                stopwatch: Stopwatch::new(tells),
            }),
            GFP_KERNEL,
        )
    }
}

/// A meter of a new context, charged to the caller's memory cgroup.
pub(crate) fn new_meter() -> Result<KBox<ContextMeter>> {
    KBox::init(
        init!(ContextMeter {
            histograms <- pin_init::init_zeroed(),
            arrived: None,
            waited: Duration::ZERO,
        }),
        GFP_KERNEL_ACCOUNT,
    )
}

/// Room for the copy of a histogram: it is larger than what a stack should bear.
pub(crate) fn new_copy() -> Result<KBox<Histogram>> {
    KBox::init(pin_init::init_zeroed(), GFP_KERNEL_ACCOUNT)
}
