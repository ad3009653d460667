// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of cards: their names, what a share is worth, which shares go well together, and the
//! shares of each pod. The kubelet tells plugins only the names of devices, and keeps the pods'
//! UIDs in a file next to the plugins' sockets. Source: kubernetes,
//! pkg/kubelet/cm/devicemanager/checkpoint.

use crate::cgroup::is_uid;
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The weight of a share: the default weight of a group.
pub(crate) const WEIGHT: u32 = 100;
/// Shares that a card can have, because a group's weight is 10,000 at most.
pub(crate) const MOST: u32 = 100;

/// A share of a card. The kubelet calls it a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    /// The card's PCI address: a card's number may be another card's after the next boot.
    pub(crate) card: String,
    pub(crate) number: u32,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.card, self.number)
    }
}

impl Share {
    /// Reads the name of a share of a card.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let parts = name.rsplit_once('-');
        let share = parts.and_then(|(card, number)| {
            let card = card.into();
            number.parse().ok().map(|number| Self { card, number })
        });
        let share = share.filter(|share: &Self| share.to_string() == name);
        share.with_context(|| format!("{name} is not the name of a share"))
    }
}

/// Returns how many different shares of each card are among these.
pub(crate) fn count<'a>(
    names: impl IntoIterator<Item = &'a String>,
) -> Result<BTreeMap<String, u32>> {
    let shares: BTreeSet<Share> = names
        .into_iter()
        .map(|name| Share::parse(name))
        .collect::<Result<_>>()?;
    let mut counts = BTreeMap::new();
    for share in shares {
        *counts.entry(share.card).or_default() += 1;
    }
    Ok(counts)
}

/// Chooses `size` of the available shares, including all of `wanted`, from as few cards as
/// possible, so that later large requests find a card.
pub(crate) fn prefer(available: &[String], wanted: &[String], size: usize) -> Result<Vec<String>> {
    let mut chosen: Vec<String> = Vec::new();
    let mut free: BTreeMap<String, BTreeSet<Share>> = BTreeMap::new();
    for name in available.iter().chain(wanted) {
        let share = Share::parse(name)?;
        free.entry(share.card.clone()).or_default().insert(share);
    }
    let mut used = BTreeSet::new();
    for name in wanted {
        let share = Share::parse(name)?;
        if let Some(free) = free.get_mut(&share.card) {
            if free.remove(&share) {
                chosen.push(share.to_string());
            }
        }
        used.insert(share.card);
    }
    while chosen.len() < size {
        let missing = size - chosen.len();
        let next = free.iter().filter(|(_, free)| !free.is_empty());
        // A card that is already used; otherwise the card with the fewest shares that suffice, or
        // else with the most shares.
        let best = next.min_by_key(|(card, free)| {
            let suffices = free.len() >= missing;
            let rest = if suffices {
                free.len()
            } else {
                usize::MAX - free.len()
            };
            (!used.contains(*card), !suffices, rest)
        });
        let Some(card) = best.map(|(card, _)| card.clone()) else {
            bail!(
                "{} shares are asked for, and {} are there",
                size,
                chosen.len()
            );
        };
        let shares = free.remove(&card).unwrap_or_default();
        chosen.extend(shares.iter().take(missing).map(ToString::to_string));
        used.insert(card);
    }
    Ok(chosen)
}

/// The name of the file.
pub(crate) const FILE: &str = "kubelet_internal_checkpoint";

/// Shares of pods, by UID. Init containers share the devices of the pod's other containers.
pub(crate) type Pods = BTreeMap<String, BTreeSet<String>>;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<Devices>,
}

/// Names of devices.
#[derive(Deserialize)]
#[serde(untagged)]
enum Devices {
    /// Before Kubernetes 1.20.
    List(Vec<String>),
    /// By NUMA node.
    ByNode(BTreeMap<String, Option<Vec<String>>>),
}

impl Devices {
    fn names(self) -> Vec<String> {
        match self {
            Self::List(names) => names,
            Self::ByNode(nodes) => nodes.into_values().flatten().flatten().collect(),
        }
    }
}

/// Reads which pods have devices of a resource.
pub(crate) fn read_pods(folder: &Path, resource: &str) -> Result<Pods> {
    let file = folder.join(FILE);
    let text = match fs::read(&file) {
        // The kubelet creates the file when it first allocates a device.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Pods::new()),
        text => text.with_context(|| file.display().to_string())?,
    };
    parse(&text, resource).with_context(|| {
        format!(
            "{}: a format that this program does not know",
            file.display()
        )
    })
}

fn parse(text: &[u8], resource: &str) -> Result<Pods> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    let mut pods = Pods::new();
    for entry in checkpoint.data.pod_device_entries.unwrap_or_default() {
        if entry.resource_name != resource {
            continue;
        }
        if !is_uid(&entry.pod_uid) {
            bail!("{:?} is not the UID of a pod", entry.pod_uid);
        }
        let names = entry.device_ids.map(Devices::names).unwrap_or_default();
        pods.entry(entry.pod_uid).or_default().extend(names);
    }
    Ok(pods)
}

/// Returns the UID of the pod that has all these devices.
pub(crate) fn owner<'a>(pods: &'a Pods, devices: &[String]) -> Result<&'a str> {
    let mut owners = pods
        .iter()
        .filter(|(_, names)| devices.iter().all(|device| names.contains(device)));
    match (owners.next(), owners.next(), devices) {
        (Some((uid, _)), None, [_, ..]) => Ok(uid),
        _ => bail!(
            "the kubelet's {FILE} has no pod with {}",
            devices.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(names: &str) -> Vec<String> {
        names.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn names_are_read_and_written() {
        let share = Share::parse("0000:00:05.0-12").unwrap();
        assert_eq!((&share.card[..], share.number), ("0000:00:05.0", 12));
        assert_eq!(share.to_string(), "0000:00:05.0-12");
        for name in [
            "",
            "0000:00:05.0",
            "a-",
            "a-x",
            "a-+1",
            "a-01",
            "a-4294967296",
        ] {
            assert!(Share::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_share_counts_once() {
        let counts = count(&names("a-0 a-1 b-0 a-1 a-10")).unwrap();
        assert_eq!(counts, BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
    }

    #[test]
    fn shares_are_of_few_cards() {
        let available = names("a-0 a-1 a-2 b-0 b-1 b-2 b-3 c-0 c-1");
        let chosen = |wanted: &str, size| prefer(&available, &names(wanted), size).unwrap();
        assert_eq!(chosen("", 2), names("c-0 c-1"));
        assert_eq!(chosen("", 3), names("a-0 a-1 a-2"));
        assert_eq!(chosen("", 1), names("c-0"));
        assert_eq!(chosen("", 5), names("b-0 b-1 b-2 b-3 c-0"));
        assert_eq!(chosen("b-2", 3), names("b-2 b-0 b-1"));
        assert_eq!(chosen("d-0 a-1", 2), names("d-0 a-1"));
        assert_eq!(chosen("", 0), names(""));
        assert_eq!(chosen("", 9).len(), 9);
        assert!(prefer(&available, &[], 10).is_err());
        assert!(prefer(&names("x"), &[], 1).is_err());
    }

    const RESOURCE: &str = "fermata.dev/share";

    fn pods(entries: &serde_json::Value) -> Result<Pods> {
        let checkpoint =
            json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        parse(checkpoint.to_string().as_bytes(), RESOURCE)
    }

    fn entry(uid: &str, resource: &str, devices: &serde_json::Value) -> serde_json::Value {
        json!({"PodUID": uid, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": "CgA="})
    }

    #[test]
    fn both_formats_are_read() {
        let found = pods(&json!([
            entry("p-1", RESOURCE, &json!(["a-0", "a-1"])),
            entry(
                "p-2",
                RESOURCE,
                &json!({"-1": ["a-2"], "0": null, "1": ["b-0"]})
            ),
            entry("p-2", RESOURCE, &json!({"-1": ["a-2", "a-3"]})),
            entry("p-2", "example.com/other", &json!({"0": ["x"]})),
            entry("p-3", RESOURCE, &json!(null)),
        ]))
        .unwrap();
        let names = |uid: &str| found[uid].iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names("p-1"), "a-0 a-1");
        assert_eq!(names("p-2"), "a-2 a-3 b-0");
        assert_eq!(pods(&json!(null)).unwrap(), Pods::new());

        let owner = |devices: &[&str]| {
            let devices: Vec<_> = devices.iter().map(ToString::to_string).collect();
            super::owner(&found, &devices).map(ToString::to_string)
        };
        assert_eq!(owner(&["a-3", "b-0"]).unwrap(), "p-2");
        assert_eq!(owner(&["a-1"]).unwrap(), "p-1");
        assert!(owner(&["a-1", "a-2"]).is_err() && owner(&["x"]).is_err() && owner(&[]).is_err());
    }

    #[test]
    fn other_formats_are_refused() {
        for uid in ["", "../../x", "a/b", "a_b", "a\0"] {
            assert!(
                pods(&json!([entry(uid, RESOURCE, &json!([]))])).is_err(),
                "{uid}"
            );
        }
        assert!(pods(&json!([entry("p", RESOURCE, &json!("a"))])).is_err());
        assert!(pods(&json!([{"PodUID": "p"}])).is_err());
        assert!(parse(b"", RESOURCE).is_err() && parse(b"{}", RESOURCE).is_err());
    }
}
