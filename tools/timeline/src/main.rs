// SPDX-License-Identifier: GPL-2.0
//! What a card's slots did, from its log: a picture (SVG) that can be looked at anywhere, and a trace for Perfetto.

mod chrome;
mod spans;
mod svg;

use anyhow::{Context as _, Result};
use clap::Parser;
use fermata_card::event::Event;
use spans::Timeline;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

/// Draw what a card's slots did
#[derive(Parser)]
#[command(version, about)]
struct Options {
    /// The card's log
    log: PathBuf,
    /// Where the picture goes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where the trace goes
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// What stands above the picture
    #[arg(long, default_value = "slots of the card, as it saw it")]
    title: String,
    /// Begin at the last mark of this text (`mark text=` at the card's control socket)
    #[arg(long, value_name = "MARK")]
    from: Option<String>,
    /// End at that mark
    #[arg(long, value_name = "MARK")]
    to: Option<String>,
    /// What the job of a TAG is called
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

fn read(options: &Options) -> Result<Timeline> {
    let mut timeline = Timeline::default();
    let name = || options.log.display().to_string();
    let mut first = None;
    for line in BufReader::new(File::open(&options.log).with_context(name)?).lines() {
        let event: Event = serde_json::from_str(&line?).with_context(name)?;
        first.get_or_insert(event.t);
        timeline.take(&event);
    }
    timeline.end();
    let at = |text: &Option<String>, otherwise: u64| match text {
        None => Ok(otherwise),
        Some(text) => timeline
            .mark(text)
            .with_context(|| format!("no mark {text}")),
    };
    let from = at(&options.from, first.unwrap_or(0))?;
    let to = at(&options.to, timeline.length())?;
    timeline.cut(from, to);
    Ok(timeline)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let timeline = read(&options)?;
    let name = |tag: u64| {
        let given = options.name.iter().find(|(of, _)| *of == tag);
        given.map_or_else(|| format!("job {tag:#x}"), |(_, name)| name.clone())
    };
    if let Some(file) = &options.svg {
        svg::draw(&timeline, &options.title, &name, file)?;
    }
    if let Some(file) = &options.trace {
        chrome::write(&timeline, &name, file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}
