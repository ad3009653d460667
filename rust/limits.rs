// SPDX-License-Identifier: GPL-2.0

//! What the administrator allows: the module's parameters, checked.

use crate::{
    card::Scheduler,
    compat::parameter,
    sched::{Duration, Params, PolicyKind},
    shim::fermata_policy_parameter,
    uapi::policy,
};
use kernel::prelude::*;

/// Limits and defaults of the contexts of a card.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Contexts that can be set up at once.
    pub(crate) contexts: usize,
    /// And of a group for which nothing else is set at the most.
    pub(crate) contexts_of_group: usize,
    /// Bytes of pinned memory of the contexts of such a group at the most.
    pub(crate) pinned: u64,
    /// Bytes of an arena at the most.
    pub(crate) arena: u64,
    /// Bytes that are charged to no memory cgroup, of the contexts of a user or of a group, at the
    /// most.
    pub(crate) uncharged: u64,
    /// Parameters of a new context.
    pub(crate) params: Params,
    /// The policy to begin with.
    pub(crate) policy: PolicyKind,
    /// The starvation guard to begin with.
    pub(crate) guard: Duration,
    /// How long work that goes first waits for a boundary, to begin with.
    pub(crate) boundary_wait: Duration,
    /// The time between two completion interrupts of a vector, on the average.
    pub(crate) completion_interval: Duration,
    /// Base cards: how long DMA may still arrive after a reset.
    pub(crate) settle: Duration,
}

/// Most contexts that `max_contexts` can allow: 64 Ki, each with a group of its own, of
/// 256 bytes each are 32 MiB for each card.
pub(crate) const CONTEXTS_MAX: u32 = 65_536;
/// Fewest and most completion interrupts of a vector in a second.
const COMPLETION_RATE_MIN: u32 = 100;
const COMPLETION_RATE_MAX: u32 = 1_000_000;
/// Longest settle time: 1 s.
const SETTLE_MAX_US: u32 = 1_000_000;

impl Limits {
    /// The module's parameters as they are now. Numbers out of range are brought into it. `EINVAL`:
    /// there is no policy of that name, and the log says so.
    pub(crate) fn from_module_parameters() -> Result<Self> {
        Ok(Self {
            contexts: parameter!(max_contexts).clamp(1, CONTEXTS_MAX) as usize,
            contexts_of_group: parameter!(max_contexts_group).clamp(1, CONTEXTS_MAX) as usize,
            pinned: match parameter!(max_pinned_group_mib) {
                0 => u64::MAX,
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
            guard: guard_of(parameter!(guard_ms)),
            boundary_wait: Duration::from_us(parameter!(boundary_wait_us).into())
                .min(Scheduler::BOUNDARY_WAIT_MAX),
            completion_interval: Duration::from_ms(1_000).parts(
                parameter!(completion_rate)
                    .clamp(COMPLETION_RATE_MIN, COMPLETION_RATE_MAX)
                    .into(),
            ),
            settle: Duration::from_us(parameter!(base_settle_us).min(SETTLE_MAX_US).into()),
        })
    }
}

/// The policy that the module parameter `policy` names.
fn policy_parameter() -> Result<PolicyKind> {
    // SAFETY: The parameter is a string that does not change while the module is there.
    let name = unsafe { CStr::from_char_ptr(fermata_policy_parameter()) };
    policy::named(name.to_bytes()).ok_or_else(|| {
        pr_err!(
            "no policy has the name {:?} (module parameter policy)\n",
            name
        );
        EINVAL
    })
}

/// The starvation guard of `ms` milliseconds; 0: none.
fn guard_of(ms: u32) -> Duration {
    match ms {
        0 => Duration::ZERO,
        ms => Duration::from_ms(ms.into()).clamp(Scheduler::GUARD_MIN, Scheduler::GUARD_MAX),
    }
}
