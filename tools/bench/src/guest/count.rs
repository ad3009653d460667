// SPDX-License-Identifier: GPL-2.0-or-later
//! Workloads for a plugin of QEMU (tools/bench/plugin). For calls and switches, the plugin counts
//! the instructions in the module. For calls and events at the limits of what a user can cause, the
//! plugin measures how long the module holds a raw spinlock with interrupts off. Labels, which are
//! instructions that the plugin recognizes in the program, tell the plugin which phase the program
//! is in.

use super::machine::Card;
use super::tenants::{allow_files, open, wait_for_end, OwnContext};
use crate::visit::{Job, TAGS};
use anyhow::{ensure, Context as _, Result};
use fermata::{uapi, Context, GroupSettings, Param, Policy};
use serde::Serialize;
use std::arch::asm;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A phase of the workload. `operations` operations ran between the labels `2 * number` and `2 *
/// number + 1`.
#[derive(Serialize)]
struct Phase {
    name: &'static str,
    operations: u64,
}

#[derive(Serialize)]
struct CountReport {
    /// The address of the module's code, and the length of the module's memory.
    text: String,
    bytes: u64,
    phases: Vec<Phase>,
}

impl CountReport {
    fn new() -> Result<Self> {
        let (text, bytes) = module()?;
        Ok(Self {
            text,
            bytes,
            phases: Vec::new(),
        })
    }

    /// Writes the file that vm/fermatavm/instructions.py reads.
    fn write(&self, path: &Path) -> Result<()> {
        let out = File::create(path).with_context(|| path.display().to_string())?;
        serde_json::to_writer(out, self)?;
        Ok(())
    }
}

/// Executes a label: a long NOP whose displacement holds `NUMBER`.
fn label<const NUMBER: u32>() {
    const MAGIC: u32 = 0x5e9c << 16;
    // SAFETY: The instruction is a NOP.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00",
            ".long {word}",
            word = const MAGIC | NUMBER,
            options(nomem, nostack, preserves_flags)
        );
    }
}

macro_rules! phase {
    ($counted:expr, $number:literal, $name:literal, $operations:expr) => {{
        label::<{ 2 * $number }>();
        let operations = $operations;
        label::<{ 2 * $number + 1 }>();
        $counted.phases.push(Phase {
            name: $name,
            operations,
        });
    }};
}

/// Tells the plugin the addresses of the kernel functions that begin and end sections with
/// interrupts off and that access registers.
fn report_functions() -> Result<()> {
    report_function("rust_helper_readq", label::<0xfff4>)?;
    report_function("rust_helper_writeq", label::<0xfff5>)?;
    // The function that ends a section comes before the function that begins one.
    report_function("_raw_spin_unlock_irqrestore", label::<0xfff3>)?;
    report_function("_raw_spin_lock_irqsave", label::<0xfff2>)
}

fn report_function(function: &str, which: fn()) -> Result<()> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let mut lines = symbols.lines().map(|line| line.split_ascii_whitespace());
    let address = lines.find_map(|mut words| {
        let address = words.next()?;
        (words.nth(1)? == function).then_some(address)
    });
    let address = address.with_context(|| format!("the kernel has no {function}"))?;
    let address = u64::from_str_radix(address, 16)?;
    for bit in (0..u64::BITS).rev() {
        if address >> bit & 1 == 1 {
            label::<0xfff1>();
        } else {
            label::<0xfff0>();
        }
    }
    which();
    Ok(())
}

/// Returns the address of the module's code, and the size of the module in bytes.
fn module() -> Result<(String, u64)> {
    let text = std::fs::read_to_string("/sys/module/fermata/sections/.text")
        .context("fermata.ko is not loaded")?;
    let modules = std::fs::read_to_string("/proc/modules")?;
    let line = modules.lines().find(|line| line.starts_with("fermata "));
    let bytes = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    let bytes = bytes.context("/proc/modules has no fermata")?.parse()?;
    Ok((text.trim().into(), bytes))
}

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
pub(crate) struct SectionsOptions {
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
pub(crate) fn run_sections(options: &SectionsOptions) -> Result<()> {
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
