// SPDX-License-Identifier: GPL-2.0-or-later
//! Parses numbers and times of the command line. An error names the range.

use crate::format;
use std::ops::RangeInclusive;
use std::time::Duration;

pub(crate) type Parsed<T> = Result<T, String>;

/// Parses a number, decimal or 0x….
pub(crate) fn number(text: &str) -> Parsed<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        format!("{text} is no number of at most 64 bits: give it in decimal or as 0x…")
    })
}

/// Parses a number within a range, which has no end if the end is `u64::MAX`.
pub(crate) fn number_in(text: &str, range: &RangeInclusive<u64>) -> Parsed<u64> {
    let (least, most) = (range.start(), range.end());
    match number(text)? {
        value if range.contains(&value) => Ok(value),
        _ if *most == u64::MAX => Err(format!("{text} is out of range: give {least} or more")),
        _ => Err(format!("{text} is out of range: give {least} to {most}")),
    }
}

/// Parses a size in bytes: a number, with K, M, G or T for powers of 1024.
pub(crate) fn size(text: &str) -> Parsed<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        Some((at, 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|bytes| bytes.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text} is not a size: give one as 4096, 64K, 512M, 2G"))
}

/// Parses a number of repetitions.
pub(crate) fn count(text: &str) -> Parsed<u64> {
    number_in(text, &(1..=u64::MAX))
}

/// Parses the number of a context. For the driver 0 means the caller's own context, so 0 is
/// refused.
pub(crate) fn context(text: &str) -> Parsed<u32> {
    const ADVICE: &str = "`fermatactl list` shows the numbers of contexts";
    let number = text.parse::<u32>().ok().filter(|number| *number != 0);
    number.ok_or_else(|| {
        format!(
            "{text} is not the number of a context (1 to {}): {ADVICE}",
            u32::MAX
        )
    })
}

/// Parses a time with a unit, or 0.
pub(crate) fn time(text: &str) -> Parsed<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|_| format!("{text} is no time: give one as 500us, 2ms, 1s"))
}

/// Parses a time within a range, which has no end if the end is [`Duration::MAX`].
pub(crate) fn time_in(text: &str, range: &RangeInclusive<Duration>) -> Parsed<Duration> {
    let shown = |time: &Duration| format::time(time.as_nanos() as u64);
    let (least, most) = (range.start(), range.end());
    match time(text)? {
        value if range.contains(&value) => Ok(value),
        _ if *most == Duration::MAX => Err(format!(
            "{text} is out of range: give {} or more",
            shown(least)
        )),
        _ => Err(format!(
            "{text} is out of range: give {} to {}",
            shown(least),
            shown(most)
        )),
    }
}

/// Parses the time from a hint to the job.
pub(crate) fn ahead(text: &str) -> Parsed<Duration> {
    time_in(text, &(Duration::from_micros(1)..=Duration::from_secs(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "0x", "0xg", "1.5", "18446744073709551616"] {
            assert!(number(text).unwrap_err().contains("is no number"), "{text}");
        }
    }

    #[test]
    fn ranges_hold_and_are_named() {
        assert_eq!(number_in("31", &(0..=31)), Ok(31));
        assert_eq!(
            number_in("32", &(0..=31)).unwrap_err(),
            "32 is out of range: give 0 to 31"
        );
        assert_eq!(count("0").unwrap_err(), "0 is out of range: give 1 or more");
        assert!(context("0").is_err() && context("4294967296").is_err());
        assert_eq!(context("4294967295"), Ok(u32::MAX));
        assert_eq!(ahead("10s"), Ok(Duration::from_secs(10)));
        for text in ["0", "0s", "10001ms", "999ns"] {
            let error = ahead(text).unwrap_err();
            assert_eq!(error, format!("{text} is out of range: give 1us to 10s"));
        }
        let from = time_in("0", &(Duration::from_millis(1)..=Duration::MAX));
        assert_eq!(from.unwrap_err(), "0 is out of range: give 1ms or more");
    }
}
