// SPDX-License-Identifier: GPL-2.0-or-later
//! The cgroups that the kubelet makes for pods, and pods as groups of cards.

use crate::cards::{Card, Cards};
use crate::claim::Settings;
use crate::shares;
use anyhow::{bail, Context as _, Result};
use fermata::{Context, Control, Error, GroupSettings, Param};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// The quality-of-service classes that have a cgroup of their own. The cgroups of guaranteed pods
/// are next to these.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Returns whether a text can be a UID, which is part of the names of cgroups. Static pods have
/// hashes.
pub(crate) fn is_uid(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns where the cgroup of a pod may be below the kubelet's cgroup. No other folders are
/// searched: a container may own folders farther below.
fn places(root: &Path, uid: &str) -> Vec<PathBuf> {
    // With the systemd driver, which uses `-` for levels, and with the cgroupfs driver.
    let slice = uid.replace('-', "_");
    let mut places = vec![
        root.join(format!("kubepods.slice/kubepods-pod{slice}.slice")),
        root.join(format!("kubepods/pod{uid}")),
    ];
    for class in CLASSES {
        places.push(root.join(format!(
            "kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{slice}.slice"
        )));
        places.push(root.join(format!("kubepods/{class}/pod{uid}")));
    }
    places
}

/// Opens the folder of a pod's cgroup. `None`: there is no such pod.
pub(crate) fn open(root: &Path, uid: &str) -> Result<Option<File>> {
    for place in places(root, uid) {
        match File::open(&place) {
            Ok(folder) => return Ok(Some(folder)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => bail!("{}: {error}", place.display()),
        }
    }
    Ok(None)
}

/// Gives a pod, on each card of which it has shares, the weight of these shares. Returns whether
/// the pod exists.
pub(crate) fn set_weights(
    cgroups: &Path,
    cards: &Cards,
    uid: &str,
    names: &BTreeSet<String>,
) -> Result<bool> {
    let Some(cgroup) = open(cgroups, uid)? else {
        return Ok(false);
    };
    let settings = |count| GroupSettings {
        weight: Some(count * shares::WEIGHT),
        ..Default::default()
    };
    let counts = shares::count(names)?.into_iter();
    // On each card, even if another card is gone.
    let done: Vec<Result<()>> = counts
        .map(|(address, count)| {
            let card = there(cards.get(&address), &address)?;
            let set = Context::open(&card.node)
                .and_then(|context| context.set_group(cgroup.as_fd(), &settings(count)));
            set.map(drop).with_context(|| about(uid, card))
        })
        .collect();
    done.into_iter().collect::<Result<()>>()?;
    Ok(true)
}

/// Gives a pod what its claims have of each card. The cards are known by the names of devices.
/// Changes only what differs. Returns whether the pod exists.
pub(crate) fn settle(
    cgroups: &Path,
    cards: &BTreeMap<String, &Card>,
    uid: &str,
    devices: &BTreeMap<String, Settings>,
) -> Result<bool> {
    let Some(cgroup) = open(cgroups, uid)? else {
        return Ok(false);
    };
    let done: Vec<Result<()>> = devices
        .iter()
        .map(|(device, settings)| {
            let card = there(cards.get(device).copied(), device)?;
            settle_on(card, &cgroup, settings).with_context(|| about(uid, card))
        })
        .collect();
    done.into_iter().collect::<Result<()>>()?;
    Ok(true)
}

fn there<'a>(card: Option<&'a Card>, name: &str) -> Result<&'a Card> {
    match card.filter(|card| card.is_there()) {
        Some(card) => Ok(card),
        None => bail!("the card {name} is gone"),
    }
}

fn about(uid: &str, card: &Card) -> String {
    format!("the group of the pod {uid} on {}", card.node.display())
}

fn settle_on(card: &Card, cgroup: &File, settings: &Settings) -> fermata::Result<()> {
    let context = Context::open(&card.node)?;
    let wanted = GroupSettings {
        weight: Some(settings.weight),
        max_priority: settings.priority,
        cap: Some(settings.cap),
        max_bytes: Some(settings.bytes),
        ..Default::default()
    };
    let group = match context.registered_group(cgroup.as_fd()) {
        Ok(group)
            if group.weight == settings.weight
                && group.cap == settings.cap
                && group.max_bytes == settings.bytes
                && settings
                    .priority
                    .is_none_or(|priority| priority == group.max_priority) =>
        {
            group
        }
        Ok(_) | Err(Error::NotFound) => context.set_group(cgroup.as_fd(), &wanted)?,
        Err(error) => return Err(error),
    };
    if settings.priority.is_none() && !settings.latency_critical {
        return Ok(());
    }
    for one in context
        .contexts()?
        .iter()
        .filter(|one| one.group == group.number)
    {
        let priority = settings
            .priority
            .filter(|priority| *priority != one.priority);
        let critical = settings.latency_critical && one.latency_critical == 0;
        let changes = [
            priority.map(|priority| (Param::Priority, priority.into())),
            critical.then_some((Param::LatencyCritical, 1)),
        ];
        for (param, value) in changes.into_iter().flatten() {
            match context.control(one.context, Control::Param(param, value)) {
                // The context was closed in the meantime.
                Ok(()) | Err(Error::NoContext) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn pods_are_found_where_each_driver_of_cgroups_puts_them() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let made = [
            ("0-1", "kubepods.slice/kubepods-pod0_1.slice"),
            (
                "0-2",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0_2.slice",
            ),
            ("0-3", "kubepods/pod0-3"),
            ("0-4", "kubepods/besteffort/pod0-4"),
        ];
        for (uid, path) in made {
            assert!(open(root, uid).unwrap().is_none());
            fs::create_dir_all(root.join(path)).unwrap();
            let found = open(root, uid).unwrap().unwrap().metadata().unwrap();
            assert_eq!(found.ino(), root.join(path).metadata().unwrap().ino());
        }
        assert!(open(root, "0-5").unwrap().is_none());
    }
}
