// SPDX-License-Identifier: GPL-2.0-or-later
//! The contexts of one slot of a guest: made when a window is first used, and kept, because an
//! arena is pinned memory that is made once for each context.

use crate::context::{HostContext, Key};
use crate::job::HostJob;
use crate::log::tell;
use crate::settings::Settings;
use fermata::Error;
use fermata_card::dma::DmaSpace;
use fermata_card::engine::{AppRegs, Engine, EngineKind, Refused};
use fermata_card::maker::{EngineMaker, Reach};
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contexts of a slot that are kept.
const KEPT: usize = 32;

/// What the slot and the job in it share.
pub(crate) struct Shared {
    /// The contexts, the most recently used last.
    contexts: Mutex<Vec<Arc<HostContext>>>,
    /// Readable when the job is to look at its bus.
    pub(crate) wake: OwnedFd,
}

impl Shared {
    fn contexts(&self) -> MutexGuard<'_, Vec<Arc<HostContext>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a context whose job nobody wants any more, unless the context is at rest.
    pub(crate) fn abandon(&self, context: &Arc<HostContext>) {
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

    /// Begins a job, by `start`, in a context for which `fits` holds, or in a new one.
    fn begin(
        &self,
        reach: &Reach<'_>,
        fits: impl Fn(&HostContext) -> bool,
        start: impl FnOnce(&HostContext) -> fermata::Result<()>,
    ) -> Result<HostJob, Refused> {
        let key = Key::of(reach);
        // What takes memory away takes this lock afterwards, and finds the context.
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

    /// Opens a context. Where a limit refuses the context, those that have not been used for
    /// longest make room: states that they hold are in snapshots of the guest.
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

    /// Lets a job go on from the state of its engine.
    fn go_on_from(
        &self,
        regs: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<HostJob, Refused> {
        // The results that a held job had are those that it goes on with.
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

/// Keeps a context, and closes the one that has not been used for longest if there are too many.
fn keep(contexts: &mut Vec<Arc<HostContext>>, context: Arc<HostContext>) {
    contexts.push(context);
    if contexts.len() > KEPT {
        contexts.remove(0);
    }
}

/// Whether fewer contexts or less pinned memory would help.
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
            // The job is the guest's mistake, and will have a fault.
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
        // Afterwards no job begins in the memory as it was, which would make a lender of it again.
        self.settings.lenders.release(memory);
    }

    fn quiesce(&self) {
        self.shared.revoke(|_| true);
    }
}
