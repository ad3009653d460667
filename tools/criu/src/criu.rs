// SPDX-License-Identifier: GPL-2.0-or-later
//! CRIU's side of the plugin: the descriptor, the hooks, and functions that CRIU exports.

use anyhow::{Context as _, Result};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// Hooks of version 0.2.0 of the plugin interface, which CRIU 4.1.1 has.
const HOOKS: usize = 12;
const VERSION: c_uint = 2 << 8;
/// What a hook returns for what is not the plugin's.
const NOT_OURS: c_int = -libc::ENOTSUP;

/// A hook, as `CR_PLUGIN_HOOK__*`.
#[derive(Clone, Copy)]
pub(crate) enum Hook {
    DumpExtFile = 2,
    RestoreExtFile = 3,
    HandleDeviceVma = 7,
    UpdateVmaMap = 8,
    ResumeDevicesLate = 9,
    CheckpointDevices = 11,
}

/// What CRIU does, as `CR_PLUGIN_STAGE__*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Dump,
    PreDump,
    Restore,
    Other,
}

impl From<c_int> for Stage {
    fn from(stage: c_int) -> Self {
        match stage {
            0 => Self::Dump,
            1 => Self::PreDump,
            2 => Self::Restore,
            _ => Self::Other,
        }
    }
}

/// `cr_plugin_desc_t`
#[repr(C)]
pub struct Descriptor {
    name: *const c_char,
    init: unsafe extern "C" fn(c_int) -> c_int,
    exit: unsafe extern "C" fn(c_int, c_int),
    version: c_uint,
    max_hooks: c_uint,
    hooks: [*const (); HOOKS],
}

// SAFETY: The pointers are to static strings and functions.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(crate) const fn new(
        name: &'static CStr,
        init: unsafe extern "C" fn(c_int) -> c_int,
        exit: unsafe extern "C" fn(c_int, c_int),
    ) -> Self {
        Self {
            name: name.as_ptr(),
            init,
            exit,
            version: VERSION,
            max_hooks: HOOKS as c_uint,
            hooks: [ptr::null(); HOOKS],
        }
    }

    /// Adds a hook. The function must have the hook's arguments.
    pub(crate) const fn with(mut self, hook: Hook, function: *const ()) -> Self {
        self.hooks[hook as usize] = function;
        self
    }
}

/// Returns a function that CRIU exports.
fn find(name: &CStr) -> Result<NonNull<c_void>> {
    // SAFETY: The name is a string.
    let found = NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    found.with_context(|| format!("this CRIU has no {}", name.to_string_lossy()))
}

type Print = unsafe extern "C" fn(c_uint, *const c_char, ...);

const ERROR: c_uint = 1;
const INFORMATION: c_uint = 3;

fn print(level: c_uint, text: &str) {
    let Ok(print) = find(c"print_on_level") else {
        eprintln!("fermata: {text}");
        return;
    };
    let line = CString::new(format!("fermata: {text}\n")).unwrap_or_default();
    // SAFETY: This is the type of the function (criu-log.h), and the format takes one string.
    unsafe {
        let print = std::mem::transmute::<NonNull<c_void>, Print>(print);
        print(level, c"%s".as_ptr(), line.as_ptr());
    }
}

/// Writes a line to CRIU's log.
pub(crate) fn tell(text: &str) {
    print(INFORMATION, text);
}

/// Writes an error to CRIU's log.
pub(crate) fn complain(text: &str) {
    print(ERROR, text);
}

/// Returns the folder of the images.
pub(crate) fn image_folder() -> Result<BorrowedFd<'static>> {
    let folder = find(c"criu_get_image_dir")?;
    // SAFETY: This is the type of the function (criu-plugin.h). CRIU keeps the folder open while
    // plugins are called.
    unsafe {
        let folder = std::mem::transmute::<NonNull<c_void>, extern "C" fn() -> c_int>(folder);
        Ok(BorrowedFd::borrow_raw(folder()))
    }
}

/// Carries out a hook. `Ok(None)`: that was not the plugin's. Errors go to CRIU's log, and so do
/// panics, which must not reach C.
pub(crate) fn guard(what: &str, hook: impl FnOnce() -> Result<Option<c_int>>) -> c_int {
    match catch_unwind(AssertUnwindSafe(hook)) {
        Ok(Ok(result)) => result.unwrap_or(NOT_OURS),
        Ok(Err(error)) => {
            complain(&format!("{what}: {error:#}"));
            -1
        }
        Err(_) => {
            complain(&format!("{what}: a mistake in the plugin"));
            -1
        }
    }
}

/// Lets CRIU use the file that the plugin names for the next mapping. While one mapping follows
/// another of the same node, CRIU uses the file of the one before, which may be another context.
pub(crate) fn forget_mapped_file() -> Result<()> {
    let (end, begin) = (find(c"filemap_ctx_fini")?, find(c"filemap_ctx_init")?);
    // SAFETY: These are the types of the functions (files-reg.h).
    let (end, begin) = unsafe {
        (
            std::mem::transmute::<NonNull<c_void>, extern "C" fn()>(end),
            std::mem::transmute::<NonNull<c_void>, extern "C" fn(bool)>(begin),
        )
    };
    end();
    begin(false);
    Ok(())
}
