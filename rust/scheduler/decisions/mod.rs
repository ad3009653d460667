// SPDX-License-Identifier: GPL-2.0

//! Which context runs next on a slot, and when.
//!
//! A slot has at most one *successor*, the context that runs next there, whatever happens: it is
//! bound when the job on the slot is told to stop, or when an order is posted to a relay. When the
//! slot reports that its job has left, the successor is started, and then the leaver is charged and
//! queued. There is no second decision.

mod account;
mod arrive;
mod bind;
mod caps;
mod check;
mod leave;
mod revise;
mod runs;
mod wait;

use super::card::{Call, Card};
use super::slot::Protocol;
use super::values::{
    Class, ContextId, Duration, EntityIndex, GroupIndex, SlotConfig, SlotId, Time,
};
pub(super) use wait::Waiting;

/// Why a successor was bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was first.
    Turn,
    /// It has waited too long: its slice is not cut short.
    Boost,
    /// Its work has not arrived yet: the slot is kept for it.
    Hint,
}

/// The successor on a slot. Its context is in no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) ctx: EntityIndex,
    pub(super) why: Why,
    /// Its turn among its equals: its place in the queue if it is given back.
    turn: u64,
    /// Relay: when it was named. Its run cannot begin earlier.
    named: Time,
    /// It starts together with its gang; the time is when the job on the slot stops for it.
    pub(super) together: Option<Time>,
}

/// The accounts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accounts {
    /// How much of the run is charged.
    charged: Duration,
    /// How much is charged in virtual time: not the save for another context, and on a relay also
    /// time that is still to come.
    paid: Duration,
    /// How much the capped groups of the context have granted; `None`: it has no such groups.
    granted: Option<Duration>,
    /// The boost has started it.
    boosted: bool,
    /// How long its slice is.
    slice: Duration,
    /// The context that pays for the save; none: the leaver itself.
    payer: Option<ContextId>,
}

impl Accounts {
    const NEW: Self = Self {
        charged: Duration::ZERO,
        paid: Duration::ZERO,
        granted: None,
        boosted: false,
        slice: Duration::ZERO,
        payer: None,
    };
}

/// A slot: its protocol, its successor, and when the policy looks at its run. Opaque: the caller
/// provides the storage for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub(super) protocol: Protocol,
    pub(super) class: Class,
    /// The only group that the slot serves.
    pub(super) exclusive: Option<GroupIndex>,
    next: Option<Next>,
    /// Relay: a successor that was replaced, and that the card may have taken. At most one: before
    /// another is replaced, the status or a record tells what has become of this one.
    prev: Option<Next>,
    /// When the policy looks at the run; of a vacant slot, when the slot is filled.
    check_at: Time,
    /// When what the caps of the run's groups have granted is used up.
    quota_end: Time,
    accounts: Accounts,
    /// When the timer will fire, as far as is known.
    armed: Time,
    /// Contexts that were named for the slot when it went out of use: it may reach their memory.
    stuck: [Option<ContextId>; 2],
}

/// A placeholder to fill new storage with.
impl Default for Slot {
    fn default() -> Self {
        Self::new(SlotId::FIRST, SlotConfig::PLAIN, Class::of(SlotId::FIRST))
    }
}

impl Slot {
    pub(super) fn new(id: SlotId, config: SlotConfig, class: Class) -> Self {
        Self {
            protocol: Protocol::new(id, config),
            class,
            exclusive: None,
            next: None,
            prev: None,
            check_at: Time::NEVER,
            quota_end: Time::NEVER,
            accounts: Accounts::NEW,
            armed: Time::NEVER,
            stuck: [None; 2],
        }
    }

    /// Returns the successor.
    #[inline]
    pub(super) fn next(&self) -> Option<Next> {
        self.next
    }

    /// Has the successor start together with its gang, for which the job on the slot stops at `at`.
    #[allow(dead_code, reason = "only gangs need it")]
    pub(super) fn bind_together(&mut self, at: Time) {
        if let Some(next) = &mut self.next {
            next.together = Some(at);
        }
    }

    /// Takes the successor off if it was to start together with its gang.
    #[allow(dead_code, reason = "only gangs need it")]
    pub(super) fn take_together(&mut self, call: &mut Call<'_, impl Card>) -> Option<Next> {
        if self.protocol.is_loading() {
            self.protocol.close(call);
        }
        self.next.take_if(|next| next.together.is_some())
    }

    /// Returns the context that was named, then replaced, and that the card may have taken.
    pub(super) fn prev(&self) -> Option<Next> {
        self.prev
    }

    /// Returns the contexts whose memory the slot can no longer reach, because it was reset.
    pub(super) fn take_stuck(&mut self) -> [Option<ContextId>; 2] {
        core::mem::take(&mut self.stuck)
    }

    /// Returns whether a context that outranks no other may get the slot.
    #[inline]
    fn is_open(&self) -> bool {
        let is_open = |next: Next| next.why == Why::Hint || next.together.is_some();
        self.protocol.unstopped().is_none() && self.next.is_none_or(is_open)
    }

    /// Returns whether the boost has started the run.
    pub(super) fn is_boosted(&self) -> bool {
        self.accounts.boosted
    }

    /// Returns whether the timer fires at `at` at the latest, or is not needed.
    pub(super) fn is_armed_by(&self, at: Time) -> bool {
        self.armed <= at
    }

    /// Returns how much of the present run is charged.
    pub(super) fn charged(&self) -> Duration {
        self.accounts.charged
    }

    /// Has the policy look at the run, or the vacant slot be filled, at `at` at the latest.
    pub(super) fn check_by(&mut self, at: Time) {
        self.check_at = self.check_at.min(at);
    }

    /// Notes that the slice of the run that has just begun begins later.
    pub(super) fn delay(&mut self, span: Duration) {
        self.check_at = self.check_at + span;
        self.quota_end = self.quota_end + span;
        self.rearm();
    }

    /// Returns when the timer is needed.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        let at = self.protocol.deadline();
        if self.protocol.is_vacant() {
            return at.min(self.check_at);
        }
        match self.protocol.unstopped() {
            Some(_) => at.min(self.quota_end).min(match self.next {
                // With a successor there is nothing to look for.
                Some(next) => next.together.unwrap_or(Time::NEVER),
                None => self.check_at,
            }),
            None => at,
        }
    }

    /// Notes that what the timer was armed for is obsolete. A timer that fires too early costs less
    /// than arming it at every switch of a relay.
    fn rearm(&mut self) {
        if !self.protocol.has_relay() {
            self.armed = Time::NEVER;
        }
    }

    /// Notes that the timer has fired.
    pub(super) fn note_fired(&mut self, now: Time) {
        let armed = core::mem::replace(&mut self.armed, Time::NEVER);
        self.protocol.note_fired(now, armed);
    }

    /// Notes that the timer is needed at `at`. Returns whether it is to be armed.
    #[inline]
    pub(super) fn arm(&mut self, at: Time) -> bool {
        self.protocol.forget_fired();
        let arms = at < self.armed;
        if arms {
            self.armed = at;
        }
        arms
    }
}
