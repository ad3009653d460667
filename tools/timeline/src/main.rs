// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws what the slots of a card did, from the card's log or from a trace of the driver, and
//! writes a trace for Perfetto.

use anyhow::{ensure, Context as _, Result};
use clap::Parser;
use fermata_output::file::NewFile;
use fermata_output::{complain, say};
use fermata_timeline::chrome::{self, Layer};
use fermata_timeline::driver::{self, Trace};
use fermata_timeline::Timeline;
use fermata_timeline::{card, compare, svg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Draw what a card's slots did
///
/// Given both the card's log and a trace of the driver, compares the two and fails if they differ.
/// The picture then shows the driver's view, and the trace for Perfetto has both views in the
/// driver's time.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// The card's log
    #[arg(required_unless_present = "driver")]
    log: Option<PathBuf>,
    /// The driver's tracepoints, as printed by tracefs, perf script or trace-cmd report
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Number of the card in the trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    card: u32,
    /// Where the picture goes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where the trace goes
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Title of the picture
    #[arg(long, default_value = "slots of the card")]
    title: String,
    /// Begin at the last mark with this text (`mark text=` at the card's control socket), MS
    /// milliseconds after the mark, or MS milliseconds after the beginning
    #[arg(long, value_name = "MARK|MARK+MS|MS")]
    from: Option<String>,
    /// End at this moment
    #[arg(long, value_name = "MARK|MARK+MS|MS")]
    to: Option<String>,
    /// Name of the job with this TAG, or of the job of the context with this number [default: the
    /// command of the context's process, if the trace has it]
    #[arg(long, value_name = "TAG=NAME", value_parser = parse_name)]
    name: Vec<(u64, String)>,
}

fn parse_name(text: &str) -> Result<(u64, String)> {
    let (tag, name) = text.split_once('=').context("TAG=NAME is expected")?;
    let tag = match tag.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)?,
        None => tag.parse()?,
    };
    Ok((tag, name.into()))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(BufReader::new(file))
}

/// Reads a log. Returns the timeline, and when the log begins.
fn read_log(path: &Path) -> Result<(Timeline, u64)> {
    card::read(open(path)?).with_context(|| path.display().to_string())
}

fn read_trace(path: &Path, card: u32) -> Result<Trace> {
    let trace = driver::read(open(path)?, card).with_context(|| path.display().to_string())?;
    let lost = trace.lost;
    ensure!(lost == 0, "{}: {lost} events were lost", path.display());
    if trace.unread != 0 {
        complain!("{}: {} lines cannot be read", path.display(), trace.unread);
    }
    Ok(trace)
}

/// Returns a moment, given as text, of a record that begins at `first` and has the marks of
/// `marks`.
fn moment(marks: &Timeline, first: u64, text: &str) -> Result<u64> {
    let ns = |ms: f64| (ms * 1e6) as u64;
    if let Ok(ms) = text.parse::<f64>() {
        return Ok(first + ns(ms));
    }
    if let Some(at) = marks.mark(text) {
        return Ok(at);
    }
    let after = text
        .rsplit_once('+')
        .and_then(|(mark, ms)| Some(marks.mark(mark)? + ns(ms.parse().ok()?)));
    after.with_context(|| format!("no mark {text}"))
}

/// Returns the interval to draw.
fn interval(options: &Options, marks: &Timeline, first: u64) -> Result<(u64, u64)> {
    let at = |text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| moment(marks, first, text)).transpose()
    };
    let from = at(&options.from)?.unwrap_or(first);
    let to = at(&options.to)?.unwrap_or(marks.length());
    ensure!(from < to, "nothing is left between --from and --to");
    Ok((from, to))
}

/// A view: its name, timeline, and commands of jobs.
struct View {
    name: &'static str,
    timeline: Timeline,
    commands: BTreeMap<u64, String>,
}

impl View {
    fn new(name: &'static str, mut timeline: Timeline, (from, to): (u64, u64)) -> Self {
        timeline.cut(from, to);
        let commands = BTreeMap::new();
        Self {
            name,
            timeline,
            commands,
        }
    }

    /// Returns the name of a job: the one given as an option, else the command of its process, with
    /// the context's number if several processes have that command.
    fn job(&self, options: &Options, id: u64) -> String {
        if let Some((_, name)) = options.name.iter().find(|(of, _)| *of == id) {
            return name.clone();
        }
        if self.name == "card" {
            return format!("job {id:#x}");
        }
        let Some(command) = self.commands.get(&id) else {
            return format!("context {id}");
        };
        let alike = self.commands.values().filter(|other| *other == command);
        match alike.count() {
            1 => command.clone(),
            _ => format!("{command}, context {id}"),
        }
    }
}

fn main() -> ExitCode {
    let done = run(&Options::parse());
    fermata_output::end("fermata-timeline", done.map(|()| true))
}

fn run(options: &Options) -> Result<()> {
    let files = Files {
        svg: create(options.svg.as_deref())?,
        trace: create(options.trace.as_deref())?,
    };
    let log = options.log.as_deref().map(read_log).transpose()?;
    let trace = options.driver.as_deref();
    let trace = trace
        .map(|path| read_trace(path, options.card))
        .transpose()?;
    let views = match (log, trace) {
        (Some((log, first)), None) => {
            let part = interval(options, &log, first)?;
            vec![View::new("card", log, part)]
        }
        (None, Some(trace)) => vec![driver_view(options, trace, None)?],
        (Some((log, _)), Some(mut trace)) => {
            let fit = compare(&log, &trace.timeline)?;
            say!("{fit}");
            if let Some(ns) = trace.uncertainty {
                say!(
                    "The card's clock is converted to the driver's, at most {:.0} us off",
                    ns / 1e3
                );
            }
            trace.timeline.engines.clone_from(&log.engines);
            let log = fit.translate(&log);
            let first = trace.timeline.first();
            let part = interval(options, &log, first)?;
            let driver = driver_view(options, trace, Some(part))?;
            vec![driver, View::new("card", log, part)]
        }
        (None, None) => unreachable!("one of them is required"),
    };
    files.draw(options, &views)
}

fn driver_view(options: &Options, trace: Trace, given: Option<(u64, u64)>) -> Result<View> {
    let timeline = trace.timeline;
    let part = match given {
        Some(part) => part,
        None => interval(options, &timeline, timeline.first())?,
    };
    let mut view = View::new("driver", timeline, part);
    let jobs = view.timeline.jobs();
    let commands = trace.commands.into_iter();
    view.commands = commands.filter(|(ctx, _)| jobs.contains(ctx)).collect();
    Ok(view)
}

/// The files of the result, which are opened before the work.
struct Files {
    svg: Option<NewFile>,
    trace: Option<NewFile>,
}

fn create(path: Option<&Path>) -> Result<Option<NewFile>> {
    let create = |path: &Path| NewFile::create(path).with_context(|| path.display().to_string());
    path.map(create).transpose()
}

/// Writes a file whose path the options have.
fn write(file: Option<NewFile>, path: Option<&PathBuf>, text: &str) -> Result<()> {
    let Some((file, path)) = file.zip(path) else {
        return Ok(());
    };
    let written = file.fill(text.as_bytes());
    written.with_context(|| path.display().to_string())
}

impl Files {
    fn draw(self, options: &Options, views: &[View]) -> Result<()> {
        let names: Vec<_> = views
            .iter()
            .map(|view| move |id: u64| view.job(options, id))
            .collect();
        let picture = svg::draw(&views[0].timeline, &options.title, &names[0]);
        write(self.svg, options.svg.as_ref(), &picture)?;
        let layers = views.iter().zip(&names).map(|(view, job)| Layer {
            name: view.name,
            timeline: &view.timeline,
            job,
        });
        let layers: Vec<_> = layers.collect();
        write(self.trace, options.trace.as_ref(), &chrome::text(&layers)?)
    }
}
