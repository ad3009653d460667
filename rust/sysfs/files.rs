// SPDX-License-Identifier: GPL-2.0

//! The tables of attributes and groups, and their callbacks.

use super::{
    lines,
    monitor::{Histograms, Monitor},
    values::{CardValue, SlotValue, OF_CARD, OF_SLOT},
};
use crate::{c_object::StaticTable, card::Card, regs::MAX_SLOTS, scheduler::SlotId};
use core::{ptr, slice, str};
use kernel::{bindings, error::from_result, prelude::*};

/// The value that a file shows.
#[derive(Clone, Copy)]
enum Of {
    Card(&'static CardValue),
    Slot(u8, &'static SlotValue),
}

/// Returns a pointer to the C string; `as_char_ptr()` cannot be called in constants.
pub(super) const fn char_ptr(text: &CStr) -> *const c_char {
    text.to_bytes_with_nul().as_ptr()
}

/// A file. The attribute is the first member, because the callbacks use its address as that of the
/// file.
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
        // The member is in a union or, on a kernel with kCFI, in a structure.
        attribute.__bindgen_anon_1.show = Some(show);
        if writable {
            attribute.__bindgen_anon_2.store = Some(store);
        }
        Self { attribute, of }
    }

    /// Reads the value.
    fn read(&self, card: &Card) -> Result<super::values::Value> {
        match self.of {
            Of::Card(value) => Ok((value.read)(card)),
            Of::Slot(slot, value) => Ok(value.read(card, SlotId::new(slot).ok_or(EINVAL)?)),
        }
    }
}

const CARD_FILES: usize = OF_CARD.len();
const SLOT_FILES: usize = OF_SLOT.len();

static CARD_VALUES: [CardValue; CARD_FILES] = OF_CARD;
static SLOT_VALUES: [SlotValue; SLOT_FILES] = OF_SLOT;

static OF_THE_CARD: StaticTable<[File; CARD_FILES]> = StaticTable(card_files());
static OF_THE_SLOTS: StaticTable<[[File; SLOT_FILES]; MAX_SLOTS]> = StaticTable(slot_files());

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

/// Pointers to the attributes of files, terminated by null.
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

static CARD_POINTERS: StaticTable<Pointers<{ CARD_FILES + 1 }>> =
    StaticTable(pointers(&OF_THE_CARD.0));
static SLOT_POINTERS: StaticTable<[Pointers<{ SLOT_FILES + 1 }>; MAX_SLOTS]> = StaticTable([
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

static MONITOR: StaticTable<bindings::bin_attribute> = StaticTable(lines::attribute::<Monitor>());
static HISTOGRAMS: StaticTable<bindings::bin_attribute> =
    StaticTable(lines::attribute::<Histograms>());
static LINES_POINTERS: StaticTable<[*const bindings::bin_attribute; 3]> =
    StaticTable([&raw const MONITOR.0, &raw const HISTOGRAMS.0, ptr::null()]);

static CARD_GROUP: StaticTable<bindings::attribute_group> = StaticTable({
    let mut group = group(ptr::null(), CARD_POINTERS.0.as_ptr());
    group.bin_attrs = LINES_POINTERS.0.as_ptr();
    group
});
static SLOT_GROUPS: StaticTable<[bindings::attribute_group; MAX_SLOTS]> = StaticTable({
    let mut groups = [group(ptr::null(), ptr::null()); MAX_SLOTS];
    let mut slot = 0;
    while slot < MAX_SLOTS {
        groups[slot] = group(char_ptr(FOLDERS[slot]), SLOT_POINTERS.0[slot].as_ptr());
        slot += 1;
    }
    groups
});

/// The groups of a card, terminated by null.
type Groups = [*const bindings::attribute_group; MAX_SLOTS + 2];

/// The groups of a card, by its number of slots.
static GROUPS: StaticTable<[Groups; MAX_SLOTS + 1]> = StaticTable({
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

/// Returns the groups with which the device of `card` is to be registered. The driver data of the
/// device must be the [`Card`], which must outlive the device.
pub(crate) fn groups(card: &Card) -> *mut *const bindings::attribute_group {
    GROUPS.0[usize::from(card.identity.slots).min(MAX_SLOTS)]
        .as_ptr()
        .cast_mut()
}

/// Writes the value of a file to `page`.
///
/// # Safety
///
/// Called by the driver core for a file of [`groups`], whose device has a [`Card`] as driver data;
/// `page` has a page.
unsafe extern "C" fn show(
    device: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: By the safety requirement the driver data is a card, which outlives its device, and
    // `attribute` is the first member of a file, which is static.
    let (card, file): (&Card, &File) =
        unsafe { (&*(*device).driver_data.cast(), &*attribute.cast()) };
    let value = match file.read(card) {
        Ok(value) => value,
        Err(error) => return error.to_errno() as isize,
    };
    // SAFETY: `page` has a page by the safety requirement; %pA takes a pointer to what
    // `format_args!` gives.
    let length = unsafe {
        bindings::sysfs_emit(
            page,
            c"%pA".as_char_ptr(),
            ptr::from_ref(&fmt!("{value}\n")).cast::<c_void>(),
        )
    };
    // CAST: at most a page.
    length as isize
}

/// Changes the value of a file.
///
/// # Safety
///
/// Called by the driver core for a file of [`groups`], whose device has a [`Card`] as driver data;
/// `text` has `length` bytes.
unsafe extern "C" fn store(
    device: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    text: *const c_char,
    length: usize,
) -> isize {
    // SAFETY: By the safety requirement the driver data is a card, which outlives its device, and
    // `attribute` is the first member of a file, which is static. The text has `length` bytes, and
    // nobody changes it meanwhile.
    let (card, file, bytes): (&Card, &File, _) = unsafe {
        (
            &*(*device).driver_data.cast(),
            &*attribute.cast(),
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
