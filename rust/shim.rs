// SPDX-License-Identifier: GPL-2.0

//! Safe forms of C functions that require nothing of their callers, and the functions of `shim.c`,
//! which says what they do.

use kernel::{
    bindings,
    device::{Device, DeviceContext},
    pci,
    prelude::*,
};

// SAFETY: The declarations are those of `include/fermata_shim.h`. A function that is declared safe
// may be called with any values of its argument types. It keeps no reference that is passed to it.
#[expect(
    improper_ctypes,
    reason = "pointers to C structures, some of which are empty in this configuration"
)]
unsafe extern "C" {
    pub(crate) fn fermata_raw_spin_lock_init(
        lock: *mut bindings::raw_spinlock_t,
        name: *const c_char,
        key: *mut bindings::lock_class_key,
    );
    pub(crate) fn fermata_raw_spin_assert_held(lock: *mut bindings::raw_spinlock_t);
    pub(crate) fn fermata_timer_setup(timer: *mut bindings::hrtimer, mode: bindings::hrtimer_mode);
    pub(crate) fn fermata_request_irq(irq: c_uint, cookie: *mut c_void) -> c_int;
    pub(crate) fn fermata_bus_watch_init(block: *mut bindings::notifier_block);
    pub(crate) fn fermata_bus_watch_start(block: *mut bindings::notifier_block) -> c_int;
    pub(crate) fn fermata_bus_watch_stop(block: *mut bindings::notifier_block);
    pub(crate) fn fermata_wait_queue_init(queue: *mut bindings::wait_queue_head);
    pub(crate) fn fermata_irq_work_init(
        work: *mut bindings::irq_work,
        func: unsafe extern "C" fn(*mut bindings::irq_work),
    );
    pub(crate) fn fermata_delayed_work_init(
        work: *mut bindings::delayed_work,
        func: unsafe extern "C" fn(*mut bindings::work_struct),
    );
    pub(crate) fn fermata_delayed_work_queue(work: *mut bindings::delayed_work, ms: c_uint);
    pub(crate) fn fermata_hold_file(
        operations: *const bindings::file_operations,
        hold: *mut c_void,
    ) -> *mut bindings::file;
    pub(crate) fn fermata_dump(dev: &Device, text: *mut c_void, length: usize);
    pub(crate) fn fermata_put_pages(pages: *mut *mut bindings::page, count: c_ulong);
    pub(crate) fn fermata_nth_page(page: *mut bindings::page, n: c_ulong) -> *mut bindings::page;

    pub(crate) safe fn fermata_responsible_user() -> u32;
    pub(crate) safe fn fermata_dma_is_translated(dev: &Device) -> bool;
    pub(crate) safe fn fermata_dma_neighbours(dev: &Device, group: &mut c_int) -> c_uint;
    pub(crate) safe fn fermata_dma_is_coherent(dev: &Device) -> bool;
    pub(crate) safe fn fermata_link_may_recover(dev: &Device) -> bool;
    pub(crate) safe fn fermata_dma_cross_boundaries(dev: &Device);
    pub(crate) safe fn fermata_dma_flush(dev: &Device);
    pub(crate) safe fn fermata_dma_rmb();
    pub(crate) safe fn fermata_pages_alloc(order: c_uint) -> *mut bindings::page;
    pub(crate) safe fn fermata_contig_alloc(count: c_ulong) -> *mut bindings::page;
    pub(crate) safe fn fermata_contig_is_charged(count: c_ulong) -> bool;
    pub(crate) safe fn fermata_monotonic_of_caller(time: bindings::ktime_t) -> bindings::ktime_t;
    pub(crate) safe fn fermata_locked_down() -> bool;
    pub(crate) safe fn fermata_memory_bytes() -> u64;
    pub(crate) safe fn fermata_capable_noaudit(capability: c_int) -> bool;
    pub(crate) safe fn fermata_memlock_limit() -> c_ulong;
    pub(crate) safe fn fermata_policy_parameter() -> *const c_char;
    pub(crate) safe fn fermata_fatal_signal_pending() -> bool;
    pub(crate) safe fn fermata_kernel_release() -> *const c_char;
    #[cfg(CONFIG_LOCKDEP)]
    pub(crate) safe fn fermata_unplug_teach();
    #[cfg(CONFIG_LOCKDEP)]
    pub(crate) safe fn fermata_unplug_acquire();
    #[cfg(CONFIG_LOCKDEP)]
    pub(crate) safe fn fermata_unplug_release();
}

/// Declares safe forms of functions of the kernel's bindings, under their own names.
macro_rules! safe_functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name($($argument: $type),*) $(-> $ret)? {
                // SAFETY: These functions may be called with any values of these types. A reference
                // is valid for the call, and not kept.
                unsafe { bindings::$name($($argument),*) }
            }
        )*
    };
}

safe_functions! {
    /// Returns whether the caller has a capability in the initial user namespace.
    fn capable(capability: c_int) -> bool;
    /// Sleeps in the state that the task has set, or yields. Process context.
    fn schedule();
    /// Sleeps in the state that the task has set, at most until `expires`. 0: `expires` was
    /// reached.
    fn schedule_hrtimeout_range(
        expires: &mut bindings::ktime_t,
        slack: u64,
        mode: bindings::hrtimer_mode
    ) -> c_int;
    /// Returns the seconds since 1970.
    fn ktime_get_real_seconds() -> bindings::time64_t;
    /// Waits for an RCU grace period. May sleep.
    fn synchronize_rcu();
    /// Returns a reference to the eventfd of a descriptor of the caller, or an error.
    fn eventfd_ctx_fdget(fd: c_int) -> *mut bindings::eventfd_ctx;
    /// Disables an interrupt. Does not wait for handlers.
    fn disable_irq_nosync(irq: c_uint);
    /// Enables an interrupt that was disabled once more than it was enabled.
    fn enable_irq(irq: c_uint);
    /// Returns a reference to a new character device, or null.
    fn cdev_alloc() -> *mut bindings::cdev;
    /// Releases device numbers.
    fn unregister_chrdev_region(first: bindings::dev_t, count: c_uint);
}

/// Returns the C side of `pdev`.
pub(crate) fn pci_as_raw<Context: DeviceContext>(
    pdev: &pci::Device<Context>,
) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is transparent over `struct pci_dev`.
    core::ptr::from_ref(pdev).cast_mut().cast()
}

/// Declares safe forms of functions of the PCI core, under their own names.
macro_rules! pci_functions {
    ($($(#[$doc:meta])* fn $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name<Context: DeviceContext>(pdev: &pci::Device<Context>) {
                // SAFETY: The device is valid. These functions may be called for a device in any
                // state. They lock what they change; the caller of `pci_save_state` has locked it.
                unsafe { bindings::$name(pci_as_raw(pdev)) };
            }
        )*
    };
}

pci_functions! {
    /// Undoes one enabling of the function.
    fn pci_disable_device;
    /// Enables DMA by the function.
    fn pci_set_master;
    /// Disables DMA by the function.
    fn pci_clear_master;
    /// Saves the configuration that an error recovery restores. The caller holds the lock of the
    /// device.
    fn pci_save_state;
}
