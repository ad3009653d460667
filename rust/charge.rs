// SPDX-License-Identifier: GPL-2.0

//! Charging pinned memory to the opener's user, against RLIMIT_MEMLOCK, and to the process.
//!
//! As in io_uring, the caller's limit is compared with `locked_vm` of the user, so that processes
//! of one user share the limit. `pinned_vm` of the address space is only counted (VmPin in
//! /proc/PID/status).

use crate::{
    capability::{self, Audit},
    shim::fermata_memlock_limit,
};
use kernel::{
    cred::Credential,
    mm::Mm,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// The user to whom the kernel charges pinned and locked memory.
#[derive(Clone)]
pub(crate) struct Account(ARef<Credential>);

impl Account {
    /// Returns the account of the user that has the credentials `credential`.
    pub(crate) fn new(credential: &Credential) -> Self {
        Self(credential.into())
    }

    /// Returns the counter of the pages that the user has pinned or locked, in all ways that are
    /// charged to users.
    fn locked_vm(&self) -> &Atomic<i64> {
        // SAFETY: The credentials are valid as long as `self`, and own a reference of their `user`.
        // The kernel accesses the counter atomically only.
        unsafe { Atomic::from_ptr(&raw mut (*(*self.0.as_ptr()).user).locked_vm.counter) }
    }

    /// Adds `pages`. `ENOMEM`: the user would have more than `limit`.
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

/// Counters of the pinned memory of a context, in bytes.
pub(crate) struct Pinned {
    all: Atomic<u64>,
    /// The part of `all` that is charged to no memory cgroup.
    uncharged: Atomic<u64>,
}

impl Pinned {
    /// Returns counters of 0.
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

/// Bytes that are counted for a context until this value is dropped.
pub(crate) struct PinnedBytes {
    of: Arc<Pinned>,
    all: u64,
    uncharged: u64,
}

impl PinnedBytes {
    /// Counts `bytes` in the counters `of`; `uncharged`: no memory cgroup is charged for them.
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

/// Pages that are charged until this value is dropped.
pub(crate) struct Charge {
    /// The charged user; `None`: the caller was exempt.
    account: Option<Account>,
    /// The charged address space; `None`: the caller was a kernel thread.
    mm: Option<ARef<Mm>>,
    pages: i64,
    _counted: PinnedBytes,
}

impl Charge {
    /// Charges `length` bytes, which are `counted` for a context, to the address space `mm` and,
    /// unless the caller has CAP_IPC_LOCK, to `account`. Process context. `ENOMEM`: the user would
    /// have more than the caller's RLIMIT_MEMLOCK.
    pub(crate) fn new(
        account: &Account,
        mm: Option<ARef<Mm>>,
        length: usize,
        counted: PinnedBytes,
    ) -> Result<Self> {
        let pages = i64::try_from(length.div_ceil(PAGE_SIZE))?;
        let account = if capability::may_lock_memory(Audit::Nothing) {
            None
        } else {
            account.lock_pages(pages, memlock_limit())?;
            Some(account.clone())
        };
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

/// Returns the counter of the pinned pages of an address space.
fn pinned_vm(mm: &Mm) -> &Atomic<i64> {
    // SAFETY: The structure is valid as long as `mm`. The kernel accesses the counter atomically
    // only.
    unsafe { Atomic::from_ptr(&raw mut (*mm.as_raw()).__bindgen_anon_1.pinned_vm.counter) }
}

/// Returns the caller's RLIMIT_MEMLOCK in pages.
fn memlock_limit() -> i64 {
    // CAST: 2^64 bytes are 2^52 pages.
    (fermata_memlock_limit() / PAGE_SIZE) as i64
}
