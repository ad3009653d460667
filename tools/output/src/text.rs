// SPDX-License-Identifier: GPL-2.0-or-later
//! Texts of strangers: names of commands, paths of cgroups and sockets, contents of files. A tenant
//! may put anything into them. They are shown on root's terminal, in pictures and in logs, where
//! they must not move the cursor, or look like a line of their own.

use std::fmt::Write as _;

/// Returns a text of a stranger in one line, without characters that a terminal acts on: control
/// characters, and those that change the direction of writing, are escaped.
pub fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// Returns a text of several lines. Line ends and tabulators stay; a text of a stranger in it must
/// have gone through [`printable`].
pub fn printable_lines(text: &str) -> String {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    text.chars().fold(String::new(), |mut shown, c| {
        match c {
            c if stays(c) || !is_unprintable(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            c if u32::from(c) < 0x100 => {
                let _ = write!(shown, "\\x{:02x}", u32::from(c));
            }
            c => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
        }
        shown
    })
}

/// Returns whether a terminal may act on a character instead of showing it.
pub fn is_unprintable(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Returns JSON with escapes for the characters in its strings that a terminal may act on.
/// Serialization escapes only those below 0x20.
pub fn printable_json(json: &str) -> String {
    json.chars().fold(String::new(), |mut shown, c| {
        // The line ends and tabulators of JSON that is formatted are outside of strings.
        if is_unprintable(c) && !matches!(c, '\n' | '\t') {
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
        shown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\x1b[2J\r\n\t\u{9b}31m\u{202e}z\x7f";

    #[test]
    fn texts_of_strangers_do_nothing_to_a_terminal() {
        assert_eq!(printable("run a\u{e9} --x=1"), "run a\u{e9} --x=1");
        let shown = "a\\x1b[2J\\x0d\\n\\t\\x9b31m\\u{202e}z\\x7f";
        assert_eq!(printable(NASTY), shown);
        let lines = "a\\x1b[2J\\x0d\n\t\\x9b31m\\u{202e}z\\x7f";
        assert_eq!(printable_lines(NASTY), lines);
    }

    #[test]
    fn json_stays_what_it_is() {
        let json = "\"a\\u001b\u{9b}\u{202e}\\n\"";
        assert_eq!(printable_json(json), "\"a\\u001b\\u009b\\u202e\\n\"");
    }
}
