// SPDX-License-Identifier: GPL-2.0
//! An interval as plain text, for pipes.

use super::columns::{Column, Order};
use super::draw::head;
use super::fit::TableColumn;
use super::sample::Frame;
use super::slots::SlotColumn;
use crate::format::table;

/// All columns are there: nothing is cut to a terminal's width.
pub(super) fn text(frame: &Frame, order: &Order) -> String {
    let heads = frame.cards.iter().map(|card| head(card).concat() + "\n");
    let mut text: String = heads.collect();
    text += &columns(frame.slots(), |column: SlotColumn, row| {
        column.cell(row, frame)
    });
    let rows = order.rows(frame);
    if !rows.is_empty() {
        text += "\n";
        text += &columns(rows.into_iter(), |column: Column, row| {
            column.cell(row, frame)
        });
    }
    text
}

fn columns<C: TableColumn, R>(
    rows: impl Iterator<Item = R>,
    cell: impl Fn(C, &R) -> String,
) -> String {
    let title = |column: &C| {
        let mark = if column.is_number() { ">" } else { "" };
        format!("{mark}{}", column.title())
    };
    let titles: Vec<_> = C::ALL.iter().map(title).collect();
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let cells = |row| C::ALL.iter().map(|column| cell(*column, &row)).collect();
    table(&titles, rows.map(cells))
}
