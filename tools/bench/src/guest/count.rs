// SPDX-License-Identifier: GPL-2.0-or-later
//! A workload whose instructions in the module a plugin of QEMU counts (tools/bench/plugin).

use super::label::{phase, CountReport};
use super::tenants::{open, wait_for_end, OwnContext};
use crate::work::{Job, TAGS};
use anyhow::{ensure, Result};
use fermata::{Context, Param, Policy};
use std::path::PathBuf;
use std::time::Duration;

const SLICE: Duration = Duration::from_millis(2);
/// Contexts that share the slot.
const CONTEXTS: u64 = 4;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Number of times that each call is made
    #[arg(long, default_value_t = 300)]
    calls: u64,
    /// Number of switches to wait for
    #[arg(long, default_value_t = 300)]
    switches: u64,
    /// Where the file for the report goes
    #[arg(long, default_value = "/report/count.json")]
    out: PathBuf,
}

/// Runs all phases.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut counted = CountReport::new()?;
    let calls = options.calls;
    let repeat = |call: &dyn Fn() -> Result<()>| -> Result<u64> {
        (0..calls).try_for_each(|_| call()).map(|()| calls)
    };
    let job = Job {
        tag: TAGS,
        accesses: 1,
    };
    let OwnContext { context, memory } = open(&options.device, job, 1)?;
    let registers = job.registers(memory.base());
    context.set_policy(Policy::RoundRobin)?;
    let start_and_wait = || {
        context.start()?;
        wait_for_end(&context)
    };
    // A first run, so that no phase includes one-time work.
    start_and_wait()?;
    phase!(counted, 0, "nothing", calls);
    phase!(
        counted,
        1,
        "STATUS",
        repeat(&|| {
            let _ = context.status()?;
            Ok(())
        })?
    );
    phase!(
        counted,
        2,
        "REGS_WRITE of 7 registers",
        repeat(&|| Ok(context.write_registers(&registers)?))?
    );
    phase!(counted, 3, "PARAM", repeat(&|| set_slice(&context))?);
    phase!(
        counted,
        4,
        "START and WAIT, with the job's start and end",
        repeat(&start_and_wait)?
    );
    let tenants: Vec<OwnContext> = (1..=CONTEXTS)
        .map(|number| {
            let tenant = open(&options.device, Job::endless(TAGS + number), 1)?;
            set_slice(&tenant.context)?;
            tenant.context.start()?;
            Ok(tenant)
        })
        .collect::<Result<_>>()?;
    let preempted = || -> Result<u64> {
        let counts = tenants
            .iter()
            .map(|tenant| Ok(tenant.context.status()?.preemptions));
        Ok(counts.collect::<Result<Vec<u64>>>()?.iter().sum())
    };
    let before = preempted()?;
    phase!(counted, 5, "switch at the end of a slice", {
        std::thread::sleep(SLICE * 2 * options.switches as u32);
        0
    });
    let switches = preempted()? - before;
    ensure!(switches > options.switches / 4, "only {switches} switches");
    if let Some(last) = counted.phases.last_mut() {
        last.operations = switches;
    }
    counted.write(&options.out)
}

fn set_slice(context: &Context) -> Result<()> {
    Ok(context.set_param(Param::Timeslice, SLICE.as_nanos() as u64)?)
}
