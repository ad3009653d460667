// SPDX-License-Identifier: GPL-2.0-or-later
//! The schedulers of the slot: latency-critical jobs first, best-effort jobs in turn. [`Schedule`] is
//! what the event loop asks of a scheduler; [`StatusSchedule`] drives a slot without a relay, and
//! [`RelaySchedule`] a slot with a relay.

use super::device::{Device, JobAddresses, Next, Order, Reason, Record, Relay, Status};
use super::protocol::{Urgency, REGISTERS};
use super::Timer;
use anyhow::{ensure, Context as _, Result};
use fermata_card::regs::status;
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

impl Job {
    /// Returns whether the job preempts another one.
    fn goes_before(&self, other: &Self) -> bool {
        self.urgency == Urgency::LatencyCritical && other.urgency == Urgency::BestEffort
    }
}

/// The clients whose jobs have ended, and the status for each.
pub(super) type Ended = Vec<(ClientId, u64)>;

/// Jobs that wait for the slot.
struct WaitingJobs {
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
}

impl WaitingJobs {
    fn new() -> Self {
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
    fn push(&mut self, job: Job) {
        self.queue(job.urgency).push_back(job);
    }

    /// Adds a job that was preempted.
    fn push_again(&mut self, job: Job) {
        match job.urgency {
            Urgency::LatencyCritical => self.urgent.push_front(job),
            Urgency::BestEffort => self.others.push_back(job),
        }
    }

    /// Puts back a job that was first.
    fn push_front(&mut self, job: Job) {
        self.queue(job.urgency).push_front(job);
    }

    /// Removes the next job.
    fn pop(&mut self) -> Option<Job> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    /// Removes the job of a client.
    fn take(&mut self, client: ClientId) -> Option<Job> {
        let mut queues = [&mut self.urgent, &mut self.others].into_iter();
        queues.find_map(|queue| {
            let at = queue.iter().position(|job| job.client == client)?;
            queue.remove(at)
        })
    }

    /// Drops the jobs of a client.
    fn remove(&mut self, client: ClientId) {
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

/// A slot with a relay, and the jobs. The daemon tells the card which job runs next when a run
/// begins, and again when urgent work arrives. A job that urgent work interrupts waits for its next
/// turn, as without a relay, and as under fermata.ko's policy round-robin.
pub(super) struct RelaySchedule {
    relay: Relay,
    slice_us: u32,
    /// The job on the slot.
    run: Option<Job>,
    /// The number of the present or last run.
    number: u32,
    /// The last order for the present run, and the job that the order names.
    posted: Option<Order>,
    named: Option<Job>,
    waiting: WaitingJobs,
}

impl RelaySchedule {
    pub(super) fn new(relay: Relay, slice_us: u32) -> Self {
        Self {
            relay,
            slice_us,
            run: None,
            number: 0,
            posted: None,
            named: None,
            waiting: WaitingJobs::new(),
        }
    }

    /// Tells the card what follows the job on the slot, if that has changed.
    fn revise(&mut self) {
        let Some(run) = self.run else {
            return;
        };
        self.withdraw();
        self.named = self.waiting.pop();
        let at_us = match self.named {
            Some(next) if next.goes_before(&run) => Some(0),
            // Urgent work is preempted only by urgent work.
            Some(next) if !run.goes_before(&next) => Some(self.slice_us),
            _ => None,
        };
        let order = Order {
            after: self.number,
            at_us,
            next: self.named.map(next_of),
        };
        let is_told = match self.posted {
            Some(posted) => posted == order,
            None => order.next.is_none(),
        };
        if !is_told {
            self.relay.order(order);
            self.posted = Some(order);
        }
    }

    /// Puts the named job back into the queue.
    fn withdraw(&mut self) {
        if let Some(named) = self.named.take() {
            self.waiting.push_front(named);
        }
    }

    /// Starts the first waiting job on the vacant slot.
    fn dispatch(&mut self) {
        if let Some(job) = self.waiting.pop() {
            self.relay.start(self.number, next_of(job));
            self.begin(job);
        }
    }

    /// Notes that the run of a job has begun.
    fn begin(&mut self, job: Job) {
        self.number = self.number.wrapping_add(1);
        self.run = Some(job);
        self.posted = None;
        self.revise();
    }

    /// Handles the record of the run on the slot.
    fn take(&mut self, record: Record, ended: &mut Ended) -> Result<()> {
        let mut job = self.run.take().context("a record of no run")?;
        // A replaced order may have been taken nevertheless.
        self.withdraw();
        let next = record.next.map(|client| self.waiting.take(client));
        job.saved |= record.reason == Reason::Paused;
        match record.reason {
            Reason::Paused | Reason::NotRun => self.waiting.push_again(job),
            Reason::Finished => ended.push((job.client, status::FINISH)),
            Reason::Failed(reason) => ended.push((job.client, reason << 8)),
        }
        match next {
            Some(next) => {
                let next = next.context("the card has gone on with another job")?;
                self.begin(next);
            }
            None => self.dispatch(),
        }
        Ok(())
    }
}

fn next_of(job: Job) -> Next {
    Next {
        client: job.client,
        resume: job.saved,
    }
}

impl Schedule for RelaySchedule {
    fn device(&self) -> &Device {
        &self.relay.device
    }

    fn attach(&mut self, client: ClientId, addresses: JobAddresses) -> Result<()> {
        self.relay.attach(client, addresses)
    }

    fn submit(&mut self, job: Job, _timer: &mut Timer) -> Result<()> {
        self.relay.load(job.client, &job.registers);
        self.waiting.push(job);
        match self.run {
            Some(_) => self.revise(),
            None => self.dispatch(),
        }
        Ok(())
    }

    fn interrupted(&mut self, _timer: &mut Timer, ended: &mut Ended) -> Result<()> {
        while self.run.is_some() {
            let Some(record) = self.relay.record(self.number) else {
                break;
            };
            self.take(record, ended)?;
        }
        Ok(())
    }

    /// The card measures slices, and an order is not lost.
    fn is_pausing(&self) -> bool {
        false
    }

    fn timeout(&mut self) {}

    fn remove_client_jobs(&mut self, client: ClientId) -> Result<()> {
        let is_out = |job: &Option<Job>| job.is_some_and(|job| job.client == client);
        ensure!(
            !is_out(&self.run) && !is_out(&self.named),
            "a client has exited while its job is on the slot or next"
        );
        self.waiting.remove(client);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::fake;
    use super::super::protocol::{Urgency, REGISTERS};
    use super::*;
    use fermata_card::relay::{self, Reason};

    /// A slice that is much longer than any test.
    const SLICE_US: u32 = 1_000_000;
    const JOB: ClientId = 1;
    const OTHER: ClientId = 2;
    const URGENT: ClientId = 3;

    fn job(client: ClientId, urgency: Urgency) -> Job {
        Job {
            client,
            urgency,
            addresses: JobAddresses::default(),
            registers: [0; REGISTERS],
            saved: false,
        }
    }

    /// Returns a slot on which one job runs and another one waits.
    fn slot() -> RelaySchedule {
        let mut slot = RelaySchedule::new(Relay::new(fake::device()).unwrap(), SLICE_US);
        for client in [JOB, OTHER] {
            submit(&mut slot, client, Urgency::BestEffort);
        }
        slot
    }

    fn submit(slot: &mut RelaySchedule, client: ClientId, urgency: Urgency) {
        let mut timer = Timer::new(None);
        slot.submit(job(client, urgency), &mut timer).unwrap();
    }

    /// Ends the present run.
    fn end(slot: &mut RelaySchedule, reason: Reason, next: ClientId) {
        slot.relay.write_record(&relay::Record {
            cookie: 0,
            began: 1,
            worked: 2,
            stopped: 3,
            left: 4,
            fault_addr: 0,
            next: next as u32 + 1,
            fault_info: 0,
            run: slot.number,
            reason,
            results_lost: false,
            void: false,
        });
        let mut timer = Timer::new(None);
        slot.interrupted(&mut timer, &mut Ended::new()).unwrap();
    }

    /// Returns the run that is on the slot, and the contents of the last order: for how long the
    /// run may work, and which job is next.
    fn ordered(slot: &RelaySchedule) -> (ClientId, Option<u32>, Option<ClientId>) {
        let order = slot.relay.last_order();
        assert_eq!(order.after(), slot.number as u16);
        let next = order.context().map(|context| context as ClientId);
        let at_us = order.at_us().map(|us| us as u32);
        (slot.run.unwrap().client, at_us, next)
    }

    #[test]
    fn an_interrupted_job_waits_for_its_next_turn() {
        let mut slot = slot();
        assert_eq!(ordered(&slot), (JOB, Some(SLICE_US), Some(OTHER)));
        submit(&mut slot, URGENT, Urgency::LatencyCritical);
        assert_eq!(ordered(&slot), (JOB, Some(0), Some(URGENT)));
        end(&mut slot, Reason::Paused, URGENT);
        assert_eq!(ordered(&slot), (URGENT, None, Some(OTHER)));
        end(&mut slot, Reason::Finish, OTHER);
        assert_eq!(ordered(&slot), (OTHER, Some(SLICE_US), Some(JOB)));
        end(&mut slot, Reason::Paused, JOB);
        assert_eq!(ordered(&slot), (JOB, Some(SLICE_US), Some(OTHER)));
    }
}
