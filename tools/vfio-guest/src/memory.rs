// SPDX-License-Identifier: GPL-2.0-or-later
//! The memory of a guest behind several windows, and behind a card without windows.

use crate::guest::{Guest, BASE, GPA, LARGE, RAM, WINDOW};
use crate::host::Daemon;
use crate::jobs::{membench, Hash, SLOTS};
use crate::tests::to_the_end;
use anyhow::{ensure, Result};

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
    guest.map_again(SIZE)?;
    // The memory of window 0 is the last part of the window.
    let hash = Hash::new(&guest, 0, 0x1a01)?;
    guest.prepare(&hash.job)?;
    let first = BASE - (SIZE - WINDOW);
    guest.window(hash.job.slot, first, LARGE, SIZE)?;
    guest.go(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)?;
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
