// SPDX-License-Identifier: GPL-2.0

//! The contexts: one entry each in storage that the caller gives.
//!
//! Nothing is allocated here, so the number of contexts is bounded by the storage, and adding, finding and freeing one
//! is O(1). Entries are linked by index into the free list or into the queue of their class; an entry is never in both.
//! Behind those of the contexts stand the records of their groups (`group.rs`).

use core::fmt::{self, Debug, Formatter};
use core::ops::{Deref, DerefMut};

use super::clock::Clock;
use super::doorbell::Parting;
use super::group::{Of, Record, Records};
use super::hints::{List, Tally};
use super::limit::{Parked, Purse};
use super::replay::Replays;
use super::tree::Node;
use super::{Duration, Failure, GroupKey, Params, Refusal, SlotId, Time};

/// The index that stands for "none" in a link.
pub(super) const NONE: u32 = u32::MAX;

/// Names one context. An id is never valid again after its [`Action::Released`](super::Action::Released), although its
/// index is used again: the generation tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    index: u32,
    generation: u32,
}

impl ContextId {
    /// The place of the context in the storage, for tables that the caller keeps beside it. Unique among the contexts
    /// that live at one time.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Counts the contexts that had this index before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Where the job of a context stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// There was none yet.
    Idle,
    /// It waits for a slot.
    Queued,
    /// It is on a slot: it runs, is being saved, or the slot is being cleared after it.
    Running,
    /// It is off its slot and waits for [`Event::Resume`](super::Event::Resume).
    Held,
    /// It is off its slot, for its queue is empty, and waits for [`Event::Ring`](super::Event::Ring).
    Empty,
    /// The last one finished.
    Done,
    /// The last one failed.
    Failed(Failure),
}

impl JobState {
    /// Has the job begun and not ended?
    pub const fn is_live(self) -> bool {
        matches!(
            self,
            Self::Queued | Self::Running | Self::Held | Self::Empty
        )
    }

    /// Is there nothing to be done for the context until its owner asks for more?
    pub const fn wants_nothing(self) -> bool {
        !self.is_live() || matches!(self, Self::Empty)
    }
}

/// What a context has done and where it stands, the part that is still running included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Where its job stands.
    pub state: JobState,
    /// The slot that it is on, if any.
    pub slot: Option<SlotId>,
    /// A complete snapshot of its job stands, from which the job will be resumed. It may be read while the job is held.
    pub saved: bool,
    /// It is queued, but must not run yet: its budget or cap is used up.
    pub parked: bool,
    /// It may run: [`Machine::set_enabled`](super::Machine::set_enabled).
    pub enabled: bool,
    /// No slot that it may use is in use: a job that it starts waits until there is one.
    pub no_slot: bool,
    /// Number of the current or last job; the first one is 1. So it is also the number of jobs that were started.
    pub job: u64,
    /// Time on a slot, from each START to the observed end of the run: its own restores and saves are charged to it.
    pub run: Duration,
    /// Time in the queue.
    pub wait: Duration,
    /// STARTs written for it, resumes included.
    pub slices: u64,
    /// Of these, resumes from a snapshot.
    pub resumes: u64,
    /// Saves completed.
    pub preemptions: u64,
    /// How often the current or last job was run again from its beginning ([`Event::Start`](super::Event::Start)).
    pub replays: u64,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
    /// Hints given: [`Event::Hint`](super::Event::Hint).
    pub hints: u64,
    /// Of these, those that were followed by a job.
    pub hints_used: u64,
    /// Those that no job followed in time, or that were taken back after they had cost something.
    pub hints_wasted: u64,
    /// Those that were not listened to, because too much had been wasted by others before.
    pub hints_ignored: u64,
}

/// What stands in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Nothing.
    Free,
    /// A context that its owner has, or the record of a group.
    Used,
    /// A context whose Close was accepted; the owner is gone and the id is refused.
    Closing,
}

/// The scheduler's state of one context, or of a group. Opaque: the caller only provides room for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    generation: u32,
    /// Links the free list; of a context in use, its gang (`gang.rs`); of a record, those with the same bucket.
    pub(super) next: u32,
    /// Links the queue of its class.
    pub(super) node: Node,
    /// Links those that wait for the same class, longest wait first; of records, those that are remembered.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// The record of its group.
    pub(super) group: u32,
    pub(super) record: Record,
    pub(super) clock: Clock,
    pub(super) purse: Purse,
    /// What the run under way is charged at.
    pub(super) weight: u32,
    /// It stands among the contexts of its group, which runs or waits for it: the group is charged for it, too.
    pub(super) grouped: bool,
    /// Why it waits, but must not run yet.
    pub(super) parked: Parked,
    /// It waits, but for no slot that it may use now (`access.rs`).
    pub(super) aside: bool,
    /// Its jobs may run.
    pub(super) enabled: bool,
    /// The slots that it may use now, a bit each; also slots that are out of use.
    pub(super) allowed: u8,
    life: Life,
    /// What the job is to do when it leaves its slot.
    pub(super) parting: Parting,
    /// The job shall let the next one go first when it leaves its slot.
    pub(super) yields: bool,
    /// A complete save stands in the snapshot and has not been resumed yet: the only state to resume from.
    pub(super) saved: bool,
    pub(super) replays: Replays,
    /// Its memory is still within reach of a slot that did not come out of reset.
    pub(super) stuck: bool,
    /// Index of the queue of its class.
    pub(super) queue: u8,
    pub(super) slot: Option<SlotId>,
    pub(super) state: JobState,
    pub(super) params: Params,
    /// A hint stands, in this list. It is linked by `node`, which is free without a job.
    pub(super) hint: Option<List>,
    pub(super) hints: Tally,
    /// When it entered the queue; on a slot, and not yet `charged` to the end of the run: until when it was charged.
    /// Of the record of a group: until when its hints are ignored.
    pub(super) since: Time,
    pub(super) charged: bool,
    pub(super) run: Duration,
    pub(super) wait: Duration,
    pub(super) slices: u64,
    pub(super) resumes: u64,
    pub(super) preemptions: u64,
    pub(super) finished: u64,
    pub(super) failed: u64,
}

// The budget of issue 3: 4,096 contexts and groups in one MiB.
const _: () = assert!(core::mem::size_of::<Entry>() <= 256);

impl Entry {
    /// An entry without a context, to fill new storage with.
    pub const EMPTY: Self = Self::new(0, 0, Params::DEFAULT);

    const fn new(generation: u32, queue: u8, params: Params) -> Self {
        Self {
            generation,
            next: NONE,
            node: Node::EMPTY,
            older: NONE,
            newer: NONE,
            group: NONE,
            record: Record::EMPTY,
            clock: Clock::ZERO,
            purse: Purse::EMPTY,
            weight: Params::WEIGHT_DEFAULT as u32,
            grouped: false,
            parked: Parked::No,
            aside: false,
            enabled: true,
            allowed: params.mask,
            life: Life::Free,
            parting: Parting::Free,
            yields: false,
            saved: false,
            replays: Replays::NONE,
            stuck: false,
            queue,
            slot: None,
            state: JobState::Idle,
            params,
            hint: None,
            hints: Tally::NONE,
            since: Time::ZERO,
            charged: true,
            run: Duration::ZERO,
            wait: Duration::ZERO,
            slices: 0,
            resumes: 0,
            preemptions: 0,
            finished: 0,
            failed: 0,
        }
    }

    /// The record of a group. Its bucket is that of others; `next` links it into its own.
    pub(super) fn for_group(queue: u8, params: Params, record: Record, next: u32) -> Self {
        Self {
            next,
            record,
            life: Life::Used,
            ..Self::new(0, queue, params)
        }
    }

    /// Is it a context or the record of a group, and not free?
    pub(super) fn is_used(&self) -> bool {
        self.life != Life::Free
    }

    /// Has the owner closed it?
    pub(super) fn is_closing(&self) -> bool {
        self.life == Life::Closing
    }

    /// The owner has closed it.
    pub(super) fn close(&mut self) {
        self.life = Life::Closing;
    }

    /// Is it the record of a group?
    pub(super) const fn is_record(&self) -> bool {
        self.group == NONE
    }

    pub(super) fn stats(&self, now: Time) -> Stats {
        let (mut run, mut wait) = (self.run, self.wait);
        match self.state {
            JobState::Queued => wait += now.since(self.since),
            JobState::Running if !self.charged => run += now.since(self.since),
            _ => {}
        }
        Stats {
            state: self.state,
            slot: self.slot,
            saved: self.saved,
            parked: self.is_parked(),
            enabled: self.enabled,
            no_slot: false,
            job: self.finished + self.failed + u64::from(self.state.is_live()),
            run,
            wait,
            slices: self.slices,
            resumes: self.resumes,
            preemptions: self.preemptions,
            replays: self.replays.count(),
            finished: self.finished,
            failed: self.failed,
            hints: self.hints.given.into(),
            hints_used: self.hints.used.into(),
            hints_wasted: self.hints.wasted.into(),
            hints_ignored: self.hints.ignored.into(),
        }
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The storage and its free list.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Slab<S> {
    entries: S,
    /// Places for contexts; those behind them are for records of groups.
    contexts: u32,
    free: u32,
    used: u32,
    pub(super) records: Records,
}

/// Short where entries are empty: see that of [`Machine`](super::Machine).
impl<S: Deref<Target = [Entry]>> Debug for Slab<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            entries,
            contexts,
            free,
            used,
            records,
        } = self;
        f.debug_struct("Slab")
            .field("entries", &Entries(entries))
            .field("contexts", contexts)
            .field("free", free)
            .field("used", used)
            .field("records", records)
            .finish()
    }
}

struct Entries<'a>(&'a [Entry]);

impl Debug for Entries<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(Short)).finish()
    }
}

/// An entry that differs in nothing but this from an empty one says no more.
struct Short<'a>(&'a Entry);

impl Debug for Short<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(entry) = self;
        let &&Entry {
            generation,
            next,
            record,
            ..
        } = entry;
        let empty = Entry {
            generation,
            next,
            record,
            ..Entry::EMPTY
        };
        if **entry != empty {
            return entry.fmt(f);
        }
        f.debug_struct("Entry")
            .field("generation", &generation)
            .field("next", &next)
            .field("record", &record)
            .finish()
    }
}

impl<S: DerefMut<Target = [Entry]>> Slab<S> {
    /// Takes the storage over, for so many contexts; what stood in it is forgotten. O(length), once.
    pub(super) fn new(contexts: usize, mut entries: S) -> Self {
        let len = u32::try_from(entries.len()).unwrap_or(NONE);
        let contexts = u32::try_from(contexts).unwrap_or(NONE).min(len);
        let begins = |at, end| if at < end { at } else { NONE };
        for (i, entry) in (0..len).zip(entries.iter_mut()) {
            *entry = Entry::EMPTY;
            entry.next = begins(i + 1, if i < contexts { contexts } else { len });
        }
        Self {
            entries,
            contexts,
            free: begins(0, contexts),
            used: 0,
            records: Records::new(begins(contexts, len)),
        }
    }

    /// Contexts in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Contexts that fit.
    pub(super) fn capacity(&self) -> usize {
        self.contexts as usize
    }

    /// Where the places for records begin and end.
    pub(super) fn record_places(&self) -> (u32, u32) {
        let len = u32::try_from(self.entries.len()).unwrap_or(NONE);
        (self.contexts, len)
    }

    pub(super) fn add(
        &mut self,
        queue: u8,
        params: Params,
        key: GroupKey,
        weight: u16,
    ) -> Result<ContextId, Refusal> {
        let ctx = self.take(queue, params)?;
        let of = Of {
            queue,
            urgency: params.urgency,
            key,
        };
        if let Err(refusal) = self.join(ctx, &of, weight) {
            self.give_back(ctx, ctx.generation);
            return Err(refusal);
        }
        Ok(ctx)
    }

    fn take(&mut self, queue: u8, params: Params) -> Result<ContextId, Refusal> {
        let index = self.free;
        let entry = self
            .entries
            .get_mut(index as usize)
            .ok_or(Refusal::NoSpace)?;
        let generation = entry.generation;
        self.free = entry.next;
        *entry = Entry::new(generation, queue, params);
        entry.life = Life::Used;
        self.used += 1;
        Ok(ContextId { index, generation })
    }

    pub(super) fn free(&mut self, ctx: ContextId) {
        self.part(ctx);
        self.give_back(ctx, ctx.generation.wrapping_add(1));
    }

    fn give_back(&mut self, ctx: ContextId, generation: u32) {
        let free = self.free;
        if let Some(entry) = self.get_mut(ctx) {
            *entry = Entry::new(generation, 0, Params::DEFAULT);
            entry.next = free;
            self.free = ctx.index;
            self.used = self.used.saturating_sub(1);
        }
    }

    /// The entry of a context that lives, whether its owner still does or not.
    pub(super) fn get(&self, ctx: ContextId) -> Option<&Entry> {
        let entry = self.entries.get(ctx.index())?;
        (entry.is_used() && entry.generation == ctx.generation).then_some(entry)
    }

    pub(super) fn get_mut(&mut self, ctx: ContextId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(ctx.index())?;
        (entry.is_used() && entry.generation == ctx.generation).then_some(entry)
    }

    /// The entry of a context as its owner may name it.
    pub(super) fn owned(&self, ctx: ContextId) -> Result<&Entry, Refusal> {
        self.get(ctx)
            .filter(|entry| !entry.is_closing())
            .ok_or(Refusal::NoContext)
    }

    /// The id of the context at `index`, if there is one.
    pub(super) fn id_at(&self, index: u32) -> Option<ContextId> {
        let entry = self.entries.get(index as usize)?;
        entry.is_used().then_some(ContextId {
            index,
            generation: entry.generation,
        })
    }

    pub(super) fn at(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }
}
