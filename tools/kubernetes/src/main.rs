// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-kubernetes`: shares of cards for the pods of a node (docs/kubernetes.md).

mod authority;
mod cards;
mod cgroup;
mod checkpoint;
mod claim;
mod dra;
mod driver;
#[cfg(test)]
mod manifests;
mod options;
mod plugin;
mod serve;
mod shares;
mod slice;
mod socket;
mod weights;

use clap::{Parser, Subcommand};
use options::{DraOptions, Options};
use std::process::ExitCode;

/// Give the pods of a Kubernetes node shares of cards
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve shares of all cards as a device plugin (v1beta1)
    Plugin(Options),
    /// Serve claims of all cards as a driver for dynamic resource allocation (resource.k8s.io/v1)
    Dra(DraOptions),
}

/// Says something to the log.
fn say(words: &str) {
    eprintln!("fermata-kubernetes: {words}");
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Plugin(options) => serve::plugin(options),
        Command::Dra(options) => dra::serve(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
