// SPDX-License-Identifier: GPL-2.0-or-later
//! The C interface of a foreign card, as card/include/fermata-card.h documents it.

use std::ffi::{c_char, c_int, c_void, CStr};

/// `FERMATA_CARD_VERSION`
pub const VERSION: u32 = 1;
/// `FERMATA_CARD_DMA_MAX`
pub const DMA_MAX: usize = 0x10_0000;
/// `FERMATA_CARD_OK`, `FERMATA_CARD_ANSWERED`
pub const OK: c_int = 0;
/// `FERMATA_CARD_UNANSWERED`
pub const UNANSWERED: c_int = 1;
/// `FERMATA_CARD_EINVAL`
pub const EINVAL: c_int = -1;
/// `FERMATA_CARD_ENODEV`
pub const ENODEV: c_int = -2;

/// `struct fermata_card_host`
#[repr(C)]
#[allow(missing_docs)] // as in the header
pub struct HostCalls {
    pub version: u32,
    pub size: u32,
    pub host: *mut c_void,
    pub dma_read: unsafe extern "C" fn(*mut c_void, u32, u64, *mut c_void, usize) -> c_int,
    pub dma_write: unsafe extern "C" fn(*mut c_void, u32, u64, *const c_void, usize) -> c_int,
    pub interrupt: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
}

type Open = unsafe extern "C" fn(*const HostCalls, *const c_char, *mut *mut c_void) -> c_int;
type Plain = unsafe extern "C" fn(*mut c_void);
type BarRead = unsafe extern "C" fn(*mut c_void, u64, u32, *mut u64) -> c_int;
type BarWrite = unsafe extern "C" fn(*mut c_void, u64, u32, u64);
type Tick = unsafe extern "C" fn(*mut c_void, u64) -> c_int;

/// `struct fermata_card`
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // as in the header
pub struct CardCalls {
    pub version: u32,
    pub size: u32,
    pub open: Option<Open>,
    pub close: Option<Plain>,
    pub reset: Option<Plain>,
    pub bar_read: Option<BarRead>,
    pub bar_write: Option<BarWrite>,
    pub tick: Option<Tick>,
}

/// The functions of a library that were found to be there.
#[derive(Clone, Copy)]
pub struct Functions {
    open: Open,
    close: Option<Plain>,
    reset: Plain,
    bar_read: BarRead,
    bar_write: BarWrite,
    tick: Tick,
}

impl Functions {
    /// Takes the functions of a library.
    ///
    /// # Safety
    ///
    /// `calls` is null, or points to what the header demands of the version that it begins with.
    ///
    /// # Errors
    ///
    /// A text: the library is of another version, or incomplete.
    pub unsafe fn of(calls: *const CardCalls) -> Result<Self, String> {
        if calls.is_null() {
            return Err("fermata_card() returns NULL: there is no card".into());
        }
        // SAFETY: the caller vouches for the pointer. Both words are in every version.
        let (version, size) = unsafe { ((*calls).version, (*calls).size) };
        if version != VERSION {
            return Err(format!(
                "the library has version {version} of the interface, and this program version \
                 {VERSION}: compile the library with this program's fermata-card.h"
            ));
        }
        let wanted = size_of::<CardCalls>();
        if size as usize != wanted {
            return Err(format!(
                "the library's struct fermata_card has {size} bytes instead of {wanted}"
            ));
        }
        // SAFETY: the structure has the size of this version.
        let calls = unsafe { *calls };
        let missing = |name| move || format!("the library has no {name}()");
        Ok(Self {
            open: calls.open.ok_or_else(missing("open"))?,
            close: calls.close,
            reset: calls.reset.ok_or_else(missing("reset"))?,
            bar_read: calls.bar_read.ok_or_else(missing("bar_read"))?,
            bar_write: calls.bar_write.ok_or_else(missing("bar_write"))?,
            tick: calls.tick.ok_or_else(missing("tick"))?,
        })
    }

    /// Makes the card.
    ///
    /// # Errors
    ///
    /// A text: the library refused.
    pub fn open(self, host: &HostCalls, argument: &CStr) -> Result<OpenCard, String> {
        let mut card = std::ptr::null_mut();
        // SAFETY: the pointers are valid, `host` until the card is closed.
        let status = unsafe { (self.open)(host, argument.as_ptr(), &raw mut card) };
        if status != 0 {
            return Err(format!("the library's open() returned {status}"));
        }
        Ok(OpenCard {
            functions: self,
            card,
        })
    }
}

/// A card that a library has made. It stays on the thread that opened it.
pub struct OpenCard {
    functions: Functions,
    card: *mut c_void,
}

impl OpenCard {
    /// Resets the card.
    pub fn reset(&self) {
        // SAFETY: as `Functions::of` demands; the card is open.
        unsafe { (self.functions.reset)(self.card) }
    }

    /// Reads BAR 0. Returns what the library answered, and the value.
    pub fn bar_read(&self, offset: u64, length: u32) -> (c_int, u64) {
        let mut value = 0;
        // SAFETY: as above; `value` is valid.
        let answer =
            unsafe { (self.functions.bar_read)(self.card, offset, length, &raw mut value) };
        (answer, value)
    }

    /// Writes BAR 0.
    pub fn bar_write(&self, offset: u64, length: u32, value: u64) {
        // SAFETY: as above.
        unsafe { (self.functions.bar_write)(self.card, offset, length, value) }
    }

    /// Lets cycles pass. Returns whether more may happen by itself.
    pub fn tick(&self, cycles: u64) -> bool {
        // SAFETY: as above.
        unsafe { (self.functions.tick)(self.card, cycles) != 0 }
    }
}

impl Drop for OpenCard {
    fn drop(&mut self) {
        if let Some(close) = self.functions.close {
            // SAFETY: as above; this is the last call.
            unsafe { close(self.card) }
        }
    }
}
