// SPDX-License-Identifier: GPL-2.0-or-later
//! The calls of the kubelet to a DRA driver, and the claims that are prepared on the node.

use crate::cards::{Card, Cards};
use crate::claim::{self, Claim, Grant};
use crate::options::DraOptions;
use crate::plugin::CDI_KIND;
use crate::slice::device_name;
use crate::weights;
use anyhow::{bail, ensure, Context as _, Result};
use fermata_kubernetes::dra::{
    self, dra_plugin_server::DraPlugin, Device, NodePrepareResourceResponse,
    NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourceResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use fermata_kubernetes::health::{
    dra_resource_health_server::DraResourceHealth, DeviceHealth, DeviceIdentifier, HealthStatus,
    NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{watch, Mutex};
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

/// How often pods are given what they lack: contexts come at any time.
const PERIOD: Duration = Duration::from_secs(1);
/// After how many periods claims are read again: more pods may use them.
const REFRESH: u32 = 30;
/// How often the health of cards is told; the kubelet takes devices as unknown after 30 s.
const HEALTH: Duration = Duration::from_secs(5);
/// How long the API server may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// The state that is kept in a file, because a kubelet prepares a claim once.
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

/// Claims that are prepared; `None`: not read since the program has started.
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
    /// Returns a driver with the claims that a former program has prepared.
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

    /// Gives pods what their claims have. Returns whether one of them is there.
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
            match weights::settle(&self.options.node.cgroup_root, &by_name, pod, &devices) {
                Ok(done) => is_there |= done,
                // The others get theirs.
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

    /// Ends a claim. Settings end with the pods' cgroups.
    async fn unprepare(&self, name: &ClaimKey) -> Result<()> {
        let mut claims = self.claims.lock().await;
        claims.remove(name);
        self.keep(&claims)
    }

    /// Gives pods what they lack, for as long as the program runs.
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

/// Replaces a file in one step, which holds after a power failure, too: the driver does not start
/// with a part of the file.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Says what went wrong with a claim to the log, and returns the words for the kubelet.
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
