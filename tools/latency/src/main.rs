// SPDX-License-Identifier: GPL-2.0
//! `make bench-latency`: latency-critical work arrives at a slot for which 2, 64 or 1,000 contexts compete. `run` makes the load in the
//! guest; `report` reads from the card's log, on the host, what became of each arrival.

mod load;
mod marker;
mod report;
mod timeline;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// In the guest: make the load
    Run(load::Options),
    /// On the host: read the card's log
    Report {
        /// The card's log
        log: PathBuf,
        /// Where the report goes
        #[arg(long, default_value = "build/reports/latency.json")]
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().part {
        Part::Run(options) => load::run(&options),
        Part::Report { log, out } => report::make(&log, &out),
    }
}
