// SPDX-License-Identifier: GPL-2.0

//! Files with lines of one length, for readers that may monitor all tenants (docs/security.md).
//!
//! All lines of a file have the same length, so that an offset in the file always belongs to the
//! same line, in whatever pieces the file is read.

use crate::card::Card;
use core::{fmt::Write, slice};
use kernel::{bindings, container_of, prelude::*};

/// A file of a card. Its lines are padded with blanks.
pub(super) trait Lines {
    /// The name of the file.
    const NAME: &'static CStr;
    /// Bytes of a line, its newline included.
    const LENGTH: usize;

    /// Writes line number `index`, and cuts off what does not fit. Returns whether the file has
    /// such a line. `ENOMEM`.
    fn write(card: &Card, index: usize, line: &mut Part<'_>) -> Result<bool>;
}

/// The part of a line that a reader wants, while the whole line is written.
pub(super) struct Part<'a> {
    bytes: &'a mut [u8],
    /// Bytes of the line before the part.
    before: usize,
    /// Bytes written until now.
    written: usize,
    /// Bytes of the line without its newline.
    room: usize,
}

impl Write for Part<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.written + text.len();
        if end > self.room {
            return Err(core::fmt::Error);
        }
        let wanted = text.bytes().skip(self.before.saturating_sub(self.written));
        let place = self
            .written
            .saturating_sub(self.before)
            .min(self.bytes.len());
        for (byte, text) in self.bytes[place..].iter_mut().zip(wanted) {
            *byte = text;
        }
        self.written = end;
        Ok(())
    }
}

/// Returns the attribute of a file.
pub(super) const fn attribute<F: Lines>() -> bindings::bin_attribute {
    let mut attribute: bindings::bin_attribute = pin_init::zeroed();
    attribute.attr.name = super::files::char_ptr(F::NAME);
    // A udev rule gives the file to the group fermata-monitor.
    attribute.attr.mode = 0o440;
    attribute.read = Some(read::<F>);
    attribute
}

/// Writes the bytes from `offset` on to `page`, and returns how many there are. `ENOMEM`.
fn fill<F: Lines>(card: &Card, offset: usize, page: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < page.len() {
        let (index, before) = ((offset + done) / F::LENGTH, (offset + done) % F::LENGTH);
        let length = (F::LENGTH - before).min(page.len() - done);
        let bytes = &mut page[done..done + length];
        bytes.fill(b' ');
        if before + length == F::LENGTH {
            bytes[length - 1] = b'\n';
        }
        let mut part = Part {
            bytes,
            before,
            written: 0,
            room: F::LENGTH - 1,
        };
        if !F::write(card, index, &mut part)? {
            break;
        }
        done += length;
    }
    Ok(done)
}

/// Reads a part of the file.
///
/// # Safety
///
/// Called by sysfs for a file of a device whose driver data is a [`Card`] that outlives the call;
/// `page` has `count` bytes.
unsafe extern "C" fn read<F: Lines>(
    _file: *mut bindings::file,
    kobject: *mut bindings::kobject,
    _attribute: *const bindings::bin_attribute,
    page: *mut c_char,
    offset: bindings::loff_t,
    count: usize,
) -> isize {
    // SAFETY: By the safety requirement `kobject` is that of the device, and nobody else uses the
    // page meanwhile.
    let (card, page) = unsafe {
        let device = container_of!(kobject, bindings::device, kobj);
        (
            &*(*device).driver_data.cast::<Card>(),
            slice::from_raw_parts_mut(page.cast::<u8>(), count),
        )
    };
    let Ok(offset) = usize::try_from(offset) else {
        return 0;
    };
    match fill::<F>(card, offset, page) {
        // CAST: at most a page.
        Ok(length) => length as isize,
        Err(error) => error.to_errno() as isize,
    }
}
