// SPDX-License-Identifier: GPL-2.0-or-later
//! An operation of a queue engine on a file.

use super::job::Product;
use super::options::OperationName;
use crate::format::{hex, Hex};
use fermata::queue::{Operation, Queue};
use fermata::work::DATA;
use fermata::{Arena, Context, Error, Result};

const ENTRIES: usize = 8;

/// The operation. The arena has the queue, the data, and as much room for the output.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) operation: OperationName,
    pub(super) argument: u64,
    pub(super) data: Vec<u8>,
}

/// Offset of the digest, behind the queue.
const DIGEST: usize = Queue::bytes(ENTRIES).next_multiple_of(64);
const _: () = assert!(DIGEST + 32 <= DATA);

impl Stream {
    /// Returns the offset of the output.
    fn made_at(&self) -> usize {
        DATA + self.data.len().next_multiple_of(4096)
    }

    pub(super) fn arena_length(&self) -> usize {
        self.made_at() + self.data.len().next_multiple_of(4096)
    }

    /// Posts the operation and the end, before the engine starts.
    pub(super) fn load<'a>(&self, context: &Context, arena: &'a Arena) -> Result<Queue<'a>> {
        arena.write(DATA, &self.data);
        let mut queue = Queue::new(arena, 0, ENTRIES)?;
        for operation in [self.job(arena.base()), Operation::End] {
            queue.push(operation, 0).ok_or(Error::NoSpace)?;
        }
        context.write_registers(&queue.registers())?;
        Ok(queue)
    }

    fn job(&self, base: u64) -> Operation {
        let (src, dst) = (base + DATA as u64, base + self.made_at() as u64);
        let length = self.data.len() as u64;
        match self.operation {
            OperationName::Copy => Operation::Copy { src, dst, length },
            OperationName::Fill => Operation::Fill {
                dst,
                length,
                pattern: self.argument,
            },
            OperationName::Sha256 => Operation::Sha256 {
                src,
                length,
                digest: base + DIGEST as u64,
            },
            OperationName::Crc32c => Operation::Crc32c {
                src,
                length,
                crc: self.argument as u32,
            },
        }
    }

    /// Returns the result of the operation; `result` comes from its status.
    pub(super) fn product(&self, arena: &Arena, result: u64) -> Product {
        match self.operation {
            OperationName::Sha256 => Product::Digest {
                sha256: hex(&arena.read(DIGEST, 32)),
            },
            OperationName::Crc32c => Product::Crc {
                crc32c: Hex(result),
            },
            OperationName::Copy | OperationName::Fill => Product::Bytes {
                bytes: self.data.len(),
            },
        }
    }

    /// Returns the output.
    pub(super) fn made(&self, arena: &Arena) -> Vec<u8> {
        arena.read(self.made_at(), self.data.len())
    }
}
