// SPDX-License-Identifier: GPL-2.0

//! Dumps: what the driver knows of a card at the moment of a hang (docs/dumps.md).
//!
//! The state is copied where the hang is noticed, under the card's raw lock, into memory that was
//! allocated at probe. A work item turns it into text, and gives the text to the kernel's
//! devcoredump, which keeps it for root. The kernel owns the text from then on, so the module can
//! be removed.

mod text;

use crate::{
    bar::Identity,
    delayed_work::{DelayedWork, Worker},
    monotonic::now,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    regs::MAX_SLOTS,
    relay::{RECORDS, RECORD_WORDS},
    scheduler::{Duration, Profile, SlotId, SlotState, Time},
    write_log::{Write, WRITES},
};
use core::mem::offset_of;
use kernel::{
    device::{Bound, Device},
    prelude::*,
    sync::aref::ARef,
};
use pin_init::init_array_from_fn;

/// The time between two dumps of a card.
const INTERVAL: Duration = Duration::from_ms(60_000);
/// How long a dump waits for the consequences of its cause, in milliseconds: a slot that does not
/// pause may not come out of reset either.
const LINGER_MS: u32 = 200;
/// Consequences that a dump lists.
const EVENTS: usize = 16;

/// What has gone wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Cause {
    /// A job was not saved within its preempt timeout.
    PreemptTimeout,
    /// A slot did not come out of reset, and is out of use.
    ResetFailed,
    /// A status that the protocol does not have.
    InvalidStatus,
    /// A record that the protocol does not have, or none.
    InvalidRecord,
    /// The card reads all-ones.
    CardGone,
    /// The PCI core has reported an error of the card or its link.
    LinkError,
}

impl Cause {
    /// All causes, in the order of their numbers.
    const ALL: [Self; 6] = [
        Self::PreemptTimeout,
        Self::ResetFailed,
        Self::InvalidStatus,
        Self::InvalidRecord,
        Self::CardGone,
        Self::LinkError,
    ];

    /// Returns the name in dumps.
    fn name(self) -> &'static str {
        match self {
            Self::PreemptTimeout => "preempt-timeout",
            Self::ResetFailed => "reset-failed",
            Self::InvalidStatus => "invalid-status",
            Self::InvalidRecord => "invalid-record",
            Self::CardGone => "card-gone",
            Self::LinkError => "link-error",
        }
    }
}

/// Something that has gone wrong.
#[derive(Clone, Copy)]
pub(crate) struct Trouble {
    pub(crate) at: Time,
    pub(crate) cause: Cause,
    /// `None`: the whole card.
    pub(crate) slot: Option<SlotId>,
    /// The number of the context; 0: none.
    pub(crate) context: u32,
}

/// An access that a window has refused.
#[derive(Clone, Copy)]
pub(crate) struct RefusedAccess {
    /// Bytes from the beginning of the arena; `None`: it is far away.
    pub(crate) offset: Option<i64>,
    pub(crate) is_write: bool,
    pub(crate) at: Time,
}

/// A slot as the driver knows it.
#[derive(Clone, Copy)]
pub(crate) struct SlotCapture {
    /// The UUID of its engine, low and high half.
    pub(crate) engine: (u64, u64),
    pub(crate) state: SlotState,
    /// The number of the context on the slot; 0: none.
    pub(crate) context: u32,
    /// The status that was read last, and when.
    pub(crate) status: Option<(u64, Time)>,
    /// Bytes of the arena of that context.
    pub(crate) window_size: Option<u64>,
    pub(crate) refused: Option<RefusedAccess>,
    /// Words of the records, without addresses.
    pub(crate) records: [[u64; RECORD_WORDS]; RECORDS],
}

impl SlotCapture {
    const EMPTY: Self = Self {
        engine: (0, 0),
        state: SlotState::Gone,
        context: 0,
        status: None,
        window_size: None,
        refused: None,
        records: [[0; RECORD_WORDS]; RECORDS],
    };
}

/// The state of a card at the moment of a hang.
pub(crate) struct Capture {
    /// The number of the card's node.
    pub(crate) card: u32,
    pub(crate) identity: Option<Identity>,
    pub(crate) profile: Option<Profile>,
    /// The RESET register as it was written.
    pub(crate) in_reset: u8,
    /// The RESET register as it was read, if it was.
    pub(crate) reset_read: Option<u64>,
    pub(crate) slots: [SlotCapture; MAX_SLOTS],
    /// Oldest first.
    pub(crate) writes: [Option<Write>; WRITES],
    /// The cause, and what followed from it.
    troubles: [Option<Trouble>; EVENTS],
    /// How often each cause has occurred since the driver was bound.
    counts: [u64; Cause::ALL.len()],
    /// Events since the last dump that are in no dump.
    missed: u64,
}

impl Capture {
    fn new() -> impl Init<Self> {
        init!(Self {
            card: 0,
            identity: None,
            profile: None,
            in_reset: 0,
            reset_read: None,
            slots <- init_array_from_fn(|_| SlotCapture::EMPTY),
            writes <- init_array_from_fn(|_| None),
            troubles: [None; EVENTS],
            counts: [0; Cause::ALL.len()],
            missed: 0,
        })
    }
}

/// What the lock of a [`Dumper`] protects.
struct Store {
    /// `None` while it is being written as text.
    capture: Option<KBox<Capture>>,
    /// The capture waits for its work item.
    is_taken: bool,
    /// No dump before this time.
    next: Time,
    counts: [u64; Cause::ALL.len()],
    missed: u64,
    /// The card is being removed.
    is_closed: bool,
}

impl Store {
    /// Does what [`Dumper::note`] does. Returns whether the work is to be queued.
    fn take_in(&mut self, trouble: Trouble, fill: impl FnOnce(&mut Capture)) -> bool {
        if self.is_closed {
            return false;
        }
        self.counts[trouble.cause as usize] += 1;
        let Some(capture) = &mut self.capture else {
            self.missed += 1;
            return false;
        };
        if self.is_taken {
            match capture.troubles.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(trouble),
                None => self.missed += 1,
            }
            return false;
        }
        if trouble.at < self.next {
            self.missed += 1;
            return false;
        }
        fill(capture);
        capture.troubles = [None; EVENTS];
        capture.troubles[0] = Some(trouble);
        self.is_taken = true;
        self.next = trouble.at + INTERVAL;
        true
    }
}

/// Makes the dumps of a card.
#[pin_data]
pub(crate) struct Dumper {
    device: ARef<Device>,
    /// Taken under the card's raw lock. Work is queued under it.
    #[pin]
    store: RawSpinLock<Store>,
    #[pin]
    work: DelayedWork<Self>,
}

impl Dumper {
    /// Returns an initialiser for the dumper of `device`. [`Dumper::stop`] must be called before it
    /// is dropped, unless `note` was never called. `ENOMEM`.
    pub(crate) fn new(device: &Device<Bound>) -> Result<impl PinInit<Self> + use<>> {
        let store = Store {
            capture: Some(KBox::init(Capture::new(), GFP_KERNEL)?),
            is_taken: false,
            next: Time::ZERO,
            counts: [0; Cause::ALL.len()],
            missed: 0,
            is_closed: false,
        };
        let device = ARef::from(device);
        Ok(pin_init!(Self {
            device,
            store <- new_raw_spinlock!(store, "fermata_dump"),
            // SAFETY: `OFFSET` is that of this field. `stop` stops the work, which is not queued
            // afterwards.
            work <- unsafe { DelayedWork::new() },
        }))
    }

    /// Notes `trouble`. If a dump is due, `fill` fills in the state of the card; if one is being
    /// made, it lists the trouble; else the trouble is only counted. Any context.
    pub(crate) fn note(&self, trouble: Trouble, fill: impl FnOnce(&mut Capture)) {
        let mut store = self.store.lock();
        if store.take_in(trouble, fill) {
            // Under the lock, so that nothing is queued once `stop` has closed the store.
            self.work.queue(LINGER_MS);
        }
    }

    /// Makes the dump that is under way, and no other from now on. Process context, while the
    /// device is bound, without a lock.
    pub(crate) fn stop(&self) {
        self.store.lock().is_closed = true;
        self.work.flush();
        self.work.stop();
    }

    /// Takes the capture out of the store, if it is complete.
    fn take(&self) -> Option<KBox<Capture>> {
        let mut store = self.store.lock();
        if !store.is_taken {
            return None;
        }
        let mut capture = store.capture.take()?;
        capture.counts = store.counts;
        capture.missed = core::mem::take(&mut store.missed);
        Some(capture)
    }

    /// Gives the capture back, after it was written.
    fn give_back(&self, capture: KBox<Capture>) {
        let mut store = self.store.lock();
        store.capture = Some(capture);
        store.is_taken = false;
    }
}

impl Worker for Dumper {
    const OFFSET: usize = offset_of!(Self, work);

    fn work(&self) {
        if let Some(capture) = self.take() {
            if text::give(&self.device, &capture, now()).is_err() {
                dev_warn!(self.device, "no memory for a dump\n");
            }
            self.give_back(capture);
        }
    }
}
