// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl cdi`: tells container runtimes what they need to know about cards
//! (docs/deploy/containers.md).
//! Source: Container Device Interface, SPEC.md, version 0.7.0.

use crate::card::{self, Node};
use crate::node::Presence;
use crate::trouble::{Out, Result, Trouble};
use clap::Subcommand;
use fermata_output::file::NewFile;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The first version with supplementary groups.
const VERSION: &str = "0.7.0";
const KIND: &str = "fermata.dev/card";
/// The name of the device that stands for all cards.
const ALL: &str = "all";

/// Pass cards on to containers, by the Container Device Interface
#[derive(Debug, clap::Args)]
pub(crate) struct Cdi {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(Generate),
}

/// Print the specification of the cards of this machine
///
/// A container runtime that has the specification in a file of /etc/cdi starts a container with a
/// card for `--device fermata.dev/card=NAME`: NAME is the card's number, its PCI address, or `all`.
#[derive(Debug, clap::Args)]
struct Generate {
    /// Replace this file by the specification, or remove the file if there is no card
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    device_nodes: Vec<DeviceNode>,
    /// Groups of the container's first process, which may be any user.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    additional_gids: BTreeSet<u32>,
}

/// A node of the container. The runtime takes the device number from the host's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
    r#type: &'static str,
    file_mode: u32,
    permissions: &'static str,
    gid: u32,
}

/// What was written.
#[derive(Serialize)]
struct Written<'a> {
    output: &'a Path,
    /// Names for `--device`; empty: there is no card, and the file was removed.
    devices: Vec<String>,
}

impl Cdi {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        match &self.command {
            Command::Generate(command) => command.run(out),
        }
    }
}

impl Generate {
    fn run(&self, out: Out) -> Result<()> {
        let nodes = card::nodes()?;
        let specification = Specification::of(&nodes);
        let Some(output) = &self.output else {
            if nodes.is_empty() {
                return Err(Presence::look().without_node(None));
            }
            return out.show(&specification, Specification::text);
        };
        let stored = if nodes.is_empty() {
            remove(output)
        } else {
            replace(output, &specification.text())
        };
        stored.map_err(|error| Trouble::of_file(output, &error))?;
        let devices = specification.devices.iter();
        let devices = devices.map(|device| format!("{KIND}={}", device.name));
        let written = Written {
            output,
            devices: devices.collect(),
        };
        out.show(&written, Written::text)
    }
}

impl Specification {
    /// Names each card by its number and by its PCI address, because a number may be another card's
    /// after the next boot.
    fn of(nodes: &[Node]) -> Self {
        let mut devices: Vec<Device> = nodes.iter().flat_map(Device::of).collect();
        if !nodes.is_empty() {
            devices.push(Device::new(ALL, nodes));
        }
        Self {
            cdi_version: VERSION,
            kind: KIND,
            devices,
        }
    }

    fn text(&self) -> String {
        // Paths below /dev are valid text, so this does not fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

impl Device {
    /// Returns the devices that stand for this card.
    fn of(node: &Node) -> impl Iterator<Item = Self> + '_ {
        let names = [Some(node.number.to_string()), node.pci_address.clone()];
        let names = names.into_iter().flatten();
        names.map(|name| Self::new(&name, std::slice::from_ref(node)))
    }

    fn new(name: &str, nodes: &[Node]) -> Self {
        // Group root means that udev has given the node to no group. Joining root would not help.
        let groups = nodes.iter().map(|node| node.gid).filter(|&gid| gid != 0);
        Self {
            name: name.into(),
            container_edits: Edits {
                device_nodes: nodes.iter().map(DeviceNode::of).collect(),
                additional_gids: groups.collect(),
            },
        }
    }
}

impl DeviceNode {
    fn of(node: &Node) -> Self {
        Self {
            path: node.path.clone(),
            r#type: "c",
            file_mode: node.mode,
            permissions: "rw",
            gid: node.gid,
        }
    }
}

impl Written<'_> {
    fn text(&self) -> String {
        let devices = match &self.devices[..] {
            [] => "removed, because there is no card".into(),
            devices => devices.join(", "),
        };
        format!("{}: {devices}", self.output.display())
    }
}

/// Replaces a file in one step: runtimes read the folder at any time. They skip a file that does not
/// end in .json or .yaml.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    check_kind(file)?;
    NewFile::create(file)?.readable()?.fill(text.as_bytes())
}

fn remove(file: &Path) -> io::Result<()> {
    check_kind(file)?;
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Refuses an existing path that is not a regular file, such as /dev/stdout, which is a symbolic
/// link.
fn check_kind(file: &Path) -> io::Result<()> {
    match fs::symlink_metadata(file) {
        Ok(there) if !there.is_file() => Err(io::Error::other("not a regular file")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use serde_json::json;
    use std::os::unix::fs::MetadataExt;

    fn node(number: u32, pci_address: Option<&str>, gid: u32) -> Node {
        Node {
            number,
            path: format!("/dev/fermata{number}").into(),
            mode: 0o660,
            gid,
            pci_address: pci_address.map(Into::into),
        }
    }

    #[test]
    fn a_card_has_two_names_and_all_are_one_device() {
        let nodes = [node(0, Some("0000:00:05.0"), 990), node(3, None, 0)];
        let edits = |number: u32, gid: u32| {
            json!({"path": format!("/dev/fermata{number}"), "type": "c", "fileMode": 0o660,
                "permissions": "rw", "gid": gid})
        };
        let first = json!({"deviceNodes": [edits(0, 990)], "additionalGids": [990]});
        let both = [edits(0, 990), edits(3, 0)];
        assert_eq!(
            serde_json::to_value(Specification::of(&nodes)).unwrap(),
            json!({"cdiVersion": "0.7.0", "kind": "fermata.dev/card", "devices": [
                {"name": "0", "containerEdits": first},
                {"name": "0000:00:05.0", "containerEdits": first},
                {"name": "3", "containerEdits": {"deviceNodes": [edits(3, 0)]}},
                {"name": "all", "containerEdits": {"deviceNodes": both, "additionalGids": [990]}},
            ]})
        );
    }

    #[test]
    fn a_file_is_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fermata.json");
        for (text, umask) in [("one", 0), ("two", 0o77)] {
            let before = rustix::process::umask(Mode::from_raw_mode(umask));
            replace(&file, text).unwrap();
            rustix::process::umask(before);
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o644);
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        remove(&file).unwrap();
        remove(&file).unwrap();
        replace(&folder.path().join("none/fermata.json"), "").unwrap_err();
    }

    #[test]
    fn only_a_file_is_replaced_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for file in [&link, Path::new("/dev/null"), folder.path()] {
            replace(file, "text").unwrap_err();
            remove(file).unwrap_err();
        }
        assert_eq!(fs::read_link(&link).unwrap(), target);
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    }
}
