// SPDX-License-Identifier: GPL-2.0-or-later
//! The content of a checkpoint: the description of a context, which is everything except the contents
//! of the arena and the engine's state; the features that a restorer must know (docs/checkpoint.md);
//! and checks without a card whether sections are consistent.
//!
//! Rules for a change of the format:
//!
//! - Each new field of the description, parameter or kind of section gets a feature, which
//!   docs/checkpoint.md lists. `save` names the feature, and writes the field, only for a context
//!   that uses it, so that all other files stay readable for older restorers.
//! - A restorer reads the list of features before the rest of the description, because a file with
//!   an unknown feature may have unknown fields.
//! - The version in the header changes only if header, sections or the encoding of the list change.
//! - Files of earlier tools stay restorable forever: a change of the format adds a file to
//!   tests/files.txt, and changes none.

use crate::container::{Kind, Reader, Section, SECTION_MAX};
use crate::Refusal;
use fermata::{uapi, Context, EngineId, Error, Param, State};
use serde::{Deserialize, Serialize};
use std::io::Read;

/// The parameter `share` of interface version 1, which files may have; 0: none.
pub(crate) const RETIRED_SHARE: u32 = 7;

/// The content of a section.
#[derive(Debug)]
pub enum Part {
    /// Bytes of the arena at an offset, within the arena.
    Arena(u64, Vec<u8>),
    /// Bytes of the engine's state at an offset, which directly follow the bytes before.
    State(u64, Vec<u8>),
    /// The description has changed.
    Described,
}

/// A checkpoint that is read.
pub struct Content<R> {
    reader: Reader<R>,
    description: Description,
    /// Number of bytes of the state read so far.
    state: u64,
}

impl<R: Read> Content<R> {
    /// Reads the header and the description.
    pub fn new(from: R) -> Result<Self, Refusal> {
        let mut reader = Reader::new(from)?;
        let first = reader.section()?;
        match first.kind {
            Kind::Description => {}
            Kind::Card => return Err(Refusal::Card),
            _ => {
                let text = "it does not begin with a description";
                return Err(Refusal::Inconsistent(text.into()));
            }
        }
        let description = Description::from_bytes(&first.data)?;
        check(&description)?;
        Ok(Self {
            reader,
            description,
            state: 0,
        })
    }

    /// Returns the last description read.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Returns the next part, or `None` at the end of a complete checkpoint.
    pub fn part(&mut self) -> Result<Option<Part>, Refusal> {
        let section = self.reader.section()?;
        match section.kind {
            Kind::End => self.complete().map(|()| None),
            Kind::Description => self.describe(&section.data).map(Some),
            Kind::Arena => self.arena(section).map(Some),
            Kind::State => self.state(section).map(Some),
            Kind::Card => Err(Refusal::Inconsistent("it describes a card, too".into())),
        }
    }

    /// Checks that the stream has no more data.
    pub fn end(self) -> Result<(), Refusal> {
        match self.reader.into_inner().read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Refusal::Trailing),
            Err(error) => Err(Refusal::Unreadable(error)),
        }
    }

    /// Checks a later description, which must be of the same context.
    fn describe(&mut self, data: &[u8]) -> Result<Part, Refusal> {
        let later = Description::from_bytes(data)?;
        check(&later)?;
        let same = |d: &Description| (d.engine, d.state_bytes, d.arena.clone());
        if same(&later) != same(&self.description) {
            return Err(Refusal::Inconsistent("it describes two contexts".into()));
        }
        self.description = later;
        Ok(Part::Described)
    }

    fn arena(&self, section: Section) -> Result<Part, Refusal> {
        let arena = self.description.arena.as_ref();
        let length = arena.map_or(0, |arena| arena.length);
        let end = section.offset.checked_add(section.data.len() as u64);
        if end.is_none_or(|end| end > length) {
            let text = format!("arena at {:#x}, of {length} bytes", section.offset);
            return Err(Refusal::Inconsistent(text));
        }
        Ok(Part::Arena(section.offset, section.data))
    }

    fn state(&mut self, section: Section) -> Result<Part, Refusal> {
        let end = self.state + section.data.len() as u64;
        if section.offset != self.state || end > self.description.state_bytes {
            let text = format!("state at {:#x}, after {:#x}", section.offset, self.state);
            return Err(Refusal::Inconsistent(text));
        }
        self.state = end;
        Ok(Part::State(section.offset, section.data))
    }

    fn complete(&self) -> Result<(), Refusal> {
        let expected = match self.description.job {
            Job::Saved => self.description.state_bytes,
            Job::New | Job::None => 0,
        };
        if self.state != expected {
            let text = format!("{} bytes of state, of {expected}", self.state);
            return Err(Refusal::Inconsistent(text));
        }
        Ok(())
    }
}

/// Checks what the driver would report less clearly.
fn check(description: &Description) -> Result<(), Refusal> {
    let counts = [
        (description.registers.len(), uapi::MAX_REGS),
        (description.results.len(), uapi::MAX_RESULTS),
    ];
    if let Some((count, most)) = counts.into_iter().find(|(count, most)| count > most) {
        return Err(Refusal::TooLarge(format!(
            "{count} registers, of at most {most}"
        )));
    }
    let is_known = |number| match Param::of(number) {
        Some(param) => travels(param),
        None => number == RETIRED_SHARE,
    };
    if let Some((number, _)) = description.parameters.iter().find(|(n, _)| !is_known(*n)) {
        return Err(Refusal::Inconsistent(format!("parameter {number}")));
    }
    Ok(())
}

/// Maximum depth of nesting.
const DEPTH: usize = 16;

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
    /// Returns the description of a context. The job must neither run nor wait: [`Error::Busy`].
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
        description.features = needed_features(&description);
        Ok(description)
    }

    /// Returns the engine.
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
        check_features(bytes)?;
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

/// Returns whether files have this parameter. They do not have the slots, which differ from card to
/// card, nor whether the administrator lets the context run.
fn travels(param: Param) -> bool {
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

/// Returns the parameters that files have, with their values.
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

const COOPERATIVE: &str = "cooperative";
const RESERVATION: &str = "reservation";
const KNOWN_FEATURES: [&str; 2] = [COOPERATIVE, RESERVATION];
/// Maximum length of a feature's name.
const NAME_MAX: usize = 32;

/// The list in a description; all other fields are ignored, because an unknown feature may bring
/// unknown fields.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    features: Vec<String>,
}

/// Returns the names of the features that the context of `description` uses.
fn needed_features(description: &Description) -> Vec<String> {
    let cooperative = (Param::Cooperative.number(), 1);
    let used = [
        (COOPERATIVE, description.parameters.contains(&cooperative)),
        (RESERVATION, description.reservation.is_some()),
    ];
    let needed = used.into_iter().filter(|(_, is_used)| *is_used);
    needed.map(|(name, _)| name.into()).collect()
}

/// Checks that all features that an encoded description names are known. Nothing else of the
/// description is checked.
fn check_features(description: &[u8]) -> Result<(), Refusal> {
    let listed: Listed = ciborium::de::from_reader_with_recursion_limit(description, DEPTH)
        .map_err(|error| Refusal::Inconsistent(format!("the list of features: {error}")))?;
    for name in listed.features {
        if !is_name(&name) {
            return Err(Refusal::Inconsistent("the name of a feature".into()));
        }
        if !KNOWN_FEATURES.contains(&&name[..]) {
            return Err(Refusal::Feature(name));
        }
    }
    Ok(())
}

/// Returns whether `name` can be the name of a feature, which is safe to print.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_named_where_it_is_used() {
        let mut description = Description {
            interface: 1,
            features: Vec::new(),
            engine: [5, 7],
            job: Job::None,
            state_bytes: 4096,
            arena: None,
            registers: Vec::new(),
            results: Vec::new(),
            parameters: vec![(1, 1), (Param::Cooperative.number(), 0)],
            reservation: None,
            account: Account::default(),
        };
        assert!(needed_features(&description).is_empty());
        description.parameters[1].1 = 1;
        assert_eq!(needed_features(&description), [COOPERATIVE]);
        description.reservation = Some(ReservationDescription {
            budget_ns: 1,
            deadline_ns: 2,
            period_ns: 3,
        });
        description.features = needed_features(&description);
        assert_eq!(description.features, KNOWN_FEATURES);
        assert_eq!(
            Description::from_bytes(&description.to_bytes()).unwrap(),
            description
        );
    }
}
