// SPDX-License-Identifier: GPL-2.0

//! Calls for the reservation of a context: a budget in each period, by a deadline.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    capability,
    context::Context,
    sched::Duration,
    uapi,
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn reserve(&self) -> Result {
        let mut user = self.read::<uapi::Reserve>()?;
        let wanted = user.value;
        check_flags(wanted.flags, uapi::SET)?;
        check_zero(wanted.reserved)?;
        if wanted.flags & uapi::SET != 0 {
            if wanted.is_some() && !capability::may_raise() {
                return Err(EPERM);
            }
            return self.on_context(wanted.context, |context| set(context, &wanted));
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
fn set(context: &Context, wanted: &uapi::Reserve) -> Result {
    context.change_params(|params| {
        params.budget = Duration::from_ns(wanted.budget_ns);
        params.deadline = Duration::from_ns(wanted.deadline_ns);
        params.period = Duration::from_ns(wanted.period_ns);
    })
}

impl uapi::Reserve {
    /// Whether it asks for anything.
    fn is_some(&self) -> bool {
        self.budget_ns | self.deadline_ns | self.period_ns != 0
    }
}
