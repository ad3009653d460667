// SPDX-License-Identifier: GPL-2.0-or-later
//! What a card's slots did: as the card's log tells it ([`card`]) or as the driver's tracepoints do
//! ([`driver`]), in one model ([`spans`]); as a picture (SVG) that can be looked at anywhere, and
//! as a trace for Perfetto. [`views`] lays the two over each other, and holds them against each
//! other.

#[cfg(feature = "card")]
pub mod card;
pub mod chrome;
mod coverage;
pub mod driver;
pub mod spans;
pub mod svg;
pub mod views;
