// SPDX-License-Identifier: GPL-2.0-or-later
//! What all contexts of a guest on the host's card have in common.

use crate::lenders::Lenders;
use fermata::{Context, EngineId, Param, Result};
use std::path::PathBuf;

/// How contexts of the guest are made.
pub(crate) struct Settings {
    /// The host's card.
    pub(crate) device: PathBuf,
    /// Parameters that are not at their defaults.
    pub(crate) params: Vec<(Param, u64)>,
    pub(crate) lenders: Lenders,
}

impl Settings {
    /// Opens a context for an engine, with the parameters set.
    pub(crate) fn open(&self, engine: EngineId) -> Result<Context> {
        let context = Context::open(&self.device)?;
        context.setup(engine, 0)?;
        for &(param, value) in &self.params {
            context.set_param(param, value)?;
        }
        Ok(context)
    }
}
