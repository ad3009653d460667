// SPDX-License-Identifier: GPL-2.0-or-later
//! The tenants of a visit, a thread each, and the daemon if the visit has one. A tenant has a
//! context of fermata.ko or a connection to the daemon, and runs the same jobs with both.

use super::machine::Card;
use crate::daemon::{Client, Daemon, Urgency, SOCKET};
use crate::latency::PAUSE_US;
use crate::mark::{Mark, Marker};
use crate::visit::{
    Cell, Driver, Job, Tenants, Variant, BEST_EFFORT, MEMORY, SHORT, TAGS, TIMEOUT, URGENT_TAG,
};
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
/// Time limit for an urgent job to end. The report then says that there was no arrival.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The tenants, and the daemon, of a visit.
pub(super) struct TenantSet<'a> {
    /// Dropped before the tenants, since no client may leave a job behind.
    daemon: Option<Daemon>,
    /// Run one job after the other.
    workers: Vec<Tenant>,
    /// Runs jobs at random times.
    urgent: Option<Tenant>,
    /// Run jobs that never end; kept until the visit ends.
    #[allow(dead_code)] // kept, as described above
    endless: Vec<Tenant>,
    marker: &'a Marker,
    /// Number of urgent jobs that ended.
    answered: AtomicU64,
    ending: AtomicBool,
}

/// The threads of the tenants. Each returns the number of its jobs, and of wrong results.
pub(super) struct Running<'scope>(Vec<ScopedJoinHandle<'scope, Result<(u64, u64)>>>);

impl<'a> TenantSet<'a> {
    pub(super) fn new(cell: Cell, card: &Card, marker: &'a Marker) -> Result<Self> {
        let daemon = match cell.variant.driver() {
            Driver::Vfio => Some(Daemon::start(cell, card)?),
            _ => None,
        };
        if cell.variant.is_own() {
            let context = Context::open(DEVICE)?;
            context.set_policy(Policy::RoundRobin)?;
        }
        let slice = Duration::from_micros(cell.slice_us.into());
        let tenant = |job, urgent| match cell.variant.driver() {
            Driver::Vfio => Tenant::of_daemon(Path::new(SOCKET), job, urgent),
            _ => Tenant::of_driver(Path::new(DEVICE), job, cell.variant, slice, urgent),
        };
        let mut set = Self {
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
                set.workers = jobs
                    .map(|tag| tenant(Job { tag, accesses }, false))
                    .collect::<Result<_>>()?;
                let (tag, accesses) = (URGENT_TAG, SHORT);
                set.urgent = Some(tenant(Job { tag, accesses }, true)?);
            }
            Tenants::Endless(count) => {
                allow_files(count.into())?;
                for tag in TAGS..TAGS + u64::from(count) {
                    let tenant = tenant(Job::endless(tag), false)?;
                    tenant.start()?;
                    set.endless.push(tenant);
                }
            }
        }
        Ok(set)
    }

    /// Returns the daemon's process.
    pub(super) fn daemon(&self) -> Option<&Child> {
        self.daemon.as_ref().map(Daemon::process)
    }

    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Running<'scope> {
        let workers = self.workers.iter();
        let mut threads: Vec<_> = workers
            .map(|tenant| scope.spawn(|| self.work(tenant)))
            .collect();
        threads.extend(
            self.urgent
                .iter()
                .map(|tenant| scope.spawn(|| self.arrive(tenant))),
        );
        Running(threads)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Runs one job after the other.
    fn work(&self, tenant: &Tenant) -> Result<(u64, u64)> {
        let expected = tenant.job().result();
        let (mut jobs, mut wrong) = (0, 0);
        while !self.is_ending() {
            tenant.start()?;
            tenant.wait()?;
            jobs += 1;
            wrong += u64::from(!tenant.take_result(expected));
        }
        Ok((jobs, wrong))
    }

    /// Runs a job at random times.
    fn arrive(&self, tenant: &Tenant) -> Result<(u64, u64)> {
        let expected = tenant.job().result();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let (mut jobs, mut wrong) = (0, 0);
        while !self.is_ending() {
            std::thread::sleep(Duration::from_micros(random.random_range(PAUSE_US)));
            jobs += 1;
            self.marker.mark(Mark::Arrival(jobs as u32));
            tenant.start()?;
            tenant.wait()?;
            wrong += u64::from(!tenant.take_result(expected));
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok((jobs, wrong))
    }

    /// Lets the tenants run for `length`. If there is urgent work, continues until an urgent job
    /// has arrived and ended in that time: with busy CPUs, a polling daemon may starve urgent work
    /// for longer than a short visit lasts.
    pub(super) fn run_for(&self, length: Duration) {
        // The first urgent job to end may have arrived before.
        let enough = self.answered.load(Ordering::Relaxed) + 2;
        std::thread::sleep(length);
        let time_limit = Instant::now() + ARRIVAL_TIMEOUT;
        let awaits = || self.urgent.is_some() && self.answered.load(Ordering::Relaxed) < enough;
        while awaits() && Instant::now() < time_limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the daemon, which must still run and exit without an error.
    pub(super) fn end_daemon(mut self) -> Result<()> {
        self.daemon.as_mut().map_or(Ok(()), Daemon::end)
    }
}

impl Running<'_> {
    /// Lets each tenant finish its job. Returns the number of jobs and of wrong results.
    pub(super) fn end(self, set: &TenantSet<'_>) -> Result<(u64, u64)> {
        set.ending.store(true, Ordering::Relaxed);
        let mut sums = (0, 0);
        for thread in self.0 {
            let done = thread.join().ok().context("a tenant panicked")?;
            let (jobs, wrong) = done?;
            sums = (sums.0 + jobs, sums.1 + wrong);
        }
        Ok(sums)
    }
}

/// On a busy host the emulated card may stop for longer than a save may take on any real card.
const PREEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// A slice longer than any job: no job is preempted.
const WHOLE_JOBS: Duration = Duration::from_secs(10);
/// The status of a job that ended well, from the driver and from the daemon.
const FINISH: u64 = 2;

/// Open files that are not contexts.
const FILES: u64 = 64;

/// A context of fermata.ko with a job, and the memory that the job shares with the engine.
pub(crate) struct OwnContext {
    pub(crate) context: Context,
    pub(crate) memory: Arena,
}

/// Opens a context for `membench` on the slots in a mask, and writes the job's data and registers.
pub(crate) fn open(device: &Path, job: Job, slots: u32) -> Result<OwnContext> {
    let context = Context::open(device).with_context(|| device.display().to_string())?;
    context.setup(EngineId::MEMBENCH, slots)?;
    let memory = context.create_arena(MEMORY)?;
    context.create_snapshot()?;
    job.fill(|offset, word| memory.store(offset, word));
    context.write_registers(&job.registers(memory.base()))?;
    Ok(OwnContext { context, memory })
}

/// Waits for the end of a context's job, which must not fail.
pub(crate) fn wait_for_end(context: &Context) -> Result<()> {
    context.wait(Events::DONE, Some(TIMEOUT))?;
    let error = context.status()?.error;
    ensure!(error == 0, "a job failed: errno {error}");
    Ok(())
}

/// Raises the limit of open files for `contexts` contexts.
pub(crate) fn allow_files(contexts: u64) -> Result<()> {
    let count = contexts + FILES;
    let limit = Rlimit {
        current: Some(count),
        maximum: Some(count.max(4096)),
    };
    setrlimit(Resource::Nofile, limit).with_context(|| format!("cannot open {count} files"))
}

/// A tenant: a job, and where the job runs.
pub(super) struct Tenant {
    job: Job,
    backend: Backend,
}

enum Backend {
    Driver(OwnContext),
    Daemon(Client),
}

impl Tenant {
    /// Returns a tenant with a context of fermata.ko. An urgent tenant is latency-critical.
    pub(super) fn of_driver(
        device: &Path,
        job: Job,
        variant: Variant,
        slice: Duration,
        urgent: bool,
    ) -> Result<Self> {
        let own = open(device, job, 1)?;
        let context = &own.context;
        let completion = variant == Variant::Completion;
        let slice = if completion { WHOLE_JOBS } else { slice };
        context.set_param(Param::Timeslice, slice.as_nanos() as u64)?;
        context.set_param(Param::PreemptTimeout, PREEMPT_TIMEOUT.as_nanos() as u64)?;
        if urgent && !completion {
            context.set_param(Param::LatencyCritical, 1)?;
        }
        let backend = Backend::Driver(own);
        Ok(Self { job, backend })
    }

    /// Returns a tenant that is a client of the daemon.
    pub(super) fn of_daemon(socket: &Path, job: Job, urgent: bool) -> Result<Self> {
        let urgency = if urgent {
            Urgency::LatencyCritical
        } else {
            Urgency::BestEffort
        };
        let backend = Backend::Daemon(Client::connect(socket, job, urgency)?);
        Ok(Self { job, backend })
    }

    pub(super) fn start(&self) -> Result<()> {
        match &self.backend {
            Backend::Driver(own) => Ok(own.context.start().map(drop)?),
            Backend::Daemon(client) => client.start(),
        }
    }

    /// Waits for the job's end.
    pub(super) fn wait(&self) -> Result<()> {
        match &self.backend {
            Backend::Driver(own) => wait_for_end(&own.context),
            Backend::Daemon(client) => {
                let status = client.wait()?;
                ensure!(status & 0xfff == FINISH, "a job failed: status {status:#x}");
                Ok(())
            }
        }
    }

    /// Returns whether the job left the expected result, and clears the result for the next job.
    pub(super) fn take_result(&self, expected: [u64; 2]) -> bool {
        let mut good = true;
        for (number, expected) in expected.into_iter().enumerate() {
            let found = match &self.backend {
                Backend::Driver(own) => own.memory.load(number * 8),
                Backend::Daemon(client) => client.load(number * 8),
            };
            good &= found == expected;
            match &self.backend {
                Backend::Driver(own) => own.memory.store(number * 8, 0),
                Backend::Daemon(client) => client.store(number * 8, 0),
            }
        }
        good
    }

    pub(super) fn job(&self) -> Job {
        self.job
    }
}
