// SPDX-License-Identifier: GPL-2.0-or-later
//! The file that determines what accounts and QOS mean on a card.

use anyhow::{ensure, Context as _, Result};
use fermata::GroupSettings;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// The ranges of the driver.
const WEIGHTS: RangeInclusive<u32> = 1..=GroupSettings::MAX_WEIGHT;
const PRIORITIES: RangeInclusive<u32> = 0..=GroupSettings::MAX_PRIORITY;
const CAPS: RangeInclusive<u32> = 0..=GroupSettings::MAX_CAP;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Parts of a card that `gres.conf` counts.
    pub(crate) shards: u32,
    #[serde(default)]
    default: Terms,
    #[serde(default)]
    account: BTreeMap<String, Terms>,
    #[serde(default)]
    qos: BTreeMap<String, Terms>,
}

/// The terms of an account or a QOS. `None`: the term of the account, or the default, applies.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Terms {
    weight: Option<u32>,
    max_priority: Option<u32>,
    cap: Option<u32>,
}

/// The terms of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobTerms {
    pub(crate) weight: u32,
    pub(crate) max_priority: u32,
    /// Percent of one slot; 0: no cap.
    pub(crate) cap: u32,
}

impl Settings {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let settings = text.map_err(Into::into).and_then(|text| Self::parse(&text));
        settings.with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let settings: Self = toml::from_str(text)?;
        ensure!(
            (1..=1024).contains(&settings.shards),
            "shards: {} is not from 1 to 1024",
            settings.shards
        );
        settings.default.check("default")?;
        for (kind, all) in [("account", &settings.account), ("qos", &settings.qos)] {
            for (name, terms) in all {
                terms.check(&format!("{kind}.{name}"))?;
            }
        }
        Ok(settings)
    }

    /// Returns the terms of a job with this account and QOS.
    pub(crate) fn terms(&self, account: &str, qos: &str) -> JobTerms {
        let all = [
            self.qos.get(qos),
            self.account.get(account),
            Some(&self.default),
        ];
        let first = |key: fn(&Terms) -> Option<u32>| all.into_iter().flatten().find_map(key);
        JobTerms {
            weight: first(|terms| terms.weight).unwrap_or(100),
            max_priority: first(|terms| terms.max_priority).unwrap_or(*PRIORITIES.end()),
            cap: first(|terms| terms.cap).unwrap_or(0),
        }
    }
}

impl Terms {
    fn check(&self, name: &str) -> Result<()> {
        let values = [
            ("weight", self.weight, WEIGHTS),
            ("max_priority", self.max_priority, PRIORITIES),
            ("cap", self.cap, CAPS),
        ];
        for (key, value, range) in values {
            if let Some(value) = value {
                let (least, most) = (range.start(), range.end());
                ensure!(
                    range.contains(&value),
                    "{name}: {key}: {value} is not from {least} to {most}"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qos_wins_over_an_account_over_the_default() {
        let text =
            "shards = 8\n[default]\nweight = 100\ncap = 10\n[account.a]\nweight = 50\ncap = 20\n\
                    [qos.q]\nweight = 400\n";
        let settings = Settings::parse(text).unwrap();
        let terms = |account, qos| {
            let terms = settings.terms(account, qos);
            (terms.weight, terms.max_priority, terms.cap)
        };
        assert_eq!(terms("", ""), (100, 31, 10));
        assert_eq!(terms("a", "normal"), (50, 31, 20));
        assert_eq!(terms("a", "q"), (400, 31, 20));
        assert_eq!(terms("b", "q"), (400, 31, 10));
    }

    #[test]
    fn what_the_driver_would_refuse_is_refused_by_name() {
        let refusal = |text| format!("{:#}", Settings::parse(text).unwrap_err());
        assert!(refusal("shards = 8\n[qos.q]\nweight = 0").contains("qos.q: weight: 0 is not"));
        assert!(refusal("shards = 8\n[account.a]\ncap = 801").contains("account.a: cap: 801"));
        assert!(refusal("shards = 0").contains("shards: 0"));
        assert!(refusal("shards = 8\n[qos.q]\nwieght = 1").contains("wieght"));
        assert!(refusal("").contains("shards"));
    }

    #[test]
    fn the_example_is_a_file_as_it_has_to_be() {
        let text = include_str!("../../../packaging/slurm/fermata.toml");
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.shards, 8);
        assert_eq!(settings.terms("teaching", "urgent").cap, 50);
    }
}
