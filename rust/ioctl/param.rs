// SPDX-License-Identifier: GPL-2.0

//! Calls for the parameters of a context.

use super::Call;
use crate::{
    argument::User,
    card::Card,
    sched::{ContextId, Duration, Params},
    uapi::{self, param},
};
use kernel::{bindings, prelude::*};

impl Call<'_> {
    pub(super) fn param_get(&self) -> Result {
        let mut user = User::<uapi::Param>::read(self.argument)?;
        let range = ParamRange::of(user.value.param, &self.context.card.limits.params)?;
        let params = self.context.card.params(self.context.id()?)?;
        user.value = uapi::Param {
            param: user.value.param,
            value: (range.get)(&params).as_ns(),
            min: range.min.as_ns(),
            max: range.allowed().as_ns(),
            ..Default::default()
        };
        user.write()
    }

    pub(super) fn param_set(&self) -> Result {
        let wanted = User::<uapi::Param>::read(self.argument)?.value;
        let range = ParamRange::of(wanted.param, &self.context.card.limits.params)?;
        let id = self.context.id()?;
        if wanted.min != 0 || wanted.max != 0 {
            return Err(EINVAL);
        }
        range.apply(&self.context.card, id, wanted.value)
    }
}

/// A parameter, its limits, and where it is kept.
pub(super) struct ParamRange {
    min: Duration,
    max: Duration,
    default: Duration,
    get: fn(&Params) -> Duration,
    set: fn(&mut Params, Duration),
}

impl ParamRange {
    /// The parameter number `param`, with its default from `defaults`. `EINVAL`: there is none.
    pub(super) fn of(param: u32, defaults: &Params) -> Result<Self> {
        match param {
            param::TIMESLICE => Ok(Self {
                min: Params::TIMESLICE_MIN,
                max: Params::TIMESLICE_MAX,
                default: defaults.timeslice,
                get: |params| params.timeslice,
                set: |params, value| params.timeslice = value,
            }),
            param::PREEMPT_TIMEOUT => Ok(Self {
                min: Params::PREEMPT_TIMEOUT_MIN,
                max: Params::PREEMPT_TIMEOUT_MAX,
                default: defaults.preempt_timeout,
                get: |params| params.preempt_timeout,
                set: |params, value| params.preempt_timeout = value,
            }),
            _ => Err(EINVAL),
        }
    }

    /// Sets the parameter of `ctx` to `value`. `ERANGE`; `EPERM`: the caller may not.
    pub(super) fn apply(&self, card: &Card, ctx: ContextId, value: u64) -> Result {
        let value = Duration::from_ns(value);
        if value < self.min || value > self.max {
            return Err(ERANGE);
        }
        if value > self.allowed() {
            return Err(EPERM);
        }
        card.set_params(ctx, |params| (self.set)(params, value))
    }

    /// The largest value that the caller may set.
    fn allowed(&self) -> Duration {
        // SAFETY: No requirement. CAST: a small constant.
        if unsafe { bindings::capable(bindings::CAP_SYS_NICE as c_int) } {
            self.max
        } else {
            self.default
        }
    }
}
