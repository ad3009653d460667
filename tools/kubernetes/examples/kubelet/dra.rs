// SPDX-License-Identifier: GPL-2.0-or-later
//! Uses the DRA driver as the kubelet and the scheduler do, and provides the objects of an API
//! server that the driver uses: a node, slices and claims, with the types of Kubernetes 1.34.

use crate::{Card, Pod, Points, Program, LIMIT};
use anyhow::{Context as _, Result};
use fermata::Context;
use fermata_kubernetes::dra::dra_plugin_client::DraPluginClient;
use fermata_kubernetes::dra::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use fermata_kubernetes::health::dra_resource_health_client::DraResourceHealthClient;
use fermata_kubernetes::health::{HealthStatus, NodeWatchResourcesRequest};
use fermata_kubernetes::registration::registration_client::RegistrationClient;
use fermata_kubernetes::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde::Deserialize as _;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

/// The configuration of docs/deploy/kubernetes.md.
const CLAIMS: &str = include_str!("../../../../packaging/kubernetes/claims.yaml");
const CLASSES: &str = include_str!("../../../../packaging/kubernetes/dra.yaml");

fn objects(text: &str, kind: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let all: Vec<Value> = documents
        .map(Value::deserialize)
        .collect::<Result<_, _>>()?;
    Ok(all
        .into_iter()
        .filter(|object| object["kind"] == kind)
        .collect())
}

fn named(text: &str, kind: &str, name: &str) -> Result<Value> {
    let mut all = objects(text, kind)?.into_iter();
    all.find(|object| object["metadata"]["name"] == name)
        .with_context(|| format!("no {kind} {name}"))
}

/// Returns a template's claim for pods, allocated on a card as by a scheduler.
fn claim(
    template: &str,
    name: &str,
    card: &Card,
    pods: &[&str],
    extra: &[Value],
) -> Result<ResourceClaim> {
    let spec = named(CLAIMS, "ResourceClaimTemplate", template)?["spec"]["spec"].clone();
    let request = &spec["devices"]["requests"][0];
    let class = request["exactly"]["deviceClassName"]
        .as_str()
        .context("no class")?;
    let class = named(CLASSES, "DeviceClass", class)?;
    let from = |source: &str, configs: &Value| {
        let configs = configs.as_array().cloned().unwrap_or_default().into_iter();
        let with = configs.map(|config| json!({"source": source, "opaque": config["opaque"]}));
        with.collect::<Vec<_>>()
    };
    let config = [
        from("FromClass", &class["spec"]["config"]),
        from("FromClaim", &spec["devices"]["config"]),
        extra.to_vec(),
    ];
    let users: Vec<_> = pods
        .iter()
        .map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}))
        .collect();
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")}, "spec": spec,
        "status": {"reservedFor": users, "allocation": {"devices": {"config": config.concat(), "results": [{
            "driver": "fermata.dev", "pool": NODE, "device": device_of(card), "request": request["name"],
            "shareID": format!("share-{name}"), "consumedCapacity": request["exactly"]["capacity"]["requests"]}]}}}});
    Ok(serde_json::from_value(claim)?)
}

fn device_of(card: &Card) -> String {
    format!("card-{}", card.address.replace([':', '.'], "-"))
}

/// Returns a claim in the form in which the kubelet knows it.
fn known(name: &str) -> Claim {
    Claim {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    }
}

/// Folders of a kubelet, and a driver.
struct Session {
    folder: PathBuf,
    driver: Program,
    info: PluginInfo,
    client: DraPluginClient<Channel>,
}

async fn connect(socket: &Path) -> Result<Channel> {
    Ok(Endpoint::try_from(format!("unix://{}", socket.display()))?
        .connect()
        .await?)
}

impl Session {
    async fn start(program: &Path, folder: &Path) -> Result<Self> {
        let (plugins, registry) = (folder.join("plugins"), folder.join("registry"));
        let socket = registry.join("fermata.dev-reg.sock");
        for folder in [&plugins, &registry] {
            fs::create_dir_all(folder)?;
        }
        // A socket of a previous driver.
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(program);
        command.args(["dra", "--shares=10", "--arena-memory-mib=64"]);
        command
            .arg("--plugins")
            .arg(&plugins)
            .arg("--registry")
            .arg(&registry);
        command
            .env("NODE_NAME", NODE)
            .env("KUBECONFIG", folder.join("config"));
        let driver = Program::start(&mut command, folder)?;
        let connected = async {
            loop {
                match connect(&socket).await {
                    Ok(channel) => return channel,
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let channel = timeout(LIMIT, connected)
            .await
            .context("the driver does not register")?;
        let info = RegistrationClient::new(channel)
            .get_info(InfoRequest {})
            .await?
            .into_inner();
        let client = DraPluginClient::new(connect(Path::new(&info.endpoint)).await?);
        Ok(Self {
            folder: folder.into(),
            driver,
            info,
            client,
        })
    }

    async fn notify(&self, plugin_registered: bool, error: &str) -> Result<()> {
        let channel = connect(&self.folder.join("registry/fermata.dev-reg.sock")).await?;
        let status = RegistrationStatus {
            plugin_registered,
            error: error.into(),
        };
        RegistrationClient::new(channel)
            .notify_registration_status(status)
            .await?;
        Ok(())
    }

    /// Prepares a claim. Returns its devices, or the text of an error.
    async fn prepare(&mut self, claim: Claim) -> Result<(Vec<Device>, String)> {
        let uid = claim.uid.clone();
        let request = NodePrepareResourcesRequest {
            claims: vec![claim],
        };
        let mut answer = self
            .client
            .node_prepare_resources(request)
            .await?
            .into_inner();
        let answer = answer.claims.remove(&uid).context("no answer")?;
        Ok((answer.devices, answer.error))
    }

    async fn unprepare(&mut self, name: &str) -> Result<String> {
        let request = NodeUnprepareResourcesRequest {
            claims: vec![known(name)],
        };
        let mut answer = self
            .client
            .node_unprepare_resources(request)
            .await?
            .into_inner();
        Ok(answer
            .claims
            .remove(&format!("uid-{name}"))
            .context("no answer")?
            .error)
    }
}

/// Waits until `holds` returns true.
async fn until(mut holds: impl FnMut() -> bool) -> Result<()> {
    let done = async {
        while !holds() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LIMIT, done)
        .await
        .context("it does not come to hold")
}

async fn registration(
    session: &Session,
    points: &mut Points,
    api: &Api,
    cards: [&Card; 2],
) -> Result<()> {
    let info = &session.info;
    let is_right = info.r#type == "DRAPlugin"
        && info.name == "fermata.dev"
        && info.supported_versions == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
    points.holds("the driver says what it is", is_right, info);
    session.notify(true, "").await?;
    until(|| api.slice().is_some()).await?;
    let slice = api.slice().context("no slice")?;
    let owner = slice
        .metadata
        .owner_references
        .iter()
        .flatten()
        .next()
        .map(|owner| owner.uid.clone());
    let is_of_node =
        slice.spec.node_name.as_deref() == Some(NODE) && owner.as_deref() == Some("node-uid");
    points.holds("its slice is the node's", is_of_node, &slice);
    let devices = slice.spec.devices.iter().flatten();
    let names: Vec<_> = devices.clone().map(|device| device.name.clone()).collect();
    let shared = devices
        .clone()
        .all(|device| device.allow_multiple_allocations == Some(true));
    points.holds(
        "each card is a device that claims share",
        shared && names == cards.map(device_of),
        &names,
    );
    let has = |name: &str| {
        let with = devices.clone().filter(|device| {
            let attributes = device.attributes.as_ref();
            attributes.is_some_and(|attributes| attributes.contains_key(name))
        });
        with.map(|device| device.name.clone()).collect::<Vec<_>>()
    };
    let engines = (has("counter_up"), has("sha256"));
    let is_right = engines == (cards.map(device_of).to_vec(), vec![device_of(cards[1])]);
    points.holds("devices tell their engines", is_right, engines);
    Ok(())
}

async fn claims(
    session: &mut Session,
    points: &mut Points,
    api: &Api,
    card: &Card,
    pods: &mut [Pod; 3],
) -> Result<()> {
    let [heavy, light, urgent] = pods;
    for (template, pod) in [("heavy", &*heavy), ("light", light), ("urgent", urgent)] {
        api.put_claim(claim(template, template, card, &[pod.uid], &[])?);
    }
    let (devices, error) = session.prepare(known("heavy")).await?;
    let wanted = Device {
        request_names: vec!["card".into()],
        pool_name: NODE.into(),
        device_name: device_of(card),
        cdi_device_ids: vec![format!("fermata.dev/card={}", card.address)],
        share_id: Some("share-heavy".into()),
    };
    points.holds(
        "a claim is a device of CDI",
        error.is_empty() && devices == [wanted],
        (devices, error),
    );
    let group = heavy.group(card)?;
    let is_right = (group.weight, group.max_bytes, group.cap) == (900, 8 << 20, 0);
    points.holds("a pod has weight and memory of its claim", is_right, group);
    session.prepare(known("light")).await?;
    let group = light.group(card)?;
    let is_right = (group.weight, group.max_bytes, group.cap) == (100, 8 << 20, 80);
    points.holds("a claim can cap its pod", is_right, group);
    session.prepare(known("urgent")).await?;
    let group = urgent.group(card)?;
    let is_right = (group.weight, group.max_priority, group.cap) == (100, 20, 50);
    points.holds("a class sets priority and cap", is_right, group);

    let job = named(CLAIMS, "Pod", "urgent")?["spec"]["containers"][0]["args"].clone();
    urgent.start(card, &serde_json::from_value::<Vec<String>>(job)?)?;
    let node = Context::open(card.node())?;
    let is_urgent = || {
        let contexts = node.contexts().unwrap_or_default();
        contexts
            .iter()
            .any(|one| (one.group, one.latency_critical, one.priority) == (group.number, 1, 20))
    };
    points.point("its jobs go first", until(is_urgent).await);
    urgent.stop();
    Ok(())
}

async fn refusals(
    session: &mut Session,
    points: &mut Points,
    api: &Api,
    card: &Card,
    pod: &Pod,
) -> Result<()> {
    let greedy = json!({"source": "FromClaim", "opaque": {"driver": "fermata.dev", "parameters":
        {"apiVersion": "fermata.dev/v1", "kind": "CardConfig", "priority": 31}}});
    api.put_claim(claim("light", "greedy", card, &[pod.uid], &[greedy])?);
    api.put_claim(claim("light", "early", card, &["no-such-pod"], &[])?);
    let renamed = Claim {
        uid: "another".into(),
        ..known("light")
    };
    for (claim, name, words) in [
        (
            known("greedy"),
            "a claim that sets its priority",
            "only a DeviceClass",
        ),
        (
            known("early"),
            "a claim of a pod without a cgroup",
            "has a cgroup below",
        ),
        (known("none"), "a claim that is not there", "NotFound"),
        (renamed, "a claim that was made anew", "has the UID"),
    ] {
        let (devices, error) = session.prepare(claim).await?;
        let is_told = devices.is_empty() && error.contains(words);
        points.holds(&format!("{name} is refused"), is_told, error);
    }
    Ok(())
}

/// Checks that a driver that ends leaves its claims to the next driver.
async fn restart(
    mut session: Session,
    points: &mut Points,
    api: &Api,
    card: &Card,
    pods: &[Pod; 3],
    program: &Path,
) -> Result<Session> {
    let [heavy, light, urgent] = pods;
    session.driver.terminate()?;
    let (code, _) = session.driver.end().await?;
    points.holds("a signal ends the driver", code == Some(0), code);
    // The urgent pod also uses the claim of the heavy one.
    api.put_claim(claim(
        "heavy",
        "heavy",
        card,
        &[heavy.uid, urgent.uid],
        &[],
    )?);
    let folder = session.folder.clone();
    drop(session);
    let session = Session::start(program, &folder).await?;
    let weight = |pod: &Pod| pod.group(card).map_or(0, |group| group.weight);
    let shared = until(|| (weight(heavy), weight(urgent), weight(light)) == (450, 550, 100)).await;
    points.point("the next driver has its claims, which pods share", shared);
    Ok(session)
}

async fn health(
    session: &Session,
    points: &mut Points,
    api: &Api,
    card: &Card,
    light: &Pod,
) -> Result<()> {
    let channel = connect(Path::new(&session.info.endpoint)).await?;
    let request = NodeWatchResourcesRequest {};
    let mut told = DraResourceHealthClient::new(channel)
        .node_watch_resources(request)
        .await?
        .into_inner();
    let generation = |api: &Api| api.slice().map_or(0, |slice| slice.spec.pool.generation);
    let in_slice = |api: &Api| {
        let slice = api.slice();
        let devices = slice
            .iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten());
        devices
            .filter(|device| device.name == device_of(card))
            .count()
    };
    let first = generation(api);
    for (what, health, count, name) in [
        (
            "unbind",
            HealthStatus::Unhealthy,
            0,
            "a card that goes is not healthy, and no device any more",
        ),
        (
            "bind",
            HealthStatus::Healthy,
            1,
            "a card that comes back is",
        ),
    ] {
        card.driver(what)?;
        let seen = async {
            loop {
                let message = told.message().await?.context("the stream has ended")?;
                let is_card = |one: &&fermata_kubernetes::health::DeviceHealth| {
                    one.device
                        .as_ref()
                        .is_some_and(|device| device.device_name == device_of(card))
                };
                if message
                    .devices
                    .iter()
                    .find(is_card)
                    .is_some_and(|one| one.health == i32::from(health))
                {
                    return anyhow::Ok(());
                }
            }
        };
        let seen = timeout(LIMIT, seen)
            .await
            .context("the health does not change")
            .and_then(|seen| seen);
        let listed = until(|| in_slice(api) == count).await;
        points.point(name, seen.and(listed));
    }
    points.holds(
        "with each change the slice is a newer one",
        generation(api) >= first + 2,
        generation(api),
    );
    let again = until(|| {
        light
            .group(card)
            .is_ok_and(|group| (group.weight, group.cap) == (100, 80))
    })
    .await;
    points.point("and pods have their weights again", again);
    Ok(())
}

pub(crate) async fn test(program: &Path, points: &mut Points) -> Result<()> {
    let (relay, other) = (Card::find(0)?, Card::find(1)?);
    let folder = tempfile::tempdir()?;
    let api = Api::start(&folder.path().join("config")).await?;
    let mut pods = [
        Pod::make("dra-heavy", "kubepods/poddra-heavy")?,
        Pod::make("dra-light", "kubepods/besteffort/poddra-light")?,
        Pod::make(
            "dra-urgent",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poddra_urgent.slice",
        )?,
    ];
    let mut session = Session::start(program, folder.path()).await?;
    registration(&session, points, &api, [&relay, &other]).await?;
    claims(&mut session, points, &api, &relay, &mut pods).await?;
    refusals(&mut session, points, &api, &relay, &pods[1]).await?;
    let mut session = restart(session, points, &api, &relay, &pods, program).await?;
    health(&session, points, &api, &relay, &pods[1]).await?;

    let errors = [
        session.unprepare("heavy").await?,
        session.unprepare("heavy").await?,
    ];
    let kept = fs::read_to_string(folder.path().join("plugins/fermata.dev/claims.json"))?;
    let is_right = errors == ["", ""] && !kept.contains("uid-heavy") && kept.contains("uid-light");
    points.holds(
        "a claim is ended, and ended again",
        is_right,
        (errors, kept),
    );
    drop(api);
    let (_, error) = session.prepare(known("light")).await?;
    points.holds(
        "without the API server a claim is refused",
        error.contains("the API server"),
        error,
    );
    session.notify(false, "not this one").await?;
    let ended = session.driver.end().await?;
    let is_told = ended.0 == Some(1) && ended.1.contains("not this one");
    points.holds(
        "a driver that the kubelet refuses ends, and says why",
        is_told,
        ended,
    );
    Ok(())
}

pub(crate) const NODE: &str = "n1";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

#[derive(Default)]
struct Objects {
    slices: BTreeMap<String, ResourceSlice>,
    /// By path.
    claims: BTreeMap<String, ResourceClaim>,
    version: u64,
}

/// An API server.
pub(crate) struct Api {
    objects: Arc<Mutex<Objects>>,
    server: JoinHandle<()>,
}

impl Api {
    /// Starts a server, and writes a configuration for clients.
    pub(crate) async fn start(config: &Path) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", listener.local_addr()?);
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}]});
        std::fs::write(config, text.to_string())?;
        let objects = Arc::new(Mutex::new(Objects::default()));
        let shared = objects.clone();
        let server = tokio::spawn(async move {
            // Connections end with the server.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let objects = shared.clone();
                let service = service_fn(move |request| answer(objects.clone(), request));
                let connection = hyper::server::conn::http1::Builder::new();
                // A client may close its connection at any time.
                connections.spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { objects, server })
    }

    pub(crate) fn slice(&self) -> Option<ResourceSlice> {
        let objects = self.objects.lock().ok()?;
        objects.slices.values().next().cloned()
    }

    /// Puts a claim into the default namespace.
    pub(crate) fn put_claim(&self, claim: ResourceClaim) {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
        if let Ok(mut objects) = self.objects.lock() {
            objects.claims.insert(path, claim);
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(
    objects: Arc<Mutex<Objects>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let (code, answer) = match objects.lock() {
        Ok(mut objects) => objects.answer(&method, &path, &body),
        Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let mut response = Response::new(Full::new(answer.to_string().into()));
    *response.status_mut() = code;
    Ok(response)
}

fn failure(code: StatusCode) -> (StatusCode, Value) {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16()});
    (code, status)
}

fn found(object: Option<impl serde::Serialize>) -> (StatusCode, Value) {
    match object.and_then(|object| serde_json::to_value(object).ok()) {
        Some(object) => (StatusCode::OK, object),
        None => failure(StatusCode::NOT_FOUND),
    }
}

/// Parses a slice in which every key must be a field.
fn strictly(body: &[u8]) -> Option<ResourceSlice> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let slice: ResourceSlice = serde_json::from_value(value.clone()).ok()?;
    (serde_json::to_value(&slice).ok()? == value).then_some(slice)
}

impl Objects {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let name = path
            .strip_prefix(SLICES)
            .map(|name| name.trim_start_matches('/'));
        match (method, name) {
            (&Method::GET, None) if path == format!("/api/v1/nodes/{NODE}") => found(Some(
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}),
            )),
            (&Method::GET, None) => found(self.claims.get(path)),
            (&Method::GET, Some(name)) => found(self.slices.get(name)),
            (&Method::POST, Some("")) => match strictly(body) {
                Some(slice) => self.store(slice),
                None => failure(StatusCode::UNPROCESSABLE_ENTITY),
            },
            (&Method::PUT, Some(name)) => match strictly(body) {
                Some(slice) if slice.metadata.name.as_deref() != Some(name) => {
                    failure(StatusCode::BAD_REQUEST)
                }
                Some(slice) => self.replace(slice),
                None => failure(StatusCode::UNPROCESSABLE_ENTITY),
            },
            _ => failure(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn replace(&mut self, slice: ResourceSlice) -> (StatusCode, Value) {
        let former = self
            .slices
            .get(slice.metadata.name.as_deref().unwrap_or_default());
        let Some(former) = former else {
            return failure(StatusCode::NOT_FOUND);
        };
        let is_newer = slice.spec.pool.generation > former.spec.pool.generation;
        if slice.metadata.resource_version != former.metadata.resource_version || !is_newer {
            return failure(StatusCode::CONFLICT);
        }
        self.store(slice)
    }

    fn store(&mut self, mut slice: ResourceSlice) -> (StatusCode, Value) {
        self.version += 1;
        slice.metadata.resource_version = Some(self.version.to_string());
        let name = slice.metadata.name.clone().unwrap_or_default();
        self.slices.insert(name, slice.clone());
        found(Some(slice))
    }
}
