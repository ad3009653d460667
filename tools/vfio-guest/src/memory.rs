// SPDX-License-Identifier: GPL-2.0-or-later
//! The memory of a guest behind several windows, and behind a card without windows.

use crate::guest::{Guest, Job, BASE, GPA, LARGE, RAM, WINDOW};
use crate::host::{Daemon, DEVICE};
use crate::jobs::{membench, reads, Hash, SLOTS};
use crate::tests::to_the_end;
use anyhow::{ensure, Result};
use fermata::Context;
use fermata_card::regs::status;

/// A job of either slot in the window of this number, each with a snapshot of its own.
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
pub(crate) fn charged_once() -> Result<()> {
    let daemon = Daemon::start("once", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    jobs_in(&mut guest, 0, 0x1700)?;
    let pinned = daemon.pinned()?;
    ensure!((WINDOW..WINDOW * 3 / 2).contains(&pinned), "{pinned} bytes");
    Ok(())
}

/// Memory that two windows have in common in part is charged once, where all memory is pinned.
pub(crate) fn pinned_as_a_whole() -> Result<()> {
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

/// The contexts of a window that the daemon has closed do not stay on the host.
pub(crate) fn many_snapshots() -> Result<()> {
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
    // 32 for the jobs of a slot, and a context for the memory.
    let contexts = daemon.contexts(&host)?.len();
    ensure!(contexts == 33, "{contexts} contexts");
    Ok(())
}

/// A part of the memory of a window is taken away: all of the memory is released, also where a
/// window that lies in the rest shares the memory.
pub(crate) fn partly_taken_away() -> Result<()> {
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
/// 4 GiB, which has a page at many places.
pub(crate) fn large() -> Result<()> {
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

/// Jobs find the memory that is there now, not memory that was at the same address before.
pub(crate) fn replaced() -> Result<()> {
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
pub(crate) fn base() -> Result<()> {
    let daemon = Daemon::start("base", &["--slots", SLOTS, "--profile", "base"])?;
    let mut guest = Guest::plug_base(daemon.socket())?;
    ensure!(
        guest.read(0x100)? == 0,
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
