// SPDX-License-Identifier: GPL-2.0-or-later
//! The DRA driver: its sockets, its registration, the node's slice of resources, the kubelet's
//! calls, and the claims that are prepared on the node.

use crate::cards::{self, Card, Cards};
use crate::claim::{self, Claim, Grant};
use crate::plugin::CDI_KIND;
use crate::slice::{self, device_name, Capacity, Node, DRIVER};
use crate::{cgroup, socket, DraOptions};
use anyhow::{bail, ensure, Context as _, Result};
use fermata_kubernetes::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use fermata_kubernetes::dra::{
    self, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use fermata_kubernetes::health::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use fermata_kubernetes::health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use fermata_kubernetes::registration::registration_server::{Registration, RegistrationServer};
use fermata_kubernetes::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch, Mutex};
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The services of the driver, as the kubelet names them.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
/// Delay after a failure until the slice is written again.
const RETRY: Duration = Duration::from_secs(5);
/// How long the answer to a refusal may take.
const ANSWER: Duration = Duration::from_secs(1);
/// How often the slice is compared with the API server's.
const COMPARE_PERIOD: Duration = Duration::from_secs(60);
/// How long the API server may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Serves claims of all cards until a signal comes.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn serve(options: DraOptions) -> Result<()> {
    socket::for_root_only();
    let (cards, following) = cards::follow();
    let client = Client::try_default().await.context("the API server")?;
    let (node, capacity) = (options.node_name.clone(), options.capacity());
    let registry = options.registry.clone();
    let driver = Driver::new(options, cards.clone(), client.clone())?;
    let folder = driver.folder();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let endpoint = folder.join("dra.sock");
    let service = Server::builder()
        .add_service(DraPluginServer::new(driver.clone()))
        .add_service(DraResourceHealthServer::new(driver.clone()))
        .serve_with_incoming(socket::listen(&endpoint)?);
    let (refusal, mut refused) = mpsc::channel(1);
    let registration = Server::builder()
        .add_service(RegistrationServer::new(Registrar { endpoint, refusal }))
        // The kubelet looks for new sockets here.
        .serve_with_incoming(socket::listen(
            &registry.join(format!("{DRIVER}-reg.sock")),
        )?);
    tokio::select! {
        done = service => done.context("the service"),
        done = registration => done.context("the registration"),
        Some(words) = answered(&mut refused) => bail!("the kubelet refuses to register {DRIVER}: {words}"),
        () = driver.keep_settled() => Ok(()),
        () = publish(&client, &node, capacity, cards) => Ok(()),
        done = following => done.context("the cards"),
        done = socket::signal_comes() => done,
    }
}

/// Waits for a refusal, and gives the kubelet time to receive the answer to it.
async fn answered(refused: &mut mpsc::Receiver<String>) -> Option<String> {
    let words = refused.recv().await;
    sleep(ANSWER).await;
    words
}

/// Answers the kubelet's plugin watcher.
struct Registrar {
    endpoint: PathBuf,
    refusal: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.to_string_lossy().into(),
            supported_versions: SERVICES.map(Into::into).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            crate::say(&format!("the kubelet has registered {DRIVER}"));
        } else {
            // One pending refusal suffices.
            let _ = self.refusal.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Keeps the node's slice in the API server up to date with the cards.
async fn publish(
    client: &Client,
    node: &str,
    capacity: Capacity,
    mut cards: watch::Receiver<Cards>,
) {
    loop {
        let now = cards.borrow_and_update().clone();
        let done = timeout(LIMIT, write(client, node, capacity, &now)).await;
        match done
            .context("the API server does not answer")
            .and_then(|done| done)
        {
            // The kubelet removes the slice when it has had no driver for some time.
            Ok(()) => {
                if let Ok(Err(_)) = timeout(COMPARE_PERIOD, cards.changed()).await {
                    return;
                }
            }
            Err(error) => {
                crate::say(&format!("the slice of {node}: {error:#}"));
                sleep(RETRY).await;
            }
        }
    }
}

/// Writes the node's slice if the API server has a different one.
async fn write(client: &Client, node: &str, capacity: Capacity, cards: &Cards) -> Result<()> {
    let devices = slice::devices(cards, capacity);
    let there = Api::<v1::Node>::all(client.clone()).get(node).await?;
    let node = Node {
        name: node.into(),
        uid: there.metadata.uid.context("the node has no UID")?,
    };
    let api = Api::<ResourceSlice>::all(client.clone());
    let Some(former) = api.get_opt(&node.slice_name()).await? else {
        api.create(&PostParams::default(), &node.slice(devices, 1))
            .await?;
        return Ok(());
    };
    let generation = former.spec.pool.generation;
    if former.spec == node.slice(devices.clone(), generation).spec {
        return Ok(());
    }
    let mut slice = node.slice(devices, generation + 1);
    slice.metadata.resource_version = former.metadata.resource_version;
    api.replace(&node.slice_name(), &PostParams::default(), &slice)
        .await?;
    Ok(())
}

/// How often pods are given what they lack. Contexts may be opened at any time.
const PERIOD: Duration = Duration::from_secs(1);
/// After how many periods claims are read again, because more pods may use them.
const REFRESH: u32 = 30;
/// How often the health of cards is reported. The kubelet regards devices as unknown after 30 s.
const HEALTH: Duration = Duration::from_secs(5);

/// The name of a claim. The names of prepared claims are kept in a file, because a kubelet prepares
/// a claim only once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ClaimKey {
    namespace: String,
    name: String,
    uid: String,
}

impl From<&dra::Claim> for ClaimKey {
    fn from(claim: &dra::Claim) -> Self {
        Self {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        }
    }
}

/// Claims that are prepared; `None`: not read since the program started.
type Claims = BTreeMap<ClaimKey, Option<Claim>>;

/// The DRA driver.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) options: Arc<DraOptions>,
    pub(crate) cards: watch::Receiver<Cards>,
    client: Client,
    claims: Arc<Mutex<Claims>>,
}

impl Driver {
    /// Returns a driver with the claims that a previous program has prepared.
    pub(crate) fn new(
        options: DraOptions,
        cards: watch::Receiver<Cards>,
        client: Client,
    ) -> Result<Self> {
        let driver = Self {
            options: options.into(),
            cards,
            client,
            claims: Arc::default(),
        };
        let file = driver.file();
        let names: Vec<ClaimKey> = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{}: remove it", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => bail!("{}: {error}", file.display()),
        };
        let claims = names.into_iter().map(|name| (name, None)).collect();
        Ok(Self {
            claims: Arc::new(Mutex::new(claims)),
            ..driver
        })
    }

    /// Returns the driver's folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.options.plugins.join(crate::slice::DRIVER)
    }

    fn file(&self) -> PathBuf {
        self.folder().join("claims.json")
    }

    /// Writes which claims are prepared.
    fn keep(&self, claims: &Claims) -> Result<()> {
        let names: Vec<_> = claims.keys().collect();
        let file = self.file();
        replace(&file, &serde_json::to_vec(&names)?).with_context(|| file.display().to_string())
    }

    /// Reads a claim from the API server.
    async fn read(&self, name: &ClaimKey) -> Result<Claim> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &name.namespace);
        let read = timeout(LIMIT, api.get(&name.name)).await;
        let claim = read
            .context("the API server does not answer")?
            .context("the API server")?;
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        ensure!(
            uid == name.uid,
            "the claim of this name has the UID {uid}, not {}",
            name.uid
        );
        Claim::read(&claim, &self.options.node_name, self.options.capacity())
    }

    /// Gives pods what their claims have. Returns whether one of the pods exists.
    fn settle(&self, claims: &Claims, pods: &BTreeSet<String>) -> Result<bool> {
        let cards = self.cards.borrow();
        let by_name: BTreeMap<String, &Card> = cards
            .iter()
            .map(|(address, card)| (device_name(address), card))
            .collect();
        let mut is_there = false;
        let mut first = Ok(());
        for pod in pods {
            let devices = claim::of_pod(claims.values().flatten(), pod);
            match cgroup::settle(&self.options.node.cgroup_root, &by_name, pod, &devices) {
                Ok(done) => is_there |= done,
                // The other pods still get theirs.
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.map(|()| is_there)
    }

    async fn prepare(&self, name: &ClaimKey) -> Result<Vec<Device>> {
        let claim = self.read(name).await?;
        let addresses: BTreeMap<String, String> = self
            .cards
            .borrow()
            .keys()
            .map(|address| (device_name(address), address.clone()))
            .collect();
        let device = |grant: &Grant| {
            let address = addresses
                .get(&grant.device)
                .with_context(|| format!("no card is {}", grant.device))?;
            Ok(Device {
                request_names: vec![grant.request.clone()],
                pool_name: self.options.node_name.clone(),
                device_name: grant.device.clone(),
                cdi_device_ids: vec![format!("{CDI_KIND}={address}")],
                share_id: grant.share_id.clone(),
            })
        };
        let devices = claim.grants.iter().map(device).collect::<Result<_>>()?;
        let mut claims = self.claims.lock().await;
        let former = claims.insert(name.clone(), Some(claim.clone()));
        let done = self.settle(&claims, &claim.pods).and_then(|is_there| {
            ensure!(
                is_there,
                "no pod of the claim has a cgroup below {}: the kubelet has to run with cgroupsPerQOS, and its \
                 cgroupRoot as --cgroup-root",
                self.options.node.cgroup_root.display()
            );
            self.keep(&claims)
        });
        if let Err(error) = done {
            match former {
                Some(former) => claims.insert(name.clone(), former),
                None => claims.remove(name),
            };
            return Err(error);
        }
        Ok(devices)
    }

    /// Ends a claim. Its settings end with the pods' cgroups.
    async fn unprepare(&self, name: &ClaimKey) -> Result<()> {
        let mut claims = self.claims.lock().await;
        claims.remove(name);
        self.keep(&claims)
    }

    /// Gives pods what they lack, as long as the program runs.
    pub(crate) async fn keep_settled(&self) {
        let mut said = String::new();
        for period in 0.. {
            if period % REFRESH == 0 {
                self.refresh().await;
            }
            let claims = self.claims.lock().await;
            let pods = claims
                .values()
                .flatten()
                .flat_map(|claim| claim.pods.iter().cloned())
                .collect();
            let words = match self.settle(&claims, &pods) {
                Ok(_) => String::new(),
                Err(error) => format!("{error:#}"),
            };
            drop(claims);
            if words != said && !words.is_empty() {
                crate::say(&words);
            }
            said = words;
            sleep(PERIOD).await;
        }
    }

    /// Reads all claims again, because more pods may use them.
    async fn refresh(&self) {
        let names: Vec<ClaimKey> = self.claims.lock().await.keys().cloned().collect();
        for name in names {
            match self.read(&name).await {
                Ok(read) => {
                    if let Some(claim) = self.claims.lock().await.get_mut(&name) {
                        *claim = Some(read);
                    }
                }
                Err(error) => crate::say(&format!(
                    "the claim {}/{}: {error:#}",
                    name.namespace, name.name
                )),
            }
        }
    }
}

/// Replaces a file in one step, which also holds after a power failure: the driver never starts
/// with a part of the file.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Logs what went wrong with a claim, and returns the text for the kubelet.
fn told(claim: &dra::Claim, error: &anyhow::Error) -> String {
    let words = format!("{error:#}");
    crate::say(&format!(
        "the claim {}/{}: {words}",
        claim.namespace, claim.name
    ));
    words
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut response = NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let answer = match self.prepare(&ClaimKey::from(&claim)).await {
                Ok(devices) => NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Err(error) => NodePrepareResourceResponse {
                    devices: Vec::new(),
                    error: told(&claim, &error),
                },
            };
            response.claims.insert(claim.uid, answer);
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut response = NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let done = self.unprepare(&ClaimKey::from(&claim)).await;
            let error = done.map_or_else(|error| told(&claim, &error), |()| String::new());
            response
                .claims
                .insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(response))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Driver {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let driver = self.clone();
        let health = IntervalStream::new(interval(HEALTH)).map(move |_| Ok(driver.health()));
        Ok(Response::new(Box::pin(health)))
    }
}

impl Driver {
    fn health(&self) -> NodeWatchResourcesResponse {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let cards = self.cards.borrow();
        let devices = cards.iter().map(|(address, card)| DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: self.options.node_name.clone(),
                device_name: device_name(address),
            }),
            health: if card.is_healthy() {
                HealthStatus::Healthy
            } else {
                HealthStatus::Unhealthy
            }
            .into(),
            last_updated_time: now.as_secs().try_into().unwrap_or(i64::MAX),
            health_check_timeout_seconds: 0,
            message: if card.is_healthy() {
                String::new()
            } else {
                "an engine has no slot that serves jobs".into()
            },
        });
        NodeWatchResourcesResponse {
            devices: devices.collect(),
        }
    }
}
