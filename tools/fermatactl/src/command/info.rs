// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl list`, `info`, `stats` and `guests`: what there is, its counters and histograms, and the
//! virtual machines that have a share of a card (docs/deploy/guests.md).

use crate::advice::Call;
use crate::card::{Card, CardName, Monitor};
use crate::cgroup::Paths;
use crate::format::{bytes, or_dash, table, time, Spread};
use crate::process;
use crate::trouble::{Out, Result, Trouble};
use crate::value;
use crate::view::{CardView, ContextView, SlotView};
use crate::why;
use fermata::{uapi, ContextHistogram, SlotHistogram};
use fermata_output::text::printable;
use serde::Serialize;
use std::collections::BTreeMap;

/// Show everything about a card, or about a context
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The card; may be omitted if there is only one
    card: Option<CardName>,
    /// The number of a context
    #[arg(value_parser = value::context)]
    context: Option<u32>,
}

impl Info {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open_one(self.card.as_ref())?;
        let view = CardView::explained(&card, &mut Paths::default())?;
        match self.context {
            None => out.show(&view, about_card),
            Some(number) => match view.context(number) {
                Some(context) => out.show(context, about_context),
                None => Err(card.no_context(number)),
            },
        }
    }
}

/// Formats lines of a name and a value.
fn lines(pairs: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| vec![(*name).into(), value.clone()];
    table(&["", ""], pairs.iter().map(row))
        .lines()
        .skip(1)
        .fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn words(words: &[&str]) -> String {
    if words.is_empty() {
        "none".into()
    } else {
        words.join(", ")
    }
}

fn numbers(numbers: &[u32]) -> String {
    let texts: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Formats a percentage of a slot; 0 means none.
fn percent(percent: u32) -> String {
    match percent {
        0 => "none".into(),
        percent => format!("{percent} %"),
    }
}

fn yes_or_no(value: bool) -> &'static str {
    if value {
        "yes"
    } else {
        "no"
    }
}

fn about_card(card: &CardView) -> String {
    let boost = match card.boost_ns {
        None => "unknown".into(),
        Some(0) => "none".into(),
        Some(boost) => time(boost),
    };
    let mut text = format!("{}\n", card.device.display());
    text += &lines(&[
        ("interface", card.interface_version.to_string()),
        ("features", words(&card.features)),
        (
            "IOMMU group",
            card.iommu_group
                .as_ref()
                .map_or_else(|| "none".into(), ToString::to_string),
        ),
        ("policy", card.policy.unwrap_or("unknown").into()),
        ("starvation boost", boost),
        (
            "contexts",
            format!("{} of {}", card.contexts.len(), card.max_contexts),
        ),
        ("largest arena", bytes(card.max_arena_bytes)),
    ]);
    for slot in &card.slots {
        text += &about_slot(slot);
    }
    for context in &card.contexts {
        text += "\n";
        text += &about_context(context);
    }
    text
}

fn about_slot(slot: &SlotView) -> String {
    let mut pairs = vec![
        ("engine", slot.engine_name().into()),
        ("engine's UUID", slot.engine_id.clone()),
        ("context on it", or_dash(slot.context)),
        ("flags", words(&slot.flags)),
        ("snapshot", bytes(slot.snapshot_bytes)),
        ("switches", or_dash(slot.switches)),
        ("busy", or_dash(slot.busy_ns.map(time))),
        ("mean save", time(slot.save_ns)),
        ("mean restore", time(slot.restore_ns)),
        ("resets", or_dash(slot.resets)),
        ("interrupt storms", or_dash(slot.interrupt_storms)),
    ];
    if let Some(group) = slot.exclusive_group {
        pairs.push(("only for group", group.to_string()));
    }
    format!("\nslot {}\n", slot.slot) + &lines(&pairs)
}

fn about_context(context: &ContextView) -> String {
    let group = match (&context.group_path, context.group) {
        (Some(path), Some(number)) => format!("{} ({number})", printable(path)),
        _ => or_dash(context.group),
    };
    let because = context.waits_because.clone();
    let because = because.map(|because| ("waits because", because));
    let since = context.state_ns.map(|ns| ("for", time(ns)));
    let pairs = [("state", context.state_text())];
    let pairs = pairs.into_iter().chain(since).chain(because);
    let rest = [
        ("engine", context.engine_name().into()),
        ("on slot", or_dash(context.slot)),
        ("may use slots", numbers(&context.slots)),
        ("process", or_dash(context.pid)),
        ("command", or_dash(context.command_text())),
        ("group", or_dash(context.group.map(|_| group))),
        ("job", or_dash(context.job)),
        ("priority", or_dash(context.priority)),
        ("weight", or_dash(context.weight)),
        (
            "latency-critical",
            or_dash(context.latency_critical.map(yes_or_no)),
        ),
        ("timeslice", or_dash(context.timeslice_ns.map(time))),
        (
            "preempt timeout",
            or_dash(context.preempt_timeout_ns.map(time)),
        ),
        ("cap", or_dash(context.cap.map(percent))),
        ("ran", or_dash(context.run_ns.map(time))),
        ("waited", or_dash(context.wait_ns.map(time))),
        ("slices", or_dash(context.slices)),
        ("preemptions", or_dash(context.preemptions)),
    ];
    let pairs: Vec<_> = pairs.chain(rest).collect();
    format!("context {}\n", context.context) + &lines(&pairs)
}

/// List cards, their slots, and the contexts on them
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The cards; by default all that may be opened
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
}

#[derive(Serialize)]
struct ListAnswer {
    cards: Vec<CardView>,
}

impl List {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = CardView::all(&self.cards)?;
        out.show(&ListAnswer { cards }, |answer| {
            let texts: Vec<_> = answer.cards.iter().map(text_of).collect();
            texts.join("\n")
        })
    }
}

fn text_of(card: &CardView) -> String {
    let mut text = format!(
        "{}: policy {}, {} of {} contexts\n",
        card.device.display(),
        card.policy.unwrap_or("unknown"),
        card.contexts.len(),
        card.max_contexts
    );
    text += &slots(&card.slots);
    if !card.contexts.is_empty() {
        text += "\n";
        text += &contexts(&card.contexts);
    }
    let notes = notes(card);
    if !notes.is_empty() {
        text += "\n";
        text += &notes;
    }
    text
}

/// Returns lines about jobs that wait for something else than their turn, by reason, and about jobs
/// that may hang.
fn notes(card: &CardView) -> String {
    let mut waiting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let waits = |context: &&ContextView| context.waits != Some("turn");
    for context in card.contexts.iter().filter(waits) {
        if let Some(because) = &context.waits_because {
            let contexts = waiting.entry(because).or_default();
            contexts.push(context.context.to_string());
        }
    }
    let mut text = String::new();
    for (because, contexts) in waiting {
        let verb = if contexts.len() == 1 { "waits" } else { "wait" };
        text += &format!("  {} {verb} because: {because}\n", contexts.join(", "));
    }
    let suspects: Vec<_> = why::suspects(card).collect();
    for suspect in &suspects {
        text += &format!("  {}\n", suspect.text());
    }
    let remedy = why::remedy(card, &suspects);
    text + &remedy.map_or_else(String::new, |remedy| format!("  {remedy}\n"))
}

fn slots(slots: &[SlotView]) -> String {
    let titles = [
        ">SLOT",
        "ENGINE",
        ">CONTEXT",
        ">SWITCHES",
        ">BUSY",
        ">RESETS",
        "FLAGS",
    ];
    let row = |slot: &SlotView| {
        vec![
            slot.slot.to_string(),
            slot.engine_name().into(),
            or_dash(slot.context),
            or_dash(slot.switches),
            or_dash(slot.busy_ns.map(time)),
            or_dash(slot.resets),
            slot.flags.join(","),
        ]
    };
    table(&titles, slots.iter().map(row))
}

/// How much of the path of a group a table shows; `info` and JSON have all of it.
const GROUP_WIDTH: usize = 30;

fn contexts(contexts: &[ContextView]) -> String {
    let titles = [
        ">CONTEXT", "STATE", "ENGINE", ">SLOT", ">RUN", ">WAIT", ">IDLE", ">SLICES", "GROUP",
        ">PID", "COMMAND",
    ];
    let row = |context: &ContextView| {
        vec![
            context.context.to_string(),
            context.state_text(),
            context.engine_name().into(),
            or_dash(context.slot),
            or_dash(context.run_ns.map(time)),
            or_dash(context.wait_ns.map(time)),
            or_dash(context.idle_ns().map(time)),
            or_dash(context.slices),
            context.group_name(GROUP_WIDTH),
            or_dash(context.pid),
            or_dash(context.command_text()),
        ]
    };
    table(&titles, contexts.iter().map(row))
}

/// Print counters and histograms of a card or of a context
///
/// The counters of a card begin when the driver is bound to it, those of a context when it is set
/// up; docs/statistics.md describes each of them. Percentiles are at most 25 % too long. --json
/// shows all buckets.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The card; may be omitted if there is only one
    card: Option<CardName>,
    /// The number of a context
    #[arg(value_parser = value::context)]
    context: Option<u32>,
}

#[derive(Serialize)]
struct Slot {
    #[serde(flatten)]
    view: SlotView,
    resumes: u64,
    preemptions: u64,
    finished: u64,
    faults: u64,
    timeouts: u64,
    spurious_interrupts: u64,
    /// Null if the caller may not see them.
    histograms: Option<SlotHistograms>,
}

#[derive(Serialize)]
struct SlotHistograms {
    gap: Spread,
    save: Spread,
    restore: Spread,
    overrun: Spread,
    latency: Spread,
}

#[derive(Serialize)]
struct OfCard {
    card: Option<u32>,
    slots: Vec<Slot>,
}

#[derive(Serialize)]
struct OfContext {
    card: Option<u32>,
    #[serde(flatten)]
    view: ContextView,
    /// Null if the caller may not see them.
    histograms: Option<ContextHistograms>,
}

#[derive(Serialize)]
struct ContextHistograms {
    wait: Spread,
    arrival: Spread,
    run: Spread,
}

impl Stats {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open_one(self.card.as_ref())?;
        let view = CardView::explained(&card, &mut Paths::default())?;
        match self.context {
            None => {
                let monitor = card.monitor();
                let slots = view.slots.into_iter();
                let slots = slots.map(|slot| Slot::of(&card, slot, monitor.as_ref()));
                let answer = OfCard {
                    card: card.number(),
                    slots: slots.collect::<Result<_>>()?,
                };
                out.show(&answer, |answer| {
                    let texts: Vec<_> = answer.slots.iter().map(Slot::text).collect();
                    texts.join("\n")
                })
            }
            Some(number) => {
                let context = view.context(number).cloned();
                let context = context.ok_or_else(|| card.no_context(number))?;
                out.show(&OfContext::of(&card, context)?, OfContext::text)
            }
        }
    }
}

impl Slot {
    fn of(card: &Card, view: SlotView, monitor: Option<&Monitor>) -> Result<Self> {
        let number = view.slot;
        if let Some(figures) = monitor.and_then(|monitor| monitor.slot(number)) {
            return Ok(Self {
                view,
                resumes: figures.of("resumes"),
                preemptions: figures.of("preemptions"),
                finished: figures.of("finished"),
                faults: figures.of("faults"),
                timeouts: figures.of("timeouts"),
                spurious_interrupts: figures.of("spurious_interrupts"),
                histograms: None,
            });
        }
        let of = |which| {
            let histogram = card.file.slot_histogram(number, which);
            let histogram = histogram
                .map_err(|error| card.refused("its histograms", Call::Histogram, error))?;
            Ok::<_, Trouble>(Spread::from(&histogram))
        };
        let info = card.file.slot_info(number);
        let uapi::SlotInfo {
            resumes,
            preemptions,
            finished,
            faults,
            timeouts,
            spurious,
            ..
        } = info.map_err(|error| card.refused("its slots", Call::SlotInfo, error))?;
        Ok(Self {
            view,
            resumes,
            preemptions,
            finished,
            faults,
            timeouts,
            spurious_interrupts: spurious,
            histograms: Some(SlotHistograms {
                gap: of(SlotHistogram::Gap)?,
                save: of(SlotHistogram::Save)?,
                restore: of(SlotHistogram::Restore)?,
                overrun: of(SlotHistogram::Overrun)?,
                latency: of(SlotHistogram::Latency)?,
            }),
        })
    }

    fn text(&self) -> String {
        let view = &self.view;
        let counters = [
            ("switches", view.switches),
            ("resumes", Some(self.resumes)),
            ("preemptions", Some(self.preemptions)),
            ("finished", Some(self.finished)),
            ("faults", Some(self.faults)),
            ("timeouts", Some(self.timeouts)),
            ("resets", view.resets),
            ("spurious interrupts", Some(self.spurious_interrupts)),
        ];
        let text = format!(
            "slot {} {}: busy {}\n  {}\n",
            view.slot,
            view.engine_name(),
            or_dash(view.busy_ns.map(time)),
            counted(&counters)
        );
        let Some(histograms) = &self.histograms else {
            return text;
        };
        text + &spreads(&[
            ("gap", &histograms.gap),
            ("save", &histograms.save),
            ("restore", &histograms.restore),
            ("overrun", &histograms.overrun),
            ("latency", &histograms.latency),
        ])
    }
}

impl OfContext {
    fn of(card: &Card, view: ContextView) -> Result<Self> {
        let number = view.context;
        let of = |which| {
            let histogram = card.file.context_histogram(Some(number), which);
            let histogram = histogram.map_err(|error| {
                card.refused_for(number, "histograms of", Call::Histogram, error)
            })?;
            Ok::<_, Trouble>(Spread::from(&histogram))
        };
        let all = || {
            Ok::<_, Trouble>(ContextHistograms {
                wait: of(ContextHistogram::Wait)?,
                arrival: of(ContextHistogram::Arrival)?,
                run: of(ContextHistogram::Run)?,
            })
        };
        // sysfs has the counters of other users' contexts, for users who may read them.
        let is_monitored = || {
            card.monitor()
                .is_some_and(|all| all.context(number).is_some())
        };
        let histograms = match all() {
            Err(_) if is_monitored() => None,
            other => Some(other?),
        };
        Ok(Self {
            card: card.number(),
            histograms,
            view,
        })
    }

    fn text(&self) -> String {
        let view = &self.view;
        let counters = [
            ("jobs", view.job),
            ("slices", view.slices),
            ("preemptions", view.preemptions),
        ];
        let text = format!(
            "context {} {}: ran {}, waited {}\n  {}\n",
            view.context,
            view.engine_name(),
            or_dash(view.run_ns.map(time)),
            or_dash(view.wait_ns.map(time)),
            counted(&counters)
        );
        let Some(histograms) = &self.histograms else {
            return text;
        };
        text + &spreads(&[
            ("wait", &histograms.wait),
            ("arrival", &histograms.arrival),
            ("run", &histograms.run),
        ])
    }
}

fn counted(counters: &[(&str, Option<u64>)]) -> String {
    let texts: Vec<_> = counters
        .iter()
        .map(|(name, count)| format!("{} {name}", or_dash(*count)))
        .collect();
    texts.join(", ")
}

fn spreads(spreads: &[(&str, &Spread)]) -> String {
    let titles: Vec<_> = std::iter::once("").chain(Spread::TITLES).collect();
    let rows = spreads.iter().map(|(name, spread)| {
        let name = std::iter::once((*name).to_string());
        name.chain(spread.cells()).collect()
    });
    table(&titles, rows)
}

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
struct GuestsAnswer {
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
    /// Of the contexts that the daemon has now; likewise `wait_ns`.
    run_ns: Option<u64>,
    wait_ns: Option<u64>,
}

impl Guests {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = CardView::all(&self.cards)?;
        let contexts: Vec<_> = cards.iter().flat_map(|card| &card.contexts).collect();
        let daemons = process::all_of(DAEMON);
        let guests = daemons.map(|pid| Guest::of(pid, &contexts)).collect();
        out.show(&GuestsAnswer { guests }, |answer| {
            text_of_guests(&answer.guests)
        })
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

fn text_of_guests(guests: &[Guest]) -> String {
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
            or_dash(guest.name.as_deref().map(printable)),
            or_dash(guest.contexts),
            or_dash(guest.contexts_on_slots),
            or_dash(guest.run_ns.map(time)),
            or_dash(guest.wait_ns.map(time)),
            or_dash(guest.socket.as_deref().map(printable)),
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
                &uapi::ContextInfo {
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
