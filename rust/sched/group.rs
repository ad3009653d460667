// SPDX-License-Identifier: GPL-2.0

//! Groups as the scheduler sees them.
//!
//! The caller names a group by a [`GroupKey`]. A group has one [`SchedGroup`] for each class and
//! urgency of its contexts, which competes for them, and a [`Registration`] if the administrator
//! has set something for the group. Registered groups nest.

use super::bandwidth::Bandwidth;
use super::ids::{GroupIndex, RegistrationIndex};
use super::tree::Tree;
use super::{Duration, GroupKey, GroupSettings, SlotId, Time, Urgency};

/// The statistics of a group, including the groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Contexts of the group that were not released.
    pub contexts: u32,
    /// Its weight relative to its siblings.
    pub weight: u16,
    /// Time on slots that contexts have had while they belonged to the group, including current
    /// runs. Starts over after the group was forgotten; a registered group is never forgotten.
    pub run: Duration,
}

/// Which contexts of a group a [`SchedGroup`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupKind {
    pub(super) key: GroupKey,
    /// The first slot of the class.
    pub(super) class: SlotId,
    pub(super) urgency: Urgency,
}

impl GroupKind {
    /// Returns a well mixed hash: keys may be small consecutive numbers.
    pub(super) fn hash(&self) -> u32 {
        let class = (self.class.index() as u64) << 1;
        let kind = class | u64::from(self.urgency == Urgency::BestEffort);
        let mut mixed = self.key.0 ^ kind.rotate_right(8);
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(factor);
        }
        (mixed >> 32) as u32
    }
}

/// The contexts of a group that are of one class and urgency. Its entity is linked among the
/// members of the group above, or of the class, while a member waits. Opaque: the caller provides
/// the storage for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedGroup {
    pub(super) kind: GroupKind,
    pub(super) registration: Option<RegistrationIndex>,
    /// The next group of its hash chain.
    pub(super) chain: Option<GroupIndex>,
    /// The members that wait for a slot.
    pub(super) ready: Tree,
    /// Contexts that do not compete through the group, and wait until it is no longer throttled.
    pub(super) behind: Tree,
    /// The least virtual time of the members that want a slot.
    pub(super) min_vruntime: u64,
    /// Contexts and groups that belong to it.
    pub(super) members: u32,
    /// Contexts that belong to it or to a group below it.
    pub(super) nr_contexts: u32,
    /// Members that run or wait, and that the group competes for.
    pub(super) nr_active: u32,
    /// Its cap is used up: it is linked in the throttled queue of its class.
    pub(super) throttled: bool,
    /// Hints of its contexts are ignored until this time.
    pub(super) backoff_until: Time,
    /// Time on slots of its contexts.
    pub(super) run: Duration,
}

impl SchedGroup {
    pub(super) fn new(kind: GroupKind) -> Self {
        Self {
            kind,
            registration: None,
            chain: None,
            ready: Tree::default(),
            behind: Tree::default(),
            min_vruntime: 0,
            members: 0,
            nr_contexts: 0,
            nr_active: 0,
            throttled: false,
            backoff_until: Time::ZERO,
            run: Duration::ZERO,
        }
    }

    /// Returns whether its entity is to be linked among the waiting entities.
    pub(super) fn waits(&self) -> bool {
        !self.ready.is_empty() && !self.throttled
    }
}

/// A registered group. Opaque: the caller provides the storage for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub(super) key: GroupKey,
    /// The registered group above.
    pub(super) parent: Option<RegistrationIndex>,
    pub(super) settings: GroupSettings,
    /// What is left of the cap.
    pub(super) bandwidth: Bandwidth,
    /// Time on slots of its contexts, including those of groups below it.
    pub(super) run: Duration,
}

impl Registration {
    pub(super) fn new(key: GroupKey) -> Self {
        Self {
            key,
            parent: None,
            settings: GroupSettings::DEFAULT,
            bandwidth: Bandwidth::default(),
            run: Duration::ZERO,
        }
    }

    /// Returns the cap in percent of a slot; `None`: there is no cap.
    pub(super) fn cap(&self) -> Option<u64> {
        (self.settings.cap != 0).then_some(self.settings.cap.into())
    }
}
