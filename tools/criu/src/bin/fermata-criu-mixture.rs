// SPDX-License-Identifier: GPL-2.0-or-later
//! A program for the tests of the plugin: several threads run chains of jobs, each of which begins
//! with the result of the previous one, and wait for them in different ways. The final output is
//! the same whenever and however often the program was dumped and restored.

use anyhow::{ensure, Result};
use fermata::work::{Access, Outcome, Work, DATA};
use fermata::{Arena, Context, Events, Param};
use fermata_output::say;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::ptr;
use std::thread;
use std::time::Duration;

const HASHED: u64 = 3000;
/// The driver takes hints for the next 10 s.
const AHEAD: Duration = Duration::from_secs(9);

/// How a thread waits for its job.
#[derive(Clone, Copy)]
enum Wait {
    Call,
    Poll,
    Eventfd,
}

fn open(work: &Work) -> Result<Context> {
    let device = std::env::var("FERMATA_DEVICE").unwrap_or_else(|_| "/dev/fermata0".into());
    let context = Context::open(device)?;
    context.setup(work.engine(), 0)?;
    Ok(context)
}

fn begin(work: &Work) -> Result<(Context, Arena)> {
    let context = open(work)?;
    let arena = context.create_arena(work.arena_length())?;
    context.create_snapshot()?;
    Ok((context, arena))
}

/// Creates a context whose arena and snapshot buffer are the program's own memory.
fn begin_with_own_memory(work: &Work) -> Result<(Context, Arena)> {
    let context = open(work)?;
    let length = work.arena_length().next_multiple_of(4096);
    let arena = context.create_own_arena(length)?;
    let slot = context.slots_of(work.engine())?[0];
    let length = 4096 * u64::from(context.slot_info(slot)?.state_pages);
    // SAFETY: New memory, which nothing else uses.
    unsafe {
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let snapshot = mmap_anonymous(ptr::null_mut(), length as usize, protection, flags)?;
        context.create_snapshot_of(0, snapshot as u64, length)?;
    }
    Ok((context, arena))
}

/// Runs a chain of jobs. Returns the result of the last job.
fn chain(
    name: &str,
    context: &Context,
    arena: &Arena,
    rounds: u64,
    wait: Wait,
    make: impl Fn(u64) -> Work,
) -> Result<String> {
    let signals = eventfd(0, EventfdFlags::CLOEXEC)?;
    if matches!(wait, Wait::Eventfd) {
        use std::os::fd::AsFd;
        context.set_eventfd(Some((signals.as_fd(), Events::DONE)))?;
    }
    let (mut seed, mut signalled) = (1, 0);
    for round in 1..=rounds {
        let work = make(seed);
        arena.write(DATA, &seed.to_le_bytes());
        work.load(context, arena)?;
        let job = context.start()?;
        ensure!(job == round, "{name}: job {job}, not {round}");
        match wait {
            Wait::Call => {
                context.wait(Events::DONE, None)?;
            }
            Wait::Poll => {
                poll(&mut [PollFd::new(context, PollFlags::IN)], None)?;
            }
            Wait::Eventfd => {
                let mut count = [0; 8];
                rustix::io::read(&signals, &mut count)?;
                signalled += u64::from_ne_bytes(count);
            }
        }
        let outcome = work.outcome(arena);
        ensure!(
            outcome == work.outcome_of_registers(context)?,
            "{name}: other results in registers"
        );
        seed = match outcome {
            Outcome::Digest(digest) => u64::from_le_bytes(digest[..8].try_into()?),
            Outcome::Checksum { checksum, .. } => checksum,
            Outcome::Bits { bits, .. } => bits,
        };
    }
    let status = context.status()?;
    let mut line = format!(
        "{name}: {seed:016x} after {} jobs at {:#x}",
        status.finished,
        arena.base()
    );
    write!(
        line,
        ", priority {}, gang of {}",
        context.param(Param::Priority)?,
        context.gang_members()?
    )?;
    if fcntl_getfl(context)?.contains(OFlags::NONBLOCK) {
        line.push_str(", not blocking");
    }
    ensure!(status.failed == 0 && arena.is_at_base(), "{name}: failed");
    if matches!(wait, Wait::Eventfd) {
        write!(line, ", signals {signalled}")?;
    }
    Ok(line)
}

/// Announces a job, and creates the file /tmp/announced. When the file /tmp/go exists, prints how
/// many hints the context was given.
/// the file /tmp/go is there.
fn announce() -> Result<()> {
    let context = open(&Work::Sha256 { length: HASHED })?;
    context.hint(Some(AHEAD))?;
    File::create("/tmp/announced")?;
    while !Path::new("/tmp/go").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    say!("hints: {}", context.status()?.hints);
    Ok(())
}

fn main() -> ExitCode {
    fermata_output::end("fermata-criu-mixture", run().map(|()| true))
}

fn run() -> Result<()> {
    let word = std::env::args().nth(2).unwrap_or_default();
    if word == "announce" {
        return announce();
    }
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(50), |word| word.parse())?;
    let hash = |_| Work::Sha256 { length: HASHED };
    let read = |seed| Work::Membench {
        length: 1 << 14,
        count: 50,
        seed,
        access: Access::Update,
        random: true,
    };
    let (first, first_arena) = begin(&hash(0))?;
    let (second, second_arena) = begin(&read(0))?;
    let (third, third_arena) = begin(&hash(0))?;
    // An arena whose pages the program has unmapped.
    let _unmapped = (word == "unmap")
        .then(|| begin_with_own_memory(&hash(0)).map(|(context, _)| context))
        .transpose()?;
    // Without CAP_SYS_PTRACE CRIU does not restore memory of the program's own.
    let (fourth, fourth_arena) = match &word[..] {
        "allocated" => begin(&hash(0)),
        _ => begin_with_own_memory(&hash(0)),
    }?;
    second.join_gang(first.status()?.context)?;
    third.set_param(Param::Priority, 10)?;
    // Its thread waits by poll().
    fcntl_setfl(&third, OFlags::NONBLOCK)?;
    let lines = thread::scope(|scope| {
        let threads = [
            scope.spawn(|| chain("first", &first, &first_arena, rounds, Wait::Eventfd, hash)),
            scope.spawn(|| chain("second", &second, &second_arena, rounds, Wait::Call, read)),
            scope.spawn(|| chain("third", &third, &third_arena, rounds, Wait::Poll, hash)),
            scope.spawn(|| {
                chain(
                    "fourth",
                    &fourth,
                    &fourth_arena,
                    rounds,
                    Wait::Eventfd,
                    hash,
                )
            }),
        ];
        threads.map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a panic")))
        })
    });
    for line in lines {
        say!("{}", line?);
    }
    Ok(())
}
