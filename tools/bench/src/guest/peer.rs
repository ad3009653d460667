// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the daemon does what it must: it repeats a PAUSE that the card drops, and leaves the
//! card quiescent when it ends in the middle of a save, by a signal or by an error.

use super::bind::{self, Card};
use super::tenants::Seat;
use crate::daemon::{Daemon, SOCKET};
use crate::mark::CONTESTED_SLOT;
use crate::visit::{Cell, Costs, Driver, Load, Tenants, Variant, SLICE_US};
use crate::work::{Job, GUARD, TAGS};
use anyhow::{bail, ensure, Context as _, Result};
use fermata_card::client::Control;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
}

/// A restore takes longer than a slice, which the daemon does not know at first: its PAUSE meets
/// the restore, and the card drops it.
const RESTORE: &str = "save_us=100 restore_us=20000";
/// So many turns are more than would come without such a PAUSE.
const TURNS: u64 = 20;
/// A save takes 0.4 s, so that the daemon leaves before the end, and writes every 0.1 ms, so that a
/// card which still works when the kernel ends bus mastering is seen by its checker.
const SAVE: &str =
    "save_us=0 restore_us=0 state_pages=64 frame_bytes=64 frame_save_ns=100000 frame_restore_ns=0";
/// On a busy machine a daemon may take longer than a save.
const TRIES: u32 = 10;

/// How the daemon ends.
#[derive(Clone, Copy, Debug)]
enum Way {
    Signal(Signal),
    /// A client leaves while its job is on the slot.
    Error,
}

const WAYS: [(Variant, Way); 5] = [
    (Variant::Sleep, Way::Signal(Signal::TERM)),
    (Variant::Sleep, Way::Signal(Signal::INT)),
    (Variant::Sleep, Way::Signal(Signal::HUP)),
    (Variant::Sleep, Way::Error),
    (Variant::PollFifo, Way::Signal(Signal::TERM)),
];

/// Tries all.
pub(crate) fn run(options: &Options) -> Result<()> {
    bind::load_vfio()?;
    let card = Card::find()?;
    card.bind(Driver::Vfio)?;
    let mut control = Control::open(&options.control)?;
    control.ask(&format!("set slot={CONTESTED_SLOT} {RESTORE}"))?;
    for variant in [Variant::Sleep, Variant::Poll] {
        pause_again(&mut control, &card, variant)?;
        println!("{}: a PAUSE that was dropped is repeated", variant.name());
    }
    control.ask(&format!("set slot={CONTESTED_SLOT} {SAVE}"))?;
    for (variant, way) in WAYS {
        let mut tries = 0..TRIES;
        while !leave(&mut control, &card, variant, way)? {
            tries
                .next()
                .context("each save was over before the daemon")?;
        }
        println!("{}, {way:?}: left in the middle of a save", variant.name());
    }
    Ok(())
}

/// A daemon, and two clients whose jobs never end.
struct Scene {
    daemon: Daemon,
    seats: Vec<Seat>,
}

impl Scene {
    fn set(card: &Card, variant: Variant) -> Result<Self> {
        let cell = Cell {
            variant,
            load: Load::Idle,
            costs: Costs::Even,
            tenants: Tenants::Endless(2),
            slice_us: SLICE_US,
        };
        let daemon = Daemon::start(cell, card)?;
        let seat = |tag| Seat::of_daemon(Path::new(SOCKET), Job::endless(tag), false);
        let seats = vec![seat(TAGS)?, seat(TAGS + 1)?];
        for seat in &seats {
            seat.start()?;
        }
        Ok(Self { daemon, seats })
    }
}

/// Lets two jobs take turns, and fails if they do not go on to.
fn pause_again(control: &mut Control, card: &Card, variant: Variant) -> Result<()> {
    let dropped = counter(control, "pauses_dropped")?;
    let enough = saves(control)? + TURNS;
    let mut scene = Scene::set(card, variant)?;
    let until = Instant::now() + GUARD;
    while saves(control)? < enough || counter(control, "pauses_dropped")? == dropped {
        let name = variant.name();
        ensure!(
            Instant::now() < until,
            "{name}: the daemon waits for ever for a PAUSE that was dropped, or none was"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    scene.daemon.end()
}

/// Ends a daemon in a save. Returns whether the save was still under way when the card stopped.
fn leave(control: &mut Control, card: &Card, variant: Variant, way: Way) -> Result<bool> {
    let Scene { mut daemon, seats } = Scene::set(card, variant)?;
    let saved = await_save(control)?;
    let expects_success = match way {
        Way::Signal(signal) => {
            daemon.signal(signal)?;
            true
        }
        Way::Error => {
            drop(seats);
            false
        }
    };
    let status = daemon.wait()?;
    ensure!(
        status.success() == expects_success,
        "{way:?}: the daemon ended with {status}"
    );
    let violations = control.numbers("violations")?;
    if violations.get("total") != Some(&0) {
        let why = control.ask("why")?;
        bail!("{way:?}: the daemon left the card at work: {why}");
    }
    Ok(saves(control)? == saved)
}

/// Saves that were completed.
fn saves(control: &mut Control) -> Result<u64> {
    counter(control, "paused")
}

fn counter(control: &mut Control, name: &str) -> Result<u64> {
    let counters = control.numbers(&format!("counters slot={CONTESTED_SLOT}"))?;
    counters.get(name).copied().context("no such counter")
}

/// Waits until the slot saves a job. Returns how many saves were completed before.
fn await_save(control: &mut Control) -> Result<u64> {
    let until = Instant::now() + GUARD;
    while Instant::now() < until {
        let saved = saves(control)?;
        let state = control.ask(&format!("state slot={CONTESTED_SLOT}"))?;
        if state.split(' ').any(|word| word == "phase=saving") && saves(control)? == saved {
            return Ok(saved);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("no job is saved")
}
