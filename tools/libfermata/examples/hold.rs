// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job that is taken off its slot half-way and resumed later, with nothing lost: the SHA-256 of
//! 32 MiB of zeros. (In C, with an eventfd: examples/hold.c.)

#![allow(clippy::print_stdout, reason = "an example prints as programs do")]

use fermata::work::{Outcome, Work};
use fermata::{Context, Error, Events};
use std::time::Duration;

fn main() -> fermata::Result<()> {
    let device = std::env::args().nth(1);
    let work = Work::Sha256 { length: 32 << 20 };
    let context = Context::open(device.unwrap_or_else(|| "/dev/fermata0".into()))?;
    context.setup(work.engine(), 0)?;
    let arena = context.create_arena(work.arena_length())?;
    context.create_snapshot()?;
    work.load(&context, &arena)?;
    context.start()?;
    // Let the job run for a while, then take it off its slot, unless it is already done.
    std::thread::sleep(Duration::from_millis(50));
    match context.preempt(true) {
        Ok(()) | Err(Error::NotFound) => {}
        Err(error) => return Err(error),
    }
    while !context.wait(Events::ANY, None)?.contains(Events::DONE) {
        println!("held: the slot is free for others");
        context.resume()?;
    }
    context.job_result()?;
    let status = context.status()?;
    println!(
        "done in {} slices, taken off {} times",
        status.slices, status.preemptions
    );
    if let Outcome::Digest(digest) = work.outcome(&arena) {
        let digits = digest.map(|byte| format!("{byte:02x}"));
        println!("{}", digits.concat());
    }
    Ok(())
}
