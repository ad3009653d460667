// SPDX-License-Identifier: GPL-2.0
//! Cards: which there are, and how one is opened.

use crate::trouble::{Result, Trouble};
use fermata::{uapi, Context, Error};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
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
    path.file_name()?
        .to_str()?
        .strip_prefix(PREFIX)?
        .parse()
        .ok()
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

/// Why there is no card, and what to do.
pub(crate) fn none_there() -> Trouble {
    if Path::new("/sys/module/fermata").exists() {
        Trouble::new("there is no card: the module fermata is loaded, but has bound none").advise(
            "`lspci -d 1af4: -k` shows whether a card is plugged and which driver has it, `dmesg | grep fermata` why it was refused",
        )
    } else {
        Trouble::new("there is no card: the module fermata is not loaded")
            .advise("load it: `modprobe fermata` (`insmod fermata.ko` if it is not installed)")
    }
}

/// One card, open. That is no use of it: only a context that is set up is one.
pub(crate) struct Card {
    pub(crate) name: CardName,
    pub(crate) file: Context,
}

impl Card {
    pub(crate) fn open(name: &CardName) -> Result<Self> {
        match Context::open(&name.0) {
            Ok(file) => Ok(Self {
                name: name.clone(),
                file,
            }),
            Err(error) => Err(refused(name, error)),
        }
    }

    /// Those named, or all that there are.
    pub(crate) fn open_all(names: &[CardName]) -> Result<Vec<Self>> {
        let names = if names.is_empty() {
            all()?
        } else {
            names.to_vec()
        };
        if names.is_empty() {
            return Err(none_there());
        }
        names.iter().map(Self::open).collect()
    }

    /// That named, or the only one that there is.
    pub(crate) fn open_one(name: Option<&CardName>) -> Result<Self> {
        if let Some(name) = name {
            return Self::open(name);
        }
        match &all()?[..] {
            [] => Err(none_there()),
            [name] => Self::open(name),
            several => Err(Trouble::new("there are several cards")
                .advise(format!("say which: {}", list_of(several)))),
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
    pub(crate) fn refused(&self, doing: &str, error: Error) -> Trouble {
        Trouble::of_call(&format!("{}: {doing}", self.name), error)
    }

    /// The contexts that are set up, by their numbers.
    pub(crate) fn contexts(&self) -> Result<Vec<uapi::ContextInfo>> {
        let contexts = self.file.contexts();
        let mut contexts = contexts.map_err(|error| self.refused("its contexts", error))?;
        contexts.sort_unstable_by_key(|context| context.context);
        Ok(contexts)
    }

    /// That there is no context of this number, and which there are.
    pub(crate) fn no_context(&self, number: u32) -> Trouble {
        let trouble = Trouble::new(format!("{}: there is no context {number}", self.name));
        let there = self.contexts().unwrap_or_default();
        trouble.advise(if there.is_empty() {
            "no program has set up a context on this card now".into()
        } else {
            let numbers = there.iter().map(|context| context.context);
            format!("there are: {}", list_of(&numbers.collect::<Vec<_>>()))
        })
    }

    /// What is said of a call for a context that was refused.
    pub(crate) fn refused_for(&self, context: u32, doing: &str, error: Error) -> Trouble {
        match error {
            Error::NoContext => self.no_context(context),
            Error::NotFound => {
                let what = format!(
                    "{}: {doing} context {context}: it has no job, or its job has ended",
                    self.name
                );
                Trouble::new(what)
                    .advise("wait until its program starts one: `fermatactl info` shows its state")
            }
            error => self.refused(&format!("{doing} context {context}"), error),
        }
    }
}

fn list_of<T: fmt::Display>(things: &[T]) -> String {
    let names: Vec<_> = things.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Why a card could not be opened, and what to do.
fn refused(name: &CardName, error: Error) -> Trouble {
    let device = name.0.display();
    match error {
        Error::NotFound => {
            let there = all().unwrap_or_default();
            if there.is_empty() {
                return none_there();
            }
            Trouble::new(format!("there is no {device}"))
                .advise(format!("there are: {}", list_of(&there)))
        }
        Error::NotPermitted => {
            Trouble::new(format!("{device}: not permitted to open it")).advise(who_may(&name.0))
        }
        error => Trouble::of_call(&device.to_string(), error),
    }
}

/// Whom the owner of a device lets open it.
fn who_may(path: &Path) -> String {
    const GROUP_READ_WRITE: u32 = 0o060;
    let metadata = fs::metadata(path).ok();
    let group = metadata
        .filter(|about| about.mode() & GROUP_READ_WRITE == GROUP_READ_WRITE && about.gid() != 0)
        .and_then(|about| uzers::get_group_by_gid(about.gid()));
    match group {
        Some(group) => {
            let group = group.name().to_string_lossy().into_owned();
            format!("be a member of the group {group} (`adduser USER {group}`, then log in anew), or root")
        }
        None => "only root may, until a udev rule gives it to a group: see docs/user-interface.md"
            .into(),
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
        for text in ["", "card0", "fermata", "-1", "fermata0x"] {
            assert!(text.parse::<CardName>().is_err(), "{text}");
        }
        let elsewhere: CardName = "./card".parse().unwrap();
        assert_eq!(number_of(&elsewhere.0), None);
    }
}
