// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a process from its children of `fork()`, which have copies of its objects.
//!
//! Process numbers do not: they repeat, and each container has a process 1.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes that are zeroed in a child: a multiple of all page sizes.
const LENGTH: usize = 65536;

/// A process. Its children of `fork()`, and theirs, are other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the process that calls. Panics if there is no memory for a page.
    pub fn current() -> Self {
        /// The number that was last given out. A child goes on from its parent's.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = number();
        let own = match number.load(Ordering::Relaxed) {
            // A new process, or a child.
            0 => {
                let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                let old = number.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
                // Another thread may have been faster.
                old.err().unwrap_or(new)
            }
            own => own,
        };
        Self(own)
    }

    /// Returns the number of the process, which no child of `fork()`, nor its children, shares.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns whether this process calls, and not a child of it.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Returns the number of the process, which is 0 in a child until it has got one.
///
/// There is no lock, because a child would inherit it locked if another thread held it.
fn number() -> &'static AtomicU64 {
    static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let new = map();
        match PAGE.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page = new,
            Err(other) => {
                // SAFETY: mapped above, and used by nobody.
                unsafe { libc::munmap(new.cast(), LENGTH) };
                page = other;
            }
        }
    }
    // SAFETY: aligned memory, which is mapped until the process ends.
    unsafe { &*page }
}

/// Maps memory that a child finds zeroed.
fn map() -> *mut AtomicU64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, where nothing else is.
    let memory = unsafe { libc::mmap(null_mut(), LENGTH, access, flags, -1, 0) };
    // SAFETY: what was just mapped. If nothing was, this fails.
    let refused = unsafe { libc::madvise(memory, LENGTH, libc::MADV_WIPEONFORK) };
    assert!(refused == 0, "no page: {}", std::io::Error::last_os_error());
    memory.cast()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Forks, and returns whether `test` holds in the child. The child of a process with threads
    /// must not allocate.
    pub(crate) fn holds_in_child(test: impl FnOnce() -> bool) -> bool {
        let mut status = 0;
        // SAFETY: the child only runs `test`, and ends.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(!test())),
                child => assert!(child > 0 && libc::waitpid(child, &raw mut status, 0) == child),
            }
        }
        status == 0
    }

    #[test]
    fn children_are_other_processes() {
        let parent = Process::current();
        assert!(parent.is_current());
        assert!(holds_in_child(|| {
            let child = Process::current();
            let grandchild = || !child.is_current() && !parent.is_current();
            !parent.is_current() && child.is_current() && holds_in_child(grandchild)
        }));
        assert!(parent.is_current());
    }
}
