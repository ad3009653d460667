// SPDX-License-Identifier: GPL-2.0-or-later
//! What the card sees and does: the lines of its log, which are all that the checker and the ledger
//! know.

use crate::config::{CardConfig, Settings};
use crate::relay::{Order, Reason};
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};

/// A range of guest-physical memory: start, length.
pub type Range = (u64, u64);

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// `CLOCK_MONOTONIC` of the host in nanoseconds.
    pub t: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// Parses a line. Here, and not in each program, the parser is compiled, once.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}

/// What a slot is doing, as the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing has run since the reset.
    Idle,
    /// Reads a snapshot.
    Restoring,
    /// Computes.
    Running,
    /// Writes a snapshot.
    Saving,
    /// Writes its result.
    Ending,
    /// The job ended.
    Finished,
    /// The job was saved.
    Paused,
}

impl Phase {
    /// Returns whether a START is refused and windows must not change.
    pub fn busy(self) -> bool {
        matches!(
            self,
            Self::Restoring | Self::Running | Self::Saving | Self::Ending
        )
    }
}

/// Who issued a DMA access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The engine, for its program.
    Engine,
    /// The save and restore unit.
    Snapshot,
    /// The unit that reads contexts, and writes results and records.
    Control,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderFate {
    /// Held for the present run.
    Held,
    /// It withdrew the held order.
    Withdrawn,
    /// Taken at once by a vacant slot.
    Taken,
    /// It was for another run, or for a vacant slot when the slot was not vacant, or the reverse.
    Dropped,
    /// A misbehaviour swallowed it.
    Ignored,
    /// RELAY is off.
    Off,
}

impl OrderFate {
    /// Returns whether the order changed nothing.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Dropped | Self::Ignored | Self::Off)
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordFate {
    /// Its last word comes next.
    Posted,
    /// A misbehaviour swallowed it, or memory did not answer.
    Lost,
    /// It comes later (a misbehaviour).
    Late,
    /// Its last word comes next, the rest comes later (a misbehaviour).
    Torn,
}

/// What became of a PAUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseFate {
    /// The engine ran and will save.
    Honoured,
    /// The engine did not run.
    Dropped,
    /// A misbehaviour swallowed it.
    Ignored,
}

/// How far a save got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavePart {
    /// It begins; the previous contents are lost.
    Begin,
    /// It is complete.
    Done,
    /// It failed or was cut short.
    Torn,
}

/// What a save wrote, and what it could omit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Frames that were written.
    pub saved: u64,
    /// Frames that were in the snapshot already, unchanged.
    pub skipped: u64,
    /// Bytes of the frames that were written.
    pub saved_bytes: u64,
    /// Bytes of the frames that were skipped.
    pub skipped_bytes: u64,
    /// What the skipped frames would have cost.
    pub skipped_ns: u64,
}

impl Frames {
    /// Adds the frames of another save.
    pub fn add(&mut self, other: Self) {
        self.saved += other.saved;
        self.skipped += other.skipped;
        self.saved_bytes += other.saved_bytes;
        self.skipped_bytes += other.skipped_bytes;
        self.skipped_ns += other.skipped_ns;
    }
}

/// What became of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IrqFate {
    /// Sent.
    Sent,
    /// A misbehaviour swallowed it, or nobody listens to the vector.
    Lost,
    /// Sent without reason (a misbehaviour).
    Spurious,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
#[allow(missing_docs)] // the fields are named as in docs/emulated-card.md
pub enum What {
    /// First line: what the card is made of.
    Card { config: CardConfig },
    /// A client plugged the card.
    Connect,
    /// The client is gone. The next one finds the card in its state after power-on, and a guest
    /// without known tenants.
    Disconnect,
    /// Function-level reset, bus reset, or power-on after `dead`: all slots are in their state
    /// after power-on.
    DeviceReset,
    /// The card acts dead, or is back.
    Dead { on: bool },
    /// Bus mastering was switched.
    Master { on: bool },
    /// A register was read.
    Read { off: u64, len: u64, val: u64 },
    /// A read of a register was lost on its way to the card (a misbehaviour).
    LostRead { off: u64 },
    /// A foreign card did not answer the read before.
    Unanswered { off: u64 },
    /// The library of a foreign card did what its interface does not allow.
    BadCall { text: String },
    /// A register was written.
    Write { off: u64, len: u64, val: u64 },
    /// RESET took effect in a slot. `aborted`: its engine was at work.
    SlotReset { slot: usize, aborted: bool },
    /// A START was written.
    Start {
        slot: usize,
        resume: bool,
        accepted: bool,
        tag: u64,
    },
    /// A `START_NEW` was accepted, and the result register at `off` still shows a value of an
    /// earlier job.
    ResultsLeft { slot: usize, off: u16 },
    /// A PAUSE was written, or a `PAUSE_AT_BOUNDARY`.
    Pause {
        slot: usize,
        fate: PauseFate,
        #[serde(default)]
        at_boundary: bool,
    },
    /// The slot enters a phase.
    Phase {
        slot: usize,
        phase: Phase,
        fault: bool,
        snapshot_error: bool,
        /// Paused because its queue was empty.
        #[serde(default)]
        empty: bool,
    },
    /// The slot reports `n` completions while it runs.
    Completions { slot: usize, n: u64 },
    /// An order was written when RUN was `run`. `seen`: digest of the context that an accepted
    /// order names.
    Order {
        slot: usize,
        order: Order,
        run: u32,
        fate: OrderFate,
        seen: Option<u64>,
    },
    /// Run `run` of a context begins.
    Take { slot: usize, run: u32, context: u64 },
    /// The context of a run was loaded: digest of what was read, and the registers that were set.
    Load {
        slot: usize,
        run: u32,
        context: u64,
        seen: u64,
        regs: Vec<(u16, u64)>,
    },
    /// A run that an order began is over. `next`: context + 1 of the run that follows, or 0.
    /// `seen`: digest of its context now.
    Record {
        slot: usize,
        run: u32,
        context: u64,
        reason: Reason,
        next: u64,
        void: bool,
        results_lost: bool,
        fate: RecordFate,
        seen: Option<u64>,
    },
    /// All of a record that was late or torn is in memory. `irq`: its interrupt comes now.
    RecordLanded { slot: usize, run: u32, irq: bool },
    /// Memory did not answer when the rest of a record was written.
    RecordLost { slot: usize, run: u32 },
    /// A save begins or ends at these guest-physical ranges.
    Save {
        slot: usize,
        tag: u64,
        part: SavePart,
        at: Vec<Range>,
        hash: u64,
        #[serde(default)]
        frames: Frames,
    },
    /// A snapshot was read.
    Restore {
        slot: usize,
        tag: u64,
        at: Vec<Range>,
        hash: u64,
    },
    /// DMA of a slot, gathered: `n` accesses in these ranges (64-byte lines). A foreign card may
    /// not tell the slot.
    Dma {
        slot: Option<usize>,
        tag: u64,
        unit: Unit,
        write: bool,
        n: u64,
        ranges: Vec<Range>,
    },
    /// DMA for which memory did not answer.
    DmaError {
        slot: Option<usize>,
        unit: Unit,
        write: bool,
        iova: u64,
    },
    /// The window refused an access.
    Refused {
        slot: usize,
        addr: u64,
        len: u64,
        write: bool,
    },
    /// Base: DMA may be under way until `until`.
    Drain { slot: usize, until: u64 },
    /// An interrupt.
    Irq { slot: usize, fate: IrqFate },
    /// Settings of a slot from now on.
    Settings { slot: usize, settings: Settings },
    /// A misbehaviour was switched.
    Misbehave { slot: usize, text: String },
    /// Pages of a tenant.
    Tenant { token: u64, pages: Vec<Range> },
    /// The tenant's pages are no longer its own.
    TenantGone { token: u64 },
    /// No DMA may touch this.
    Canary { gpa: u64, len: u64 },
    /// The canary is gone.
    CanaryGone { gpa: u64 },
    /// Whether engines must not touch pages without an owner.
    Enforce { on: bool },
    /// The next restore of the tenant is from a state that this card has not saved, with this
    /// digest if it is known.
    Import { token: u64, hash: Option<u64> },
    /// Whether states from other cards may arrive at any time, unannounced.
    Imports { on: bool },
    /// A mark set by a test.
    Mark { text: String },
    /// Violation counts start at 0 again.
    ClearViolations,
    /// Counters of a slot start at 0 again.
    ClearCounters { slot: usize },
    /// Gap samples of a slot start over.
    ClearGaps { slot: usize },
    /// Guest memory is mapped.
    Map {
        iova: u64,
        len: u64,
        gpa: u64,
        fd: bool,
        flags: u32,
    },
    /// Guest memory is unmapped.
    Unmap { iova: u64, len: u64 },
    /// The checker's verdict on the previous event (written by the log, not read by the checker).
    Violation { kind: String, text: String },
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Converts microseconds to nanoseconds, saturating.
pub const fn us(n: u64) -> u64 {
    n.saturating_mul(1000)
}
