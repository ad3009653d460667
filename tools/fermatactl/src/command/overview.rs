// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl` without a command: on one screen, the cards, who runs, and who waits and why.

use crate::format::{or_dash, shortened, table, time};
use crate::terminal;
use crate::trouble::{Out, Result};
use crate::view::{CardView, ContextView};
use crate::why;
use serde::Serialize;

/// How much of the path of a group is shown.
const GROUP_WIDTH: usize = 16;
/// Waiting contexts that are shown of a card even if the screen is too small.
const WAITING_MIN: usize = 2;
/// Contexts that have been idle for less are not shown, and no more contexts than these.
const IDLE_NS: u64 = 60_000_000_000;
const IDLE_MAX: usize = 3;
const FOOT: &str = "`fermatactl list` shows all, `top` is live, `--help` names the commands.";

#[derive(Serialize)]
struct Answer {
    cards: Vec<CardView>,
}

pub(crate) fn run(out: Out) -> Result<()> {
    let cards = CardView::all(&[]).map_err(|trouble| {
        trouble.or("`fermatactl --help` names all commands, docs/fermatactl.md describes them")
    })?;
    out.show(&Answer { cards }, |answer| {
        text_of(&answer.cards, terminal::size())
    })
}

/// Returns the text for a screen of `size`; `None`: without limits, for a pipe.
fn text_of(cards: &[CardView], size: Option<(u16, u16)>) -> String {
    let parts: Vec<_> = cards.iter().map(Part::of).collect();
    let most = match size {
        None => usize::MAX,
        Some((_, rows)) => {
            // A line for the prompt, and one for the foot.
            let fixed: usize = parts.iter().map(Part::fixed).sum();
            let left = usize::from(rows).saturating_sub(fixed + 2);
            (left / parts.len().max(1)).max(WAITING_MIN)
        }
    };
    let mut lines: Vec<String> = parts
        .into_iter()
        .flat_map(|part| part.lines(most))
        .collect();
    lines.push(FOOT.into());
    let width = size.map_or(usize::MAX, |(columns, _)| columns.into());
    let lines = lines.iter().map(|line| shortened(width, line) + "\n");
    lines.collect()
}

/// The lines about a card.
struct Part {
    /// The first lines: the card and its slots.
    head: Vec<String>,
    /// The title of the contexts that wait, and a line for each.
    waiting: Vec<String>,
    /// The last lines: contexts that are idle for long, and jobs that may hang.
    notes: Vec<String>,
}

impl Part {
    fn of(card: &CardView) -> Self {
        let mut head = vec![title(card)];
        head.extend(slots(card));
        let mut notes = idle(card);
        let suspects: Vec<_> = why::suspects(card).collect();
        let names = suspects.iter().map(why::Suspect::text);
        notes.extend(names.map(|name| format!("  {name}.")));
        if let Some(remedy) = why::remedy(card, &suspects) {
            notes.extend(remedy.split(". ").map(|sentence| {
                let end = if sentence.ends_with('.') { "" } else { "." };
                format!("  {sentence}{end}")
            }));
        }
        if card.contexts.is_empty() {
            notes.push("  Nobody uses it: `fermatactl run ENGINE FILE` runs an engine.".into());
        }
        if !is_told(card) && card.contexts.iter().any(|context| context.job.is_none()) {
            notes.push("  More is told to root and to the group fermata-monitor.".into());
        }
        Self {
            head,
            waiting: waiting(card),
            notes,
        }
    }

    /// Returns the number of lines without those of contexts that wait.
    fn fixed(&self) -> usize {
        self.head.len() + self.notes.len()
    }

    /// Returns the lines, with at most `most` lines about contexts that wait.
    fn lines(mut self, most: usize) -> Vec<String> {
        let count = self.waiting.len();
        if count > most {
            let shown = most.saturating_sub(1);
            self.waiting.truncate(shown);
            let left = count - shown.max(1);
            self.waiting.push(format!("  … and {left} more"));
        }
        [self.head, self.waiting, self.notes].concat()
    }
}

fn title(card: &CardView) -> String {
    let count = |states: &[&str]| {
        let contexts = card.contexts.iter();
        contexts
            .filter(|context| states.contains(&context.state))
            .count()
    };
    let mut text = format!(
        "{}: policy {}, {} of {} contexts",
        card.device.display(),
        card.policy.unwrap_or("unknown"),
        card.contexts.len(),
        card.max_contexts
    );
    let counts = [
        (count(&["running"]), "run"),
        (count(&["queued"]), "wait"),
        (count(&["held"]), "held"),
        (count(&["idle", "done", "failed", "empty"]), "without work"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count != 0);
    let counts: Vec<_> = counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !counts.is_empty() {
        text += &format!(": {}", counts.join(", "));
    }
    text
}

/// Returns whether the caller may know the contexts of other users.
fn is_told(card: &CardView) -> bool {
    card.slots.iter().any(|slot| slot.switches.is_some())
}

/// Returns a line for each slot that is in use or out of service, and one for all others.
fn slots(card: &CardView) -> Vec<String> {
    let mut vacant = Vec::new();
    let mut rows = Vec::new();
    for slot in &card.slots {
        let on_it = slot.context.and_then(|number| card.context(number));
        let flags = slot.flags.iter().copied();
        let state: Vec<_> = flags
            .filter(|flag| matches!(*flag, "quarantined" | "exclusive"))
            .collect();
        if slot.context.is_none() && state.is_empty() {
            vacant.push(format!("{} {}", slot.slot, slot.engine_name()));
            continue;
        }
        let state = match (slot.context, &state[..]) {
            (Some(context), _) => context.to_string(),
            (None, flags) => flags.join(","),
        };
        rows.push(vec![
            slot.slot.to_string(),
            slot.engine_name().into(),
            state,
            or_dash(on_it.and_then(|context| context.state_ns).map(time)),
            on_it.map_or_else(|| "-".into(), |context| context.group_name(GROUP_WIDTH)),
            or_dash(on_it.and_then(ContextView::command_text)),
        ]);
    }
    let titles = [">SLOT", "ENGINE", ">RUNS", ">FOR", "GROUP", "COMMAND"];
    let mut lines = lines_of(&titles, rows);
    if !vacant.is_empty() {
        // Other users' contexts on slots are not told to everybody.
        let what = if is_told(card) { "vacant" } else { "slots" };
        lines.push(format!("  {what}: {}", vacant.join(", ")));
    }
    lines
}

/// Returns a line for each context that waits or is held, unusual reasons and long waits first.
fn waiting(card: &CardView) -> Vec<String> {
    let waits = |context: &&ContextView| {
        let is_told = context.job.is_some();
        is_told && matches!(context.state, "queued" | "held")
    };
    let mut waiting: Vec<_> = card.contexts.iter().filter(waits).collect();
    waiting.sort_by_key(|context| {
        let is_turn = matches!(context.waits, Some("turn"));
        (is_turn, std::cmp::Reverse(context.state_ns))
    });
    let rows = waiting.iter().map(|context| {
        vec![
            context.context.to_string(),
            or_dash(context.state_ns.map(time)),
            context.group_name(GROUP_WIDTH),
            or_dash(context.waits_because.clone()),
            or_dash(context.command_text()),
        ]
    });
    let titles = [">WAITS", ">FOR", "GROUP", "BECAUSE", "COMMAND"];
    lines_of(&titles, rows.collect())
}

/// Returns a line for each of the contexts that have been idle longest. Held ones are among those
/// that wait.
fn idle(card: &CardView) -> Vec<String> {
    let mut idle: Vec<_> = card
        .contexts
        .iter()
        .filter(|context| context.state != "held" && context.idle_ns() >= Some(IDLE_NS))
        .collect();
    idle.sort_by_key(|context| std::cmp::Reverse(context.idle_ns()));
    let rows = idle.iter().take(IDLE_MAX).map(|context| {
        vec![
            context.context.to_string(),
            or_dash(context.idle_ns().map(time)),
            context.group_name(GROUP_WIDTH),
            context.state_text(),
            or_dash(context.command_text()),
        ]
    });
    let titles = [">IDLE", ">FOR", "GROUP", "STATE", "COMMAND"];
    let mut lines = lines_of(&titles, rows.collect());
    if let Some(more) = idle.len().checked_sub(IDLE_MAX).filter(|more| *more > 0) {
        lines.push(format!("  {more} more are idle: `fermatactl list`."));
    }
    lines
}

/// Returns the lines of a table; none if it has no rows.
fn lines_of(titles: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let text = table(titles, rows);
    text.lines().map(|line| line.trim_end().into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::SlotView;
    use fermata::{uapi, EngineId};

    /// A card of two slots, on the first of which a context runs while the others wait for it.
    fn card(contexts: u32) -> CardView {
        let info = |number: u32| uapi::ContextInfo {
            context: 65536 + number,
            state: match number {
                0 => uapi::STATE_RUNNING,
                _ => uapi::STATE_QUEUED,
            },
            waits: match number {
                0 => uapi::WAITS_NOT,
                1 => uapi::WAITS_CAP,
                _ => uapi::WAITS_TURN,
            },
            slot: if number == 0 { 0 } else { uapi::NO_SLOT },
            slot_mask: 1,
            weight: 100,
            timeslice_ns: 1,
            state_ns: 1_000_000 * u64::from(number + 1),
            ..Default::default()
        };
        let infos: Vec<_> = (0..contexts).map(info).collect();
        let slots = [0, 1].map(|slot| {
            let info = uapi::SlotInfo {
                slot,
                afu_id_lo: EngineId::SHA256.low,
                afu_id_hi: EngineId::SHA256.high,
                ..Default::default()
            };
            SlotView::of(&info, &infos, true)
        });
        let mut views: Vec<_> = infos
            .iter()
            .map(|info| ContextView::of(info, &slots))
            .collect();
        for view in &mut views {
            view.waits_because = view.waits.map(|waits| format!("reason {waits}"));
            view.command = Some("a\x1b[31m command\n with escapes".into());
        }
        CardView {
            card: Some(0),
            device: "/dev/fermata0".into(),
            interface_version: 2,
            features: vec![],
            iommu_group: None,
            policy: Some("fair"),
            boost_ns: None,
            max_contexts: 4096,
            max_arena_bytes: 0,
            slots: slots.into(),
            contexts: views,
        }
    }

    #[test]
    fn a_screen_has_who_runs_and_who_waits() {
        let text = text_of(&[card(3)], Some((80, 24)));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "/dev/fermata0: policy fair, 3 of 4096 contexts: 1 run, 2 wait"
        );
        assert!(
            lines[2].contains("65536") && lines[2].contains("a\\x1b[31m command\\n"),
            "{text}"
        );
        assert!(lines[3].starts_with("  vacant: 1 "), "{text}");
        // The unusual reason comes first.
        assert!(lines[5].contains("65537") && lines[5].contains("reason cap"));
        assert!(lines[6].contains("65538") && lines[6].contains("reason turn"));
        assert_eq!(lines.len(), 8);
    }

    #[test]
    fn contexts_that_are_idle_for_long_are_shown() {
        let mut card = card(6);
        for (context, (state, ns)) in card.contexts[1..].iter_mut().zip([
            ("done", IDLE_NS),
            ("done", IDLE_NS - 1),
            ("empty", 2 * IDLE_NS),
            ("held", 3 * IDLE_NS),
            ("queued", 4 * IDLE_NS),
        ]) {
            (context.state, context.state_ns) = (state, Some(ns));
        }
        let shown = idle(&card);
        assert!(shown[0].starts_with("   IDLE"), "{shown:?}");
        assert!(shown[1].contains("65539") && shown[1].contains("2m00s"));
        assert!(shown[2].contains("65537") && shown.len() == 3, "{shown:?}");
        for context in &mut card.contexts {
            (context.state, context.state_ns) = ("done", Some(IDLE_NS));
        }
        assert!(idle(&card)[4].starts_with("  3 more are idle"));
    }

    #[test]
    fn it_fits_on_the_screen() {
        for (width, height) in [(80, 24), (40, 16), (200, 60)] {
            let text = text_of(&[card(200)], Some((width, height)));
            assert_eq!(text.lines().count(), usize::from(height) - 1, "{text}");
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest.unwrap() <= width.into(), "{text}");
            assert!(text.contains("… and "), "{text}");
        }
        let text = text_of(&[card(200), card(200)], Some((80, 24)));
        assert!(text.lines().count() <= 23, "{text}");
        text_of(&[card(200)], Some((1, 1)));
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let text = text_of(&[card(200)], Some((80, 24)));
        let shown = text.lines().filter(|line| line.contains("reason")).count();
        assert!(
            text.contains(&format!("… and {} more", 199 - shown)),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_told_is_not_claimed() {
        let mut card = card(3);
        for slot in &mut card.slots {
            (slot.context, slot.switches) = (None, None);
        }
        for context in &mut card.contexts {
            (context.job, context.waits_because) = (None, None);
        }
        let text = text_of(&[card], Some((80, 24)));
        assert!(
            text.contains("  slots: 0 ") && !text.contains("vacant"),
            "{text}"
        );
        assert!(
            text.contains("1 run, 2 wait") && !text.contains("WAITS"),
            "{text}"
        );
        assert!(text.contains("fermata-monitor"), "{text}");
    }

    #[test]
    fn pipes_have_all() {
        let text = text_of(&[card(200)], None);
        assert_eq!(text.matches("reason").count(), 199);
        assert!(!text.contains('\x1b'));
        assert!(text_of(&[card(0)], None).contains("Nobody uses it"));
    }
}
