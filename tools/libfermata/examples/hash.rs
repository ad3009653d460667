// SPDX-License-Identifier: MIT OR Apache-2.0
//! One job from beginning to end: the SHA-256 of a word. (In C: examples/hash.c.)

#![allow(clippy::print_stdout, reason = "an example prints as programs do")]

use fermata::work::{Outcome, Work, DATA};
use fermata::{Context, Events};

fn main() -> fermata::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let word = arguments.next().unwrap_or_else(|| "abc".into());
    let device = arguments.next().unwrap_or_else(|| "/dev/fermata0".into());
    let length = word.len() as u64;
    let work = Work::Sha256 { length };
    let context = Context::open(device)?;
    context.setup(work.engine(), 0)?;
    let arena = context.create_arena(work.arena_length())?;
    context.create_snapshot()?;
    arena.write(DATA, word.as_bytes());
    work.load(&context, &arena)?;
    context.start()?;
    context.wait(Events::DONE, None)?;
    context.job_result()?;
    if let Outcome::Digest(digest) = work.outcome(&arena) {
        let digits = digest.map(|byte| format!("{byte:02x}"));
        println!("{}", digits.concat());
    }
    Ok(())
}
