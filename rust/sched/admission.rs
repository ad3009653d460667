// SPDX-License-Identifier: GPL-2.0

//! What contexts may reserve: no more in all than the slots of their class can give.
//!
//! Checked under every policy, so that a change of policy finds nothing that it cannot keep. A tenth of each slot is never
//! reserved: it covers saves on behalf of others, and feeds those without a reservation.
//!
//! Deadlines on one slot: the densities (budget over deadline) are at most 90 % together. On m slots each is at most
//! 50 %, and together 90 % of (m + 1) / 2: by Goossens, Funk and Baruah m slots keep all deadlines if the sum is at most m -
//! (m - 1) d, where d is the greatest, here one half. That holds for contexts that may run on every slot of the class.

use core::ops::DerefMut;

use super::machine::Machine;
use super::{Entry, Params, Refusal};

/// Densities are counted in millionths of a slot.
const SLOT: u64 = 1_000_000;

/// Shares and densities reserved in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    /// Percent of one slot.
    pub(super) share: u32,
    density: u64,
}

impl Reserved {
    pub(super) const NONE: Self = Self {
        share: 0,
        density: 0,
    };

    fn of(params: &Params) -> Self {
        let scaled = params.budget.as_ns().saturating_mul(SLOT);
        Self {
            share: params.share.into(),
            density: scaled.div_ceil(params.deadline.as_ns().max(1)),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            share: self.share.saturating_add(other.share),
            density: self.density.saturating_add(other.density),
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            share: self.share.saturating_sub(other.share),
            density: self.density.saturating_sub(other.density),
        }
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// May a context of class `index` have `params` in place of `old`?
    pub(super) fn check_admission(
        &self,
        index: u8,
        old: Option<&Params>,
        params: &Params,
    ) -> Result<(), Refusal> {
        let (Some(queue), want) = (self.queue(index), Reserved::of(params)) else {
            return Err(Refusal::NoSlot);
        };
        let had = old.map_or(Reserved::NONE, Reserved::of);
        let sum = queue.reserved.less(had).plus(want);
        let slots = queue.usable.count_ones();
        let (each, all) = match slots {
            0 | 1 => (SLOT, SLOT),
            _ => (SLOT / 2, SLOT * u64::from(slots + 1) / 2),
        };
        let everywhere = queue.usable & !params.mask == 0;
        // One that asks for no more than it had is not refused because slots went out of use.
        let share = want.share <= had.share || sum.share <= 90 * slots;
        let density =
            want.density <= had.density || (want.density <= each && sum.density <= all / 10 * 9);
        if share && density && (want.density == 0 || everywhere) {
            Ok(())
        } else {
            Err(Refusal::Admission)
        }
    }

    /// A context of class `index` has `params` in place of `old`.
    pub(super) fn note_admission(&mut self, index: u8, old: Option<&Params>, new: Option<&Params>) {
        if let Some(queue) = self.queue_mut(index) {
            let had = old.map_or(Reserved::NONE, Reserved::of);
            let has = new.map_or(Reserved::NONE, Reserved::of);
            queue.reserved = queue.reserved.less(had).plus(has);
        }
    }
}
