// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts of other programs: takes over their descriptors as a debugger would (`pidfd_getfd()`).
//!
//! This takes the right to trace the process (`PTRACE_MODE_ATTACH_REALCREDS`): the same user or
//! `CAP_SYS_PTRACE`, and the consent of security modules. The context is then shared with its
//! program: it lives until both have closed it.
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

/// The line of an fdinfo file by which the driver identifies itself (docs/statistics.md).
const DRIVER: &str = "drm-driver:\tfermata";

/// Returns the descriptors of a process that are cards, in ascending order.
///
/// The path of a descriptor does not show this: a node may be mounted anywhere. `stat()` does, but
/// never returns if the descriptor is a file of a FUSE daemon that does not answer.
pub fn descriptors(pid: u32) -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let entry = entry?;
        // The descriptor may have been closed in the meantime.
        let info = std::fs::read(entry.path()).unwrap_or_default();
        if info
            .split(|&byte| byte == b'\n')
            .any(|line| line == DRIVER.as_bytes())
        {
            let name = entry.file_name();
            found.extend(name.to_str().and_then(|fd| fd.parse::<RawFd>().ok()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns the context that a process has as this descriptor.
pub fn context(pid: u32, fd: RawFd) -> io::Result<Context> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let file = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?;
    Ok(Context::from_file(file))
}
