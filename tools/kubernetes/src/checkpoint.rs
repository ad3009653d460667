// SPDX-License-Identifier: GPL-2.0-or-later
//! The shares of each pod: the kubelet tells plugins only the names of devices, and keeps the
//! pods' UIDs in a file beside the plugins' sockets.
//! Source: kubernetes, pkg/kubelet/cm/devicemanager/checkpoint.

use crate::cgroup::is_uid;
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

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
pub(crate) fn read(folder: &Path, resource: &str) -> Result<Pods> {
    let file = folder.join(FILE);
    let text = match fs::read(&file) {
        // The kubelet makes the file when it allocates a device for the first time.
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
