// SPDX-License-Identifier: GPL-2.0-or-later
//! The part on the host: makes a report, tables and plots of the guest's file and of the card's
//! log.

mod figures;
mod plot;
mod table;
mod targets;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;

use crate::output::{self, NOTE};
use crate::visit::{Cell, Run, Variant, Visit};
use anyhow::{ensure, Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card's log
    log: PathBuf,
    /// The file that the guest wrote
    visits: PathBuf,
    /// The samples of the host's load
    host: PathBuf,
    /// Where report and plots go
    #[arg(long, default_value = "build/reports")]
    out: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct TableOptions {
    /// A report
    report: PathBuf,
    /// Also draw the plots into this folder
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Write the tables into this file instead, between the lines `<!-- bench -->` and `<!-- bench
    /// end -->`
    #[arg(long)]
    into: Option<PathBuf>,
}

/// The lines of docs/benchmarks.md between which the tables of a run stand.
const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- bench end -->\n";
/// Links to the plots, which `make bench-docs` copies to docs/.
const PICTURES: &str = "![Gap](bench-gap.svg)\n\n![Urgent work waits](bench-arrival.svg)\n";

/// The guest.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Machine {
    cpus: u64,
    /// Median time of a register access, in ns.
    read_ns: u64,
    write_ns: u64,
}

/// The report.
#[derive(Serialize, Deserialize)]
struct Report {
    note: String,
    machine: Machine,
    targets: Vec<targets::Target>,
    rows: Vec<figures::Row>,
    /// Violations that the card's checker found, with any driver.
    #[serde(default)]
    violations: Vec<Violation>,
    /// Descriptions of what was wrong or is missing.
    #[serde(default)]
    failures: Vec<String>,
}

impl Report {
    /// Fails if something was wrong. Violations of other drivers than fermata.ko do not count.
    fn judge(&self) -> Result<()> {
        let own = self.violations.iter().filter(|violation| violation.is_own);
        let own = own.map(ToString::to_string);
        let wrong: Vec<String> = own.chain(self.failures.iter().cloned()).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

/// Makes the report. After the report is written, fails if a result was wrong, something is
/// missing, or the checker found a violation while the card was bound to fermata.ko.
pub(crate) fn make(options: &Options) -> Result<()> {
    let run: Run = read(&options.visits)?;
    let slices = run.made.iter();
    let slices = slices.map(|visit| (visit.number, u64::from(visit.cell.slice_us) * 1000));
    let (seen, violations) = timeline::Timeline::read(&options.log, slices.collect())?;
    let violations = attribute(violations, &run.made);
    let machine = Machine {
        cpus: run.cpus,
        read_ns: run.read_ns,
        write_ns: run.write_ns,
    };
    let host = figures::HostSamples::read(&options.host)?;
    let (rows, mut failures) = figures::rows(&run.made, &seen, &host);
    let (targets, vague): (Vec<_>, Vec<_>) = targets::judge(&rows, &machine)
        .into_iter()
        .partition(|target| target.found.is_finite());
    let vague = vague.iter().map(|target| &target.what);
    failures.extend(vague.map(|what| format!("too few samples for the target: {what}")));
    let report = Report {
        note: NOTE.into(),
        machine,
        targets,
        rows,
        violations,
        failures,
    };
    write(&report, &options.out)?;
    report.judge()
}

fn write(report: &Report, folder: &Path) -> Result<()> {
    let file = folder.join("bench.json");
    output::write(report, &file)?;
    println!("{}", table::markdown(report));
    println!("report: {}", file.display());
    for picture in plot::draw(report, folder)? {
        println!("picture: {}", picture.display());
    }
    Ok(())
}

/// Prints or writes the tables, and draws the plots, of an existing report.
pub(crate) fn write_tables(options: &TableOptions) -> Result<()> {
    let report: Report = read(&options.report)?;
    let tables = table::markdown(&report);
    match &options.into {
        None => print!("{tables}"),
        Some(file) => {
            let text = std::fs::read_to_string(file)?;
            let filled = between(&text, &format!("{tables}\n{PICTURES}"))
                .context("the file has no lines `<!-- bench -->` and `<!-- bench end -->`")?;
            std::fs::write(file, filled)?;
        }
    }
    if let Some(folder) = &options.plots {
        plot::draw(&report, folder)?;
    }
    Ok(())
}

fn read<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<T> {
    let open = File::open(file).with_context(|| file.display().to_string())?;
    serde_json::from_reader(BufReader::new(open)).with_context(|| file.display().to_string())
}

/// Replaces the text between the two lines; returns `None` if the lines are missing.
fn between(text: &str, new: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{new}{END}{after}"))
}

/// A violation as the log has it: its visit, `None` before the first visit, and its text.
pub(crate) type LoggedViolation = (Option<u32>, String);

/// A violation that the card's checker found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Violation {
    /// The visit, from before its driver is bound until the driver is unbound; `None` before the
    /// first visit, when the card is bound to fermata.ko.
    pub(crate) visit: Option<u32>,
    pub(crate) cell: Option<Cell>,
    /// The card was bound to fermata.ko, or the driver is unknown: the run fails.
    pub(crate) is_own: bool,
    /// Kind and circumstances.
    pub(crate) text: String,
}

impl Violation {
    /// Returns the name of the variant.
    pub(crate) fn variant(&self) -> &'static str {
        self.cell
            .map_or("before the first visit", |cell| cell.variant.name())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, cell, .. } = self;
        match (self.visit, cell) {
            (Some(number), Some(cell)) => {
                write!(f, "{}, visit {number} ({cell:?}): {text}", self.variant())
            }
            (Some(number), None) => write!(f, "visit {number}, which was not ended: {text}"),
            (None, _) => write!(f, "{}: {text}", self.variant()),
        }
    }
}

/// Assigns each violation to its visit.
pub(crate) fn attribute(found: Vec<LoggedViolation>, visits: &[Visit]) -> Vec<Violation> {
    let found = found.into_iter().map(|(visit, text)| {
        let of = visits.iter().find(|of| Some(of.number) == visit);
        let cell = of.map(|visit| visit.cell);
        Violation {
            visit,
            cell,
            is_own: cell.is_none_or(|cell| Variant::is_own(cell.variant)),
            text,
        }
    });
    found.collect()
}
