// SPDX-License-Identifier: GPL-2.0-or-later
//! Loading of the library of a foreign card, by a program that is linked dynamically.

use super::interface::{CardCalls, Functions};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Loads a library, which stays loaded until the process ends.
///
/// # Errors
///
/// A text: the library cannot be loaded, is of another version, or incomplete.
pub fn load(path: &Path) -> Result<Functions, String> {
    // dlopen() searches for a name without a slash.
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the path is a string. What the library does when it is loaded is the user's choice.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(last_error());
    }
    // SAFETY: the library is loaded, the name is a string.
    let entry = unsafe { libc::dlsym(library, c"fermata_card".as_ptr()) };
    if entry.is_null() {
        return Err(last_error());
    }
    // SAFETY: fermata-card.h says what the symbol is.
    let entry: extern "C" fn() -> *const CardCalls = unsafe { std::mem::transmute(entry) };
    // SAFETY: the header demands it of what the function returns.
    unsafe { Functions::of(entry()) }
}

/// Lets what the library prints go to the error output: who has started this program reads one line
/// of its output, and a pipe that is full would hold the library up.
///
/// # Errors
///
/// There is no error output.
pub fn print_to_error_output() -> std::io::Result<()> {
    // SAFETY: descriptors only.
    match unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the text of the last error of the dynamic linker.
fn last_error() -> String {
    // SAFETY: the text is valid until the thread's next call of the dynamic linker.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "it cannot be loaded".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
