// SPDX-License-Identifier: GPL-2.0
//! `fermatactl preempt`, `hold`, `resume`, `disable` and `enable`: what is done to jobs of any context.

use crate::card::{Card, CardName};
use crate::out::Out;
use crate::trouble::Result;
use fermata::Control;
use serde::Serialize;

/// Whose jobs.
#[derive(Debug, clap::Args)]
struct Targets {
    /// The card
    card: CardName,
    /// Numbers of contexts
    #[arg(required = true, value_name = "CONTEXT")]
    contexts: Vec<u32>,
}

#[derive(Serialize)]
struct Answer<'a> {
    done: &'static str,
    card: Option<u32>,
    contexts: &'a [u32],
}

impl Targets {
    /// Does it to all, or says what stopped it; `doing` and `done` are for people.
    fn control(&self, out: Out, control: Control, doing: &str, done: &'static str) -> Result<()> {
        let card = Card::open(&self.card)?;
        for &context in &self.contexts {
            let controlled = card.file.control(context, control);
            controlled.map_err(|error| card.refused_for(context, doing, error))?;
        }
        let answer = Answer {
            done,
            card: card.number(),
            contexts: &self.contexts,
        };
        out.show(&answer, |answer| {
            let lines = answer.contexts.iter();
            lines.fold(String::new(), |text, context| {
                text + &format!("{}: context {context} {done}\n", card.name)
            })
        })
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident: $control:ident, $doing:literal, $done:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, clap::Args)]
            pub(crate) struct $name {
                #[command(flatten)]
                targets: Targets,
            }

            impl $name {
                pub(crate) fn run(&self, out: Out) -> Result<()> {
                    self.targets.control(out, Control::$control, $doing, $done)
                }
            }
        )*
    };
}

commands! {
    /// Take jobs off their slots; they wait for the next turn (CAP_SYS_ADMIN)
    Preempt: Preempt, "preempting", "preempted";
    /// Take jobs off their slots until `resume` (CAP_SYS_ADMIN)
    Hold: Hold, "holding", "held";
    /// Let held jobs go on (CAP_SYS_ADMIN)
    Resume: Resume, "resuming", "resumed";
    /// Keep all jobs of contexts off slots, later ones too, until `enable` (CAP_SYS_ADMIN)
    Disable: Disable, "disabling", "disabled";
    /// Let jobs of disabled contexts run again (CAP_SYS_ADMIN)
    Enable: Enable, "enabling", "enabled";
}
