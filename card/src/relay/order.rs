// SPDX-License-Identifier: GPL-2.0-or-later
//! An order: one 64-bit word.

use serde::{Deserialize, Serialize};

/// What is written to `ORDER[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Order(pub u64);

/// AT of a run that ends by itself only.
const NEVER: u64 = 0xff_ffff;
/// Bits 39:38.
const RESERVED: u64 = 0b1100_0000 << 32;
const RESUME: u64 = 1 << 34;

impl Order {
    /// The order that BACK leaves behind: when run `after` has ended by itself, a context is
    /// resumed.
    pub fn back_to(after: u32, context: u64) -> Self {
        Self(u64::from(after as u16) | (context + 1) << 16 | RESUME | NEVER << 40)
    }

    /// The run that this order follows, mod 2^16.
    pub fn after(self) -> u16 {
        self.0 as u16
    }

    /// NEXT: the index of the context + 1, or 0.
    pub fn next(self) -> u64 {
        self.0 >> 16 & 0x1_ffff
    }

    /// The context that is named.
    pub fn context(self) -> Option<u64> {
        self.next().checked_sub(1)
    }

    /// VACANT
    pub fn vacant(self) -> bool {
        self.bit(33)
    }

    /// RESUME
    pub fn resume(self) -> bool {
        self.bit(34)
    }

    /// BACK
    pub fn back(self) -> bool {
        self.bit(35)
    }

    /// BOUNDARY
    pub fn boundary(self) -> bool {
        self.bit(36)
    }

    /// DROP
    pub fn drops(self) -> bool {
        self.bit(37)
    }

    /// AT in microseconds; `None`: never.
    pub fn at_us(self) -> Option<u64> {
        Some(self.0 >> 40).filter(|at| *at != NEVER)
    }

    /// Whether a reserved bit is set.
    pub fn reserved(self) -> bool {
        self.0 & RESERVED != 0
    }

    /// Whether this order takes the held order back.
    pub fn withdraws(self) -> bool {
        self.next() == 0 && self.at_us().is_none()
    }

    fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let order = Order(0x1234_5678_9abc_def0);
        assert_eq!((order.after(), order.next()), (0xdef0, 0x9abc));
        assert_eq!(order.at_us(), Some(0x12_3456));
        assert!(!order.vacant() && !order.resume() && order.boundary() && order.drops());
        assert!(order.back() && order.reserved());
        assert_eq!(Order(u64::MAX).next(), 0x1_ffff);
        assert_eq!(Order(u64::MAX).at_us(), None);
        for bit in [38, 39] {
            assert!(Order(1 << bit).reserved(), "{bit}");
        }
        assert!(!Order(!(0b1100_0000 << 32)).reserved());
        let back = Order::back_to(0x1_0007, 0xffff);
        assert_eq!((back.after(), back.context()), (7, Some(0xffff)));
        assert!(back.resume() && !back.back() && back.at_us().is_none());
        assert!(Order(NEVER << 40).withdraws() && !Order(0).withdraws());
    }
}
