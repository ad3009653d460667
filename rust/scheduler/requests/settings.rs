// SPDX-License-Identifier: GPL-2.0

//! Settings of a card: the policy, the starvation boost, the boundary wait.

use super::super::card::{Call, Card};
use super::super::values::{Duration, EntityIndex, PolicyKind, Refusal, Time};
use super::super::{Scheduler, Sweep};

impl Scheduler {
    /// The default starvation boost interval: 1 s.
    pub const BOOST_DEFAULT: Duration = Duration::from_ms(1_000);
    /// The shortest boost interval: 10 ms.
    pub const BOOST_MIN: Duration = Duration::from_ms(10);
    /// The longest boost interval: 60 s.
    pub const BOOST_MAX: Duration = Duration::from_ms(60_000);
    /// The default boundary wait: 1 ms.
    pub const BOUNDARY_WAIT_DEFAULT: Duration = Duration::from_ms(1);
    /// The longest boundary wait: 10 s, the same as the longest preempt timeout.
    pub const BOUNDARY_WAIT_MAX: Duration = Duration::from_ms(10_000);

    /// Returns the policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.queue.policy()
    }

    /// Selects another policy, which takes effect at once; running jobs are not disturbed before
    /// their slices end. Virtual times are not kept. [`Scheduler::sweep`] moves the waiting contexts
    /// into the new order. No-op for the policy in force.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`].
    pub fn set_policy(&mut self, now: Time, policy: PolicyKind) -> Result<(), Refusal> {
        self.check_present()?;
        if policy == self.queue.policy() {
            return Ok(());
        }
        let mut curr = [None; super::super::MAX_SLOTS];
        for id in self.ids() {
            let run = self.slot(id).protocol.run();
            curr[id.index()] = run.map(|run| EntityIndex::of(run.ctx));
        }
        // Charged at the old policy.
        self.charge_all(now);
        self.queue.set_policy(policy, curr);
        self.sweep = Sweep::Levels(0);
        Ok(())
    }

    /// Returns the starvation boost interval; zero if there is none.
    pub fn boost(&self) -> Duration {
        self.boost
    }

    /// Sets how long a context may wait until it is given a slice under every policy:
    /// [`Scheduler::BOOST_MIN`] to [`Scheduler::BOOST_MAX`], or zero for no limit. If several
    /// contexts have waited that long, one of them is served in each such interval.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_boost<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        boost: Duration,
    ) -> Result<(), Refusal> {
        self.check_present()?;
        let range = Self::BOOST_MIN..=Self::BOOST_MAX;
        if boost != Duration::ZERO && !range.contains(&boost) {
            return Err(Refusal::Range);
        }
        self.boost = boost;
        self.reschedule_all();
        self.finish(&mut Call::new(card, now));
        Ok(())
    }

    /// Returns how long a job on its way to a boundary may delay a context that preempts it at once
    /// under the policy.
    pub fn boundary_wait(&self) -> Duration {
        self.boundary_wait
    }

    /// Sets [`Scheduler::boundary_wait`]: zero to [`Scheduler::BOUNDARY_WAIT_MAX`]. The new value
    /// applies to waits that begin from now on.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        self.check_present()?;
        if wait > Self::BOUNDARY_WAIT_MAX {
            return Err(Refusal::Range);
        }
        self.boundary_wait = wait;
        Ok(())
    }
}
