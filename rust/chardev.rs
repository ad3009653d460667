// SPDX-License-Identifier: GPL-2.0

//! The device nodes /dev/fermata0, /dev/fermata1, …

use crate::{
    c_object::StaticTable,
    card::Card,
    compat::this_module,
    shim::{cdev_alloc, unregister_chrdev_region},
    sysfs,
};
use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    device::{Bound, Device},
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        Arc,
    },
};

/// Maximum number of cards that can have a node.
const MINORS: usize = 64;

/// The cards that have a node, by minor number.
struct Cards([Option<Arc<Card>>; MINORS]);

kernel::sync::global_lock! {
    // SAFETY: Initialised in `Class::new`, before any card is probed.
    unsafe(uninit) static CARDS: Mutex<Cards> = Cards([const { None }; MINORS]);
}

/// Returns the card whose node has the number `device`.
pub(crate) fn find(device: bindings::dev_t) -> Option<Arc<Card>> {
    CARDS.lock().0.get(minor(device))?.clone()
}

/// Returns the minor part of a device number (MINOR() is a macro).
fn minor(device: bindings::dev_t) -> usize {
    (device & ((1 << 20) - 1)) as usize
}

/// The device class, while there is a [`Class`].
static CLASS: Atomic<*mut bindings::class> = Atomic::new(ptr::null_mut());
/// The first of our device numbers, while there is a [`Class`].
static FIRST: Atomic<u32> = Atomic::new(0);

/// A registered range of device numbers.
struct Numbers(bindings::dev_t);

impl Numbers {
    /// Registers [`MINORS`] numbers.
    fn new() -> Result<Self> {
        let mut first = 0;
        // CAST: 64.
        // SAFETY: `first` may be written, and the name is static.
        to_result(unsafe {
            bindings::alloc_chrdev_region(&mut first, 0, MINORS as c_uint, c"fermata".as_char_ptr())
        })?;
        Ok(Self(first))
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        // CAST: 64.
        unregister_chrdev_region(self.0, MINORS as c_uint);
    }
}

/// The device class and the device numbers of the module. The module has one such value, which must
/// outlive the driver.
///
/// # Invariants
///
/// [`CLASS`] is a registered class, and the numbers from [`FIRST`] on are `_numbers`.
pub(crate) struct Class {
    _numbers: Numbers,
}

impl Class {
    /// Registers both. Called once.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Called once, before any other use of `CARDS`.
        unsafe { CARDS.init() };
        let numbers = Numbers::new()?;
        // SAFETY: The name is static.
        let class = from_err_ptr(unsafe { bindings::class_create(c"fermata".as_char_ptr()) })?;
        // INVARIANT: Both were just registered.
        FIRST.store(numbers.0, Release);
        CLASS.store(class, Release);
        Ok(Self { _numbers: numbers })
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the class is registered. No device of the class is left,
        // since the driver is unregistered before.
        unsafe { bindings::class_destroy(CLASS.load(Acquire)) };
    }
}

/// A minor number that belongs to a card.
struct Minor(usize);

impl Minor {
    /// Gives `card` the first free number. `ENOSPC`: there are 64 cards.
    fn new(card: &Arc<Card>) -> Result<Self> {
        let mut cards = CARDS.lock();
        let minor = cards.0.iter().position(Option::is_none).ok_or(ENOSPC)?;
        cards.0[minor] = Some(card.clone());
        // CAST: below 64.
        card.set_number(minor as u32);
        Ok(Self(minor))
    }

    /// Returns the device number.
    fn device(&self) -> bindings::dev_t {
        // CAST: below 64.
        FIRST.load(Acquire) + self.0 as bindings::dev_t
    }
}

impl Drop for Minor {
    fn drop(&mut self) {
        let card = CARDS.lock().0[self.0].take();
        drop(card);
    }
}

/// A character device that can be opened.
///
/// # Invariants
///
/// `self` owns a reference to the `struct cdev`, which was added, or could not be added.
struct CharDevice(NonNull<bindings::cdev>);

// SAFETY: The character device may be deleted on any thread.
unsafe impl Send for CharDevice {}

impl CharDevice {
    /// Adds a character device with the number `device` and with `operations`.
    fn new(
        device: bindings::dev_t,
        operations: &'static StaticTable<bindings::file_operations>,
    ) -> Result<Self> {
        // INVARIANT: The reference is ours. `cdev_del` puts it, whether `cdev_add` is successful or
        // not.
        let this = Self(NonNull::new(cdev_alloc()).ok_or(ENOMEM)?);
        let cdev = this.0.as_ptr();
        // SAFETY: `cdev` is valid, and nobody else uses it until it is added. The operations are
        // static.
        to_result(unsafe {
            (*cdev).ops = &operations.0;
            (*cdev).owner = this_module();
            bindings::cdev_add(cdev, device, 1)
        })?;
        Ok(this)
    }
}

impl Drop for CharDevice {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours; it is put once, here.
        unsafe { bindings::cdev_del(self.0.as_ptr()) };
    }
}

/// A device in /sys/class/fermata, for which udev makes a node.
///
/// # Invariants
///
/// A device of this number is registered.
struct ClassDevice(bindings::dev_t);

impl ClassDevice {
    /// Registers the device of number `minor` for `card`, whose device is `parent`.
    fn new(parent: &Device<Bound>, card: &Arc<Card>, minor: &Minor) -> Result<Self> {
        let device = minor.device();
        // CAST: `Device` is transparent over `struct device`; the minor number is below 64.
        // SAFETY: The class and the parent are registered, and the format has one integer. The card
        // outlives the device: `minor` keeps the card until the device is destroyed, which waits
        // for readers of its files.
        from_err_ptr(unsafe {
            bindings::device_create_with_groups(
                CLASS.load(Acquire),
                ptr::from_ref(parent).cast_mut().cast(),
                device,
                ptr::from_ref::<Card>(card).cast_mut().cast(),
                sysfs::groups(card),
                c"fermata%d".as_char_ptr(),
                minor.0 as c_int,
            )
        })?;
        // INVARIANT: Just registered.
        Ok(Self(device))
    }
}

impl Drop for ClassDevice {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the device is registered, and so is the class, which
        // outlives the driver.
        unsafe { bindings::device_destroy(CLASS.load(Acquire), self.0) };
    }
}

/// The node of a card. Once it is dropped, nobody can open the card; open files stay open.
///
/// # Invariants
///
/// The fields are dropped in their order: the device refers to the card, which the minor number
/// keeps.
pub(crate) struct Node {
    _device: ClassDevice,
    _cdev: CharDevice,
    _minor: Minor,
}

impl Node {
    /// Makes the node of `card`, whose device is `parent`, with `operations`. `ENOSPC`: there are
    /// 64 cards.
    pub(crate) fn new(
        parent: &Device<Bound>,
        card: &Arc<Card>,
        operations: &'static StaticTable<bindings::file_operations>,
    ) -> Result<Self> {
        let minor = Minor::new(card)?;
        let cdev = CharDevice::new(minor.device(), operations)?;
        Ok(Self {
            _device: ClassDevice::new(parent, card, &minor)?,
            _cdev: cdev,
            _minor: minor,
        })
    }
}
