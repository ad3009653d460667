// SPDX-License-Identifier: GPL-2.0

//! What pinned memory costs: the opener's user, against RLIMIT_MEMLOCK, and the process.
//!
//! As io_uring does it: `locked_vm` of the user is compared with the caller's limit, so that
//! processes of one user share what they have; `pinned_vm` of the address space is only counted
//! (VmPin in /proc/PID/status).

use crate::{capability, shim};
use core::ptr::NonNull;
use kernel::{
    bindings,
    mm::Mm,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// The account of a user, as the kernel counts what it has pinned and locked.
///
/// # Invariants
///
/// Owns a reference of the `struct user_struct`.
pub(crate) struct Account(NonNull<bindings::user_struct>);

// SAFETY: A `struct user_struct` is reference-counted; its counters are atomic.
unsafe impl Send for Account {}
// SAFETY: As above.
unsafe impl Sync for Account {}

impl Account {
    /// The caller's. Process context.
    pub(crate) fn current() -> Self {
        // INVARIANT: The reference is ours.
        // SAFETY: No requirement; every task has a user.
        Self(unsafe { NonNull::new_unchecked(shim::fermata_get_current_user()) })
    }

    /// Pages that it has pinned or locked, in all ways that are charged to users.
    fn locked_vm(&self) -> &Atomic<i64> {
        // SAFETY: Valid by the type invariant, for as long as `self`; the kernel accesses it
        // atomically only.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.as_ptr()).locked_vm.counter) }
    }

    /// Adds `pages`, unless that is more than `limit` then. `ENOMEM`.
    fn lock_pages(&self, pages: i64, limit: i64) -> Result {
        let locked = self.locked_vm();
        let mut before = locked.load(Relaxed);
        loop {
            let after = before.checked_add(pages).ok_or(ENOMEM)?;
            if after > limit {
                return Err(ENOMEM);
            }
            match locked.cmpxchg(before, after, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => before = now,
            }
        }
    }
}

impl Clone for Account {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant.
        unsafe { shim::fermata_get_user(self.0.as_ptr()) };
        // INVARIANT: The new reference is that of the new value.
        Self(self.0)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::free_uid(self.0.as_ptr()) };
    }
}

/// Bytes of pinned memory that a context has.
pub(crate) struct Pinned {
    all: Atomic<u64>,
    /// Of these, those that are charged to no memory cgroup.
    uncharged: Atomic<u64>,
}

impl Pinned {
    /// None.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let none = Self {
            all: Atomic::new(0),
            uncharged: Atomic::new(0),
        };
        Ok(Arc::new(none, GFP_KERNEL_ACCOUNT)?)
    }

    pub(crate) fn all(&self) -> u64 {
        self.all.load(Relaxed)
    }

    pub(crate) fn uncharged(&self) -> u64 {
        self.uncharged.load(Relaxed)
    }
}

/// Bytes that are counted for a context, until it is dropped.
pub(crate) struct PinnedBytes {
    of: Arc<Pinned>,
    all: u64,
    uncharged: u64,
}

impl PinnedBytes {
    /// Counts `bytes`, as `uncharged` if no memory cgroup is charged for them.
    pub(crate) fn new(of: &Arc<Pinned>, bytes: u64, uncharged: bool) -> Self {
        let counted = Self {
            of: of.clone(),
            all: bytes,
            uncharged: if uncharged { bytes } else { 0 },
        };
        of.all.fetch_add(counted.all, Relaxed);
        of.uncharged.fetch_add(counted.uncharged, Relaxed);
        counted
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        self.of.all.fetch_sub(self.all, Relaxed);
        self.of.uncharged.fetch_sub(self.uncharged, Relaxed);
    }
}

/// Pages that are charged, until it is dropped.
pub(crate) struct Charge {
    /// Who was charged; `None`: the caller was exempt.
    account: Option<Account>,
    /// The address space that was charged; `None`: the caller was a kernel thread.
    mm: Option<ARef<Mm>>,
    pages: i64,
    _counted: PinnedBytes,
}

impl Charge {
    /// Charges `length` bytes, which are `counted` for a context, to `account`, unless the caller has
    /// CAP_IPC_LOCK, and to the caller's address space. Process context. `ENOMEM`: more than the
    /// caller's RLIMIT_MEMLOCK.
    pub(crate) fn new(account: &Account, length: usize, counted: PinnedBytes) -> Result<Self> {
        let pages = i64::try_from(length.div_ceil(PAGE_SIZE))?;
        let account = if capability::may_lock_memory() {
            None
        } else {
            account.lock_pages(pages, memlock_limit())?;
            Some(account.clone())
        };
        let mm = kernel::current!().mm().map(|mm| ARef::from(&**mm));
        if let Some(mm) = &mm {
            pinned_vm(mm).add(pages, Relaxed);
        }
        Ok(Self {
            account,
            mm,
            pages,
            _counted: counted,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(mm) = &self.mm {
            pinned_vm(mm).add(-self.pages, Relaxed);
        }
        if let Some(account) = &self.account {
            account.locked_vm().add(-self.pages, Relaxed);
        }
    }
}

/// Pages of an address space that are pinned.
fn pinned_vm(mm: &Mm) -> &Atomic<i64> {
    // SAFETY: Valid for as long as `mm`; the kernel accesses it atomically only.
    unsafe { Atomic::from_ptr(&raw mut (*mm.as_raw()).__bindgen_anon_1.pinned_vm.counter) }
}

/// The caller's RLIMIT_MEMLOCK in pages.
fn memlock_limit() -> i64 {
    // SAFETY: No requirement.
    let bytes = unsafe { shim::fermata_memlock_limit() };
    // CAST: 2^64 bytes are 2^52 pages.
    (bytes / PAGE_SIZE) as i64
}
