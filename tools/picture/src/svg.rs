// SPDX-License-Identifier: GPL-2.0-or-later
//! An SVG document under construction, and its colours. Coordinates are pixels and keep two decimals.
//!
//! A document has a background of its own, so that it is readable on any page; for readers who
//! prefer dark pages, its style replaces each colour by its dark variant.

use fermata_output::text::printable;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::path::Path;

/// Font size of labels in pixels.
pub const LABEL: f64 = 12.0;
/// Font size of titles.
pub const TITLE: f64 = 16.0;

/// A position: right and down from the upper left corner.
pub type Point = (f64, f64);

/// Which end of a text is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// An SVG document.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
    fills: BTreeSet<Color>,
    strokes: BTreeSet<Color>,
}

/// Returns the estimated width of a text. SVG has no font metrics; the estimate fits wide fonts.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

/// Formats a coordinate: two decimals at most.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.into()
}

/// Control characters, which XML does not have, are shown as escapes.
fn escape(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn points(points: &[Point]) -> String {
    let points = points
        .iter()
        .map(|(x, y)| format!("{},{}", number(*x), number(*y)));
    points.collect::<Vec<_>>().join(" ")
}

impl Svg {
    /// Returns a white picture, which is dark for readers who prefer that.
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self {
            width,
            height,
            body: String::new(),
            fills: BTreeSet::new(),
            strokes: BTreeSet::new(),
        };
        svg.rect((0.0, 0.0), (width, height), Color::WHITE);
        svg
    }

    fn element(&mut self, text: &str) {
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// Adds a rectangle.
    pub fn rect(&mut self, (x, y): Point, (width, height): (f64, f64), fill: Color) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        self.fills.insert(fill);
        self.element(&format!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        ));
    }

    /// Adds a filled path; `title` is what a browser shows when the pointer is on the path.
    pub fn path(&mut self, d: &str, fill: Color, title: &str) {
        let title = escape(title);
        self.fills.insert(fill);
        self.element(&format!(
            r#"<path fill="{fill}" d="{d}"><title>{title}</title></path>"#
        ));
    }

    /// Adds a filled polygon.
    pub fn polygon(&mut self, corners: &[Point], fill: Color) {
        let corners = points(corners);
        self.fills.insert(fill);
        self.element(&format!(r#"<polygon points="{corners}" fill="{fill}"/>"#));
    }

    /// Adds a line.
    pub fn line(&mut self, from: Point, to: Point, stroke: Color, width: f64) {
        self.polyline(&[from, to], stroke, width);
    }

    /// Adds connected lines.
    pub fn polyline(&mut self, corners: &[Point], stroke: Color, width: f64) {
        let (corners, width) = (points(corners), number(width));
        self.strokes.insert(stroke);
        self.element(&format!(
            r#"<polyline points="{corners}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linejoin="round"/>"#
        ));
    }

    /// Adds a disk.
    pub fn disk(&mut self, (x, y): Point, radius: f64, fill: Color) {
        let [x, y, radius] = [x, y, radius].map(number);
        self.fills.insert(fill);
        self.element(&format!(
            r#"<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}"/>"#
        ));
    }

    /// Adds a text whose vertical middle is at the position.
    pub fn text(&mut self, (x, y): Point, anchor: Anchor, size: f64, fill: Color, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (number(x), number(y + size * 0.36), escape(text));
        let size = number(size);
        self.fills.insert(fill);
        self.element(&format!(
            r#"<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{text}</text>"#
        ));
    }

    /// Begins a group.
    pub fn open(&mut self, id: &str) {
        let id = escape(id);
        self.element(&format!(r#"<g id="{id}">"#));
    }

    /// Ends the group that was begun last.
    pub fn close(&mut self) {
        self.element("</g>");
    }

    /// Returns the document's text.
    pub fn finish(self) -> String {
        let (width, height) = (number(self.width), number(self.height));
        let mut text = String::new();
        let _ = writeln!(
            text,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif">"#
        );
        text + &self.style() + &self.body + "</svg>\n"
    }

    /// Returns the style for readers who prefer dark pages.
    fn style(&self) -> String {
        let rules = |attribute: &str, colors: &BTreeSet<Color>| -> String {
            let rules = colors.iter().map(|color| {
                let dark = color.dark();
                format!("[{attribute}=\"{color}\"]{{{attribute}:{dark}}}\n")
            });
            rules.collect()
        };
        let (fills, strokes) = (rules("fill", &self.fills), rules("stroke", &self.strokes));
        format!("<style>\n@media (prefers-color-scheme: dark) {{\n{fills}{strokes}}}\n</style>\n")
    }

    /// Writes the document to a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(self, file: &Path) -> std::io::Result<()> {
        std::fs::write(file, self.finish())
    }
}

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Color(pub u8, pub u8, pub u8);

/// The first six are Okabe's and Ito's. Each of the others was chosen to have the largest distance
/// (`OKLab`) from those before it, as people with normal vision, protanopia, deuteranopia and
/// tritanopia see them, and from all tints; the tints are the farthest from [`Color::NEUTRAL`].
const PALETTE: [Color; 14] = [
    Color(0x00, 0x72, 0xb2),
    Color(0xd5, 0x5e, 0x00),
    Color(0x00, 0x9e, 0x73),
    Color(0xcc, 0x79, 0xa7),
    Color(0xe6, 0x9f, 0x00),
    Color(0x56, 0xb4, 0xe9),
    Color(0x00, 0x44, 0x00),
    Color(0x55, 0x22, 0x99),
    Color(0x99, 0x77, 0xff),
    Color(0x00, 0xdd, 0x99),
    Color(0xaa, 0x11, 0x55),
    Color(0x55, 0x11, 0x44),
    Color(0x00, 0x66, 0x00),
    Color(0x22, 0x22, 0x77),
];

/// The part of the colour in a tint.
const TINT: f64 = 0.4;

impl Color {
    /// White.
    pub const WHITE: Self = Self(0xff, 0xff, 0xff);
    /// Black.
    pub const BLACK: Self = Self(0, 0, 0);
    /// A grey unlike the colours of the palette and their tints.
    pub const NEUTRAL: Self = Self(0xc4, 0xc4, 0xc4);
    /// The colour of axes and labels.
    pub const INK: Self = Self(0x33, 0x33, 0x33);
    /// The colour of grid lines at labels.
    pub const GRID: Self = Self(0xdd, 0xdd, 0xdd);
    /// The colour of grid lines at minor ticks.
    pub const FAINT: Self = Self(0xf2, 0xf2, 0xf2);
    /// The dark page.
    const DARK_PAGE: Self = Self(0x0d, 0x11, 0x17);
    /// What is black on a light page, on the dark page.
    const DARK_INK: Self = Self(0xf0, 0xf6, 0xfc);

    /// Returns the colour mixed with white: 0 is white, 1 the colour itself.
    #[must_use]
    pub fn mix(self, part: f64) -> Self {
        let mix = |c: u8| (255.0 - (255.0 - f64::from(c)) * part).round() as u8;
        Self(mix(self.0), mix(self.1), mix(self.2))
    }

    /// Returns the light variant of a palette colour.
    #[must_use]
    pub fn tint(self) -> Self {
        self.mix(TINT)
    }

    /// Returns the colour for a dark page. A grey keeps its contrast to the page. A palette colour
    /// becomes light enough for thin lines, and keeps its hue. A tint is as near to the page as it is
    /// on a light one.
    #[must_use]
    pub fn dark(self) -> Self {
        let Self(r, g, b) = self;
        if r == g && g == b {
            return Self::DARK_INK.on_dark(1.0 - f64::from(r) / 255.0);
        }
        let least = f64::from(r.min(g).min(b));
        if least < 255.0 * (1.0 - TINT) - 1.0 {
            return self.lit();
        }
        let untint = |c: u8| (255.0 - (255.0 - f64::from(c)) / TINT).round() as u8;
        Self(untint(r), untint(g), untint(b)).lit().on_dark(TINT)
    }

    /// Returns the colour mixed with the dark page: 0 is the page, 1 the colour itself.
    fn on_dark(self, part: f64) -> Self {
        let mix = |c: u8, page: u8| {
            (f64::from(page) + (f64::from(c) - f64::from(page)) * part).round() as u8
        };
        let page = Self::DARK_PAGE;
        Self(
            mix(self.0, page.0),
            mix(self.1, page.1),
            mix(self.2, page.2),
        )
    }

    /// Returns a light colour of the same hue: the darker the colour, the lighter.
    fn lit(self) -> Self {
        let [light, a, b] = self.lab();
        let light = 0.92 - 0.42 * light;
        // Not every hue is as saturated where it is light.
        let mut part = 1.0;
        while part > 0.0 {
            if let Some(color) = Self::of_lab([light, a * part, b * part]) {
                return color;
            }
            part -= 0.02;
        }
        Self::DARK_INK
    }

    /// Returns lightness, and the two colour coordinates, in `OKLab`.
    fn lab(self) -> [f64; 3] {
        let linear = |c: u8| match f64::from(c) / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        };
        let [r, g, b] = [self.0, self.1, self.2].map(linear);
        let l = (0.412_221 * r + 0.536_333 * g + 0.051_446 * b).cbrt();
        let m = (0.211_903 * r + 0.680_700 * g + 0.107_397 * b).cbrt();
        let s = (0.088_302 * r + 0.281_719 * g + 0.629_979 * b).cbrt();
        [
            0.210_454 * l + 0.793_618 * m - 0.004_072 * s,
            1.977_998 * l - 2.428_592 * m + 0.450_594 * s,
            0.025_904 * l + 0.782_772 * m - 0.808_676 * s,
        ]
    }

    /// Returns the colour with these coordinates in `OKLab`, if there is one.
    fn of_lab([light, a, b]: [f64; 3]) -> Option<Self> {
        let l = (light + 0.396_338 * a + 0.215_804 * b).powi(3);
        let m = (light - 0.105_561 * a - 0.063_854 * b).powi(3);
        let s = (light - 0.089_484 * a - 1.291_486 * b).powi(3);
        let linear = [
            4.076_742 * l - 3.307_712 * m + 0.230_970 * s,
            -1.268_438 * l + 2.609_757 * m - 0.341_319 * s,
            -0.004_196 * l - 0.703_419 * m + 1.707_615 * s,
        ];
        if linear.iter().any(|c| !(-0.001..=1.001).contains(c)) {
            return None;
        }
        let [r, g, b] = linear.map(|c| match c.clamp(0.0, 1.0) {
            c if c <= 0.003_131 => c * 12.92,
            c => 1.055 * c.powf(1.0 / 2.4) - 0.055,
        });
        let byte = |c: f64| (c * 255.0).round() as u8;
        Some(Self(byte(r), byte(g), byte(b)))
    }
}

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// Returns `count` colours, which differ from one another and from each other's tints. More than 14
/// are no longer easy to distinguish.
pub fn palette(count: usize) -> Vec<Color> {
    let mut colors: Vec<Color> = PALETTE.into_iter().take(count).collect();
    let mut candidates = (0..).map(generated);
    while colors.len() < count {
        let Some(new) = candidates.next() else { break };
        let is_used = |old: &Color| {
            *old == new || old.tint() == new || *old == new.tint() || old.tint() == new.tint()
        };
        if !colors.iter().any(is_used) {
            colors.push(new);
        }
    }
    colors
}

/// Returns the colour number `n` of an endless sequence: hues a golden angle apart, in several
/// lightnesses.
fn generated(n: u32) -> Color {
    let hue = f64::from(n) * 137.508 % 360.0;
    let light = 0.3 + 0.06 * f64::from(n % 7);
    let channel = |offset: f64| {
        let k = (offset + hue / 30.0) % 12.0;
        let part = light - 0.75 * light.min(1.0 - light) * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (part * 255.0).round() as u8
    };
    Color(channel(0.0), channel(8.0), channel(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn coordinates_keep_fractions() {
        assert_eq!(number(1.0), "1");
        assert_eq!(number(1.256), "1.26");
        assert_eq!(number(-0.001), "0");
        assert_eq!(number(0.01), "0.01");
    }

    #[test]
    fn texts_are_escaped() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text(
            (1.0, 2.0),
            Anchor::End,
            LABEL,
            Color::BLACK,
            "a <b> & \"c\"\x1b",
        );
        let text = svg.finish();
        assert!(text.contains(">a &lt;b&gt; &amp; &quot;c&quot;\\x1b</text>"));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn no_two_series_share_a_colour_or_a_tint() {
        for count in [1, 12, 14, 40, 600] {
            let colors = palette(count);
            let tints = colors.iter().map(|color| color.tint());
            let all: BTreeSet<Color> = colors.iter().copied().chain(tints).collect();
            assert_eq!((colors.len(), all.len()), (count, 2 * count));
        }
    }

    /// A difference that is easily seen is about 0.05 (`OKLab`).
    #[test]
    fn the_palette_is_easy_to_tell_apart() {
        for (n, a) in PALETTE.iter().enumerate() {
            for b in &PALETTE[..n] {
                assert!(distance(*a, *b) > 0.08, "{a} {b}: {}", distance(*a, *b));
            }
            for b in PALETTE.iter().filter(|b| *b != a) {
                assert!(distance(*a, b.tint()) > 0.05, "{a} and the tint of {b}");
            }
            for color in [*a, a.tint()] {
                assert!(distance(color, Color::NEUTRAL) > 0.05, "{color}");
            }
        }
    }

    fn distance(a: Color, b: Color) -> f64 {
        let square = |(a, b): (f64, f64)| (a - b).powi(2);
        let (a, b) = (a.lab(), b.lab());
        a.into_iter().zip(b).map(square).sum::<f64>().sqrt()
    }

    #[test]
    fn a_dark_page_has_the_same_contrasts() {
        assert_eq!(Color::WHITE.dark(), Color::DARK_PAGE);
        assert_eq!(Color::BLACK.dark(), Color::DARK_INK);
        for (n, color) in PALETTE.iter().enumerate() {
            let dark = color.dark();
            assert!(contrast(dark, Color::DARK_PAGE) > 4.0, "{color}: {dark}");
            let tint = color.tint().dark();
            assert!(distance(tint, Color::DARK_PAGE) > 0.1, "{color}: {tint}");
            assert!(
                distance(tint, Color::NEUTRAL.dark()) > 0.03,
                "{color}: {tint}"
            );
            for other in &PALETTE[..n] {
                let apart = distance(dark, other.dark());
                assert!(
                    apart > 0.05,
                    "{color} {other}: {dark}, {}, {apart}",
                    other.dark()
                );
                assert!(
                    distance(dark, other.tint().dark()) > 0.05,
                    "{color} {other}"
                );
            }
        }
    }

    /// Returns the contrast of two colours as the W3C's accessibility guidelines define it.
    fn contrast(a: Color, b: Color) -> f64 {
        let light = |color: Color| {
            let linear = |c: u8| match f64::from(c) / 255.0 {
                c if c <= 0.04045 => c / 12.92,
                c => ((c + 0.055) / 1.055).powf(2.4),
            };
            0.2126 * linear(color.0) + 0.7152 * linear(color.1) + 0.0722 * linear(color.2) + 0.05
        };
        let (a, b) = (light(a), light(b));
        (a / b).max(b / a)
    }

    #[test]
    fn each_colour_has_a_dark_variant_in_the_style() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.line((0.0, 0.0), (9.0, 9.0), Color::INK, 1.0);
        let text = svg.finish();
        let (style, body) = text.split_once("</style>").unwrap();
        assert!(style.contains("(prefers-color-scheme: dark)"));
        for used in [r##"fill="#ffffff""##, r##"stroke="#333333""##] {
            assert!(style.contains(&format!("[{used}]")) && body.contains(used));
        }
    }
}
