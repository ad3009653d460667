// SPDX-License-Identifier: GPL-2.0-or-later
//! Holds the jobs of processes that are dumped, and dumps their contexts.

use crate::image::{
    self, ContextRecord, EventfdRecord, Late, OwnArena, OwnMemory, Part, Past, Record,
};
use crate::process::{check_memory, index_of, is_card, Process};
use crate::restore::Key;
use crate::tell;
use anyhow::{bail, ensure, Context as _, Result};
use fermata::{uapi, Context, Error, Hold, Param, State};
use rustix::fs::OFlags;
use std::collections::{HashMap, HashSet};
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit for a job to leave its slot, after which the dump gives up. The driver's own limit,
/// the preempt timeout, is 10 s at most.
const HOLD_LIMIT: Duration = Duration::from_secs(30);

/// A context of the dump.
struct Dumped {
    context: Context,
    user: u32,
    /// Ends with the dump, even if CRIU is killed.
    hold: Hold,
    /// Whether the job was held by the dump only.
    resumes: bool,
    hint_ns: u64,
    late: Option<Late>,
}

/// What the dump has found so far.
#[derive(Default)]
struct Dump {
    contexts: HashMap<Key, Dumped>,
    /// Cards and numbers of gangs whose jobs the dump holds, all at once.
    gangs: HashSet<(u64, u32)>,
    /// Eventfds of the processes.
    eventfds: Vec<OwnedFd>,
    /// Whether the contexts of all processes can be restored.
    is_checked: bool,
}

fn dump() -> MutexGuard<'static, Dump> {
    static DUMP: LazyLock<Mutex<Dump>> = LazyLock::new(Mutex::default);
    DUMP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the jobs of a stopped process.
pub(crate) fn hold(pid: i32) -> Result<()> {
    // The root of all processes is the first.
    if !std::mem::replace(&mut dump().is_checked, true) {
        check_memory(pid)?;
    }
    let process = Process::new(pid)?;
    let mut contexts = Vec::new();
    let mut indices = HashSet::new();
    for (_, context) in process.contexts()? {
        let status = context.status()?;
        if State::from(status.state) != State::New {
            indices.insert(index_of(status.context));
            contexts.push((context, status));
        }
    }
    for index in process.mapped()? {
        ensure!(
            indices.contains(&index),
            "process {pid} maps an arena of whose context it has no descriptor"
        );
    }
    let eventfds = process.eventfds()?;
    for (context, status) in contexts {
        hold_context(context, &status, &process, &eventfds)
            .with_context(|| format!("a context of process {pid}"))?;
    }
    let eventfds = eventfds.into_iter().map(|(_, eventfd)| eventfd);
    dump().eventfds.extend(eventfds);
    Ok(())
}

fn hold_context(
    context: Context,
    status: &uapi::Status,
    process: &Process,
    eventfds: &[(RawFd, OwnedFd)],
) -> Result<()> {
    let config = context.config(None, 0)?;
    if config.arena_flags & uapi::ARENA_SHARED != 0 {
        bail!("an arena that is shared between contexts cannot be dumped yet");
    }
    let card = rustix::fs::fstat(context.as_fd())?.st_rdev;
    let (_, user) = process.identity()?;
    let mut dump = dump();
    let Dump {
        contexts, gangs, ..
    } = &mut *dump;
    let dumped = match contexts.entry((card, status.context)) {
        std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::hash_map::Entry::Vacant(new) => {
            let by_gang = config.gang != 0 && gangs.contains(&(card, config.gang));
            let was_held = State::from(status.state) == State::Held && !by_gang;
            let held = context.hold_open(Some(HOLD_LIMIT));
            let (hold, is_held) = held.context("the job cannot be held")?;
            if config.gang != 0 && is_held && !was_held {
                gangs.insert((card, config.gang));
            }
            new.insert(Dumped {
                context,
                user,
                hold,
                resumes: is_held && !was_held,
                hint_ns: config.hint_ns,
                late: None,
            })
        }
    };
    if dumped.late.is_none() {
        dumped.late = late_of(&dumped.context, &config, process, eventfds)?;
    }
    Ok(())
}

/// Returns whether the context uses memory of a program's own.
fn has_own_memory(config: &uapi::Config) -> bool {
    config.arena_flags & uapi::ARENA_USER != 0 || config.snapshot_flags & uapi::SNAPSHOT_USER != 0
}

/// Returns what the process `process` has of the context, if it can complete the context.
fn late_of(
    context: &Context,
    config: &uapi::Config,
    process: &Process,
    eventfds: &[(RawFd, OwnedFd)],
) -> Result<Option<Late>> {
    let is_own = has_own_memory(config);
    if is_own {
        let there = context.config(None, process.pid())?.flags;
        if there & uapi::CONFIG_IN_PLACE == 0 {
            return Ok(None);
        }
    }
    let eventfd = match config.events {
        0 => None,
        _ => eventfd_of(context, eventfds)?,
    };
    if !is_own && eventfd.is_none() {
        return Ok(None);
    }
    let status = context.status()?;
    let (process, _) = process.identity()?;
    let arena = (config.arena_flags & uapi::ARENA_USER != 0).then_some(OwnArena {
        memory: OwnMemory {
            address: config.arena_addr,
            length: status.arena_length,
        },
        base: status.device_base,
    });
    let snapshot = (config.snapshot_flags & uapi::SNAPSHOT_USER != 0).then_some(OwnMemory {
        address: config.snapshot_addr,
        length: status.snapshot_length,
    });
    Ok(Some(Late {
        process,
        eventfd,
        arena,
        snapshot,
    }))
}

/// Returns the eventfd of a context, if it is among `eventfds`.
fn eventfd_of(context: &Context, eventfds: &[(RawFd, OwnedFd)]) -> Result<Option<EventfdRecord>> {
    for (number, eventfd) in eventfds {
        let config = context.config(Some(eventfd.as_fd()), 0)?;
        if config.flags & uapi::CONFIG_EVENTFD != 0 {
            return Ok(Some(EventfdRecord {
                events: config.events,
                number: *number,
            }));
        }
    }
    Ok(None)
}

/// Dumps a file. Returns whether the file is one of a card.
pub(crate) fn file(file: BorrowedFd<'_>, id: i32) -> Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR || !is_card(stat.st_rdev) {
        return Ok(false);
    }
    let context = Context::from_file(file.try_clone_to_owned()?);
    let status = context.status()?;
    let is_set_up = State::from(status.state) != State::New;
    let record = Record {
        node: std::fs::read_link(format!(
            "/proc/self/fd/{}",
            rustix::fd::AsRawFd::as_raw_fd(&file)
        ))?,
        nonblocking: rustix::fs::fcntl_getfl(file)?.contains(OFlags::NONBLOCK),
        context: is_set_up
            .then(|| dump_context(&context, &status, stat.st_rdev, id))
            .transpose()?,
    };
    record.store(id)?;
    tell(&format!(
        "{}: context {} is dumped",
        record.node.display(),
        status.context
    ));
    Ok(true)
}

fn dump_context(
    context: &Context,
    status: &uapi::Status,
    card: u64,
    id: i32,
) -> Result<ContextRecord> {
    let dump = dump();
    let dumped = dump.contexts.get(&(card, status.context));
    let dumped = dumped.context("its process was not stopped before")?;
    let config = context.config(None, 0)?;
    ensure!(
        dumped.late.is_some() || !has_own_memory(&config),
        "its arena or its snapshot buffer is memory that no process of the dump has any more \
         where the context got it"
    );
    if config.events != 0 && dumped.late.is_none_or(|late| late.eventfd.is_none()) {
        // An eventfd that no process can read any more is no loss.
        for eventfd in &dump.eventfds {
            let config = context.config(Some(eventfd.as_fd()), 0)?;
            let is_it = config.flags & uapi::CONFIG_EVENTFD != 0;
            ensure!(
                !is_it,
                "its eventfd is in no process that has the context, and its memory"
            );
        }
    }
    // CRIU itself dumps a program's own memory.
    let arena = match config.arena_flags & uapi::ARENA_USER {
        0 => context.map_arena().context("its arena cannot be read")?,
        _ => None,
    };
    let mut to = BufWriter::new(image::create(id, Part::Checkpoint)?);
    fermata_checkpoint::save(context, arena.as_ref(), &mut to)?;
    to.flush()?;
    Ok(ContextRecord {
        number: status.context,
        user: dumped.user,
        slots: context.param(Param::SlotMask)?,
        past: Past {
            state: status.state,
            error: status.error,
            finished: status.finished,
            failed: status.failed,
            fault_addr: status.fault_addr,
            fault_flags: status.fault_flags,
        },
        resumes: dumped.resumes,
        start_flags: config.start_flags,
        results: results_of(context)?,
        gang: config.gang,
        hint_ns: dumped.hint_ns,
        late: dumped.late,
    })
}

/// Returns the results that are known.
fn results_of(context: &Context) -> Result<Vec<(u32, u64)>> {
    let mut results = Vec::new();
    for offset in context.declared_results()? {
        match context.read_registers(&[offset]) {
            Ok(values) => results.extend(values.first().map(|&value| (offset, value))),
            Err(Error::Again) => {}
            Err(error) => return Err(error).context("its results cannot be read"),
        }
    }
    Ok(results)
}

/// Ends the holds of the dump. If CRIU ends the processes, their jobs end with them.
pub(crate) fn resume_all() {
    let Dump { contexts, .. } = std::mem::take(&mut *dump());
    for dumped in contexts.into_values() {
        drop(dumped.hold);
    }
}
