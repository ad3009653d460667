// SPDX-License-Identifier: GPL-2.0-or-later
//! The checker: a pure function of the events. It knows the protocol and the owners of pages, and
//! nothing of the card's internals.

mod relay;
mod snapshots;

use crate::config::{CardConfig, Profile, Settings};
use crate::dma::LINE;
use crate::event::{Event, IrqFate, PauseFate, Phase, Range, SavePart, Unit, What};
use crate::regs::{ctl, slot_of_page, Reg, SlotReg, TAG};
use clap::ValueEnum;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use relay::RelayView;
use snapshots::Snapshots;

/// What a driver can do wrong, and at the end what the card itself can do wrong. The names are
/// those of `docs/emulated-card.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Kind {
    StartBusy,
    StartUndrained,
    WindowBusy,
    ResumeIncomplete,
    ResumeStale,
    ResumeForged,
    ResumeUnreset,
    MixedTenant,
    RegisterResidue,
    ForeignDma,
    SnapshotInArena,
    Canary,
    UnmappedDma,
    BadAccess,
    UnansweredRead,
    WriteRunning,
    MasterBusy,
    UnaskedPause,
    UnaskedIrq,
    ResultResidue,
    ContextChanged,
    NamedTwice,
    OrderBad,
    ControlInArena,
    StaleOrderTaken,
    /// A record whose words a misbehaviour holds back is missing only if memory does not respond in
    /// the end; until then `EarlyLoad` applies.
    RecordMissing,
    EarlyLoad,
    BadCall,
}

impl Kind {
    /// Returns the name used in replies.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().into())
    }
}

const PAGE: u64 = 4096;

/// Counts violations.
#[derive(Debug, Default)]
pub struct Checker {
    config: Option<CardConfig>,
    slots: Vec<SlotView>,
    snapshots: Snapshots,
    owners: HashMap<u64, Owners>,
    canaries: BTreeMap<u64, u64>,
    enforce: bool,
    /// The card acts dead.
    dead: bool,
    /// `CTX_COUNT`
    contexts: u64,
    counts: BTreeMap<Kind, u64>,
    last: String,
    found: Vec<What>,
}

#[derive(Debug, Default)]
struct Owners {
    live: Vec<u64>,
    gone: bool,
}

/// A value that was written to an application register, and for whom (`None`: for the job that will
/// be started next).
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u64,
    owner: Option<u64>,
}

#[derive(Debug)]
struct SlotView {
    phase: Phase,
    /// The TAG that the present or last run was started with.
    running_tag: u64,
    tag: u64,
    app: BTreeMap<u16, Written>,
    /// Values of the registers that must not change while the slot is busy.
    controls: BTreeMap<&'static str, u64>,
    job: Option<u64>,
    dirty: bool,
    reset_at: Option<u64>,
    drain_until: u64,
    unflushed: bool,
    settings: Settings,
    /// The RESET bit is set, whether it has an effect or not.
    in_reset: bool,
    reasons: Reasons,
    relay: RelayView,
}

/// Why the card may now do something without a command at this moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reasons {
    /// A PAUSE was honoured since the START.
    pause: bool,
    /// There is something to interrupt for.
    irq: bool,
}

impl SlotView {
    fn new(settings: Settings) -> Self {
        Self {
            phase: Phase::Idle,
            running_tag: 0,
            tag: 0,
            app: BTreeMap::new(),
            controls: BTreeMap::new(),
            job: None,
            dirty: false,
            reset_at: None,
            drain_until: 0,
            unflushed: false,
            settings,
            in_reset: false,
            reasons: Reasons::default(),
            relay: RelayView::default(),
        }
    }

    /// Returns why it is too early for a START or for another DMA offset.
    fn undrained(&self, t: u64) -> Option<String> {
        let settled = self.reset_at.map_or(0, |at| {
            at.saturating_add(self.settings.settle_us.saturating_mul(1000))
        });
        if self.unflushed {
            return Some("the status was not read since the reset of a running job".into());
        }
        (t < settled.max(self.drain_until))
            .then(|| format!("{} ns too early", settled.max(self.drain_until) - t))
    }
}

impl Checker {
    /// Processes one event. Returns its violations, as log lines.
    pub fn step(&mut self, event: &Event) -> Vec<What> {
        let t = event.t;
        match &event.what {
            What::Card { config } => {
                let slots = config.slots.iter().map(|slot| SlotView::new(slot.settings));
                *self = Self {
                    slots: slots.collect(),
                    config: Some(config.clone()),
                    ..Self::default()
                };
            }
            What::DeviceReset => self.power_on(),
            What::Dead { on } => self.dead = *on,
            What::Disconnect => self.forget_guest(),
            What::Read { off, len, .. } => self.read(*off, *len),
            What::Write { off, len, val } => self.write(t, *off, *len, *val),
            What::Master { on } => self.master(t, *on),
            What::Tenant { token, pages } => self.tenant(*token, pages),
            What::TenantGone { token } => self.tenant_gone(*token),
            What::Canary { gpa, len } => drop(self.canaries.insert(*gpa, *len)),
            What::CanaryGone { gpa } => drop(self.canaries.remove(gpa)),
            What::Enforce { on } => {
                self.enforce = *on;
                if !on {
                    self.forget_gone();
                }
            }
            What::Import { token, hash } => self.snapshots.import(*token, *hash),
            What::BadCall { text } => self.violate(Kind::BadCall, text.clone()),
            What::Imports { on } => self.snapshots.any = *on,
            What::ClearViolations => {
                self.counts.clear();
                self.last.clear();
            }
            what => self.slot_event(t, what),
        }
        std::mem::take(&mut self.found)
    }

    fn slot_event(&mut self, t: u64, what: &What) {
        match what {
            What::SlotReset { slot, aborted } => self.slot_reset(t, *slot, *aborted),
            What::Start {
                slot,
                resume,
                accepted,
                tag,
            } => self.start(t, *slot, *resume, *accepted, *tag),
            What::Phase {
                slot, phase, empty, ..
            } => self.enter(*slot, *phase, *empty),
            What::ResultsLeft { slot, off } => {
                self.violate(
                    Kind::ResultResidue,
                    format!(
                        "slot {slot}: after START_NEW, register {off:#x} shows a result of a \
                         job before"
                    ),
                );
            }
            What::Pause {
                slot,
                fate: PauseFate::Honoured,
                ..
            } => self.slots[*slot].reasons.pause = true,
            What::Completions { slot, .. } => self.completions(*slot),
            What::Irq {
                slot,
                fate: IrqFate::Sent,
            } => self.irq(*slot),
            What::Save {
                slot,
                tag,
                part,
                at,
                hash,
                ..
            } => self.save(*slot, *tag, *part, at, *hash),
            What::Restore {
                slot,
                tag,
                at,
                hash,
            } => self.restore(*slot, *tag, at, *hash),
            What::Dma {
                slot,
                tag,
                unit,
                write,
                ranges,
                ..
            } => self.dma(*slot, *tag, *unit, *write, ranges),
            What::DmaError {
                slot,
                unit: unit @ (Unit::Snapshot | Unit::Control),
                iova,
                ..
            } => {
                self.violate(
                    Kind::UnmappedDma,
                    format!("{}: {unit:?} at IOVA {iova:#x}", name_of(*slot)),
                );
            }
            What::Drain { slot, until } => {
                if let Some(view) = self.slots.get_mut(*slot) {
                    view.drain_until = view.drain_until.max(*until);
                }
            }
            What::Settings { slot, settings } => {
                if let Some(view) = self.slots.get_mut(*slot) {
                    view.settings = *settings;
                }
            }
            what => self.relay_event(t, what),
        }
    }

    /// Returns the counts of the kinds that occurred.
    pub fn counts(&self) -> &BTreeMap<Kind, u64> {
        &self.counts
    }

    /// Returns the number of all violations.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the reply to `violations`.
    pub fn text(&self) -> String {
        let mut text = format!("total={}", self.total());
        for (kind, n) in &self.counts {
            let _ = write!(text, " {}={n}", kind.name());
        }
        text
    }

    /// Returns the digest of a tenant's newest snapshot; empty if there is none.
    pub fn saved_text(&self, token: u64) -> String {
        self.snapshots
            .saved(token)
            .map_or_else(String::new, |hash| format!("hash={hash:#x}"))
    }

    /// Returns the last violation.
    pub fn why(&self) -> &str {
        &self.last
    }

    fn violate(&mut self, kind: Kind, text: String) {
        *self.counts.entry(kind).or_default() += 1;
        self.last = format!("{}: {text}", kind.name());
        self.found.push(What::Violation {
            kind: kind.name(),
            text,
        });
    }

    /// Forgets all about the slots except their settings, which survive every reset.
    fn power_on(&mut self) {
        for view in &mut self.slots {
            *view = SlotView::new(view.settings);
        }
        self.contexts = 0;
    }

    fn forget_guest(&mut self) {
        self.power_on();
        self.snapshots.forget();
        self.owners.clear();
        self.canaries.clear();
        self.enforce = false;
        self.dead = false;
    }

    fn base(&self) -> bool {
        self.config
            .as_ref()
            .is_some_and(|c| c.profile == Profile::Base)
    }

    fn decode(&mut self, off: u64, len: u64, write: bool) -> Option<Reg> {
        let config = self.config.as_ref()?;
        let reg = Reg::at(off, config.profile, config.slots.len());
        if reg == Some(Reg::Msix) {
            return None;
        }
        let reg = reg.filter(|r| len == 8 && (!write || r.writable()));
        if reg.is_none() {
            let what = if write { "write" } else { "read" };
            self.violate(
                Kind::BadAccess,
                format!("{what} of {len} bytes at {off:#x}"),
            );
        }
        reg
    }

    fn read(&mut self, off: u64, len: u64) {
        if let Some(slot) = slot_of_page(off).filter(|&slot| self.is_deaf(slot)) {
            let text = format!("slot {slot}: a read at {off:#x} in reset");
            self.violate(Kind::UnansweredRead, text);
        }
        if let Some(Reg::Slot(slot, SlotReg::Ctl)) = self.decode(off, len, false) {
            self.slots[slot].unflushed = false;
            self.status_read(slot);
        }
    }

    /// Returns whether a slot answers no read and ignores writes, because it is held in reset.
    fn is_deaf(&self, slot: usize) -> bool {
        self.base() && self.slots.get(slot).is_some_and(|view| view.in_reset)
    }

    fn write(&mut self, t: u64, off: u64, len: u64, val: u64) {
        let reg = self.decode(off, len, true);
        if reg == Some(Reg::Reset) {
            for (i, view) in self.slots.iter_mut().enumerate() {
                view.in_reset = val >> i & 1 != 0;
            }
        }
        if reg.is_some_and(|reg| self.relay_write(reg, val)) {
            return;
        }
        let Some(Reg::Slot(slot, reg)) = reg else {
            return;
        };
        match reg {
            SlotReg::SnapshotAddr | SlotReg::App(_) if self.is_deaf(slot) => {}
            SlotReg::Ctl if !self.commands(slot).contains(&val) => {
                self.violate(
                    Kind::BadAccess,
                    format!("slot {slot}: control value {val:#x}"),
                );
            }
            SlotReg::DmaOffset => self.control(t, slot, "DMA_OFFSET", val),
            SlotReg::WindowBase => self.control(t, slot, "WINDOW_BASE", val),
            SlotReg::WindowSize => self.control(t, slot, "WINDOW_SIZE", val),
            SlotReg::SnapshotAddr => self.control(t, slot, "SNAPSHOT_ADDR", val),
            SlotReg::App(offset) => self.application(slot, offset, val),
            _ => {}
        }
    }

    /// Returns the values that may be written to the control register of a slot.
    fn commands(&self, slot: usize) -> &'static [u64] {
        const ALL: [u64; 4] = [
            ctl::START_NEW,
            ctl::START_RESUME,
            ctl::PAUSE,
            ctl::PAUSE_AT_BOUNDARY,
        ];
        let boundary = self
            .config
            .as_ref()
            .is_some_and(|c| !c.profile.is_base() && c.slots[slot].engine.has_boundaries());
        &ALL[..if boundary { 4 } else { 3 }]
    }

    fn control(&mut self, t: u64, slot: usize, name: &'static str, val: u64) {
        let view = &mut self.slots[slot];
        if view.controls.insert(name, val).unwrap_or(0) == val {
            return;
        }
        let (phase, undrained) = (view.phase, view.undrained(t));
        if phase.busy() {
            self.violate(
                Kind::WindowBusy,
                format!("slot {slot}: {name} changed while {phase:?}"),
            );
        } else if let Some(why) = undrained.filter(|_| name != "SNAPSHOT_ADDR") {
            self.violate(
                Kind::StartUndrained,
                format!("slot {slot}: {name} changed, {why}"),
            );
        }
    }

    fn application(&mut self, slot: usize, offset: u16, value: u64) {
        let known = self
            .config
            .as_ref()
            .is_some_and(|c| c.slots[slot].engine.writable().contains(&offset));
        if !known {
            return;
        }
        let view = &mut self.slots[slot];
        let (busy, running) = (view.phase.busy(), view.running_tag);
        if offset == TAG {
            view.tag = value;
            if busy && value != running {
                self.violate(
                    Kind::WriteRunning,
                    format!("slot {slot}: TAG {value:#x} while {running:#x} runs"),
                );
            }
        } else {
            view.app.insert(
                offset,
                Written {
                    value,
                    owner: busy.then_some(running),
                },
            );
        }
    }

    /// Checks that bus mastering is switched only while all slots are quiescent. If a reset does
    /// not stop a slot, that is not the driver's fault.
    fn master(&mut self, t: u64, on: bool) {
        let to = if on { "on" } else { "off" };
        for slot in 0..self.slots.len() {
            let view = &self.slots[slot];
            let why = if view.phase.busy() && !view.in_reset {
                Some(format!("while {:?}", view.phase))
            } else {
                view.undrained(t).filter(|_| !on)
            };
            if let Some(why) = why {
                self.violate(
                    Kind::MasterBusy,
                    format!("slot {slot}: bus mastering switched {to}, {why}"),
                );
            }
        }
    }

    fn slot_reset(&mut self, t: u64, slot: usize, aborted: bool) {
        let (base, kept) = (
            self.base(),
            self.config
                .as_ref()
                .map_or(&[][..], |c| c.slots[slot].engine.kept()),
        );
        let view = &mut self.slots[slot];
        view.app
            .retain(|offset, _| view.settings.reset_clears == 0 && kept.contains(offset));
        view.dirty = false;
        view.phase = Phase::Idle;
        view.relay.reset();
        if base {
            view.reset_at = Some(t);
        } else {
            view.unflushed |= aborted;
        }
        if let Some(job) = view.job.take().filter(|_| aborted) {
            self.snapshots.end(job);
        }
    }

    fn start(&mut self, t: u64, slot: usize, resume: bool, accepted: bool, tag: u64) {
        if !accepted {
            let phase = self.slots[slot].phase;
            return self.violate(
                Kind::StartBusy,
                format!("slot {slot}: START while {phase:?} or in reset"),
            );
        }
        // An order was judged when it was taken.
        let undrained = self.slots[slot].undrained(t);
        if let Some(why) = undrained.filter(|_| !self.runs_by_order(slot)) {
            self.violate(Kind::StartUndrained, format!("slot {slot}: START, {why}"));
        }
        let needs_reset = self
            .config
            .as_ref()
            .is_some_and(|c| c.slots[slot].engine.needs_reset());
        if resume && needs_reset && self.slots[slot].dirty {
            self.violate(
                Kind::ResumeUnreset,
                format!("slot {slot}: START_RESUME without a reset"),
            );
        }
        self.claim_registers(slot, tag);
        let view = &mut self.slots[slot];
        view.running_tag = tag;
        view.dirty = true;
        view.reasons = Reasons::default();
        view.job = None;
        view.phase = if resume {
            Phase::Restoring
        } else {
            Phase::Running
        };
        if !resume {
            view.job = Some(self.snapshots.begin());
        }
    }

    /// Assigns the registers that were written since the last run to the new job; values left from
    /// another tenant are residue.
    fn claim_registers(&mut self, slot: usize, tag: u64) {
        let mut residue = Vec::new();
        for (&offset, written) in &mut self.slots[slot].app {
            match written.owner {
                Some(owner) if owner != tag && written.value != 0 => residue.push((offset, owner)),
                Some(_) => {}
                None => written.owner = Some(tag),
            }
        }
        for (offset, owner) in residue {
            let text = format!(
                "slot {slot}: at START of {tag:#x}, register {offset:#x} holds \
                 what was written for {owner:#x}"
            );
            self.violate(Kind::RegisterResidue, text);
        }
    }

    /// Returns whether the slot has a queue engine that may leave the slot and report completions
    /// without a command.
    fn acts_by_itself(&self, slot: usize) -> bool {
        self.config
            .as_ref()
            .is_some_and(|c| !c.profile.is_base() && c.slots[slot].engine.has_queue())
    }

    /// Handles a completion event: an interrupt is due if a queue engine is running.
    fn completions(&mut self, slot: usize) {
        let by_itself = self.acts_by_itself(slot);
        let view = &mut self.slots[slot];
        view.reasons.irq |= by_itself && view.phase == Phase::Running;
    }

    /// Checks that there is a reason for an interrupt that no misbehaviour sent.
    fn irq(&mut self, slot: usize) {
        let view = &mut self.slots[slot];
        if !std::mem::take(&mut view.reasons.irq) {
            let phase = view.phase;
            self.violate(
                Kind::UnaskedIrq,
                format!("slot {slot}: an interrupt for nothing while {phase:?}"),
            );
        }
    }

    fn enter(&mut self, slot: usize, phase: Phase, empty: bool) {
        let by_itself = self.acts_by_itself(slot);
        let view = &mut self.slots[slot];
        let asked = view.reasons.pause;
        view.phase = phase;
        // With RELAY, the interrupt is for the record instead.
        let is_end = matches!(phase, Phase::Paused | Phase::Finished);
        view.reasons.irq |= is_end && !view.relay.on;
        let allowed = if empty { by_itself } else { asked };
        if phase == Phase::Paused && !allowed {
            self.violate(
                Kind::UnaskedPause,
                format!("slot {slot}: PAUSED without a PAUSE (empty: {empty})"),
            );
        }
        let view = &mut self.slots[slot];
        if phase == Phase::Finished {
            if let Some(job) = view.job.take() {
                self.snapshots.end(job);
            }
        }
    }

    fn save(&mut self, slot: usize, tag: u64, part: SavePart, at: &[Range], hash: u64) {
        let Some(&(gpa, _)) = at.first() else { return };
        self.snapshots.spoil(gpa);
        if part == SavePart::Done {
            let job = self.slots[slot].job.take();
            self.snapshots.save(gpa, job, tag, hash);
        }
    }

    fn restore(&mut self, slot: usize, tag: u64, at: &[Range], hash: u64) {
        let gpa = at.first().map_or(0, |r| r.0);
        let (job, wrong) = self.snapshots.restore(gpa, tag, hash);
        self.slots[slot].job = job.or(self.slots[slot].job);
        for (kind, text) in wrong {
            self.violate(kind, format!("slot {slot}: {text}"));
        }
    }

    fn tenant(&mut self, token: u64, pages: &[Range]) {
        for page in pages.iter().flat_map(|&r| pages_of(r)) {
            let owners = self.owners.entry(page).or_default();
            owners.gone = false;
            if !owners.live.contains(&token) {
                owners.live.push(token);
            }
        }
    }

    fn tenant_gone(&mut self, token: u64) {
        for owners in self.owners.values_mut() {
            let before = owners.live.len();
            owners.live.retain(|t| *t != token);
            owners.gone |= before != owners.live.len() && owners.live.is_empty();
        }
    }

    /// Forgets which pages belonged to tenants that are gone: anybody may touch them now.
    fn forget_gone(&mut self) {
        for owners in self.owners.values_mut() {
            owners.gone = false;
        }
    }

    fn dma(&mut self, slot: Option<usize>, tag: u64, unit: Unit, write: bool, ranges: &[Range]) {
        let what = if write { "wrote" } else { "read" };
        let name = name_of(slot);
        // Without a slot it may be any tenant's job.
        let of_job = slot.map(|_| tag);
        for &range in ranges {
            if let Some(canary) = self.canary_in(range) {
                self.violate(
                    Kind::Canary,
                    format!("{name}: {tag:#x} {what} the canary at {canary:#x}"),
                );
            }
            for page in pages_of(range) {
                if let Some((kind, whose)) = self.judge_page(page, of_job, unit) {
                    let gpa = page * PAGE;
                    self.violate(
                        kind,
                        format!("{name}: {tag:#x} {what} {gpa:#x}, a page of {whose}"),
                    );
                }
            }
        }
    }

    /// Returns a canary of which the range touches a whole line. A line that belongs to the canary
    /// only in part may be touched for its other bytes.
    fn canary_in(&self, (gpa, len): Range) -> Option<u64> {
        let end = gpa.saturating_add(len);
        let hit = |(&start, &size): (&u64, &u64)| {
            let first = start.next_multiple_of(LINE);
            let last = start.saturating_add(size) / LINE * LINE;
            (first.max(gpa) < last.min(end)).then_some(start)
        };
        self.canaries.range(..end).find_map(hit)
    }

    fn judge_page(&self, page: u64, tag: Option<u64>, unit: Unit) -> Option<(Kind, String)> {
        let owners = self.owners.get(&page);
        let live = owners.map_or(&[][..], |o| &o.live);
        match unit {
            Unit::Snapshot => live
                .first()
                .map(|t| (Kind::SnapshotInArena, format!("{t:#x}"))),
            Unit::Control => live
                .first()
                .map(|t| (Kind::ControlInArena, format!("{t:#x}"))),
            Unit::Engine if tag.map_or(!live.is_empty(), |tag| live.contains(&tag)) => None,
            Unit::Engine => match live.first() {
                Some(t) => Some((Kind::ForeignDma, format!("{t:#x}"))),
                None if owners.is_some_and(|o| o.gone) => {
                    Some((Kind::ForeignDma, "one that is gone".into()))
                }
                None if self.enforce => Some((Kind::ForeignDma, "nobody".into())),
                None => None,
            },
        }
    }
}

fn name_of(slot: Option<usize>) -> String {
    slot.map_or("no slot".into(), |slot| format!("slot {slot}"))
}

fn pages_of((gpa, len): Range) -> std::ops::Range<u64> {
    let end = gpa.saturating_add(len);
    gpa / PAGE..if len == 0 {
        gpa / PAGE
    } else {
        (end - 1) / PAGE + 1
    }
}
