// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-checkpoint`: saves jobs of other programs to files, restores jobs from files, and
//! migrates jobs between cards.

use anyhow::{anyhow, bail, Context as _, Result};
use clap::{Args, Parser, Subcommand};
use fermata::{owner, Arena, Context, Error, Events, Param, State};
use fermata_checkpoint::{
    create, listen, receive, restore_file, save, send, Content, Description, Part, Refusal,
    Restored,
};
use fermata_command_line::OfParser;
use fermata_output::file::{end_on_signals, NewFile};
use fermata_output::say;
use fermata_output::text::printable;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Save and restore jobs of an accelerator, and migrate jobs between cards.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the job of a program to a file
    Save {
        #[command(flatten)]
        owner: Owner,
        /// Leave the job held afterwards
        #[arg(long)]
        hold: bool,
        /// The file
        file: PathBuf,
    },
    /// Check a file, and print its description
    Show {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The file
        file: PathBuf,
    },
    /// Resume a job from a file, and wait for the job's end
    Restore {
        #[command(flatten)]
        end: End,
        /// The file
        file: PathBuf,
    },
    /// Migrate the job of a running program
    Send {
        #[command(flatten)]
        owner: Owner,
        /// Kill the program afterwards: it does not know that its job is gone
        #[arg(long)]
        kill: bool,
        /// Where `receive` waits: tcp:HOST:PORT, unix:PATH, or a device
        to: Endpoint,
    },
    /// Receive a job, resume it, and wait for its end
    Receive {
        #[command(flatten)]
        end: End,
        /// Where to wait: tcp:HOST:PORT, unix:PATH, or a device
        at: Endpoint,
    },
    #[command(flatten)]
    OfParser(OfParser),
}

/// What to do with a job that has arrived.
#[derive(Args)]
struct End {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Write the arena here when the job has ended
    #[arg(long, value_name = "FILE")]
    arena: Option<PathBuf>,
}

/// Writes a checkpoint to a file completely or not at all.
fn save_to(owner: &Owner, hold: bool, file: &Path) -> Result<()> {
    let name = || file.display().to_string();
    let mut to = create(file).with_context(name)?;
    let context = owner.context()?;
    let arena = arena_of(&context)?;
    let held = context.hold_open(None);
    // Until this is dropped, or this process ends, in whatever way.
    let (_until_saved, _) = held.context("the job cannot be held")?;
    let bytes = save(&context, arena.as_ref(), &mut to).with_context(name)?;
    to.complete().with_context(name)?;
    if hold {
        match context.preempt(true) {
            // There was no job, or it had ended.
            Ok(()) | Err(Error::NotFound) => {}
            error => error.context("the job cannot be left held")?,
        }
    }
    say!("{bytes} bytes in {}", file.display());
    Ok(())
}

fn send_to(owner: &Owner, kill: bool, to: &Endpoint) -> Result<()> {
    let process = owner.process()?;
    let context = owner.context()?;
    let arena = arena_of(&context)?;
    let moved = send(&context, arena.as_ref(), &to.connect()?)?;
    say!(
        "moved: {} us without running, {} bytes of the arena while it ran ({} rounds), {} while \
             it was held",
        moved.without_running.as_micros(),
        moved.bytes_before,
        moved.rounds,
        moved.bytes_held
    );
    if kill {
        pidfd_send_signal(&process, Signal::KILL)
            .with_context(|| format!("process {}", owner.pid))?;
    }
    Ok(())
}

impl End {
    /// Opens the file for the arena, before a job is taken that would be lost without it.
    fn open(&self) -> Result<Option<NewFile>> {
        let Some(file) = &self.arena else {
            return Ok(None);
        };
        end_on_signals()?;
        let opened = NewFile::create(file).with_context(|| file.display().to_string())?;
        Ok(Some(opened))
    }

    /// Waits for the end of a job, and writes its arena to `to`. Returns whether the job finished.
    fn wait_for_end(&self, restored: &Restored, to: Option<NewFile>) -> Result<bool> {
        tell_refused(restored);
        if let Some(arena) = &restored.arena {
            if !arena.is_at_base() {
                say!(
                    "the arena is mapped at {:#x}, for the engine it is at {:#x}",
                    arena.address(),
                    arena.base()
                );
            }
        }
        restored.context.wait(Events::DONE, None)?;
        let status = restored.context.status()?;
        if let (Some(file), Some(to), Some(arena)) = (&self.arena, to, &restored.arena) {
            let written = to.fill(&arena.read(0, arena.length()));
            written.with_context(|| file.display().to_string())?;
        }
        let finished = State::from(status.state) == State::Done;
        if finished {
            for &offset in &restored.description.results {
                let value = restored.context.read_registers(&[offset])?[0];
                say!("register {offset:#x}: {value:#x}");
            }
        } else {
            let error = std::io::Error::from_raw_os_error(status.error as i32);
            say!("the job failed: {error}");
        }
        Ok(finished)
    }
}

fn tell_refused(restored: &Restored) {
    let (parameters, reservation) = &restored.refused;
    for param in parameters {
        say!("not as it was: {param}, which cannot be set here");
    }
    if *reservation {
        say!("not as it was: its reservation cannot be had here");
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    match &arguments.command {
        Command::Save { owner, hold, file } => {
            end_on_signals()?;
            save_to(owner, *hold, file).map(|()| true)
        }
        Command::Show { json, file } => show(file, *json).map(|()| true),
        Command::Restore { end, file } => {
            let name = || file.display().to_string();
            let to = end.open()?;
            let from = BufReader::new(File::open(file).with_context(name)?);
            let restored = restore_file(from, &end.device).with_context(name)?;
            if restored.description.job == fermata_checkpoint::Job::None {
                bail!("{}: there is no job in it", file.display());
            }
            restored.start()?;
            end.wait_for_end(&restored, to)
        }
        Command::Send { owner, kill, to } => {
            end_on_signals()?;
            send_to(owner, *kill, to).map(|()| true)
        }
        Command::Receive { end, at } => {
            let to = end.open()?;
            let restored = receive(&at.accept()?, &end.device)?;
            end.wait_for_end(&restored, to)
        }
        Command::OfParser(command) => command.run::<Arguments>().map(|()| true),
    }
}

fn main() -> ExitCode {
    fermata_output::end("fermata-checkpoint", run(&Arguments::parse()))
}

/// The owner of a job.
#[derive(clap::Args)]
pub(crate) struct Owner {
    /// The program, from which the descriptor is taken (`pidfd_getfd()`, as a debugger does)
    #[arg(long)]
    pid: u32,
    /// The program's descriptor of the card, if it has several
    #[arg(long)]
    fd: Option<RawFd>,
}

impl Owner {
    /// Returns the owner's context, which both processes share from now on.
    pub(crate) fn context(&self) -> Result<Context> {
        let fd = match self.fd {
            Some(fd) => fd,
            None => self.only_descriptor()?,
        };
        let context = owner::context(self.pid, fd);
        context.with_context(|| format!("descriptor {fd} of process {}", self.pid))
    }

    /// Returns the owner's only descriptor of a card.
    fn only_descriptor(&self) -> Result<RawFd> {
        let found = owner::descriptors(self.pid);
        let found = found.with_context(|| format!("descriptors of process {}", self.pid))?;
        match found[..] {
            [] => bail!("process {} has no card open", self.pid),
            [fd] => Ok(fd),
            _ => bail!(
                "process {} has several contexts: give --fd, one of {found:?}",
                self.pid
            ),
        }
    }

    /// Returns the program, whose number may be another program's by the end of a migration.
    fn process(&self) -> Result<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| anyhow!("{} is no process", self.pid))?;
        let process = pidfd_open(pid, PidfdFlags::empty());
        process.with_context(|| format!("process {}", self.pid))
    }
}

/// Maps the whole arena of a context.
pub(crate) fn arena_of(context: &Context) -> Result<Option<Arena>> {
    context.map_arena().map_err(|error| match error {
        Error::Invalid => {
            anyhow!("its arena is the program's own memory: only the program itself can save it")
        }
        Error::NoAddress => anyhow!(
            "its arena was never mapped, or has the device address 0: only an arena with another \
             device address can be saved"
        ),
        error => anyhow!("its arena cannot be mapped: {error}"),
    })
}

/// A summary of a checkpoint.
#[derive(Serialize)]
struct Summary {
    /// The last description.
    description: Description,
    /// Bytes of the arena in the checkpoint; all others are zero.
    arena_bytes: u64,
    /// Length of the engine's state.
    state_bytes: u64,
    /// Length of the file.
    file_bytes: u64,
}

/// Reads and checks the whole file.
fn summarise(file: &mut impl Read, file_bytes: u64) -> Result<Summary, Refusal> {
    let mut content = Content::new(file)?;
    let (mut arena_bytes, mut state_bytes) = (0, 0);
    while let Some(part) = content.part()? {
        match part {
            Part::Arena(_, bytes) => arena_bytes += bytes.len() as u64,
            Part::State(_, bytes) => state_bytes += bytes.len() as u64,
            Part::Described => {}
        }
    }
    let description = content.description().clone();
    content.end()?;
    Ok(Summary {
        description,
        arena_bytes,
        state_bytes,
        file_bytes,
    })
}

/// Prints what is in `file`.
pub(crate) fn show(file: &Path, json: bool) -> Result<()> {
    let name = || file.display().to_string();
    let open = File::open(file).with_context(name)?;
    let bytes = open.metadata().with_context(name)?.len();
    let summary = summarise(&mut BufReader::new(open), bytes).with_context(name)?;
    if json {
        say!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    let Summary { description, .. } = &summary;
    say!("engine      {}", description.engine());
    if !description.features.is_empty() {
        say!(
            "features    {}",
            printable(&description.features.join(", "))
        );
    }
    say!("job         {:?}", description.job);
    say!("state       {} bytes", summary.state_bytes);
    if let Some(arena) = &description.arena {
        say!(
            "arena       {} bytes at {:#x}, {} of them not in pages of zeros",
            arena.length,
            arena.device_base,
            summary.arena_bytes
        );
    }
    for (offset, value) in &description.registers {
        say!("register    {offset:#05x} = {value:#x}");
    }
    for (number, value) in &description.parameters {
        if let Some(param) = Param::of(*number) {
            say!("parameter   {param:?} = {value}");
        }
    }
    let account = &description.account;
    say!(
        "so far      {} us on slots, {} us in the queue, {} slices",
        account.run_ns / 1000,
        account.wait_ns / 1000,
        account.slices
    );
    say!("file        {} bytes, all checked", summary.file_bytes);
    Ok(())
}

/// Poll interval for a device whose other end is not open.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One end of a stream of bytes.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// HOST:PORT, for trusted networks or through a tunnel: whoever reads the stream can read the
    /// job, and whoever connects can send a job.
    Tcp(String),
    /// A UNIX socket.
    Unix(PathBuf),
    /// A device with a stream of bytes, such as a virtio-serial port.
    Device(PathBuf),
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("tcp", address)) => Ok(Self::Tcp(address.into())),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            None if text.starts_with('/') => Ok(Self::Device(text.into())),
            _ => bail!("{text}: tcp:HOST:PORT, unix:PATH or the path of a device is expected"),
        }
    }
}

impl Endpoint {
    /// Connects to the other end.
    pub(crate) fn connect(&self) -> Result<File> {
        let connected = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => as_file(TcpStream::connect(address)?),
                Self::Unix(path) => as_file(UnixStream::connect(path)?),
                Self::Device(path) => open(path)?,
            })
        };
        connected().with_context(|| format!("{self:?}"))
    }

    /// Waits for the other end to connect.
    pub(crate) fn accept(&self) -> Result<File> {
        let accepted = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => as_file(TcpListener::bind(address)?.accept()?.0),
                Self::Unix(path) => {
                    // Who connects can send a job.
                    let (stream, _) = listen(path, Mode::RUSR | Mode::WUSR)?.accept()?;
                    std::fs::remove_file(path)?;
                    as_file(stream)
                }
                Self::Device(path) => open(path)?,
            })
        };
        accepted().with_context(|| format!("{self:?}"))
    }
}

/// Returns a stream as a file.
fn as_file(stream: impl Into<OwnedFd>) -> File {
    File::from(stream.into())
}

/// Opens a device, and waits until its other end is open.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    loop {
        let mut polled = [PollFd::new(&file, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default()))?;
        if !polled[0].revents().contains(PollFlags::HUP) {
            return Ok(file);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
