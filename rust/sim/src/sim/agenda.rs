// SPDX-License-Identifier: GPL-2.0

//! What is going to happen, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fermata_sched_host::sched::Order;

/// Something that happens to a card.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// The next request of a client comes.
    Arrival { client: u32 },
    /// A client says when it will want the slot.
    Hint { client: u32, at: u64 },
    /// A client has prepared its request.
    Ready { client: u32 },
    /// A client has heard of the end of its request.
    Heard { client: u32 },
    /// The engine of a slot comes to the end of something.
    Engine { slot: u8, epoch: u32 },
    /// A status read of a slot returns.
    Status { slot: u8 },
    /// An order reaches a slot with a relay. All that waits in the agenda is as large as the largest of these.
    Order { slot: u8, order: Box<Order> },
    /// The interrupt of a relay's record is handled.
    Record { slot: u8 },
    /// The timer of a slot fires.
    Timer { slot: u8, timer: u32 },
}

/// Ordered by time, then by the order in which they were made: so a run is repeatable.
pub(super) struct Entered {
    pub(super) at: u64,
    seq: u64,
    pub(super) what: What,
}

impl PartialEq for Entered {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}

impl Eq for Entered {}

impl PartialOrd for Entered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// What is going to happen.
#[derive(Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<Entered>>,
    seq: u64,
}

impl Agenda {
    /// Enters what happens at a time.
    pub(super) fn push(&mut self, at: u64, what: What) {
        self.seq += 1;
        let seq = self.seq;
        self.heap.push(Reverse(Entered { at, seq, what }));
    }
    /// Takes out what happens next.
    pub(super) fn pop(&mut self) -> Option<Entered> {
        self.heap.pop().map(|Reverse(next)| next)
    }
}
