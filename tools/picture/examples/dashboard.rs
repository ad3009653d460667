// SPDX-License-Identifier: GPL-2.0-or-later
//! Renders the panels of a Grafana dashboard as SVG, with the data that Prometheus returned for
//! their queries: `dashboard DASHBOARD DATA PICTURE`. packaging/tests/metrics.py writes the data.

use fermata_picture::chart::{self, Line, Panel, Scale, Side};
use fermata_picture::svg::palette;
use serde_json::Value;
use std::error::Error;
use std::path::Path;

const SIZE: (f64, f64) = (1100.0, 1280.0);

/// A series of a panel: its name, points of time in seconds and values, and whether it is drawn as an
/// area.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    is_area: bool,
}

/// Returns the value of a number or of text with a number.
fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.filter(|number| number.is_finite())
}

/// Returns the name of a series: the legend with labels substituted for `{{label}}`.
fn name(legend: &str, labels: &Value) -> String {
    let mut parts = legend.split("{{");
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once("}}").unwrap_or((part, ""));
        name += labels[label].as_str().unwrap_or_default();
        name += rest;
    }
    name
}

fn points(series: &Value, start: f64, factor: f64) -> Vec<(f64, f64)> {
    let values = series["values"].as_array().into_iter().flatten();
    let point = |value: &Value| Some((number(&value[0])? - start, number(&value[1])? * factor));
    values.filter_map(point).collect()
}

/// Returns the factor and the name of a unit that Grafana calls `unit`.
fn unit_of(unit: &str) -> (f64, &'static str) {
    match unit {
        "s" => (1000.0, ", ms"),
        "percentunit" => (100.0, ", %"),
        "ops" => (1.0, ", 1/s"),
        _ => (1.0, ""),
    }
}

/// Returns whether the series of a query are drawn without a line, which only an override does.
fn is_area(panel: &Value, query: &Value) -> bool {
    let overrides = panel["fieldConfig"]["overrides"].as_array();
    let own = overrides.into_iter().flatten().filter(|change| {
        let matcher = &change["matcher"];
        matcher["id"] == "byFrameRefID" && matcher["options"] == query["refId"]
    });
    let mut properties =
        own.flat_map(|change| change["properties"].as_array().into_iter().flatten());
    properties.any(|property| property["id"] == "custom.lineWidth" && property["value"] == 0)
}

/// Returns the series of all queries of a panel.
fn series(panel: &Value, data: &Value, factor: f64) -> Vec<Series> {
    let start = number(&data["start"]).unwrap_or_default();
    let mut all = Vec::new();
    for target in panel["targets"].as_array().into_iter().flatten() {
        let query = target["expr"].as_str().unwrap_or_default();
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        let answer = data["answers"][query].as_array();
        all.extend(answer.into_iter().flatten().map(|series| Series {
            name: name(legend, &series["metric"]),
            points: points(series, start, factor),
            is_area: is_area(panel, target),
        }));
    }
    all.retain(|series| !series.points.is_empty());
    all
}

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let [dashboard, data, picture] = &files[..] else {
        return Err("give the dashboard and the data, two files of JSON, and the picture".into());
    };
    let read = |path: &str| -> Result<Value, Box<dyn Error>> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?)
    };
    let (dashboard, data) = (read(dashboard)?, read(data)?);
    let mut names = Vec::new();
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let panels: Vec<_> = panels.map(|panel| draw(panel, &data, &mut names)).collect();
    let title = "Two tenants of a card (an emulator's times)";
    chart::draw(title, &panels, 2, SIZE).write(Path::new(picture))?;
    Ok(())
}

/// Returns a panel. Series of one name have the same colour in all panels.
fn draw(panel: &Value, data: &Value, names: &mut Vec<String>) -> Panel<'static> {
    let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
    let (factor, unit) = unit_of(unit.unwrap_or_default());
    let lines: Vec<Line> = series(panel, data, factor)
        .into_iter()
        .map(|series| {
            let known = names.iter().position(|name| *name == series.name);
            let marker = known.unwrap_or_else(|| {
                names.push(series.name.clone());
                names.len() - 1
            });
            Line {
                name: series.name,
                color: palette(marker + 1)[marker],
                marker,
                bold: false,
                is_area: series.is_area,
                points: series.points,
                is_level: false,
            }
        })
        .collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|(time, _)| *time).fold(1.0, f64::max);
    let highest = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let highest = if highest == 0.0 { 1.0 } else { highest };
    Panel {
        caption: format!("{}{unit}", panel["title"].as_str().unwrap_or_default()),
        across: Side {
            name: "time, s",
            scale: Scale::Linear,
            range: (0.0, last),
        },
        up: Some(Side {
            name: "",
            scale: Scale::Linear,
            range: (0.0, highest * 1.1),
        }),
        lines,
        has_legend: true,
    }
}
