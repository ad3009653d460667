// SPDX-License-Identifier: GPL-2.0-or-later
//! A tenant, in a process of its own: takes requests on its input, replies on its output, one JSON
//! value a line. Its job is computed by the engine, and once more by the processor.

use anyhow::{bail, Context as _, Result};
use fermata::{Arena, Context, EngineId, Events, Param, State};
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
/// of asked from the driver.
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

/// Offset of the data, behind the results that the engine writes.
const DATA: usize = 4096;
const TAG: u32 = 0x50;

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

fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Job {
    /// Returns the engine for the job.
    pub(crate) fn engine(&self) -> EngineId {
        match self {
            Self::List { .. } | Self::Endless => EngineId::LINKED_LIST,
            Self::Membench { .. } => EngineId::MEMBENCH,
            Self::Sha256 { .. } => EngineId::SHA256,
        }
    }

    /// Returns the engine's name.
    pub(crate) fn engine_name(&self) -> &'static str {
        match self {
            Self::List { .. } | Self::Endless => "linkedlist",
            Self::Membench { .. } => "membench",
            Self::Sha256 { .. } => "sha256",
        }
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

    fn data_bytes(&self) -> u64 {
        match self {
            Self::List { nodes, .. } => nodes * 16,
            Self::Endless => 16 * 16,
            Self::Membench { bytes, .. } => *bytes,
            Self::Sha256 { length, .. } => *length,
        }
    }

    /// Returns the size of the arena.
    pub(crate) fn arena_bytes(&self) -> usize {
        DATA + self.data_bytes().next_multiple_of(4096) as usize
    }

    fn result_registers(&self) -> &'static [u32] {
        match self {
            Self::List { .. } | Self::Endless => &[0x38, 0x40],
            Self::Membench { .. } => &[0x48, 0x60],
            Self::Sha256 { .. } => &[0x38, 0x58, 0x60, 0x68, 0x70],
        }
    }

    /// Writes data to the arena and values to the registers. Returns the expected result, computed
    /// by the processor.
    pub(crate) fn prepare(&self, context: &Context, arena: &Arena, token: u64) -> Result<String> {
        let base = arena.base();
        let data = base + DATA as u64;
        arena.write(0, &[0; 64]);
        let (registers, expected) = match self {
            Self::List { nodes, seed } => {
                let (head, expected) = build_list(arena, *nodes, *seed);
                let registers = vec![(0x30, head), (0x38, 0), (0x40, *seed), (0x48, base)];
                (registers, expected)
            }
            Self::Endless => {
                for node in 0..16 {
                    let next = data + (node + 1) % 16 * 16;
                    arena.store(DATA + node as usize * 16, next);
                    arena.store(DATA + node as usize * 16 + 8, node);
                }
                let registers = vec![(0x30, data), (0x38, 0), (0x40, 0), (0x48, base)];
                (registers, String::new())
            }
            Self::Membench { bytes, count, seed } => {
                let expected = update_lines(arena, *bytes, *count, *seed);
                let registers = vec![
                    (0x30, data),
                    (0x38, *bytes),
                    (0x40, *count),
                    (0x48, *seed),
                    (0x58, 6),
                    (0x60, base),
                ];
                (registers, expected)
            }
            Self::Sha256 { path, from, length } => {
                let mut file = File::open(path).with_context(|| path.display().to_string())?;
                file.seek(SeekFrom::Start(*from))?;
                let mut bytes = vec![0; *length as usize];
                file.read_exact(&mut bytes)?;
                arena.write(DATA, &bytes);
                let registers = vec![(0x30, data), (0x38, *length), (0x40, base)];
                (registers, hex(&Sha256::digest(&bytes)))
            }
        };
        context.write_registers(&registers)?;
        context.write_registers(&[(TAG, token)])?;
        context.declare_results(self.result_registers())?;
        Ok(expected)
    }

    /// Returns the job's result from the arena, which must agree with the registers.
    pub(crate) fn outcome(&self, context: &Context, arena: &Arena) -> Result<String> {
        let registers = context.read_registers(self.result_registers())?;
        let (memory, registers) = match self {
            Self::List { .. } | Self::Endless => (
                format!("{} {:016x}", arena.load(0), arena.load(8)),
                format!("{} {:016x}", registers[0], registers[1]),
            ),
            Self::Membench { bytes, .. } => {
                let buffer = hex(&Sha256::digest(arena.read(DATA, *bytes as usize)));
                (
                    format!("{} {:016x} {buffer}", arena.load(0), arena.load(8)),
                    format!("{} {:016x} {buffer}", registers[0], registers[1]),
                )
            }
            Self::Sha256 { .. } => {
                let words = registers[1..].iter().flat_map(|word| word.to_le_bytes());
                (hex(&arena.read(0, 32)), hex(&words.collect::<Vec<_>>()))
            }
        };
        if memory == registers {
            Ok(memory)
        } else {
            Ok(format!("arena {memory}, registers {registers}"))
        }
    }
}

/// Builds a list over all data in a random order. Returns the address of the first node, and the
/// result of a walk.
fn build_list(arena: &Arena, nodes: u64, seed: u64) -> (u64, String) {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(
            last,
            (splitmix(seed ^ last as u64) % (last as u64 + 1)) as usize,
        );
    }
    let offset = |node: u32| DATA + node as usize * 16;
    let mut checksum = seed;
    for (step, &node) in order.iter().enumerate() {
        let value = splitmix(seed.wrapping_mul(31).wrapping_add(step as u64));
        let next = order
            .get(step + 1)
            .map_or(0, |&next| arena.base() + offset(next) as u64);
        arena.store(offset(node), next);
        arena.store(offset(node) + 8, value);
        checksum = checksum.rotate_left(1) ^ value;
    }
    let head = arena.base() + offset(order[0]) as u64;
    (head, format!("{nodes} {checksum:016x}"))
}

/// Fills a buffer with numbers. Returns the result of updates in random order.
fn update_lines(arena: &Arena, bytes: u64, count: u64, seed: u64) -> String {
    let mut words: Vec<u64> = (0..bytes / 8).map(|i| splitmix(seed * 3 + i)).collect();
    for (i, word) in words.iter().enumerate() {
        arena.store(DATA + i * 8, *word);
    }
    let lines = bytes / 64;
    let mut checksum = 0_u64;
    for access in 0..count {
        let line = splitmix(seed.wrapping_add(access)) % lines;
        for index in line * 8..line * 8 + 8 {
            let word = &mut words[index as usize];
            checksum = checksum.rotate_left(5) ^ *word;
            *word ^= splitmix(seed ^ index);
        }
    }
    let mut hash = Sha256::new();
    for word in words {
        hash.update(word.to_le_bytes());
    }
    format!("{count} {checksum:016x} {}", hex(&hash.finalize()))
}
