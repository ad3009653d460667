// SPDX-License-Identifier: GPL-2.0

//! The call for gangs: contexts that are preempted and resumed together.

use super::Call;
use crate::{argument::check_flags, capability, uapi};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn gang(&self) -> Result {
        let mut user = self.read::<uapi::Gang>()?;
        let wanted = user.value;
        check_flags(wanted.flags, uapi::GANG_JOIN | uapi::GANG_LEAVE)?;
        let ctx = self.context.id()?;
        let joins = wanted.flags == uapi::GANG_JOIN;
        let both = wanted.flags == uapi::GANG_JOIN | uapi::GANG_LEAVE;
        if both || (wanted.context != 0) != joins {
            return Err(EINVAL);
        }
        user.check_writable()?;
        let card = &self.context.card;
        match wanted.flags {
            uapi::GANG_JOIN => self.join(wanted.context)?,
            uapi::GANG_LEAVE => card.set_gang(ctx, None)?,
            _ => {}
        }
        user.value.members = card.gang_size(ctx)?;
        user.write()
    }

    /// Joins the gang of the context number `number`: its job can be held by way of this one then,
    /// so its user has to be the caller.
    fn join(&self, number: u32) -> Result {
        let other = self.find(number)?;
        if !other.client.opener.is_caller() && !capability::is_administrator() {
            return Err(EPERM);
        }
        let card = &self.context.card;
        card.unless_closed(card.set_gang(self.context.id()?, Some(other.id()?)))
    }
}
