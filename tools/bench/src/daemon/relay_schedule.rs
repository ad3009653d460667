// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler of a slot with a relay. The same jobs go first as without a relay; the card is told
//! who is next when a run begins, and again when urgent work arrives.

use super::device::{Device, JobAddresses};
use super::relay::{Next, Order, Reason, Record, Relay};
use super::schedule::{ClientId, Ended, Job, Schedule, WaitingJobs};
use super::server::Timer;
use anyhow::{ensure, Context as _, Result};
use fermata_card::regs::status;

/// The slot and the jobs.
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
        let displaces = self.named.is_some_and(|next| next.goes_before(&run));
        let at_us = match self.named {
            Some(_) if displaces => Some(0),
            // Urgent work makes way for urgent work only.
            Some(next) if !run.goes_before(&next) => Some(self.slice_us),
            _ => None,
        };
        let order = Order {
            after: self.number,
            at_us,
            next: self.named.map(next_of),
            back: displaces,
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

    /// Has the job that is named wait again.
    fn withdraw(&mut self) {
        if let Some(named) = self.named.take() {
            self.waiting.push_front(named);
        }
    }

    /// Starts the first waiting job on the vacant slot.
    fn dispatch(&mut self) {
        if let Some(job) = self.waiting.pop() {
            self.relay.start(self.number, next_of(job));
            self.begin(job, None);
        }
    }

    /// Notes that the run of a job has begun, after which the card goes on with `back`.
    fn begin(&mut self, job: Job, back: Option<Job>) {
        self.number = self.number.wrapping_add(1);
        self.run = Some(job);
        self.named = back;
        self.posted = back.map(|job| Order {
            after: self.number,
            at_us: None,
            next: Some(next_of(job)),
            back: false,
        });
        self.revise();
    }

    /// Takes in the record of the run on the slot.
    fn take(&mut self, record: Record, ended: &mut Ended) -> Result<()> {
        let mut job = self.run.take().context("a record of no run")?;
        // A replaced order may have been taken all the same.
        self.withdraw();
        let next = record.next.map(|client| self.waiting.take(client));
        job.saved |= record.reason == Reason::Paused;
        match record.reason {
            Reason::Paused | Reason::NotRun if record.back => {}
            Reason::Paused | Reason::NotRun => self.waiting.push_again(job),
            Reason::Finished => ended.push((job.client, status::FINISH)),
            Reason::Failed(reason) => ended.push((job.client, reason << 8)),
        }
        match next {
            Some(next) => {
                let next = next.context("the card has gone on with another job")?;
                self.begin(next, record.back.then_some(job));
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
