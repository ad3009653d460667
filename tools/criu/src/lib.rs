// SPDX-License-Identifier: GPL-2.0-or-later
//! A plugin for CRIU, so that processes are dumped and restored with their contexts on a card
//! (docs/deploy/criu.md).
//!
//! CRIU loads the plugin, stops the processes, and calls the hooks below: for each process, for each
//! open file that CRIU does not know, and for each mapping of such a file. The plugin calls functions
//! that CRIU exports. Source: criu-plugin.h of CRIU 4.1.1.

mod dump;
mod image;
mod process;
mod restore;

use anyhow::{Context as _, Result};
use fermata_output::complain;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// The symbol that CRIU looks for in a plugin.
#[no_mangle]
#[used]
pub static CR_PLUGIN_DESC: Descriptor = Descriptor::new(c"fermata", init, exit)
    .with(Hook::DumpExtFile, dump_file as *const ())
    .with(Hook::RestoreExtFile, restore_file as *const ())
    .with(Hook::HandleDeviceVma, handle_mapping as *const ())
    .with(Hook::UpdateVmaMap, update_mapping as *const ())
    .with(Hook::ResumeDevicesLate, resume as *const ())
    .with(Hook::CheckpointDevices, hold as *const ());

/// CRIU begins. Nothing is stopped, held or restored yet.
unsafe extern "C" fn init(stage: c_int) -> c_int {
    guard("init", || {
        match Stage::from(stage) {
            Stage::Dump => {
                let arguments = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
                if let Some(root) = process::root_of_dump(arguments) {
                    process::check_memory(root)?;
                }
            }
            Stage::Restore => restore::make_table()?,
            Stage::PreDump | Stage::Other => {}
        }
        Ok(Some(0))
    })
}

/// CRIU is about to let the processes continue, or to end them.
unsafe extern "C" fn exit(stage: c_int, _result: c_int) {
    guard("exit", || {
        if Stage::from(stage) == Stage::Dump {
            dump::resume_all();
        }
        Ok(Some(0))
    });
}

/// A process of the dump has been stopped.
unsafe extern "C" fn hold(pid: c_int) -> c_int {
    guard("the jobs of a process", || {
        dump::hold(pid).map(|()| Some(0))
    })
}

/// Dumps the file `fd` if it is a card's.
unsafe extern "C" fn dump_file(fd: c_int, id: c_int) -> c_int {
    guard("dump", || {
        // SAFETY: CRIU keeps the file open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(dump::file(file, id)?.then_some(0))
    })
}

/// Returns a new descriptor for the file `id`.
unsafe extern "C" fn restore_file(id: c_int) -> c_int {
    guard("restore", || restore::file(id))
}

/// Answers whether a mapping of this file is a card's.
unsafe extern "C" fn handle_mapping(_fd: c_int, stat: *const libc::stat) -> c_int {
    guard("a mapping", || {
        // SAFETY: CRIU gives a valid pointer.
        let (mode, device) = unsafe { ((*stat).st_mode, (*stat).st_rdev) };
        let is_device = mode & libc::S_IFMT == libc::S_IFCHR;
        Ok((is_device && process::is_card(device)).then_some(0))
    })
}

/// Determines which file is mapped at `address`, and from which offset on.
unsafe extern "C" fn update_mapping(
    path: *const c_char,
    _address: u64,
    offset: u64,
    new_offset: *mut u64,
    new_file: *mut c_int,
) -> c_int {
    guard("a mapping", || {
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
    guard("the jobs of a process", || {
        restore::resume(pid).map(|()| Some(0))
    })
}

/// Hooks of version 0.2.0 of the plugin interface, which CRIU 4.1.1 has.
const HOOKS: usize = 12;
const VERSION: c_uint = 2 << 8;
/// What a hook returns for a file or mapping that is not the plugin's.
const NOT_OURS: c_int = -libc::ENOTSUP;

/// A hook, as `CR_PLUGIN_HOOK__*`.
#[derive(Clone, Copy)]
enum Hook {
    DumpExtFile = 2,
    RestoreExtFile = 3,
    HandleDeviceVma = 7,
    UpdateVmaMap = 8,
    ResumeDevicesLate = 9,
    CheckpointDevices = 11,
}

/// What CRIU does, as `CR_PLUGIN_STAGE__*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
        complain!("fermata: {text}");
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
fn tell(text: &str) {
    print(INFORMATION, text);
}

/// Writes an error to CRIU's log.
fn complain(text: &str) {
    print(ERROR, text);
}

/// Returns the folder of the images.
fn image_folder() -> Result<BorrowedFd<'static>> {
    let folder = find(c"criu_get_image_dir")?;
    // SAFETY: This is the type of the function (criu-plugin.h). CRIU keeps the folder open while
    // plugins are called.
    unsafe {
        let folder = std::mem::transmute::<NonNull<c_void>, extern "C" fn() -> c_int>(folder);
        Ok(BorrowedFd::borrow_raw(folder()))
    }
}

/// Executes a hook. `Ok(None)`: the object was not the plugin's. Errors go to CRIU's log, and so do
/// panics, which must not reach C.
fn guard(what: &str, hook: impl FnOnce() -> Result<Option<c_int>>) -> c_int {
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

/// Lets CRIU use the file that the plugin names for the next mapping. While mappings of the same
/// node follow one another, CRIU uses the file of the previous mapping, which may be another
/// context.
fn forget_mapped_file() -> Result<()> {
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
