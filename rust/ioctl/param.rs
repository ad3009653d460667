// SPDX-License-Identifier: GPL-2.0

//! Calls for the parameters of a context, and for its reservation: a budget in each period, by a
//! deadline.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    capability::{self, Audit},
    card::View,
    context::Context,
    scheduler::{Duration, Params, Urgency},
    uapi::{self, param},
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn param(&self) -> Result {
        let mut user = self.read::<uapi::Param>()?;
        let wanted = user.value;
        check_flags(wanted.flags, uapi::SET)?;
        let parameter = Parameter::of(wanted.param)?;
        if wanted.flags & uapi::SET != 0 {
            if wanted.min != 0 || wanted.max != 0 {
                return Err(EINVAL);
            }
            return self.on_context(wanted.context, |context| {
                parameter.apply(context, wanted.value)
            });
        }
        let (value, min, max) = self.on_context(wanted.context, |context| {
            let view = context.card.view(context.id()?)?;
            let (min, max) = parameter.limits(context);
            Ok(((parameter.get)(&view), min, max))
        })?;
        user.value = uapi::Param {
            context: wanted.context,
            param: wanted.param,
            value,
            min,
            max,
            ..Default::default()
        };
        user.write()
    }
}

/// A parameter, its values, and where it is kept.
struct Parameter {
    number: u32,
    values: Values,
    get: fn(&View) -> u64,
    /// Sets the parameter to a value that [`Parameter::check`] has passed.
    set: fn(&Context, u64) -> Result,
}

/// The values that a parameter takes.
enum Values {
    /// All of a range.
    Range {
        min: u64,
        max: u64,
        /// Returns the largest value that takes no CAP_SYS_NICE, from the parameters of a new
        /// context.
        free: fn(&Params) -> u64,
    },
    /// 0 or 1, depending on the context's engine.
    Cooperative,
    /// Slots of the context's engine, a bit each.
    Slots,
    /// 0 or 1, for the administrator.
    Enabled,
}

/// The parameters.
static PARAMETERS: [Parameter; 9] = [
    Parameter {
        number: param::TIMESLICE,
        values: Values::Range {
            min: Params::TIMESLICE_MIN.as_ns(),
            max: Params::TIMESLICE_MAX.as_ns(),
            free: |new| new.timeslice.as_ns(),
        },
        get: |view| view.params.timeslice.as_ns(),
        set: |context, value| {
            context.change_params(|params| params.timeslice = Duration::from_ns(value))
        },
    },
    Parameter {
        number: param::PREEMPT_TIMEOUT,
        values: Values::Range {
            min: Params::PREEMPT_TIMEOUT_MIN.as_ns(),
            max: Params::PREEMPT_TIMEOUT_MAX.as_ns(),
            free: |new| new.preempt_timeout.as_ns(),
        },
        get: |view| view.params.preempt_timeout.as_ns(),
        set: |context, value| {
            context.change_params(|params| params.preempt_timeout = Duration::from_ns(value))
        },
    },
    Parameter {
        number: param::PRIORITY,
        values: Values::Range {
            min: 0,
            // CAST: widens.
            max: Params::PRIORITY_MAX as u64,
            free: |new| new.priority.into(),
        },
        get: |view| view.params.priority.into(),
        // CAST: within the range.
        set: |context, value| context.change_params(|params| params.priority = value as u8),
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
        get: |view| view.params.weight.into(),
        // CAST: within the range.
        set: |context, value| context.change_params(|params| params.weight = value as u16),
    },
    Parameter {
        number: param::LATENCY_CRITICAL,
        values: Values::Range {
            min: 0,
            max: 1,
            free: |_| 0,
        },
        get: |view| (view.params.urgency == Urgency::LatencyCritical).into(),
        set: |context, value| {
            let urgency = match value {
                0 => Urgency::BestEffort,
                _ => Urgency::LatencyCritical,
            };
            context.change_params(|params| params.urgency = urgency)
        },
    },
    Parameter {
        number: param::CAP,
        values: Values::Range {
            min: 0,
            max: 100,
            free: |_| 100,
        },
        get: |view| view.params.cap.into(),
        // CAST: within the range.
        set: |context, value| context.change_params(|params| params.cap = value as u8),
    },
    Parameter {
        number: param::SLOT_MASK,
        values: Values::Slots,
        get: |view| view.params.mask.into(),
        // CAST: within the slots of an engine.
        set: |context, value| context.set_slots(value as u8),
    },
    Parameter {
        number: param::COOPERATIVE,
        values: Values::Cooperative,
        get: |view| view.params.cooperative.into(),
        set: |context, value| context.change_params(|params| params.cooperative = value != 0),
    },
    Parameter {
        number: param::ENABLED,
        values: Values::Enabled,
        get: |view| view.stats.enabled.into(),
        set: |context, value| context.card.set_enabled(context.id()?, value != 0),
    },
];

impl Parameter {
    /// Returns the parameter number `number`. `EINVAL`: there is none.
    fn of(number: u32) -> Result<&'static Self> {
        let mut parameters = PARAMETERS.iter();
        let found = parameters.find(|parameter| parameter.number == number);
        found.ok_or(EINVAL)
    }

    /// Returns the smallest value for `context`, the largest one, and the largest one that takes no
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
            Values::Enabled => (0, 1, 1),
        }
    }

    /// Returns whether the caller may set the parameter at all.
    fn may_set(&self, audit: Audit) -> bool {
        !matches!(self.values, Values::Enabled) || capability::is_administrator(audit)
    }

    /// Returns the smallest and the largest value that the caller may set for `context`; the
    /// smallest is above the largest if there is none.
    fn limits(&self, context: &Context) -> (u64, u64) {
        if !self.may_set(Audit::Nothing) {
            return (1, 0);
        }
        let (min, max, free) = self.range(context);
        let may_raise = capability::may_raise(Audit::Nothing);
        let most = if may_raise { max } else { free };
        (min, most.min(self.ceiling(context)))
    }

    /// Returns the largest value that the group of `context` allows.
    fn ceiling(&self, context: &Context) -> u64 {
        let id = context.id().ok().filter(|_| self.number == param::PRIORITY);
        let most = id.and_then(|id| context.card.max_priority(id).ok());
        most.map_or(u64::MAX, u64::from)
    }

    /// Sets the parameter of `context` to `value`. The errors are those of [`Parameter::check`] and
    /// of setting it.
    fn apply(&self, context: &Context, value: u64) -> Result {
        context.id()?;
        self.check(context, value)?;
        (self.set)(context, value)
    }

    /// Checks that the caller may set the parameter to `value`. `ERANGE`; `EPERM`; for slots,
    /// `EINVAL`: none, or a slot of another engine.
    fn check(&self, context: &Context, value: u64) -> Result {
        if let Values::Slots = self.values {
            let known = u64::from(context.client.engine_slots());
            return match value != 0 && value & !known == 0 {
                true => Ok(()),
                false => Err(EINVAL),
            };
        }
        if !self.may_set(Audit::Denial) {
            return Err(EPERM);
        }
        let (min, max, free) = self.range(context);
        if value < min || value > max {
            return Err(ERANGE);
        }
        if value > free && !capability::may_raise(Audit::Denial) {
            return Err(EPERM);
        }
        Ok(())
    }
}

/// Reservations.
impl Call<'_> {
    pub(super) fn reserve(&self) -> Result {
        let mut user = self.read::<uapi::Reserve>()?;
        let wanted = user.value;
        check_flags(wanted.flags, uapi::SET)?;
        check_zero(wanted.reserved)?;
        if wanted.flags & uapi::SET != 0 {
            if wanted.is_some() && !capability::may_raise(Audit::Denial) {
                return Err(EPERM);
            }
            return self.on_context(wanted.context, |context| set_reservation(context, &wanted));
        }
        let params =
            self.on_context(wanted.context, |context| context.card.params(context.id()?))?;
        user.value = uapi::Reserve {
            context: wanted.context,
            budget_ns: params.budget.as_ns(),
            deadline_ns: params.deadline.as_ns(),
            period_ns: params.period.as_ns(),
            ..Default::default()
        };
        user.write()
    }
}

/// Gives `context` the reservation `wanted`, or takes its reservation away. `ERANGE`; `EBUSY`: the
/// reservation cannot be admitted.
fn set_reservation(context: &Context, wanted: &uapi::Reserve) -> Result {
    context.change_params(|params| {
        params.budget = Duration::from_ns(wanted.budget_ns);
        params.deadline = Duration::from_ns(wanted.deadline_ns);
        params.period = Duration::from_ns(wanted.period_ns);
    })
}

impl uapi::Reserve {
    /// Returns whether the structure asks for a reservation.
    fn is_some(&self) -> bool {
        self.budget_ns | self.deadline_ns | self.period_ns != 0
    }
}
