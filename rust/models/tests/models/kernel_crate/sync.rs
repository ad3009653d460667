// SPDX-License-Identifier: GPL-2.0

//! Counted references, completions and RCU.

use super::error::Error;
use loom::{
    cell::UnsafeCell,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Condvar, Mutex,
    },
};
use pinned_init::PinInit;
use std::{
    any::Any,
    cell::{Cell, RefCell},
    mem::MaybeUninit,
    ops::Deref,
    ptr,
};

/// As in the `kernel` crate, based on the atomics of loom.
pub mod atomic {
    use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering as Order};

    /// An order of memory accesses.
    pub trait Ordering {
        const ORDER: Order;
    }

    macro_rules! orderings {
        ($($name:ident = $order:ident;)*) => {
            $(
                pub struct $name;

                impl Ordering for $name {
                    const ORDER: Order = Order::$order;
                }
            )*
        };
    }

    orderings! {
        Relaxed = Relaxed;
        Acquire = Acquire;
        Release = Release;
        // The models rely only on this; in the kernel it is a full barrier.
        Full = AcqRel;
    }

    /// A value that can be accessed atomically, and the atomic of loom for it.
    pub trait AtomicType: Copy {
        type Cell;

        fn cell(self) -> Self::Cell;
        fn load(cell: &Self::Cell, order: Order) -> Self;
        fn store(cell: &Self::Cell, value: Self, order: Order);
        fn swap(cell: &Self::Cell, value: Self, order: Order) -> Self;
        fn compare(cell: &Self::Cell, old: Self, new: Self, order: Order) -> Result<Self, Self>;
    }

    macro_rules! atomic_types {
        ($([$($parameter:ident)?] $type:ty = $cell:ty;)*) => {
            $(
                impl$(<$parameter>)? AtomicType for $type {
                    type Cell = $cell;

                    fn cell(self) -> $cell {
                        <$cell>::new(self)
                    }

                    fn load(cell: &$cell, order: Order) -> Self {
                        cell.load(order)
                    }

                    fn store(cell: &$cell, value: Self, order: Order) {
                        cell.store(value, order);
                    }

                    fn swap(cell: &$cell, value: Self, order: Order) -> Self {
                        cell.swap(value, order)
                    }

                    fn compare(
                        cell: &$cell,
                        old: Self,
                        new: Self,
                        order: Order,
                    ) -> Result<Self, Self> {
                        // A comparison that fails orders nothing.
                        cell.compare_exchange(old, new, order, Order::Relaxed)
                    }
                }
            )*
        };
    }

    atomic_types! {
        [] bool = AtomicBool;
        [] u32 = AtomicU32;
        [] usize = AtomicUsize;
        [T] *mut T = AtomicPtr<T>;
    }

    pub struct Atomic<T: AtomicType>(T::Cell);

    impl<T: AtomicType> Atomic<T> {
        pub fn new(value: T) -> Self {
            Self(value.cell())
        }

        pub fn load<O: Ordering>(&self, _: O) -> T {
            T::load(&self.0, O::ORDER)
        }

        pub fn store<O: Ordering>(&self, value: T, _: O) {
            T::store(&self.0, value, O::ORDER);
        }

        pub fn xchg<O: Ordering>(&self, value: T, _: O) -> T {
            T::swap(&self.0, value, O::ORDER)
        }

        pub fn cmpxchg<O: Ordering>(&self, old: T, new: T, _: O) -> Result<T, T> {
            T::compare(&self.0, old, new, O::ORDER)
        }
    }

    impl Atomic<usize> {
        pub fn fetch_add<O: Ordering>(&self, value: usize, _: O) -> usize {
            self.0.fetch_add(value, O::ORDER)
        }

        pub fn fetch_sub<O: Ordering>(&self, value: usize, _: O) -> usize {
            self.0.fetch_sub(value, O::ORDER)
        }
    }

    pub type AtomicFlag = Atomic<bool>;
}

thread_local! {
    /// Objects that were freed in this interleaving. Their memory is kept until the next one, so
    /// that a use is detected, and is not undefined behaviour.
    static FREED: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
    /// How many objects are allocated.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// Runs `threads` as one interleaving, which must free all that it allocates.
pub fn run(threads: &impl Fn()) {
    FREED.with(|freed| freed.borrow_mut().clear());
    ALLOCATED.with(|count| count.set(0));
    threads();
    assert_eq!(ALLOCATED.with(Cell::get), 0, "objects are left");
}

/// Allocates a place for `value`, whose address does not change.
pub fn allocate<T>(value: T) -> *mut T {
    ALLOCATED.with(|count| count.set(count.get() + 1));
    Box::into_raw(Box::new(value))
}

/// Frees what [`allocate`] has allocated.
///
/// # Safety
///
/// At most once for each place.
pub unsafe fn free<T: 'static>(place: *mut T) {
    // SAFETY: It is initialised. What follows owns the memory only, which has the same layout.
    let memory = unsafe {
        ptr::drop_in_place(place);
        Box::from_raw(place.cast::<MaybeUninit<T>>())
    };
    FREED.with(|freed| freed.borrow_mut().push(memory));
    ALLOCATED.with(|count| count.set(count.get() - 1));
}

/// Detects a use of the enclosing object after its end, or a use that is not ordered before its
/// end.
pub struct Life {
    uses: UnsafeCell<()>,
    over: Cell<bool>,
}

impl Life {
    pub fn new() -> Self {
        Self {
            uses: UnsafeCell::new(()),
            over: Cell::new(false),
        }
    }

    /// Notes a use.
    pub fn check(&self) {
        assert!(!self.over.get(), "used after its end");
        self.uses.with(|_| ());
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        assert!(!self.over.replace(true), "ends twice");
        self.uses.with_mut(|_| ());
    }
}

/// As in the `kernel` crate.
pub struct Arc<T: 'static>(*mut Counted<T>);

#[repr(C)]
struct Counted<T> {
    value: MaybeUninit<T>,
    count: AtomicUsize,
}

// SAFETY: As the kernel's.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: As the kernel's.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    pub fn new(value: T, flags: ()) -> Result<Self, Error> {
        Self::pin_init(value, flags)
    }

    pub fn pin_init<E>(init: impl PinInit<T, E>, (): ()) -> Result<Self, Error>
    where
        Error: From<E>,
    {
        let counted = allocate(Counted {
            value: MaybeUninit::uninit(),
            count: AtomicUsize::new(1),
        });
        // SAFETY: `value` is valid for writes, and does not move any more.
        unsafe { init.__pinned_init((*counted).value.as_mut_ptr())? };
        Ok(Self(counted))
    }

    pub fn into_raw(self) -> *const T {
        std::mem::ManuallyDrop::new(self).0.cast_const().cast()
    }

    /// # Safety
    ///
    /// `pointer` must come from [`Arc::into_raw`], once.
    pub unsafe fn from_raw(pointer: *const T) -> Self {
        Self(pointer.cast_mut().cast())
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: Initialised by `pin_init`; the memory lives until the next interleaving.
        unsafe { (*self.0).value.assume_init_ref() }
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        // SAFETY: As in `deref`.
        let before = unsafe { (*self.0).count.fetch_add(1, Ordering::Relaxed) };
        assert_ne!(before, 0, "cloned after its end");
        Self(self.0)
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        // SAFETY: As in `deref`.
        let before = unsafe { (*self.0).count.fetch_sub(1, Ordering::AcqRel) };
        assert_ne!(before, 0, "dropped after its end");
        if before == 1 {
            // SAFETY: It is initialised, and this was the last reference.
            unsafe {
                (*self.0).value.assume_init_drop();
                free(self.0);
            }
        }
    }
}

/// As in the `kernel` crate.
pub mod rcu {
    use crate::bindings;

    pub struct Guard;

    pub fn read_lock() -> Guard {
        // SAFETY: The guard unlocks it.
        unsafe { bindings::rcu_read_lock() };
        Guard
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            // SAFETY: `read_lock` has locked it.
            unsafe { bindings::rcu_read_unlock() };
        }
    }
}

/// As in the `kernel` crate.
pub struct Completion {
    life: Life,
    done: Mutex<bool>,
    changed: Condvar,
}

impl Completion {
    pub fn new() -> impl PinInit<Self> {
        Self {
            life: Life::new(),
            done: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    pub fn complete_all(&self) {
        self.life.check();
        *self.done.lock().unwrap() = true;
        self.changed.notify_all();
        self.life.check();
    }

    pub fn wait_for_completion(&self) {
        self.life.check();
        let mut done = self.done.lock().unwrap();
        while !*done {
            done = self.changed.wait(done).unwrap();
        }
    }
}
