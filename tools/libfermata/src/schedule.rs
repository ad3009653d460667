// SPDX-License-Identifier: GPL-2.0
//! How a card shares its slots: parameters, reservations and hints of contexts, the card's policy, and control of other contexts.

use crate::{now_ns, uapi, Context, Result};
use std::time::Duration;

/// Parameters of a context; the header tells units, ranges and what takes a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// How long it runs while others wait, in nanoseconds.
    Timeslice,
    /// How long its engine may take to pause, in nanoseconds.
    PreemptTimeout,
    /// Its priority under [`Policy::Priority`], 0 to 31.
    Priority,
    /// Its weight under [`Policy::Fair`], 1 to 10,000.
    Weight,
    /// 1: its work goes before that of others, at once.
    LatencyCritical,
    /// At most so many percent of a slot; 0: no cap.
    Cap,
    /// Its percentage of a slot under [`Policy::Share`]; 0: an even part of what is left.
    Share,
    /// The slots that it may use, a bit each.
    SlotMask,
    /// 1: its job is stopped at boundaries of the engine's work.
    Cooperative,
}

impl Param {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Timeslice,
        Self::PreemptTimeout,
        Self::Priority,
        Self::Weight,
        Self::LatencyCritical,
        Self::Cap,
        Self::Share,
        Self::SlotMask,
        Self::Cooperative,
    ];

    /// The parameter of this number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|param| param.number() == number)
    }

    /// Its number: `FERMATA_PARAM_*`.
    pub fn number(self) -> u32 {
        match self {
            Self::Timeslice => uapi::PARAM_TIMESLICE,
            Self::PreemptTimeout => uapi::PARAM_PREEMPT_TIMEOUT,
            Self::Priority => uapi::PARAM_PRIORITY,
            Self::Weight => uapi::PARAM_WEIGHT,
            Self::LatencyCritical => uapi::PARAM_LATENCY_CRITICAL,
            Self::Cap => uapi::PARAM_CAP,
            Self::Share => uapi::PARAM_SHARE,
            Self::SlotMask => uapi::PARAM_SLOT_MASK,
            Self::Cooperative => uapi::PARAM_COOPERATIVE,
        }
    }
}

/// Time on a slot that is promised to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Time on a slot in each period.
    pub budget: Duration,
    /// By when after the beginning of a period.
    pub deadline: Duration,
    /// The length of a period.
    pub period: Duration,
}

/// How a card shares its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By weight.
    Fair,
    /// In turn.
    RoundRobin,
    /// By priority.
    Priority,
    /// By deadline of reservations.
    Deadline,
    /// By percentages.
    Share,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Fair,
        Self::RoundRobin,
        Self::Priority,
        Self::Deadline,
        Self::Share,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => uapi::POLICY_FAIR,
            Self::RoundRobin => uapi::POLICY_ROUND_ROBIN,
            Self::Priority => uapi::POLICY_PRIORITY,
            Self::Deadline => uapi::POLICY_DEADLINE,
            Self::Share => uapi::POLICY_SHARE,
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What to do to another context ([`Context::control`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// As [`Context::preempt`] without hold.
    Preempt,
    /// As [`Context::preempt`] with hold.
    Hold,
    /// As [`Context::resume`].
    Resume,
    /// As [`Context::set_param`].
    Param(Param, u64),
    /// Its jobs run nowhere and wait.
    Disable,
    /// They run again.
    Enable,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Context {
    /// The value of a parameter.
    pub fn param(&self, param: Param) -> Result<u64> {
        self.param_range(param).map(|got| got.value)
    }

    /// The value of a parameter, and those that the caller may set.
    pub fn param_range(&self, param: Param) -> Result<uapi::Param> {
        let argument = uapi::Param {
            param: param.number(),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_PARAM_GET, argument) }
    }

    /// Sets a parameter.
    pub fn set_param(&self, param: Param, value: u64) -> Result<()> {
        let argument = uapi::Param {
            param: param.number(),
            value,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_PARAM_SET, argument) }.map(drop)
    }

    /// Reserves time for this context (0), or for the one of this number; `None` drops a reservation.
    pub fn reserve(&self, context: u32, reservation: Option<Reservation>) -> Result<()> {
        let mut argument = uapi::Reserve {
            context,
            ..Default::default()
        };
        if let Some(wanted) = reservation {
            argument.budget_ns = ns(wanted.budget);
            argument.deadline_ns = ns(wanted.deadline);
            argument.period_ns = ns(wanted.period);
        }
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_RESERVE, argument) }.map(drop)
    }

    /// The reservation of this context (0), or of the one of this number.
    pub fn reservation(&self, context: u32) -> Result<Option<Reservation>> {
        let argument = uapi::Reserve {
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        let got = unsafe { self.call(uapi::IOC_RESERVE_GET, argument) }?;
        Ok((got.budget_ns != 0).then(|| Reservation {
            budget: Duration::from_nanos(got.budget_ns),
            deadline: Duration::from_nanos(got.deadline_ns),
            period: Duration::from_nanos(got.period_ns),
        }))
    }

    /// Announces that a job will be started in `ahead` from now, at most 10 s; `None` takes that back.
    pub fn hint(&self, ahead: Option<Duration>) -> Result<()> {
        let argument = uapi::Hint {
            at: ahead.map_or(0, |ahead| now_ns().saturating_add(ns(ahead))),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_HINT, argument) }.map(drop)
    }

    /// The card's policy and starvation guard (zero: none). `None`: a policy of a later driver.
    pub fn policy(&self) -> Result<(Option<Policy>, Duration)> {
        // SAFETY: no pointers.
        let got = unsafe { self.call(uapi::IOC_POLICY_GET, uapi::Policy::default()) }?;
        let length = got.name.iter().position(|byte| *byte == 0);
        let name = got.name.get(..length.unwrap_or(got.name.len()));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        Ok((
            name.and_then(Policy::named),
            Duration::from_nanos(got.guard_ns),
        ))
    }

    /// Chooses the card's policy, and its starvation guard (`None`: as it is; zero: none).
    pub fn set_policy(&self, policy: Policy, guard: Option<Duration>) -> Result<()> {
        let mut argument = uapi::Policy {
            guard_ns: guard.map_or(uapi::GUARD_KEEP, ns),
            ..Default::default()
        };
        for (to, from) in argument.name.iter_mut().zip(policy.name().bytes()) {
            *to = from;
        }
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_POLICY_SET, argument) }.map(drop)
    }

    /// The group of this context (0), or of the one of this number: its weight, contexts and time on slots.
    pub fn group(&self, context: u32) -> Result<uapi::Group> {
        let argument = uapi::Group {
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_GROUP, argument) }
    }

    /// Weighs the group of this context (0), or of the one of this number, against others: 1 to 10,000.
    pub fn set_group_weight(&self, context: u32, weight: u32) -> Result<()> {
        let argument = uapi::Group {
            flags: uapi::GROUP_SET_WEIGHT,
            context,
            weight,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_GROUP, argument) }.map(drop)
    }

    /// Reserves slots, a bit each, for the group of this context (0), or of the one of this number.
    pub fn reserve_slots(&self, context: u32, slot_mask: u32) -> Result<()> {
        self.exclusive(0, context, slot_mask)
    }

    /// Lets all groups use slots again.
    pub fn share_slots(&self, slot_mask: u32) -> Result<()> {
        self.exclusive(uapi::EXCLUSIVE_RELEASE, 0, slot_mask)
    }

    fn exclusive(&self, flags: u32, context: u32, slot_mask: u32) -> Result<()> {
        let argument = uapi::Exclusive {
            flags,
            context,
            slot_mask,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_EXCLUSIVE, argument) }.map(drop)
    }

    /// Lets this context be preempted and resumed together with the one of this number, and with its gang.
    pub fn join_gang(&self, context: u32) -> Result<()> {
        self.gang(uapi::GANG_JOIN, context).map(drop)
    }

    /// Lets this context be preempted and resumed alone again.
    pub fn leave_gang(&self) -> Result<()> {
        self.gang(uapi::GANG_LEAVE, 0).map(drop)
    }

    /// How many contexts are preempted and resumed together with this one, itself included.
    pub fn gang_members(&self) -> Result<u32> {
        self.gang(0, 0)
    }

    fn gang(&self, flags: u32, context: u32) -> Result<u32> {
        let argument = uapi::Gang {
            flags,
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        Ok(unsafe { self.call(uapi::IOC_GANG, argument) }?.members)
    }

    /// The contexts that are set up on the card.
    pub fn contexts(&self) -> Result<Vec<uapi::ContextInfo>> {
        let mut found = Vec::new();
        let mut cursor = 0;
        loop {
            let argument = uapi::ContextInfo {
                cursor,
                ..Default::default()
            };
            // SAFETY: no pointers.
            match unsafe { self.call(uapi::IOC_CONTEXT_INFO, argument) } {
                Err(crate::Error::NotFound) => return Ok(found),
                Err(error) => return Err(error),
                Ok(info) => {
                    cursor = info.cursor;
                    found.push(info);
                }
            }
        }
    }

    /// Acts on the context of this number.
    pub fn control(&self, context: u32, what: Control) -> Result<()> {
        let (operation, param, value) = match what {
            Control::Preempt => (uapi::CONTROL_PREEMPT, 0, 0),
            Control::Hold => (uapi::CONTROL_HOLD, 0, 0),
            Control::Resume => (uapi::CONTROL_RESUME, 0, 0),
            Control::Param(param, value) => (uapi::CONTROL_PARAM, param.number(), value),
            Control::Disable => (uapi::CONTROL_DISABLE, 0, 0),
            Control::Enable => (uapi::CONTROL_ENABLE, 0, 0),
        };
        let argument = uapi::Control {
            operation,
            context,
            param,
            value,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_CONTROL, argument) }.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names_that_fit() {
        for policy in Policy::ALL {
            assert!(policy.name().len() < uapi::Policy::default().name.len());
            assert_eq!(Policy::named(policy.name()), Some(policy));
        }
        assert_eq!(Policy::named("Fair"), None);
    }
}
