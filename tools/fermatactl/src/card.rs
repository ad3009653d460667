// SPDX-License-Identifier: GPL-2.0-or-later
//! Cards: finds and opens cards. Users who may not ask the driver about other users read the card's
//! file `monitor` in sysfs.

use crate::advice::Call;
use crate::node::{self, Presence};
use crate::trouble::{Result, Trouble};
use fermata::{uapi, Context, Error, Histogram, SlotHistogram};
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FOLDER: &str = "/dev";

/// The name of a card: its number, its name, or the path of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardName(PathBuf);

impl FromStr for CardName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.contains('/') {
            return Ok(Self(PathBuf::from(text)));
        }
        let name = format!("fermata{}", text.strip_prefix("fermata").unwrap_or(text));
        match fermata::card_number(name.as_ref()) {
            Some(_) => Ok(Self(Path::new(FOLDER).join(name))),
            None => {
                Err("a card is a number (0), a name (fermata0) or a device (/dev/fermata0)".into())
            }
        }
    }
}

impl CardName {
    /// Returns the card's number if the device has the usual name.
    pub(crate) fn number(&self) -> Option<u32> {
        number_of(&self.0)
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.file_name().unwrap_or(self.0.as_os_str());
        write!(f, "{}", name.to_string_lossy())
    }
}

/// Returns the number of a card by the name of its device.
fn number_of(path: &Path) -> Option<u32> {
    fermata::card_number(path.file_name()?)
}

/// Returns all cards, by number.
pub(crate) fn all() -> Result<Vec<CardName>> {
    let devices = fermata::devices().map_err(|error| {
        let error = io::Error::from_raw_os_error(error.errno());
        Trouble::of_file(Path::new(FOLDER), &error)
    })?;
    Ok(devices.into_iter().map(CardName).collect())
}

/// The device node of a card: what is known without opening it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) number: u32,
    pub(crate) path: PathBuf,
    /// Permissions.
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    /// `None` without sysfs.
    pub(crate) pci_address: Option<String>,
}

/// Returns the nodes of all cards, by number.
pub(crate) fn nodes() -> Result<Vec<Node>> {
    all()?
        .into_iter()
        .filter_map(|card| Node::of(card.0))
        .collect()
}

impl Node {
    fn of(path: PathBuf) -> Option<Result<Self>> {
        let number = number_of(&path)?;
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            // The card has just gone.
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => return Some(Err(Trouble::of_file(&path, &error))),
        };
        let device = fs::canonicalize(format!("/sys/class/fermata/fermata{number}/device")).ok();
        let address = device.as_deref().and_then(Path::file_name);
        Some(Ok(Self {
            number,
            path,
            mode: metadata.mode() & 0o777,
            gid: metadata.gid(),
            pci_address: address.map(|address| address.to_string_lossy().into_owned()),
        }))
    }
}

/// An open card. The file does not count as a use of the card until its context is set up.
pub(crate) struct Card {
    pub(crate) name: CardName,
    pub(crate) file: Context,
}

impl Card {
    pub(crate) fn open(name: &CardName) -> Result<Self> {
        let number = number_of(&name.0).filter(|_| name.0.parent() == Some(Path::new(FOLDER)));
        let file = node::open(&name.0, number)?;
        Ok(Self {
            name: name.clone(),
            file,
        })
    }

    /// Opens the named cards; without a name, the cards that are not gone and that the caller may
    /// open: a job of Slurm may open its own cards of a node, and no others.
    pub(crate) fn open_all(names: &[CardName]) -> Result<Vec<Self>> {
        if !names.is_empty() {
            return names.iter().map(Self::open).collect();
        }
        let cards = of_present(all()?.iter().map(Self::open))?;
        if cards.is_empty() {
            return Err(Presence::look().without_node(None));
        }
        Ok(cards)
    }

    /// Opens the named card, or the only card.
    pub(crate) fn open_one(name: Option<&CardName>) -> Result<Self> {
        if let Some(name) = name {
            return Self::open(name);
        }
        match &all()?[..] {
            [] => Err(Presence::look().without_node(None)),
            [name] => Self::open(name),
            several => Err(Trouble::wrong_arguments(
                "there are several cards",
                format!("say which: {}", list_of(several)),
            )),
        }
    }

    /// Returns the path of the device.
    pub(crate) fn device(&self) -> &Path {
        &self.name.0
    }

    /// Returns the card's number if the device has the usual name.
    pub(crate) fn number(&self) -> Option<u32> {
        self.name.number()
    }

    /// Returns the error for a refused call.
    pub(crate) fn refused(&self, doing: &str, call: Call, error: Error) -> Trouble {
        Trouble::of_call(&format!("{}: {doing}", self.name), call, error)
    }

    /// Returns the contexts that are set up, by number.
    pub(crate) fn contexts(&self) -> Result<Vec<uapi::ContextInfo>> {
        let contexts = self.file.contexts();
        let mut contexts =
            contexts.map_err(|error| self.refused("its contexts", Call::ContextInfo, error))?;
        contexts.sort_unstable_by_key(|context| context.context);
        Ok(contexts)
    }

    /// Returns a histogram of a slot, or `None` if the caller may not see other users' figures.
    pub(crate) fn slot_histogram(
        &self,
        slot: u32,
        which: SlotHistogram,
    ) -> Result<Option<Histogram>> {
        match self.file.slot_histogram(slot, which) {
            Err(Error::NotPermitted) => Ok(None),
            other => other
                .map(Some)
                .map_err(|error| self.refused("its histograms", Call::Histogram, error)),
        }
    }

    /// Returns whether the driver tells the caller other users' figures.
    pub(crate) fn tells_all(&self) -> bool {
        let histogram = self.file.slot_histogram(0, SlotHistogram::Gap);
        !matches!(histogram, Err(Error::NotPermitted))
    }

    /// Returns the figures of all tenants from sysfs, if the driver does not tell them.
    pub(crate) fn monitor(&self) -> Option<Monitor> {
        if self.tells_all() {
            return None;
        }
        Monitor::read(self.device())
    }

    /// Returns the error for the number of a context that does not exist.
    pub(crate) fn no_context(&self, number: u32) -> Trouble {
        let there = self.contexts().unwrap_or_default();
        let advice = if there.is_empty() {
            "no program has set up a context on this card now".into()
        } else {
            let numbers = there.iter().map(|context| context.context);
            format!("there are: {}", list_of(&numbers.collect::<Vec<_>>()))
        };
        Trouble::new(
            format!("{}: there is no context {number}", self.name),
            advice,
        )
    }

    /// Returns the error for a refused call about a context.
    pub(crate) fn refused_for(
        &self,
        context: u32,
        doing: &str,
        call: Call,
        error: Error,
    ) -> Trouble {
        match error {
            Error::NoContext => self.no_context(context),
            error => self.refused(&format!("{doing} context {context}"), call, error),
        }
    }
}

/// Returns the results of the cards that are not gone and that the caller may open. Fails with the
/// error of the first of the others if there is no result, and with any error of another kind.
pub(crate) fn of_present<T>(results: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut present, mut absent) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => present.push(value),
            Err(error) if error.is_without_card() => absent = absent.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    match absent {
        Some(error) if present.is_empty() => Err(error),
        _ => Ok(present),
    }
}

fn list_of<T: fmt::Display>(things: &[T]) -> String {
    let names: Vec<_> = things.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// The values of a line, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures(HashMap<String, String>);

impl Figures {
    /// Returns a value, or 0 if an older driver does not have it.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.find(name).unwrap_or(0)
    }

    /// Returns a value if it exists, and is a number.
    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns a value as text, if it exists.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the values in a line of words NAME=VALUE.
    pub(crate) fn in_line(line: &str) -> Self {
        let pairs = line.split_whitespace().filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Self(pairs.collect())
    }
}

/// Reads a file of lines in sysfs, by whole pages. The driver writes the lines anew for each read,
/// so a line split between two reads would mix figures of different times.
pub(crate) fn read_lines(path: &Path) -> io::Result<String> {
    // A multiple of the length of lines.
    const PAGE: usize = 4096;
    let (mut file, mut page) = (File::open(path)?, [0; PAGE]);
    let mut text = Vec::new();
    loop {
        match file.read(&mut page)? {
            0 => return String::from_utf8(text).map_err(io::Error::other),
            length => text.extend_from_slice(&page[..length]),
        }
    }
}

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Monitor {
    slots: HashMap<u64, Figures>,
    contexts: HashMap<u64, Figures>,
}

impl Monitor {
    /// Reads the file of a card by its device. Returns `None` if the file does not exist or the
    /// caller may not read it.
    pub(crate) fn read(device: &Path) -> Option<Self> {
        let number = fs::metadata(device).ok()?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Self::read_from(Path::new(&format!("/sys/dev/char/{major}:{minor}")))
    }

    /// Reads the file in the folder of a card in sysfs.
    pub(crate) fn read_from(folder: &Path) -> Option<Self> {
        Some(Self::in_text(&read_lines(&folder.join("monitor")).ok()?))
    }

    fn in_text(text: &str) -> Self {
        let mut monitor = Self::default();
        for line in text.lines() {
            let figures = Figures::in_line(line);
            // The first name of a line tells whether the line is about a slot or a context.
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

    /// Iterates over the slots, in no particular order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Figures> {
        self.slots.values()
    }

    /// Iterates over the contexts, in no particular order.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = &Figures> {
        self.contexts.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_three_names() {
        for text in ["3", "fermata3", "/dev/fermata3"] {
            let name: CardName = text.parse().unwrap();
            assert_eq!(name.0, Path::new("/dev/fermata3"));
            assert_eq!(name.to_string(), "fermata3");
            assert_eq!(number_of(&name.0), Some(3));
        }
        for text in ["", "card0", "fermata", "-1", "+3", "fermata+3", "fermata0x"] {
            assert!(text.parse::<CardName>().is_err(), "{text}");
        }
        let elsewhere: CardName = "./card".parse().unwrap();
        assert_eq!(number_of(&elsewhere.0), None);
    }

    #[test]
    fn cards_without_access_are_left_out_unless_there_is_no_other() {
        let gone = || Err(Trouble::of_call("fermata0", Call::ContextInfo, Error::Gone));
        let without_node = || Err(Presence::Loaded(Some(vec![1])).without_node(Some(0)));
        assert_eq!(
            of_present([without_node(), Ok(2)].into_iter()).unwrap(),
            [2]
        );
        let refused = || Err(Trouble::not_permitted("fermata1", ""));
        assert_eq!(
            of_present([gone(), Ok(2), refused()].into_iter()).unwrap(),
            [2]
        );
        let error = of_present::<u32>([gone(), refused()].into_iter()).unwrap_err();
        assert!(error.to_string().starts_with("fermata0: "), "{error}");
        let other = Err(Trouble::of_call(
            "fermata2",
            Call::ContextInfo,
            Error::NoMemory,
        ));
        assert!(of_present([Ok(1), other].into_iter()).is_err());
        assert_eq!(of_present::<u32>([].into_iter()).unwrap(), [0; 0]);
    }

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
