// SPDX-License-Identifier: GPL-2.0-or-later
//! The event loop: clients, interrupt and timer.

use super::device::{Device, JobAddresses};
use super::protocol::{Reply, Request, Urgency, BASE};
use super::relay::Relay;
use super::relay_schedule::RelaySchedule;
use super::schedule::{ClientId, Ended, Job, Schedule, StatusSchedule, PAUSE_REPEAT};
use super::Options;
use crate::mapping::Mapping;
use crate::work::MEMORY;
use anyhow::{Context as _, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{
    accept_with, bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::{
    clock_gettime, timerfd_create, timerfd_settime, ClockId, Itimerspec, TimerfdClockId,
    TimerfdFlags, TimerfdTimerFlags,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The timer for the end of a slice.
pub(super) struct Timer {
    /// A timerfd; `None`: the daemon polls. A timerfd fires once: a timerfd that is not read does
    /// not fire again, whatever its interval.
    file: Option<OwnedFd>,
    /// When the timer is due by the monotonic clock. An event of the file that comes before is of
    /// an earlier slice.
    due: Option<Duration>,
}

impl Timer {
    pub(super) fn new(file: Option<OwnedFd>) -> Self {
        Self { file, due: None }
    }

    /// Arms the timer. `after` is not 0.
    pub(super) fn set(&mut self, after: Duration) -> Result<()> {
        let due = now() + after;
        self.due = Some(due);
        self.arm(due)
    }

    /// Arms the timer to repeat PAUSE. A sleeping daemon limits its sleep instead, and lets the
    /// timer of the slice expire without effect.
    pub(super) fn repeat(&mut self) {
        self.due = match self.file {
            Some(_) => None,
            None => Some(now() + PAUSE_REPEAT),
        };
    }

    /// Disarms the timer.
    pub(super) fn clear(&mut self) -> Result<()> {
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
struct Client {
    socket: OwnedFd,
    attached: Option<Attached>,
}

struct Attached {
    urgency: Urgency,
    memory: Mapping,
    snapshot: Mapping,
}

/// The daemon.
pub(super) struct Server {
    schedule: Box<dyn Schedule>,
    /// Jobs that have ended, whose clients are told next.
    ended: Ended,
    timer: Timer,
    epoll: OwnedFd,
    listener: OwnedFd,
    clients: Vec<Option<Client>>,
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
    pub(super) fn new(options: &Options) -> Result<Self> {
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

    pub(super) fn serve(mut self) -> Result<()> {
        println!("ready");
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
        self.clients.push(Some(Client {
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
                    used_us: 0,
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
    use super::super::device::{fake, Status};
    use super::super::protocol::REGISTERS;
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
            used_us: 0,
        };
        server.schedule.submit(job, &mut server.timer).unwrap();
    }

    fn command(server: &Server) -> u64 {
        server.schedule.device().command()
    }

    /// Lets the present slice pass; the file of the timer then has an event.
    fn pass_slice() {
        std::thread::sleep(Duration::from_micros(2 * u64::from(SLICE_US)));
    }

    /// The slot tells that its job is saved, after some number of STARTs.
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
