// SPDX-License-Identifier: GPL-2.0

//! An interrupt vector, and what keeps its interrupts from taking a processor.
//!
//! A card that interrupts for nothing costs a handler and a trapped read each time. Too many of
//! these in a short time are a storm: the vector is switched off, its slots go on by their timers,
//! which look at a busy slot every 10 ms, and it is switched on again after a delay that grows from
//! storm to storm.
//!
//! Interrupts that tell of nothing but completions in job queues are of use, and a program chooses how
//! many there are. A token bucket bounds their rate: when it is empty the vector is switched off until
//! there is a token, or a slot of the vector is told to pause. What came meanwhile comes then.

use crate::{
    card::Card,
    monotonic::now,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    sched::{Duration, SlotId, Time},
    shim,
    timer::{Timed, Timer},
};
use core::{
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, Ordering},
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    time::{hrtimer::AbsoluteHardMode, Monotonic},
};

/// How long a vector is off at least when it is throttled.
const THROTTLE_MIN: Duration = Duration::from_ms(1);
/// Completion interrupts that a vector which was quiet may raise at once...
const BURST: u64 = 32;
/// ... or those of this time at the allowed rate, if that is more.
const BURST_SPAN: Duration = Duration::from_ms(10);

/// Useless interrupts within [`SPAN`] that are still borne. One comes late for a job at the most,
/// after a timer has looked, and timers look at a slot less than once in a millisecond.
const USELESS_MAX: u32 = 16;
/// In what time.
const SPAN: Duration = Duration::from_ms(10);
/// How long a vector is off for the first storm, and at the most.
const OFF_MIN: Duration = Duration::from_ms(10);
const OFF_MAX: Duration = Duration::from_ms(10_240);
/// A vector that was on for so long, and for as long as it was off before, begins anew.
const CALM: Duration = Duration::from_ms(1_000);

/// Counts the useless interrupts of a vector.
#[derive(Clone, Copy)]
struct Watch {
    /// The beginning of the span that is counted in.
    since: Time,
    useless: u32,
    /// When the vector was switched on.
    on_since: Time,
    /// How long it was off before.
    off: Duration,
}

impl Watch {
    /// Of a vector that is switched on at `now`.
    fn new(now: Time) -> Self {
        Self {
            since: now,
            useless: 0,
            on_since: now,
            off: Duration::ZERO,
        }
    }

    /// Counts one; `true`: there are too many, and the vector is to be off for `self.off`.
    fn storms(&mut self, now: Time) -> bool {
        if now.since(self.since) > SPAN {
            self.since = now;
            self.useless = 0;
        }
        self.useless = self.useless.saturating_add(1);
        if self.useless <= USELESS_MAX {
            return false;
        }
        if self.is_first(now) {
            self.off = Duration::ZERO;
        }
        self.off = self.off.doubled().clamp(OFF_MIN, OFF_MAX);
        true
    }

    /// Whether a storm now has nothing to do with the one before.
    fn is_first(&self, now: Time) -> bool {
        self.off == Duration::ZERO || now.since(self.on_since) > self.off.max(CALM)
    }

    /// The vector is switched on again.
    fn switched_on(self, now: Time) -> Self {
        Self {
            off: self.off,
            ..Self::new(now)
        }
    }
}

/// The token bucket of a vector's completion interrupts.
#[derive(Clone, Copy)]
struct Bucket {
    /// When all tokens are there again: each that is taken moves it on by the time between two.
    full_at: Time,
}

impl Bucket {
    /// Takes a token, of which there is a new one every `interval`. Returns the time of the next token
    /// if the bucket is empty now.
    fn take(&mut self, now: Time, interval: Duration) -> Option<Time> {
        let depth = interval.times(BURST).max(BURST_SPAN);
        // A token that is not there is not owed.
        self.full_at = (self.full_at.max(now) + interval).min(now + depth);
        let missing = self.full_at.since(now) + interval;
        (missing > depth).then(|| now + Duration::from_ns(missing.as_ns() - depth.as_ns()))
    }
}

/// An interrupt that is requested.
#[derive(Clone, Copy)]
struct Line {
    irq: u32,
    watch: Watch,
    bucket: Bucket,
}

/// How a vector is delivered.
#[derive(Clone, Copy)]
enum LineState {
    /// No interrupt is requested.
    Absent,
    /// The interrupt comes in.
    On(Line),
    /// The interrupt is disabled, by us, once, because of a storm; the timer enables it.
    Storm(Line),
    /// The interrupt is disabled, by us, once, because it told of too many completions; the timer
    /// or a PAUSE enables it.
    Throttled(Line),
}

/// A vector of a card, for one slot or for several that share it.
///
/// # Invariants
///
/// - `card` is null, or the [`Card`] that `self` is a part of; an interrupt is requested only while
///   it is not null, and [`Vector::stop`] frees it before the card can go.
/// - Unless `line_state` is [`LineState::Absent`] its interrupt is requested, with `self` as cookie.
#[pin_data(PinnedDrop)]
pub(crate) struct Vector {
    card: AtomicPtr<Card>,
    /// The slots that interrupt by it, a bit each.
    slots: AtomicU8,
    /// How often it was switched off.
    storms: AtomicU64,
    /// How often it told of nothing.
    useless: AtomicU64,
    /// How often it was switched off because it told of too many completions.
    throttled: AtomicU64,
    /// Taken under the card's lock, or without it; nothing is taken under it.
    #[pin]
    line_state: RawSpinLock<LineState>,
    #[pin]
    timer: Timer<Self>,
}

impl Vector {
    /// A vector without an interrupt.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            card: AtomicPtr::new(ptr::null_mut()),
            slots: AtomicU8::new(0),
            storms: AtomicU64::new(0),
            useless: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            line_state <- new_raw_spinlock!(LineState::Absent, "fermata_vector"),
            // SAFETY: `OFFSET` is that of this field, and `drop` stops it first.
            timer <- unsafe { Timer::new() },
        })
    }

    /// Says whose vector it is.
    ///
    /// # Safety
    ///
    /// `card` must be pinned, contain `self`, and call [`Vector::stop`] before it is dropped.
    pub(crate) unsafe fn start(&self, card: *const Card) {
        // INVARIANT: By the safety requirement.
        self.card.store(card.cast_mut(), Ordering::Release);
    }

    /// Requests the interrupt `irq`, which tells of the slots of `slots`. Process context, once. The
    /// error is that of `request_irq()`.
    pub(crate) fn request(&self, irq: u32, slots: u8) -> Result {
        self.slots.store(slots, Ordering::Release);
        // SAFETY: `self` is pinned, and `stop` frees the interrupt before it goes.
        to_result(unsafe {
            shim::fermata_request_irq(irq, ptr::from_ref(self).cast_mut().cast())
        })?;
        // INVARIANT: It is requested. What came until now was not counted.
        let now = now();
        *self.line_state.lock() = LineState::On(Line {
            irq,
            watch: Watch::new(now),
            bucket: Bucket { full_at: now },
        });
        Ok(())
    }

    /// Frees the interrupt, and waits for handlers that run. Process context, without the card's
    /// lock.
    pub(crate) fn stop(&self) {
        // From here on neither the handler nor the timer touches the interrupt.
        let line_state = core::mem::replace(&mut *self.line_state.lock(), LineState::Absent);
        if let LineState::On(line) | LineState::Storm(line) | LineState::Throttled(line) =
            line_state
        {
            // SAFETY: By the type invariant requested with this cookie, and freed once.
            unsafe { bindings::free_irq(line.irq, ptr::from_ref(self).cast_mut().cast()) };
        }
        self.timer.stop();
    }

    /// The slots that interrupt by it, a bit each.
    pub(crate) fn slots(&self) -> u8 {
        self.slots.load(Ordering::Acquire)
    }

    /// Whether `slot` interrupts by it.
    pub(crate) fn serves(&self, slot: SlotId) -> bool {
        self.slots() & slot.bit() != 0
    }

    /// How often it was switched off because of a storm.
    pub(crate) fn storms(&self) -> u64 {
        self.storms.load(Ordering::Relaxed)
    }

    /// How often it told of nothing.
    pub(crate) fn useless_count(&self) -> u64 {
        self.useless.load(Ordering::Relaxed)
    }

    /// How often it was switched off because it told of too many completions.
    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Whether it is switched off because of a storm at the moment.
    pub(crate) fn is_off(&self) -> bool {
        matches!(*self.line_state.lock(), LineState::Storm(_))
    }

    /// An interrupt told of completions only, of which there may be one every `interval`. `true`: the
    /// vector was switched off, until there may be one again and for a millisecond at least. Under the
    /// card's lock, so that no PAUSE comes in between.
    pub(crate) fn completed(&self, interval: Duration) -> bool {
        let mut line_state = self.line_state.lock();
        let LineState::On(mut line) = *line_state else {
            return false;
        };
        let now = now();
        let empty = line.bucket.take(now, interval);
        let Some(until) = empty else {
            *line_state = LineState::On(line);
            return false;
        };
        // SAFETY: As in `useless`.
        unsafe { bindings::disable_irq_nosync(line.irq) };
        *line_state = LineState::Throttled(line);
        self.throttled.fetch_add(1, Ordering::Relaxed);
        self.timer.arm(until.max(now + THROTTLE_MIN));
        true
    }

    /// Switches the vector on if it is throttled: an answer to a PAUSE must not wait. Under the card's
    /// lock.
    pub(crate) fn end_throttle(&self) {
        let mut line_state = self.line_state.lock();
        if let LineState::Throttled(line) = *line_state {
            // The timer may fire all the same, and finds nothing to do, or ends another throttling early.
            self.timer.disarm();
            *line_state = LineState::On(line);
            // SAFETY: As in `timer_fired`; `completed` has disabled it.
            unsafe { bindings::enable_irq(line.irq) };
        }
    }

    /// An interrupt told of nothing.
    fn useless(&self, card: &Card) {
        self.useless.fetch_add(1, Ordering::Relaxed);
        let mut line_state = self.line_state.lock();
        let LineState::On(mut line) = *line_state else {
            return;
        };
        let now = now();
        let first = line.watch.is_first(now);
        if !line.watch.storms(now) {
            *line_state = LineState::On(line);
            return;
        }
        // SAFETY: By the type invariant it is requested; it is freed only after `line_state` was
        // replaced under the lock that we hold.
        unsafe { bindings::disable_irq_nosync(line.irq) };
        *line_state = LineState::Storm(line);
        self.storms.fetch_add(1, Ordering::Relaxed);
        self.timer.arm(now + line.watch.off);
        if first {
            // At most once in a CALM time: those that follow are counted only.
            card.report_storm(self.slots());
        }
    }

    /// An interrupt came. `false`: it is not ours. Hard interrupt context.
    fn interrupted(&self) -> bool {
        // SAFETY: By the type invariant it is null or our container, which lives.
        let Some(card) = (unsafe { self.card.load(Ordering::Acquire).as_ref() }) else {
            return false;
        };
        if !card.interrupt(self) {
            self.useless(card);
        }
        true
    }
}

/// # Safety
///
/// Called by the interrupt handler of rust/shim.c with the cookie given to `fermata_request_irq()`.
#[no_mangle]
unsafe extern "C" fn fermata_vector_interrupted(cookie: *mut c_void) -> bool {
    // SAFETY: The cookie is a live `Vector`.
    unsafe { &*cookie.cast_const().cast::<Vector>() }.interrupted()
}

impl Timed for Vector {
    const OFFSET: usize = offset_of!(Self, timer);
    type Mode = AbsoluteHardMode<Monotonic>;

    fn timer_fired(&self) {
        let mut line_state = self.line_state.lock();
        let line = match *line_state {
            LineState::Storm(line) => Line {
                watch: line.watch.switched_on(now()),
                ..line
            },
            LineState::Throttled(line) => line,
            LineState::Absent | LineState::On(_) => return,
        };
        *line_state = LineState::On(line);
        // What came meanwhile comes now, once.
        // SAFETY: As in `useless`; that or `completed` has disabled it. MSI chips have no slow bus, so
        // it may be called from interrupts.
        unsafe { bindings::enable_irq(line.irq) };
    }
}

#[pinned_drop]
impl PinnedDrop for Vector {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
