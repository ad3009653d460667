// SPDX-License-Identifier: GPL-2.0-or-later
//! Formats numbers, tables and histograms for people.

use comfy_table::{presets, CellAlignment, Table};
use fermata::{lower_bound, Histogram};
use fermata_output::text::printable;
use serde::{Serialize, Serializer};
use std::fmt::{self, Write as _};

/// Formats a time with three or four digits and a unit.
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

/// Formats a size in the largest unit that gives a whole number.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |&(bits, _): &(u32, &str)| count != 0 && count.trailing_zeros() >= bits;
    match units.into_iter().find(fits) {
        Some((bits, unit)) => format!("{} {unit}", count >> bits),
        None => format!("{count} bytes"),
    }
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A word, formatted as 0x…; a string in JSON, whose numbers are exact up to 53 bits only.
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

/// Formats a value, or `-`.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Returns the end of a path if the path is longer than `width`; an ellipsis marks a shortened path.
pub(crate) fn end_of_path(width: usize, path: &str) -> String {
    let path = printable(path);
    let length = path.chars().count();
    if length <= width {
        return path;
    }
    let kept: String = path.chars().skip(length + 1 - width.max(1)).collect();
    format!("…{kept}")
}

/// Shortens a text to `width`; an ellipsis marks a shortened text.
pub(crate) fn shortened(width: usize, text: &str) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// Formats a table without lines, indented by two. Columns whose titles begin with `>` are aligned
/// to the right.
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

/// A histogram. Percentiles are at most 25 % (or 16 ns) too long, and null without samples.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) mean_ns: Option<u64>,
    pub(crate) min_ns: Option<u64>,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p90_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
    /// Buckets that are not empty.
    pub(crate) buckets: Vec<Bucket>,
}

/// A bucket: number of times from this one to below that of the next bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bucket {
    pub(crate) from_ns: u64,
    pub(crate) count: u64,
}

impl From<&Histogram> for Spread {
    fn from(histogram: &Histogram) -> Self {
        let any = |value: u64| Some(value).filter(|_| histogram.count != 0);
        let counts = histogram.buckets.iter().enumerate();
        Self {
            count: histogram.count,
            mean_ns: histogram.sum.checked_div(histogram.count),
            min_ns: any(histogram.min),
            p50_ns: histogram.quantile(500_000),
            p90_ns: histogram.quantile(900_000),
            p99_ns: histogram.quantile(990_000),
            max_ns: any(histogram.max),
            buckets: counts
                .filter(|(_, count)| **count != 0)
                .map(|(bucket, count)| Bucket {
                    from_ns: lower_bound(bucket),
                    count: *count,
                })
                .collect(),
        }
    }
}

impl Spread {
    /// The titles of [`Spread::cells`].
    pub(crate) const TITLES: [&str; 7] =
        [">COUNT", ">MEAN", ">MIN", ">P50", ">P90", ">P99", ">MAX"];

    pub(crate) fn cells(&self) -> Vec<String> {
        let times = [
            self.mean_ns,
            self.min_ns,
            self.p50_ns,
            self.p90_ns,
            self.p99_ns,
            self.max_ns,
        ];
        let times = times.map(|ns| or_dash(ns.map(time)));
        std::iter::once(self.count.to_string())
            .chain(times)
            .collect()
    }
}

/// Returns the difference of two samples of a histogram. Longest and shortest time are those since
/// the beginning.
pub(crate) fn since(now: &Histogram, before: &Histogram) -> Histogram {
    let mut new = *now;
    new.count = now.count.saturating_sub(before.count);
    new.sum = now.sum.saturating_sub(before.sum);
    for (count, before) in new.buckets.iter_mut().zip(before.buckets) {
        *count = count.saturating_sub(before);
    }
    new
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
    fn paths_keep_their_ends() {
        assert_eq!(end_of_path(5, "/gold"), "/gold");
        assert_eq!(end_of_path(5, "/a/gold"), "…gold");
        assert_eq!(end_of_path(1, "/gold"), "…");
        assert_eq!(shortened(5, "12345"), "12345");
        assert_eq!(shortened(4, "12345"), "123…");
        assert_eq!(shortened(1, "12345"), "…");
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

    #[test]
    fn nothing_has_no_percentiles() {
        let spread = Spread::from(&Histogram::EMPTY);
        assert_eq!(
            (spread.p99_ns, spread.mean_ns, spread.min_ns),
            (None, None, None)
        );
        assert_eq!(spread.cells(), ["0", "-", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let mut before = Histogram::EMPTY;
        before.add(1_000_000);
        let mut now = before;
        for _ in 0..10 {
            now.add(1_000);
        }
        let spread = Spread::from(&since(&now, &before));
        assert_eq!((spread.count, spread.mean_ns), (10, Some(1_000)));
        assert!(spread.p99_ns.is_some_and(|ns| ns < 1_250));
        assert_eq!(spread.buckets.len(), 1);
    }
}
