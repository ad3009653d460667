// SPDX-License-Identifier: GPL-2.0

//! Running a job again from its beginning when its state was lost, if its owner has declared that it may.
//!
//! A save overwrites the snapshot before it, so there is none to go back to after one that broke off: the job begins anew,
//! in memory as it has left it. A job that timed out, faulted or broke the protocol is no such case: it would do so again.

use core::ops::DerefMut;

use super::machine::Machine;
use super::reset::Outcome;
use super::{ContextId, Entry, Failure};

/// How often one job is run again: a card that tears every save must not keep it going for ever.
const REPLAYS_MAX: u8 = 3;

/// May the job of a context be run again, and how often was it? Zero: it may not; else how often it was, and one more: an
/// entry has no room for two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replays(u8);

impl Replays {
    /// Of a context without a job.
    pub(super) const NONE: Self = Self::of_new_job(false);

    /// Of a job that begins; `declared`: it may be run again.
    pub(super) const fn of_new_job(declared: bool) -> Self {
        Self(declared as u8)
    }

    /// How often the job was run again.
    pub(super) fn count(self) -> u64 {
        self.0.saturating_sub(1).into()
    }

    /// May there be one more?
    fn may(self) -> bool {
        (1..=REPLAYS_MAX).contains(&self.0)
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// What becomes of a job that is off its slot with `outcome`: one whose state is lost runs again if it may.
    pub(super) fn or_again(&mut self, ctx: ContextId, outcome: Outcome) -> Outcome {
        let lost = outcome == Outcome::Failed(Failure::Snapshot);
        let entry = self.slab.get_mut(ctx);
        match entry.filter(|entry| lost && !entry.is_closing()) {
            Some(entry) if entry.replays.may() => {
                entry.replays.0 += 1;
                Outcome::Again
            }
            _ => outcome,
        }
    }
}
