// SPDX-License-Identifier: GPL-2.0-or-later
//! An SVG document under construction. Coordinates are pixels and keep two decimals.

use crate::color::Color;
use std::fmt::Write as _;
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
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
    /// Returns a white picture.
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self {
            width,
            height,
            body: String::new(),
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
        self.element(&format!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        ));
    }

    /// Adds a filled path; `title` is what a browser shows of the path under the pointer.
    pub fn path(&mut self, d: &str, fill: Color, title: &str) {
        let title = escape(title);
        self.element(&format!(
            r#"<path fill="{fill}" d="{d}"><title>{title}</title></path>"#
        ));
    }

    /// Adds a filled polygon.
    pub fn polygon(&mut self, corners: &[Point], fill: Color) {
        let corners = points(corners);
        self.element(&format!(r#"<polygon points="{corners}" fill="{fill}"/>"#));
    }

    /// Adds a line.
    pub fn line(&mut self, from: Point, to: Point, stroke: Color, width: f64) {
        self.polyline(&[from, to], stroke, width);
    }

    /// Adds connected lines.
    pub fn polyline(&mut self, corners: &[Point], stroke: Color, width: f64) {
        let (corners, width) = (points(corners), number(width));
        self.element(&format!(
            r#"<polyline points="{corners}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linejoin="round"/>"#
        ));
    }

    /// Adds a disk.
    pub fn disk(&mut self, (x, y): Point, radius: f64, fill: Color) {
        let [x, y, radius] = [x, y, radius].map(number);
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
        text + &self.body + "</svg>\n"
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

#[cfg(test)]
mod tests {
    use super::*;

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
            "a <b> & \"c\"",
        );
        let text = svg.finish();
        assert!(text.contains(">a &lt;b&gt; &amp; &quot;c&quot;</text>"));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
