// SPDX-License-Identifier: GPL-2.0

//! Calls for the policy of the card.

use super::Call;
use crate::{
    argument::check_flags,
    capability,
    sched::Duration,
    uapi::{self, policy},
};
use core::ffi::CStr;
use kernel::prelude::*;

impl Call<'_> {
    pub(super) fn policy_get(&self) -> Result {
        let mut user = self.read::<uapi::Policy>()?;
        check_flags(user.value.flags, 0)?;
        let (kind, guard) = self.context.card.policy();
        user.value = uapi::Policy {
            guard_ns: guard.as_ns(),
            ..Default::default()
        };
        for (to, from) in user.value.name.iter_mut().zip(policy::name_of(kind)) {
            *to = *from;
        }
        user.write()
    }

    pub(super) fn policy_set(&self) -> Result {
        let wanted = self.read::<uapi::Policy>()?.value;
        check_flags(wanted.flags, 0)?;
        let name = CStr::from_bytes_until_nul(&wanted.name).map_err(|_| EINVAL)?;
        if !capability::is_administrator() {
            return Err(EPERM);
        }
        let kind = policy::named(name.to_bytes()).ok_or(ENOENT)?;
        let guard = match wanted.guard_ns {
            policy::KEEP_GUARD => None,
            guard => Some(Duration::from_ns(guard)),
        };
        self.context.card.set_policy(kind, guard)
    }
}
