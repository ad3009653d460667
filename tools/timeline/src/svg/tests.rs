// SPDX-License-Identifier: GPL-2.0
//! What a picture shows, as its own shapes have it: they are read back from the SVG, and painted one over the other.

use super::*;
use crate::spans::{Instant, Span};
use std::collections::{BTreeMap, BTreeSet};

/// Of a slot's time.
const BOUND: f64 = 0.001;
const SECOND: u64 = 1_000_000_000;

/// The value of an attribute of an element.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element
        .split_once(&format!(" {name}=\""))?
        .1
        .split('"')
        .next()
}

/// An interval across, and the interval down that is painted there.
type Piece = ((f64, f64), (f64, f64));

/// The pieces of a path of M, H, V and Z that stands on its first point.
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

/// The visible area of each colour in a slot, as part of its bar: of all that is painted at a point, the last is seen.
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
        // Each shape stands on the base: what is painted later hides the lower part of what was painted before.
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

/// The colours of the legend, by name.
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

/// Turns of `jobs` on a slot for a second; runs take up to `longest` ns, saves and restores a fifth of that, and the slot is idle now and then.
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

/// The part of a second that a job did some things on a slot.
fn measured(timeline: &Timeline, slot: usize, job: u64, doing: &[Doing]) -> f64 {
    let spans = timeline.spans.iter();
    let counted =
        spans.filter(|span| span.slot == slot && span.job == job && doing.contains(&span.doing));
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

/// The picture that the review found: a slot that is busy nearly all the time with turns of a tenth of a pixel, which looked idle.
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

/// The y coordinates of a group of elements.
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
