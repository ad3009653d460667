// SPDX-License-Identifier: GPL-2.0-or-later
//! The device plugin: its socket, its registration with each kubelet that starts, and the kubelet's
//! calls.

use crate::cards::{self, Card, Cards};
use crate::shares::{self, Share};
use crate::{cgroup, socket, Options, Pass};
use anyhow::{bail, Context as _, Result};
use fermata_kubernetes::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use fermata_kubernetes::deviceplugin::registration_client::RegistrationClient;
use fermata_kubernetes::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
    ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Response, Status};

/// The kind of the devices in the specification that `fermatactl cdi generate` writes.
pub(crate) const CDI_KIND: &str = "fermata.dev/card";

/// Options of the plugin that the kubelet needs to know.
pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};

/// The device plugin.
#[derive(Clone)]
pub(crate) struct Plugin {
    pub(crate) options: Arc<Options>,
    pub(crate) cards: watch::Receiver<Cards>,
}

impl Plugin {
    /// Returns the devices of all cards.
    fn devices(cards: &Cards, shares: u32) -> ListAndWatchResponse {
        let devices = cards.iter().flat_map(|(address, card)| {
            (0..shares).map(|number| Device {
                id: share_of(address, number),
                health: if card.is_healthy() {
                    "Healthy"
                } else {
                    "Unhealthy"
                }
                .into(),
                topology: card.numa_node.map(|id| TopologyInfo {
                    nodes: vec![NumaNode { id }],
                }),
            })
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }

    /// Returns what a container receives for its shares.
    fn container(&self, names: &[String]) -> Result<ContainerAllocateResponse> {
        if names.is_empty() {
            bail!("the kubelet asks for no share");
        }
        let cards = self.cards.borrow();
        let mut of_container = BTreeMap::new();
        for name in names {
            let share = Share::parse(name)?;
            let card = cards.get(&share.card);
            let known = card.filter(|_| share.number < self.options.node.shares);
            let card = known.with_context(|| format!("this node has no share {name}"))?;
            if !card.is_healthy() {
                bail!("the card {} is not healthy", share.card);
            }
            of_container.insert(share.card, card);
        }
        Ok(pass(self.options.pass, &of_container))
    }

    /// Gives the pod that has these shares the weight of all of its shares.
    fn start(&self, names: &[String]) -> Result<()> {
        let pods = shares::read_pods(&self.options.directory, &self.options.resource)?;
        let uid = shares::owner(&pods, names)?;
        let cgroups = &self.options.node.cgroup_root;
        if !cgroup::set_weights(cgroups, &self.cards.borrow(), uid, &pods[uid])? {
            bail!(
                "the pod {uid} has no cgroup below {}: the kubelet has to run with cgroupsPerQOS, and its cgroupRoot \
                 as --cgroup-root",
                cgroups.display()
            );
        }
        Ok(())
    }

    /// Gives all pods their weights again, for cards that have come back.
    pub(crate) fn start_all(&self) {
        let pods = match shares::read_pods(&self.options.directory, &self.options.resource) {
            Ok(pods) => pods,
            Err(error) => return crate::say(&format!("{error:#}")),
        };
        for (uid, names) in &pods {
            // A pod without a cgroup has ended, or has not begun.
            if let Err(error) = cgroup::set_weights(
                &self.options.node.cgroup_root,
                &self.cards.borrow(),
                uid,
                names,
            ) {
                crate::say(&format!("{error:#}"));
            }
        }
    }
}

fn share_of(card: &str, number: u32) -> String {
    Share {
        card: card.into(),
        number,
    }
    .to_string()
}

/// Returns how cards are passed to a container.
fn pass(way: Pass, cards: &BTreeMap<String, &Card>) -> ContainerAllocateResponse {
    let mut response = ContainerAllocateResponse::default();
    let names = cards.keys().map(|address| format!("{CDI_KIND}={address}"));
    match way {
        Pass::Node => {
            let nodes = cards.values().map(|card| card.node.to_string_lossy());
            response.devices = nodes
                .map(|path| DeviceSpec {
                    container_path: path.to_string(),
                    host_path: path.to_string(),
                    permissions: "rw".into(),
                })
                .collect();
        }
        Pass::Cdi => response.cdi_devices = names.map(|name| CdiDevice { name }).collect(),
        Pass::CdiAnnotation => {
            let names: Vec<_> = names.collect();
            response.annotations = [("cdi.k8s.io/fermata".into(), names.join(","))].into();
        }
    }
    response
}

/// Reports what went wrong to the kubelet, which shows the text to the user of the pod, and to the
/// plugin's log.
fn refuse(error: &anyhow::Error) -> Status {
    let words = format!("fermata: {error:#}");
    crate::say(&words);
    Status::failed_precondition(words)
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let shares = self.options.node.shares;
        let cards = WatchStream::new(self.cards.clone());
        let devices = cards.map(move |cards| Ok(Self::devices(&cards, shares)));
        Ok(Response::new(Box::pin(devices)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let containers = request.into_inner().container_requests.into_iter();
        let chosen = containers.map(|container| {
            let size = usize::try_from(container.allocation_size)?;
            let device_i_ds = shares::prefer(
                &container.available_device_i_ds,
                &container.must_include_device_i_ds,
                size,
            )?;
            Ok(ContainerPreferredAllocationResponse { device_i_ds })
        });
        let container_responses = chosen
            .collect::<Result<_>>()
            .map_err(|error| refuse(&error))?;
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests;
        let responses = containers
            .iter()
            .map(|container| self.container(&container.devices_ids));
        let container_responses = responses
            .collect::<Result<_>>()
            .map_err(|error| refuse(&error))?;
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.start(&request.into_inner().devices_ids)
            .map_err(|error| refuse(&error))?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// The version of the interface that the plugin serves.
const VERSION: &str = "v1beta1";
const SOCKET: &str = "fermata.sock";
const KUBELET: &str = "kubelet.sock";
/// How often sockets are checked: a kubelet that starts removes the sockets of all plugins.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a kubelet may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Serves shares of all cards until a signal comes.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn serve(options: Options) -> Result<()> {
    socket::for_root_only();
    let (cards, following) = cards::follow();
    let plugin = Plugin {
        options: options.into(),
        cards: cards.clone(),
    };
    tokio::select! {
        done = serve_kubelet(&plugin) => done,
        () = keep_weights(&plugin, cards) => Ok(()),
        done = following => done.context("the cards"),
        done = socket::signal_comes() => done,
    }
}

/// Gives pods their weights on each card that appears, and when the plugin starts.
async fn keep_weights(plugin: &Plugin, mut cards: watch::Receiver<Cards>) {
    let mut known = Vec::new();
    loop {
        let now: Vec<_> = {
            let cards = cards.borrow_and_update();
            let there = cards.iter().filter(|(_, card)| card.is_there());
            there
                .map(|(address, card)| (address.clone(), card.binding))
                .collect()
        };
        if now.iter().any(|card| !known.contains(card)) {
            plugin.start_all();
        }
        known = now;
        if cards.changed().await.is_err() {
            return;
        }
    }
}

/// Returns what distinguishes a socket from another socket of the same name.
fn identity(path: &Path) -> Option<(u64, i64, i64)> {
    let there = fs::symlink_metadata(path).ok()?;
    Some((there.ino(), there.ctime(), there.ctime_nsec()))
}

/// Serves one kubelet after the other.
async fn serve_kubelet(plugin: &Plugin) -> Result<()> {
    let directory = &plugin.options.directory;
    let (own, kubelet) = (directory.join(SOCKET), directory.join(KUBELET));
    loop {
        let current = kubelet_at(&kubelet).await;
        let incoming = socket::listen(&own)?;
        let mine = identity(&own);
        let service = Server::builder().add_service(DevicePluginServer::new(plugin.clone()));
        let server = tokio::spawn(service.serve_with_incoming(incoming));
        if register(&kubelet, &plugin.options.resource).await? {
            while identity(&own) == mine && identity(&kubelet) == Some(current) {
                sleep(PERIOD).await;
            }
        } else {
            sleep(PERIOD).await;
        }
        server.abort();
    }
}

/// Waits for a kubelet.
async fn kubelet_at(path: &Path) -> (u64, i64, i64) {
    let mut said = false;
    loop {
        if let Some(identity) = identity(path) {
            return identity;
        }
        if !said {
            crate::say(&format!("waiting for a kubelet at {}", path.display()));
            said = true;
        }
        sleep(PERIOD).await;
    }
}

/// Registers the plugin. Returns whether the kubelet has answered. A kubelet that refuses the
/// plugin is an error.
async fn register(kubelet: &Path, resource: &str) -> Result<bool> {
    let endpoint = Endpoint::try_from(format!("unix://{}", kubelet.display()))?;
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: SOCKET.into(),
        resource_name: resource.into(),
        options: Some(OPTIONS),
    };
    let answer = async {
        let channel = endpoint
            .connect_timeout(LIMIT)
            .timeout(LIMIT)
            .connect()
            .await;
        let channel = channel.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        RegistrationClient::new(channel).register(request).await
    };
    match answer.await {
        Ok(_) => {
            crate::say(&format!("the kubelet has registered {resource}"));
            Ok(true)
        }
        // The kubelet has left its socket, or is about to end or to start.
        Err(status)
            if matches!(
                status.code(),
                Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded
            ) =>
        {
            crate::say(&format!("{}: {}", kubelet.display(), status.message()));
            Ok(false)
        }
        Err(status) => bail!(
            "the kubelet refuses to register {resource}: {}",
            status.message()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;

    fn card(number: u32, slots: u32) -> Card {
        Card {
            node: format!("/dev/fermata{number}").into(),
            binding: 1,
            numa_node: Some(1).filter(|_| number == 0),
            engines: [("engine".into(), slots)].into(),
        }
    }

    fn plugin(pass: Pass) -> Plugin {
        let cards = [
            ("a".into(), card(0, 1)),
            ("b".into(), card(1, 2)),
            ("c".into(), card(2, 0)),
        ];
        let node = NodeOptions {
            shares: 3,
            ..Options::default().node
        };
        let options = Options {
            node,
            pass,
            ..Options::default()
        };
        Plugin {
            options: options.into(),
            cards: watch::channel(cards.into()).1,
        }
    }

    fn names(names: &str) -> Vec<String> {
        names.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn shares_are_listed_with_health_and_place() {
        let plugin = plugin(Pass::Node);
        let devices = Plugin::devices(&plugin.cards.borrow(), 3).devices;
        let told: Vec<_> = devices
            .iter()
            .map(|device| {
                let node = device
                    .topology
                    .as_ref()
                    .map(|topology| topology.nodes[0].id);
                (&device.id[..], &device.health[..], node)
            })
            .collect();
        assert_eq!(told.len(), 9);
        assert_eq!(told[1], ("a-1", "Healthy", Some(1)));
        assert_eq!(told[3], ("b-0", "Healthy", None));
        assert_eq!(told[8], ("c-2", "Unhealthy", None));
    }

    #[test]
    fn cards_come_into_containers_in_one_way() {
        let got = plugin(Pass::Node).container(&names("b-0 a-0 b-2")).unwrap();
        let nodes: Vec<_> = got
            .devices
            .iter()
            .map(|node| &node.container_path[..])
            .collect();
        assert_eq!(nodes, ["/dev/fermata0", "/dev/fermata1"]);
        assert!(got
            .devices
            .iter()
            .all(|node| node.host_path == node.container_path && node.permissions == "rw"));
        assert!(got.cdi_devices.is_empty() && got.annotations.is_empty());

        let got = plugin(Pass::Cdi).container(&names("a-0 a-2")).unwrap();
        let devices: Vec<_> = got
            .cdi_devices
            .iter()
            .map(|device| &device.name[..])
            .collect();
        assert_eq!(devices, ["fermata.dev/card=a"]);
        assert!(got.devices.is_empty() && got.annotations.is_empty());

        let got = plugin(Pass::CdiAnnotation)
            .container(&names("a-0 b-2"))
            .unwrap();
        assert_eq!(
            got.annotations["cdi.k8s.io/fermata"],
            "fermata.dev/card=a,fermata.dev/card=b"
        );
        assert!(got.devices.is_empty() && got.cdi_devices.is_empty());
    }

    #[test]
    fn shares_that_are_not_there_are_refused() {
        for (wanted, words) in [
            ("a-3", "no share a-3"),
            ("a-0 d-0", "no share d-0"),
            ("c-0", "not healthy"),
            ("a", "not the name"),
            ("", "no share"),
        ] {
            let error = plugin(Pass::Node).container(&names(wanted)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
