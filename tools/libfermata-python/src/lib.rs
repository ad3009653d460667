// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfermata for programs in Python: the module `fermata._fermata`, which the package `fermata`
//! (the adjacent directory) presents to programs. Structures of the driver become objects with
//! attributes, and errors become exceptions.

// pyo3 passes arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod arena;
mod context;
mod queue;

use fermata::queue::Reaped;
use fermata::uapi::{CardInfo, SlotInfo, Status};
use fermata::{EngineId, Error};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{create_exception, pymodule, PyErr};

/// The calls of fermata; programs import `fermata`.
#[pymodule]
mod _fermata {
    #[pymodule_export]
    use super::JobError;
    #[pymodule_export]
    use crate::arena::Arena;
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::queue::Queue;

    use pyo3::prelude::*;

    /// Returns the paths of the nodes of the cards, in the order of their numbers.
    #[pyfunction]
    fn devices() -> PyResult<Vec<std::path::PathBuf>> {
        fermata::devices().map_err(|error| crate::error_of_call("/dev", "look for cards", error))
    }

    /// Returns a number that the process does not share with its children of fork().
    #[pyfunction]
    fn process() -> u64 {
        fermata::Process::current().number()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Returns a member of an enumeration of the package. A value that the enumeration does not have,
/// of a later driver, stays a number.
fn member<'py>(py: Python<'py>, name: &str, value: u32) -> PyResult<Bound<'py, PyAny>> {
    let enumeration = py.import("fermata")?.getattr(name)?;
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

fn of_card<'py>(py: Python<'py>, info: &CardInfo) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    set!(fields, info: uapi_version, slots, features, contexts, max_contexts, max_arena);
    namespace(py, &fields)
}

fn of_slot<'py>(py: Python<'py>, info: &SlotInfo) -> PyResult<Bound<'py, PyAny>> {
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

fn of_reaped<'py>(py: Python<'py>, job: &Reaped) -> PyResult<Bound<'py, PyAny>> {
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

fn of_context<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("state", member(py, "State", status.state)?)?;
    let slot = Some(status.slot).filter(|&slot| slot != fermata::uapi::NO_SLOT);
    fields.set_item("slot", slot)?;
    set!(fields, status: error, context, job, run_ns, wait_ns, slices, preemptions, finished, failed, fault_addr, fault_flags,
        arena_length, device_base, snapshot_length, attributes, group, hints, hints_used, hints_wasted, faults, replays);
    namespace(py, &fields)
}

create_exception!(
    fermata,
    JobError,
    PyOSError,
    "A job failed. errno: EFAULT: its engine touched memory outside of the arena; ETIME: it did not pause in time;\n\
     EIO: its state was lost; EPROTO: the card broke its protocol; ENODEV: the card is gone."
);

/// Returns the exception for an error of a call: an `OSError`, which Python turns into a
/// `TimeoutError`, `PermissionError`, ... by its number.
fn error_of_call(object: &str, what: &str, error: Error) -> PyErr {
    explained_error(object, what, error, &error.explained())
}

/// Returns the exception for an error of a call, with its cause and remedy.
fn explained_error(object: &str, what: &str, error: Error, why: &str) -> PyErr {
    PyOSError::new_err((error.errno(), format!("{object}: {what}: {why}")))
}

/// Returns the exception for the last job, if it failed.
fn error_of_job(object: &str, status: &Status) -> Option<PyErr> {
    let why = status.failure()?;
    let text = format!("{object}: the job failed: {why}");
    Some(JobError::new_err((status.error as i32, text)))
}
