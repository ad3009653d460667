// SPDX-License-Identifier: GPL-2.0

//! The administrator's call for any context of the card.

use super::{param::Parameter, Call};
use crate::{
    context::Context,
    uapi::{self, control},
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn control(&self) -> Result {
        let control = self.read::<uapi::Control>()?.value;
        let operation = Operation::of(&control)?;
        self.on_other(control.context, |other| operation.apply(other))
    }
}

/// What to do to a context.
enum Operation {
    Preempt { hold: bool },
    Resume,
    Set(&'static Parameter, u64),
    Enable(bool),
}

impl Operation {
    /// What `control` asks for. `EINVAL`: there is no such operation or parameter, or the operation
    /// takes none.
    fn of(control: &uapi::Control) -> Result<Self> {
        let operation = match control.operation {
            control::PARAM => return Ok(Self::Set(Parameter::of(control.param)?, control.value)),
            control::PREEMPT => Self::Preempt { hold: false },
            control::HOLD => Self::Preempt { hold: true },
            control::RESUME => Self::Resume,
            control::DISABLE => Self::Enable(false),
            control::ENABLE => Self::Enable(true),
            _ => return Err(EINVAL),
        };
        if control.param != 0 || control.value != 0 {
            return Err(EINVAL);
        }
        Ok(operation)
    }

    fn apply(&self, context: &Context) -> Result {
        let (card, id) = (&context.card, context.id()?);
        match self {
            Self::Preempt { hold } => card.preempt(id, *hold),
            Self::Resume => card.resume(id),
            Self::Set(parameter, value) => parameter.apply(context, *value),
            Self::Enable(enabled) => card.set_enabled(id, *enabled),
        }
    }
}
