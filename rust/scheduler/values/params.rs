// SPDX-License-Identifier: GPL-2.0

//! Parameters of contexts, settings of groups, and their limits.

use super::{Duration, Refusal};

/// The parameters of a context that can be changed while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The slots that the context may run on, a bit each. Bits of slots of another class, or of no
    /// slot, have no effect.
    pub mask: u8,
    /// How long the context may run while another one waits: [`Params::TIMESLICE_MIN`] to
    /// [`Params::TIMESLICE_MAX`]. A slice that begins with a resume is longer by the measured cost
    /// of a restore.
    pub timeslice: Duration,
    /// How long after the first PAUSE its job may take to be off the slot, before the slot is reset
    /// and the job fails: [`Params::PREEMPT_TIMEOUT_MIN`] to [`Params::PREEMPT_TIMEOUT_MAX`].
    pub preempt_timeout: Duration,
    /// Its weight under [`PolicyKind::Fair`]: [`Params::WEIGHT_MIN`] to
    /// [`Params::WEIGHT_MAX`]. Time before a change is charged at the old weight.
    pub weight: u16,
    /// Its priority under [`PolicyKind::Priority`]: 0 to
    /// [`Params::PRIORITY_MAX`], higher first. The caller checks whether the owner may raise it.
    pub priority: u8,
    /// Its jobs are stopped at the next boundary of their work, if the engine has boundaries
    /// ([`SlotConfig::granularity`](super::SlotConfig::granularity)). The time until then is run
    /// time of the context, and is bounded by `preempt_timeout`.
    pub cooperative: bool,
    /// Whether its work is latency-critical. The caller checks whether the owner may set this.
    pub urgency: Urgency,
    /// The most time that it may have on slots, in percent of one slot, also while slots are free:
    /// 1 to 100; 0 is the same as 100, no cap. Has no effect while a reservation is in force.
    pub cap: u8,
    /// Under [`PolicyKind::Deadline`]: the time on a slot that the
    /// context may use in each period, including its restores and saves; zero: no reservation, and
    /// then `deadline` and `period` are zero, too. Otherwise [`Params::TIMESLICE_MIN`] to
    /// `deadline`. Subject to admission under every policy.
    pub budget: Duration,
    /// How long after the beginning of a period the budget must have been given: `budget` to
    /// `period`.
    pub deadline: Duration,
    /// The length of a period: [`Params::PERIOD_MIN`] to [`Params::PERIOD_MAX`].
    pub period: Duration,
}

/// How a card shares its slots. All classes of a card have the same policy;
/// [`Scheduler::set_policy`](crate::scheduler::Scheduler::set_policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Time on slots in proportion to the weights of groups, and of the contexts of a group: each
    /// entity has a virtual time that passes while it is on a slot, faster the lower its weight,
    /// and the entity with the least virtual time goes first.
    #[default]
    Fair,
    /// One slice each, in turn.
    RoundRobin,
    /// The highest priority first, at once; equals take turns.
    Priority,
    /// Earliest deadline first for contexts with a reservation, weighted fair for what is left.
    Deadline,
}

/// How urgent the work of a context is, under every policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// A job that arrives preempts best-effort work on an allowed slot at once.
    LatencyCritical,
    /// The work may be preempted at any time, and is resumed later with nothing lost.
    #[default]
    BestEffort,
}

impl Params {
    /// The shortest timeslice: 100 us (as in XSched).
    pub const TIMESLICE_MIN: Duration = Duration::from_us(100);
    /// The longest timeslice: 10 s.
    pub const TIMESLICE_MAX: Duration = Duration::from_ms(10_000);
    /// A slice is not made longer than this because saves and restores are slow.
    pub(crate) const SLICE_FLOOR_MAX: Duration = Duration::from_ms(10);
    /// The shortest preempt timeout: 1 ms.
    pub const PREEMPT_TIMEOUT_MIN: Duration = Duration::from_ms(1);
    /// The longest preempt timeout: 10 s.
    pub const PREEMPT_TIMEOUT_MAX: Duration = Duration::from_ms(10_000);

    /// The least weight.
    pub const WEIGHT_MIN: u16 = 1;
    /// The greatest weight.
    pub const WEIGHT_MAX: u16 = 10_000;
    /// The default weight.
    pub const WEIGHT_DEFAULT: u16 = 100;

    /// The highest priority.
    pub const PRIORITY_MAX: u8 = 31;
    /// The default priority.
    pub const PRIORITY_DEFAULT: u8 = 16;

    /// The shortest period: 1 ms.
    pub const PERIOD_MIN: Duration = Duration::from_ms(1);
    /// The longest period: 10 s.
    pub const PERIOD_MAX: Duration = Duration::from_ms(10_000);

    /// Every slot, slices of 2 ms, a preempt timeout of 100 ms, weight 100, priority 16, best
    /// effort, no reservation, no cap.
    pub const DEFAULT: Self = Self {
        mask: u8::MAX,
        timeslice: Duration::from_ms(2),
        preempt_timeout: Duration::from_ms(100),
        weight: Self::WEIGHT_DEFAULT,
        priority: Self::PRIORITY_DEFAULT,
        cooperative: false,
        urgency: Urgency::BestEffort,
        cap: 0,
        budget: Duration::ZERO,
        deadline: Duration::ZERO,
        period: Duration::ZERO,
    };

    /// Refuses values out of range.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let slice = (Self::TIMESLICE_MIN..=Self::TIMESLICE_MAX).contains(&self.timeslice);
        let timeout =
            (Self::PREEMPT_TIMEOUT_MIN..=Self::PREEMPT_TIMEOUT_MAX).contains(&self.preempt_timeout);
        let weight = (Self::WEIGHT_MIN..=Self::WEIGHT_MAX).contains(&self.weight);
        let priority = self.priority <= Self::PRIORITY_MAX;
        let percent = self.cap <= 100;
        let (budget, deadline, period) = (self.budget, self.deadline, self.period);
        let nothing = [budget, deadline, period] == [Duration::ZERO; 3];
        let reservation = budget >= Self::TIMESLICE_MIN
            && budget <= deadline
            && deadline <= period
            && (Self::PERIOD_MIN..=Self::PERIOD_MAX).contains(&period);
        if slice && timeout && weight && priority && percent && (nothing || reservation) {
            Ok(())
        } else {
            Err(Refusal::Range)
        }
    }
}

impl Default for Params {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What the administrator sets for a group and all groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// Its weight relative to its siblings: [`Params::WEIGHT_MIN`] to [`Params::WEIGHT_MAX`].
    pub weight: u16,
    /// The highest [`Params::priority`] of its contexts: 0 to [`Params::PRIORITY_MAX`].
    pub max_priority: u8,
    /// The time on slots that all its contexts together may have, in percent of one slot: 0 to
    /// [`GroupSettings::CAP_MAX`]; 0: no cap. Contexts with a reservation in force are neither
    /// limited by the cap nor counted.
    pub cap: u16,
    /// The slots that serve only this group, a bit each.
    pub slots: u8,
}

impl GroupSettings {
    /// All slots of a card with the maximum number of slots.
    pub const CAP_MAX: u16 = 800;

    /// The settings of a group that is not registered.
    pub const DEFAULT: Self = Self {
        weight: Params::WEIGHT_DEFAULT,
        max_priority: Params::PRIORITY_MAX,
        cap: 0,
        slots: 0,
    };

    /// Refuses values out of range.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let weight = (Params::WEIGHT_MIN..=Params::WEIGHT_MAX).contains(&self.weight);
        let priority = self.max_priority <= Params::PRIORITY_MAX;
        if weight && priority && self.cap <= Self::CAP_MAX {
            Ok(())
        } else {
            Err(Refusal::Range)
        }
    }
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}
