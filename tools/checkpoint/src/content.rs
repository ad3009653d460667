// SPDX-License-Identifier: GPL-2.0-or-later
//! The content of a checkpoint: checks without a card whether sections are consistent.

use crate::container::{Kind, Reader, Section};
use crate::description::{travels, Description, Job};
use crate::Refusal;
use fermata::{uapi, Param};
use std::io::Read;

/// The parameter `share` of interface version 1, which files may have; 0: none.
pub(crate) const RETIRED_SHARE: u32 = 7;

/// The content of a section.
#[derive(Debug)]
pub enum Part {
    /// Bytes of the arena at an offset, within the arena.
    Arena(u64, Vec<u8>),
    /// Bytes of the engine's state at an offset, directly behind those before.
    State(u64, Vec<u8>),
    /// The description has changed.
    Described,
}

/// A checkpoint that is read.
pub struct Content<R> {
    reader: Reader<R>,
    description: Description,
    /// Number of bytes of the state read so far.
    state: u64,
}

impl<R: Read> Content<R> {
    /// Reads the header and the description.
    pub fn new(from: R) -> Result<Self, Refusal> {
        let mut reader = Reader::new(from)?;
        let first = reader.section()?;
        match first.kind {
            Kind::Description => {}
            Kind::Card => return Err(Refusal::Card),
            _ => {
                let text = "it does not begin with a description";
                return Err(Refusal::Inconsistent(text.into()));
            }
        }
        let description = Description::from_bytes(&first.data)?;
        check(&description)?;
        Ok(Self {
            reader,
            description,
            state: 0,
        })
    }

    /// Returns the last description read.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Returns the next part, or `None` at the end of a complete checkpoint.
    pub fn part(&mut self) -> Result<Option<Part>, Refusal> {
        let section = self.reader.section()?;
        match section.kind {
            Kind::End => self.complete().map(|()| None),
            Kind::Description => self.describe(&section.data).map(Some),
            Kind::Arena => self.arena(section).map(Some),
            Kind::State => self.state(section).map(Some),
            Kind::Card => Err(Refusal::Inconsistent("it describes a card, too".into())),
        }
    }

    /// Checks that the stream has no more data.
    pub fn end(self) -> Result<(), Refusal> {
        match self.reader.into_inner().read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Refusal::Trailing),
            Err(error) => Err(Refusal::Unreadable(error)),
        }
    }

    /// Checks a later description, which must be of the same context.
    fn describe(&mut self, data: &[u8]) -> Result<Part, Refusal> {
        let later = Description::from_bytes(data)?;
        check(&later)?;
        let same = |d: &Description| (d.engine, d.state_bytes, d.arena.clone());
        if same(&later) != same(&self.description) {
            return Err(Refusal::Inconsistent("it describes two contexts".into()));
        }
        self.description = later;
        Ok(Part::Described)
    }

    fn arena(&self, section: Section) -> Result<Part, Refusal> {
        let arena = self.description.arena.as_ref();
        let length = arena.map_or(0, |arena| arena.length);
        let end = section.offset.checked_add(section.data.len() as u64);
        if end.is_none_or(|end| end > length) {
            let text = format!("arena at {:#x}, of {length} bytes", section.offset);
            return Err(Refusal::Inconsistent(text));
        }
        Ok(Part::Arena(section.offset, section.data))
    }

    fn state(&mut self, section: Section) -> Result<Part, Refusal> {
        let end = self.state + section.data.len() as u64;
        if section.offset != self.state || end > self.description.state_bytes {
            let text = format!("state at {:#x}, after {:#x}", section.offset, self.state);
            return Err(Refusal::Inconsistent(text));
        }
        self.state = end;
        Ok(Part::State(section.offset, section.data))
    }

    fn complete(&self) -> Result<(), Refusal> {
        let expected = match self.description.job {
            Job::Saved => self.description.state_bytes,
            Job::New | Job::None => 0,
        };
        if self.state != expected {
            let text = format!("{} bytes of state, of {expected}", self.state);
            return Err(Refusal::Inconsistent(text));
        }
        Ok(())
    }
}

/// Checks what the driver would report less clearly.
fn check(description: &Description) -> Result<(), Refusal> {
    let counts = [
        (description.registers.len(), uapi::MAX_REGS),
        (description.results.len(), uapi::MAX_RESULTS),
    ];
    if let Some((count, most)) = counts.into_iter().find(|(count, most)| count > most) {
        return Err(Refusal::TooLarge(format!(
            "{count} registers, of at most {most}"
        )));
    }
    let is_known = |number| match Param::of(number) {
        Some(param) => travels(param),
        None => number == RETIRED_SHARE,
    };
    if let Some((number, _)) = description.parameters.iter().find(|(n, _)| !is_known(*n)) {
        return Err(Refusal::Inconsistent(format!("parameter {number}")));
    }
    Ok(())
}
