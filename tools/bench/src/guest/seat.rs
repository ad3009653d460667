// SPDX-License-Identifier: GPL-2.0
//! A tenant's place: a context of fermata, or a connection to the daemon. The same jobs for both.

use crate::daemon::{Client, Urgency};
use crate::visit::Variant;
use crate::work::{Job, GUARD, MEMORY};
use anyhow::{ensure, Context as _, Result};
use fermata::{Arena, Context, EngineId, Events, Param};
use rustix::process::{setrlimit, Resource, Rlimit};
use std::path::Path;
use std::time::Duration;

/// On a busy host the emulated card may stand still for longer than any card should take for a save.
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
