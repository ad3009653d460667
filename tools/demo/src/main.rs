// SPDX-License-Identifier: GPL-2.0-or-later
//! `make demo`, the part in the guest: tenants, a process each, share the slots of a card. Each job
//! first runs alone; then all jobs run together, and must have the same results.

mod demo;
mod epoch;
mod report;
mod tenant;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Let tenants share a card.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

/// Options of the demo.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// The emulated card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
    /// The file to hash
    #[arg(long, default_value = "/boot/vmlinuz")]
    image: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "/report/demo.json")]
    report: PathBuf,
    /// Nodes of each list
    #[arg(long, default_value_t = 1_000_000)]
    nodes: u64,
    /// Timeslices of the phases, in microseconds
    #[arg(long, value_delimiter = ',', default_values_t = [2000, 1000])]
    slices: Vec<u64>,
    /// Redraw the view in place, on a terminal
    #[arg(long)]
    live: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Play the first figure of EPOCH (`make epoch`)
    Epoch(epoch::Options),
    /// A tenant that takes orders on its input (used by the demo itself)
    #[command(hide = true)]
    Tenant {
        /// The name of the process
        name: String,
        /// The card
        device: PathBuf,
        /// The job, as JSON
        job: String,
        /// The word that identifies the tenant to the card
        token: u64,
    },
}

fn run(args: Args) -> Result<bool> {
    match args.role {
        Some(Role::Tenant {
            name,
            device,
            job,
            token,
        }) => {
            tenant::rename(&name)?;
            tenant::serve(&device, &serde_json::from_str(&job)?, token)?;
            Ok(true)
        }
        Some(Role::Epoch(options)) => epoch::run(&options),
        None => demo::run(&args.options),
    }
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fermata-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
