// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of a card between the moment at which it stops and the moment at which it, or a card
//! of the same make on another host, goes on. This is the state STOP of the kernel's VFIO migration
//! (include/uapi/linux/vfio.h): no DMA, no interrupts, and nothing is lost.

use crate::card::Card;
use crate::config::{IrqKind, Profile};
use crate::engine::EngineKind;
use crate::event::now_ns;
use crate::pci::{ConfigSpace, CONFIG_SIZE};
use crate::relay::Tables;
use crate::slot::SlotState;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The state of a card that is stopped. States of engines are left out when it is serialized:
/// [`SlotState::engine`] has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CardState {
    make: Make,
    config_space: Vec<u8>,
    /// `CTX_TABLE`, `CTX_COUNT`, `RECORDS`.
    tables: (u64, u64, u64),
    /// What the card's clock said.
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
    /// In words, for messages.
    pub fn describe(&self) -> String {
        let slot = |slot: &SlotMake| format!("{} ({} pages)", slot.engine.name(), slot.state_pages);
        let slots: Vec<_> = self.slots.iter().map(slot).collect();
        let (profile, irq) = (self.profile.name(), self.irq.name());
        format!("profile {profile}, {irq}, slots {}", slots.join(", "))
    }

    /// Bytes of the engine's state in a slot.
    pub fn engine_bytes(&self, slot: usize) -> usize {
        let pages = self.slots.get(slot).map_or(0, |slot| slot.state_pages);
        usize::try_from(pages).unwrap_or(0).saturating_mul(4096)
    }
}

impl CardState {
    /// What the card is.
    pub fn make(&self) -> &Make {
        &self.make
    }
}

impl Card {
    /// What the card is.
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
    /// read and written; what is started begins when the card goes on. The client must be quiet
    /// where the state is to be that of one moment. `Err`: a slot whose job did not stop within
    /// `limit`; the card goes on.
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

    /// Whether the card is stopped.
    pub fn is_frozen(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_frozen())
    }

    /// Whether a slot is not at rest.
    pub fn is_busy(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_busy())
    }

    /// The state of the card, which is stopped.
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
    /// Why the card cannot take the state. The card then has the state from before.
    pub fn set_state(&self, state: &CardState) -> Result<(), String> {
        self.check(state)?;
        let before = self.state();
        self.apply(state);
        let prepared = self.slots().iter().try_for_each(|slot| slot.prepare());
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
        let (there, here) = (&state.make, self.make());
        if *there != here {
            let (there, here) = (there.describe(), here.describe());
            return Err(format!("it is of another card: {there}; this card: {here}"));
        }
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

    /// Interrupts for each slot, for what may have been under way when the card was stopped. A
    /// driver looks at its slots, and finds what there is.
    pub fn interrupt_again(&self) {
        if self.host().has_irqs() {
            self.slots().iter().for_each(|slot| slot.spurious(1));
        }
    }
}
