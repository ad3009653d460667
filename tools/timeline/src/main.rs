// SPDX-License-Identifier: GPL-2.0
//! What a card's slots did, from its log or from a trace of the driver: a picture, and a trace for Perfetto.

use anyhow::{ensure, Context as _, Result};
use clap::Parser;
use fermata_timeline::chrome::{self, Layer};
use fermata_timeline::driver::{self, Trace};
use fermata_timeline::spans::Timeline;
use fermata_timeline::{card, svg, views};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Draw what a card's slots did
///
/// With both, the card's log and a trace of the driver, the two are held against each other: it fails where they differ. The picture is
/// then the driver's view, and the trace for Perfetto has both in the driver's time.
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// The card's log
    #[arg(required_unless_present = "driver")]
    log: Option<PathBuf>,
    /// The driver's tracepoints in the text form of tracefs, perf script or trace-cmd report
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Number of the card in that
    #[arg(long, value_name = "N", default_value_t = 0)]
    card: u32,
    /// Where the picture goes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where the trace goes
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// What stands above the picture
    #[arg(long, default_value = "slots of the card")]
    title: String,
    /// Begin at the last mark of this text (`mark text=` at the card's control socket), or so many milliseconds after the beginning
    #[arg(long, value_name = "MARK|MS")]
    from: Option<String>,
    /// End at that mark, or so many milliseconds after the beginning
    #[arg(long, value_name = "MARK|MS")]
    to: Option<String>,
    /// What the job of a TAG, or that of the context of a number, is called
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

/// The card's log, and when it begins.
fn read_log(path: &Path) -> Result<(Timeline, u64)> {
    card::read(open(path)?).with_context(|| path.display().to_string())
}

fn read_trace(path: &Path, card: u32) -> Result<Trace> {
    let trace = driver::read(open(path)?, card).with_context(|| path.display().to_string())?;
    let lost = trace.lost;
    ensure!(lost == 0, "{}: {lost} events were lost", path.display());
    Ok(trace)
}

/// A moment of a timeline that begins at `first`.
fn moment(timeline: &Timeline, first: u64, text: &str) -> Result<u64> {
    if let Ok(ms) = text.parse::<f64>() {
        return Ok(first + (ms * 1e6) as u64);
    }
    timeline
        .mark(text)
        .with_context(|| format!("no mark {text}"))
}

/// Leaves the part that was asked for.
fn cut(options: &Options, timeline: &mut Timeline, first: u64) -> Result<()> {
    let from = options
        .from
        .as_deref()
        .map(|text| moment(timeline, first, text));
    let to = options
        .to
        .as_deref()
        .map(|text| moment(timeline, first, text));
    let (from, to) = (from.transpose()?, to.transpose()?);
    let (from, to) = (from.unwrap_or(first), to.unwrap_or(timeline.length()));
    ensure!(from < to, "nothing is left between --from and --to");
    timeline.cut(from, to);
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let log = options.log.as_deref().map(read_log).transpose()?;
    let trace = options.driver.as_deref();
    let trace = trace
        .map(|path| read_trace(path, options.card))
        .transpose()?;
    let mut layers = Vec::new();
    match (log, trace) {
        (Some((mut log, first)), None) => {
            cut(&options, &mut log, first)?;
            layers.push(("card", log));
        }
        (log, Some(Trace { mut timeline, .. })) => {
            let first = timeline.first();
            if let Some((log, _)) = log {
                let fit = views::compare(&log, &timeline)?;
                println!("{} turns, the same for the card and the driver", fit.turns);
                timeline.engines.clone_from(&log.engines);
                let mut log = fit.translate(&log);
                cut(&options, &mut log, first)?;
                layers.push(("card", log));
            }
            cut(&options, &mut timeline, first)?;
            layers.insert(0, ("driver", timeline));
        }
        (None, None) => unreachable!("one of them is required"),
    }
    draw(&options, &layers)
}

fn draw(options: &Options, layers: &[(&str, Timeline)]) -> Result<()> {
    let given = |id: u64| options.name.iter().find(|(of, _)| *of == id);
    let of_card = |tag: u64| given(tag).map_or(format!("job {tag:#x}"), |(_, name)| name.clone());
    let of_driver =
        |ctx: u64| given(ctx).map_or(format!("context {ctx}"), |(_, name)| name.clone());
    let job = |name: &str| -> &dyn Fn(u64) -> String {
        if name == "card" {
            &of_card
        } else {
            &of_driver
        }
    };
    if let Some(file) = &options.svg {
        let (name, timeline) = &layers[0];
        svg::draw(timeline, &options.title, job(name), file)?;
    }
    if let Some(file) = &options.trace {
        let layers = layers.iter().map(|(name, timeline)| Layer {
            name,
            timeline,
            job: job(name),
        });
        let layers: Vec<_> = layers.collect();
        chrome::write(&layers, file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}
