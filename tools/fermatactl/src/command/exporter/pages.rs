// SPDX-License-Identifier: GPL-2.0-or-later
//! The metrics: their names, where their values come from (docs/metrics.md lists them), and their
//! text: OpenMetrics 1.0, and the text format of Prometheus 0.0.4 for readers that do not ask for
//! OpenMetrics.

use super::cards::{self, Card, Group, Slot};
use fermata_output::text::printable_lines;
use std::collections::HashMap;
use std::fmt::{self, Write};

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
const GROUP_IDLE: Description = gauge(
    "fermata_group_idle_seconds",
    "For how long the context of the group that has been idle longest has had no job that wants a \
     slot; 0: none is idle.",
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
const SLOT_COUNTERS: [(&str, Description); 15] = [
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
    (
        "timer_storms",
        counter(
            "fermata_slot_timer_storms",
            "Milliseconds in which the timer of the slot fired more than 100 times.",
        ),
    ),
    (
        "standstills",
        counter(
            "fermata_slot_standstills",
            "Jobs that have waited for ten seconds beside the vacant slot.",
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
        of_card(card).and(&cards::labels(number, path))
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
    let idle = groups
        .iter()
        .map(|(labels, group)| (labels.clone(), Value::Time(group.idle_ns)));
    page.add(&GROUP_IDLE, idle);
    let contexts = groups.iter().flat_map(|(labels, group)| {
        CONTEXT_STATES.map(|state| {
            let count = group.states.get(state).copied().unwrap_or(0);
            (labels.with("state", state), Value::Number(count))
        })
    });
    page.add(&GROUP_CONTEXTS, contexts);
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// Returns the format that the value of a request's header `Accept` asks for.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// A gauge of 1, whose labels are the information.
    Info,
}

/// What all samples of a metric have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Description {
    /// The name, with the unit and without `_total` or `_info`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// A sentence without characters that would have to be escaped.
    pub(super) help: &'static str,
}

impl Description {
    /// Returns the unit, which is the end of the name.
    fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| {
            let front = self.name.strip_suffix(unit);
            front.is_some_and(|front| front.ends_with('_'))
        })
    }

    /// Returns the end of the names of samples.
    fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }

    fn type_in(&self, format: Format) -> &'static str {
        match (self.kind, format) {
            (Kind::Counter, _) => "counter",
            (Kind::Histogram, _) => "histogram",
            (Kind::Info, Format::OpenMetrics) => "info",
            (Kind::Gauge, _) | (Kind::Info, Format::Prometheus) => "gauge",
        }
    }
}

/// Names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels(Vec<(&'static str, String)>);

impl Labels {
    /// Returns the labels with one more.
    pub(super) fn with(&self, name: &'static str, value: impl Into<String>) -> Self {
        let mut labels = self.clone();
        labels.0.push((name, value.into()));
        labels
    }

    /// Returns these labels and others.
    pub(super) fn and(&self, others: &Self) -> Self {
        Self([&self.0[..], &others.0[..]].concat())
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (name, value)) in self.0.iter().enumerate() {
            let before = if n == 0 { '{' } else { ',' };
            write!(f, "{before}{name}=\"{}\"", escaped(value))?;
        }
        if self.0.is_empty() {
            return Ok(());
        }
        f.write_char('}')
    }
}

fn escaped(value: &str) -> String {
    let value = printable_lines(value);
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    /// Nanoseconds, which are shown as seconds without loss.
    Time(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Time(ns) => {
                let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// A text of metrics.
pub(super) struct Page {
    format: Format,
    text: String,
}

impl Page {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    /// Adds a metric that is not a histogram, with all its samples. Adds nothing if there are none.
    pub(super) fn add(
        &mut self,
        what: &Description,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        self.begin(what);
        for (labels, value) in samples {
            self.sample(what.name, what.suffix(), &labels, value);
        }
    }

    /// Adds a metric that is a histogram.
    fn add_histograms<'a>(
        &mut self,
        what: &Description,
        histograms: impl IntoIterator<Item = (Labels, &'a Buckets)>,
    ) {
        let mut histograms = histograms.into_iter().peekable();
        if histograms.peek().is_none() {
            return;
        }
        self.begin(what);
        for (labels, buckets) in histograms {
            for (bound, count) in &buckets.below {
                let labels = labels.with("le", Value::Time(*bound).to_string());
                self.sample(what.name, "_bucket", &labels, count);
            }
            let all = labels.with("le", "+Inf");
            self.sample(what.name, "_bucket", &all, buckets.count);
            self.sample(what.name, "_sum", &labels, Value::Time(buckets.sum_ns));
            self.sample(what.name, "_count", &labels, buckets.count);
        }
    }

    fn begin(&mut self, what: &Description) {
        let name = match self.format {
            Format::OpenMetrics => what.name.into(),
            Format::Prometheus => format!("{}{}", what.name, what.suffix()),
        };
        let kind = what.type_in(self.format);
        self.line(format_args!("# HELP {name} {}", what.help));
        self.line(format_args!("# TYPE {name} {kind}"));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, what.unit()) {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &Labels, value: impl fmt::Display) {
        self.line(format_args!("{name}{suffix}{labels} {value}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Returns the text.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// A histogram of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Buckets {
    /// Bounds in nanoseconds, ascending, and how many times are below each.
    pub(super) below: Vec<(u64, u64)>,
    pub(super) count: u64,
    pub(super) sum_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Figures;

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
            idle_ns: 60_500_000_000,
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
            &format!("fermata_group_idle_seconds{{{group}}} 60.5"),
            &format!("fermata_group_contexts{{{group},state=\"queued\"}} 2"),
            &format!("fermata_group_contexts{{{group},state=\"held\"}} 0"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        // A figure that the driver does not report is left out, instead of being 0.
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

    const RUN: Description = Description {
        name: "fermata_run_seconds",
        kind: Kind::Counter,
        help: "Time.",
    };
    const GAP: Description = Description {
        name: "fermata_gap_seconds",
        kind: Kind::Histogram,
        help: "Gaps.",
    };
    const ABOUT: Description = Description {
        name: "fermata_card",
        kind: Kind::Info,
        help: "About.",
    };

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        let labels = Labels::default().with("cgroup", "/a\"b\\c\nd\x1b");
        page.add(&RUN, [(labels, Value::Time(1_500_000_001))]);
        let buckets = Buckets {
            below: vec![(1024, 3)],
            count: 4,
            sum_ns: 2_000_000_000,
        };
        page.add_histograms(&GAP, [(Labels::default().with("slot", "0"), &buckets)]);
        page.add(&ABOUT, [(Labels::default(), Value::Number(1))]);
        page.add(&RUN, []);
        page.end()
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        assert_eq!(
            page(Format::OpenMetrics),
            r#"# HELP fermata_run_seconds Time.
# TYPE fermata_run_seconds counter
# UNIT fermata_run_seconds seconds
fermata_run_seconds_total{cgroup="/a\"b\\c\nd\\x1b"} 1.500000001
# HELP fermata_gap_seconds Gaps.
# TYPE fermata_gap_seconds histogram
# UNIT fermata_gap_seconds seconds
fermata_gap_seconds_bucket{slot="0",le="0.000001024"} 3
fermata_gap_seconds_bucket{slot="0",le="+Inf"} 4
fermata_gap_seconds_sum{slot="0"} 2
fermata_gap_seconds_count{slot="0"} 4
# HELP fermata_card About.
# TYPE fermata_card info
fermata_card_info 1
# EOF
"#
        );
    }

    #[test]
    fn the_older_format_names_samples_as_metrics() {
        let text = page(Format::Prometheus);
        assert!(text.contains("# TYPE fermata_run_seconds_total counter\n"));
        assert!(text.contains("# TYPE fermata_card_info gauge\nfermata_card_info 1\n"));
        assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn the_request_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }

    #[test]
    fn times_are_exact() {
        let of = |ns| Value::Time(ns).to_string();
        assert_eq!(
            [of(0), of(1), of(20_000_000_000)],
            ["0", "0.000000001", "20"]
        );
        assert_eq!(of(u64::MAX), "18446744073.709551615");
    }
}
