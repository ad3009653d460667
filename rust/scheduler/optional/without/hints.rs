// SPDX-License-Identifier: GPL-2.0

//! A scheduler without hints.

use super::super::card::Call;
use super::super::values::{Class, ContextId, EntityIndex, Refusal, SlotId, Stats, Time};
use super::super::Scheduler;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Hints;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Hint;

impl Hint {
    pub(in super::super) fn report(self, _: &mut Stats) {}
}

impl Scheduler {
    /// There are no hints.
    ///
    /// # Errors
    ///
    /// [`Refusal::Range`].
    pub fn hint<C>(&mut self, _: &mut C, _: Time, _: ContextId, _: Time) -> Result<(), Refusal> {
        Err(Refusal::Range)
    }

    pub fn reserved_for(&self, _: SlotId) -> Option<ContextId> {
        None
    }

    pub(in super::super) fn next_hint(&self, _: Class) -> Time {
        Time::NEVER
    }

    pub(in super::super) fn hint_timer<C>(&mut self, _: &mut Call<'_, C>, _: Class) {}

    pub(in super::super) fn withdraw_hint<C>(&mut self, _: &mut Call<'_, C>, _: EntityIndex) {}

    pub(in super::super) fn take_hint<C>(&mut self, _: &mut Call<'_, C>, _: EntityIndex) {}

    pub(in super::super) fn put_hint(&mut self, _: Time, _: EntityIndex, (): ()) {}

    pub(in super::super) fn use_hint<C>(
        &mut self,
        _: &mut Call<'_, C>,
        _: EntityIndex,
    ) -> Option<SlotId> {
        None
    }

    pub(in super::super) fn gives_up_kept(&self, _: EntityIndex, _: EntityIndex) -> bool {
        true
    }

    pub(in super::super) fn note_kept<C>(
        &mut self,
        _: &mut Call<'_, C>,
        _: SlotId,
        _: EntityIndex,
    ) {
    }

    pub(in super::super) fn keep_vacant<C>(
        &mut self,
        _: &mut Call<'_, C>,
        _: SlotId,
        _: EntityIndex,
    ) {
    }

    pub(in super::super) fn lose_kept(&mut self, _: Time, _: EntityIndex) {}
}
