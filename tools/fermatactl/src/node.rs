// SPDX-License-Identifier: GPL-2.0-or-later
//! Device nodes of cards: opens a node, and explains why a node cannot be opened or does not exist.

use crate::advice::Call;
use crate::trouble::{Result, Trouble};
use fermata::{Context, Error};
use rustix::fs::{Access, AtFlags, CWD};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Opens the node at `path`; `card` is the number of the card that usually has this node.
pub(crate) fn open(path: &Path, card: Option<u32>) -> Result<Context> {
    let metadata = fs::metadata(path).map_err(|error| match (error.kind(), card) {
        (ErrorKind::NotFound, Some(card)) => Presence::look().without_node(Some(card)),
        _ => Trouble::of_file(path, &error),
    })?;
    check_driver(path, &metadata, card)?;
    Context::open(path).map_err(|error| match error {
        Error::NotPermitted => not_permitted(path, &metadata, card),
        Error::NotReady | Error::Gone => no_card_behind(path, card),
        error => Trouble::of_call(&path.display().to_string(), Call::Open, error),
    })
}

/// Refuses a file that is not a card before opening it: opening the device of another driver may
/// have effects.
fn check_driver(path: &Path, metadata: &Metadata, card: Option<u32>) -> Result<()> {
    if !metadata.file_type().is_char_device() {
        return Err(no_card(path, "it is no character device"));
    }
    match (fermata::major(), card) {
        (Ok(None), Some(card)) => Err(Presence::NotLoaded.without_node(Some(card))),
        (Ok(ours), _) if ours != Some(rustix::fs::major(metadata.rdev())) => Err(no_card(
            path,
            "its device number is not one of the module fermata",
        )),
        _ => Ok(()),
    }
}

fn no_card(path: &Path, why: &str) -> Trouble {
    Trouble::new(
        format!("{} is not a fermata card: {why}", path.display()),
        "name a card by its number (0), its name (fermata0) or its device (/dev/fermata0): \
             `fermatactl list` shows the cards that there are",
    )
}

/// Returns the error for a node of the module without a card.
fn no_card_behind(path: &Path, card: Option<u32>) -> Trouble {
    match Presence::look() {
        Presence::Loaded(Some(cards)) if cards.is_empty() => {
            Presence::Loaded(Some(cards)).without_node(card)
        }
        _ => Trouble::gone(
            format!("{}: the card of this node is gone", path.display()),
            "`dmesg` tells why; `fermatactl list` shows which cards there are",
        ),
    }
}

/// Returns the error for a node that the caller may not open.
fn not_permitted(path: &Path, metadata: &Metadata, card: Option<u32>) -> Trouble {
    let device = path.display();
    let wanted = Access::READ_OK | Access::WRITE_OK;
    if rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS).is_ok() {
        return Trouble::not_permitted(
            format!("{device}: not permitted to open the node, although its mode allows it"),
            format!(
                "a container's device cgroup, a mount with nodev or a security module forbids it; \
                     {}: a node that is made or mounted there is not enough",
                pass_on(card.unwrap_or(0))
            ),
        );
    }
    Trouble::not_permitted(
        format!("{device}: not permitted to open the node"),
        who_may(metadata),
    )
}

/// Returns whether a group, as shown by `stat`, has a number in this user namespace. A group
/// without a number is shown as the overflow group, which in the initial namespace is an ordinary
/// group.
fn has_number(gid: u32) -> bool {
    let numbers = |path: &str| -> Option<Vec<u32>> {
        let text = fs::read_to_string(path).ok()?;
        text.split_whitespace()
            .map(|word| word.parse().ok())
            .collect()
    };
    numbers("/proc/self/gid_map") == Some(vec![0, 0, u32::MAX])
        || numbers("/proc/sys/kernel/overflowgid") != Some(vec![gid])
}

/// Returns who may open a node according to its mode.
fn who_may(metadata: &Metadata) -> String {
    const GROUP_READ_WRITE: u32 = 0o060;
    if !has_number(metadata.gid()) {
        return "the node's group has no number in this user namespace: as a member of that group, \
                start the container with `--group-add keep-groups` (docs/deploy/containers.md)"
            .into();
    }
    let is_for_group =
        metadata.mode() & GROUP_READ_WRITE == GROUP_READ_WRITE && metadata.gid() != 0;
    if !is_for_group {
        return "only root may, until a udev rule gives the node to a group: see docs/operations.md"
            .into();
    }
    let group = uzers::get_group_by_gid(metadata.gid());
    let group = group.map_or_else(
        || metadata.gid().to_string(),
        |group| group.name().to_string_lossy().into_owned(),
    );
    format!("be a member of the group {group} (`adduser USER {group}`, then log in again), or root")
}

/// What is known about the module and its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Neither sysfs nor /proc/devices can be read.
    Unknown,
    NotLoaded,
    /// The module is loaded, with the numbers of bound cards; `None` without sysfs.
    Loaded(Option<Vec<u32>>),
}

impl Presence {
    pub(crate) fn look() -> Self {
        Self::look_below(Path::new("/"))
    }

    /// Like [`Presence::look`], with sys/ and proc/ in the folder `root`.
    fn look_below(root: &Path) -> Self {
        let class = root.join("sys/class");
        if let Ok(entries) = fs::read_dir(class.join("fermata")) {
            let names = entries.flatten().map(|entry| entry.file_name());
            let mut cards: Vec<_> = names
                .filter_map(|name| fermata::card_number(&name))
                .collect();
            cards.sort_unstable();
            return Self::Loaded(Some(cards));
        }
        match fs::read_to_string(root.join("proc/devices")) {
            Ok(devices) if fermata::major_in(&devices).is_some() => Self::Loaded(None),
            Err(_) if !class.exists() => Self::Unknown,
            _ => Self::NotLoaded,
        }
    }

    /// Returns the error for a missing node of the card `wanted`, or of any card.
    pub(crate) fn without_node(&self, wanted: Option<u32>) -> Trouble {
        let whose = wanted.map_or_else(|| "a card".into(), |wanted| names_of(&[wanted]));
        match self {
            Self::NotLoaded => Trouble::gone(
                "there is no card: the module fermata is not loaded",
                "load the module: `modprobe fermata` (`insmod fermata.ko` if the module is not \
                     installed), on the host of a container",
            ),
            Self::Loaded(Some(cards)) if cards.is_empty() => Trouble::gone(
                "there is no card: the module fermata is loaded, but no card is bound to it",
                "`lspci -d 1af4: -k` shows whether a card is plugged and which driver has the \
                     card, `dmesg | grep fermata` why the card was refused",
            ),
            Self::Loaded(Some(cards)) => match wanted {
                Some(wanted) if !cards.contains(&wanted) => Trouble::gone(
                    format!("there is no card fermata{wanted}"),
                    format!("there are: {}", names_of(cards)),
                ),
                Some(wanted) => hidden(&[wanted]),
                None => hidden(cards),
            },
            Self::Loaded(None) => Trouble::gone(
                format!(
                    "/dev has no node of {whose}: the module fermata is loaded, but without \
                     sysfs it cannot be told which cards are bound"
                ),
                format!("mount sysfs on /sys, and try again; {}", pass_on(0)),
            ),
            Self::Unknown => Trouble::gone(
                format!(
                    "/dev has no node of {whose}, and neither /sys nor /proc/devices can be \
                     read to tell why"
                ),
                format!(
                    "mount sysfs on /sys and proc on /proc, and try again; {}",
                    pass_on(0)
                ),
            ),
        }
    }
}

/// Returns the error for cards that are bound, but have no node in this container.
fn hidden(cards: &[u32]) -> Trouble {
    let first = cards.first().copied().unwrap_or(0);
    Trouble::gone(
        format!(
            "/dev has no node of a card, but the machine has {}",
            names_of(cards)
        ),
        format!(
            "{}; elsewhere: mount a devtmpfs on /dev, where the kernel makes the nodes",
            pass_on(first)
        ),
    )
}

/// Returns how a container gets the node of a card.
pub(crate) fn pass_on(card: u32) -> String {
    format!(
        "in a container: start it with the card (`--device fermata.dev/card={card}`, see \
         docs/deploy/containers.md, or `--device /dev/fermata{card}`)"
    )
}

fn names_of(cards: &[u32]) -> String {
    let names: Vec<_> = cards.iter().map(|card| format!("fermata{card}")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const LOADED: &str = "Character devices:\n  1 mem\n511 fermata\n\nBlock devices:\n  8 sd\n";
    const NOT_LOADED: &str = "Character devices:\n  1 mem\n\nBlock devices:\n511 fermata\n";

    /// The /sys and /proc of a machine in a temporary folder.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, folders: &[&str], devices: Option<&str>) -> Self {
            let root =
                std::env::temp_dir().join(format!("fermatactl-{}-{name}", std::process::id()));
            for folder in folders {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            if let Some(devices) = devices {
                fs::create_dir_all(root.join("proc")).unwrap();
                fs::write(root.join("proc/devices"), devices).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_state_is_that_of_sysfs_and_proc() {
        let cards = ["sys/class/fermata/fermata10", "sys/class/fermata/fermata2"];
        let some = |cards: &[u32]| Presence::Loaded(Some(cards.to_vec()));
        let table: [(&str, &[&str], Option<&str>, Presence); 8] = [
            ("cards", &cards, Some(LOADED), some(&[2, 10])),
            ("cards-no-proc", &cards, None, some(&[2, 10])),
            ("no-card", &["sys/class/fermata"], Some(LOADED), some(&[])),
            (
                "not-loaded",
                &["sys/class"],
                Some(NOT_LOADED),
                Presence::NotLoaded,
            ),
            (
                "not-loaded-no-proc",
                &["sys/class"],
                None,
                Presence::NotLoaded,
            ),
            (
                "not-loaded-no-sysfs",
                &["sys"],
                Some(NOT_LOADED),
                Presence::NotLoaded,
            ),
            ("no-sysfs", &["sys"], Some(LOADED), Presence::Loaded(None)),
            ("nothing", &["sys"], None, Presence::Unknown),
        ];
        for (name, folders, devices, wanted) in table {
            let machine = Machine::new(name, folders, devices);
            assert_eq!(Presence::look_below(&machine.0), wanted, "{name}");
        }
    }

    #[test]
    fn each_state_has_its_own_words() {
        let table = [
            (
                Presence::NotLoaded,
                None,
                "is not loaded",
                "modprobe fermata",
            ),
            (
                Presence::Loaded(Some(vec![])),
                Some(0),
                "no card is bound",
                "lspci",
            ),
            (
                Presence::Loaded(Some(vec![0, 3])),
                None,
                "the machine has fermata0, fermata3",
                "--device /dev/fermata0",
            ),
            (
                Presence::Loaded(Some(vec![0, 3])),
                Some(3),
                "the machine has fermata3",
                "--device /dev/fermata3",
            ),
            (
                Presence::Loaded(Some(vec![0, 3])),
                Some(7),
                "no card fermata7",
                "there are: fermata0, fermata3",
            ),
            (Presence::Loaded(None), None, "without sysfs", "mount sysfs"),
            (
                Presence::Unknown,
                None,
                "neither /sys nor /proc",
                "--device",
            ),
        ];
        for (presence, wanted, error, advice) in table {
            let text = presence.without_node(wanted).to_string();
            let (first, rest) = text.split_once('\n').unwrap();
            assert!(first.contains(error) && rest.contains(advice), "{text}");
        }
    }
}
