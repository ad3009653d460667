// SPDX-License-Identifier: GPL-2.0

//! Calls for groups: those whose contexts share one part of the card's time.

use super::Call;
use crate::{
    argument::{check_flags, User},
    capability,
    sched::GroupKey,
    uapi,
};
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn group(&self) -> Result {
        let mut user = User::<uapi::Group>::read(self.argument)?;
        let wanted = user.value;
        check_flags(wanted.flags, uapi::GROUP_SET_WEIGHT)?;
        if wanted.reserved != 0 {
            return Err(EINVAL);
        }
        let sets = wanted.flags & uapi::GROUP_SET_WEIGHT != 0;
        if sets && !capability::is_administrator() {
            return Err(EPERM);
        }
        user.check_writable()?;
        let (group, stats) = self.on_context(wanted.context, |context| {
            let id = context.id()?;
            if sets {
                let weight = u16::try_from(wanted.weight).map_err(|_| ERANGE)?;
                context.card.set_group_weight(id, weight)?;
            }
            context.card.group(id)
        })?;
        user.value = uapi::Group {
            context: wanted.context,
            weight: stats.weight.into(),
            contexts: stats.contexts,
            number: self.group_number(group),
            run_ns: stats.run.as_ns(),
            ..Default::default()
        };
        user.write()
    }

    pub(super) fn exclusive(&self) -> Result {
        let wanted = User::<uapi::Exclusive>::read(self.argument)?.value;
        check_flags(wanted.flags, uapi::EXCLUSIVE_RELEASE)?;
        let release = wanted.flags & uapi::EXCLUSIVE_RELEASE != 0;
        if release && wanted.context != 0 {
            return Err(EINVAL);
        }
        let card = &self.context.card;
        let slots = card.existing_slots(wanted.slot_mask)?;
        if !capability::is_administrator() {
            return Err(EPERM);
        }
        if release {
            return card.share_slots(slots);
        }
        self.on_context(wanted.context, |context| {
            card.reserve_slots(slots, context.id()?)
        })
    }

    /// The number of a group, if the caller may know it: it is that of the own context, or the
    /// caller is an administrator. Else 0.
    pub(super) fn group_number(&self, group: GroupKey) -> u64 {
        if group == self.context.opener.group || capability::is_administrator() {
            group.0
        } else {
            0
        }
    }
}
