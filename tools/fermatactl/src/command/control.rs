// SPDX-License-Identifier: GPL-2.0-or-later
//! Commands that act on what belongs to others: `fermatactl preempt`, `hold`, `resume`, `disable`,
//! `enable` and `hint` on contexts of other programs, `set` on a card or a context, `group` on a
//! cgroup or a user.

use super::groups;
use crate::advice::Call;
use crate::card::{Card, CardName};
use crate::cgroup::name_of_user;
use crate::format::{self, time};
use crate::process;
use crate::trouble::{act_on_each, Out, Progress, Result, Target, Trouble};
use crate::value::{self, number_in, CardSetting, ContextSetting, Parsed, Setting};
use crate::view::numbers_of_bits;
use fermata::uapi::ContextInfo;
use fermata::{Control, Error, GroupOf, GroupSettings, Param, State};
use fermata_output::text::printable;
use serde::Serialize;
use std::fmt::Display;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The contexts to act on.
#[derive(Debug, clap::Args)]
struct Targets {
    /// The card
    card: CardName,
    /// Numbers of contexts
    #[arg(required = true, value_name = "CONTEXT", value_parser = value::context)]
    contexts: Vec<u32>,
}

#[derive(Serialize)]
struct ControlAnswer<'a> {
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
        let answer = ControlAnswer {
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

    /// Returns the first context that the driver will refuse, judging by the states of the contexts
    /// in `there`.
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
    /// Resume held jobs (own ones, or CAP_SYS_ADMIN)
    Resume: Control::Resume, "resuming", "resumed";
    /// Keep all jobs of contexts off slots, later ones too, until `enable` (CAP_SYS_ADMIN)
    Disable: Control::Param(Param::Enabled, 0), "disabling", "disabled";
    /// Let jobs of disabled contexts run again (CAP_SYS_ADMIN)
    Enable: Control::Param(Param::Enabled, 1), "enabling", "enabled";
}

/// Announce the next job of a context, so that a slot is free by then
///
/// The driver accepts a hint only through the context's descriptor, so this command gets the
/// descriptor from the context's program as a debugger would (same user, or root). A hint has an
/// effect if the job would take a slot from another one at once: latency-critical, of a higher
/// priority, or with a reservation. For own jobs: `fermatactl run --hint`.
#[derive(Debug, clap::Args)]
pub(crate) struct Hint {
    /// The card
    card: CardName,
    /// The number of the context
    #[arg(value_parser = value::context)]
    context: u32,
    /// In how long the job will be started: 1us to 10s; `never` withdraws the last hint
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
        text => value::ahead(text).map(When::In),
    }
}

#[derive(Serialize)]
struct HintAnswer {
    card: Option<u32>,
    context: u32,
    /// Null if the hint was withdrawn.
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

/// Set the policy of a card, or parameters of a context (CAP_SYS_ADMIN)
///
/// Of a card: policy=fair|round-robin|priority|deadline, boost=TIME (the starvation boost interval:
/// 10ms to 60s, or 0 for none).
///
/// Of a context: timeslice=TIME (100us to 10s), preempt-timeout=TIME (1ms to 10s), priority=0…31,
/// weight=1…10000, latency-critical=yes|no, cap=0…100 (percent; 0: none),
/// slots=SLOT,…, cooperative=yes|no, reservation=BUDGET/DEADLINE/PERIOD (or none; budget from 100us
/// up to the deadline, deadline up to the period, period 1ms to 10s). Groups have settings of their
/// own: `fermatactl group`.
///
/// A TIME has a unit: 500us, 2ms, 1s. docs/scheduler.md describes each setting. Settings are
/// applied one after another until one is refused. Those before it stay, and the error tells which
/// were set and which were not.
#[derive(Debug, clap::Args)]
#[command(override_usage = "fermatactl set <CARD> [CONTEXT] <NAME=VALUE>...")]
pub(crate) struct Set {
    /// The card
    card: CardName,
    /// The number of a context, unless the settings are for the card; then the settings
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
        let context = value::context(text).map(Self::Context);
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
struct SetAnswer {
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
        let answer = SetAnswer {
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

/// List groups, or show or change the settings of a cgroup or a user
///
/// Without CGROUP and --user the groups of the card are listed that have contexts or settings, with
/// their part of the last second (RUN%, of one slot). All else takes CAP_SYS_ADMIN.
///
/// Any setting registers the cgroup: all contexts of programs in it and below it are then one
/// group, including contexts that are already open; with --children, each cgroup in it is one. The
/// registration lasts until the cgroup is removed, or until --remove, even while the group has no
/// context. Programs in no registered cgroup are in the group of their user. Without options the
/// settings are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Group {
    /// The card
    card: CardName,
    /// The directory of a cgroup (version 2), such as /sys/fs/cgroup/user.slice/user-1000.slice
    #[arg(value_name = "CGROUP", group = "of")]
    cgroup: Option<PathBuf>,
    /// A user in place of a cgroup, by name or number
    #[arg(long, value_parser = user, group = "of")]
    user: Option<u32>,
    /// Its weight against other groups: 1 to 10000, initially 100
    #[arg(long, value_parser = weight, requires = "of")]
    weight: Option<u32>,
    /// The highest priority that its contexts may have: 0 to 31
    #[arg(long, value_name = "PRIORITY", value_parser = max_priority, requires = "of")]
    max_priority: Option<u32>,
    /// Time on slots of all its contexts together, in percent of one slot: 1 to 800; `none`: no
    /// cap
    #[arg(long, value_name = "PERCENT", value_parser = cap, requires = "of")]
    cap: Option<u32>,
    /// Maximum number of contexts: 1 to 65536; 0: as set by the module parameter max_contexts_group
    #[arg(long, value_name = "N", value_parser = max_contexts, requires = "of")]
    max_contexts: Option<u32>,
    /// Maximum pinned memory of all its contexts, such as 512M; 0: as set by the module parameter
    /// max_pinned_group_mib
    #[arg(long, value_name = "SIZE", value_parser = value::size, requires = "of")]
    max_bytes: Option<u64>,
    /// Slots that serve only its contexts, such as 0,2; `none`: no slot serves only them
    #[arg(long, value_name = "SLOTS", value_parser = exclusive, requires = "of")]
    exclusive: Option<u32>,
    /// Make each child of the cgroup a group of its own
    #[arg(long, requires = "cgroup", overrides_with = "no_children")]
    children: bool,
    /// Make the cgroup with all below it one group
    #[arg(long, requires = "cgroup", overrides_with = "children")]
    no_children: bool,
    /// End the registration
    #[arg(long, requires = "of", conflicts_with_all = ["weight", "max_priority", "cap", "max_contexts", "max_bytes", "exclusive", "children", "no_children"])]
    remove: bool,
}

fn in_range(text: &str, most: u64) -> Parsed<u32> {
    number_in(text, &(0..=most)).map(|value| value as u32)
}

fn weight(text: &str) -> Parsed<u32> {
    number_in(text, &value::WEIGHTS).map(|value| value as u32)
}

fn max_priority(text: &str) -> Parsed<u32> {
    in_range(text, *value::PRIORITIES.end())
}

fn cap(text: &str) -> Parsed<u32> {
    match text {
        "none" => Ok(0),
        text => in_range(text, GroupSettings::MAX_CAP.into()),
    }
}

fn user(text: &str) -> Parsed<u32> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let user = uzers::get_user_by_name(text);
    user.map(|user| user.uid())
        .ok_or_else(|| format!("there is no user {text:?}: name another, or a number"))
}

fn max_contexts(text: &str) -> Parsed<u32> {
    in_range(text, 65_536)
}

fn exclusive(text: &str) -> Parsed<u32> {
    match text {
        "none" => Ok(0),
        text => value::slots(text),
    }
}

#[derive(Serialize)]
struct GroupAnswer {
    card: Option<u32>,
    /// Null: the group is a user's.
    cgroup: Option<PathBuf>,
    user: Option<u32>,
    group: u64,
    registered: bool,
    /// Each child of the cgroup is a group of its own.
    children: bool,
    weight: u32,
    max_priority: u32,
    /// Percent of one slot; null: none.
    cap: Option<u32>,
    /// Null if the module parameter applies.
    max_contexts: Option<u32>,
    max_bytes: Option<u64>,
    exclusive: Vec<u32>,
    contexts: u32,
    bytes: u64,
    run_ns: u64,
}

impl Group {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open(&self.card)?;
        let directory = self.cgroup.as_deref().map(directory).transpose()?;
        let of = match (&directory, self.user) {
            (Some(directory), _) => GroupOf::Cgroup(directory.as_fd()),
            (None, Some(uid)) => GroupOf::User(uid),
            (None, None) => return groups::list(&card, out),
        };
        let settings = self.settings();
        let group = if self.remove {
            card.file.remove_group(of)
        } else if settings == GroupSettings::default() {
            card.file.registered_group(of)
        } else {
            card.file.set_group(of, &settings)
        };
        let group = group.map_err(|error| card.refused(&self.name(), Call::GroupSet, error))?;
        let answer = self.answer(&card, &group);
        out.show(&answer, |answer| {
            text_of_group(&card.name.to_string(), &self.name(), answer)
        })
    }

    fn settings(&self) -> GroupSettings {
        GroupSettings {
            weight: self.weight,
            max_priority: self.max_priority,
            cap: self.cap,
            max_contexts: self.max_contexts,
            max_bytes: self.max_bytes,
            exclusive: self.exclusive,
            children: (self.children || self.no_children).then_some(self.children),
        }
    }

    fn name(&self) -> String {
        let cgroup = self.cgroup.as_ref();
        let path = cgroup.map(|path| printable(&path.to_string_lossy()));
        path.or_else(|| self.user.map(name_of_user))
            .unwrap_or_default()
    }

    fn answer(&self, card: &Card, group: &fermata::Group) -> GroupAnswer {
        GroupAnswer {
            card: card.number(),
            cgroup: self.cgroup.clone(),
            user: self.user,
            group: group.number,
            registered: !self.remove,
            children: group.children,
            weight: group.weight,
            max_priority: group.max_priority,
            cap: Some(group.cap).filter(|cap| *cap != 0),
            max_contexts: Some(group.max_contexts).filter(|contexts| *contexts != 0),
            max_bytes: Some(group.max_bytes).filter(|bytes| *bytes != 0),
            exclusive: numbers_of_bits(group.exclusive),
            contexts: group.contexts,
            bytes: group.bytes,
            run_ns: group.run.as_nanos() as u64,
        }
    }
}

/// Opens the directory of a cgroup.
fn directory(cgroup: &Path) -> Result<File> {
    File::open(cgroup).map_err(|error| {
        Trouble::new(
            format!("{}: {error}", printable(&cgroup.to_string_lossy())),
            "name the directory of a cgroup, below /sys/fs/cgroup: `fermatactl group CARD` lists \
             those that are in use",
        )
    })
}

fn text_of_group(card: &str, name: &str, answer: &GroupAnswer) -> String {
    if !answer.registered {
        return format!("{card}: {name}: not registered any more");
    }
    let cap = answer.cap.map(|cap| format!("{cap} % of one slot"));
    let contexts = answer.max_contexts.map(|contexts| contexts.to_string());
    let bytes = answer.max_bytes.map(format::bytes);
    let slots: Vec<_> = answer.exclusive.iter().map(ToString::to_string).collect();
    let slots = Some(slots.join(",")).filter(|slots| !slots.is_empty());
    let pairs = [
        ("weight", answer.weight.to_string()),
        ("max priority", answer.max_priority.to_string()),
        ("cap", cap.unwrap_or_else(|| "none".into())),
        ("max contexts", contexts.unwrap_or_else(|| "default".into())),
        ("max bytes", bytes.unwrap_or_else(|| "default".into())),
        ("exclusive", slots.unwrap_or_else(|| "none".into())),
        ("contexts", answer.contexts.to_string()),
        ("bytes", format::bytes(answer.bytes)),
        ("ran", format::time(answer.run_ns)),
    ];
    let each = if answer.children {
        ", and each child"
    } else {
        ""
    };
    let mut text = format!("{card}: {name}: group {}{each}", answer.group);
    for (label, value) in pairs {
        text += &format!("\n  {label:<16}  {value}");
    }
    text
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

    #[test]
    fn children_are_given_or_taken_back_or_left() {
        let of = |words: &str| {
            let words = format!("group 0 /sys/fs/cgroup {words}");
            let parsed = <Group as clap::Args>::augment_args(clap::Command::new("group"))
                .try_get_matches_from(words.split_whitespace());
            let group = <Group as clap::FromArgMatches>::from_arg_matches(&parsed.unwrap());
            group.unwrap().settings().children
        };
        assert_eq!(of("--weight 1"), None);
        assert_eq!(of("--children"), Some(true));
        assert_eq!(of("--no-children"), Some(false));
        assert_eq!(of("--children --no-children"), Some(false));
        assert_eq!(of("--no-children --children"), Some(true));
    }

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
