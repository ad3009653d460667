// SPDX-License-Identifier: GPL-2.0-or-later
//! The control socket, for commands that stop the guest's card and move its state to another daemon.
//!
//! A request is a line. An answer is a line, too: `ok`, or `error: ` and the reason. The state of a
//! card is a checkpoint, whose last section marks its end.
//!
//! | request | answer |
//! | --- | --- |
//! | `save` | `ok`, the state. The client answers `stored` when the state is stored, and gets `ok`. Without `stored` the card goes on |
//! | `load`, a state | `ok`: the card has the state and goes on |
//! | `continue` | `ok`: a card that was stopped goes on |

use crate::log::tell;
use crate::state_file;
use anyhow::{anyhow, bail, ensure, Result};
use fermata_card::card::Card;
use fermata_card::card_state::CardState;
use fermata_card::vfio::Server;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of each read and write.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// Limit for stopping all jobs. The driver's own limit, the preempt timeout, is 10 s at most.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Pause after a connection that cannot be accepted, for want of descriptors for example.
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
    /// Returns the control of the card of this server.
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

    /// Stops the card and writes its state. The card goes on if the client does not store the state,
    /// unless the card was stopped before.
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

    /// Gives the card a state, and lets the card go on.
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
