// SPDX-License-Identifier: GPL-2.0

//! An interrupt vector, and limits on the processor time that its interrupts take.
//!
//! An interrupt is spurious if no slot of the vector has changed, and no change that was read
//! before accounts for the interrupt: it costs a run of the handler and a trapped read. Many
//! spurious interrupts in a short time are a storm. Then the vector is switched off, timers poll
//! its busy slots every 10 ms, and the vector is switched on again after a delay that grows with
//! each storm.
//!
//! Interrupts that report only completions in job queues are not spurious, and a program chooses
//! how many there are. A token bucket bounds their rate: when the bucket is empty, the vector is
//! switched off until there is a token. An interrupt that was raised meanwhile is delivered then.
//! The vector of one slot is on while the job there is being saved. A shared vector stays off, or a
//! neighbour that is saved again and again would lift the limit: a timer polls the other slots, whose
//! owners pay for no more than a millisecond.

use crate::{
    c_object::{callback, Callback},
    monotonic::now,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    scheduler::{Duration, SlotId, Time},
    shim::{self, disable_irq_nosync, enable_irq},
    timer::{Timed, Timer},
};
use core::{mem::offset_of, ptr};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Relaxed, Release},
    time::{hrtimer::AbsoluteHardMode, Monotonic},
};

/// The receiver of a vector's interrupts.
pub(crate) trait EventSink: Sync + Sized {
    /// Handles an interrupt of `vector`. Returns `false` if the interrupt was spurious. Hard
    /// interrupt context.
    fn interrupt(&self, vector: &Vector<Self>) -> bool;

    /// Reports that the vector of `slots`, a bit each, was switched off because of a storm. Hard
    /// interrupt context, under the vector's raw lock.
    fn report_storm(&self, slots: u8);

    /// Polls slots of a shared vector that is throttled: those whose jobs are being saved, and
    /// those of `others`, a bit each, that are busy. Returns when the next job of the vector's
    /// slots is to be saved, `None` if none is. Hard interrupt context.
    fn poll_throttled(&self, vector: &Vector<Self>, others: u8) -> Option<Time>;
}

/// Shortest time for which a throttled vector is off.
const THROTTLE_MIN: Duration = Duration::from_ms(1);
/// How often the slots of a shared vector are polled while it is throttled...
const POLL: Duration = Duration::from_ms(1);
/// ... and while a job there is being saved.
const POLL_SAVE: Duration = Duration::from_us(250);
/// Completion interrupts that a vector may raise at once after it was quiet...
const BURST: u64 = 32;
/// ... or those of this time at the allowed rate, if these are more.
const BURST_SPAN: Duration = Duration::from_ms(10);

/// Maximum number of spurious interrupts within [`SPAN`] that is not a storm.
const SPURIOUS_MAX: u32 = 16;
/// The time in which spurious interrupts are counted.
const SPAN: Duration = Duration::from_ms(10);
/// How long a vector is off for the first storm, and at most.
const OFF_MIN: Duration = Duration::from_ms(10);
const OFF_MAX: Duration = Duration::from_ms(10_240);
/// After a vector was on for this time, and for as long as it was off before, a storm counts as the
/// first.
const CALM: Duration = Duration::from_ms(1_000);

/// Counts the spurious interrupts of a vector.
#[derive(Clone, Copy)]
struct StormDetector {
    /// The beginning of the current [`SPAN`].
    since: Time,
    /// Spurious interrupts in that span.
    spurious: u32,
    /// When the vector was switched on.
    on_since: Time,
    /// How long the vector was off before.
    off: Duration,
}

impl StormDetector {
    /// Returns the detector of a vector that is switched on at `now`.
    fn new(now: Time) -> Self {
        Self {
            since: now,
            spurious: 0,
            on_since: now,
            off: Duration::ZERO,
        }
    }

    /// Counts a spurious interrupt. Returns whether this is a storm. If so, the vector is to be off
    /// for `self.off`.
    fn count_spurious(&mut self, now: Time) -> bool {
        if now.since(self.since) > SPAN {
            self.since = now;
            self.spurious = 0;
        }
        self.spurious = self.spurious.saturating_add(1);
        if self.spurious <= SPURIOUS_MAX {
            return false;
        }
        if self.is_first(now) {
            self.off = Duration::ZERO;
        }
        self.off = self.off.doubled().clamp(OFF_MIN, OFF_MAX);
        true
    }

    /// Returns whether a storm at `now` has nothing to do with the previous storm.
    fn is_first(&self, now: Time) -> bool {
        self.off == Duration::ZERO || now.since(self.on_since) > self.off.max(CALM)
    }

    /// Returns the detector of the vector when it is switched on again at `now`.
    fn switched_on(self, now: Time) -> Self {
        Self {
            off: self.off,
            ..Self::new(now)
        }
    }
}

/// The token bucket of a vector's completion interrupts.
#[derive(Clone, Copy)]
struct TokenBucket {
    /// When the bucket is full again. Each token that is taken delays this by the time between two
    /// tokens.
    full_at: Time,
}

impl TokenBucket {
    /// Takes a token from the bucket, which gets a new one every `interval`. Returns the time of
    /// the next token if the bucket is empty now.
    fn take(&mut self, now: Time, interval: Duration) -> Option<Time> {
        let depth = interval.times(BURST).max(BURST_SPAN);
        // An empty bucket owes no tokens.
        self.full_at = (self.full_at.max(now) + interval).min(now + depth);
        let missing = self.full_at.since(now) + interval;
        (missing > depth).then(|| now + Duration::from_ns(missing.as_ns() - depth.as_ns()))
    }
}

/// An interrupt that is requested.
#[derive(Clone, Copy)]
struct Line {
    irq: u32,
    storms: StormDetector,
    bucket: TokenBucket,
}

/// Why and until when a vector is throttled.
#[derive(Clone, Copy)]
struct Throttle {
    /// The slot that reported too many completions.
    slot: SlotId,
    until: Time,
    /// When slots beside `slot` are polled next.
    next_poll: Time,
    /// What the timer is armed for: `until`, or an earlier poll of slots.
    next_look: Time,
}

/// The state of a vector's interrupt.
#[derive(Clone, Copy)]
enum LineState {
    /// No interrupt is requested.
    Absent,
    /// The interrupt is enabled.
    On(Line),
    /// The interrupt is disabled, by us, once, because of a storm. The timer enables it.
    Storm(Line),
    /// The interrupt is disabled, by us, once, because it reported too many completions. The timer
    /// enables it, or a PAUSE if the vector is of one slot.
    Throttled(Line, Throttle),
}

/// A vector of a card, for one slot or for several that share it.
///
/// # Invariants
///
/// - `sink` is null, or points to the value that `self` is a part of. An interrupt is requested
///   only while `sink` is not null, and [`Vector::stop`] frees it before that value is dropped.
/// - Unless `line_state` is [`LineState::Absent`] its interrupt is requested, with `self` as
///   cookie.
///
/// The layout is that of `struct fermata_vector` (include/fermata_shim.h).
#[pin_data(PinnedDrop)]
#[repr(C)]
pub(crate) struct Vector<S: EventSink> {
    interrupted: unsafe extern "C" fn(*mut c_void),
    sink: Atomic<*mut S>,
    /// The slots that interrupt by this vector, a bit each.
    slots: Atomic<u32>,
    /// Times that the vector was switched off because of a storm.
    storms: Atomic<u64>,
    /// Spurious interrupts.
    spurious: Atomic<u64>,
    /// Times that the vector was switched off because it reported too many completions.
    throttled: Atomic<u64>,
    /// Taken under the card's lock, or without it. No lock is taken under it.
    #[pin]
    line_state: RawSpinLock<LineState>,
    #[pin]
    timer: Timer<Self>,
}

impl<S: EventSink> Vector<S> {
    /// Returns an initialiser for a vector without an interrupt.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            interrupted: callback::<Self, c_void>,
            sink: Atomic::new(ptr::null_mut()),
            slots: Atomic::new(0),
            storms: Atomic::new(0),
            spurious: Atomic::new(0),
            throttled: Atomic::new(0),
            line_state <- new_raw_spinlock!(LineState::Absent, "fermata_vector"),
            // SAFETY: `OFFSET` is that of this field. `drop` stops the timer before any field is
            // dropped.
            timer <- unsafe { Timer::new() },
        })
    }

    /// Sets the receiver of the vector's events.
    ///
    /// # Safety
    ///
    /// `sink` must be pinned, contain `self`, and call [`Vector::stop`] before it is dropped.
    pub(crate) unsafe fn start(&self, sink: *const S) {
        // INVARIANT: By the safety requirement.
        self.sink.store(sink.cast_mut(), Release);
    }

    /// Requests the interrupt `irq`, which reports events of the slots `slots`. Process context,
    /// once, after [`Vector::start`]. The error is that of `request_irq()`.
    pub(crate) fn request(&self, irq: u32, slots: u8) -> Result {
        self.slots.store(slots.into(), Release);
        // SAFETY: The cookie is a `struct fermata_vector`, whose function takes it. `self` is
        // pinned, and `stop` frees the interrupt before `self` is dropped.
        to_result(unsafe { shim::fermata_request_irq(irq, self.cookie()) })?;
        // INVARIANT: The interrupt is requested. Interrupts until now were not counted.
        let now = now();
        *self.line_state.lock() = LineState::On(Line {
            irq,
            storms: StormDetector::new(now),
            bucket: TokenBucket { full_at: now },
        });
        Ok(())
    }

    /// Frees the interrupt, and waits for running handlers. Process context, without the card's
    /// lock.
    pub(crate) fn stop(&self) {
        // From here on neither the handler nor the timer touches the interrupt.
        let line_state = core::mem::replace(&mut *self.line_state.lock(), LineState::Absent);
        if let LineState::On(line) | LineState::Storm(line) | LineState::Throttled(line, _) =
            line_state
        {
            // SAFETY: By the type invariant the interrupt was requested with this cookie; it is
            // freed once, since `line_state` has forgotten it.
            unsafe { bindings::free_irq(line.irq, self.cookie()) };
        }
        self.timer.stop();
    }

    /// Returns the receiver of the vector's events; `None`: [`Vector::start`] was not called yet.
    pub(crate) fn sink(&self) -> Option<&S> {
        // SAFETY: By the type invariant the pointer is null, or points to the value that `self` is
        // a part of, which is alive.
        unsafe { self.sink.load(Acquire).as_ref() }
    }

    fn cookie(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the slots that interrupt by this vector, a bit each.
    pub(crate) fn slots(&self) -> u8 {
        // CAST: `request` stores 8 bits.
        self.slots.load(Acquire) as u8
    }

    /// Returns whether `slot` interrupts by this vector.
    pub(crate) fn serves(&self, slot: SlotId) -> bool {
        self.slots() & slot.bit() != 0
    }

    /// Returns how often the vector was switched off because of a storm.
    pub(crate) fn storms(&self) -> u64 {
        self.storms.load(Relaxed)
    }

    /// Returns the number of spurious interrupts.
    pub(crate) fn spurious_count(&self) -> u64 {
        self.spurious.load(Relaxed)
    }

    /// Returns how often the vector was switched off because it reported too many completions.
    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Relaxed)
    }

    /// Returns whether the vector is switched off because of a storm at the moment.
    pub(crate) fn is_off(&self) -> bool {
        matches!(*self.line_state.lock(), LineState::Storm(_))
    }

    fn is_shared(&self) -> bool {
        self.slots().count_ones() > 1
    }

    /// Takes a token for an interrupt by which `slot` reported only completions; `interval` is the
    /// time between two tokens. Returns `true` if the bucket was empty, and the vector was switched
    /// off until there is a token, for at least a millisecond. `save_due` is when the next job of
    /// the vector's slots is to be saved: the vector of one slot is on from then on. Under the
    /// card's lock, so that no PAUSE comes in between.
    pub(crate) fn completed(
        &self,
        slot: SlotId,
        interval: Duration,
        save_due: Option<Time>,
    ) -> bool {
        let mut line_state = self.line_state.lock();
        let LineState::On(mut line) = *line_state else {
            return false;
        };
        let now = now();
        let token_at = line.bucket.take(now, interval);
        *line_state = LineState::On(line);
        let Some(token_at) = token_at else {
            return false;
        };
        let mut until = token_at.max(now + THROTTLE_MIN);
        if !self.is_shared() {
            until = save_due.map_or(until, |due| until.min(due));
            if until <= now {
                return false;
            }
        }
        disable_irq_nosync(line.irq);
        let mut throttle = Throttle {
            slot,
            until,
            next_poll: now + POLL,
            next_look: until,
        };
        let next_look = self.next_look(&throttle, save_due);
        throttle.next_look = next_look;
        *line_state = LineState::Throttled(line, throttle);
        self.throttled.add(1, Relaxed);
        self.timer.arm(next_look);
        true
    }

    /// Returns when the timer of a throttled vector is to fire next.
    fn next_look(&self, throttle: &Throttle, save_due: Option<Time>) -> Time {
        if !self.is_shared() {
            return throttle.until;
        }
        let at = throttle.until.min(throttle.next_poll);
        save_due.map_or(at, |due| at.min(due.max(now() + POLL_SAVE)))
    }

    /// Makes the end of a save known soon although the vector is throttled. Under the card's lock,
    /// at a PAUSE.
    pub(crate) fn expect_save(&self) {
        let mut line_state = self.line_state.lock();
        let LineState::Throttled(line, mut throttle) = *line_state else {
            return;
        };
        if self.is_shared() {
            let at = now() + POLL_SAVE;
            // Never later, so that many PAUSEs do not put the poll off.
            if at < throttle.next_look {
                throttle.next_look = at;
                *line_state = LineState::Throttled(line, throttle);
                self.timer.arm(at);
            }
            return;
        }
        // If the timer fires nevertheless, it finds nothing to do, or ends another throttling
        // early.
        self.timer.disarm();
        *line_state = LineState::On(line);
        // `completed` has disabled the interrupt.
        enable_irq(line.irq);
    }

    /// Switches the vector on if its time has come. Returns why it is off if it is still throttled.
    fn switch_on(&self) -> Option<Throttle> {
        let mut line_state = self.line_state.lock();
        let now = now();
        let line = match *line_state {
            LineState::Storm(line) => Line {
                storms: line.storms.switched_on(now),
                ..line
            },
            LineState::Throttled(_, throttle) if self.is_shared() && now < throttle.until => {
                return Some(throttle);
            }
            LineState::Throttled(line, _) => line,
            LineState::Absent | LineState::On(_) => return None,
        };
        *line_state = LineState::On(line);
        // Disabled by `note_spurious` or `completed`. MSI chips have no slow bus, so the interrupt
        // may be enabled in interrupt context. Interrupts that were raised meanwhile are delivered
        // now, as one.
        enable_irq(line.irq);
        None
    }

    /// Counts a spurious interrupt, and switches the vector off if this is a storm.
    fn note_spurious(&self, sink: &S) {
        self.spurious.add(1, Relaxed);
        let mut line_state = self.line_state.lock();
        let LineState::On(mut line) = *line_state else {
            return;
        };
        let now = now();
        let first = line.storms.is_first(now);
        if !line.storms.count_spurious(now) {
            *line_state = LineState::On(line);
            return;
        }
        disable_irq_nosync(line.irq);
        *line_state = LineState::Storm(line);
        self.storms.add(1, Relaxed);
        self.timer.arm(now + line.storms.off);
        if first {
            // At most once in a `CALM` time; the storms that follow are only counted.
            sink.report_storm(self.slots());
        }
    }
}

/// The interrupt handler: the cookie is the vector itself.
impl<S: EventSink> Callback<c_void> for Vector<S> {
    const OFFSET: usize = 0;

    fn called(&self) {
        if let Some(sink) = self.sink() {
            if !sink.interrupt(self) {
                self.note_spurious(sink);
            }
        }
    }
}

impl<S: EventSink> Timed for Vector<S> {
    const OFFSET: usize = offset_of!(Self, timer);
    type Mode = AbsoluteHardMode<Monotonic>;

    /// Switches the vector on, or polls slots of a vector that is still throttled.
    fn timer_fired(&self) {
        let Some(throttle) = self.switch_on() else {
            return;
        };
        let now = now();
        let is_poll = now >= throttle.next_poll;
        let others = if is_poll { !throttle.slot.bit() } else { 0 };
        let save_due = self
            .sink()
            .and_then(|sink| sink.poll_throttled(self, others));
        // Locked, so that `stop` stops the timer afterwards.
        let mut line_state = self.line_state.lock();
        if let LineState::Throttled(line, mut throttle) = *line_state {
            if is_poll {
                throttle.next_poll = now + POLL;
            }
            let next_look = self.next_look(&throttle, save_due);
            // A PAUSE may have been written meanwhile, see `expect_save`.
            throttle.next_look = match throttle.next_look > now {
                true => next_look.min(throttle.next_look),
                false => next_look,
            };
            *line_state = LineState::Throttled(line, throttle);
            self.timer.arm(throttle.next_look);
        }
    }
}

#[pinned_drop]
impl<S: EventSink> PinnedDrop for Vector<S> {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
