// SPDX-License-Identifier: GPL-2.0
//! An interval as plain text, for pipes.

use super::columns::{slot_cells, Column, Order, SLOT_TITLES};
use super::draw::head;
use super::sample::Frame;
use crate::format::table;

/// All columns are there: nothing is cut to a terminal's width.
pub(super) fn text(frame: &Frame, order: &Order) -> String {
    let mut text = String::new();
    for card in &frame.cards {
        text += &head(card);
        text += "\n";
    }
    text += &table(
        &SLOT_TITLES,
        frame.slots().map(|row| slot_cells(row, frame)),
    );
    let rows = order.rows(frame);
    if rows.is_empty() {
        return text;
    }
    let titles = Column::ALL.map(|column| {
        let mark = if column.is_number() { ">" } else { "" };
        format!("{mark}{}", column.title())
    });
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let cells = rows.into_iter().map(|row| {
        let columns = Column::ALL.iter();
        columns.map(|column| column.cell(row, frame)).collect()
    });
    text + "\n" + &table(&titles, cells)
}
