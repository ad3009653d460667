// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs: an engine's data in the arena, and its results.

use super::{OperationName, Options};
use crate::format::{hex, Hex};
use crate::trouble::{Result, Trouble};
use fermata::queue::{Operation, Queue};
use fermata::riscv::{self, EXITED};
use fermata::work::{write_list, Access, Outcome, Work, DATA, LINE, NODE};
use fermata::{Arena, Context, EngineId, Error};
use serde::Serialize;
use std::ops::RangeInclusive;

/// A job for an engine.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A job of a simple engine of the emulated card, with its data.
    Work(Work, Vec<u8>),
    /// An operation of a queue.
    Stream(Stream),
    /// A program.
    Program { elf: Vec<u8>, arg: u32 },
    /// A job of an unknown engine.
    Raw { options: Options, data: Vec<u8> },
}

/// The result of a job.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Product {
    Checksum {
        count: u64,
        /// What was counted.
        #[serde(skip)]
        unit: &'static str,
        checksum: Hex,
    },
    Bits {
        count: u64,
        bits: u64,
    },
    Digest {
        sha256: String,
    },
    Crc {
        crc32c: Hex,
    },
    Bytes {
        bytes: usize,
    },
    Program {
        exit: Option<u64>,
        end: u64,
        code: u64,
        cycles: u64,
        instructions: u64,
        output: String,
    },
    Registers {
        registers: Vec<Value>,
    },
}

/// A register after the job.
#[derive(Debug, Serialize)]
pub(super) struct Value {
    offset: u32,
    value: Hex,
}

/// Converts bytes to words, padded with zeros.
fn words(data: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    data.chunks(8).map(word).collect()
}

impl Job {
    /// Returns a job for an engine, a file and options. The options that belong to the engine are
    /// taken.
    pub(super) fn new(
        engine: EngineId,
        file: Option<Vec<u8>>,
        options: &mut Options,
    ) -> Result<Self> {
        let known = engine.name().filter(|_| !std::mem::take(&mut options.raw));
        let Some(name) = known else {
            let raw = Options {
                reg: std::mem::take(&mut options.reg),
                result: std::mem::take(&mut options.result),
                arena: options.arena.take(),
                ..Options::default()
            };
            options.none_left("an engine that is known by its UUID only")?;
            let least = file.as_ref().map_or(0, Vec::len) as u64;
            in_range("--arena", raw.arena.unwrap_or(u64::MAX), least..=u64::MAX)?;
            return Ok(Self::Raw {
                options: raw,
                data: file.unwrap_or_default(),
            });
        };
        let job = match engine {
            EngineId::COUNTER_UP | EngineId::COUNTER_DOWN if file.is_some() => {
                return Err(Trouble::wrong_arguments(
                    "a counter has no file",
                    "leave it out: --count and --first say what it does",
                ));
            }
            EngineId::COUNTER_UP | EngineId::COUNTER_DOWN => counter(engine, options)?,
            _ => {
                let data = file.ok_or_else(|| {
                    Trouble::wrong_arguments(
                        format!("{name} needs a file"),
                        "give one; `-` is standard input",
                    )
                })?;
                on_file(engine, data, options)?
            }
        };
        options.none_left(name)?;
        Ok(job)
    }

    pub(super) fn arena_length(&self) -> usize {
        match self {
            Self::Work(work, _) => work.arena_length(),
            Self::Stream(stream) => stream.arena_length(),
            Self::Program { elf, .. } => riscv::arena_length(elf.len()),
            Self::Raw { options, data } => {
                let asked = options.arena.unwrap_or(0) as usize;
                asked.max(data.len()).max(1).next_multiple_of(4096)
            }
        }
    }

    /// Writes data and registers. Returns the queue for a queue engine.
    pub(super) fn load<'a>(
        &self,
        context: &Context,
        arena: &'a Arena,
        tag: u64,
    ) -> fermata::Result<Option<Queue<'a>>> {
        context.write_registers(&[(fermata::work::REG_TAG, tag)])?;
        match self {
            Self::Work(Work::LinkedList { .. }, data) => {
                write_list(arena, &words(data));
            }
            Self::Work(_, data) => arena.write(DATA, data),
            Self::Stream(stream) => return stream.load(context, arena).map(Some),
            Self::Program { elf, arg } => {
                riscv::load(context, arena, elf, *arg, tag)?;
                context.declare_results(&[])?;
            }
            Self::Raw { options, data } => {
                arena.write(0, data);
                context.write_registers(&options.registers(arena.base()))?;
                context.declare_results(&options.result)?;
            }
        }
        if let Self::Work(work, _) = self {
            work.load(context, arena)?;
        }
        Ok(None)
    }

    /// Returns the result of the job.
    pub(super) fn product(
        &self,
        context: &Context,
        arena: &Arena,
        queue: Option<Queue<'_>>,
    ) -> fermata::Result<Product> {
        Ok(match self {
            Self::Work(work, _) => match work.outcome(arena) {
                Outcome::Checksum { count, checksum } => Product::Checksum {
                    count,
                    unit: match work {
                        Work::LinkedList { .. } => "nodes",
                        Work::Membench { .. } => "accesses",
                        _ => "blocks",
                    },
                    checksum: Hex(checksum),
                },
                Outcome::Digest(digest) => Product::Digest {
                    sha256: hex(&digest),
                },
                Outcome::Bits { count, bits } => Product::Bits { count, bits },
            },
            Self::Stream(stream) => {
                let reaped = queue.and_then(|mut queue| queue.reap());
                stream.product(arena, reaped.ok_or(Error::Protocol)?.outcome?)
            }
            Self::Program { .. } => {
                let outcome = riscv::Outcome::of(arena);
                Product::Program {
                    exit: (outcome.end == EXITED).then_some(outcome.code),
                    end: outcome.end,
                    code: outcome.code,
                    cycles: outcome.cycles,
                    instructions: outcome.instructions,
                    output: outcome.output,
                }
            }
            Self::Raw { options, .. } => {
                let values = context.read_registers(&options.result)?;
                let registers = options.result.iter().zip(values);
                Product::Registers {
                    registers: registers
                        .map(|(&offset, value)| Value {
                            offset,
                            value: Hex(value),
                        })
                        .collect(),
                }
            }
        })
    }

    /// Returns the engine's output.
    pub(super) fn output(&self, arena: &Arena) -> Vec<u8> {
        match self {
            Self::Work(_, data) => arena.read(DATA, data.len()),
            Self::Stream(stream) => stream.made(arena),
            Self::Program { .. } => riscv::Outcome::of(arena).output.into_bytes(),
            Self::Raw { .. } => arena.read(0, arena.length()),
        }
    }
}

/// Returns a job of an engine without data.
fn counter(engine: EngineId, options: &mut Options) -> Result<Job> {
    let count = options.count.take().unwrap_or(1000);
    let work = Work::Counter {
        up: engine == EngineId::COUNTER_UP,
        count: in_range("--count", count, 1..=u64::MAX)?,
        first: options.first.take().unwrap_or(0),
    };
    Ok(Job::Work(work, Vec::new()))
}

/// Returns the value of an option if it is in the engine's range.
fn in_range(option: &str, value: u64, range: RangeInclusive<u64>) -> Result<u64> {
    if range.contains(&value) {
        return Ok(value);
    }
    let advice = match range.into_inner() {
        (least, u64::MAX) => format!("give {least} or more"),
        (least, most) => format!("give {least} to {most}"),
    };
    Err(Trouble::wrong_arguments(
        format!("{option} {value} is out of range for this engine"),
        advice,
    ))
}

/// Returns a job of an engine with data.
fn on_file(engine: EngineId, data: Vec<u8>, options: &mut Options) -> Result<Job> {
    let padded = |mut data: Vec<u8>| {
        data.resize(data.len().next_multiple_of(LINE as usize), 0);
        data
    };
    let mut seed = || options.seed.take().unwrap_or(0);
    Ok(match engine {
        EngineId::LINKED_LIST if data.is_empty() => {
            return Err(Trouble::new(
                "an empty file makes no list",
                "give one with at least a byte",
            ));
        }
        EngineId::LINKED_LIST => {
            let work = Work::LinkedList {
                head: DATA,
                seed: seed(),
                limit: options.count.take().unwrap_or(0),
                length: (data.len().div_ceil(8) * NODE) as u64,
            };
            Job::Work(work, data)
        }
        EngineId::MEMBENCH => {
            let data = padded(data);
            let length = data.len() as u64;
            let count = options.count.take();
            let work = Work::Membench {
                length,
                seed: seed(),
                count: match count {
                    Some(count) => in_range("--count", count, 1..=u64::MAX)?,
                    None => length / LINE,
                },
                access: options.access.take().map_or(Access::Read, Into::into),
                random: std::mem::take(&mut options.random),
            };
            Job::Work(work, data)
        }
        EngineId::BLOCKMIX => {
            let data = padded(data);
            let work = Work::Blockmix {
                length: data.len() as u64,
                seed: seed(),
                block: options.block.take().unwrap_or(4096),
            };
            Job::Work(work, data)
        }
        EngineId::QUEUE => {
            let operation = options.op.take().unwrap_or_default();
            let argument = options.arg.take().unwrap_or(0);
            Job::Stream(Stream {
                operation,
                argument: in_range("--arg", argument, operation.arguments())?,
                data,
            })
        }
        EngineId::RISCV => Job::Program {
            elf: data,
            arg: in_range(
                "--arg",
                options.arg.take().unwrap_or(0),
                0..=u32::MAX.into(),
            )? as u32,
        },
        _ => {
            let length = data.len() as u64;
            Job::Work(Work::Sha256 { length }, data)
        }
    })
}

impl Product {
    /// Formats the result.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Checksum {
                count,
                unit,
                checksum,
            } => format!("{count} {unit}, checksum {checksum}"),
            Self::Bits { count, bits } => format!("{count} counts, bits {bits:04b}"),
            Self::Digest { sha256 } => sha256.clone(),
            Self::Crc { crc32c } => crc32c.to_string(),
            Self::Bytes { bytes } => format!("{bytes} bytes"),
            Self::Program {
                exit,
                end,
                code,
                cycles,
                instructions,
                output,
            } => {
                let how = match exit {
                    Some(exit) => format!("exit {exit}"),
                    None => format!("trapped: end {end}, code {code:#x} (docs/emulated-card.md)"),
                };
                let text = format!("{how}, {cycles} cycles, {instructions} instructions");
                let output = output.trim_end();
                if output.is_empty() {
                    text
                } else {
                    format!("{text}\n{output}")
                }
            }
            Self::Registers { registers } => {
                let lines = registers.iter();
                lines.fold(String::new(), |text, register| {
                    text + &format!("\n  {:#05x}: {}", register.offset, register.value)
                })
            }
        }
    }
}

const ENTRIES: usize = 8;

/// The operation. The arena has the queue, the data, and as much room for the output.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) operation: OperationName,
    pub(super) argument: u64,
    pub(super) data: Vec<u8>,
}

/// Offset of the digest, after the queue.
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
    pub(super) fn load<'a>(
        &self,
        context: &Context,
        arena: &'a Arena,
    ) -> fermata::Result<Queue<'a>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(engine: EngineId, file: Option<&[u8]>, mut options: Options) -> Result<Job> {
        Job::new(engine, file.map(<[u8]>::to_vec), &mut options)
    }

    #[test]
    fn engines_take_their_own_options() {
        let seeded = || Options {
            seed: Some(7),
            ..Options::default()
        };
        let list = job(EngineId::LINKED_LIST, Some(b"123456789"), seeded()).unwrap();
        let wanted = Work::LinkedList {
            head: DATA,
            limit: 0,
            seed: 7,
            length: 32,
        };
        assert!(matches!(list, Job::Work(work, _) if work == wanted));
        let refused = job(EngineId::SHA256, Some(b"abc"), seeded()).unwrap_err();
        assert!(refused.to_string().starts_with("sha256 has no --seed"));
    }

    #[test]
    fn files_are_there_or_not_as_the_engine_needs() {
        assert!(job(EngineId::SHA256, None, Options::default()).is_err());
        assert!(job(EngineId::LINKED_LIST, Some(b""), Options::default()).is_err());
        assert!(job(EngineId::COUNTER_UP, Some(b"x"), Options::default()).is_err());
        assert!(job(EngineId::COUNTER_UP, None, Options::default()).is_ok());
    }

    #[test]
    fn numbers_out_of_range_of_the_engine_are_refused() {
        let count = |count| Options {
            count: Some(count),
            ..Options::default()
        };
        let arg = |op, arg| Options {
            op,
            arg: Some(arg),
            ..Options::default()
        };
        let arena = |arena| Options {
            raw: true,
            arena: Some(arena),
            ..Options::default()
        };
        let (crc, fill) = (Some(OperationName::Crc32c), Some(OperationName::Fill));
        let wide = 1 << 32;
        let table = [
            (
                EngineId::COUNTER_UP,
                None,
                count(0),
                "--count 0",
                "give 1 or more",
            ),
            (
                EngineId::COUNTER_DOWN,
                None,
                count(0),
                "--count 0",
                "give 1 or more",
            ),
            (
                EngineId::MEMBENCH,
                Some("x"),
                count(0),
                "--count 0",
                "give 1 or more",
            ),
            (
                EngineId::RISCV,
                Some("x"),
                arg(None, wide),
                "--arg",
                "give 0 to 4294967295",
            ),
            (
                EngineId::QUEUE,
                Some("x"),
                arg(crc, wide),
                "--arg",
                "give 0 to 4294967295",
            ),
            (
                EngineId::SHA256,
                Some("abc"),
                arena(2),
                "--arena 2",
                "give 3 or more",
            ),
        ];
        for (engine, file, options, error, advice) in table {
            let trouble = job(engine, file.map(str::as_bytes), options).unwrap_err();
            let text = trouble.to_string();
            assert!(text.starts_with(error) && text.contains(advice), "{text}");
        }
        assert!(job(EngineId::LINKED_LIST, Some(b"x"), count(0)).is_ok());
        assert!(job(EngineId::QUEUE, Some(b"x"), arg(fill, wide)).is_ok());
        assert!(job(EngineId::SHA256, Some(b"abc"), arena(3)).is_ok());
    }

    #[test]
    fn lines_are_filled_up() {
        let made = job(EngineId::BLOCKMIX, Some(b"abc"), Options::default()).unwrap();
        assert!(matches!(&made, Job::Work(_, data) if data.len() == 64));
        assert_eq!(made.arena_length(), 8192);
        assert_eq!(
            words(b"123456789"),
            [u64::from_le_bytes(*b"12345678"), u64::from(b'9')]
        );
    }

    #[test]
    fn unknown_engines_take_registers() {
        let unknown = EngineId { low: 77, high: 0 };
        let options = Options {
            reg: vec!["0x30=@0x40".parse().unwrap(), "0x38=5".parse().unwrap()],
            ..Options::default()
        };
        let made = job(unknown, None, options.clone()).unwrap();
        assert_eq!(made.arena_length(), 4096);
        let Job::Raw { options, .. } = made else {
            panic!("{made:?}")
        };
        assert_eq!(options.registers(0x1000), [(0x30, 0x1040), (0x38, 5)]);
        assert!(job(EngineId::SHA256, Some(b"x"), options).is_err());
    }

    #[test]
    fn wide_numbers_are_text_in_json() {
        let product = Product::Checksum {
            count: 3,
            unit: "nodes",
            checksum: Hex(u64::MAX),
        };
        assert_eq!(product.text(), "3 nodes, checksum 0xffffffffffffffff");
        let json = serde_json::to_string(&product).unwrap();
        assert_eq!(json, r#"{"count":3,"checksum":"0xffffffffffffffff"}"#);
    }
}
