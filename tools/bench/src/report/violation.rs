// SPDX-License-Identifier: GPL-2.0
//! Violations of the card's protocol, and who had the card.

use crate::visit::{Cell, Variant, Visit};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The visit of a violation, `None` before the first, and its text.
pub(crate) type Found = (Option<u32>, String);

/// A violation that the card's checker found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Violation {
    /// The visit, from the coming of its driver until it has left the card; `None`: before the first, when fermata.ko has the card.
    pub(crate) visit: Option<u32>,
    pub(crate) cell: Option<Cell>,
    /// fermata.ko had the card, or nobody knows who: the run fails.
    pub(crate) is_own: bool,
    /// Kind and circumstances.
    pub(crate) text: String,
}

impl Violation {
    /// Returns the name of the variant.
    pub(crate) fn variant(&self) -> &'static str {
        self.cell
            .map_or("before the first visit", |cell| cell.variant.name())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, cell, .. } = self;
        match (self.visit, cell) {
            (Some(number), Some(cell)) => {
                write!(f, "{}, visit {number} ({cell:?}): {text}", self.variant())
            }
            (Some(number), None) => write!(f, "visit {number}, which was not ended: {text}"),
            (None, _) => write!(f, "{}: {text}", self.variant()),
        }
    }
}

/// Finds out in whose visit each violation was.
pub(crate) fn attribute(found: Vec<Found>, visits: &[Visit]) -> Vec<Violation> {
    let found = found.into_iter().map(|(visit, text)| {
        let of = visits.iter().find(|of| Some(of.number) == visit);
        let cell = of.map(|visit| visit.cell);
        Violation {
            visit,
            cell,
            is_own: cell.is_none_or(|cell| Variant::is_own(cell.variant)),
            text,
        }
    });
    found.collect()
}
