// SPDX-License-Identifier: GPL-2.0

//! Callbacks of the PCI and PM cores that the `kernel` crate's PCI adapter does not have: shutdown,
//! resets, link errors, and sleep. The crate's adapter handles probe and removal.

use crate::{
    card::Card,
    driver::{BoundCard, Driver},
    trace::CardEvent,
};
use core::mem::offset_of;
use kernel::{
    bindings,
    device::{CoreInternal, Device},
    driver::{DriverLayout, RegistrationOps},
    pci,
    prelude::*,
    str::CStr,
    types::Opaque,
    ThisModule,
};

/// The crate's adapter, whose `struct pci_driver` has more callbacks.
pub(crate) struct Adapter;

type CrateAdapter = pci::Adapter<Driver>;

// SAFETY: The structure, the offset and the data are those of the crate's adapter.
unsafe impl DriverLayout for Adapter {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = BoundCard<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = CrateAdapter::DEVICE_DRIVER_OFFSET;
}

// SAFETY: `unregister` undoes what `register` has done, if that was successful.
unsafe impl RegistrationOps for Adapter {
    unsafe fn register(
        driver: &Opaque<bindings::pci_driver>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: `driver` is valid, and nobody else uses it until it is registered.
        let raw = unsafe { &mut *driver.get() };
        raw.shutdown = Some(event::<_, Shutdown>);
        raw.err_handler = &ERROR_HANDLERS;
        raw.driver.pm = &POWER;
        // SAFETY: `driver` is pinned until `unregister`, by the caller's promise. The crate's
        // adapter sets other members, and keeps these.
        unsafe { CrateAdapter::register(driver, name, module) }
    }

    unsafe fn unregister(driver: &Opaque<bindings::pci_driver>) {
        // SAFETY: The caller promises that `register` was successful.
        unsafe { CrateAdapter::unregister(driver) }
    }
}

/// Handlers of resets of the function or its bus, which the administrator (sysfs `reset`) or a
/// bridge causes, and of link errors (AER). All are called with the device locked, so it stays
/// bound.
static ERROR_HANDLERS: bindings::pci_error_handlers = bindings::pci_error_handlers {
    error_detected: Some(error_detected),
    slot_reset: Some(slot_reset),
    resume: Some(event::<_, Recovered>),
    reset_prepare: Some(event::<_, ResetPrepare>),
    reset_done: Some(event::<_, ResetDone>),
    ..pin_init::zeroed()
};

/// Callbacks for suspend and hibernation. This driver keeps the card at rest while the memory image
/// is created, while the machine is off, and while another kernel, which restores the image, owns
/// the card.
static POWER: bindings::dev_pm_ops = bindings::dev_pm_ops {
    suspend: Some(event::<_, Suspend>),
    resume: Some(event::<_, Resume>),
    freeze: Some(event::<_, Suspend>),
    thaw: Some(event::<_, Resume>),
    poweroff: Some(event::<_, Suspend>),
    restore: Some(event::<_, Resume>),
    ..pin_init::zeroed()
};

/// An event of the PCI or PM core that concerns a bound card.
trait Event {
    /// The value that the core expects.
    type Answer;

    /// Handles the event. Process context, with the device locked.
    fn handle(card: &Card) -> Self::Answer;
}

/// The machine shuts down, or another kernel takes over (kexec).
struct Shutdown;

impl Event for Shutdown {
    type Answer = ();

    /// Fails all jobs: the card is at rest before its bus mastering ends.
    fn handle(card: &Card) {
        card.note(CardEvent::Shutdown);
        card.disconnect();
    }
}

/// The card is about to lose its state in a reset.
struct ResetPrepare;

impl Event for ResetPrepare {
    type Answer = ();

    /// Saves the jobs.
    fn handle(card: &Card) {
        card.note(CardEvent::ResetPrepare);
        card.save();
    }
}

/// The card has lost its state in a reset, after [`ResetPrepare`].
struct ResetDone;

impl Event for ResetDone {
    type Answer = ();

    /// Lets jobs run again.
    fn handle(card: &Card) {
        card.note(CardEvent::ResetDone);
        card.restore();
    }
}

/// The error that [`error_detected`] was called for is over.
struct Recovered;

impl Event for Recovered {
    type Answer = ();

    /// Lets jobs run again.
    fn handle(card: &Card) {
        card.note(CardEvent::Recovered);
        card.restore();
    }
}

/// The machine goes to sleep.
struct Suspend;

impl Event for Suspend {
    type Answer = c_int;

    /// Saves the jobs. A job that cannot be saved fails, as at any PAUSE.
    fn handle(card: &Card) -> c_int {
        card.note(CardEvent::Suspend);
        card.save();
        0
    }
}

/// The machine wakes up, after [`Suspend`].
struct Resume;

impl Event for Resume {
    type Answer = c_int;

    /// Lets jobs run again.
    fn handle(card: &Card) -> c_int {
        card.note(CardEvent::Resume);
        card.restore();
        0
    }
}

/// A structure that contains the `struct device` of a function.
trait Function {
    /// Offset of the `struct device`, in bytes.
    const DEVICE: usize;
}

impl Function for bindings::device {
    const DEVICE: usize = 0;
}

impl Function for bindings::pci_dev {
    const DEVICE: usize = offset_of!(bindings::pci_dev, dev);
}

/// Returns the card that is bound to `function`.
///
/// # Safety
///
/// `function` must be valid, and bound to this driver for as long as `'a`.
unsafe fn card_of<'a, F: Function>(function: *mut F) -> &'a Card {
    // SAFETY: `function` is valid by the safety requirement. The crate's adapter has stored a
    // `BoundCard`, the type that `Adapter` tells it, and drops it after the device is unbound.
    let bound = unsafe {
        Device::<CoreInternal<'a>>::from_raw(function.byte_add(F::DEVICE).cast())
            .drvdata_borrow::<BoundCard<'a>>()
    };
    bound.get_ref().card()
}

/// Handles the event `E` of the card that is bound to `function`.
///
/// # Safety
///
/// Called by the PCI or the PM core for a bound device.
unsafe extern "C" fn event<F: Function, E: Event>(function: *mut F) -> E::Answer {
    // SAFETY: By the safety requirement `function` is valid, and bound during the call.
    E::handle(unsafe { card_of(function) })
}

/// Handles a link error. While the card can be reached, jobs are saved and the card is set up
/// again. If it cannot be reached, its link is reset, and jobs that were on the card fail. If the
/// link cannot be reset either, the card is gone.
///
/// # Safety
///
/// Called by the PCI core for a bound device.
unsafe extern "C" fn error_detected(
    pdev: *mut bindings::pci_dev,
    state: bindings::pci_channel_state_t,
) -> bindings::pci_ers_result_t {
    // SAFETY: By the safety requirement `pdev` is valid, and bound during the call.
    let card = unsafe { card_of(pdev) };
    card.note(CardEvent::Error);
    card.dump_link_error();
    match state {
        bindings::pci_channel_io_normal => {
            card.save();
            bindings::pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER
        }
        bindings::pci_channel_io_frozen => {
            card.abort_all();
            bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET
        }
        _ => {
            card.disconnect();
            bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT
        }
    }
}

/// Handles a reset of the link, which has reset the card, too.
///
/// # Safety
///
/// Called by the PCI core for a bound device, after [`error_detected`].
unsafe extern "C" fn slot_reset(pdev: *mut bindings::pci_dev) -> bindings::pci_ers_result_t {
    // SAFETY: By the safety requirement `pdev` is valid, and bound during the call, so `probe` has
    // saved its state.
    let card = unsafe {
        bindings::pci_restore_state(pdev);
        card_of(pdev)
    };
    card.note(CardEvent::LinkReset);
    bindings::pci_ers_result_PCI_ERS_RESULT_RECOVERED
}
