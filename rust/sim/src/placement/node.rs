// SPDX-License-Identifier: GPL-2.0

//! A node: a card that jobs share by their shards.

use super::{Job, SHARDS};

/// Work is counted in parts of a nanosecond, so that whatever jobs share a card, each gains a whole number in a nanosecond: 840 can be
/// divided by 1 to [`SHARDS`].
const PARTS: u64 = 840;

/// A job on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) id: u32,
    pub(super) shards: u8,
    /// When it came.
    pub(super) came: u64,
    /// Work that it has left, in parts.
    left: u64,
}

impl Running {
    /// When it ends at the latest.
    pub(super) fn latest_end(&self, now: u64) -> u64 {
        let alone = self.left.div_ceil(PARTS * u64::from(self.shards));
        now + alone * u64::from(SHARDS)
    }
}

/// A node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) running: Vec<Running>,
    /// Until when the work of its jobs is counted.
    counted: u64,
    pub(super) is_drained: bool,
    /// Counts what invalidates the next end.
    pub(super) epoch: u32,
}

impl Node {
    /// Shards of its jobs.
    fn used(&self) -> u8 {
        self.running.iter().map(|job| job.shards).sum()
    }

    /// Shards that a job can have.
    pub(super) fn free(&self) -> u8 {
        if self.is_drained {
            0
        } else {
            SHARDS - self.used()
        }
    }

    /// Counts the work of its jobs until `now`.
    pub(super) fn advance(&mut self, now: u64) {
        let took = now - std::mem::replace(&mut self.counted, now);
        let used = u64::from(self.used());
        for job in &mut self.running {
            let gain = (PARTS / used) * u64::from(job.shards);
            job.left = job.left.saturating_sub(took.saturating_mul(gain));
        }
    }

    /// A job comes, with so much work left.
    pub(super) fn add(&mut self, now: u64, id: u32, job: &Job, left: u64) {
        self.advance(now);
        self.epoch += 1;
        self.running.push(Running {
            id,
            shards: job.shards,
            came: now,
            left: left * PARTS,
        });
    }

    /// A job leaves. Returns the work that it has left, in ns.
    pub(super) fn remove(&mut self, now: u64, id: u32) -> u64 {
        self.advance(now);
        self.epoch += 1;
        let at = self.running.iter().position(|job| job.id == id);
        let job = self.running.remove(at.expect("the job is here"));
        job.left.div_ceil(PARTS)
    }

    /// The job that has no work left, after [`Node::advance`].
    pub(super) fn ended(&self) -> Option<u32> {
        let ended = self.running.iter().find(|job| job.left == 0);
        ended.map(|job| job.id)
    }

    /// When the next of its jobs ends if nothing else happens.
    pub(super) fn next_end(&self) -> Option<u64> {
        let used = u64::from(self.used());
        let ends = self.running.iter().map(|job| {
            let gain = (PARTS / used) * u64::from(job.shards);
            self.counted + job.left.div_ceil(gain)
        });
        ends.min()
    }

    /// When so many shards are free at the latest, if nothing comes. `None`: never, as the node is drained.
    pub(super) fn free_at(&self, now: u64, shards: u8) -> Option<u64> {
        if self.is_drained {
            return None;
        }
        let mut ends: Vec<(u64, u8)> = self
            .running
            .iter()
            .map(|job| (job.latest_end(self.counted), job.shards))
            .collect();
        ends.sort_unstable();
        let mut free = self.free();
        let mut at = now;
        for (end, more) in ends {
            if free >= shards {
                break;
            }
            (free, at) = (free + more, end);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Class;
    use super::*;

    #[test]
    fn what_others_leave_is_shared_by_shards() {
        let mut node = Node::default();
        let job = |shards| Job {
            submitted: 0,
            work: 600,
            shards,
            class: Class::Normal,
        };
        // Alone, a job of one shard has all of the card.
        node.add(0, 0, &job(1), 600);
        assert_eq!(node.next_end(), Some(600));
        assert_eq!(node.running[0].latest_end(0), 4_800);
        // With one of two shards the first has a third from then on.
        node.add(300, 1, &job(2), 600);
        assert_eq!(node.free(), 5);
        assert_eq!(node.next_end(), Some(1_200));
        assert_eq!(node.free_at(300, 8), Some(2_700));
        assert_eq!(node.free_at(300, 5), Some(300));
        node.advance(1_200);
        assert_eq!(node.ended(), Some(0));
        assert_eq!(node.remove(1_200, 0), 0);
        assert_eq!((node.remove(1_200, 1), node.next_end()), (0, None));
    }
}
