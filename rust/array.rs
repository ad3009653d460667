// SPDX-License-Identifier: GPL-2.0

//! The arrays that the scheduler keeps contexts and groups in.

use kernel::alloc::{KBox, KVVec};

/// An array on the heap, of a fixed length.
pub(crate) type Array<T> = KVVec<T>;

/// A value on the heap.
pub(crate) type Boxed<T> = KBox<T>;
