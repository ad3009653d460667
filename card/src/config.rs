// SPDX-License-Identifier: GPL-2.0-or-later
//! What a card is made of: profile, interrupts, slots and their settings.

use crate::engine::EngineKind;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The most slots for which the register map has room.
pub const MAX_SLOTS: usize = 8;

/// The register profiles of `docs/registers.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// An Optimus card without changes.
    Base,
    /// With interrupts, window check, quiescent PAUSED and a snapshot unit.
    #[serde(alias = "fermata")]
    #[value(alias = RETIRED)]
    Irq,
    /// The irq profile with orders.
    Relay,
}

/// The name of [`Profile::Irq`] in version 0.1. Accepted for one release.
pub const RETIRED: &str = "fermata";

impl Profile {
    /// Returns the name used on the command line and in replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Irq => "irq",
            Self::Relay => "relay",
        }
    }

    /// Returns whether the profile lacks what the irq profile adds.
    pub fn is_base(self) -> bool {
        self == Self::Base
    }

    /// Returns whether the profile has orders.
    pub fn has_relay(self) -> bool {
        self == Self::Relay
    }
}

/// How the card sends interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IrqKind {
    /// MSI-X with eight vectors.
    Msix,
    /// MSI with eight vectors.
    Msi,
    /// No interrupts.
    None,
}

impl IrqKind {
    /// Returns the name used on the command line and in replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Msix => "msix",
            Self::Msi => "msi",
            Self::None => "none",
        }
    }
}

/// Settings of a slot that can be changed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Nodes (linkedlist), cycles (riscv), counts (the counters) or bytes (all others) per
    /// microsecond; 0: as fast as it can.
    pub speed: u64,
    /// What a save costs.
    pub save_us: u64,
    /// What a restore costs.
    pub restore_us: u64,
    /// Base: how long after PAUSED, FINISH or a reset DMA may still arrive.
    pub drain_us: u64,
    /// Base: how long the status may read the old value after a START.
    pub start_lag_us: u64,
    /// Snapshot size in 4 KiB pages.
    pub state_pages: u64,
    /// Base: how long a driver must wait after a reset.
    pub settle_us: u64,
    /// irq and relay: how long an engine without work stays on its slot.
    #[serde(default = "default_linger_us")]
    pub linger_us: u64,
    /// Bytes of a frame, the unit in which snapshots are saved and restored; 0: the whole snapshot
    /// is one frame.
    #[serde(default)]
    pub frame_bytes: u64,
    /// The cost of each frame that is saved, in addition to `save_us`.
    #[serde(default)]
    pub frame_save_ns: u64,
    /// The cost of each frame that is restored, in addition to `restore_us`.
    #[serde(default)]
    pub frame_restore_ns: u64,
    /// irq and relay: 1: a reset of the slot clears all application registers, and the slot's
    /// capabilities say so.
    #[serde(default)]
    pub reset_clears: u64,
    /// Base: how long the link waits for the answer to a read that is never answered.
    #[serde(default)]
    pub unanswered_us: u64,
}

fn default_linger_us() -> u64 {
    20
}

/// The largest snapshot that can be set.
const MAX_STATE_PAGES: u64 = 4096;
/// The longest time that can be set: one minute.
const MAX_US: u64 = 60_000_000;

/// The largest frame that can be set: the largest snapshot.
const MAX_FRAME_BYTES: u64 = MAX_STATE_PAGES * 4096;
/// The highest cost of a frame that can be set: one second.
const MAX_FRAME_NS: u64 = 1_000_000_000;
/// The smallest frame.
const MIN_FRAME_BYTES: u64 = 64;

impl Settings {
    /// Returns the size of a frame in bytes.
    pub fn frame(&self) -> usize {
        match self.frame_bytes {
            0 => MAX_FRAME_BYTES as usize,
            n => n.max(MIN_FRAME_BYTES) as usize,
        }
    }

    /// Returns the default settings of a slot with `engine`.
    pub fn default_for(engine: EngineKind) -> Self {
        let speed = match engine {
            EngineKind::Linkedlist => 4,
            EngineKind::Membench | EngineKind::Queue => 200,
            EngineKind::Sha256 | EngineKind::Blockmix => 100,
            EngineKind::Riscv => 10,
            EngineKind::CounterUp | EngineKind::CounterDown | EngineKind::Foreign => 1,
        };
        Self {
            speed,
            save_us: 0,
            restore_us: 0,
            drain_us: 200,
            start_lag_us: 0,
            state_pages: engine.state_pages(),
            settle_us: 500,
            linger_us: default_linger_us(),
            frame_bytes: 0,
            frame_save_ns: 0,
            frame_restore_ns: 0,
            reset_clears: 0,
            unanswered_us: 0,
        }
    }

    /// Changes one setting by name.
    pub fn set(&mut self, key: &str, value: u64) -> Result<(), String> {
        let (field, range) = match key {
            "speed" => (&mut self.speed, 0..=1_000_000),
            "save_us" => (&mut self.save_us, 0..=MAX_US),
            "restore_us" => (&mut self.restore_us, 0..=MAX_US),
            "drain_us" => (&mut self.drain_us, 0..=MAX_US),
            "start_lag_us" => (&mut self.start_lag_us, 0..=MAX_US),
            "state_pages" => (&mut self.state_pages, 1..=MAX_STATE_PAGES),
            "settle_us" => (&mut self.settle_us, 0..=MAX_US),
            "linger_us" => (&mut self.linger_us, 0..=MAX_US),
            "frame_bytes" => (&mut self.frame_bytes, 0..=MAX_FRAME_BYTES),
            "frame_save_ns" => (&mut self.frame_save_ns, 0..=MAX_FRAME_NS),
            "frame_restore_ns" => (&mut self.frame_restore_ns, 0..=MAX_FRAME_NS),
            "reset_clears" => (&mut self.reset_clears, 0..=1),
            "unanswered_us" => (&mut self.unanswered_us, 0..=MAX_US),
            _ => return Err(format!("unknown setting {key}")),
        };
        if !range.contains(&value) {
            return Err(format!(
                "{key} must be {} to {}",
                range.start(),
                range.end()
            ));
        }
        *field = value;
        Ok(())
    }
}

/// One slot of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotConfig {
    /// What the slot computes.
    pub engine: EngineKind,
    /// The settings at power-on.
    pub settings: Settings,
}

/// A complete card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardConfig {
    /// Register profile.
    pub profile: Profile,
    /// Interrupts (always none on base).
    pub irq: IrqKind,
    /// 1 to [`MAX_SLOTS`] slots.
    pub slots: Vec<SlotConfig>,
    /// The card has the capability for address translation services (ATS), but does not use them.
    #[serde(default)]
    pub ats: bool,
}

impl CardConfig {
    /// Returns a card with an engine in each slot. A base card has no interrupts, whatever `irq`
    /// says.
    pub fn new(profile: Profile, irq: IrqKind, engines: &[EngineKind]) -> Result<Self, String> {
        if engines.is_empty() || engines.len() > MAX_SLOTS {
            return Err(format!("a card has 1 to {MAX_SLOTS} slots"));
        }
        let slots = engines.iter().map(|&engine| SlotConfig {
            engine,
            settings: Settings::default_for(engine),
        });
        let irq = if profile == Profile::Base {
            IrqKind::None
        } else {
            irq
        };
        Ok(Self {
            profile,
            irq,
            slots: slots.collect(),
            ats: false,
        })
    }

    /// Applies one argument `slot=N|all,key=value[,key=value]...` of the command line.
    pub fn apply(&mut self, text: &str) -> Result<(), String> {
        let mut parts = text.split(',');
        let slot = parts
            .next()
            .and_then(|p| p.strip_prefix("slot="))
            .ok_or("a setting starts with slot=N or slot=all")?;
        let range = match slot {
            "all" => 0..self.slots.len(),
            n => {
                let n: usize = n.parse().map_err(|_| format!("bad slot {n}"))?;
                if n >= self.slots.len() {
                    return Err(format!("no slot {n}"));
                }
                n..n + 1
            }
        };
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part}: KEY=VALUE expected"))?;
            let value = parse_number(value)?;
            for slot in &mut self.slots[range.clone()] {
                slot.settings.set(key, value)?;
            }
        }
        Ok(())
    }
}

/// Parses a decimal or 0x number.
pub fn parse_number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("bad number {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_snapshot_is_one_frame_unless_frames_are_set() {
        let mut settings = Settings::default_for(EngineKind::Sha256);
        settings.set("state_pages", 4096).unwrap();
        assert!(settings.set("state_pages", 4097).is_err());
        assert_eq!(settings.frame(), 4096 * 4096);
        settings.set("frame_bytes", 4096 * 4096).unwrap();
        assert!(settings.set("frame_bytes", 4096 * 4096 + 1).is_err());
    }
}
