// SPDX-License-Identifier: GPL-2.0
//! Programs that have contexts, as far as /proc tells.

use std::fs;

/// The command of a process: its arguments, or its name in brackets where it has none; `None`: it is not there, or not ours to see.
pub(crate) fn command(pid: u32) -> Option<String> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&arguments);
    let words: Vec<_> = text.split('\0').filter(|word| !word.is_empty()).collect();
    if !words.is_empty() {
        return Some(words.join(" "));
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("[{}]", name.trim_end()))
}

/// The name of a process; `None`: it is not there.
pub(crate) fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().into())
}
