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

/// A target and its verdict, or a figure without a limit that is shown beside the targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) limit: Option<(Aim, f64)>,
    pub(crate) found: f64,
    /// `None` without a limit, and if it is not judged.
    pub(crate) met: Option<bool>,
    /// The figures that the value is computed from.
    pub(crate) because: String,
    /// Why a target with a limit is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) doubt: Option<String>,
}

/// With fewer visits, one visit that something disturbed decides.
const VISITS_MIN: usize = 2;
/// Load average beyond that of the machine's own CPUs: somebody else used the host.
const LOAD_BESIDE: f64 = 0.5;
/// Percent of the time that the host's hypervisor took.
const STEAL_MAX: f64 = 10.0;

/// Returns why the rows do not allow to judge a target; `None`: they do.
fn doubt(rows: &[&Row], machine: &Machine) -> Option<String> {
    let most = |value: fn(&Row) -> f64| rows.iter().map(|row| value(row)).fold(0.0, f64::max);
    let (load, steal) = (
        most(|row| row.host.load),
        most(|row| row.host.steal_percent),
    );
    if rows.iter().any(|row| row.visits < VISITS_MIN) {
        Some("one visit".into())
    } else if load > machine.cpus as f64 + LOAD_BESIDE {
        Some(format!("load {load:.1}"))
    } else if steal > STEAL_MAX {
        Some(format!("steal {steal:.0} %"))
    } else {
        None
    }
}

impl Target {
    fn new(what: String, aim: Aim, limit: f64, found: f64, because: String) -> Self {
        let met = match aim {
            Aim::AtMost => found <= limit,
            Aim::AtLeast => found >= limit,
        };
        Self {
            limit: Some((aim, limit)),
            met: Some(met),
            ..Self::without_limit(what, found, because)
        }
    }

    fn without_limit(what: String, found: f64, because: String) -> Self {
        Self {
            what,
            limit: None,
            found,
            met: None,
            because,
            doubt: None,
        }
    }

    /// Leaves a target with a limit unjudged if the rows that it is computed from do not allow it.
    fn unless_doubtful(self, rows: &[&Row], machine: &Machine) -> Self {
        let doubt = doubt(rows, machine).filter(|_| self.met.is_some());
        Self {
            met: self.met.filter(|_| doubt.is_none()),
            doubt,
            ..self
        }
    }

    /// Returns whether the target was met, or by how much it was missed.
    pub(crate) fn verdict(&self) -> String {
        let beside = match (self.met, self.limit) {
            (None, _) | (_, None) => {
                let doubt = self.doubt.as_ref();
                return doubt.map_or_else(
                    || "not judged".into(),
                    |doubt| format!("not judged: {doubt}"),
                );
            }
            (Some(true), _) => return "met".into(),
            (_, Some((Aim::AtMost, limit))) => self.found / limit,
            (_, Some((Aim::AtLeast, limit))) => limit / self.found,
        };
        format!("missed by {:.1} %", (beside - 1.0) * 100.0)
    }

    pub(crate) fn limit(&self) -> String {
        match self.limit {
            None => "-".into(),
            Some((Aim::AtMost, limit)) => format!("at most {limit}"),
            Some((Aim::AtLeast, limit)) => format!("at least {limit}"),
        }
    }
}

/// The rows of a run, and the machine.
struct Rows<'a>(&'a [Row], &'a Machine);

impl<'a> Rows<'a> {
    fn mixed(&self, variant: Variant, load: Load, costs: Costs) -> Option<&'a Row> {
        let tenants = match variant {
            Variant::Bound | Variant::CardBound => Tenants::Alone,
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
    let rows = Rows(rows, machine);
    let mut targets = Vec::new();
    for costs in Costs::ALL {
        targets.extend(
            Load::ALL
                .map(|load| gap(&rows, load, costs))
                .into_iter()
                .flatten(),
        );
    }
    targets.extend(late_gap(&rows, Load::Busy, Variant::Sleep));
    targets.extend(late_gap(&rows, Load::Idle, Variant::Relay));
    targets.extend(
        Load::ALL
            .map(|load| useful(&rows, load))
            .into_iter()
            .flatten(),
    );
    targets.extend(accesses(&rows));
    targets.extend(cpu(&rows));
    targets.extend(
        Load::ALL
            .map(|load| slice_error(&rows, load))
            .into_iter()
            .flatten(),
    );
    targets.extend(
        Load::ALL
            .map(|load| urgent(&rows, load))
            .into_iter()
            .flatten(),
    );
    targets.extend(crowded(&rows));
    targets
}

fn gap(rows: &Rows<'_>, load: Load, costs: Costs) -> Option<Target> {
    let at = |variant| rows.mixed(variant, load, costs);
    let (fermata, bound) = at(Variant::Fermata).zip(at(Variant::Bound))?;
    let card = at(Variant::CardBound)?;
    let target = Target::new(
        format!(
            "gap at P50 beside that of the bound of interrupt-driven drivers, {} machine, card's costs {}",
            load.name(),
            costs.name()
        ),
        Aim::AtMost,
        1.0,
        fermata.gap.p50 / bound.gap.p50,
        format!(
            "{:.1} us and {:.1} us; the card bound {:.1} us",
            fermata.gap.p50, bound.gap.p50, card.gap.p50
        ),
    );
    Some(target.unless_doubtful(&[fermata, bound], rows.1))
}

/// Returns the P99 of a daemon's gaps beside that of fermata's, with the length of slices at which
/// the ratio is lowest. The ratio to the daemon without relay is a target.
fn late_gap(rows: &Rows<'_>, load: Load, peer: Variant) -> Option<Target> {
    let late = |row: &Row| row.gap.p99.unwrap_or(f64::NAN);
    let pairs = rows.0.iter().filter_map(|fermata| {
        let cell = fermata.cell;
        let kind = (cell.variant, cell.load, cell.costs, cell.tenants);
        if kind != (Variant::Fermata, load, Costs::Even, Tenants::Mixed) {
            return None;
        }
        let variant = peer;
        let daemon = rows.at(Cell { variant, ..cell })?;
        Some((late(daemon) / late(fermata), fermata, daemon))
    });
    let mut pairs: Vec<_> = pairs.collect();
    // NaN goes first: the report then says that there are too few samples.
    pairs.sort_by(|(a, ..), (b, ..)| b.is_nan().cmp(&a.is_nan()).then(a.total_cmp(b)));
    let (found, fermata, daemon) = *pairs.first()?;
    let slice_ms = |row: &Row| f64::from(row.cell.slice_us) / 1e3;
    let others = pairs[1..].iter();
    let others = others.map(|(ratio, row, _)| format!("; {} ms: {ratio:.2}", slice_ms(row)));
    let what = format!(
        "gap at P99 of the {} beside fermata's, {} machine, worst length of slices",
        if peer == Variant::Relay {
            "daemon with relay"
        } else {
            "sleeping daemon"
        },
        load.name(),
    );
    let because = format!(
        "slices of {} ms: {:.0} us and {:.0} us{}",
        slice_ms(fermata),
        late(daemon),
        late(fermata),
        others.collect::<String>()
    );
    Some(match peer {
        Variant::Relay => Target::without_limit(what, found, because),
        _ => Target::new(what, Aim::AtLeast, 10.0, found, because)
            .unless_doubtful(&[fermata, daemon], rows.1),
    })
}

fn useful(rows: &Rows<'_>, load: Load) -> Option<Target> {
    let at = |variant| rows.mixed(variant, load, Costs::Even);
    let (fermata, card) = at(Variant::Fermata).zip(at(Variant::CardBound))?;
    let target = Target::new(
        format!(
            "useful share at 1 ms slices beside the card bound's, {} machine",
            load.name()
        ),
        Aim::AtLeast,
        0.98,
        fermata.useful / card.useful,
        format!(
            "{:.1} % and {:.1} % of the time; gaps longer than the card bound's take {:.1} %",
            fermata.useful * 100.0,
            card.useful * 100.0,
            fermata.lost_to_gaps * 100.0
        ),
    );
    Some(target.unless_doubtful(&[fermata, card], rows.1))
}

/// Judges the register accesses of the visits with slices of 1 ms, at worst.
fn accesses(rows: &Rows<'_>) -> Vec<Target> {
    let worst = |value: fn(&Row) -> f64| {
        let fermata = Load::ALL.map(|load| rows.mixed(Variant::Fermata, load, Costs::Even));
        let worst = fermata.into_iter().flatten();
        let worst = worst.max_by(|a, b| value(a).total_cmp(&value(b)))?;
        let urgent = worst.arrival.count as f64 / worst.switches as f64;
        let because = format!(
            "slices of 1 ms, {} machine; urgent work arrived {urgent:.2} times per switch",
            worst.cell.load.name()
        );
        Some((value(worst), because, worst))
    };
    let target = |what: &str, limit, value| {
        let (found, because, row) = worst(value)?;
        let target = Target::new(what.into(), Aim::AtMost, limit, found, because);
        Some(target.unless_doubtful(&[row], rows.1))
    };
    let writes = target("posted writes per switch", 1.3, |row| row.writes);
    let reads = target("trapped reads per switch", 0.01, |row| {
        row.reads + row.size_reads
    });
    writes.into_iter().chain(reads).collect()
}

fn cpu(rows: &Rows<'_>) -> Option<Target> {
    let spent = |row: &Row| row.cpu_us.unwrap_or(f64::NAN);
    let switches = |variant| rows.switches(variant, true);
    let (fermata, daemon) = switches(Variant::Fermata).zip(switches(Variant::Sleep))?;
    let bound = |variant| rows.mixed(variant, Load::Idle, Costs::Even);
    let (bound, card) = bound(Variant::Bound).zip(bound(Variant::CardBound))?;
    let target = Target::new(
        "CPU time per switch beside that of the bound of interrupt-driven drivers".into(),
        Aim::AtMost,
        1.0,
        spent(fermata) / spent(bound),
        format!(
            "{:.0} us and {:.0} us, the emulation's in both; {FEW} jobs that never end, so nothing \
             but switches. The card bound takes {:.0} us, the daemon without relay {:.0} us",
            spent(fermata),
            spent(bound),
            spent(card),
            spent(daemon)
        ),
    );
    Some(target.unless_doubtful(&[fermata, bound], rows.1))
}

fn slice_error(rows: &Rows<'_>, load: Load) -> Option<Target> {
    let row = rows.mixed(Variant::Fermata, load, Costs::Even)?;
    let slice = f64::from(SLICE_US);
    let target = Target::new(
        format!(
            "slice error at P50, part of a slice of 1 ms, {} machine",
            load.name()
        ),
        Aim::AtMost,
        0.02,
        row.overrun.p50.abs() / slice,
        format!("{:.0} us", row.overrun.p50),
    );
    Some(target.unless_doubtful(&[row], rows.1))
}

/// Judges the idle machine only, as the target does.
fn urgent(rows: &Rows<'_>, load: Load) -> Option<Target> {
    let row = rows.mixed(Variant::Fermata, load, Costs::Even)?;
    let card = Costs::Even.save_and_restore_us() + rows.1.write_ns as f64 / 1e3;
    let what = format!(
        "urgent work waits at P50, beside the card's save, restore and one posted write, {} machine",
        load.name()
    );
    let found = row.arrival.p50 / card;
    let because = format!("{:.0} us and {card:.0} us", row.arrival.p50);
    Some(match load {
        Load::Idle => {
            Target::new(what, Aim::AtMost, 1.5, found, because).unless_doubtful(&[row], rows.1)
        }
        Load::Busy => Target::without_limit(what, found, because),
    })
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
    let targets = [
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
    ];
    let judged = targets.map(|target| target.unless_doubtful(&[few, many], rows.1));
    judged.into()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{HostLoad, Spread};
    use super::*;

    /// Returns a row whose figures are 0, except those that `set` sets.
    fn row(variant: Variant, load: Load, slice_us: u32, set: impl FnOnce(&mut Row)) -> Row {
        let tenants = match variant {
            Variant::Bound | Variant::CardBound => Tenants::Alone,
            _ => Tenants::Mixed,
        };
        let cell = Cell {
            variant,
            load,
            costs: Costs::Even,
            tenants,
            slice_us,
        };
        let mut row = Row {
            cell,
            visits: 5,
            switches: 1,
            jobs: 1,
            gap: Spread::default(),
            switch: Spread::default(),
            arrival: Spread::default(),
            overrun: Spread::default(),
            useful: 0.0,
            lost_to_gaps: 0.0,
            cpu_us: None,
            daemon_us: None,
            context_switches: 0.0,
            reads: 0.0,
            size_reads: 0.0,
            writes: 0.0,
            host: HostLoad::default(),
        };
        set(&mut row);
        row
    }

    #[test]
    fn the_useful_share_is_judged_as_it_is() {
        let useful = |variant, useful| {
            row(variant, Load::Idle, SLICE_US, |row| {
                // The time is lost to saves and restores, not to gaps.
                (row.useful, row.lost_to_gaps) = (useful, 0.0);
            })
        };
        let rows = [
            useful(Variant::Fermata, 0.6),
            useful(Variant::CardBound, 0.8),
        ];
        let target = super::useful(&Rows(&rows, &MACHINE), Load::Idle).unwrap();
        assert!((target.found - 0.75).abs() < 1e-9);
        assert_eq!(target.met, Some(false));
        assert!(target.because.starts_with("60.0 % and 80.0 %"));
    }

    /// Returns a row of a busy machine whose gaps have this P99.
    fn late(variant: Variant, slice_us: u32, p99: Option<f64>) -> Row {
        let gap = Spread {
            p99,
            ..Spread::default()
        };
        row(variant, Load::Busy, slice_us, |row| row.gap = gap)
    }

    #[test]
    fn the_gap_at_p99_is_judged_with_the_worst_slices() {
        let mut rows = vec![
            late(Variant::Fermata, 1000, Some(100.0)),
            late(Variant::Sleep, 1000, Some(2000.0)),
            late(Variant::Fermata, 5000, Some(500.0)),
            late(Variant::Sleep, 5000, Some(1500.0)),
        ];
        let target = late_gap(&Rows(&rows, &MACHINE), Load::Busy, Variant::Sleep).unwrap();
        assert_eq!((target.found, target.met), (3.0, Some(false)));
        assert_eq!(
            target.because,
            "slices of 5 ms: 1500 us and 500 us; 1 ms: 20.00"
        );
        rows.push(late(Variant::Fermata, 10_000, None));
        rows.push(late(Variant::Sleep, 10_000, Some(1000.0)));
        assert!(late_gap(&Rows(&rows, &MACHINE), Load::Busy, Variant::Sleep)
            .unwrap()
            .found
            .is_nan());
    }

    #[test]
    fn urgent_work_on_a_busy_machine_is_shown_without_a_verdict() {
        let waits = |load| {
            row(Variant::Fermata, load, SLICE_US, |row| {
                row.arrival.p50 = 606.0;
            })
        };
        let rows = Load::ALL.map(waits);
        let machine = Machine {
            cpus: 2,
            read_ns: 0,
            write_ns: 2_000,
        };
        let verdicts = judge(&rows, &machine).into_iter();
        let verdicts = verdicts.filter(|target| target.what.starts_with("urgent work"));
        let verdicts: Vec<_> = verdicts
            .map(|target| (target.found, target.verdict()))
            .collect();
        assert_eq!(
            verdicts,
            [
                (3.0, "missed by 100.0 %".into()),
                (3.0, "not judged".into())
            ]
        );
    }

    #[test]
    fn the_gap_at_p99_is_shown_beside_the_daemon_with_relay() {
        let late = |variant, p99| row(variant, Load::Idle, SLICE_US, |row| row.gap.p99 = Some(p99));
        let rows = [late(Variant::Fermata, 180.0), late(Variant::Relay, 45.0)];
        let target = late_gap(&Rows(&rows, &MACHINE), Load::Idle, Variant::Relay).unwrap();
        assert_eq!((target.found, target.limit()), (0.25, "-".into()));
    }

    /// A machine whose register accesses take no time.
    const MACHINE: Machine = Machine {
        cpus: 2,
        read_ns: 0,
        write_ns: 0,
    };

    #[test]
    fn what_was_disturbed_is_not_judged() {
        let verdict = |set: fn(&mut Row)| {
            let rows = [row(Variant::Fermata, Load::Idle, SLICE_US, set)];
            slice_error(&Rows(&rows, &MACHINE), Load::Idle)
                .unwrap()
                .verdict()
        };
        assert_eq!(verdict(|_| ()), "met");
        assert_eq!(verdict(|row| row.visits = 1), "not judged: one visit");
        assert_eq!(verdict(|row| row.host.load = 2.4), "met");
        assert_eq!(verdict(|row| row.host.load = 3.6), "not judged: load 3.6");
        let stolen = |row: &mut Row| row.host.steal_percent = 40.0;
        assert_eq!(verdict(stolen), "not judged: steal 40 %");
    }

    #[test]
    fn verdicts() {
        let target = |aim, found| Target::new(String::new(), aim, 2.0, found, String::new());
        assert_eq!(target(Aim::AtMost, 2.0).verdict(), "met");
        assert_eq!(target(Aim::AtMost, 3.0).verdict(), "missed by 50.0 %");
        assert_eq!(target(Aim::AtLeast, 1.0).verdict(), "missed by 100.0 %");
        assert_eq!(target(Aim::AtLeast, f64::NAN).met, Some(false));
    }
}
