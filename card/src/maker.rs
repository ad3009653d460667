// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a slot gets its engines from: the emulated card makes them in this process, another card
//! may have the jobs done elsewhere.

use crate::dma::DmaSpace;
use crate::engine::{AppRegs, Engine, EngineKind, Refused};
use crate::regs::IOVA_BITS;

/// What the registers of a slot let a job reach by DMA when the job begins.
pub struct Reach<'a> {
    /// First device address of the window.
    pub window_base: u64,
    /// Bytes of the window; 0: the job may reach nothing.
    pub window_size: u64,
    /// What is added to a device address.
    pub offset: u64,
    /// Where the snapshot of the job goes.
    pub snapshot: u64,
    /// Returns the memory; `None` while the card must not access memory.
    pub memory: Box<dyn Fn() -> Option<&'a DmaSpace> + 'a>,
}

impl Reach<'_> {
    /// Returns the IOVA of the first byte of the window.
    pub fn iova(&self) -> u64 {
        self.window_base.wrapping_add(self.offset) & IOVA_BITS
    }
}

/// Makes the engines of one slot.
pub trait EngineMaker: Send + Sync {
    /// Makes a new job from its registers. `Refused` ends the job as a refused access does.
    fn start(&self, regs: &AppRegs, reach: &Reach<'_>) -> Result<Box<dyn Engine>, Refused>;

    /// Makes a job from its registers, the registers as they read now (what was not reset), and the
    /// bytes of its snapshot.
    fn resume(
        &self,
        regs: &AppRegs,
        readback: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<Box<dyn Engine>, Refused>;

    /// Gets ready for a job of this reach that comes from another host. `at_work`: the registers of a
    /// job that was in the engine, and the state of the engine, which [`EngineMaker::go_on`] is going
    /// to get; its window was memory there. `Err`: the reason why no such job can be made.
    fn prepare(
        &self,
        _reach: &Reach<'_>,
        _at_work: Option<(&AppRegs, &[u8])>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Makes a job of a card that was stopped, from the job's registers and the state of the engine.
    /// `shown` are the values of the result registers at that time. An engine whose state does not
    /// have them shows them until newer values are known.
    fn go_on(
        &self,
        regs: &AppRegs,
        _shown: &AppRegs,
        state: &[u8],
        reach: &Reach<'_>,
    ) -> Result<Box<dyn Engine>, Refused> {
        self.resume(regs, &AppRegs::default(), state, reach)
    }

    /// Tells an engine at work that its bus may want attention. For engines that sleep.
    fn wake(&self) {}

    /// The card has lost memory. Returns when no engine of this slot can reach, by other ways than
    /// its bus, what is not in `memory` any more.
    fn release(&self, _memory: &DmaSpace) {}

    /// The card must not access memory, or is as after power-on. Returns when no engine of this slot
    /// can reach memory by other ways than its bus. What engines have left here is forgotten.
    fn quiesce(&self) {}
}

/// The emulated engines.
impl EngineMaker for EngineKind {
    fn start(&self, regs: &AppRegs, _reach: &Reach<'_>) -> Result<Box<dyn Engine>, Refused> {
        Ok(Self::start(*self, regs))
    }

    fn resume(
        &self,
        regs: &AppRegs,
        readback: &AppRegs,
        state: &[u8],
        _reach: &Reach<'_>,
    ) -> Result<Box<dyn Engine>, Refused> {
        Ok(Self::resume(*self, regs, readback, state))
    }
}
