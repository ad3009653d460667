// SPDX-License-Identifier: GPL-2.0

//! The glue between the PCI core and [`crate::driver`]: the `kernel` crate's adapter has no place
//! for power management and resets.

use crate::{
    card::Card,
    driver::{self, BoundCard},
    limits::Limits,
    trace::CardEvent,
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
            (*raw).shutdown = Some(shutdown);
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

/// Resets of the function or its bus, at the administrator's wish (sysfs `reset`) or a bridge's,
/// and errors of the link (AER). All are called with the device locked, so it stays bound.
static ERROR_HANDLERS: bindings::pci_error_handlers = bindings::pci_error_handlers {
    error_detected: Some(error_detected),
    slot_reset: Some(slot_reset),
    resume: Some(recovered),
    reset_prepare: Some(reset_prepare),
    reset_done: Some(reset_done),
    ..pin_init::zeroed()
};

/// Suspend and hibernation. The card is at rest while the image of the memory is made, while the
/// machine is off, and while another kernel, which restores the image, has had the card.
static POWER: bindings::dev_pm_ops = bindings::dev_pm_ops {
    suspend: Some(suspend),
    resume: Some(resume),
    freeze: Some(suspend),
    thaw: Some(resume),
    poweroff: Some(suspend),
    restore: Some(resume),
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

/// The machine goes down, or another kernel takes over (kexec): all jobs fail, and the card is at rest
/// before its bus mastering ends.
///
/// # Safety
///
/// Called by the PCI core for a bound device.
unsafe extern "C" fn shutdown(pdev: *mut bindings::pci_dev) {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::Shutdown);
    card.lose();
}

/// The card of a device that the PCI core calls us for.
///
/// # Safety
///
/// Called by the PCI core for a bound device, for as long as `'a`.
unsafe fn card_of<'a>(pdev: *mut bindings::pci_dev) -> &'a Card {
    // SAFETY: By the safety requirement.
    unsafe { bound(device(pdev).as_ref()) }.get_ref().card()
}

/// All that is on the card will be lost: jobs are saved before.
///
/// # Safety
///
/// Called by the PCI core for a bound device.
unsafe extern "C" fn reset_prepare(pdev: *mut bindings::pci_dev) {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::ResetPrepare);
    card.save();
}

/// Jobs go on.
///
/// # Safety
///
/// Called by the PCI core for a bound device, after [`reset_prepare`].
unsafe extern "C" fn reset_done(pdev: *mut bindings::pci_dev) {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::ResetDone);
    card.restore();
}

/// An error on the way to the card. As long as it can be reached, jobs are saved and the card set up
/// anew; if not, its link is reset, and jobs that were on it fail; if that is no use it is gone.
///
/// # Safety
///
/// Called by the PCI core for a bound device.
unsafe extern "C" fn error_detected(
    pdev: *mut bindings::pci_dev,
    state: bindings::pci_channel_state_t,
) -> bindings::pci_ers_result_t {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::Error);
    match state {
        bindings::pci_channel_io_normal => {
            card.save();
            bindings::pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER
        }
        bindings::pci_channel_io_frozen => {
            card.save_none();
            bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET
        }
        _ => {
            card.lose();
            bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT
        }
    }
}

/// The link was reset, and the card with it.
///
/// # Safety
///
/// Called by the PCI core for a bound device, after [`error_detected`].
unsafe extern "C" fn slot_reset(pdev: *mut bindings::pci_dev) -> bindings::pci_ers_result_t {
    // SAFETY: `pdev` is bound, and its state was saved when it was enabled.
    unsafe { bindings::pci_restore_state(pdev) };
    // SAFETY: By the safety requirement.
    unsafe { card_of(pdev) }.note(CardEvent::LinkReset);
    bindings::pci_ers_result_PCI_ERS_RESULT_RECOVERED
}

/// The error is over: jobs go on.
///
/// # Safety
///
/// Called by the PCI core for a bound device, after [`error_detected`].
unsafe extern "C" fn recovered(pdev: *mut bindings::pci_dev) {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::Recovered);
    card.restore();
}

/// The card of a device that the PM core calls us for.
///
/// # Safety
///
/// Called by the PM core for a bound device, for as long as `'a`.
unsafe fn card_of_device<'a>(dev: *mut bindings::device) -> &'a Card {
    // SAFETY: By the safety requirement; `Device` is transparent over `struct device`.
    let device: &Device<CoreInternal<'_>> = unsafe { &*dev.cast() };
    // SAFETY: As above.
    unsafe { bound(device) }.get_ref().card()
}

/// Jobs are saved; a job that cannot be saved fails, as at any PAUSE.
///
/// # Safety
///
/// Called by the PM core for a bound device.
unsafe extern "C" fn suspend(dev: *mut bindings::device) -> c_int {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of_device(dev) };
    card.note(CardEvent::Suspend);
    card.save();
    0
}

/// Jobs go on.
///
/// # Safety
///
/// Called by the PM core for a bound device, after [`suspend`].
unsafe extern "C" fn resume(dev: *mut bindings::device) -> c_int {
    // SAFETY: By the safety requirement.
    let card = unsafe { card_of_device(dev) };
    card.note(CardEvent::Resume);
    card.restore();
    0
}
