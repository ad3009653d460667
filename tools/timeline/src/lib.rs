// SPDX-License-Identifier: GPL-2.0-or-later
//! What the slots of a card did, read from the card's log ([`card`]) or from the driver's
//! tracepoints ([`driver`]) into one model ([`spans`]), and written as a picture ([`svg`]) or as a
//! trace for Perfetto ([`chrome`]). [`views`] compares the two views.

#[cfg(feature = "card")]
pub mod card;
pub mod chrome;
mod coverage;
pub mod driver;
pub mod spans;
pub mod svg;
pub mod views;
