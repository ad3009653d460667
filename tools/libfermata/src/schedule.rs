// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a card shares its slots: parameters, reservations and hints of contexts, the card's policy,
//! and control of other contexts.

use crate::{now_ns, uapi, Context, Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Parameters of a context. The header has their units and ranges, and tells which take a
/// capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// How long the context runs while others wait, in nanoseconds.
    Timeslice,
    /// How long the engine may take to pause, in nanoseconds.
    PreemptTimeout,
    /// Priority under [`Policy::Priority`], 0 to 31.
    Priority,
    /// Weight under [`Policy::Fair`], 1 to 10,000.
    Weight,
    /// 1: the context's jobs preempt best-effort jobs at once.
    LatencyCritical,
    /// Cap in percent of one slot; 0: no cap.
    Cap,
    /// The slots that the context may use, one bit each.
    SlotMask,
    /// 1: the context's job is stopped at boundaries of the engine's work.
    Cooperative,
    /// 0: the context's jobs are kept off slots. For the administrator.
    Enabled,
}

impl Param {
    /// All parameters.
    pub const ALL: [Self; 9] = [
        Self::Timeslice,
        Self::PreemptTimeout,
        Self::Priority,
        Self::Weight,
        Self::LatencyCritical,
        Self::Cap,
        Self::SlotMask,
        Self::Cooperative,
        Self::Enabled,
    ];

    /// Returns the parameter with this number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|param| param.number() == number)
    }

    /// Returns the number: `FERMATA_PARAM_*`.
    pub fn number(self) -> u32 {
        match self {
            Self::Timeslice => uapi::PARAM_TIMESLICE,
            Self::PreemptTimeout => uapi::PARAM_PREEMPT_TIMEOUT,
            Self::Priority => uapi::PARAM_PRIORITY,
            Self::Weight => uapi::PARAM_WEIGHT,
            Self::LatencyCritical => uapi::PARAM_LATENCY_CRITICAL,
            Self::Cap => uapi::PARAM_CAP,
            Self::SlotMask => uapi::PARAM_SLOT_MASK,
            Self::Cooperative => uapi::PARAM_COOPERATIVE,
            Self::Enabled => uapi::PARAM_ENABLED,
        }
    }
}

/// Time on a slot that is promised to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Time on a slot in each period.
    pub budget: Duration,
    /// Deadline of the budget, from the beginning of a period.
    pub deadline: Duration,
    /// The length of a period.
    pub period: Duration,
}

/// Settings of a group to change; `None`: unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSettings {
    /// Its weight against other groups, 1 to 10,000.
    pub weight: Option<u32>,
    /// The highest priority of its contexts, 0 to 31.
    pub max_priority: Option<u32>,
    /// Time on slots of all its contexts together, in percent of one slot, up to 800; 0: no cap.
    pub cap: Option<u32>,
    /// Maximum number of contexts; 0: the driver's limit for all groups.
    pub max_contexts: Option<u32>,
    /// Maximum bytes of pinned memory; 0: the driver's limit for all groups.
    pub max_bytes: Option<u64>,
    /// Slots that serve only contexts of the group, one bit each.
    pub exclusive: Option<u32>,
    /// Whether each child of the cgroup is a group of its own.
    pub children: Option<bool>,
}

impl GroupSettings {
    /// The largest weight; the smallest is 1.
    pub const MAX_WEIGHT: u32 = 10_000;
    /// The highest priority; the lowest is 0.
    pub const MAX_PRIORITY: u32 = 31;
    /// The largest cap: all of eight slots.
    pub const MAX_CAP: u32 = 800;
}

/// Whose contexts a group has.
#[derive(Clone, Copy, Debug)]
pub enum GroupOf<'a> {
    /// A cgroup (version 2) with its subtree, by its directory.
    Cgroup(BorrowedFd<'a>),
    /// A user of the initial user namespace, outside registered cgroups.
    User(u32),
}

impl<'a> From<BorrowedFd<'a>> for GroupOf<'a> {
    fn from(directory: BorrowedFd<'a>) -> Self {
        Self::Cgroup(directory)
    }
}

impl GroupOf<'_> {
    fn argument(self) -> uapi::GroupSet {
        match self {
            Self::Cgroup(directory) => uapi::GroupSet {
                cgroup: directory.as_raw_fd(),
                ..Default::default()
            },
            Self::User(uid) => uapi::GroupSet {
                flags: uapi::GROUP_USER,
                uid,
                ..Default::default()
            },
        }
    }
}

/// Returns the user whose group has this number; `None`: the group is a cgroup.
pub fn user_of_group(number: u64) -> Option<u32> {
    let uid = number ^ uapi::USER_GROUP;
    u32::try_from(uid).ok()
}

/// A registered group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The inode number of its cgroup's directory, or a user ([`user_of_group`]).
    pub number: u64,
    /// Its weight.
    pub weight: u32,
    /// The highest priority of its contexts.
    pub max_priority: u32,
    /// Cap in percent of one slot; 0: no cap.
    pub cap: u32,
    /// Maximum number of contexts; 0: the driver's limit for all groups.
    pub max_contexts: u32,
    /// Maximum bytes of pinned memory; 0: the driver's limit for all groups.
    pub max_bytes: u64,
    /// Slots that serve only contexts of the group, one bit each.
    pub exclusive: u32,
    /// Each child of the cgroup is a group of its own.
    pub children: bool,
    /// Contexts that are set up.
    pub contexts: u32,
    /// Bytes of memory that these contexts have pinned.
    pub bytes: u64,
    /// Time on slots that contexts of the group have had.
    pub run: Duration,
}

/// How a card shares its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By weight.
    Fair,
    /// In turns.
    RoundRobin,
    /// By priority.
    Priority,
    /// By the deadlines of reservations.
    Deadline,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fair, Self::RoundRobin, Self::Priority, Self::Deadline];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => uapi::POLICY_FAIR,
            Self::RoundRobin => uapi::POLICY_ROUND_ROBIN,
            Self::Priority => uapi::POLICY_PRIORITY,
            Self::Deadline => uapi::POLICY_DEADLINE,
        }
    }

    /// Returns the policy with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What to do to another context ([`Context::control`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Like [`Context::preempt`] without hold.
    Preempt,
    /// Like [`Context::preempt`] with hold.
    Hold,
    /// Like [`Context::resume`].
    Resume,
    /// Like [`Context::set_param`].
    Param(Param, u64),
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Context {
    /// Returns the value of a parameter.
    pub fn param(&self, param: Param) -> Result<u64> {
        self.param_range(param).map(|got| got.value)
    }

    /// Returns the value of a parameter, and the range of values that the caller may set.
    pub fn param_range(&self, param: Param) -> Result<uapi::Param> {
        let argument = uapi::Param {
            param: param.number(),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_PARAM, argument) }
    }

    /// Sets a parameter.
    pub fn set_param(&self, param: Param, value: u64) -> Result<()> {
        self.set_context_param(0, param, value)
    }

    /// Sets a parameter of the context with this number; 0: of this context.
    fn set_context_param(&self, context: u32, param: Param, value: u64) -> Result<()> {
        let argument = uapi::Param {
            flags: uapi::SET,
            context,
            param: param.number(),
            value,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_PARAM, argument) }.map(drop)
    }

    /// Reserves time for the context with this number; 0: for this context. `None` drops the
    /// reservation.
    pub fn reserve(&self, context: u32, reservation: Option<Reservation>) -> Result<()> {
        let mut argument = uapi::Reserve {
            flags: uapi::SET,
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

    /// Returns the reservation of the context with this number; 0: of this context.
    pub fn reservation(&self, context: u32) -> Result<Option<Reservation>> {
        let argument = uapi::Reserve {
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        let got = unsafe { self.call(uapi::IOC_RESERVE, argument) }?;
        Ok((got.budget_ns != 0).then(|| Reservation {
            budget: Duration::from_nanos(got.budget_ns),
            deadline: Duration::from_nanos(got.deadline_ns),
            period: Duration::from_nanos(got.period_ns),
        }))
    }

    /// Announces that a job will be started in `ahead` from now, at most 10 s. `None` withdraws the
    /// announcement. [`Error::Again`]: the last one is less than 100 us old, or unused announcements of
    /// the group have cost too much time of slots.
    pub fn hint(&self, ahead: Option<Duration>) -> Result<()> {
        let argument = uapi::Hint {
            at: ahead.map_or(0, |ahead| now_ns().saturating_add(ns(ahead))),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_HINT, argument) }.map(drop)
    }

    /// Returns the card's policy and its starvation boost interval (zero: no boost), from sysfs.
    /// `None`: a policy of a later driver. [`Error::NotReady`]: the card has no files below /sys.
    pub fn policy(&self) -> Result<(Option<Policy>, Duration)> {
        let read = |name| {
            let mut text = String::new();
            let read = self
                .open_sysfs(name, OpenOptions::new().read(true))?
                .read_to_string(&mut text);
            read.map(|_| text).map_err(|error| Error::from_io(&error))
        };
        let policy = Policy::named(read("policy")?.trim_end());
        let boost = read("boost_ms")?.trim_end().parse();
        let boost = boost.map_err(|_| Error::Protocol)?;
        Ok((policy, Duration::from_millis(boost)))
    }

    /// Sets the card's policy. [`Error::NotFound`]: the driver does not have this policy;
    /// [`Error::NotReady`]: the card has no files below /sys.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        self.write_sysfs("policy", policy.name())
    }

    /// Sets the card's starvation boost interval; zero: no boost. [`Error::OutOfRange`]: not a
    /// whole number of milliseconds, or out of range; [`Error::NotReady`]: the card has no files
    /// below /sys.
    pub fn set_boost(&self, boost: Duration) -> Result<()> {
        if boost.subsec_nanos() % 1_000_000 != 0 {
            return Err(Error::OutOfRange);
        }
        self.write_sysfs("boost_ms", &boost.as_millis().to_string())
    }

    /// Writes a file of the card in sysfs.
    fn write_sysfs(&self, name: &str, text: &str) -> Result<()> {
        let mut file = self.open_sysfs(name, OpenOptions::new().write(true))?;
        let written = file.write_all(text.as_bytes());
        written.map_err(|error| Error::from_io(&error))
    }

    /// Opens a file of the card in sysfs.
    fn open_sysfs(&self, name: &str, options: &OpenOptions) -> Result<File> {
        let node = self
            .file
            .metadata()
            .map_err(|error| Error::from_io(&error))?;
        let (major, minor) = (libc::major(node.rdev()), libc::minor(node.rdev()));
        let file = options.open(format!("/sys/dev/char/{major}:{minor}/{name}"));
        file.map_err(|error| match Error::from_io(&error) {
            Error::NotFound => Error::NotReady,
            error => error,
        })
    }

    /// Returns the group of the context with this number (0: of this context): its weight, contexts
    /// and time on slots.
    pub fn group(&self, context: u32) -> Result<uapi::Group> {
        let argument = uapi::Group {
            context,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_GROUP, argument) }
    }

    /// Registers a group, or changes its settings. Returns the settings that are then in force.
    pub fn set_group<'a>(
        &self,
        of: impl Into<GroupOf<'a>>,
        settings: &GroupSettings,
    ) -> Result<Group> {
        let mut argument = uapi::GroupSet {
            weight: settings.weight.unwrap_or(0),
            max_priority: settings.max_priority.unwrap_or(0),
            cap: settings.cap.unwrap_or(0),
            max_contexts: settings.max_contexts.unwrap_or(0),
            slot_mask: settings.exclusive.unwrap_or(0),
            max_bytes: settings.max_bytes.unwrap_or(0),
            children: settings.children.unwrap_or(false).into(),
            ..of.into().argument()
        };
        let given = [
            (settings.weight.is_some(), uapi::GROUP_WEIGHT),
            (settings.max_priority.is_some(), uapi::GROUP_MAX_PRIORITY),
            (settings.cap.is_some(), uapi::GROUP_CAP),
            (settings.max_contexts.is_some(), uapi::GROUP_MAX_CONTEXTS),
            (settings.max_bytes.is_some(), uapi::GROUP_MAX_BYTES),
            (settings.exclusive.is_some(), uapi::GROUP_EXCLUSIVE),
            (settings.children.is_some(), uapi::GROUP_CHILDREN),
        ];
        for (is_given, flag) in given {
            argument.flags |= if is_given { flag } else { 0 };
        }
        self.group_set(argument)
    }

    /// Returns the settings of a group. [`Error::NotFound`]: it is not registered.
    pub fn registered_group<'a>(&self, of: impl Into<GroupOf<'a>>) -> Result<Group> {
        self.group_set(of.into().argument())
    }

    /// Ends the registration of a group. Returns the settings that it had.
    pub fn remove_group<'a>(&self, of: impl Into<GroupOf<'a>>) -> Result<Group> {
        let mut argument = of.into().argument();
        argument.flags |= uapi::GROUP_REMOVE;
        self.group_set(argument)
    }

    fn group_set(&self, argument: uapi::GroupSet) -> Result<Group> {
        // SAFETY: no pointers.
        let got = unsafe { self.call(uapi::IOC_GROUP_SET, argument) }?;
        Ok(Group {
            number: got.number,
            weight: got.weight,
            max_priority: got.max_priority,
            cap: got.cap,
            max_contexts: got.max_contexts,
            max_bytes: got.max_bytes,
            exclusive: got.slot_mask,
            children: got.children != 0,
            contexts: got.contexts,
            bytes: got.bytes,
            run: Duration::from_nanos(got.run_ns),
        })
    }

    /// Adds this context to the gang of the context with this number: the gang's members are
    /// preempted and resumed together.
    pub fn join_gang(&self, context: u32) -> Result<()> {
        self.gang(uapi::GANG_JOIN, context).map(drop)
    }

    /// Removes this context from its gang: it is preempted and resumed alone again.
    pub fn leave_gang(&self) -> Result<()> {
        self.gang(uapi::GANG_LEAVE, 0).map(drop)
    }

    /// Returns how many contexts are preempted and resumed together with this one, including
    /// itself.
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

    /// Returns the contexts that are set up on the card.
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
                Err(Error::NotFound) => return Ok(found),
                Err(error) => return Err(error),
                Ok(info) => {
                    cursor = info.cursor;
                    found.push(info);
                }
            }
        }
    }

    /// Performs an action on the context with this number.
    pub fn control(&self, context: u32, what: Control) -> Result<()> {
        if context == 0 {
            return Err(Error::NoContext);
        }
        match what {
            Control::Preempt => self.preempt_context(context, false),
            Control::Hold => self.preempt_context(context, true),
            Control::Resume => self.resume_context(context),
            Control::Param(param, value) => self.set_context_param(context, param, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names() {
        for policy in Policy::ALL {
            assert_eq!(Policy::named(policy.name()), Some(policy));
        }
        assert_eq!(Policy::named("Fair"), None);
    }
}
