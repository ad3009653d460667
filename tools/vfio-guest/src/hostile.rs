// SPDX-License-Identifier: GPL-2.0-or-later
//! A guest's driver and a virtual machine monitor that do what they like. The daemon serves the next
//! one, and a tenant of the host does not notice.

use crate::guest::{Guest, BASE, GPA, RAM, WINDOW};
use crate::host::{tell_card, Daemon, Tenant, DEVICE};
use crate::jobs::{Hash, SLOTS};
use anyhow::{ensure, Result};
use fermata::Context;
use fermata_card::engine::splitmix64;
use fermata_card::regs::ctl;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Register accesses of the driver, and messages of the monitor.
const ACCESSES: u64 = 1500;
const MESSAGES: u64 = 60;

/// One write of a register, at random. Snapshots stay in the guest's memory, because a monitor
/// would be asked for others, and our client does not answer.
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
pub(crate) fn driver() -> Result<()> {
    let daemon = Daemon::start("driver", &["--slots", SLOTS])?;
    let tenant = Tenant::start(0xf00);
    // States that a guest has made up are not the driver's mistake.
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

/// A message of random content, with a header that is mostly right.
fn message(random: u64) -> Vec<u8> {
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

/// A monitor that sends what is no message, and goes away.
pub(crate) fn monitor() -> Result<()> {
    let daemon = Daemon::start("monitor", &["--slots", SLOTS])?;
    for n in 0..MESSAGES {
        let mut stream = UnixStream::connect(daemon.socket())?;
        for part in 0..4 {
            // The daemon may have closed the connection, as it should.
            let _ = stream.write_all(&message(splitmix64(n << 8 | part)));
        }
    }
    let mut guest = Guest::plug(daemon.socket())?;
    let hash = Hash::new(&guest, 0, 0xf02)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

/// What a bad machine does to its daemon, while another machine and a tenant of the host have jobs on
/// the same slot. The host's card is as before when the bad machine is gone.
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

/// A monitor that truncates the memory under a job, and has the daemon write there.
pub(crate) fn truncated() -> Result<()> {
    beside_others("truncated", 0x1700, |guest| {
        let hash = Hash::new(guest, 0, 0x1702)?;
        guest.start(&hash.job)?;
        guest.truncate()?;
        // The daemon may end by this.
        let _ = guest.pause(&hash.job);
        while guest.runs(&hash.job).unwrap_or(false) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}

/// A monitor that floods the daemon with descriptors.
pub(crate) fn flood() -> Result<()> {
    const FILES: u64 = 5000;
    beside_others("flood", 0x1710, |guest| {
        let taken = guest.map_files(FILES)?;
        println!("# the daemon took {taken} files of {FILES}");
        ensure!(taken > 0, "no file was taken");
        Ok(())
    })
}
