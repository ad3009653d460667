// SPDX-License-Identifier: GPL-2.0-or-later
//! Prints the description of a checkpoint.

use anyhow::{Context as _, Result};
use fermata::Param;
use fermata_checkpoint::{name_of, Content, Description, Part, Refusal};
use serde::Serialize;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// A summary of a checkpoint.
#[derive(Serialize)]
struct Summary {
    /// The last description.
    description: Description,
    /// Bytes of the arena in the checkpoint; all others are zero.
    arena_bytes: u64,
    /// Length of the engine's state.
    state_bytes: u64,
    /// Length of the file.
    file_bytes: u64,
}

/// Reads and checks the whole file.
fn summarise(file: &mut impl Read, file_bytes: u64) -> Result<Summary, Refusal> {
    let mut content = Content::new(file)?;
    let (mut arena_bytes, mut state_bytes) = (0, 0);
    while let Some(part) = content.part()? {
        match part {
            Part::Arena(_, bytes) => arena_bytes += bytes.len() as u64,
            Part::State(_, bytes) => state_bytes += bytes.len() as u64,
            Part::Described => {}
        }
    }
    let description = content.description().clone();
    content.end()?;
    Ok(Summary {
        description,
        arena_bytes,
        state_bytes,
        file_bytes,
    })
}

/// Prints what is in `file`.
pub(crate) fn show(file: &Path, json: bool) -> Result<()> {
    let name = || file.display().to_string();
    let open = File::open(file).with_context(name)?;
    let bytes = open.metadata().with_context(name)?.len();
    let summary = summarise(&mut BufReader::new(open), bytes).with_context(name)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    let Summary { description, .. } = &summary;
    println!("engine      {}", name_of(description.engine()));
    println!("job         {:?}", description.job);
    println!("state       {} bytes", summary.state_bytes);
    if let Some(arena) = &description.arena {
        println!(
            "arena       {} bytes at {:#x}, {} of them not in pages of zeros",
            arena.length, arena.device_base, summary.arena_bytes
        );
    }
    for (offset, value) in &description.registers {
        println!("register    {offset:#05x} = {value:#x}");
    }
    for (number, value) in &description.parameters {
        if let Some(param) = Param::of(*number) {
            println!("parameter   {param:?} = {value}");
        }
    }
    let account = &description.account;
    println!(
        "so far      {} us on slots, {} us in the queue, {} slices",
        account.run_ns / 1000,
        account.wait_ns / 1000,
        account.slices
    );
    println!("file        {} bytes, all checked", summary.file_bytes);
    Ok(())
}
