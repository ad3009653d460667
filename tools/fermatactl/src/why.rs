// SPDX-License-Identifier: GPL-2.0-or-later
//! Why a job waits, in words that name the limit, the cgroup or the slot, and which job runs for so
//! long that it may hang.

use crate::card::Card;
use crate::cgroup::Paths;
use crate::format::time;
use crate::view::{CardView, ContextView, SlotView};
use fermata::{user_of_group, GroupOf};
use fermata_output::text::printable;
use std::os::fd::AsFd;

/// A job that has been on its slot for this long while nobody waits may hang: nobody else wants the
/// slot, so the driver does not preempt the job, and does not notice.
const LONG_NS: u64 = 10_000_000_000;

/// Fills in why jobs of a card wait.
pub(crate) fn explain(card: &Card, view: &mut CardView, paths: &Paths) {
    let reasons: Vec<_> = view
        .contexts
        .iter()
        .map(|context| {
            let cap = || {
                let number = context.waits_group?;
                // Only the administrator may know the settings.
                let registered = match user_of_group(number) {
                    Some(uid) => card.file.registered_group(GroupOf::User(uid)),
                    None => card.file.registered_group(paths.open(number)?.as_fd()),
                };
                registered.ok().map(|group| group.cap)
            };
            reason(view, context, paths, cap)
        })
        .collect();
    for (context, reason) in view.contexts.iter_mut().zip(reasons) {
        context.waits_because = reason;
    }
}

/// Returns why the job of a context waits. `cap`: returns the cap of the group that throttles it.
fn reason(
    card: &CardView,
    context: &ContextView,
    paths: &Paths,
    cap: impl FnOnce() -> Option<u32>,
) -> Option<String> {
    let name = |group: u64| match paths.of(group) {
        Some(path) => printable(path),
        None => group.to_string(),
    };
    let number = card
        .card
        .map_or_else(|| "CARD".into(), |card| card.to_string());
    if context.state == "held" && context.attributes.contains(&"hold") {
        return Some("held by a program, such as fermata-checkpoint, until that ends".into());
    }
    if context.state == "held" {
        return Some(format!(
            "held: `fermatactl resume {number} {}` lets it go on",
            context.context
        ));
    }
    let Some(waits) = context.waits else {
        // An older driver does not tell the limit.
        let is_throttled = context.attributes.contains(&"throttled");
        return is_throttled.then(|| "a budget or cap is used up".into());
    };
    Some(match waits {
        "disabled" => format!(
            "disabled: `fermatactl enable {number} {}` ends that",
            context.context
        ),
        "no-slot" => no_slot(card, context, name),
        "card" => "the card is suspended, or being reset".into(),
        "budget" => "the budget of its reservation is used up".into(),
        "cap" => match context.cap {
            Some(cap) => format!("its own cap {cap} % is used up"),
            None => "its own cap is used up".into(),
        },
        "group-cap" => {
            let cap = cap().filter(|cap| *cap != 0);
            let cap = cap.map_or_else(|| "the cap".into(), |cap| format!("cap {cap} %"));
            match context.waits_group {
                Some(group) => format!("{cap} of group {} is used up", name(group)),
                None => format!("{cap} of a group above its own is used up"),
            }
        }
        "gang" => "its gang gets slots only together".into(),
        _ => turn(card, context),
    })
}

/// Returns why a context may use none of its slots.
fn no_slot(card: &CardView, context: &ContextView, name: impl Fn(u64) -> String) -> String {
    let reasons = slots_of(card, context).map(|slot| {
        let number = slot.slot;
        if is_quarantined(slot) {
            return format!("slot {number} is quarantined");
        }
        match slot.exclusive_group {
            Some(group) => format!("slot {number} serves only group {}", name(group)),
            None => format!("slot {number} serves only another group"),
        }
    });
    reasons.collect::<Vec<_>>().join(", ")
}

fn is_quarantined(slot: &SlotView) -> bool {
    slot.flags.contains(&"quarantined")
}

/// Iterates over the slots of a context's mask.
fn slots_of<'a>(
    card: &'a CardView,
    context: &'a ContextView,
) -> impl Iterator<Item = &'a SlotView> {
    let slots = card.slots.iter();
    slots.filter(|slot| context.slots.contains(&slot.slot))
}

/// Returns who is before a context that waits for its turn.
fn turn(card: &CardView, context: &ContextView) -> String {
    let slots = slots_of(card, context).filter(|slot| !is_quarantined(slot));
    let taken: Vec<_> = slots
        .filter_map(|slot| Some((slot.slot, slot.context?)))
        .collect();
    let others = waiting_for(card, &context.slots).filter(|other| other.context != context.context);
    let others = match others.count() {
        0 => String::new(),
        1 => ", 1 other waits".into(),
        count => format!(", {count} others wait"),
    };
    match &taken[..] {
        [] => format!("its turn{others}"),
        [(slot, on_it)] => format!("its turn: {on_it} is on slot {slot}{others}"),
        several => format!("its turn: {} slots are in use{others}", several.len()),
    }
}

/// Iterates over the contexts that would use one of the slots at once.
fn waiting_for<'a>(card: &'a CardView, slots: &'a [u32]) -> impl Iterator<Item = &'a ContextView> {
    let waiting = card.contexts.iter().filter(|context| {
        // Without a reason the context may be another user's.
        context.state == "queued" && matches!(context.waits, None | Some("turn" | "gang"))
    });
    waiting.filter(|context| context.slots.iter().any(|slot| slots.contains(slot)))
}

/// A job that may hang: its context, its slot, and how long it has been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) context: u32,
    slot: u32,
    ns: u64,
}

/// Iterates over the jobs that run for long while nobody waits for their slots.
pub(crate) fn suspects(card: &CardView) -> impl Iterator<Item = Suspect> + '_ {
    card.contexts.iter().filter_map(|context| {
        let (slot, ns) = (context.slot?, context.state_ns?);
        let is_alone = waiting_for(card, &[slot]).next().is_none();
        let suspect = Suspect {
            context: context.context,
            slot,
            ns,
        };
        (context.state == "running" && ns >= LONG_NS && is_alone).then_some(suspect)
    })
}

impl Suspect {
    /// Returns what is known of the job.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} runs on slot {} for {}, nobody waits",
            self.context,
            self.slot,
            time(self.ns)
        )
    }
}

/// Returns what to do about such a job.
pub(crate) fn remedy(card: &CardView, suspects: &[Suspect]) -> Option<String> {
    let number = card
        .card
        .map_or_else(|| "CARD".into(), |card| card.to_string());
    let context = match suspects {
        [] => return None,
        [suspect] => suspect.context.to_string(),
        _ => "CONTEXT".into(),
    };
    Some(format!(
        "If that job should have ended: `fermatactl preempt {number} {context}`. A good job goes on, \
         one that hangs fails."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata::uapi;

    fn slot(number: u32, context: Option<u32>) -> SlotView {
        let on_it = context.map(|context| uapi::ContextInfo {
            context,
            slot: number,
            ..Default::default()
        });
        let info = uapi::SlotInfo {
            slot: number,
            ..Default::default()
        };
        SlotView::of(&info, on_it.as_slice(), true)
    }

    fn context(number: u32, mask: u32, waits: u32) -> ContextView {
        let is_running = waits == uapi::WAITS_NOT;
        let info = uapi::ContextInfo {
            context: number,
            state: if is_running {
                uapi::STATE_RUNNING
            } else {
                uapi::STATE_QUEUED
            },
            slot: if is_running { 0 } else { uapi::NO_SLOT },
            slot_mask: mask,
            weight: 100,
            timeslice_ns: 1,
            cap: 7,
            waits,
            waits_group: if waits == uapi::WAITS_GROUP_CAP {
                47
            } else {
                0
            },
            state_ns: 312_000_000_000,
            ..Default::default()
        };
        ContextView::of(&info, &[])
    }

    fn card(slots: Vec<SlotView>, contexts: Vec<ContextView>) -> CardView {
        CardView {
            card: Some(3),
            device: "/dev/fermata3".into(),
            interface_version: 2,
            features: vec![],
            iommu_group: None,
            policy: None,
            boost_ns: None,
            max_contexts: 9,
            max_arena_bytes: 0,
            slots,
            contexts,
        }
    }

    #[test]
    fn every_reason_names_its_thing() {
        let mut quarantined = slot(1, None);
        quarantined.flags = vec!["quarantined"];
        let mut exclusive = slot(2, None);
        exclusive.exclusive_group = Some(48);
        let contexts = vec![
            context(9, 1, uapi::WAITS_NOT),
            context(8, 1, uapi::WAITS_TURN),
        ];
        let card = card(vec![slot(0, Some(9)), quarantined, exclusive], contexts);
        let because = |waits, mask, cap| {
            let context = context(7, mask, waits);
            reason(&card, &context, &Paths::default(), || cap).unwrap()
        };
        let table = [
            (
                uapi::WAITS_DISABLED,
                1,
                None,
                "disabled: `fermatactl enable 3 7` ends that",
            ),
            (
                uapi::WAITS_NO_SLOT,
                0b110,
                None,
                "slot 1 is quarantined, slot 2 serves only group 48",
            ),
            (
                uapi::WAITS_CARD,
                1,
                None,
                "the card is suspended, or being reset",
            ),
            (
                uapi::WAITS_BUDGET,
                1,
                None,
                "the budget of its reservation is used up",
            ),
            (uapi::WAITS_CAP, 1, None, "its own cap 7 % is used up"),
            (
                uapi::WAITS_GROUP_CAP,
                1,
                Some(1),
                "cap 1 % of group 47 is used up",
            ),
            (
                uapi::WAITS_GROUP_CAP,
                1,
                None,
                "the cap of group 47 is used up",
            ),
            (
                uapi::WAITS_GANG,
                1,
                None,
                "its gang gets slots only together",
            ),
            (
                uapi::WAITS_TURN,
                1,
                None,
                "its turn: 9 is on slot 0, 1 other waits",
            ),
            (uapi::WAITS_TURN, 0b10, None, "its turn"),
        ];
        for (waits, mask, cap, text) in table {
            assert_eq!(because(waits, mask, cap), text);
        }
    }

    #[test]
    fn an_older_driver_tells_less() {
        let mut old = context(7, 1, uapi::WAITS_TURN);
        old.waits = None;
        let card = card(vec![], vec![]);
        let of = |context: &ContextView| reason(&card, context, &Paths::default(), || None);
        assert_eq!(of(&old), None);
        old.attributes = vec!["throttled"];
        assert_eq!(of(&old).as_deref(), Some("a budget or cap is used up"));
        old.state = "held";
        assert!(of(&old).unwrap().contains("resume 3 7"));
    }

    #[test]
    fn a_hold_is_not_ended_by_resume() {
        let mut held = context(7, 1, uapi::WAITS_NOT);
        held.state = "held";
        held.attributes = vec!["hold"];
        let card = card(vec![], vec![]);
        let why = reason(&card, &held, &Paths::default(), || None);
        assert!(why.unwrap().starts_with("held by a program"));
    }

    #[test]
    fn a_job_that_runs_alone_for_long_is_told() {
        let running = || context(9, 1, uapi::WAITS_NOT);
        let alone = card(vec![slot(0, Some(9))], vec![running()]);
        let found: Vec<_> = suspects(&alone).collect();
        assert_eq!(found[0].text(), "9 runs on slot 0 for 5m12s, nobody waits");
        let remedy = remedy(&alone, &found).unwrap();
        assert!(remedy.contains("`fermatactl preempt 3 9`"), "{remedy}");
        let of = |other| suspects(&card(vec![], vec![running(), other])).count();
        assert_eq!(of(context(8, 1, uapi::WAITS_TURN)), 0);
        // Who waits for a limit, or for another slot, does not want this slot.
        assert_eq!(of(context(8, 1, uapi::WAITS_CAP)), 1);
        assert_eq!(of(context(8, 2, uapi::WAITS_TURN)), 1);
        let mut short = running();
        short.state_ns = Some(LONG_NS - 1);
        assert_eq!(suspects(&card(vec![], vec![short])).count(), 0);
    }
}
