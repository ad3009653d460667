// SPDX-License-Identifier: GPL-2.0-or-later
//! The part on the host: what the guest saw and what the card's log says of it become a report,
//! tables and pictures.

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
    /// What the guest left
    visits: PathBuf,
    /// What was kept of the host
    host: PathBuf,
    /// Where report and pictures go
    #[arg(long, default_value = "build/reports")]
    out: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Redo {
    /// A report
    report: PathBuf,
    /// Draw the pictures into this folder, too
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Put the tables into this file instead, between the lines `<!-- bench -->` and `<!-- bench
    /// end -->`
    #[arg(long)]
    into: Option<PathBuf>,
}

/// Between these lines of docs/benchmarks.md is what a run found.
const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- bench end -->\n";
/// `make bench-docs` puts them there.
const PICTURES: &str = "![Gap](bench-gap.svg)\n\n![Urgent work waits](bench-arrival.svg)\n";

/// Where it ran.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Machine {
    cpus: u64,
    /// What an access to a register takes, in ns: median.
    read_ns: u64,
    write_ns: u64,
}

/// All that was found.
#[derive(Serialize, Deserialize)]
struct Report {
    note: String,
    machine: Machine,
    targets: Vec<targets::Target>,
    rows: Vec<figures::Row>,
    /// What the card's checker found, whoever had the card.
    #[serde(default)]
    violations: Vec<Violation>,
    /// What was wrong or is missing, in words.
    #[serde(default)]
    failures: Vec<String>,
}

impl Report {
    /// Fails if something was wrong: violations of other drivers than fermata.ko are none of its
    /// faults.
    fn judge(&self) -> Result<()> {
        let own = self.violations.iter().filter(|violation| violation.is_own);
        let own = own.map(ToString::to_string);
        let wrong: Vec<String> = own.chain(self.failures.iter().cloned()).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

/// Makes the report. Fails, when all of it is written, if a result was wrong, something is missing,
/// or the checker found a violation while fermata.ko had the card.
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
    let host = figures::Host::read(&options.host)?;
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

/// Tables and pictures of a report that was made.
pub(crate) fn redo(options: &Redo) -> Result<()> {
    let report: Report = read(&options.report)?;
    let tables = table::markdown(&report);
    match &options.into {
        None => print!("{tables}"),
        Some(file) => {
            let text = std::fs::read_to_string(file)?;
            let filled = between(&text, &format!("{tables}\n{PICTURES}"))
                .context("no place for the tables")?;
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

/// The text with something else between the two lines.
fn between(text: &str, new: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{new}{END}{after}"))
}

/// The visit of a violation, `None` before the first, and its text.
pub(crate) type Found = (Option<u32>, String);

/// A violation that the card's checker found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Violation {
    /// The visit, from the coming of its driver until it has left the card; `None`: before the
    /// first, when fermata.ko has the card.
    pub(crate) visit: Option<u32>,
    pub(crate) cell: Option<Cell>,
    /// fermata.ko had the card, or nobody knows who: the run fails.
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

/// Finds out in whose visit each violation was.
pub(crate) fn attribute(found: Vec<Found>, visits: &[Visit]) -> Vec<Violation> {
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
