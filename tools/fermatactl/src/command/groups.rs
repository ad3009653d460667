// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl group CARD`: lists groups, with their settings and their parts of the card's time.

use crate::card::{Card, Monitor};
use crate::cgroup::{self, Paths};
use crate::format::{or_dash, table, time};
use crate::trouble::{Out, Result};
use crate::view::{CardView, ContextView};
use fermata::{user_of_group, Error, Group, GroupOf};
use fermata_output::text::printable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// How long the time on slots is measured.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Answer {
    card: Option<u32>,
    interval_ns: u64,
    groups: Vec<Row>,
}

/// A group that has contexts or is registered. Null: the caller may not know it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Row {
    group: u64,
    /// Null also if the cgroup was removed, or is not to be seen from here.
    group_path: Option<String>,
    registered: Option<bool>,
    weight: Option<u32>,
    /// Percent of one slot; 0: no cap.
    cap: Option<u32>,
    /// Contexts, and how many of them run and wait. Those of a registered group include those of
    /// groups below it.
    contexts: u32,
    running: u32,
    waiting: u32,
    /// For how long the context that has been idle longest has had no job that wants a slot.
    idle_ns: Option<u64>,
    /// Percent of one slot that it has had in the interval.
    run_percent: Option<f64>,
    run_ns: Option<u64>,
}

pub(crate) fn list(card: &Card, out: Out) -> Result<()> {
    let mut paths = Paths::default();
    let registered = Registered::find(card);
    let before = Groups::take(card, &registered, &mut paths)?;
    thread::sleep(INTERVAL);
    let now = Groups::take(card, &registered, &mut paths)?;
    let answer = Answer {
        card: card.number(),
        interval_ns: (now.at - before.at).as_nanos() as u64,
        groups: now.since(&before, &paths),
    };
    out.show(&answer, |answer| text_of(&card.name.to_string(), answer))
}

/// The cgroups that are registered on a card.
struct Registered {
    /// Paths and directories, by number; `None`: the caller may not know them.
    cgroups: Option<BTreeMap<u64, (String, File)>>,
}

impl Registered {
    fn find(card: &Card) -> Self {
        // The caller may ask for groups, also where there are no cgroups of version 2.
        let answer = card.file.registered_group(GroupOf::User(0));
        let may_know = matches!(answer, Ok(_) | Err(Error::NotFound));
        let mut cgroups = BTreeMap::new();
        cgroup::walk(&cgroup::root(), |number, folder, path| {
            let Ok(folder) = File::open(folder) else {
                return ControlFlow::Continue(());
            };
            match card.file.registered_group(folder.as_fd()) {
                Ok(_) => {
                    cgroups.insert(number, (path.into(), folder));
                }
                Err(Error::NotFound) => {}
                Err(_) => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        });
        Self {
            cgroups: may_know.then_some(cgroups),
        }
    }

    /// Returns the settings and figures of each group.
    fn groups<'a>(&'a self, card: &'a Card) -> impl Iterator<Item = (u64, &'a str, Group)> + 'a {
        let cgroups = self.cgroups.iter().flatten();
        cgroups.filter_map(|(number, (path, folder))| {
            let group = card.file.registered_group(folder.as_fd()).ok()?;
            Some((*number, path.as_str(), group))
        })
    }
}

/// The groups of a card at a moment.
struct Groups {
    at: Instant,
    rows: BTreeMap<u64, Row>,
}

impl Groups {
    fn take(card: &Card, registered: &Registered, paths: &mut Paths) -> Result<Self> {
        let view = CardView::explained(card, paths)?;
        let monitor = card.monitor();
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        for context in &view.contexts {
            let Some(number) = context.group else {
                continue;
            };
            let row = rows.entry(number).or_default();
            if row.contexts == 0 {
                row.measure(card, context.context, monitor.as_ref());
            }
            row.count(context);
        }
        if registered.cgroups.is_some() {
            for row in rows.values_mut() {
                (row.registered, row.cap) = (Some(false), Some(0));
            }
        }
        for (&number, row) in &mut rows {
            let uid = user_of_group(number);
            let group = uid.map(|uid| card.file.registered_group(GroupOf::User(uid)));
            if let Some(Ok(group)) = group {
                row.set(&group);
            }
        }
        let at = Instant::now();
        for (number, path, group) in registered.groups(card) {
            let row = rows.entry(number).or_default();
            row.group_path = Some(path.into());
            row.set(&group);
        }
        Ok(Self { at, rows })
    }

    /// Returns the groups with their parts of the time since `before`, in the order of their paths.
    fn since(&self, before: &Self, paths: &Paths) -> Vec<Row> {
        let ns = (self.at - before.at).as_nanos().max(1) as f64;
        let row = |(number, row): (&u64, &Row)| {
            let before = before.rows.get(number).and_then(|row| row.run_ns);
            let had = |(now, before): (u64, u64)| now.saturating_sub(before) as f64 * 100.0 / ns;
            let path = paths.of(*number).map(Into::into);
            Row {
                group: *number,
                group_path: path.or_else(|| row.group_path.clone()),
                run_percent: row.run_ns.zip(before).map(had),
                ..row.clone()
            }
        };
        let mut rows: Vec<_> = self.rows.iter().map(row).collect();
        // Groups without a path come last.
        rows.sort_by(|a, b| {
            let place = |row: &Row| (row.group_path.is_none(), row.group_path.clone());
            place(a).cmp(&place(b))
        });
        rows
    }
}

impl Row {
    /// Fills in the time on slots, and the weight, by one of the contexts.
    fn measure(&mut self, card: &Card, context: u32, monitor: Option<&Monitor>) {
        if let Ok(group) = card.file.group(context) {
            (self.run_ns, self.weight) = (Some(group.run_ns), Some(group.weight));
        } else if let Some(figures) = monitor.and_then(|monitor| monitor.context(context)) {
            self.run_ns = figures.find("group_run_ns");
        }
    }

    fn count(&mut self, context: &ContextView) {
        self.contexts += 1;
        self.running += u32::from(context.state == "running");
        self.waiting += u32::from(context.state == "queued");
        self.idle_ns = self.idle_ns.max(context.idle_ns());
    }

    fn set(&mut self, group: &Group) {
        self.registered = Some(true);
        (self.weight, self.cap) = (Some(group.weight), Some(group.cap));
        self.contexts = group.contexts;
        self.run_ns = Some(group.run.as_nanos() as u64);
    }

    fn cells(&self) -> Vec<String> {
        let cap = |cap| match cap {
            0 => "none".into(),
            cap => format!("{cap} %"),
        };
        let registered = |is: bool| if is { "yes" } else { "no" };
        vec![
            or_dash(self.weight),
            or_dash(self.cap.map(cap)),
            self.contexts.to_string(),
            self.running.to_string(),
            self.waiting.to_string(),
            or_dash(self.idle_ns.map(time)),
            or_dash(self.run_percent.map(|percent| format!("{percent:.1}"))),
            or_dash(self.registered.map(registered)),
            match &self.group_path {
                Some(path) => printable(path),
                None => self.group.to_string(),
            },
        ]
    }
}

fn text_of(card: &str, answer: &Answer) -> String {
    let titles = [
        ">WEIGHT",
        ">CAP",
        ">CONTEXTS",
        ">RUN",
        ">WAIT",
        ">IDLE",
        ">RUN%",
        "SET",
        "GROUP",
    ];
    if answer.groups.is_empty() {
        return format!("{card}: no group has contexts or settings that may be seen by this user");
    }
    let mut text = table(&titles, answer.groups.iter().map(Row::cells));
    if answer.groups.iter().any(|row| row.registered.is_none()) {
        text += "  Weights and caps take CAP_SYS_ADMIN: run fermatactl as root of the host.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(at: Instant, rows: &[(u64, u64, Option<&str>)]) -> Groups {
        let row = |(number, run, path): &(u64, u64, Option<&str>)| {
            let row = Row {
                run_ns: Some(*run),
                group_path: path.map(Into::into),
                ..Row::default()
            };
            (*number, row)
        };
        Groups {
            at,
            rows: rows.iter().map(row).collect(),
        }
    }

    #[test]
    fn parts_are_those_of_the_interval() {
        let begin = Instant::now();
        let before = groups(begin, &[(1, 50, Some("/z")), (2, 70, Some("/a"))]);
        let end = begin + Duration::from_nanos(1000);
        let now = [(1, 550, Some("/z")), (2, 70, Some("/a")), (3, 9, None)];
        let rows = groups(end, &now).since(&before, &Paths::default());
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.group, row.run_percent))
            .collect();
        assert_eq!(shown, [(2, Some(0.0)), (1, Some(50.0)), (3, None)]);
    }

    #[test]
    fn what_is_not_told_is_no_number() {
        let answer = |groups| Answer {
            card: Some(0),
            interval_ns: 1,
            groups,
        };
        let unknown = Row {
            group: 47,
            contexts: 2,
            ..Row::default()
        };
        let text = text_of("fermata0", &answer(vec![unknown]));
        let cells: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells, ["-", "-", "2", "0", "0", "-", "-", "-", "47"]);
        assert!(text.contains("CAP_SYS_ADMIN"));
        assert!(text_of("fermata0", &answer(vec![])).contains("no group"));
        let nasty = Row {
            group_path: Some("/a\u{1b}[2J".into()),
            registered: Some(true),
            weight: Some(300),
            cap: Some(1),
            ..Row::default()
        };
        let text = text_of("fermata0", &answer(vec![nasty]));
        assert!(
            text.contains("1 %") && text.contains("/a\\x1b[2J"),
            "{text}"
        );
    }
}
