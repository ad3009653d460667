// SPDX-License-Identifier: GPL-2.0-or-later
//! A guest whose driver switches by orders, as docs/card.md has them.

use crate::guest::{Guest, Job, BASE, GPA, RAM, WINDOW};
use crate::host::{tell_card, Daemon, DEVICE, OTHER};
use crate::jobs::Hash;
use crate::migration::{Slow, StateFile};
use anyhow::{ensure, Result};
use fermata::Context;
use fermata_card::regs::TAG;
use fermata_card::relay::Reason;

/// Where in the guest's memory the card finds contexts, and leaves records.
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

/// Looks at the record of a run: how the run has ended.
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

/// Sets two contexts up on a new card.
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

/// Two contexts on one slot: the first makes way for the second, and goes on after it.
pub(crate) fn orders() -> Result<()> {
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

/// The card moves with an order that it holds: the run goes on, ends, and the other context follows.
pub(crate) fn moves() -> Result<()> {
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
    // One interrupt of the slot is for nothing.
    guest.wait_irqs(0, 3)?;
    check_record(&guest, 1, Reason::Finish)?;
    check_record(&guest, 2, Reason::Finish)?;
    ensure!(guest.slot(0, 0x18)? >> 32 == 2, "runs");
    hashes.iter().try_for_each(|hash| hash.check_memory(&guest))
}
