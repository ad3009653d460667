// SPDX-License-Identifier: GPL-2.0

//! The file operations of /dev/fermataN.
//!
//! Own and static, not the `kernel` crate's `MiscDevice`: that one has no `poll`, and in 7.2 no
//! owner, so that `rmmod` with an open descriptor would free the code under it.

use crate::{
    chardev,
    compat::this_module,
    context::Context,
    fdinfo,
    ioctl::{holding, Call},
    notifier::Notice,
    uapi,
};
use kernel::{
    bindings,
    error::from_result,
    fs::LocalFile,
    mm::virt::{VmaNew, VmaRef},
    prelude::*,
    seq_file::SeqFile,
    sync::{Arc, ArcBorrow},
    types::ForeignOwnable,
    uaccess::UserPtr,
};

/// The file operations; shared by all cards.
pub(crate) struct Operations(bindings::file_operations);

// SAFETY: Never written; `owner` is only handed to C.
unsafe impl Sync for Operations {}

impl Operations {
    /// For `cdev`.
    pub(crate) fn as_ptr(&self) -> *const bindings::file_operations {
        &self.0
    }
}

/// The one table.
pub(crate) static OPERATIONS: Operations = Operations(bindings::file_operations {
    owner: this_module(),
    open: Some(open),
    release: Some(release),
    unlocked_ioctl: Some(ioctl),
    compat_ioctl: bindings::compat_ptr_ioctl,
    mmap: Some(mmap),
    poll: Some(poll),
    show_fdinfo: Some(show_fdinfo),
    llseek: Some(bindings::noop_llseek),
    ..pin_init::zeroed()
});

/// # Safety
///
/// Called by the VFS with a new file of a node of ours.
unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        // SAFETY: Valid by the safety requirement.
        let device_number = unsafe { (*inode).i_rdev };
        let card = chardev::find(device_number).ok_or(ENODEV)?;
        if card.is_gone() {
            return Err(ENODEV);
        }
        // SAFETY: `file` is valid; the file position is not used.
        let opened = unsafe { LocalFile::from_raw_file(file) };
        let context = Context::new(card, opened.cred())?;
        // SAFETY: `file` is ours until it is returned.
        unsafe { (*file).private_data = context.into_foreign() };
        Ok(0)
    })
}

/// # Safety
///
/// `file` must have been opened by [`open`] and not yet released.
unsafe fn context<'a>(file: *mut bindings::file) -> ArcBorrow<'a, Context> {
    // SAFETY: `open` stored it, and the VFS holds the file during each operation.
    unsafe { Arc::<Context>::borrow((*file).private_data) }
}

/// # Safety
///
/// Called by the VFS once, for a file opened by [`open`].
unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: Stored by `open`, taken back once.
    let context = unsafe { Arc::<Context>::from_foreign((*file).private_data) };
    context.release();
    0
}

/// # Safety
///
/// Called by the VFS for a file opened by [`open`].
unsafe extern "C" fn ioctl(
    file: *mut bindings::file,
    command: c_uint,
    argument: c_ulong,
) -> c_long {
    // SAFETY: By the safety requirement; the file position is not used.
    let (context, flags) = unsafe { (context(file), LocalFile::from_raw_file(file).flags()) };
    let call = Call {
        context,
        argument: UserPtr::from_addr(argument),
        nonblocking: flags & bindings::O_NONBLOCK != 0,
    };
    match call.run(command) {
        Ok(()) => 0,
        // CAST: error numbers are small.
        Err(error) => error.to_errno() as c_long,
    }
}

/// # Safety
///
/// Called by the VFS for a file opened by [`open`], with a new area.
unsafe extern "C" fn mmap(file: *mut bindings::file, vma: *mut bindings::vm_area_struct) -> c_int {
    // SAFETY: By the safety requirement.
    let (context, new) = unsafe { (context(file), VmaNew::from_raw(vma)) };
    from_result(|| {
        if context.card.is_gone() {
            return Err(ENODEV);
        }
        context.map(new)?;
        // SAFETY: `vma` is being set up by the caller.
        unsafe { (*vma).vm_ops = &MAPPING.0 };
        Ok(0)
    })
}

/// The operations of a mapping of an arena.
struct MappingOperations(bindings::vm_operations_struct);

// SAFETY: Never written; it holds function pointers only.
unsafe impl Sync for MappingOperations {}

static MAPPING: MappingOperations = MappingOperations(bindings::vm_operations_struct {
    fault: Some(fault),
    ..pin_init::zeroed()
});

/// # Safety
///
/// Called by the memory management for an area that [`mmap`] has prepared.
unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: By the safety requirement.
    let at = unsafe { &(*vmf).__bindgen_anon_1 };
    // SAFETY: The area is locked during the call, and its file was opened by `open`.
    let (vma, context) = unsafe { (VmaRef::from_raw(at.vma), context((*at.vma).vm_file)) };
    match context.fault(vma, at.address, at.pgoff) {
        Ok(true) => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
        Err(error) if error == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        Ok(false) | Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// # Safety
///
/// Called by the VFS for a file opened by [`open`].
unsafe extern "C" fn poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table,
) -> bindings::__poll_t {
    // SAFETY: By the safety requirement; the context lives as long as the file.
    let context = unsafe { context(file) };
    // SAFETY: The file and the table are those of the call. The context keeps its wait queue until the
    // file is released, and so longer than the poller is on the queue.
    unsafe { bindings::poll_wait(file, context.notifier.queue().as_ptr(), table) };
    if context.card.is_gone() {
        return uapi::poll::GONE;
    }
    let Some(view) = context.view() else { return 0 };
    let mut holding = holding(view.stats.state);
    if context.notifier.has(Notice::Completed) {
        holding |= uapi::event::COMPLETED;
    }
    uapi::poll::BITS
        .iter()
        .filter(|(event, _)| holding & event != 0)
        .fold(0, |mask, (_, bit)| mask | bit)
}

/// # Safety
///
/// Called by procfs for a file opened by [`open`].
unsafe extern "C" fn show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
    // SAFETY: By the safety requirement; `seq` is nobody else's meanwhile.
    let (seq, context) = unsafe { (SeqFile::from_raw(seq), context(file)) };
    fdinfo::show(seq, &context);
}
