// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of a guest's card is saved to a file, and loaded into the card of another daemon on
//! another host's card. The guest's memory is copied, as by the monitor of a paused machine.

use crate::guest::{endless, membench, Guest, Hash, SLOTS, WINDOW};
use crate::host::{hash, tell_card, Daemon, Starts, Tenant, DEVICE, OTHER};
use crate::tests::to_the_end;
use anyhow::{anyhow, bail, ensure, Result};
use fermata::Context;
use fermata_output::say;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes per microsecond of the slots of a card that is not slowed, by slot. The test machine's
/// command line sets the first; the second is the default of its engine.
const SPEEDS: [u32; 2] = [20, 200];

/// A card whose slots work slowly until the value is dropped: a job takes more than a second, so
/// that it does not end while commands run.
pub(crate) struct Slow(u32);

impl Slow {
    /// Slows the card of this number.
    pub(crate) fn new(card: u32) -> Result<Self> {
        let slow = Self(card);
        slow.set([1; 2])?;
        Ok(slow)
    }

    fn set(&self, speeds: [u32; 2]) -> Result<()> {
        for (slot, speed) in speeds.into_iter().enumerate() {
            tell_card(self.0, &format!("set slot={slot} speed={speed}"))?;
        }
        Ok(())
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.set(SPEEDS);
    }
}

/// A file for the state of a card.
pub(crate) struct StateFile(PathBuf);

impl StateFile {
    /// Returns a file that does not exist yet.
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("{name}.card")))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Moves a guest, and tells the other card which tags have states that it does not know.
fn migrate(guest: &Guest, from: &Daemon, to: (u32, &Daemon), tags: &[u64]) -> Result<Guest> {
    let file = StateFile::new("migrate");
    from.ask("save", Some(file.path()))?;
    let moved = guest.copy(to.1.socket())?;
    for tag in tags {
        tell_card(to.0, &format!("import token={tag:#x}"))?;
    }
    to.1.ask("load", Some(file.path()))?;
    Ok(moved)
}

/// A card is stopped and nothing happens. Then the same contexts continue.
pub(crate) fn goes_on() -> Result<()> {
    let _slow = Slow::new(0)?;
    let file = StateFile::new("goes-on");
    let daemon = Daemon::start("goes-on", &["--slots", SLOTS])?;
    let host = Context::open(DEVICE)?;
    let mut guest = Guest::plug(daemon.socket())?;
    let first = Hash::new(&guest, 0, 0x1200)?;
    guest.start(&first.job)?;
    daemon.wait_for_jobs(&host, 1)?;
    daemon.ask("save", Some(file.path()))?;
    let mode = std::fs::metadata(file.path())?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "mode {mode:o} of the file");
    let mode = std::fs::metadata(daemon.control())?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "mode {mode:o} of the socket");
    let held = daemon.with_jobs(&host)?;
    std::thread::sleep(Duration::from_millis(100));
    let still = daemon.with_jobs(&host)?;
    ensure!(
        held.len() == 1 && still[0].run_ns == held[0].run_ns,
        "it runs"
    );
    ensure!(guest.runs(&first.job)? && guest.get(0, 32)? == [0; 32]);
    daemon.ask("continue", None)?;
    guest.finish(&first.job)?;
    first.check(&mut guest)?;
    let contexts = daemon.with_jobs(&host)?;
    ensure!(contexts.len() == 1 && contexts[0].context == held[0].context);
    let again = daemon.ask("continue", None);
    ensure!(again.is_err_and(|e| e.to_string().contains("not stopped")));
    lost(&daemon, &mut guest)
}

/// A client that goes away before it has stored the state leaves the card as it was.
fn lost(daemon: &Daemon, guest: &mut Guest) -> Result<()> {
    let hash = Hash::new(guest, 1, 0x1201)?;
    guest.start(&hash.job)?;
    let mut client = UnixStream::connect(daemon.control())?;
    client.write_all(b"save\n")?;
    client.read_exact(&mut [0; 100])?;
    drop(client);
    guest.finish(&hash.job)?;
    hash.check(guest)
}

/// Jobs of two slots continue on another host's card, and the first host keeps nothing.
pub(crate) fn moves() -> Result<()> {
    let _slow = Slow::new(0)?;
    let from = Daemon::start("from", &["--slots", SLOTS])?;
    let to = Daemon::start_on(OTHER, "to", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(from.socket())?;
    let hash = Hash::new(&guest, 0, 0x1300)?;
    let (job, count, checksum) = membench(&guest, 1, 0x1301)?;
    guest.start(&hash.job)?;
    guest.start(&job)?;
    from.wait_for_jobs(&Context::open(DEVICE)?, 2)?;
    let trace = Starts::trace()?;
    let mut moved = migrate(&guest, &from, (1, &to), &[0x1300, 0x1301])?;
    let held = trace.held()?;
    ensure!(held == 2, "{held} of 2 jobs were taken by the load");
    ensure!(
        guest.runs(&hash.job)? && guest.runs(&job)?,
        "it was too late"
    );
    drop(guest);
    from.wait_for_no_contexts(&Context::open(DEVICE)?)?;
    from.kill()?;
    moved.finish_moved(&hash.job)?;
    moved.finish_moved(&job)?;
    hash.check(&mut moved)?;
    let result = [count.to_le_bytes(), checksum.to_le_bytes()].concat();
    ensure!(moved.get(WINDOW, 16)? == result, "result in memory");
    ensure!(moved.slot(1, 0x48)? == count && moved.slot(1, 0x60)? == checksum);
    // The machine continues to use the card.
    to_the_end(&mut moved, &hash.job)?;
    hash.check(&mut moved)
}

/// A card refuses states that it cannot take, and stays as it is.
pub(crate) fn refused() -> Result<()> {
    let file = StateFile::new("refused");
    let refuses = |daemon: &Daemon, file: &Path, why: &str| match daemon.ask("load", Some(file)) {
        Err(error) if error.to_string().contains(why) => Ok(()),
        Err(error) => bail!("{error:#}, not: {why}"),
        Ok(()) => bail!("it took the state: {why}"),
    };
    let daemon = Daemon::start("refused", &["--slots", SLOTS])?;
    let other = Daemon::start("other", &["--slots", "sha256"])?;
    let mut guest = Guest::plug(daemon.socket())?;
    guest.start(&endless(0x1400))?;
    guest.start(&Hash::new(&guest, 1, 0x1401)?.job)?;
    daemon.ask("save", Some(file.path()))?;
    let guest_of_other = Guest::plug(other.socket())?;
    refuses(&other, file.path(), "it is of another card")?;
    drop(guest_of_other);
    refuses(&daemon, file.path(), "the card is stopped")?;
    daemon.ask("continue", None)?;
    refuses(
        &daemon,
        file.path(),
        "a job of the virtual machine is on the card",
    )?;
    drop(guest);
    daemon.wait_for_no_contexts(&Context::open(DEVICE)?)?;
    refuses(&daemon, file.path(), "no virtual machine is connected")?;
    let mut guest = Guest::plug(daemon.socket())?;
    let mut bytes = std::fs::read(file.path())?;
    bytes.truncate(bytes.len() / 2);
    std::fs::write(file.path(), &bytes)?;
    refuses(&daemon, file.path(), "truncated")?;
    let hash = Hash::new(&guest, 0, 0x1402)?;
    guest.start(&hash.job)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

/// A host that has no room for a job does not take the state, and the card continues where the job
/// was.
pub(crate) fn no_room() -> Result<()> {
    let _slow = Slow::new(0)?;
    let file = StateFile::new("no-room");
    let from = Daemon::start("has-job", &["--slots", SLOTS])?;
    let to = Daemon::start_on(OTHER, "no-room", &["--slots", SLOTS])?;
    to.pin_nothing()?;
    let mut guest = Guest::plug(from.socket())?;
    let hash = Hash::new(&guest, 0, 0x1600)?;
    guest.start(&hash.job)?;
    from.wait_for_jobs(&Context::open(DEVICE)?, 1)?;
    from.ask("save", Some(file.path()))?;
    let mut copy = guest.copy(to.socket())?;
    let Err(error) = to.ask("load", Some(file.path())) else {
        bail!("it took the state");
    };
    let error = error.to_string();
    ensure!(error.contains("does not take a job for sha256"), "{error}");
    ensure!(!copy.runs(&hash.job)?, "the copy runs");
    from.ask("continue", None)?;
    guest.finish(&hash.job)?;
    hash.check(&mut guest)
}

/// A guest that pauses its jobs until it is told to end.
fn busy(name: &'static str, tag: u64, stop: Arc<AtomicBool>) -> JoinHandle<Result<u64>> {
    std::thread::spawn(move || {
        let daemon = Daemon::start(name, &["--slots", SLOTS])?;
        let mut guest = Guest::plug(daemon.socket())?;
        let hash = Hash::new(&guest, 0, tag)?;
        let mut jobs = 0;
        while !stop.load(Ordering::Acquire) {
            to_the_end(&mut guest, &hash.job)?;
            hash.check(&mut guest)?;
            jobs += 1;
        }
        Ok(jobs)
    })
}

/// A guest moves away and back in the middle of a job. Another guest and a tenant of the host share
/// the slot with it, and daemons of a third are killed under their jobs.
pub(crate) fn together() -> Result<()> {
    const KILLS: u64 = 5;
    let tenant = Tenant::start(0x1500);
    let stop = Arc::new(AtomicBool::new(false));
    let second = busy("second", 0x1502, stop.clone());
    let here = Daemon::start("here", &["--slots", SLOTS])?;
    let there = Daemon::start_on(OTHER, "there", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(here.socket())?;
    let mine = Hash::new(&guest, 0, 0x1501)?;
    guest.start(&mine.job)?;
    for n in 0..KILLS {
        let daemon = Daemon::start("killed", &["--slots", SLOTS])?;
        let mut victim = Guest::plug(daemon.socket())?;
        victim.start(&Hash::new(&victim, 0, 0x1510 + n)?.job)?;
        daemon.kill()?;
        hash(0x1520 + n)?;
    }
    guest.finish(&mine.job)?;
    mine.check(&mut guest)?;
    let slow = [Slow::new(0)?, Slow::new(1)?];
    guest.start(&mine.job)?;
    let mut moved = migrate(&guest, &here, (1, &there), &[0x1501])?;
    drop(guest);
    let begin = Instant::now();
    moved.finish_moved(&mine.job)?;
    mine.check(&mut moved)?;
    say!("# {} ms on the other host", begin.elapsed().as_millis());
    moved.start(&mine.job)?;
    let mut back = migrate(&moved, &there, (0, &here), &[0x1501])?;
    drop((moved, slow));
    back.finish_moved(&mine.job)?;
    mine.check(&mut back)?;
    stop.store(true, Ordering::Release);
    let of_second = second.join().map_err(|_| anyhow!("a guest panicked"))??;
    ensure!(of_second > 0, "the second guest had no turn");
    ensure!(tenant.end()? > 0, "the tenant had no turn");
    Ok(())
}
