// SPDX-License-Identifier: GPL-2.0-or-later
//! The description of a context: everything except the contents of the arena and the engine's
//! state.

use crate::container::SECTION_MAX;
use crate::{features, Refusal};
use fermata::{uapi, Context, EngineId, Error, Param, State};
use serde::{Deserialize, Serialize};

/// Maximum depth of nesting.
pub(crate) const DEPTH: usize = 16;

/// The arena of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArenaDescription {
    /// Length in bytes.
    pub length: u64,
    /// Device address of its first byte.
    pub device_base: u64,
}

/// What the context had used when it was saved, for information.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Time on slots.
    pub run_ns: u64,
    /// Time queued.
    pub wait_ns: u64,
    /// Number of slices.
    pub slices: u64,
    /// Number of preemptions.
    pub preemptions: u64,
}

/// A reservation: budget, deadline and period, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationDescription {
    /// Time on a slot in each period.
    pub budget_ns: u64,
    /// Deadline of the budget within the period.
    pub deadline_ns: u64,
    /// Length of a period.
    pub period_ns: u64,
}

/// State of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// No job: none was started, or the job has ended.
    None,
    /// The job has not run yet.
    New,
    /// The job's state is in the checkpoint.
    Saved,
}

/// A context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the driver's interface, for information.
    pub interface: u32,
    /// The features that a restorer must know; files without a feature have no list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The engine's UUID, low and high half.
    pub engine: [u64; 2],
    /// State of the job.
    pub job: Job,
    /// Size of the engine's state in bytes.
    pub state_bytes: u64,
    /// The arena, if there is one.
    pub arena: Option<ArenaDescription>,
    /// The registers that the program has written: offset and value.
    pub registers: Vec<(u32, u64)>,
    /// The registers that the program has declared as results.
    pub results: Vec<u32>,
    /// Scheduling parameters: number (`FERMATA_PARAM_*`) and value.
    pub parameters: Vec<(u32, u64)>,
    /// The reservation, if there is one.
    pub reservation: Option<ReservationDescription>,
    /// What the context had used.
    pub account: Account,
}

impl Description {
    /// Returns the description of a context. The job must not run or wait: [`Error::Busy`].
    pub fn of(context: &Context) -> Result<Self, Error> {
        let status = context.status()?;
        let job = match State::from(status.state) {
            State::New => return Err(Error::NotReady),
            State::Idle | State::Done | State::Failed => Job::None,
            State::Held => Job::Saved,
            _ => return Err(Error::Busy),
        };
        Self::with_job(context, &status, job)
    }

    /// Returns the present description of a context whose job may run or wait.
    pub fn preliminary(context: &Context) -> Result<Self, Error> {
        Self::with_job(context, &context.status()?, Job::None)
    }

    fn with_job(context: &Context, status: &uapi::Status, job: Job) -> Result<Self, Error> {
        // A job that is held before its first run has no state.
        let job = match job {
            Job::Saved => match context.read_snapshot(0, &mut [0; 1]) {
                Err(Error::NoState) => Job::New,
                done => done.map(|()| Job::Saved)?,
            },
            job => job,
        };
        let (engine, state_bytes) = engine_of(context)?;
        let mut description = Self {
            interface: context.card_info()?.uapi_version,
            features: Vec::new(),
            engine: [engine.low, engine.high],
            job,
            state_bytes,
            arena: (status.arena_length != 0).then_some(ArenaDescription {
                length: status.arena_length,
                device_base: status.device_base,
            }),
            registers: context.written_registers()?,
            results: context.declared_results()?,
            parameters: parameters_of(context)?,
            reservation: reservation_of(context)?,
            account: Account {
                run_ns: status.run_ns,
                wait_ns: status.wait_ns,
                slices: status.slices,
                preemptions: status.preemptions,
            },
        };
        description.features = features::needed(&description);
        Ok(description)
    }

    /// The engine.
    pub fn engine(&self) -> EngineId {
        EngineId {
            low: self.engine[0],
            high: self.engine[1],
        }
    }

    /// Returns the encoded description.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail, and all keys of maps can be encoded.
        ciborium::into_writer(self, &mut bytes).expect("a description can be written");
        assert!(bytes.len() <= SECTION_MAX);
        bytes
    }

    /// Decodes a description. Checks the features first, because an unknown feature may be why the
    /// rest cannot be decoded.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Refusal> {
        features::check(bytes)?;
        let mut left = bytes;
        let description: Self = ciborium::de::from_reader_with_recursion_limit(&mut left, DEPTH)
            .map_err(|error| Refusal::Inconsistent(format!("the description: {error}")))?;
        if !left.is_empty() {
            return Err(Refusal::Inconsistent("more than a description".into()));
        }
        Ok(description)
    }
}

/// Returns the engine of a context that is set up, and the size of its state.
fn engine_of(context: &Context) -> Result<(EngineId, u64), Error> {
    let slots = context.param_range(Param::SlotMask)?.max;
    let slot = context.slot_info(slots.trailing_zeros())?;
    let engine = EngineId {
        low: slot.afu_id_lo,
        high: slot.afu_id_hi,
    };
    Ok((engine, u64::from(slot.state_pages) * 4096))
}

/// Returns whether a file has this parameter: not the slots, which differ from card to card, and
/// not whether the administrator lets the context run.
pub(crate) fn travels(param: Param) -> bool {
    match param {
        Param::Timeslice
        | Param::PreemptTimeout
        | Param::Priority
        | Param::Weight
        | Param::LatencyCritical
        | Param::Cap
        | Param::Cooperative => true,
        Param::SlotMask | Param::Enabled => false,
    }
}

/// Returns the parameters that travel.
fn parameters_of(context: &Context) -> Result<Vec<(u32, u64)>, Error> {
    let travel = Param::ALL.into_iter().filter(|param| travels(*param));
    travel
        .map(|param| Ok((param.number(), context.param(param)?)))
        .collect()
}

fn reservation_of(context: &Context) -> Result<Option<ReservationDescription>, Error> {
    Ok(context
        .reservation(0)?
        .map(|reservation| ReservationDescription {
            budget_ns: reservation.budget.as_nanos() as u64,
            deadline_ns: reservation.deadline.as_nanos() as u64,
            period_ns: reservation.period.as_nanos() as u64,
        }))
}
