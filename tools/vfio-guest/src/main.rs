// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-vfio-guest [WORD...]`: tests fermata-vfio on a host's card, as its guest. Prints TAP.
//! With words, runs only the tests whose names contain one of the words.
//! `fermata-vfio-guest --socket PATH` runs a job on the card of a running daemon; with
//! `--until FILE` it runs jobs until there is such a file, and one more.
//! `fermata-vfio-guest --measure` compares a job of a guest with the same job of a process of the
//! host, in turns: the time from START to the notice of the end.

mod guest;
mod host;
mod migration;
mod tests;

use crate::guest::{Guest, Hash, Job, BASE, MEMBENCH, SLOTS};
use crate::host::{run, tell_card, Daemon, HostHash, DEVICE};
use anyhow::{bail, ensure, Result};
use fermata::{Context, EngineId};
use fermata_output::{complain, say};
use rustix::process::{setrlimit, Resource, Rlimit};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let options: Vec<_> = words.iter().map(String::as_str).collect();
    match options.as_slice() {
        ["--socket", socket] => return exit_code(tests::served(socket.as_ref(), None)),
        ["--socket", socket, "--until", file] => {
            return exit_code(tests::served(socket.as_ref(), Some(file.as_ref())));
        }
        _ => {}
    }
    if let Err(error) = host::open_node() {
        say!("Bail out! {error:#}");
        return ExitCode::FAILURE;
    }
    // As for the daemon's service, because guest memory is pinned.
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    if let Err(error) = setrlimit(Resource::Memlock, unlimited) {
        say!("Bail out! RLIMIT_MEMLOCK: {error}");
        return ExitCode::FAILURE;
    }
    if words == ["--measure"] {
        return exit_code(measure());
    }
    fermata_output::status(test(&words))
}

fn exit_code(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("fermata-vfio-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests whose names contain one of the words.
fn test(words: &[String]) -> ExitCode {
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let chosen: Vec<_> = tests::TESTS
        .iter()
        .filter(|(name, _)| wanted(name))
        .collect();
    say!("TAP version 13\n1..{}", chosen.len());
    let mut failed = chosen.is_empty();
    for (number, (name, test)) in (1..).zip(chosen) {
        match test() {
            Ok(()) => say!("ok {number} {name}"),
            Err(error) => {
                say!("not ok {number} {name}\n# {error:#}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

const ROUNDS: usize = 30;
/// Lines that a membench job reads.
const LINES: u64 = 30_000;

/// Returns the median, and the longest time.
fn summary(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

/// Measures both in turns, after a turn that does not count, and prints a part of the table.
fn compare(
    name: &str,
    mut by_host: impl FnMut() -> Result<Duration>,
    mut by_guest: impl FnMut() -> Result<Duration>,
) -> Result<()> {
    by_host()?;
    by_guest()?;
    let (mut host, mut guest) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        host.push(by_host()?);
        guest.push(by_guest()?);
    }
    let (host, longest_of_host) = summary(&mut host);
    let (guest, longest_of_guest) = summary(&mut guest);
    let more = guest.as_secs_f64() / host.as_secs_f64() - 1.0;
    say!("{name}: medians of {ROUNDS}, and the longest");
    say!("  host   {host:>9.2?}   {longest_of_host:>9.2?}");
    say!("  guest  {guest:>9.2?}   {longest_of_guest:>9.2?}");
    say!("  the guest's median is {:.1} % longer", more * 100.0);
    Ok(())
}

/// Runs a job of the guest whose registers are written before the time begins.
fn timed(guest: &mut Guest, job: &Job) -> Result<Duration> {
    guest.prepare(job)?;
    let begin = Instant::now();
    guest.go(job)?;
    guest.finish(job)?;
    Ok(begin.elapsed())
}

fn hashes(name: &str, guest: &mut Guest, seed: u64) -> Result<()> {
    let of_guest = Hash::new(guest, 0, seed)?;
    let of_host = HostHash::new(seed + 1, of_guest.length())?;
    let by_guest = || {
        let took = timed(guest, &of_guest.job)?;
        of_guest.check(guest)?;
        Ok(took)
    };
    compare(name, || of_host.run(), by_guest)
}

/// Reads lines of a page of zeros.
fn reads(guest: &mut Guest) -> Result<()> {
    let context = Context::open(DEVICE)?;
    context.setup(EngineId::MEMBENCH, 0)?;
    let arena = context.create_arena(4096)?;
    context.create_snapshot()?;
    let base = arena.base();
    context.write_registers(&[(0x30, base), (0x38, 4096), (0x40, LINES), (0x50, 0x1100)])?;
    let job = Job {
        slot: MEMBENCH,
        window: 1,
        snapshot: 1,
        tag: 0x1101,
        registers: vec![(0x30, BASE), (0x38, 4096), (0x40, LINES)],
    };
    let by_guest = || {
        let took = timed(guest, &job)?;
        let read = guest.slot(MEMBENCH, 0x48)?;
        ensure!(read == LINES, "{read} lines read");
        Ok(took)
    };
    compare(
        &format!("{LINES} reads of membench"),
        || run(&context),
        by_guest,
    )
}

/// The registers of a job, which the driver writes before START.
fn writes(guest: &mut Guest) -> Result<()> {
    let job = Hash::new(guest, 0, 0x1000)?.job;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        guest.prepare(&job)?;
        times.push(begin.elapsed());
    }
    let (median, longest) = summary(&mut times);
    say!("registers of a job of the guest, before START");
    say!("  writes {median:>9.2?}   {longest:>9.2?}");
    Ok(())
}

/// Measures, and prints tables.
fn measure() -> Result<()> {
    let daemon = Daemon::start("measure", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    // Slow enough that the emulation does not dominate the time of a job.
    tell_card(0, "set slot=1 speed=20")?;
    writes(&mut guest)?;
    hashes("a hash of 2 MiB", &mut guest, 0x1000)?;
    reads(&mut guest)?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tenant = scope.spawn(|| keep_busy(&ended));
        let measured = hashes("the hash beside a tenant of the host", &mut guest, 0x1210);
        ended.store(true, Ordering::Release);
        let tenant = tenant
            .join()
            .unwrap_or_else(|_| bail!("the tenant panicked"));
        measured.and(tenant)
    })
}

/// Keeps the slot busy until `ended`, using little processor time.
fn keep_busy(ended: &AtomicBool) -> Result<()> {
    let tenant = HostHash::new(0x1200, 16 << 20)?;
    while !ended.load(Ordering::Acquire) {
        tenant.run()?;
    }
    Ok(())
}
