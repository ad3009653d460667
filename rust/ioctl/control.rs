// SPDX-License-Identifier: GPL-2.0

//! The administrator's call for any context of the card.

use super::{param::ParamRange, Call};
use crate::{
    argument::User,
    uapi::{self, control},
};
use kernel::{bindings, prelude::*};

impl Call<'_> {
    pub(super) fn control(&self) -> Result {
        let control = User::<uapi::Control>::read(self.argument)?.value;
        let card = &self.context.card;
        let range = match control.operation {
            control::PARAM => Some(ParamRange::of(control.param, &card.limits.params)?),
            control::PREEMPT | control::HOLD | control::RESUME => None,
            _ => return Err(EINVAL),
        };
        if range.is_none() && (control.param != 0 || control.value != 0) {
            return Err(EINVAL);
        }
        // SAFETY: No requirement. CAST: a small constant.
        if !unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) } {
            return Err(EPERM);
        }
        let other = card
            .find_context(|other| other.number().is_ok_and(|number| number == control.context))
            .ok_or(ESRCH)?;
        let id = other.id()?;
        match range {
            Some(range) => range.apply(card, id, control.value),
            None if control.operation == control::RESUME => card.resume(id),
            None => card.preempt(id, control.operation == control::HOLD),
        }
    }
}
