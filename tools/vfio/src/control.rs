// SPDX-License-Identifier: GPL-2.0-or-later
//! The control socket, for commands that stop the guest's card and move its state to another daemon.
//!
//! A request is a line. An answer is also a line: `ok`, or `error: ` and the reason. The state of a
//! card is a checkpoint, whose last section marks its end.
//!
//! | request | answer |
//! | --- | --- |
//! | `save` | `ok`, the state. The client answers `stored` when the state is stored, and gets `ok`. Without `stored` the card continues |
//! | `load`, a state | `ok`: the card has the state and continues |
//! | `continue` | `ok`: a card that was stopped continues |

use crate::state_file;
use crate::tell;
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use clap::Args;
use fermata_card::card::{Card, CardState};
use fermata_card::vfio::Server;
use fermata_checkpoint::container::{Kind, Reader};
use fermata_checkpoint::create;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of each read and write.
const SILENCE: Duration = Duration::from_secs(30);
/// Limit for stopping all jobs. The driver's own limit, the preempt timeout, is 10 s at most.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Pause after a connection that could not be accepted, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of a line, in bytes.
const LINE: u64 = 4096;

/// Answers requests about a card.
pub(crate) struct Control {
    card: Arc<Card>,
    server: Arc<Server>,
}

type Stream<'a> = BufReader<&'a UnixStream>;

impl Control {
    /// Returns the control of this card and server.
    pub(crate) fn new(card: Arc<Card>, server: Arc<Server>) -> Self {
        Self { card, server }
    }

    /// Answers one client after the other, in a thread.
    pub(crate) fn serve(self, listener: UnixListener) {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // The client notices if the answer is missing.
                    Ok(stream) => drop(self.answer(&stream)),
                    Err(error) => {
                        tell(format_args!("the control socket fails: {error}"));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        });
    }

    fn answer(&self, stream: &UnixStream) -> Result<()> {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut from = BufReader::new(stream);
        let done = match line(&mut from)?.as_str() {
            "save" => self.save(&mut from, stream),
            "load" => self.load(&mut from),
            "continue" => self.go_on(),
            _ => Err(anyhow!("this is no request")),
        };
        let answer = match done {
            Ok(()) => "ok\n".to_owned(),
            Err(error) => format!("error: {error:#}").replace('\n', " ") + "\n",
        };
        let mut stream = stream;
        Ok(stream.write_all(answer.as_bytes())?)
    }

    /// Stops the card and writes its state. If the client does not store the state, the card
    /// continues, unless it was already stopped before.
    fn save(&self, from: &mut Stream<'_>, to: &UnixStream) -> Result<()> {
        let (state, was_stopped) = self.card.with_client(|| {
            let was_stopped = self.card.is_frozen();
            self.stop().map(|()| (self.card.state(), was_stopped))
        })?;
        let saved = hand_over(&state, from, to);
        if saved.is_err() && !was_stopped {
            self.card.thaw();
        }
        saved
    }

    fn load(&self, from: &mut Stream<'_>) -> Result<()> {
        let state = state_file::read(from, &self.card.make())?;
        self.card.with_client(|| self.give(&state))
    }

    /// Gives the card a state, and lets the card continue.
    fn give(&self, state: &CardState) -> Result<()> {
        ensure!(
            self.server.has_client(),
            "no virtual machine is connected: start the machine, and pause it"
        );
        ensure!(
            !self.card.host().memory.is_empty(),
            "the virtual machine has not given its memory to the card yet: try again"
        );
        ensure!(
            !self.card.is_frozen(),
            "the card is stopped: fermata-vfio continue lets the card go on"
        );
        self.check_idle()?;
        self.stop()?;
        let set = || self.card.set_state(state).map_err(anyhow::Error::msg);
        let taken = self.check_idle().and_then(|()| set());
        self.card.thaw();
        taken?;
        self.card.interrupt_again();
        Ok(())
    }

    fn check_idle(&self) -> Result<()> {
        ensure!(
            !self.card.is_busy(),
            "a job of the virtual machine is on the card"
        );
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        ensure!(self.card.is_frozen(), "the card is not stopped");
        self.card.thaw();
        Ok(())
    }

    /// Stops the card.
    fn stop(&self) -> Result<()> {
        let stopped = self.card.freeze(STOP_LIMIT);
        stopped.map_err(|slot| anyhow!("the job of slot {slot} does not stop"))
    }
}

/// Writes the state of a card. Returns when the client has stored the state.
fn hand_over(state: &CardState, from: &mut Stream<'_>, to: &UnixStream) -> Result<()> {
    let mut to = BufWriter::new(to);
    to.write_all(b"ok\n")?;
    state_file::write(state, &mut to)?;
    to.flush()?;
    let answer = line(from)?;
    ensure!(answer == "stored", "the state was not stored");
    Ok(())
}

/// Reads a line, without its end.
pub(crate) fn line(from: &mut Stream<'_>) -> Result<String> {
    let mut line = String::new();
    from.take(LINE).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => bail!("the other side has gone away"),
    }
}

/// How long a daemon may take to answer: the daemon waits until jobs are held.
const PATIENCE: Duration = Duration::from_secs(90);

/// A daemon.
#[derive(Args)]
pub(crate) struct Daemon {
    /// The control socket of the daemon
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

/// A daemon and a file.
#[derive(Args)]
pub(crate) struct Transfer {
    #[command(flatten)]
    daemon: Daemon,
    /// The file; - for standard output or input
    file: PathBuf,
}

impl Daemon {
    /// Sends a request.
    fn ask(&self, request: &str) -> Result<UnixStream> {
        let connected = UnixStream::connect(&self.control);
        let mut stream = connected.with_context(|| self.control.display().to_string())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// `fermata-vfio continue`
    pub(crate) fn go_on(&self) -> Result<()> {
        let stream = self.ask("continue\n")?;
        confirmed(&mut BufReader::new(&stream))
    }
}

impl Transfer {
    /// `fermata-vfio save`
    pub(crate) fn save(&self) -> Result<()> {
        let name = || self.file.display().to_string();
        let file = (!self.is_standard()).then(|| create(&self.file));
        let file = file.transpose().with_context(name)?;
        let stream = self.daemon.ask("save\n")?;
        let mut from = BufReader::new(&stream);
        confirmed(&mut from)?;
        if let Some(mut to) = file {
            let stored = copy(&mut from, &mut to);
            let stored = stored.and_then(|()| Ok(to.complete()?));
            stored.with_context(name)?;
        } else {
            let mut to = std::io::stdout().lock();
            copy(&mut from, &mut to)?;
            to.flush()?;
        }
        // A daemon that has given up reports this.
        let _ = (&stream).write_all(b"stored\n");
        match line(&mut from).as_deref() {
            Ok("ok") => Ok(()),
            Ok(error) => {
                if !self.is_standard() {
                    let _ = std::fs::remove_file(&self.file);
                }
                bail!("the card continues, and the file is void: {error}")
            }
            Err(_) => bail!(
                "the daemon does not confirm: run fermata-vfio continue before the file is \
                 discarded; load the file only if the daemon is gone"
            ),
        }
    }

    /// `fermata-vfio load`
    pub(crate) fn load(&self) -> Result<()> {
        let file: Box<dyn Read> = if self.is_standard() {
            // The daemon waits for the state, but not as long as a pipe may.
            let mut input = std::io::stdin().lock();
            input.fill_buf()?;
            Box::new(input)
        } else {
            let file = File::open(&self.file);
            Box::new(file.with_context(|| self.file.display().to_string())?)
        };
        let mut stream = self.daemon.ask("load\n")?;
        // A daemon that refuses the state may not read all of it.
        let sent = copy(BufReader::new(file), &mut stream);
        let _ = stream.shutdown(Shutdown::Write);
        confirmed(&mut BufReader::new(&stream))?;
        sent.with_context(|| self.file.display().to_string())
    }

    fn is_standard(&self) -> bool {
        self.file == Path::new("-")
    }
}

/// Copies a checkpoint to its end, and verifies its checksums.
fn copy(from: impl Read, to: impl Write) -> Result<()> {
    let mut reader = Reader::new(Tee { from, to })?;
    while reader.section()?.kind != Kind::End {}
    Ok(())
}

/// A reader that also writes everything that is read.
struct Tee<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.to.write_all(&buffer[..length])?;
        Ok(length)
    }
}

/// Reads the daemon's answer. `Err`: the reason why the request failed.
fn confirmed(from: &mut BufReader<&UnixStream>) -> Result<()> {
    match line(from)?.as_str() {
        "ok" => Ok(()),
        answer => bail!("{}", answer.strip_prefix("error: ").unwrap_or(answer)),
    }
}
