// SPDX-License-Identifier: GPL-2.0

//! Holds: files that keep the jobs of a context off slots for as long as the files are open.
//!
//! The holder may be killed at any time. A closed file ends its hold, whoever closes it; nothing
//! else does.

use crate::{
    c_object::StaticTable, card::Card, compat::this_module, context::Context, scheduler::ContextId,
    shim::fermata_hold_file, trace,
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    fs::File,
    prelude::*,
    seq_file::{seq_print, SeqFile},
    sync::{
        aref::ARef,
        atomic::{AtomicFlag, Relaxed},
        Arc,
    },
    types::ForeignOwnable,
};

/// The file operations of all holds.
static OPERATIONS: StaticTable<bindings::file_operations> =
    StaticTable(bindings::file_operations {
        owner: this_module(),
        release: Some(release),
        show_fdinfo: Some(show_fdinfo),
        ..pin_init::zeroed()
    });

/// A hold of a context.
struct Hold {
    card: Arc<Card>,
    ctx: ContextId,
    /// The scheduler has counted the hold.
    begun: AtomicFlag,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.begun.load(Relaxed) {
            self.card.end_hold(self.ctx);
        }
    }
}

/// Holds the jobs of a context until the returned file is closed. Process context. `ENXIO`: the
/// context is not set up; `ENODEV`; `ENFILE`; `ENOMEM`. On an error nothing was changed.
pub(crate) fn new_file(context: &Context) -> Result<ARef<File>> {
    let hold = Hold {
        card: context.card.clone(),
        ctx: context.id()?,
        begun: AtomicFlag::new(false),
    };
    let file = file_of(KBox::new(hold, GFP_KERNEL_ACCOUNT)?)?;
    // SAFETY: The file was just made by `file_of`, and is held.
    let hold = unsafe { hold_of(file.as_ptr()) };
    hold.card.hold(hold.ctx)?;
    hold.begun.store(true, Relaxed);
    Ok(file)
}

/// Returns a new file that owns `hold`. `ENFILE`; `ENOMEM`.
fn file_of(hold: KBox<Hold>) -> Result<ARef<File>> {
    let hold = hold.into_foreign();
    // SAFETY: The table is static. On success the file owns `hold`.
    let file = from_err_ptr(unsafe { fermata_hold_file(&OPERATIONS.0, hold) });
    let file = file.and_then(|file| NonNull::new(file).ok_or(ENOMEM));
    let file = file.inspect_err(|_| {
        // SAFETY: `into_foreign` has returned the pointer, which nobody else has.
        drop(unsafe { KBox::<Hold>::from_foreign(hold) });
    })?;
    // SAFETY: The reference to the file is moved into the value, `File` is transparent over
    // `struct file`, and nobody uses the position of a new file.
    Ok(unsafe { ARef::from_raw(file.cast()) })
}

/// Returns the hold of `file`.
///
/// # Safety
///
/// `file` must have been made by [`file_of`], and must not be released as long as `'a`.
unsafe fn hold_of<'a>(file: *mut bindings::file) -> &'a Hold {
    // SAFETY: By the safety requirement.
    unsafe { KBox::<Hold>::borrow((*file).private_data) }
}

/// Ends the hold of the file.
///
/// # Safety
///
/// Called by the VFS once, for a file made by [`file_of`].
unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: The file owns the hold, which is taken back once: no operation of the file follows.
    drop(unsafe { KBox::<Hold>::from_foreign((*file).private_data) });
    0
}

/// Shows which context is held.
///
/// # Safety
///
/// Called by procfs for a file made by [`file_of`].
unsafe extern "C" fn show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
    // SAFETY: procfs holds the file during the call, and nobody else uses `seq` meanwhile.
    let (seq, hold) = unsafe { (SeqFile::from_raw(seq), hold_of(file)) };
    seq_print!(seq, "fermata-pdev:\t{}\n", hold.card.name());
    seq_print!(seq, "fermata-hold:\t{}\n", trace::number(hold.ctx));
}
