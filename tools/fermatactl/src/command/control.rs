// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl preempt`, `hold`, `resume`, `disable`, `enable` and `hint`: act on contexts of other
//! programs.

use crate::advice::Call;
use crate::card::{Card, CardName};
use crate::format::time;
use crate::number;
use crate::process;
use crate::progress::{act_on_each, Progress, Target};
use crate::trouble::{Out, Result};
use fermata::uapi::ContextInfo;
use fermata::{Control, Error, Param, State};
use serde::Serialize;
use std::time::Duration;

/// The contexts to act on.
#[derive(Debug, clap::Args)]
struct Targets {
    /// The card
    card: CardName,
    /// Numbers of contexts
    #[arg(required = true, value_name = "CONTEXT", value_parser = number::context)]
    contexts: Vec<u32>,
}

#[derive(Serialize)]
struct Answer<'a> {
    done: &'static str,
    card: Option<u32>,
    contexts: &'a [u32],
}

/// A context, and the error with which the driver refuses it.
type Refusal = (u32, Error);

impl Targets {
    /// Acts on all contexts, or reports the first error; `doing` and `done` describe the action.
    fn control(&self, out: Out, control: Control, doing: &str, done: &'static str) -> Result<()> {
        let card = Card::open(&self.card)?;
        let call = Call::of_control(control);
        let refused = |context, error| card.refused_for(context, doing, call, error);
        let target_of = |context: &u32| Target::Context(*context);
        if let Some((context, error)) = self.refused_beforehand(control, &card.contexts()?) {
            let targets: Vec<_> = self.contexts.iter().map(target_of).collect();
            return Err(refused(context, error).with(Progress::none(&targets)));
        }
        act_on_each(&self.contexts, target_of, |context| {
            let controlled = card.file.control(*context, control);
            controlled.map_err(|error| refused(*context, error))
        })?;
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

    /// Returns the first context that the driver will refuse, by the state of the contexts in
    /// `there`.
    fn refused_beforehand(&self, control: Control, there: &[ContextInfo]) -> Option<Refusal> {
        let needs_job = matches!(control, Control::Preempt | Control::Hold | Control::Resume);
        self.contexts.iter().find_map(|number| {
            let info = there.iter().find(|info| info.context == *number);
            let error = match info.map(|info| State::from(info.state)) {
                None => Error::NoContext,
                Some(State::Idle | State::Done | State::Failed) if needs_job => Error::NotFound,
                Some(_) => return None,
            };
            Some((*number, error))
        })
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident: $control:expr, $doing:literal, $done:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, clap::Args)]
            pub(crate) struct $name {
                #[command(flatten)]
                targets: Targets,
            }

            impl $name {
                pub(crate) fn run(&self, out: Out) -> Result<()> {
                    self.targets.control(out, $control, $doing, $done)
                }
            }
        )*
    };
}

commands! {
    /// Take jobs off their slots; they wait for the next turn (CAP_SYS_ADMIN)
    Preempt: Control::Preempt, "preempting", "preempted";
    /// Take jobs off their slots until `resume` (CAP_SYS_ADMIN)
    Hold: Control::Hold, "holding", "held";
    /// Let held jobs go on (CAP_SYS_ADMIN)
    Resume: Control::Resume, "resuming", "resumed";
    /// Keep all jobs of contexts off slots, later ones too, until `enable` (CAP_SYS_ADMIN)
    Disable: Control::Param(Param::Enabled, 0), "disabling", "disabled";
    /// Let jobs of disabled contexts run again (CAP_SYS_ADMIN)
    Enable: Control::Param(Param::Enabled, 1), "enabling", "enabled";
}

/// Announce the next job of a context, so that a slot is free by then
///
/// The driver takes a hint from who has the context's descriptor only, so this gets the descriptor
/// from its program as a debugger would (same user, or root). A hint has an effect if the job would
/// take a slot from another one at once: latency-critical, of a higher priority, or with a
/// reservation. For own jobs: `fermatactl run --hint`.
#[derive(Debug, clap::Args)]
pub(crate) struct Hint {
    /// The card
    card: CardName,
    /// The number of the context
    #[arg(value_parser = number::context)]
    context: u32,
    /// In how long the job will be started: 1us to 10s; `never` takes the last hint back
    #[arg(value_parser = when)]
    when: When,
}

#[derive(Clone, Copy, Debug)]
enum When {
    In(Duration),
    Never,
}

fn when(text: &str) -> std::result::Result<When, String> {
    match text {
        "never" => Ok(When::Never),
        text => number::ahead(text).map(When::In),
    }
}

#[derive(Serialize)]
struct HintAnswer {
    card: Option<u32>,
    context: u32,
    /// Null if the hint was taken back.
    ahead_ns: Option<u64>,
}

impl Hint {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open(&self.card)?;
        let context = process::context_of(&card, self.context)?;
        let ahead = match self.when {
            When::In(ahead) => Some(ahead),
            When::Never => None,
        };
        let hinted = context.hint(ahead);
        hinted.map_err(|error| card.refused_for(self.context, "hinting", Call::Hint, error))?;
        let answer = HintAnswer {
            card: card.number(),
            context: self.context,
            ahead_ns: ahead.map(|ahead| ahead.as_nanos() as u64),
        };
        out.show(&answer, |answer| match answer.ahead_ns {
            Some(ns) => format!(
                "{}: context {}: a job in {}",
                card.name,
                answer.context,
                time(ns)
            ),
            None => format!(
                "{}: context {}: the hint is taken back",
                card.name, answer.context
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata::uapi;

    fn context(context: u32, state: u32) -> ContextInfo {
        ContextInfo {
            context,
            state,
            ..Default::default()
        }
    }

    #[test]
    fn what_will_be_refused_is_found_before_anything_is_done() {
        let there = [
            context(7, uapi::STATE_RUNNING),
            context(8, uapi::STATE_HELD),
            context(9, uapi::STATE_DONE),
            context(10, uapi::STATE_IDLE),
            context(11, uapi::STATE_FAILED),
        ];
        let table: [(Control, &[u32], Option<Refusal>); 9] = [
            (Control::Hold, &[7, 8], None),
            (Control::Hold, &[7, 12], Some((12, Error::NoContext))),
            (Control::Hold, &[7, 9, 12], Some((9, Error::NotFound))),
            (Control::Preempt, &[10, 7], Some((10, Error::NotFound))),
            (Control::Resume, &[8, 11], Some((11, Error::NotFound))),
            (Control::Param(Param::Enabled, 0), &[7, 9, 10, 11], None),
            (
                Control::Param(Param::Enabled, 0),
                &[7, 12],
                Some((12, Error::NoContext)),
            ),
            (Control::Param(Param::Enabled, 1), &[10], None),
            (
                Control::Param(Param::Enabled, 1),
                &[12, 7],
                Some((12, Error::NoContext)),
            ),
        ];
        for (control, contexts, wanted) in table {
            let targets = Targets {
                card: "0".parse().unwrap(),
                contexts: contexts.to_vec(),
            };
            let found = targets.refused_beforehand(control, &there);
            assert_eq!(found, wanted, "{control:?} {contexts:?}");
        }
    }
}
