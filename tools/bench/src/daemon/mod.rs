// SPDX-License-Identifier: GPL-2.0-or-later
//! What people use without a driver: a daemon that owns the card through vfio-pci, shares the card
//! among clients of a UNIX socket, and preempts by the same protocol (docs/switch.md, irq
//! profile). The daemon is as fast as its authors could make it, so that the comparison is fair:
//!
//! - one thread, one epoll loop; a switch allocates nothing;
//! - the card's interrupt and the timer are edge-triggered and never read, which saves a system
//!   call each;
//! - a switch costs one call to wait and one call to set the timer;
//! - unchanged registers are not written again;
//! - the next job is started before a client is told of the end of the last job;
//! - the daemon leaves the card quiescent when a signal or an error ends it;
//! - with `--relay`, one order per switch, written when a run begins, tells the card what runs next
//!   and how long the run may work; the card reports by a record in memory: no timer, no read of a
//!   register;
//! - under `SCHED_FIFO` its memory is locked; when polling, the daemon makes no call that sleeps,
//!   and takes the time from the vDSO.

mod device;
mod protocol;
mod schedule;

use crate::guest::machine::Card;
use crate::mapping::Mapping;
use crate::visit::{Cell, Variant, MEMORY};
use anyhow::{bail, ensure, Context as _, Result};
use device::{Device, JobAddresses, Relay};
use fermata_output::say;
pub(crate) use protocol::{Client, Urgency};
use protocol::{Reply, Request, BASE};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{
    accept_with, bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{kill_process, Pid, Signal};
use rustix::time::{
    clock_gettime, timerfd_create, timerfd_settime, ClockId, Itimerspec, TimerfdClockId,
    TimerfdFlags, TimerfdTimerFlags,
};
use schedule::{ClientId, Ended, Job, RelaySchedule, Schedule, StatusSchedule, PAUSE_REPEAT};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Priority under `SCHED_FIFO`.
const PRIORITY: i32 = 50;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// The card's directory in sysfs; the card is bound to vfio-pci
    #[arg(long)]
    pub(crate) device: PathBuf,
    /// The socket for clients
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Length of a slice in microseconds
    #[arg(long)]
    pub(crate) slice_us: u32,
    /// Poll instead of sleeping
    #[arg(long)]
    pub(crate) poll: bool,
    /// Run under `SCHED_FIFO`
    #[arg(long)]
    pub(crate) fifo: bool,
    /// Tell the card by orders what runs next
    #[arg(long)]
    pub(crate) relay: bool,
}

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.fifo {
        become_real_time()?;
    }
    Server::new(options)?.serve()
}

fn become_real_time() -> Result<()> {
    let param = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: The pointer is valid, and the calls affect this process only.
    let done = unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) == 0
            && libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) == 0
    };
    done.then_some(())
        .ok_or_else(std::io::Error::last_os_error)
        .context("cannot lock memory and set SCHED_FIFO")
}

/// The socket for clients.
pub(crate) const SOCKET: &str = "/run/fermata-bench";
/// Time limit for the daemon to exit; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon's process. Dropping the value ends the process.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts a daemon for a cell.
    pub(crate) fn start(cell: Cell, card: &Card) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("daemon").arg("--device").arg(&card.path);
        command.args(["--socket", SOCKET, "--slice-us", &cell.slice_us.to_string()]);
        let (polls, fifo) = match cell.variant {
            Variant::Poll => (true, false),
            Variant::PollFifo => (true, true),
            Variant::SleepFifo => (false, true),
            _ => (false, false),
        };
        command.args(polls.then_some("--poll"));
        command.args(fifo.then_some("--fifo"));
        command.args((cell.variant == Variant::Relay).then_some("--relay"));
        let mut child = Self(command.stdout(Stdio::piped()).spawn()?);
        let output = child.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "ready\n", "the daemon does not start");
        Ok(child)
    }

    pub(crate) fn process(&self) -> &Child {
        &self.0
    }

    /// Asks the daemon to exit; fails if it exits with an error or has exited before.
    pub(crate) fn end(&mut self) -> Result<()> {
        let early = self.0.try_wait()?;
        ensure!(early.is_none(), "the daemon ended early: {early:?}");
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Waits until the daemon has exited.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the daemon does not end")
    }
}

impl Drop for Daemon {
    /// Ends the daemon, which leaves the card quiescent if it still runs and can.
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        if self.end().is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Sources of events in epoll data; the numbers of clients follow.
const INTERRUPT: u64 = 0;
const TIMER: u64 = 1;
const LISTENER: u64 = 2;
const SIGNAL: u64 = 3;
const CLIENTS: u64 = 4;
/// I/O virtual addresses of a client's memory and snapshot; each client has an address space of its
/// own.
const SPACE: u64 = 1 << 32;
const SNAPSHOT: u64 = 1 << 30;

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Returns the time of the monotonic clock.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The timer for the end of a slice.
struct Timer {
    /// A timerfd; `None`: the daemon polls. A timerfd fires once: a timerfd that is not read does
    /// not fire again, whatever its interval.
    file: Option<OwnedFd>,
    /// When the timer is due by the monotonic clock. An event of the file that comes before is of
    /// an earlier slice.
    due: Option<Duration>,
}

impl Timer {
    fn new(file: Option<OwnedFd>) -> Self {
        Self { file, due: None }
    }

    /// Arms the timer. `after` is not 0.
    fn set(&mut self, after: Duration) -> Result<()> {
        let due = now() + after;
        self.due = Some(due);
        self.arm(due)
    }

    /// Arms the timer to repeat PAUSE. A sleeping daemon limits its sleep instead, and lets the
    /// timer of the slice expire without effect.
    fn repeat(&mut self) {
        self.due = match self.file {
            Some(_) => None,
            None => Some(now() + PAUSE_REPEAT),
        };
    }

    /// Disarms the timer.
    fn clear(&mut self) -> Result<()> {
        self.due = None;
        self.arm(Duration::ZERO)
    }

    /// Arms the file, if there is one, for a time; 0 disarms it.
    fn arm(&self, due: Duration) -> Result<()> {
        if let Some(file) = &self.file {
            let times = Itimerspec {
                it_interval: timespec(Duration::ZERO),
                it_value: timespec(due),
            };
            timerfd_settime(file, TimerfdTimerFlags::ABSTIME, &times)?;
        }
        Ok(())
    }

    /// Returns whether the timer is due, once for each time that the timer is armed.
    fn is_due(&mut self) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now());
        if is_due {
            self.repeat();
        }
        is_due
    }
}

/// A client, and its mapped memory.
struct Connection {
    socket: OwnedFd,
    attached: Option<Attached>,
}

struct Attached {
    urgency: Urgency,
    memory: Mapping,
    snapshot: Mapping,
}

/// The daemon.
struct Server {
    schedule: Box<dyn Schedule>,
    /// Jobs that have ended, whose clients are told next.
    ended: Ended,
    timer: Timer,
    epoll: OwnedFd,
    listener: OwnedFd,
    clients: Vec<Option<Connection>>,
    /// Kept open: becomes readable after a signal that ends the daemon.
    _signals: UnixStream,
}

/// Returns a socket that becomes readable after a signal that ends the process.
fn catch_signals() -> Result<UnixStream> {
    let (signals, sender) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(signals)
}

impl Server {
    fn new(options: &Options) -> Result<Self> {
        let signals = catch_signals()?;
        Self::with(Device::open(&options.device)?, signals, options)
    }

    /// Returns the daemon of a device. `signals` becomes readable when the daemon has to end.
    fn with(device: Device, signals: UnixStream, options: &Options) -> Result<Self> {
        let listener = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let _ = std::fs::remove_file(&options.socket);
        bind(&listener, &SocketAddrUnix::new(&options.socket)?)?;
        listen(&listener, 16)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(
            &epoll,
            device.interrupt(),
            EventData::new_u64(INTERRUPT),
            edge,
        )?;
        epoll::add(
            &epoll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        let data = EventData::new_u64(SIGNAL);
        epoll::add(&epoll, &signals, data, EventFlags::IN)?;
        let timer = if options.poll {
            None
        } else {
            let file = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
            epoll::add(&epoll, &file, EventData::new_u64(TIMER), edge)?;
            Some(file)
        };
        Ok(Self {
            schedule: schedule(device, options)?,
            ended: Ended::with_capacity(8),
            timer: Timer::new(timer),
            epoll,
            listener,
            clients: Vec::new(),
            _signals: signals,
        })
    }

    fn serve(mut self) -> Result<()> {
        say!("ready");
        std::io::stdout().flush()?;
        let polls = self.timer.file.is_none();
        let mut events = Vec::with_capacity(16);
        loop {
            if polls && self.timer.is_due() {
                self.schedule.timeout();
            }
            let wait = if polls {
                Some(Duration::ZERO)
            } else {
                self.schedule.is_pausing().then_some(PAUSE_REPEAT)
            };
            let wait = wait.map(timespec);
            events.clear();
            let got = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                wait.as_ref(),
            );
            match got {
                Err(rustix::io::Errno::INTR) => continue,
                got => got?,
            };
            if events.is_empty() && !polls {
                self.schedule.timeout();
            }
            // Handles the card first, because the slot is idle.
            events.sort_unstable_by_key(|event| { event.data }.u64());
            for event in &events {
                match { event.data }.u64() {
                    SIGNAL => return Ok(()),
                    what => self.take(what)?,
                }
            }
        }
    }

    fn take(&mut self, what: u64) -> Result<()> {
        match what {
            INTERRUPT => {
                self.schedule
                    .interrupted(&mut self.timer, &mut self.ended)?;
                for (client, status) in self.ended.drain(..) {
                    if let Some(Some(client)) = self.clients.get(client) {
                        Reply::Done(status).send(&client.socket)?;
                    }
                }
                Ok(())
            }
            TIMER => {
                // The interrupt of the same batch may have begun another slice.
                if self.timer.is_due() {
                    self.schedule.timeout();
                }
                Ok(())
            }
            LISTENER => self.accept(),
            client => self.serve_client((client - CLIENTS) as ClientId),
        }
    }

    fn accept(&mut self) -> Result<()> {
        let socket = accept_with(&self.listener, SocketFlags::CLOEXEC)?;
        let id = self.clients.len();
        let data = EventData::new_u64(CLIENTS + id as u64);
        epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
        self.clients.push(Some(Connection {
            socket,
            attached: None,
        }));
        Ok(())
    }

    fn serve_client(&mut self, id: ClientId) -> Result<()> {
        let Some(Some(client)) = self.clients.get_mut(id) else {
            return Ok(());
        };
        match Request::receive(&client.socket)? {
            None => self.remove_client(id),
            Some((Request::Attach(urgency), Some(file))) => {
                let memory = Mapping::new(&file, MEMORY, 0).context("a client's memory")?;
                let bytes = self.schedule.device().snapshot_bytes();
                let own = memfd_create("snapshot", MemfdFlags::CLOEXEC)?;
                ftruncate(&own, bytes as u64)?;
                let snapshot = Mapping::new(&own, bytes, 0)?;
                let at = addresses(id);
                self.schedule.device().map(at.offset + BASE, &memory)?;
                self.schedule.device().map(at.snapshot, &snapshot)?;
                self.schedule.attach(id, at)?;
                client.attached = Some(Attached {
                    urgency,
                    memory,
                    snapshot,
                });
                Reply::Attached.send(&client.socket)
            }
            Some((Request::Run(registers), None)) => {
                let attached = client.attached.as_ref();
                let urgency = attached.context("a job without memory")?.urgency;
                let job = Job {
                    client: id,
                    urgency,
                    addresses: addresses(id),
                    registers,
                    saved: false,
                };
                self.schedule.submit(job, &mut self.timer)
            }
            Some(_) => anyhow::bail!("invalid message of a client"),
        }
    }

    /// Removes a client that has closed its socket.
    fn remove_client(&mut self, id: ClientId) -> Result<()> {
        self.schedule.remove_client_jobs(id)?;
        let gone = self.clients.get_mut(id).and_then(Option::take);
        if let Some(attached) = gone.and_then(|client| client.attached) {
            let at = addresses(id);
            let device = self.schedule.device();
            device.unmap(at.offset + BASE, &attached.memory)?;
            device.unmap(at.snapshot, &attached.snapshot)?;
        }
        Ok(())
    }
}

/// Returns the scheduler that the options ask for.
fn schedule(device: Device, options: &Options) -> Result<Box<dyn Schedule>> {
    Ok(if options.relay {
        Box::new(RelaySchedule::new(Relay::new(device)?, options.slice_us))
    } else {
        let slice = Duration::from_micros(options.slice_us.into());
        Box::new(StatusSchedule::new(device, slice))
    })
}

/// Returns the addresses of a client's job.
fn addresses(id: ClientId) -> JobAddresses {
    let offset = SPACE * (id as u64 + 1);
    JobAddresses {
        offset,
        window: (BASE, MEMORY as u64),
        snapshot: offset + SNAPSHOT,
    }
}

#[cfg(test)]
mod tests {
    use super::device::{fake, Status};
    use super::protocol::REGISTERS;
    use super::*;
    use fermata_card::regs::{ctl, status};

    const SLICE_US: u32 = 1000;

    /// Returns a sleeping daemon with a fake card, at a socket in a folder.
    fn server(folder: &std::path::Path) -> Server {
        let options = Options {
            device: folder.into(),
            socket: folder.join("socket"),
            slice_us: SLICE_US,
            poll: false,
            fifo: false,
            relay: false,
        };
        let (signals, _) = UnixStream::pair().unwrap();
        Server::with(fake::device(), signals, &options).unwrap()
    }

    fn submit(server: &mut Server, client: ClientId, urgency: Urgency) {
        let job = Job {
            client,
            urgency,
            addresses: addresses(client),
            registers: [0; REGISTERS],
            saved: false,
        };
        server.schedule.submit(job, &mut server.timer).unwrap();
    }

    fn command(server: &Server) -> u64 {
        server.schedule.device().command()
    }

    /// Lets the present slice pass; the timer's file then has an event.
    fn pass_slice() {
        std::thread::sleep(Duration::from_micros(2 * u64::from(SLICE_US)));
    }

    /// Lets the slot report that its job is saved, after `starts` STARTs.
    fn pause(server: &mut Server, starts: u64) {
        let device = server.schedule.device();
        device.show(Status(starts << 32 | status::PAUSED));
        server.take(INTERRUPT).unwrap();
    }

    #[test]
    fn the_end_of_a_slice_pauses_its_job() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = server(folder.path());
        submit(&mut server, 1, Urgency::BestEffort);
        submit(&mut server, 2, Urgency::BestEffort);
        assert_eq!(command(&server), ctl::START_NEW);
        pass_slice();
        server.take(TIMER).unwrap();
        assert_eq!(command(&server), ctl::PAUSE);
    }

    #[test]
    fn an_old_event_of_the_timer_does_not_pause_the_next_job() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = server(folder.path());
        submit(&mut server, 1, Urgency::BestEffort);
        submit(&mut server, 2, Urgency::LatencyCritical);
        assert_eq!(command(&server), ctl::PAUSE);
        pass_slice();
        // A batch of events: urgent work has the slot now.
        pause(&mut server, 1);
        assert_eq!(command(&server), ctl::START_NEW);
        server.take(TIMER).unwrap();
        assert_eq!(command(&server), ctl::START_NEW);
    }

    #[test]
    fn the_slice_of_a_job_that_is_being_paused_does_not_pause_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = server(folder.path());
        submit(&mut server, 1, Urgency::BestEffort);
        submit(&mut server, 2, Urgency::LatencyCritical);
        let saving = Status(1 << 32 | status::RUNNING);
        server.schedule.device().show(saving);
        pass_slice();
        server.take(TIMER).unwrap();
        assert_eq!(command(&server), saving.0);
    }
}
