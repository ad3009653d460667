// SPDX-License-Identifier: GPL-2.0-or-later
//! Views of a report: tables in Markdown, for the terminal and docs/bench-results.md; plots of the
//! variants' figures over the length of slices, on an idle and on a busy machine.

use super::figures::{Row, Spread};
use super::{markdown_table, Report, NOTE};
use crate::visit::{Costs, Load, Tenants, Variant, SLICE_US};
use anyhow::{Context as _, Result};
use fermata_picture::chart::{self, log_range, Line, Panel, Scale, Side};
use fermata_picture::svg::{palette, Svg};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn spread(spread: &Spread) -> String {
    if spread.count == 0 {
        return "-".into();
    }
    format!("{}, {:.0}", percentiles(spread), spread.max)
}

fn percentiles(spread: &Spread) -> String {
    match spread.count {
        0 => "-".into(),
        _ => format!("{:.0}, {}", spread.p50, number(spread.p99)),
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

/// Returns the beginning of every view: conditions, what was wrong, and targets.
fn beginning(report: &Report) -> String {
    let mut text = format!("{NOTE}\n\n{}\n", conditions(report));
    for failure in &report.failures {
        let _ = writeln!(text, "\nWRONG: {failure}");
    }
    if !report.violations.is_empty() {
        let heading = "**Violations of the card's protocol**: the run fails for those of \
             fermata.ko (fermata, with and without relay, no preemption)";
        let _ = writeln!(text, "\n{heading}\n\n{}", violations(report));
    }
    let _ = writeln!(text, "\n**Targets**\n\n{}", targets(report));
    text
}

/// Returns the tables that docs/bench-results.md keeps, which are few enough to read.
pub(crate) fn summary(report: &Report) -> String {
    let mut text = beginning(report);
    let _ = writeln!(
        text,
        "**Slices of 1 ms, a save and a restore 100 us each** (P50, P99 in us)\n\n{}",
        side_by_side(report)
    );
    let _ = writeln!(
        text,
        "**Gaps with other lengths of slices** (P50, P99 in us)\n\n{}",
        gaps_by_slice(report)
    );
    let _ = writeln!(
        text,
        "**Nothing but switches: jobs that never end, slices of 1 ms, idle machine**\n\n{}",
        switches(report)
    );
    text
}

/// Returns the report with its headings, without plots.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = beginning(report);
    for load in Load::ALL {
        let name = load.name();
        let _ = writeln!(
            text,
            "**Slices of 1 ms, {name} machine, a save and a restore 100 us each** (times in us: \
                 P50, P99, max)\n\n{}",
            at_one_slice(report, load)
        );
    }
    let _ = writeln!(
        text,
        "**All slices** (P50, P99 in us)\n\n{}",
        by_slice(report)
    );
    let _ = writeln!(
        text,
        "**Beside the bound of interrupt-driven drivers, slices of 1 ms** (P50 in us)\n\n{}",
        beside_bound(report)
    );
    let _ = writeln!(
        text,
        "**Nothing but switches: jobs that never end, slices of 1 ms, idle machine**\n\n{}",
        switches(report)
    );
    text
}

fn conditions(report: &Report) -> String {
    let machine = &report.machine;
    let [first, ..] = &report.rows[..] else {
        return String::new();
    };
    let most = report.rows.iter().map(|row| row.host.steal_percent);
    let load = report.rows.iter().map(|row| row.host.load);
    format!(
        "Visits of each cell: {}; {} switches in all; {} CPUs in the guest; a read of a register \
             takes {:.1} us, a posted write adds {:.1} us. \
         The host's steal time was {:.1} % at worst, its load average {:.1} to {:.1}.",
        first.visits,
        report.rows.iter().map(|row| row.switches).sum::<u64>(),
        machine.cpus,
        machine.read_ns as f64 / 1e3,
        machine.write_ns as f64 / 1e3,
        most.fold(0.0, f64::max),
        load.clone().fold(f64::MAX, f64::min),
        load.fold(0.0, f64::max),
    )
}

fn violations(report: &Report) -> String {
    let rows = report.violations.iter().map(|violation| {
        let visit = violation
            .visit
            .map_or("-".into(), |visit| visit.to_string());
        let variant = violation.variant().to_string();
        vec![variant, visit, violation.text.clone()]
    });
    markdown_table(&["variant", "visit", "violation"], rows.collect(), &[0, 2])
}

fn targets(report: &Report) -> String {
    let rows = report.targets.iter().map(|target| {
        vec![
            target.what.clone(),
            target.limit(),
            format!("{:.2}", target.found),
            target.verdict(),
            target.because.clone(),
        ]
    });
    markdown_table(
        &["target", "limit", "found", "verdict", "in figures"],
        rows.collect(),
        &[0, 1, 3, 4],
    )
}

fn selected(report: &Report, load: Load, costs: Costs) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(move |row| {
        let cell = row.cell;
        let counts = !matches!(cell.tenants, Tenants::Endless(_));
        counts && cell.load == load && cell.costs == costs
    })
}

fn at_one_slice(report: &Report, load: Load) -> String {
    let rows = selected(report, load, Costs::Even)
        .filter(|row| matches!(row.cell.slice_us, 0 | SLICE_US))
        .map(|row| {
            vec![
                row.cell.variant.name().into(),
                spread(&row.gap),
                spread(&row.arrival),
                spread(&row.overrun),
                format!("{:.1} %", row.useful * 100.0),
                number(row.cpu_us),
                number(row.daemon_us),
                format!("{:.2}", row.context_switches),
                format!("{:.2} + {:.2}", row.reads, row.size_reads),
                format!("{:.1}", row.writes),
                format!("{:.1} %, {:.1}", row.host.steal_percent, row.host.load),
            ]
        });
    let header = [
        "variant",
        "gap",
        "urgent work waits",
        "slice error",
        "useful",
        "CPU us per switch",
        "daemon's",
        "context switches",
        "reads",
        "writes",
        "steal, load",
    ];
    markdown_table(&header, rows.collect(), &[0])
}

/// Returns the figures of the idle and of the busy machine beside each other.
fn side_by_side(report: &Report) -> String {
    const VALUES: [fn(&Row) -> String; 3] = [
        |row| percentiles(&row.gap),
        |row| percentiles(&row.arrival),
        |row| format!("{:.1} %", row.useful * 100.0),
    ];
    let at = |load| {
        let rows = selected(report, load, Costs::Even);
        rows.filter(|row| matches!(row.cell.slice_us, 0 | SLICE_US))
    };
    let rows = at(Load::Idle).map(|idle| {
        let busy = at(Load::Busy).find(|row| row.cell.variant == idle.cell.variant);
        let mut cells = vec![idle.cell.variant.name().to_string()];
        for value in VALUES {
            cells.extend([value(idle), busy.map_or("-".into(), value)]);
        }
        cells
    });
    let header = [
        "variant",
        "gap, idle",
        "gap, busy",
        "urgent work waits, idle",
        "busy",
        "useful, idle",
        "busy",
    ];
    markdown_table(&header, rows.collect(), &[0])
}

/// Returns the gaps of the variants that matter most: a column for each length of slices.
fn gaps_by_slice(report: &Report) -> String {
    const SHOWN: [Variant; 4] = [
        Variant::Fermata,
        Variant::NoRelay,
        Variant::Relay,
        Variant::Sleep,
    ];
    let rows = Load::ALL.map(|load| selected(report, load, Costs::Even));
    let rows = rows.into_iter().flatten();
    let rows = rows.filter(|row| SHOWN.contains(&row.cell.variant));
    let mut slices: Vec<_> = rows.map(|row| row.cell.slice_us).collect();
    slices.sort_unstable();
    slices.dedup();
    let mut lines = Vec::new();
    for load in Load::ALL {
        for variant in SHOWN {
            let cells = slices.iter().map(|&slice_us| {
                let mut rows = selected(report, load, Costs::Even);
                let row =
                    rows.find(|row| row.cell.variant == variant && row.cell.slice_us == slice_us);
                row.map_or("-".into(), |row| percentiles(&row.gap))
            });
            let mut line = vec![load.name().to_string(), variant.name().to_string()];
            line.extend(cells);
            lines.push(line);
        }
    }
    let slices = slices
        .iter()
        .map(|&us| format!("{} ms", f64::from(us) / 1e3));
    let slices: Vec<_> = slices.collect();
    let mut header = vec!["machine", "variant"];
    header.extend(slices.iter().map(String::as_str));
    markdown_table(&header, lines, &[0, 1])
}

fn by_slice(report: &Report) -> String {
    let mut rows = Vec::new();
    for load in Load::ALL {
        for row in selected(report, load, Costs::Even) {
            let cell = row.cell;
            if cell.variant.is_bound() {
                continue;
            }
            let slice = match cell.slice_us {
                0 => "whole jobs".into(),
                us => format!("{}", f64::from(us) / 1e3),
            };
            rows.push(vec![
                load.name().into(),
                cell.variant.name().into(),
                slice,
                percentiles(&row.gap),
                percentiles(&row.arrival),
                percentiles(&row.overrun),
                format!("{:.1} %", row.useful * 100.0),
                format!("{:.1} %", row.lost_to_gaps * 100.0),
            ]);
        }
    }
    let header = [
        "machine",
        "variant",
        "slice, ms",
        "gap",
        "urgent work waits",
        "slice error",
        "useful",
        "lost to gaps",
    ];
    markdown_table(&header, rows, &[0, 1])
}

fn beside_bound(report: &Report) -> String {
    let mut rows = Vec::new();
    for costs in Costs::ALL {
        for load in Load::ALL {
            let at_slice =
                || selected(report, load, costs).filter(|row| row.cell.slice_us == SLICE_US);
            let bound = at_slice().find(|row| row.cell.variant == Variant::Bound);
            for row in at_slice() {
                let own = bound.map_or(f64::NAN, |bound| row.gap.p50 - bound.gap.p50);
                rows.push(vec![
                    costs.name().into(),
                    load.name().into(),
                    row.cell.variant.name().into(),
                    format!("{:.1}", row.switch.p50),
                    format!("{:.1}", row.gap.p50),
                    format!("{own:.1}"),
                ]);
            }
        }
    }
    let header = [
        "card's costs",
        "machine",
        "variant",
        "whole switch",
        "gap",
        "own part of the gap",
    ];
    markdown_table(&header, rows, &[0, 1, 2])
}

fn switches(report: &Report) -> String {
    let rows = report.rows.iter().filter_map(|row| {
        let Tenants::Endless(count) = row.cell.tenants else {
            return None;
        };
        Some(vec![
            row.cell.variant.name().into(),
            count.to_string(),
            spread(&row.gap),
            number(row.cpu_us),
            number(row.daemon_us),
            format!("{:.2}", row.context_switches),
            format!("{:.2}", row.reads),
            format!("{:.1}", row.writes),
        ])
    });
    let header = [
        "variant",
        "contexts",
        "gap, us",
        "CPU us per switch",
        "daemon's",
        "context switches",
        "reads",
        "writes",
    ];
    markdown_table(&header, rows.collect(), &[0])
}

type Value = fn(&Row) -> Option<f64>;

/// A plot of two rows of panels, a row for each value; the left panels are for an idle machine, the
/// right ones for a busy machine, with the same scale.
struct Picture {
    file: &'static str,
    title: &'static str,
    /// The variants that answer the question of the picture; the tables have all of them.
    variants: &'static [Variant],
    /// Name, unit and value.
    values: [(&'static str, &'static str, Value); 2],
    /// The value of a bound, which is measured with one length of slices, is drawn for all lengths.
    bound_is_level: bool,
}

fn p50(spread: &Spread) -> Option<f64> {
    (spread.count > 0).then_some(spread.p50)
}

const PICTURES: [Picture; 3] = [
    Picture {
        file: "bench-gap.svg",
        title: "Gap: PAUSED or FINISH to the next START (an emulator's times)",
        variants: &[
            Variant::Fermata,
            Variant::NoRelay,
            Variant::Relay,
            Variant::Sleep,
            Variant::Bound,
            Variant::CardBound,
        ],
        values: [
            ("P50", "us", |row| p50(&row.gap)),
            ("P99", "us", |row| row.gap.p99),
        ],
        bound_is_level: true,
    },
    Picture {
        file: "bench-arrival.svg",
        title: "Urgent work waits: arrival to START (an emulator's times)",
        variants: &[
            Variant::Fermata,
            Variant::NoRelay,
            Variant::Relay,
            Variant::Sleep,
            Variant::Completion,
        ],
        values: [
            ("P50", "us", |row| p50(&row.arrival)),
            ("P99", "us", |row| row.arrival.p99),
        ],
        bound_is_level: true,
    },
    Picture {
        file: "bench-useful.svg",
        title: "Part of the time that the slot works, and that gaps beyond the card bound's take",
        variants: &[
            Variant::Fermata,
            Variant::NoRelay,
            Variant::Relay,
            Variant::Sleep,
            Variant::Completion,
            Variant::CardBound,
        ],
        values: [
            ("useful", "%", |row| Some(row.useful * 100.0)),
            ("lost to gaps", "%", |row| Some(row.lost_to_gaps * 100.0)),
        ],
        bound_is_level: false,
    },
];

/// Draws all plots into a folder. Returns the files.
pub(crate) fn draw(report: &Report, folder: &Path) -> Result<Vec<PathBuf>> {
    let draw_one = |picture: &Picture| {
        let file = folder.join(picture.file);
        let svg = picture.draw(report);
        svg.write(&file)
            .with_context(|| file.display().to_string())?;
        Ok(file)
    };
    PICTURES.iter().map(draw_one).collect()
}

impl Picture {
    fn draw(&self, report: &Report) -> Svg {
        let panels = self
            .values
            .iter()
            .flat_map(|value| Load::ALL.map(|load| self.panel(report, value, load)));
        let panels: Vec<Panel<'_>> = panels.collect();
        chart::draw(self.title, &panels, Load::ALL.len(), (1000.0, 760.0))
    }

    fn panel(
        &self,
        report: &Report,
        (name, unit, value): &(&str, &'static str, Value),
        load: Load,
    ) -> Panel<'static> {
        let lines = self.lines(report, load, *value);
        let both = Load::ALL.into_iter();
        let both = both.flat_map(|load| self.lines(report, load, *value));
        let values = both.flat_map(|line| line.points).map(|(_, y)| y);
        let side = |name, range| Side {
            name,
            scale: Scale::Log,
            range,
        };
        Panel {
            caption: format!("{name}, {unit}, {} machine", load.name()),
            up: log_range(values).map(|range| side(unit, range)),
            across: side("slice, ms", SLICES),
            lines,
            has_legend: false,
        }
    }

    fn lines(&self, report: &Report, load: Load, value: Value) -> Vec<Line> {
        let variants = self.variants.iter().copied();
        let lines = variants.zip(palette(self.variants.len())).zip(0..);
        let lines = lines.map(|((variant, color), marker)| Line {
            name: variant.name().into(),
            color,
            marker,
            bold: variant == Variant::Fermata,
            is_area: false,
            points: points(report, variant, load, value),
            is_level: match variant {
                Variant::Completion => true,
                Variant::Bound | Variant::CardBound => self.bound_is_level,
                _ => false,
            },
        });
        lines.filter(|line| !line.points.is_empty()).collect()
    }
}

/// The range of lengths of slices, in milliseconds.
const SLICES: (f64, f64) = (0.4, 12.5);

/// Returns the points of a variant: length of the slice in milliseconds, and value.
fn points(report: &Report, variant: Variant, load: Load, value: Value) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| {
        let cell = row.cell;
        let counts = !matches!(cell.tenants, Tenants::Endless(_));
        counts && cell.variant == variant && cell.load == load && cell.costs == Costs::Even
    });
    let mut points: Vec<_> = rows
        .filter_map(|row| Some((f64::from(row.cell.slice_us) / 1e3, value(row)?)))
        .filter(|(_, value)| *value > 0.0)
        .collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A report with gaps in us of two variants on an idle and on a busy machine.
    fn report() -> Report {
        let row = |variant: &str, load: &str, gap: f64| {
            let spread =
                |p50| json!({ "count": 100, "p50": p50, "p99": 2.0 * p50, "max": 3.0 * p50 });
            json!({
                "variant": variant, "load": load, "costs": "even", "tenants": "mixed", "slice_us": 1000,
                "visits": 1, "switches": 1, "jobs": 1, "gap": spread(gap), "switch": spread(gap),
                "arrival": spread(gap), "overrun": spread(0.0), "useful": 0.8, "lost_to_gaps": 0.01,
                "context_switches": 0.0, "reads": 0.0, "size_reads": 0.0, "writes": 1.0,
                "host": { "steal_percent": 0.0, "load": 1.0 },
            })
        };
        let rows = [
            row("fermata", "idle", 10.0),
            row("fermata", "busy", 20.0),
            row("sleep", "idle", 200.0),
            row("sleep", "busy", 900.0),
            row("poll", "busy", 9_000.0),
        ];
        let machine = json!({ "cpus": 2, "read_ns": 1, "write_ns": 1 });
        let report = json!({ "note": "", "machine": machine, "targets": [], "rows": rows });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn idle_and_busy_have_one_scale_and_the_lines_that_answer() {
        let report = report();
        for picture in &PICTURES[..2] {
            let panels = Load::ALL.map(|load| picture.panel(&report, &picture.values[0], load));
            let ranges = panels.each_ref().map(|panel| panel.up.map(|up| up.range));
            assert_eq!(ranges[0], ranges[1]);
            let (low, high) = ranges[0].unwrap();
            assert!(low < 10.0 && (900.0..1_000.0).contains(&high));
            let names = panels[1].lines.iter().map(|line| line.name.as_str());
            assert_eq!(names.collect::<Vec<_>>(), ["fermata", "daemon"]);
        }
    }
}
