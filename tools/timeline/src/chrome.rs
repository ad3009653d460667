// SPDX-License-Identifier: GPL-2.0-or-later
//! The same for Perfetto and the tracing page of Chrome: the JSON form of the Trace Event Format,
//! slots as threads.

use crate::spans::{Doing, Timeline};
use anyhow::Result;
use serde_json::{json, Value};
use std::path::Path;

/// One who tells what slots did: a process of the trace.
pub struct Layer<'a> {
    /// Who.
    pub name: &'a str,
    /// What.
    pub timeline: &'a Timeline,
    /// What a job is called.
    pub job: &'a dyn Fn(u64) -> String,
}

/// Writes timelines, one below the other. Times are microseconds.
pub fn write(layers: &[Layer<'_>], file: &Path) -> Result<()> {
    let events: Vec<Value> = layers.iter().zip(1..).flat_map(events).collect();
    let trace = json!({ "displayTimeUnit": "ns", "traceEvents": events });
    Ok(std::fs::write(file, serde_json::to_string(&trace)? + "\n")?)
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
            // Of one colour, whoever waits.
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
