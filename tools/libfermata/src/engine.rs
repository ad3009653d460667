// SPDX-License-Identifier: MIT OR Apache-2.0
//! Engines: what the slots of a card compute.

use crate::uapi;
use std::fmt;
use std::str::FromStr;

/// The UUID of an engine, as two words, which is how the card stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineId {
    /// The last eight bytes, as a big-endian number.
    pub low: u64,
    /// The first eight.
    pub high: u64,
}

impl EngineId {
    /// Walks linked lists (the emulated card).
    pub const LINKED_LIST: Self = Self {
        low: 0x5354_0000_0000_0001,
        high: 0x4c49_4e4b_4544_4c49,
    };
    /// Reads and writes memory (the emulated card).
    pub const MEMBENCH: Self = Self {
        low: 2,
        high: 0x4d45_4d42_454e_4348,
    };
    /// SHA-256 (the emulated card).
    pub const SHA256: Self = Self {
        low: 3,
        high: 0x5348_4132_3536_0000,
    };
    /// Mixes blocks, and stops between them only (the emulated card).
    pub const BLOCKMIX: Self = Self {
        low: 4,
        high: 0x424c_4f43_4b4d_4958,
    };
    /// Runs programs for RV32IMC (the emulated card).
    pub const RISCV: Self = Self {
        low: 0x3332_0000_0000_0005,
        high: 0x5249_5343_562d_5256,
    };
    /// Counts up, in four bits (the emulated card).
    pub const COUNTER_UP: Self = Self {
        low: 7,
        high: 0x434f_554e_5445_5255,
    };
    /// Counts down, in four bits (the emulated card).
    pub const COUNTER_DOWN: Self = Self {
        low: 8,
        high: 0x434f_554e_5445_5244,
    };
    /// Takes jobs from a queue (the emulated card).
    pub const QUEUE: Self = Self {
        low: uapi::QUEUE_AFU_ID_LO,
        high: uapi::QUEUE_AFU_ID_HI,
    };

    /// The engines of the emulated card (docs/emulated-card.md), and their names there.
    pub const KNOWN: [(Self, &'static str); 8] = [
        (Self::LINKED_LIST, "linkedlist"),
        (Self::MEMBENCH, "membench"),
        (Self::SHA256, "sha256"),
        (Self::BLOCKMIX, "blockmix"),
        (Self::RISCV, "riscv"),
        (Self::QUEUE, "queue"),
        (Self::COUNTER_UP, "counter_up"),
        (Self::COUNTER_DOWN, "counter_down"),
    ];

    /// Returns the name, if the engine is one of [`EngineId::KNOWN`].
    pub fn name(self) -> Option<&'static str> {
        let known = Self::KNOWN.iter().find(|(engine, _)| *engine == self);
        known.map(|(_, name)| *name)
    }

    /// Returns the engine of [`EngineId::KNOWN`] that has this name.
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::KNOWN.iter().find(|(_, known)| *known == name);
        known.map(|(engine, _)| *engine)
    }

    /// Returns the engine with this UUID, or the engine of [`EngineId::KNOWN`] with this name.
    pub fn of(text: &str) -> Result<Self, UnknownEngine> {
        let uuid = || text.parse().ok();
        Self::named(text)
            .or_else(uuid)
            .ok_or_else(|| UnknownEngine(text.into()))
    }
}

impl fmt::Display for EngineId {
    /// As a UUID: `4c494e4b-4544-4c49-5354-000000000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high } = *self;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

/// A text that is not a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID such as 4c494e4b-4544-4c49-5354-000000000001")]
pub struct NoUuid;

/// A text that does not name an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no engine: give a UUID such as 4c494e4b-4544-4c49-5354-000000000001, or the name of an engine of the emulated card, such as sha256")]
pub struct UnknownEngine(String);

impl FromStr for EngineId {
    type Err = NoUuid;

    /// Parses a UUID in the form in which [`EngineId`] is displayed.
    fn from_str(text: &str) -> Result<Self, NoUuid> {
        const LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];
        let parts: Vec<_> = text.split('-').collect();
        let is_digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !parts.iter().map(|part| part.len()).eq(LENGTHS) || !parts.iter().all(is_digits) {
            return Err(NoUuid);
        }
        let digits = parts.concat();
        let number = u128::from_str_radix(&digits, 16).map_err(|_| NoUuid)?;
        Ok(Self {
            low: number as u64,
            high: (number >> 64) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_names_and_uuids() {
        for (engine, name) in EngineId::KNOWN {
            assert_eq!(EngineId::named(name), Some(engine));
            assert_eq!(engine.name(), Some(name));
            assert_eq!(engine.to_string().parse(), Ok(engine));
            assert_eq!(EngineId::of(name), Ok(engine));
            assert_eq!(EngineId::of(&engine.to_string()), Ok(engine));
        }
        let list = "4c494e4b-4544-4c49-5354-000000000001";
        assert_eq!(EngineId::LINKED_LIST.to_string(), list);
        for text in [
            "",
            "4c494e4b45444c495354000000000001",
            "+c494e4b-4544-4c49-5354-000000000001",
        ] {
            assert_eq!(text.parse::<EngineId>(), Err(NoUuid), "{text}");
            assert_eq!(EngineId::of(text), Err(UnknownEngine(text.into())));
        }
    }
}
