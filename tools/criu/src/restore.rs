// SPDX-License-Identifier: GPL-2.0-or-later
//! Restores contexts and their mappings, and resumes their jobs.
//!
//! CRIU restores each process in a process of its own. These processes exchange data through the
//! table.

use crate::complain;
use crate::forget_mapped_file;
use crate::image::{self, ContextRecord, EventfdRecord, Late, OwnMemory, Part, Past, Record};
use crate::process::{index_of, is_card, split_offset, Process};
use crate::tell;
use anyhow::{bail, ensure, Context as _, Result};
use fermata::{uapi, Context, Error, Events, Param, State};
use fermata_checkpoint::{Absent, Content, Job};
use rustix::fs::OFlags;
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::ffi::CStr;
use std::io::BufReader;
use std::os::fd::{AsFd, IntoRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

/// A hint for a time that has already passed would be refused.
const SOONEST_HINT: Duration = Duration::from_millis(1);
/// The environment variable of CRIU that names another card's node.
const DEVICE: &str = "FERMATA_CRIU_DEVICE";

/// Recreates the file `id`. Returns its descriptor; `None`: the file is not a card's.
pub(crate) fn file(id: i32) -> Result<Option<RawFd>> {
    let Some(record) = Record::load(id)? else {
        return Ok(None);
    };
    let device = std::env::var_os(DEVICE).map_or(record.node.clone(), PathBuf::from);
    check_card(&device)?;
    check_memory(&record, &device)?;
    let context = match &record.context {
        Some(dumped) => as_user(dumped.user, || restore_context(id, dumped, &device))??,
        None => Context::open(&device)?,
    };
    if record.nonblocking {
        rustix::fs::fcntl_setfl(&context, OFlags::NONBLOCK)?;
    }
    if let Some(dumped) = &record.context {
        note(id, &record.node, dumped, &context)?;
    }
    Ok(Some(context.into_file().into_raw_fd()))
}

/// Refuses a file that is not a card before it is opened: opening the device of another driver may
/// have effects.
fn check_card(device: &Path) -> Result<()> {
    let stat = rustix::fs::stat(device).with_context(|| device.display().to_string())?;
    let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    ensure!(
        is_device && is_card(stat.st_rdev),
        "{} is no fermata card: name one by {DEVICE}",
        device.display()
    );
    Ok(())
}

/// Checks that the context of a record can have the memory that was its program's own.
fn check_memory(record: &Record, device: &Path) -> Result<()> {
    let late = record.context.as_ref().and_then(|context| context.late);
    if late.is_none_or(|late| late.arena.is_none() && late.snapshot.is_none()) {
        return Ok(());
    }
    ensure!(
        Context::open(device)?.allows_foreign_memory()?,
        "{}: the program had an arena or a snapshot buffer in its own memory: load the module with \
         foreign_memory=1",
        device.display()
    );
    Ok(())
}

/// Gives the process another real user during `act`: the driver charges the memory of a context to
/// the real user who opens the context.
fn as_user<T>(user: u32, act: impl FnOnce() -> T) -> Result<T> {
    let before = rustix::process::getuid().as_raw();
    let set = |user: u32| {
        // SAFETY: No memory is touched.
        let done = unsafe { libc::setresuid(user, u32::MAX, u32::MAX) };
        ensure!(
            done == 0,
            "user {user}: {}",
            std::io::Error::last_os_error()
        );
        Ok(())
    };
    set(user)?;
    let result = act();
    set(before)?;
    Ok(result)
}

/// Recreates a context. Its job, if there is one, is held, unless memory is missing that only the
/// complete process has.
fn restore_context(id: i32, dumped: &ContextRecord, device: &Path) -> Result<Context> {
    let from = image::open(id, Part::Checkpoint)?.context("the checkpoint is missing")?;
    let absent = dumped.late.map_or(Absent::default(), |late| late.absent());
    let restored = fermata_checkpoint::restore_without(BufReader::new(from), device, absent)?;
    let (parameters, reservation) = &restored.refused;
    if !parameters.is_empty() || *reservation {
        complain(&format!(
            "context {}: not taken by the card, and left at their defaults: {} {}",
            dumped.number,
            parameters.join(", "),
            if *reservation { "the reservation" } else { "" }
        ));
    }
    let context = restored.context;
    // Another card may have other slots.
    if context.param(Param::SlotMask)? != dumped.slots
        && context.set_param(Param::SlotMask, dumped.slots).is_err()
    {
        tell(&format!(
            "context {}: it may use other slots",
            dumped.number
        ));
    }
    if absent == Absent::default() {
        begin(&context, dumped, restored.description.job)
            .with_context(|| format!("context {}", dumped.number))?;
    }
    Ok(context)
}

/// Sets the outcome of a context's jobs, and begins the job that was held.
fn begin(context: &Context, dumped: &ContextRecord, job: Job) -> Result<()> {
    let last = last_status(&dumped.past);
    let has_ended = matches!(State::from(dumped.past.state), State::Done | State::Failed);
    if last.finished + last.failed > 0 {
        let results: &[_] = if has_ended { &dumped.results } else { &[] };
        context.set_outcome(&last, results)?;
    }
    let flags = dumped.start_flags | uapi::START_HELD;
    match job {
        Job::None => return Ok(()),
        Job::New => context.start_with(flags)?,
        Job::Saved => context.start_with(flags | uapi::START_SAVED)?,
    };
    Ok(context.set_results(&dumped.results)?)
}

/// Returns the status that reported the last job that ended. If another job followed, only the
/// numbers of finished and failed jobs are known.
fn last_status(past: &Past) -> uapi::Status {
    let mut status = uapi::Status {
        state: past.state,
        error: past.error,
        finished: past.finished,
        failed: past.failed,
        fault_addr: past.fault_addr,
        fault_flags: past.fault_flags,
        ..Default::default()
    };
    if !matches!(State::from(past.state), State::Done | State::Failed) {
        (status.state, status.error) = match past.finished {
            0 => (uapi::STATE_FAILED, libc::EIO as u32),
            _ => (uapi::STATE_DONE, 0),
        };
        (status.fault_addr, status.fault_flags) = (0, 0);
    }
    status
}

/// Makes the context visible to other processes, and puts it into its gang: all members join the
/// first one in the table, on which processes that are restored at the same time agree.
fn note(id: i32, node: &Path, dumped: &ContextRecord, context: &Context) -> Result<()> {
    let (card, number) = key_of(context)?;
    let name = node.file_name().and_then(|name| name.to_str());
    let name = entry_name(name.context("a node without a name")?)?;
    let place = add_entry(Entry {
        id,
        name,
        numbers: (dumped.number, number),
        card,
        gang: dumped.gang,
    })?;
    if dumped.gang == 0 {
        return Ok(());
    }
    let is_mate = |entry: &Entry| (entry.card, entry.name, entry.gang) == (card, name, dumped.gang);
    match find_entry_before(place, is_mate)? {
        Some(mate) => Ok(context.join_gang(mate.numbers.1)?),
        None => Ok(()),
    }
}

/// Returns a descriptor of the context that was mapped at `offset` of the node `path`, and the
/// offset in its arena. `None`: the mapping was not a card's.
pub(crate) fn mapping(path: &CStr, offset: u64) -> Result<Option<(RawFd, u64)>> {
    let (Some(index), in_arena) = split_offset(offset) else {
        return Ok(None);
    };
    let path = Path::new(path.to_str()?);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = entry_name(name.context("a node without a name")?)?;
    let was_it = |entry: &Entry| entry.name == name && index_of(entry.numbers.0) == index;
    let Some(entry) = find_entry(was_it)? else {
        return Ok(None);
    };
    let ours = Process::new(std::process::id() as i32)?;
    for (_, context) in ours.contexts()? {
        if key_of(&context)? == entry.key() {
            forget_mapped_file()?;
            return Ok(Some((context.into_file().into_raw_fd(), in_arena)));
        }
    }
    Ok(None)
}

/// Returns the card of a context, and the context's number there.
fn key_of(context: &Context) -> Result<Key> {
    let card = rustix::fs::fstat(context)?.st_rdev;
    Ok((card, context.status()?.context))
}

/// Completes the contexts of a process, which is complete and stopped, and resumes their jobs. A
/// context that cannot be completed, or whose job cannot be resumed, does not affect the others.
///
/// # Errors
///
/// The first error.
pub(crate) fn resume(pid: i32) -> Result<()> {
    let process = Process::new(pid)?;
    let (inner_pid, _) = process.identity()?;
    let mut held = Vec::new();
    let mut seen = HashSet::new();
    let mut done = Ok(());
    for (_, context) in process.contexts()? {
        let prepared = key_of(&context).and_then(|key| {
            // A context may have several descriptors.
            Ok(seen.insert(key) && prepare(&context, key, &process, inner_pid)?)
        });
        match prepared {
            Ok(true) => held.push(context),
            prepared => done = done.and(prepared.map(drop)),
        }
    }
    // Members of a gang begin together.
    for context in held {
        match context.resume() {
            // Another process that has the context has resumed the job, and the job has ended.
            Err(Error::NotFound) => {}
            resumed => done = done.and(resumed.map_err(Into::into)),
        }
    }
    done
}

/// Completes a context, as far as the process `process` can. Returns whether its job can be resumed
/// now.
fn prepare(context: &Context, key: Key, process: &Process, inner_pid: i32) -> Result<bool> {
    let Some(entry) = find_entry(|entry| entry.key() == key)? else {
        return Ok(false);
    };
    let record = Record::load(entry.id)?.and_then(|record| record.context);
    let dumped = record.context("a record is missing")?;
    if let Some(late) = &dumped.late {
        if late.process != inner_pid {
            return Ok(false);
        }
        complete(context, entry.id, &dumped, late, process)
            .with_context(|| format!("context {}", dumped.number))?;
    }
    give_hint(context, dumped.hint_ns)?;
    Ok(dumped.resumes)
}

/// Gives a hint for a time that was `ns` away when the program was dumped; 0: there was no hint.
/// Other descriptors and processes may share the context: only one of them gives the hint.
fn give_hint(context: &Context, ns: u64) -> Result<()> {
    if ns == 0 || context.status()?.hints != 0 {
        return Ok(());
    }
    let ahead = Duration::from_nanos(ns).max(SOONEST_HINT);
    if let Err(error) = context.hint(Some(ahead)) {
        tell(&format!("a hint is lost: {error}"));
    }
    Ok(())
}

/// Restores the parts of a context that need its complete process.
fn complete(
    context: &Context,
    id: i32,
    dumped: &ContextRecord,
    late: &Late,
    process: &Process,
) -> Result<()> {
    if let Some(arena) = late.arena {
        let OwnMemory { address, length } = arena.memory;
        // SAFETY: The memory is the process's, as it was before the dump.
        let done = unsafe { context.use_memory_of(process.pid(), address, length, arena.base) };
        done.context("its arena")?;
    }
    if let Some(OwnMemory { address, length }) = late.snapshot {
        // SAFETY: As above.
        let done = unsafe { context.create_snapshot_of(process.pid(), address, length) };
        done.context("its snapshot buffer")?;
    }
    if late.absent() != Absent::default() {
        let from = image::open(id, Part::Checkpoint)?.context("the checkpoint is missing")?;
        let content = Content::new(BufReader::new(from))?;
        begin(context, dumped, content.description().job)?;
    }
    match late.eventfd {
        Some(eventfd) => restore_eventfd(context, eventfd, process),
        None => Ok(()),
    }
}

fn restore_eventfd(context: &Context, record: EventfdRecord, process: &Process) -> Result<()> {
    let eventfd = process.take(record.number)?;
    let events = Events::from_bits(record.events);
    Ok(context.set_eventfd(Some((eventfd.as_fd(), events)))?)
}

/// Maximum number of contexts in a restore.
const ENTRIES: usize = 8192;
/// Bytes of the name of a node: fermata and a number.
const NAME: usize = 24;

/// A context that was restored.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// CRIU's number of its file.
    pub(crate) id: i32,
    /// The name of the node at the time of the dump.
    pub(crate) name: [u8; NAME],
    /// The context's number at the time of the dump, and now.
    pub(crate) numbers: (u32, u32),
    /// The card now.
    pub(crate) card: u64,
    /// The gang at the time of the dump; 0: none.
    pub(crate) gang: u32,
}

/// The card of a context, and the context's number there.
pub(crate) type Key = (u64, u32);

impl Entry {
    /// Returns the present key of the context.
    pub(crate) fn key(&self) -> Key {
        (self.card, self.numbers.1)
    }
}

struct Place {
    is_complete: AtomicBool,
    entry: UnsafeCell<Entry>,
}

struct Table {
    taken: AtomicUsize,
    places: [Place; ENTRIES],
}

// SAFETY: An entry is written by the process that has taken its place, and read when it is
// complete.
unsafe impl Sync for Table {}

static TABLE: OnceLock<&'static Table> = OnceLock::new();

/// Creates the table, before CRIU creates processes.
pub(crate) fn make_table() -> Result<()> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: A new mapping at an address that the kernel chooses.
    let memory = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<Table>(), protection, flags) };
    let memory = memory.context("a table")?;
    // SAFETY: The memory is large enough and aligned, lives as long as the process, and a table of
    // zeros has no entries.
    TABLE.get_or_init(|| unsafe { &*memory.cast::<Table>() });
    Ok(())
}

fn table() -> Result<&'static Table> {
    TABLE
        .get()
        .copied()
        .context("CRIU has not said that it restores")
}

/// Returns the name of a node in the form of the table.
fn entry_name(name: &str) -> Result<[u8; NAME]> {
    let mut bytes = [0; NAME];
    let Some(room) = bytes.get_mut(..name.len()) else {
        bail!("{name} is no name of a card's node");
    };
    room.copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Adds a context. Returns the number of its place: how many contexts were added before.
fn add_entry(entry: Entry) -> Result<usize> {
    let table = table()?;
    let taken = table.taken.fetch_add(1, Ordering::Relaxed);
    let Some(place) = table.places.get(taken) else {
        bail!("more than {ENTRIES} contexts");
    };
    // SAFETY: The place was taken here, and is not complete.
    unsafe { *place.entry.get() = entry };
    place.is_complete.store(true, Ordering::Release);
    Ok(taken)
}

/// Returns the first context for which `is_it` holds.
fn find_entry(is_it: impl Fn(&Entry) -> bool) -> Result<Option<Entry>> {
    let places = table()?.places.iter();
    let complete = places.filter(|place| place.is_complete.load(Ordering::Acquire));
    // SAFETY: A complete entry does not change.
    let mut entries = complete.map(|place| unsafe { *place.entry.get() });
    Ok(entries.find(|entry| is_it(entry)))
}

/// Returns the first context for which `is_it` holds among those before the place `end`: the same
/// one whenever a process asks. Waits for processes that have taken a place and have not yet
/// written the entry. CRIU ends all processes if one of them ends too early.
fn find_entry_before(end: usize, is_it: impl Fn(&Entry) -> bool) -> Result<Option<Entry>> {
    let mut entries = table()?.places[..end].iter().map(|place| {
        while !place.is_complete.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: A complete entry does not change.
        unsafe { *place.entry.get() }
    });
    Ok(entries.find(|entry| is_it(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many processes add members at the same time, all other members join the same one.
    #[test]
    fn members_of_a_gang_agree_on_the_first() {
        const MEMBERS: i32 = 64;
        make_table().unwrap();
        let entry = |id| Entry {
            id,
            name: entry_name("fermata0").unwrap(),
            numbers: (0, 0),
            card: 0,
            gang: 1,
        };
        let first_before = |id| {
            let place = add_entry(entry(id)).unwrap();
            let first = find_entry_before(place, |entry| entry.gang == 1).unwrap();
            first.map(|first| first.id)
        };
        let firsts: Vec<Option<i32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..MEMBERS)
                .map(|id| scope.spawn(move || first_before(id)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let root = firsts.iter().position(Option::is_none).unwrap();
        for (id, first) in firsts.iter().enumerate() {
            let wanted = (id != root).then_some(root as i32);
            assert_eq!(*first, wanted, "member {id}");
        }
    }
}
