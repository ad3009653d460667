// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as exceptions.

use fermata::uapi::Status;
use fermata::Error;
use pyo3::create_exception;
use pyo3::exceptions::PyOSError;
use pyo3::PyErr;

create_exception!(
    fermata,
    JobError,
    PyOSError,
    "A job failed. errno: EFAULT: its engine touched memory outside of the arena; ETIME: it did not pause in time;\n\
     EIO: its state was lost; EPROTO: the card broke its protocol; ENODEV: the card is gone."
);

/// Returns the exception for an error of a call: an `OSError`, which Python makes a `TimeoutError`, `PermissionError`, ... by its number.
pub(crate) fn of_call(object: &str, what: &str, error: Error) -> PyErr {
    let text = format!("{object}: {what}: {}", error.explained());
    PyOSError::new_err((error.errno(), text))
}

/// Returns the exception for the last job, if it failed.
pub(crate) fn of_job(object: &str, status: &Status) -> Option<PyErr> {
    let why = status.failure()?;
    let text = format!("{object}: the job failed: {why}");
    Some(JobError::new_err((status.error as i32, text)))
}
