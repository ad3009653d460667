// SPDX-License-Identifier: GPL-2.0-or-later
//! The options of the device plugin and of the DRA driver.

use crate::shares;
use crate::slice::Capacity;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Arguments of both: the cards and the pods of the node.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodeOptions {
    /// Shares of each card, 1 to 100; a share has the weight of a group for which nothing is set
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
    /// How cards come into containers
    #[arg(long, value_enum, default_value = "node")]
    pub(crate) pass: Pass,
    /// The resource that pods ask for
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

/// How cards come into containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pass {
    /// The kubelet tells the runtime the card's node
    #[default]
    Node,
    /// The kubelet (from 1.29) tells the runtime a device of CDI, which /etc/cdi/fermata.json has
    Cdi,
    /// The same by an annotation, for older kubelets
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
