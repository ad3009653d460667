// SPDX-License-Identifier: GPL-2.0

//! The scheduler allocates nothing: the caller provides the storage of contexts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fermata_sched_bench::{Contended, CASES};

/// Counts the calls of each thread apart: the test harness has threads that allocate meanwhile.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may free memory when its counter is gone.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: all is left to the system's allocator; only a number is counted besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the rules of `alloc`, which are the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
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
        let before = CALLS.get();
        for _ in 0..2 * contexts {
            contended.switch();
        }
        assert_eq!(CALLS.get(), before, "{name}, {contexts} contexts");
    }
    // The counter counts: the scheduler's own storage came by it.
    assert!(CALLS.get() > 0);
}
