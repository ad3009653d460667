// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures of the driver as objects with attributes.

use fermata::queue::Reaped;
use fermata::uapi::{CardInfo, SlotInfo, Status};
use fermata::EngineId;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns a member of an enumeration of the package; a value that it does not have, of a later driver, stays a number.
pub(crate) fn member<'py>(py: Python<'py>, name: &str, value: u32) -> PyResult<Bound<'py, PyAny>> {
    let enumeration = py.import("fermata._enums")?.getattr(name)?;
    enumeration
        .call1((value,))
        .or_else(|_| Ok(value.into_pyobject(py)?.into_any()))
}

fn namespace<'py>(py: Python<'py>, fields: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let namespace = py.import("types")?.getattr("SimpleNamespace")?;
    namespace.call((), Some(fields))
}

macro_rules! set {
    ($fields:ident, $from:ident: $($name:ident),*) => {
        $($fields.set_item(stringify!($name), $from.$name)?;)*
    };
}

pub(crate) fn of_card<'py>(py: Python<'py>, info: &CardInfo) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    set!(fields, info: uapi_version, slots, features, contexts, max_contexts, max_arena);
    namespace(py, &fields)
}

pub(crate) fn of_slot<'py>(py: Python<'py>, info: &SlotInfo) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    let engine = EngineId {
        low: info.afu_id_lo,
        high: info.afu_id_hi,
    };
    fields.set_item("uuid", engine.to_string())?;
    fields.set_item("engine", engine.name())?;
    set!(fields, info: slot, state_pages, flags, switches, busy_ns, resets, save_ns, restore_ns, group, storms, resumes, preemptions,
        finished, faults, timeouts, spurious);
    namespace(py, &fields)
}

pub(crate) fn of_reaped<'py>(py: Python<'py>, job: &Reaped) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    let (result, error) = match job.outcome {
        Ok(result) => (result, 0),
        Err(error) => (0, error.errno()),
    };
    set!(fields, job: number, tag);
    fields.set_item("result", result)?;
    fields.set_item("error", error)?;
    namespace(py, &fields)
}

pub(crate) fn of_context<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("state", member(py, "State", status.state)?)?;
    let slot = Some(status.slot).filter(|&slot| slot != fermata::uapi::NO_SLOT);
    fields.set_item("slot", slot)?;
    set!(fields, status: error, context, job, run_ns, wait_ns, slices, preemptions, finished, failed, fault_addr, fault_flags,
        arena_length, device_base, snapshot_length, attributes, group, hints, hints_used, hints_wasted, hints_ignored, faults, replays);
    namespace(py, &fields)
}
