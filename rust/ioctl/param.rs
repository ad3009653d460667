// SPDX-License-Identifier: GPL-2.0

//! Calls for the parameters of a context.

use super::Call;
use crate::{
    capability,
    context::Context,
    sched::{Duration, Params, Urgency},
    uapi::{self, param},
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn param_get(&self) -> Result {
        let mut user = self.read::<uapi::Param>()?;
        let parameter = Parameter::of(user.value.param)?;
        let params = self.context.card.params(self.context.id()?)?;
        let (min, max) = parameter.limits(self.context);
        user.value = uapi::Param {
            param: user.value.param,
            value: (parameter.get)(&params),
            min,
            max,
            ..Default::default()
        };
        user.write()
    }

    pub(super) fn param_set(&self) -> Result {
        let wanted = self.read::<uapi::Param>()?.value;
        let parameter = Parameter::of(wanted.param)?;
        self.context.id()?;
        if wanted.min != 0 || wanted.max != 0 {
            return Err(EINVAL);
        }
        parameter.apply(self.context, wanted.value)
    }
}

/// A parameter, its values, and where it is kept.
pub(super) struct Parameter {
    number: u32,
    values: Values,
    get: fn(&Params) -> u64,
    set: fn(&mut Params, u64),
}

/// What values a parameter takes.
enum Values {
    /// All of a range.
    Range {
        min: u64,
        max: u64,
        /// Of the parameters of a new context: the largest value that takes no CAP_SYS_NICE.
        free: fn(&Params) -> u64,
    },
    /// 0 or 1, as the context's engine can.
    Cooperative,
    /// Slots of the context's engine, a bit each.
    Slots,
}

/// The parameters.
static PARAMETERS: [Parameter; 8] = [
    Parameter {
        number: param::TIMESLICE,
        values: Values::Range {
            min: Params::TIMESLICE_MIN.as_ns(),
            max: Params::TIMESLICE_MAX.as_ns(),
            free: |new| new.timeslice.as_ns(),
        },
        get: |params| params.timeslice.as_ns(),
        set: |params, value| params.timeslice = Duration::from_ns(value),
    },
    Parameter {
        number: param::PREEMPT_TIMEOUT,
        values: Values::Range {
            min: Params::PREEMPT_TIMEOUT_MIN.as_ns(),
            max: Params::PREEMPT_TIMEOUT_MAX.as_ns(),
            free: |new| new.preempt_timeout.as_ns(),
        },
        get: |params| params.preempt_timeout.as_ns(),
        set: |params, value| params.preempt_timeout = Duration::from_ns(value),
    },
    Parameter {
        number: param::PRIORITY,
        values: Values::Range {
            min: 0,
            // CAST: widens.
            max: Params::PRIORITY_MAX as u64,
            free: |new| new.priority.into(),
        },
        get: |params| params.priority.into(),
        // CAST: within the range.
        set: |params, value| params.priority = value as u8,
    },
    Parameter {
        number: param::WEIGHT,
        values: Values::Range {
            // CAST: widens.
            min: Params::WEIGHT_MIN as u64,
            // CAST: widens.
            max: Params::WEIGHT_MAX as u64,
            free: |new| new.weight.into(),
        },
        get: |params| params.weight.into(),
        // CAST: within the range.
        set: |params, value| params.weight = value as u16,
    },
    Parameter {
        number: param::LATENCY_CRITICAL,
        values: Values::Range {
            min: 0,
            max: 1,
            free: |_| 0,
        },
        get: |params| (params.urgency == Urgency::LatencyCritical).into(),
        set: |params, value| {
            params.urgency = match value {
                0 => Urgency::BestEffort,
                _ => Urgency::LatencyCritical,
            }
        },
    },
    Parameter {
        number: param::CAP,
        values: Values::Range {
            min: 0,
            max: 100,
            free: |_| 100,
        },
        get: |params| params.cap.into(),
        // CAST: within the range.
        set: |params, value| params.cap = value as u8,
    },
    Parameter {
        number: param::SLOT_MASK,
        values: Values::Slots,
        get: |params| params.mask.into(),
        // CAST: within the slots of an engine.
        set: |params, value| params.mask = value as u8,
    },
    Parameter {
        number: param::COOPERATIVE,
        values: Values::Cooperative,
        get: |params| params.cooperative.into(),
        set: |params, value| params.cooperative = value != 0,
    },
];

impl Parameter {
    /// Returns the parameter number `number`. `EINVAL`: there is none.
    pub(super) fn of(number: u32) -> Result<&'static Self> {
        let mut parameters = PARAMETERS.iter();
        let found = parameters.find(|parameter| parameter.number == number);
        found.ok_or(EINVAL)
    }

    /// Of `context`: the smallest value, the largest one, and the largest one that takes no
    /// CAP_SYS_NICE.
    fn range(&self, context: &Context) -> (u64, u64, u64) {
        let engine = context.client.engine_slots();
        match self.values {
            Values::Range { min, max, free } => (min, max, free(&context.card.limits.params)),
            Values::Cooperative => {
                let max = context.card.has_boundaries(engine).into();
                (context.card.is_boundary_only(engine).into(), max, max)
            }
            Values::Slots => {
                let slots = u64::from(engine);
                (slots & slots.wrapping_neg(), slots, slots)
            }
        }
    }

    /// The smallest and the largest value that the caller may set for `context`.
    fn limits(&self, context: &Context) -> (u64, u64) {
        let (min, max, free) = self.range(context);
        let most = if capability::may_raise() { max } else { free };
        (min, most.min(self.ceiling(context)))
    }

    /// The largest value that the group of `context` allows.
    fn ceiling(&self, context: &Context) -> u64 {
        let id = context.id().ok().filter(|_| self.number == param::PRIORITY);
        let most = id.and_then(|id| context.card.max_priority(id).ok());
        most.map_or(u64::MAX, u64::from)
    }

    /// Sets the parameter of `context` to `value`. `ERANGE`; `EPERM`: the caller may not; of slots:
    /// `EINVAL`: none, or one of another engine.
    pub(super) fn apply(&self, context: &Context, value: u64) -> Result {
        match self.values {
            Values::Range { .. } | Values::Cooperative => {
                let (min, max, free) = self.range(context);
                if value < min || value > max {
                    return Err(ERANGE);
                }
                if value > free && !capability::may_raise() {
                    return Err(EPERM);
                }
                let ctx = context.id()?;
                context
                    .card
                    .set_params(ctx, |params| (self.set)(params, value))
            }
            Values::Slots => {
                if value == 0 || value & !u64::from(context.client.engine_slots()) != 0 {
                    return Err(EINVAL);
                }
                context.set_slots(value as u8)
            }
        }
    }
}
