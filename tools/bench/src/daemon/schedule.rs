// SPDX-License-Identifier: GPL-2.0-or-later
//! The slot: best-effort jobs in turn, latency-critical ones at once.

use super::device::{Device, Place, Status};
use super::protocol::{Urgency, REGISTERS};
use super::server::Timer;
use anyhow::{ensure, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of a client.
pub(super) type ClientId = usize;
/// A PAUSE that has not been answered is written again after this time: one that meets a restore is
/// dropped by the card.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// A job, from its request to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) client: ClientId,
    pub(super) urgency: Urgency,
    pub(super) place: Place,
    pub(super) registers: [u64; REGISTERS],
    /// It goes on from its snapshot.
    pub(super) saved: bool,
}

/// What is on the slot.
struct Run {
    job: Job,
    /// PAUSE was written.
    pausing: bool,
    /// Its slice is over, but nobody waited.
    overdue: bool,
}

/// Slot and queues.
pub(super) struct Schedule {
    pub(super) device: Device,
    slice: Duration,
    run: Option<Run>,
    /// STARTs of the slot so far: an older status is none.
    starts: u32,
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
    /// What a restore takes.
    restore: Duration,
}

impl Schedule {
    pub(super) fn new(device: Device, slice: Duration) -> Self {
        Self {
            device,
            slice,
            run: None,
            starts: 0,
            urgent: VecDeque::with_capacity(64),
            others: VecDeque::with_capacity(64),
            restore: Duration::ZERO,
        }
    }

    /// A job is asked for.
    pub(super) fn submit(&mut self, job: Job, timer: &mut Timer) -> Result<()> {
        match job.urgency {
            Urgency::LatencyCritical => self.urgent.push_back(job),
            Urgency::BestEffort => self.others.push_back(job),
        }
        match &mut self.run {
            None => self.dispatch(timer),
            Some(run) if run.pausing => Ok(()),
            Some(run) => {
                let preempts = job.urgency == Urgency::LatencyCritical
                    && run.job.urgency == Urgency::BestEffort;
                if preempts || run.overdue {
                    run.pausing = true;
                    self.device.pause();
                    timer.repeat();
                }
                Ok(())
            }
        }
    }

    /// The card interrupts. Returns the job that ended, and its status, after the next one was
    /// started.
    pub(super) fn interrupted(&mut self, timer: &mut Timer) -> Result<Option<(ClientId, u64)>> {
        let Some(run) = &self.run else {
            return Ok(None);
        };
        let status = self.device.status();
        if status.starts() != self.starts {
            return Ok(None);
        }
        let mut job = run.job;
        if status.is_finished() {
            self.run = None;
            self.dispatch(timer)?;
            return Ok(Some((job.client, status.0)));
        }
        if status.is_paused() {
            self.note_restore(job.saved, status);
            job.saved = true;
            match job.urgency {
                Urgency::LatencyCritical => self.urgent.push_front(job),
                Urgency::BestEffort => self.others.push_back(job),
            }
            self.run = None;
            self.dispatch(timer)?;
        }
        Ok(None)
    }

    /// Returns whether a PAUSE is not answered yet.
    pub(super) fn is_pausing(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.pausing)
    }

    /// The timer fired: the slice is over, or a PAUSE was not answered.
    pub(super) fn timeout(&mut self) {
        let waiting = !self.urgent.is_empty() || !self.others.is_empty();
        let Some(run) = &mut self.run else {
            return;
        };
        if waiting {
            run.pausing = true;
            self.device.pause();
        } else {
            run.overdue = true;
        }
    }

    /// Forgets the waiting jobs of a client that is gone.
    ///
    /// # Errors
    ///
    /// The client's job is on the slot: the clients of this benchmark wait for the end.
    pub(super) fn forget(&mut self, client: ClientId) -> Result<()> {
        self.urgent.retain(|job| job.client != client);
        self.others.retain(|job| job.client != client);
        let running = self.run.as_ref().map(|run| run.job.client);
        ensure!(running != Some(client), "a client left its job behind");
        Ok(())
    }

    fn dispatch(&mut self, timer: &mut Timer) -> Result<()> {
        let next = self.urgent.pop_front().or_else(|| self.others.pop_front());
        let Some(job) = next else {
            return timer.clear();
        };
        self.device.start(job.place, &job.registers, job.saved);
        self.starts = self.starts.wrapping_add(1);
        self.run = Some(Run {
            job,
            pausing: false,
            overdue: false,
        });
        // A resumed job has its slice after its restore.
        let restore = if job.saved {
            self.restore
        } else {
            Duration::ZERO
        };
        timer.set(self.slice + restore)
    }

    fn note_restore(&mut self, resumed: bool, status: Status) {
        if resumed {
            let last = Duration::from_micros(status.restore_us());
            let before = self.restore;
            self.restore = if before.is_zero() {
                last
            } else {
                (before * 7 + last) / 8
            };
        }
    }
}
