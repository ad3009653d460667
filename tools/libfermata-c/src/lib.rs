// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfermata for programs in C and other languages: `include/libfermata.h` is generated from these
//! functions, and `libfermata.map` has the versions of their symbols.
//!
//! Contract of all functions, which the header tells programs: pointers are valid for what the
//! function's description says, or NULL, which is refused.

// The header has the contract, which each function would repeat; descriptions of functions are comments in C.
#![allow(clippy::missing_safety_doc, clippy::doc_markdown)]

// The functions of the header are in the order of these lines.
mod failure;

mod context;

mod arena;

mod jobs;

mod queue;

pub use arena::*;
pub use context::*;
pub use failure::fermata_message;
pub use jobs::*;
pub use queue::*;
