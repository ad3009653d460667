// SPDX-License-Identifier: GPL-2.0-or-later
//! Targets, and by how much they were missed. A missed target does not fail the run, since other
//! load disturbs the machine.

use super::figures::Row;
use super::Machine;
use crate::visit::{Cell, Costs, Load, Tenants, Variant, FEW, SLICE_US};
use serde::{Deserialize, Serialize};

/// Whether a value must be at most, or at least, the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Aim {
    AtMost,
    AtLeast,
}

/// A target and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) aim: Aim,
    pub(crate) limit: f64,
    pub(crate) found: f64,
    pub(crate) met: bool,
    /// The figures that the value is computed from.
    pub(crate) because: String,
}

impl Target {
    fn new(what: String, aim: Aim, limit: f64, found: f64, because: String) -> Self {
        let met = match aim {
            Aim::AtMost => found <= limit,
            Aim::AtLeast => found >= limit,
        };
        Self {
            what,
            aim,
            limit,
            found,
            met,
            because,
        }
    }

    /// Returns `met`, or by how much the target was missed.
    pub(crate) fn verdict(&self) -> String {
        if self.met {
            return "met".into();
        }
        let beside = match self.aim {
            Aim::AtMost => self.found / self.limit,
            Aim::AtLeast => self.limit / self.found,
        };
        format!("missed by {:.0} %", (beside - 1.0) * 100.0)
    }

    pub(crate) fn limit(&self) -> String {
        let aim = match self.aim {
            Aim::AtMost => "at most",
            Aim::AtLeast => "at least",
        };
        format!("{aim} {}", self.limit)
    }
}

/// The rows of a run.
struct Rows<'a>(&'a [Row]);

impl<'a> Rows<'a> {
    fn mixed(&self, variant: Variant, load: Load, costs: Costs) -> Option<&'a Row> {
        let tenants = match variant {
            Variant::Bound => Tenants::Alone,
            _ => Tenants::Mixed,
        };
        self.at(Cell {
            variant,
            load,
            costs,
            tenants,
            slice_us: SLICE_US,
        })
    }

    fn at(&self, cell: Cell) -> Option<&'a Row> {
        self.0.iter().find(|row| row.cell == cell)
    }

    /// Returns the row of nothing but switches, with few or many contexts.
    fn switches(&self, variant: Variant, few: bool) -> Option<&'a Row> {
        self.0.iter().find(|row| match row.cell.tenants {
            Tenants::Endless(count) => row.cell.variant == variant && (count == FEW) == few,
            Tenants::Mixed | Tenants::Alone => false,
        })
    }
}

/// Returns the targets that the rows allow to judge.
pub(crate) fn judge(rows: &[Row], machine: &Machine) -> Vec<Target> {
    let rows = Rows(rows);
    let mut targets = Vec::new();
    for costs in Costs::ALL {
        for load in Load::ALL {
            targets.extend(beside_bound(&rows, load, costs, machine));
        }
    }
    targets.extend(beside_daemon(&rows));
    targets.extend(reads(&rows));
    for load in Load::ALL {
        targets.extend(useful(&rows, load, machine));
    }
    targets.extend(crowded(&rows));
    targets
}

fn beside_bound(rows: &Rows<'_>, load: Load, costs: Costs, machine: &Machine) -> Vec<Target> {
    let fermata = rows.mixed(Variant::Fermata, load, costs);
    let bound = rows.mixed(Variant::Bound, load, costs);
    let Some((fermata, bound)) = fermata.zip(bound) else {
        return Vec::new();
    };
    let own = fermata.gap.p50 - bound.gap.p50;
    let more = fermata.writes - bound.writes;
    let writes = more * machine.write_ns as f64 / 1e3;
    let because = format!(
        "the driver's own part of a gap is {own:.1} us; {more:.1} more posted writes take about \
             {writes:.1} us of that ({:.1} us each here)",
        machine.write_ns as f64 / 1e3
    );
    let limit = 1.15;
    let name = format!("{} machine, card's costs {}", load.name(), costs.name());
    vec![
        Target::new(
            format!(
                "whole switch (save and restore in it) beside the lower bound's at P50, {name}"
            ),
            Aim::AtMost,
            limit,
            fermata.switch.p50 / bound.switch.p50,
            because.clone(),
        ),
        Target::new(
            format!("gap (PAUSED or FINISH to START) beside the lower bound's at P50, {name}"),
            Aim::AtMost,
            limit,
            fermata.gap.p50 / bound.gap.p50,
            because,
        ),
    ]
}

fn beside_daemon<'a>(rows: &Rows<'a>) -> Vec<Target> {
    let mut targets = Vec::new();
    let both = |find: &dyn Fn(Variant) -> Option<&'a Row>| {
        find(Variant::Fermata).zip(find(Variant::Sleep))
    };
    if let Some((fermata, daemon)) = both(&|it| rows.mixed(it, Load::Busy, Costs::Even)) {
        let bound = rows.mixed(Variant::Bound, Load::Busy, Costs::Even);
        let least = bound.map_or(f64::NAN, |row| row.gap.p99);
        targets.push(Target::new(
            "gap at P99 of the sleeping daemon beside fermata's, busy machine".into(),
            Aim::AtLeast,
            3.0,
            daemon.gap.p99 / fermata.gap.p99,
            format!(
                "{:.0} us and {:.0} us. The lower bound, a handler that does nothing else, has \
                     {least:.0} us: no driver would come to more than {:.1} here. \
                 With busy CPUs the host has fewer of them than threads, the guest's, the card's and QEMU's, and that is what waits",
                daemon.gap.p99,
                fermata.gap.p99,
                daemon.gap.p99 / least
            ),
        ));
    }
    let spent = |row: &Row| row.cpu_us.unwrap_or(f64::NAN);
    if let Some((fermata, daemon)) = both(&|it| rows.switches(it, true)) {
        let bound = rows.mixed(Variant::Bound, Load::Idle, Costs::Even);
        let least = bound.map_or(f64::NAN, spent);
        targets.push(Target::new(
            "CPU time per switch of the sleeping daemon beside fermata's".into(),
            Aim::AtLeast,
            5.0,
            spent(daemon) / spent(fermata),
            format!(
                "{:.0} us and {:.0} us, the emulation's in both, {:.2} and {:.2} context \
                     switches; {FEW} jobs that never end, so nothing but switches. \
                 The lower bound takes {least:.0} us: no driver would come to more than {:.1} here",
                spent(daemon),
                spent(fermata),
                daemon.context_switches,
                fermata.context_switches,
                spent(daemon) / least,
            ),
        ));
    }
    targets
}

fn reads(rows: &Rows<'_>) -> Option<Target> {
    let fermata = rows
        .0
        .iter()
        .filter(|row| row.cell.variant == Variant::Fermata);
    let worst = fermata.max_by(|a, b| a.reads.total_cmp(&b.reads))?;
    Some(Target::new(
        "trapped reads per switch, at worst".into(),
        Aim::AtMost,
        1.0,
        // Occasional reads, and reads cut off by a mark, are no part of a switch.
        (worst.reads * 100.0).round() / 100.0,
        format!(
            "with slices of {} us, {} machine; {:.1} posted writes; besides, each START that a \
                 program asks for reads the state's size ({:.2} per switch)",
            worst.cell.slice_us,
            worst.cell.load.name(),
            worst.writes,
            worst.size_reads
        ),
    ))
}

fn useful(rows: &Rows<'_>, load: Load, machine: &Machine) -> Option<Target> {
    let row = rows.mixed(Variant::Fermata, load, Costs::Even)?;
    let bound = rows.mixed(Variant::Bound, load, Costs::Even)?;
    let more = row.gap.p50 - bound.gap.p50;
    let writes = (row.writes - bound.writes) * machine.write_ns as f64 / 1e3;
    Some(Target::new(
        format!(
            "useful share at 1 ms slices beside what the lower bound allows, {} machine",
            load.name()
        ),
        Aim::AtLeast,
        0.98,
        row.useful_of_bound,
        format!(
            "the slot works for {:.1} % of the time; each gap is {more:.0} us longer at P50, \
                 {writes:.0} us of it posted writes, where a slice is 1000 us and its \
             save and restore 200 us",
            row.useful * 100.0
        ),
    ))
}

fn crowded(rows: &Rows<'_>) -> Vec<Target> {
    let fermata = |few| rows.switches(Variant::Fermata, few);
    let Some((few, many)) = fermata(true).zip(fermata(false)) else {
        return Vec::new();
    };
    let Tenants::Endless(count) = many.cell.tenants else {
        return Vec::new();
    };
    let cpu = |row: &Row| row.cpu_us.unwrap_or(f64::NAN);
    vec![
        Target::new(
            format!("gap at P50 with {count} contexts beside that with {FEW}"),
            Aim::AtMost,
            1.2,
            many.gap.p50 / few.gap.p50,
            format!("{:.1} us and {:.1} us", many.gap.p50, few.gap.p50),
        ),
        Target::new(
            format!("CPU time per switch with {count} contexts beside that with {FEW}"),
            Aim::AtMost,
            1.2,
            cpu(many) / cpu(few),
            format!("{:.0} us and {:.0} us", cpu(many), cpu(few)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Aim, Target};

    #[test]
    fn verdicts() {
        let target = |aim, found| Target::new(String::new(), aim, 2.0, found, String::new());
        assert_eq!(target(Aim::AtMost, 2.0).verdict(), "met");
        assert_eq!(target(Aim::AtMost, 3.0).verdict(), "missed by 50 %");
        assert_eq!(target(Aim::AtLeast, 1.0).verdict(), "missed by 100 %");
        assert!(!target(Aim::AtLeast, f64::NAN).met);
    }
}
