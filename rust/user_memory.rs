// SPDX-License-Identifier: GPL-2.0

//! Memory of a program, which is pinned for the card.

use crate::capability;
use core::{mem::MaybeUninit, ptr::NonNull};
use kernel::{
    bindings,
    mm::{Mm, MmWithUser},
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef,
    task::Task,
};

/// The address space of a process that the caller has named.
pub(crate) struct Process(ARef<MmWithUser>);

impl Process {
    /// Returns the address space of the process `pid` in the caller's pid namespace.
    ///
    /// `EPERM`: the caller may not change the memory of other processes. `ESRCH`: there is no such
    /// process, or the process has no memory.
    pub(crate) fn new(pid: u32) -> Result<Self> {
        if !capability::may_restore_memory() {
            return Err(EPERM);
        }
        let task = process(c_int::try_from(pid).map_err(|_| ESRCH)?)?;
        // SAFETY: The task is valid. The function returns a reference, which is the caller's, or
        // null.
        let mm = NonNull::new(unsafe { bindings::get_task_mm(task.as_ptr()) }).ok_or(ESRCH)?;
        // SAFETY: The reference is moved into the value, and `MmWithUser` is transparent over
        // `struct mm_struct`.
        Ok(Self(unsafe { ARef::from_raw(mm.cast()) }))
    }

    /// Returns the memory from `address` on.
    pub(crate) fn memory(&self, address: u64) -> UserMemory {
        UserMemory {
            address,
            process: Some(self.0.clone()),
        }
    }
}

/// The memory from an address on: the caller's, or another process's.
pub(crate) struct UserMemory {
    address: u64,
    /// The other process's address space.
    process: Option<ARef<MmWithUser>>,
}

impl UserMemory {
    /// Returns the memory of the caller from `address` on.
    pub(crate) fn of_caller(address: u64) -> Self {
        Self {
            address,
            process: None,
        }
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address space; `None`: the caller is a kernel thread.
    pub(crate) fn mm(&self) -> Option<ARef<Mm>> {
        match &self.process {
            Some(process) => Some(ARef::from(&***process)),
            None => mm_of_caller(),
        }
    }

    /// Pins pages from page number `first` on, as many as there is room for in `pages`. Returns
    /// how many were pinned, at least 1. The others can be pinned by another call.
    ///
    /// The errors and the context are those of [`crate::pages::Pages::pinned`].
    pub(crate) fn pin(
        &self,
        first: usize,
        pages: &mut [MaybeUninit<NonNull<bindings::page>>],
    ) -> Result<usize> {
        let address = usize::try_from(self.address)? + first * PAGE_SIZE;
        let flags = bindings::FOLL_WRITE | bindings::FOLL_LONGTERM;
        let count = c_int::try_from(pages.len()).unwrap_or(c_int::MAX);
        let pages = pages.as_mut_ptr().cast();
        let pinned = match &self.process {
            // SAFETY: `pages` has room for `count` pointers. A wrong address is an error.
            None => unsafe { bindings::pin_user_pages_fast(address, count, flags, pages) as isize },
            // SAFETY: The same.
            Some(mm) => unsafe { pin_remote(mm, address, count, flags, pages) },
        };
        match usize::try_from(pinned) {
            Ok(0) => Err(EFAULT),
            Ok(pinned) => Ok(pinned),
            // CAST: a negative error number.
            Err(_) => Err(Error::from_errno(pinned as c_int)),
        }
    }
}

/// Does the same as `pin_user_pages_fast()` in another address space.
///
/// # Safety
///
/// There must be room for `count` pointers at `pages`.
unsafe fn pin_remote(
    mm: &MmWithUser,
    address: usize,
    count: c_int,
    flags: c_uint,
    pages: *mut *mut bindings::page,
) -> c_long {
    let guard = mm.mmap_read_lock();
    let mut is_locked: c_int = 1;
    // SAFETY: The address space has users, and is locked. The rest is the caller's requirement.
    let pinned = unsafe {
        let mm = mm.as_raw();
        // CAST: `count` is not negative.
        let count = count as c_ulong;
        bindings::pin_user_pages_remote(mm, address, count, flags, pages, &mut is_locked)
    };
    if is_locked == 0 {
        // The function has unlocked the address space.
        core::mem::forget(guard);
    }
    pinned
}

/// Returns the caller's address space; `None`: the caller is a kernel thread.
pub(crate) fn mm_of_caller() -> Option<ARef<Mm>> {
    kernel::current!().mm().map(|mm| ARef::from(&**mm))
}

/// Returns the process `pid` of the caller's pid namespace. `ESRCH`.
fn process(pid: c_int) -> Result<ARef<Task>> {
    // SAFETY: Any number may be looked up. The function returns a reference or null, both of which
    // the other functions take.
    let task = unsafe {
        let pid = bindings::find_get_pid(pid);
        let task = bindings::get_pid_task(pid, bindings::pid_type_PIDTYPE_TGID);
        bindings::put_pid(pid);
        task
    };
    let task = NonNull::new(task).ok_or(ESRCH)?;
    // SAFETY: The reference is moved into the value, and `Task` is transparent over
    // `struct task_struct`.
    Ok(unsafe { ARef::from_raw(task.cast()) })
}
