// SPDX-License-Identifier: GPL-2.0

//! Calls for groups, whose contexts share one part of the card's time, and for gangs.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    capability::{self, Audit},
    card::{GroupLimits, GroupView},
    cgroup::Cgroup,
    limits::CONTEXTS_MAX,
    sched::{GroupKey, GroupSettings},
    uapi,
};
use kernel::prelude::*;

/// The flags that say which members are given.
const FIELDS: u32 = uapi::GROUP_WEIGHT
    | uapi::GROUP_MAX_PRIORITY
    | uapi::GROUP_CAP
    | uapi::GROUP_MAX_CONTEXTS
    | uapi::GROUP_MAX_BYTES
    | uapi::GROUP_EXCLUSIVE;

impl Call<'_> {
    pub(super) fn group(&self) -> Result {
        let mut user = self.read::<uapi::Group>()?;
        let wanted = user.value;
        check_flags(wanted.flags, 0)?;
        check_zero(wanted.reserved)?;
        let (group, stats) =
            self.on_context(wanted.context, |context| context.card.group(context.id()?))?;
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

    pub(super) fn group_set(&self) -> Result {
        let mut user = self.read::<uapi::GroupSet>()?;
        let wanted = user.value;
        let flags = wanted.flags;
        check_flags(flags, FIELDS | uapi::GROUP_REMOVE)?;
        let removes = flags & uapi::GROUP_REMOVE != 0;
        if removes && flags != uapi::GROUP_REMOVE || wanted.reserved != 0 {
            return Err(EINVAL);
        }
        let card = &self.context.card;
        let slots = match wanted.slot_mask {
            mask if flags & uapi::GROUP_EXCLUSIVE != 0 && mask != 0 => card.existing_slots(mask)?,
            _ => 0,
        };
        if !capability::is_administrator(Audit::Denial) {
            return Err(EPERM);
        }
        let cgroup = Cgroup::of_descriptor(wanted.cgroup)?;
        let change = Change::of(&wanted, slots)?;
        user.check_writable()?;
        let number = cgroup.number();
        let GroupView {
            settings,
            limits,
            stats,
            bytes,
        } = if removes {
            card.remove_group(&cgroup)?
        } else if flags == 0 {
            card.registered_group(&cgroup)?
        } else {
            card.set_group(cgroup, |settings, limits| change.apply(settings, limits))?
        };
        user.value = uapi::GroupSet {
            flags,
            cgroup: wanted.cgroup,
            weight: settings.weight.into(),
            max_priority: settings.max_priority.into(),
            cap: settings.cap.into(),
            max_contexts: limits.contexts,
            slot_mask: settings.slots.into(),
            contexts: stats.contexts,
            max_bytes: limits.bytes,
            bytes,
            number,
            run_ns: stats.run.as_ns(),
            ..Default::default()
        };
        user.write()
    }

    /// Returns the number of a group if the caller may know it: the group is that of the caller's
    /// context, or the caller is an administrator. Returns 0 otherwise.
    pub(super) fn group_number(&self, group: GroupKey) -> u64 {
        if capability::is_administrator(Audit::Nothing) || group == self.context.group() {
            group.0
        } else {
            0
        }
    }
}

/// What is to be set for a group.
struct Change {
    weight: Option<u16>,
    max_priority: Option<u8>,
    cap: Option<u16>,
    contexts: Option<u32>,
    bytes: Option<u64>,
    slots: Option<u8>,
}

impl Change {
    /// Returns the values that `wanted` has flags for, with `slots` for its mask. `ERANGE`: no
    /// group can have one of them.
    fn of(wanted: &uapi::GroupSet, slots: u8) -> Result<Self> {
        let given = |flag| wanted.flags & flag != 0;
        let contexts = given(uapi::GROUP_MAX_CONTEXTS).then_some(wanted.max_contexts);
        if contexts.is_some_and(|contexts| contexts > CONTEXTS_MAX) {
            return Err(ERANGE);
        }
        Ok(Self {
            weight: narrow(given(uapi::GROUP_WEIGHT), wanted.weight)?,
            max_priority: narrow(given(uapi::GROUP_MAX_PRIORITY), wanted.max_priority)?,
            cap: narrow(given(uapi::GROUP_CAP), wanted.cap)?,
            contexts,
            bytes: given(uapi::GROUP_MAX_BYTES).then_some(wanted.max_bytes),
            slots: given(uapi::GROUP_EXCLUSIVE).then_some(slots),
        })
    }

    fn apply(&self, settings: &mut GroupSettings, limits: &mut GroupLimits) {
        settings.weight = self.weight.unwrap_or(settings.weight);
        settings.max_priority = self.max_priority.unwrap_or(settings.max_priority);
        settings.cap = self.cap.unwrap_or(settings.cap);
        settings.slots = self.slots.unwrap_or(settings.slots);
        limits.contexts = self.contexts.unwrap_or(limits.contexts);
        limits.bytes = self.bytes.unwrap_or(limits.bytes);
    }
}

/// Converts a value to its own type, if it is `given`. `ERANGE`. The scheduler checks its range.
fn narrow<T: TryFrom<u32>>(given: bool, value: u32) -> Result<Option<T>> {
    if !given {
        return Ok(None);
    }
    T::try_from(value).map(Some).map_err(|_| ERANGE)
}

/// Gangs: contexts that are preempted and resumed together.
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

    /// Joins the gang of context number `number`. Its job can then be held through this context, so
    /// the caller must be its user. `EPERM`, and the errors of [`Call::find`].
    fn join(&self, number: u32) -> Result {
        let other = self.find(number)?;
        if !other.client.opener.is_caller() && !capability::is_administrator(Audit::Denial) {
            return Err(EPERM);
        }
        let card = &self.context.card;
        card.unless_closed(card.set_gang(self.context.id()?, Some(other.id()?)))
    }
}
