// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl guests`: virtual machines that have a share of a card (docs/guests.md).

use crate::card::CardName;
use crate::format::{or_dash, table, time};
use crate::process;
use crate::trouble::{Out, Result};
use crate::view::{CardView, ContextView};
use serde::Serialize;

/// The name of the daemons.
const DAEMON: &str = "fermata-vfio";

/// List virtual machines that have a share of a card
#[derive(Debug, clap::Args)]
pub(crate) struct Guests {
    /// Count contexts on these cards only
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
}

#[derive(Serialize)]
struct Answer {
    guests: Vec<Guest>,
}

/// A daemon that serves a virtual machine, or waits for one.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Guest {
    /// The daemon's process.
    pid: u32,
    /// The NAME of fermata-vfio@NAME.service; null for a daemon that systemd has not started.
    name: Option<String>,
    /// Null for a socket that only the daemon's file of options names.
    socket: Option<String>,
    /// Null if the caller may not know whose contexts there are; likewise the next three.
    contexts: Option<usize>,
    contexts_on_slots: Option<usize>,
    /// Of the contexts that the daemon has now, as `wait_ns`.
    run_ns: Option<u64>,
    wait_ns: Option<u64>,
}

impl Guests {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = CardView::all(&self.cards)?;
        let contexts: Vec<_> = cards.iter().flat_map(|card| &card.contexts).collect();
        let daemons = process::all_of(DAEMON);
        let guests = daemons.map(|pid| Guest::of(pid, &contexts)).collect();
        out.show(&Answer { guests }, |answer| text_of(&answer.guests))
    }
}

impl Guest {
    /// Takes the contexts of the daemon from all `contexts`.
    fn of(pid: u32, contexts: &[&ContextView]) -> Self {
        let own = || contexts.iter().filter(|context| context.pid == Some(pid));
        let is_told = own().next().is_some() || contexts.iter().all(|other| other.pid.is_some());
        let told = |count| Some(count).filter(|_| is_told);
        let time = |of: fn(&ContextView) -> Option<u64>| {
            let times = own().map(|context| of(context));
            times.sum::<Option<u64>>().filter(|_| is_told)
        };
        Self {
            pid,
            name: process::cgroup(pid).as_deref().and_then(instance),
            socket: socket(&process::arguments(pid).unwrap_or_default()),
            contexts: told(own().count()),
            contexts_on_slots: told(own().filter(|context| context.slot.is_some()).count()),
            run_ns: time(|context| context.run_ns),
            wait_ns: time(|context| context.wait_ns),
        }
    }
}

/// Returns the instance of the unit whose cgroup this is.
fn instance(cgroup: &str) -> Option<String> {
    let unit = cgroup.rsplit('/').next()?;
    let instance = unit.strip_prefix("fermata-vfio@")?;
    Some(instance.strip_suffix(".service")?.into())
}

/// Returns the value of `--socket`.
fn socket(arguments: &[String]) -> Option<String> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--socket" {
            return arguments.next().cloned();
        }
        if let Some(value) = argument.strip_prefix("--socket=") {
            return Some(value.into());
        }
    }
    None
}

fn text_of(guests: &[Guest]) -> String {
    let titles = [
        ">PID",
        "NAME",
        ">CONTEXTS",
        ">ON SLOTS",
        ">RUN",
        ">WAIT",
        "SOCKET",
    ];
    let row = |guest: &Guest| {
        vec![
            guest.pid.to_string(),
            or_dash(guest.name.as_deref()),
            or_dash(guest.contexts),
            or_dash(guest.contexts_on_slots),
            or_dash(guest.run_ns.map(time)),
            or_dash(guest.wait_ns.map(time)),
            or_dash(guest.socket.as_deref()),
        ]
    };
    table(&titles, guests.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_service() {
        let of = |unit: &str| instance(&format!("/system.slice/x.slice/{unit}"));
        assert_eq!(of("fermata-vfio@vm1.service").as_deref(), Some("vm1"));
        assert_eq!(of("fermata-vfio.service"), None);
        assert_eq!(of("ssh.service"), None);
        assert_eq!(instance(""), None);
    }

    #[test]
    fn contexts_that_may_be_the_guests_are_not_counted_as_none() {
        let view = |pid| {
            ContextView::of(
                &fermata::uapi::ContextInfo {
                    pid,
                    ..Default::default()
                },
                &[],
            )
        };
        let (pid, own, hidden) = (std::process::id(), view(std::process::id() as i32), view(0));
        let count = |contexts: &[&ContextView]| Guest::of(pid, contexts).contexts;
        assert_eq!(count(&[]), Some(0));
        assert_eq!(count(&[&hidden]), None);
        assert_eq!(count(&[&own, &hidden]), Some(1));
        assert_eq!(Guest::of(pid, &[&hidden]).run_ns, None);
    }

    #[test]
    fn the_socket_is_found_in_both_forms() {
        let of = |line: &str| socket(&line.split(' ').map(Into::into).collect::<Vec<_>>());
        let serve = "fermata-vfio serve --slots sha256";
        assert_eq!(of(&format!("{serve} --socket /a")).as_deref(), Some("/a"));
        assert_eq!(of(&format!("{serve} --socket=/a")).as_deref(), Some("/a"));
        assert_eq!(of(serve), None);
        assert_eq!(of(&format!("{serve} --socket")), None);
    }
}
