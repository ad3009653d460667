// SPDX-License-Identifier: GPL-2.0-or-later
//! The weights of pods on cards.

use crate::cards::Cards;
use crate::cgroup;
use crate::shares;
use anyhow::{bail, Context as _, Result};
use fermata::{Context, GroupSettings};
use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::path::Path;

/// Registers the cgroup of a pod as a group of each card of which the pod has shares, with the
/// weight of these shares. Returns whether there is such a pod.
pub(crate) fn set(
    cgroups: &Path,
    cards: &Cards,
    uid: &str,
    names: &BTreeSet<String>,
) -> Result<bool> {
    let Some(cgroup) = cgroup::open(cgroups, uid)? else {
        return Ok(false);
    };
    let set_on = |(address, count): (String, u32)| {
        let Some(card) = cards.get(&address).filter(|card| card.is_there()) else {
            bail!("the card {address} is gone");
        };
        let settings = GroupSettings {
            weight: Some(count * shares::WEIGHT),
            ..Default::default()
        };
        let open = Context::open(&card.node);
        let group = open.and_then(|context| context.set_group(cgroup.as_fd(), &settings));
        group.with_context(|| format!("the weight of the pod {uid} on {}", card.node.display()))?;
        Ok(())
    };
    // On each card, although one may be gone.
    let done: Vec<Result<()>> = shares::count(names)?.into_iter().map(set_on).collect();
    done.into_iter().collect::<Result<()>>()?;
    Ok(true)
}
