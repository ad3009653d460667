// SPDX-License-Identifier: GPL-2.0

//! Recreating a context elsewhere: how it was made, and how its jobs have ended.

use super::Context;
use crate::{bar::Fault, image::AppRegister, scheduler::PastJobs, user_memory::Process};
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

    /// Returns whether the arena or the snapshot buffer is a program's own memory, and `process` has
    /// its pages mapped at the addresses at which they were pinned. Sleeps, as
    /// [`crate::pages::PageRange::are_at`] does, and gives its errors.
    pub(crate) fn has_own_memory_in(&self, process: &Process) -> Result<bool> {
        let (arena, snapshot) = {
            let memory = self.client.memory.lock();
            let arena = memory.arena.as_ref();
            let arena = arena.and_then(|arena| Some((arena.own?, arena.memory.pages().clone())));
            let snapshot = memory.snapshot.as_ref().zip(memory.own_snapshot);
            let snapshot = snapshot.map(|(snapshot, address)| (address, snapshot.pages().clone()));
            (arena, snapshot)
        };
        let mut is_any = false;
        // The lock is released: page faults of the other process may take a long time.
        for (address, pages) in [arena, snapshot].into_iter().flatten() {
            is_any = true;
            if !pages.are_at(&process.memory(address))? {
                return Ok(false);
            }
        }
        Ok(is_any)
    }

    /// Sets how jobs of the context have ended elsewhere. The context must have had no job here.
    pub(crate) fn set_past(
        &self,
        past: PastJobs,
        fault: Option<Fault>,
        results: &[(AppRegister, u64)],
    ) -> Result {
        self.card.set_past(self.id()?, past, fault, results)
    }

    /// Sets the values of the results of a held job.
    pub(crate) fn set_results(&self, results: &[(AppRegister, u64)]) -> Result {
        self.card.set_results(self.id()?, results)
    }
}
