// SPDX-License-Identifier: GPL-2.0

//! What contexts may reserve: no more in total than the slots of their class can give.
//!
//! This is checked under every policy, so that a change of policy finds no reservation that it
//! cannot keep. A tenth of each slot is never reserved: it covers saves on behalf of others, and
//! serves contexts without a reservation.
//!
//! On one slot, the densities (budget over deadline) add up to at most 90 %. On m slots, each
//! density is at most 50 %, and they add up to at most 90 % of (m + 1) / 2: by Goossens, Funk and
//! Baruah, m slots keep all deadlines if the sum is at most m - (m - 1) d, where d is the greatest
//! density, here one half. That holds for contexts that may run on every slot of the class.

use super::{Params, Refusal};

/// Densities are counted in millionths of a slot.
const SLOT: u64 = 1_000_000;

/// The densities that are reserved in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    density: u64,
}

fn density(params: &Params) -> u64 {
    let scaled = params.budget.as_ns().saturating_mul(SLOT);
    scaled.div_ceil(params.deadline.as_ns().max(1))
}

impl Reserved {
    /// Returns the reserved densities when a context has `new` in place of `old`.
    #[must_use]
    pub(super) fn with(self, old: Option<&Params>, new: Option<&Params>) -> Self {
        let others = self.density.saturating_sub(old.map_or(0, density));
        Self {
            density: others.saturating_add(new.map_or(0, density)),
        }
    }

    /// Checks whether a context may have `params` in place of `old`, with the slots `usable` in
    /// use.
    ///
    /// # Errors
    ///
    /// [`Refusal::Admission`].
    pub(super) fn admit(
        self,
        usable: u8,
        old: Option<&Params>,
        params: &Params,
    ) -> Result<(), Refusal> {
        let want = density(params);
        let slots = usable.count_ones();
        let (each, all) = match slots {
            0 | 1 => (SLOT, SLOT),
            _ => (SLOT / 2, SLOT * u64::from(slots + 1) / 2),
        };
        // A context that asks for no more than it had is not refused because slots went out of use.
        let fits = want <= old.map_or(0, density)
            || (want <= each && self.with(old, Some(params)).density <= all / 10 * 9);
        let everywhere = usable & !params.mask == 0;
        if fits && (want == 0 || everywhere) {
            Ok(())
        } else {
            Err(Refusal::Admission)
        }
    }
}
