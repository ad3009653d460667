// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl group`: settings of the subtree of a cgroup.

use crate::advice::Call;
use crate::card::{Card, CardName};
use crate::format;
use crate::number::{self, number_in, Parsed};
use crate::setting;
use crate::trouble::{Out, Result, Trouble};
use fermata::GroupSettings;
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Show or set what holds for the subtree of a cgroup (CAP_SYS_ADMIN)
///
/// Whatever is set registers the cgroup: all contexts of programs in it and below are one group
/// then, also contexts that are open already. It holds until the cgroup is removed, or until
/// --remove, also while the group has no context. Without options it shows what is set.
#[derive(Debug, clap::Args)]
pub(crate) struct Group {
    /// The card
    card: CardName,
    /// The directory of a cgroup (version 2), such as /sys/fs/cgroup/user.slice/user-1000.slice
    #[arg(value_name = "CGROUP")]
    cgroup: PathBuf,
    /// Its weight against other groups: 1 to 10000, at first 100
    #[arg(long, value_parser = weight)]
    weight: Option<u32>,
    /// The highest priority that its contexts may have: 0 to 31
    #[arg(long, value_name = "PRIORITY", value_parser = max_priority)]
    max_priority: Option<u32>,
    /// Time on slots of all its contexts together, in percent of one slot: 1 to 800; 0: no cap
    #[arg(long, value_name = "PERCENT", value_parser = cap)]
    cap: Option<u32>,
    /// Contexts at the most: 1 to 65536; 0: as the module parameter max_contexts_group
    #[arg(long, value_name = "N", value_parser = max_contexts)]
    max_contexts: Option<u32>,
    /// Pinned memory of all its contexts at the most, such as 512M; 0: as the module parameter
    /// max_pinned_group_mib
    #[arg(long, value_name = "SIZE", value_parser = number::size)]
    max_bytes: Option<u64>,
    /// Slots that serve its contexts only, such as 0,2; `none`: all serve all
    #[arg(long, value_name = "SLOTS", value_parser = exclusive)]
    exclusive: Option<u32>,
    /// End the registration
    #[arg(long, conflicts_with_all = ["weight", "max_priority", "cap", "max_contexts", "max_bytes", "exclusive"])]
    remove: bool,
}

fn in_range(text: &str, most: u64) -> Parsed<u32> {
    number_in(text, &(0..=most)).map(|value| value as u32)
}

fn weight(text: &str) -> Parsed<u32> {
    number_in(text, &setting::WEIGHTS).map(|value| value as u32)
}

fn max_priority(text: &str) -> Parsed<u32> {
    in_range(text, *setting::PRIORITIES.end())
}

fn cap(text: &str) -> Parsed<u32> {
    in_range(text, GroupSettings::MAX_CAP.into())
}

fn max_contexts(text: &str) -> Parsed<u32> {
    in_range(text, 65_536)
}

fn exclusive(text: &str) -> Parsed<u32> {
    match text {
        "none" => Ok(0),
        text => setting::slots(text),
    }
}

#[derive(Serialize)]
struct Answer {
    card: Option<u32>,
    cgroup: PathBuf,
    group: u64,
    registered: bool,
    weight: u32,
    max_priority: u32,
    /// Percent of one slot; null: none.
    cap: Option<u32>,
    /// Null if the module parameter holds.
    max_contexts: Option<u32>,
    max_bytes: Option<u64>,
    exclusive: Vec<u32>,
    contexts: u32,
    bytes: u64,
    run_ns: u64,
}

impl Group {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open(&self.card)?;
        let directory = File::open(&self.cgroup).map_err(|error| {
            Trouble::new(
                format!("{}: {error}", self.cgroup.display()),
                "name the directory of a cgroup, below /sys/fs/cgroup",
            )
        })?;
        let settings = GroupSettings {
            weight: self.weight,
            max_priority: self.max_priority,
            cap: self.cap,
            max_contexts: self.max_contexts,
            max_bytes: self.max_bytes,
            exclusive: self.exclusive,
        };
        let group = if self.remove {
            card.file.remove_group(directory.as_fd())
        } else if settings == GroupSettings::default() {
            card.file.registered_group(directory.as_fd())
        } else {
            card.file.set_group(directory.as_fd(), &settings)
        };
        let what = self.cgroup.display().to_string();
        let group = group.map_err(|error| card.refused(&what, Call::GroupSet, error))?;
        let answer = Answer {
            card: card.number(),
            cgroup: self.cgroup.clone(),
            group: group.number,
            registered: !self.remove,
            weight: group.weight,
            max_priority: group.max_priority,
            cap: Some(group.cap).filter(|cap| *cap != 0),
            max_contexts: Some(group.max_contexts).filter(|contexts| *contexts != 0),
            max_bytes: Some(group.max_bytes).filter(|bytes| *bytes != 0),
            exclusive: (0..32)
                .filter(|slot| group.exclusive & 1 << slot != 0)
                .collect(),
            contexts: group.contexts,
            bytes: group.bytes,
            run_ns: group.run.as_nanos() as u64,
        };
        out.show(&answer, |answer| text(&card.name.to_string(), answer))
    }
}

fn text(card: &str, answer: &Answer) -> String {
    let name = answer.cgroup.display();
    if !answer.registered {
        return format!("{card}: {name}: not registered any more");
    }
    let cap = answer.cap.map(|cap| format!("{cap} % of one slot"));
    let contexts = answer.max_contexts.map(|contexts| contexts.to_string());
    let bytes = answer.max_bytes.map(format::bytes);
    let slots: Vec<_> = answer.exclusive.iter().map(ToString::to_string).collect();
    let slots = Some(slots.join(",")).filter(|slots| !slots.is_empty());
    let pairs = [
        ("weight", answer.weight.to_string()),
        ("max priority", answer.max_priority.to_string()),
        ("cap", cap.unwrap_or_else(|| "none".into())),
        ("max contexts", contexts.unwrap_or_else(|| "default".into())),
        ("max bytes", bytes.unwrap_or_else(|| "default".into())),
        ("exclusive", slots.unwrap_or_else(|| "none".into())),
        ("contexts", answer.contexts.to_string()),
        ("bytes", format::bytes(answer.bytes)),
        ("ran", format::time(answer.run_ns)),
    ];
    let mut text = format!("{card}: {name}: group {}", answer.group);
    for (label, value) in pairs {
        text += &format!("\n  {label:<16}  {value}");
    }
    text
}
