// SPDX-License-Identifier: GPL-2.0-or-later
//! A card that is stopped, and the state of the card, from which the card or another card of the same
//! make goes on. A stopped card makes no DMA and no interrupts, and loses nothing, as a device in the
//! state STOP of the kernel's VFIO migration (include/uapi/linux/vfio.h).

use crate::card::Card;
use crate::config::{IrqKind, Profile};
use crate::engine::EngineKind;
use crate::event::now_ns;
use crate::pci::{ConfigSpace, CONFIG_SIZE};
use crate::relay::Tables;
use crate::slot::SlotState;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The state of a card that is stopped. The serialized form leaves the states of engines out:
/// [`SlotState::engine`] returns them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardState {
    make: Make,
    config_space: Vec<u8>,
    /// `CTX_TABLE`, `CTX_COUNT`, `RECORDS`.
    tables: (u64, u64, u64),
    /// The time of the card's clock.
    time: u64,
    /// The slots.
    pub slots: Vec<SlotState>,
}

/// What a guest's driver has found out about a card and relies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Make {
    profile: Profile,
    irq: IrqKind,
    slots: Vec<SlotMake>,
}

/// What a guest's driver has found out about a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SlotMake {
    engine: EngineKind,
    state_pages: u64,
    reset_clears: u64,
}

impl Make {
    /// Checks that a state of a card of the make `there` is of this make.
    ///
    /// # Errors
    ///
    /// Both makes in words.
    pub fn check(&self, there: &Self) -> Result<(), String> {
        if self == there {
            return Ok(());
        }
        let (there, here) = (there.describe(), self.describe());
        Err(format!("it is of another card: {there}; this card: {here}"))
    }

    /// Returns a description for messages.
    fn describe(&self) -> String {
        let slot = |slot: &SlotMake| format!("{} ({} pages)", slot.engine.name(), slot.state_pages);
        let slots: Vec<_> = self.slots.iter().map(slot).collect();
        let (profile, irq) = (self.profile.name(), self.irq.name());
        format!("profile {profile}, {irq}, slots {}", slots.join(", "))
    }

    /// Returns the number of bytes of the engine's state in a slot.
    pub fn engine_bytes(&self, slot: usize) -> usize {
        let pages = self.slots.get(slot).map_or(0, |slot| slot.state_pages);
        usize::try_from(pages).unwrap_or(0).saturating_mul(4096)
    }
}

impl CardState {
    /// Returns the make of the card.
    pub fn make(&self) -> &Make {
        &self.make
    }
}

impl Card {
    /// Returns the make of the card.
    pub fn make(&self) -> Make {
        let config = self.config();
        let slots = config.slots.iter().map(|slot| SlotMake {
            engine: slot.engine,
            state_pages: slot.settings.state_pages,
            reset_clears: slot.settings.reset_clears,
        });
        Make {
            profile: config.profile,
            irq: config.irq,
            slots: slots.collect(),
        }
    }

    /// Stops the card: when this returns, no slot accesses memory or interrupts. Registers can be
    /// read and written; a job that is started begins when the card goes on. A client that writes
    /// registers meanwhile gets a state of several moments. `Err`: a slot whose job did not stop
    /// within `limit`; the card goes on.
    pub fn freeze(&self, limit: Duration) -> Result<(), usize> {
        let until = Instant::now() + limit;
        self.slots().iter().for_each(|slot| slot.freeze());
        let late = self
            .slots()
            .iter()
            .position(|slot| !slot.wait_frozen(until));
        match late {
            None => Ok(()),
            Some(slot) => {
                self.thaw();
                Err(slot)
            }
        }
    }

    /// Lets the card go on.
    pub fn thaw(&self) {
        self.slots().iter().for_each(|slot| slot.thaw());
    }

    /// Returns whether the card is stopped.
    pub fn is_frozen(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_frozen())
    }

    /// Returns whether a slot is not at rest.
    pub fn is_busy(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_busy())
    }

    /// Returns the state of the card, which is stopped.
    pub fn state(&self) -> CardState {
        let host = self.host();
        CardState {
            make: self.make(),
            config_space: self.pci().bytes().to_vec(),
            tables: (host.relay.table(), host.relay.count(), host.relay.records()),
            time: host.clock.told(now_ns()),
            slots: self.slots().iter().map(|slot| slot.state()).collect(),
        }
    }

    /// Takes the state of a card of the same make. The card is stopped, and stays so.
    ///
    /// # Errors
    ///
    /// The reason why the card cannot take the state. The card then has its previous state.
    pub fn set_state(&self, state: &CardState) -> Result<(), String> {
        self.check(state)?;
        let before = self.state();
        self.apply(state);
        let mut slots = self.slots().iter().zip(&state.slots);
        let prepared = slots.try_for_each(|(slot, from)| slot.prepare(from));
        if prepared.is_err() {
            self.apply(&before);
        }
        prepared
    }

    fn apply(&self, state: &CardState) {
        self.device_reset();
        let host = self.host();
        host.clock.set(state.time);
        let (table, count, records) = state.tables;
        host.relay.set_table(table);
        host.relay.set_count(count);
        host.relay.set_records(records);
        let mut space = ConfigSpace::new(self.config());
        let written = space.write(0, &state.config_space);
        *self.pci() = space;
        self.set_bus_master(written.bus_master);
        for (slot, state) in self.slots().iter().zip(&state.slots) {
            slot.set_state(state);
        }
    }

    fn check(&self, state: &CardState) -> Result<(), String> {
        self.make().check(&state.make)?;
        let fits = state.slots.len() == self.slots().len()
            && state.config_space.len() == CONFIG_SIZE
            && Tables::is_count(state.tables.1);
        let mut pairs = self.slots().iter().zip(&state.slots);
        if fits && pairs.all(|(slot, state)| slot.takes(state)) {
            Ok(())
        } else {
            Err("it is inconsistent".into())
        }
    }

    /// Sends an interrupt for each slot, because an interrupt may have been lost when the card was
    /// stopped. A driver reads the status of its slots then.
    pub fn interrupt_again(&self) {
        if self.host().has_irqs() {
            self.slots().iter().for_each(|slot| slot.spurious(1));
        }
    }
}
