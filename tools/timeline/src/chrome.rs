// SPDX-License-Identifier: GPL-2.0-or-later
//! A trace for Perfetto and Chrome's tracing page: the JSON form of the Trace Event Format,
//! with slots as threads.

use crate::{Doing, Timeline};
use anyhow::Result;
use fermata_output::text::printable_json;
use serde_json::{json, Value};

/// A view of the slots: a process of the trace.
pub struct Layer<'a> {
    /// Name of the view.
    pub name: &'a str,
    /// What the slots did.
    pub timeline: &'a Timeline,
    /// Returns the name of a job.
    pub job: &'a dyn Fn(u64) -> String,
}

/// Returns the trace of timelines, one below the other. Times are microseconds.
pub fn text(layers: &[Layer<'_>]) -> Result<String> {
    let events: Vec<Value> = layers.iter().zip(1..).flat_map(events).collect();
    let trace = json!({ "displayTimeUnit": "ns", "traceEvents": events });
    Ok(printable_json(&serde_json::to_string(&trace)?) + "\n")
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn events((layer, pid): (&Layer<'_>, u32)) -> Vec<Value> {
    let Layer {
        name,
        timeline,
        job,
    } = layer;
    let process =
        json!({ "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name } });
    let tracks = timeline.engines.iter().enumerate().map(|(slot, engine)| {
        let args = json!({ "name": format!("slot {slot}, {engine}") });
        json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": slot, "args": args })
    });
    let spans = timeline.spans.iter().map(|span| {
        let args = json!({ "job": format!("{:#x}", span.job), "doing": span.doing });
        let name = match span.doing {
            // All gaps have the same name, and so the same colour, whichever job waits.
            Doing::Gap => format!("gap before {}", job(span.job)),
            doing => format!("{} {}", job(span.job), doing.name()),
        };
        json!({
            "ph": "X", "pid": pid, "tid": span.slot, "ts": us(span.from), "dur": us(span.to - span.from),
            "name": name, "cat": span.doing, "args": args,
        })
    });
    let instants = timeline.instants.iter().map(|instant| {
        let scope = if instant.slot.is_some() { "t" } else { "p" };
        json!({
            "ph": "i", "s": scope, "pid": pid, "tid": instant.slot.unwrap_or(0), "ts": us(instant.at), "name": instant.what,
        })
    });
    let all = [process]
        .into_iter()
        .chain(tracks)
        .chain(spans)
        .chain(instants);
    all.collect()
}
