// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of the live view, and the effects of keys.

use super::columns::{Column, Order, TableColumn};
use super::sample::{ContextRow, Frame};
use crate::setting::PRIORITIES;
use fermata::{Control, Param};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The mode of the live view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// The user types a filter; the value is the previous filter.
    Filter(String),
    Help,
}

/// A request of a key to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    None,
    Quit,
    /// Act on a context.
    Control {
        /// Index among the sampled cards.
        card: usize,
        context: u32,
        control: Control,
        /// Description of the action: "hold", "priority 17".
        what: String,
    },
}

/// The live view.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) frame: Frame,
    pub(super) order: Order,
    pub(super) mode: Mode,
    /// Card and number of the selected context.
    pub(super) selected: Option<(usize, u32)>,
    /// Message about the last request.
    pub(super) message: String,
    /// The view is frozen.
    pub(super) paused: bool,
}

impl Screen {
    pub(super) fn new(frame: Frame, order: Order) -> Self {
        Self {
            frame,
            order,
            mode: Mode::Table,
            selected: None,
            message: String::new(),
            paused: false,
        }
    }

    /// Returns the shown rows, and the index of the selected row if it still exists.
    pub(super) fn rows(&self) -> (Vec<&ContextRow>, Option<usize>) {
        let rows = self.order.rows(&self.frame);
        let is_selected = |row: &&ContextRow| Some((row.card, row.view.context)) == self.selected;
        let place = rows.iter().position(is_selected);
        (rows, place)
    }

    fn selected_row(&self) -> Option<&ContextRow> {
        let (rows, place) = self.rows();
        place.map(|place| rows[place])
    }

    fn select(&mut self, step: isize) {
        let (rows, place) = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = place.map_or(0, |place| place.saturating_add_signed(step).min(last));
        self.selected = rows.get(to).map(|row| (row.card, row.view.context));
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Request {
        let is_break = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_break && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Request::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Table) {
            // Any key closes the help.
            Mode::Help => Request::None,
            Mode::Filter(before) => {
                self.type_filter(key.code, before);
                Request::None
            }
            Mode::Table => self.table_key(key.code),
        }
    }

    fn type_filter(&mut self, code: KeyCode, before: String) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => {
                self.order.filter = before;
                return;
            }
            KeyCode::Backspace => {
                self.order.filter.pop();
            }
            KeyCode::Char(c) => self.order.filter.push(c),
            _ => {}
        }
        self.mode = Mode::Filter(before);
    }

    fn table_key(&mut self, code: KeyCode) -> Request {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Request::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => {
                self.mode = Mode::Filter(std::mem::take(&mut self.order.filter));
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(Column::ALL.len() - 1),
            KeyCode::Char('i') => self.order.reversed = !self.order.reversed,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('h') => return self.control("hold", |_| Some(Control::Hold)),
            KeyCode::Char('r') => return self.control("resume", |_| Some(Control::Resume)),
            KeyCode::Char('p') => return self.control("preempt", |_| Some(Control::Preempt)),
            KeyCode::Char('d') => {
                return self.control("disable", |_| Some(Control::Param(Param::Enabled, 0)))
            }
            KeyCode::Char('e') => {
                return self.control("enable", |_| Some(Control::Param(Param::Enabled, 1)))
            }
            KeyCode::Char('+') => return self.control("priority up", |row| priority(row, 1)),
            KeyCode::Char('-') => return self.control("priority down", |row| priority(row, -1)),
            _ => {}
        }
        Request::None
    }

    fn sort_by_next(&mut self, step: usize) {
        let all = Column::ALL;
        let now = all.iter().position(|column| *column == self.order.by);
        self.order.by = all[(now.unwrap_or(0) + step) % all.len()];
        self.order.reversed = false;
    }

    fn control(&mut self, what: &str, control: fn(&ContextRow) -> Option<Control>) -> Request {
        let Some(row) = self.selected_row() else {
            self.message = format!("{what}: select a context first (arrow keys)");
            return Request::None;
        };
        let Some(control) = control(row) else {
            self.message = format!("{what}: that is the end of the range");
            return Request::None;
        };
        Request::Control {
            card: row.card,
            context: row.view.context,
            control,
            what: what.into(),
        }
    }
}

/// Returns the priority one step from the present one.
fn priority(row: &ContextRow, step: i32) -> Option<Control> {
    // The driver refuses a caller who may not know the priority.
    let from = row.view.priority.unwrap_or(16);
    let to = from.checked_add_signed(step)?;
    let to = u64::from(to);
    PRIORITIES
        .contains(&to)
        .then_some(Control::Param(Param::Priority, to))
}
