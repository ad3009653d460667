// SPDX-License-Identifier: GPL-2.0
//! `fermatactl set`: the policy of a card, and parameters of contexts.

use crate::card::{Card, CardName};
use crate::out::Out;
use crate::setting::{CardSetting, ContextSetting, Setting};
use crate::trouble::{Result, Trouble};
use fermata::Error;
use serde::Serialize;
use std::fmt::Display;
use std::str::FromStr;

/// Set the policy of a card, or parameters of a context (CAP_SYS_ADMIN)
///
/// Of a card: policy=fair|round-robin|priority|deadline|share, guard=TIME (the starvation guard; 0: none), shared=SLOT,… (serve
/// all groups again).
///
/// Of a context: timeslice=TIME, preempt-timeout=TIME, priority=0…31, weight=1…10000, latency-critical=yes|no, cap=PERCENT (0:
/// none), share=PERCENT, slots=SLOT,…, cooperative=yes|no, reservation=BUDGET/DEADLINE/PERIOD (or none), group-weight=1…10000,
/// exclusive=SLOT,… (slots that serve its group only).
///
/// A TIME has a unit: 500us, 2ms, 1s. docs/scheduler.md tells what each does. They are set one after another; the first that is
/// refused ends it, and those before it stay.
#[derive(Debug, clap::Args)]
#[command(override_usage = "fermatactl set <CARD> [CONTEXT] <NAME=VALUE>...")]
pub(crate) struct Set {
    /// The card
    card: CardName,
    /// The number of a context, if it is for one; then what to set
    #[arg(required = true, value_name = "[CONTEXT] NAME=VALUE")]
    words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Context(u32),
    Setting(Setting),
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.contains('=') {
            return text.parse().map(Self::Setting);
        }
        text.parse().map(Self::Context).map_err(|_| {
            "neither the number of a context nor NAME=VALUE: see `fermatactl set --help`".into()
        })
    }
}

/// What is wanted: nothing is mixed.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    OfCard(Vec<&'a CardSetting>),
    OfContext(u32, Vec<&'a ContextSetting>),
}

#[derive(Serialize)]
struct Answer {
    card: Option<u32>,
    context: Option<u32>,
    set: Vec<String>,
}

impl Set {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let wanted = self.wanted()?;
        let card = Card::open(&self.card)?;
        let (context, set) = match wanted {
            Wanted::OfCard(settings) => {
                let set = set_all(&card, None, &settings, |setting| setting.apply(&card))?;
                (None, set)
            }
            Wanted::OfContext(context, settings) => {
                let set = set_all(&card, Some(context), &settings, |setting| {
                    setting.apply_to(&card, context)
                })?;
                (Some(context), set)
            }
        };
        let answer = Answer {
            card: card.number(),
            context,
            set,
        };
        out.show(&answer, |answer| {
            let whose = context.map_or_else(String::new, |context| format!(" context {context}:"));
            format!("{}:{whose} {}", card.name, answer.set.join(" "))
        })
    }

    fn wanted(&self) -> Result<Wanted<'_>> {
        const HELP: &str = "see `fermatactl set --help`";
        let (context, words) = match self.words.split_first() {
            Some((Word::Context(context), words)) => (Some(*context), words),
            _ => (None, &self.words[..]),
        };
        let (mut of_card, mut of_context) = (Vec::new(), Vec::new());
        for word in words {
            match word {
                Word::Setting(Setting::Card(setting)) => of_card.push(setting),
                Word::Setting(Setting::Context(setting)) => of_context.push(setting),
                Word::Context(_) => {
                    let what = "the number of one context comes first, then what to set";
                    return Err(Trouble::new(what).advise(HELP));
                }
            }
        }
        match (context, &of_card[..], &of_context[..]) {
            (_, [], []) => Err(Trouble::new("nothing to set").advise(HELP)),
            (None, _, [setting, ..]) => Err(Trouble::new(format!("{setting} is of a context"))
                .advise("say which: `fermatactl list` shows their numbers")),
            (Some(_), [setting, ..], _) => Err(Trouble::new(format!(
                "{setting} is of a card, not of a context"
            ))
            .advise("leave out the number of the context")),
            (None, _, []) => Ok(Wanted::OfCard(of_card)),
            (Some(context), [], _) => Ok(Wanted::OfContext(context, of_context)),
        }
    }
}

/// Sets one after another, until one is refused. Returns how they were written.
fn set_all<T: Display>(
    card: &Card,
    context: Option<u32>,
    settings: &[&T],
    apply: impl Fn(&T) -> fermata::Result<()>,
) -> Result<Vec<String>> {
    settings
        .iter()
        .map(|setting| {
            let applied = apply(setting);
            applied.map_err(|error| refused(card, context, &setting.to_string(), error))?;
            Ok(setting.to_string())
        })
        .collect()
}

/// Why it cannot be set so, and what to do.
pub(super) fn refused(card: &Card, context: Option<u32>, text: &str, error: Error) -> Trouble {
    let whose = context.map_or_else(String::new, |context| format!(" of context {context}"));
    let what = format!("{}: {text}{whose}", card.name);
    match (error, context) {
        (Error::NoContext, Some(context)) => card.no_context(context),
        (Error::OutOfRange, _) => Trouble::new(format!("{what}: out of range"))
            .advise("`fermatactl set --help` has the ranges"),
        (Error::Busy, _) => Trouble::new(format!("{what}: it cannot be admitted")).advise(
            "the engine's slots cannot keep that beside what is promised already, or are another group's",
        ),
        (Error::Invalid, _) => Trouble::new(format!(
            "{what}: the slots that it names are not there, or have another engine"
        ))
        .advise("`fermatactl list` shows slots and engines"),
        (error, _) => Trouble::of_call(&what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> Set {
        Set {
            card: "0".parse().unwrap(),
            words: words.iter().map(|word| word.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn cards_and_contexts_are_not_mixed() {
        let card = set(&["policy=fair", "guard=1s"]);
        assert!(matches!(card.wanted(), Ok(Wanted::OfCard(all)) if all.len() == 2));
        let context = set(&["7", "weight=1"]);
        assert!(matches!(context.wanted(), Ok(Wanted::OfContext(7, all)) if all.len() == 1));
        let bad = [
            &["7"][..],
            &["weight=1"],
            &["7", "policy=fair"],
            &["policy=fair", "weight=1"],
            &["weight=1", "7"],
            &["7", "8", "weight=1"],
        ];
        for words in bad {
            assert!(set(words).wanted().is_err(), "{words:?}");
        }
        assert!("seven".parse::<Word>().is_err());
    }
}
