// SPDX-License-Identifier: GPL-2.0-or-later
//! The manifests of packaging/kubernetes are what Kubernetes reads, and suit this program.

use crate::options::Options;
use crate::{Arguments, Command};
use clap::Parser as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::{de::DeserializeOwned, Deserialize as _, Serialize};
use serde_json::Value;

const PLUGIN: &str = include_str!("../../../packaging/kubernetes/plugin.yaml");
const PODS: &str = include_str!("../../../packaging/kubernetes/pods.yaml");

fn documents(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// Returns a document as its type. Every word of the document must be one of the type's fields.
fn typed<T: DeserializeOwned + Serialize>(document: &Value) -> T {
    let typed: T = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&typed).unwrap(), document);
    typed
}

/// Returns the container of a manifest, and the arguments of this program in it.
fn container(spec: &PodSpec) -> (&Container, Arguments) {
    let [container] = &spec.containers[..] else {
        panic!("one container")
    };
    let arguments = container.args.iter().flatten().cloned();
    let arguments = ["fermata-kubernetes".into()].into_iter().chain(arguments);
    (container, Arguments::try_parse_from(arguments).unwrap())
}

/// Where a path of the container is on the node.
fn on_node(spec: &PodSpec, path: &str) -> String {
    let mounts = spec.containers[0].volume_mounts.iter().flatten();
    let mount = mounts
        .clone()
        .find(|mount| mount.mount_path == path)
        .unwrap();
    let volume = spec
        .volumes
        .iter()
        .flatten()
        .find(|volume| volume.name == mount.name)
        .unwrap();
    volume.host_path.as_ref().unwrap().path.clone()
}

fn version_of(image: Option<&String>) -> &str {
    image.unwrap().rsplit_once(':').unwrap().1
}

#[test]
fn the_plugin_has_what_it_needs() {
    let [document] = &documents(PLUGIN)[..] else {
        panic!("one document")
    };
    let spec = typed::<DaemonSet>(document).spec.unwrap();
    assert_eq!(
        spec.selector.match_labels,
        spec.template.metadata.unwrap().labels
    );
    let spec = spec.template.spec.unwrap();
    let (container, arguments) = container(&spec);
    assert_eq!(
        version_of(container.image.as_ref()),
        env!("CARGO_PKG_VERSION")
    );
    let Command::Plugin(options) = arguments.command;
    let usual = Options::default();
    assert_eq!(options.shares, usual.shares);
    let directory = usual.directory.to_str().unwrap();
    assert_eq!(options.directory, usual.directory);
    assert_eq!(on_node(&spec, directory), directory);
    assert_eq!(
        on_node(&spec, options.cgroup_root.to_str().unwrap()),
        usual.cgroup_root.to_str().unwrap()
    );
    assert_eq!(on_node(&spec, "/dev"), "/dev");
}

#[test]
fn the_pods_share_a_card() {
    let shares = documents(PODS).into_iter().map(|document| {
        let spec = typed::<Pod>(&document).spec.unwrap();
        let container = &spec.containers[0];
        assert_eq!(
            version_of(container.image.as_ref()),
            env!("CARGO_PKG_VERSION")
        );
        let limits = container
            .resources
            .as_ref()
            .unwrap()
            .limits
            .as_ref()
            .unwrap();
        limits[&Options::default().resource]
            .0
            .parse::<u32>()
            .unwrap()
    });
    assert_eq!(shares.sum::<u32>(), Options::default().shares);
}
