// SPDX-License-Identifier: GPL-2.0-or-later
//! Reports how far a command with several targets came before an error.

use crate::trouble::Result;
use serde::Serialize;
use std::fmt;

/// A target of a command: a context or a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Target {
    Context(u32),
    Setting(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context(number) => write!(f, "{number}"),
            Self::Setting(setting) => f.write_str(setting),
        }
    }
}

/// The targets that were done, and those that were not.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    done: Vec<Target>,
    not_done: Vec<Target>,
}

impl Progress {
    /// Returns the progress before the first target.
    pub(crate) fn none(targets: &[Target]) -> Self {
        Self::after(0, targets)
    }

    fn after(count: usize, targets: &[Target]) -> Self {
        let (done, not_done) = targets.split_at(count);
        Self {
            done: done.to_vec(),
            not_done: not_done.to_vec(),
        }
    }
}

/// Empty for a command with one target, which was not done then.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.done[..], &self.not_done[..]) {
            ([], [_]) => Ok(()),
            ([], _) => f.write_str("nothing was done"),
            (done, not_done) => write!(f, "done: {}; not done: {}", list(done), list(not_done)),
        }
    }
}

fn list(targets: &[Target]) -> String {
    let texts: Vec<_> = targets.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Calls `act` for each target until an error, to which the progress is added.
pub(crate) fn act_on_each<T>(
    things: &[T],
    target_of: impl Fn(&T) -> Target,
    act: impl Fn(&T) -> Result<()>,
) -> Result<()> {
    let targets: Vec<_> = things.iter().map(target_of).collect();
    things.iter().enumerate().try_for_each(|(index, thing)| {
        act(thing).map_err(|trouble| trouble.with(Progress::after(index, &targets)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::Trouble;
    use std::cell::RefCell;

    /// Acts on contexts 7, 8 and 9; `refused` fails. Returns the contexts that were acted on, and
    /// the error.
    fn act(refused: u32) -> (Vec<u32>, Option<Trouble>) {
        let tried = RefCell::new(Vec::new());
        let done = act_on_each(
            &[7, 8, 9],
            |number| Target::Context(*number),
            |number| {
                tried.borrow_mut().push(*number);
                match number {
                    number if *number == refused => Err(Trouble::new("cause", "remedy")),
                    _ => Ok(()),
                }
            },
        );
        (tried.into_inner(), done.err())
    }

    #[test]
    fn the_first_error_ends_it_and_tells_what_was_done() {
        let (tried, trouble) = act(10);
        assert!(tried == [7, 8, 9] && trouble.is_none());
        let (tried, trouble) = act(8);
        assert_eq!(tried, [7, 8]);
        let trouble = trouble.unwrap();
        assert_eq!(
            trouble.to_string(),
            "cause\n  done: 7; not done: 8, 9\n  remedy"
        );
        let json = serde_json::to_string(&trouble).unwrap();
        assert_eq!(
            json,
            r#"{"error":"cause","advice":"remedy","done":[7],"not_done":[8,9]}"#
        );
        let trouble = act(7).1.unwrap();
        assert_eq!(trouble.to_string(), "cause\n  nothing was done\n  remedy");
    }

    #[test]
    fn one_target_that_was_refused_says_nothing_more() {
        let setting = [Target::Setting("weight=1".into())];
        let trouble = Trouble::new("cause", "remedy").with(Progress::none(&setting));
        assert_eq!(trouble.to_string(), "cause\n  remedy");
        let json = serde_json::to_string(&trouble).unwrap();
        assert!(
            json.ends_with(r#""done":[],"not_done":["weight=1"]}"#),
            "{json}"
        );
    }
}
