// SPDX-License-Identifier: GPL-2.0

//! A histogram of spans of time, of fixed size.
//!
//! Its buckets are log-linear: four to an octave, so that the bounds of a bucket are at most 25 %
//! apart. Below 64 ns buckets are 16 ns wide, and the last bucket takes everything from about two
//! minutes on. `uapi/fermata.h` tells programs the bounds, and libfermata compiles this very file.

/// How many buckets a histogram has.
pub const BUCKETS: usize = 128;

/// The first buckets are `1 << UNIT_SHIFT` ns wide.
const UNIT_SHIFT: u32 = 4;
/// An octave has `1 << PARTS_SHIFT` buckets.
const PARTS_SHIFT: u32 = 2;

/// Returns the bucket that counts spans of `ns` nanoseconds; below [`BUCKETS`].
pub const fn bucket_of(ns: u64) -> usize {
    let units = ns >> UNIT_SHIFT;
    let bucket = if units >> PARTS_SHIFT == 0 {
        units
    } else {
        let octave = (u64::BITS - 1 - units.leading_zeros()) - PARTS_SHIFT;
        let part = (units >> octave) & ((1 << PARTS_SHIFT) - 1);
        (((octave + 1) as u64) << PARTS_SHIFT) + part
    };
    if bucket < BUCKETS as u64 {
        // CAST: just compared.
        bucket as usize
    } else {
        BUCKETS - 1
    }
}

/// Returns the shortest span, in ns, that `bucket` counts. For [`BUCKETS`]: where the last bucket
/// would end if it had an end.
pub const fn lower_bound(bucket: usize) -> u64 {
    let parts = 1 << PARTS_SHIFT;
    // All numbers beyond the last bucket mean the same.
    let bucket = if bucket < BUCKETS { bucket } else { BUCKETS } as u64;
    if bucket < parts {
        bucket << UNIT_SHIFT
    } else {
        (parts + bucket % parts) << (bucket / parts - 1 + UNIT_SHIFT as u64)
    }
}

/// Spans of time in nanoseconds: how many, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Histogram {
    /// How many spans there were.
    pub count: u64,
    /// The sum of all spans, in ns; at most [`u64::MAX`].
    pub sum: u64,
    /// The shortest span, in ns; 0 if there were none.
    pub min: u64,
    /// The longest span, in ns; 0 if there were none.
    pub max: u64,
    /// The number of spans by length ([`bucket_of`]).
    pub buckets: [u64; BUCKETS],
}

impl Histogram {
    /// No spans. All of its bytes are zero.
    pub const EMPTY: Self = Self {
        count: 0,
        sum: 0,
        min: 0,
        max: 0,
        buckets: [0; BUCKETS],
    };

    /// Counts a span of `ns` nanoseconds. O(1).
    pub fn add(&mut self, ns: u64) {
        self.min = if self.count == 0 {
            ns
        } else {
            self.min.min(ns)
        };
        self.max = self.max.max(ns);
        self.sum = self.sum.saturating_add(ns);
        self.count += 1;
        if let Some(count) = self.buckets.get_mut(bucket_of(ns)) {
            *count += 1;
        }
    }

    /// Returns the length in ns that `millionths` of the spans (500,000: half of them, the median)
    /// do not exceed: at least the true length, above it by less than 25 % or 16 ns, whichever is
    /// more, and never above the longest span. Spans in the last bucket count as the longest.
    /// `None`: there were no spans. O([`BUCKETS`]).
    pub fn quantile(&self, millionths: u32) -> Option<u64> {
        const WHOLE: u64 = 1_000_000;
        if self.count == 0 {
            return None;
        }
        let millionths = u64::from(millionths).min(WHOLE);
        // As count * millionths / WHOLE, rounded up, without the overflow.
        let rank =
            (self.count / WHOLE) * millionths + ((self.count % WHOLE) * millionths).div_ceil(WHOLE);
        let rank = rank.max(1);
        let mut seen = 0u64;
        let bucket = self.buckets.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        let longest = match bucket {
            Some(bucket) if bucket + 1 < BUCKETS => lower_bound(bucket + 1) - 1,
            _ => self.max,
        };
        Some(longest.clamp(self.min, self.max.max(self.min)))
    }

    /// Adds all spans of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 {
            other.min
        } else {
            self.min.min(other.min)
        };
        self.max = self.max.max(other.max);
        self.sum = self.sum.saturating_add(other.sum);
        self.count += other.count;
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::EMPTY
    }
}
