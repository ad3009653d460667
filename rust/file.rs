// SPDX-License-Identifier: GPL-2.0

//! The file operations of /dev/fermataN.
//!
//! The `kernel` crate's `MiscDevice` cannot take their place (docs/upstream.md): it has no
//! `poll` and, in 7.2, no owner, so that `rmmod` with an open descriptor would free the code under
//! it.

use crate::{
    c_object::StaticTable,
    chardev,
    compat::this_module,
    context::{Context, MMAP_CONTEXT},
    fdinfo,
    ioctl::{holding, Call},
    notifier::Notice,
    uapi,
};
use kernel::{
    bindings,
    error::from_result,
    fs::{file::flags::O_NONBLOCK, LocalFile},
    mm::virt::{VmaNew, VmaRef},
    prelude::*,
    seq_file::SeqFile,
    types::ForeignOwnable,
    uaccess::UserPtr,
};

/// The file operations of all cards.
pub(crate) static OPERATIONS: StaticTable<bindings::file_operations> =
    StaticTable(bindings::file_operations {
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

/// The operations of a mapping of an arena.
static MAPPING: StaticTable<bindings::vm_operations_struct> =
    StaticTable(bindings::vm_operations_struct {
        fault: Some(fault),
        ..pin_init::zeroed()
    });

/// Makes a context for a new file.
///
/// # Safety
///
/// Called by the VFS with a new file of one of our nodes.
unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: Both are valid by the safety requirement, and nobody else uses `private_data` of a
    // file that is being opened. The file position is not used.
    let (device, private_data, opened) = unsafe {
        (
            (*inode).i_rdev,
            &mut (*file).private_data,
            LocalFile::from_raw_file(file),
        )
    };
    from_result(|| {
        let card = chardev::find(device).ok_or(ENODEV)?;
        if card.is_gone() {
            return Err(ENODEV);
        }
        let context = KBox::new(Context::new(card, opened.cred())?, GFP_KERNEL_ACCOUNT)?;
        *private_data = context.into_foreign();
        Ok(0)
    })
}

/// Returns the context of `file`.
///
/// # Safety
///
/// `file` must have been opened by [`open`], and must not be released as long as `'a`.
unsafe fn context<'a>(file: *mut bindings::file) -> &'a Context {
    // SAFETY: `file` is valid by the safety requirement. `open` stored the context, which only
    // `release` takes back.
    unsafe { Context::of_file(file) }
}

/// Ends the context of the file.
///
/// # Safety
///
/// Called by the VFS once, for a file opened by [`open`].
unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    // SAFETY: `open` stored the context, which is taken back once: no operation of the file
    // follows.
    let context = unsafe { KBox::<Context>::from_foreign((*file).private_data) };
    context.release();
    0
}

/// Executes a call.
///
/// # Safety
///
/// Called by the VFS for a file opened by [`open`].
unsafe extern "C" fn ioctl(
    file: *mut bindings::file,
    command: c_uint,
    argument: c_ulong,
) -> c_long {
    // SAFETY: The VFS holds the file during the call; the file position is not used.
    let (context, file) = unsafe { (context(file), LocalFile::from_raw_file(file)) };
    let call = Call {
        context,
        file,
        argument: UserPtr::from_addr(argument),
        nonblocking: file.flags() & O_NONBLOCK != 0,
    };
    match call.run(command) {
        Ok(()) => 0,
        // CAST: error numbers are small.
        Err(error) => error.to_errno() as c_long,
    }
}

/// Prepares a mapping of the arena.
///
/// # Safety
///
/// Called by the VFS for a file opened by [`open`], with a new area.
unsafe extern "C" fn mmap(file: *mut bindings::file, vma: *mut bindings::vm_area_struct) -> c_int {
    // SAFETY: The VFS holds the file during the call. `vma` is being set up, so nobody else uses
    // it; on an error the VFS removes the operations. The table is static.
    let (context, new) = unsafe {
        (*vma).vm_ops = &MAPPING.0;
        (context(file), VmaNew::from_raw(vma))
    };
    from_result(|| {
        if context.card.is_gone() {
            return Err(ENODEV);
        }
        context.map(new)?;
        Ok(0)
    })
}

/// Inserts pages of the arena into a mapping.
///
/// # Safety
///
/// Called by the memory management for an area that [`mmap`] has prepared.
unsafe extern "C" fn fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: `vmf` is valid by the safety requirement. The area is locked during the call, and
    // holds its file, which `open` has opened.
    let (at, vma, context) = unsafe {
        let at = &(*vmf).__bindgen_anon_1;
        (at, VmaRef::from_raw(at.vma), context((*at.vma).vm_file))
    };
    match context
        .client
        .fault(vma, at.address, at.pgoff % MMAP_CONTEXT)
    {
        Ok(true) => bindings::vm_fault_reason_VM_FAULT_NOPAGE,
        Err(error) if error == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
        Ok(false) | Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
    }
}

/// Returns the events that hold, and registers the poller.
///
/// # Safety
///
/// Called by the VFS for a file opened by [`open`].
unsafe extern "C" fn poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table,
) -> bindings::__poll_t {
    // SAFETY: The VFS holds the file during the call.
    let context = unsafe { context(file) };
    let mut notifiers = [Some(&context.client.notifier), None];
    // The card notifies contexts that are not set up only together, as bystanders.
    if context.id().is_err() {
        notifiers[1] = Some(&context.card.bystanders);
    }
    for notifier in notifiers.into_iter().flatten() {
        // SAFETY: `table` is that of the call. The context keeps its wait queue and that of its
        // card until the file is released, when the poller is on no queue any more.
        unsafe { bindings::poll_wait(file, notifier.queue().as_ptr(), table) };
    }
    if context.card.is_gone() {
        return uapi::poll::GONE;
    }
    let job = context.id().and_then(|id| context.card.job(id));
    let Ok((state, _)) = job else { return 0 };
    let mut holding = holding(state);
    if context.client.notifier.has(Notice::Completed) {
        holding |= uapi::event::COMPLETED;
    }
    uapi::poll::BITS
        .iter()
        .filter(|(event, _)| holding & event != 0)
        .fold(0, |mask, (_, bit)| mask | bit)
}

/// Shows the memory, the state and the counters of the context.
///
/// # Safety
///
/// Called by procfs for a file opened by [`open`].
unsafe extern "C" fn show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
    // SAFETY: procfs holds the file during the call, and nobody else uses `seq` meanwhile.
    let (seq, context) = unsafe { (SeqFile::from_raw(seq), context(file)) };
    fdinfo::show(seq, context);
}
