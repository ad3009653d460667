// SPDX-License-Identifier: GPL-2.0-or-later
//! Live migration: the job runs while its arena is copied, is held while the changed parts are
//! copied, and is resumed at the other end.
//!
//! If the sender ends in any way before it is about to send `go`, the job continues where it was.
//!
//! The stream is a checkpoint that may have parts of the arena several times; the last one counts.
//! Then both ends send lines: the receiver sends `ready` when it has the whole checkpoint. The
//! sender sends `go`, and never resumes the job afterwards, because the job might run at both ends.
//! The receiver sends `running` when the job is on a slot. A failure before `go` leaves the job
//! where it was.

use crate::container::{Kind, Writer};
use crate::content::{Description, Job};
use crate::restore::{restore, Restored};
use crate::save::{arena_parts, at, check_still, describe, write_state, SaveError};
use crate::Refusal;
use fermata::{uapi, Arena, Context, Hold, State};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::umask;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum number of rounds that copy the arena while the job runs.
const ROUNDS: u32 = 5;
/// With fewer changed bytes than this, the job is held and the rest copied.
const FEW: u64 = 1 << 20;
/// Limit for each read and write of the sender before `go`, during which the job may be held. The
/// receiver reads without a pause, except while it creates the arena.
const SILENCE: Duration = Duration::from_secs(60);
/// Poll interval of the receiver for the job to run.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Maximum length of a line, in bytes.
const LINE: u64 = 4096;

const READY: &str = "ready";
const GO: &str = "go";
const RUNNING: &str = "running";

/// Figures of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// From PREEMPT here until the job ran at the other end, including the delay of a message.
    pub without_running: Duration,
    /// Bytes of the arena that were sent while the job ran.
    pub bytes_before: u64,
    /// Bytes of the arena that were sent while the job was held.
    pub bytes_held: u64,
    /// Number of comparisons of the whole arena while the job ran.
    pub rounds: u32,
}

/// Why a job was not migrated.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The job cannot be read or sent. It continues here.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The job ended here.
    #[error("the job ended before it could be moved")]
    Ended,
    /// The other end refuses the job. It continues here.
    #[error("the receiver refuses the job: {0}")]
    Refused(String),
    /// The other end was told to resume the job, and has not answered. The job may run there, so it
    /// stays held here.
    #[error(
        "the job may run at the other end, which does not answer: it stays held here, and \
         must not be resumed if it does ({0})"
    )]
    Unknown(String),
}

/// The contents of the arena at the other end.
struct Copied<'a> {
    arena: Option<&'a Arena>,
    bytes: Vec<u8>,
}

impl<'a> Copied<'a> {
    /// Returns the contents of a new arena: zeros.
    fn new(arena: Option<&'a Arena>) -> Self {
        Self {
            arena,
            bytes: vec![0; arena.map_or(0, Arena::length)],
        }
    }

    /// Sends changed parts. Returns the number of bytes.
    fn send<W: Write>(&mut self, writer: &mut Writer<W>) -> io::Result<u64> {
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

/// Migrates the job of a context to the receiver at the other end of `stream`. The job may run,
/// wait, or be held. After success the context is no longer usable: close it. After an error the
/// job is as before, except after [`MoveError::Unknown`]. The file of the stream is `O_NONBLOCK`
/// afterwards. A receiver that neither reads nor answers for a minute is given up, unless it may
/// have the job.
pub fn send(
    context: &Context,
    arena: Option<&Arena>,
    stream: &impl AsFd,
) -> Result<Moved, MoveError> {
    let held = State::from(status(context)?.state) == State::Held;
    let limited = Timed::new(stream, Some(SILENCE)).map_err(SaveError::Output)?;
    // Until the hold is dropped, or this process ends, the job is held.
    let (moved, since, _until_moved) = offer(context, arena, &limited, held)?;
    // From now on the job may run at the other end: it stays held here, even if this process ends.
    match context.preempt(true) {
        Ok(()) => commit(&limited.without_limit(), moved, since),
        Err(fermata::Error::NotFound) => Err(MoveError::Ended),
        Err(error) => Err(at("it cannot be held")(error).into()),
    }
}

fn status(context: &Context) -> Result<uapi::Status, SaveError> {
    context.status().map_err(at("the card does not answer"))
}

/// Sends the job, and waits until the receiver is ready. Returns the time at which the job was
/// held, and the hold.
fn offer<S>(
    context: &Context,
    arena: Option<&Arena>,
    stream: &S,
    held: bool,
) -> Result<(Moved, Instant, Hold), MoveError>
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
    let hold = hold(context)?;
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
    expect_line(stream, READY).map_err(MoveError::Refused)?;
    check_still(context, &description)?;
    let moved = Moved {
        without_running: Duration::ZERO,
        bytes_before,
        bytes_held,
        rounds,
    };
    Ok((moved, since, hold))
}

/// Preempts the job, and holds it.
fn hold(context: &Context) -> Result<Hold, MoveError> {
    let (hold, is_held) = context.hold_open(None).map_err(at("it cannot be held"))?;
    is_held.then_some(hold).ok_or(MoveError::Ended)
}

/// Tells the receiver to resume the job.
fn commit<S>(stream: &S, moved: Moved, since: Instant) -> Result<Moved, MoveError>
where
    for<'a> &'a S: Read + Write,
{
    send_line(stream, GO).map_err(|error| MoveError::Unknown(error.to_string()))?;
    expect_line(stream, RUNNING).map_err(MoveError::Unknown)?;
    Ok(Moved {
        without_running: since.elapsed(),
        ..moved
    })
}

/// Why a job was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The checkpoint is refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The sender keeps the job.
    #[error("the sender keeps the job: {0}")]
    KeptBySender(String),
    /// The sender has given up the job, and the job cannot be resumed.
    #[error("the job cannot be resumed here: {0}")]
    Lost(#[source] fermata::Error),
}

/// Receives a job from the sender at the other end of `stream`, and resumes it on the card
/// `device`.
pub fn receive<S>(stream: &S, device: &Path) -> Result<Restored, ReceiveError>
where
    for<'a> &'a S: Read + Write,
{
    let restored = match restore(BufReader::new(stream), device) {
        Ok(restored) => restored,
        Err(refusal) => {
            // The sender may have exited.
            let _ = send_line(stream, &refusal.to_string());
            return Err(refusal.into());
        }
    };
    let kept = |error: io::Error| ReceiveError::KeptBySender(error.to_string());
    send_line(stream, READY).map_err(kept)?;
    expect_line(stream, GO).map_err(ReceiveError::KeptBySender)?;
    let begun = begin(&restored);
    let answer = begun.map_or_else(|error| error.to_string(), |()| RUNNING.into());
    // The job is here, whether or not the sender receives the message.
    let _ = send_line(stream, &answer);
    begun.map(|()| restored).map_err(ReceiveError::Lost)
}

/// Resumes the job, and waits until the job has been on a slot.
fn begin(restored: &Restored) -> Result<(), fermata::Error> {
    restored.start()?;
    loop {
        if let Some(begun) = has_begun(&restored.context.status()?) {
            return begun;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns whether a job has been on a slot; `None`: not yet; an error: the job failed before.
fn has_begun(status: &uapi::Status) -> Option<Result<(), fermata::Error>> {
    match State::from(status.state) {
        _ if status.slices > 0 => Some(Ok(())),
        State::Failed => Some(Err(fermata::Error::from_errno(status.error as i32))),
        _ => None,
    }
}

fn send_line<S>(stream: &S, line: &str) -> io::Result<()>
where
    for<'a> &'a S: Write,
{
    let mut stream = stream;
    writeln!(stream, "{line}")?;
    stream.flush()
}

/// Receives a line, which must be `line`; the error is the line that was received instead, safe to
/// print.
fn expect_line<S>(stream: &S, line: &str) -> Result<(), String>
where
    for<'a> &'a S: Read,
{
    // The other end sends nothing more before the answer, so the buffer loses no data.
    let mut heard = Vec::new();
    match BufReader::new(stream.take(LINE)).read_until(b'\n', &mut heard) {
        Err(error) => Err(error.to_string()),
        Ok(0) => Err("it has hung up".into()),
        Ok(_) => match String::from_utf8_lossy(&heard).trim_end() {
            heard if heard == line => Ok(()),
            other => Err(other.escape_debug().to_string()),
        },
    }
}

/// The file of a stream, and the limit of each read and write; `None`: there is none.
#[derive(Clone, Copy)]
struct Timed<'a> {
    file: BorrowedFd<'a>,
    limit: Option<Duration>,
}

impl<'a> Timed<'a> {
    /// Makes the file of `stream` `O_NONBLOCK`.
    fn new(stream: &'a impl AsFd, limit: Option<Duration>) -> io::Result<Self> {
        let file = stream.as_fd();
        fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        Ok(Self { file, limit })
    }

    /// Returns the same stream without a limit.
    fn without_limit(self) -> Self {
        Self {
            limit: None,
            ..self
        }
    }

    /// Waits until the stream has one of `events`.
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let limit = self.limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut polled = [PollFd::new(&self.file, events)];
        match poll(&mut polled, limit.as_ref()) {
            Ok(0) => {
                let seconds = self.limit.unwrap_or_default().as_secs();
                let text = format!("the other end has been silent for {seconds} s");
                Err(io::Error::new(ErrorKind::TimedOut, text))
            }
            // A device whose other end is closed accepts nothing.
            Ok(_) if !polled[0].revents().intersects(events) => Err(Errno::PIPE.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a call that does not wait, and repeats it each time the stream has one of `events`.
    fn retry(
        &self,
        events: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match call() {
                Err(Errno::AGAIN) => self.wait(events)?,
                done => return Ok(done?),
            }
        }
    }
}

impl Read for &Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, || rustix::io::read(self.file, &mut *buffer))
    }
}

impl Write for &Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, || rustix::io::write(self.file, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Listens on a socket, to which only the users of `mode` may connect. Sets the umask of the process
/// in the meantime.
pub fn listen(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    let before = umask(!mode);
    let bound = UnixListener::bind(path);
    umask(before);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nobody_else_can_send_a_job() {
        let folder = tempfile::tempdir().unwrap();
        for mask in [0, 0o77] {
            let path = folder.path().join(mask.to_string());
            let before = umask(Mode::from_raw_mode(mask));
            let _listener = listen(&path, Mode::RUSR | Mode::WUSR).unwrap();
            umask(before);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_line_is_bounded_and_safe_to_print() {
        let hear = |sent: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(sent).unwrap();
            expect_line(&ours, READY)
        };
        assert_eq!(hear(b"ready\n"), Ok(()));
        assert_eq!(hear(b"\x1b[2Jno\xff\n"), Err("\\u{1b}[2Jno\u{fffd}".into()));
        assert_eq!(hear(&[b'a'; 5000]), Err("a".repeat(4096)));
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(expect_line(&ours, READY), Err("it has hung up".into()));
    }

    #[test]
    fn a_job_that_fails_before_its_first_slice_is_lost() {
        let status = |state, slices| uapi::Status {
            state,
            slices,
            error: fermata::Error::Protocol.errno() as u32,
            ..Default::default()
        };
        assert_eq!(has_begun(&status(uapi::STATE_QUEUED, 0)), None);
        assert_eq!(has_begun(&status(uapi::STATE_RUNNING, 1)), Some(Ok(())));
        assert_eq!(has_begun(&status(uapi::STATE_FAILED, 1)), Some(Ok(())));
        let failed = has_begun(&status(uapi::STATE_FAILED, 0));
        assert_eq!(failed, Some(Err(fermata::Error::Protocol)));
    }

    #[test]
    fn a_silent_peer_is_given_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let limited = Timed::new(&ours, Some(Duration::from_millis(10))).unwrap();
        let read = (&limited).read(&mut [0; 8]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        let written = (&limited).write_all(&vec![0; 16 << 20]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);

        let unlimited = limited.without_limit();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            theirs.write_all(b"late").unwrap();
        });
        let mut heard = [0; 4];
        (&unlimited).read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"late");
        writer.join().unwrap();
    }
}
