// SPDX-License-Identifier: GPL-2.0-or-later
//! The picture: slots are rows, jobs are colours; saves and restores are faint. The area of a
//! colour stands for time, however short the spans are ([`coverage`](crate::coverage)).

use crate::coverage::{self, Stretch};
use crate::driver::{ARRIVAL, HINT};
use crate::{Doing, Timeline};
use fermata_picture::chart;
use fermata_picture::chart::{draw_legend, legend_height, triangle, Axis, Entry, Mark, Scale};
use fermata_picture::svg::{palette, text_width, Anchor, Color, Svg, LABEL, TITLE};
use std::collections::BTreeSet;

/// Events that are drawn as triangles above the slots, and their texts in the legend.
const POINTS: [(&str, Color, &str); 2] = [
    (ARRIVAL, Color(0xc0, 0, 0), "urgent work arrives"),
    (HINT, Color(0x80, 0x80, 0x80), "hint"),
];
/// The colour of a slot that is free while a job waits.
const GAP: Color = Color::NEUTRAL;
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = WIDTH - 22.0;
const MARGIN: f64 = 12.0;
const HEAD: f64 = 36.0;
/// Height of a row, and of the bar in it.
const ROW: f64 = 62.0;
const BAR: f64 = 46.0;
const AXIS: f64 = 44.0;
/// Maximum number of rows for the texts of marks.
const MARK_ROWS: usize = 3;
const MARK_ROW: f64 = 14.0;
/// Least average distance of PAUSEs in pixels; closer PAUSEs are left out, since they cannot be
/// distinguished.
const PAUSE_DISTANCE: f64 = 4.0;

/// Returns the picture of a timeline; `name` returns the name of a job.
pub fn draw(timeline: &Timeline, title: &str, name: &dyn Fn(u64) -> String) -> String {
    Picture::new(timeline).draw(title, name).finish()
}

/// Returns a unit of the time axis for short numbers.
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
        let height = bottom + AXIS + legend_height(&entries, inner) + MARGIN;
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
        draw_legend(&mut svg, &entries, (MARGIN, bottom + AXIS), inner);
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

    /// Returns the number of layers; from the bottom up: running jobs, jobs being saved or
    /// restored, and gaps.
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
        let stretch = |span: &crate::Span| {
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

    /// Returns the places of a slot's PAUSEs, unless there are too many.
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

    /// Returns the places, texts and rows of the card's marks. Texts do not overlap; texts without
    /// room are left out.
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
                triangle(svg, (self.place(point.at), top), color);
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
            entries.push(Entry::new(mark, "faint: save or restore"));
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
mod tests {
    //! Pictures are checked by their own shapes: shapes are read from the SVG, and painted one over
    //! the other.

    use super::*;
    use crate::{Instant, Span};
    use std::collections::{BTreeMap, BTreeSet};

    /// Tolerance, as a part of a slot's time.
    const BOUND: f64 = 0.001;
    const SECOND: u64 = 1_000_000_000;

    /// Returns the value of an attribute.
    fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
        element
            .split_once(&format!(" {name}=\""))?
            .1
            .split('"')
            .next()
    }

    /// A horizontal interval, and the vertical interval that is painted there.
    type Piece = ((f64, f64), (f64, f64));

    /// Returns the pieces of a path of M, H, V and Z that stands on its first point.
    fn pieces(d: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut x, mut y, mut base) = (0.0, 0.0, 0.0);
        let mut rest = d;
        while let Some(command) = rest.chars().next() {
            let end = rest[1..]
                .find(|c: char| c.is_ascii_alphabetic())
                .map_or(rest.len(), |end| end + 1);
            let numbers = rest[1..end].split_whitespace();
            let numbers: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
            match (command, &numbers[..]) {
                ('M', [to, down]) => (x, y, base) = (*to, *down, *down),
                ('V', [down]) => y = *down,
                ('H', [to]) => {
                    pieces.push(((x, *to), (y, base)));
                    x = *to;
                }
                ('Z', []) => assert!((y - base).abs() < 1e-9, "{d}"),
                other => panic!("{other:?} in {d}"),
            }
            rest = &rest[end..];
        }
        pieces
    }

    /// Returns the visible area of each colour in a slot, as a part of its bar: at each point the
    /// shape painted last is visible.
    fn visible(svg: &str, slot: usize) -> BTreeMap<String, f64> {
        let group = svg
            .split_once(&format!("<g id=\"slot-{slot}\">"))
            .unwrap()
            .1;
        let group = group.split_once("</g>").unwrap().0;
        let paths = group.lines().filter(|line| line.starts_with("<path"));
        let shapes: Vec<(&str, Vec<Piece>)> = paths
            .map(|path| {
                let d = attribute(path, "d").unwrap();
                (attribute(path, "fill").unwrap(), pieces(d))
            })
            .collect();
        let all = || shapes.iter().flat_map(|(_, pieces)| pieces);
        let mut edges: Vec<f64> = all().flat_map(|((a, b), _)| [*a, *b]).collect();
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup();
        let mut areas = BTreeMap::new();
        for strip in edges.windows(2) {
            let middle = f64::midpoint(strip[0], strip[1]);
            // All shapes stand on the base, so a shape hides the lower part of shapes painted
            // before.
            let mut tops: Vec<(f64, &str)> = Vec::new();
            for (fill, pieces) in &shapes {
                let next = pieces.partition_point(|((_, right), _)| *right <= middle);
                let here = pieces.get(next).filter(|((left, _), _)| *left <= middle);
                if let Some((_, (top, base))) = here {
                    tops.retain(|(height, _)| *height > base - top);
                    tops.push((base - top, fill));
                }
            }
            for (n, (height, fill)) in tops.iter().enumerate() {
                let below = tops.get(n + 1).map_or(0.0, |(height, _)| *height);
                let area = (height - below) * (strip[1] - strip[0]) / (BAR * (RIGHT - LEFT));
                *areas.entry((*fill).to_string()).or_insert(0.0) += area;
            }
        }
        areas
    }

    /// Returns the colours of the legend, by name.
    fn legend_of(svg: &str) -> BTreeMap<String, String> {
        let legend = svg.split_once("<g id=\"legend\">").unwrap().1;
        let mut colors = BTreeMap::new();
        let mut fill = None;
        for line in legend.lines() {
            if line.starts_with("<rect") {
                fill = attribute(line, "fill");
            } else if let (Some(text), Some(fill)) = (line.strip_prefix("<text"), fill.take()) {
                let name = text.split(['<', '>']).nth(1).unwrap();
                colors.insert(name.into(), fill.into());
            }
        }
        colors
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    /// Returns turns of `jobs` on a slot for a second. Runs take up to `longest` ns, saves and
    /// restores a fifth of that, and the slot is sometimes idle.
    fn turns(random: &mut Random, slot: usize, jobs: u64, longest: u64) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut at = 0;
        while at < SECOND {
            let job = random.below(jobs);
            for (doing, most) in [
                (Doing::Gap, longest / 9),
                (Doing::Restore, longest / 5),
                (Doing::Run, longest),
                (Doing::Save, longest / 5),
            ] {
                let from = at;
                at = (from + 1 + random.below(most.max(1))).min(SECOND);
                spans.push(Span {
                    slot,
                    job,
                    doing,
                    from,
                    to: at,
                });
            }
            at += random.below(4) / 3 * random.below(3 * longest);
        }
        spans
    }

    fn timeline(spans: Vec<Span>) -> Timeline {
        let slots = spans.iter().map(|span| span.slot + 1).max().unwrap_or(0);
        let mut timeline = Timeline {
            engines: vec!["engine".into(); slots],
            spans,
            last: SECOND,
            ..Timeline::default()
        };
        timeline.sort();
        timeline
    }

    fn picture(timeline: &Timeline) -> String {
        let name = |job| format!("tenant {job}");
        Picture::new(timeline).draw("title", &name).finish()
    }

    /// Returns the part of a second in which a job had some activities on a slot.
    fn measured(timeline: &Timeline, slot: usize, job: u64, doing: &[Doing]) -> f64 {
        let spans = timeline.spans.iter();
        let counted = spans
            .filter(|span| span.slot == slot && span.job == job && doing.contains(&span.doing));
        let time: u64 = counted.map(|span| span.to - span.from).sum();
        time as f64 / SECOND as f64
    }

    fn assert_areas_are_times(timeline: &Timeline) {
        let svg = picture(timeline);
        let legend = legend_of(&svg);
        for slot in timeline.slots() {
            let areas = visible(&svg, slot);
            let area = |color: &str| areas.get(color).copied().unwrap_or(0.0);
            let near = |drawn: f64, measured: f64, what: &str| {
                assert!(
                    (drawn - measured).abs() < BOUND,
                    "slot {slot}, {what}: {drawn} is drawn, {measured} was measured"
                );
            };
            let gap = area(&GAP.to_string());
            let busy: f64 = areas.values().sum::<f64>() - gap;
            near(busy, timeline.busy(slot), "busy");
            for job in timeline.jobs() {
                let color = &legend[&format!("tenant {job}")];
                let run = measured(timeline, slot, job, &[Doing::Run]);
                near(area(color), run, &format!("tenant {job} runs"));
                let number = timeline.jobs().iter().position(|of| *of == job).unwrap();
                let tint = palette(timeline.jobs().len())[number].tint().to_string();
                let switch = measured(timeline, slot, job, &[Doing::Save, Doing::Restore]);
                near(area(&tint), switch, &format!("tenant {job} is switched"));
            }
            let gaps: f64 = timeline
                .jobs()
                .into_iter()
                .map(|job| measured(timeline, slot, job, &[Doing::Gap]))
                .sum();
            near(gap, gaps, "gaps");
        }
    }

    /// A pixel is about 1.15 ms.
    #[test]
    fn what_is_drawn_is_what_was_measured() {
        let mut random = Random(0x5eed);
        let mut spans = Vec::new();
        for (slot, longest) in [200_000_000, 3_000_000, 1_500_000, 40_000]
            .into_iter()
            .enumerate()
        {
            spans.extend(turns(&mut random, slot, 5, longest));
        }
        let timeline = timeline(spans);
        let narrow = |slot| {
            let of = timeline.spans.iter().filter(move |span| span.slot == slot);
            let narrow = of.clone().filter(|span| span.to - span.from < 1_150_000);
            narrow.count() as f64 / of.count() as f64
        };
        assert!(
            narrow(0) < 0.1 && narrow(3) > 0.999,
            "wide and narrow spans"
        );
        assert_areas_are_times(&timeline);
    }

    /// A slot that is nearly always busy, with turns of a tenth of a pixel, once looked idle.
    #[test]
    fn a_slot_that_is_busy_with_short_turns_looks_busy() {
        let turn = |n: u64| {
            let from = n * 100_000;
            let spans = [
                (Doing::Run, from, from + 60_000),
                (Doing::Save, from + 60_000, from + 85_000),
            ];
            spans.map(|(doing, from, to)| Span {
                slot: 0,
                job: n % 3,
                doing,
                from,
                to,
            })
        };
        let timeline = timeline((0..10_000).flat_map(turn).collect());
        assert_areas_are_times(&timeline);
        let svg = picture(&timeline);
        let busy: f64 = visible(&svg, 0).values().sum();
        assert!((busy - 0.85).abs() < BOUND, "{busy}");
        assert!(svg.contains("85.0 % busy"));
    }

    #[test]
    fn each_tenant_has_a_colour_and_a_name_of_its_own() {
        let mut random = Random(7);
        let timeline = timeline(turns(&mut random, 0, 40, 5_000_000));
        assert_eq!(timeline.jobs().len(), 40);
        let legend = legend_of(&picture(&timeline));
        let tenants: Vec<_> = legend
            .iter()
            .filter(|(name, _)| name.starts_with("tenant "))
            .collect();
        let colors: BTreeSet<_> = tenants.iter().map(|(_, color)| *color).collect();
        assert_eq!((tenants.len(), colors.len()), (40, 40));
    }

    /// Returns the y coordinates of a group of elements.
    fn heights<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = f64> + 'a {
        text.lines()
            .filter_map(move |line| attribute(line, name)?.parse().ok())
    }

    #[test]
    fn the_legend_is_below_the_slots() {
        let mut random = Random(7);
        let svg = picture(&timeline(turns(&mut random, 0, 30, 5_000_000)));
        let (data, legend) = svg.split_once("<g id=\"legend\">").unwrap();
        let paths = data.lines().filter(|line| line.starts_with("<path"));
        let bases = paths.flat_map(|path| pieces(attribute(path, "d").unwrap()));
        let lowest = bases.map(|(_, (_, base))| base).fold(0.0, f64::max);
        let highest = heights(legend, "y").fold(f64::MAX, f64::min);
        assert!(highest > lowest, "{highest} {lowest}");
        let end = attribute(&svg, "height").unwrap().parse::<f64>().unwrap();
        assert!(
            heights(legend, "y").fold(0.0, f64::max) < end,
            "the legend is inside the picture"
        );
    }

    #[test]
    fn texts_of_marks_do_not_overlap() {
        let mut timeline = timeline(turns(&mut Random(7), 0, 2, 5_000_000));
        for n in 0..8 {
            timeline.instants.push(Instant {
                slot: None,
                what: format!("mark {n}"),
                at: 500_000_000 + n * 10_000_000,
            });
        }
        let picture = Picture::new(&timeline);
        let marks = picture.marks();
        assert!(
            (4..8).contains(&marks.len()),
            "some have no room: {marks:?}"
        );
        for (n, (x, text, row)) in marks.iter().enumerate() {
            let width = text_width(text, LABEL - 1.0);
            let others = marks[..n].iter().filter(|(_, _, other)| other == row);
            assert!(others.into_iter().all(|(other, ..)| x - other >= width));
        }
    }
}
