// SPDX-License-Identifier: GPL-2.0-or-later
//! Options of `run` for certain engines: each engine takes its own; an option that is left belongs
//! to another engine. For unknown engines, options set registers directly.

use crate::number::{number, number_in, Parsed};
use crate::trouble::{Result, Trouble};
use fermata::uapi;
use fermata::work::{Access, LINE};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What a job does, as far as it can be chosen.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of engines")]
pub(super) struct Options {
    /// linkedlist, membench, blockmix: what checksum and pattern begin with [default: 0]
    #[arg(long, value_name = "WORD", value_parser = number)]
    pub(super) seed: Option<u64>,
    /// linkedlist: nodes (0: all); membench: accesses, 1 or more [default: one for each line];
    /// counters: counts, 1 or more [default: 1000]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(super) count: Option<u64>,
    /// membench: what kind of access [default: read]
    #[arg(long, value_enum)]
    pub(super) access: Option<AccessName>,
    /// membench: in random order
    #[arg(long)]
    pub(super) random: bool,
    /// blockmix: bytes of a block, 64 to 65536, a multiple of 64 [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = block)]
    pub(super) block: Option<u64>,
    /// counters: where to begin, 0 to 15 [default: 0]
    #[arg(long, value_name = "BITS", value_parser = first)]
    pub(super) first: Option<u64>,
    /// queue: what is done to the file [default: sha256]
    #[arg(long, value_enum)]
    pub(super) op: Option<OperationName>,
    /// riscv: what the program gets in a0, 32 bits [default: 0]; queue: pattern of fill, CRC (32
    /// bits) that crc32c goes on from [default: 0]
    #[arg(long, value_name = "WORD", value_parser = number)]
    pub(super) arg: Option<u64>,
    /// Take a known engine as one by UUID
    #[arg(long)]
    pub(super) raw: bool,
    /// by UUID: a register; a VALUE of @OFFSET is the address of that byte of the arena; may be
    /// given several times
    #[arg(long, value_name = "OFFSET=VALUE")]
    pub(super) reg: Vec<Register>,
    /// by UUID: a register to be read at the end; may be given several times
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    pub(super) result: Vec<u32>,
    /// by UUID: bytes of the arena, at least the file's [default: the file's, in whole pages]
    #[arg(long, value_name = "BYTES", value_parser = arena)]
    pub(super) arena: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum AccessName {
    /// Reads lines
    Read,
    /// Writes a pattern
    Write,
    /// Reads lines and writes them, changed by the pattern
    Update,
}

impl From<AccessName> for Access {
    fn from(name: AccessName) -> Self {
        match name {
            AccessName::Read => Self::Read,
            AccessName::Write => Self::Write,
            AccessName::Update => Self::Update,
        }
    }
}

impl OperationName {
    /// Returns the range of --arg.
    pub(super) fn arguments(self) -> RangeInclusive<u64> {
        match self {
            Self::Fill => 0..=u64::MAX,
            _ => 0..=u32::MAX.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OperationName {
    /// Copies it
    Copy,
    /// Fills so many bytes with the pattern of --arg
    Fill,
    /// Its SHA-256
    #[default]
    Sha256,
    /// Its CRC-32C
    Crc32c,
}

fn block(text: &str) -> Parsed<u64> {
    match number_in(text, &(64..=65_536))? {
        bytes if bytes % LINE == 0 => Ok(bytes),
        _ => Err(format!(
            "{text} is no multiple of {LINE}: give one of 64 to 65536"
        )),
    }
}

fn first(text: &str) -> Parsed<u64> {
    number_in(text, &(0..=15))
}

/// Parses the length of an arena, which ends at most at the device address 2^47.
fn arena(text: &str) -> Parsed<u64> {
    number_in(text, &(1..=1 << 47))
}

impl Options {
    /// Fails if an option is left, which belongs to another engine.
    pub(super) fn none_left(&self, engine: &str) -> Result<()> {
        let left = [
            (self.seed.is_some(), "--seed"),
            (self.count.is_some(), "--count"),
            (self.access.is_some(), "--access"),
            (self.random, "--random"),
            (self.block.is_some(), "--block"),
            (self.first.is_some(), "--first"),
            (self.op.is_some(), "--op"),
            (self.arg.is_some(), "--arg"),
            (!self.reg.is_empty(), "--reg"),
            (!self.result.is_empty(), "--result"),
            (self.arena.is_some(), "--arena"),
        ];
        match left.into_iter().find(|(is_left, _)| *is_left) {
            None => Ok(()),
            Some((_, option)) => {
                let advice = if matches!(option, "--reg" | "--result" | "--arena") {
                    "with --raw it is taken as an engine that is known by its UUID only"
                } else {
                    "`fermatactl run --help` tells which options go with which engine"
                };
                Err(Trouble::wrong_arguments(
                    format!("{engine} has no {option}"),
                    advice,
                ))
            }
        }
    }

    /// Returns registers for an arena at a device address.
    pub(super) fn registers(&self, base: u64) -> Vec<(u32, u64)> {
        let value = |value| match value {
            Value::Plain(value) => value,
            Value::InArena(offset) => base.wrapping_add(offset),
        };
        let registers = self.reg.iter();
        registers
            .map(|register| (register.offset, value(register.value)))
            .collect()
    }
}

/// The value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Plain(u64),
    /// The device address of a byte of the arena.
    InArena(u64),
}

/// A register and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub(super) offset: u32,
    pub(super) value: Value,
}

/// Parses the offset of a register that a program may write.
pub(super) fn offset(text: &str) -> Parsed<u32> {
    let offset = number(text)?;
    u32::try_from(offset)
        .ok()
        .filter(|offset| (uapi::REG_FIRST..=uapi::REG_LAST).contains(offset) && offset % 8 == 0)
        .ok_or_else(|| {
            let (first, last) = (uapi::REG_FIRST, uapi::REG_LAST);
            format!("registers are at multiples of 8 from {first:#x} to {last:#x}")
        })
}

impl FromStr for Register {
    type Err = String;

    fn from_str(text: &str) -> Parsed<Self> {
        let (at, value) = text.split_once('=').ok_or("not OFFSET=VALUE")?;
        let value = match value.strip_prefix('@') {
            Some(byte) => Value::InArena(number(byte)?),
            None => Value::Plain(number(value)?),
        };
        Ok(Self {
            offset: offset(at)?,
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_offsets_and_values() {
        let parsed = "0x38=@0x1000".parse();
        let wanted = Register {
            offset: 0x38,
            value: Value::InArena(0x1000),
        };
        assert_eq!(parsed, Ok(wanted));
        assert_eq!("48=7".parse::<Register>().unwrap().offset, 0x30);
        for bad in [
            "0x30", "0x28=1", "0x1000=1", "0x31=1", "0x30=", "0x30=@", "0x30=-1",
        ] {
            assert!(bad.parse::<Register>().is_err(), "{bad}");
        }
    }
}
