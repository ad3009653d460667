// SPDX-License-Identifier: GPL-2.0-or-later
//! The part in the guest: makes all visits, driver by driver in each round, and writes what the
//! guest saw. The card's log has the rest.

pub(crate) mod count;
pub(crate) mod machine;
pub(crate) mod peer;
pub(crate) mod tenants;

pub(crate) use machine::spin;

use crate::mark::{visit_text, Mark, Marker};
use crate::visit::{Cell, Costs, Driver, Extent, Load, Variant, Visit};
use anyhow::{Context as _, Result};
use fermata_card::control::Control;
use fermata_output::say;
use machine::Card;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tenants::TenantSet;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// One round with few slices, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Number of visits of each cell
    #[arg(long)]
    rounds: Option<u32>,
    /// Length of a visit in slices, about
    #[arg(long)]
    slices: Option<u32>,
    /// The card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
    /// The module of the bounds
    #[arg(long, default_value = "/bound/fermata_bound.ko")]
    bound: PathBuf,
    /// Where the file for the report goes
    #[arg(long, default_value = "/report/visits.json")]
    out: PathBuf,
}

/// Overhead of a slice: save, restore and the host's work.
const PER_SLICE: Duration = Duration::from_micros(900);
/// The least length of a visit; set-up and tear-down would dominate shorter visits.
const SHORTEST: Duration = Duration::from_millis(250);
/// The length of a visit without preemption, where each job runs to its end.
const COMPLETION: Duration = Duration::from_millis(2000);
/// From the start of the tenants to the mark: each tenant has run once.
const WARM_UP: Duration = Duration::from_millis(100);
/// From one sample of the guest's CPU time on the host to the next (`PERIOD` in
/// vm/fermatavm/bench.py).
const HOST_PERIOD: Duration = Duration::from_millis(20);
/// Timed reads of a register, and writes before each read: about as many as a switch takes.
const ACCESSES: usize = 500;
const BURST: u64 = 12;

/// Makes all rounds.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut extent = if options.quick {
        Extent::QUICK
    } else {
        Extent::FULL
    };
    extent.rounds = options.rounds.unwrap_or(extent.rounds);
    extent.slices = options.slices.unwrap_or(extent.slices);
    machine::load_vfio()?;
    machine::load_bound(&options.bound)?;
    let card = Card::find()?;
    let marker = Marker::open(&card.path)?;
    let mut runner = Runner {
        control: Control::open(&options.control)?,
        marker,
        card,
        extent,
        costs: None,
        visits: Vec::new(),
    };
    let (read_ns, write_ns) = runner.time_accesses()?;
    let all = (1..=extent.rounds).try_for_each(|round| runner.round(round));
    // The file is written even if a round failed: the report then has the visits up to there.
    let visits = crate::visit::Run {
        read_ns,
        write_ns,
        cpus: machine::cpus()?,
        made: runner.visits,
    };
    let out = File::create(&options.out).with_context(|| options.out.display().to_string())?;
    serde_json::to_writer(out, &visits)?;
    all
}

/// Marks begin and end of `run`. Returns the results of `sample` from before and after `run`, but
/// only when the host has sampled the guest's CPU time after the end: the time between two samples
/// must not include what the caller does next.
fn between_marks<S>(
    number: u32,
    mark: impl Fn(Mark),
    sample: impl Fn() -> Result<S>,
    run: impl FnOnce(),
) -> Result<(S, S)> {
    let before = sample()?;
    mark(Mark::Begin(number));
    run();
    mark(Mark::End(number));
    let after = sample()?;
    std::thread::sleep(2 * HOST_PERIOD);
    Ok((before, after))
}

struct Runner {
    control: Control,
    marker: Marker,
    card: Card,
    extent: Extent,
    /// The costs that are set on the card.
    costs: Option<Costs>,
    visits: Vec<Visit>,
}

impl Runner {
    /// Returns the median time of a register read, and the median time that a posted write adds to
    /// the next read, in ns.
    fn time_accesses(&mut self) -> Result<(u64, u64)> {
        self.card.bind(Driver::Fermata)?;
        let median = |writes: u64| {
            let mut times: Vec<u64> = (0..ACCESSES)
                .map(|_| {
                    let from = Instant::now();
                    (0..writes).for_each(|_| self.marker.mark(Mark::End(0)));
                    self.marker.read();
                    from.elapsed().as_nanos() as u64
                })
                .collect();
            times.sort_unstable();
            times[ACCESSES / 2]
        };
        let read = median(0);
        Ok((read, median(BURST).saturating_sub(read) / BURST))
    }

    /// Visits each cell once. The order of drivers, and of the cells of a driver, differs from
    /// round to round.
    fn round(&mut self, round: u32) -> Result<()> {
        let began = Instant::now();
        let mut drivers = Driver::ALL;
        drivers.rotate_left(round as usize % Driver::ALL.len());
        for driver in drivers {
            let mut cells = self.extent.cells(driver);
            let by = round as usize * 7 % cells.len();
            cells.rotate_left(by);
            for cell in cells {
                self.visit(round, cell)
                    .with_context(|| format!("{cell:?}"))?;
            }
        }
        say!(
            "round {round} of {}: {:.0} s",
            self.extent.rounds,
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn visit(&mut self, round: u32, cell: Cell) -> Result<()> {
        if self.costs != Some(cell.costs) {
            self.control
                .ask(&format!("set slot=0 {}", cell.costs.settings()))?;
            self.costs = Some(cell.costs);
        }
        let number = self.visits.len() as u32 + 1;
        // The release of a driver counts to the last visit with that driver.
        self.card.release_unless(cell)?;
        self.control
            .ask(&format!("mark text={}", visit_text(number)))?;
        self.card.bind(cell.variant.driver())?;
        let hogs = match cell.load {
            Load::Idle => Vec::new(),
            Load::Busy => machine::start_hogs()?,
        };
        let tenants = TenantSet::new(cell, &self.card, &self.marker)?;
        let (usage, jobs, wrong) = std::thread::scope(|scope| {
            let running = tenants.start(scope);
            std::thread::sleep(WARM_UP);
            let (before, after) = between_marks(
                number,
                |mark| self.marker.mark(mark),
                || machine::Sample::take(tenants.daemon()),
                || tenants.run_for(self.length(cell)),
            )?;
            let (jobs, wrong) = running.end(&tenants)?;
            anyhow::Ok((after.since(&before), jobs, wrong))
        })?;
        drop(hogs);
        tenants.end_daemon()?;
        self.visits.push(Visit {
            number,
            round,
            cell,
            jobs,
            wrong,
            usage,
        });
        Ok(())
    }

    fn length(&self, cell: Cell) -> Duration {
        if cell.variant == Variant::Completion {
            return COMPLETION.min(PER_SLICE * 40 * self.extent.slices);
        }
        let slice = Duration::from_micros(cell.slice_us.into());
        SHORTEST.max((slice + PER_SLICE) * self.extent.slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn tear_down_begins_after_the_next_sample_of_the_host() {
        let steps = RefCell::new(Vec::new());
        let step = |what: &str| steps.borrow_mut().push((what.to_owned(), Instant::now()));
        let mark = |mark| match mark {
            Mark::Begin(7) => step("begin"),
            Mark::End(7) => step("end"),
            _ => unreachable!(),
        };
        let sample = || {
            step("sample");
            Ok(())
        };
        between_marks(7, mark, sample, || step("run")).unwrap();
        let steps = steps.into_inner();
        let names: Vec<_> = steps.iter().map(|(what, _)| what.as_str()).collect();
        assert_eq!(names, ["sample", "begin", "run", "end", "sample"]);
        // A sample of the host lies in this time even if the host is late by a period.
        assert!(steps[3].1.elapsed() >= 2 * HOST_PERIOD);
    }
}
