// SPDX-License-Identifier: GPL-2.0
//! Who runs, while it happens: redrawn in place on a terminal, a line now and then in a pipe.

use crate::stage::Tenant;
use crate::tenant::Ending;
use fermata_card_control::Run;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// Per slot: the token of who runs, and what each tenant has had.
pub(crate) type Look = Vec<(Option<u64>, HashMap<u64, Run>)>;

/// The view.
pub(crate) struct View {
    live: bool,
    slots: u32,
    drawn: bool,
    last: Option<Duration>,
}

impl View {
    /// Of a card with so many slots.
    pub(crate) fn new(live: bool, slots: u32) -> Self {
        Self {
            live,
            slots,
            drawn: false,
            last: None,
        }
    }

    /// What the card says now: per slot who runs, and what each has had.
    pub(crate) fn show(
        &mut self,
        at: Duration,
        runs: &Look,
        tenants: &BTreeMap<u64, Tenant>,
        endings: &BTreeMap<u64, Ending>,
    ) {
        if !self.live && self.last.is_some_and(|last| at < last + LINE_EVERY) {
            return;
        }
        self.last = Some(at);
        let mut text = String::new();
        if self.live && self.drawn {
            let _ = write!(text, "\x1b[{}A", self.slots);
        }
        for slot in 0..self.slots {
            let (running, had) = &runs[slot as usize];
            let now = running.and_then(|token| tenants.get(&token));
            let _ = write!(
                text,
                "{}{:5.1} s  slot {slot}  {:7} |",
                if self.live { "\x1b[2K" } else { "  " },
                at.as_secs_f64(),
                now.map_or("-", |t| &t.name)
            );
            for tenant in tenants.values().filter(|t| t.slot == slot) {
                let turns = had.get(&tenant.token).map_or(0, |r| r.turns);
                let done = if endings.contains_key(&tenant.token) {
                    " done"
                } else {
                    ""
                };
                let _ = write!(text, " {} {turns}{done},", tenant.name);
            }
            text.pop();
            text.push('\n');
        }
        self.drawn = true;
        print!("{text}");
        let _ = std::io::stdout().flush();
    }

    /// Something that happened once.
    pub(crate) fn say(&mut self, at: Duration, what: &str) {
        println!("  {:5.1} s  {what}", at.as_secs_f64());
        self.drawn = false;
    }
}
