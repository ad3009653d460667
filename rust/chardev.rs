// SPDX-License-Identifier: GPL-2.0

//! The device nodes /dev/fermata0, /dev/fermata1, …

use crate::{card::Card, compat::this_module, file::OPERATIONS, sysfs};
use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};
use kernel::{
    bindings,
    device::{Bound, Device},
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
};

/// Cards at the most.
const MINORS: usize = 64;

/// The cards that have a node, by minor number.
struct Cards([Option<Arc<Card>>; MINORS]);

kernel::sync::global_lock! {
    // SAFETY: Initialised in `Class::new`, before any card is probed.
    unsafe(uninit) static CARDS: Mutex<Cards> = Cards([const { None }; MINORS]);
}

/// The card whose node has number `device`.
pub(crate) fn find(device: bindings::dev_t) -> Option<Arc<Card>> {
    CARDS.lock().0.get(minor(device))?.clone()
}

/// The minor part of a device number (MINOR() is a macro).
fn minor(device: bindings::dev_t) -> usize {
    (device & ((1 << 20) - 1)) as usize
}

/// The device class, while there is a [`Class`].
static CLASS: AtomicPtr<bindings::class> = AtomicPtr::new(ptr::null_mut());
/// The first of our device numbers, while there is a [`Class`].
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Registers the device class and the range of device numbers for as long as it lives. One, for the
/// module; it must outlive the driver.
///
/// # Invariants
///
/// [`CLASS`] is a registered class, and the numbers from [`FIRST`] on are ours.
pub(crate) struct Class(());

impl Class {
    /// Registers both. Called once.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Once, before any use.
        unsafe { CARDS.init() };
        let mut first = 0;
        // SAFETY: `first` is valid for writes. CAST: 64.
        to_result(unsafe {
            bindings::alloc_chrdev_region(&mut first, 0, MINORS as c_uint, c"fermata".as_char_ptr())
        })?;
        // SAFETY: The name is static.
        let class = from_err_ptr(unsafe { bindings::class_create(c"fermata".as_char_ptr()) })
            .inspect_err(|_| {
                // SAFETY: Just registered. CAST: 64.
                unsafe { bindings::unregister_chrdev_region(first, MINORS as c_uint) }
            })?;
        // INVARIANT: Both were just registered.
        FIRST.store(first, Ordering::Release);
        CLASS.store(class, Ordering::Release);
        Ok(Self(()))
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; no node is left, since the driver is unregistered before.
        // CAST: 64.
        unsafe {
            bindings::class_destroy(CLASS.load(Ordering::Acquire));
            bindings::unregister_chrdev_region(FIRST.load(Ordering::Acquire), MINORS as c_uint);
        }
    }
}

/// The node of one card. Its end lets nobody open the card any more; open files stay.
///
/// # Invariants
///
/// `cdev` is added, and the device is registered if `has_device`.
pub(crate) struct Node {
    minor: usize,
    cdev: Option<NonNull<bindings::cdev>>,
    has_device: bool,
}

// SAFETY: Only handed to C functions that lock.
unsafe impl Send for Node {}
// SAFETY: As above.
unsafe impl Sync for Node {}

impl Node {
    /// Makes the node of `card`, whose device is `parent`. `ENOSPC`: there are 64 cards.
    pub(crate) fn new(parent: &Device<Bound>, card: &Arc<Card>) -> Result<Self> {
        let minor = {
            let mut cards = CARDS.lock();
            let minor = cards.0.iter().position(Option::is_none).ok_or(ENOSPC)?;
            cards.0[minor] = Some(card.clone());
            // CAST: below 64.
            card.set_number(minor as u32);
            minor
        };
        // From here on its drop undoes what has been done.
        let mut node = Self {
            minor,
            cdev: None,
            has_device: false,
        };
        node.make_cdev()?;
        node.make_device(parent, card)?;
        Ok(node)
    }

    fn number(&self) -> bindings::dev_t {
        // CAST: below 64.
        FIRST.load(Ordering::Acquire) + self.minor as bindings::dev_t
    }

    fn make_cdev(&mut self) -> Result {
        // SAFETY: No requirement.
        let cdev = NonNull::new(unsafe { bindings::cdev_alloc() }).ok_or(ENOMEM)?;
        // SAFETY: `cdev` is ours, and the operations are static.
        let result = to_result(unsafe {
            (*cdev.as_ptr()).ops = OPERATIONS.as_ptr();
            (*cdev.as_ptr()).owner = this_module();
            bindings::cdev_add(cdev.as_ptr(), self.number(), 1)
        });
        // INVARIANT: Added; if not, `cdev_del` drops the reference of `cdev_alloc` all the same.
        self.cdev = Some(cdev);
        result
    }

    fn make_device(&mut self, parent: &Device<Bound>, card: &Card) -> Result {
        // CAST: `Device` is transparent over `struct device`; the minor number is below 64.
        let parent = ptr::from_ref(parent).cast_mut().cast();
        // SAFETY: The class and the parent are registered, the format has one integer. The card
        // outlives the device: `CARDS` keeps it until our drop has destroyed that, which waits for
        // those who read its files.
        from_err_ptr(unsafe {
            bindings::device_create_with_groups(
                CLASS.load(Ordering::Acquire),
                parent,
                self.number(),
                ptr::from_ref(card).cast_mut().cast(),
                sysfs::groups(card),
                c"fermata%d".as_char_ptr(),
                self.minor as c_int,
            )
        })?;
        // INVARIANT: Just registered.
        self.has_device = true;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.has_device {
            // SAFETY: By the type invariant.
            unsafe { bindings::device_destroy(CLASS.load(Ordering::Acquire), self.number()) };
        }
        if let Some(cdev) = self.cdev {
            // SAFETY: By the type invariant.
            unsafe { bindings::cdev_del(cdev.as_ptr()) };
        }
        let card = CARDS.lock().0[self.minor].take();
        drop(card);
    }
}
