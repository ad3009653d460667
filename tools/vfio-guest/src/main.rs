// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-vfio-guest [WORD...]`: tests fermata-vfio on a host's card, as its guest. Prints TAP.
//! With words, only the tests whose names have one of the words. `fermata-vfio-guest --measure`
//! compares times instead, and `fermata-vfio-guest --socket PATH` runs a job on the card of a daemon
//! that is there.

mod guest;
mod host;
mod hostile;
mod jobs;
mod measure;
mod memory;
mod migration;
mod relay;
mod share;
mod tests;

use rustix::process::{setrlimit, Resource, Rlimit};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let [option, socket] = words.as_slice() {
        if option == "--socket" {
            return exit_code(tests::served(socket.as_ref()));
        }
    }
    if let Err(error) = host::open_node() {
        println!("Bail out! {error:#}");
        return ExitCode::FAILURE;
    }
    // As for the daemon's service: guest memory is pinned.
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    if let Err(error) = setrlimit(Resource::Memlock, unlimited) {
        println!("Bail out! RLIMIT_MEMLOCK: {error}");
        return ExitCode::FAILURE;
    }
    if words == ["--measure"] {
        return exit_code(measure::measure());
    }
    run(&words)
}

fn exit_code(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fermata-vfio-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests whose names have one of the words.
fn run(words: &[String]) -> ExitCode {
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let chosen: Vec<_> = tests::TESTS
        .iter()
        .filter(|(name, _)| wanted(name))
        .collect();
    println!("TAP version 13\n1..{}", chosen.len());
    let mut failed = chosen.is_empty();
    for (number, (name, test)) in (1..).zip(chosen) {
        match test() {
            Ok(()) => println!("ok {number} {name}"),
            Err(error) => {
                println!("not ok {number} {name}\n# {error:#}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
