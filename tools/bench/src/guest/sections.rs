// SPDX-License-Identifier: GPL-2.0-or-later
//! Calls and events at the limits of what a user can cause. A plugin of QEMU (tools/bench/plugin)
//! measures for how long the module holds a raw spinlock with interrupts off meanwhile.

use super::bind::Card;
use super::label::{phase, report_functions, CountReport};
use super::tenants::{allow_files, open, OwnContext};
use crate::work::{Job, TAGS};
use anyhow::{ensure, Context as _, Result};
use fermata::{uapi, Context, GroupSettings, Param, Policy};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time for slices to end and for jobs to be switched.
const WHILE: Duration = Duration::from_millis(500);
/// Number of contexts that write all registers.
const WRITERS: usize = 128;
/// Number of contexts without a job, which announce jobs.
const ANNOUNCERS: usize = 32;
/// A mask of all slots that a card can have.
const ALL_SLOTS: u32 = u32::MAX >> 24;
const CGROUP: &str = "/sys/fs/cgroup/sections";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Number of contexts with a job
    #[arg(long, default_value_t = 4096)]
    contexts: u64,
    /// Where the file for the report goes
    #[arg(long, default_value = "/report/count.json")]
    out: PathBuf,
}

/// Runs all phases. On return no driver is bound to the card.
pub(crate) fn run(options: &Options) -> Result<()> {
    allow_files(options.contexts)?;
    report_functions()?;
    let mut counted = CountReport::new()?;
    let number = options.contexts;
    let card = Card::find()?;
    let own = |number| open(&options.device, Job::endless(TAGS + number), ALL_SLOTS);
    let first = own(0)?;
    let registers = all_registers(&first);
    let offsets: Vec<u32> = registers.iter().map(|&(offset, _)| offset).collect();
    let mut contexts = vec![first];
    phase!(counted, 0, "SETUP, ARENA_CREATE, SNAPSHOT_CREATE", {
        for tag in 1..number {
            contexts.push(own(tag)?);
        }
        number
    });
    let each =
        |contexts: &[OwnContext], what: &dyn Fn(&Context) -> fermata::Result<()>| -> Result<u64> {
            for own in contexts {
                what(&own.context)?;
            }
            Ok(contexts.len() as u64)
        };
    let announcers = contexts.split_off(contexts.len() - ANNOUNCERS);
    let (on_slots, others) = contexts.split_at(uapi::MAX_SLOTS);
    each(on_slots, &|context| context.start().map(|_| ()))?;
    phase!(
        counted,
        1,
        "REGS_WRITE of all registers",
        each(on_slots, &|context| context.write_registers(&registers))?
    );
    phase!(
        counted,
        2,
        "REGS_READ of all registers",
        each(on_slots, &|context| context
            .read_registers(&offsets)
            .map(|_| ()))?
    );
    each(&others[..WRITERS], &|context| {
        context.write_registers(&registers)
    })?;
    phase!(
        counted,
        3,
        "START",
        each(others, &|context| context.start().map(|_| ()))?
    );
    phase!(
        counted,
        4,
        "STATUS",
        each(&contexts, &|context| context.status().map(|_| ()))?
    );
    phase!(counted, 5, "switches, all registers each", {
        std::thread::sleep(WHILE);
        1
    });
    let context = &contexts[0].context;
    phase!(counted, 6, "POLICY", policies(context)?);
    phase!(counted, 7, "GANG", gangs(&contexts)?);
    phase!(counted, 8, "PREEMPT of a gang, to be held", {
        context.preempt(true)?;
        1
    });
    phase!(counted, 9, "RESUME of a gang", {
        context.resume()?;
        1
    });
    phase!(counted, 10, "HINT beside gangs", hints(&announcers)?);
    phase!(counted, 11, "GROUP_SET", groups(context)?);
    phase!(counted, 12, "end of the card", {
        card.release()?;
        1
    });
    phase!(counted, 13, "close", {
        drop(contexts);
        drop(announcers);
        number
    });
    counted.write(&options.out)
}

/// Returns values for all registers, except those that the engine uses.
fn all_registers(tenant: &OwnContext) -> Vec<(u32, u64)> {
    let own = Job::endless(TAGS).registers(tenant.memory.base());
    let others = (uapi::REG_FIRST..=uapi::REG_LAST).step_by(8);
    others
        .filter(|offset| own.iter().all(|(used, _)| used != offset))
        .map(|offset| (offset, 1))
        .collect()
}

fn policies(context: &Context) -> Result<u64> {
    let policies = [
        Policy::Fair,
        Policy::Priority,
        Policy::Deadline,
        Policy::RoundRobin,
        Policy::Fair,
    ];
    for policy in policies {
        context.set_policy(policy)?;
    }
    Ok(policies.len() as u64)
}

/// Makes gangs of the maximum size of all contexts, the first led by the first context.
fn gangs(contexts: &[OwnContext]) -> Result<u64> {
    for gang in contexts.chunks(uapi::MAX_GANG) {
        let leader = &gang[0].context;
        let number = leader.status()?.context;
        for own in &gang[1..] {
            own.context.join_gang(number)?;
        }
        ensure!(leader.gang_members()? == gang.len() as u32);
    }
    Ok(contexts.len() as u64)
}

/// Announces a job of each latency-critical context for the same time, and starts none.
fn hints(contexts: &[OwnContext]) -> Result<u64> {
    for own in contexts {
        let context = &own.context;
        context.set_param(Param::LatencyCritical, 1)?;
    }
    let at = Instant::now() + WHILE;
    for own in contexts {
        let ahead = at.saturating_duration_since(Instant::now());
        own.context.hint(Some(ahead))?;
    }
    std::thread::sleep(2 * WHILE);
    Ok(contexts.len() as u64)
}

/// Changes the slots that all contexts may use, and changes them back.
fn groups(context: &Context) -> Result<u64> {
    fs::create_dir(CGROUP).context(CGROUP)?;
    let cgroup = File::open(CGROUP)?;
    let settings = [
        GroupSettings {
            weight: Some(10),
            exclusive: Some(ALL_SLOTS),
            ..GroupSettings::default()
        },
        GroupSettings {
            cap: Some(10),
            exclusive: Some(0),
            ..GroupSettings::default()
        },
    ];
    for settings in &settings {
        context.set_group(cgroup.as_fd(), settings)?;
        std::thread::sleep(WHILE / 10);
    }
    context.remove_group(cgroup.as_fd())?;
    Ok(settings.len() as u64 + 1)
}
