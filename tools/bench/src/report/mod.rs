// SPDX-License-Identifier: GPL-2.0-or-later
//! What the benchmarks print and write: distributions, tables and reports. And the part on the
//! host, which makes a report, tables and plots from the guest's file and from the card's log.

pub(crate) mod figures;
mod targets;
mod views;

use crate::visit::{Cell, Run, Variant, Visit};
use anyhow::{ensure, Context as _, Result};
use comfy_table::{CellAlignment, Table};
use fermata_card::ledger::nearest_rank;
use fermata_output::say;
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
    /// Write the most important tables into this file instead, between the lines `<!-- bench -->`
    /// and `<!-- bench end -->`
    #[arg(long)]
    into: Option<PathBuf>,
}

/// The lines of docs/bench-results.md that enclose the tables of a run.
const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- bench end -->\n";

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
    let (seen, violations) = figures::Timeline::read(&options.log, slices.collect())?;
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
    write_json(report, &file)?;
    say!("{}", views::markdown(report));
    say!("report: {}", file.display());
    for picture in views::draw(report, folder)? {
        say!("picture: {}", picture.display());
    }
    Ok(())
}

/// Prints or writes the tables, and draws the plots, of an existing report.
pub(crate) fn write_tables(options: &TableOptions) -> Result<()> {
    let report: Report = read(&options.report)?;
    match &options.into {
        None => say!("{}", views::markdown(&report).trim_end()),
        Some(file) => {
            let text = std::fs::read_to_string(file)?;
            let filled = between(&text, &views::summary(&report))
                .context("the file has no lines `<!-- bench -->` and `<!-- bench end -->`")?;
            std::fs::write(file, filled)?;
        }
    }
    if let Some(folder) = &options.plots {
        views::draw(&report, folder)?;
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

/// A violation as it is in the log: its visit, `None` before the first visit, and its text.
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

/// The first sentences of every report.
pub(crate) const NOTE: &str = "All times are those of an emulated card in an emulated machine: \
     absolute figures say nothing about a device. Ratios \
    within one run are what counts; P99 and max are the host's as much as the driver's.";

/// A distribution of times in microseconds; percentiles are nearest ranks. All zero: there are no
/// samples.
#[derive(Serialize)]
pub(crate) struct Distribution {
    pub(crate) count: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Distribution {
    /// Returns the distribution of samples in nanoseconds.
    pub(crate) fn new(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let rank = |percent| nearest_rank(&samples, percent).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            count: samples.len(),
            p50_us: rank(50),
            p99_us: rank(99),
            max_us: rank(100),
        }
    }
}

/// Returns a table as Markdown; the columns in `left` are aligned to the left, the others to the
/// right.
pub(crate) fn markdown_table(header: &[&str], rows: Vec<Vec<String>>, left: &[usize]) -> String {
    debug_assert!(rows.iter().all(|row| row.len() == header.len()));
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        if !left.contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Cells hold sentences: padding would make the lines of a column as long as the longest one.
    let lines = table.to_string();
    let lines = lines.lines().map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(compact).collect();
        format!("| {} |\n", cells.join(" | "))
    });
    lines.collect()
}

/// Returns a cell of a Markdown table, or a part of the line below its header, without padding.
fn compact(cell: &str) -> String {
    let cell = cell.trim();
    match (cell.starts_with("--"), cell.ends_with(':')) {
        (true, true) => "--:".into(),
        (true, false) => "---".into(),
        (false, _) => cell.into(),
    }
}

/// Writes a report as JSON, and creates its folder if it is missing.
pub(crate) fn write_json(report: &impl Serialize, file: &Path) -> Result<()> {
    let name = || file.display().to_string();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(name)?;
    }
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(name)
}

#[cfg(test)]
mod tests {

    //! Reports of small artificial runs: visits of the card bound, of the daemon and of fermata.

    use super::*;
    use crate::mark::{visit_text, Mark, CONTESTED_SLOT, MARK_OFFSET};
    use crate::visit::URGENT_TAG;
    use crate::visit::{Cell, Costs, Load, Tenants, Usage, Variant, Visit, SLICE_US};
    use fermata_card::event::{Event, Phase, What};
    use serde_json::json;

    #[test]
    fn tables_go_between_the_lines() {
        let text = "a\n<!-- bench -->\nold\n<!-- bench end -->\nb\n";
        let found = between(text, "new\n");
        let expected = "a\n<!-- bench -->\nnew\n<!-- bench end -->\nb\n";
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(between("a\n", "new\n"), None);
    }

    const VISITS: [(Variant, Tenants); 4] = [
        (Variant::CardBound, Tenants::Alone),
        (Variant::Sleep, Tenants::Mixed),
        (Variant::Fermata, Tenants::Mixed),
        (Variant::Fermata, Tenants::Endless(2)),
    ];

    fn visits() -> Vec<Visit> {
        let visits = VISITS.into_iter().zip(1..);
        let visits = visits.map(|((variant, tenants), number)| Visit {
            number,
            round: 1,
            cell: Cell {
                variant,
                load: Load::Idle,
                costs: Costs::Even,
                tenants,
                slice_us: SLICE_US,
            },
            jobs: 5,
            wrong: 0,
            usage: Usage::default(),
        });
        visits.collect()
    }

    /// Returns the log of a visit between its marks: urgent work preempts a job.
    fn switch() -> Vec<What> {
        let slot = CONTESTED_SLOT;
        let start = |tag| What::Start {
            slot,
            resume: false,
            accepted: true,
            tag,
        };
        let phase = |phase| What::Phase {
            slot,
            phase,
            fault: false,
            snapshot_error: false,
            empty: false,
        };
        vec![
            start(1),
            phase(Phase::Running),
            mark(Mark::Arrival(1)),
            phase(Phase::Saving),
            phase(Phase::Paused),
            start(URGENT_TAG),
            phase(Phase::Running),
            phase(Phase::Finished),
            start(2),
            phase(Phase::Running),
        ]
    }

    fn mark(mark: Mark) -> What {
        What::Write {
            off: MARK_OFFSET,
            len: 8,
            val: mark.to_word(),
        }
    }

    fn violation(text: &str) -> What {
        What::Violation {
            kind: "unmapped_dma".into(),
            text: text.into(),
        }
    }

    /// Where the log has a violation.
    #[derive(Clone, Copy, Debug)]
    enum At {
        Begin,
        /// Between the marks of a visit.
        Within(u32),
        /// After the visit was measured, while its driver is unbound.
        After(u32),
    }

    fn log(at: &[At]) -> Vec<What> {
        let planted = |here: &dyn Fn(&At) -> bool| {
            let planted = at.iter().filter(|at| here(at));
            let planted = planted.map(|at| violation(&format!("{at:?}")));
            planted.collect::<Vec<_>>()
        };
        let mut log = planted(&|at| matches!(at, At::Begin));
        for number in 1..=VISITS.len() as u32 {
            let text = visit_text(number);
            log.extend([What::Mark { text }, mark(Mark::Begin(number))]);
            log.extend(switch());
            log.extend(planted(&|at| matches!(at, At::Within(of) if *of == number)));
            log.push(mark(Mark::End(number)));
            log.extend(planted(&|at| matches!(at, At::After(of) if *of == number)));
        }
        log
    }

    /// Makes a report of a log and visits. Returns the result, and the report that was written.
    fn report(log: Vec<What>, visits: Vec<Visit>) -> (Result<()>, Report) {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let options = Options {
            log: file("card.log"),
            visits: file("visits.json"),
            host: file("host.jsonl"),
            out: file("reports"),
        };
        let events = log.into_iter().zip(1..).map(|(what, n)| Event {
            t: n * 10_000,
            what,
        });
        let lines = events.map(|event| serde_json::to_string(&event).unwrap() + "\n");
        std::fs::write(&options.log, lines.collect::<String>()).unwrap();
        let run = Run {
            read_ns: 1_000,
            write_ns: 500,
            cpus: 2,
            made: visits,
        };
        std::fs::write(&options.visits, serde_json::to_string(&run).unwrap()).unwrap();
        let sample = |n: u64| json!({ "t": n * 100_000, "steal": 0, "all": n, "load": 1.0, "guest": n * 90_000 });
        let samples = (0..50).map(|n| sample(n).to_string() + "\n");
        std::fs::write(&options.host, samples.collect::<String>()).unwrap();
        let result = make(&options);
        (result, read(&options.out.join("bench.json")).unwrap())
    }

    #[test]
    fn a_run_without_violations() {
        let (result, report) = report(log(&[]), visits());
        result.unwrap();
        assert_eq!((report.rows.len(), report.violations.len()), (4, 0));
        let tables = views::markdown(&report);
        assert!(!tables.contains("Violations"));
        let summary = views::summary(&report);
        let side_by_side = "| fermata | 10, - | - | 30, - | - |";
        assert!(summary.contains(side_by_side), "{summary}");
        let gaps =
            "| machine | variant | 1 ms |\n| --- | --- | --- |\n| idle | fermata | 10, - |\n";
        assert!(summary.contains(gaps), "{summary}");
        let switches = "| variant | contexts | gap, us | CPU us per switch | daemon's | context \
             switches | reads | writes |\n";
        let (_, switches) = tables.split_once(switches).expect("a column for each cell");
        assert!(
            switches
                .lines()
                .nth(1)
                .is_some_and(|row| row.starts_with("| fermata | 2 | 10, -, 10 |")),
            "{switches}"
        );
    }

    /// Violations of the daemon and of the card bound.
    #[test]
    fn violations_of_others_are_told_and_fail_nothing() {
        let (result, report) = report(log(&[At::After(1), At::Within(2), At::After(2)]), visits());
        result.unwrap();
        assert_eq!(report.rows.len(), 4, "the report is complete");
        let variants = report.violations.iter().map(Violation::variant);
        let expected = ["card bound", "daemon", "daemon"];
        assert_eq!(variants.collect::<Vec<_>>(), expected);
        let tables = views::markdown(&report);
        assert!(
            tables.contains("| daemon | 2 | unmapped_dma: After(2) |"),
            "{tables}"
        );
    }

    #[test]
    fn a_violation_of_fermata_fails_the_run_and_is_in_the_report() {
        for at in [At::Within(3), At::After(3), At::Begin] {
            let (result, report) = report(log(&[At::Within(2), at]), visits());
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&format!("unmapped_dma: {at:?}")), "{error}");
            assert!(!error.contains("Within(2)"), "{error}");
            assert_eq!((report.rows.len(), report.violations.len()), (4, 2));
            let own = report.violations.iter().find(|of| of.is_own).unwrap();
            let expected = match at {
                At::Begin => (None, "before the first visit"),
                _ => (Some(3), "fermata"),
            };
            assert_eq!((own.visit, own.variant()), expected);
            assert!(error.contains(expected.1), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_or_missing_fails_the_run_and_is_in_the_report() {
        let mut wrong = visits();
        wrong[1].wrong = 2;
        wrong[2].jobs = 0;
        let (result, report) = report(log(&[]), wrong);
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("2 wrong results in Cell { variant: Sleep"),
            "{error}"
        );
        assert!(
            error.contains("no job ended in Cell { variant: Fermata"),
            "{error}"
        );
        assert_eq!((report.rows.len(), report.failures.len()), (3, 2));
        assert!(views::markdown(&report).contains("WRONG: no job ended"));
    }
}
