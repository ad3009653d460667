// SPDX-License-Identifier: GPL-2.0-or-later
//! The figures of a card, as sysfs has them.

use super::metrics::Buckets;
use crate::card::{read_lines, Figures, Monitor};
use fermata::{lower_bound, EngineId, BUCKETS};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The first of the bounds that histograms have, about a microsecond, is that of this bucket; then
/// every octave has one.
const FIRST_BOUND: usize = 20;
const BUCKETS_OF_OCTAVE: usize = 4;

/// A card whose figures could be read.
pub(super) struct Card {
    pub(super) name: String,
    /// Files of the card in sysfs, by name.
    pub(super) about: BTreeMap<&'static str, String>,
    pub(super) slots: Vec<Slot>,
    /// By number.
    pub(super) groups: BTreeMap<u64, Group>,
}

/// A slot.
pub(super) struct Slot {
    pub(super) number: u64,
    /// The engine's name, or its UUID.
    pub(super) engine: String,
    pub(super) figures: Figures,
    /// By name.
    pub(super) histograms: BTreeMap<String, Buckets>,
}

/// A group that has contexts.
#[derive(Default)]
pub(super) struct Group {
    pub(super) run_ns: u64,
    /// How many contexts are in each state.
    pub(super) states: BTreeMap<String, u64>,
}

impl Card {
    /// Reads the files of a card in its folder. `None`: the card has gone, or the caller may not
    /// read them.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let monitor = Monitor::read_from(folder)?;
        let histograms = read_lines(&folder.join("histograms")).ok()?;
        let files = [
            "profile",
            "policy",
            "uapi_version",
            "contexts",
            "max_contexts",
        ];
        let about = files.map(|name| Some((name, fs::read_to_string(folder.join(name)).ok()?)));
        let mut about: BTreeMap<_, _> = about.into_iter().collect::<Option<_>>()?;
        let device = fs::canonicalize(folder.join("device")).ok()?;
        about.insert("pci_address", device.file_name()?.to_string_lossy().into());
        let mut card = Self {
            name: folder.file_name()?.to_string_lossy().into(),
            about,
            slots: monitor.slots().map(Slot::of).collect(),
            groups: groups(&monitor),
        };
        card.slots.sort_by_key(|slot| slot.number);
        histograms
            .lines()
            .for_each(|line| card.take_histogram(line));
        Some(card)
    }

    /// Returns the value of a file.
    pub(super) fn value(&self, name: &str) -> &str {
        self.about.get(name).map_or("", |value| value.trim_end())
    }

    fn take_histogram(&mut self, line: &str) {
        let figures = Figures::in_line(line);
        let number = figures.find("slot");
        let mut slots = self.slots.iter_mut();
        let slot = slots.find(|slot| Some(slot.number) == number);
        if let (Some(slot), Some(name)) = (slot, figures.text("histogram")) {
            slot.histograms.insert(name.into(), buckets(&figures));
        }
    }
}

impl Slot {
    fn of(figures: &Figures) -> Self {
        let id = figures.text("engine").unwrap_or_default();
        let name = id.parse().ok().and_then(EngineId::name);
        Self {
            number: figures.of("slot"),
            engine: name.unwrap_or(id).into(),
            figures: figures.clone(),
            histograms: BTreeMap::new(),
        }
    }
}

fn groups(monitor: &Monitor) -> BTreeMap<u64, Group> {
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for context in monitor.contexts() {
        let group = groups.entry(context.of("group")).or_default();
        // Lines are read one after the other.
        group.run_ns = group.run_ns.max(context.of("group_run_ns"));
        let state = context.text("state").unwrap_or_default();
        *group.states.entry(state.into()).or_default() += 1;
    }
    groups
}

/// Returns the histogram of a line.
fn buckets(figures: &Figures) -> Buckets {
    let counts: Vec<u64> = (0..BUCKETS).map(|n| figures.of(&n.to_string())).collect();
    let bounds = (FIRST_BOUND..BUCKETS).step_by(BUCKETS_OF_OCTAVE);
    Buckets {
        below: bounds
            .map(|bucket| (lower_bound(bucket), counts[..bucket].iter().sum()))
            .collect(),
        count: counts.iter().sum(),
        sum_ns: figures.of("sum_ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_card_is_what_its_files_say() {
        let root = std::env::temp_dir().join(format!("fermatactl-cards-{}", std::process::id()));
        let folder = root.join("fermata3");
        fs::create_dir_all(root.join("0000:00:05.0")).unwrap();
        fs::create_dir_all(&folder).unwrap();
        symlink(root.join("0000:00:05.0"), folder.join("device")).unwrap();
        let monitor =
            "slot=1 engine=4c494e4b-4544-4c49-5354-000000000001 state=vacant starts=2  \n\
            slot=0 engine=00000000-0000-0000-0000-000000000002 state=running starts=3  \n\
            context=65536 group=9 state=queued group_run_ns=5  \n        \n\
            context=65538 group=9 state=running group_run_ns=7  \n\
            context=65539 group=1 state=queued group_run_ns=1  \n";
        let histograms = "slot=1 histogram=gap count=6 sum_ns=99 0=1 19=2 20=2 127=1   \n\
            slot=7 histogram=gap count=1 sum_ns=1 0=1  \n";
        let files = [
            ("monitor", monitor),
            ("histograms", histograms),
            ("profile", "base\n"),
            ("policy", "fair\n"),
            ("contexts", "3\n"),
            ("max_contexts", "4096\n"),
            ("uapi_version", "2\n"),
        ];
        for (name, text) in files {
            assert!(Card::read(&folder).is_none(), "without {name}");
            fs::write(folder.join(name), text).unwrap();
        }
        let card = Card::read(&folder).unwrap();
        fs::remove_dir_all(&root).unwrap();

        assert_eq!((&card.name[..], card.value("policy")), ("fermata3", "fair"));
        assert_eq!(card.value("pci_address"), "0000:00:05.0");
        let [first, second] = &card.slots[..] else {
            panic!()
        };
        assert_eq!(
            (&second.engine[..], second.figures.of("starts")),
            ("linkedlist", 2)
        );
        assert_eq!(first.engine, "00000000-0000-0000-0000-000000000002");
        assert!(first.histograms.is_empty());
        let gap = &second.histograms["gap"];
        assert_eq!((gap.count, gap.sum_ns), (6, 99));
        assert_eq!(gap.below[..2], [(1024, 3), (2048, 5)]);
        assert_eq!(gap.below.last(), Some(&(1 << 36, 5)));
        let group = &card.groups[&9];
        assert_eq!((card.groups.len(), group.run_ns), (2, 7));
        assert_eq!(group.states["running"], 1);
    }
}
