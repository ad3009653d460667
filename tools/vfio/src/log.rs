// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines about what a guest does, of which a guest can cause as many as it likes: some of them are
//! printed, the others are counted.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are printed in each period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// The lines of a period.
struct Limit {
    began: Option<Instant>,
    printed: u32,
    left_out: u64,
}

static LIMIT: Mutex<Limit> = Mutex::new(Limit::NEW);

/// Prints a line to the error output, unless there were many lines lately.
pub(crate) fn tell(line: Arguments<'_>) {
    let admitted = {
        let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        limit.admit(Instant::now())
    };
    let text = match admitted {
        None => return,
        Some(0) => format!("fermata-vfio: {line}\n"),
        Some(left_out) => {
            format!("fermata-vfio: {line} ({left_out} lines before were left out)\n")
        }
    };
    // By one call, so that the line stays whole where several processes write.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Limit {
    /// Before the first line.
    const NEW: Self = Self {
        began: None,
        printed: 0,
        left_out: 0,
    };

    /// Returns how many lines were left out before this one; `None`: this one is left out.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self
            .began
            .is_none_or(|began| now.duration_since(began) >= PERIOD)
        {
            (self.began, self.printed) = (Some(now), 0);
        }
        if self.printed == LINES {
            self.left_out += 1;
            return None;
        }
        self.printed += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_so_many_lines_and_the_others_are_counted() {
        let mut limit = Limit::NEW;
        let begin = Instant::now();
        for _ in 0..LINES {
            assert_eq!(limit.admit(begin), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(begin + PERIOD / 2), None);
        }
        assert_eq!(limit.admit(begin + PERIOD), Some(7));
        assert_eq!(limit.admit(begin + PERIOD), Some(0));
    }
}
