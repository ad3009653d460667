// SPDX-License-Identifier: GPL-2.0-or-later
//! Settings of the form NAME=VALUE: parsed for `set`, which acts on any context, and for `run`,
//! which acts on its own context.

use crate::advice::Call;
use crate::card::Card;
use crate::number::{number_in, time_in, Parsed};
use fermata::{uapi, Control, GroupSettings, Param, Policy, Reservation};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

// The ranges in `uapi/fermata.h`.
pub(crate) const PRIORITIES: RangeInclusive<u64> = 0..=GroupSettings::MAX_PRIORITY as u64;
pub(crate) const WEIGHTS: RangeInclusive<u64> = 1..=GroupSettings::MAX_WEIGHT as u64;
/// Ranges of reservations.
const BUDGET_MIN: Duration = Duration::from_micros(100);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A setting of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfCard {
    Policy(Policy),
    Boost(Duration),
}

/// A setting of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfContext {
    Param(Param, u64),
    Reservation(Option<Reservation>),
}

/// A setting of a card, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardSetting(OfCard, String);

/// A setting of a context, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextSetting(OfContext, String);

/// A setting of a card or of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Card(CardSetting),
    Context(ContextSetting),
}

impl CardSetting {
    pub(crate) fn apply(&self, card: &Card) -> fermata::Result<()> {
        match &self.0 {
            OfCard::Policy(policy) => card.file.set_policy(*policy),
            OfCard::Boost(boost) => card.file.set_boost(*boost),
        }
    }

    /// The call that [`CardSetting::apply`] makes.
    pub(crate) const CALL: Call = Call::PolicyWrite;
}

impl ContextSetting {
    /// Applies the setting to the context with this number.
    pub(crate) fn apply_to(&self, card: &Card, context: u32) -> fermata::Result<()> {
        match &self.0 {
            OfContext::Param(param, value) => {
                card.file.control(context, Control::Param(*param, *value))
            }
            OfContext::Reservation(reservation) => card.file.reserve(context, *reservation),
        }
    }

    /// Applies the setting to the own context.
    pub(crate) fn apply(&self, context: &fermata::Context) -> fermata::Result<()> {
        match &self.0 {
            OfContext::Param(param, value) => context.set_param(*param, *value),
            OfContext::Reservation(reservation) => context.reserve(0, *reservation),
        }
    }

    /// The call that [`ContextSetting::apply_to`] makes.
    pub(crate) fn call_for_any(&self) -> Call {
        match self.0 {
            OfContext::Param(param, _) => Call::ControlParam(param),
            OfContext::Reservation(_) => Call::ReserveAny,
        }
    }

    /// The call that [`ContextSetting::apply`] makes.
    pub(crate) fn call(&self) -> Call {
        match self.0 {
            OfContext::Param(param, _) => Call::Param(param),
            OfContext::Reservation(_) => Call::Reserve,
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

/// Parses a time within a range of nanoseconds.
fn nanoseconds(text: &str, range: RangeInclusive<u64>) -> Parsed<u64> {
    let (least, most) = range.into_inner();
    let range = Duration::from_nanos(least)..=Duration::from_nanos(most);
    time_in(text, &range).map(|time| time.as_nanos() as u64)
}

fn yes_or_no(text: &str) -> Parsed<u64> {
    match text {
        "yes" | "1" => Ok(1),
        "no" | "0" => Ok(0),
        _ => Err(format!("{text}: neither yes nor no")),
    }
}

/// Parses slots into a mask.
pub(crate) fn slots(text: &str) -> Parsed<u32> {
    const LAST: u64 = uapi::MAX_SLOTS as u64 - 1;
    let mut slots = text.split(',').map(|slot| number_in(slot, &(0..=LAST)));
    slots.try_fold(0, |mask, slot| Ok(mask | 1 << slot?))
}

fn boost(text: &str) -> Parsed<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let boost = time_in(text, &(10 * MILLISECOND..=60 * SECOND));
    let boost = boost.map_err(|error| format!("{error}, or 0 for none"))?;
    if boost.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!("{text}: give whole milliseconds"));
    }
    Ok(boost)
}

fn reservation(text: &str) -> Parsed<Option<Reservation>> {
    if text == "none" {
        return Ok(None);
    }
    let Ok([budget, deadline, period]) = <[&str; 3]>::try_from(text.split('/').collect::<Vec<_>>())
    else {
        return Err(format!("{text}: neither none nor BUDGET/DEADLINE/PERIOD"));
    };
    let period = time_in(period, &(MILLISECOND..=10 * SECOND));
    let period = period.map_err(|error| format!("period {error}"))?;
    let deadline = time_in(deadline, &(BUDGET_MIN..=period));
    let deadline = deadline.map_err(|error| format!("deadline {error}, which is the period"))?;
    let budget = time_in(budget, &(BUDGET_MIN..=deadline));
    let budget = budget.map_err(|error| format!("budget {error}, which is the deadline"))?;
    Ok(Some(Reservation {
        budget,
        deadline,
        period,
    }))
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
        "boost" => boost(value).map(OfCard::Boost),
        _ => return None,
    })
}

fn of_context(name: &str, value: &str) -> Parsed<OfContext> {
    use OfContext::Param as To;
    Ok(match name {
        "timeslice" => To(
            Param::Timeslice,
            nanoseconds(value, 100_000..=10_000_000_000)?,
        ),
        "preempt-timeout" => To(
            Param::PreemptTimeout,
            nanoseconds(value, 1_000_000..=10_000_000_000)?,
        ),
        "priority" => To(Param::Priority, number_in(value, &PRIORITIES)?),
        "weight" => To(Param::Weight, number_in(value, &WEIGHTS)?),
        "latency-critical" => To(Param::LatencyCritical, yes_or_no(value)?),
        "cap" => To(Param::Cap, number_in(value, &(0..=100))?),
        "slots" => To(Param::SlotMask, slots(value)?.into()),
        "cooperative" => To(Param::Cooperative, yes_or_no(value)?),
        "reservation" => OfContext::Reservation(reservation(value)?),
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
