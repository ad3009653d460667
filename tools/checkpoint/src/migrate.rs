// SPDX-License-Identifier: GPL-2.0-or-later
//! A live move: the job runs while its arena is copied, is held for what has changed since, and
//! goes on at the other end.
//!
//! The stream is a checkpoint in which parts of the arena may come several times, the last one
//! counts. Then both ends talk by lines: the receiver says `ready` when everything is there; the
//! sender says `go`, and from then on never lets its job run again, for it might run at both ends;
//! the receiver says `running` when the job is on a slot. Until `go` every failure leaves the job
//! where it was.

use crate::container::{Kind, Writer};
use crate::description::{Description, Job};
use crate::restore::{restore, Restored};
use crate::save::{arena_parts, at, describe, write_state, SaveError};
use crate::Refusal;
use fermata::{Arena, Context, Events};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// So often is the arena copied while the job runs, at most.
const ROUNDS: u32 = 5;
/// Fewer bytes than that are copied while it is held.
const FEW: u64 = 1 << 20;
/// How often the receiver looks whether the job runs.
const LOOK: Duration = Duration::from_micros(200);

const READY: &str = "ready";
const GO: &str = "go";
const RUNNING: &str = "running";

/// What a move was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// From the PREEMPT here to when it ran there; the way of one message is in it.
    pub without_running: Duration,
    /// Parts of the arena that were sent while the job ran.
    pub bytes_before: u64,
    /// And while it was held.
    pub bytes_held: u64,
    /// How often all of the arena was looked at while the job ran.
    pub rounds: u32,
}

/// Why a job was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It cannot be read or sent. It goes on here.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// It came to its end here.
    #[error("the job ended before it could be moved")]
    Ended,
    /// The other end refuses it. It goes on here.
    #[error("the other end does not take it: {0}")]
    Refused(String),
    /// The other end was told to go on, and is silent. It may run there: here it stays held.
    #[error(
        "the job may run at the other end, which does not answer: it stays held here, and \
         must not be resumed if it does ({0})"
    )]
    Unknown(String),
}

/// What stands at the other end of the arena.
struct Copied<'a> {
    arena: Option<&'a Arena>,
    bytes: Vec<u8>,
}

impl<'a> Copied<'a> {
    /// A new arena: zeros.
    fn new(arena: Option<&'a Arena>) -> Self {
        Self {
            arena,
            bytes: vec![0; arena.map_or(0, Arena::length)],
        }
    }

    /// Sends what is different. Returns how many bytes.
    fn send<W: Write>(&mut self, writer: &mut Writer<W>) -> std::io::Result<u64> {
        let Some(arena) = self.arena else {
            return Ok(0);
        };
        let mut sent = 0;
        for part in arena_parts(arena) {
            let (offset, length) = (part.start as u64, part.len());
            let now = arena.read(part.start, length);
            if self.bytes[part.clone()] != now {
                writer.section(Kind::Arena, offset, &now)?;
                self.bytes[part].copy_from_slice(&now);
                sent += length as u64;
            }
        }
        Ok(sent)
    }
}

/// Moves the job of a context to who reads the other end of `stream`. The job may run, wait, or be
/// held. Afterwards the context is worth nothing: close it. After an error the job is as before,
/// but for [`MoveError::Unknown`].
pub fn send<S>(context: &Context, arena: Option<&Arena>, stream: &S) -> Result<Moved, MoveError>
where
    for<'a> &'a S: Read + Write,
{
    let held = fermata::State::from(status(context)?.state) == fermata::State::Held;
    match offer(context, arena, stream, held) {
        Ok((moved, since)) => commit(stream, moved, since),
        Err(error) => {
            if !held {
                // It may have ended.
                let _ = context.resume();
            }
            Err(error)
        }
    }
}

fn status(context: &Context) -> Result<fermata::uapi::Status, SaveError> {
    context.status().map_err(at("the card does not answer"))
}

/// Sends all, and hears that it has come. Returns since when the job does not run.
fn offer<S>(
    context: &Context,
    arena: Option<&Arena>,
    stream: &S,
    held: bool,
) -> Result<(Moved, Instant), MoveError>
where
    for<'a> &'a S: Read + Write,
{
    let output = |error| MoveError::Save(SaveError::Output(error));
    let mut writer = Writer::new(BufWriter::new(stream)).map_err(output)?;
    let description = Description::preliminary(context).map_err(at("it cannot be described"));
    let bytes = description?.to_bytes();
    writer
        .section(Kind::Description, 0, &bytes)
        .map_err(output)?;
    let mut copied = Copied::new(arena);
    let (mut bytes_before, mut rounds) = (0, 0);
    while !held && rounds < ROUNDS {
        rounds += 1;
        let sent = copied.send(&mut writer).map_err(output)?;
        writer.flush().map_err(output)?;
        bytes_before += sent;
        if sent < FEW {
            break;
        }
    }
    let since = Instant::now();
    hold(context)?;
    let description = describe(context)?;
    if description.job == Job::None {
        return Err(MoveError::Ended);
    }
    let bytes = description.to_bytes();
    writer
        .section(Kind::Description, 0, &bytes)
        .map_err(output)?;
    write_state(context, &description, &mut writer)?;
    let bytes_held = copied.send(&mut writer).map_err(output)?;
    writer.end().map_err(output)?;
    expect(stream, READY).map_err(MoveError::Refused)?;
    let moved = Moved {
        without_running: Duration::ZERO,
        bytes_before,
        bytes_held,
        rounds,
    };
    Ok((moved, since))
}

/// Takes the job off its slot.
fn hold(context: &Context) -> Result<(), MoveError> {
    match context.preempt(true) {
        Err(fermata::Error::NotFound) => return Err(MoveError::Ended),
        done => done.map_err(at("it cannot be held"))?,
    }
    let happened = context.wait(Events::ANY, None);
    let happened = happened.map_err(at("it cannot be held"))?;
    if happened.contains(Events::HELD) {
        Ok(())
    } else {
        Err(MoveError::Ended)
    }
}

/// Gives the job away.
fn commit<S>(stream: &S, moved: Moved, since: Instant) -> Result<Moved, MoveError>
where
    for<'a> &'a S: Read + Write,
{
    tell(stream, GO).map_err(|error| MoveError::Unknown(error.to_string()))?;
    expect(stream, RUNNING).map_err(MoveError::Unknown)?;
    Ok(Moved {
        without_running: since.elapsed(),
        ..moved
    })
}

/// Why a job was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// It is not taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The sender keeps it.
    #[error("the other end keeps the job: {0}")]
    Kept(String),
    /// It was given to us, and cannot go on.
    #[error("the job cannot go on here: {0}")]
    Lost(#[source] fermata::Error),
}

/// Receives a job from who writes to the other end of `stream`, and lets it go on, on the card
/// `device`.
pub fn receive<S>(stream: &S, device: &Path) -> Result<Restored, ReceiveError>
where
    for<'a> &'a S: Read + Write,
{
    let restored = match restore(BufReader::new(stream), device) {
        Ok(restored) => restored,
        Err(refusal) => {
            // The sender may be gone.
            let _ = tell(stream, &refusal.to_string());
            return Err(refusal.into());
        }
    };
    let kept = |error: std::io::Error| ReceiveError::Kept(error.to_string());
    tell(stream, READY).map_err(kept)?;
    expect(stream, GO).map_err(ReceiveError::Kept)?;
    restored.start().map_err(ReceiveError::Lost)?;
    while restored
        .context
        .status()
        .map_err(ReceiveError::Lost)?
        .slices
        == 0
    {
        std::thread::sleep(LOOK);
    }
    // It runs, whether the sender hears of it or not.
    let _ = tell(stream, RUNNING);
    Ok(restored)
}

fn tell<S>(stream: &S, line: &str) -> std::io::Result<()>
where
    for<'a> &'a S: Write,
{
    let mut stream = stream;
    writeln!(stream, "{line}")?;
    stream.flush()
}

/// Hears `line`; else what was said instead.
fn expect<S>(stream: &S, line: &str) -> Result<(), String>
where
    for<'a> &'a S: Read,
{
    // Nothing more is said until we answer, so nothing is lost in the buffer.
    let mut heard = String::new();
    match BufReader::new(stream).read_line(&mut heard) {
        Err(error) => Err(error.to_string()),
        Ok(0) => Err("it has hung up".into()),
        Ok(_) if heard.trim_end() == line => Ok(()),
        Ok(_) => Err(heard.trim_end().into()),
    }
}
