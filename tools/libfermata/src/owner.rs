// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of other programs: their descriptors, got as a debugger would (`pidfd_getfd()`).
//!
//! It takes the right to trace the process (`PTRACE_MODE_ATTACH_REALCREDS`): the same user, or
//! `CAP_SYS_PTRACE`, and what a security module says of it. A context that was got is shared with
//! its program: it lives until both have closed it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use fermata::owner;
//!
//! let pid = 4711;
//! for fd in owner::descriptors(pid)? {
//!     let context = owner::context(pid, fd)?;
//!     println!("context {} on descriptor {fd}", context.status()?.context);
//! }
//! # Ok(())
//! # }
//! ```

use crate::Context;
use rustix::process::{pidfd_getfd, pidfd_open, Pid, PidfdFlags, PidfdGetfdFlags};
use std::io;
use std::os::fd::RawFd;

/// What the devices of cards begin with.
const DEVICES: &str = "/dev/fermata";

/// The descriptors of a process that are cards, in ascending order.
pub fn descriptors(pid: u32) -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        // It may have been closed meanwhile.
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with(DEVICES) {
            let name = entry.file_name();
            found.extend(name.to_str().and_then(|fd| fd.parse::<RawFd>().ok()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The context that a process has by this descriptor.
pub fn context(pid: u32, fd: RawFd) -> io::Result<Context> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let file = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?;
    Ok(Context::from_file(file))
}
