// SPDX-License-Identifier: GPL-2.0

//! Calls for groups, whose contexts share one part of the card's time, and for gangs.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    capability::{self, Audit},
    card::{GroupChange, GroupScope, GroupView},
    cgroup::Cgroup,
    limits::CONTEXTS_MAX,
    scheduler::GroupKey,
    uapi,
};
use kernel::prelude::*;

/// The flags that say which members are given.
const FIELDS: u32 = uapi::GROUP_WEIGHT
    | uapi::GROUP_MAX_PRIORITY
    | uapi::GROUP_CAP
    | uapi::GROUP_MAX_CONTEXTS
    | uapi::GROUP_MAX_BYTES
    | uapi::GROUP_EXCLUSIVE
    | uapi::GROUP_CHILDREN;

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
        let is_of_user = flags & uapi::GROUP_USER != 0;
        let given = flags & !uapi::GROUP_USER;
        check_flags(given, FIELDS | uapi::GROUP_REMOVE)?;
        check_zero(wanted.reserved)?;
        let removes = given & uapi::GROUP_REMOVE != 0;
        if removes && given != uapi::GROUP_REMOVE {
            return Err(EINVAL);
        }
        if is_of_user && (wanted.cgroup != 0 || given & uapi::GROUP_CHILDREN != 0) {
            return Err(EINVAL);
        }
        let card = &self.context.card;
        let slots = match wanted.slot_mask {
            mask if given & uapi::GROUP_EXCLUSIVE != 0 && mask != 0 => card.existing_slots(mask)?,
            _ => 0,
        };
        if !capability::is_administrator(Audit::Denial) {
            return Err(EPERM);
        }
        let scope = match is_of_user {
            true => user_scope(wanted.uid)?,
            false => GroupScope::Cgroup(Cgroup::of_descriptor(wanted.cgroup)?),
        };
        let change = change_of(&wanted, slots)?;
        user.check_writable()?;
        let group = scope.key();
        let view = match given {
            0 => card.registered_group(group)?,
            uapi::GROUP_REMOVE => card.remove_group(group)?,
            _ => card.set_group(scope, &change)?,
        };
        user.value = answer(&wanted, group, &view);
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

/// Returns the user with number `uid`, whom the caller may name, as it has a capability in the initial
/// user namespace. `ERANGE`: no user has this number.
fn user_scope(uid: u32) -> Result<GroupScope> {
    match uid {
        u32::MAX => Err(ERANGE),
        uid => Ok(GroupScope::User(uid)),
    }
}

fn answer(wanted: &uapi::GroupSet, group: GroupKey, view: &GroupView) -> uapi::GroupSet {
    let GroupView {
        settings,
        how,
        stats,
        bytes,
    } = view;
    uapi::GroupSet {
        flags: wanted.flags,
        cgroup: wanted.cgroup,
        weight: settings.weight.into(),
        max_priority: settings.max_priority.into(),
        cap: settings.cap.into(),
        max_contexts: how.limits.contexts,
        slot_mask: settings.slots.into(),
        contexts: stats.contexts,
        children: how.children.into(),
        max_bytes: how.limits.bytes,
        bytes: *bytes,
        number: group.0,
        run_ns: stats.run.as_ns(),
        uid: wanted.uid,
        ..Default::default()
    }
}

/// Returns the values that `wanted` has flags for, with `slots` for its mask. `ERANGE`: no group can
/// have one of them.
fn change_of(wanted: &uapi::GroupSet, slots: u8) -> Result<GroupChange> {
    let given = |flag| wanted.flags & flag != 0;
    let contexts = given(uapi::GROUP_MAX_CONTEXTS).then_some(wanted.max_contexts);
    if contexts.is_some_and(|contexts| contexts > CONTEXTS_MAX) {
        return Err(ERANGE);
    }
    let children = given(uapi::GROUP_CHILDREN).then_some(wanted.children);
    if children.is_some_and(|children| children > 1) {
        return Err(ERANGE);
    }
    Ok(GroupChange {
        weight: narrow(given(uapi::GROUP_WEIGHT), wanted.weight)?,
        max_priority: narrow(given(uapi::GROUP_MAX_PRIORITY), wanted.max_priority)?,
        cap: narrow(given(uapi::GROUP_CAP), wanted.cap)?,
        contexts,
        bytes: given(uapi::GROUP_MAX_BYTES).then_some(wanted.max_bytes),
        slots: given(uapi::GROUP_EXCLUSIVE).then_some(slots),
        children: children.map(|children| children != 0),
    })
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
        card.set_gang(self.context.id()?, Some(other.id()?))
    }
}
