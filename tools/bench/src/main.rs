// SPDX-License-Identifier: GPL-2.0-or-later
//! Benchmarks with the emulated card.
//!
//! `make bench` compares fermata, a daemon on vfio-pci, no preemption, and two bounds, with the
//! same tenants on the same card. `make bench-latency` measures how soon latency-critical work gets
//! a slot, and `make bench-queue` measures the cost of a job that is posted to a queue. The
//! subcommands for the guest make the load; those for the host evaluate the card's log.

mod daemon;
mod guest;
mod latency;
mod mapping;
mod mark;
mod queue;
mod report;
mod visit;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// In the guest: run `make bench`
    Run(guest::Options),
    /// In the guest: run `make bench-latency`
    Latency(latency::Options),
    /// In the guest: run `make bench-queue`
    Queue(queue::Options),
    /// In the guest: share the card among clients, through vfio-pci
    Daemon(daemon::Options),
    /// In the guest: run a workload for a plugin of QEMU that counts instructions in the module
    Count(guest::count::Options),
    /// In the guest: run calls at the limits of what a user can cause, for a plugin of QEMU that
    /// measures sections with interrupts off
    Sections(guest::count::SectionsOptions),
    /// In the guest: test that the daemon repeats a dropped PAUSE and leaves the card quiescent
    Peer(guest::peer::Options),
    /// In the guest: compute until killed
    Spin,
    /// On the host: make the report of `make bench`
    Report(report::Options),
    /// On the host: make the report of `make bench-latency`
    LatencyReport(latency::ReportOptions),
    /// Print the tables of a report as Markdown
    Table(report::TableOptions),
}

fn main() -> ExitCode {
    fermata_output::end("fermata-bench", run().map(|()| true))
}

fn run() -> Result<()> {
    match Args::parse().part {
        Part::Run(options) => guest::run(&options),
        Part::Latency(options) => latency::run(&options),
        Part::Queue(options) => queue::run(&options),
        Part::Daemon(options) => daemon::run(&options),
        Part::Count(options) => guest::count::run(&options),
        Part::Sections(options) => guest::count::run_sections(&options),
        Part::Peer(options) => guest::peer::run(&options),
        Part::Spin => guest::spin(),
        Part::Report(options) => report::make(&options),
        Part::LatencyReport(options) => latency::report(&options),
        Part::Table(options) => report::write_tables(&options),
    }
}
