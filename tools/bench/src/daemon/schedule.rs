// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler of the slot: latency-critical jobs first, best-effort jobs in turn.

use super::device::{Device, JobAddresses, Status};
use super::protocol::{Urgency, REGISTERS};
use super::server::Timer;
use anyhow::{ensure, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of a client.
pub(super) type ClientId = usize;
/// PAUSE is repeated after this time if it had no effect: the card drops a PAUSE during a restore.
pub(super) const PAUSE_REPEAT: Duration = Duration::from_millis(1);

/// A job, from its request to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) client: ClientId,
    pub(super) urgency: Urgency,
    pub(super) addresses: JobAddresses,
    pub(super) registers: [u64; REGISTERS],
    /// The job is resumed from its snapshot.
    pub(super) saved: bool,
}

/// The job on the slot.
struct Run {
    job: Job,
    /// PAUSE was written.
    pausing: bool,
    /// The slice is over, but no job waited.
    overdue: bool,
}

/// The slot and the queues of waiting jobs.
pub(super) struct Schedule {
    pub(super) device: Device,
    slice: Duration,
    run: Option<Run>,
    /// Number of STARTs of the slot, to recognize an outdated status.
    starts: u32,
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
    /// Average time of a restore.
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

    /// Queues a job, and dispatches or preempts if needed.
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

    /// Handles an interrupt: dispatches the next job, then returns the job that ended and its
    /// status.
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

    /// Returns whether a PAUSE has had no effect yet.
    pub(super) fn is_pausing(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.pausing)
    }

    /// Handles the timer: the slice is over, or a PAUSE had no effect.
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

    /// Removes the waiting jobs of a client.
    ///
    /// # Errors
    ///
    /// The client's job is on the slot: clients of this benchmark must wait for the end of their
    /// jobs.
    pub(super) fn remove_client_jobs(&mut self, client: ClientId) -> Result<()> {
        self.urgent.retain(|job| job.client != client);
        self.others.retain(|job| job.client != client);
        let running = self.run.as_ref().map(|run| run.job.client);
        ensure!(
            running != Some(client),
            "a client has exited while its job is on the slot"
        );
        Ok(())
    }

    fn dispatch(&mut self, timer: &mut Timer) -> Result<()> {
        let next = self.urgent.pop_front().or_else(|| self.others.pop_front());
        let Some(job) = next else {
            return timer.clear();
        };
        self.device.start(job.addresses, &job.registers, job.saved);
        self.starts = self.starts.wrapping_add(1);
        self.run = Some(Run {
            job,
            pausing: false,
            overdue: false,
        });
        // The slice of a resumed job begins after its restore.
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
