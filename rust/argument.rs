// SPDX-License-Identifier: GPL-2.0

//! Copying the structure of an ioctl in and out, whatever its size was when the program was built
//! (see the rules in `uapi/fermata.h`).

use crate::uapi::Argument;
use core::mem::size_of;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    uaccess::{UserPtr, UserSlice},
};

/// Smallest structure: the size and one more member.
const SIZE_MIN: usize = 8;

/// An ioctl's argument: the driver's copy, and the address in the program.
pub(crate) struct User<T: Argument> {
    /// The structure; members beyond the program's size are zero.
    pub(crate) value: T,
    from: UserPtr,
    /// Bytes that both the program and the driver have.
    common: usize,
}

impl<T: Argument> User<T> {
    /// Copies the structure in. `EFAULT`; `EINVAL`: its size is below 8; `E2BIG`: it is larger than
    /// a page, or is larger than the driver's structure and its tail is not zero.
    pub(crate) fn read(from: UserPtr) -> Result<Self> {
        let size = UserSlice::new(from, size_of::<u32>())
            .reader()
            .read::<u32>()? as usize;
        if size < SIZE_MIN {
            return Err(EINVAL);
        }
        if size > PAGE_SIZE {
            return Err(E2BIG);
        }
        let mut reader = UserSlice::new(from, size).reader();
        let common = size.min(size_of::<T>());
        let mut value = T::default();
        reader.read_slice(&mut value.as_bytes_mut()[..common])?;
        while !reader.is_empty() {
            if reader.read::<u8>()? != 0 {
                return Err(E2BIG);
            }
        }
        Ok(Self {
            value,
            from,
            common,
        })
    }

    /// Checks that the program's structure is at least as large as the driver's, for an answer that
    /// must not get lost. `EINVAL`.
    pub(crate) fn check_complete(&self) -> Result {
        match self.common == size_of::<T>() {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Checks that the answer can be written, by writing back the bytes that were read. Called
    /// before a change that cannot be undone.
    pub(crate) fn check_writable(&self) -> Result {
        self.write()
    }

    /// Copies the structure out, in the program's size. `EFAULT`.
    pub(crate) fn write(&self) -> Result {
        let bytes = &self.value.as_bytes()[size_of::<u32>()..self.common];
        UserSlice::new(self.from.wrapping_byte_add(size_of::<u32>()), bytes.len())
            .writer()
            .write_slice(bytes)
    }
}

/// Checks that all `flags` are `known`. `EINVAL`.
pub(crate) fn check_flags(flags: u32, known: u32) -> Result {
    if flags & !known != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Checks that a reserved member is zero. `EINVAL`.
pub(crate) fn check_zero(reserved: u32) -> Result {
    check_flags(reserved, 0)
}
