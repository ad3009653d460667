// SPDX-License-Identifier: GPL-2.0-or-later
//! Cards as the Kubernetes scheduler sees them: devices of a `ResourceSlice`.

use crate::cards::{Card, Cards};
use fermata::EngineId;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;

/// The name of the driver.
pub(crate) const DRIVER: &str = "fermata.dev";
/// Capacities of a card.
pub(crate) const SHARES: &str = "shares";
pub(crate) const ARENA_MEMORY: &str = "arenaMemory";
/// Arena memory is granted in whole pages.
const PAGE: u64 = 4096;

/// The capacity of a card, of which claims have parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) shares: u32,
    pub(crate) arena_memory: u64,
}

/// Returns the name of the device for the card at a PCI address. Names are DNS labels.
pub(crate) fn device_name(address: &str) -> String {
    format!("card-{}", address.replace([':', '.'], "-"))
}

/// Returns the devices that claims can have: the healthy cards.
pub(crate) fn devices(cards: &Cards, capacity: Capacity) -> Vec<Device> {
    let healthy = cards.iter().filter(|(_, card)| card.is_healthy());
    let devices = healthy.map(|(address, card)| Device {
        name: device_name(address),
        attributes: Some(attributes(address, card)),
        capacity: Some(capacities(capacity)),
        allow_multiple_allocations: Some(true),
        ..Device::default()
    });
    devices.collect()
}

fn attributes(address: &str, card: &Card) -> BTreeMap<String, DeviceAttribute> {
    let string = |text: &str| DeviceAttribute {
        string: Some(text.into()),
        ..DeviceAttribute::default()
    };
    let mut attributes =
        BTreeMap::from([("resource.kubernetes.io/pciBusID".into(), string(address))]);
    if let Some(node) = card.numa_node {
        let node = DeviceAttribute {
            int: Some(node),
            ..DeviceAttribute::default()
        };
        attributes.insert("numaNode".into(), node);
    }
    for (number, uuid) in card.engines.keys().enumerate() {
        attributes.insert(format!("engine{number}"), string(uuid));
        let known = uuid.parse().ok().and_then(EngineId::name);
        if let Some(name) = known {
            let has = DeviceAttribute {
                bool: Some(true),
                ..DeviceAttribute::default()
            };
            attributes.insert(name.into(), has);
        }
    }
    attributes
}

fn capacities(capacity: Capacity) -> BTreeMap<String, DeviceCapacity> {
    let in_steps = |value: u64, default: u64, step: u64| {
        let quantity = |number: u64| Quantity(number.to_string());
        DeviceCapacity {
            value: quantity(value),
            request_policy: Some(CapacityRequestPolicy {
                default: Some(quantity(default)),
                valid_range: Some(CapacityRequestPolicyRange {
                    min: quantity(step),
                    max: None,
                    step: Some(quantity(step)),
                }),
                valid_values: None,
            }),
        }
    };
    let memory = capacity.arena_memory / PAGE * PAGE;
    let of_share = (memory / u64::from(capacity.shares) / PAGE * PAGE).max(PAGE);
    BTreeMap::from([
        (SHARES.into(), in_steps(capacity.shares.into(), 1, 1)),
        (ARENA_MEMORY.into(), in_steps(memory, of_share, PAGE)),
    ])
}

/// The node in the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Node {
    /// Returns the name of the node's slice.
    pub(crate) fn slice_name(&self) -> String {
        format!("{}-{DRIVER}", self.name)
    }

    /// Returns the node's slice. The slice is removed together with the node.
    pub(crate) fn slice(&self, devices: Vec<Device>, generation: i64) -> ResourceSlice {
        ResourceSlice {
            metadata: ObjectMeta {
                name: Some(self.slice_name()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: "Node".into(),
                    name: self.name.clone(),
                    uid: self.uid.clone(),
                    controller: Some(true),
                    block_owner_deletion: None,
                }]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.into(),
                node_name: Some(self.name.clone()),
                pool: ResourcePool {
                    name: self.name.clone(),
                    generation,
                    resource_slice_count: 1,
                },
                devices: Some(devices),
                ..ResourceSliceSpec::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_card_is_a_device_that_claims_share() {
        let sha256 = EngineId::SHA256.to_string();
        let card = |slots| Card {
            node: "/dev/fermata0".into(),
            binding: 1,
            numa_node: Some(2),
            engines: [(sha256.clone(), slots), ("x".into(), 1)].into(),
        };
        let cards = [
            ("0000:00:05.0".into(), card(1)),
            ("0000:00:06.0".into(), card(0)),
        ]
        .into();
        let capacity = Capacity {
            shares: 10,
            arena_memory: 1_000_000,
        };
        let node = Node {
            name: "n1".into(),
            uid: "u".into(),
        };
        let slice = node.slice(devices(&cards, capacity), 3);
        assert_eq!(
            serde_json::to_value(slice).unwrap(),
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {"name": "n1-fermata.dev", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true}]},
                "spec": {
                    "driver": "fermata.dev", "nodeName": "n1",
                    "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
                    "devices": [{
                        "name": "card-0000-00-05-0", "allowMultipleAllocations": true,
                        "attributes": {
                            "engine0": {"string": sha256}, "engine1": {"string": "x"}, "sha256": {"bool": true},
                            "numaNode": {"int": 2}, "resource.kubernetes.io/pciBusID": {"string": "0000:00:05.0"}},
                        "capacity": {
                            "shares": {"value": "10", "requestPolicy":
                                {"default": "1", "validRange": {"min": "1", "step": "1"}}},
                            "arenaMemory": {"value": "999424", "requestPolicy":
                                {"default": "98304", "validRange": {"min": "4096", "step": "4096"}}}}}]}
            })
        );
    }
}
