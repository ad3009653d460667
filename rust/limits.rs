// SPDX-License-Identifier: GPL-2.0

//! What the administrator allows: the module's parameters, checked.

use crate::{
    compat::parameter,
    sched::{Duration, Params},
};

/// Limits and defaults of the contexts of a card.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Contexts that can be set up at once.
    pub(crate) contexts: usize,
    /// Bytes of an arena at the most.
    pub(crate) arena: u64,
    /// Parameters of a new context.
    pub(crate) params: Params,
    /// Base cards: how long DMA may still arrive after a reset.
    pub(crate) settle: Duration,
}

/// Most contexts that `max_contexts` can allow: 64 Ki of 256 bytes are 16 MiB for each card.
const CONTEXTS_MAX: u32 = 65_536;
/// Longest settle time: 1 s.
const SETTLE_MAX_US: u32 = 1_000_000;

impl Limits {
    /// The module's parameters as they are now.
    pub(crate) fn from_module_parameters() -> Self {
        Self::new(
            parameter!(max_contexts),
            parameter!(max_arena_mib),
            parameter!(timeslice_us),
            parameter!(preempt_timeout_us),
            parameter!(base_settle_us),
        )
    }

    /// Values out of range are brought into it.
    fn new(
        contexts: u32,
        arena_mib: u32,
        timeslice_us: u32,
        preempt_timeout_us: u32,
        settle_us: u32,
    ) -> Self {
        Self {
            contexts: contexts.clamp(1, CONTEXTS_MAX) as usize,
            arena: u64::from(arena_mib.max(1)) << 20,
            params: Params {
                timeslice: Duration::from_us(timeslice_us.into())
                    .clamp(Params::TIMESLICE_MIN, Params::TIMESLICE_MAX),
                preempt_timeout: Duration::from_us(preempt_timeout_us.into())
                    .clamp(Params::PREEMPT_TIMEOUT_MIN, Params::PREEMPT_TIMEOUT_MAX),
                ..Params::DEFAULT
            },
            settle: Duration::from_us(settle_us.min(SETTLE_MAX_US).into()),
        }
    }
}
