// SPDX-License-Identifier: GPL-2.0

//! No reservations: the policy `deadline` is `fair`.

use super::super::card::Call;
use super::super::values::{Class, Duration, EntityIndex, Params, Refusal, Time, WaitReason};
use super::super::Scheduler;

/// Nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Budget;

/// Nothing.
pub(in super::super) type Reservations = Budget;

#[rustfmt::skip]
impl Scheduler {
    pub(in super::super) fn admit(
        &self,
        _: Class,
        _: Option<&Params>,
        params: &Params,
    ) -> Result<(), Refusal> {
        match params.budget {
            Duration::ZERO => Ok(()),
            _ => Err(Refusal::Admission),
        }
    }

    pub(in super::super) fn note_admitted(&mut self, _: Class, _: Option<&Params>, _: Option<&Params>) {}
    pub(in super::super) fn is_reserved(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn renew_rank(&mut self, _: Time, _: EntityIndex) {}
    pub(in super::super) fn renew_budget(&mut self, _: Time, _: EntityIndex, _: bool) -> Option<Time> { None }
    pub(in super::super) fn spend_budget(&mut self, _: EntityIndex, _: i64) {}
    pub(in super::super) fn lacks_budget(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn grant_budget(&mut self, _: Time, _: EntityIndex) -> Option<Duration> { None }
    pub(in super::super) fn await_budget(&mut self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn forget_budget(&mut self, _: EntityIndex) {}
    pub(in super::super) fn deplete(&mut self, _: Time, _: EntityIndex) -> bool { false }
    pub(in super::super) fn next_budget(&self, _: Class) -> Time { Time::NEVER }
    pub(in super::super) fn budget_timer<C>(&mut self, _: &mut Call<'_, C>, _: Class) {}
    pub(in super::super) fn awaits_budget(&self, _: EntityIndex) -> Option<WaitReason> { None }
}
