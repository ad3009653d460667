// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests the daemon: it repeats a PAUSE that the card drops, and it leaves the card quiescent when
//! a signal or an error ends it in the middle of a save.

use super::machine::{self, Card};
use super::tenants::Tenant;
use crate::daemon::{Daemon, SOCKET};
use crate::mark::CONTESTED_SLOT;
use crate::visit::{Cell, Costs, Driver, Job, Load, Tenants, Variant, SLICE_US, TAGS, TIMEOUT};
use anyhow::{bail, ensure, Context as _, Result};
use fermata_card::control::Control;
use fermata_output::say;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
}

/// A restore takes longer than a slice. The daemon does not know that at first: its PAUSE meets the
/// restore, and the card drops the PAUSE.
const RESTORE: &str = "save_us=100 restore_us=20000";
/// More turns than there would be if a dropped PAUSE were not repeated.
const TURNS: u64 = 20;
/// A save takes 0.4 s, so that the daemon ends before the save, and writes every 0.1 ms, so that
/// the checker sees a card that still works when the kernel ends bus mastering.
const SAVE: &str =
    "save_us=0 restore_us=0 state_pages=64 frame_bytes=64 frame_save_ns=100000 frame_restore_ns=0";
/// Attempts for each ending to end: on a busy machine a daemon may take longer than a save.
const TRIES: u32 = 10;

/// How the daemon ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Signal(Signal),
    /// A client leaves while its job is on the slot.
    Error,
}

const ENDINGS: [(Variant, Ending); 7] = [
    (Variant::Sleep, Ending::Signal(Signal::TERM)),
    (Variant::Sleep, Ending::Signal(Signal::INT)),
    (Variant::Sleep, Ending::Signal(Signal::HUP)),
    (Variant::Sleep, Ending::Error),
    (Variant::PollFifo, Ending::Signal(Signal::TERM)),
    (Variant::Relay, Ending::Signal(Signal::TERM)),
    (Variant::Relay, Ending::Error),
];

/// Runs all tests.
pub(crate) fn run(options: &Options) -> Result<()> {
    machine::load_vfio()?;
    let mut card = Card::find()?;
    card.bind(Driver::Vfio)?;
    let mut control = Control::open(&options.control)?;
    control.ask(&format!("set slot={CONTESTED_SLOT} {RESTORE}"))?;
    for variant in [Variant::Sleep, Variant::Poll] {
        test_repeated_pause(&mut control, &card, variant)?;
        say!("{}: a PAUSE that was dropped is repeated", variant.name());
    }
    control.ask(&format!("set slot={CONTESTED_SLOT} {SAVE}"))?;
    for (variant, ending) in ENDINGS {
        let mut tries = 0..TRIES;
        while !end_in_save(&mut control, &card, variant, ending)? {
            tries.next().context("each save ended before the daemon")?;
        }
        say!(
            "{}, {ending:?}: left in the middle of a save",
            variant.name()
        );
    }
    Ok(())
}

/// A daemon, and two clients whose jobs never end.
struct Setup {
    daemon: Daemon,
    tenants: Vec<Tenant>,
}

impl Setup {
    fn new(card: &Card, variant: Variant) -> Result<Self> {
        let cell = Cell {
            variant,
            load: Load::Idle,
            costs: Costs::Even,
            tenants: Tenants::Endless(2),
            slice_us: SLICE_US,
        };
        let daemon = Daemon::start(cell, card)?;
        let tenant = |tag| Tenant::of_daemon(Path::new(SOCKET), Job::endless(tag), false);
        let tenants = vec![tenant(TAGS)?, tenant(TAGS + 1)?];
        for tenant in &tenants {
            tenant.start()?;
        }
        Ok(Self { daemon, tenants })
    }
}

/// Lets two jobs take turns; fails if they stop doing so.
fn test_repeated_pause(control: &mut Control, card: &Card, variant: Variant) -> Result<()> {
    let dropped = counter(control, "pauses_dropped")?;
    let enough = saves(control)? + TURNS;
    let mut setup = Setup::new(card, variant)?;
    let until = Instant::now() + TIMEOUT;
    while saves(control)? < enough || counter(control, "pauses_dropped")? == dropped {
        let name = variant.name();
        ensure!(
            Instant::now() < until,
            "{name}: the daemon waits for ever for a PAUSE that was dropped, or none was"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    setup.daemon.end()
}

/// Ends a daemon during a save. Returns whether the save was still in progress when the card
/// stopped.
fn end_in_save(
    control: &mut Control,
    card: &Card,
    variant: Variant,
    ending: Ending,
) -> Result<bool> {
    let Setup {
        mut daemon,
        tenants,
    } = Setup::new(card, variant)?;
    let saved = await_save(control)?;
    let expects_success = match ending {
        Ending::Signal(signal) => {
            daemon.signal(signal)?;
            true
        }
        Ending::Error => {
            drop(tenants);
            false
        }
    };
    let status = daemon.wait()?;
    ensure!(
        status.success() == expects_success,
        "{ending:?}: the daemon ended with {status}"
    );
    let violations = control.numbers("violations")?;
    if violations.get("total") != Some(&0) {
        let why = control.ask("why")?;
        bail!("{ending:?}: the daemon did not leave the card quiescent: {why}");
    }
    Ok(saves(control)? == saved)
}

/// Returns the number of completed saves.
fn saves(control: &mut Control) -> Result<u64> {
    counter(control, "paused")
}

fn counter(control: &mut Control, name: &str) -> Result<u64> {
    let counters = control.numbers(&format!("counters slot={CONTESTED_SLOT}"))?;
    counters.get(name).copied().context("no such counter")
}

/// Waits until the slot saves a job. Returns the number of saves completed before.
fn await_save(control: &mut Control) -> Result<u64> {
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        let saved = saves(control)?;
        let state = control.ask(&format!("state slot={CONTESTED_SLOT}"))?;
        if state.split(' ').any(|word| word == "phase=saving") && saves(control)? == saved {
            return Ok(saved);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("no job is being saved")
}
