// SPDX-License-Identifier: GPL-2.0

//! Reading and changing the values of the files.

use crate::{
    capability::{self, Audit},
    card::{Card, SlotView},
    engine_id::EngineId,
    scheduler::{Duration, Profile, SlotId, SlotState},
    trace,
    uapi::{self, policy},
};
use kernel::{fmt, prelude::*};

/// A value, displayed as a file shows it.
pub(super) enum Value {
    Number(u64),
    Text(&'static str),
    Engine(EngineId),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::Engine(engine) => engine.fmt(f),
        }
    }
}

/// A file of the card: its name, and functions that read and write its value.
pub(super) struct CardValue {
    pub(super) name: &'static CStr,
    pub(super) read: fn(&Card) -> Value,
    pub(super) write: Option<fn(&Card, &str) -> Result>,
}

/// A file of a slot: its name, its mode, and a function that reads its value.
pub(super) struct SlotValue {
    pub(super) name: &'static CStr,
    pub(super) mode: u16,
    read: SlotRead,
}

/// A function that reads a value of a slot.
enum SlotRead {
    Any(fn(&Card, SlotId) -> Value),
    Count(fn(&SlotView) -> u64),
}

impl SlotValue {
    /// Reads the value.
    pub(super) fn read(&self, card: &Card, slot: SlotId) -> Value {
        match self.read {
            SlotRead::Any(read) => read(card, slot),
            SlotRead::Count(count) => Value::Number(count(&card.slot_view(slot))),
        }
    }
}

/// Returns a file that everybody may read.
const fn figure(name: &'static CStr, count: fn(&SlotView) -> u64) -> SlotValue {
    SlotValue {
        name,
        mode: 0o444,
        read: SlotRead::Count(count),
    }
}

/// Returns a file that only root may read, because it reveals what tenants do.
const fn count(name: &'static CStr, count: fn(&SlotView) -> u64) -> SlotValue {
    SlotValue {
        mode: 0o400,
        ..figure(name, count)
    }
}

pub(super) const OF_CARD: [CardValue; 8] = [
    read_only(c"profile", |card| {
        Value::Text(match card.profile() {
            Profile::Base { .. } => "base",
            Profile::Irq => "irq",
            Profile::Relay => "relay",
        })
    }),
    read_only(c"uapi_version", |_| {
        Value::Number(uapi::UAPI_VERSION.into())
    }),
    read_only(c"slots", |card| Value::Number(card.identity.slots.into())),
    read_only(c"contexts", |card| {
        Value::Number(card.context_count().into())
    }),
    read_only(c"max_contexts", |card| {
        // CAST: at most 65,536 (`limits.rs`).
        Value::Number(card.limits.contexts as u64)
    }),
    CardValue {
        name: c"policy",
        read: |card| Value::Text(policy::name_of(card.policy())),
        write: Some(write_policy),
    },
    CardValue {
        name: c"boost_ms",
        read: |card| Value::Number(card.boost().as_ns() / 1_000_000),
        write: Some(write_boost),
    },
    CardValue {
        name: c"boundary_wait_us",
        read: |card| Value::Number(card.boundary_wait().as_ns() / 1_000),
        write: Some(write_boundary_wait),
    },
];

/// Returns a file of the card that cannot be written.
const fn read_only(name: &'static CStr, read: fn(&Card) -> Value) -> CardValue {
    CardValue {
        name,
        read,
        write: None,
    }
}

/// Sets the policy. `EPERM`; `ENOENT`: no policy has this name.
fn write_policy(card: &Card, text: &str) -> Result {
    if !capability::is_administrator(Audit::Denial) {
        return Err(EPERM);
    }
    let policy = policy::named(text.as_bytes()).ok_or(ENOENT)?;
    card.set_policy(policy)
}

/// Sets the starvation boost interval. `EPERM`; `EINVAL`: not a number; `ERANGE`.
fn write_boost(card: &Card, text: &str) -> Result {
    if !capability::is_administrator(Audit::Denial) {
        return Err(EPERM);
    }
    let ms = text.parse().map_err(|_| EINVAL)?;
    card.set_boost(Duration::from_ms(ms))
}

/// Sets the boundary wait. `EPERM`; `EINVAL`: not a number; `ERANGE`.
fn write_boundary_wait(card: &Card, text: &str) -> Result {
    if !capability::is_administrator(Audit::Denial) {
        return Err(EPERM);
    }
    let us = text.parse().map_err(|_| EINVAL)?;
    card.set_boundary_wait(Duration::from_us(us))
}

pub(super) const OF_SLOT: [SlotValue; 20] = [
    SlotValue {
        name: c"engine",
        mode: 0o444,
        read: SlotRead::Any(|card, slot| Value::Engine(card.engine_id(slot))),
    },
    SlotValue {
        name: c"state",
        mode: 0o444,
        read: SlotRead::Any(|card, slot| Value::Text(card.slot_view(slot).state.name())),
    },
    // Only the administrator may know which context is on the slot.
    SlotValue {
        name: c"context",
        mode: 0o400,
        read: SlotRead::Any(|card, slot| {
            Value::Number(number_on(card.slot_view(slot).state).into())
        }),
    },
    count(c"starts", |view| view.stats.starts),
    count(c"resumes", |view| view.stats.resumes),
    count(c"preemptions", |view| view.stats.saves),
    count(c"finished", |view| view.finished),
    count(c"faults", |view| view.faults),
    count(c"resets", |view| view.stats.resets),
    count(c"timeouts", |view| view.stats.timeouts),
    count(c"overruns", |view| view.stats.overruns),
    count(c"overrun_ns", |view| view.stats.overrun.as_ns()),
    count(c"storms", |view| view.storms),
    count(c"spurious_interrupts", |view| view.spurious),
    count(c"throttled_interrupts", |view| view.throttled),
    figure(c"polled", |view| view.is_polled.into()),
    figure(c"exclusive", |view| view.exclusive.is_some().into()),
    count(c"busy_ns", |view| view.stats.busy.as_ns()),
    figure(c"save_ns", |view| view.stats.save.as_ns()),
    figure(c"restore_ns", |view| view.stats.restore.as_ns()),
];

/// Returns the number of the context that is on a slot in this state; 0: none.
pub(super) fn number_on(state: SlotState) -> u32 {
    state.context().map_or(0, trace::number)
}
