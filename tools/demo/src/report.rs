// SPDX-License-Identifier: GPL-2.0-or-later
//! The output of the demo: a live view, tables, and the report.

use crate::tenant::Ending;
use crate::Tenant;
use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table};
use fermata::uapi;
use fermata_card::control::Run;
use fermata_output::say;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// The first sentence of the report.
pub(crate) const NOTE: &str =
    "All times are those of an emulated card in an emulated machine; they say nothing about a \
         device.";

/// The report, `demo.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    note: &'static str,
    kernel: String,
    slots: u32,
    features: u64,
    /// A phase for each timeslice.
    pub(crate) phases: Vec<Phase>,
    /// Violations during the whole demo.
    pub(crate) violations: u64,
    /// Descriptions of what was wrong.
    pub(crate) failures: Vec<String>,
    /// Nothing was wrong.
    pub(crate) ok: bool,
}

/// A phase: all tenants run together with one timeslice.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Phase {
    /// Description of the phase.
    pub(crate) name: String,
    /// Timeslice of all tenants.
    pub(crate) timeslice_ns: u64,
    /// Time until the last job ended.
    pub(crate) seconds: f64,
    /// The tenants, in the order of their start.
    pub(crate) tenants: Vec<TenantReport>,
    /// The slots, as the card saw them.
    pub(crate) slots: Vec<SlotReport>,
    /// Violations during the phase.
    pub(crate) violations: u64,
}

/// A tenant in a phase.
#[derive(Debug, Default, Serialize)]
#[allow(missing_docs)] // as in uapi/fermata.h
pub(crate) struct TenantReport {
    pub(crate) name: String,
    pub(crate) engine: String,
    pub(crate) slot: u32,
    pub(crate) job: String,
    pub(crate) alone_ns: u64,
    pub(crate) run_ns: u64,
    pub(crate) wait_ns: u64,
    pub(crate) slices: u64,
    pub(crate) preemptions: u64,
    pub(crate) outcome: String,
    pub(crate) alone_outcome: String,
    pub(crate) computed_here: String,
    pub(crate) right: bool,
    pub(crate) killed: bool,
}

/// A slot in a phase, as the card saw it.
#[derive(Debug, Serialize)]
pub(crate) struct SlotReport {
    /// Number of the slot.
    pub(crate) slot: u32,
    /// From PAUSED or FINISH to the next START.
    pub(crate) gap: Gaps,
    /// From PAUSE to PAUSED.
    pub(crate) pause_to_paused: Gaps,
}

/// A distribution in nanoseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub(crate) struct Gaps {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Gaps {
    /// Returns the distribution in a reply of the card.
    pub(crate) fn from(numbers: &HashMap<String, u64>, prefix: &str) -> Self {
        let get = |key| numbers.get(&format!("{prefix}{key}")).copied().unwrap_or(0);
        Self {
            count: get("count"),
            p50: get("p50"),
            p99: get("p99"),
            max: get("max"),
        }
    }

    fn cells(&self) -> [String; 4] {
        let us = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
        [
            self.count.to_string(),
            us(self.p50),
            us(self.p99),
            us(self.max),
        ]
    }
}

fn table(header: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::UTF8_BORDERS_ONLY)
        .set_header(header.iter().copied());
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl Phase {
    /// Prints the tables.
    pub(crate) fn print(&self) {
        let ms = |ns: u64| format!("{:.0}", ns as f64 / 1e6);
        let mut tenants = table(
            &[
                "tenant",
                "slot",
                "engine",
                "job",
                "alone ms",
                "ran ms",
                "waited ms",
                "slices",
                "preempted",
                "result",
            ],
            4..9,
        );
        for t in &self.tenants {
            let mut row = vec![
                t.name.clone(),
                t.slot.to_string(),
                t.engine.clone(),
                t.job.clone(),
            ];
            if t.killed {
                row.extend([
                    String::new(),
                    String::new(),
                    String::new(),
                    t.slices.to_string(),
                    String::new(),
                    "killed".into(),
                ]);
            } else {
                row.extend([
                    ms(t.alone_ns),
                    ms(t.run_ns),
                    ms(t.wait_ns),
                    t.slices.to_string(),
                    t.preemptions.to_string(),
                ]);
                row.push(if t.right { "right" } else { "WRONG" }.into());
            }
            tenants.add_row(row);
        }
        say!("\n{tenants}");
        say!("right: the same as alone, and as computed by the tenant's processor");
        let mut slots = table(
            &[
                "slot", "gaps", "P50 us", "P99 us", "max us", "pauses", "P50 us", "P99 us",
                "max us",
            ],
            1..9,
        );
        for s in &self.slots {
            let mut row = vec![s.slot.to_string()];
            row.extend(s.gap.cells());
            row.extend(s.pause_to_paused.cells());
            slots.add_row(row);
        }
        say!("{slots}");
        say!(
            "gap: PAUSED or FINISH to the next START; pause: PAUSE to PAUSED; both as the card \
                 saw them.\n\
             {} violations, {:.1} s",
            self.violations,
            self.seconds
        );
    }
}

/// Writes a report as JSON.
pub(crate) fn write(report: &impl Serialize, path: &Path) -> Result<()> {
    let name = || path.display().to_string();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(name)?;
    }
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(path, text).with_context(name)
}

impl Report {
    /// Returns the report before the first phase.
    pub(crate) fn new(card: uapi::CardInfo) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            note: NOTE,
            kernel: kernel.trim().into(),
            slots: card.slots,
            features: card.features,
            phases: Vec::new(),
            violations: 0,
            failures: Vec::new(),
            ok: false,
        }
    }
}

const LINE_EVERY: Duration = Duration::from_secs(1);

/// For each slot: the token of the running tenant, and each tenant's use of the slot.
pub(crate) type SlotStates = Vec<(Option<u64>, HashMap<u64, Run>)>;

/// The live view.
pub(crate) struct View {
    live: bool,
    slots: u32,
    drawn: bool,
    last: Option<Duration>,
}

impl View {
    /// Returns a view of `slots` slots.
    pub(crate) fn new(live: bool, slots: u32) -> Self {
        Self {
            live,
            slots,
            drawn: false,
            last: None,
        }
    }

    /// Shows the state of the slots: redraws in place, or prints lines now and then.
    pub(crate) fn show(
        &mut self,
        at: Duration,
        runs: &SlotStates,
        tenants: &BTreeMap<u64, Tenant>,
        endings: &BTreeMap<u64, Ending>,
    ) {
        if !self.live && self.last.is_some_and(|last| at < last + LINE_EVERY) {
            return;
        }
        self.last = Some(at);
        let mut text = String::new();
        if self.live && self.drawn {
            let _ = write!(text, "\x1b[{}A", self.slots);
        }
        for slot in 0..self.slots {
            let (running, had) = &runs[slot as usize];
            let now = running.and_then(|token| tenants.get(&token));
            let _ = write!(
                text,
                "{}{:5.1} s  slot {slot}  {:7} |",
                if self.live { "\x1b[2K" } else { "  " },
                at.as_secs_f64(),
                now.map_or("-", |t| &t.name)
            );
            for tenant in tenants.values().filter(|t| t.slot == slot) {
                let turns = had.get(&tenant.token).map_or(0, |r| r.turns);
                let done = if endings.contains_key(&tenant.token) {
                    " done"
                } else {
                    ""
                };
                let _ = write!(text, " {} {turns}{done},", tenant.name);
            }
            text.pop();
            text.push('\n');
        }
        self.drawn = true;
        // With sequences that move the cursor.
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Prints an event.
    pub(crate) fn show_event(&mut self, at: Duration, what: &str) {
        say!("  {:5.1} s  {what}", at.as_secs_f64());
        self.drawn = false;
    }
}
