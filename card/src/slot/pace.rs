// SPDX-License-Identifier: GPL-2.0
//! Paces an engine: so many units per microsecond of time that has gone by.

/// Credit that an engine has to work.
pub(super) struct Pacer {
    last: u64,
    /// Thousandths of a unit.
    credit: u64,
}

/// A host that was late gives no more credit than for so long.
const MAX_BURST_NS: u64 = 5_000_000;

impl Pacer {
    pub(super) fn new(now: u64) -> Self {
        Self {
            last: now,
            credit: 0,
        }
    }

    /// Units that may be worked on now; less than `quantum` is none yet.
    pub(super) fn allowance(&mut self, now: u64, speed: u64, quantum: u64) -> u64 {
        let elapsed = now.saturating_sub(self.last).min(MAX_BURST_NS);
        self.last = now;
        if speed == 0 {
            return u64::MAX;
        }
        let most = speed.saturating_mul(MAX_BURST_NS).max(quantum * 1000);
        self.credit = self
            .credit
            .saturating_add(elapsed.saturating_mul(speed))
            .min(most);
        let units = self.credit / 1000;
        if units < quantum {
            0
        } else {
            units
        }
    }

    /// Takes what was worked on from the credit.
    pub(super) fn spend(&mut self, units: u64) {
        self.credit = self.credit.saturating_sub(units.saturating_mul(1000));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_grows_with_time() {
        let mut pacer = Pacer::new(0);
        assert_eq!(pacer.allowance(1_000, 10, 64), 0);
        assert_eq!(pacer.allowance(10_000, 10, 64), 100);
        pacer.spend(64);
        assert_eq!(pacer.allowance(10_000, 10, 1), 36);
        assert_eq!(pacer.allowance(u64::MAX, 10, 1), 50_000);
        assert_eq!(pacer.allowance(u64::MAX, 0, 1), u64::MAX);
    }
}
