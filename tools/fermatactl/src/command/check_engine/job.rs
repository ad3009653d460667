// SPDX-License-Identifier: GPL-2.0-or-later
//! The file that describes a job of an engine, and what of its result counts.

use crate::command::run::{arena, offset, Value};
use crate::trouble::{Result, Trouble};
use crate::value::{number, Parsed};
use fermata::{Arena, Context};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Arenas are whole pages.
const PAGE: usize = 4096;

/// A job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) arena: usize,
    registers: Vec<(u32, Value)>,
    results: Vec<u32>,
    data: Vec<(usize, Vec<u8>)>,
    words: Vec<(usize, Value)>,
    /// Bytes of the arena that do not count.
    ignored: Vec<Range<usize>>,
}

/// The result of a job: what counts of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Product {
    registers: BTreeMap<u32, u64>,
    arena: Vec<u8>,
}

impl Job {
    /// Reads the file of a job.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Trouble::of_file(path, &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Self::parse(&text, read).map_err(|(line, error)| {
            Trouble::new(
                format!("{}: line {line}: {error}", path.display()),
                "`fermatactl check-engine --help` describes the lines",
            )
        })
    }

    /// Parses the text of a file. An error has the number of its line.
    fn parse(
        text: &str,
        read: impl Fn(&str) -> Parsed<Vec<u8>>,
    ) -> std::result::Result<Self, (usize, String)> {
        let mut job = Self::default();
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            last = index + 1;
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            job.take(&words, &read).map_err(|error| (last, error))?;
        }
        job.check().map_err(|error| (last, error))?;
        Ok(job)
    }

    fn take(&mut self, words: &[&str], read: impl Fn(&str) -> Parsed<Vec<u8>>) -> Parsed<()> {
        match *words {
            [] => {}
            ["arena", bytes] => self.arena = (arena(bytes)? as usize).next_multiple_of(PAGE),
            ["reg", at, value] => self.registers.push((offset(at)?, value.parse()?)),
            ["result", at] => self.results.push(offset(at)?),
            ["data", at, file] => self.data.push((number(at)? as usize, read(file)?)),
            ["word", at, value] => self.words.push((word(at)?, value.parse()?)),
            ["ignore", at, bytes] => {
                let (at, bytes) = (number(at)? as usize, number(bytes)? as usize);
                self.ignored.push(at..at.saturating_add(bytes));
            }
            _ => {
                return Err(
                    "not arena BYTES, reg OFFSET VALUE, result OFFSET, data OFFSET FILE, \
                     word OFFSET VALUE or ignore OFFSET BYTES"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Checks that all is in the arena.
    fn check(&self) -> Parsed<()> {
        if self.arena == 0 {
            return Err("there is no line arena BYTES".into());
        }
        let ends = self
            .data
            .iter()
            .map(|(at, data)| at.checked_add(data.len()));
        let ends = ends.chain(self.words.iter().map(|(at, _)| at.checked_add(8)));
        let mut ends = ends.chain(self.ignored.iter().map(|range| Some(range.end)));
        match ends.find(|end| end.is_none_or(|end| end > self.arena)) {
            None => Ok(()),
            Some(_) => Err(format!(
                "data, a word or ignored bytes are beyond the {} bytes of the arena",
                self.arena
            )),
        }
    }

    /// Puts the job's data into the arena, and its registers into the context.
    pub(super) fn load(&self, context: &Context, memory: &Arena) -> fermata::Result<()> {
        memory.write(0, &vec![0; memory.length()]);
        for (at, data) in &self.data {
            memory.write(*at, data);
        }
        for (at, value) in &self.words {
            memory.store(*at, value.at(memory.base()));
        }
        let registers = self.registers.iter();
        let registers: Vec<_> = registers
            .map(|(at, value)| (*at, value.at(memory.base())))
            .collect();
        context.write_registers(&registers)?;
        context.declare_results(&self.results)
    }

    /// Returns what counts of the result of a job that has ended.
    pub(super) fn product(&self, context: &Context, memory: &Arena) -> fermata::Result<Product> {
        let values = context.read_registers(&self.results)?;
        let mut arena = memory.read(0, self.arena);
        for range in &self.ignored {
            arena[range.clone()].fill(0);
        }
        Ok(Product {
            registers: self.results.iter().copied().zip(values).collect(),
            arena,
        })
    }
}

/// Parses the offset of a word.
fn word(text: &str) -> Parsed<usize> {
    match number(text)? {
        at if at % 8 == 0 => Ok(at as usize),
        _ => Err(format!("{text} is no multiple of 8")),
    }
}

impl Product {
    /// Returns how this result differs from the right one; `None`: not at all.
    pub(super) fn difference(&self, right: &Self) -> Option<String> {
        let registers = self.registers.iter().zip(&right.registers);
        for ((at, value), (_, wanted)) in registers {
            if value != wanted {
                return Some(format!(
                    "register {at:#x} is {value:#x} instead of {wanted:#x}"
                ));
            }
        }
        let bytes = self.arena.iter().zip(&right.arena).enumerate();
        let mut wrong = bytes.filter(|(_, (byte, wanted))| byte != wanted);
        let (first, _) = wrong.next()?;
        let count = 1 + wrong.count();
        let at = first / 8 * 8;
        let word = |arena: &[u8]| {
            let mut word = [0; 8];
            let bytes = &arena[at..arena.len().min(at + 8)];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let (is, wanted) = (word(&self.arena), word(&right.arena));
        Some(format!(
            "{count} bytes of the arena differ: at {at:#x} is {is:#x} instead of {wanted:#x}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<Job, (usize, String)> {
        Job::parse(text, |name| match name {
            "nodes" => Ok(vec![1, 2, 3]),
            _ => Err(format!("{name}: no such file")),
        })
    }

    #[test]
    fn a_file_describes_a_job() {
        let text = "# a list\narena 0x1001\nreg 0x48 @0/64 # where\nresult 0x38\n\n\
                    data 4096 nodes\nword 8 @4096\nignore 16 8\nignore 32 4\n";
        let wanted = Job {
            arena: 0x2000,
            registers: vec![(0x48, Value::InArena(0, 64))],
            results: vec![0x38],
            data: vec![(4096, vec![1, 2, 3])],
            words: vec![(8, Value::InArena(4096, 1))],
            ignored: vec![16..24, 32..36],
        };
        assert_eq!(parse(text), Ok(wanted));
    }

    #[test]
    fn errors_have_the_number_of_the_line() {
        for (text, line, says) in [
            ("", 0, "there is no line arena"),
            ("arena 0", 1, "1 to 140737488355328"),
            ("arena 64\nreg 0x31 1", 2, "0x30 to 0xff8"),
            ("arena 64\nword 4 1", 2, "no multiple of 8"),
            ("arena 4097\nword 8192 1", 2, "beyond the 8192 bytes"),
            ("arena 64\ndata 4094 nodes", 2, "beyond the 4096 bytes"),
            ("arena 64\nignore 8 0xffffffffffffffff", 2, "beyond"),
            ("arena 64\n\ndata 0 none", 3, "none: no such file"),
            ("arena 64 64", 1, "not arena BYTES"),
        ] {
            let (at, error) = parse(text).unwrap_err();
            assert!(at == line && error.contains(says), "{text}: {at}: {error}");
        }
    }

    #[test]
    fn a_difference_is_told() {
        let product = |register, byte| Product {
            registers: BTreeMap::from([(0x38, register)]),
            arena: vec![0, 0, 0, 0, 0, 0, 0, 0, 0, byte],
        };
        let right = product(7, 0);
        assert_eq!(product(7, 0).difference(&right), None);
        let told = product(8, 1).difference(&right).unwrap();
        assert_eq!(told, "register 0x38 is 0x8 instead of 0x7");
        let told = product(7, 2).difference(&right).unwrap();
        assert_eq!(
            told,
            "1 bytes of the arena differ: at 0x8 is 0x200 instead of 0x0"
        );
    }
}
