// SPDX-License-Identifier: GPL-2.0
//! Engines of which nothing is known: registers as they stand on the command line.

use crate::number::number;
use fermata::uapi;
use std::str::FromStr;

/// What a register is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Plain(u64),
    /// The device address of a byte of the arena.
    InArena(u64),
}

/// A register, and what it is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub(super) offset: u32,
    pub(super) value: Value,
}

/// The offset of a register that a program may reach.
pub(super) fn offset(text: &str) -> Result<u32, String> {
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

    fn from_str(text: &str) -> Result<Self, String> {
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
