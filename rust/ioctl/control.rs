// SPDX-License-Identifier: GPL-2.0

//! The administrator's call for any context of the card.

use super::{param::Parameter, Call};
use crate::{
    argument::User,
    uapi::{self, control},
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn control(&self) -> Result {
        let control = User::<uapi::Control>::read(self.argument)?.value;
        let parameter = match control.operation {
            control::PARAM => Some(Parameter::of(control.param)?),
            control::PREEMPT | control::HOLD | control::RESUME => None,
            _ => return Err(EINVAL),
        };
        if parameter.is_none() && (control.param != 0 || control.value != 0) {
            return Err(EINVAL);
        }
        self.on_other(control.context, |other| {
            let (card, id) = (&other.card, other.id()?);
            match parameter {
                Some(parameter) => parameter.apply(other, control.value),
                None if control.operation == control::RESUME => card.resume(id),
                None => card.preempt(id, control.operation == control::HOLD),
            }
        })
    }
}
