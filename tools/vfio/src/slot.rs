// SPDX-License-Identifier: GPL-2.0-or-later
//! The engine of a guest's slot: a job in a context on the host's card. Contexts are created when a
//! window is first used, and kept, because an arena is pinned memory that is created only once for
//! each context.

use crate::context::{HostContext, Key, Settings, Stopped};
use crate::tell;
use fermata::{Error, State};
use fermata_card::dma::DmaSpace;
use fermata_card::engine::{
    AppRegs, Bus, Engine, EngineKind, EngineMaker, Progress, Reach, Refused,
};
use fermata_card::event::now_ns;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum age of the result registers that a guest sees while a job runs.
const REFRESH: Duration = Duration::from_millis(50);

/// A job.
struct HostJob {
    context: Arc<HostContext>,
    shared: Arc<Shared>,
    /// The state of the job, when it is held.
    state: Option<Vec<u8>>,
    /// Whether the job was held at a boundary.
    at_boundary: bool,
    results: AppRegs,
    read_at: Instant,
}

impl HostJob {
    /// Returns the job that was begun in this context.
    fn new(context: Arc<HostContext>, shared: Arc<Shared>) -> Self {
        Self {
            context,
            shared,
            state: None,
            at_boundary: false,
            results: AppRegs::default(),
            read_at: Instant::now(),
        }
    }

    /// Returns the same job, which shows these results until the card has reported its own.
    fn showing(mut self, results: AppRegs) -> Self {
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
    /// attention, but not beyond `deadline`. Returns whether the job may have ended.
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

    /// Stops the job. Returns whether it has ended instead.
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

    /// Returns whether the job has finished. A job that failed is refused.
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

/// Repeats the access for which the host's card stopped the job, so that the guest's window refuses
/// it and the guest's fault registers report it. Nothing is written.
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
            // The job was stopped somewhere else, or its stop was withdrawn.
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

/// Maximum number of contexts that a slot keeps.
const KEPT: usize = 32;

/// What the slot and the job in it share.
struct Shared {
    /// The contexts, the most recently used last.
    contexts: Mutex<Vec<Arc<HostContext>>>,
    /// Readable when the job should look at its bus.
    wake: OwnedFd,
}

impl Shared {
    fn contexts(&self) -> MutexGuard<'_, Vec<Arc<HostContext>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the job of a context, and closes the context unless it is at rest.
    fn abandon(&self, context: &Arc<HostContext>) {
        if !context.abandon() {
            self.contexts().retain(|kept| !Arc::ptr_eq(kept, context));
        }
    }

    fn revoke(&self, which: impl Fn(&HostContext) -> bool) {
        let mut contexts = self.contexts();
        for context in contexts.iter().filter(|context| which(context)) {
            context.revoke();
        }
        contexts.retain(|context| !context.is_revoked());
        drop(contexts);
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A guest's slot on the host's card.
pub(crate) struct HostSlot {
    settings: Arc<Settings>,
    kind: EngineKind,
    shared: Arc<Shared>,
}

impl HostSlot {
    /// A slot without contexts.
    pub(crate) fn new(settings: Arc<Settings>, kind: EngineKind) -> std::io::Result<Self> {
        Ok(Self {
            settings,
            kind,
            shared: Arc::new(Shared {
                contexts: Mutex::default(),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            }),
        })
    }

    /// Begins a job, by `start`, in a context for which `fits` holds, or in a new context.
    fn begin(
        &self,
        reach: &Reach<'_>,
        fits: impl Fn(&HostContext) -> bool,
        start: impl FnOnce(&HostContext) -> fermata::Result<()>,
    ) -> Result<HostJob, Refused> {
        let key = Key::of(reach);
        // Code that takes memory away takes this lock afterwards, and then finds the context.
        let mut contexts = self.shared.contexts();
        let memory = (reach.memory)().ok_or(Refused)?;
        let mine = contexts.iter().position(|context| context.serves(&key));
        let mine = mine.map(|at| contexts.remove(at));
        let context = if let Some(context) = mine.filter(|context| fits(context)) {
            context
        } else {
            let made = self.open(key, memory, &mut contexts);
            Arc::new(made.map_err(|error| self.told(error))?)
        };
        start(&context).map_err(|error| self.told(error))?;
        keep(&mut contexts, context.clone());
        Ok(HostJob::new(context, self.shared.clone()))
    }

    /// Opens a context. If a limit refuses the context, the least recently used contexts make room:
    /// states that they hold are in snapshots of the guest.
    fn open(
        &self,
        key: Key,
        memory: &DmaSpace,
        kept: &mut Vec<Arc<HostContext>>,
    ) -> fermata::Result<HostContext> {
        loop {
            match HostContext::open(&self.settings, self.kind, key, memory) {
                Err(error) if is_limit(error) && !kept.is_empty() => drop(kept.remove(0)),
                done => return done,
            }
        }
    }

    /// Resumes a job from the state of its engine.
    fn go_on_from(
        &self,
        regs: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<HostJob, Refused> {
        // A held job continues with the results that it had.
        let mut results = None;
        let go_on = |context: &HostContext| {
            if context.holds(state) {
                results = context.results();
                context.resume(regs)
            } else {
                context.start_from(regs, state)
            }
        };
        let fits = |context: &HostContext| context.holds(state) || context.is_free();
        let job = self.begin(reach, fits, go_on)?;
        Ok(match results {
            Some(results) => job.showing(results),
            None => job,
        })
    }

    fn told(&self, error: Error) -> Refused {
        tell(format_args!("{}", self.reason(error)));
        Refused
    }

    fn reason(&self, error: Error) -> String {
        let device = self.settings.device.display();
        let engine = self.kind.name();
        format!("{device} does not take a job for {engine}: {error}")
    }
}

/// Keeps a context. If there are too many, closes the least recently used one.
fn keep(contexts: &mut Vec<Arc<HostContext>>, context: Arc<HostContext>) {
    contexts.push(context);
    if contexts.len() > KEPT {
        contexts.remove(0);
    }
}

/// Returns whether fewer contexts or less pinned memory would help.
fn is_limit(error: Error) -> bool {
    let quota = rustix::io::Errno::DQUOT.raw_os_error();
    matches!(error, Error::NoMemory | Error::NoSpace) || error == Error::Other(quota)
}

impl EngineMaker for HostSlot {
    fn start(&self, regs: &AppRegs, reach: &Reach<'_>) -> Result<Box<dyn Engine>, Refused> {
        let start = |context: &HostContext| context.start(regs);
        Ok(Box::new(self.begin(reach, HostContext::is_free, start)?))
    }

    fn prepare(&self, reach: &Reach<'_>, at_work: Option<(&AppRegs, &[u8])>) -> Result<(), String> {
        let (key, mut contexts) = (Key::of(reach), self.shared.contexts());
        let memory = (reach.memory)().filter(|memory| key.is_mapped(memory));
        let Some(memory) = memory else {
            if at_work.is_some() {
                let engine = self.kind.name();
                return Err(format!(
                    "the window of a job for {engine} is not guest memory yet"
                ));
            }
            // The window is the guest's mistake, and the job will fault.
            return Ok(());
        };
        let made = self.open(key, memory, &mut contexts);
        let context = made.map_err(|error| self.reason(error))?;
        if let Some((regs, state)) = at_work {
            let held = context.hold_from(regs, state);
            held.map_err(|error| self.reason(error))?;
        }
        keep(&mut contexts, Arc::new(context));
        Ok(())
    }

    fn resume(
        &self,
        regs: &AppRegs,
        _readback: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<Box<dyn Engine>, Refused> {
        Ok(Box::new(self.go_on_from(regs, state, reach)?))
    }

    fn go_on(
        &self,
        regs: &AppRegs,
        shown: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<Box<dyn Engine>, Refused> {
        let job = self.go_on_from(regs, state, reach)?;
        Ok(Box::new(job.showing(*shown)))
    }

    fn wake(&self) {
        self.shared.wake();
    }

    fn release(&self, memory: &DmaSpace) {
        self.shared.revoke(|context| !context.is_mapped(memory));
        // Afterwards no job starts in the old memory, which would create a lender of it again.
        self.settings.lenders.release(memory);
    }

    fn quiesce(&self) {
        self.shared.revoke(|_| true);
    }
}
