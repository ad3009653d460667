// SPDX-License-Identifier: GPL-2.0

//! Mistakes in Rust, for `mistakes.c`: the kernel's checks must work for Rust code, too.

use core::hint::black_box;
use kernel::prelude::*;

/// Returns memory on the heap without an owner.
fn memory() -> *mut u64 {
    KBox::new(7_u64, GFP_KERNEL).map_or(core::ptr::null_mut(), KBox::into_raw)
}

/// # Safety
///
/// `mem` must come from [`memory`], and not have been freed.
unsafe fn free(mem: *mut u64) {
    // SAFETY: By the safety requirement.
    drop(unsafe { KBox::from_raw(mem) });
}

/// Reads memory that it has freed.
#[no_mangle]
extern "C" fn planted_rust_use_after_free() {
    let mem = memory();
    // SAFETY: Just made.
    unsafe { free(mem) };
    // SAFETY: None; this is the mistake.
    black_box(unsafe { mem.read_volatile() });
}

/// Reads beyond the end of its memory.
#[no_mangle]
extern "C" fn planted_rust_out_of_bounds() {
    let mem = memory();
    // SAFETY: None; this is the mistake.
    black_box(unsafe { mem.add(1).read_volatile() });
    // SAFETY: Just made.
    unsafe { free(mem) };
}

/// Adds to the largest number.
#[no_mangle]
extern "C" fn planted_rust_overflow() {
    black_box(black_box(u32::MAX) + 1);
}

/// Makes an assertion that fails.
#[no_mangle]
extern "C" fn planted_rust_assertion() {
    debug_assert!(black_box(false));
}
