// SPDX-License-Identifier: GPL-2.0
//! Whether the module is loaded and which cards are bound to it, by sysfs and /proc/devices: /dev does not tell in a container without
//! the card's node.

use crate::trouble::Trouble;
use std::fs;
use std::path::Path;

/// What can be seen of the module and its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Neither sysfs nor /proc/devices can be read.
    Unknown,
    NotLoaded,
    /// The numbers of the cards that are bound; `None`: without sysfs nobody can tell.
    Loaded(Option<Vec<u32>>),
}

impl Presence {
    pub(crate) fn look() -> Self {
        Self::look_below(Path::new("/"))
    }

    /// As [`Presence::look`], with sys/ and proc/ in the folder `root`.
    fn look_below(root: &Path) -> Self {
        let class = root.join("sys/class");
        if let Ok(entries) = fs::read_dir(class.join("fermata")) {
            let names = entries.flatten().map(|entry| entry.file_name());
            let mut cards: Vec<_> = names.filter_map(|name| number_in(name.to_str()?)).collect();
            cards.sort_unstable();
            return Self::Loaded(Some(cards));
        }
        match fs::read_to_string(root.join("proc/devices")) {
            Ok(devices) if major_in(&devices).is_some() => Self::Loaded(None),
            Err(_) if !class.exists() => Self::Unknown,
            _ => Self::NotLoaded,
        }
    }

    /// Returns why there is no node of card number `wanted` (`None`: of any card), and what to do.
    pub(crate) fn without_node(&self, wanted: Option<u32>) -> Trouble {
        let whose = wanted.map_or_else(|| "a card".into(), |wanted| names_of(&[wanted]));
        match self {
            Self::NotLoaded => Trouble::new(
                "there is no card: the module fermata is not loaded",
                "load the module: `modprobe fermata` (`insmod fermata.ko` if the module is not installed), on the host of a container",
            ),
            Self::Loaded(Some(cards)) if cards.is_empty() => Trouble::new(
                "there is no card: the module fermata is loaded, but no card is bound to it",
                "`lspci -d 1af4: -k` shows whether a card is plugged and which driver has the card, `dmesg | grep fermata` why the card was refused",
            ),
            Self::Loaded(Some(cards)) => match wanted {
                Some(wanted) if !cards.contains(&wanted) => Trouble::new(
                    format!("there is no card fermata{wanted}"),
                    format!("there are: {}", names_of(cards)),
                ),
                Some(wanted) => hidden(&[wanted]),
                None => hidden(cards),
            },
            Self::Loaded(None) => Trouble::new(
                format!("/dev has no node of {whose}: the module fermata is loaded, but without sysfs it cannot be told which cards are bound"),
                format!("mount sysfs on /sys, and try again; {}", pass_on(0)),
            ),
            Self::Unknown => Trouble::new(
                format!("/dev has no node of {whose}, and neither /sys nor /proc/devices can be read to tell why"),
                format!("mount sysfs on /sys and proc on /proc, and try again; {}", pass_on(0)),
            ),
        }
    }
}

/// The error for cards that are bound, but have no node here.
fn hidden(cards: &[u32]) -> Trouble {
    let first = cards.first().copied().unwrap_or(0);
    Trouble::new(
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
    format!("in a container: start it with the card's node (`--device /dev/fermata{card}`)")
}

fn names_of(cards: &[u32]) -> String {
    let names: Vec<_> = cards.iter().map(|card| format!("fermata{card}")).collect();
    names.join(", ")
}

/// The number of the card that has this name.
pub(crate) fn number_in(name: &str) -> Option<u32> {
    name.strip_prefix("fermata")?.parse().ok()
}

/// The major number of the module's devices: `Ok(None)`: the module is not loaded; an error: there is no /proc.
pub(crate) fn major() -> std::io::Result<Option<u32>> {
    fs::read_to_string("/proc/devices").map(|devices| major_in(&devices))
}

/// As [`major`], in what /proc/devices says: lines of a number and a name, block devices last.
fn major_in(devices: &str) -> Option<u32> {
    let characters = devices.lines().take_while(|line| *line != "Block devices:");
    let mut pairs = characters.filter_map(|line| line.trim().split_once(' '));
    let (number, _) = pairs.find(|(_, name)| *name == "fermata")?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const LOADED: &str = "Character devices:\n  1 mem\n511 fermata\n\nBlock devices:\n  8 sd\n";
    const NOT_LOADED: &str = "Character devices:\n  1 mem\n\nBlock devices:\n511 fermata\n";

    /// A machine's /sys and /proc in a folder, which goes with it.
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
