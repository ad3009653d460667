// SPDX-License-Identifier: GPL-2.0-or-later
//! The control socket: by which the guest's card is stopped, and its state goes to another daemon.
//!
//! A request is a line, and so is an answer: `ok`, or `error: ` and the reason. The state of a card
//! is a checkpoint, which says itself where it ends.
//!
//! | request | answer |
//! | --- | --- |
//! | `save` | `ok`, the state. The client says `stored` when it has the state safe; the answer is `ok`. Else the card goes on |
//! | `load`, a state | `ok`: the card has the state and goes on |
//! | `continue` | `ok`: a card that was stopped goes on |

use crate::state_file;
use anyhow::{anyhow, bail, ensure, Result};
use fermata_card::card::Card;
use fermata_card::vfio::Server;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may be silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// How long a job may take to be held. The driver's own limit, the preempt timeout, is 10 s at most.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a line.
const LINE: u64 = 4096;

/// What answers requests.
pub(crate) struct Control {
    card: Arc<Card>,
    server: Arc<Server>,
}

type Stream<'a> = BufReader<&'a UnixStream>;

impl Control {
    /// For the card of this server.
    pub(crate) fn new(card: Arc<Card>, server: Arc<Server>) -> Self {
        Self { card, server }
    }

    /// Answers one client after the other, in a thread.
    pub(crate) fn serve(self, listener: UnixListener) {
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The client sees an answer that is missing.
                let _ = self.answer(&stream);
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
            Err(error) => format!("error: {error:#}\n").replace('\n', " ") + "\n",
        };
        let mut stream = stream;
        Ok(stream.write_all(answer.as_bytes())?)
    }

    /// Stops the card and writes its state. The card goes on if the client does not store the state,
    /// unless the card was stopped before.
    fn save(&self, from: &mut Stream<'_>, to: &UnixStream) -> Result<()> {
        let was_stopped = self.card.is_frozen();
        self.stop()?;
        let saved = self.hand_over(from, to);
        if saved.is_err() && !was_stopped {
            self.card.thaw();
        }
        saved
    }

    /// Writes the state of the card. Returns when the client has stored it.
    fn hand_over(&self, from: &mut Stream<'_>, to: &UnixStream) -> Result<()> {
        let mut to = BufWriter::new(to);
        to.write_all(b"ok\n")?;
        state_file::write(&self.card.state(), &mut to)?;
        to.flush()?;
        let answer = line(from)?;
        ensure!(answer == "stored", "the state was not stored");
        Ok(())
    }

    fn load(&self, from: &mut Stream<'_>) -> Result<()> {
        let state = state_file::read(from, &self.card.make())?;
        ensure!(
            self.server.has_client(),
            "no virtual machine is connected: start it, paused, and then load the state"
        );
        self.stop()?;
        let taken = if self.card.is_busy() {
            Err("a job of the virtual machine is on the card".to_owned())
        } else {
            self.card.set_state(&state)
        };
        self.card.thaw();
        taken.map_err(anyhow::Error::msg)?;
        self.card.interrupt_again();
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        ensure!(self.card.is_frozen(), "the card is not stopped");
        self.card.thaw();
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let stopped = self.card.freeze(STOP_LIMIT);
        stopped.map_err(|slot| anyhow!("the job of slot {slot} does not stop"))
    }
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
