// SPDX-License-Identifier: GPL-2.0-or-later
//! What a guest and its host must see.

use crate::guest::{Guest, Job, WINDOW};
use crate::host::{hash, tell_card, Daemon, Tenant, DEVICE};
use crate::hostile;
use crate::jobs::{astray, membench, Hash, ASTRAY, SLOTS};
use crate::memory;
use crate::migration;
use crate::relay;
use crate::share;
use anyhow::{anyhow, ensure, Result};
use fermata::Context;
use fermata_card::regs::{status, MAGIC};
use std::path::Path;
use std::time::Duration;

/// A test.
pub(crate) type Test = fn() -> Result<()>;

/// All tests, with what each shows.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("the guest has a card of the fermata profile", card),
    ("jobs of two engines have the right results", jobs),
    ("jobs that are paused go on from their snapshots", paused),
    ("a snapshot goes on at another place", moved),
    ("a tenant of the host on the same slot", contended),
    (
        "a job of the guest that is paused in the host's queue",
        queued,
    ),
    ("two guests and a tenant of the host", shared),
    ("two guests with weights 3 : 1", share::weights),
    ("a card that takes orders", relay::orders),
    ("a card of the base profile", memory::base),
    (
        "windows in the same memory are charged once",
        memory::charged_once,
    ),
    (
        "windows that overlap, in memory that is pinned as a whole",
        memory::pinned_as_a_whole,
    ),
    ("many snapshots of one window", memory::many_snapshots),
    ("other memory at the same place", memory::replaced),
    ("a window of more than 4 GiB, in huge pages", memory::large),
    ("a card that is saved goes on", migration::goes_on),
    ("a machine moves to another host's card", migration::moves),
    ("a card with orders moves", relay::moves),
    ("a state that does not fit", migration::refused),
    ("a host without room for a job", migration::no_room),
    (
        "two guests, a tenant of the host, kills and a migration",
        migration::together,
    ),
    ("an access outside the window", fault),
    ("a window without memory", unmapped),
    ("memory is taken away under a job", taken_away),
    (
        "a part of the memory is taken away",
        memory::partly_taken_away,
    ),
    ("the guest resets its card under a job", reset),
    ("the guest goes away under a job", gone),
    ("a driver that writes registers at random", hostile::driver),
    ("a monitor that sends messages at random", hostile::monitor),
    (
        "memory is truncated under a job and the daemon",
        hostile::truncated,
    ),
    ("a flood of descriptors", hostile::flood),
    ("the daemon is killed under a job", killed),
];

/// What a job may take until it is stopped.
const A_WHILE: Duration = Duration::from_millis(15);

fn plugged(name: &str) -> Result<(Daemon, Guest)> {
    let daemon = Daemon::start(name, &["--slots", SLOTS])?;
    let guest = Guest::plug(daemon.socket())?;
    Ok((daemon, guest))
}

fn card() -> Result<()> {
    let (_daemon, mut guest) = plugged("card")?;
    ensure!(guest.read(0x100)? == MAGIC && guest.read(0x20)? == 2);
    ensure!(guest.read(0x110)? == 0b1111, "features");
    ensure!(
        guest.slot(0, 0x10)? == 0x5348_4132_3536_0000,
        "engine of slot 0"
    );
    ensure!(
        guest.slot(1, 0x10)? == 0x4d45_4d42_454e_4348,
        "engine of slot 1"
    );
    ensure!(guest.slot(0, 0x20)? == 1, "pages of a snapshot");
    Ok(())
}

fn jobs() -> Result<()> {
    let (daemon, mut guest) = plugged("jobs")?;
    for round in 0..3 {
        let hash = Hash::new(&guest, 0, 0x100 + round)?;
        let (job, count, checksum) = membench(&guest, 1, 0x200 + round)?;
        guest.start(&hash.job)?;
        guest.start(&job)?;
        ensure!(guest.runs(&hash.job)?);
        guest.finish(&hash.job)?;
        hash.check(&mut guest)?;
        guest.finish(&job)?;
        let result = [count.to_le_bytes(), checksum.to_le_bytes()].concat();
        ensure!(guest.get(WINDOW, 16)? == result, "result in memory");
        ensure!(guest.slot(1, 0x48)? == count && guest.slot(1, 0x60)? == checksum);
    }
    let contexts = daemon.with_jobs(&Context::open(DEVICE)?)?.len();
    ensure!(contexts == 2, "{contexts} contexts for two windows");
    Ok(())
}

/// Pauses and resumes a job until its end. Returns how often it was paused.
pub(crate) fn to_the_end(guest: &mut Guest, job: &Job) -> Result<u64> {
    let at = Guest::snapshot_at(job.snapshot);
    let mut pauses = 0;
    guest.put(at, &[0xee; 64])?;
    guest.start(job)?;
    loop {
        std::thread::sleep(A_WHILE);
        guest.pause(job)?;
        match guest.wait(job)? {
            status::PAUSED => pauses += 1,
            status::FINISH => return Ok(pauses),
            other => anyhow::bail!("status {other:#x}"),
        }
        ensure!(guest.get(at, 64)? != [0xee; 64], "no snapshot");
        guest.resume(job)?;
    }
}

/// A daemon that is there serves a guest: a job is paused, resumed, and has the right result.
pub(crate) fn served(socket: &Path) -> Result<()> {
    let mut guest = Guest::plug(socket)?;
    let hash = Hash::new(&guest, 0, 0xa00)?;
    ensure!(to_the_end(&mut guest, &hash.job)? > 0, "it was not paused");
    hash.check(&mut guest)
}

fn paused() -> Result<()> {
    let (_daemon, mut guest) = plugged("paused")?;
    let hash = Hash::new(&guest, 0, 0x300)?;
    ensure!(to_the_end(&mut guest, &hash.job)? > 0, "never paused");
    hash.check(&mut guest)?;
    let (job, count, checksum) = membench(&guest, 1, 0x301)?;
    to_the_end(&mut guest, &job)?;
    let result = [count.to_le_bytes(), checksum.to_le_bytes()].concat();
    ensure!(guest.get(WINDOW, 16)? == result, "result in memory");
    Ok(())
}

/// Pauses a job that must not be at its end.
fn stop(guest: &mut Guest, job: &Job) -> Result<()> {
    guest.start(job)?;
    std::thread::sleep(A_WHILE);
    guest.pause(job)?;
    ensure!(guest.wait(job)? == status::PAUSED, "the job ended too soon");
    Ok(())
}

fn moved() -> Result<()> {
    let (_daemon, mut guest) = plugged("moved")?;
    let mut hash = Hash::new(&guest, 0, 0x400)?;
    stop(&mut guest, &hash.job)?;
    let state = guest.get(Guest::snapshot_at(0), 4096)?;
    let window = guest.get(0, WINDOW as usize)?;
    (hash.job.window, hash.job.snapshot) = (2, 5);
    guest.put(2 * WINDOW, &window)?;
    guest.put(Guest::snapshot_at(5), &state)?;
    tell_card(0, "import token=0x400")?;
    guest.resume(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

fn contended() -> Result<()> {
    let (daemon, mut guest) = plugged("contended")?;
    let tenant = Tenant::start(0x501);
    let hash = Hash::new(&guest, 0, 0x500)?;
    let mut pauses = 0;
    for _ in 0..3 {
        guest.start(&hash.job)?;
        guest.finish(&hash.job)?;
        hash.check(&mut guest)?;
        pauses += to_the_end(&mut guest, &hash.job)?;
        hash.check(&mut guest)?;
    }
    let contexts = daemon.contexts(&Context::open(DEVICE)?)?;
    let preemptions: u64 = contexts.iter().map(|context| context.preemptions).sum();
    ensure!(
        preemptions > pauses,
        "{preemptions} preemptions, {pauses} of the guest"
    );
    ensure!(tenant.end()? > 0, "the tenant had no turn");
    Ok(())
}

fn queued() -> Result<()> {
    let (_daemon, mut guest) = plugged("queued")?;
    let tenants = [Tenant::start(0x601), Tenant::start(0x602)];
    let hash = Hash::new(&guest, 0, 0x600)?;
    for _ in 0..5 {
        guest.start(&hash.job)?;
        guest.pause(&hash.job)?;
        let stopped = guest.wait(&hash.job)?;
        ensure!(stopped == status::PAUSED, "status {stopped:#x}");
    }
    guest.resume(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)?;
    tenants
        .into_iter()
        .try_for_each(|tenant| tenant.end().map(drop))
}

/// A guest that pauses its jobs, for some rounds. Returns the group of its contexts.
fn tenant(name: &str, tag: u64) -> Result<u64> {
    let (daemon, mut guest) = plugged(name)?;
    let hash = Hash::new(&guest, 0, tag)?;
    for _ in 0..2 {
        to_the_end(&mut guest, &hash.job)?;
        hash.check(&mut guest)?;
    }
    let contexts = daemon.contexts(&Context::open(DEVICE)?)?;
    let first = contexts.first().ok_or(anyhow!("no context"))?;
    Ok(first.group)
}

fn shared() -> Result<()> {
    let host = Tenant::start(0xd00);
    let second = std::thread::spawn(|| tenant("second", 0xd02));
    let first = tenant("first", 0xd01)?;
    let second = second.join().map_err(|_| anyhow!("a guest panicked"))??;
    ensure!(first != second, "guests are one group");
    host.end().map(drop)
}

fn fault() -> Result<()> {
    let (_daemon, mut guest) = plugged("fault")?;
    let job = astray(0, 0x700);
    guest.start(&job)?;
    let end = guest.wait(&job)?;
    ensure!(end == status::FINISH | status::FAULT, "status {end:#x}");
    let (info, address) = (guest.read(0x200)?, guest.read(0x240)?);
    ensure!(info & 3 == 1, "fault registers: {info:#x}");
    ensure!(address == ASTRAY, "fault at {address:#x}");
    let hash = Hash::new(&guest, 0, 0x701)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

fn unmapped() -> Result<()> {
    let (_daemon, mut guest) = plugged("unmapped")?;
    let hash = Hash::new(&guest, 0, 0x800)?;
    guest.unmap_windows()?;
    guest.start(&hash.job)?;
    let end = guest.wait(&hash.job)?;
    ensure!(end == status::FINISH | status::FAULT, "status {end:#x}");
    Ok(())
}

fn taken_away() -> Result<()> {
    let (daemon, mut guest) = plugged("taken")?;
    let host = Context::open(DEVICE)?;
    let hash = Hash::new(&guest, 0, 0x900)?;
    guest.start(&hash.job)?;
    std::thread::sleep(A_WHILE);
    guest.unmap_windows()?;
    let before = guest.get(0, WINDOW as usize)?;
    let end = guest.wait(&hash.job)?;
    ensure!(end == status::FINISH | status::FAULT, "status {end:#x}");
    daemon.wait_for_no_contexts(&host)?;
    ensure!(
        guest.get(0, WINDOW as usize)? == before,
        "memory was written"
    );
    Ok(())
}

fn reset() -> Result<()> {
    let (daemon, mut guest) = plugged("reset")?;
    let host = Context::open(DEVICE)?;
    let hash = Hash::new(&guest, 0, 0xa00)?;
    guest.start(&hash.job)?;
    std::thread::sleep(A_WHILE);
    guest.reset()?;
    ensure!(!guest.runs(&hash.job)?);
    daemon.wait_for_no_contexts(&host)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

fn gone() -> Result<()> {
    let (daemon, mut guest) = plugged("gone")?;
    let host = Context::open(DEVICE)?;
    let first = Hash::new(&guest, 0, 0xb00)?;
    guest.start(&first.job)?;
    std::thread::sleep(A_WHILE);
    drop(guest);
    daemon.wait_for_no_contexts(&host)?;
    let mut guest = Guest::plug(daemon.socket())?;
    let second = Hash::new(&guest, 0, 0xb01)?;
    guest.start(&second.job)?;
    guest.finish(&second.job)?;
    second.check(&mut guest)
}

fn killed() -> Result<()> {
    let (daemon, mut guest) = plugged("killed")?;
    let first = Hash::new(&guest, 0, 0xc00)?;
    guest.start(&first.job)?;
    std::thread::sleep(A_WHILE);
    daemon.kill()?;
    hash(0xc01)?;
    let (_daemon, mut guest) = plugged("killed")?;
    let second = Hash::new(&guest, 0, 0xc02)?;
    guest.start(&second.job)?;
    guest.finish(&second.job)?;
    second.check(&mut guest)
}
