// SPDX-License-Identifier: GPL-2.0

//! The call for histograms of slots and contexts.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    capability::{self, Audit},
    context::Context,
    measure::{ContextHistograms, Histogram, SlotHistograms, BUCKETS},
    measurement,
    uapi::{self, histogram},
};
use kernel::{
    prelude::*,
    uaccess::{UserPtr, UserSlice},
};

/// A histogram of a slot or of a context.
enum Which {
    OfSlot(fn(&SlotHistograms) -> &Histogram),
    OfContext(fn(&ContextHistograms) -> &Histogram),
}

impl Which {
    /// Returns the histogram of a kind. `EINVAL`: there is no such kind.
    fn of(kind: u32) -> Result<Self> {
        Ok(match kind {
            histogram::GAP => Self::OfSlot(|of| &of.gap),
            histogram::SAVE => Self::OfSlot(|of| &of.save),
            histogram::RESTORE => Self::OfSlot(|of| &of.restore),
            histogram::OVERRUN => Self::OfSlot(|of| &of.overrun),
            histogram::LATENCY => Self::OfSlot(|of| &of.latency),
            histogram::WAIT => Self::OfContext(|of| &of.wait),
            histogram::ARRIVAL => Self::OfContext(|of| &of.arrival),
            histogram::RUN => Self::OfContext(|of| &of.run),
            _ => return Err(EINVAL),
        })
    }
}

impl Call<'_> {
    pub(super) fn histogram(&self) -> Result {
        let mut user = self.read::<uapi::Histogram>()?;
        let wanted = user.value;
        check_flags(wanted.flags, 0)?;
        check_zero(wanted.reserved)?;
        let which = Which::of(wanted.kind)?;
        let mut copy = measurement::new_copy()?;
        self.copy_histogram(which, wanted.number, &mut copy)?;
        let room = BUCKETS.min(wanted.buckets as usize);
        let array = UserPtr::from_addr(usize::try_from(wanted.counts)?);
        write_counts(array, &copy.buckets[..room])?;
        user.value = uapi::Histogram {
            count: copy.count,
            sum_ns: copy.sum,
            min_ns: copy.min,
            max_ns: copy.max,
            // CAST: 128.
            buckets: BUCKETS as u32,
            ..wanted
        };
        user.write()
    }

    /// Copies a histogram of slot or context number `number`. `EPERM`: it is of a slot, and so
    /// reveals what other users do, which the caller may not monitor.
    fn copy_histogram(&self, which: Which, number: u32, copy: &mut Histogram) -> Result {
        let card = &self.context.card;
        match which {
            Which::OfSlot(which) => {
                let (slot, _) = card.slot(number).ok_or(EINVAL)?;
                if !capability::may_monitor(Audit::Denial) {
                    return Err(EPERM);
                }
                card.copy_of_slot(slot, which, copy);
                Ok(())
            }
            Which::OfContext(which) => self.on_visible(number, |context| {
                card.copy_of_context(context.id()?, which, copy)
            }),
        }
    }

    /// Calls `look` with the caller's own context (`number` 0), or with context number `number`.
    /// `ESRCH`: there is no such context, or it was closed meanwhile; `EPERM`: another user opened
    /// it, and the caller may not monitor other users.
    fn on_visible<T>(&self, number: u32, look: impl FnOnce(&Context) -> Result<T>) -> Result<T> {
        if number == 0 {
            return look(self.context);
        }
        let other = self.find(number)?;
        if !other.client.opener.is_caller() && !capability::may_monitor(Audit::Denial) {
            return Err(EPERM);
        }
        look(&other)
    }
}

/// Copies counts out to an array that has room for them.
fn write_counts(array: UserPtr, counts: &[u64]) -> Result {
    let mut writer = UserSlice::new(array, size_of_val(counts)).writer();
    counts.iter().try_for_each(|count| writer.write(count))
}
