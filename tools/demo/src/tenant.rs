// SPDX-License-Identifier: GPL-2.0-or-later
//! A tenant, in a process of its own: takes requests on its input and replies on its output, one
//! JSON value per line. Its job is computed by the engine, and again by the processor.

use anyhow::{bail, Context as _, Result};
use fermata::work::{Access, Outcome, Work, DATA, LINE, NODE, REG_TAG};
use fermata::{Arena, Context, EngineId, Events, Param, State};
use fermata_card::engine::splitmix64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A request to a tenant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Write the job's data and registers, and set a timeslice in nanoseconds.
    Prepare(u64),
    /// Start the job, and reply when it has ended.
    Go,
}

/// A reply of a tenant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The context is set up.
    Ready {
        /// The context's slot.
        slot: u32,
        /// Guest-physical ranges of its arena: address and length.
        pages: Vec<(u64, u64)>,
    },
    /// The job can start. The result must be this, computed by the processor.
    Prepared(String),
    /// The job has ended.
    Done(Ending),
}

/// The end of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// The job's result.
    pub(crate) outcome: String,
    /// 0, or the errno with which the job failed.
    pub(crate) error: u32,
    /// Nanoseconds on the slot.
    pub(crate) run_ns: u64,
    /// Nanoseconds queued.
    pub(crate) wait_ns: u64,
    /// Number of slices.
    pub(crate) slices: u64,
    /// Number of preemptions.
    pub(crate) preemptions: u64,
}

fn reply(word: &Reply) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(word)?)?;
    Ok(out.flush()?)
}

const PAGE: usize = 4096;

/// Returns the guest-physical ranges of the arena, read from the page table of the process instead
/// of requested from the driver.
fn pages_of(arena: &Arena) -> Result<Vec<(u64, u64)>> {
    for offset in (0..arena.length()).step_by(PAGE) {
        arena.load(offset);
    }
    let mut entries = vec![0; arena.length() / PAGE * 8];
    let at = (arena.address() / PAGE * 8) as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, at)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for entry in entries.chunks_exact(8) {
        let entry = u64::from_le_bytes(entry.try_into()?);
        let frame = entry & ((1 << 55) - 1);
        if entry >> 63 == 0 || frame == 0 {
            bail!("/proc/self/pagemap does not show the arena (run as root)");
        }
        let address = frame * PAGE as u64;
        match ranges.last_mut() {
            Some((from, length)) if *from + *length == address => *length += PAGE as u64,
            _ => ranges.push((address, PAGE as u64)),
        }
    }
    Ok(ranges)
}

/// Renames the process, so that traces and pictures can name tenants.
pub(crate) fn rename(name: &str) -> Result<()> {
    std::fs::write("/proc/self/comm", name).context("/proc/self/comm")
}

/// Serves requests until the input is closed.
pub(crate) fn serve(device: &Path, job: &Job, token: u64) -> Result<()> {
    let context = Context::open(device).with_context(|| device.display().to_string())?;
    let slot = *context
        .slots_of(job.engine())?
        .first()
        .with_context(|| format!("the card has no slot with {}", job.engine_name()))?;
    context.setup(job.engine(), 1 << slot)?;
    let arena = context
        .create_arena(job.arena_bytes())
        .with_context(|| format!("an arena of {} bytes", job.arena_bytes()))?;
    context.create_snapshot()?;
    // On a slow emulator a save may take long although nothing is wrong.
    context.set_param(Param::PreemptTimeout, 10_000_000_000)?;
    reply(&Reply::Ready {
        slot,
        pages: pages_of(&arena)?,
    })?;
    for line in std::io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Request::Prepare(slice) => {
                context.set_param(Param::Timeslice, slice)?;
                reply(&Reply::Prepared(job.prepare(&context, &arena, token)?))?;
            }
            Request::Go => reply(&Reply::Done(go(job, &context, &arena)?))?,
        }
    }
    Ok(())
}

fn go(job: &Job, context: &Context, arena: &Arena) -> Result<Ending> {
    let before = context.status()?;
    context.start()?;
    context.wait(Events::DONE, None)?;
    let after = context.status()?;
    let finished = State::from(after.state) == State::Done;
    Ok(Ending {
        outcome: if finished {
            job.outcome(context, arena)?
        } else {
            format!(
                "failed: {}",
                std::io::Error::from_raw_os_error(after.error as i32)
            )
        },
        error: after.error,
        run_ns: after.run_ns - before.run_ns,
        wait_ns: after.wait_ns - before.wait_ns,
        slices: after.slices - before.slices,
        preemptions: after.preemptions - before.preemptions,
    })
}

/// Nodes of the ring without end.
const RING: usize = 16;

/// A job of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Job {
    /// Walk a list that is scattered over the arena.
    List {
        /// Number of nodes.
        nodes: u64,
        /// Seed of order and values.
        seed: u64,
    },
    /// Walk a ring without end.
    Endless,
    /// Update lines of a buffer in random order.
    Membench {
        /// Length of the buffer.
        bytes: u64,
        /// Number of accesses.
        count: u64,
        /// Seed of order and pattern.
        seed: u64,
    },
    /// Hash a part of a file.
    Sha256 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte.
        from: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Job {
    /// Returns what the engine does. `head`: the offset of a list's first node.
    fn work(&self, head: usize) -> Work {
        match *self {
            Self::List { nodes, seed } => Work::LinkedList {
                head,
                limit: 0,
                seed,
                length: nodes * NODE as u64,
            },
            Self::Endless => Work::LinkedList {
                head,
                limit: 0,
                seed: 0,
                length: (RING * NODE) as u64,
            },
            Self::Membench { bytes, count, seed } => Work::Membench {
                length: bytes,
                count,
                seed,
                access: Access::Update,
                random: true,
            },
            Self::Sha256 { length, .. } => Work::Sha256 { length },
        }
    }

    /// Returns the engine for the job.
    pub(crate) fn engine(&self) -> EngineId {
        self.work(DATA).engine()
    }

    /// Returns the engine's name.
    pub(crate) fn engine_name(&self) -> &'static str {
        self.engine().name().unwrap_or_default()
    }

    /// Returns a description of the job.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::List { nodes, .. } => format!("{nodes} nodes"),
            Self::Endless => "a ring, for ever".into(),
            Self::Membench { bytes, count, .. } => {
                format!("{count} updates of {} KiB", bytes >> 10)
            }
            Self::Sha256 { path, length, .. } => format!("{length} bytes of {}", path.display()),
        }
    }

    /// Returns the size of the arena.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.work(DATA).arena_length()
    }

    /// Writes data to the arena and values to the registers. Returns the expected result, computed
    /// by the processor.
    pub(crate) fn prepare(&self, context: &Context, arena: &Arena, token: u64) -> Result<String> {
        let mut head = DATA;
        let expected = match self {
            Self::List { nodes, seed } => {
                let (first, expected) = build_list(arena, *nodes, *seed);
                head = first;
                expected
            }
            Self::Endless => {
                for node in 0..RING {
                    let next = arena.base() + (DATA + (node + 1) % RING * NODE) as u64;
                    arena.store(DATA + node * NODE, next);
                    arena.store(DATA + node * NODE + 8, node as u64);
                }
                String::new()
            }
            Self::Membench { bytes, count, seed } => update_lines(arena, *bytes, *count, *seed),
            Self::Sha256 { path, from, length } => {
                let mut file = File::open(path).with_context(|| path.display().to_string())?;
                file.seek(SeekFrom::Start(*from))?;
                let mut bytes = vec![0; *length as usize];
                file.read_exact(&mut bytes)?;
                arena.write(DATA, &bytes);
                hex(&Sha256::digest(&bytes))
            }
        };
        self.work(head).load(context, arena)?;
        context.write_registers(&[(REG_TAG, token)])?;
        Ok(expected)
    }

    /// Returns the job's result from the arena, which must agree with the registers.
    pub(crate) fn outcome(&self, context: &Context, arena: &Arena) -> Result<String> {
        let work = self.work(DATA);
        let memory = self.text(&work.outcome(arena), arena);
        let registers = self.text(&work.outcome_of_registers(context)?, arena);
        if memory == registers {
            Ok(memory)
        } else {
            Ok(format!("arena {memory}, registers {registers}"))
        }
    }

    /// Formats a result; that of a membench has the digest of the buffer, too.
    fn text(&self, outcome: &Outcome, arena: &Arena) -> String {
        match (outcome, self) {
            (Outcome::Checksum { count, checksum }, Self::Membench { bytes, .. }) => {
                let buffer = Sha256::digest(arena.read(DATA, *bytes as usize));
                format!("{count} {checksum:016x} {}", hex(&buffer))
            }
            (Outcome::Checksum { count, checksum }, _) => format!("{count} {checksum:016x}"),
            (Outcome::Digest(digest), _) => hex(digest),
            (Outcome::Bits { count, bits }, _) => format!("{count} {bits:x}"),
        }
    }
}

/// Builds a list over all data in a random order. Returns the offset of the first node, and the
/// result of a walk.
fn build_list(arena: &Arena, nodes: u64, seed: u64) -> (usize, String) {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(
            last,
            (splitmix64(seed ^ last as u64) % (last as u64 + 1)) as usize,
        );
    }
    let offset = |node: u32| DATA + node as usize * NODE;
    let mut checksum = seed;
    for (step, &node) in order.iter().enumerate() {
        let value = splitmix64(seed.wrapping_mul(31).wrapping_add(step as u64));
        let next = order
            .get(step + 1)
            .map_or(0, |&next| arena.base() + offset(next) as u64);
        arena.store(offset(node), next);
        arena.store(offset(node) + 8, value);
        checksum = checksum.rotate_left(1) ^ value;
    }
    (offset(order[0]), format!("{nodes} {checksum:016x}"))
}

/// Fills a buffer with numbers. Returns the result of updates in random order.
fn update_lines(arena: &Arena, bytes: u64, count: u64, seed: u64) -> String {
    let mut words: Vec<u64> = (0..bytes / 8).map(|i| splitmix64(seed * 3 + i)).collect();
    for (i, word) in words.iter().enumerate() {
        arena.store(DATA + i * 8, *word);
    }
    let lines = bytes / LINE;
    let mut checksum = 0_u64;
    for access in 0..count {
        let line = splitmix64(seed.wrapping_add(access)) % lines;
        for index in line * 8..line * 8 + 8 {
            let word = &mut words[index as usize];
            checksum = checksum.rotate_left(5) ^ *word;
            *word ^= splitmix64(seed ^ index);
        }
    }
    let mut hash = Sha256::new();
    for word in words {
        hash.update(word.to_le_bytes());
    }
    format!("{count} {checksum:016x} {}", hex(&hash.finalize()))
}
