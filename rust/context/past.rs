// SPDX-License-Identifier: GPL-2.0

//! A context that is made anew as it was elsewhere: how it was made, and what its jobs have come to.

use super::Context;
use crate::{bar::Fault, image::AppRegister, sched::PastJobs};
use kernel::{page::PAGE_SIZE, prelude::*};

/// Where the memory of a context comes from.
#[derive(Default)]
pub(crate) struct MemoryOrigin {
    /// The arena is the program's own memory, from this address on.
    pub(crate) arena: Option<u64>,
    /// The arena is a part of the arena of the context of this number, from this offset on.
    pub(crate) shared: Option<(u32, u64)>,
    /// The snapshot buffer is the program's own memory, from this address on.
    pub(crate) snapshot: Option<u64>,
}

impl Context {
    /// Returns where the memory of the context comes from.
    pub(crate) fn memory_origin(&self) -> MemoryOrigin {
        let memory = self.client.memory.lock();
        let snapshot = memory.own_snapshot;
        let Some(arena) = &memory.arena else {
            return MemoryOrigin {
                snapshot,
                ..Default::default()
            };
        };
        // CAST: usize is 64 bits wide.
        let offset = (arena.memory.pages().first() * PAGE_SIZE) as u64;
        MemoryOrigin {
            arena: arena.own,
            shared: arena.lender.as_ref().map(|lender| (lender.number, offset)),
            snapshot,
        }
    }

    /// Tells the context, which has had no job, what its jobs have come to elsewhere.
    pub(crate) fn set_past(
        &self,
        past: PastJobs,
        fault: Option<Fault>,
        results: &[(AppRegister, u64)],
    ) -> Result {
        self.card.set_past(self.id()?, past, fault, results)
    }

    /// Sets the values of results of a job that is held.
    pub(crate) fn set_results(&self, results: &[(AppRegister, u64)]) -> Result {
        self.card.set_results(self.id()?, results)
    }
}
