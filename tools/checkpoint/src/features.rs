// SPDX-License-Identifier: GPL-2.0-or-later
//! The features that a checkpoint needs (docs/checkpoint.md): a restorer that does not know one of
//! them refuses the checkpoint.

use crate::description::{Description, DEPTH};
use crate::Refusal;
use fermata::Param;
use serde::Deserialize;

const COOPERATIVE: &str = "cooperative";
const RESERVATION: &str = "reservation";
const KNOWN: [&str; 2] = [COOPERATIVE, RESERVATION];
/// Maximum length of a feature's name.
const NAME_MAX: usize = 32;

/// The list in a description; all other fields are ignored, because an unknown feature may bring
/// unknown fields.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    features: Vec<String>,
}

/// Returns the names of the features that the context of `description` uses.
pub(crate) fn needed(description: &Description) -> Vec<String> {
    let cooperative = (Param::Cooperative.number(), 1);
    let used = [
        (COOPERATIVE, description.parameters.contains(&cooperative)),
        (RESERVATION, description.reservation.is_some()),
    ];
    let needed = used.into_iter().filter(|(_, is_used)| *is_used);
    needed.map(|(name, _)| name.into()).collect()
}

/// Checks that all features that an encoded description names are known. Nothing else of the
/// description is checked.
pub(crate) fn check(description: &[u8]) -> Result<(), Refusal> {
    let listed: Listed = ciborium::de::from_reader_with_recursion_limit(description, DEPTH)
        .map_err(|error| Refusal::Inconsistent(format!("the list of features: {error}")))?;
    for name in listed.features {
        if !is_name(&name) {
            return Err(Refusal::Inconsistent("the name of a feature".into()));
        }
        if !KNOWN.contains(&&name[..]) {
            return Err(Refusal::Feature(name));
        }
    }
    Ok(())
}

/// Returns whether `name` can be the name of a feature, which is safe to print.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{Account, Job, ReservationDescription};

    #[test]
    fn a_feature_is_named_where_it_is_used() {
        let mut description = Description {
            interface: 1,
            features: Vec::new(),
            engine: [5, 7],
            job: Job::None,
            state_bytes: 4096,
            arena: None,
            registers: Vec::new(),
            results: Vec::new(),
            parameters: vec![(1, 1), (Param::Cooperative.number(), 0)],
            reservation: None,
            account: Account::default(),
        };
        assert!(needed(&description).is_empty());
        description.parameters[1].1 = 1;
        assert_eq!(needed(&description), [COOPERATIVE]);
        description.reservation = Some(ReservationDescription {
            budget_ns: 1,
            deadline_ns: 2,
            period_ns: 3,
        });
        description.features = needed(&description);
        assert_eq!(description.features, KNOWN);
        assert_eq!(
            Description::from_bytes(&description.to_bytes()).unwrap(),
            description
        );
    }
}
