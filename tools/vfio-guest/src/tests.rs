// SPDX-License-Identifier: GPL-2.0-or-later
//! What a guest and its host must see: jobs, windows of memory, shares by the weights of cgroups,
//! and a driver that switches by orders (docs/registers.md). Whatever a driver or a virtual machine
//! monitor does, the daemon serves the next one, and a tenant of the host does not notice.

use crate::guest::{
    astray, endless, membench, reads, Guest, Hash, Job, ASTRAY, BASE, GPA, LARGE, RAM, SLOTS,
    WINDOW,
};
use crate::host::{cgroup, hash, tell_card, Daemon, Tenant, DEVICE, OTHER};
use crate::migration::{self, Slow, StateFile};
use anyhow::{anyhow, ensure, Result};
use fermata::{Context, GroupSettings};
use fermata_card::engine::splitmix64;
use fermata_card::regs::{ctl, status, MAGIC, TAG};
use fermata_card::relay::Reason;
use fermata_output::say;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A test.
type Test = fn() -> Result<()>;

/// All tests, with what each of them shows.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("the guest has a card of the irq profile", card),
    ("jobs of two engines have the right results", jobs),
    ("jobs that are paused go on from their snapshots", paused),
    ("a snapshot goes on at another place", moved),
    ("a tenant of the host on the same slot", contended),
    (
        "a job of the guest that is paused in the host's queue",
        queued,
    ),
    ("two guests and a tenant of the host", shared),
    ("two guests with weights 3 : 1", weights),
    ("a card that takes orders", orders),
    ("a card of the base profile", base_profile),
    ("windows in the same memory are charged once", charged_once),
    (
        "windows that overlap, in memory that is pinned as a whole",
        pinned_as_a_whole,
    ),
    ("many snapshots of one window", many_snapshots),
    ("other memory at the same place", replaced),
    ("a window of more than 4 GiB, in huge pages", large_window),
    ("a card that is saved goes on", migration::goes_on),
    ("a machine moves to another host's card", migration::moves),
    ("a card with orders moves", orders_move),
    ("a state that does not fit", migration::refused),
    ("a host without room for a job", migration::no_room),
    (
        "two guests, a tenant of the host, kills and a migration",
        migration::together,
    ),
    ("an access outside the window", fault),
    ("a window without memory", unmapped),
    ("memory is taken away under a job", taken_away),
    ("a part of the memory is taken away", partly_taken_away),
    ("the guest resets its card under a job", reset),
    ("the guest goes away under a job", gone),
    ("a driver that writes registers at random", random_driver),
    ("a monitor that sends messages at random", random_monitor),
    (
        "memory is truncated under a job and the daemon",
        memory_truncated,
    ),
    ("a flood of descriptors", flood),
    ("the daemon is killed under a job", killed),
];

/// How long a job may run until it is stopped.
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
        let slow = Slow::new(0)?;
        guest.start(&hash.job)?;
        guest.start(&job)?;
        ensure!(guest.runs(&hash.job)? && guest.runs(&job)?, "no job runs");
        drop(slow);
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

/// A running daemon serves a guest: jobs are paused, resumed, and have the right results.
pub(crate) fn served(socket: &Path, until: Option<&Path>) -> Result<()> {
    let mut guest = Guest::plug(socket)?;
    let mut pauses = 0;
    loop {
        let is_last = until.is_none_or(Path::exists);
        let hash = Hash::new(&guest, 0, 0xa00)?;
        pauses += to_the_end(&mut guest, &hash.job)?;
        hash.check(&mut guest)?;
        if is_last {
            break;
        }
    }
    ensure!(pauses > 0, "no job was paused");
    Ok(())
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

/// Pauses a job that must not have ended.
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

/// Runs a guest that pauses its jobs, for some rounds. Returns the group of its contexts.
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

/// How long both guests run.
const TIME: Duration = Duration::from_secs(6);

/// A guest whose job does not end.
struct Busy {
    daemon: Daemon,
    _guest: Guest,
}

impl Busy {
    fn start(name: &str, weight: u32, tag: u64, host: &Context) -> Result<Self> {
        let daemon = Daemon::start(name, &["--slots", SLOTS])?;
        let settings = GroupSettings {
            weight: Some(weight),
            ..Default::default()
        };
        host.set_group(File::open(cgroup(name))?.as_fd(), &settings)?;
        let mut guest = Guest::plug(daemon.socket())?;
        guest.start(&endless(tag))?;
        Ok(Self {
            daemon,
            _guest: guest,
        })
    }

    /// Returns the time on slots, in nanoseconds.
    fn run_ns(&self, host: &Context) -> Result<u64> {
        let contexts = self.daemon.contexts(host)?;
        Ok(contexts.iter().map(|context| context.run_ns).sum())
    }
}

/// Two guests with weights 3 : 1 get time on a slot as 3 : 1, within 2 %.
fn weights() -> Result<()> {
    let host = Context::open(DEVICE)?;
    let heavy = Busy::start("heavy", 300, 0x1100, &host)?;
    let light = Busy::start("light", 100, 0x1101, &host)?;
    std::thread::sleep(TIME / 10);
    let before = (heavy.run_ns(&host)?, light.run_ns(&host)?);
    std::thread::sleep(TIME);
    let (of_heavy, of_light) = (heavy.run_ns(&host)?, light.run_ns(&host)?);
    let (of_heavy, of_light) = (of_heavy - before.0, of_light - before.1);
    let share = of_heavy as f64 / (of_heavy + of_light) as f64;
    say!("# {of_heavy} : {of_light} ns, {:.1} %", share * 100.0);
    ensure!((0.735..0.765).contains(&share), "3 : 1 is 75 %");
    Ok(())
}

/// Where in the guest's memory the card reads contexts, and writes records.
const TABLE: u64 = RAM - 0x10_0000;
const RECORDS: u64 = TABLE + 0x1000;
const REGISTERS: u64 = TABLE + 0x2000;

const VACANT: u64 = 1 << 33;
const RESUME: u64 = 1 << 34;
const NEVER: u64 = 0xff_ffff << 40;

/// An order that follows a run: a context, and when the run has to stop.
fn order(after: u64, context: u64, rest: u64) -> u64 {
    after | (context + 1) << 16 | rest
}

fn put64(guest: &Guest, at: u64, value: u64) -> Result<()> {
    guest.put(at, &value.to_le_bytes())
}

/// Writes an entry of the context table, and the registers of the context.
fn write_context(guest: &Guest, context: u64, job: &Job) -> Result<()> {
    let (entry, registers) = (TABLE + 128 * context, REGISTERS + 0x1000 * context);
    let memory = GPA + job.window * WINDOW;
    let fields = [
        (0x08, memory.wrapping_sub(BASE)),
        (0x10, BASE),
        (0x18, WINDOW),
        (0x20, GPA + Guest::snapshot_at(job.snapshot)),
        (0x28, 0x1_0000),
        (0x30, GPA + registers),
        (0x60, 0xc00 + context),
        (0x00, 1),
    ];
    for (at, value) in fields {
        put64(guest, entry + at, value)?;
    }
    for &(at, value) in &job.registers {
        put64(guest, registers + at, value)?;
    }
    put64(guest, registers + u64::from(TAG), job.tag)
}

/// Checks the record of a run: how the run has ended.
fn check_record(guest: &Guest, run: u64, reason: Reason) -> Result<()> {
    let last = guest.get(RECORDS + 64 * run + 56, 8)?;
    ensure!(
        last[..4] == (run as u32).to_le_bytes(),
        "no record of run {run}"
    );
    ensure!(last[4] == reason as u8, "run {run}: reason {}", last[4]);
    Ok(())
}

const ARGUMENTS: [&str; 4] = ["--profile", "relay", "--slots", "sha256"];

/// Sets up two contexts on a new card.
fn set_up(guest: &mut Guest) -> Result<[Hash; 2]> {
    ensure!(guest.read(0x110)? & 1 << 4 != 0, "no relay");
    let hashes = [Hash::new(guest, 0, 0xe00)?, Hash::new(guest, 1, 0xe01)?];
    for (context, hash) in (0..).zip(&hashes) {
        write_context(guest, context, &hash.job)?;
    }
    guest.write(0x120, GPA + TABLE)?;
    guest.write(0x128, hashes.len() as u64)?;
    guest.write(0x130, GPA + RECORDS)?;
    guest.write(0x340, 1)?;
    Ok(hashes)
}

/// Two contexts on one slot: the first is preempted for the second, and continues after it.
fn orders() -> Result<()> {
    let daemon = Daemon::start("orders", &ARGUMENTS)?;
    let mut guest = Guest::plug(daemon.socket())?;
    let hashes = set_up(&mut guest)?;
    guest.write(0x300, order(0, 0, VACANT | NEVER))?;
    let after_15_ms = 15_000 << 40;
    guest.write(0x300, order(1, 1, after_15_ms))?;
    guest.wait_irqs(0, 1)?;
    guest.write(0x300, order(2, 0, RESUME | NEVER))?;
    guest.wait_irqs(0, 2)?;
    let reasons = [Reason::Paused, Reason::Finish, Reason::Finish];
    for (run, reason) in (1..).zip(reasons) {
        check_record(&guest, run, reason)?;
    }
    hashes.iter().try_for_each(|hash| hash.check_memory(&guest))
}

/// The card moves with an order that it holds: the run continues and ends, and the other context
/// follows.
fn orders_move() -> Result<()> {
    let _slow = Slow::new(0)?;
    let file = StateFile::new("orders");
    let from = Daemon::start("orders-from", &ARGUMENTS)?;
    let to = Daemon::start_on(OTHER, "orders-to", &ARGUMENTS)?;
    let mut guest = Guest::plug(from.socket())?;
    let hashes = set_up(&mut guest)?;
    guest.write(0x300, order(0, 0, VACANT | NEVER))?;
    guest.write(0x300, order(1, 1, NEVER))?;
    from.wait_for_jobs(&Context::open(DEVICE)?, 1)?;
    from.ask("save", Some(file.path()))?;
    ensure!(check_record(&guest, 1, Reason::Finish).is_err(), "too late");
    let mut guest = guest.copy(to.socket())?;
    tell_card(1, "import token=0xe00")?;
    to.ask("load", Some(file.path()))?;
    // One interrupt of the slot is spurious.
    guest.wait_irqs(0, 3)?;
    check_record(&guest, 1, Reason::Finish)?;
    check_record(&guest, 2, Reason::Finish)?;
    ensure!(guest.slot(0, 0x18)? >> 32 == 2, "runs");
    hashes.iter().try_for_each(|hash| hash.check_memory(&guest))
}

/// Runs a job of each slot in the window with this number, each with a snapshot of its own.
fn jobs_in(guest: &mut Guest, window: u64, seed: u64) -> Result<()> {
    let mut hash = Hash::new(guest, window, seed)?;
    hash.job.snapshot = 1;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(guest)?;
    let (mut job, count, checksum) = membench(guest, window, seed)?;
    job.snapshot = 2;
    guest.start(&job)?;
    guest.finish(&job)?;
    let result = [count.to_le_bytes(), checksum.to_le_bytes()].concat();
    ensure!(
        guest.get(window * WINDOW, 16)? == result,
        "result of {seed:#x}"
    );
    Ok(())
}

/// Memory that windows of two slots share is pinned and charged once.
fn charged_once() -> Result<()> {
    let daemon = Daemon::start("once", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    jobs_in(&mut guest, 0, 0x1700)?;
    let pinned = daemon.pinned()?;
    ensure!((WINDOW..WINDOW * 3 / 2).contains(&pinned), "{pinned} bytes");
    Ok(())
}

/// Memory that two windows have partly in common is charged once if all memory is pinned.
fn pinned_as_a_whole() -> Result<()> {
    let daemon = Daemon::start("whole", &["--slots", SLOTS, "--pin-memory"])?;
    let mut guest = Guest::plug(daemon.socket())?;
    let hash = Hash::new(&guest, 0, 0x1d00)?;
    let (job, count, checksum) = membench(&guest, 1, 0x1d01)?;
    for job in [&hash.job, &job] {
        guest.prepare(job)?;
        guest.window(job.slot, BASE, GPA + job.window * WINDOW, 2 * WINDOW)?;
        guest.go(job)?;
    }
    guest.finish(&hash.job)?;
    guest.finish(&job)?;
    hash.check(&mut guest)?;
    ensure!(guest.slot(1, 0x48)? == count && guest.slot(1, 0x60)? == checksum);
    let pinned = daemon.pinned()?;
    ensure!((RAM..RAM + WINDOW).contains(&pinned), "{pinned} bytes");
    Ok(())
}

/// Contexts of a window that the daemon has closed do not stay on the host.
fn many_snapshots() -> Result<()> {
    let daemon = Daemon::start("snapshots", &["--slots", SLOTS])?;
    let host = Context::open(DEVICE)?;
    let mut guest = Guest::plug(daemon.socket())?;
    for snapshot in 0..100 {
        let job = Job {
            snapshot,
            ..reads(0, 0x1b00, 10)
        };
        guest.start(&job)?;
        guest.finish(&job)?;
    }
    // 32 for the jobs of a slot, and one for the memory.
    let contexts = daemon.contexts(&host)?.len();
    ensure!(contexts == 33, "{contexts} contexts");
    Ok(())
}

/// A part of the memory of a window is taken away: all of the memory is released, even if a window
/// in the rest shares the memory.
fn partly_taken_away() -> Result<()> {
    let daemon = Daemon::start("partly", &["--slots", SLOTS])?;
    let host = Context::open(DEVICE)?;
    let mut guest = Guest::plug(daemon.socket())?;
    let (middle, snapshot) = (RAM / 2 / WINDOW, 40);
    let hash = Hash::new(&guest, 0, 0x1c00)?;
    guest.prepare(&hash.job)?;
    guest.window(hash.job.slot, BASE - RAM / 2, GPA, RAM / 2 + WINDOW)?;
    guest.go(&hash.job)?;
    guest.wait(&hash.job)?;
    let endless = Job {
        snapshot,
        ..reads(middle, 0x1c01, 1 << 40)
    };
    guest.start(&endless)?;
    daemon.wait_for_jobs(&host, 2)?;
    ensure!(daemon.pinned()? < RAM, "the memory is pinned twice");
    guest.unmap_windows()?;
    let end = guest.wait(&endless)?;
    ensure!(end == status::FINISH | status::FAULT, "status {end:#x}");
    daemon.wait_for_no_contexts(&host)?;
    daemon.wait_for_no_memory()?;
    let (mut job, ..) = membench(&guest, middle, 0x1c02)?;
    job.snapshot = snapshot;
    guest.start(&job)?;
    guest.finish(&job)
}

/// A guest whose memory is huge pages: a window that is a part of a page, and a window of more than
/// 4 GiB, in which a page appears at many places.
fn large_window() -> Result<()> {
    const SIZE: u64 = (4 << 30) + 2 * WINDOW;
    std::fs::write("/proc/sys/vm/nr_hugepages", (RAM / WINDOW).to_string())?;
    let daemon = Daemon::start("large", &["--slots", SLOTS])?;
    let mut guest = Guest::plug_huge(daemon.socket())?;
    // A part of a huge page.
    let (job, count, checksum) = membench(&guest, 1, 0x1a00)?;
    guest.prepare(&job)?;
    guest.window(job.slot, BASE, GPA + WINDOW, 0x1_0000)?;
    guest.go(&job)?;
    guest.finish(&job)?;
    ensure!(guest.slot(1, 0x48)? == count && guest.slot(1, 0x60)? == checksum);
    guest.map_again(SIZE + WINDOW)?;
    // The memory of window 0 is the last part of the window.
    let hash = Hash::new(&guest, 0, 0x1a01)?;
    guest.prepare(&hash.job)?;
    let first = BASE - (SIZE - WINDOW);
    guest.window(hash.job.slot, first, LARGE, SIZE)?;
    guest.go(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)?;
    // A window that ends within a huge page of the next mapping cannot be mapped by the daemon.
    guest.prepare(&hash.job)?;
    guest.window(hash.job.slot, BASE, LARGE + SIZE - WINDOW, WINDOW + 0x1000)?;
    guest.go(&hash.job)?;
    let end = guest.wait(&hash.job)?;
    ensure!(end == status::FINISH | status::FAULT, "status {end:#x}");
    jobs_in(&mut guest, 2, 0x1a02)?;
    drop(guest);
    drop(daemon);
    std::fs::write("/proc/sys/vm/nr_hugepages", "0")?;
    Ok(())
}

/// Jobs use the memory that is there now, not memory that was at the same address before.
fn replaced() -> Result<()> {
    let daemon = Daemon::start("replaced", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    for round in 0..5 {
        jobs_in(&mut guest, 0, 0x1800 + round)?;
        guest.replace_memory()?;
        jobs_in(&mut guest, 0, 0x1810 + round)?;
    }
    Ok(())
}

/// A card without window check: a job reaches all of the guest's memory, which is pinned once.
fn base_profile() -> Result<()> {
    let daemon = Daemon::start("base", &["--slots", SLOTS, "--profile", "base"])?;
    let mut guest = Guest::plug_base(daemon.socket())?;
    ensure!(
        guest.read(0x100)? == u64::MAX,
        "the card has more than the base profile"
    );
    for window in 0..3 {
        jobs_in(&mut guest, window, 0x1900 + window)?;
    }
    let hash = Hash::new(&guest, 3, 0x1910)?;
    ensure!(to_the_end(&mut guest, &hash.job)? > 0, "never paused");
    hash.check(&mut guest)?;
    let pinned = daemon.pinned()?;
    ensure!((RAM..RAM * 3 / 2).contains(&pinned), "{pinned} bytes");
    Ok(())
}

/// Number of the driver's register accesses, and of the monitor's messages.
const ACCESSES: u64 = 1500;
const MESSAGES: u64 = 60;

/// Writes a random register. Snapshots stay in the guest's memory, because a monitor would be asked
/// for others, and our client does not answer.
fn write_something(guest: &mut Guest, random: u64) -> Result<()> {
    let pick = |shift: u32, values: &[u64]| values[(random >> shift) as usize % values.len()];
    let slot = random & 1;
    let page = 0x1000 * (slot + 1);
    let bases = [0, BASE, BASE + 1, GPA, BASE + WINDOW, 1 << 46, !0xfff];
    let sizes = [0, 1, 0x1000, WINDOW, RAM, RAM + 0x1000, 1 << 40, u64::MAX];
    let offsets = [0, GPA.wrapping_sub(BASE), GPA + 0x800, u64::MAX, 1 << 40];
    let commands = [
        ctl::START_NEW,
        ctl::START_RESUME,
        ctl::PAUSE,
        ctl::PAUSE_AT_BOUNDARY,
    ];
    match random >> 8 & 15 {
        0 => guest.write(0x18, random >> 16 & 3),
        1 => guest.write(0x18, 0),
        2 => guest.write(0x30 + 8 * slot, pick(16, &offsets)),
        3 => guest.write(0x180 + 8 * slot, pick(16, &bases)),
        4 => guest.write(0x1c0 + 8 * slot, pick(16, &sizes)),
        5 => guest.write(page + 0x28, (GPA + (random >> 16) % (RAM - 0x2000)) >> 6),
        6 => guest.write(
            page + 0x30 + 8 * (random >> 16 & 15),
            random.rotate_left(21),
        ),
        7 => guest.write(page + 0x30 + 8 * (random >> 16 & 15), pick(24, &bases)),
        8 => guest.read(8 * (random >> 16 & 0x7ff)).map(drop),
        9 => guest.slot(slot, 0x18).map(drop),
        _ => guest.write(page + 0x18, pick(16, &commands)),
    }
}

/// A driver that writes registers at random.
fn random_driver() -> Result<()> {
    let daemon = Daemon::start("driver", &["--slots", SLOTS])?;
    let tenant = Tenant::start(0xf00);
    // States that a guest has made up are not the driver's fault.
    tell_card(0, "imports on")?;
    let mut guest = Guest::plug(daemon.socket())?;
    for n in 0..ACCESSES {
        write_something(&mut guest, splitmix64(n))?;
    }
    guest.reset()?;
    daemon.wait_for_no_contexts(&Context::open(DEVICE)?)?;
    tell_card(0, "imports off")?;
    drop(guest);
    let mut guest = Guest::plug(daemon.socket())?;
    let hash = Hash::new(&guest, 0, 0xf01)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)?;
    ensure!(tenant.end()? > 0, "the tenant had no turn");
    Ok(())
}

/// Returns a message of random content, with a header that is mostly valid.
fn random_message(random: u64) -> Vec<u8> {
    let body = (random >> 16) as usize % 96;
    let claimed = match random & 7 {
        0 => (random >> 32) as u32,
        1 => 3,
        _ => 16 + body as u32,
    };
    let mut bytes = Vec::new();
    bytes.extend((random as u16).to_le_bytes());
    bytes.extend(((random >> 8) as u16 % 20).to_le_bytes());
    bytes.extend(claimed.to_le_bytes());
    bytes.extend([0; 8]);
    let words = (0..).map(|i| splitmix64(random ^ i));
    let noise = words.flat_map(|word| (word & splitmix64(word) & 0xff).to_le_bytes());
    bytes.extend(noise.take(body));
    bytes
}

/// A monitor that sends invalid messages, and disconnects.
fn random_monitor() -> Result<()> {
    let daemon = Daemon::start("monitor", &["--slots", SLOTS])?;
    for n in 0..MESSAGES {
        let mut stream = UnixStream::connect(daemon.socket())?;
        for part in 0..4 {
            // The daemon may have closed the connection, as it should.
            let _ = stream.write_all(&random_message(splitmix64(n << 8 | part)));
        }
    }
    let mut guest = Guest::plug(daemon.socket())?;
    let hash = Hash::new(&guest, 0, 0xf02)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

/// Runs what a bad machine does to its daemon, while another machine and a tenant of the host have
/// jobs on the same slot. After the bad machine is gone, the host's card is as before.
fn beside_others(name: &str, tag: u64, harm: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let tenant = Tenant::start(tag);
    let neighbours = Daemon::start("neighbour", &["--slots", SLOTS])?;
    let mut neighbour = Guest::plug(neighbours.socket())?;
    let hash = Hash::new(&neighbour, 0, tag + 1)?;
    neighbour.start(&hash.job)?;
    let daemon = Daemon::start(name, &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    harm(&mut guest)?;
    drop(guest);
    neighbour.finish(&hash.job)?;
    hash.check(&mut neighbour)?;
    daemon.wait_for_no_contexts(&Context::open(DEVICE)?)?;
    ensure!(tenant.end()? > 0, "the tenant had no turn");
    Ok(())
}

/// A monitor that truncates the memory under a job, and makes the daemon write there.
fn memory_truncated() -> Result<()> {
    beside_others("truncated", 0x1700, |guest| {
        let hash = Hash::new(guest, 0, 0x1702)?;
        guest.start(&hash.job)?;
        guest.truncate()?;
        // The daemon may be killed by this.
        let _ = guest.pause(&hash.job);
        while guest.runs(&hash.job).unwrap_or(false) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}

/// A monitor that floods the daemon with descriptors.
fn flood() -> Result<()> {
    const FILES: u64 = 5000;
    beside_others("flood", 0x1710, |guest| {
        let taken = guest.map_files(FILES)?;
        say!("# the daemon took {taken} files of {FILES}");
        ensure!(taken > 0, "no file was taken");
        Ok(())
    })
}
