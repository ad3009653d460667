// SPDX-License-Identifier: GPL-2.0-or-later
//! queue: takes jobs from a ring in memory until one says END. docs/queues.md is what it does, and
//! in which order.

mod lane;
mod layout;

use super::{AppRegs, Bus, Coalescing, Engine, Progress, Refused, StateReader};
use lane::{Lane, LINE};
use layout::Layout;

/// Jobs in hand at once.
const LANES: usize = 4;
const OP_END: u32 = 5;
const EFAULT: u32 = 14;
const EINVAL: u32 = 22;

/// A queue being worked on. Its snapshot is 400 bytes: u64 head, completed, whose turn it is,
/// whether END was taken, the number of that job; then its lanes.
pub struct Queue {
    /// `None`: the registers are not allowed.
    layout: Option<Layout>,
    coalescing: Option<Coalescing>,
    head: u64,
    completed: u64,
    lanes: [Option<Lane>; LANES],
    /// Whose turn it is.
    next: usize,
    /// END was taken: the number of that job.
    end: Option<u64>,
    error: u32,
    /// It told its program that it is here.
    awake: bool,
    idle: bool,
}

impl Queue {
    pub(super) fn new(regs: &AppRegs) -> Self {
        let layout = Layout::new(regs);
        Self {
            layout,
            coalescing: Coalescing::new(regs.get(0x58), regs.get(0x60)),
            head: 0,
            completed: 0,
            lanes: Default::default(),
            next: 0,
            end: None,
            error: if layout.is_some() { 0 } else { EINVAL },
            awake: false,
            idle: false,
        }
    }

    pub(super) fn resume(regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let [head, completed, next, ended, end] = std::array::from_fn(|_| state.u64());
        Self {
            head,
            completed,
            lanes: std::array::from_fn(|_| Lane::load(state)),
            next: next as usize % LANES,
            end: (ended != 0).then_some(end),
            ..Self::new(regs)
        }
    }

    fn in_hand(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    fn done(&self) -> bool {
        self.error != 0 || (self.end.is_some() && !self.in_hand())
    }

    /// Up to `budget` units, and to where there is nothing to do.
    fn run(&mut self, layout: &Layout, budget: u64, bus: &mut dyn Bus) -> Result<u64, Refused> {
        let mut units = 0;
        self.wake(layout, bus)?;
        while units < budget && !self.done() && !bus.attention() {
            let taken = self.take(layout, bus)?;
            let worked = self.work(layout, budget - units, bus)?;
            self.idle = !taken && worked == 0;
            if self.idle {
                break;
            }
            units += worked.max(LINE);
        }
        Ok(units)
    }

    /// Its first words on this slot.
    fn wake(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<(), Refused> {
        if std::mem::replace(&mut self.awake, true) {
            return Ok(());
        }
        layout.count_completed(self.completed, bus)?;
        layout.count_head(self.head, bus)?;
        layout.tell_idle(false, bus)
    }

    /// Takes the job at the head, if there is one and a lane is free.
    fn take(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let free = self.lanes.iter_mut().find(|lane| lane.is_none());
        let Some(free) = free.filter(|_| self.end.is_none()) else {
            return Ok(false);
        };
        let number = self.head;
        if !layout.is_valid(number, bus)? {
            return Ok(false);
        }
        let job = layout.read_job(number, bus)?;
        layout.started(number, job.tag, bus)?;
        self.head = number.wrapping_add(1);
        layout.count_head(self.head, bus)?;
        if job.op == OP_END && job.clean {
            self.end = Some(number);
        } else {
            *free = Some(Lane::new(number, &job));
        }
        Ok(true)
    }

    /// Works on the job whose turn it is. Returns units; 0: there is none in hand.
    fn work(&mut self, layout: &Layout, most: u64, bus: &mut dyn Bus) -> Result<u64, Refused> {
        let order = (0..LANES).map(|i| (self.next + i) % LANES);
        let Some(turn) = order.into_iter().find(|i| self.lanes[*i].is_some()) else {
            return Ok(0);
        };
        self.next = (turn + 1) % LANES;
        let Some(lane) = &mut self.lanes[turn] else {
            return Ok(0);
        };
        let (units, outcome) = lane.work(most, bus)?;
        if let Some(outcome) = outcome {
            let number = lane.number;
            self.lanes[turn] = None;
            layout.complete(number, outcome.error, outcome.result, bus)?;
            self.count(layout, bus)?;
        }
        Ok(units)
    }

    fn count(&mut self, layout: &Layout, bus: &mut dyn Bus) -> Result<(), Refused> {
        self.completed = self.completed.wrapping_add(1);
        layout.count_completed(self.completed, bus)
    }
}

impl Engine for Queue {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        self.idle = false;
        let units = match self.layout {
            Some(layout) => self.run(&layout, budget, bus),
            None => Ok(0),
        };
        if units.is_err() {
            self.error = EFAULT;
        }
        Ok(Progress {
            units: units?,
            done: self.done(),
        })
    }

    /// END is complete when all others are.
    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let (Some(layout), Some(number)) = (self.layout, self.end) else {
            return Ok(());
        };
        layout.complete(number, 0, 0, bus)?;
        self.count(&layout, bus)
    }

    fn save(&mut self) -> Vec<u8> {
        let ended = u64::from(self.end.is_some());
        let words = [
            self.head,
            self.completed,
            self.next as u64,
            ended,
            self.end.unwrap_or(0),
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for lane in &self.lanes {
            Lane::store(lane.as_ref(), &mut bytes);
        }
        bytes
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[
            (0x30, self.head),
            (0x38, self.completed),
            (0x40, u64::from(self.error)),
        ])
    }

    fn idle(&self) -> bool {
        self.idle
    }

    fn leave(&mut self, bus: &mut dyn Bus) -> Result<bool, Refused> {
        let Some(layout) = self.layout else {
            return Ok(false);
        };
        if self.in_hand() || self.done() {
            return Ok(false);
        }
        layout.tell_idle(true, bus)?;
        let posted = layout.is_valid(self.head, bus)?;
        if posted {
            layout.tell_idle(false, bus)?;
        }
        Ok(!posted)
    }

    fn completed(&self) -> u64 {
        self.completed
    }

    fn coalescing(&self) -> Option<Coalescing> {
        self.coalescing
    }
}
