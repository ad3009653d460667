// SPDX-License-Identifier: GPL-2.0-or-later
//! The recorder: events go through a channel to a thread that checks, counts and writes them, so
//! that no register access has to wait.

use crate::checker::Checker;
use crate::event::{now_ns, Event, What};
use crate::ledger::{History, Ledger};
use std::io::{BufRead, Write};
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

type Question = Box<dyn FnOnce(&Judge) -> String + Send>;

enum Message {
    Event(Event),
    Ask(Question, Sender<String>),
    Stop,
}

/// Everything that is derived from the events.
#[derive(Default)]
pub struct Judge {
    /// Protocol violations.
    pub checker: Checker,
    /// Counters and times.
    pub ledger: Ledger,
    /// Which tenant was on which slot.
    pub history: History,
}

impl Judge {
    /// Processes one event. Returns its violations.
    pub fn step(&mut self, event: &Event) -> Vec<What> {
        self.ledger.step(event);
        self.history.step(event);
        self.checker.step(event)
    }
}

/// Records events, from any thread.
#[derive(Clone)]
pub struct Recorder(Option<Sender<Message>>);

impl Recorder {
    /// Starts the thread that writes to `out`.
    pub fn start(out: Box<dyn Write + Send>) -> (Self, JoinHandle<()>) {
        let (tx, rx) = channel();
        let thread = std::thread::spawn(move || run(&rx, out));
        (Self(Some(tx)), thread)
    }

    /// Returns a recorder that drops events.
    pub fn none() -> Self {
        Self(None)
    }

    /// Records an event. Returns its time.
    pub fn record(&self, what: What) -> u64 {
        let t = now_ns();
        self.record_at(t, what);
        t
    }

    /// Records an event that happened at `t`.
    pub fn record_at(&self, t: u64, what: What) {
        self.send(Message::Event(Event { t, what }));
    }

    /// Asks the judge, once it has seen everything that was recorded so far.
    pub fn ask(&self, question: impl FnOnce(&Judge) -> String + Send + 'static) -> String {
        let (tx, rx) = channel();
        self.send(Message::Ask(Box::new(question), tx));
        rx.recv().unwrap_or_default()
    }

    /// Ends the thread once everything is written.
    pub fn stop(&self) {
        self.send(Message::Stop);
    }

    fn send(&self, message: Message) {
        if let Some(thread) = &self.0 {
            let _ = thread.send(message);
        }
    }
}

/// How often the thread looks for events. If it waited for them, each event would wake the thread,
/// and the wake-up would delay the thread of the card that records the event.
const PERIOD: Duration = Duration::from_millis(1);
/// After this many checks without an event, the log is flushed, and the thread waits for the next
/// event.
const LOOKS: u32 = 200;

/// Returns the next message, or `None` if all recorders are gone.
fn next(rx: &Receiver<Message>, out: &mut dyn Write) -> Option<Message> {
    for _ in 0..LOOKS {
        match rx.try_recv() {
            Err(TryRecvError::Empty) => std::thread::sleep(PERIOD),
            other => return other.ok(),
        }
    }
    let _ = out.flush();
    rx.recv().ok()
}

fn run(rx: &Receiver<Message>, mut out: Box<dyn Write + Send>) {
    let mut judge = Judge::default();
    while let Some(message) = next(rx, &mut out) {
        match message {
            Message::Event(event) => {
                let verdicts = judge.step(&event);
                write_event(&mut out, &event);
                for what in verdicts {
                    write_event(&mut out, &Event { t: event.t, what });
                }
            }
            Message::Ask(question, reply) => {
                let _ = out.flush();
                let _ = reply.send(question(&judge));
            }
            Message::Stop => break,
        }
    }
    let _ = out.flush();
}

/// A full disk loses log lines, not the card.
fn write_event(out: &mut dyn Write, event: &Event) {
    let _ = serde_json::to_writer(&mut *out, event);
    let _ = out.write_all(b"\n");
}

/// Replays a log.
pub fn replay(log: impl BufRead) -> anyhow::Result<Judge> {
    let mut judge = Judge::default();
    for (n, line) in log.lines().enumerate() {
        let event = Event::parse(&line?).map_err(|e| anyhow::anyhow!("line {}: {e}", n + 1))?;
        judge.step(&event);
    }
    Ok(judge)
}
