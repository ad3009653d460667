// SPDX-License-Identifier: GPL-2.0-or-later
//! A plugin for CRIU, so that processes are dumped and restored with their contexts on a card
//! (docs/criu.md).
//!
//! CRIU loads the plugin, stops the processes, and calls the hooks below: for each process, for each
//! open file that CRIU does not know, and for each mapping of such a file. Source: criu-plugin.h of
//! CRIU 4.1.1.

mod criu;
mod dump;
mod image;
mod process;
mod restore;
mod table;

use criu::{Descriptor, Hook, Stage};
use std::ffi::{c_char, c_int, CStr};
use std::os::fd::BorrowedFd;

/// What CRIU looks for in a plugin.
#[no_mangle]
#[used]
pub static CR_PLUGIN_DESC: Descriptor = Descriptor::new(c"fermata", init, exit)
    .with(Hook::DumpExtFile, dump_file as *const ())
    .with(Hook::RestoreExtFile, restore_file as *const ())
    .with(Hook::HandleDeviceVma, handle_mapping as *const ())
    .with(Hook::UpdateVmaMap, update_mapping as *const ())
    .with(Hook::ResumeDevicesLate, resume as *const ())
    .with(Hook::CheckpointDevices, hold as *const ());

/// CRIU begins. Nothing is held or restored yet.
unsafe extern "C" fn init(stage: c_int) -> c_int {
    criu::guard("init", || {
        if Stage::from(stage) == Stage::Restore {
            table::make()?;
        }
        Ok(Some(0))
    })
}

/// CRIU is about to let the processes go on, or to end them.
unsafe extern "C" fn exit(stage: c_int, _result: c_int) {
    criu::guard("exit", || {
        if Stage::from(stage) == Stage::Dump {
            dump::resume_all();
        }
        Ok(Some(0))
    });
}

/// A process of the dump has been stopped.
unsafe extern "C" fn hold(pid: c_int) -> c_int {
    criu::guard("the jobs of a process", || {
        dump::hold(pid).map(|()| Some(0))
    })
}

/// Dumps the file `fd` if it is one of a card.
unsafe extern "C" fn dump_file(fd: c_int, id: c_int) -> c_int {
    criu::guard("dump", || {
        // SAFETY: CRIU keeps the file open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(dump::file(file, id)?.then_some(0))
    })
}

/// Returns a new descriptor for the file `id`.
unsafe extern "C" fn restore_file(id: c_int) -> c_int {
    criu::guard("restore", || restore::file(id))
}

/// Answers whether a mapping with this file is one of a card.
unsafe extern "C" fn handle_mapping(_fd: c_int, stat: *const libc::stat) -> c_int {
    criu::guard("a mapping", || {
        // SAFETY: CRIU gives a valid pointer.
        let (mode, device) = unsafe { ((*stat).st_mode, (*stat).st_rdev) };
        let is_device = mode & libc::S_IFMT == libc::S_IFCHR;
        Ok((is_device && process::is_card(device)).then_some(0))
    })
}

/// Says which file is mapped at `address`, and from which offset on.
unsafe extern "C" fn update_mapping(
    path: *const c_char,
    _address: u64,
    offset: u64,
    new_offset: *mut u64,
    new_file: *mut c_int,
) -> c_int {
    criu::guard("a mapping", || {
        // SAFETY: CRIU gives a string.
        let path = unsafe { CStr::from_ptr(path) };
        let Some((file, in_arena)) = restore::mapping(path, offset)? else {
            return Ok(None);
        };
        // SAFETY: CRIU gives pointers to its variables.
        unsafe { (*new_offset, *new_file) = (in_arena, file) };
        Ok(Some(1))
    })
}

/// A process of the restore is complete, and stopped.
unsafe extern "C" fn resume(pid: c_int) -> c_int {
    criu::guard("the jobs of a process", || {
        restore::resume(pid).map(|()| Some(0))
    })
}
