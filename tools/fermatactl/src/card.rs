// SPDX-License-Identifier: GPL-2.0
//! Cards: which there are, and how one is opened.

use crate::advice::Call;
use crate::monitor::Monitor;
use crate::node::{self, Presence};
use crate::trouble::{Result, Trouble};
use fermata::{uapi, Context, Error, Histogram, SlotHistogram};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FOLDER: &str = "/dev";
const PREFIX: &str = "fermata";

/// The name of a card: its number, its name, or the path of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardName(PathBuf);

impl FromStr for CardName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let name = text.strip_prefix(PREFIX).unwrap_or(text);
        if text.contains('/') {
            Ok(Self(PathBuf::from(text)))
        } else if name.parse::<u32>().is_ok() {
            Ok(Self(Path::new(FOLDER).join(format!("{PREFIX}{name}"))))
        } else {
            Err("a card is a number (0), a name (fermata0) or a device (/dev/fermata0)".into())
        }
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.file_name().unwrap_or(self.0.as_os_str());
        write!(f, "{}", name.to_string_lossy())
    }
}

/// The number of a device of ours by its file's name.
fn number_of(path: &Path) -> Option<u32> {
    node::number_in(path.file_name()?.to_str()?)
}

/// The cards that there are, by their numbers.
pub(crate) fn all() -> Result<Vec<CardName>> {
    let folder = Path::new(FOLDER);
    let entries = fs::read_dir(folder).map_err(|error| Trouble::of_file(folder, &error))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<_> = paths
        .filter_map(|path| Some((number_of(&path)?, path)))
        .collect();
    found.sort();
    Ok(found.into_iter().map(|(_, path)| CardName(path)).collect())
}

/// One card, open. That is no use of it: only a context that is set up is one.
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

    /// Those named, or all that there are.
    pub(crate) fn open_all(names: &[CardName]) -> Result<Vec<Self>> {
        let names = if names.is_empty() {
            all()?
        } else {
            names.to_vec()
        };
        if names.is_empty() {
            return Err(Presence::look().without_node(None));
        }
        names.iter().map(Self::open).collect()
    }

    /// That named, or the only one that there is.
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

    /// The path of its device.
    pub(crate) fn device(&self) -> &Path {
        &self.name.0
    }

    /// Its number, where its device has the usual name.
    pub(crate) fn number(&self) -> Option<u32> {
        number_of(&self.name.0)
    }

    /// What is said of a call that was refused.
    pub(crate) fn refused(&self, doing: &str, call: Call, error: Error) -> Trouble {
        Trouble::of_call(&format!("{}: {doing}", self.name), call, error)
    }

    /// The contexts that are set up, by their numbers.
    pub(crate) fn contexts(&self) -> Result<Vec<uapi::ContextInfo>> {
        let contexts = self.file.contexts();
        let mut contexts =
            contexts.map_err(|error| self.refused("its contexts", Call::ContextInfo, error))?;
        contexts.sort_unstable_by_key(|context| context.context);
        Ok(contexts)
    }

    /// A histogram of a slot; `None`: it tells of other users, and the caller may not know of them.
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

    /// The figures of all tenants by way of sysfs, where the driver does not tell the caller of others.
    pub(crate) fn monitor(&self) -> Option<Monitor> {
        match self.file.slot_histogram(0, SlotHistogram::Gap) {
            Err(Error::NotPermitted) => Monitor::read(self.device()),
            _ => None,
        }
    }

    /// That there is no context of this number, and which there are.
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

    /// What is said of a call for a context that was refused.
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

fn list_of<T: fmt::Display>(things: &[T]) -> String {
    let names: Vec<_> = things.iter().map(ToString::to_string).collect();
    names.join(", ")
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
        for text in ["", "card0", "fermata", "-1", "fermata0x"] {
            assert!(text.parse::<CardName>().is_err(), "{text}");
        }
        let elsewhere: CardName = "./card".parse().unwrap();
        assert_eq!(number_of(&elsewhere.0), None);
    }
}
