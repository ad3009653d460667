// SPDX-License-Identifier: GPL-2.0-or-later
//! `make bench`: the same tenants on the same card, shared by fermata, by a daemon on vfio-pci, and
//! by nobody; with the lower bound beside them. `run` makes the visits in the guest; `report` reads
//! from the card's log, on the host, what became of them.

mod daemon;
mod guest;
mod latency;
mod mapping;
mod mark;
mod output;
mod queue;
mod report;
mod visit;
mod work;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// In the guest: make all visits
    Run(guest::Options),
    /// In the guest: make the load of `make bench-latency`
    Latency(latency::Options),
    /// In the guest: post jobs to a queue, and start jobs by calls (`make bench-queue`)
    Queue(queue::Options),
    /// In the guest: share the card among clients, through vfio-pci
    Daemon(daemon::Options),
    /// In the guest: do work whose instructions in the module a plugin of QEMU counts
    Count(guest::count::Options),
    /// In the guest: do what concerns as much as a user can make it concern, for a plugin that
    /// looks how long interrupts are off
    Sections(guest::sections::Options),
    /// In the guest: try the daemon: a PAUSE that the card drops, and ends in the middle of a save
    Peer(guest::peer::Options),
    /// In the guest: compute until killed
    Spin,
    /// On the host: make the report of the card's log and of what the guest left
    Report(report::Options),
    /// On the host: make the report of `make bench-latency` of the card's log
    LatencyReport(latency::ReportOptions),
    /// Print the tables of a report as Markdown
    Table(report::Redo),
}

fn main() -> Result<()> {
    match Args::parse().part {
        Part::Run(options) => guest::run(&options),
        Part::Latency(options) => latency::run(&options),
        Part::Queue(options) => queue::run(&options),
        Part::Daemon(options) => daemon::run(&options),
        Part::Count(options) => guest::count::run(&options),
        Part::Sections(options) => guest::sections::run(&options),
        Part::Peer(options) => guest::peer::run(&options),
        Part::Spin => guest::spin(),
        Part::Report(options) => report::make(&options),
        Part::LatencyReport(options) => latency::report(&options),
        Part::Table(options) => report::redo(&options),
    }
}
