// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the driver's tracepoints (docs/tracing.md) in the text form of tracefs, perf or trace-cmd.

use crate::clock::{Bounds, Line as Clock};
use crate::{Doing, End, Span, Timeline, Turn};
use anyhow::{anyhow, Context as _, Result};
use fermata_output::text::printable;
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
    /// Number of events of a processor that were overwritten before they were read, at least.
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

    /// Returns a field as a number of 64 bits.
    fn unsigned(&self, field: &str) -> Result<u64> {
        let text = self.text(field).unwrap_or("");
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
///
/// A tenant chooses COMMAND: it may look like what follows, have line ends, or begin like a comment.
/// So a line is read from the last mark of the driver on, behind which nothing is a tenant's.
pub fn parse(line: &str) -> Result<Line<'_>> {
    let line = line.trim_end();
    // perf prints the subsystem before the name.
    let marks = [": fermata:fermata_", ": fermata_"];
    let found = marks.map(|mark| line.rsplit_once(mark));
    let Some((before, after)) = found.into_iter().flatten().max_by_key(|of| of.0.len()) else {
        return Ok(lost(line).map_or(Line::Other, Line::Lost));
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

/// Returns the number of events in a line that tells of lost ones: 1 if the kernel does not know.
fn lost(line: &str) -> Option<u64> {
    let (processor, lost) = line.strip_prefix("CPU:")?.split_once(" [LOST ")?;
    let count = lost.strip_suffix("EVENTS]")?.trim_end();
    let _: u32 = processor.parse().ok()?;
    if count.is_empty() {
        return Some(1);
    }
    count.parse().ok()
}

/// Returns the `COMMAND-PID` at the beginning of a line.
fn task(before: &str) -> Option<(&str, u32)> {
    let (command, pid) = before.rsplit_once(" [")?.0.trim().rsplit_once('-')?;
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
#[derive(Clone, Debug)]
struct Run {
    ctx: u64,
    from: u64,
    resumed: bool,
    /// Time of the restore, as the status tells.
    restore: u64,
    /// Since when the job had waited.
    waited: Option<Since>,
    /// When the context was loaded, if the slot was vacant.
    loaded: Option<u64>,
    pauses: Vec<Pause>,
}

/// A PAUSE, or an order to stop, that was written.
#[derive(Clone, Debug)]
struct Pause {
    at: u64,
    why: String,
    /// The job stops at its next boundary.
    at_boundary: bool,
}

impl Run {
    /// Returns when the job was told to stop, as far as that is known. A PAUSE during the restore is
    /// dropped, and written again; but a PAUSE is also written again if only the answer is late.
    fn told_to_stop(&self) -> Option<u64> {
        let worked = self.from + self.restore;
        let knows_restore = !self.resumed || self.restore != 0;
        let mut pauses = self.pauses.iter();
        let first = pauses.find(|pause| knows_restore && pause.at >= worked && !pause.at_boundary);
        first.or(self.pauses.last()).map(|pause| pause.at)
    }
}

/// Since when a job waits.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// A time of the trace.
    Time(u64),
    /// The end of the run with this index in [`Reader::past`].
    EndOf(usize),
}

/// A run that has ended.
#[derive(Clone, Debug)]
struct Past {
    run: Run,
    slot: usize,
    end: End,
    to: u64,
    record: Option<Record>,
}

/// The times of a run's record, by the card's clock.
#[derive(Clone, Copy, Debug)]
struct Record {
    began: u64,
    worked: u64,
    stopped: u64,
    left: u64,
    /// Index in [`Reader::clocks`].
    clock: usize,
}

impl Record {
    /// Returns the times of a stop; `None`: it has none, or not in the order of a run. A run that
    /// did not work, or was not saved, has no save.
    fn of(event: &Event<'_>, saved: bool, clock: usize) -> Result<Option<Self>> {
        if event.text("left").is_none() {
            return Ok(None);
        }
        let time = |field| event.unsigned(field);
        let left = time("left")?;
        let at = |time: u64| if time == 0 { left } else { time };
        let record = Self {
            began: time("began")?,
            worked: at(time("worked")?),
            stopped: if saved { at(time("stopped")?) } else { left },
            left,
            clock,
        };
        let times = [record.began, record.worked, record.stopped, left];
        let ordered = times.windows(2).all(|pair| {
            let passed = pair[1].wrapping_sub(pair[0]);
            passed as i64 >= 0
        });
        Ok((left != 0 && record.began != 0 && ordered).then_some(record))
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    run: Option<Run>,
    /// The context that was loaded while the slot was vacant, and when.
    loaded: Option<(u64, u64)>,
}

/// Builds a timeline of one card's events.
#[derive(Debug)]
pub struct Reader {
    timeline: Timeline,
    slots: Vec<Slot>,
    past: Vec<Past>,
    /// What is known of the card's clock, anew after each reset or sleep of the card.
    clocks: Vec<Bounds>,
    /// Contexts whose jobs wait, and since when.
    waiting: BTreeMap<u64, Since>,
    /// Processes of contexts.
    pids: BTreeMap<u64, u32>,
    /// Commands of contexts' processes.
    commands: BTreeMap<u64, String>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            timeline: Timeline::default(),
            slots: Vec::new(),
            past: Vec::new(),
            clocks: vec![Bounds::default()],
            waiting: BTreeMap::new(),
            pids: BTreeMap::new(),
            commands: BTreeMap::new(),
        }
    }
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
    /// Number of lines that look like events of the driver and are none that can be read.
    pub unread: u64,
    /// By how many nanoseconds times of records can be off, at most; `None`: there are none, or no
    /// run began on a vacant slot.
    pub uncertainty: Option<f64>,
}

/// Reads a trace and returns the part about one card.
pub fn read(trace: impl BufRead, card: u32) -> Result<Trace> {
    let (mut reader, mut lost, mut unread) = (Reader::default(), 0, 0);
    for line in trace.split(b'\n') {
        let line = line?;
        match parse(&String::from_utf8_lossy(&line)) {
            Ok(Line::Event(event)) => {
                let taken = match event.card() {
                    Ok(of) if of == card => reader.take(&event),
                    of => of.map(drop),
                };
                unread += u64::from(taken.is_err());
            }
            Ok(Line::Lost(count)) => lost += count,
            Ok(Line::Other) => {}
            Err(_) => unread += 1,
        }
    }
    let trace = reader.end(lost);
    Ok(Trace { unread, ..trace })
}

impl Reader {
    /// Handles the next event of the card.
    pub fn take(&mut self, event: &Event<'_>) -> Result<()> {
        let at = event.at;
        self.timeline.last = self.timeline.last.max(at);
        if matches!(event.name, "interrupt" | "card") {
            if let Some(what) = event.text("event") {
                self.timeline.note(None, what, at);
                if matches!(what, "thawed" | "removed") {
                    self.clocks.push(Bounds::default());
                }
            }
            return Ok(());
        }
        let ctx = u64::try_from(event.number("ctx")?)?;
        let slot = usize::try_from(event.number("slot")?).ok();
        if let (Ok(pid), true) = (u32::try_from(event.number("pid")?), ctx != 0) {
            self.pids.insert(ctx, pid);
            if let Some((command, _)) = event.task.filter(|(_, task)| *task == pid) {
                self.commands.insert(ctx, printable(command));
            }
        }
        if let Some(slot) = slot {
            self.grow(slot)?;
            return self.take_of_slot(event, slot, ctx);
        }
        match event.name {
            "arrival" => {
                self.waiting.insert(ctx, Since::Time(at));
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
            "load" => {
                let now = &mut self.slots[slot];
                now.loaded = now.run.is_none().then_some((ctx, at));
            }
            "pause" => {
                if let Some(run) = &mut self.slots[slot].run {
                    run.pauses.push(Pause {
                        at,
                        why: event.text("why").unwrap_or("").into(),
                        at_boundary: event.text("boundary") == Some("1"),
                    });
                }
            }
            "status" => {
                let restore = u64::try_from(event.number("restore")?)? * 1_000;
                if let Some(run) = self.slots[slot].run.as_mut().filter(|run| run.resumed) {
                    run.restore = restore;
                }
            }
            "stop" => {
                let why = event.text("why");
                let saved = matches!(why, Some("paused" | "empty" | "snapshot-error"));
                let record = Record::of(event, saved, self.clocks.len() - 1)?;
                let end = match why {
                    Some("paused" | "empty") => End::Saved,
                    Some("dropped") => End::Reset,
                    _ => End::Finished,
                };
                self.stop(slot, end, at, record);
                if end == End::Saved {
                    let index = self.past.len().checked_sub(1);
                    let since = index.map_or(Since::Time(at), Since::EndOf);
                    self.waiting.insert(ctx, since);
                }
            }
            "reset" if event.number("hold")? != 0 => self.stop(slot, End::Reset, at, None),
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
        let waited = self.waiting.remove(&ctx);
        let now = &mut self.slots[slot];
        let loaded = now.loaded.take().filter(|(loaded, _)| *loaded == ctx);
        now.run = Some(Run {
            ctx,
            from: at,
            resumed,
            restore: 0,
            waited,
            loaded: loaded.map(|(_, at)| at),
            pauses: Vec::new(),
        });
    }

    fn stop(&mut self, slot: usize, end: End, to: u64, record: Option<Record>) {
        let Some(run) = self.slots[slot].run.take() else {
            return;
        };
        if let Some(Record {
            began, left, clock, ..
        }) = record
        {
            let clock = &mut self.clocks[clock];
            clock.not_after(left, to);
            if let Some(loaded) = run.loaded {
                clock.not_before(began, loaded);
            }
        }
        self.past.push(Past {
            run,
            slot,
            end,
            to,
            record,
        });
    }

    /// Ends activities and turns at the end of the trace.
    pub fn end(mut self, lost: u64) -> Trace {
        for slot in 0..self.slots.len() {
            self.stop(slot, End::Open, self.timeline.last, None);
        }
        let clocks = std::mem::take(&mut self.clocks).into_iter();
        let clocks: Vec<Clock> = clocks.map(Bounds::line).collect();
        let mut free = vec![None; self.slots.len()];
        let mut ends = Vec::new();
        for past in std::mem::take(&mut self.past) {
            let turn = past.turn(&clocks);
            let waited = match past.run.waited {
                Some(Since::Time(at)) => Some(at),
                Some(Since::EndOf(index)) => ends.get(index).copied(),
                None => None,
            };
            if let (Some(free), Some(waited)) = (free[past.slot], waited) {
                self.gap(&turn, free, waited);
            }
            self.note_pauses(&past.run.pauses, &turn);
            free[past.slot] = Some(turn.to);
            ends.push(turn.to);
            self.timeline.add(turn);
        }
        self.timeline.sort();
        let uncertain = clocks.iter().filter_map(|clock| clock.uncertainty);
        Trace {
            timeline: self.timeline,
            pids: self.pids,
            commands: self.commands,
            lost,
            unread: 0,
            uncertainty: uncertain.reduce(f64::max),
        }
    }

    /// Adds the time for which a slot was free while the job of the turn waited.
    fn gap(&mut self, turn: &Turn, free: u64, waited: u64) {
        let from = free.max(waited);
        if from < turn.from {
            self.timeline.spans.push(Span {
                slot: turn.slot,
                job: turn.job,
                doing: Doing::Gap,
                from,
                to: turn.from,
            });
        }
    }

    /// Notes the PAUSEs of a turn. An order to stop is written in advance, and a later order takes
    /// its place: the last one counts, from the moment at which the job stopped.
    fn note_pauses(&mut self, pauses: &[Pause], turn: &Turn) {
        let mut note = |at, why: &str| {
            let what = format!("PAUSE ({why})");
            self.timeline.note(Some(turn.slot), what, at);
        };
        if turn.by_record {
            let last = pauses.last().filter(|_| turn.end != End::Finished);
            if let Some(pause) = last {
                note(turn.stopped, &pause.why);
            }
            return;
        }
        pauses.iter().for_each(|pause| note(pause.at, &pause.why));
    }
}

impl Past {
    /// Returns the turn, with the times of the record if there is one.
    fn turn(&self, clocks: &[Clock]) -> Turn {
        let &Self {
            ref run,
            slot,
            end,
            to,
            record,
        } = self;
        let turn = Turn {
            slot,
            job: run.ctx,
            resumed: run.resumed,
            from: run.from,
            worked: to,
            stopped: to,
            to,
            end,
            by_record: record.is_some(),
        };
        if let Some(record) = record {
            let time = |card| clocks[record.clock].convert(card);
            return Turn {
                from: time(record.began),
                worked: time(record.worked),
                stopped: time(record.stopped),
                to: time(record.left),
                ..turn
            };
        }
        let told = run.told_to_stop().filter(|_| end == End::Saved);
        // A PAUSE that was obeyed reached the card after the restore, whenever it was written.
        let worked = (run.from + run.restore).min(to);
        Turn {
            worked,
            stopped: told.unwrap_or(to).max(worked),
            ..turn
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
        assert_eq!(trace.uncertainty, None);
    }

    #[test]
    fn a_pause_that_is_repeated_was_dropped_or_only_slow() {
        let turn = |restore: u64| {
            format!(
                "a-1 [0] 1.000100: fermata_start: card=fermata0 slot=0 ctx=1 pid=0 resume=1 why=turn\n\
                 a-1 [0] 1.000150: fermata_pause: card=fermata0 slot=0 ctx=1 pid=0 why=slice waiter=2 boundary=0\n\
                 a-1 [0] 1.000250: fermata_pause: card=fermata0 slot=0 ctx=1 pid=0 why=again waiter=0 boundary=0\n\
                 a-1 [0] 1.000280: fermata_status: card=fermata0 slot=0 ctx=1 pid=0 phase=paused flags= restore={restore} starts=1\n\
                 a-1 [0] 1.000280: fermata_stop: card=fermata0 slot=0 ctx=1 pid=0 why=paused\n"
            )
        };
        let stopped = |restore| {
            let trace = read(turn(restore).as_bytes(), 0).unwrap();
            (trace.timeline.turns[0].stopped - 1_000_000_000) / 1_000
        };
        assert_eq!(stopped(20), 150, "the answer was late");
        assert_eq!(stopped(90), 250, "dropped during the restore");
        assert_eq!(
            stopped(0),
            250,
            "a card that does not tell how long the restore took"
        );
    }

    /// A card with a relay, whose clock is 5 s ahead. It began the first job 10 us after that was
    /// loaded, and the driver sees each end at least 20 us later. The order to stop is written when
    /// the slice begins; the second job ends by itself.
    const RELAY: &str = "\
 demo-12 [000] d..1. 1.000100: fermata_arrival: card=fermata0 slot=-1 ctx=1 pid=12 urgency=best-effort cause=start
 demo-12 [000] d..1. 1.000101: fermata_load: card=fermata0 slot=0 ctx=1 pid=12 written=5 cleared=0
 demo-12 [000] d..1. 1.000105: fermata_start: card=fermata0 slot=0 ctx=1 pid=12 resume=0 why=turn
    c-13 [001] d..1. 1.000150: fermata_arrival: card=fermata0 slot=-1 ctx=2 pid=13 urgency=best-effort cause=start
    c-13 [001] d..1. 1.000151: fermata_pause: card=fermata0 slot=0 ctx=1 pid=12 why=slice waiter=2 boundary=0
    c-13 [001] d..1. 1.000152: fermata_load: card=fermata0 slot=0 ctx=2 pid=13 written=5 cleared=0
 <idle>-0 [001] d.h1. 1.002250: fermata_stop: card=fermata0 slot=0 ctx=1 pid=12 why=paused began=6000111000 worked=6000113000 stopped=6002113000 left=6002230000
 <idle>-0 [001] d.h1. 1.002251: fermata_start: card=fermata0 slot=0 ctx=2 pid=13 resume=1 why=turn
 <idle>-0 [001] d.h1. 1.002252: fermata_pause: card=fermata0 slot=0 ctx=2 pid=13 why=slice waiter=1 boundary=0
 <idle>-0 [001] d.h1. 1.003700: fermata_stop: card=fermata0 slot=0 ctx=2 pid=13 why=finished began=6002230000 worked=6002330000 stopped=6003590000 left=6003600000
 <idle>-0 [001] d.h1. 1.003701: fermata_start: card=fermata0 slot=0 ctx=1 pid=12 resume=1 why=turn
 <idle>-0 [001] d.h1. 1.003702: fermata_pause: card=fermata0 slot=0 ctx=1 pid=12 why=request waiter=0 boundary=0
 <idle>-0 [001] d.h1. 1.003720: fermata_stop: card=fermata0 slot=0 ctx=1 pid=12 why=paused began=6003630000 worked=0 stopped=0 left=6003700000
";

    #[test]
    fn spans_of_a_relay_are_those_of_the_records() {
        let trace = read(RELAY.as_bytes(), 0).unwrap();
        // Between 10 us too early and 20 us too late lie 5 us.
        let expected = [
            (1, Doing::Restore, 116, 118),
            (1, Doing::Run, 118, 2_118),
            (1, Doing::Save, 2_118, 2_235),
            (2, Doing::Restore, 2_235, 2_335),
            (2, Doing::Run, 2_335, 3_605),
            (1, Doing::Gap, 3_605, 3_635),
            (1, Doing::Restore, 3_635, 3_705),
        ];
        assert_eq!(told(&trace), expected);
        assert_eq!(trace.uncertainty.map(f64::round), Some(15_000.0));
        let turns = &trace.timeline.turns;
        assert!(turns.iter().all(|turn| turn.by_record));
        let ends: Vec<_> = turns.iter().map(|turn| turn.end).collect();
        assert_eq!(ends, [End::Saved, End::Finished, End::Saved]);
        let instants = trace.timeline.instants.iter();
        let pauses: Vec<_> = instants.map(|i| (i.at - 1_000_000_000, &*i.what)).collect();
        let expected = [(2_118_000, "PAUSE (slice)"), (3_705_000, "PAUSE (request)")];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_card_that_was_asleep_may_have_another_clock() {
        let stop = |at: u32, left: u32| {
            format!(
                "a-1 [0] {at}.000500: fermata_start: card=fermata0 slot=0 ctx=1 pid=0 resume=0 why=turn\n\
                 a-1 [0] {at}.000900: fermata_stop: card=fermata0 slot=0 ctx=1 pid=0 why=finished \
                 began={left}100 worked={left}200 stopped={left}300 left={left}400\n"
            )
        };
        let text = stop(10, 5) + "a-1 [0] 20.0: fermata_card: card=fermata0 event=thawed\n";
        let trace = read((text + &stop(30, 1)).as_bytes(), 0).unwrap();
        let ends: Vec<_> = trace.timeline.turns.iter().map(|turn| turn.to).collect();
        assert_eq!(ends, [10_000_900_000, 30_000_900_000]);
        // A record whose times are not in order is none.
        let wrong = stop(10, 5).replace("worked=5200", "worked=5450");
        let trace = read(wrong.as_bytes(), 0).unwrap();
        assert!(!trace.timeline.turns[0].by_record);
    }

    /// A tenant may name its threads as it likes, with 15 bytes.
    #[test]
    fn names_of_threads_forge_nothing() {
        let fields = "card=fermata0 slot=0 ctx=1 pid=7 resume=0 why=turn";
        let line =
            |name: &str| format!("{name:>16}-7 [000] d..1. 1.000001: fermata_start: {fields}");
        let names = [
            ": fermata_x",
            ": fermata_stop:",
            ": fermata:ferma",
            "9.9: fermata_a:",
            "#",
            "a [001] d",
            "CPU:1 [LOST 9 ",
            "\x1b[2J",
            "x-9 [0] 9.9: ",
        ];
        for name in names {
            let line = line(name);
            let Ok(Line::Event(event)) = parse(&line) else {
                panic!("{name}: no event");
            };
            assert_eq!((event.at, event.name), (1_000_001_000, "start"), "{name}");
            assert_eq!(event.task, Some((name.trim_start(), 7)));
            assert_eq!(event.number("pid").unwrap(), 7);
            let trace = read(line.as_bytes(), 0).unwrap();
            assert_eq!(
                (trace.timeline.turns.len(), trace.unread, trace.lost),
                (1, 0, 0)
            );
        }
        // With a line end in the name, a line has the rest of the name only.
        let names = [
            "\n#",
            "\nCPU:1 [LOST 9 ",
            "\n: fermata_x:",
            "a\n[LOST 5 EVENT",
            "\n1.0: fermata_:",
        ];
        for name in names {
            let trace = read(line(name).as_bytes(), 0).unwrap();
            assert_eq!((trace.timeline.turns.len(), trace.lost), (1, 0), "{name}");
        }
        let name = "1.0: fermata_:\n";
        let trace = read(line(name).as_bytes(), 0).unwrap();
        assert_eq!((trace.timeline.turns.len(), trace.unread), (1, 1));
        let trace = read(line("a\u{9b}\x07").as_bytes(), 0).unwrap();
        assert_eq!(trace.commands[&1], "a\\x9b\\x07");
    }

    #[test]
    fn lost_events_are_counted() {
        for (line, count) in [("CPU:1 [LOST 7 EVENTS]\n", 7), ("CPU:0 [LOST EVENTS]\n", 1)] {
            assert_eq!(parse(line).unwrap(), Line::Lost(count));
        }
        for line in [
            "CPU:x [LOST 7 EVENTS]",
            "CPU:1 [LOST x EVENTS]",
            " CPU:1 [LOST 7 EVENTS]",
        ] {
            assert_eq!(parse(line).unwrap(), Line::Other);
        }
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
