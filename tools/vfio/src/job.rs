// SPDX-License-Identifier: GPL-2.0-or-later
//! The engine of a guest's slot: a job in a context on the host's card.

use crate::context::{HostContext, Stopped};
use crate::log::tell;
use crate::pool::Shared;
use fermata::State;
use fermata_card::engine::{AppRegs, Bus, Engine, Progress, Refused};
use fermata_card::event::now_ns;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old the result registers may be that a guest sees while a job runs.
const REFRESH: Duration = Duration::from_millis(50);

/// A job.
pub(crate) struct HostJob {
    context: Arc<HostContext>,
    shared: Arc<Shared>,
    /// The state of the job, when it is held.
    state: Option<Vec<u8>>,
    /// The job was held at a boundary.
    at_boundary: bool,
    results: AppRegs,
    read_at: Instant,
}

impl HostJob {
    /// The job that was begun in this context.
    pub(crate) fn new(context: Arc<HostContext>, shared: Arc<Shared>) -> Self {
        Self {
            context,
            shared,
            state: None,
            at_boundary: false,
            results: AppRegs::default(),
            read_at: Instant::now(),
        }
    }

    /// The same job, which shows these results until the card has told its own.
    pub(crate) fn showing(mut self, results: AppRegs) -> Self {
        self.results = results;
        self
    }

    fn read_results(&mut self) {
        if let Some(results) = self.context.results() {
            self.results = results;
        }
        self.read_at = Instant::now();
    }

    /// Waits until the job has ended, the results are to be read again, or the bus may want
    /// attention: at the latest at the time `deadline`. Whether the job may have ended.
    fn wait(&self, deadline: Option<u64>) -> bool {
        let refresh = REFRESH.saturating_sub(self.read_at.elapsed());
        let left = |due: u64| Duration::from_nanos(due.saturating_sub(now_ns()));
        let limit = deadline.map_or(refresh, |due| left(due).min(refresh));
        let mut fds = [
            PollFd::from_borrowed_fd(self.context.as_fd(), PollFlags::IN),
            PollFd::new(&self.shared.wake, PollFlags::IN),
        ];
        let _ = poll(&mut fds, Timespec::try_from(limit).ok().as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        !fds[0].revents().is_empty()
    }

    /// Stops the job. Whether it has ended instead.
    fn stop(&mut self, at_boundary: bool) -> Result<bool, Refused> {
        match self.context.stop(at_boundary) {
            Ok(Stopped::Ended) => Ok(true),
            Ok(Stopped::Held(state)) => {
                self.state = Some(state);
                self.at_boundary = at_boundary;
                self.read_results();
                Ok(false)
            }
            Err(error) => {
                tell(format_args!("a job cannot be saved: {error}"));
                Err(Refused)
            }
        }
    }

    fn go_on(&mut self) -> Result<(), Refused> {
        self.state = None;
        self.at_boundary = false;
        self.context.go_on().map_err(|_| Refused)
    }

    /// Whether the job has finished. A job that failed is refused.
    fn has_finished(&mut self, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let (state, status) = self.context.status().map_err(|_| Refused)?;
        match state {
            State::Done => {
                self.read_results();
                self.context.ended();
                Ok(true)
            }
            State::Failed => {
                self.read_results();
                self.context.ended();
                touch(bus, &status);
                Err(Refused)
            }
            _ => Ok(false),
        }
    }
}

/// Makes the access again for which the host's card stopped the job, so that the guest's window
/// refuses it and the guest's fault registers tell of it. Nothing is written.
fn touch(bus: &mut dyn Bus, status: &fermata::uapi::Status) {
    if status.error as i32 != rustix::io::Errno::FAULT.raw_os_error() {
        let error = fermata::Error::from_errno(status.error as i32);
        tell(format_args!("a job failed: {error}"));
        return;
    }
    let _ = if status.fault_flags & fermata::uapi::FAULT_WRITE != 0 {
        bus.write(status.fault_addr, &[])
    } else {
        bus.read(status.fault_addr, &mut [0])
    };
}

impl Engine for HostJob {
    fn step(&mut self, _budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let (at_once, at_boundary) = (bus.attention(), bus.wants_boundary());
        let mut done = false;
        match (self.state.is_some(), at_once || at_boundary) {
            (true, true) if at_once || self.at_boundary => {}
            // The job was stopped elsewhere, or its stop was withdrawn.
            (true, _) => self.go_on()?,
            (false, true) => done = self.stop(!at_once)? && self.has_finished(bus)?,
            (false, false) => done = self.wait(bus.deadline()) && self.has_finished(bus)?,
        }
        if self.context.is_revoked() {
            return Err(Refused);
        }
        if !done && self.read_at.elapsed() >= REFRESH {
            self.read_results();
        }
        Ok(Progress { units: 0, done })
    }

    fn at_boundary(&self) -> bool {
        self.state.is_some() && self.at_boundary
    }

    fn can_be_saved(&self) -> bool {
        self.state.is_some()
    }

    fn finish(&mut self, _bus: &mut dyn Bus) -> Result<(), Refused> {
        Ok(())
    }

    fn save(&mut self) -> Vec<u8> {
        let state = self.state.clone().unwrap_or_default();
        self.context.saved(state.clone());
        state
    }

    fn readback(&self) -> AppRegs {
        self.results
    }
}

impl Drop for HostJob {
    fn drop(&mut self) {
        self.shared.abandon(&self.context);
    }
}
