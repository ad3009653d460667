// SPDX-License-Identifier: GPL-2.0

//! Calls for recreating a context elsewhere.

use super::Call;
use crate::{
    argument::check_flags,
    bar::Fault,
    image::MAX_RESULTS,
    monotonic,
    scheduler::{Failure, PastJobs, Time},
    trace,
    uapi::{self, state},
};
use kernel::{bindings, prelude::*};

/// Maximum number of past jobs: the number of the next job stays far below its limit.
const JOBS_MAX: u64 = 1 << 62;

/// Returns the nanoseconds from now until a time, at least 1.
fn ns_until(at: Time) -> u64 {
    at.since(monotonic::now()).as_ns().max(1)
}

impl Call<'_> {
    pub(super) fn config(&self) -> Result {
        let mut user = self.read::<uapi::Config>()?;
        let config = user.value;
        check_flags(config.flags, 0)?;
        // Whatever memory the context has.
        let process = self.process(config.pid)?;
        let id = self.context.id()?;
        let fd = (config.fd != -1).then_some(config.fd);
        let (events, is_same) = self.context.client.notifier.eventfd(fd)?;
        let memory = self.context.memory_origin();
        let is_in_place = match &process {
            Some(process) => self.context.has_own_memory_in(process)?,
            None => false,
        };
        let stats = self.context.view().ok_or(ENODEV)?.stats;
        let gang = self.context.card.gang_of(id)?;
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let (lender, arena_offset) = memory.shared.unwrap_or_default();
        user.value = uapi::Config {
            size: config.size,
            flags: flag(is_same, uapi::CONFIG_EVENTFD) | flag(is_in_place, uapi::CONFIG_IN_PLACE),
            arena_flags: flag(memory.arena.is_some(), uapi::ARENA_USER)
                | flag(memory.shared.is_some(), uapi::ARENA_SHARED),
            snapshot_flags: flag(memory.snapshot.is_some(), uapi::SNAPSHOT_USER),
            arena_addr: memory.arena.unwrap_or(0),
            arena_offset,
            snapshot_addr: memory.snapshot.unwrap_or(0),
            lender,
            start_flags: flag(stats.replayable, uapi::START_REPLAYABLE),
            events,
            fd: config.fd,
            gang: gang.map_or(0, trace::number),
            pid: config.pid,
            hint_ns: stats.hint.map_or(0, ns_until),
        };
        user.write()
    }

    pub(super) fn outcome(&self) -> Result {
        let outcome = self.read::<uapi::Outcome>()?.value;
        check_flags(outcome.flags, 0)?;
        let past = past_jobs(&outcome)?;
        // CAST: 16.
        let (results, _) = self.register_array(outcome.count, outcome.regs, MAX_RESULTS as u32)?;
        match past {
            Some((past, fault)) => self.context.set_past(past, fault, &results),
            None => self.context.set_results(&results),
        }
    }
}

/// Returns how the jobs have ended, and the access that stopped the last one; `None`: the job is
/// held. `EINVAL`: jobs cannot have ended like that.
fn past_jobs(outcome: &uapi::Outcome) -> Result<Option<(PastJobs, Option<Fault>)>> {
    let uapi::Outcome {
        finished, failed, ..
    } = *outcome;
    let last = match (outcome.state, outcome.error) {
        (state::HELD, 0) if finished == 0 && failed == 0 => None,
        (state::DONE, 0) if finished > 0 => Some(None),
        (state::FAILED, error) if failed > 0 => Some(Some(failure(error)?)),
        _ => return Err(EINVAL),
    };
    check_flags(outcome.fault_flags, uapi::FAULT_WRITE)?;
    let is_fault = last == Some(Some(Failure::Fault));
    let tells_fault = outcome.fault_addr != 0 || outcome.fault_flags != 0;
    let jobs = finished.checked_add(failed);
    if tells_fault && !is_fault || jobs.is_none_or(|jobs| jobs > JOBS_MAX) {
        return Err(EINVAL);
    }
    let fault = is_fault.then_some(Fault {
        address: outcome.fault_addr,
        is_write: outcome.fault_flags & uapi::FAULT_WRITE != 0,
    });
    let past = |last| PastJobs {
        last,
        finished,
        failed,
    };
    Ok(last.map(|last| (past(last), fault)))
}

/// Returns the failure that an error number stands for. `EINVAL`: there is none.
fn failure(error: u32) -> Result<Failure> {
    match error {
        bindings::ETIME => Ok(Failure::PreemptTimeout),
        bindings::EFAULT => Ok(Failure::Fault),
        bindings::EIO => Ok(Failure::Snapshot),
        bindings::EPROTO => Ok(Failure::Protocol),
        _ => Err(EINVAL),
    }
}
