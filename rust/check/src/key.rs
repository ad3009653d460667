// SPDX-License-Identifier: GPL-2.0

//! What makes two states of the machine the same.
//!
//! The machine is opaque and has counters that grow for ever, so its `Debug` text is read, token by
//! token. Everything in the text belongs to the key, except for:
//! - values that only reports show (run and wait times, counters of jobs, slices and saves), which
//!   are left out;
//! - START counts and generations of ids, which are relative to the current ones;
//! - future points in time, virtual times and turns in a queue, of which only the order counts;
//! - spans of time, and times at which something began, which are left out: they only decide when a
//!   timer fires, and the order of timers is kept.
//!
//! So two states that differ only in how long something took count as one, and only the first one
//! met is followed. The checker reports no false breach, and finds every breach that depends on the
//! order of events, but none that needs a certain mean of save times.
//!
//! A new field of the machine is automatically in the key. A field that grows for ever makes the
//! state space infinite, which the tests notice; such a field belongs to `left_out`.

use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Is the field of a structure shown only by reports, or constant?
fn left_out(inside: Inside, field: Name) -> bool {
    match inside {
        Inside::Context => matches!(
            field,
            Name::SINCE
                | Name::CHARGED_UNTIL
                | Name::ARRIVING
                | Name::ARRIVED
                // The owner's part of the key has what matters of this.
                | Name::HINTED_AT
                | Name::RUN
                | Name::WAIT
                | Name::SLICES
                | Name::RESUMES
                | Name::PREEMPTIONS
                | Name::FINISHED
                | Name::FAILED
                | Name::HINTS
                // No context has a budget or a cap.
                | Name::BANDWIDTH
        ),
        Inside::Group => matches!(field, Name::RUN | Name::BANDWIDTH | Name::BUCKET),
        // The longest turn of late limits only how far siblings may be apart.
        Inside::Entity => field == Name::STEP,
        // A plan follows from all the rest.
        Inside::Slot => field == Name::PLAN,
        Inside::Fsm => matches!(
            field,
            Name::CONFIG | Name::STATS | Name::FIRED | Name::IDLE_SINCE
        ),
        Inside::Run => field == Name::STARTED,
        Inside::Pause => field == Name::SINCE,
        Inside::Place | Inside::ContextId | Inside::Other => false,
    }
}

/// A word of the text, by its hash: most of the time of a check is spent on reading, and words are
/// compared at each step.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name(u64);

const fn mix(hash: u64, piece: u64) -> u64 {
    (hash ^ piece)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// Names, and their words.
macro_rules! names {
    ($($name:ident = $word:literal)*) => {
        impl Name {
            $(const $name: Self = Self::of($word);)*
        }
    };
}

names! {
    AFTER = "after"
    ARRIVED = "arrived"
    ARRIVING = "arriving"
    BANDWIDTH = "bandwidth"
    BUCKET = "bucket"
    CHARGED_UNTIL = "charged_until"
    CONFIG = "config"
    CONTEXT = "Context"
    CONTEXT_ID = "ContextId"
    COUNT = "count"
    DONE = "Done"
    DURATION = "Duration"
    ENTITY = "Entity"
    FAILED_JOB = "Failed"
    FAILED = "failed"
    FAULT = "Fault"
    FINISHED = "finished"
    FIRED = "fired"
    FSM = "SlotFsm"
    GENERATION = "generation"
    GROUP = "Group"
    HINTED_AT = "hinted_at"
    HINTS = "hints"
    IDLE = "Idle"
    IDLE_SINCE = "idle_since"
    INDEX = "index"
    KEY = "key"
    MIN_VRUNTIME = "min_vruntime"
    PAUSE = "Pause"
    PLACE = "Place"
    PLAN = "plan"
    PREEMPTIONS = "preemptions"
    PREEMPT_TIMEOUT = "PreemptTimeout"
    PROTOCOL = "Protocol"
    REGISTRATION = "Registration"
    RESUMES = "resumes"
    RUN_OF_JOB = "Run"
    RUN = "run"
    SCHED_CONTEXT = "SchedContext"
    SCHED_ENTITY = "SchedEntity"
    SCHED_GROUP = "SchedGroup"
    SINCE = "since"
    SLICES = "slices"
    SLOT = "Slot"
    SNAPSHOT = "Snapshot"
    STARTED = "started"
    STATE = "state"
    STATS = "stats"
    STEP = "step"
    TIME = "Time"
    TURN = "turn"
    TURNS = "turns"
    VRUNTIME = "vruntime"
    WAIT = "wait"
}

impl Name {
    /// Hashes a word in pieces of eight bytes; the final hash of keys is good enough.
    const fn of(word: &str) -> Self {
        let (mut rest, mut hash) = (word.as_bytes(), word.len() as u64);
        while let Some((piece, behind)) = rest.split_first_chunk() {
            hash = mix(hash, u64::from_le_bytes(*piece));
            rest = behind;
        }
        if let Some((piece, behind)) = rest.split_first_chunk() {
            hash = mix(hash, u32::from_le_bytes(*piece) as u64);
            rest = behind;
        }
        while let [byte, behind @ ..] = rest {
            hash = mix(hash, *byte as u64);
            rest = behind;
        }
        Self(hash)
    }

    fn field(self) -> Field {
        match self {
            Self::AFTER => Field::After,
            Self::COUNT => Field::Count,
            Self::GENERATION => Field::Generation,
            Self::INDEX => Field::Index,
            Self::STATE => Field::State,
            Self::VRUNTIME | Self::MIN_VRUNTIME | Self::KEY => Field::Virtual,
            Self::TURN | Self::TURNS => Field::Turn,
            _ => Field::Other,
        }
    }

    fn structure(self) -> Inside {
        match self {
            Self::PLACE => Inside::Place,
            Self::SCHED_CONTEXT | Self::CONTEXT => Inside::Context,
            Self::SCHED_GROUP | Self::REGISTRATION | Self::GROUP => Inside::Group,
            Self::ENTITY => Inside::Entity,
            // Also the name of a failure, which has no fields.
            Self::FSM | Self::PROTOCOL => Inside::Fsm,
            Self::SLOT => Inside::Slot,
            Self::RUN_OF_JOB => Inside::Run,
            Self::PAUSE => Inside::Pause,
            Self::CONTEXT_ID => Inside::ContextId,
            _ => Inside::Other,
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::TIME => Unit::Time,
            Self::DURATION => Unit::Duration,
            _ => Unit::None,
        }
    }

    /// Is this the reason of a failure, which the machine does not use again?
    fn is_failure(self) -> bool {
        matches!(
            self,
            Self::PREEMPT_TIMEOUT | Self::FAULT | Self::SNAPSHOT | Self::PROTOCOL
        )
    }
}

/// The enclosing structure, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Place,
    Context,
    Entity,
    Group,
    Slot,
    Fsm,
    Run,
    Pause,
    ContextId,
    Other,
}

/// Collects the parts of a state.
pub(crate) struct Key {
    now: u64,
    words: Vec<u64>,
    times: Vec<u64>,
    /// The virtual times and turns of waiting contexts, if the policy uses them.
    places: Option<Vec<u64>>,
    turns: Vec<u64>,
}

/// Values that are read from the machine besides its key.
#[derive(Default)]
pub(crate) struct Counts {
    /// The START count that each slot expects.
    pub(crate) starts: Vec<u64>,
    /// The generation of each place, those of contexts first.
    generations: Vec<u64>,
}

impl Key {
    /// `fair`: virtual times matter.
    pub(crate) fn new(now: u64, fair: bool) -> Self {
        Self {
            places: fair.then(|| Vec::with_capacity(16)),
            turns: Vec::with_capacity(16),
            now,
            words: Vec::with_capacity(512),
            times: Vec::with_capacity(32),
        }
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.words.push(word);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.words.push(Name::of(text).0);
    }

    /// Adds a deadline; once it has passed, its time does not matter.
    pub(crate) fn deadline(&mut self, at: u64) {
        self.times.push(at.max(self.now));
    }

    pub(crate) fn finish(mut self) -> u64 {
        self.times.push(self.now);
        let places = self.places.unwrap_or_default();
        for group in [self.times, places, self.turns] {
            let mut order = group.clone();
            order.sort_unstable();
            order.dedup();
            for at in group {
                let rank = order.binary_search(&at).unwrap_or_default();
                self.words.push(rank as u64);
            }
        }
        let mut hasher = DefaultHasher::new();
        self.words.hash(&mut hasher);
        hasher.finish()
    }

    /// Reads the machine.
    pub(crate) fn machine(&mut self, machine: &impl Debug) -> Counts {
        let mut reader = Reader {
            key: self,
            inside: Vec::with_capacity(16),
            structure: Inside::Other,
            time: Unit::None,
            field: Field::Other,
            word: Candidate {
                len: 0,
                field: Field::Other,
                left_out: false,
            },
            index: 0,
            skip: None,
            counts: Counts::default(),
        };
        write!(reader, "{machine:?}").expect("the reader takes all");
        reader.counts
    }
}

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    None,
    Time,
    Duration,
}

/// The field that is being read, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    After,
    Count,
    Generation,
    Index,
    State,
    Virtual,
    Turn,
    Other,
}

/// A word that turns out to be a field's name if a colon follows.
struct Candidate {
    /// Length of the key before it.
    len: usize,
    field: Field,
    left_out: bool,
}

/// Reads `Debug` text in the pieces that derived implementations write: words, numbers and
/// punctuation, separately.
struct Reader<'a> {
    key: &'a mut Key,
    inside: Vec<Inside>,
    /// What the last word names.
    structure: Inside,
    time: Unit,
    field: Field,
    word: Candidate,
    index: usize,
    /// A field's value is left out until something else follows at this depth.
    skip: Option<usize>,
    counts: Counts,
}

impl Write for Reader<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let around = *self.inside.last().unwrap_or(&Inside::Other);
        match piece.trim_ascii_start().as_bytes() {
            [] => {}
            [open @ (b'{' | b'(' | b'['), ..] => {
                let structure = *open == b'{';
                self.inside
                    .push(if structure { self.structure } else { around });
            }
            [b'}' | b')' | b']', ..] => {
                self.inside.pop();
                if self.skip.is_some_and(|depth| self.inside.len() < depth) {
                    self.skip = None;
                }
            }
            [b',', ..] => {
                if self.skip == Some(self.inside.len()) {
                    self.skip = None;
                }
            }
            _ if self.skip.is_some() => {}
            [b':', ..] => {
                self.key.words.truncate(self.word.len);
                self.field = self.word.field;
                self.time = Unit::None;
                if self.word.left_out {
                    self.skip = Some(self.inside.len());
                }
            }
            [b'0'..=b'9', ..] => self.number(around, piece.parse().unwrap_or(u64::MAX)),
            _ => self.ident(around, Name::of(piece)),
        }
        Ok(())
    }
}

impl Reader<'_> {
    fn number(&mut self, around: Inside, number: u64) {
        match (around, self.field, self.time) {
            (_, _, Unit::Time) => self.key.deadline(number),
            // A run stops at once or later. The run that an order refers to is the slot's.
            (_, Field::After, Unit::Duration) => self.key.word(u64::from(number != 0)),
            (_, Field::After, Unit::None) | (_, _, Unit::Duration) => {}
            (Inside::Fsm, Field::Count, _) => self.counts.starts.push(number),
            (Inside::Place, Field::Generation, _) => self.counts.generations.push(number),
            (_, Field::Virtual, _) => {
                if let Some(places) = &mut self.key.places {
                    places.push(number);
                }
            }
            (_, Field::Turn, _) => self.key.turns.push(number),
            (Inside::ContextId, Field::Index, _) => {
                self.index = number as usize;
                self.key.word(number);
            }
            (Inside::ContextId, Field::Generation, _) => {
                let current = self.counts.generations.get(self.index);
                let behind = number.wrapping_sub(current.copied().unwrap_or_default());
                self.key.word(behind);
            }
            _ => self.key.word(number),
        }
        self.time = Unit::None;
    }

    fn ident(&mut self, around: Inside, word: Name) {
        self.word = Candidate {
            len: self.key.words.len(),
            field: word.field(),
            left_out: left_out(around, word),
        };
        self.structure = word.structure();
        self.time = word.unit();
        match (around, self.field, word) {
            (_, _, Name::TIME | Name::DURATION | Name::PLACE | Name::SCHED_ENTITY | Name::SLOT) => {
            }
            // Without a job it does not matter how the last one ended.
            (Inside::Context, Field::State, Name::IDLE | Name::DONE | Name::FAILED_JOB) => {
                self.key.word(0);
            }
            _ if word.is_failure() => {}
            _ => self.key.word(word.0),
        }
    }
}
