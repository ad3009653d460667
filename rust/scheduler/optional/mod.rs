// SPDX-License-Identifier: GPL-2.0

//! Features that the scheduler can do without. Each is one file; without its cargo feature, which
//! only host builds have, functions of the same names that do nothing take the place of the file.

#[cfg(any(MODULE, feature = "hints"))]
pub(super) mod hints;
#[cfg(not(any(MODULE, feature = "hints")))]
#[path = "without/hints.rs"]
pub(super) mod hints;
