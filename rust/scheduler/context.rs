// SPDX-License-Identifier: GPL-2.0

//! Contexts, and the table that holds them.

use core::ops::{Index, IndexMut};

use super::optional::{gangs::Ring, hints::Hint, reservations::Budget};
use super::values::{
    Class, ContextId, Duration, EntityIndex, Failure, JobState, Params, SlotId, Time,
};
use crate::array::Array;

/// The state of the job of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There has been no job yet.
    #[default]
    Idle,
    /// It waits in a queue, or is kept out of it because it may use no slot.
    Queued,
    /// It is the successor on a slot, and in no queue.
    Bound,
    /// It is on a slot, or the slot is being cleared after it.
    Running,
    /// It is off its slot and waits for a resume.
    Held,
    /// It is off its slot because its queue is empty, and waits for the doorbell.
    Empty,
    /// The last job finished.
    Done,
    /// The last job failed.
    Failed(Failure),
}

impl State {
    pub(super) const fn is_live(self) -> bool {
        use State::{Bound, Empty, Held, Queued, Running};
        matches!(self, Queued | Bound | Running | Held | Empty)
    }

    /// Returns whether the job waits for a slot or is on one.
    pub(super) const fn wants_slot(self) -> bool {
        matches!(self, Self::Queued | Self::Bound | Self::Running)
    }

    /// Returns what reports show. `named`: the context may be on its slot without the host's doing.
    pub(super) const fn report(self, named: bool) -> JobState {
        match self {
            Self::Idle => JobState::Idle,
            Self::Bound if named => JobState::Running,
            Self::Queued | Self::Bound => JobState::Queued,
            Self::Running => JobState::Running,
            Self::Held => JobState::Held,
            Self::Empty => JobState::Empty,
            Self::Done => JobState::Done,
            Self::Failed(failure) => JobState::Failed(failure),
        }
    }
}

/// The next state of a job that leaves its slot, or the slot that it is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OnStop {
    /// It is queued; with an empty queue, it waits for the doorbell.
    #[default]
    Requeue,
    /// It is queued, because the doorbell has been rung.
    Rung,
    /// It is held.
    Hold,
}

/// How often a job whose state was lost may be run again: a card that corrupts every save must not
/// keep the job running for ever.
const RESTARTS_MAX: u8 = 3;

/// Whether a job may be run again from its beginning, and how often it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Restarts {
    pub(super) allowed: bool,
    pub(super) done: u8,
}

impl Restarts {
    /// Counts another restart if that is allowed, and returns whether it is.
    pub(super) fn restart(&mut self) -> bool {
        let may = self.allowed && self.done < RESTARTS_MAX;
        self.done += u8::from(may);
        may
    }
}

/// The neighbours of a context in the list of those that wait, in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) newer: Option<EntityIndex>,
    pub(super) older: Option<EntityIndex>,
}

/// A context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Context {
    pub(super) params: Params,
    pub(super) class: Class,
    pub(super) state: State,
    pub(super) on_stop: OnStop,
    /// The slot that the job is on or bound to.
    pub(super) slot: Option<SlotId>,
    /// The snapshot holds a complete save that has not been resumed yet.
    pub(super) saved: bool,
    /// The owner has closed it; it is released once no slot can reach its memory.
    pub(super) closing: bool,
    /// A slot that is out of use may still reach its memory.
    pub(super) stuck: bool,
    pub(super) enabled: bool,
    /// Its job was started held, or a hold of the job was requested, until RESUME.
    pub(super) hold_requested: bool,
    /// How many holds it has.
    pub(super) holds: u32,
    pub(super) restarts: Restarts,
    pub(super) hint: Hint,
    pub(super) budget: Budget,
    pub(super) neighbours: Neighbours,
    pub(super) ring: Ring,
    /// When its job was queued; if it wants no slot, since when.
    pub(super) since: Time,
    /// When its owner asked for a job for which no START was written yet.
    pub(super) arrived: Option<Time>,
    pub(super) run: Duration,
    pub(super) wait: Duration,
    pub(super) slices: u64,
    pub(super) resumes: u64,
    pub(super) preemptions: u64,
    pub(super) finished: u64,
    pub(super) failed: u64,
}

impl Context {
    pub(super) fn new(class: Class, params: Params, now: Time) -> Self {
        Self {
            params,
            class,
            state: State::Idle,
            on_stop: OnStop::Requeue,
            slot: None,
            saved: false,
            closing: false,
            stuck: false,
            enabled: true,
            hold_requested: false,
            holds: 0,
            restarts: Restarts {
                allowed: false,
                done: 0,
            },
            hint: Hint::default(),
            budget: Budget::default(),
            neighbours: Neighbours {
                newer: None,
                older: None,
            },
            ring: Ring::NONE,
            since: now,
            arrived: None,
            run: Duration::ZERO,
            wait: Duration::ZERO,
            slices: 0,
            resumes: 0,
            preemptions: 0,
            finished: 0,
            failed: 0,
        }
    }

    /// Returns the number of the current or last job.
    pub(super) fn job(&self) -> u64 {
        self.finished + self.failed + u64::from(self.state.is_live())
    }

    /// Sets the state of a context that wants no slot any more.
    pub(super) fn rest(&mut self, now: Time, state: State) {
        if matches!(self.state, State::Queued | State::Bound) {
            self.end_wait(now);
        } else if self.state == State::Running {
            self.since = now;
        }
        self.state = state;
        self.slot = None;
    }

    /// Counts the time that the job has waited, because it waits no longer.
    pub(super) fn end_wait(&mut self, now: Time) {
        self.wait += now.since(self.since);
        self.since = now;
    }
}

/// A place for a context. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many contexts were freed here.
    generation: u32,
    used: bool,
    context: Context,
}

/// A free place to fill new storage with.
impl Default for Place {
    fn default() -> Self {
        Self {
            generation: 0,
            used: false,
            context: Context::new(Class::from_number(0), Params::DEFAULT, Time::ZERO),
        }
    }
}

/// The contexts of a card.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct Contexts {
    places: Array<Place>,
    /// The first free place; places are linked by `neighbours.newer`.
    free: Option<EntityIndex>,
    used: u32,
}

impl Contexts {
    /// Returns no contexts. O(length of the storage).
    pub(super) fn new(mut places: Array<Place>) -> Self {
        let len = places.len();
        for (at, place) in places.iter_mut().enumerate() {
            *place = Place::default();
            place.context.neighbours.newer = (at + 1 < len).then(|| EntityIndex::new(at + 1));
        }
        Self {
            places,
            free: (len != 0).then(|| EntityIndex::new(0)),
            used: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns how many contexts there are.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Returns the place that the next context gets; `None`: all are in use.
    pub(super) fn next_free(&self) -> Option<EntityIndex> {
        self.free
    }

    /// Puts a context into the next free place.
    pub(super) fn add(&mut self, context: Context) {
        if let Some(at) = self.free {
            self.free = self[at].neighbours.newer;
            self.used += 1;
            let place = &mut self.places[at.at()];
            (place.used, place.context) = (true, context);
        }
    }

    /// Frees the place of a context, whose name is not used again.
    pub(super) fn remove(&mut self, at: EntityIndex) {
        let place = &mut self.places[at.at()];
        if core::mem::take(&mut place.used) {
            place.generation = place.generation.wrapping_add(1);
            place.context.neighbours.newer = self.free;
            self.free = Some(at);
            self.used -= 1;
        }
    }

    /// Returns the name of a context.
    #[inline]
    pub(super) fn id(&self, at: EntityIndex) -> ContextId {
        // CAST: an index.
        ContextId::new(at.at() as u32, self.places[at.at()].generation)
    }

    /// Returns the context with a name that was not released, whether it was closed or not.
    pub(super) fn find(&self, id: ContextId) -> Option<EntityIndex> {
        let place = self.places.get(id.index())?;
        let is_named = place.used && place.generation == id.generation();
        is_named.then(|| EntityIndex::new(id.index()))
    }

    /// Returns the context at a place, if there is one.
    pub(super) fn at(&self, place: usize) -> Option<EntityIndex> {
        let is_used = self.places.get(place)?.used;
        is_used.then(|| EntityIndex::new(place))
    }
}

/// A context is named by its place while it exists; a name from outside is looked up first.
impl Index<EntityIndex> for Contexts {
    type Output = Context;

    #[inline]
    fn index(&self, at: EntityIndex) -> &Context {
        &self.places[at.at()].context
    }
}

impl IndexMut<EntityIndex> for Contexts {
    #[inline]
    fn index_mut(&mut self, at: EntityIndex) -> &mut Context {
        &mut self.places[at.at()].context
    }
}
