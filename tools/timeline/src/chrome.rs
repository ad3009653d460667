// SPDX-License-Identifier: GPL-2.0
//! The same for Perfetto and the tracing page of Chrome: the JSON form of the Trace Event Format, slots as threads.

use crate::spans::Timeline;
use anyhow::Result;
use serde_json::json;
use std::path::Path;

/// The card is the one process of the trace.
const CARD: u32 = 1;

/// Writes a timeline; `name` says what a job is called. Times are microseconds.
pub(crate) fn write(timeline: &Timeline, name: &dyn Fn(u64) -> String, file: &Path) -> Result<()> {
    let us = |ns: u64| ns as f64 / 1e3;
    let tracks = timeline.engines.iter().enumerate().map(|(slot, engine)| {
        let args = json!({ "name": format!("slot {slot}, {engine}") });
        json!({ "ph": "M", "name": "thread_name", "pid": CARD, "tid": slot, "args": args })
    });
    let spans = timeline.spans.iter().map(|span| {
        let args = json!({ "tag": format!("{:#x}", span.tag), "doing": span.doing });
        json!({
            "ph": "X", "pid": CARD, "tid": span.slot, "ts": us(span.from), "dur": us(span.to - span.from),
            "name": format!("{} {}", name(span.tag), span.doing.name()), "cat": span.doing, "args": args,
        })
    });
    let instants = timeline.instants.iter().map(|instant| {
        let scope = if instant.slot.is_some() { "t" } else { "g" };
        json!({
            "ph": "i", "s": scope, "pid": CARD, "tid": instant.slot.unwrap_or(0), "ts": us(instant.at), "name": instant.what,
        })
    });
    let events: Vec<_> = tracks.chain(spans).chain(instants).collect();
    let trace = json!({ "displayTimeUnit": "ns", "traceEvents": events });
    Ok(std::fs::write(file, serde_json::to_string(&trace)? + "\n")?)
}
