// SPDX-License-Identifier: GPL-2.0-or-later
//! Shares of cards: their names, what a share is worth, and which shares go well together.

use anyhow::{bail, Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The weight of a share, which is that of a group for which nothing is set.
pub(crate) const WEIGHT: u32 = 100;
/// Shares that a card can have, because a group's weight is 10,000 at most.
pub(crate) const MOST: u32 = 100;

/// A share of a card. The kubelet calls it a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    /// The card's PCI address: a card's number may be another card's after the next boot.
    pub(crate) card: String,
    pub(crate) number: u32,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.card, self.number)
    }
}

impl Share {
    /// Reads the name of a share of a card.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let parts = name.rsplit_once('-');
        let share = parts.and_then(|(card, number)| {
            let card = card.into();
            number.parse().ok().map(|number| Self { card, number })
        });
        let share = share.filter(|share: &Self| share.to_string() == name);
        share.with_context(|| format!("{name} is not the name of a share"))
    }
}

/// Returns how many different shares of each card are among these.
pub(crate) fn count<'a>(
    names: impl IntoIterator<Item = &'a String>,
) -> Result<BTreeMap<String, u32>> {
    let shares: BTreeSet<Share> = names
        .into_iter()
        .map(|name| Share::parse(name))
        .collect::<Result<_>>()?;
    let mut counts = BTreeMap::new();
    for share in shares {
        *counts.entry(share.card).or_default() += 1;
    }
    Ok(counts)
}

/// Chooses `size` shares of those that are available, `wanted` among them, so that they are of few
/// cards, and large requests find a card later.
pub(crate) fn prefer(available: &[String], wanted: &[String], size: usize) -> Result<Vec<String>> {
    let mut chosen: Vec<String> = Vec::new();
    let mut free: BTreeMap<String, BTreeSet<Share>> = BTreeMap::new();
    for name in available.iter().chain(wanted) {
        let share = Share::parse(name)?;
        free.entry(share.card.clone()).or_default().insert(share);
    }
    let mut used = BTreeSet::new();
    for name in wanted {
        let share = Share::parse(name)?;
        if let Some(free) = free.get_mut(&share.card) {
            if free.remove(&share) {
                chosen.push(share.to_string());
            }
        }
        used.insert(share.card);
    }
    while chosen.len() < size {
        let missing = size - chosen.len();
        let next = free.iter().filter(|(_, free)| !free.is_empty());
        // A card that is used already; else the one with the fewest shares that suffice, or with
        // the most.
        let best = next.min_by_key(|(card, free)| {
            let suffices = free.len() >= missing;
            let rest = if suffices {
                free.len()
            } else {
                usize::MAX - free.len()
            };
            (!used.contains(*card), !suffices, rest)
        });
        let Some(card) = best.map(|(card, _)| card.clone()) else {
            bail!(
                "{} shares are asked for, and {} are there",
                size,
                chosen.len()
            );
        };
        let shares = free.remove(&card).unwrap_or_default();
        chosen.extend(shares.iter().take(missing).map(ToString::to_string));
        used.insert(card);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &str) -> Vec<String> {
        names.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn names_are_read_and_written() {
        let share = Share::parse("0000:00:05.0-12").unwrap();
        assert_eq!((&share.card[..], share.number), ("0000:00:05.0", 12));
        assert_eq!(share.to_string(), "0000:00:05.0-12");
        for name in [
            "",
            "0000:00:05.0",
            "a-",
            "a-x",
            "a-+1",
            "a-01",
            "a-4294967296",
        ] {
            assert!(Share::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_share_counts_once() {
        let counts = count(&names("a-0 a-1 b-0 a-1 a-10")).unwrap();
        assert_eq!(counts, BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
    }

    #[test]
    fn shares_are_of_few_cards() {
        let available = names("a-0 a-1 a-2 b-0 b-1 b-2 b-3 c-0 c-1");
        let chosen = |wanted: &str, size| prefer(&available, &names(wanted), size).unwrap();
        assert_eq!(chosen("", 2), names("c-0 c-1"));
        assert_eq!(chosen("", 3), names("a-0 a-1 a-2"));
        assert_eq!(chosen("", 1), names("c-0"));
        assert_eq!(chosen("", 5), names("b-0 b-1 b-2 b-3 c-0"));
        assert_eq!(chosen("b-2", 3), names("b-2 b-0 b-1"));
        assert_eq!(chosen("d-0 a-1", 2), names("d-0 a-1"));
        assert_eq!(chosen("", 0), names(""));
        assert_eq!(chosen("", 9).len(), 9);
        assert!(prefer(&available, &[], 10).is_err());
        assert!(prefer(&names("x"), &[], 1).is_err());
    }
}
