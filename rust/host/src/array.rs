// SPDX-License-Identifier: GPL-2.0

//! The arrays that the scheduler keeps contexts and groups in.

/// A value on the heap.
pub type Boxed<T> = alloc::boxed::Box<T>;

#[cfg(feature = "count")]
pub use counted::{accesses, Array};

/// An array on the heap, of a length that stays.
#[cfg(not(feature = "count"))]
pub type Array<T> = alloc::boxed::Box<[T]>;

/// Arrays that count how often they are accessed: what a decision costs, counted and not timed.
#[cfg(feature = "count")]
mod counted {
    extern crate std;

    use alloc::boxed::Box;
    use core::cell::Cell;
    use core::ops::{Deref, DerefMut};

    std::thread_local! {
        static ACCESSES: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns how many accesses the calling thread has made.
    pub fn accesses() -> u64 {
        ACCESSES.get()
    }

    /// An array on the heap, of a length that stays.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Array<T>(Box<[T]>);

    impl<T> FromIterator<T> for Array<T> {
        fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
            Self(items.into_iter().collect())
        }
    }

    impl<T> Deref for Array<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            ACCESSES.set(ACCESSES.get() + 1);
            &self.0
        }
    }

    impl<T> DerefMut for Array<T> {
        fn deref_mut(&mut self) -> &mut [T] {
            ACCESSES.set(ACCESSES.get() + 1);
            &mut self.0
        }
    }
}
