// SPDX-License-Identifier: GPL-2.0

//! One slot of a simulated card, fermata profile (docs/card.md): an engine that needs a given time for a job, and saves and
//! restores in a given time. It panics where the driver breaks the card's rules, so that each run is a test, too.

use fermata_sched_host::sched::Status;

/// What the engine does. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Idle,
    Restoring { since: u64, until: u64 },
    Working { since: u64 },
    Saving,
    Paused,
    Finished,
}

/// One slot.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    engine: Engine,
    /// Work that the job on the engine has left.
    left: u64,
    count: u32,
    /// How long the last restore took, as the status tells it: in us.
    restored: u64,
    window: Option<u32>,
    running: Option<u32>,
    /// Counts what invalidates the engine's next step.
    pub(crate) epoch: u32,
    /// PAUSEs that were dropped because the engine restored, saved or had ended.
    pub(crate) dropped: u64,
}

/// What the slot's engine came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It goes on by itself at this time.
    Next(u64),
    /// It raises an interrupt: the job of this client is done.
    Finished { client: u32 },
    /// It raises an interrupt: the job of this client is saved, and this work is left to it.
    Paused { client: u32, left: u64 },
}

impl Slot {
    pub(crate) const fn new() -> Self {
        Self {
            engine: Engine::Idle,
            left: 0,
            count: 0,
            restored: 0,
            window: None,
            running: None,
            epoch: 0,
            dropped: 0,
        }
    }

    fn active(&self) -> bool {
        matches!(
            self.engine,
            Engine::Restoring { .. } | Engine::Working { .. } | Engine::Saving
        )
    }

    pub(crate) fn load(&mut self, client: u32) {
        assert!(!self.active(), "the window moved under a job");
        self.window = Some(client);
    }

    pub(crate) fn unload(&mut self) {
        assert!(!self.active(), "the window closed under a job");
        self.window = None;
    }

    /// START with `left` work, at `now`; it takes `restore` first. When the engine goes on by itself.
    pub(crate) fn start(&mut self, now: u64, client: u32, left: u64, restore: Option<u64>) -> u64 {
        assert!(!self.active(), "START while a job runs");
        assert_eq!(self.window, Some(client), "START in another's window");
        self.count = self.count.wrapping_add(1);
        self.epoch += 1;
        self.left = left;
        self.restored = 0;
        self.running = Some(client);
        if let Some(restore) = restore {
            let until = now + restore;
            self.engine = Engine::Restoring { since: now, until };
            until
        } else {
            self.engine = Engine::Working { since: now };
            now + left
        }
    }

    /// PAUSE at `now`; when the save is complete, unless the PAUSE is dropped.
    pub(crate) fn pause(&mut self, now: u64, save: u64) -> Option<u64> {
        let Engine::Working { since } = self.engine else {
            self.dropped += 1;
            return None;
        };
        self.left = self.left.saturating_sub(now.saturating_sub(since));
        self.engine = Engine::Saving;
        self.epoch += 1;
        Some(now + save)
    }

    /// The time that the engine named has come.
    pub(crate) fn step(&mut self) -> Step {
        match self.engine {
            Engine::Restoring { since, until } => {
                self.restored = (until - since).div_ceil(1_000).clamp(1, 0xf_ffff);
                self.engine = Engine::Working { since: until };
                Step::Next(until + self.left)
            }
            Engine::Working { .. } => {
                self.engine = Engine::Finished;
                self.left = 0;
                let client = self.running.expect("a job is done");
                Step::Finished { client }
            }
            Engine::Saving => {
                self.engine = Engine::Paused;
                let client = self.running.expect("a job is saved");
                let left = self.left;
                Step::Paused { client, left }
            }
            Engine::Idle | Engine::Paused | Engine::Finished => unreachable!("nothing to do"),
        }
    }

    pub(crate) fn reset(&mut self, hold: bool) {
        if hold {
            self.engine = Engine::Idle;
            self.epoch += 1;
        }
    }

    pub(crate) fn status(&self) -> Status {
        let phase = match self.engine {
            Engine::Idle => 0,
            Engine::Restoring { .. } | Engine::Working { .. } | Engine::Saving => 1,
            Engine::Finished => 2,
            Engine::Paused => 4,
        };
        Status::from_raw(phase | (self.restored << 12) | (u64::from(self.count) << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_sched_host::sched::Duration;

    #[test]
    fn the_status_tells_what_a_restore_took_rounded_up() {
        for (restore, told) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (1 << 50, 0xf_ffff)] {
            let mut slot = Slot::new();
            slot.load(3);
            slot.start(0, 3, 10, Some(restore));
            assert_eq!(
                slot.status().restore(),
                Duration::ZERO,
                "during the restore"
            );
            slot.step();
            let told = Duration::from_us(told);
            assert_eq!(slot.status().restore(), told, "{restore} ns");
        }
    }
}
