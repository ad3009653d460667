// SPDX-License-Identifier: GPL-2.0

//! How far a sweep over all contexts and groups has come.

/// What is done with each item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nothing: no sweep is under way.
    None,
    /// A group begins anew under the policy in force; then the contexts do.
    ResetGroup,
    /// A context begins anew under the policy in force, and is settled as by `Settle`.
    ResetContext,
    /// A context is brought in line with the slots that are in use, or with the end of the card.
    Settle,
}

/// A sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    pub(super) pass: Pass,
    /// The place of the item to visit next.
    pub(super) next: u32,
}

impl Sweep {
    /// No sweep is under way.
    pub(super) const NONE: Self = Self::new(Pass::None);

    pub(super) const fn new(pass: Pass) -> Self {
        Self { pass, next: 0 }
    }

    /// Has all contexts brought in line with the slots that are in use, or with the end of the
    /// card.
    pub(super) fn settle_all(&mut self, gone: bool) {
        *self = match self.pass {
            // The next pass does that too.
            Pass::ResetGroup if !gone => return,
            Pass::ResetContext if !gone => Self::new(Pass::ResetContext),
            _ => Self::new(Pass::Settle),
        };
    }
}
