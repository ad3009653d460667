// SPDX-License-Identifier: GPL-2.0-or-later
//! A client of the emulated card's control connection: requests and replies are lines
//! (docs/card.md).

use anyhow::{bail, Context as _, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// A connection. Other clients may use the port too: a request has an ID, which its reply repeats.
#[derive(Debug)]
pub struct Control {
    input: BufReader<File>,
    output: File,
    requests: u64,
}

/// What a tenant had of a slot, as the card saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Number of STARTs.
    pub turns: u64,
    /// Number of PAUSEs.
    pub pauses: u64,
    /// Time on the slot, in nanoseconds.
    pub busy_ns: u64,
}

fn number(text: &str) -> Result<u64> {
    let parsed = text
        .strip_prefix("0x")
        .map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.with_context(|| format!("the card says {text}"))
}

impl Control {
    /// Opens the port: /dev/virtio-ports/fermata.card0 in the machine.
    pub fn open(path: &Path) -> Result<Self> {
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

    /// Sends a request. Returns the reply without `ok`.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.requests += 1;
        let id = format!("{}.{}", std::process::id(), self.requests);
        self.output
            .write_all(format!("{id} {request}\n").as_bytes())?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                bail!("the card closed its control connection");
            }
            // Skips replies to clients that have exited.
            let Some(reply) = line.strip_prefix(&id).and_then(|l| l.strip_prefix(' ')) else {
                continue;
            };
            let reply = reply.trim();
            return match reply.strip_prefix("ok") {
                Some(rest) => Ok(rest.trim().into()),
                None => bail!("card: {request}: {reply}"),
            };
        }
    }

    /// Sends a request. Returns the numbers in the reply, which are words of the form KEY=NUMBER.
    pub fn numbers(&mut self, request: &str) -> Result<HashMap<String, u64>> {
        let reply = self.ask(request)?;
        Ok(reply
            .split_ascii_whitespace()
            .filter_map(|word| word.split_once('='))
            .filter_map(|(key, value)| Some((key.to_string(), number(value).ok()?)))
            .collect())
    }

    /// Tells the card that pages belong to a tenant.
    pub fn register(&mut self, token: u64, pages: &[(u64, u64)]) -> Result<()> {
        for some in pages.chunks(500) {
            let list: Vec<_> = some
                .iter()
                .map(|(at, length)| format!("{at:#x}+{length:#x}"))
                .collect();
            self.ask(&format!("tenant token={token} pages={}", list.join(",")))?;
        }
        Ok(())
    }

    /// Returns the token of the tenant on the slot, if the slot has a job.
    pub fn running(&mut self, slot: u32) -> Result<Option<u64>> {
        let state = self.numbers(&format!("state slot={slot}"))?;
        let get = |key| state.get(key).copied().unwrap_or(0);
        Ok((get("status") & 0xff == 1).then(|| get("tag")))
    }

    /// Returns what each tenant had of a slot, by token.
    pub fn runs(&mut self, slot: u32) -> Result<HashMap<u64, Run>> {
        let reply = self.ask(&format!("runs slot={slot}"))?;
        let mut runs = HashMap::new();
        for entry in reply.split(',').filter(|e| !e.is_empty()) {
            let fields: Result<Vec<_>> = entry.split(':').map(number).collect();
            if let [tag, starts, resumes, pauses, _, run_ns] = fields?[..] {
                let run = Run {
                    turns: starts + resumes,
                    pauses,
                    busy_ns: run_ns,
                };
                runs.insert(tag, run);
            }
        }
        Ok(runs)
    }
}
