// SPDX-License-Identifier: GPL-2.0
//! The emulated card's control connection (docs/card.md).

use anyhow::{bail, Context as _, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// The connection.
pub(super) struct Control {
    input: BufReader<File>,
    output: File,
    requests: u64,
}

impl Control {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let output = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("{}: the emulated card's control port", path.display()))?;
        Ok(Self {
            input: BufReader::new(output.try_clone()?),
            output,
            requests: 0,
        })
    }

    /// Sends a request, and waits until it is done.
    pub(super) fn ask(&mut self, request: &str) -> Result<()> {
        self.requests += 1;
        let id = format!("bench{}.{}", std::process::id(), self.requests);
        self.output
            .write_all(format!("{id} {request}\n").as_bytes())?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                bail!("the card closed its control connection");
            }
            // Replies to others, who are gone, are skipped.
            if let Some(reply) = line.strip_prefix(&id).and_then(|l| l.strip_prefix(' ')) {
                if reply.trim().starts_with("ok") {
                    return Ok(());
                }
                bail!("card: {request}: {}", reply.trim());
            }
        }
    }
}
