// SPDX-License-Identifier: GPL-2.0

//! The tables that sysfs wants of the files.

use super::values::{CardValue, SlotValue, OF_CARD, OF_SLOT};
use crate::{card::Card, regs::MAX_SLOTS, sched::SlotId};
use core::{ptr, slice, str};
use kernel::{bindings, error::from_result, fmt, prelude::*};

/// Whose value a file is.
#[derive(Clone, Copy)]
enum Of {
    Card(&'static CardValue),
    Slot(u8, &'static SlotValue),
}

/// As `as_char_ptr()`, in constants.
pub(super) const fn char_ptr(text: &CStr) -> *const c_char {
    text.to_bytes_with_nul().as_ptr()
}

/// A file. The attribute is its first member, so that a pointer to that is one to it.
#[derive(Clone, Copy)]
#[repr(C)]
struct File {
    attribute: bindings::device_attribute,
    of: Of,
}

impl File {
    const fn new(of: Of) -> Self {
        let (name, mode, writable) = match of {
            Of::Card(value) if value.write.is_some() => (value.name, 0o644, true),
            Of::Card(value) => (value.name, 0o444, false),
            Of::Slot(_, value) => (value.name, value.mode, false),
        };
        let mut attribute: bindings::device_attribute = pin_init::zeroed();
        attribute.attr.name = char_ptr(name);
        attribute.attr.mode = mode;
        // Members of unions, or of structures where the kernel has kCFI.
        attribute.__bindgen_anon_1.show = Some(show);
        if writable {
            attribute.__bindgen_anon_2.store = Some(store);
        }
        Self { attribute, of }
    }

    /// The value now.
    fn read(&self, card: &Card) -> Result<super::values::Value> {
        match self.of {
            Of::Card(value) => Ok((value.read)(card)),
            Of::Slot(slot, value) => Ok(value.read(card, SlotId::new(slot).ok_or(EINVAL)?)),
        }
    }
}

/// What is handed to C functions that do not write it.
struct Table<T>(T);

// SAFETY: Never written; all that is reached from it is static.
unsafe impl<T> Sync for Table<T> {}

const CARD_FILES: usize = OF_CARD.len();
const SLOT_FILES: usize = OF_SLOT.len();

static CARD_VALUES: [CardValue; CARD_FILES] = OF_CARD;
static SLOT_VALUES: [SlotValue; SLOT_FILES] = OF_SLOT;

static OF_THE_CARD: Table<[File; CARD_FILES]> = Table(card_files());
static OF_THE_SLOTS: Table<[[File; SLOT_FILES]; MAX_SLOTS]> = Table(slot_files());

const fn card_files() -> [File; CARD_FILES] {
    let mut files = [File::new(Of::Card(&CARD_VALUES[0])); CARD_FILES];
    let mut i = 1;
    while i < CARD_FILES {
        files[i] = File::new(Of::Card(&CARD_VALUES[i]));
        i += 1;
    }
    files
}

const fn slot_files() -> [[File; SLOT_FILES]; MAX_SLOTS] {
    let mut files = [[File::new(Of::Slot(0, &SLOT_VALUES[0])); SLOT_FILES]; MAX_SLOTS];
    let mut slot = 0;
    while slot < MAX_SLOTS {
        let mut i = 0;
        while i < SLOT_FILES {
            // CAST: below 8.
            files[slot][i] = File::new(Of::Slot(slot as u8, &SLOT_VALUES[i]));
            i += 1;
        }
        slot += 1;
    }
    files
}

/// Pointers to the attributes of files, ended by null.
type Pointers<const N: usize> = [*mut bindings::attribute; N];

const fn pointers<const FILES: usize, const ENDED: usize>(
    files: &'static [File; FILES],
) -> Pointers<ENDED> {
    let mut pointers = [ptr::null_mut(); ENDED];
    let mut i = 0;
    while i < FILES {
        pointers[i] = (&raw const files[i].attribute.attr).cast_mut();
        i += 1;
    }
    pointers
}

static CARD_POINTERS: Table<Pointers<{ CARD_FILES + 1 }>> = Table(pointers(&OF_THE_CARD.0));
static SLOT_POINTERS: Table<[Pointers<{ SLOT_FILES + 1 }>; MAX_SLOTS]> = Table([
    pointers(&OF_THE_SLOTS.0[0]),
    pointers(&OF_THE_SLOTS.0[1]),
    pointers(&OF_THE_SLOTS.0[2]),
    pointers(&OF_THE_SLOTS.0[3]),
    pointers(&OF_THE_SLOTS.0[4]),
    pointers(&OF_THE_SLOTS.0[5]),
    pointers(&OF_THE_SLOTS.0[6]),
    pointers(&OF_THE_SLOTS.0[7]),
]);

const fn group(
    name: *const c_char,
    pointers: *const *mut bindings::attribute,
) -> bindings::attribute_group {
    let mut group: bindings::attribute_group = pin_init::zeroed();
    group.name = name;
    group.__bindgen_anon_2 = bindings::attribute_group__bindgen_ty_2 {
        attrs: pointers.cast_mut(),
    };
    group
}

const FOLDERS: [&CStr; MAX_SLOTS] = [
    c"slot0", c"slot1", c"slot2", c"slot3", c"slot4", c"slot5", c"slot6", c"slot7",
];

static MONITOR: Table<bindings::bin_attribute> = Table(super::monitor::ATTRIBUTE);
static MONITOR_POINTERS: Table<[*const bindings::bin_attribute; 2]> =
    Table([&raw const MONITOR.0, ptr::null()]);

static CARD_GROUP: Table<bindings::attribute_group> = Table({
    let mut group = group(ptr::null(), CARD_POINTERS.0.as_ptr());
    group.bin_attrs = MONITOR_POINTERS.0.as_ptr();
    group
});
static SLOT_GROUPS: Table<[bindings::attribute_group; MAX_SLOTS]> = Table({
    let mut groups = [group(ptr::null(), ptr::null()); MAX_SLOTS];
    let mut slot = 0;
    while slot < MAX_SLOTS {
        groups[slot] = group(char_ptr(FOLDERS[slot]), SLOT_POINTERS.0[slot].as_ptr());
        slot += 1;
    }
    groups
});

/// The groups of a card of so many slots, ended by null.
type Groups = [*const bindings::attribute_group; MAX_SLOTS + 2];

static GROUPS: Table<[Groups; MAX_SLOTS + 1]> = Table({
    let mut all = [[ptr::null(); MAX_SLOTS + 2]; MAX_SLOTS + 1];
    let mut slots = 0;
    while slots <= MAX_SLOTS {
        all[slots][0] = &raw const CARD_GROUP.0;
        let mut slot = 0;
        while slot < slots {
            all[slots][slot + 1] = &raw const SLOT_GROUPS.0[slot];
            slot += 1;
        }
        slots += 1;
    }
    all
});

/// What a device of `card` is to be registered with. Its driver data must be the [`Card`], for as long
/// as it is registered.
pub(crate) fn groups(card: &Card) -> *mut *const bindings::attribute_group {
    GROUPS.0[usize::from(card.identity.slots).min(MAX_SLOTS)]
        .as_ptr()
        .cast_mut()
}

/// # Safety
///
/// Called by the driver core with a device whose driver data is a [`Card`] that outlives the call, and
/// the attribute of a [`File`].
unsafe fn parts<'a>(
    device: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
) -> (&'a Card, &'a File) {
    // SAFETY: By the safety requirement; the attribute is the file's first member.
    unsafe { (&*(*device).driver_data.cast(), &*attribute.cast()) }
}

/// # Safety
///
/// As [`parts`]; `page` has a page.
unsafe extern "C" fn show(
    device: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: By the safety requirement.
    let (card, file) = unsafe { parts(device, attribute) };
    let value = match file.read(card) {
        Ok(value) => value,
        Err(error) => return error.to_errno() as isize,
    };
    // SAFETY: By the safety requirement.
    unsafe { emit(page, fmt!("{value}\n")) }
}

/// Writes `text` into a page of sysfs: its length.
///
/// # Safety
///
/// `page` must be what sysfs gave.
unsafe fn emit(page: *mut c_char, text: fmt::Arguments<'_>) -> isize {
    let text = ptr::from_ref(&text).cast::<c_void>();
    // SAFETY: By the safety requirement; %pA takes a pointer to what `fmt!` gives.
    let length = unsafe { bindings::sysfs_emit(page, c"%pA".as_char_ptr(), text) };
    // CAST: at most a page.
    length as isize
}

/// # Safety
///
/// As [`parts`]; `text` has `length` bytes.
unsafe extern "C" fn store(
    device: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    text: *const c_char,
    length: usize,
) -> isize {
    // SAFETY: By the safety requirement.
    let ((card, file), bytes) = unsafe {
        (
            parts(device, attribute),
            slice::from_raw_parts(text.cast::<u8>(), length),
        )
    };
    let written = from_result(|| {
        let Of::Card(CardValue {
            write: Some(write), ..
        }) = file.of
        else {
            return Err(EINVAL);
        };
        let _bound = card.enter()?;
        write(card, str::from_utf8(bytes).map_err(|_| EINVAL)?.trim())?;
        Ok(0i32)
    });
    match written {
        // CAST: at most a page.
        0 => length as isize,
        error => error as isize,
    }
}
