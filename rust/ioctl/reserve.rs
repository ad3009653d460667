// SPDX-License-Identifier: GPL-2.0

//! Calls for the reservation of a context: a budget in each period, by a deadline.

use super::Call;
use crate::{
    argument::{check_flags, User},
    capability,
    sched::Duration,
    uapi,
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn reserve(&self) -> Result {
        let wanted = self.reservation()?.value;
        self.on_context(wanted.context, |context| {
            let ctx = context.id()?;
            if wanted.is_some() && !capability::may_raise() {
                return Err(EPERM);
            }
            context.card.set_params(ctx, |params| {
                params.budget = Duration::from_ns(wanted.budget_ns);
                params.deadline = Duration::from_ns(wanted.deadline_ns);
                params.period = Duration::from_ns(wanted.period_ns);
            })
        })
    }

    pub(super) fn reserve_get(&self) -> Result {
        let mut user = self.reservation()?;
        let number = user.value.context;
        let params = self.on_context(number, |context| context.card.params(context.id()?))?;
        user.value = uapi::Reserve {
            context: number,
            budget_ns: params.budget.as_ns(),
            deadline_ns: params.deadline.as_ns(),
            period_ns: params.period.as_ns(),
            ..Default::default()
        };
        user.write()
    }

    /// The argument of both calls.
    fn reservation(&self) -> Result<User<uapi::Reserve>> {
        let user = self.read::<uapi::Reserve>()?;
        check_flags(user.value.flags, 0)?;
        if user.value.reserved != 0 {
            return Err(EINVAL);
        }
        Ok(user)
    }
}

impl uapi::Reserve {
    /// Whether it asks for anything.
    fn is_some(&self) -> bool {
        self.budget_ns | self.deadline_ns | self.period_ns != 0
    }
}
