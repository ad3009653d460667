// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of the emulated card's simple engines (docs/emulated-card.md): their registers, and their
//! outcomes.
//!
//! Programs for the RISC-V core are in [`riscv`](crate::riscv), queues in [`queue`](crate::queue).
//!
//! ```no_run
//! use fermata::work::{Outcome, Work, DATA};
//! use fermata::{Context, Events};
//!
//! # fn main() -> fermata::Result<()> {
//! let work = Work::Sha256 { length: 3 };
//! let context = Context::open("/dev/fermata0")?;
//! context.setup(work.engine(), 0)?;
//! let arena = context.create_arena(work.arena_length())?;
//! context.create_snapshot()?;
//! arena.write(DATA, b"abc");
//! work.load(&context, &arena)?;
//! context.start()?;
//! context.wait(Events::DONE, None)?;
//! assert!(matches!(work.outcome(&arena), Outcome::Digest(_)));
//! # Ok(())
//! # }
//! ```

use crate::{Arena, Context, EngineId, Result};

/// Offset of a job's data in its arena. Before the data the engine writes its results.
pub const DATA: usize = 4096;
/// The register that engines ignore, by which the emulated card's checker knows a tenant.
pub const REG_TAG: u32 = 0x50;
/// Bytes of a node of a list: the address of the next node, and a value.
pub const NODE: usize = 16;
/// Bytes of a line, the unit of membench and blockmix.
pub const LINE: u64 = 64;

/// How a membench accesses lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads them.
    Read,
    /// Writes a pattern.
    Write,
    /// Reads them, and writes what was read, xor the pattern.
    Update,
}

/// A job. Its data begin at [`DATA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Walks a list.
    LinkedList {
        /// Offset of the first node in the arena, in bytes.
        head: usize,
        /// Number of nodes after which the job ends; 0: at the end of the list.
        limit: u64,
        /// Initial value of the checksum.
        seed: u64,
        /// Bytes of the nodes.
        length: u64,
    },
    /// Accesses lines of 64 bytes.
    Membench {
        /// Bytes of the data: a multiple of [`LINE`].
        length: u64,
        /// Number of accesses.
        count: u64,
        /// Seed of the pattern and of the order.
        seed: u64,
        /// Kind of access.
        access: Access,
        /// Whether the order is random.
        random: bool,
    },
    /// Hashes data.
    Sha256 {
        /// Bytes.
        length: u64,
    },
    /// Mixes data, block by block.
    Blockmix {
        /// Bytes: a multiple of [`LINE`].
        length: u64,
        /// Bytes of a block, 64 to 65,536.
        block: u64,
        /// Initial value of the digest.
        seed: u64,
    },
    /// Counts up or down, in four bits.
    Counter {
        /// Whether it counts up.
        up: bool,
        /// Number of counts; 0: endless.
        count: u64,
        /// Initial value.
        first: u64,
    },
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a list, a membench or a blockmix: the number of nodes, accesses or blocks, and a checksum
    /// over them.
    Checksum {
        /// Number of nodes, accesses or blocks.
        count: u64,
        /// The checksum; of a blockmix: the digest of the last block.
        checksum: u64,
    },
    /// SHA-256.
    Digest([u8; 32]),
    /// Of a counter.
    Bits {
        /// Number of counts.
        count: u64,
        /// The four bits at the end.
        bits: u64,
    },
}

impl Work {
    /// Returns the engine that the job needs.
    pub fn engine(&self) -> EngineId {
        match self {
            Self::LinkedList { .. } => EngineId::LINKED_LIST,
            Self::Membench { .. } => EngineId::MEMBENCH,
            Self::Sha256 { .. } => EngineId::SHA256,
            Self::Blockmix { .. } => EngineId::BLOCKMIX,
            Self::Counter { up: true, .. } => EngineId::COUNTER_UP,
            Self::Counter { up: false, .. } => EngineId::COUNTER_DOWN,
        }
    }

    /// Returns the length of the data in bytes.
    pub fn data_length(&self) -> u64 {
        match self {
            Self::LinkedList { length, .. }
            | Self::Membench { length, .. }
            | Self::Sha256 { length }
            | Self::Blockmix { length, .. } => *length,
            Self::Counter { .. } => 0,
        }
    }

    /// Returns the length of an arena for the job in bytes: whole pages.
    pub fn arena_length(&self) -> usize {
        DATA + self.data_length().next_multiple_of(4096) as usize
    }

    /// Returns the registers for an arena with this device address.
    pub fn registers(&self, base: u64) -> Vec<(u32, u64)> {
        let data = base + DATA as u64;
        match *self {
            Self::LinkedList {
                head, limit, seed, ..
            } => vec![
                (0x30, base + head as u64),
                (0x38, limit),
                (0x40, seed),
                (0x48, base),
            ],
            Self::Membench {
                length,
                count,
                seed,
                access,
                random,
            } => {
                let access = match access {
                    Access::Read => 0,
                    Access::Write => 1,
                    Access::Update => 4,
                };
                let mode = access | u64::from(random) << 1;
                vec![
                    (0x30, data),
                    (0x38, length),
                    (0x40, count),
                    (0x48, seed),
                    (0x58, mode),
                    (0x60, base),
                ]
            }
            Self::Sha256 { length } => vec![(0x30, data), (0x38, length), (0x40, base)],
            Self::Blockmix {
                length,
                block,
                seed,
            } => vec![
                (0x30, data),
                (0x38, length),
                (0x40, block),
                (0x48, seed),
                (0x60, base),
            ],
            Self::Counter { count, first, .. } => vec![(0x30, count), (0x38, first), (0x40, base)],
        }
    }

    /// Returns the registers that also have the outcome: count and checksum (or bits), or bytes
    /// done and the four words of the digest.
    pub fn result_registers(&self) -> &'static [u32] {
        match self {
            Self::LinkedList { .. } | Self::Blockmix { .. } => &[0x38, 0x40],
            Self::Membench { .. } => &[0x48, 0x60],
            Self::Sha256 { .. } => &[0x38, 0x58, 0x60, 0x68, 0x70],
            Self::Counter { .. } => &[0x38, 0x30],
        }
    }

    /// Makes this the context's next job. The data must be in the arena before the job starts.
    pub fn load(&self, context: &Context, arena: &Arena) -> Result<()> {
        arena.write(0, &[0; 32]);
        context.write_registers(&self.registers(arena.base()))?;
        context.declare_results(self.result_registers())
    }

    /// Returns what the engine has written at the end of the job.
    pub fn outcome(&self, arena: &Arena) -> Outcome {
        let (count, second) = (arena.load(0), arena.load(8));
        match self {
            Self::LinkedList { .. } | Self::Membench { .. } | Self::Blockmix { .. } => {
                Outcome::Checksum {
                    count,
                    checksum: second,
                }
            }
            Self::Sha256 { .. } => {
                let mut digest = [0; 32];
                digest.copy_from_slice(&arena.read(0, 32));
                Outcome::Digest(digest)
            }
            Self::Counter { .. } => Outcome::Bits {
                count,
                bits: second,
            },
        }
    }

    /// Returns the outcome from the registers of [`Work::result_registers`].
    pub fn outcome_of_registers(&self, context: &Context) -> Result<Outcome> {
        let values = context.read_registers(self.result_registers())?;
        Ok(match self {
            Self::LinkedList { .. } | Self::Membench { .. } | Self::Blockmix { .. } => {
                Outcome::Checksum {
                    count: values[0],
                    checksum: values[1],
                }
            }
            Self::Sha256 { .. } => {
                let mut digest = [0; 32];
                for (to, word) in digest.chunks_exact_mut(8).zip(&values[1..]) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                Outcome::Digest(digest)
            }
            Self::Counter { .. } => Outcome::Bits {
                count: values[0],
                bits: values[1],
            },
        })
    }
}

/// Writes a list to an arena, from [`DATA`] on: a node for each of `values`, one after the other.
/// Panics if the list goes beyond the arena's end.
pub fn write_list(arena: &Arena, values: &[u64]) {
    for (node, value) in values.iter().enumerate() {
        let at = DATA + node * NODE;
        let is_last = node + 1 == values.len();
        let next = arena.base() + (at + NODE) as u64;
        arena.store(at, if is_last { 0 } else { next });
        arena.store(at + 8, *value);
    }
}
