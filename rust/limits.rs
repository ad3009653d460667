// SPDX-License-Identifier: GPL-2.0

//! The module's parameters, checked: limits and defaults that the administrator sets.

use crate::{
    compat::parameter,
    scheduler::{Duration, Params, PolicyKind, Scheduler},
    shim::{fermata_memory_bytes, fermata_policy_parameter},
    uapi::policy,
};
use kernel::prelude::*;

/// Limits and defaults of a card.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Most contexts that can be set up at once.
    pub(crate) contexts: usize,
    /// Most contexts of a group that has no limit of its own.
    pub(crate) contexts_of_group: usize,
    /// Most bytes of pinned memory of a group that has no limit of its own.
    pub(crate) pinned: u64,
    /// Most bytes of an arena.
    pub(crate) arena: u64,
    /// Most bytes that are charged to no memory cgroup, of the contexts of a user or of a group.
    pub(crate) uncharged: u64,
    /// Parameters of a new context.
    pub(crate) params: Params,
    /// The policy of a new card.
    pub(crate) policy: PolicyKind,
    /// The starvation boost interval of a new card.
    pub(crate) boost: Duration,
    /// How long work of higher priority waits for a boundary of a cooperative job, on a new card.
    pub(crate) boundary_wait: Duration,
    /// Minimum of the average time between two completion interrupts of a vector.
    pub(crate) completion_interval: Duration,
    /// How long DMA may still arrive after a reset of a base card.
    pub(crate) settle: Duration,
    /// How long after a START engines of a base card cannot be saved.
    pub(crate) unsavable: Duration,
    /// Programs may read registers of base cards that they have not named.
    pub(crate) base_read_any: bool,
    /// Cards with a relay switch by themselves.
    pub(crate) relay: bool,
    /// Contexts may use memory of another process.
    pub(crate) foreign_memory: bool,
}

/// Largest value of `max_contexts`: 64 Ki contexts and as many groups, one for each context, at 256
/// bytes each take 32 MiB for each card.
pub(crate) const CONTEXTS_MAX: u32 = 65_536;
/// Fewest and most completion interrupts of a vector in a second.
const COMPLETION_RATE_MIN: u32 = 100;
const COMPLETION_RATE_MAX: u32 = 1_000_000;
/// Longest settle time: 1 s.
const SETTLE_MAX_US: u32 = 1_000_000;
/// Longest time after a START without a PAUSE: 10 ms.
const UNSAVABLE_MAX_US: u32 = 10_000;

impl Limits {
    /// Returns the module's parameters as they are now. Numbers out of range are clamped. `EINVAL`:
    /// no policy has the name in `policy`; this is logged.
    pub(crate) fn from_module_parameters() -> Result<Self> {
        Ok(Self {
            contexts: parameter!(max_contexts).clamp(1, CONTEXTS_MAX) as usize,
            contexts_of_group: match parameter!(max_contexts_group) {
                0 => (parameter!(max_contexts).clamp(1, CONTEXTS_MAX) as usize).div_ceil(4),
                contexts => contexts.min(CONTEXTS_MAX) as usize,
            },
            pinned: match parameter!(max_pinned_group_mib) {
                0 => fermata_memory_bytes() / 4,
                mib => u64::from(mib) << 20,
            },
            arena: u64::from(parameter!(max_arena_mib).max(1)) << 20,
            uncharged: u64::from(parameter!(max_contiguous_mib)) << 20,
            params: Params {
                timeslice: Duration::from_us(parameter!(timeslice_us).into())
                    .clamp(Params::TIMESLICE_MIN, Params::TIMESLICE_MAX),
                preempt_timeout: Duration::from_us(parameter!(preempt_timeout_us).into())
                    .clamp(Params::PREEMPT_TIMEOUT_MIN, Params::PREEMPT_TIMEOUT_MAX),
                ..Params::DEFAULT
            },
            policy: policy_parameter()?,
            boost: boost_of(parameter!(boost_ms)),
            boundary_wait: Duration::from_us(parameter!(boundary_wait_us).into())
                .min(Scheduler::BOUNDARY_WAIT_MAX),
            completion_interval: Duration::from_ms(1_000).parts(
                parameter!(completion_rate)
                    .clamp(COMPLETION_RATE_MIN, COMPLETION_RATE_MAX)
                    .into(),
            ),
            settle: Duration::from_us(parameter!(base_settle_us).min(SETTLE_MAX_US).into()),
            unsavable: Duration::from_us(
                parameter!(base_unsavable_us).min(UNSAVABLE_MAX_US).into(),
            ),
            base_read_any: parameter!(base_read_any) != 0,
            relay: parameter!(relay) != 0,
            foreign_memory: parameter!(foreign_memory) != 0,
        })
    }
}

/// Returns the policy that the module parameter `policy` names.
fn policy_parameter() -> Result<PolicyKind> {
    // SAFETY: The parameter is a string that does not change while the module is loaded.
    let name = unsafe { CStr::from_char_ptr(fermata_policy_parameter()) };
    policy::named(name.to_bytes()).ok_or_else(|| {
        pr_err!(
            "no policy has the name {:?} (module parameter policy)\n",
            name
        );
        EINVAL
    })
}

/// Returns the starvation boost interval of `ms` milliseconds; 0: none.
fn boost_of(ms: u32) -> Duration {
    match ms {
        0 => Duration::ZERO,
        ms => Duration::from_ms(ms.into()).clamp(Scheduler::BOOST_MIN, Scheduler::BOOST_MAX),
    }
}
