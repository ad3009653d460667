// SPDX-License-Identifier: GPL-2.0

//! The relay of a slot (docs/card.md, Relay): the order that the slot holds and the records of its
//! runs on the card's side; on the driver's side, what the slot was told.

use fermata_sched_host::sched::{ContextId, Duration, NextRun, Order, RunRecord, Stop};

use crate::key::Key;

/// A record that the driver has not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) record: RunRecord,
    /// Misbehaviour: a read of the status does not push it to memory.
    pub(crate) late: bool,
}

/// What the driver has told a slot of the run that it knows to be there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// The order that was posted last.
    pub(crate) posted: Option<Order>,
    /// The contexts that the card may have taken, a bit for each.
    pub(crate) named: u8,
}

/// What a slot with a relay has beside the others.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts and switches"
)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Relay {
    pub(crate) held: Option<Order>,
    /// The run on the slot began with `START_RESUME`.
    pub(crate) resumed: bool,
    /// When the job began to work, and to stop.
    pub(crate) worked: u64,
    pub(crate) stopped: u64,
    /// Records that the driver has not read, the oldest first.
    pub(crate) records: Vec<Unread>,
    pub(crate) told: Told,
    /// The order that stands from the begin of the next run that the driver hears of.
    pub(crate) back: Option<Order>,
    /// A reset was written, and its end is not known.
    pub(crate) resetting: bool,
    /// Contexts that the quarantined slot may reach, a bit for each.
    pub(crate) stuck: u8,
    // Misbehaviour.
    pub(crate) lose_record: bool,
    pub(crate) delay_record: bool,
    /// The next entry cannot be read; that of the run on the slot could not be read.
    pub(crate) refuse: bool,
    pub(crate) refused: bool,
    /// The run whose record will not come, or comes too late.
    pub(crate) lost: Option<u32>,
    /// The order that was posted last did not count.
    pub(crate) ignored: bool,
}

impl Relay {
    /// Does the run on the slot stop once the time of the order is over?
    pub(crate) fn has_limit(&self) -> bool {
        self.held.is_some_and(|order| is_later(order.stop))
    }

    /// How many of the records are in memory after a read of the status, which pushes them.
    pub(crate) fn pushed(&self) -> usize {
        let pushed = self.records.iter().take_while(|unread| !unread.late);
        pushed.count()
    }

    /// Takes the record of a run out of memory.
    pub(crate) fn take_record(&mut self, run: u32) -> Option<RunRecord> {
        let first = self.records.first()?.record;
        if first.run != run {
            return None;
        }
        self.records.remove(0);
        Some(first)
    }

    /// A reset: no order is held, and the records that were not read are those of runs that nobody
    /// waits for any more.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            told: self.told,
            resetting: self.resetting,
            ..Self::default()
        };
    }

    /// Is a misbehaviour under way?
    pub(crate) fn misbehaves(&self) -> bool {
        let switched = self.lose_record || self.delay_record || self.refuse || self.refused;
        switched || self.lost.is_some() || self.ignored
    }

    /// `count`: the number of the run on the slot.
    pub(crate) fn key(&self, key: &mut Key, count: u32, active: bool) {
        let flags = [
            self.resumed && active,
            self.resetting,
            self.lose_record,
            self.delay_record,
            self.refuse,
            self.refused,
            self.ignored,
        ];
        let bits = flags
            .into_iter()
            .fold(0, |bits, flag| bits << 1 | u64::from(flag));
        let masks = u64::from(self.told.named) << 8 | u64::from(self.stuck) << 16;
        key.word(bits | masks | (self.records.len() as u64) << 32);
        let behind = |run: u32| u64::from(count.wrapping_sub(run)) | 1 << 32;
        key.word(self.lost.map_or(0, behind));
        key.word(self.held.map_or(0, |order| order_word(&order, count)));
        for Unread { record, late } in &self.records {
            let next = record.next.map_or(0, |next| next as u64 + 1);
            let run = u64::from(count.wrapping_sub(record.run));
            let flags = u64::from(*late) << 16 | u64::from(record.back) << 17;
            key.word(record.reason as u64 | next << 8 | flags | run << 32);
        }
    }
}

/// Does a run that is told so go on working for a while?
pub(crate) fn is_later(stop: Stop) -> bool {
    matches!(stop, Stop::Paused { after, .. } if after != Duration::ZERO)
}

/// Does a run that is told so stop at once?
pub(crate) fn is_at_once(stop: Stop) -> bool {
    matches!(stop, Stop::Dropped | Stop::Paused { .. }) && !is_later(stop)
}

/// The order that stands for a run after which the slot goes back to a context.
pub(crate) fn back_to(after: u32, ctx: ContextId) -> Order {
    let next = NextRun {
        ctx,
        resume: true,
        back: false,
    };
    Order {
        after,
        stop: Stop::Never,
        next: Some(next),
    }
}

/// Who is named in an order, by index.
pub(crate) fn named(order: &Order) -> Option<usize> {
    order.next.map(|next| next.ctx.index())
}

/// An order in a key; `count`: the number of the run on its slot.
pub(crate) fn order_word(order: &Order, count: u32) -> u64 {
    let stop = match order.stop {
        Stop::Vacant => 1,
        Stop::Never => 2,
        Stop::Dropped => 3,
        Stop::Paused { boundary, .. } => {
            4 | u64::from(boundary) | u64::from(is_later(order.stop)) << 1
        }
    };
    let next = order.next.map_or(0, |NextRun { ctx, resume, back }| {
        (ctx.index() as u64 + 1) << 4 | u64::from(resume) << 3 | u64::from(back) << 2
    });
    stop | next << 4 | u64::from(order.after.wrapping_sub(count)) << 32
}
