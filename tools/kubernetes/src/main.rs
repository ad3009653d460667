// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-kubernetes`: shares of cards for the pods of a node (docs/deploy/kubernetes.md).

mod cards;
mod cgroup;
mod claim;
mod dra;
mod plugin;
mod shares;
mod slice;
mod socket;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fermata_output::complain;
use slice::Capacity;
use std::path::PathBuf;
use std::process::ExitCode;

/// Give the pods of a Kubernetes node shares of cards
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve shares of all cards as a device plugin (v1beta1)
    Plugin(Options),
    /// Serve claims of all cards as a driver for dynamic resource allocation (resource.k8s.io/v1)
    Dra(DraOptions),
}

/// Writes a line to the log.
fn say(words: &str) {
    complain!("fermata-kubernetes: {words}");
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Plugin(options) => plugin::serve(options),
        Command::Dra(options) => dra::serve(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Arguments of both commands: the cards and the pods of the node.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodeOptions {
    /// Shares of each card, 1 to 100; a share has the default weight of a group
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(shares::MOST)))]
    pub(crate) shares: u32,
    /// The cgroup (version 2) in which the kubelet makes kubepods
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    pub(crate) cgroup_root: PathBuf,
}

/// The arguments of `fermata-kubernetes plugin`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// How cards are passed to containers
    #[arg(long, value_enum, default_value = "node")]
    pub(crate) pass: Pass,
    /// The resource that pods request
    #[arg(long, value_name = "NAME", default_value = "fermata.dev/share")]
    pub(crate) resource: String,
    /// Where the kubelet has the sockets of plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub(crate) directory: PathBuf,
}

/// The arguments of `fermata-kubernetes dra`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DraOptions {
    /// The name of the node in the cluster
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: String,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// Memory for the arenas and snapshots of each card's claims, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) arena_memory_mib: u64,
    /// Where the kubelet has the folders of plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins")]
    pub(crate) plugins: PathBuf,
    /// Where the kubelet looks for plugins that register
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins_registry"
    )]
    pub(crate) registry: PathBuf,
}

impl DraOptions {
    pub(crate) fn capacity(&self) -> Capacity {
        Capacity {
            shares: self.node.shares,
            arena_memory: self.arena_memory_mib << 20,
        }
    }
}

/// How cards are passed to containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pass {
    /// The kubelet gives the runtime the card's node
    #[default]
    Node,
    /// The kubelet (from 1.29) gives the runtime a CDI device, which is described in
    /// /etc/cdi/fermata.json
    Cdi,
    /// Like cdi, by an annotation, for older kubelets
    CdiAnnotation,
}

#[cfg(test)]
impl Default for Options {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            options: Options,
        }
        <Command as clap::Parser>::parse_from(["plugin"]).options
    }
}

/// Checks that the manifests of packaging/kubernetes are valid for Kubernetes, and match this
/// program.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::DRIVER;
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
    use serde::de::DeserializeOwned;
    use serde::{Deserialize as _, Serialize};
    use serde_json::Value;
    use std::collections::BTreeSet;

    const PLUGIN: &str = include_str!("../../../packaging/kubernetes/plugin.yaml");
    const DRA: &str = include_str!("../../../packaging/kubernetes/dra.yaml");
    const CLAIMS: &str = include_str!("../../../packaging/kubernetes/claims.yaml");
    const PODS: &str = include_str!("../../../packaging/kubernetes/pods.yaml");

    fn documents(text: &str) -> Vec<Value> {
        let documents = serde_yaml_ng::Deserializer::from_str(text);
        documents
            .map(|document| Value::deserialize(document).unwrap())
            .collect()
    }

    /// Returns a document as its type. Every key of the document must be one of the type's fields.
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

    /// Returns where a path of the container is on the node.
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
        let Command::Plugin(options) = arguments.command else {
            panic!("the device plugin")
        };
        let usual = Options::default();
        assert_eq!(options.node.shares, usual.node.shares);
        let directory = usual.directory.to_str().unwrap();
        assert_eq!(options.directory, usual.directory);
        assert_eq!(on_node(&spec, directory), directory);
        assert_eq!(
            on_node(&spec, options.node.cgroup_root.to_str().unwrap()),
            usual.node.cgroup_root.to_str().unwrap()
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
        assert_eq!(shares.sum::<u32>(), Options::default().node.shares);
    }

    #[test]
    fn the_driver_has_what_it_needs() {
        let mut kinds = Vec::new();
        for document in documents(DRA) {
            kinds.push(document["kind"].as_str().unwrap().to_string());
            match &kinds.last().unwrap()[..] {
                "ServiceAccount" => drop(typed::<ServiceAccount>(&document)),
                "ClusterRole" => drop(typed::<ClusterRole>(&document)),
                "ClusterRoleBinding" => drop(typed::<ClusterRoleBinding>(&document)),
                "DeviceClass" => drop(typed::<DeviceClass>(&document)),
                "DaemonSet" => {
                    let spec = typed::<DaemonSet>(&document).spec.unwrap();
                    assert_eq!(
                        spec.selector.match_labels,
                        spec.template.metadata.unwrap().labels
                    );
                    let spec = spec.template.spec.unwrap();
                    let env = spec.containers[0].env.iter().flatten();
                    let names: Vec<_> = env.map(|variable| &variable.name[..]).collect();
                    assert_eq!(names, ["NODE_NAME"]);
                    // A copy with the name of a node, as the kubelet would set the variable.
                    let mut with_name = spec.clone();
                    let arguments = with_name.containers[0].args.as_mut().unwrap();
                    arguments.push("--node-name=n1".into());
                    let (container, arguments) = container(&with_name);
                    assert_eq!(
                        version_of(container.image.as_ref()),
                        env!("CARGO_PKG_VERSION")
                    );
                    let Command::Dra(options) = arguments.command else {
                        panic!("the driver")
                    };
                    for path in [&options.plugins, &options.registry] {
                        let path = path.to_str().unwrap();
                        assert_eq!(on_node(&spec, path), path);
                    }
                    assert_eq!(
                        on_node(&spec, options.node.cgroup_root.to_str().unwrap()),
                        "/sys/fs/cgroup"
                    );
                    assert_eq!(on_node(&spec, "/dev"), "/dev");
                }
                kind => panic!("{kind}"),
            }
        }
        let wanted = [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "DaemonSet",
            "DeviceClass",
            "DeviceClass",
        ];
        assert_eq!(kinds, wanted);
    }

    #[test]
    fn claims_are_of_classes_and_templates_that_are_there() {
        let classes: BTreeSet<String> = documents(DRA)
            .iter()
            .filter(|document| document["kind"] == "DeviceClass")
            .map(|document| document["metadata"]["name"].as_str().unwrap().into())
            .collect();
        let mut templates = BTreeSet::new();
        for document in documents(CLAIMS) {
            if document["kind"] == "Pod" {
                let spec = typed::<Pod>(&document).spec.unwrap();
                assert_eq!(
                    version_of(spec.containers[0].image.as_ref()),
                    env!("CARGO_PKG_VERSION")
                );
                let claims = spec.resource_claims.unwrap();
                assert!(
                    templates.contains(claims[0].resource_claim_template_name.as_ref().unwrap())
                );
                let used = spec.containers[0]
                    .resources
                    .as_ref()
                    .unwrap()
                    .claims
                    .as_ref()
                    .unwrap();
                assert_eq!(used[0].name, claims[0].name);
            } else {
                let template = typed::<ResourceClaimTemplate>(&document);
                for request in template.spec.spec.devices.unwrap().requests.unwrap() {
                    let class = request.exactly.unwrap().device_class_name;
                    assert!(classes.contains(&class) && class.ends_with(DRIVER));
                }
                templates.insert(template.metadata.name.unwrap());
            }
        }
        assert_eq!(templates.len(), 3);
    }
}
