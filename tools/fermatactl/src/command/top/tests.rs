// SPDX-License-Identifier: GPL-2.0-or-later
//! Frames of samples, and the view on a terminal in memory, 80 columns wide.

use super::draw::{count, draw, head, text, Column, Order, SlotColumn, TableColumn};
use super::{CardFrame, CardSample, ContextRow, Frame, Mode, Request, Sample, Screen, SlotRow};
use crate::format::Spread;
use crate::view::{CardView, ContextView, SlotView};
use fermata::{Control, Histogram, Param};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use std::path::PathBuf;
use std::time::Instant;

fn spread() -> Spread {
    let mut histogram = Histogram::EMPTY;
    for _ in 0..100 {
        histogram.add(123_456);
    }
    Spread::from(&histogram)
}

fn slot(number: u32, context: Option<u32>) -> SlotRow {
    SlotRow {
        card: 0,
        view: SlotView {
            slot: number,
            engine: Some("linkedlist"),
            engine_id: String::new(),
            context,
            flags: vec![],
            exclusive_group: None,
            snapshot_bytes: 4096,
            switches: Some(1000),
            busy_ns: Some(1),
            resets: Some(0),
            interrupt_storms: Some(0),
            save_ns: 0,
            restore_ns: 0,
        },
        command: None,
        busy_percent: Some(97.25),
        switches_per_second: Some(499.6),
        gap: Some(spread()),
        latency: Some(Spread::from(&Histogram::EMPTY)),
    }
}

fn context(number: u32, state: &'static str, run_percent: f64) -> ContextRow {
    ContextRow {
        card: 0,
        view: ContextView {
            context: number,
            state,
            attributes: vec![],
            engine: Some("linkedlist"),
            engine_id: None,
            slot: None,
            slots: vec![0],
            pid: Some(4_000_000 + number),
            command: Some(format!("/usr/bin/tenant --number {number} --of-many")),
            group: Some(47),
            group_path: Some(format!("/system.slice/tenant-{number}.service")),
            job: Some(1),
            priority: Some(16),
            weight: Some(100),
            latency_critical: Some(number == 3),
            timeslice_ns: Some(2_000_000),
            preempt_timeout_ns: None,
            cap: None,
            run_ns: Some(12_345_678_901),
            wait_ns: Some(5),
            slices: Some(1_234_567),
            preemptions: Some(1_234_566),
            state_ns: Some(90_000_000_000),
            waits: None,
            waits_group: None,
            waits_because: None,
        },
        run_percent: Some(run_percent),
        wait_percent: Some(100.0),
    }
}

fn screen() -> Screen {
    let frame = Frame {
        interval_ns: 1_000_000_000,
        cards: vec![CardFrame {
            index: 0,
            card: Some(0),
            device: "/dev/fermata0".into(),
            policy: Some("fair"),
            boost_ns: Some(1_000_000_000),
            slots: vec![slot(0, Some(2)), slot(1, None)],
            contexts: vec![
                context(1, "queued", 10.0),
                context(2, "running", 89.5),
                context(3, "held", 0.0),
            ],
        }],
    };
    let order = Order {
        by: Column::Share,
        reversed: false,
        filter: String::new(),
    };
    Screen::new(frame, order)
}

/// Returns the lines of a terminal of this size.
fn lines(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|canvas| draw(screen, canvas)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_string()
    };
    (0..height).map(line).collect()
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Request {
    let press = |key: &KeyCode| screen.key(KeyEvent::from(*key));
    keys.iter().map(press).last().unwrap_or(Request::None)
}

#[test]
fn it_fits_in_80_columns() {
    let lines = lines(&screen(), 80, 24);
    assert_eq!(
        lines[0],
        "/dev/fermata0  policy fair, boost 1s  3 contexts: 1 running, 1 queued, 1 held"
    );
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        [
            "0",
            "linkedlist",
            "2",
            "97.2",
            "500",
            "123us",
            "123us",
            "-",
            "-"
        ]
    );
    let titles: Vec<_> = lines[5].split_whitespace().collect();
    assert_eq!(
        titles,
        [
            "CTX", "STATE", "ENGINE", "SL", "PR", "RUN%", "WAIT%", "IDLE", "GROUP", "PID",
            "COMMAND"
        ]
    );
    // Sorted by share. Nothing is cut but the group and the command, which begins where its title does.
    let first: Vec<_> = lines[6].split_whitespace().take(10).collect();
    assert_eq!(
        first,
        [
            "2",
            "running",
            "linkedlist",
            "-",
            "16",
            "89.5",
            "100.0",
            "-",
            "…2.service",
            "4000002"
        ]
    );
    assert!(lines[8].contains(" LC "));
    // Only the third context is idle.
    let third: Vec<_> = lines[8].split_whitespace().collect();
    assert_eq!((third[0], third[7]), ("3", "90s"));
    assert!(lines[23].starts_with("sort RUN% down  |  ? help"));
    assert!(lines[23].ends_with("/ filter"));
}

#[test]
fn wide_terminals_have_more_columns() {
    let lines = lines(&screen(), 130, 24);
    assert!(lines[5].contains("WEIGHT") && lines[5].contains("SLICES"));
    assert!(lines[6].contains("/usr/bin/tenant --num"));
}

/// Two cards, with numbers as long as they can be.
fn long_numbers() -> Screen {
    let mut screen = screen();
    let mut other = screen.frame.cards[0].clone();
    (other.index, other.card) = (1, Some(63));
    for (card, index) in screen.frame.cards.iter_mut().chain([&mut other]).zip(0..) {
        for row in &mut card.slots {
            row.card = index;
            row.switches_per_second = Some(123_456.0);
            row.view.context = Some(u32::MAX - 1);
            row.view.flags = vec!["quarantined", "boundary", "exclusive"];
        }
        for row in &mut card.contexts {
            row.card = index;
            row.view.context = u32::MAX - row.view.context;
            row.view.timeslice_ns = Some(9_999_999);
            row.view.run_ns = Some(123_456 * 3_600_000_000_000);
            row.view.state_ns = row.view.run_ns;
            row.view.slices = Some(u64::MAX);
            row.view.preemptions = Some(u64::MAX);
            row.view.engine = Some("counter_down");
        }
    }
    screen.frame.cards.push(other);
    screen
}

/// Compares a table with the cells that it shows: a title identifies its column, a number must be
/// complete, and a text may be shortened if it is marked as such. Returns the titles.
fn check_table<C: TableColumn>(
    lines: &[String],
    cells: &[impl Fn(C) -> String],
) -> Vec<&'static str> {
    let words = |line: &str| {
        line.split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let column = |title: &String| C::ALL.iter().find(|column| column.title() == title);
    let columns: Vec<C> = words(&lines[0])
        .iter()
        .map(|title| *column(title).unwrap_or_else(|| panic!("{title} is no title: {lines:?}")))
        .collect();
    for (line, cell) in lines[1..].iter().zip(cells) {
        for (column, word) in columns.iter().zip(words(line)) {
            let cell = cell(*column);
            let is_cut = word
                .strip_suffix('…')
                .is_some_and(|word| cell.starts_with(word));
            let is_text = !column.is_number();
            let is_end = word
                .strip_prefix('…')
                .is_some_and(|word| column.is_path() && cell.ends_with(word));
            assert!(
                word == cell.split(' ').next().unwrap_or_default() || is_text && is_cut || is_end,
                "{}: {word}, not {cell}",
                column.title()
            );
        }
    }
    columns.iter().map(|column| column.title()).collect()
}

#[test]
fn numbers_are_whole_at_every_width() {
    let screen = long_numbers();
    let frame = &screen.frame;
    let slots: Vec<_> = frame
        .slots()
        .map(|row| |column: SlotColumn| column.cell(row, frame))
        .collect();
    let rows = screen.rows().0;
    let rows: Vec<_> = rows
        .iter()
        .map(|row| |column: Column| column.cell(row, frame))
        .collect();
    let mut most = (Vec::new(), Vec::new());
    for width in 1..=150 {
        let lines = lines(&screen, width, 16);
        for (line, card) in lines.iter().zip(&frame.cards) {
            let parts = head(card);
            let whole = (0..=parts.len()).any(|count| parts[..count].concat() == *line);
            assert!(whole, "{width}: {line}");
        }
        let (slot_lines, context_lines) = lines[2..].split_at(slots.len() + 2);
        let shown = (
            check_table(slot_lines, &slots),
            check_table(context_lines, &rows),
        );
        // A wider terminal shows what a narrower one does, and more.
        assert!(
            most.0.iter().all(|title| shown.0.contains(title)),
            "{width}: {shown:?}"
        );
        assert!(
            most.1.iter().all(|title| shown.1.contains(title)),
            "{width}: {shown:?}"
        );
        most = shown;
    }
    assert_eq!(
        (most.0.len(), most.1.len()),
        (SlotColumn::ALL.len(), Column::ALL.len())
    );
}

#[test]
fn narrow_terminals_have_fewer_columns() {
    let titles = |width| {
        let lines = lines(&screen(), width, 24);
        let titles = |line: &str| {
            line.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
                .join(" ")
        };
        (titles(&lines[1]), titles(&lines[5]))
    };
    let table = [
        (
            80,
            "SLOT ENGINE CTX BUSY% SW/S GAP50 GAP99 LC50 LC99 FLAGS",
            "CTX STATE ENGINE SL PR RUN% WAIT% IDLE GROUP PID COMMAND",
        ),
        (
            70,
            "SLOT ENGINE CTX BUSY% SW/S GAP50 GAP99 LC50 LC99 FLAGS",
            "CTX STATE ENGINE SL RUN% IDLE GROUP PID COMMAND",
        ),
        (
            69,
            "SLOT ENGINE CTX BUSY% SW/S GAP50 GAP99 LC99 FLAGS",
            "CTX STATE ENGINE SL RUN% IDLE GROUP PID COMMAND",
        ),
        (
            60,
            "SLOT ENGINE CTX BUSY% SW/S GAP50 GAP99 FLAGS",
            "CTX STATE SL RUN% GROUP PID COMMAND",
        ),
        (
            40,
            "SLOT ENGINE CTX BUSY% FLAGS",
            "CTX STATE SL RUN% PID COMMAND",
        ),
        (10, "SLOT CTX", "CTX"),
        (3, "", ""),
    ];
    for (width, slots, contexts) in table {
        assert_eq!(titles(width), (slots.into(), contexts.into()), "{width}");
    }
}

#[test]
fn small_terminals_do_no_harm() {
    for (width, height) in [(1, 1), (10, 3), (80, 5), (300, 100)] {
        let mut screen = screen();
        lines(&screen, width, height);
        screen.mode = Mode::Help;
        lines(&screen, width, height);
    }
}

#[test]
fn keys_control_what_is_selected() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, &[KeyCode::Char('h')]), Request::None);
    assert!(screen.message.contains("select a context"));
    let hold = press(
        &mut screen,
        &[KeyCode::Down, KeyCode::Down, KeyCode::Char('h')],
    );
    assert!(matches!(
        hold,
        Request::Control {
            context: 1,
            control: Control::Hold,
            ..
        }
    ));
    // The context stays selected wherever its row moves.
    screen.frame.cards[0].contexts[0].run_percent = Some(99.0);
    let up = press(&mut screen, &[KeyCode::Char('+')]);
    let raised = Control::Param(Param::Priority, 17);
    assert!(matches!(up, Request::Control { context: 1, control, .. } if control == raised));
    screen.frame.cards[0].contexts[0].view.priority = Some(31);
    assert_eq!(press(&mut screen, &[KeyCode::Char('+')]), Request::None);
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Request::Quit);
    // The context is gone: another context is not acted on instead.
    screen.frame.cards[0].contexts.remove(0);
    assert_eq!(press(&mut screen, &[KeyCode::Char('h')]), Request::None);
}

#[test]
fn rows_are_sorted_and_filtered() {
    let mut screen = screen();
    let shown = |screen: &Screen| {
        let rows = screen.rows().0;
        rows.iter().map(|row| row.view.context).collect::<Vec<_>>()
    };
    assert_eq!(shown(&screen), [2, 1, 3]);
    press(&mut screen, &[KeyCode::Char('i')]);
    assert_eq!(shown(&screen), [3, 1, 2]);
    screen.order.by = Column::Idle;
    screen.order.reversed = false;
    assert_eq!(shown(&screen), [3, 1, 2]);
    let typed = ['/', 'H', 'E', 'L', 'X'].map(KeyCode::Char);
    press(&mut screen, &typed);
    assert_eq!(shown(&screen), [0; 0]);
    assert!(lines(&screen, 80, 24)[23].starts_with("filter: HELX_"));
    press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(shown(&screen), [3]);
    press(
        &mut screen,
        &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc],
    );
    assert_eq!(shown(&screen), [3]);
    screen.order.filter.clear();
    // All rows are shown, whatever the column that they are sorted by.
    for column in Column::ALL {
        screen.order.by = *column;
        assert_eq!(shown(&screen).len(), 3);
    }
}

#[test]
fn what_is_not_told_is_no_number() {
    let mut screen = screen();
    let card = &mut screen.frame.cards[0];
    let row = &mut card.contexts[1];
    (row.run_percent, row.wait_percent) = (None, None);
    row.view = ContextView {
        priority: None,
        latency_critical: None,
        weight: None,
        run_ns: None,
        slices: None,
        preemptions: None,
        timeslice_ns: None,
        ..row.view.clone()
    };
    let slot = &mut card.slots[0];
    (slot.busy_percent, slot.switches_per_second, slot.gap) = (None, None, None);
    let shown = text(&screen.frame, &screen.order);
    let cells = |line: &str| {
        line.split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let lines: Vec<_> = shown.lines().map(cells).collect();
    assert_eq!(
        lines[2],
        ["0", "linkedlist", "2", "-", "-", "-", "-", "-", "-"]
    );
    let last = lines.last().unwrap();
    assert_eq!(last[..3], ["2", "running", "linkedlist"]);
    assert_eq!(last[3..13], ["-"; 10]);
    assert_eq!(last[13], "/system.slice/tenant-2.service");
}

#[test]
fn sorting_goes_round() {
    let mut screen = screen();
    for _ in Column::ALL {
        press(&mut screen, &[KeyCode::Char('s')]);
    }
    assert_eq!(screen.order.by, Column::Share);
    press(&mut screen, &[KeyCode::Char('s'), KeyCode::Char('S')]);
    assert_eq!(screen.order.by, Column::Share);
}

#[test]
fn help_lists_keys() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('?')]);
    let text = lines(&screen, 80, 24).join("\n");
    for word in [" up, down", "hold its job", "priority up", "filter", "quit"] {
        assert!(text.contains(word), "{word}");
    }
    press(&mut screen, &[KeyCode::Char('q')]);
    assert_eq!(screen.mode, Mode::Table);
}

#[test]
fn pipes_have_every_column() {
    let screen = screen();
    let shown = text(&screen.frame, &screen.order);
    assert!(shown.contains("SLICES") && shown.contains("--number 2 --of-many"));
    assert!(!shown.contains('\x1b'));
    assert!(shown.lines().all(|line| line == line.trim_end()));
}

#[test]
fn several_cards_are_told_apart() {
    let mut screen = screen();
    let mut other = screen.frame.cards[0].clone();
    (other.index, other.card) = (1, Some(7));
    for row in &mut other.contexts {
        row.card = 1;
    }
    screen.frame.cards.push(other);
    let shown = text(&screen.frame, &screen.order);
    assert!(shown.contains("0/2") && shown.contains("7/2"));
}

#[test]
fn counts_are_short() {
    let cases = [
        (0, "0"),
        (99_999, "99999"),
        (100_000, "100k"),
        (10_000_000, "10M"),
    ];
    for (n, text) in cases {
        assert_eq!(count(n), text);
    }
}

fn sample(at: Instant, indices: &[usize]) -> Sample {
    let card = |index: &usize| {
        let view = CardView {
            card: Some(*index as u32 + 5),
            device: PathBuf::new(),
            interface_version: 0,
            features: vec![],
            iommu_group: None,
            policy: None,
            boost_ns: None,
            max_contexts: 0,
            max_arena_bytes: 0,
            slots: vec![],
            contexts: vec![],
        };
        let measured = vec![];
        (*index, CardSample { view, measured })
    };
    let cards = indices.iter().map(card).collect();
    Sample { at, cards }
}

#[test]
fn a_card_that_goes_is_left_out() {
    let now = Instant::now();
    let both = sample(now, &[0, 1]);
    let frame = Frame::between(&both, &both);
    assert_eq!(
        (frame.name(0, 9), frame.name(1, 9)),
        ("5/9".into(), "6/9".into())
    );
    let frame = Frame::between(&both, &sample(now, &[1]));
    let [card] = &frame.cards[..] else { panic!() };
    assert_eq!((card.index, card.card), (1, Some(6)));
    assert_eq!(frame.name(1, 9), "9");
}
