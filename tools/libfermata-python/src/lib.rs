// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfermata for programs in Python: the module `fermata._fermata`, which the package `fermata` (the folder beside) presents to programs.

// pyo3 gives arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod arena;
mod context;
mod failure;
mod queue;
mod status;

use pyo3::pymodule;

/// The calls of fermata; programs import `fermata`.
#[pymodule]
mod _fermata {
    #[pymodule_export]
    use crate::arena::Arena;
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::failure::JobError;
    #[pymodule_export]
    use crate::queue::Queue;

    use pyo3::prelude::*;

    /// Returns the paths of the nodes of the cards, in the order of their numbers.
    #[pyfunction]
    fn devices() -> PyResult<Vec<std::path::PathBuf>> {
        fermata::devices().map_err(|error| crate::failure::of_call("/dev", "look for cards", error))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
