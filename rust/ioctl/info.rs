// SPDX-License-Identifier: GPL-2.0

//! Calls that report the state of the card, of its slots and of its contexts.

use super::Call;
use crate::{
    argument::check_flags,
    bar::Fault,
    capability::{self, Audit},
    card::{SlotView, View},
    client::Client,
    context::job_error,
    scheduler::{JobState, PreemptGranularity, SlotId, SlotState, Stats, Urgency, WaitReason},
    uapi::{self, attribute, feature, state as number_of_state, waits},
};
use core::ops::BitOr;
use kernel::{prelude::*, sync::Arc};

impl Call<'_> {
    pub(super) fn card_info(&self) -> Result {
        let mut user = self.read::<uapi::CardInfo>()?;
        check_flags(user.value.flags, 0)?;
        let card = &self.context.card;
        let features = [
            (card.identity.has_irq(), feature::IRQ),
            (card.identity.has_window(), feature::WINDOW),
            (card.identity.is_quiescent(), feature::QUIESCENT),
            (card.identity.has_snapshot_unit(), feature::SNAPSHOT_UNIT),
            (card.has_relay(), feature::RELAY),
            (card.translated, feature::IOMMU),
            (card.limits.foreign_memory, feature::FOREIGN_MEMORY),
        ];
        user.value = uapi::CardInfo {
            uapi_version: uapi::UAPI_VERSION,
            slots: card.identity.slots.into(),
            features: set_bits(&features),
            contexts: card.context_count(),
            // CAST: at most 65,536 (`limits.rs`).
            max_contexts: card.limits.contexts as u32,
            max_arena: card.limits.arena,
            ..Default::default()
        };
        user.write()
    }

    pub(super) fn slot_info(&self) -> Result {
        let mut user = self.read::<uapi::SlotInfo>()?;
        let card = &self.context.card;
        let (id, slot) = card.slot(user.value.slot).ok_or(EINVAL)?;
        let SlotView {
            stats,
            state,
            exclusive,
            storms,
            spurious,
            finished,
            faults,
            is_polled,
            ..
        } = card.slot_view(id);
        let flags = [
            (state == SlotState::Quarantined, uapi::SLOT_QUARANTINED),
            (exclusive.is_some(), uapi::SLOT_EXCLUSIVE),
            (is_polled, uapi::SLOT_POLLED),
        ];
        user.value = uapi::SlotInfo {
            slot: user.value.slot,
            afu_id_lo: slot.afu_id_lo,
            afu_id_hi: slot.afu_id_hi,
            state_pages: u32::try_from(slot.state_pages).unwrap_or(u32::MAX),
            flags: granularity_flags(slot.granularity) | set_bits(&flags),
            save_ns: stats.save.as_ns(),
            restore_ns: stats.restore.as_ns(),
            group: exclusive.map_or(0, |group| self.group_number(group)),
            ..Default::default()
        };
        if capability::may_monitor(Audit::Nothing) {
            user.value = uapi::SlotInfo {
                switches: stats.starts,
                busy_ns: stats.busy.as_ns(),
                resets: stats.resets,
                storms,
                resumes: stats.resumes,
                preemptions: stats.saves,
                finished,
                faults,
                timeouts: stats.timeouts,
                spurious,
                ..user.value
            };
        }
        user.write()
    }

    pub(super) fn status(&self) -> Result {
        let mut user = self.read::<uapi::Status>()?;
        check_flags(user.value.flags, 0)?;
        let memory = self.context.client.memory_info();
        user.value = uapi::Status {
            arena_length: memory.arena_length,
            device_base: memory.device_base,
            snapshot_length: memory.snapshot_length,
            slot: uapi::NO_SLOT,
            group: self.group_number(self.context.group()),
            ..Default::default()
        };
        if self.context.client.is_set_up() {
            let View {
                stats,
                fault,
                faults,
                ..
            } = self.context.view().ok_or(ENODEV)?;
            user.value = uapi::Status {
                state: state_number(stats.state),
                error: job_error(stats.state),
                context: self.context.client.number()?,
                slot: slot_number(stats.slot),
                job: stats.job,
                run_ns: stats.run.as_ns(),
                wait_ns: stats.wait.as_ns(),
                slices: stats.slices,
                preemptions: stats.preemptions,
                finished: stats.finished,
                failed: stats.failed,
                fault_addr: fault.map_or(0, |fault| fault.address),
                fault_flags: fault_flags(fault),
                faults,
                attributes: attributes(&stats),
                hints: stats.hints,
                hints_used: stats.hints_used,
                hints_wasted: stats.hints_wasted,
                replays: stats.replays,
                ..user.value
            };
        }
        user.write()
    }

    pub(super) fn context_info(&self) -> Result {
        let mut user = self.read::<uapi::ContextInfo>()?;
        check_flags(user.value.flags, 0)?;
        let from = user.value.cursor as usize;
        let (index, client, View { stats, params, .. }) = self.listed(from)?;
        user.value = uapi::ContextInfo {
            cursor: number(index) + 1,
            context: client.number()?,
            pid: client.opener.pid_for_caller(),
            state: state_number(stats.state),
            slot: uapi::NO_SLOT,
            slot_mask: params.mask.into(),
            group: self.group_number(client.group()),
            ..Default::default()
        };
        let is_own = Arc::ptr_eq(&client, &self.context.client) || client.opener.is_caller();
        if is_own || capability::may_monitor(Audit::Nothing) {
            user.value = uapi::ContextInfo {
                slot: slot_number(stats.slot),
                job: stats.job,
                run_ns: stats.run.as_ns(),
                wait_ns: stats.wait.as_ns(),
                slices: stats.slices,
                preemptions: stats.preemptions,
                priority: params.priority.into(),
                weight: params.weight.into(),
                attributes: attributes(&stats),
                latency_critical: (params.urgency == Urgency::LatencyCritical).into(),
                timeslice_ns: params.timeslice.as_ns(),
                preempt_timeout_ns: params.preempt_timeout.as_ns(),
                cap: params.cap.into(),
                waits: waits::number_of(stats.waits),
                waits_group: match stats.waits {
                    Some(WaitReason::GroupCap(group)) => self.group_number(group),
                    _ => 0,
                },
                state_ns: stats.lasted.as_ns(),
                ..user.value
            };
        }
        user.write()
    }

    /// Returns the first context from index `from` on that is not being closed, and its index.
    /// `ENOENT`.
    fn listed(&self, mut from: usize) -> Result<(usize, Arc<Client>, View)> {
        let card = &self.context.card;
        loop {
            let (index, client) = card.next_client(from).ok_or(ENOENT)?;
            match card.view(client.id()?) {
                Ok(view) => return Ok((index, client, view)),
                Err(error) if error == ESRCH => from = index + 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns where the engine of a slot can stop, as slot flags.
fn granularity_flags(granularity: PreemptGranularity) -> u32 {
    match granularity {
        PreemptGranularity::Anywhere => 0,
        PreemptGranularity::AnywhereOrBoundary => uapi::SLOT_BOUNDARY,
        PreemptGranularity::BoundaryOnly => uapi::SLOT_BOUNDARY | uapi::SLOT_BOUNDARY_ONLY,
    }
}

/// Returns the set of the `bits` whose conditions hold.
fn set_bits<T: Copy + Default + BitOr<Output = T>>(bits: &[(bool, T)]) -> T {
    bits.iter()
        .filter(|(holds, _)| *holds)
        .fold(T::default(), |all, (_, bit)| all | *bit)
}

/// Returns the fault flags of a refused access.
fn fault_flags(fault: Option<Fault>) -> u32 {
    set_bits(&[(fault.is_some_and(|fault| fault.is_write), uapi::FAULT_WRITE)])
}

/// Returns the attributes of a context, a bit each.
fn attributes(stats: &Stats) -> u32 {
    let attributes = [
        (!stats.enabled, attribute::DISABLED),
        (stats.throttled, attribute::THROTTLED),
        (stats.no_slot, attribute::NO_SLOT),
        (stats.has_hold, attribute::HOLD),
    ];
    set_bits(&attributes)
}

fn state_number(state: JobState) -> u32 {
    match state {
        JobState::Idle => number_of_state::IDLE,
        JobState::Queued => number_of_state::QUEUED,
        JobState::Running => number_of_state::RUNNING,
        JobState::Held => number_of_state::HELD,
        JobState::Empty => number_of_state::EMPTY,
        JobState::Done => number_of_state::DONE,
        JobState::Failed(_) => number_of_state::FAILED,
    }
}

/// Returns the number of a slot in the interface.
fn slot_number(slot: Option<SlotId>) -> u32 {
    slot.map_or(uapi::NO_SLOT, |slot| number(slot.index()))
}

/// Converts a small number to the interface's type.
fn number(n: usize) -> u32 {
    // CAST: contexts and slots are fewer than 2^32 (`limits.rs`).
    n as u32
}
