// SPDX-License-Identifier: GPL-2.0
//! What can be set, as NAME=VALUE on the command line: parsed once for `set`, which acts on any context, and for `run`, on its own.

use crate::card::Card;
use fermata::{Control, Error, Param, Policy, Reservation};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What a card is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfCard {
    Policy(Policy),
    Guard(Duration),
    Shared(u32),
}

/// What a context is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfContext {
    Param(Param, u64),
    Reservation(Option<Reservation>),
    GroupWeight(u32),
    Exclusive(u32),
}

/// A setting of a card, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardSetting(OfCard, String);

/// A setting of a context, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextSetting(OfContext, String);

/// Of a card or of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Card(CardSetting),
    Context(ContextSetting),
}

impl CardSetting {
    pub(crate) fn apply(&self, card: &Card) -> fermata::Result<()> {
        match &self.0 {
            OfCard::Policy(policy) => card.file.set_policy(*policy, None),
            OfCard::Guard(guard) => match card.file.policy()?.0 {
                Some(policy) => card.file.set_policy(policy, Some(*guard)),
                None => Err(Error::NotFound),
            },
            OfCard::Shared(mask) => card.file.share_slots(*mask),
        }
    }
}

impl ContextSetting {
    /// To the context of this number.
    pub(crate) fn apply_to(&self, card: &Card, context: u32) -> fermata::Result<()> {
        match &self.0 {
            OfContext::Param(param, value) => {
                card.file.control(context, Control::Param(*param, *value))
            }
            OfContext::Reservation(reservation) => card.file.reserve(context, *reservation),
            OfContext::GroupWeight(weight) => card.file.set_group_weight(context, *weight),
            OfContext::Exclusive(mask) => card.file.reserve_slots(context, *mask),
        }
    }

    /// To our own context.
    pub(crate) fn apply(&self, context: &fermata::Context) -> fermata::Result<()> {
        match &self.0 {
            OfContext::Param(param, value) => context.set_param(*param, *value),
            OfContext::Reservation(reservation) => context.reserve(0, *reservation),
            OfContext::GroupWeight(weight) => context.set_group_weight(0, *weight),
            OfContext::Exclusive(mask) => context.reserve_slots(0, *mask),
        }
    }
}

impl fmt::Display for CardSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl fmt::Display for ContextSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

type Parsed<T> = std::result::Result<T, String>;

/// A time with a unit, or 0.
pub(crate) fn time(text: &str) -> Parsed<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|_| format!("{text}: not a time such as 500us, 2ms, 1s"))
}

/// How long before a job it can be announced.
pub(crate) fn ahead(text: &str) -> Parsed<Duration> {
    const LONGEST: Duration = Duration::from_secs(10);
    match time(text)? {
        ahead if ahead <= LONGEST => Ok(ahead),
        _ => Err("10s is the longest".into()),
    }
}

fn nanoseconds(text: &str) -> Parsed<u64> {
    u64::try_from(time(text)?.as_nanos()).map_err(|_| format!("{text}: too long"))
}

fn number<T: FromStr>(text: &str) -> Parsed<T> {
    text.parse()
        .map_err(|_| format!("{text}: not such a number"))
}

fn yes_or_no(text: &str) -> Parsed<u64> {
    match text {
        "yes" | "1" => Ok(1),
        "no" | "0" => Ok(0),
        _ => Err(format!("{text}: neither yes nor no")),
    }
}

/// Slots, as a mask.
fn slots(text: &str) -> Parsed<u32> {
    text.split(',').try_fold(0, |mask, slot| {
        let bit = 1_u32.checked_shl(number(slot)?);
        Ok(mask | bit.ok_or(format!("{slot}: no slot"))?)
    })
}

fn reservation(text: &str) -> Parsed<Option<Reservation>> {
    if text == "none" {
        return Ok(None);
    }
    let times = text.split('/').map(time).collect::<Parsed<Vec<_>>>()?;
    match times[..] {
        [budget, deadline, period] => Ok(Some(Reservation {
            budget,
            deadline,
            period,
        })),
        _ => Err(format!("{text}: neither none nor BUDGET/DEADLINE/PERIOD")),
    }
}

fn policy(text: &str) -> Parsed<Policy> {
    Policy::named(text).ok_or_else(|| {
        let names = Policy::ALL.map(Policy::name);
        format!("{text}: no policy; there are {}", names.join(", "))
    })
}

fn of_card(name: &str, value: &str) -> Option<Parsed<OfCard>> {
    Some(match name {
        "policy" => policy(value).map(OfCard::Policy),
        "guard" => time(value).map(OfCard::Guard),
        "shared" => slots(value).map(OfCard::Shared),
        _ => return None,
    })
}

fn of_context(name: &str, value: &str) -> Parsed<OfContext> {
    use OfContext::Param as To;
    Ok(match name {
        "timeslice" => To(Param::Timeslice, nanoseconds(value)?),
        "preempt-timeout" => To(Param::PreemptTimeout, nanoseconds(value)?),
        "priority" => To(Param::Priority, number(value)?),
        "weight" => To(Param::Weight, number(value)?),
        "latency-critical" => To(Param::LatencyCritical, yes_or_no(value)?),
        "cap" => To(Param::Cap, number(value)?),
        "share" => To(Param::Share, number(value)?),
        "slots" => To(Param::SlotMask, slots(value)?.into()),
        "cooperative" => To(Param::Cooperative, yes_or_no(value)?),
        "reservation" => OfContext::Reservation(reservation(value)?),
        "group-weight" => OfContext::GroupWeight(number(value)?),
        "exclusive" => OfContext::Exclusive(slots(value)?),
        _ => {
            return Err(format!(
                "{name}: nothing that can be set: see `fermatactl set --help`"
            ))
        }
    })
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Parsed<Self> {
        let parts = text.split_once('=');
        let (name, value) = parts.ok_or(format!("{text}: not NAME=VALUE"))?;
        match of_card(name, value) {
            Some(setting) => Ok(Self::Card(CardSetting(setting?, text.into()))),
            None => Ok(Self::Context(ContextSetting(
                of_context(name, value)?,
                text.into(),
            ))),
        }
    }
}

impl FromStr for ContextSetting {
    type Err = String;

    fn from_str(text: &str) -> Parsed<Self> {
        match text.parse()? {
            Setting::Context(setting) => Ok(setting),
            Setting::Card(_) => Err(format!("{text}: of a card, not of a context")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        let param = |text: &str| match text.parse::<ContextSetting>() {
            Ok(ContextSetting(OfContext::Param(_, value), _)) => value,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(param("timeslice=2ms"), 2_000_000);
        assert_eq!(param("preempt-timeout=1s"), 1_000_000_000);
        assert_eq!(param("latency-critical=yes"), 1);
        assert_eq!(param("slots=0,2"), 0b101);
        let bad = [
            "timeslice=2",
            "priority=high",
            "slots=",
            "slots=32",
            "cooperative=2",
            "policy=best",
            "what=1",
            "7",
        ];
        for text in bad {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
        assert!("policy=fair".parse::<ContextSetting>().is_err());
    }

    #[test]
    fn reservations_are_three_times() {
        let ms = Duration::from_millis;
        let three = reservation("2ms/5ms/10ms").unwrap().unwrap();
        assert_eq!(
            (three.budget, three.deadline, three.period),
            (ms(2), ms(5), ms(10))
        );
        assert_eq!(reservation("none"), Ok(None));
        assert!(reservation("2ms/5ms").is_err());
    }
}
