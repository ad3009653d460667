// SPDX-License-Identifier: GPL-2.0

//! The starvation guard: whatever the policy prefers, the one that waits longest gets a slice now and then.
//!
//! When it has waited for longer than the guard, and the last slice given for this reason is as long ago, it is given the
//! next slice, which nobody cuts short; the slice is its own, but no longer than a quarter of the guard. So at most a
//! quarter of the time goes against the policy, and of n that wait each runs within n + 1 guards, slices and switches.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::{ContextId, Duration, Entry, Refusal, SlotId, Time};

/// How many of those that wait longest are looked at for one that may run on a slot; the others will be among them later.
const LOOKS_MAX: usize = 8;

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// The starvation guard until another is set: 1 s.
    pub const GUARD_DEFAULT: Duration = Duration::from_ms(1_000);
    /// The shortest guard: 10 ms.
    pub const GUARD_MIN: Duration = Duration::from_ms(10);
    /// The longest guard: 60 s.
    pub const GUARD_MAX: Duration = Duration::from_ms(60_000);

    /// How long a context may wait until it is given a slice whatever the policy says: 10 ms to 60 s, or zero for "as
    /// long as it takes". Of several that wait for so long, one is served in each such span.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_guard(
        &mut self,
        now: Time,
        guard: Duration,
        out: &mut impl FnMut(super::Action),
    ) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        if guard != Duration::ZERO && !(Self::GUARD_MIN..=Self::GUARD_MAX).contains(&guard) {
            return Err(Refusal::Range);
        }
        self.guard = guard;
        let out: &mut Out<'_> = out;
        self.press_all(now, out);
        Ok(())
    }

    /// The starvation guard; zero if there is none.
    pub fn guard(&self) -> Duration {
        self.guard
    }

    /// The one that waits longest for a slot, and when that is too long.
    pub(super) fn starving(&self, id: SlotId) -> Option<(ContextId, Time)> {
        if self.guard == Duration::ZERO {
            return None;
        }
        let queue = self.queue(self.slot(id)?.queue)?;
        let mut at = queue.waiting.oldest;
        for _ in 0..LOOKS_MAX {
            let entry = self.slab.at(at)?;
            if entry.allowed & id.bit() != 0 {
                let since = entry.since.max(queue.guarded);
                return Some((self.slab.id_at(at)?, since + self.guard));
            }
            at = entry.newer;
        }
        None
    }
}
