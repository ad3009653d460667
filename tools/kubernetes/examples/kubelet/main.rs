// SPDX-License-Identifier: GPL-2.0-or-later
//! `kubelet PROGRAM`: plays the part of the kubelet, and of the API server, against the program, in
//! a machine with two emulated cards, a relay card and one of the fermata profile. Prints TAP.

#![allow(missing_docs, reason = "a test")]

mod api;
mod card;
mod deviceplugin;
mod dra;
mod pod;
mod program;

use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// Prints the points of TAP.
struct Points {
    number: u32,
    failed: bool,
}

impl Points {
    /// A condition, and what to print where it does not hold.
    fn holds(&mut self, name: &str, condition: bool, what: impl std::fmt::Debug) {
        let done = if condition {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{what:?}"))
        };
        self.point(name, done);
    }

    fn point(&mut self, name: &str, done: Result<()>) {
        self.number += 1;
        match done {
            Ok(()) => println!("ok {} {name}", self.number),
            Err(error) => {
                println!("not ok {} {name}\n# {error:#}", self.number);
                self.failed = true;
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(program) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: kubelet PROGRAM");
        return ExitCode::FAILURE;
    };
    let mut points = Points {
        number: 0,
        failed: false,
    };
    println!("TAP version 13");
    // The last one leaves a card with a slot out of use.
    let done = match dra::test(&program, &mut points).await {
        Ok(()) => deviceplugin::test(&program, &mut points).await,
        failed => failed,
    };
    if let Err(error) = done {
        println!("Bail out! {error:#}");
        return ExitCode::FAILURE;
    }
    println!("1..{}", points.number);
    ExitCode::from(u8::from(points.failed))
}
