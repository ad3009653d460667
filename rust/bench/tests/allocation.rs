// SPDX-License-Identifier: GPL-2.0

//! The scheduler allocates nothing: the storage of contexts is given to it. One test in a file of its own, so that no
//! other thread allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fermata_sched_bench::{Contended, CASES};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator; only a number is counted besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `alloc`, which are the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `dealloc`, and `at` came from the same allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decision_allocates_nothing() {
    let sizes = [2, 64, 4_096];
    for (case, contexts) in CASES.into_iter().flat_map(|case| sizes.map(|n| (case, n))) {
        let name = case.name;
        let mut contended = Contended::new(case, contexts);
        let before = CALLS.load(Ordering::SeqCst);
        for _ in 0..2 * contexts {
            contended.switch();
        }
        assert_eq!(
            CALLS.load(Ordering::SeqCst),
            before,
            "{name}, {contexts} contexts"
        );
    }
    // The counter counts: the machine's own storage came by it.
    assert!(CALLS.load(Ordering::SeqCst) > 0);
}
