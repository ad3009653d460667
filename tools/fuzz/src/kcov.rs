// SPDX-License-Identifier: GPL-2.0-or-later

//! Coverage of the module by a thread (the kernel's KCOV).

use anyhow::{ensure, Result};
use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

/// Maximum number of addresses of a run.
const ENTRIES: usize = 1 << 16;
// KCOV_INIT_TRACE, KCOV_ENABLE and KCOV_TRACE_PC of linux/kcov.h.
const INIT_TRACE: libc::c_ulong = 0x8008_6301;
const ENABLE: libc::c_ulong = 0x6364;
const TRACE_PC: libc::c_ulong = 0;

/// The coverage of the thread that made the value.
pub(crate) struct Kcov {
    _file: File,
    /// The number of entries, then the entries.
    words: *const AtomicU64,
}

impl Kcov {
    /// Traces the calling thread from now on.
    pub(crate) fn of_this_thread() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/sys/kernel/debug/kcov")?;
        let fd = file.as_raw_fd();
        // SAFETY: The argument is a number.
        let made = unsafe { libc::ioctl(fd, INIT_TRACE as _, ENTRIES) };
        ensure!(made == 0, "KCOV_INIT_TRACE: {}", io::Error::last_os_error());
        // SAFETY: A new mapping of the size that INIT_TRACE has set.
        let words = unsafe {
            libc::mmap(
                ptr::null_mut(),
                ENTRIES * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        ensure!(
            words != libc::MAP_FAILED,
            "kcov: {}",
            io::Error::last_os_error()
        );
        // SAFETY: The argument is a number.
        let enabled = unsafe { libc::ioctl(fd, ENABLE as _, TRACE_PC) };
        ensure!(enabled == 0, "KCOV_ENABLE: {}", io::Error::last_os_error());
        Ok(Self {
            _file: file,
            words: words.cast(),
        })
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < ENTRIES);
        // SAFETY: The index lies within the mapping, which stays until the process ends.
        unsafe { &*self.words.add(n) }
    }

    /// Clears the reached addresses.
    pub(crate) fn clear(&self) {
        self.word(0).store(0, Ordering::Relaxed);
    }

    /// Returns the reached addresses.
    pub(crate) fn reached(&self) -> impl Iterator<Item = u64> + '_ {
        let count = (self.word(0).load(Ordering::Relaxed) as usize).min(ENTRIES - 1);
        (1..=count).map(|n| self.word(n).load(Ordering::Relaxed))
    }
}
