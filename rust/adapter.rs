// SPDX-License-Identifier: GPL-2.0

//! The glue between the PCI core and [`crate::driver`]: the `kernel` crate's adapter has no place
//! for power management and resets.

use crate::{
    driver::{self, BoundCard},
    limits::Limits,
};
use core::mem::offset_of;
use kernel::{
    bindings,
    device::{CoreInternal, Device},
    driver::{DriverLayout, RegistrationOps},
    error::{from_result, to_result},
    pci,
    prelude::*,
    str::CStr,
    types::Opaque,
    ThisModule,
};

/// The driver, as the driver core sees it.
pub(crate) struct Adapter;

// SAFETY: `pci_driver` is `repr(C)` and embeds its `device_driver` there; `probe_callback` stores a
// `BoundCard`.
unsafe impl DriverLayout for Adapter {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = BoundCard;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(bindings::pci_driver, driver);
}

// SAFETY: `unregister` undoes what `register` does.
unsafe impl RegistrationOps for Adapter {
    unsafe fn register(
        driver: &Opaque<bindings::pci_driver>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        let raw = driver.get();
        // SAFETY: `raw` is valid and nobody else's until it is registered.
        unsafe {
            (*raw).name = name.as_char_ptr();
            (*raw).probe = Some(probe);
            (*raw).remove = Some(remove);
            (*raw).id_table = driver::id_table();
            (*raw).err_handler = &ERROR_HANDLERS;
            (*raw).driver.pm = &POWER;
        }
        // SAFETY: Filled in above, and pinned until `unregister`.
        to_result(unsafe {
            bindings::__pci_register_driver(raw, module.as_ptr(), name.as_char_ptr())
        })
    }

    unsafe fn unregister(driver: &Opaque<bindings::pci_driver>) {
        // SAFETY: Registered before.
        unsafe { bindings::pci_unregister_driver(driver.get()) }
    }
}

/// A function-level or bus reset takes everything off the card, behind our back or at the
/// administrator's wish (sysfs `reset`).
static ERROR_HANDLERS: bindings::pci_error_handlers = bindings::pci_error_handlers {
    reset_prepare: Some(reset_prepare),
    ..pin_init::zeroed()
};

/// Suspend.
static POWER: bindings::dev_pm_ops = bindings::dev_pm_ops {
    suspend: Some(suspend),
    resume: Some(resume),
    ..pin_init::zeroed()
};

/// The device as the `kernel` crate has it.
///
/// # Safety
///
/// `pdev` must be valid, and the caller a callback of the PCI core.
unsafe fn device<'a>(pdev: *mut bindings::pci_dev) -> &'a pci::Device<CoreInternal<'a>> {
    // SAFETY: By the safety requirement; `pci::Device` is transparent over `struct pci_dev`.
    unsafe { &*pdev.cast() }
}

/// The card bound to `device`.
///
/// # Safety
///
/// `device` must be bound to this driver.
unsafe fn bound<'a>(device: &'a Device<CoreInternal<'a>>) -> Pin<&'a BoundCard> {
    // SAFETY: `probe` stored it.
    unsafe { device.drvdata_borrow::<BoundCard>() }
}

/// # Safety
///
/// Called by the PCI core.
unsafe extern "C" fn probe(
    pdev: *mut bindings::pci_dev,
    _id: *const bindings::pci_device_id,
) -> c_int {
    from_result(|| {
        // SAFETY: By the safety requirement.
        let device = unsafe { device(pdev) };
        // SAFETY: The same device.
        let card = unsafe { driver::probe(device, pdev, Limits::from_module_parameters()?)? };
        device.as_ref().set_drvdata(Ok::<_, Error>(card))?;
        Ok(0)
    })
}

/// The card is shut down when its data are dropped, which the driver core does next, before it
/// releases the BAR.
///
/// # Safety
///
/// Called by the PCI core.
unsafe extern "C" fn remove(_pdev: *mut bindings::pci_dev) {}

/// The card will lose all that is on it: every job fails with ENODEV, and so does every call from
/// now on. A new open after unbind and bind finds the card set up anew.
///
/// # Safety
///
/// Called by the PCI core for a bound device.
unsafe extern "C" fn reset_prepare(pdev: *mut bindings::pci_dev) {
    // SAFETY: By the safety requirement.
    unsafe { bound(device(pdev).as_ref()) }.card().lose();
}

/// EBUSY: a job has not ended; it could not be saved.
///
/// # Safety
///
/// Called by the PM core for a bound device.
unsafe extern "C" fn suspend(dev: *mut bindings::device) -> c_int {
    // SAFETY: By the safety requirement; `Device` is transparent over `struct device`.
    let device: &Device<CoreInternal<'_>> = unsafe { &*dev.cast() };
    // SAFETY: As above.
    if unsafe { bound(device) }.card().is_busy() {
        return EBUSY.to_errno();
    }
    0
}

/// # Safety
///
/// Called by the PM core for a bound device.
unsafe extern "C" fn resume(dev: *mut bindings::device) -> c_int {
    // SAFETY: By the safety requirement; `Device` is transparent over `struct device`.
    let device: &Device<CoreInternal<'_>> = unsafe { &*dev.cast() };
    // SAFETY: As above.
    unsafe { bound(device) }.card().wake();
    0
}
