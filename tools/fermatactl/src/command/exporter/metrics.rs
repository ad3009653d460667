// SPDX-License-Identifier: GPL-2.0-or-later
//! Metrics as text: OpenMetrics 1.0, and the text format of Prometheus 0.0.4 for readers that do
//! not ask for OpenMetrics.

use std::fmt::{self, Write};

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

    /// Adds a metric that is no histogram, with all its samples; nothing if there are none.
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
    pub(super) fn add_histograms<'a>(
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
        // A string takes all.
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
        let labels = Labels::default().with("cgroup", "/a\"b\\c\nd");
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
fermata_run_seconds_total{cgroup="/a\"b\\c\nd"} 1.500000001
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
