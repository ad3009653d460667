// SPDX-License-Identifier: GPL-2.0

//! `make sim`: the scheduler over virtual time (docs/simulator.md).

use fermata_output::{complain, say};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::{Parser, Subcommand};
use fermata_sim::compare::{compare, Row, Settings};
use fermata_sim::mode::{self, Mode};
use fermata_sim::placement::{self, Strategy};
use fermata_sim::report::{self, Report};
use fermata_sim::sim::Costs;
use fermata_sim::workload::{self, Phases, Workload};
use fermata_sim::{config, fleet, gangs, S, US};

/// The scheduler of fermata.ko over virtual time.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Seed of all random numbers
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Where sim.json and the plots go
    #[arg(long, global = true, default_value = "build/reports")]
    out: PathBuf,
    #[arg(long, help = modes_help(), global = true, value_delimiter = ',', value_parser = Mode::parse)]
    modes: Vec<Mode>,
    #[command(flatten)]
    costs: Costs,
}

impl Args {
    /// Returns the modes that were requested, or else `default`.
    fn modes<'a>(&'a self, default: &'a [Mode]) -> &'a [Mode] {
        if self.modes.is_empty() {
            default
        } else {
            &self.modes
        }
    }
}

#[derive(Subcommand)]
enum What {
    /// Four modes on each workload, the saturated workload first, as `make sim` has them
    Overview(CompareArgs),
    /// The comparison, a trace, gangs, fleets and placement
    All {
        #[command(flatten)]
        compare: CompareArgs,
        #[command(flatten)]
        fleet: FleetArgs,
        #[command(flatten)]
        gangs: GangArgs,
        #[command(flatten)]
        placement: PlacementArgs,
    },
    /// Every mode on every workload at every load
    Compare(CompareArgs),
    /// Fleets of several sizes
    Fleet(FleetArgs),
    /// Gangs of 2, 4 and 8 on 2, 4 and 8 slots, next to the same work without gangs
    Gangs(GangArgs),
    /// Jobs of a cluster that are preempted or drained, and restart or resume from a checkpoint
    Placement(PlacementArgs),
    /// Every mode on the requests of a CSV file (docs/simulator.md has its columns)
    Trace {
        /// The file
        file: PathBuf,
        /// How long a client prepares a request, us
        #[arg(long, default_value_t = PREPARATION_US)]
        preparation_us: u64,
    },
}

const PREPARATION_US: u64 = 200;

#[derive(clap::Args)]
struct CompareArgs {
    /// Workloads [default: all; with --config only those of the files]
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// A configuration file of `GPreempt`, like its REAL.json, as an additional workload
    /// (docs/simulator.md has the format); may be repeated
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Duration of a request of a model of --config, us
    #[arg(long, value_name = "MODEL=US", value_delimiter = ',', value_parser = parse_work)]
    work: Vec<(String, u64)>,
    /// Loads in percent; 0 is the load of the durations in the table
    #[arg(long, value_delimiter = ',', default_values_t = [0, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95])]
    loads: Vec<u32>,
    /// When periodic clients begin
    #[arg(long, value_enum, default_value_t)]
    phases: Phases,
    /// Seconds of virtual time; a configuration file has its own
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

#[derive(clap::Args)]
struct FleetArgs {
    /// Numbers of cards, ascending
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    cards: Vec<usize>,
    /// Slots of each card
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    slots: u8,
    /// Contexts of each card
    #[arg(long, default_value_t = 100)]
    contexts: usize,
    /// Load of the slots in percent
    #[arg(long, default_value_t = 80)]
    load: u32,
    /// Milliseconds of virtual time
    #[arg(long, default_value_t = 10_000)]
    ms: u64,
}

#[derive(clap::Args)]
struct GangArgs {
    /// Requests per second of the LC client, 500 us each
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// BE clients in no gang: none, and as many as slots [default: both]
    #[arg(long)]
    singles: Option<usize>,
    /// Seconds of virtual time
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    gang_seconds: u64,
}

#[derive(clap::Args)]
struct PlacementArgs {
    /// Nodes, with a card each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Time of the cards that jobs demand, in percent
    #[arg(long, value_delimiter = ',', conflicts_with = "swf", default_values_t = [70, 90, 98], value_parser = clap::value_parser!(u32).range(1..=200))]
    demands: Vec<u32>,
    /// Days of virtual time
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=365))]
    days: u64,
    /// The mean time until a node is drained again, hours; 0: never
    #[arg(long, default_value_t = 168, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    drain_every_h: u64,
    /// How long a node is drained, minutes
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    drain_min: u64,
    /// How long a job that is saved cannot run, seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    move_s: u64,
    /// Jobs of a file in the Standard Workload Format
    #[arg(long, value_name = "FILE")]
    swf: Option<PathBuf>,
    /// Processors of the file that are a card
    #[arg(long, requires = "swf", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    processors_per_card: u32,
}

fn modes_help() -> String {
    format!(
        "Modes: {}, which is a card that switches by itself [default: four; for compare, trace and all ten; for fleets three; for gangs one]",
        mode::NAMES
    )
}

fn main() -> ExitCode {
    fermata_output::end("fermata-sim", run().map(|()| true))
}

fn run() -> Result<()> {
    let args = Args::parse();
    let mut report = Report::new(args.seed, args.costs);
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    say!("{}\n", report::costs(&args.costs));
    match &args.what {
        What::Overview(compare) => run_overview(&args, compare, &mut report)?,
        What::All {
            compare,
            fleet,
            gangs,
            placement,
        } => {
            run_compare(&args, compare, &mut report)?;
            say!("trace: rust/sim/traces/bursts.csv, LC in bursts");
            run_trace(&args, BURSTS, PREPARATION_US, &mut report)?;
            run_gangs(&args, gangs, &mut report);
            run_fleet(&args, fleet, &mut report);
            run_placement(&args, placement, &mut report)?;
        }
        What::Compare(compare) => run_compare(&args, compare, &mut report)?,
        What::Fleet(fleet) => run_fleet(&args, fleet, &mut report),
        What::Gangs(gangs) => run_gangs(&args, gangs, &mut report),
        What::Placement(placement) => run_placement(&args, placement, &mut report)?,
        What::Trace {
            file,
            preparation_us,
        } => {
            let name = || file.display().to_string();
            let text = fs::read_to_string(file).with_context(name)?;
            say!("{}", report::LEGEND);
            run_trace(&args, &text, *preparation_us, &mut report).with_context(name)?;
        }
    }
    let file = args.out.join("sim.json");
    let json = serde_json::to_string_pretty(&report)? + "\n";
    fs::write(&file, json).with_context(|| file.display().to_string())?;
    say!("wrote {}", file.display());
    Ok(())
}

fn parse_work(text: &str) -> Result<(String, u64), String> {
    let given = text.split_once('=');
    let given = given.and_then(|(model, us)| Some((model.to_string(), us.parse().ok()?)));
    given
        .filter(|(_, us)| config::WORK_US.contains(us))
        .ok_or_else(|| "give MODEL=US, US from 1 to 60000000".into())
}

/// Returns the workloads that were requested.
fn workloads(what: &CompareArgs) -> Result<Vec<Workload>> {
    let mut workloads = Workload::all();
    for name in &what.workloads {
        let known = workloads.iter().any(|workload| workload.name == *name);
        ensure!(known, "no workload {name}: A to E, Y, Z");
    }
    if !(what.workloads.is_empty() && what.config.is_empty()) {
        workloads.retain(|workload| what.workloads.contains(&workload.name));
    }
    for file in &what.config {
        let new = config::read(file, &what.work)?;
        let mut names = Workload::all().into_iter().chain(workloads.iter().cloned());
        ensure!(
            names.all(|old| old.name != new.name),
            "{}: there is a workload {} already: rename the file",
            file.display(),
            new.name
        );
        workloads.push(new);
    }
    Ok(workloads)
}

/// The workload that the overview begins with: LC and BE together fill the slot.
const SATURATED: &str = "C";

fn run_overview(args: &Args, what: &CompareArgs, report: &mut Report) -> Result<()> {
    let mut workloads = workloads(what)?;
    workloads.sort_by_key(|workload| workload.name != SATURATED);
    let rows = compared(args, what, &workloads, &Mode::OVERVIEW);
    report.phases = Some(what.phases);
    say!("{}", report::LEGEND);
    write_compared(&rows, &args.out.join("sim.txt"))?;
    for workload in &workloads {
        let own = rows.iter().filter(|row| row.workload == workload.name);
        let mut own: Vec<&Row> = own.collect();
        if own.iter().any(|row| row.natural) {
            own.retain(|row| row.natural);
        }
        let Workload { name, text, .. } = workload;
        say!("\n{name}: {text}\n{}", report::compare_table(&own));
    }
    let file = args.out.join("sim.txt");
    say!("wrote {}: every mode at every load", file.display());
    draw_compared(args, &workloads, rows, report)
}

/// Runs the comparison, with `modes` unless the arguments name others.
fn compared(args: &Args, what: &CompareArgs, workloads: &[Workload], modes: &[Mode]) -> Vec<Row> {
    let loads = what.loads.iter();
    compare(&Settings {
        workloads: workloads.to_vec(),
        loads: loads
            .map(|&load| (load > 0).then_some(f64::from(load) / 100.0))
            .collect(),
        modes: args.modes(modes).to_vec(),
        costs: args.costs,
        phases: what.phases,
        seconds: what.seconds,
        seed: args.seed,
    })
}

fn run_compare(args: &Args, what: &CompareArgs, report: &mut Report) -> Result<()> {
    let workloads = workloads(what)?;
    let rows = compared(args, what, &workloads, &Mode::ALL);
    report.phases = Some(what.phases);
    for workload in &workloads {
        say!("{}: {}", workload.name, workload.text);
    }
    say!("{}", report::LEGEND);
    print_compared(&rows, &args.out.join("sim.txt"))?;
    draw_compared(args, &workloads, rows, report)
}

/// Draws a picture for each workload, and adds the rows to the report.
fn draw_compared(
    args: &Args,
    workloads: &[Workload],
    rows: Vec<Row>,
    report: &mut Report,
) -> Result<()> {
    for workload in workloads {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.workload == workload.name)
            .collect();
        let file = args.out.join(format!("sim-{}.svg", workload.name));
        report::draw(
            &rows,
            &format!("{}: {}", workload.name, workload.text),
            &file,
        )?;
    }
    report.compare = rows;
    Ok(())
}

/// Limit of printed rows: longer tables go to a file, and a summary is printed.
const ROWS_PRINTED: usize = 100;

/// Writes every mode at every load to a file. Returns the table.
fn write_compared(rows: &[Row], file: &Path) -> Result<String> {
    let every: Vec<&Row> = rows.iter().collect();
    let table = report::compare_table(&every).to_string();
    fs::write(file, format!("{}\n{table}\n", report::LEGEND))
        .with_context(|| file.display().to_string())?;
    Ok(table)
}

fn print_compared(rows: &[Row], file: &Path) -> Result<()> {
    let table = write_compared(rows, file)?;
    let natural: Vec<&Row> = rows.iter().filter(|row| row.natural).collect();
    if rows.len() <= ROWS_PRINTED || natural.is_empty() {
        say!("{table}");
        return Ok(());
    }
    say!("{}", report::compare_table(&natural));
    for mode in Mode::URGENT {
        if let Some(table) = report::sweep_table(rows, mode) {
            say!("{table}");
        }
    }
    say!("wrote {}: every mode at every load", file.display());
    Ok(())
}

fn run_fleet(args: &Args, what: &FleetArgs, report: &mut Report) {
    for &cards in &what.cards {
        for &mode in args.modes(&Mode::FLEET) {
            complain!("fleet of {cards} cards, {} ...", mode.name());
            report.fleet.push(fleet::fleet(&fleet::Settings {
                mode,
                cards,
                slots: usize::from(what.slots),
                contexts: what.contexts,
                load: f64::from(what.load) / 100.0,
                costs: args.costs,
                ms: what.ms,
                seed: args.seed,
            }));
        }
    }
    say!(
        "fleets: Poisson, exponential work, one context in five LC (0.5 ms), the others BE (5 ms)"
    );
    say!("{}\n", report::fleet_table(&report.fleet));
}

fn run_gangs(args: &Args, what: &GangArgs, report: &mut Report) {
    for slots in gangs::SIZES {
        for members in gangs::SIZES.into_iter().filter(|&members| members <= slots) {
            let both = [0, slots];
            let singles = match &what.singles {
                Some(singles) => std::slice::from_ref(singles),
                None => &both,
            };
            for &singles in singles {
                let modes = args.modes(&Mode::GANGS).iter();
                report.gangs.extend(modes.map(|&mode| {
                    gangs::gangs(&gangs::Settings {
                        mode,
                        slots,
                        members,
                        singles,
                        rate: what.rate,
                        costs: args.costs,
                        seconds: what.gang_seconds,
                        seed: args.seed,
                    })
                }));
            }
        }
    }
    say!(
        "gangs: LC 500 us, BE 20 ms; skew: of STARTs of members that waited together; apart: the same without gangs"
    );
    say!("useful: the part of the slots' time in which engines work on BE jobs, gangs': on those of gangs");
    say!("{}\n", report::gangs_table(&report.gangs));
}

fn run_placement(args: &Args, what: &PlacementArgs, report: &mut Report) -> Result<()> {
    let settings = placement::Settings {
        nodes: what.nodes as usize,
        end: what.days * 86_400 * S,
        drain_every: what.drain_every_h * 3_600 * S,
        drain_for: what.drain_min * 60 * S,
        move_time: what.move_s * S,
        seed: args.seed,
    };
    let sets = if let Some(file) = &what.swf {
        let name = || file.display().to_string();
        let text = fs::read_to_string(file).with_context(name)?;
        let mut jobs = placement::parse_swf(&text, what.processors_per_card).with_context(name)?;
        jobs.retain(|job| job.submitted < settings.end);
        ensure!(
            !jobs.is_empty(),
            "{}: no job is submitted in the first {} days: try more --days",
            name(),
            what.days
        );
        vec![jobs]
    } else {
        let load = |&demand: &u32| f64::from(demand) / 100.0;
        let loads = what.demands.iter().map(load);
        loads
            .map(|load| placement::synthetic(settings.nodes, load, settings.end, args.seed))
            .collect()
    };
    for jobs in &sets {
        let rows = Strategy::ALL.map(|strategy| placement::placement(&settings, strategy, jobs));
        report.placement.extend(rows);
    }
    say!(
        "placement: {} days; a node is drained for {} min each {} h; a move takes {} s; slowdown: time until the end, over the run time with own shards",
        what.days, what.drain_min, what.drain_every_h, what.move_s
    );
    say!("{}\n", report::placement_table(&report.placement));
    Ok(())
}

/// A trace made for `make sim`: LC arrives in bursts, unlike Poisson or periodic arrivals.
const BURSTS: &str = include_str!("../traces/bursts.csv");

fn run_trace(args: &Args, text: &str, preparation_us: u64, report: &mut Report) -> Result<()> {
    let (clients, last) = workload::parse_trace(text, preparation_us * US)?;
    report.trace = fermata_sim::compare::on_trace(
        &clients,
        last,
        args.modes(&Mode::ALL),
        args.costs,
        args.seed,
    );
    let rows: Vec<&Row> = report.trace.iter().collect();
    say!("{}", report::compare_table(&rows));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Arguments of the same name in two structs that one command takes are refused only at run
    /// time.
    #[test]
    fn every_command_takes_its_defaults() {
        Args::command().debug_assert();
        for what in ["overview", "all", "compare", "fleet", "gangs", "placement"] {
            assert!(
                Args::try_parse_from(["fermata-sim", what]).is_ok(),
                "{what}"
            );
        }
    }
}
