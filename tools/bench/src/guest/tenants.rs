// SPDX-License-Identifier: GPL-2.0-or-later
//! The tenants of a visit, each a thread, and the daemon where there is one. A tenant has a context
//! of fermata, or a connection to the daemon; its jobs are the same with both.

use super::bind::Card;
use crate::daemon::{Client, Daemon, Urgency, SOCKET};
use crate::latency::PAUSE_US;
use crate::mark::{Mark, Marker};
use crate::visit::{Cell, Driver, Tenants, Variant, BEST_EFFORT};
use crate::work::{Job, GUARD, MEMORY, SHORT, TAGS, URGENT_TAG};
use anyhow::{ensure, Context as _, Result};
use fermata::{Arena, Context, EngineId, Events, Param, Policy};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{setrlimit, Resource, Rlimit};
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

    /// Lets the tenants run for so long, and on until an urgent job has come and ended meanwhile,
    /// where there are any: with busy CPUs a daemon that polls may starve them for longer than a
    /// short visit lasts.
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

/// On a busy host the emulated card may stand still for longer than any card should take for a
/// save.
const PREEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any job: nobody is preempted.
const WHOLE_JOBS: Duration = Duration::from_secs(10);
/// What daemon and driver leave in the status of a job that went well.
const FINISH: u64 = 2;

/// Open files beside those of contexts.
const FILES: u64 = 64;

/// A context of fermata.ko with a job at hand, and the memory that it shares with the engine.
pub(crate) struct Tenant {
    pub(crate) context: Context,
    pub(crate) memory: Arena,
}

/// Opens a context for `membench` on the slots of a mask, and writes a job's data and registers.
pub(crate) fn open(device: &Path, job: Job, slots: u32) -> Result<Tenant> {
    let context = Context::open(device).with_context(|| device.display().to_string())?;
    context.setup(EngineId::MEMBENCH, slots)?;
    let memory = context.create_arena(MEMORY)?;
    context.create_snapshot()?;
    job.fill(|offset, word| memory.store(offset, word));
    context.write_registers(&job.registers(memory.base()))?;
    Ok(Tenant { context, memory })
}

/// Waits for the end of a context's job, which must not fail.
pub(crate) fn wait_for_end(context: &Context) -> Result<()> {
    context.wait(Events::DONE, Some(GUARD))?;
    let error = context.status()?.error;
    ensure!(error == 0, "a job failed: errno {error}");
    Ok(())
}

/// Raises the limit of open files, so that this process can have so many contexts.
pub(crate) fn allow_files(contexts: u64) -> Result<()> {
    let count = contexts + FILES;
    let limit = Rlimit {
        current: Some(count),
        maximum: Some(count.max(4096)),
    };
    setrlimit(Resource::Nofile, limit).with_context(|| format!("cannot open {count} files"))
}

/// A tenant.
pub(super) struct Seat {
    job: Job,
    place: Place,
}

enum Place {
    Driver(Tenant),
    Daemon(Client),
}

impl Seat {
    /// A context, with its job at hand. `urgent`: it goes before others.
    pub(super) fn of_driver(
        device: &Path,
        job: Job,
        variant: Variant,
        slice: Duration,
        urgent: bool,
    ) -> Result<Self> {
        let tenant = open(device, job, 1)?;
        let context = &tenant.context;
        let completion = variant == Variant::Completion;
        let slice = if completion { WHOLE_JOBS } else { slice };
        context.set_param(Param::Timeslice, slice.as_nanos() as u64)?;
        context.set_param(Param::PreemptTimeout, PREEMPT_TIMEOUT.as_nanos() as u64)?;
        if urgent && !completion {
            context.set_param(Param::LatencyCritical, 1)?;
        }
        let place = Place::Driver(tenant);
        Ok(Self { job, place })
    }

    /// A client of the daemon.
    pub(super) fn of_daemon(socket: &Path, job: Job, urgent: bool) -> Result<Self> {
        let urgency = if urgent {
            Urgency::LatencyCritical
        } else {
            Urgency::BestEffort
        };
        let place = Place::Daemon(Client::connect(socket, job, urgency)?);
        Ok(Self { job, place })
    }

    pub(super) fn start(&self) -> Result<()> {
        match &self.place {
            Place::Driver(tenant) => Ok(tenant.context.start().map(drop)?),
            Place::Daemon(client) => client.start(),
        }
    }

    /// Waits for the job's end.
    pub(super) fn wait(&self) -> Result<()> {
        match &self.place {
            Place::Driver(tenant) => wait_for_end(&tenant.context),
            Place::Daemon(client) => {
                let status = client.wait()?;
                ensure!(status & 0xfff == FINISH, "a job failed: status {status:#x}");
                Ok(())
            }
        }
    }

    /// Whether the job left what it should; forgets it, so that the next one has to leave it again.
    pub(super) fn take_result(&self, expected: [u64; 2]) -> bool {
        let mut good = true;
        for (number, expected) in expected.into_iter().enumerate() {
            let found = match &self.place {
                Place::Driver(tenant) => tenant.memory.load(number * 8),
                Place::Daemon(client) => client.load(number * 8),
            };
            good &= found == expected;
            match &self.place {
                Place::Driver(tenant) => tenant.memory.store(number * 8, 0),
                Place::Daemon(client) => client.store(number * 8, 0),
            }
        }
        good
    }

    pub(super) fn job(&self) -> Job {
        self.job
    }
}
