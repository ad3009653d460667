// SPDX-License-Identifier: GPL-2.0-or-later
//! What processes of a restore tell each other: CRIU restores each process in a process of its own.

use anyhow::{bail, Context as _, Result};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Contexts of a restore at most.
const ENTRIES: usize = 8192;
/// Bytes of the name of a node: fermata and a number.
const NAME: usize = 24;

/// A context that was restored.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// CRIU's number of its file.
    pub(crate) id: i32,
    /// The name of the node before.
    pub(crate) name: [u8; NAME],
    /// The context's number before, and now.
    pub(crate) numbers: (u32, u32),
    /// The card now.
    pub(crate) card: u64,
    /// The gang before; 0: none.
    pub(crate) gang: u32,
}

/// The card of a context, and the context's number there.
pub(crate) type Key = (u64, u32);

impl Entry {
    /// Returns the key of the context now.
    pub(crate) fn key(&self) -> Key {
        (self.card, self.numbers.1)
    }
}

struct Place {
    is_complete: AtomicBool,
    entry: UnsafeCell<Entry>,
}

struct Table {
    taken: AtomicUsize,
    places: [Place; ENTRIES],
}

// SAFETY: An entry is written by whoever has taken its place, and read when it is complete.
unsafe impl Sync for Table {}

static TABLE: OnceLock<&'static Table> = OnceLock::new();

/// Makes the table, before CRIU makes processes.
pub(crate) fn make() -> Result<()> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: A new mapping at an address that the kernel chooses.
    let memory = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<Table>(), protection, flags) };
    let memory = memory.context("a table")?;
    // SAFETY: The memory is large enough and aligned, lives as long as the process, and a table of
    // zeros has no entries.
    TABLE.get_or_init(|| unsafe { &*memory.cast::<Table>() });
    Ok(())
}

fn table() -> Result<&'static Table> {
    TABLE
        .get()
        .copied()
        .context("CRIU has not said that it restores")
}

/// Returns the name of a node as it stands in the table.
pub(crate) fn name_of(name: &str) -> Result<[u8; NAME]> {
    let mut bytes = [0; NAME];
    let Some(room) = bytes.get_mut(..name.len()) else {
        bail!("{name} is no name of a card's node");
    };
    room.copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Adds a context. Returns the number of its place: how many contexts were added before.
pub(crate) fn add(entry: Entry) -> Result<usize> {
    let table = table()?;
    let taken = table.taken.fetch_add(1, Ordering::Relaxed);
    let Some(place) = table.places.get(taken) else {
        bail!("more than {ENTRIES} contexts");
    };
    // SAFETY: The place was taken here, and is not complete.
    unsafe { *place.entry.get() = entry };
    place.is_complete.store(true, Ordering::Release);
    Ok(taken)
}

/// Returns the first context of which `is_it` holds.
pub(crate) fn find(is_it: impl Fn(&Entry) -> bool) -> Result<Option<Entry>> {
    let places = table()?.places.iter();
    let complete = places.filter(|place| place.is_complete.load(Ordering::Acquire));
    // SAFETY: A complete entry does not change.
    let mut entries = complete.map(|place| unsafe { *place.entry.get() });
    Ok(entries.find(|entry| is_it(entry)))
}

/// Returns the first context of which `is_it` holds among those before the place `end`: the same one
/// whenever a process asks. Waits for processes that have taken a place and have not written the entry
/// yet; CRIU ends all processes if one of them ends too early.
pub(crate) fn find_before(end: usize, is_it: impl Fn(&Entry) -> bool) -> Result<Option<Entry>> {
    let mut entries = table()?.places[..end].iter().map(|place| {
        while !place.is_complete.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: A complete entry does not change.
        unsafe { *place.entry.get() }
    });
    Ok(entries.find(|entry| is_it(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many processes add members at the same time, all members but one join that one.
    #[test]
    fn members_of_a_gang_agree_on_the_first() {
        const MEMBERS: i32 = 64;
        make().unwrap();
        let entry = |id| Entry {
            id,
            name: name_of("fermata0").unwrap(),
            numbers: (0, 0),
            card: 0,
            gang: 1,
        };
        let first_before = |id| {
            let place = add(entry(id)).unwrap();
            let first = find_before(place, |entry| entry.gang == 1).unwrap();
            first.map(|first| first.id)
        };
        let firsts: Vec<Option<i32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..MEMBERS)
                .map(|id| scope.spawn(move || first_before(id)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let root = firsts.iter().position(Option::is_none).unwrap();
        for (id, first) in firsts.iter().enumerate() {
            let wanted = (id != root).then_some(root as i32);
            assert_eq!(*first, wanted, "member {id}");
        }
    }
}
