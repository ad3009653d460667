// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the driver's tracepoints (docs/tracing.md) in the text form of tracefs, perf or trace-cmd.

use crate::{Doing, End, Span, Timeline, Turn};
use anyhow::{anyhow, Context as _, Result};
use std::collections::BTreeMap;
use std::io::BufRead;

/// Text for the arrival of latency-critical work.
pub const ARRIVAL: &str = "latency-critical work arrives";
/// Text for a hint.
pub const HINT: &str = "hint";

/// One line of a trace.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// An event of the driver.
    Event(Event<'a>),
    /// Number of events of a processor that were overwritten before they were read.
    Lost(u64),
    /// A comment, or an event of another subsystem.
    Other,
}

/// An event of the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Time in nanoseconds of the trace's clock.
    pub at: u64,
    /// Command and thread that ran when the event occurred, if the line begins with `COMMAND-PID`.
    pub task: Option<(&'a str, u32)>,
    /// Name without `fermata_`.
    pub name: &'a str,
    fields: &'a str,
}

impl<'a> Event<'a> {
    /// Returns a field as text.
    pub fn text(&self, field: &str) -> Option<&'a str> {
        let mut fields = self.fields.split(' ');
        fields.find_map(|of| of.strip_prefix(field)?.strip_prefix('='))
    }

    /// Returns a field as a number.
    pub fn number(&self, field: &str) -> Result<i64> {
        let text = self
            .text(field)
            .with_context(|| format!("fermata_{} without {field}", self.name))?;
        text.parse()
            .with_context(|| format!("fermata_{}: {field}={text}", self.name))
    }

    /// Returns the card's number.
    pub fn card(&self) -> Result<u32> {
        let text = self.text("card").unwrap_or("");
        let number = text.strip_prefix("fermata").unwrap_or(text).parse();
        number.with_context(|| format!("fermata_{}: card={text}", self.name))
    }
}

/// Parses a line: `COMMAND-PID [CPU] FLAGS TIME: fermata_NAME: FIELDS`, or `CPU:1 [LOST 5 EVENTS]`.
pub fn parse(line: &str) -> Result<Line<'_>> {
    if let Some((_, lost)) = line.split_once("[LOST ") {
        if line.starts_with("CPU:") {
            let number = lost.split(' ').next().unwrap_or("");
            return Ok(Line::Lost(number.parse().with_context(|| line.to_owned())?));
        }
    }
    // perf prints the subsystem before the name.
    let line = line.trim_end();
    let Some((before, after)) = [": fermata:fermata_", ": fermata_"]
        .iter()
        .find_map(|mark| line.split_once(mark))
        .filter(|_| !line.starts_with('#'))
    else {
        return Ok(Line::Other);
    };
    let (name, fields) = after
        .split_once(':')
        .with_context(|| format!("no fields: {line}"))?;
    let time = before.rsplit(' ').next().unwrap_or("");
    Ok(Line::Event(Event {
        task: task(before),
        at: nanoseconds(time).with_context(|| format!("no time: {line}"))?,
        name,
        fields: fields.trim_start(),
    }))
}

/// Returns the `COMMAND-PID` at the beginning of a line.
fn task(before: &str) -> Option<(&str, u32)> {
    let (command, pid) = before.split_once(" [")?.0.trim().rsplit_once('-')?;
    Some((command, pid.parse().ok()?))
}

/// Parses seconds with six or nine decimals.
fn nanoseconds(time: &str) -> Option<u64> {
    let (seconds, part) = time.split_once('.')?;
    let unit = 10_u64.checked_pow(9_u32.checked_sub(part.len().try_into().ok()?)?)?;
    let seconds: u64 = seconds.parse().ok()?;
    Some(seconds * 1_000_000_000 + part.parse::<u64>().ok()? * unit)
}

/// A job on a slot.
#[derive(Clone, Copy, Debug)]
struct Run {
    ctx: u64,
    from: u64,
    resumed: bool,
    /// Time of the restore.
    restore: u64,
    /// Time of the last PAUSE.
    pause: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    run: Option<Run>,
    /// Since when the slot is free.
    free: Option<u64>,
}

/// Builds a timeline of one card's events.
#[derive(Debug, Default)]
pub struct Reader {
    timeline: Timeline,
    slots: Vec<Slot>,
    /// Contexts whose jobs wait, and since when.
    waiting: BTreeMap<u64, u64>,
    /// Processes of contexts.
    pids: BTreeMap<u64, u32>,
    /// Commands of contexts' processes.
    commands: BTreeMap<u64, String>,
}

/// The contents of a trace.
#[derive(Debug)]
pub struct Trace {
    /// The timeline of one card. Jobs are numbers of contexts; times are of the trace's clock.
    pub timeline: Timeline,
    /// Processes of contexts.
    pub pids: BTreeMap<u64, u32>,
    /// Commands of contexts' processes, as far as the trace has events of these processes.
    pub commands: BTreeMap<u64, String>,
    /// Number of lost events, as far as the trace reports them.
    pub lost: u64,
}

/// Reads a trace and returns the part about one card.
pub fn read(trace: impl BufRead, card: u32) -> Result<Trace> {
    let (mut reader, mut lost) = (Reader::default(), 0);
    for line in trace.lines() {
        match parse(&line?)? {
            Line::Event(event) if event.card()? == card => reader.take(&event)?,
            Line::Lost(count) => lost += count,
            Line::Event(_) | Line::Other => {}
        }
    }
    Ok(reader.end(lost))
}

impl Reader {
    /// Handles the next event of the card.
    pub fn take(&mut self, event: &Event<'_>) -> Result<()> {
        let at = event.at;
        self.timeline.last = self.timeline.last.max(at);
        if matches!(event.name, "interrupt" | "card") {
            if let Some(what) = event.text("event") {
                self.timeline.note(None, what, at);
            }
            return Ok(());
        }
        let ctx = u64::try_from(event.number("ctx")?)?;
        let slot = usize::try_from(event.number("slot")?).ok();
        if let (Ok(pid), true) = (u32::try_from(event.number("pid")?), ctx != 0) {
            self.pids.insert(ctx, pid);
            if let Some((command, _)) = event.task.filter(|(_, task)| *task == pid) {
                self.commands.insert(ctx, command.into());
            }
        }
        if let Some(slot) = slot {
            self.grow(slot)?;
            return self.take_of_slot(event, slot, ctx);
        }
        match event.name {
            "arrival" => {
                self.waiting.insert(ctx, at);
                if event.text("urgency") == Some("latency-critical") {
                    self.timeline.note(None, ARRIVAL, at);
                }
            }
            "hint" => self.timeline.note(None, HINT, at),
            "held" | "job_end" | "context_released" => {
                self.waiting.remove(&ctx);
            }
            "queue" if event.text("event") == Some("empty") => {
                self.waiting.remove(&ctx);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_of_slot(&mut self, event: &Event<'_>, slot: usize, ctx: u64) -> Result<()> {
        let at = event.at;
        match event.name {
            "start" => self.start(slot, ctx, event.number("resume")? != 0, at),
            "pause" => {
                if let Some(run) = &mut self.slots[slot].run {
                    run.pause = Some(at);
                }
                let why = event.text("why").unwrap_or("");
                self.timeline.note(Some(slot), format!("PAUSE ({why})"), at);
            }
            "status" => {
                let restore = u64::try_from(event.number("restore")?)? * 1_000;
                if let Some(run) = self.slots[slot].run.as_mut().filter(|run| run.resumed) {
                    run.restore = restore;
                }
            }
            "stop" => match event.text("why") {
                Some("paused" | "empty") => {
                    self.stop(slot, End::Saved, at);
                    self.waiting.insert(ctx, at);
                }
                Some("dropped") => self.stop(slot, End::Reset, at),
                _ => self.stop(slot, End::Finished, at),
            },
            "reset" if event.number("hold")? != 0 => self.stop(slot, End::Reset, at),
            "keep" => self.timeline.note(Some(slot), "kept for a hint", at),
            "fault" => self.timeline.note(Some(slot), "refused access", at),
            "quarantine" => self.timeline.note(Some(slot), "out of use", at),
            // The doorbell rang while the job was on the slot.
            _ => {}
        }
        Ok(())
    }

    fn grow(&mut self, slot: usize) -> Result<()> {
        if slot >= 64 {
            return Err(anyhow!("no card has a slot {slot}"));
        }
        while self.slots.len() <= slot {
            self.slots.push(Slot::default());
            self.timeline.engines.push(String::new());
        }
        Ok(())
    }

    fn start(&mut self, slot: usize, ctx: u64, resumed: bool, at: u64) {
        let waits = self.waiting.remove(&ctx);
        if let (Some(free), Some(waits)) = (self.slots[slot].free.take(), waits) {
            self.span(slot, ctx, Doing::Gap, free.max(waits), at);
        }
        self.slots[slot].run = Some(Run {
            ctx,
            from: at,
            resumed,
            restore: 0,
            pause: None,
        });
    }

    fn stop(&mut self, slot: usize, end: End, at: u64) {
        let Some(run) = self.slots[slot].run.take() else {
            return;
        };
        self.slots[slot].free = Some(at);
        let saves = run.pause.filter(|_| end == End::Saved).unwrap_or(at);
        let runs = (run.from + run.restore).min(saves);
        if run.resumed {
            self.span(slot, run.ctx, Doing::Restore, run.from, runs);
        }
        self.span(slot, run.ctx, Doing::Run, runs, saves);
        if end == End::Saved {
            self.span(slot, run.ctx, Doing::Save, saves, at);
        }
        self.timeline.turns.push(Turn {
            slot,
            job: run.ctx,
            resumed: run.resumed,
            from: run.from,
            to: at,
            end,
        });
    }

    fn span(&mut self, slot: usize, job: u64, doing: Doing, from: u64, to: u64) {
        self.timeline.spans.push(Span {
            slot,
            job,
            doing,
            from,
            to,
        });
    }

    /// Ends activities and turns at the end of the trace.
    pub fn end(mut self, lost: u64) -> Trace {
        for slot in 0..self.slots.len() {
            self.stop(slot, End::Open, self.timeline.last);
        }
        self.timeline.sort();
        Trace {
            timeline: self.timeline,
            pids: self.pids,
            commands: self.commands,
            lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
            demo-12      [000] d..1.     1.000010: fermata_job_start: card=fermata0 slot=-1 ctx=65536 pid=12 job=1 replayable=0 saved=0 held=0
            demo-12      [000] d..1.     1.000011: fermata_arrival: card=fermata0 slot=-1 ctx=65536 pid=12 urgency=best-effort cause=start
            demo-12      [000] d..1.     1.000020: fermata_start: card=fermata0 slot=1 ctx=65536 pid=12 resume=0 why=turn
       a b: c-13         [001] d..1.     1.000100: fermata_arrival: card=fermata0 slot=-1 ctx=65537 pid=13 urgency=latency-critical cause=start
CPU:1 [LOST 7 EVENTS]
       a b: c-13         [001] d..1.     1.000101: fermata_pause: card=fermata0 slot=1 ctx=65536 pid=12 why=outranked waiter=65537 boundary=0
          <idle>-0       [001] d.h1.     1.000150: fermata_status: card=fermata0 slot=1 ctx=65536 pid=12 phase=paused flags= restore=0 starts=1
          <idle>-0       [001] d.h1.     1.000151: fermata_stop: card=fermata0 slot=1 ctx=65536 pid=12 why=paused
          <idle>-0       [001] d.h1.     1.000160: fermata_start: card=fermata0 slot=1 ctx=65537 pid=13 resume=0 why=turn
          <idle>-0       [001] d.h1.     1.000161: fermata_interrupt: card=fermata0 slots=0x2 useful=1
          <idle>-0       [001] d.h1.     1.000200: fermata_status: card=fermata0 slot=1 ctx=65537 pid=13 phase=finish flags= restore=0 starts=2
          <idle>-0       [001] d.h1.     1.000200: fermata_stop: card=fermata0 slot=1 ctx=65537 pid=13 why=finished
          <idle>-0       [001] d.h1.     1.000210: fermata_start: card=fermata0 slot=1 ctx=65536 pid=12 resume=1 why=turn
          <idle>-0       [001] d.h1.     1.000215: fermata_start: card=fermata1 slot=1 ctx=65536 pid=12 resume=1 why=turn
          <idle>-0       [001] d.h1.     1.000300: fermata_status: card=fermata0 slot=1 ctx=65536 pid=12 phase=finish flags= restore=30 starts=3
          <idle>-0       [001] d.h1.     1.000300: fermata_stop: card=fermata0 slot=1 ctx=65536 pid=12 why=finished
";

    fn told(trace: &Trace) -> Vec<(u64, Doing, u64, u64)> {
        let spans = trace.timeline.spans.iter();
        let us = |ns: u64| (ns - 1_000_000_000) / 1_000;
        let told = spans.map(|span| (span.job, span.doing, us(span.from), us(span.to)));
        told.collect()
    }

    #[test]
    fn spans_are_what_the_driver_saw() {
        let trace = read(TRACE.as_bytes(), 0).unwrap();
        let expected = [
            (65536, Doing::Run, 20, 101),
            (65536, Doing::Save, 101, 151),
            (65537, Doing::Gap, 151, 160),
            (65537, Doing::Run, 160, 200),
            (65536, Doing::Gap, 200, 210),
            (65536, Doing::Restore, 210, 240),
            (65536, Doing::Run, 240, 300),
        ];
        assert_eq!(told(&trace), expected);
        assert_eq!((trace.lost, trace.pids[&65537]), (7, 13));
        let commands: Vec<_> = trace.commands.into_iter().collect();
        let expected = [(65536, "demo"), (65537, "a b: c")];
        assert_eq!(commands, expected.map(|(ctx, name)| (ctx, name.into())));
        let turns: Vec<_> = trace.timeline.turns.iter().map(|turn| turn.end).collect();
        assert_eq!(turns, [End::Saved, End::Finished, End::Finished]);
        let instants: Vec<_> = trace.timeline.instants.iter().map(|i| &*i.what).collect();
        assert_eq!(instants, [ARRIVAL, "PAUSE (outranked)"]);
        assert_eq!(read(TRACE.as_bytes(), 1).unwrap().timeline.turns.len(), 1);
    }

    #[test]
    fn lines_of_perf_and_trace_cmd() {
        let perf = "swapper     0 [001]   100.000123456: fermata:fermata_unload: card=fermata3 \
             slot=1 ctx=0 pid=0";
        let Line::Event(event) = parse(perf).unwrap() else {
            panic!("no event");
        };
        assert_eq!((event.at, event.name), (100_000_123_456, "unload"));
        assert_eq!(event.task, None);
        assert_eq!(event.card().unwrap(), 3);
        let cmd = "   demo-12    [000]    14.500000: fermata_unload:        card=fermata0 slot=1 \
             ctx=0 pid=0";
        let Line::Event(event) = parse(cmd).unwrap() else {
            panic!("no event");
        };
        assert_eq!(
            (event.at, event.number("slot").unwrap()),
            (14_500_000_000, 1)
        );
        assert_eq!(
            parse("  a-1 [000] 1.0: sched_switch: x=1").unwrap(),
            Line::Other
        );
        assert!(parse("  a-1 [000] x: fermata_unload: slot=1").is_err());
    }
}
