// SPDX-License-Identifier: GPL-2.0-or-later
//! The settings that a `ResourceClaim` gives to pods.

use crate::cgroup::is_uid;
use crate::shares;
use crate::slice::{Capacity, ARENA_MEMORY, DRIVER, SHARES};
use anyhow::{bail, ensure, Context as _, Result};
use fermata::GroupSettings;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The priority of contexts whose priority was never set.
const DEFAULT_PRIORITY: u32 = 16;

/// The driver's parameters in a `DeviceClass` or a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CardConfig {
    /// Priority of the pod's contexts, and the highest priority that they can have.
    priority: Option<u32>,
    /// Weight of each share.
    weight: Option<u32>,
    /// The pod's jobs preempt best-effort jobs at once.
    latency_critical: Option<bool>,
    /// Cap for all of the pod's contexts, in percent of a slot.
    cap: Option<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
enum Parameters {
    CardConfig {
        #[serde(rename = "apiVersion")]
        api_version: String,
        #[serde(flatten)]
        fields: BTreeMap<String, serde_json::Value>,
    },
}

impl CardConfig {
    fn read(parameters: &serde_json::Value) -> Result<Self> {
        let Parameters::CardConfig {
            api_version,
            fields,
        } = Parameters::deserialize(parameters)?;
        ensure!(
            api_version == "fermata.dev/v1",
            "apiVersion {api_version} is not fermata.dev/v1"
        );
        let config: Self = serde_json::from_value(serde_json::to_value(fields)?)?;
        let in_range = |what: &str, value: Option<u32>, least: u32, most: u32| {
            let good = value.is_none_or(|value| (least..=most).contains(&value));
            ensure!(good, "{what} has to be {least} to {most}");
            Ok(())
        };
        in_range("priority", config.priority, 0, GroupSettings::MAX_PRIORITY)?;
        in_range("weight", config.weight, 1, GroupSettings::MAX_WEIGHT)?;
        in_range("cap", config.cap, 1, GroupSettings::MAX_CAP)?;
        Ok(config)
    }
}

/// The part of a card that a pod gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) weight: u32,
    pub(crate) bytes: u64,
    pub(crate) priority: Option<u32>,
    pub(crate) latency_critical: bool,
    /// Percent of a slot; 0: no cap.
    pub(crate) cap: u32,
}

/// A part of a card that a claim has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) device: String,
    pub(crate) request: String,
    pub(crate) share_id: Option<String>,
    /// None for the access of an administrator, which takes nothing of the card.
    settings: Option<Settings>,
}

/// A claim, restricted to the devices of the driver on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) grants: Vec<Grant>,
    /// UIDs of the pods that use the claim.
    pub(crate) pods: BTreeSet<String>,
}

impl Claim {
    /// Reads a claim that is allocated in a pool.
    pub(crate) fn read(claim: &ResourceClaim, pool: &str, capacity: Capacity) -> Result<Self> {
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
        let devices = devices.context("the claim is not allocated")?;
        let configs = devices.config.as_deref().unwrap_or_default();
        let results = devices.results.iter().flatten();
        let own = results.filter(|result| result.driver == DRIVER && result.pool == pool);
        let grants = own
            .map(|result| grant(result, configs, capacity))
            .collect::<Result<_>>()?;
        let users = status
            .and_then(|status| status.reserved_for.as_ref())
            .into_iter()
            .flatten();
        let pods = users.filter(|user| {
            user.resource == "pods" && user.api_group.as_deref().unwrap_or_default().is_empty()
        });
        let uid = |uid: &String| {
            ensure!(is_uid(uid), "{uid:?} is not the UID of a pod");
            Ok(uid.clone())
        };
        Ok(Self {
            grants,
            pods: pods.map(|pod| uid(&pod.uid)).collect::<Result<_>>()?,
        })
    }
}

/// Reads what a claim has of a device. A cluster without consumable capacity gives whole devices.
fn grant(
    result: &DeviceRequestAllocationResult,
    configs: &[DeviceAllocationConfiguration],
    capacity: Capacity,
) -> Result<Grant> {
    let has_share = result.admin_access != Some(true);
    let settings = has_share.then(|| settings(result, configs, capacity));
    Ok(Grant {
        device: result.device.clone(),
        request: result.request.clone(),
        share_id: result.share_id.clone(),
        settings: settings.transpose()?,
    })
}

/// Reads the share that a result is of.
fn settings(
    result: &DeviceRequestAllocationResult,
    configs: &[DeviceAllocationConfiguration],
    capacity: Capacity,
) -> Result<Settings> {
    let consumed = |name: &str, whole: u64| match &result.consumed_capacity {
        Some(consumed) => consumed
            .get(name)
            .map_or(Ok(0), |quantity| number(&quantity.0)),
        None => Ok(whole),
    };
    let shares = consumed(SHARES, capacity.shares.into())?;
    let config = config_of(&result.request, configs)?;
    let weight = shares.saturating_mul(config.weight.unwrap_or(shares::WEIGHT).into());
    let weight = u32::try_from(weight)
        .ok()
        .filter(|weight| (1..=GroupSettings::MAX_WEIGHT).contains(weight));
    Ok(Settings {
        weight: weight.with_context(|| {
            format!(
                "{shares} shares have no weight of 1 to {}",
                GroupSettings::MAX_WEIGHT
            )
        })?,
        bytes: consumed(ARENA_MEMORY, capacity.arena_memory)?,
        priority: config.priority,
        latency_critical: config.latency_critical.unwrap_or(false),
        cap: config.cap.unwrap_or(0),
    })
}

/// Returns the driver's parameters for a request. Claims are written by users, so a claim can only
/// lower the cap of its class.
fn config_of(request: &str, configs: &[DeviceAllocationConfiguration]) -> Result<CardConfig> {
    let mut found = CardConfig::default();
    for config in configs {
        let requests = config.requests.as_deref().unwrap_or_default();
        let is_for = |name: &String| {
            name == request
                || request
                    .split_once('/')
                    .is_some_and(|(main, _)| main == name)
        };
        if !requests.is_empty() && !requests.iter().any(is_for) {
            continue;
        }
        let Some(opaque) = config
            .opaque
            .as_ref()
            .filter(|opaque| opaque.driver == DRIVER)
        else {
            continue;
        };
        let one =
            CardConfig::read(&opaque.parameters.0).context("the parameters for fermata.dev")?;
        if config.source == "FromClass" {
            found = CardConfig {
                priority: one.priority.or(found.priority),
                weight: one.weight.or(found.weight),
                latency_critical: one.latency_critical.or(found.latency_critical),
                cap: one.cap.or(found.cap),
            };
        } else {
            let asked = CardConfig { cap: None, ..one };
            if asked != CardConfig::default() {
                bail!(
                    "only a DeviceClass can set priority, weight and latencyCritical, not a claim"
                );
            }
            found.cap = found.cap.into_iter().chain(one.cap).min();
        }
    }
    Ok(found)
}

/// Parses a whole number with a unit, in the form in which the API server writes quantities.
fn number(text: &str) -> Result<u64> {
    const UNITS: [(&str, u64); 12] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("", 1),
    ];
    let read = UNITS.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = digits.parse().ok().filter(|_| is_number)?;
        number.checked_mul(*factor)
    });
    read.with_context(|| format!("{text} is no whole quantity"))
}

/// Returns what a pod gets of each device from all of its claims. Pods that share a claim share
/// what the claim has.
pub(crate) fn of_pod<'a>(
    claims: impl Iterator<Item = &'a Claim>,
    pod: &str,
) -> BTreeMap<String, Settings> {
    let mut devices: BTreeMap<String, Vec<Settings>> = BTreeMap::new();
    let own = claims.filter(|claim| claim.pods.contains(pod));
    for (claim, grant) in own.flat_map(|claim| claim.grants.iter().map(move |grant| (claim, grant)))
    {
        let (Some(one), users) = (grant.settings, claim.pods.len() as u64) else {
            continue;
        };
        let part = Settings {
            weight: (u64::from(one.weight) / users).max(1) as u32,
            bytes: (one.bytes / users).max(1),
            // 0 would be no cap.
            cap: (one.cap / users as u32).max(one.cap.min(1)),
            ..one
        };
        devices.entry(grant.device.clone()).or_default().push(part);
    }
    let sums = devices
        .into_iter()
        .map(|(device, parts)| (device, sum(&parts)));
    sums.collect()
}

/// Adds up what a pod has of a device by several grants. All contexts of the pod have the urgency
/// and the priority of the most urgent grant, so only the caps of such grants limit the pod: a
/// plain share does not raise the cap of an urgent grant.
fn sum(parts: &[Settings]) -> Settings {
    let priority = parts.iter().filter_map(|part| part.priority).max();
    let is_raised = priority.is_some_and(|priority| priority > DEFAULT_PRIORITY);
    let latency_critical = parts.iter().any(|part| part.latency_critical);
    let caps = [
        sum_of_caps(parts, |part| !latency_critical || part.latency_critical),
        sum_of_caps(parts, |part| !is_raised || part.priority == priority),
    ];
    let weight: u32 = parts.iter().map(|part| part.weight).sum();
    let bytes = parts.iter().map(|part| part.bytes);
    Settings {
        weight: weight.min(GroupSettings::MAX_WEIGHT),
        bytes: bytes.fold(0, u64::saturating_add),
        priority,
        latency_critical,
        cap: caps.into_iter().flatten().min().unwrap_or(0),
    }
}

/// Returns the sum of the caps of the grants for which `counts` holds. `None`: one of them has no
/// cap.
fn sum_of_caps(parts: &[Settings], counts: impl Fn(&Settings) -> bool) -> Option<u32> {
    let caps = parts
        .iter()
        .filter(|part| counts(part))
        .map(|part| part.cap);
    let sum: Option<u32> = caps.map(|cap| (cap > 0).then_some(cap)).sum();
    sum.map(|cap| cap.min(GroupSettings::MAX_CAP))
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "values of json!()")]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    const CAPACITY: Capacity = Capacity {
        shares: 10,
        arena_memory: 1 << 30,
    };

    /// A claim with results and configurations, for pods.
    fn read(results: Value, config: Value, pods: &[&str]) -> Result<Claim> {
        let pods: Vec<_> = pods
            .iter()
            .map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}))
            .collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": config}}, "reservedFor": pods}});
        Claim::read(&serde_json::from_value(claim)?, "n1", CAPACITY)
    }

    fn result(request: &str, device: &str, consumed: Value) -> Value {
        json!({"driver": DRIVER, "pool": "n1", "request": request, "device": device, "shareID": "s",
            "consumedCapacity": consumed})
    }

    fn config(source: &str, requests: Value, mut parameters: Value) -> Value {
        parameters["apiVersion"] = "fermata.dev/v1".into();
        parameters["kind"] = "CardConfig".into();
        json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
    }

    fn settings(claim: &Claim, pod: &str, device: &str) -> Settings {
        of_pod([claim].into_iter(), pod)[device]
    }

    #[test]
    fn consumed_capacity_is_weight_and_memory() {
        let other = json!({"driver": "example.com", "pool": "n1", "request": "r", "device": "gpu"});
        let elsewhere = json!({"driver": DRIVER, "pool": "n2", "request": "r", "device": "card"});
        let claim = read(
            json!([
                other,
                elsewhere,
                result("r", "card", json!({"shares": "9", "arenaMemory": "512Mi"}))
            ]),
            json!(null),
            &["p"],
        )
        .unwrap();
        assert_eq!(claim.grants.len(), 1);
        assert_eq!(claim.grants[0].share_id.as_deref(), Some("s"));
        let wanted = Settings {
            weight: 900,
            bytes: 512 << 20,
            ..Settings::default()
        };
        assert_eq!(settings(&claim, "p", "card"), wanted);
        let whole = read(json!([result("r", "card", json!(null))]), json!([]), &["p"]).unwrap();
        assert_eq!(
            (
                settings(&whole, "p", "card").weight,
                settings(&whole, "p", "card").bytes
            ),
            (1000, 1 << 30)
        );
    }

    #[test]
    fn access_of_an_administrator_takes_no_share() {
        let mut admin = result("r", "card", json!(null));
        admin["adminAccess"] = true.into();
        let plain = result("s", "card", json!({"shares": "2", "arenaMemory": "4Ki"}));
        let claim = read(json!([admin.clone()]), json!([]), &["p"]).unwrap();
        assert_eq!(claim.grants[0].device, "card");
        assert!(of_pod([&claim].into_iter(), "p").is_empty());
        let both = read(json!([admin, plain]), json!([]), &["p"]).unwrap();
        assert_eq!(settings(&both, "p", "card").weight, 200);
    }

    #[test]
    fn a_class_sets_what_a_claim_cannot() {
        let results = json!([
            result("r", "a", json!({"shares": "2", "arenaMemory": "4Ki"})),
            result("s/first", "b", json!({"shares": "1", "arenaMemory": "4Ki"})),
        ]);
        let all = json!({"priority": 7, "weight": 50, "latencyCritical": true, "cap": 60});
        let claim = read(
            results.clone(),
            json!([
                config("FromClass", json!(["r"]), all.clone()),
                config("FromClaim", json!(["s"]), json!({"cap": 80})),
                config("FromClaim", json!([]), json!({"cap": 90})),
                {"source": "FromClaim", "opaque": {"driver": "example.com", "parameters": {"any": "thing"}}},
            ]),
            &["p"],
        )
        .unwrap();
        let wanted = Settings {
            weight: 100,
            bytes: 4096,
            priority: Some(7),
            latency_critical: true,
            cap: 60,
        };
        assert_eq!(settings(&claim, "p", "a"), wanted);
        assert_eq!(settings(&claim, "p", "b").cap, 80);
        assert_eq!(settings(&claim, "p", "b").priority, None);

        for (parameters, words) in [
            (json!({"priority": 1}), "only a DeviceClass"),
            (json!({"latencyCritical": false}), "only a DeviceClass"),
            (json!({"weight": 100, "cap": 5}), "only a DeviceClass"),
            (json!({"cap": 0}), "cap has to be"),
            (json!({"cap": 801}), "cap has to be"),
            (json!({"caps": 8}), "caps"),
        ] {
            let error = read(
                results.clone(),
                json!([config("FromClaim", json!([]), parameters)]),
                &["p"],
            );
            let words_of = format!("{:#}", error.unwrap_err());
            assert!(words_of.contains(words), "{words_of}");
        }
        let kind = json!([{"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {"kind": "Other"}}}]);
        assert!(read(results.clone(), kind, &["p"]).is_err());
        let heavy = json!([config("FromClass", json!([]), json!({"weight": 10_000}))]);
        assert!(read(results, heavy, &["p"]).is_err());
    }

    #[test]
    fn pods_share_what_their_claims_have() {
        let results = json!([result(
            "r",
            "card",
            json!({"shares": "3", "arenaMemory": "12Ki"})
        )]);
        let caps = json!([config("FromClaim", json!([]), json!({"cap": 25}))]);
        let shared = read(results.clone(), caps.clone(), &["p", "q"]).unwrap();
        let own = read(results.clone(), json!([]), &["p"]).unwrap();
        let part = settings(&shared, "q", "card");
        assert_eq!((part.weight, part.bytes, part.cap), (150, 6144, 12));
        let both = of_pod([&shared, &own].into_iter(), "p")["card"];
        assert_eq!((both.weight, both.bytes, both.cap), (450, 6144 + 12288, 0));
        assert!(of_pod([&shared].into_iter(), "x").is_empty());

        let uids: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        let uids: Vec<_> = uids.iter().map(String::as_str).collect();
        let cap = |pods: usize| {
            let claim = read(results.clone(), caps.clone(), &uids[..pods]).unwrap();
            settings(&claim, "0", "card").cap
        };
        assert_eq!([cap(1), cap(3), cap(13), cap(20)], [25, 8, 1, 1]);
    }

    #[test]
    fn a_plain_share_does_not_lift_the_cap_of_an_urgent_one() {
        let part = |latency_critical, priority, cap| Settings {
            weight: 100,
            bytes: 4096,
            priority,
            latency_critical,
            cap,
        };
        let (plain, slow) = (part(false, None, 0), part(false, None, 20));
        let (critical, high) = (part(true, None, 50), part(false, Some(20), 30));
        let cap = |parts: &[Settings]| sum(parts).cap;
        for (parts, wanted) in [
            (&[plain, slow][..], 0),
            (&[slow, slow], 40),
            (&[critical, plain], 50),
            (&[plain, critical], 50),
            (&[critical, slow, critical], 100),
            (&[high, plain], 30),
            (&[high, critical], 30),
            (&[part(false, Some(20), 0), critical], 50),
            (&[high, part(false, Some(17), 0)], 30),
            (&[part(true, Some(20), 0), critical, plain], 0),
            // A lower priority is no advantage.
            (&[part(false, Some(2), 10), plain], 0),
            (&[part(true, None, 500), part(true, None, 500)], 800),
        ] {
            assert_eq!(cap(parts), wanted, "{parts:?}");
        }
        let both = sum(&[plain, part(true, Some(20), 50)]);
        assert_eq!((both.latency_critical, both.priority), (true, Some(20)));
    }

    #[test]
    fn claims_of_what_is_no_uid_are_refused() {
        let results = json!([result("r", "card", json!({"shares": "1"}))]);
        for uid in ["", "../../x", "a/b"] {
            let error = read(results.clone(), json!([]), &["p", uid]).unwrap_err();
            assert!(error.to_string().contains("UID"), "{error}");
        }
    }

    #[test]
    fn quantities_are_whole() {
        for (text, wanted) in [
            ("0", 0),
            ("9", 9),
            ("4Ki", 4096),
            ("3k", 3000),
            ("1Ei", 1 << 60),
        ] {
            assert_eq!(number(text).unwrap(), wanted);
        }
        for text in [
            "",
            "Ki",
            "-1",
            "+1",
            "1.5",
            "1500m",
            "1e3",
            "16Ei",
            "1 Gi",
            "99999999999999999999",
        ] {
            assert!(number(text).is_err(), "{text}");
        }
        let claim = read(
            json!([result("r", "card", json!({"shares": "0"}))]),
            json!([]),
            &["p"],
        );
        assert!(claim.is_err());
        let unallocated = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        assert!(Claim::read(&unallocated, "n1", CAPACITY).is_err());
    }
}
