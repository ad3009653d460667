// SPDX-License-Identifier: GPL-2.0
//! The picture: slots are rows, jobs are colours; saves and restores are lighter. The area of a colour is the time that it stands for, however short the
//! spans are ([`coverage`](crate::coverage)).

use crate::coverage::{self, Stretch};
use crate::driver::{ARRIVAL, HINT};
use crate::spans::{Doing, Timeline};
use anyhow::{Context as _, Result};
use fermata_picture::axis::{Axis, Scale};
use fermata_picture::chart;
use fermata_picture::color::{palette, Color};
use fermata_picture::legend::{self, Entry, Mark};
use fermata_picture::svg::{text_width, Anchor, Svg, LABEL, TITLE};
use std::collections::BTreeSet;
use std::path::Path;

/// What is drawn as a triangle above the slots, and what the legend says of it.
const POINTS: [(&str, Color, &str); 2] = [
    (ARRIVAL, Color(0xc0, 0, 0), "urgent work arrives"),
    (HINT, Color(0x80, 0x80, 0x80), "hint"),
];
/// A slot that is free while a job waits.
const GAP: Color = Color::NEUTRAL;
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = WIDTH - 22.0;
const MARGIN: f64 = 12.0;
const HEAD: f64 = 36.0;
/// A row, and the bar in it.
const ROW: f64 = 62.0;
const BAR: f64 = 46.0;
const AXIS: f64 = 44.0;
/// The texts of marks stand in up to so many rows.
const MARK_ROWS: usize = 3;
const MARK_ROW: f64 = 14.0;
/// Pixels of a slot for each PAUSE at least; single PAUSEs closer together cannot be told apart and are left out.
const PAUSE_DISTANCE: f64 = 4.0;

/// Writes the picture of a timeline to a file; `name` says what a job is called.
pub fn draw(
    timeline: &Timeline,
    title: &str,
    name: &dyn Fn(u64) -> String,
    file: &Path,
) -> Result<()> {
    let picture = Picture::new(timeline).draw(title, name);
    picture
        .write(file)
        .with_context(|| file.display().to_string())
}

/// A unit of the time axis that gives short numbers.
fn unit_of(ns: u64) -> (&'static str, f64) {
    match ns {
        0..5_000_000 => ("us", 1e3),
        5_000_000..5_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    }
}

struct Picture<'a> {
    timeline: &'a Timeline,
    slots: Vec<usize>,
    jobs: Vec<u64>,
    colors: Vec<Color>,
    axis: Axis,
    unit: (&'static str, f64),
}

impl<'a> Picture<'a> {
    fn new(timeline: &'a Timeline) -> Self {
        let jobs = timeline.jobs();
        let length = timeline.length().max(1);
        let unit = unit_of(length);
        let axis = Axis {
            scale: Scale::Linear,
            low: 0.0,
            high: length as f64 / unit.1,
            pixels: (LEFT, RIGHT),
        };
        Self {
            timeline,
            slots: timeline.slots(),
            colors: palette(jobs.len()),
            jobs,
            axis,
            unit,
        }
    }

    fn place(&self, ns: u64) -> f64 {
        self.axis.place(ns as f64 / self.unit.1)
    }

    fn draw(&self, title: &str, name: &dyn Fn(u64) -> String) -> Svg {
        let entries = self.entries(name);
        let inner = WIDTH - 2.0 * MARGIN;
        let marks = self.marks();
        let mark_rows = marks.iter().map(|(_, _, row)| row + 1).max().unwrap_or(0);
        let has_points = POINTS.iter().any(|(what, ..)| self.has(what));
        let top = HEAD + mark_rows as f64 * MARK_ROW + if has_points { 12.0 } else { 0.0 };
        let bottom = top + ROW * self.slots.len().max(1) as f64;
        let height = bottom + AXIS + legend::height(&entries, inner) + MARGIN;
        let mut svg = Svg::new(WIDTH, height);
        let middle = (WIDTH / 2.0, HEAD / 2.0);
        svg.text(middle, Anchor::Middle, TITLE, Color::INK, title);
        chart::across(&mut svg, &self.axis, (top, bottom), self.unit.0);
        for (x, text, row) in marks {
            let y = HEAD + (row as f64 + 0.5) * MARK_ROW;
            let line = [(x, y + 6.0), (x, bottom)];
            svg.polyline(&line, Color::INK.mix(0.4), 1.0);
            svg.text((x, y), Anchor::Middle, LABEL - 1.0, Color::INK, text);
        }
        for (row, slot) in self.slots.iter().enumerate() {
            let base = top + ROW * row as f64 + (ROW + BAR) / 2.0;
            self.draw_slot(&mut svg, *slot, base, name);
        }
        svg.line((LEFT, bottom), (RIGHT, bottom), Color::INK, 1.0);
        self.draw_points(&mut svg, top);
        legend::draw(&mut svg, &entries, (MARGIN, bottom + AXIS), inner);
        svg
    }

    fn draw_slot(&self, svg: &mut Svg, slot: usize, base: f64, name: &dyn Fn(u64) -> String) {
        let engine = &self.timeline.engines[slot];
        let busy = format!("{:.1} % busy", 100.0 * self.timeline.busy(slot));
        let labels = [(format!("{slot} {engine}"), 10.0), (busy, -6.0)];
        for (text, up) in labels {
            let at = (LEFT - 8.0, base - BAR / 2.0 - up);
            svg.text(at, Anchor::End, LABEL, Color::INK, &text);
        }
        svg.open(&format!("slot-{slot}"));
        let frame = [(LEFT, base), (RIGHT, base)];
        svg.polyline(&frame, Color::GRID, 1.0);
        let stretches = self.stretches(slot);
        let cells = coverage::cells(&stretches, self.layers());
        let drawn: BTreeSet<usize> = stretches.iter().map(|stretch| stretch.layer).collect();
        for layer in drawn.into_iter().rev() {
            let (color, title) = self.layer(layer, name);
            let path = coverage::outline(&cells, layer, base, BAR);
            svg.path(&path, color, &title);
        }
        svg.close();
        for x in self.pauses(slot) {
            svg.line((x, base + 1.0), (x, base + 7.0), Color::BLACK, 1.0);
        }
    }

    /// From the bottom up: jobs that run, jobs that are saved or restored, and gaps.
    fn layers(&self) -> usize {
        2 * self.jobs.len() + 1
    }

    /// Returns colour and name of a layer.
    fn layer(&self, layer: usize, name: &dyn Fn(u64) -> String) -> (Color, String) {
        let count = self.jobs.len();
        match layer {
            n if n < count => (self.colors[n], name(self.jobs[n])),
            n if n < 2 * count => {
                let job = self.jobs[n - count];
                let color = self.colors[n - count].tint();
                (color, format!("{}: save or restore", name(job)))
            }
            _ => (GAP, "free while a job waits".into()),
        }
    }

    fn stretches(&self, slot: usize) -> Vec<Stretch> {
        let spans = self.timeline.spans.iter();
        let spans = spans.filter(|span| span.slot == slot && span.to > span.from);
        let stretch = |span: &crate::spans::Span| {
            let job = self.jobs.iter().position(|job| *job == span.job)?;
            let layer = match span.doing {
                Doing::Run => job,
                Doing::Restore | Doing::Save => self.jobs.len() + job,
                Doing::Gap => 2 * self.jobs.len(),
            };
            let (from, to) = (self.place(span.from), self.place(span.to));
            Some(Stretch { layer, from, to })
        };
        spans.filter_map(stretch).collect()
    }

    /// Returns where the PAUSEs of a slot are, unless there are too many.
    fn pauses(&self, slot: usize) -> Vec<f64> {
        let instants = self.timeline.instants.iter();
        let pauses = instants.filter(|i| i.slot == Some(slot) && i.what.starts_with("PAUSE"));
        let pauses: Vec<f64> = pauses.map(|pause| self.place(pause.at)).collect();
        if pauses.len() as f64 * PAUSE_DISTANCE > RIGHT - LEFT {
            return Vec::new();
        }
        pauses
    }

    fn has(&self, what: &str) -> bool {
        let mut instants = self.timeline.instants.iter();
        instants.any(|instant| instant.slot.is_none() && instant.what == what)
    }

    /// Returns where the marks of the card are, their texts, and the row of each text: texts do not overlap, and those without room are left out.
    fn marks(&self) -> Vec<(f64, &str, usize)> {
        let is_mark = |what: &str| POINTS.iter().all(|(point, ..)| *point != what);
        let instants = self.timeline.instants.iter();
        let marks = instants.filter(|i| i.slot.is_none() && is_mark(&i.what));
        let mut ends = [f64::MIN; MARK_ROWS];
        let mut placed = Vec::new();
        for mark in marks {
            let x = self.place(mark.at);
            let half = text_width(&mark.what, LABEL - 1.0) / 2.0 + 2.0;
            if let Some(row) = ends.iter().position(|end| *end <= x - half) {
                ends[row] = x + half;
                placed.push((x, mark.what.as_str(), row));
            }
        }
        placed
    }

    fn draw_points(&self, svg: &mut Svg, top: f64) {
        for (what, color, _) in POINTS {
            let instants = self.timeline.instants.iter();
            for point in instants.filter(|i| i.slot.is_none() && i.what == what) {
                legend::triangle(svg, (self.place(point.at), top), color);
            }
        }
    }

    fn entries(&self, name: &dyn Fn(u64) -> String) -> Vec<Entry> {
        let jobs = self.jobs.iter().zip(&self.colors);
        let mut entries: Vec<Entry> = jobs
            .map(|(job, color)| Entry::new(Mark::Box(*color), name(*job)))
            .collect();
        let does = |doing: &[Doing]| self.timeline.spans.iter().any(|s| doing.contains(&s.doing));
        if does(&[Doing::Save, Doing::Restore]) {
            let color = self.colors.first().copied().unwrap_or(GAP);
            let mark = Mark::Pair(color, color.tint());
            entries.push(Entry::new(mark, "lighter: save or restore"));
        }
        if does(&[Doing::Gap]) {
            entries.push(Entry::new(Mark::Box(GAP), "free while a job waits"));
        }
        if self.slots.iter().any(|slot| !self.pauses(*slot).is_empty()) {
            entries.push(Entry::new(Mark::Tick(Color::BLACK), "PAUSE"));
        }
        let points = POINTS.iter().filter(|(what, ..)| self.has(what));
        entries.extend(points.map(|(_, color, text)| Entry::new(Mark::Triangle(*color), *text)));
        if self.has_columns() {
            let text = "where bars are stacked, a colour's height is its part of the time";
            entries.push(Entry::new(Mark::None, text));
        }
        entries
    }

    /// Returns whether columns make up enough of a slot's bar to be seen.
    fn has_columns(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| coverage::narrow(&self.stretches(*slot)) > 0.02 * (RIGHT - LEFT))
    }
}

#[cfg(test)]
mod tests;
