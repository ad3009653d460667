// SPDX-License-Identifier: GPL-2.0-or-later
//! The engines: what a slot computes, and where a slot gets its engines from. An engine knows
//! registers, a bus and its own state, and nothing about the slot around it.

pub mod blockmix;
pub mod counter;
pub mod linkedlist;
pub mod membench;
pub mod queue;
pub mod riscv;
pub mod sha256;

use crate::dma::DmaSpace;
use crate::regs::{APP_FIRST, IOVA_BITS, TAG};
use clap::ValueEnum;
use counter::Way;
use serde::{Deserialize, Serialize};

/// How an engine reaches memory, in the device addresses of its program.
pub trait Bus {
    /// Reads `buf.len()` bytes; bytes that cannot be read are zero.
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused>;
    /// Writes `data`.
    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused>;
    /// Returns whether the engine must return from its step at once (a PAUSE or a reset waits).
    fn attention(&self) -> bool;
    /// Returns whether the engine must return when it is [at a boundary](Engine::at_boundary) (a
    /// `PAUSE_AT_BOUNDARY` waits).
    fn wants_boundary(&self) -> bool;
    /// Returns when the engine must return by itself, in nanoseconds of the host's clock, for an
    /// engine that sleeps. `None`: an engine is always told.
    fn deadline(&self) -> Option<u64> {
        None
    }
    /// Returns whether the engine must return here, which is a boundary if `at_boundary`.
    fn stops(&self, at_boundary: bool) -> bool {
        self.attention() || (at_boundary && self.wants_boundary())
    }
}

/// The window refused an access: the engine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Nodes, bytes, cycles or counts.
    pub units: u64,
    /// Everything is done, except the DMA at the end.
    pub done: bool,
}

/// A job in an engine.
pub trait Engine: Send {
    /// Works on up to about `budget` units (at least one quantum).
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused>;
    /// Returns whether the job is where a `PAUSE_AT_BOUNDARY` stops it. Always false in an engine
    /// without boundaries.
    fn at_boundary(&self) -> bool {
        false
    }
    /// Returns whether a PAUSE can save the job at the present point. If not, the job gets one more
    /// step, with a bus that wants attention.
    fn can_be_saved(&self) -> bool {
        true
    }
    /// Writes the result to memory.
    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused>;
    /// Stops the job here. Returns the engine's state as it is in a snapshot.
    fn save(&mut self) -> Vec<u8>;
    /// Returns the read side of the application registers.
    fn readback(&self) -> AppRegs;
    /// Takes registers that may have been written since the START. Only base cards call this, whose
    /// engines may act on them at once.
    fn rewrite(&mut self, _regs: &AppRegs) {}
    /// Returns whether the last step left nothing to do and nothing in progress, until the program
    /// supplies more work.
    fn idle(&self) -> bool {
        false
    }
    /// Prepares to leave because the queue is empty: says so in the program's memory, and then
    /// checks once more. Returns whether there is still no work; if there is some, the job
    /// continues as if this had not been called.
    fn leave(&mut self, _bus: &mut dyn Bus) -> Result<bool, Refused> {
        Ok(false)
    }
    /// Returns the number of parts of the job that the program waits for and that are complete,
    /// since its START, mod 2^64.
    fn completed(&self) -> u64 {
        0
    }
    /// Returns when to report those completions.
    fn coalescing(&self) -> Option<Coalescing> {
        None
    }
}

/// When completions are reported while a job runs: whichever limit is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// This many are unreported; at least 1.
    pub count: u64,
    /// The first unreported completion is this many microseconds old.
    pub us: u64,
}

impl Coalescing {
    /// Returns `None` for a count of 0.
    fn new(count: u64, us: u64) -> Option<Self> {
        (count != 0).then_some(Self { count, us })
    }
}

/// Application registers 0x30 to 0x78: the written values, or the values that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppRegs([u64; 10]);

impl AppRegs {
    fn index(offset: u16) -> Option<usize> {
        let i = usize::from(offset.checked_sub(APP_FIRST)? / 8);
        (i < 10).then_some(i)
    }

    /// Returns the value at `offset` of the slot page; 0 where the engine has no register.
    pub fn get(&self, offset: u16) -> u64 {
        Self::index(offset).map_or(0, |i| self.0[i])
    }

    /// Sets the value at `offset`; dropped where the engine has no register.
    pub fn set(&mut self, offset: u16, value: u64) {
        if let Some(i) = Self::index(offset) {
            self.0[i] = value;
        }
    }

    /// Returns the first offset with a value other than 0.
    pub fn first_set(&self) -> Option<u16> {
        let i = self.0.iter().position(|value| *value != 0)?;
        Some(APP_FIRST + 8 * i as u16)
    }

    fn with(values: &[(u16, u64)]) -> Self {
        let mut regs = Self::default();
        for &(offset, value) in values {
            regs.set(offset, value);
        }
        regs
    }
}

/// The kinds of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Walks a list of pointers.
    Linkedlist,
    /// Reads and writes a buffer.
    Membench,
    /// Hashes memory.
    Sha256,
    /// Mixes a buffer block by block.
    Blockmix,
    /// Takes jobs from a ring in memory.
    Queue,
    /// Runs a program for RV32IMC.
    Riscv,
    /// Four bits that count up.
    #[value(name = "counter_up")]
    CounterUp,
    /// Four bits that count down.
    #[value(name = "counter_down")]
    CounterDown,
    /// Any other, of a [foreign](crate::foreign) card.
    #[value(skip)]
    Foreign,
}

impl EngineKind {
    /// Returns the name used on the command line and in replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linkedlist => "linkedlist",
            Self::Membench => "membench",
            Self::Sha256 => "sha256",
            Self::Blockmix => "blockmix",
            Self::Queue => "queue",
            Self::Riscv => "riscv",
            Self::CounterUp => "counter_up",
            Self::CounterDown => "counter_down",
            Self::Foreign => "foreign",
        }
    }

    /// Returns `AFU_ID_H` and `AFU_ID_L`.
    pub fn afu_id(self) -> (u64, u64) {
        match self {
            Self::Linkedlist => (0x4c49_4e4b_4544_4c49, 0x5354_0000_0000_0001),
            Self::Membench => (0x4d45_4d42_454e_4348, 2),
            Self::Sha256 => (0x5348_4132_3536_0000, 3),
            Self::Blockmix => (0x424c_4f43_4b4d_4958, 4),
            Self::Queue => (0x5155_4555_4500_0000, 6),
            Self::Riscv => (0x5249_5343_562d_5256, 0x3332_0000_0000_0005),
            Self::CounterUp => (0x434f_554e_5445_5255, 7),
            Self::CounterDown => (0x434f_554e_5445_5244, 8),
            Self::Foreign => (0, 0),
        }
    }

    /// Returns whether a `START_RESUME` needs a reset before it.
    pub fn needs_reset(self) -> bool {
        self == Self::Linkedlist
    }

    /// Returns whether the engine has boundaries at which it can be told to stop.
    pub fn has_boundaries(self) -> bool {
        matches!(self, Self::Linkedlist | Self::Sha256 | Self::Blockmix)
    }

    /// Returns whether the engine can be saved only at its boundaries.
    pub fn only_at_boundaries(self) -> bool {
        self == Self::Blockmix
    }

    /// Returns whether the engine takes jobs from a queue, and so may be without work.
    pub fn has_queue(self) -> bool {
        self == Self::Queue
    }

    /// Returns the offsets of the writable application registers.
    pub fn writable(self) -> &'static [u16] {
        match self {
            Self::Linkedlist => &[0x30, 0x38, 0x40, 0x48, TAG],
            Self::Membench | Self::Queue | Self::Riscv => {
                &[0x30, 0x38, 0x40, 0x48, TAG, 0x58, 0x60]
            }
            Self::Sha256 | Self::CounterUp | Self::CounterDown => &[0x30, 0x38, 0x40, TAG],
            Self::Blockmix => &[0x30, 0x38, 0x40, 0x48, TAG, 0x60],
            Self::Foreign => &[],
        }
    }

    /// Returns the offsets of the writable registers that keep their values in a reset.
    pub fn kept(self) -> &'static [u16] {
        match self {
            Self::Membench => &[TAG, 0x58],
            Self::Foreign => &[],
            _ => &[TAG],
        }
    }

    /// Returns the least number of units that a step works on.
    pub fn quantum(self) -> u64 {
        match self {
            Self::Linkedlist
            | Self::Riscv
            | Self::CounterUp
            | Self::CounterDown
            | Self::Foreign => 1,
            Self::Membench | Self::Sha256 | Self::Blockmix | Self::Queue => 64,
        }
    }

    /// Returns the most units that a step may work on, so that a PAUSE need not wait long.
    pub fn chunk(self) -> u64 {
        match self {
            Self::Linkedlist => 256,
            Self::CounterUp | Self::CounterDown | Self::Foreign => 1024,
            Self::Riscv => 8192,
            Self::Membench | Self::Sha256 | Self::Blockmix | Self::Queue => 16384,
        }
    }

    /// Returns the size of the engine's state, in pages of 4 KiB.
    pub fn state_pages(self) -> u64 {
        match self {
            Self::Riscv => riscv::STATE_PAGES,
            _ => 1,
        }
    }

    /// Makes a new job from its registers.
    pub fn start(self, regs: &AppRegs) -> Box<dyn Engine> {
        match self {
            Self::Linkedlist => Box::new(linkedlist::LinkedList::new(regs)),
            Self::Membench => Box::new(membench::MemBench::new(regs)),
            Self::Sha256 => Box::new(sha256::Sha256::new(regs)),
            Self::Blockmix => Box::new(blockmix::BlockMix::new(regs)),
            Self::Queue => Box::new(queue::Queue::new(regs)),
            Self::Riscv => Box::new(riscv::Riscv::new(regs)),
            Self::CounterUp => Box::new(counter::Counter::new(Way::Up, regs)),
            Self::CounterDown => Box::new(counter::Counter::new(Way::Down, regs)),
            Self::Foreign => unreachable!("a foreign engine is not emulated"),
        }
    }

    /// Makes a job from its registers, the registers as they read now (what was not reset), and the
    /// bytes of its snapshot. Any bytes make some job: the hardware cannot tell.
    pub fn resume(self, regs: &AppRegs, readback: &AppRegs, state: &[u8]) -> Box<dyn Engine> {
        let mut state = StateReader(state);
        match self {
            Self::Linkedlist => {
                Box::new(linkedlist::LinkedList::resume(regs, readback, &mut state))
            }
            Self::Membench => Box::new(membench::MemBench::resume(regs, &mut state)),
            Self::Sha256 => Box::new(sha256::Sha256::resume(regs, &mut state)),
            Self::Blockmix => Box::new(blockmix::BlockMix::resume(regs, &mut state)),
            Self::Queue => Box::new(queue::Queue::resume(regs, &mut state)),
            Self::Riscv => Box::new(riscv::Riscv::resume(regs, state)),
            Self::CounterUp => Box::new(counter::Counter::resume(Way::Up, regs, &mut state)),
            Self::CounterDown => Box::new(counter::Counter::resume(Way::Down, regs, &mut state)),
            Self::Foreign => unreachable!("a foreign engine is not emulated"),
        }
    }
}

/// Reads little-endian fields from a snapshot; zeros beyond its end.
struct StateReader<'a>(&'a [u8]);

impl StateReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        out[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        out
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

/// The mixing function of membench and blockmix (and a handy generator for tests).
pub fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn write_pair(bus: &mut dyn Bus, addr: u64, first: u64, second: u64) -> Result<(), Refused> {
    if addr == 0 {
        return Ok(());
    }
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bus.write(addr, &bytes)
}

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

    /// Prepares for a job with this reach from another host. `at_work`: the registers of a job that
    /// was in the engine, and the state of the engine, which [`EngineMaker::go_on`] will get; its
    /// window was memory there. `Err`: the reason why such a job cannot be made.
    fn prepare(
        &self,
        _reach: &Reach<'_>,
        _at_work: Option<(&AppRegs, &[u8])>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Makes the job of a card that was stopped from the job's registers and the state of the
    /// engine. `shown` are the values of the result registers at that time. An engine whose state
    /// does not contain them shows them until newer values are known.
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

    /// Handles the loss of memory. Returns when no engine of this slot can reach memory that is no
    /// longer in `memory`, except by its bus.
    fn release(&self, _memory: &DmaSpace) {}

    /// Handles the loss of access to memory, or a return to the state after power-on. Returns when
    /// no engine of this slot can reach memory, except by its bus. State that engines have left
    /// here is forgotten.
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
