// SPDX-License-Identifier: GPL-2.0
//! The file `monitor` of a card in sysfs: what all its slots and contexts have done, for who may not ask the driver of others.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the file says of a slot or a context: its values by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures(HashMap<String, u64>);

impl Figures {
    /// A value; 0 where an older driver does not tell it.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The value, where there is one.
    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// The values of a line that are numbers.
    fn in_line(line: &str) -> Self {
        let pairs = line.split_whitespace().filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(pairs.collect())
    }
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Monitor {
    slots: HashMap<u64, Figures>,
    contexts: HashMap<u64, Figures>,
}

impl Monitor {
    /// The file of the card whose device is at `device`; `None`: the caller may not read it, or there is none.
    pub(crate) fn read(device: &Path) -> Option<Self> {
        let number = fs::metadata(device).ok()?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let text = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/monitor")).ok()?;
        Some(Self::in_text(&text))
    }

    fn in_text(text: &str) -> Self {
        let mut monitor = Self::default();
        for line in text.lines() {
            let figures = Figures::in_line(line);
            // The first name of a line is that of what it is about.
            if line.starts_with("slot=") {
                monitor.slots.insert(figures.of("slot"), figures);
            } else if line.starts_with("context=") {
                monitor.contexts.insert(figures.of("context"), figures);
            }
        }
        monitor
    }

    pub(crate) fn slot(&self, number: u32) -> Option<&Figures> {
        self.slots.get(&number.into())
    }

    pub(crate) fn context(&self, number: u32) -> Option<&Figures> {
        self.contexts.get(&number.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_of_slots_and_contexts() {
        let monitor = Monitor::in_text(
            "slot=1 engine=4c49-01 state=running context=65536 starts=7 busy_ns=12      \n\
             context=65536 pid=12 state=running slots=0x2 slot=1 run_ns=99   \n\
             \n                    \n",
        );
        let slot = monitor.slot(1).unwrap();
        assert_eq!((slot.of("starts"), slot.of("context")), (7, 65536));
        assert_eq!((slot.find("engine"), slot.of("later")), (None, 0));
        let context = monitor.context(65536).unwrap();
        assert_eq!((context.of("run_ns"), context.find("slot")), (99, Some(1)));
        assert_eq!((monitor.slots.len(), monitor.contexts.len()), (1, 1));
        assert_eq!(monitor.slot(0), None);
    }
}
