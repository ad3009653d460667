// SPDX-License-Identifier: GPL-2.0

//! Stands in for the `kernel` crate, and for the parts of `core` that loom must track.

pub mod bindings;
pub mod sync;

/// As in `core`.
pub mod cell {
    pub use std::cell::*;

    /// Each `get()` counts as a write at that moment, which must be ordered with all others for
    /// loom.
    pub struct UnsafeCell<T> {
        writes: loom::cell::UnsafeCell<()>,
        value: std::cell::UnsafeCell<T>,
    }

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> Self {
            Self {
                writes: loom::cell::UnsafeCell::new(()),
                value: std::cell::UnsafeCell::new(value),
            }
        }

        pub fn get(&self) -> *mut T {
            self.writes.with_mut(|_| ());
            self.value.get()
        }
    }
}

pub mod error {
    use std::convert::Infallible;

    /// The number of an error.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Error(pub i32);

    pub type Result<T = (), E = Error> = std::result::Result<T, E>;

    impl Error {
        pub fn from_errno(number: i32) -> Self {
            Self(number)
        }
    }

    impl From<Infallible> for Error {
        fn from(never: Infallible) -> Self {
            match never {}
        }
    }

    /// No C function fails here.
    pub fn from_err_ptr<T>(pointer: *mut T) -> Result<*mut T> {
        Ok(pointer)
    }
}

pub mod prelude {
    pub use super::error::{Error, Result};
    pub use pinned_init::{pin_data, pin_init, pinned_drop, PinInit, PinnedDrop};
    pub use std::{
        ffi::{c_int, c_uint, c_void},
        pin::Pin,
    };

    pub const ENODEV: Error = Error(-19);
    pub const GFP_KERNEL_ACCOUNT: () = ();
}

/// C objects in Rust structures.
pub mod types {
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
}
