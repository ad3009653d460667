// SPDX-License-Identifier: GPL-2.0-or-later
//! The metrics: their names, and where their values come from. docs/metrics.md lists them.

use super::cards::{Card, Group, Slot};
use super::groups;
use super::metrics::{Description, Format, Kind, Labels, Page, Value};
use std::collections::HashMap;

const fn gauge(name: &'static str, help: &'static str) -> Description {
    Description {
        name,
        kind: Kind::Gauge,
        help,
    }
}

const fn counter(name: &'static str, help: &'static str) -> Description {
    Description {
        kind: Kind::Counter,
        ..gauge(name, help)
    }
}

const fn histogram(name: &'static str, help: &'static str) -> Description {
    Description {
        kind: Kind::Histogram,
        ..gauge(name, help)
    }
}

const fn info(name: &'static str, help: &'static str) -> Description {
    Description {
        kind: Kind::Info,
        ..gauge(name, help)
    }
}

const EXPORTER: Description = info("fermata_exporter", "Version of the exporter.");
const CARD_UP: Description = gauge(
    "fermata_card_up",
    "1: the figures of the card were read; 0: the card is gone, or they cannot be read.",
);
const CARD: Description = info(
    "fermata_card",
    "PCI address, profile, policy, and version of the driver's interface.",
);
const CONTEXTS: Description = gauge("fermata_card_contexts", "Contexts that are set up.");
const MAX_CONTEXTS: Description = gauge(
    "fermata_card_max_contexts",
    "Contexts that can be set up at once.",
);
const SLOT_STATE: Description = gauge(
    "fermata_slot_state",
    "1: the slot is in this state; 0: not.",
);
const GROUP_RUN: Description = counter(
    "fermata_group_run_seconds",
    "Time on slots that contexts of the group have had, closed ones and registered groups below \
     included.",
);
const GROUP_CONTEXTS: Description = gauge(
    "fermata_group_contexts",
    "Contexts of the group that are in this state.",
);

/// States of a slot, and of a context that is set up.
const SLOT_STATES: [&str; 6] = [
    "vacant",
    "running",
    "pausing",
    "resetting",
    "quarantined",
    "gone",
];
const CONTEXT_STATES: [&str; 7] = [
    "idle", "queued", "running", "held", "empty", "done", "failed",
];

/// Counters of a slot: the figure in the card's file `monitor`, and the metric. A figure in
/// nanoseconds ends with `_ns`.
const SLOT_COUNTERS: [(&str, Description); 13] = [
    (
        "busy_ns",
        counter(
            "fermata_slot_busy_seconds",
            "Time for which the slot had a job.",
        ),
    ),
    (
        "starts",
        counter(
            "fermata_slot_starts",
            "Jobs started or resumed on the slot.",
        ),
    ),
    (
        "resumes",
        counter("fermata_slot_resumes", "Jobs resumed on the slot."),
    ),
    (
        "preemptions",
        counter(
            "fermata_slot_preemptions",
            "Jobs taken off the slot before their end, and saved.",
        ),
    ),
    (
        "finished",
        counter("fermata_slot_finished", "Jobs finished on the slot."),
    ),
    (
        "faults",
        counter(
            "fermata_slot_faults",
            "Jobs stopped at an access outside their arenas.",
        ),
    ),
    (
        "resets",
        counter(
            "fermata_slot_resets",
            "Resets because of a hang, a death, or a card that broke its protocol.",
        ),
    ),
    (
        "timeouts",
        counter(
            "fermata_slot_timeouts",
            "Jobs that did not pause within their preempt timeout.",
        ),
    ),
    (
        "overruns",
        counter(
            "fermata_slot_boundary_overruns",
            "Times that a job let a context wait for a boundary for longer than boundary_wait_us.",
        ),
    ),
    (
        "overrun_ns",
        counter(
            "fermata_slot_boundary_overrun_seconds",
            "The time beyond boundary_wait_us, where the engine stops at boundaries only.",
        ),
    ),
    (
        "storms",
        counter(
            "fermata_slot_interrupt_storms",
            "Times that interrupts were switched off because too many were spurious.",
        ),
    ),
    (
        "spurious_interrupts",
        counter(
            "fermata_slot_spurious_interrupts",
            "Interrupts after which nothing had changed, in all slots of the vector.",
        ),
    ),
    (
        "throttled_interrupts",
        counter(
            "fermata_slot_throttled_interrupts",
            "Times that interrupts were switched off because completions came too often.",
        ),
    ),
];

/// Histograms of a slot: the name in the card's file `histograms`, and the metric.
const SLOT_HISTOGRAMS: [(&str, Description); 5] = [
    (
        "gap",
        histogram(
            "fermata_slot_gap_seconds",
            "Time between two runs, while a context wanted the slot.",
        ),
    ),
    (
        "save",
        histogram("fermata_slot_save_seconds", "Time from PAUSE to PAUSED."),
    ),
    (
        "restore",
        histogram(
            "fermata_slot_restore_seconds",
            "Time of restores, if the card tells it.",
        ),
    ),
    (
        "overrun",
        histogram(
            "fermata_slot_slice_overrun_seconds",
            "Time from the end of a slice to its PAUSE.",
        ),
    ),
    (
        "latency",
        histogram(
            "fermata_slot_latency_seconds",
            "Time from the arrival of a latency-critical job to its first START.",
        ),
    ),
];

/// Returns the text of all metrics. Cards without figures are down; `paths` has the cgroups of
/// groups by number.
pub(super) fn write(
    format: Format,
    cards: &[(String, Option<Card>)],
    paths: &HashMap<u64, String>,
) -> String {
    let mut page = Page::new(format);
    let version = Labels::default().with("version", env!("CARGO_PKG_VERSION"));
    page.add(&EXPORTER, [(version, Value::Number(1))]);
    let up = cards.iter().map(|(name, card)| {
        let labels = Labels::default().with("card", name);
        (labels, Value::Number(card.is_some().into()))
    });
    page.add(&CARD_UP, up);
    let cards: Vec<&Card> = cards.iter().filter_map(|(_, card)| card.as_ref()).collect();
    write_cards(&mut page, &cards);
    write_slots(&mut page, &cards);
    write_groups(&mut page, &cards, paths);
    page.end()
}

fn of_card(card: &Card) -> Labels {
    Labels::default().with("card", &card.name)
}

fn write_cards(page: &mut Page, cards: &[&Card]) {
    let about = cards.iter().map(|card| {
        let names = ["pci_address", "profile", "policy", "uapi_version"];
        let labels = names.into_iter().fold(of_card(card), |labels, name| {
            labels.with(name, card.value(name))
        });
        (labels, Value::Number(1))
    });
    page.add(&CARD, about);
    for (name, what) in [("contexts", CONTEXTS), ("max_contexts", MAX_CONTEXTS)] {
        let value = |card: &&Card| card.value(name).parse().ok();
        let samples = cards
            .iter()
            .filter_map(|card| Some((of_card(card), Value::Number(value(card)?))));
        page.add(&what, samples);
    }
}

fn write_slots(page: &mut Page, cards: &[&Card]) {
    let slots: Vec<(Labels, &Slot)> = cards
        .iter()
        .flat_map(|card| card.slots.iter().map(|slot| (of_slot(card, slot), slot)))
        .collect();
    let states = slots.iter().flat_map(|(labels, slot)| {
        let now = slot.figures.text("state").unwrap_or_default();
        SLOT_STATES.map(|state| {
            let is_now = Value::Number((state == now).into());
            (labels.with("state", state), is_now)
        })
    });
    page.add(&SLOT_STATE, states);
    for (figure, what) in &SLOT_COUNTERS {
        let value = |slot: &Slot| {
            let value = slot.figures.find(figure)?;
            let is_time = figure.ends_with("_ns");
            let make = if is_time { Value::Time } else { Value::Number };
            Some(make(value))
        };
        let samples = slots
            .iter()
            .filter_map(|(labels, slot)| Some((labels.clone(), value(slot)?)));
        page.add(what, samples);
    }
    for (name, what) in &SLOT_HISTOGRAMS {
        let histograms = slots
            .iter()
            .filter_map(|(labels, slot)| Some((labels.clone(), slot.histograms.get(*name)?)));
        page.add_histograms(what, histograms);
    }
}

fn of_slot(card: &Card, slot: &Slot) -> Labels {
    let labels = of_card(card).with("slot", slot.number.to_string());
    labels.with("engine", &slot.engine)
}

fn write_groups(page: &mut Page, cards: &[&Card], paths: &HashMap<u64, String>) {
    let of_group = |card: &Card, number: u64| {
        let path = paths.get(&number).map(String::as_str);
        of_card(card).and(&groups::labels(number, path))
    };
    let groups: Vec<(Labels, &Group)> = cards
        .iter()
        .flat_map(|card| {
            let groups = card.groups.iter();
            groups.map(|(number, group)| (of_group(card, *number), group))
        })
        .collect();
    let runs = groups
        .iter()
        .map(|(labels, group)| (labels.clone(), Value::Time(group.run_ns)));
    page.add(&GROUP_RUN, runs);
    let contexts = groups.iter().flat_map(|(labels, group)| {
        CONTEXT_STATES.map(|state| {
            let count = group.states.get(state).copied().unwrap_or(0);
            (labels.with("state", state), Value::Number(count))
        })
    });
    page.add(&GROUP_CONTEXTS, contexts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Figures;
    use crate::command::exporter::metrics::Buckets;

    fn card() -> Card {
        let figures = "slot=1 state=running starts=4 busy_ns=2500000000";
        let gap = Buckets {
            below: vec![(1024, 1)],
            count: 2,
            sum_ns: 3_000_000_000,
        };
        let group = Group {
            run_ns: 1_250_000_000,
            states: [("queued".into(), 2)].into(),
        };
        Card {
            name: "fermata0".into(),
            about: [("policy", "fair\n".into()), ("contexts", "2\n".into())].into(),
            slots: vec![Slot {
                number: 1,
                engine: "sha256".into(),
                figures: Figures::in_line(figures),
                histograms: [("gap".into(), gap)].into(),
            }],
            groups: [(9, group)].into(),
        }
    }

    fn text(format: Format) -> String {
        let cards = [("fermata0".into(), Some(card())), ("fermata1".into(), None)];
        let paths = [(9, "/a.service".into())].into();
        write(format, &cards, &paths)
    }

    #[test]
    fn figures_have_their_names_and_labels() {
        let text = text(Format::OpenMetrics);
        let slot = "card=\"fermata0\",slot=\"1\",engine=\"sha256\"";
        let group = "card=\"fermata0\",group=\"9\",cgroup=\"/a.service\",unit=\"a.service\"";
        for line in [
            concat!(
                "fermata_exporter_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
            "fermata_card_up{card=\"fermata0\"} 1",
            "fermata_card_up{card=\"fermata1\"} 0",
            "fermata_card_contexts{card=\"fermata0\"} 2",
            &format!("fermata_slot_state{{{slot},state=\"running\"}} 1"),
            &format!("fermata_slot_state{{{slot},state=\"vacant\"}} 0"),
            &format!("fermata_slot_starts_total{{{slot}}} 4"),
            &format!("fermata_slot_busy_seconds_total{{{slot}}} 2.5"),
            &format!("fermata_slot_gap_seconds_bucket{{{slot},le=\"0.000001024\"}} 1"),
            &format!("fermata_slot_gap_seconds_sum{{{slot}}} 3"),
            &format!("fermata_group_run_seconds_total{{{group}}} 1.25"),
            &format!("fermata_group_contexts{{{group},state=\"queued\"}} 2"),
            &format!("fermata_group_contexts{{{group},state=\"held\"}} 0"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        // What the driver does not tell is not 0.
        assert!(
            !text.contains("max_contexts") && !text.contains("resets"),
            "{text}"
        );
    }

    #[test]
    fn each_metric_is_described_once_before_its_samples() {
        for format in [Format::OpenMetrics, Format::Prometheus] {
            let text = text(format);
            let types: Vec<_> = text
                .lines()
                .filter(|line| line.starts_with("# TYPE"))
                .collect();
            let mut names = types.clone();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), types.len(), "{text}");
            let mut last = "";
            for line in text.lines() {
                if let Some(rest) = line.strip_prefix("# TYPE ") {
                    last = rest.split(' ').next().unwrap();
                }
                assert!(line.starts_with('#') || line.starts_with(last), "{line}");
            }
        }
    }
}
