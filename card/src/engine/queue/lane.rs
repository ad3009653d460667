// SPDX-License-Identifier: GPL-2.0-or-later
//! A job in hand: what it does, and how far it is.

use super::super::sha256::{Midstate, BLOCK};
use super::super::{Bus, Refused, StateReader};
use super::layout::Job;
use super::EINVAL;

/// What a copy reads before it writes, and what a job is worked on in multiples of.
pub(super) const LINE: u64 = BLOCK as u64;
/// The most that is done of a job before it is the next one's turn.
const PIECE: u64 = 1024;
/// The longest job.
const MAX_LENGTH: u64 = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Copy,
    Fill,
    Sha256,
    Crc32c,
    /// Something that is not allowed: complete without doing anything.
    Invalid,
}

/// What is no operation, in a snapshot.
const INVALID: u32 = u32::MAX;

impl Op {
    fn of(code: u32) -> Self {
        match code {
            1 => Self::Copy,
            2 => Self::Fill,
            3 => Self::Sha256,
            4 => Self::Crc32c,
            _ => Self::Invalid,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Copy => 1,
            Self::Fill => 2,
            Self::Sha256 => 3,
            Self::Crc32c => 4,
            Self::Invalid => INVALID,
        }
    }
}

/// A job in hand. In a snapshot: u32 op (0: no job), u32 0; u64 number, src, dst, length, arg,
/// bytes done; 32 bytes of midstate.
pub(super) struct Lane {
    op: Op,
    /// Which job of the queue it is.
    pub(super) number: u64,
    src: u64,
    dst: u64,
    length: u64,
    /// Pattern, or the CRC so far.
    arg: u64,
    /// Whole lines, until the end.
    done: u64,
    hash: Midstate,
}

/// What became of a job that is complete.
pub(super) struct Outcome {
    pub(super) error: u32,
    pub(super) result: u64,
}

impl Lane {
    pub(super) fn new(number: u64, job: &Job) -> Self {
        let allowed = job.clean && job.length <= MAX_LENGTH;
        let op = if allowed { Op::of(job.op) } else { Op::Invalid };
        Self {
            op,
            number,
            src: job.src,
            dst: job.dst,
            length: if op == Op::Invalid { 0 } else { job.length },
            arg: job.arg,
            done: 0,
            hash: Midstate::NEW,
        }
    }

    /// Its bytes in a snapshot.
    pub(super) fn store(lane: Option<&Self>, out: &mut Vec<u8>) {
        let Some(lane) = lane else {
            out.resize(out.len() + STORED, 0);
            return;
        };
        out.extend(u64::from(lane.op.code()).to_le_bytes());
        for word in [
            lane.number,
            lane.src,
            lane.dst,
            lane.length,
            lane.arg,
            lane.done,
        ] {
            out.extend(word.to_le_bytes());
        }
        out.extend(lane.hash.store());
    }

    /// From a snapshot: some job, whatever stands there.
    pub(super) fn load(state: &mut StateReader<'_>) -> Option<Self> {
        let code = state.u64() as u32;
        let [number, src, dst, length, arg, done] = std::array::from_fn(|_| state.u64());
        let hash = Midstate::load(state);
        let length = length.min(MAX_LENGTH);
        (code != 0).then(|| Self {
            op: Op::of(code),
            number,
            src,
            dst,
            length,
            arg,
            // Whole lines only, and never beyond the end.
            done: done.min(length) & !(LINE - 1),
            hash,
        })
    }

    /// Works on up to about `most` bytes, at least a line. Returns how many, and the end.
    pub(super) fn work(
        &mut self,
        most: u64,
        bus: &mut dyn Bus,
    ) -> Result<(u64, Option<Outcome>), Refused> {
        let left = self.length - self.done;
        let len = left.min(most.clamp(LINE, PIECE) & !(LINE - 1));
        let last = len == left;
        match self.op {
            Op::Copy => self.copy(len, bus)?,
            Op::Fill => self.fill(len, bus)?,
            Op::Sha256 => self.sha256(len, last, bus)?,
            Op::Crc32c => self.crc32c(len, bus)?,
            Op::Invalid => {}
        }
        self.done += len;
        Ok((len.max(LINE), last.then(|| self.outcome())))
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            error: if self.op == Op::Invalid { EINVAL } else { 0 },
            result: if self.op == Op::Crc32c { self.arg } else { 0 },
        }
    }

    /// Line by line where a write would change what is to be read, which all at once would not.
    fn copy(&self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let (from, to) = (
            self.src.wrapping_add(self.done),
            self.dst.wrapping_add(self.done),
        );
        let at_once = if to.wrapping_sub(from) < len {
            LINE
        } else {
            PIECE
        };
        let mut buf = [0; PIECE as usize];
        let mut at = 0;
        for line in buf[..len as usize].chunks_mut(at_once as usize) {
            bus.read(from.wrapping_add(at), line)?;
            bus.write(to.wrapping_add(at), line)?;
            at += line.len() as u64;
        }
        Ok(())
    }

    fn fill(&self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&self.arg.to_le_bytes());
        }
        if len == 0 {
            return Ok(());
        }
        bus.write(self.dst.wrapping_add(self.done), &buf[..len as usize])
    }

    fn read<'a>(
        &self,
        buf: &'a mut [u8; PIECE as usize],
        len: u64,
        bus: &mut dyn Bus,
    ) -> Result<&'a [u8], Refused> {
        let buf = &mut buf[..len as usize];
        if len > 0 {
            bus.read(self.src.wrapping_add(self.done), buf)?;
        }
        Ok(buf)
    }

    fn sha256(&mut self, len: u64, last: bool, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        let bytes = self.read(&mut buf, len, bus)?;
        if !last {
            self.hash.blocks(bytes);
            return Ok(());
        }
        let digest = self.hash.close(bytes, self.length);
        bus.write(self.dst, &digest)
    }

    fn crc32c(&mut self, len: u64, bus: &mut dyn Bus) -> Result<(), Refused> {
        let mut buf = [0; PIECE as usize];
        let bytes = self.read(&mut buf, len, bus)?;
        self.arg = u64::from(crc32c::crc32c_append(self.arg as u32, bytes));
        Ok(())
    }
}

/// Bytes of a lane in a snapshot.
const STORED: usize = 7 * 8 + 32;
