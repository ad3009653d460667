// SPDX-License-Identifier: GPL-2.0
//! Chooses what a narrow terminal shows. A number is shown whole or not at all: a number that has lost digits looks like another number.

/// A column of a table.
pub(super) trait TableColumn: Copy + PartialEq + 'static {
    /// All columns, from left to right.
    const ALL: &'static [Self];
    /// The order in which columns are left out where there is no room for all.
    const DROPPED: &'static [Self];

    fn title(self) -> &'static str;

    /// Numbers are aligned to the right, and are never cut.
    fn is_number(self) -> bool;

    /// The width in which a text is cut; of a number, the least.
    fn width(self) -> u16;
}

/// A column that is shown, and its width.
pub(super) type Shown<C> = (C, u16);

/// Returns the columns that fit into `width` with a blank between two, and their widths: a column of numbers is as wide as the longest
/// of its `cells`, and the last column takes the remaining width if it holds text.
pub(super) fn fitting<C: TableColumn>(
    width: u16,
    cells: impl Fn(C) -> Vec<String>,
) -> Vec<Shown<C>> {
    let needed = |column: &C| {
        let longest = if column.is_number() {
            let cells = cells(*column);
            cells.iter().map(String::len).max().unwrap_or(0)
        } else {
            0
        };
        let longest = longest.max(column.title().len()) as u16;
        (*column, column.width().max(longest))
    };
    let mut shown: Vec<_> = C::ALL.iter().map(needed).collect();
    for dropped in C::DROPPED {
        if total_of(&shown) <= width {
            break;
        }
        shown.retain(|(column, _)| column != dropped);
    }
    let left = width.saturating_sub(total_of(&shown));
    if let Some((column, last)) = shown.last_mut() {
        if !column.is_number() {
            *last += left;
        }
    }
    shown
}

fn total_of<C>(shown: &[Shown<C>]) -> u16 {
    let widths = shown.iter().map(|(_, width)| width + 1);
    widths.sum::<u16>().saturating_sub(1)
}

/// Joins as many parts as fit, from the first on.
pub(super) fn first_that_fit(width: u16, parts: &[String]) -> String {
    let mut text = String::new();
    for part in parts {
        if text.chars().count() + part.chars().count() > width.into() {
            break;
        }
        text += part;
    }
    text
}

/// Cuts a text to `width`; an ellipsis shows that the text was longer.
pub(super) fn shortened(width: u16, text: &str) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.into();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole() {
        let parts = ["fermata10", "  12 contexts", ", 3 held"].map(String::from);
        let table = [
            (8, ""),
            (9, "fermata10"),
            (21, "fermata10"),
            (22, "fermata10  12 contexts"),
            (99, "fermata10  12 contexts, 3 held"),
        ];
        for (width, text) in table {
            assert_eq!(first_that_fit(width, &parts), text, "{width}");
        }
    }

    #[test]
    fn texts_show_that_they_are_cut() {
        assert_eq!(shortened(5, "12345"), "12345");
        assert_eq!(shortened(4, "12345"), "123…");
        assert_eq!(shortened(1, "12345"), "…");
    }
}
