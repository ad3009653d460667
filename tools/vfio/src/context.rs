// SPDX-License-Identifier: GPL-2.0-or-later
//! Contexts on the host's card. Some run the jobs of one window of a guest's slot. Others run no
//! jobs, but have memory of the guest, which the former share: so the memory is pinned and charged
//! once, however many windows lie in it.

use crate::tell;
use fermata::{Context, EngineId, Error, Param, Result, State};
use fermata_card::dma::DmaSpace;
use fermata_card::engine::{AppRegs, EngineKind, Reach};
use fermata_card::regs::{APP_FIRST, TAG};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Application registers whose values a guest reads.
const RESULTS: usize = 10;
/// Time limit for a job to leave its slot, after which the job is given up. The driver's own limit,
/// the preempt timeout, is 10 s at most.
const HOLD_LIMIT: Duration = Duration::from_secs(30);
/// First bytes of the snapshot of a job that the host has never put on a slot. The engine has no
/// state then, and such a snapshot stands for a START with the registers.
const NEVER_RAN: &[u8; 32] = b"fermata-vfio: the job never ran\n";

/// Identifies what a context is for. A guest's driver gives each of its contexts a window and a
/// snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    base: u64,
    size: u64,
    iova: u64,
    snapshot: u64,
}

impl Key {
    pub(crate) fn of(reach: &Reach<'_>) -> Self {
        Self {
            base: reach.window_base,
            size: reach.window_size,
            iova: reach.iova(),
            snapshot: reach.snapshot,
        }
    }

    /// Returns whether the window is guest memory.
    pub(crate) fn is_mapped(&self, memory: &DmaSpace) -> bool {
        self.size == 0 || memory.covers(self.iova, self.size)
    }

    /// Returns the IOVAs of the window; `None`: the window is empty.
    fn window(&self) -> Result<Option<Range<u64>>> {
        let end = self.iova.checked_add(self.size).ok_or_else(fault)?;
        Ok(Some(self.iova..end).filter(|window| !window.is_empty()))
    }
}

/// What the job of a context does.
enum Job {
    /// There is no job, or it has ended.
    None,
    /// The job has not been stopped.
    Running,
    /// Held, and its state is not saved, or was not taken by the guest.
    Held,
    /// Held, with this state in the guest's snapshot.
    Saved(Vec<u8>),
    /// The context must not be used again.
    Revoked,
}

/// A call that starts a job, and returns the job's number.
type Start = fn(&Context) -> Result<u64>;

/// The state of a job that has been stopped.
pub(crate) enum Stopped {
    /// Off its slot, with this state.
    Held(Vec<u8>),
    /// The job has ended.
    Ended,
}

/// One context.
pub(crate) struct HostContext {
    key: Key,
    kind: EngineKind,
    context: Context,
    /// Lends the memory of the window. Dropped after `context`.
    lender: Option<Arc<Lender>>,
    snapshot: usize,
    job: Mutex<Job>,
}

impl HostContext {
    /// Creates a context whose arena is the memory behind the guest's window.
    pub(crate) fn open(
        settings: &Settings,
        kind: EngineKind,
        key: Key,
        memory: &DmaSpace,
    ) -> Result<Self> {
        let (high, low) = kind.afu_id();
        let open = || settings.open(EngineId { low, high });
        let context = open()?;
        let mut lender = None;
        if let Some(window) = key.window()? {
            let memory = settings.lenders.of(window.clone(), memory, open)?;
            memory.lend(&context, &window, key.base)?;
            lender = Some(memory);
        }
        let snapshot = context.create_snapshot()?;
        context.declare_results(&result_offsets())?;
        Ok(Self {
            key,
            kind,
            context,
            lender,
            snapshot,
            job: Mutex::new(Job::None),
        })
    }

    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the context is for this window and snapshot.
    pub(crate) fn serves(&self, key: &Key) -> bool {
        self.key == *key
    }

    /// Returns whether the memory of the context is still the guest's.
    pub(crate) fn is_mapped(&self, memory: &DmaSpace) -> bool {
        let lender = self.lender.as_ref();
        lender.is_none_or(|lender| lender.is_mapped(memory))
    }

    /// Returns whether a new job can be started in the context.
    pub(crate) fn is_free(&self) -> bool {
        matches!(*self.job(), Job::None)
    }

    /// Returns whether the context holds a job with the state `bytes`.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        matches!(&*self.job(), Job::Saved(saved) if is_padded(bytes, saved))
    }

    /// Returns whether the context must not be used again.
    pub(crate) fn is_revoked(&self) -> bool {
        matches!(*self.job(), Job::Revoked)
    }

    /// Starts a job from its beginning.
    pub(crate) fn start(&self, regs: &AppRegs) -> Result<()> {
        self.begin(regs, Job::Running, || self.context.start().map(drop))
    }

    /// Resumes the held job.
    pub(crate) fn resume(&self, regs: &AppRegs) -> Result<()> {
        self.begin(regs, Job::Running, || self.context.resume())
    }

    /// Starts a job from the bytes of a guest's snapshot, which the driver does not trust.
    pub(crate) fn start_from(&self, regs: &AppRegs, bytes: &[u8]) -> Result<()> {
        let ways = (Context::start as Start, Context::start_saved as Start);
        self.begin_from(regs, bytes, Job::Running, ways)
    }

    /// Like [`HostContext::start_from`], but the job is held, so that it can be resumed from this
    /// state.
    pub(crate) fn hold_from(&self, regs: &AppRegs, bytes: &[u8]) -> Result<()> {
        let ways = (
            Context::start_held as Start,
            Context::start_saved_held as Start,
        );
        self.begin_from(regs, bytes, Job::Saved(bytes.to_vec()), ways)
    }

    /// Starts a job from the bytes of a snapshot: by `new` if the job has never run, otherwise by
    /// `saved`.
    fn begin_from(
        &self,
        regs: &AppRegs,
        bytes: &[u8],
        then: Job,
        (new, saved): (Start, Start),
    ) -> Result<()> {
        if bytes.starts_with(NEVER_RAN) {
            return self.begin(regs, then, || new(&self.context).map(drop));
        }
        let state = &bytes[..bytes.len().min(self.snapshot)];
        self.context.write_snapshot(0, state)?;
        self.begin(regs, then, || saved(&self.context).map(drop))
    }

    fn begin(&self, regs: &AppRegs, then: Job, start: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut job = self.job();
        if matches!(*job, Job::Revoked) {
            return Err(Error::Gone);
        }
        let offsets = self.kind.writable().iter();
        let values: Vec<_> = offsets.map(|&at| (at.into(), regs.get(at))).collect();
        self.context.write_registers(&values)?;
        start()?;
        *job = then;
        Ok(())
    }

    /// Takes the job off its slot, at a boundary of the engine's work if `at_boundary`.
    pub(crate) fn stop(&self, at_boundary: bool) -> Result<Stopped> {
        let both = self.kind.has_boundaries() && !self.kind.only_at_boundaries();
        let cooperates = at_boundary && both;
        if cooperates {
            self.context.set_param(Param::Cooperative, 1)?;
        }
        let held = self.hold();
        if cooperates {
            self.context.set_param(Param::Cooperative, 0)?;
        }
        if !held? {
            return Ok(Stopped::Ended);
        }
        let mut state = vec![0; self.snapshot];
        match self.context.read_snapshot(0, &mut state) {
            Ok(()) => {}
            Err(Error::NoState) => state[..NEVER_RAN.len()].copy_from_slice(NEVER_RAN),
            Err(error) => return Err(error),
        }
        let mut job = self.job();
        if matches!(*job, Job::Running) {
            *job = Job::Held;
        }
        Ok(Stopped::Held(state))
    }

    /// Holds the job. Returns whether it is held; `false`: it has ended.
    fn hold(&self) -> Result<bool> {
        self.context.hold(Some(HOLD_LIMIT))
    }

    /// Resumes the job that was stopped, as if it had not been stopped.
    pub(crate) fn go_on(&self) -> Result<()> {
        let mut job = self.job();
        if matches!(*job, Job::Held) {
            self.context.resume()?;
            *job = Job::Running;
        }
        Ok(())
    }

    /// Records that the guest has taken the state of the held job.
    pub(crate) fn saved(&self, state: Vec<u8>) {
        let mut job = self.job();
        if matches!(*job, Job::Held) {
            *job = Job::Saved(state);
        }
    }

    /// Records that the job has ended.
    pub(crate) fn ended(&self) {
        let mut job = self.job();
        if !matches!(*job, Job::Revoked) {
            *job = Job::None;
        }
    }

    /// Gives up the job. Returns whether the context can be used again.
    pub(crate) fn abandon(&self) -> bool {
        let running = match &*self.job() {
            Job::None | Job::Saved(_) => return true,
            Job::Held | Job::Revoked => false,
            Job::Running => true,
        };
        running && matches!(self.hold(), Ok(false)) && {
            self.ended();
            true
        }
    }

    /// Makes the context unusable. Returns when its job is off the slot.
    pub(crate) fn revoke(&self) {
        let was = std::mem::replace(&mut *self.job(), Job::Revoked);
        if matches!(was, Job::Running) {
            if let Err(error) = self.hold() {
                tell(format_args!("a job cannot be stopped: {error}"));
                // If the job leaves the slot later, it then stays off.
                let _ = self.context.preempt(true);
            }
        }
    }

    /// Returns the state and the counters of the driver.
    pub(crate) fn status(&self) -> Result<(State, fermata::uapi::Status)> {
        let status = self.context.status()?;
        Ok((State::from(status.state), status))
    }

    /// Returns the result registers as they were last read from the card; `None`: not read yet.
    pub(crate) fn results(&self) -> Option<AppRegs> {
        let offsets = result_offsets();
        let values = self.context.read_registers(&offsets).ok()?;
        let mut regs = AppRegs::default();
        for (&offset, &value) in offsets.iter().zip(&values) {
            regs.set(offset as u16, value);
        }
        Some(regs)
    }

    /// The descriptor for `poll()`: readable at the end of a job.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.as_fd()
    }
}

/// Returns whether `bytes` are `state` followed by zeros, like a snapshot of whole pages.
fn is_padded(bytes: &[u8], state: &[u8]) -> bool {
    let common = bytes.len().min(state.len());
    let rest = bytes[common..].iter().chain(&state[common..]);
    bytes[..common] == state[..common] && rest.into_iter().all(|byte| *byte == 0)
}

/// Returns all registers that can be results. The tag is not one: it reads as it was written.
fn result_offsets() -> Vec<u32> {
    let all = (0..RESULTS).map(|i| u32::from(APP_FIRST) + 8 * i as u32);
    all.filter(|&offset| offset != u32::from(TAG)).collect()
}

/// A context whose arena is memory of the guest.
pub(crate) struct Lender {
    context: Context,
    /// The IOVAs of the arena.
    memory: Range<u64>,
}

impl Lender {
    /// Makes `memory` the arena of `context`.
    fn new(context: Context, memory: Range<u64>, of: &DmaSpace) -> Result<Self> {
        let size = memory.end - memory.start;
        let view = of.view(memory.start, size).ok_or_else(fault)?;
        // SAFETY: nothing in this process refers to the memory; elsewhere the guest's memory is
        // accessed by volatile copies. The context runs no job, so its device address does not
        // matter.
        unsafe { context.use_memory(view.address(), view.len(), 0)? };
        Ok(Self { context, memory })
    }

    /// Makes the part `window` of the memory the arena of `context`, at the device address `base`.
    fn lend(&self, context: &Context, window: &Range<u64>, base: u64) -> Result<()> {
        let offset = (window.start - self.memory.start) as usize;
        let length = (window.end - window.start) as usize;
        // SAFETY: as above.
        unsafe { context.share_memory(&self.context, offset, length, base) }
    }

    /// Returns whether the memory includes `window`, and is still the guest's.
    fn has(&self, window: &Range<u64>, memory: &DmaSpace) -> bool {
        includes(&self.memory, window) && self.is_mapped(memory)
    }

    /// Returns whether all of the memory is still the guest's.
    fn is_mapped(&self, memory: &DmaSpace) -> bool {
        let Range { start, end } = self.memory;
        memory.covers(start, end - start)
    }
}

/// The lenders of a guest.
pub(crate) struct Lenders {
    /// Whether a lender has all memory around the window for which it is created, instead of only
    /// the window's.
    whole: bool,
    list: Mutex<Vec<Weak<Lender>>>,
}

impl Lenders {
    pub(crate) fn new(whole: bool) -> Self {
        let list = Mutex::default();
        Self { whole, list }
    }

    /// Returns a lender that has all of `window`: an existing one, or a new one with the context
    /// that `open` returns.
    pub(crate) fn of(
        &self,
        window: Range<u64>,
        memory: &DmaSpace,
        open: impl FnOnce() -> Result<Context>,
    ) -> Result<Arc<Lender>> {
        let mut lenders = self.lock();
        let mut all = lenders.iter().filter_map(Weak::upgrade);
        if let Some(lender) = all.find(|lender| lender.has(&window, memory)) {
            return Ok(lender);
        }
        let lender = Arc::new(Lender::new(open()?, self.lent(window, memory), memory)?);
        lenders.retain(|lender| lender.strong_count() > 0);
        lenders.push(Arc::downgrade(&lender));
        Ok(lender)
    }

    /// Returns the memory of a new lender that must have all of `window`.
    fn lent(&self, window: Range<u64>, memory: &DmaSpace) -> Range<u64> {
        let around = self.whole.then(|| memory.range_around(window.start));
        let around = around
            .flatten()
            .map(|(start, length)| start..start + length);
        around
            .filter(|around| includes(around, &window))
            .unwrap_or(window)
    }

    /// Forgets lenders whose memory is no longer the guest's. Must be called before other memory
    /// can have the same IOVAs.
    pub(crate) fn release(&self, memory: &DmaSpace) {
        let is_mapped = |lender: Arc<Lender>| lender.is_mapped(memory);
        self.lock()
            .retain(|lender| lender.upgrade().is_some_and(is_mapped));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Lender>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for an access beyond the guest's memory.
pub(crate) fn fault() -> Error {
    Error::Other(rustix::io::Errno::FAULT.raw_os_error())
}

fn includes(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// How contexts of the guest are created.
pub(crate) struct Settings {
    /// The host's card.
    pub(crate) device: PathBuf,
    /// Parameters that differ from their defaults.
    pub(crate) params: Vec<(Param, u64)>,
    pub(crate) lenders: Lenders,
}

impl Settings {
    /// Opens a context for an engine, with the parameters set.
    pub(crate) fn open(&self, engine: EngineId) -> Result<Context> {
        let context = Context::open(&self.device)?;
        context.setup(engine, 0)?;
        for &(param, value) in &self.params {
            context.set_param(param, value)?;
        }
        Ok(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_compared_without_their_padding() {
        assert!(is_padded(&[1, 2, 0, 0], &[1, 2]));
        assert!(is_padded(&[1, 2], &[1, 2, 0]));
        assert!(!is_padded(&[1, 2, 3], &[1, 2]));
        assert!(!is_padded(&[1, 3], &[1, 2]));
    }

    #[test]
    fn a_key_is_of_a_place_in_memory() {
        let reach = |offset| Reach {
            window_base: 0x7000,
            window_size: 0x1000,
            offset,
            snapshot: 0,
            memory: Box::new(|| None),
        };
        let key = Key::of(&reach(0u64.wrapping_sub(0x1000)));
        assert_eq!(key.iova, 0x6000);
        assert_ne!(key, Key::of(&reach(0)));
        assert!(!key.is_mapped(&DmaSpace::default()));
    }

    #[test]
    fn the_tag_is_no_result() {
        let offsets = result_offsets();
        assert_eq!(offsets.len(), RESULTS - 1);
        assert!(offsets.contains(&0x78) && !offsets.contains(&TAG.into()));
    }

    #[test]
    fn a_lender_has_all_of_the_memory() {
        assert!(includes(&(8..16), &(8..16)) && includes(&(8..16), &(9..15)));
        assert!(!includes(&(8..16), &(7..16)) && !includes(&(8..16), &(8..17)));
    }
}
