// SPDX-License-Identifier: GPL-2.0

//! Optional features, a file each. The module has them all. Without a feature, which is possible on
//! the host only, another file has the functions that the rest of the scheduler calls, and they do
//! nothing.

#[cfg_attr(not(any(MODULE, feature = "gangs")), path = "without/gangs.rs")]
pub(super) mod gangs;
#[cfg_attr(not(any(MODULE, feature = "hints")), path = "without/hints.rs")]
pub(super) mod hints;
#[cfg_attr(
    not(any(MODULE, feature = "reservations")),
    path = "without/reservations.rs"
)]
pub(super) mod reservations;
