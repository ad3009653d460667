// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest memory by IOVA: descriptors on a hit, messages to the client on a miss. The accesses of a
//! slot are gathered into a few log lines.

use crate::event::{Range, Unit, What};
use crate::ram::{file_id, FileId, Piece, Ram, View};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The client's own memory access, for memory that it did not share.
pub trait Remote: Send + Sync {
    /// Reads from an IOVA. Gives up and returns false when `give_up` becomes true.
    fn read(&self, iova: u64, buf: &mut [u8], give_up: &AtomicBool) -> bool;
    /// Writes to an IOVA.
    fn write(&self, iova: u64, data: &[u8], give_up: &AtomicBool) -> bool;
}

/// One DMA access.
pub enum Access<'a> {
    /// To the card.
    Read(&'a mut [u8]),
    /// To memory.
    Write(&'a [u8]),
}

impl Access<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Read(buf) => buf.len() as u64,
            Self::Write(data) => data.len() as u64,
        }
    }
}

/// The answer of memory: the guest-physical ranges that were touched, or nothing.
pub type Answer = Option<Vec<Range>>;

/// How many ranges can be mapped at the same time: as many as the kernel's VFIO allows.
const MAPPINGS: usize = 65_535;

/// All guest memory that the card may reach.
#[derive(Default)]
pub struct DmaSpace {
    map: RwLock<DmaMap>,
    remote: RwLock<Option<Arc<dyn Remote>>>,
}

impl DmaSpace {
    /// Maps [iova, iova + size).
    pub fn map(
        &self,
        iova: u64,
        size: u64,
        writable: bool,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        self.map
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(iova, size, writable, backing)
    }

    /// Unmaps everything that begins in [iova, iova + size). Returns when no access to it is under
    /// way.
    pub fn unmap(&self, iova: u64, size: u64) {
        self.map
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(iova, size);
    }

    /// Maps [iova, iova + size) into this process; `None` if not all of it is shared and writable,
    /// or its parts are not whole pages.
    pub fn view(&self, iova: u64, size: u64) -> Option<View> {
        let pieces = self.pieces(iova, size)?;
        View::of(&pieces).ok()
    }

    /// Returns whether all of [iova, iova + size) is shared and writable.
    pub fn covers(&self, iova: u64, size: u64) -> bool {
        self.pieces(iova, size).is_some()
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .mappings
            .is_empty()
    }

    /// Returns IOVA and length of the largest range that is shared and writable, without a hole.
    pub fn largest(&self) -> Option<(u64, u64)> {
        self.map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .largest()
    }

    /// Returns IOVA and length of the range around `iova` that is shared and writable, without a
    /// hole.
    pub fn range_around(&self, iova: u64) -> Option<(u64, u64)> {
        self.map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .range_around(iova)
    }

    fn pieces(&self, iova: u64, size: u64) -> Option<Vec<Piece>> {
        self.map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .pieces(iova, size)
    }

    /// Forgets all mappings.
    pub fn clear(&self) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = DmaMap::default();
    }

    /// Sets who answers on a miss.
    pub fn set_remote(&self, remote: Option<Arc<dyn Remote>>) {
        *self.remote.write().unwrap_or_else(PoisonError::into_inner) = remote;
    }

    /// Accesses shared memory; on a miss, asks the client if `give_up` is given.
    pub fn access(
        &self,
        iova: u64,
        mut access: Access<'_>,
        give_up: Option<&AtomicBool>,
    ) -> Answer {
        match self
            .map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .access(iova, &mut access)
        {
            Lookup::Done(ranges) => Some(ranges),
            Lookup::Forbidden => None,
            Lookup::Miss => self.ask(iova, access, give_up?),
        }
    }

    fn ask(&self, iova: u64, access: Access<'_>, give_up: &AtomicBool) -> Answer {
        let remote = self
            .remote
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        let len = access.len();
        let ok = match access {
            Access::Read(buf) => remote.read(iova, buf, give_up),
            Access::Write(data) => remote.write(iova, data, give_up),
        };
        ok.then(|| vec![(iova, len)])
    }
}

enum Lookup {
    Done(Vec<Range>),
    Forbidden,
    Miss,
}

struct Mapping {
    last: u64,
    writable: bool,
    backing: Option<(Arc<Ram>, u64)>,
}

#[derive(Default)]
struct DmaMap {
    mappings: BTreeMap<u64, Mapping>,
    /// Only mappings and views hold a file, so that memory and descriptor are released with the
    /// last of them.
    files: HashMap<FileId, Weak<Ram>>,
}

impl DmaMap {
    fn insert(
        &mut self,
        iova: u64,
        size: u64,
        writable: bool,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        if self.mappings.len() == MAPPINGS {
            return Err(Errno::NOSPC);
        }
        let last = size
            .checked_sub(1)
            .and_then(|n| iova.checked_add(n))
            .ok_or(Errno::INVAL)?;
        if self
            .mappings
            .range(..=last)
            .next_back()
            .is_some_and(|(_, m)| m.last >= iova)
        {
            return Err(Errno::EXIST);
        }
        let backing = match backing {
            None => None,
            Some((fd, offset)) => {
                let ram = self.file(&fd)?;
                if offset.checked_add(size).is_none_or(|end| end > ram.len()) {
                    return Err(Errno::INVAL);
                }
                Some((ram, offset))
            }
        };
        self.mappings.insert(
            iova,
            Mapping {
                last,
                writable,
                backing,
            },
        );
        Ok(())
    }

    fn file(&mut self, fd: &OwnedFd) -> Result<Arc<Ram>, Errno> {
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let id = file_id(fd.as_fd()).map_err(errno)?;
        if let Some(ram) = self.files.get(&id).and_then(Weak::upgrade) {
            return Ok(ram);
        }
        let ram = Arc::new(Ram::map(fd.as_fd()).map_err(errno)?);
        self.files.retain(|_, ram| ram.strong_count() > 0);
        self.files.insert(id, Arc::downgrade(&ram));
        Ok(ram)
    }

    fn remove(&mut self, iova: u64, size: u64) {
        let Some(n) = size.checked_sub(1) else { return };
        let range = iova..=iova.saturating_add(n);
        let gone: Vec<u64> = self.mappings.range(range).map(|(&k, _)| k).collect();
        for key in gone {
            self.mappings.remove(&key);
        }
    }

    /// Returns the parts of files behind a range, if they may be written.
    fn pieces(&self, iova: u64, size: u64) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        let end = iova.checked_add(size)?;
        let mut at = iova;
        while at < end {
            let (&start, mapping) = self.mappings.range(..=at).next_back()?;
            let (ram, offset) = mapping.backing.as_ref()?;
            if at > mapping.last || !mapping.writable {
                return None;
            }
            let len = (end - at).min((mapping.last - at).saturating_add(1));
            pieces.push((ram.clone(), (offset + (at - start), len)));
            at += len;
        }
        Some(pieces)
    }

    fn largest(&self) -> Option<(u64, u64)> {
        let ranges = self.ranges().into_iter();
        ranges.max_by_key(|(_, length)| *length)
    }

    fn range_around(&self, iova: u64) -> Option<(u64, u64)> {
        let is_around = |&(start, length): &(u64, u64)| iova.wrapping_sub(start) < length;
        self.ranges().into_iter().find(is_around)
    }

    /// Returns IOVAs and lengths of the ranges that are shared and writable, without a hole.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (&start, mapping) in &self.mappings {
            if mapping.backing.is_none() || !mapping.writable {
                continue;
            }
            let length = mapping.last.saturating_sub(start).saturating_add(1);
            match ranges.last_mut() {
                Some((iova, before)) if *iova + *before == start => *before += length,
                _ => ranges.push((start, length)),
            }
        }
        ranges
    }

    /// Resolves the whole range before anything is touched. Memory does not answer for a range that
    /// extends beyond the last address.
    fn access(&self, iova: u64, access: &mut Access<'_>) -> Lookup {
        let last = access.len().saturating_sub(1);
        if iova.checked_add(last).is_none() {
            return Lookup::Forbidden;
        }
        let mut segments: Vec<(&Ram, Range)> = Vec::new();
        let (mut at, mut left) = (iova, access.len());
        while left > 0 {
            let Some((&start, mapping)) = self.mappings.range(..=at).next_back() else {
                return Lookup::Miss;
            };
            let Some((ram, offset)) = mapping.backing.as_ref().filter(|_| at <= mapping.last)
            else {
                return Lookup::Miss;
            };
            if matches!(access, Access::Write(_)) && !mapping.writable {
                return Lookup::Forbidden;
            }
            let len = left.min((mapping.last - at).saturating_add(1));
            segments.push((ram, (offset + (at - start), len)));
            left -= len;
            at = at.wrapping_add(len);
        }
        transfer(&segments, access)
    }
}

fn transfer(segments: &[(&Ram, Range)], access: &mut Access<'_>) -> Lookup {
    let mut done = 0;
    for &(ram, (offset, len)) in segments {
        let piece = done..done + len as usize;
        let ok = match access {
            Access::Read(buf) => ram.read(offset, &mut buf[piece.clone()]),
            Access::Write(data) => ram.write(offset, &data[piece.clone()]),
        };
        if !ok {
            return Lookup::Forbidden;
        }
        done = piece.end;
    }
    Lookup::Done(segments.iter().map(|(_, range)| *range).collect())
}

/// The resolution of DMA accesses in the log, in bytes.
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
    /// Adds one access that touched these guest-physical ranges.
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

    /// Takes the log lines for everything since the last call.
    pub fn take(&mut self, slot: Option<usize>, tag: u64, unit: Unit) -> Vec<What> {
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
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    fn memory(size: u64) -> OwnedFd {
        let fd = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn space() -> DmaSpace {
        let (space, ram) = (DmaSpace::default(), memory(0x4000));
        let again = || ram.try_clone().unwrap();
        space
            .map(0x1_0000, 0x1000, true, Some((again(), 0x2000)))
            .unwrap();
        space
            .map(0x1_1000, 0x1000, true, Some((again(), 0x0000)))
            .unwrap();
        space
            .map(0x1_2000, 0x1000, false, Some((again(), 0x1000)))
            .unwrap();
        space.map(0x2_0000, 0x1000, true, None).unwrap();
        space
    }

    #[test]
    fn an_access_spans_mappings() {
        let space = space();
        let data: Vec<u8> = (0..32).collect();
        let ranges = space.access(0x1_0ff0, Access::Write(&data), None).unwrap();
        assert_eq!(ranges, [(0x2ff0, 16), (0, 16)]);
        let mut back = [0; 32];
        space
            .access(0x1_0ff0, Access::Read(&mut back), None)
            .unwrap();
        assert_eq!(back[..], data[..]);
    }

    #[test]
    fn what_is_not_mapped_is_refused() {
        let space = space();
        assert!(
            space
                .access(0x1_1ff8, Access::Write(&[1; 16]), None)
                .is_none(),
            "runs into a read-only page"
        );
        let mut buf = [0; 16];
        space
            .access(0x1_1ff8, Access::Read(&mut buf), None)
            .unwrap();
        assert_eq!(buf, [0; 16], "and nothing of it was written");
        assert!(
            space
                .access(0x2_0000, Access::Read(&mut buf), None)
                .is_none(),
            "no descriptor"
        );
        assert!(
            space
                .access(0x1_2ff8, Access::Read(&mut buf), None)
                .is_none(),
            "runs off the end"
        );
        let ram = Some((memory(0x1000), 0));
        space.map(u64::MAX - 0xfff, 0x1000, true, ram).unwrap();
        space
            .map(0, 0x1000, true, Some((memory(0x1000), 0)))
            .unwrap();
        let last = [(u64::MAX - 15, true), (u64::MAX - 14, false)];
        for (at, answers) in last {
            let answer = space.access(at, Access::Read(&mut buf), None);
            assert_eq!(answer.is_some(), answers, "no range wraps to 0");
        }
        space.unmap(0x1_0000, u64::MAX);
        assert!(space
            .access(0x1_1000, Access::Read(&mut buf), None)
            .is_none());
    }

    #[test]
    fn a_view_shows_mappings_side_by_side() {
        let space = space();
        let data: Vec<u8> = (0..32).collect();
        space.access(0x1_0ff0, Access::Write(&data), None).unwrap();
        let view = space.view(0x1_0000, 0x2000).unwrap();
        assert_eq!(view.len(), 0x2000);
        // SAFETY: within the view, which is not written at this time.
        let seen = unsafe { std::slice::from_raw_parts(view.address().as_ptr().add(0xff0), 32) };
        assert_eq!(seen, data);
        assert!(space.covers(0x1_1000, 0x1000));
        assert!(!space.covers(0x1_1000, 0x1001), "a read-only page");
        assert!(!space.covers(0x1_0000, u64::MAX), "beyond the last address");
        assert!(space.view(0x2_0000, 0x1000).is_none(), "no descriptor");
        assert!(space.view(0x1_0800, 0x1000).is_none(), "no whole pages");
        space.unmap(0x1_0000, 0x1000);
        assert!(!space.covers(0x1_0000, 0x2000));
    }

    #[test]
    fn bad_mappings_are_refused() {
        let (space, ram) = (space(), memory(0x1000));
        assert_eq!(space.map(0x1_0800, 0x1000, true, None), Err(Errno::EXIST));
        assert_eq!(space.map(0x3_0000, 0, true, None), Err(Errno::INVAL));
        assert_eq!(space.map(u64::MAX, 2, true, None), Err(Errno::INVAL));
        assert_eq!(
            space.map(0x3_0000, 0x2000, true, Some((ram, 0))),
            Err(Errno::INVAL)
        );
        space.unmap(0x9_0000, 0);
    }

    /// Returns how many descriptors and mappings of this process are of files with that name.
    fn holds(name: &str) -> (usize, usize) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        (
            targets
                .filter(|path| path.to_string_lossy().contains(name))
                .count(),
            maps.lines().filter(|line| line.contains(name)).count(),
        )
    }

    #[test]
    fn memory_without_a_mapping_is_let_go() {
        let (space, name) = (DmaSpace::default(), "let-go-by-the-card");
        let named = || {
            let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, 0x2000).unwrap();
            fd
        };
        let ram = named();
        for page in 0..2 {
            let again = ram.try_clone().unwrap();
            space
                .map(page * 0x1000, 0x1000, true, Some((again, page * 0x1000)))
                .unwrap();
        }
        drop(ram);
        space.unmap(0, 0x1000);
        assert_eq!(holds(name), (1, 1), "the other half is mapped");
        let view = space.view(0x1000, 0x1000).unwrap();
        space.unmap(0x1000, 0x1000);
        drop(view);
        assert_eq!(holds(name), (0, 0));
        for _ in 0..3 {
            let beyond = space.map(0, 0x3000, true, Some((named(), 0)));
            assert_eq!(beyond, Err(Errno::INVAL));
        }
        assert_eq!(holds(name), (0, 0), "refused");
        let map = space.map.read().unwrap();
        assert_eq!(map.files.len(), 1, "what is gone is not remembered");
    }

    #[test]
    fn neighbours_merge_and_strangers_do_not() {
        let mut trace = DmaTrace::default();
        trace.add(false, &[(0x1000, 16)]);
        trace.add(false, &[(0x1040, 16), (0x1ff0, 0x20)]);
        trace.add(true, &[(0x10_0000, 0x3000)]);
        trace.add(true, &[(5, 0)]);
        let lines = trace.take(Some(1), 7, Unit::Engine);
        let of = |write, n, ranges| What::Dma {
            slot: Some(1),
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
        assert!(trace.take(Some(1), 7, Unit::Engine).is_empty());
    }
}
