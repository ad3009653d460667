// SPDX-License-Identifier: GPL-2.0
//! Figures as people read them.

use comfy_table::{presets, CellAlignment, Table};
use serde::{Serialize, Serializer};
use std::fmt::{self, Write as _};

/// A time in three or four digits and a unit.
pub(crate) fn time(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000, "ns"), (1_000_000, "us"), (1_000_000_000, "ms")];
    let seconds = ns / 1_000_000_000;
    if seconds >= 3600 {
        return format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60);
    }
    if seconds >= 100 {
        return format!("{}m{:02}s", seconds / 60, seconds % 60);
    }
    for (below, unit) in UNITS {
        if ns < below {
            return digits(ns as f64 / (below as f64 / 1000.0), unit);
        }
    }
    digits(ns as f64 / 1e9, "s")
}

fn digits(value: f64, unit: &str) -> String {
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0}{unit}")
    } else if value >= 10.0 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.2}{unit}")
    }
}

/// Bytes, in the largest unit in which they are a whole number.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |&(bits, _): &(u32, &str)| count != 0 && count.trailing_zeros() >= bits;
    match units.into_iter().find(fits) {
        Some((bits, unit)) => format!("{} {unit}", count >> bits),
        None => format!("{count} bytes"),
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A word as 0x…, in JSON as text: its numbers are not exact beyond 53 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Something, or `-`.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// A table without lines, indented by two; columns whose titles begin with a `>` are aligned to the right.
pub(crate) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>')));
    for (column, title) in table.column_iter_mut().zip(titles) {
        column.set_padding((2, 0));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.add_rows(rows);
    let text = table.trim_fmt();
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1us"),
            (1_234, "1.23us"),
            (56_780, "56.8us"),
            (2_000_000, "2ms"),
            (999_400_000, "999ms"),
            (12_340_000_000, "12.3s"),
            (123_000_000_000, "2m03s"),
            (7_384_000_000_000, "2h03m"),
        ];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn bytes_are_exact() {
        let cases = [
            (0, "0 bytes"),
            (4095, "4095 bytes"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn tables_are_aligned() {
        let text = table(
            &[">N", "NAME"],
            [vec!["1".into(), "a".into()], vec!["20".into(), "b".into()]],
        );
        assert_eq!(text, "   N  NAME\n   1  a\n  20  b\n");
    }
}
