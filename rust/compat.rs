// SPDX-License-Identifier: GPL-2.0

//! Differences between the kernels that this module is built for.
//!
//! `fermata_kernel_7_3` is set by `Kbuild` for 7.3 and later.

use crate::regs::BAR_SIZE;
use kernel::{bindings, device::Bound, pci, prelude::*};

/// BAR 0, mapped, revoked when the device is unbound.
#[cfg(not(fermata_kernel_7_3))]
pub(crate) type DevresBar = kernel::devres::Devres<pci::Bar<'static, BAR_SIZE>>;
/// BAR 0, mapped, revoked when the device is unbound.
#[cfg(fermata_kernel_7_3)]
pub(crate) type DevresBar = pci::DevresBar<BAR_SIZE>;

/// Declares the table of PCI ids, without further data: the macro of 7.3 takes other arguments.
#[cfg(not(fermata_kernel_7_3))]
macro_rules! pci_device_table {
    ($name:ident, $module_name:ident, [$($id:expr),* $(,)?]) => {
        kernel::pci_device_table!($name, $module_name, (), [$(($id, ())),*]);
    };
}
/// Declares the table of PCI ids, without further data: the macro of 7.3 takes other arguments.
#[cfg(fermata_kernel_7_3)]
macro_rules! pci_device_table {
    ($name:ident, $module_name:ident, [$($id:expr),* $(,)?]) => {
        kernel::pci_device_table!($name, (), [$(($id, ())),*]);
    };
}
pub(crate) use pci_device_table;

/// The data of the matching id that `probe` gets: an option in 7.3.
#[cfg(not(fermata_kernel_7_3))]
pub(crate) type IdInfo<'a> = &'a ();
/// The data of the matching id that `probe` gets: an option in 7.3.
#[cfg(fermata_kernel_7_3)]
pub(crate) type IdInfo<'a> = Option<&'a ()>;

/// The MSI or MSI-X vectors of a device. In 7.2, devres frees them, and only the first and the last
/// vector are returned. In 7.3, an owner of all vectors is returned.
pub(crate) struct IrqVectors<'a> {
    #[cfg(not(fermata_kernel_7_3))]
    pdev: &'a pci::Device<Bound>,
    #[cfg(fermata_kernel_7_3)]
    vectors: pci::IrqVectorRegistration<'a>,
}

impl<'a> IrqVectors<'a> {
    /// Allocates as many vectors as there are, at most `most` (without interrupt remapping, MSI has
    /// one). The error is that of `pci_alloc_irq_vectors()`.
    pub(crate) fn new(pdev: &'a pci::Device<Bound>, most: u32) -> Result<Self> {
        let types = pci::IrqTypes::default()
            .with(pci::IrqType::MsiX)
            .with(pci::IrqType::Msi);
        let vectors = pdev.alloc_irq_vectors(1, most, types)?;
        #[cfg(not(fermata_kernel_7_3))]
        {
            let _ = vectors;
            Ok(Self { pdev })
        }
        #[cfg(fermata_kernel_7_3)]
        Ok(Self { vectors })
    }

    /// Returns the interrupt of vector `n`. `EINVAL`: there is no such vector.
    pub(crate) fn irq(&self, n: u32) -> Result<u32> {
        #[cfg(not(fermata_kernel_7_3))]
        {
            // SAFETY: The device is valid. A wrong number is an error.
            let irq = unsafe { bindings::pci_irq_vector(crate::shim::pci_as_raw(self.pdev), n) };
            u32::try_from(irq).map_err(|_| Error::from_errno(irq))
        }
        #[cfg(fermata_kernel_7_3)]
        Ok(kernel::irq::IrqRequest::from(self.vectors.index(n as usize)?).irq())
    }
}

/// Returns the value of a module parameter of integer type: 7.2 gives a reference.
#[cfg(not(fermata_kernel_7_3))]
macro_rules! parameter {
    ($name:ident) => {
        *$crate::module_parameters::$name.value()
    };
}
/// Returns the value of a module parameter of integer type: 7.2 gives a reference.
#[cfg(fermata_kernel_7_3)]
macro_rules! parameter {
    ($name:ident) => {
        $crate::module_parameters::$name.value()
    };
}
pub(crate) use parameter;

/// Returns the address of coherent memory for its device: 7.3 has another name for it.
pub(crate) fn coherent_address<T>(memory: &kernel::dma::Coherent<[T]>) -> u64 {
    #[cfg(not(fermata_kernel_7_3))]
    let address = memory.dma_handle();
    #[cfg(fermata_kernel_7_3)]
    let address = memory.dma_address();
    address
}

/// Error codes that 7.2's `kernel` crate lacks.
pub(crate) mod errno {
    use super::*;

    /// Defines a function for each error number.
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
        /// Protocol error: the card broke its protocol.
        eproto = EPROTO;
        /// No data: a context has no saved state.
        enodata = ENODATA;
        /// Destination address required: an arena has no device address.
        edestaddrreq = EDESTADDRREQ;
        /// No such device or address: a step of the set-up is missing.
        enxio = ENXIO;
        /// Quota exceeded: a group has as many contexts as it may.
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

/// Returns this module, as the owner of file operations. The `kernel` crate's `ThisModule` gives no
/// pointer that a static initialiser can use.
pub(crate) const fn this_module() -> *mut bindings::module {
    (&raw const __this_module).cast_mut().cast()
}
