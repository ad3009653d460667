// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler of the slot: latency-critical jobs first, best-effort jobs in turn. [`Schedule`] is
//! what the event loop asks of it; [`StatusSchedule`] drives a slot without a relay.

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
    /// How much of its slice the job has used. Only a slot with a relay gives out rests of slices.
    pub(super) used_us: u32,
}

impl Job {
    /// Returns whether the job preempts another one.
    pub(super) fn goes_before(&self, other: &Self) -> bool {
        self.urgency == Urgency::LatencyCritical && other.urgency == Urgency::BestEffort
    }
}

/// The clients whose jobs have ended, and the status that each is told.
pub(super) type Ended = Vec<(ClientId, u64)>;

/// Jobs that wait for the slot.
pub(super) struct WaitingJobs {
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
}

impl WaitingJobs {
    pub(super) fn new() -> Self {
        Self {
            urgent: VecDeque::with_capacity(64),
            others: VecDeque::with_capacity(64),
        }
    }

    fn queue(&mut self, urgency: Urgency) -> &mut VecDeque<Job> {
        match urgency {
            Urgency::LatencyCritical => &mut self.urgent,
            Urgency::BestEffort => &mut self.others,
        }
    }

    /// Adds a job that was requested.
    pub(super) fn push(&mut self, job: Job) {
        self.queue(job.urgency).push_back(job);
    }

    /// Adds a job that was preempted.
    pub(super) fn push_again(&mut self, job: Job) {
        match job.urgency {
            Urgency::LatencyCritical => self.urgent.push_front(job),
            Urgency::BestEffort => self.others.push_back(job),
        }
    }

    /// Puts a job back that was first.
    pub(super) fn push_front(&mut self, job: Job) {
        self.queue(job.urgency).push_front(job);
    }

    /// Removes the job that goes first.
    pub(super) fn pop(&mut self) -> Option<Job> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    /// Removes the job of a client.
    pub(super) fn take(&mut self, client: ClientId) -> Option<Job> {
        let mut queues = [&mut self.urgent, &mut self.others].into_iter();
        queues.find_map(|queue| {
            let at = queue.iter().position(|job| job.client == client)?;
            queue.remove(at)
        })
    }

    /// Drops the jobs of a client.
    pub(super) fn remove(&mut self, client: ClientId) {
        self.urgent.retain(|job| job.client != client);
        self.others.retain(|job| job.client != client);
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }
}

/// A scheduler, as the event loop sees it.
pub(super) trait Schedule {
    fn device(&self) -> &Device;

    /// Notes the addresses of a client that has passed its memory.
    fn attach(&mut self, client: ClientId, addresses: JobAddresses) -> Result<()>;

    /// Queues a job, and dispatches or preempts if needed.
    fn submit(&mut self, job: Job, timer: &mut Timer) -> Result<()>;

    /// Handles an interrupt: dispatches the next job, and adds the jobs that have ended.
    fn interrupted(&mut self, timer: &mut Timer, ended: &mut Ended) -> Result<()>;

    /// Returns whether a PAUSE has had no effect yet.
    fn is_pausing(&self) -> bool;

    /// Handles the timer: the slice is over, or a PAUSE had no effect.
    fn timeout(&mut self);

    /// Removes the waiting jobs of a client.
    ///
    /// # Errors
    ///
    /// The client's job is on the slot: clients of this benchmark must wait for the end of their
    /// jobs.
    fn remove_client_jobs(&mut self, client: ClientId) -> Result<()>;
}

/// The job on the slot.
struct Run {
    job: Job,
    /// PAUSE was written.
    pausing: bool,
    /// The slice is over, but no job waited.
    overdue: bool,
}

/// The slot and the jobs.
pub(super) struct StatusSchedule {
    device: Device,
    slice: Duration,
    run: Option<Run>,
    /// Number of STARTs of the slot, to recognize an outdated status.
    starts: u32,
    waiting: WaitingJobs,
    /// Average time of a restore.
    restore: Duration,
}

impl StatusSchedule {
    pub(super) fn new(device: Device, slice: Duration) -> Self {
        Self {
            device,
            slice,
            run: None,
            starts: 0,
            waiting: WaitingJobs::new(),
            restore: Duration::ZERO,
        }
    }

    fn dispatch(&mut self, timer: &mut Timer) -> Result<()> {
        let Some(job) = self.waiting.pop() else {
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

impl Schedule for StatusSchedule {
    fn device(&self) -> &Device {
        &self.device
    }

    fn attach(&mut self, _client: ClientId, _addresses: JobAddresses) -> Result<()> {
        Ok(())
    }

    fn submit(&mut self, job: Job, timer: &mut Timer) -> Result<()> {
        self.waiting.push(job);
        match &mut self.run {
            None => self.dispatch(timer),
            Some(run) if run.pausing => Ok(()),
            Some(run) => {
                if job.goes_before(&run.job) || run.overdue {
                    run.pausing = true;
                    self.device.pause();
                    timer.repeat();
                }
                Ok(())
            }
        }
    }

    fn interrupted(&mut self, timer: &mut Timer, ended: &mut Ended) -> Result<()> {
        let Some(run) = &self.run else {
            return Ok(());
        };
        let status = self.device.status();
        if status.starts() != self.starts {
            return Ok(());
        }
        let mut job = run.job;
        if status.is_finished() {
            ended.push((job.client, status.0));
        } else if status.is_paused() {
            self.note_restore(job.saved, status);
            job.saved = true;
            self.waiting.push_again(job);
        } else {
            return Ok(());
        }
        self.run = None;
        self.dispatch(timer)
    }

    fn is_pausing(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.pausing)
    }

    fn timeout(&mut self) {
        let waiting = !self.waiting.is_empty();
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

    fn remove_client_jobs(&mut self, client: ClientId) -> Result<()> {
        self.waiting.remove(client);
        let running = self.run.as_ref().map(|run| run.job.client);
        ensure!(
            running != Some(client),
            "a client has exited while its job is on the slot"
        );
        Ok(())
    }
}
