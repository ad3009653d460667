// SPDX-License-Identifier: GPL-2.0-or-later
//! Values on the command line: numbers, sizes and times, and settings of the form NAME=VALUE, for
//! `set`, which acts on any context, and for `run`, which acts on its own context. An error names the
//! range.

use crate::advice::Call;
use crate::card::Card;
use crate::format;
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

pub(crate) type Parsed<T> = Result<T, String>;

/// Parses a number, decimal or 0x….
pub(crate) fn number(text: &str) -> Parsed<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        format!("{text} is no number of at most 64 bits: give it in decimal or as 0x…")
    })
}

/// Parses a number within a range, which has no end if the end is `u64::MAX`.
pub(crate) fn number_in(text: &str, range: &RangeInclusive<u64>) -> Parsed<u64> {
    let (least, most) = (range.start(), range.end());
    match number(text)? {
        value if range.contains(&value) => Ok(value),
        _ if *most == u64::MAX => Err(format!("{text} is out of range: give {least} or more")),
        _ => Err(format!("{text} is out of range: give {least} to {most}")),
    }
}

/// Parses a size in bytes: a number, with K, M, G or T for powers of 1024.
pub(crate) fn size(text: &str) -> Parsed<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        Some((at, 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|bytes| bytes.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text} is not a size: give one as 4096, 64K, 512M, 2G"))
}

/// Parses a number of repetitions.
pub(crate) fn count(text: &str) -> Parsed<u64> {
    number_in(text, &(1..=u64::MAX))
}

/// Parses the number of a context. For the driver 0 means the caller's own context, so 0 is
/// refused.
pub(crate) fn context(text: &str) -> Parsed<u32> {
    const ADVICE: &str = "`fermatactl list` shows the numbers of contexts";
    let number = text.parse::<u32>().ok().filter(|number| *number != 0);
    number.ok_or_else(|| {
        format!(
            "{text} is not the number of a context (1 to {}): {ADVICE}",
            u32::MAX
        )
    })
}

/// Parses a time with a unit, or 0.
pub(crate) fn time(text: &str) -> Parsed<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|_| format!("{text} is no time: give one as 500us, 2ms, 1s"))
}

/// Parses a time within a range, which has no end if the end is [`Duration::MAX`].
pub(crate) fn time_in(text: &str, range: &RangeInclusive<Duration>) -> Parsed<Duration> {
    let shown = |time: &Duration| format::time(time.as_nanos() as u64);
    let (least, most) = (range.start(), range.end());
    match time(text)? {
        value if range.contains(&value) => Ok(value),
        _ if *most == Duration::MAX => Err(format!(
            "{text} is out of range: give {} or more",
            shown(least)
        )),
        _ => Err(format!(
            "{text} is out of range: give {} to {}",
            shown(least),
            shown(most)
        )),
    }
}

/// Parses the time from a hint to the start of the job.
pub(crate) fn ahead(text: &str) -> Parsed<Duration> {
    time_in(text, &(Duration::from_micros(1)..=Duration::from_secs(10)))
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

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "0x", "0xg", "1.5", "18446744073709551616"] {
            assert!(number(text).unwrap_err().contains("is no number"), "{text}");
        }
    }

    #[test]
    fn ranges_hold_and_are_named() {
        assert_eq!(number_in("31", &(0..=31)), Ok(31));
        assert_eq!(
            number_in("32", &(0..=31)).unwrap_err(),
            "32 is out of range: give 0 to 31"
        );
        assert_eq!(count("0").unwrap_err(), "0 is out of range: give 1 or more");
        assert!(context("0").is_err() && context("4294967296").is_err());
        assert_eq!(context("4294967295"), Ok(u32::MAX));
        assert_eq!(ahead("10s"), Ok(Duration::from_secs(10)));
        for text in ["0", "0s", "10001ms", "999ns"] {
            let error = ahead(text).unwrap_err();
            assert_eq!(error, format!("{text} is out of range: give 1us to 10s"));
        }
        let from = time_in("0", &(Duration::from_millis(1)..=Duration::MAX));
        assert_eq!(from.unwrap_err(), "0 is out of range: give 1ms or more");
    }
}
