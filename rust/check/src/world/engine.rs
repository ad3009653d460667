// SPDX-License-Identifier: GPL-2.0

//! What the engine of a slot does.

use fermata_sched_host::sched::LeftReason;

use super::{Job, Owner, Snapshot, World};
use crate::card::{Engine, EMPTY, FAULT, SNAPSHOT_ERROR};

impl World {
    pub(super) fn owner_on(&mut self, slot: usize) -> Option<&mut Owner> {
        let last = self.slots[slot].last?;
        self.owners.get_mut(last)?.as_mut()
    }

    pub(super) fn job_on(&mut self, slot: usize) -> Option<&mut Job> {
        self.owner_on(slot)?.job.as_mut()
    }

    /// A misbehaviour hits the job on the slot.
    pub(super) fn spoil(&mut self, slot: usize) {
        if let Some(job) = self.job_on(slot) {
            job.spoilt = true;
        }
    }

    pub(super) fn restored(&mut self, i: usize) {
        let relay = &mut self.slots[i].relay;
        relay.worked = self.now;
        if std::mem::take(&mut relay.refused) {
            return self.choose(i, LeftReason::Refused, Engine::Idle);
        }
        self.slots[i].engine = Engine::Working;
        self.attend(i);
    }

    /// The engine looks at its queue again.
    pub(super) fn attend(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.idle = false;
        }
    }

    /// The engine takes what is in its queue.
    pub(super) fn take_work(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.work = false;
        }
    }

    /// The engine has found its queue empty, has said so, and has looked once more.
    pub(super) fn leave(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.queue.idle = true;
        }
        self.save(i);
        self.slots[i].empty = true;
    }

    pub(super) fn boundary(&mut self, i: usize) {
        self.seen.boundary = true;
        self.save(i);
    }

    pub(super) fn save(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        slot.asked = false;
        slot.empty = false;
        slot.engine = Engine::Saving;
        if let Some(owner) = self.owner_on(i) {
            owner.snapshot = Snapshot::Torn;
        }
    }

    pub(super) fn saved(&mut self, i: usize) {
        if let Some(owner) = self.owner_on(i) {
            owner.snapshot = Snapshot::Complete;
        }
        let bits = if self.slots[i].empty { EMPTY } else { 0 };
        self.ended(i, Engine::Paused, bits);
    }

    /// The save fails.
    pub(super) fn tear(&mut self, i: usize) {
        self.spoil(i);
        if self.bounds.base {
            self.slots[i].hang = true;
        } else {
            self.seen.snapshot_failed = true;
            self.ended(i, Engine::Finished, SNAPSHOT_ERROR);
        }
    }

    pub(super) fn finish(&mut self, i: usize) {
        if let Some(job) = self.job_on(i) {
            job.finished = true;
        }
        self.ended(i, Engine::Finished, 0);
    }

    pub(super) fn fault(&mut self, i: usize) {
        self.spoil(i);
        self.ended(i, Engine::Finished, FAULT);
    }

    pub(super) fn hang(&mut self, i: usize) {
        self.slots[i].hang = true;
        self.spoil(i);
    }

    fn ended(&mut self, i: usize, engine: Engine, bits: u64) {
        if self.bounds.relay {
            let reason = match (engine, bits) {
                (_, FAULT) => LeftReason::Fault,
                (_, SNAPSHOT_ERROR) => LeftReason::SnapshotError,
                (_, EMPTY) => LeftReason::Empty,
                (Engine::Paused, _) => LeftReason::Paused,
                _ => LeftReason::Finished,
            };
            return self.choose(i, reason, engine);
        }
        let base = self.bounds.base;
        let slot = &mut self.slots[i];
        slot.engine = engine;
        slot.asked = false;
        slot.bits = bits;
        slot.irq = !base;
    }
}
