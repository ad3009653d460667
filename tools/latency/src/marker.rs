// SPDX-License-Identifier: GPL-2.0
//! Marks in the card's log. A context of another slot runs all the time, and what is written to a register of a running context is
//! forwarded to the card at once: so the card sees when work arrives, on its own clock.

/// The slot whose latency is measured; its engine is `linkedlist`.
pub(crate) const CONTESTED_SLOT: u64 = 0;
/// The slot of the context that marks; its engine is `membench`.
pub(crate) const MARKER_SLOT: u64 = 1;
/// By this register the card's log names who runs (docs/card.md, TAG).
pub(crate) const TAG: u32 = 0x50;
/// A register that `membench` has no use for.
pub(crate) const MARK: u32 = 0x78;
/// Tag of the latency-critical context.
pub(crate) const LC_TAG: u64 = 0x4c43;
/// Tag of the context that marks.
pub(crate) const MARKER_TAG: u64 = 0x4d41;

/// Unlike what else is written there.
const MAGIC: u64 = 0xa771;

/// Latency-critical work is about to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The contexts that are open on the slot, the latency-critical one included.
    pub(crate) contexts: u16,
    /// Counts the arrivals from 1.
    pub(crate) number: u32,
}

impl Arrival {
    /// As it is written to [`MARK`].
    pub(crate) fn to_mark(self) -> u64 {
        MAGIC << 48 | u64::from(self.contexts) << 32 | u64::from(self.number)
    }

    /// What was written to [`MARK`]; `None`: something else.
    pub(crate) fn from_mark(mark: u64) -> Option<Self> {
        let arrival = Self {
            contexts: (mark >> 32) as u16,
            number: mark as u32,
        };
        (mark >> 48 == MAGIC && arrival.number != 0).then_some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_survives_the_register() {
        let arrival = Arrival {
            contexts: 1000,
            number: 77,
        };
        assert_eq!(Arrival::from_mark(arrival.to_mark()), Some(arrival));
        assert_eq!(Arrival::from_mark(0), None);
        assert_eq!(Arrival::from_mark(LC_TAG), None);
    }
}
