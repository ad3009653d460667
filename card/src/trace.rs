// SPDX-License-Identifier: GPL-2.0
//! Gathers the DMA of a slot into few log lines: 64-byte lines per page, merged into ranges.

use crate::event::{Range, Unit, What};
use std::collections::BTreeMap;

/// What a DMA access is resolved to in the log.
pub const LINE: u64 = 64;
const PAGE: u64 = 4096;

/// Lines touched since the last flush, by direction.
#[derive(Default)]
pub struct DmaTrace {
    reads: Gathered,
    writes: Gathered,
}

#[derive(Default)]
struct Gathered {
    accesses: u64,
    pages: BTreeMap<u64, u64>,
}

impl DmaTrace {
    /// One access that touched these guest-physical ranges.
    pub fn add(&mut self, write: bool, ranges: &[Range]) {
        let gathered = if write {
            &mut self.writes
        } else {
            &mut self.reads
        };
        gathered.accesses += 1;
        for &range in ranges {
            gathered.touch(range);
        }
    }

    /// The log lines for all since the last call.
    pub fn take(&mut self, slot: usize, tag: u64, unit: Unit) -> Vec<What> {
        let mut out = Vec::new();
        for (write, gathered) in [(false, &mut self.reads), (true, &mut self.writes)] {
            if gathered.accesses > 0 {
                let Gathered { accesses: n, pages } = std::mem::take(gathered);
                out.push(What::Dma {
                    slot,
                    tag,
                    unit,
                    write,
                    n,
                    ranges: merge(&pages),
                });
            }
        }
        out
    }
}

impl Gathered {
    fn touch(&mut self, (gpa, len): Range) {
        let Some(last) = len.checked_sub(1).map(|n| gpa.saturating_add(n)) else {
            return;
        };
        let mut line = gpa / LINE;
        while line <= last / LINE {
            let (page, first) = (line * LINE / PAGE, line % (PAGE / LINE));
            let count = (PAGE / LINE - first).min(last / LINE - line + 1);
            let mask = if count == 64 {
                u64::MAX
            } else {
                ((1 << count) - 1) << first
            };
            *self.pages.entry(page).or_default() |= mask;
            line += count;
        }
    }
}

fn merge(pages: &BTreeMap<u64, u64>) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    for (page, &mask) in pages {
        for line in (0..64).filter(|line| mask >> line & 1 != 0) {
            let gpa = page * PAGE + line * LINE;
            match out.last_mut() {
                Some((start, len)) if *start + *len == gpa => *len += LINE,
                _ => out.push((gpa, LINE)),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_and_strangers_do_not() {
        let mut trace = DmaTrace::default();
        trace.add(false, &[(0x1000, 16)]);
        trace.add(false, &[(0x1040, 16), (0x1ff0, 0x20)]);
        trace.add(true, &[(0x10_0000, 0x3000)]);
        trace.add(true, &[(5, 0)]);
        let lines = trace.take(1, 7, Unit::Engine);
        let of = |write, n, ranges| What::Dma {
            slot: 1,
            tag: 7,
            unit: Unit::Engine,
            write,
            n,
            ranges,
        };
        assert_eq!(
            lines,
            [
                of(false, 2, vec![(0x1000, 128), (0x1fc0, 128)]),
                of(true, 2, vec![(0x10_0000, 0x3000)])
            ]
        );
        assert!(trace.take(1, 7, Unit::Engine).is_empty());
    }
}
