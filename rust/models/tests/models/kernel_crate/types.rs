// SPDX-License-Identifier: GPL-2.0

//! Objects of C in Rust structures.

use pinned_init::PinInit;
use std::{cell::UnsafeCell, convert::Infallible, mem::MaybeUninit};

/// As in the `kernel` crate, and dropped if it was initialised by [`Opaque::ffi_init`], so that a
/// later use is noticed.
#[repr(C)]
pub struct Opaque<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    drops: bool,
}

impl<T> Opaque<T> {
    pub fn ffi_init(init: impl FnOnce(*mut T)) -> impl PinInit<Self, Infallible> {
        let init = move |slot: *mut Self| {
            // SAFETY: `slot` is valid for writes.
            unsafe {
                slot.write(Self::uninit());
                init((*slot).get());
                (*slot).drops = true;
            }
            Ok(())
        };
        // SAFETY: All of it is initialised.
        unsafe { pinned_init::pin_init_from_closure(init) }
    }

    pub fn uninit() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::uninit()),
            drops: false,
        }
    }

    pub fn get(&self) -> *mut T {
        self.value.get().cast()
    }

    pub fn cast_from(this: *const T) -> *const Self {
        this.cast()
    }
}

impl<T> Drop for Opaque<T> {
    fn drop(&mut self) {
        if self.drops {
            // SAFETY: `ffi_init` has initialised it.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}
