// SPDX-License-Identifier: GPL-2.0-or-later
//! The cards of the node, as sysfs shows them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;

const SYSFS: &str = "/sys/class/fermata";
const PERIOD: Duration = Duration::from_secs(1);
/// States of a slot that serves no context until its card is reset.
const OUT_OF_USE: [&str; 2] = ["quarantined", "gone"];

/// The cards by PCI address. A card that has been seen since the start of the program stays in the
/// map when it is gone.
pub(crate) type Cards = BTreeMap<String, Card>;

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The device node.
    pub(crate) node: PathBuf,
    /// The inode of the card's folder in sysfs. It changes when the driver is bound again.
    pub(crate) binding: u64,
    /// The NUMA node, if the machine reports one.
    pub(crate) numa_node: Option<i64>,
    /// The engines, by UUID, and how many slots of each serve contexts; empty if the card is gone.
    pub(crate) engines: BTreeMap<String, u32>,
}

impl Card {
    /// Returns whether the card is there.
    pub(crate) fn is_there(&self) -> bool {
        !self.engines.is_empty()
    }

    /// Returns whether each engine of the card has a slot in use.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_there() && self.engines.values().all(|slots| *slots > 0)
    }

    /// Reads the files of a card in its folder of sysfs.
    fn read(folder: &Path) -> io::Result<(String, Self)> {
        let name = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let device = fs::canonicalize(folder.join("device"))?;
        let numa_node = fs::read_to_string(device.join("numa_node")).unwrap_or_default();
        let slots: u32 = read(&folder.join("slots"))?.parse().map_err(invalid)?;
        let mut engines = BTreeMap::new();
        for slot in 0..slots {
            let slot = folder.join(format!("slot{slot}"));
            let in_use = !OUT_OF_USE.contains(&&read(&slot.join("state"))?[..]);
            *engines.entry(read(&slot.join("engine"))?).or_default() += u32::from(in_use);
        }
        let card = Self {
            node: Path::new("/dev").join(name(folder)),
            binding: fs::metadata(folder)?.ino(),
            numa_node: numa_node.trim_end().parse().ok().filter(|node| *node >= 0),
            engines,
        };
        Ok((name(&device), card))
    }
}

fn read(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map(|text| text.trim_end().into())
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Updates the cards. A card that cannot be read is gone, or goes while it is read.
fn update(cards: &mut Cards, folder: &Path) {
    let there: Cards = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Card::read(&entry.ok()?.path()).ok())
        .collect();
    for card in cards.values_mut() {
        card.engines.clear();
    }
    cards.extend(there);
}

/// Follows the cards of the node. Returns a receiver of their changes, and the task that follows
/// them.
pub(crate) fn follow() -> (watch::Receiver<Cards>, tokio::task::JoinHandle<()>) {
    let mut cards = Cards::new();
    update(&mut cards, Path::new(SYSFS));
    let (sender, receiver) = watch::channel(cards);
    let task = tokio::spawn(async move {
        loop {
            tokio::time::sleep(PERIOD).await;
            sender.send_if_modified(|cards| {
                let before = cards.clone();
                update(cards, Path::new(SYSFS));
                *cards != before
            });
        }
    });
    (receiver, task)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Makes the folder of a card whose slots have these engines and states.
    fn make(root: &Path, number: u32, numa_node: &str, slots: &[(&str, &str)]) {
        let device = root.join(format!("devices/0000:00:0{number}.0"));
        let folder = root.join(format!("class/fermata{number}"));
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(device.join("numa_node"), numa_node).unwrap();
        fs::write(folder.join("slots"), format!("{}\n", slots.len())).unwrap();
        symlink(device, folder.join("device")).unwrap();
        for (slot, (engine, state)) in slots.iter().enumerate() {
            let folder = folder.join(format!("slot{slot}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("engine"), format!("{engine}\n")).unwrap();
            fs::write(folder.join("state"), format!("{state}\n")).unwrap();
        }
    }

    #[test]
    fn a_card_is_healthy_if_each_engine_has_a_slot_in_use() {
        let root = tempfile::tempdir().unwrap();
        let class = root.path().join("class");
        let mut cards = Cards::new();
        update(&mut cards, &class);
        assert!(cards.is_empty());

        let root = root.path();
        make(root, 1, "-1\n", &[("a", "vacant"), ("a", "quarantined")]);
        make(root, 2, "1\n", &[("a", "running"), ("b", "gone")]);
        make(root, 3, "0\n", &[("a", "quarantined"), ("b", "vacant")]);
        update(&mut cards, &class);
        let [first, second, third] =
            [1, 2, 3].map(|number| &cards[&format!("0000:00:0{number}.0")]);
        assert!(first.is_healthy() && !second.is_healthy() && !third.is_healthy());
        assert_eq!((first.numa_node, second.numa_node), (None, Some(1)));
        assert_eq!(first.node, Path::new("/dev/fermata1"));
        assert_eq!(first.engines, BTreeMap::from([("a".into(), 1)]));

        // The first card goes and comes back, and the second card does so while it is read.
        let binding = first.binding;
        fs::rename(class.join("fermata1"), root.join("away")).unwrap();
        fs::remove_file(class.join("fermata2/slots")).unwrap();
        update(&mut cards, &class);
        assert_eq!(cards.len(), 3);
        assert!(!cards["0000:00:01.0"].is_healthy() && !cards["0000:00:02.0"].is_healthy());
        fs::remove_dir_all(root.join("away")).unwrap();
        fs::create_dir(root.join("holds the inode")).unwrap();
        make(root, 4, "0", &[]);
        fs::remove_file(root.join("class/fermata4/device")).unwrap();
        symlink(
            root.join("devices/0000:00:01.0"),
            root.join("class/fermata4/device"),
        )
        .unwrap();
        fs::write(root.join("class/fermata4/slots"), "0").unwrap();
        update(&mut cards, &class);
        let again = &cards["0000:00:01.0"];
        assert_eq!(again.node, Path::new("/dev/fermata4"));
        assert!(again.binding != binding && !again.is_healthy());
    }
}
