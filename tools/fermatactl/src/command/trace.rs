// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl trace`: the tracepoints of the driver, recorded by a tracing instance of its own,
//! which disturbs no other trace.

use super::Ending;
use crate::card::{Card, CardName};
use crate::process;
use crate::trouble::{Out, Result, Trouble};
use crate::value;
use crate::view::CardView;
use fermata_output::file::NewFile;
use fermata_output::text::printable;
use fermata_timeline::chrome::{self, Layer};
use fermata_timeline::driver::{self, Line, Reader};
use fermata_timeline::svg;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Advice for an event that cannot be parsed.
const VERSIONS: &str =
    "driver and fermatactl may be of different versions: install both of one version";
/// Pause if no events were recorded.
const REST: Duration = Duration::from_millis(20);

/// Record what the driver decides and does, and draw it: slots as tracks, contexts as colours
///
/// It records until COMMAND ends, for --duration, or until it is interrupted (^C), which kills
/// COMMAND. The trace can be opened at <https://ui.perfetto.dev> or in chrome://tracing, the picture
/// in any browser. Takes root. The exit status is that of COMMAND.
#[derive(Debug, clap::Args)]
pub(crate) struct Trace {
    /// Only this card
    card: Option<CardName>,
    /// Where the trace for Perfetto and Chrome goes
    #[arg(short, long, value_name = "FILE", default_value = "fermata-trace.json")]
    output: PathBuf,
    /// Where a picture goes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where the events go as the kernel prints them, control characters escaped
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Record for this time, such as 500ms or 10s
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "command")]
    duration: Option<Duration>,
    /// Room for events of each processor that are not yet read, in KiB: 64 to 1048576
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = buffer)]
    buffer: u32,
    /// Record while this runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn duration(text: &str) -> value::Parsed<Duration> {
    value::time_in(text, &(Duration::from_millis(1)..=Duration::MAX))
}

fn buffer(text: &str) -> value::Parsed<u32> {
    value::number_in(text, &(64..=1 << 20)).map(|kib| kib as u32)
}

#[derive(Serialize)]
struct Answer {
    trace: PathBuf,
    svg: Option<PathBuf>,
    text: Option<PathBuf>,
    events: u64,
    lost: u64,
    /// Lines that look like events and cannot be read.
    unread: u64,
    turns: usize,
    contexts: usize,
    seconds: f64,
    /// The exit status of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
}

/// The command, killed when the value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A command that has ended is neither killed nor waited for again.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The events recorded so far.
#[derive(Default)]
struct Record {
    /// The number of the selected card.
    only: Option<u32>,
    cards: BTreeMap<u32, Reader>,
    /// Commands of processes, looked up when a process first appears.
    commands: BTreeMap<u32, String>,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    events: u64,
    /// Lines that look like events and cannot be read.
    unread: u64,
}

/// The files of the result.
struct Files {
    trace: NewFile,
    svg: Option<NewFile>,
    text: Option<NewFile>,
}

impl Trace {
    pub(crate) fn run(&self, out: Out) -> Result<Ending> {
        let mut record = Record {
            only: self.only()?,
            ..Record::default()
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
                Trouble::new(format!("signals: {error}"), "record with --duration")
            })?;
        }
        let begin = Instant::now();
        let mut instance = Instance::new(self.buffer)?;
        // Before anything is recorded, so that files that cannot be written are refused at once.
        let mut files = self.files()?;
        let mut command = self.spawn()?;
        let text = &mut files.text;
        let status = self.record(
            &mut instance,
            &mut record,
            text.as_mut(),
            command.as_mut(),
            &stop,
        )?;
        instance.stop()?;
        while self.read(&mut instance, &mut record, text.as_mut())? {}
        let lost = instance.lost()?;
        drop(instance);
        if record.events == 0 && record.unread != 0 {
            let error = format!("none of {} events can be read", record.unread);
            return Err(Trouble::new(error, VERSIONS));
        }
        let answer = self.draw(record, files, lost, begin.elapsed(), status)?;
        out.show(&answer, text_of)?;
        Ok(match answer.status {
            None | Some(0) => Ending::Done,
            // A command that was ended by a signal has no exit status.
            Some(status) => Ending::Command(u8::try_from(status).unwrap_or(1)),
        })
    }

    /// Returns the number of the selected card.
    fn only(&self) -> Result<Option<u32>> {
        let Some(name) = &self.card else {
            return Ok(None);
        };
        match Card::open(name)?.number() {
            None => Err(Trouble::new(
                format!("{name}: its number is not known"),
                "name the card by its number, or as fermataN",
            )),
            number => Ok(number),
        }
    }

    fn files(&self) -> Result<Files> {
        let optional = |path: &Option<PathBuf>| path.as_ref().map(|path| create(path)).transpose();
        Ok(Files {
            trace: create(&self.output)?,
            svg: optional(&self.svg)?,
            text: optional(&self.text)?,
        })
    }

    fn spawn(&self) -> Result<Option<Running>> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(None);
        };
        let child = Command::new(program).args(arguments).spawn();
        child
            .map(|child| Some(Running(child)))
            .map_err(|error| self.trouble_of_command(&error))
    }

    fn trouble_of_command(&self, error: &std::io::Error) -> Trouble {
        let program = self.command.first().cloned().unwrap_or_default();
        Trouble::new(
            format!("{}: {error}", program.to_string_lossy()),
            "name a program that can be run, by its path or as one of $PATH",
        )
    }

    fn trouble_of_text(&self, error: &std::io::Error) -> Trouble {
        Trouble::of_file(self.text.as_deref().unwrap_or(&self.output), error)
    }

    /// Reads events until the command ends, the duration is over, or `stop` is set. Returns the exit
    /// status of the command, if it has ended.
    fn record(
        &self,
        instance: &mut Instance,
        record: &mut Record,
        mut text: Option<&mut NewFile>,
        mut command: Option<&mut Running>,
        stop: &AtomicBool,
    ) -> Result<Option<i32>> {
        let begin = Instant::now();
        loop {
            // The driver may record events as fast as they are read.
            if !self.read(instance, record, text.as_deref_mut())? {
                std::thread::sleep(REST);
            }
            if let Some(command) = command.as_deref_mut() {
                let ended = command.0.try_wait();
                if let Some(status) = ended.map_err(|error| self.trouble_of_command(&error))? {
                    return Ok(Some(status.code().unwrap_or(-1)));
                }
            }
            let is_over = self.duration.is_some_and(|most| begin.elapsed() >= most);
            if is_over || stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    }

    /// Reads recorded events. Returns whether there were any.
    fn read(
        &self,
        instance: &mut Instance,
        record: &mut Record,
        text: Option<&mut NewFile>,
    ) -> Result<bool> {
        let mut buffer = vec![0; 1 << 16];
        let count = instance.read(&mut buffer)?;
        let lines = record.take(&buffer[..count]);
        if let Some(text) = text {
            text.write_all(lines.as_bytes())
                .map_err(|error| self.trouble_of_text(&error))?;
        }
        Ok(count != 0)
    }

    fn draw(
        &self,
        record: Record,
        files: Files,
        lost: u64,
        time: Duration,
        status: Option<i32>,
    ) -> Result<Answer> {
        let (events, unread) = (record.events, record.unread);
        let commands = record.commands;
        let mut told = Vec::new();
        for (number, reader) in record.cards {
            let mut trace = reader.end(lost);
            name_engines(number, &mut trace);
            // Time begins with the first event.
            let first = trace.timeline.first();
            let end = trace.timeline.length();
            if end > first {
                trace.timeline.cut(first, end);
            }
            told.push((format!("fermata{number}"), trace));
        }
        let jobs: Vec<Box<dyn Fn(u64) -> String>> = told
            .iter()
            .map(|(_, trace)| job_names(trace, &commands))
            .collect();
        let layers = told.iter().zip(&jobs).map(|((name, trace), job)| Layer {
            name,
            timeline: &trace.timeline,
            job,
        });
        let layers: Vec<_> = layers.collect();
        let trace = chrome::text(&layers);
        let trace = trace.map_err(|error| Trouble::new(format!("{error:#}"), VERSIONS))?;
        write(files.trace, &self.output, &trace)?;
        if let (Some(file), Some(path), Some(layer)) = (files.svg, &self.svg, layers.first()) {
            let title = format!("{}: who was on its slots", layer.name);
            write(file, path, &svg::draw(layer.timeline, &title, layer.job))?;
        }
        if let Some(text) = files.text {
            text.complete()
                .map_err(|error| self.trouble_of_text(&error))?;
        }
        Ok(Answer {
            trace: self.output.clone(),
            svg: self.svg.clone().filter(|_| !layers.is_empty()),
            text: self.text.clone(),
            events,
            lost,
            unread,
            turns: told
                .iter()
                .map(|(_, trace)| trace.timeline.turns.len())
                .sum(),
            contexts: told.iter().map(|(_, trace)| trace.pids.len()).sum(),
            seconds: time.as_secs_f64(),
            status,
        })
    }
}

/// Returns the names of contexts: a letter, the command and the process. The letter distinguishes
/// contexts where numbers do not matter.
fn job_names(
    trace: &driver::Trace,
    commands: &BTreeMap<u32, String>,
) -> Box<dyn Fn(u64) -> String> {
    let names: BTreeMap<u64, String> = trace
        .timeline
        .jobs()
        .into_iter()
        .zip(0..)
        .map(|(ctx, n)| {
            let pid = trace.pids.get(&ctx).copied().unwrap_or(0);
            let command = commands
                .get(&pid)
                .map_or_else(|| "?".into(), |name| printable(name));
            (ctx, format!("{} {command} {pid}", letters(n)))
        })
        .collect();
    Box::new(move |ctx| {
        let name = names.get(&ctx);
        name.cloned().unwrap_or_else(|| format!("context {ctx}"))
    })
}

/// Returns A, B, ... Z, AA, AB, ...
fn letters(n: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(n % 26).unwrap_or(0));
    match n / 26 {
        0 => letter.into(),
        more => letters(more - 1) + &letter.to_string(),
    }
}

fn create(path: &Path) -> Result<NewFile> {
    NewFile::create(path).map_err(|error| Trouble::of_file(path, &error))
}

fn write(file: NewFile, path: &Path, text: &str) -> Result<()> {
    file.fill(text.as_bytes())
        .map_err(|error| Trouble::of_file(path, &error))
}

/// Adds the engines of the slots if the card still exists.
fn name_engines(number: u32, trace: &mut driver::Trace) {
    let name = number.to_string().parse::<CardName>().ok();
    let card = name.and_then(|name| Card::open(&name).ok());
    if let Some(view) = card.and_then(|card| CardView::of(&card).ok()) {
        for slot in &view.slots {
            let engines = &mut trace.timeline.engines;
            if let Some(engine) = engines.get_mut(slot.slot as usize) {
                *engine = slot.engine_name().into();
            }
        }
    }
}

impl Record {
    /// Parses data, which may begin and end within a line. Returns the complete lines, without
    /// anything that a terminal acts on. A line end in a command is none, but is escaped.
    fn take(&mut self, read: &[u8]) -> String {
        self.rest.extend_from_slice(read);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return String::new();
        };
        let rest = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        let lines = String::from_utf8_lossy(&lines);
        let mut shown = String::new();
        for line in lines.lines() {
            let parsed = driver::parse(line);
            shown += &printable(line);
            shown += if is_whole(&parsed) { "\n" } else { "\\n" };
            self.unread += u64::from(self.take_line(parsed).is_err());
        }
        shown
    }

    fn take_line(&mut self, parsed: anyhow::Result<Line<'_>>) -> anyhow::Result<()> {
        let Line::Event(event) = parsed? else {
            return Ok(());
        };
        let card = event.card()?;
        if self.only.is_some_and(|only| only != card) {
            return Ok(());
        }
        self.events += 1;
        if let Some(Ok(pid)) = event.text("pid").map(str::parse::<u32>) {
            if pid != 0 && !self.commands.contains_key(&pid) {
                if let Some(command) = process::name(pid) {
                    self.commands.insert(pid, command);
                }
            }
        }
        self.cards.entry(card).or_default().take(&event)
    }
}

/// Returns whether a line ends at the line end of the kernel. A command, which has 15 bytes, is too
/// short to pass for such a line.
fn is_whole(parsed: &anyhow::Result<Line<'_>>) -> bool {
    match parsed {
        Ok(Line::Event(event)) => event.card().is_ok(),
        Ok(Line::Lost(_)) => true,
        Ok(Line::Other) | Err(_) => false,
    }
}

fn text_of(answer: &Answer) -> String {
    let Answer {
        events,
        turns,
        contexts,
        seconds,
        ..
    } = answer;
    let mut text = format!(
        "{events} events in {seconds:.1} s: {contexts} contexts had {turns} turns on slots\n"
    );
    if answer.lost != 0 {
        text += &format!(
            "{} events were LOST: what is drawn is not all; a larger --buffer helps\n",
            answer.lost
        );
    }
    if answer.unread != 0 {
        text += &format!("{} lines cannot be read: {VERSIONS}\n", answer.unread);
    }
    text += &format!("trace: {}\n", answer.trace.display());
    if let Some(svg) = &answer.svg {
        text += &format!("picture: {}\n", svg.display());
    }
    if let Some(file) = &answer.text {
        text += &format!("events: {}\n", file.display());
    }
    text
}

const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A tracing instance, removed when the value is dropped.
pub(crate) struct Instance {
    folder: PathBuf,
    /// Closed before the folder is removed.
    pipe: Option<File>,
}

impl Instance {
    /// Starts recording all events of the driver, with `buffer` KiB for each processor and times of
    /// `CLOCK_MONOTONIC`.
    pub(crate) fn new(buffer: u32) -> Result<Self> {
        let folder = tracing_folder()?.join(format!("instances/fermatactl-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| refused(&folder, &error))?;
        // From here on dropping the value removes the instance.
        let mut instance = Self { folder, pipe: None };
        instance.put("buffer_size_kb", &buffer.to_string())?;
        instance.put("trace_clock", "mono")?;
        let path = instance.folder.join("trace_pipe");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(&path, flags, Mode::empty());
        let pipe = pipe.map_err(|error| refused(&path, &error.into()))?;
        instance.pipe = Some(pipe.into());
        instance.put("events/fermata/enable", "1")?;
        Ok(instance)
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| refused(&path, &error))
    }

    /// Stops recording; recorded events can still be read.
    pub(crate) fn stop(&self) -> Result<()> {
        self.put("events/fermata/enable", "0")
    }

    /// Reads recorded events; returns 0 if there are none at present.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let path = self.folder.join("trace_pipe");
        let Some(pipe) = &mut self.pipe else {
            return Ok(0);
        };
        match pipe.read(into) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(0)
            }
            read => read.map_err(|error| refused(&path, &error)),
        }
    }

    /// Returns the number of events that were lost.
    fn lost(&self) -> Result<u64> {
        let path = self.folder.join("per_cpu");
        let processors = fs::read_dir(&path).map_err(|error| refused(&path, &error))?;
        let mut lost = 0;
        for processor in processors.flatten() {
            let path = processor.path().join("stats");
            let stats = fs::read_to_string(&path).map_err(|error| refused(&path, &error))?;
            lost += lost_of(&stats);
        }
        Ok(lost)
    }
}

fn lost_of(stats: &str) -> u64 {
    let lines = stats.lines().filter_map(|line| line.split_once(": "));
    let lost = lines.filter(|(what, _)| matches!(*what, "overrun" | "dropped events"));
    lost.filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.pipe = None;
        // An error cannot be handled; the next boot removes the instance.
        let _ = fs::remove_dir(&self.folder);
    }
}

fn tracing_folder() -> Result<&'static Path> {
    let folders = FOLDERS.map(Path::new);
    let Some(folder) = folders
        .into_iter()
        .find(|folder| folder.join("instances").exists())
    else {
        return Err(if rustix::process::geteuid().is_root() {
            Trouble::new(
                "there is no tracefs",
                "mount it: `mount -t tracefs nodev /sys/kernel/tracing`",
            )
        } else {
            Trouble::new(
                "tracepoints are not to be seen",
                "only root may: run it as root",
            )
        });
    };
    if !folder.join("events/fermata").exists() {
        return Err(Trouble::new(
            "the driver has no tracepoints",
            "the module fermata is not loaded (`modprobe fermata`), or the kernel was built \
                 without CONFIG_TRACEPOINTS",
        ));
    }
    Ok(folder)
}

fn refused(path: &Path, error: &std::io::Error) -> Trouble {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => "only root may trace: run it as root",
        ErrorKind::OutOfMemory => "there is not so much memory: give a smaller --buffer",
        _ => "tracefs does not do what it should: `dmesg` may say why",
    };
    Trouble::new(format!("{}: {error}", path.display()), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    #[test]
    fn lines_may_come_in_pieces() {
        let mut record = Record::default();
        let line = "a-1 [000] d..1. 1.000010: fermata_start: card=fermata2 slot=0 ctx=65536 pid=0 \
             resume=0 why=turn\n";
        let (head, tail) = line.as_bytes().split_at(40);
        record.take(head);
        assert_eq!(record.events, 0);
        record.take(tail);
        record.only = Some(0);
        record.take(line.as_bytes());
        assert_eq!((record.events, record.unread), (1, 0));
        assert_eq!(record.cards.keys().collect::<Vec<_>>(), [&2]);
    }

    #[test]
    fn lines_that_cannot_be_read_do_not_end_the_recording() {
        let mut record = Record::default();
        let good = ": fermata_x-1 [000] d..1. 1.000010: fermata_start: card=fermata2 slot=0 ctx=1 \
             pid=0 resume=0 why=turn\n";
        let bad = "a-1 [0] 1.0: fermata_stop: card=fermata0\n";
        let lines = record.take([bad, good, bad].concat().as_bytes());
        assert_eq!((record.events, record.unread), (3, 2));
        assert_eq!(lines, [bad, good, bad].concat());
    }

    #[test]
    fn a_line_end_in_a_command_makes_no_line() {
        let mut record = Record::default();
        let event = "-1 [000] d..1. 1.000010: fermata_start: card=fermata2 slot=0 ctx=1 pid=0 resume=0 why=turn\n";
        let heads = ["a\n#", "1.0: fermata_:\n", "\u{9b}\n\n"];
        let lost = "CPU:1 [LOST 5 EVENTS]\n";
        let text: String = heads.map(|head| format!("  {head}{event}{lost}")).concat();
        // The data may end behind a line end of a command.
        let shown: String = text
            .split_inclusive('\n')
            .map(|part| record.take(part.as_bytes()))
            .collect();
        let heads = ["a\\n#", "1.0: fermata_:\\n", "\\x9b\\n\\n"];
        let expected = heads.map(|head| format!("  {head}{event}{lost}"));
        assert_eq!(shown, expected.concat());
        assert_eq!((record.events, record.unread), (3, 1));
    }

    fn trace(words: &[&str]) -> Trace {
        let words = ["trace"].iter().chain(words);
        let matches = Trace::augment_args(clap::Command::new("trace")).get_matches_from(words);
        Trace::from_arg_matches(&matches).unwrap()
    }

    /// An instance whose events never end.
    fn endless() -> Instance {
        Instance {
            folder: "/nowhere".into(),
            pipe: Some(File::open("/dev/zero").unwrap()),
        }
    }

    #[test]
    fn recording_ends_while_events_are_recorded() {
        let record = |trace: &Trace, command: Option<&mut Running>, stop: bool| {
            let (mut record, stop) = (Record::default(), AtomicBool::new(stop));
            trace.record(&mut endless(), &mut record, None, command, &stop)
        };
        assert_eq!(
            record(&trace(&["--duration", "1ms"]), None, false).unwrap(),
            None
        );
        assert_eq!(record(&trace(&[]), None, true).unwrap(), None);
        let with_command = trace(&["--", "sh", "-c", "exit 3"]);
        let mut command = with_command.spawn().unwrap();
        assert_eq!(
            record(&with_command, command.as_mut(), false).unwrap(),
            Some(3)
        );
    }

    #[test]
    fn the_command_does_not_outlive_the_recording() {
        let command = trace(&["--", "sleep", "1000"]).spawn().unwrap().unwrap();
        let process = PathBuf::from(format!("/proc/{}", command.0.id()));
        assert!(process.exists());
        drop(command);
        assert!(!process.exists());
    }

    #[test]
    fn contexts_are_told_apart_by_letters() {
        assert_eq!(
            [0, 1, 25, 26, 27, 701, 702].map(letters),
            ["A", "B", "Z", "AA", "AB", "ZZ", "AAA"]
        );
    }

    #[test]
    fn lost_events_are_added_up() {
        let stats = "entries: 5\noverrun: 7\ncommit overrun: 0\nbytes: 100\ndropped events: \
             2\nread events: 9\n";
        assert_eq!(lost_of(stats), 9);
    }
}
