// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas as buffers: numpy arrays and memoryviews of them share the engine's memory.

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory that a context shares with its engine. It is a buffer: numpy.frombuffer(arena, dtype)
/// and memoryview(arena) make views of the memory, without a copy, which keep the arena mapped as
/// long as they live.
#[pyclass(frozen, module = "fermata")]
pub(crate) struct Arena {
    state: Mutex<Mapping>,
    base: u64,
    length: usize,
}

struct Mapping {
    /// None: closed.
    arena: Option<Arc<fermata::Arena>>,
    /// Views that point into the memory.
    views: usize,
}

impl Arena {
    pub(crate) fn new(arena: fermata::Arena) -> Self {
        let (base, length) = (arena.base(), arena.length());
        Self {
            state: Mutex::new(Mapping {
                arena: Some(Arc::new(arena)),
                views: 0,
            }),
            base,
            length,
        }
    }

    /// Returns the memory for a queue, which keeps it mapped.
    pub(crate) fn mapped(&self) -> PyResult<Arc<fermata::Arena>> {
        let arena = self.mapping().arena.clone().ok_or_else(closed)?;
        check_mapped(&arena).map(|()| arena)
    }

    fn mapping(&self) -> MutexGuard<'_, Mapping> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the arena is closed")
}

/// Refuses an arena that is not mapped in this process.
pub(crate) fn check_mapped(arena: &fermata::Arena) -> PyResult<()> {
    if arena.is_mapped() {
        return Ok(());
    }
    Err(PyValueError::new_err(
        "the arena is not mapped in a child of fork(): open a context in the child",
    ))
}

#[pymethods]
impl Arena {
    /// The device address of the first byte, for registers of the engine.
    #[getter]
    fn base(&self) -> u64 {
        self.base
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        format!(
            "<fermata.Arena of {} bytes at {:#x}>",
            self.length, self.base
        )
    }

    /// Ends the mapping, or leaves this to the last queue in the arena. The memory itself stays the
    /// context's. BufferError: there are views of the memory.
    fn close(&self) -> PyResult<()> {
        let mut mapping = self.mapping();
        if mapping.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "{} views of the arena live: delete the arrays and memoryviews of it first",
                mapping.views
            )));
        }
        mapping.arena = None;
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    /// # Safety
    ///
    /// Called by Python, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut mapping = this.mapping();
        let arena = mapping.arena.as_ref().ok_or_else(closed);
        let arena = arena.and_then(|arena| check_mapped(arena).map(|()| arena));
        let arena = arena.inspect_err(|_| {
            // SAFETY: Python's view. The protocol requires this after an error.
            unsafe { (*view).obj = std::ptr::null_mut() };
        })?;
        let memory = arena.as_ptr().as_ptr().cast();
        let length = this.length as ffi::Py_ssize_t;
        // SAFETY: the memory stays mapped while `views` counts the view, which has a reference to
        // this object.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory, length, 0, flags) };
        if filled < 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        mapping.views += 1;
        Ok(())
    }

    /// # Safety
    ///
    /// Called by Python, once for each view that was filled in.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.mapping().views -= 1;
    }
}
