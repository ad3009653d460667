// SPDX-License-Identifier: GPL-2.0

//! What differs between the kernels that this module is built for, and nothing else.
//!
//! `fermata_kernel_7_3` is set by `Kbuild` for 7.3 and later.

use crate::regs::BAR_SIZE;
use kernel::{bindings, pci, prelude::*};

/// BAR 0, mapped, revoked when the device is unbound.
#[cfg(not(fermata_kernel_7_3))]
pub(crate) type DevresBar = kernel::devres::Devres<pci::Bar<'static, BAR_SIZE>>;
/// BAR 0, mapped, revoked when the device is unbound.
#[cfg(fermata_kernel_7_3)]
pub(crate) type DevresBar = pci::DevresBar<BAR_SIZE>;

/// Declares the table of PCI ids, without further data: 7.3 has another form of it.
#[cfg(not(fermata_kernel_7_3))]
macro_rules! pci_device_table {
    ($name:ident, $module_name:ident, [$($id:expr),* $(,)?]) => {
        kernel::pci_device_table!($name, $module_name, (), [$(($id, ())),*]);
    };
}
/// Declares the table of PCI ids, without further data: 7.3 has another form of it.
#[cfg(fermata_kernel_7_3)]
macro_rules! pci_device_table {
    ($name:ident, $module_name:ident, [$($id:expr),* $(,)?]) => {
        kernel::pci_device_table!($name, (), [$(($id, ())),*]);
    };
}
pub(crate) use pci_device_table;

/// Constants of C enums: 7.3 has them as associated ones.
#[cfg(not(fermata_kernel_7_3))]
pub(crate) mod c_enum {
    use super::bindings;

    pub(crate) const DMA_BIDIRECTIONAL: bindings::dma_data_direction =
        bindings::dma_data_direction_DMA_BIDIRECTIONAL;
}
/// Constants of C enums: 7.3 has them as associated ones.
#[cfg(fermata_kernel_7_3)]
pub(crate) mod c_enum {
    use super::bindings;

    pub(crate) const DMA_BIDIRECTIONAL: bindings::dma_data_direction =
        bindings::dma_data_direction::DMA_BIDIRECTIONAL;
}

/// The value of a module parameter of integer type: 7.2 gives a reference.
#[cfg(not(fermata_kernel_7_3))]
macro_rules! parameter {
    ($name:ident) => {
        *$crate::module_parameters::$name.value()
    };
}
/// The value of a module parameter of integer type: 7.2 gives a reference.
#[cfg(fermata_kernel_7_3)]
macro_rules! parameter {
    ($name:ident) => {
        $crate::module_parameters::$name.value()
    };
}
pub(crate) use parameter;

/// Error codes that 7.2's `kernel` crate lacks.
pub(crate) mod errno {
    use super::*;

    /// An error of a number that is known to be one.
    macro_rules! errno {
        ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {
            $(
                $(#[$doc])*
                pub(crate) fn $name() -> Error {
                    // CAST: error numbers are small.
                    Error::from_errno(-(bindings::$raw as c_int))
                }
            )*
        };
    }

    errno! {
        /// Protocol error: the card broke its own.
        eproto = EPROTO;
        /// No data: a context has no saved state.
        enodata = ENODATA;
        /// Destination address required: an arena has no device address.
        edestaddrreq = EDESTADDRREQ;
        /// No such device or address: a step of the set-up is missing.
        enxio = ENXIO;
        /// Quota exceeded: a user has as many contexts as it may.
        edquot = EDQUOT;
        /// Operation not supported: the card cannot reach this memory.
        eopnotsupp = EOPNOTSUPP;
        /// Connection timed out: a deadline came.
        etimedout = ETIMEDOUT;
    }
}

#[expect(improper_ctypes, reason = "only its address is used")]
extern "C" {
    /// `THIS_MODULE`.
    static __this_module: kernel::types::Opaque<bindings::module>;
}

/// This module, as the owner of file operations. The `kernel` crate's `ThisModule` does not give it
/// in a constant.
pub(crate) const fn this_module() -> *mut bindings::module {
    (&raw const __this_module).cast_mut().cast()
}
