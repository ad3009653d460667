// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl set`: the policy of a card, and parameters of contexts.

use crate::card::{Card, CardName};
use crate::number;
use crate::progress::{act_on_each, Target};
use crate::setting::{CardSetting, ContextSetting, Setting};
use crate::trouble::{Out, Result, Trouble};
use serde::Serialize;
use std::fmt::Display;
use std::str::FromStr;

/// Set the policy of a card, or parameters of a context (CAP_SYS_ADMIN)
///
/// Of a card: policy=fair|round-robin|priority|deadline, boost=TIME (the starvation boost interval:
/// 10ms to 60s, or 0 for none).
///
/// Of a context: timeslice=TIME (100us to 10s), preempt-timeout=TIME (1ms to 10s), priority=0…31,
/// weight=1…10000, latency-critical=yes|no, cap=0…100 (percent; 0: none),
/// slots=SLOT,…, cooperative=yes|no, reservation=BUDGET/DEADLINE/PERIOD (or none; budget from 100us
/// up to the deadline, deadline up to the period, period 1ms to 10s). What holds for groups is set
/// by `fermatactl group`.
///
/// A TIME has a unit: 500us, 2ms, 1s. docs/scheduler.md tells what each does. They are set one
/// after another; the first that is refused ends it: those before it stay, and the error tells
/// which were set and which were not.
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
        let context = number::context(text).map(Self::Context);
        context.map_err(|error| format!("{error}; nor is it NAME=VALUE"))
    }
}

/// The requested settings, either of a card or of a context.
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
                let set = set_all(&settings, |setting| {
                    let applied = setting.apply(&card);
                    applied.map_err(|error| {
                        card.refused(&setting.to_string(), CardSetting::CALL, error)
                    })
                })?;
                (None, set)
            }
            Wanted::OfContext(context, settings) => {
                let set = set_all(&settings, |setting| {
                    let (applied, doing) =
                        (setting.apply_to(&card, context), format!("{setting} of"));
                    applied.map_err(|error| {
                        card.refused_for(context, &doing, setting.call_for_any(), error)
                    })
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
                    return Err(Trouble::wrong_arguments(what, HELP));
                }
            }
        }
        match (context, &of_card[..], &of_context[..]) {
            (_, [], []) => Err(Trouble::wrong_arguments("nothing to set", HELP)),
            (None, _, [setting, ..]) => Err(Trouble::wrong_arguments(
                format!("{setting} is of a context"),
                "say which: `fermatactl list` shows their numbers",
            )),
            (Some(_), [setting, ..], _) => Err(Trouble::wrong_arguments(
                format!("{setting} is of a card, not of a context"),
                "leave out the number of the context",
            )),
            (None, _, []) => Ok(Wanted::OfCard(of_card)),
            (Some(context), [], _) => Ok(Wanted::OfContext(context, of_context)),
        }
    }
}

/// Applies settings until one is refused. Returns their texts.
fn set_all<T: Display>(settings: &[&T], set: impl Fn(&T) -> Result<()>) -> Result<Vec<String>> {
    let target_of = |setting: &&T| Target::Setting(setting.to_string());
    act_on_each(settings, target_of, |setting| set(setting))?;
    Ok(settings.iter().map(ToString::to_string).collect())
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
        let card = set(&["policy=fair", "boost=1s"]);
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
