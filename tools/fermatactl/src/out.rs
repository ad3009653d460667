// SPDX-License-Identifier: GPL-2.0-or-later
//! Prints answers: as text, or as JSON, one value a line.

use crate::trouble::{Result, Trouble};
use serde::Serialize;
use std::io::Write;

/// The form of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints an answer as JSON, or as the text that `text` returns.
    pub(crate) fn show<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let mut text = if self.json {
            serde_json::to_string(answer).map_err(std::io::Error::from)?
        } else {
            text(answer)
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let mut output = std::io::stdout().lock();
        output.write_all(text.as_bytes())?;
        Ok(output.flush()?)
    }

    /// Prints an error. A failure to print is ignored.
    pub(crate) fn complain(self, trouble: &Trouble) {
        let text = match serde_json::to_string(trouble) {
            Ok(json) if self.json => json,
            _ => format!("fermatactl: {trouble}"),
        };
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
