// SPDX-License-Identifier: GPL-2.0
//! The tenants of a visit, each a thread, and the daemon where there is one.

use super::bind::Card;
use super::seat::{allow_files, Seat};
use crate::daemon::{Daemon, SOCKET};
use crate::latency::PAUSE_US;
use crate::mark::{Mark, Marker};
use crate::visit::{Cell, Driver, Tenants, BEST_EFFORT};
use crate::work::{Job, SHORT, TAGS, URGENT_TAG};
use anyhow::{Context as _, Result};
use fermata::{Context, Policy};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/fermata0";
/// Microseconds that a best-effort job takes.
const LONG: u64 = 24_000;
/// With an urgent job that does not end; the report then says that there was none.
const PATIENCE: Duration = Duration::from_secs(30);

/// All that a visit needs.
pub(super) struct Stage<'a> {
    /// Before those whose jobs it has: a client may not leave a job behind.
    daemon: Option<Daemon>,
    /// Jobs one after the other.
    workers: Vec<Seat>,
    /// At random times.
    urgent: Option<Seat>,
    /// Jobs that never end, kept for as long as the visit lasts.
    #[allow(dead_code)] // kept, as said
    endless: Vec<Seat>,
    marker: &'a Marker,
    /// Urgent jobs that ended.
    answered: AtomicU64,
    ending: AtomicBool,
}

/// The threads of the tenants. Jobs, and wrong ones.
pub(super) struct Running<'scope>(Vec<ScopedJoinHandle<'scope, Result<(u64, u64)>>>);

impl<'a> Stage<'a> {
    pub(super) fn set(cell: Cell, card: &Card, marker: &'a Marker) -> Result<Self> {
        let daemon = match cell.variant.driver() {
            Driver::Vfio => Some(Daemon::start(cell, card)?),
            Driver::Fermata | Driver::Bound => None,
        };
        if cell.variant.driver() == Driver::Fermata {
            let context = Context::open(DEVICE)?;
            context.set_policy(Policy::RoundRobin, None)?;
        }
        let slice = Duration::from_micros(cell.slice_us.into());
        let seat = |job, urgent| match cell.variant.driver() {
            Driver::Vfio => Seat::of_daemon(Path::new(SOCKET), job, urgent),
            _ => Seat::of_driver(Path::new(DEVICE), job, cell.variant, slice, urgent),
        };
        let mut stage = Self {
            workers: Vec::new(),
            urgent: None,
            endless: Vec::new(),
            daemon,
            marker,
            answered: AtomicU64::new(0),
            ending: AtomicBool::new(false),
        };
        match cell.tenants {
            Tenants::Alone => {}
            Tenants::Mixed => {
                let accesses = LONG;
                let jobs = (0..u64::from(BEST_EFFORT)).map(|i| TAGS + i);
                stage.workers = jobs
                    .map(|tag| seat(Job { tag, accesses }, false))
                    .collect::<Result<_>>()?;
                let (tag, accesses) = (URGENT_TAG, SHORT);
                stage.urgent = Some(seat(Job { tag, accesses }, true)?);
            }
            Tenants::Endless(count) => {
                allow_files(count.into())?;
                for tag in TAGS..TAGS + u64::from(count) {
                    let seat = seat(Job::endless(tag), false)?;
                    seat.start()?;
                    stage.endless.push(seat);
                }
            }
        }
        Ok(stage)
    }

    /// Its process.
    pub(super) fn daemon(&self) -> Option<&Child> {
        self.daemon.as_ref().map(Daemon::process)
    }

    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Running<'scope> {
        let workers = self.workers.iter();
        let mut threads: Vec<_> = workers
            .map(|seat| scope.spawn(|| self.work(seat)))
            .collect();
        threads.extend(
            self.urgent
                .iter()
                .map(|seat| scope.spawn(|| self.arrive(seat))),
        );
        Running(threads)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// One job after the other.
    fn work(&self, seat: &Seat) -> Result<(u64, u64)> {
        let expected = seat.job().result();
        let (mut jobs, mut wrong) = (0, 0);
        while !self.is_ending() {
            seat.start()?;
            seat.wait()?;
            jobs += 1;
            wrong += u64::from(!seat.take_result(expected));
        }
        Ok((jobs, wrong))
    }

    /// A job now and then.
    fn arrive(&self, seat: &Seat) -> Result<(u64, u64)> {
        let expected = seat.job().result();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let (mut jobs, mut wrong) = (0, 0);
        while !self.is_ending() {
            std::thread::sleep(Duration::from_micros(random.random_range(PAUSE_US)));
            jobs += 1;
            self.marker.mark(Mark::Arrival(jobs as u32));
            seat.start()?;
            seat.wait()?;
            wrong += u64::from(!seat.take_result(expected));
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok((jobs, wrong))
    }

    /// Lets the tenants run for so long, and on until an urgent job has come and ended meanwhile, where there are any: with busy CPUs a daemon that polls
    /// may starve them for longer than a short visit lasts.
    pub(super) fn watch(&self, length: Duration) {
        // The first to end may have come before.
        let enough = self.answered.load(Ordering::Relaxed) + 2;
        std::thread::sleep(length);
        let patience = Instant::now() + PATIENCE;
        let awaits = || self.urgent.is_some() && self.answered.load(Ordering::Relaxed) < enough;
        while awaits() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the daemon, which must still be there and leave by itself.
    pub(super) fn strike(mut self) -> Result<()> {
        self.daemon.as_mut().map_or(Ok(()), Daemon::end)
    }
}

impl Running<'_> {
    /// Lets each tenant finish its job. Jobs of all, and how many were wrong.
    pub(super) fn end(self, stage: &Stage<'_>) -> Result<(u64, u64)> {
        stage.ending.store(true, Ordering::Relaxed);
        let mut sums = (0, 0);
        for thread in self.0 {
            let done = thread.join().ok().context("a tenant panicked")?;
            let (jobs, wrong) = done?;
            sums = (sums.0 + jobs, sums.1 + wrong);
        }
        Ok(sums)
    }
}
