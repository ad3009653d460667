// SPDX-License-Identifier: GPL-2.0-or-later
//! The size of the terminal.

use rustix::termios::tcgetwinsize;
use std::io::IsTerminal;

/// Columns and rows of a terminal that has no size, such as a serial console.
pub(crate) const UNSIZED: (u16, u16) = (80, 24);

/// Returns columns and rows of standard output; `None`: it is no terminal.
pub(crate) fn size() -> Option<(u16, u16)> {
    let output = std::io::stdout();
    if !output.is_terminal() {
        return None;
    }
    Some(match tcgetwinsize(&output) {
        Ok(size) if size.ws_col != 0 && size.ws_row != 0 => (size.ws_col, size.ws_row),
        _ => UNSIZED,
    })
}
