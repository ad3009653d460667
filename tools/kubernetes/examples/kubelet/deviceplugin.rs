// SPDX-License-Identifier: GPL-2.0-or-later
//! Uses the device plugin as the kubelet does.

use crate::{Card, Pod, Points, Program, LIMIT};
use anyhow::{bail, ensure, Context as _, Result};
use fermata_kubernetes::deviceplugin::device_plugin_client::DevicePluginClient;
use fermata_kubernetes::deviceplugin::registration_server::{Registration, RegistrationServer};
use fermata_kubernetes::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Device, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use fermata_output::say;
use serde::Deserialize as _;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};

const RESOURCE: &str = "fermata.dev/share";
const SHARES: usize = 10;
const SLICES: u64 = 10_000;

const HEAVY: &str = "11111111-2222-3333-4444-555555555555";
const LIGHT: &str = "66666666-7777-8888-9999-000000000000";
/// The pods of docs/deploy/kubernetes.md.
const PODS: &str = include_str!("../../../../packaging/kubernetes/pods.yaml");

/// The kubelet's registration service for plugins.
#[derive(Clone)]
struct Registrar {
    came: mpsc::UnboundedSender<RegisterRequest>,
    refuses: bool,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        if self.refuses {
            return Err(Status::unknown("the resource name is not mine"));
        }
        let _ = self.came.send(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

/// A kubelet.
struct Kubelet {
    folder: PathBuf,
    came: mpsc::UnboundedReceiver<RegisterRequest>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Kubelet {
    /// Starts like a kubelet, which removes the sockets of all plugins.
    fn start(folder: &Path, refuses: bool) -> Result<Self> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "sock")
            {
                fs::remove_file(path)?;
            }
        }
        let (sender, came) = mpsc::unbounded_channel();
        let registrar = Registrar {
            came: sender,
            refuses,
        };
        let listener = UnixListener::bind(folder.join("kubelet.sock"))?;
        let service = Server::builder().add_service(RegistrationServer::new(registrar));
        Ok(Self {
            folder: folder.into(),
            came,
            server: tokio::spawn(service.serve_with_incoming(UnixListenerStream::new(listener))),
        })
    }

    async fn registration(&mut self) -> Result<RegisterRequest> {
        let request = timeout(LIMIT, self.came.recv()).await;
        request
            .context("no plugin has registered")?
            .context("the registrar has ended")
    }

    async fn connect(&self, endpoint: &str) -> Result<DevicePluginClient<Channel>> {
        let socket = format!("unix://{}", self.folder.join(endpoint).display());
        Ok(DevicePluginClient::new(
            Endpoint::try_from(socket)?.connect().await?,
        ))
    }

    /// Writes which pods have which shares, in the form of old or new kubelets.
    fn checkpoint(&self, pods: &[(&str, &[String])], is_old: bool) -> Result<()> {
        let entries = pods.iter().map(|(uid, names)| {
            let devices = if is_old { json!(names) } else { json!({"-1": names}) };
            json!({"PodUID": uid, "ContainerName": "c", "ResourceName": RESOURCE, "DeviceIDs": devices, "AllocResp": "CgA="})
        });
        let entries: Vec<_> = entries.collect();
        let data = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {RESOURCE: []}}, "Checksum": 1});
        fs::write(
            self.folder.join("kubelet_internal_checkpoint"),
            data.to_string(),
        )?;
        Ok(())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn start(program: &Path, folder: &Path) -> Result<Program> {
    let mut command = Command::new(program);
    command
        .args(["plugin", "--shares", &SHARES.to_string(), "--directory"])
        .arg(folder);
    Program::start(&mut command, folder)
}

fn shares(card: &Card, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers
        .map(|number| format!("{}-{number}", card.address))
        .collect()
}

/// Calls the plugin like kubelets before 1.26, with the socket's path as authority. Returns the
/// HTTP status of the answer.
async fn old_call(socket: &Path) -> Result<u8> {
    /// A frame of stream 1, or 0 for settings.
    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let stream = u8::from(kind != 4);
        [
            &[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream],
            payload,
        ]
        .concat()
    }
    let path = socket.to_string_lossy();
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1beta1.DevicePlugin/GetDevicePluginOptions"),
        (":authority", &path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    let mut stream = UnixStream::connect(socket).await?;
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, &[]),
        frame(1, 4, &block),
        frame(0, 1, &[0; 5]),
    ];
    stream.write_all(&request.concat()).await?;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
        stream.read_exact(&mut payload).await?;
        match header[3] {
            // The first header is the status, from the static table.
            1 => return payload.first().copied().context("no headers"),
            3 | 7 => bail!("the plugin breaks the call off: {payload:?}"),
            _ => {}
        }
    }
}

/// Returns the devices of the next list.
async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> Result<Vec<Device>> {
    let list = timeout(LIMIT, lists.message())
        .await
        .context("no list of devices")??;
    Ok(list.context("the stream has ended")?.devices)
}

/// Waits until all shares of a card are in this state of health, and those of the other card are
/// healthy.
async fn until(
    lists: &mut Streaming<ListAndWatchResponse>,
    card: &Card,
    health: &str,
) -> Result<()> {
    loop {
        let devices = next(lists).await?;
        ensure!(devices.len() == 2 * SHARES, "{} devices", devices.len());
        let (of_card, others): (Vec<_>, Vec<_>) = devices
            .iter()
            .partition(|device| device.id.starts_with(&card.address));
        ensure!(of_card.len() == SHARES && others.iter().all(|device| device.health == "Healthy"));
        if of_card.iter().all(|device| device.health == health) {
            return Ok(());
        }
    }
}

/// Checks that a call is refused with this text.
fn refused<T>(answer: Result<Response<T>, Status>, words: &str) -> Result<()> {
    match answer {
        Ok(_) => bail!("not refused"),
        Err(status) => {
            let told =
                status.code() == Code::FailedPrecondition && status.message().contains(words);
            ensure!(told, "{status}");
            Ok(())
        }
    }
}

fn allocate(names: &[String]) -> AllocateRequest {
    AllocateRequest {
        container_requests: vec![ContainerAllocateRequest {
            devices_ids: names.to_vec(),
        }],
    }
}

fn pre_start(names: &[String]) -> PreStartContainerRequest {
    PreStartContainerRequest {
        devices_ids: names.to_vec(),
    }
}

fn prefer(available: &[String], wanted: &[String], size: i32) -> PreferredAllocationRequest {
    PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: wanted.to_vec(),
            allocation_size: size,
        }],
    }
}

/// Returns the shares and the arguments of each pod of a manifest.
fn manifest(text: &str) -> Result<Vec<(usize, Vec<String>)>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let pods = documents.map(|document| {
        let pod = k8s_openapi::api::core::v1::Pod::deserialize(document)?;
        let container = pod.spec.context("no spec")?.containers.remove(0);
        let limits = container
            .resources
            .and_then(|resources| resources.limits)
            .context("no limits")?;
        Ok((
            limits[RESOURCE].0.parse()?,
            container.args.unwrap_or_default(),
        ))
    });
    pods.collect()
}

/// Checks that two pods get time on a slot in proportion to their shares, within 1 %.
async fn ratio(card: &Card, heavy: &mut Pod, light: &mut Pod) -> Result<()> {
    let pods = manifest(PODS)?;
    heavy.start(card, &pods[0].1)?;
    light.start(card, &pods[1].1)?;
    let runs = |pod: &Pod| pod.runs(card);
    let slices = |heavy: &Pod, light: &Pod| Ok::<_, anyhow::Error>(runs(heavy)?.0 + runs(light)?.0);
    // Both must run before the first figures are taken.
    while runs(heavy)?.0 < 100 || runs(light)?.0 < 100 {
        sleep(Duration::from_millis(100)).await;
    }
    let before = (runs(heavy)?, runs(light)?);
    let first = before.0 .0 + before.1 .0;
    while slices(heavy, light)? < first + SLICES {
        sleep(Duration::from_millis(100)).await;
    }
    let after = (runs(heavy)?, runs(light)?);
    let of_heavy = (after.0 .0 - before.0 .0, after.0 .1 - before.0 .1);
    let of_light = (after.1 .0 - before.1 .0, after.1 .1 - before.1 .1);
    let ratio = of_heavy.1 as f64 / of_light.1 as f64;
    say!(
        "# {} and {} slices, {} : {} ns = {ratio:.3}",
        of_heavy.0,
        of_light.0,
        of_heavy.1,
        of_light.1
    );
    ensure!(
        (ratio / 9.0 - 1.0).abs() <= 0.01,
        "{ratio} is not 9 within 1 %"
    );
    Ok(())
}

/// Checks that a card's shares become unhealthy when an engine hangs and its slot cannot be reset.
async fn quarantine(card: &Card, lists: &mut Streaming<ListAndWatchResponse>) -> Result<()> {
    let mut pod = Pod::make("quarantine", "kubepods/podquarantine")?;
    for (_, mut arguments) in manifest(PODS)? {
        arguments.extend(["--set", "preempt-timeout=50ms"].map(Into::into));
        pod.start(card, &arguments)?;
    }
    while pod.runs(card)?.0 < 4 {
        sleep(Duration::from_millis(50)).await;
    }
    card.command("fault slot=1 reset_fails=1")?;
    card.command("fault slot=1 hang=1")?;
    until(lists, card, "Unhealthy").await
}

/// A kubelet with a plugin.
struct Session {
    kubelet: Kubelet,
    request: RegisterRequest,
    client: DevicePluginClient<Channel>,
    lists: Streaming<ListAndWatchResponse>,
}

impl Session {
    /// Waits for a plugin, and asks for the plugin's devices.
    async fn begin(mut kubelet: Kubelet) -> Result<Self> {
        let request = kubelet.registration().await?;
        let mut client = kubelet.connect(&request.endpoint).await?;
        let lists = client.list_and_watch(Empty {}).await?.into_inner();
        Ok(Self {
            kubelet,
            request,
            client,
            lists,
        })
    }
}

async fn registration(session: &mut Session, points: &mut Points, cards: [&Card; 2]) -> Result<()> {
    let request = &session.request;
    let options = request.options.unwrap_or_default();
    let is_right = request.version == "v1beta1" && request.resource_name == RESOURCE;
    points.holds(
        "the plugin registers with a kubelet that comes later",
        is_right && options.pre_start_required && options.get_preferred_allocation_available,
        request,
    );
    let socket = session.kubelet.folder.join(&request.endpoint);
    let mode = fs::metadata(&socket)?.permissions().mode() & 0o777;
    points.holds("only root talks to the plugin", mode == 0o700, mode);
    let answer = timeout(LIMIT, old_call(&socket)).await?;
    // Entry 8 of the static table is the status 200.
    let is_served = answer.as_ref().is_ok_and(|status| *status == 0x88);
    points.holds(
        "a kubelet whose authority is a path is served",
        is_served,
        answer,
    );
    let told = session
        .client
        .get_device_plugin_options(Empty {})
        .await?
        .into_inner();
    points.holds(
        "its options are those of the registration",
        told == options,
        told,
    );

    let devices = next(&mut session.lists).await?;
    let names: BTreeSet<_> = devices.iter().map(|device| device.id.clone()).collect();
    let wanted: BTreeSet<_> = cards
        .iter()
        .flat_map(|card| shares(card, 0..SHARES))
        .collect();
    let healthy = devices
        .iter()
        .all(|device| device.health == "Healthy" && device.id.len() < 64);
    points.holds(
        "each card has its shares, all healthy",
        healthy && names == wanted,
        devices,
    );
    Ok(())
}

async fn allocation(
    session: &mut Session,
    points: &mut Points,
    relay: &Card,
    other: &Card,
) -> Result<()> {
    let client = &mut session.client;
    let available = [shares(relay, 6..SHARES), shares(other, 0..SHARES)].concat();
    for (size, wanted, best) in [
        (3, Vec::new(), shares(relay, 6..9)),
        (6, Vec::new(), shares(other, 0..6)),
        (
            2,
            shares(other, 7..8),
            [shares(other, 7..8), shares(other, 0..1)].concat(),
        ),
    ] {
        let answer = client
            .get_preferred_allocation(prefer(&available, &wanted, size))
            .await?;
        let chosen = answer
            .into_inner()
            .container_responses
            .remove(0)
            .device_i_ds;
        points.holds(
            &format!("{size} shares are of the card that they suit best"),
            chosen == best,
            chosen,
        );
    }
    let answer = client
        .get_preferred_allocation(prefer(&available, &[], 15))
        .await;
    points.point(
        "more shares than there are, are refused",
        refused(answer, "15 shares are asked for"),
    );

    let answer = client
        .allocate(allocate(&shares(relay, 0..9)))
        .await?
        .into_inner();
    let nodes: Vec<_> = answer
        .container_responses
        .iter()
        .flat_map(|answer| &answer.devices)
        .collect();
    let path = relay.node().display().to_string();
    let is_right = matches!(&nodes[..], [node]
        if node.host_path == path && node.container_path == path && node.permissions == "rw");
    points.holds("a container gets the card's node", is_right, answer);
    let answer = client.allocate(allocate(&shares(relay, 10..11))).await;
    points.point(
        "a share that is not there is refused",
        refused(answer, "this node has no share"),
    );
    Ok(())
}

async fn weights(
    session: &mut Session,
    points: &mut Points,
    [relay, other]: [&Card; 2],
    heavy: &mut Pod,
    light: &mut Pod,
) -> Result<()> {
    let (client, kubelet) = (&mut session.client, &session.kubelet);
    let pods = manifest(PODS)?;
    let (of_heavy, of_light) = (
        shares(relay, 0..pods[0].0),
        shares(relay, pods[0].0..pods[0].0 + pods[1].0),
    );
    let answer = client.pre_start_container(pre_start(&of_heavy)).await;
    points.point(
        "a container does not start before the kubelet knows its pod",
        refused(answer, "has no pod with"),
    );
    kubelet.checkpoint(&[(heavy.uid, &of_heavy)], true)?;
    client.pre_start_container(pre_start(&of_heavy)).await?;
    let group = heavy.group(relay)?;
    points.holds(
        "a pod has the weight of its shares, by an old kubelet",
        group.weight == 900,
        group,
    );
    let of_gone = shares(other, 3..4);
    kubelet.checkpoint(
        &[
            (heavy.uid, &of_heavy),
            (light.uid, &of_light),
            ("gone", &of_gone),
        ],
        false,
    )?;
    client.pre_start_container(pre_start(&of_light)).await?;
    let group = light.group(relay)?;
    points.holds(
        "so has a pod whose cgroup systemd has made",
        group.weight == 100,
        group,
    );
    let groups = (heavy.group(other), light.group(other));
    points.holds(
        "and on no other card",
        groups.0.is_err() && groups.1.is_err(),
        groups,
    );
    let answer = client.pre_start_container(pre_start(&of_gone)).await;
    points.point(
        "a pod without a cgroup is refused",
        refused(answer, "has no cgroup below"),
    );
    let answer = client
        .pre_start_container(pre_start(&shares(relay, 8..10)))
        .await;
    points.point(
        "shares of two pods are refused",
        refused(answer, "has no pod with"),
    );

    let done = timeout(LIMIT * 3, ratio(relay, heavy, light)).await;
    points.point(
        "9 shares and 1 share are 9 : 1 of the time over 10,000 slices, within 1 %",
        done.context("the slices take too long")
            .and_then(|done| done),
    );
    heavy.stop();
    light.stop();
    Ok(())
}

/// Checks what happens when a card goes and comes back.
async fn binding(
    session: &mut Session,
    points: &mut Points,
    relay: &Card,
    heavy: &Pod,
    light: &Pod,
) -> Result<()> {
    relay.driver("unbind")?;
    let done = until(&mut session.lists, relay, "Unhealthy").await;
    points.point("shares of a card that goes are not healthy", done);
    let answer = session
        .client
        .allocate(allocate(&shares(relay, 0..9)))
        .await;
    points.point(
        "nor given to a container",
        refused(answer, "is not healthy"),
    );
    relay.driver("bind")?;
    let done = until(&mut session.lists, relay, "Healthy").await;
    points.point("shares of a card that comes back are", done);
    let weight = |pod: &Pod| pod.group(relay).map_or(0, |group| group.weight);
    let again = async {
        while (weight(heavy), weight(light)) != (900, 100) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let done = timeout(LIMIT, again).await.context("no weights");
    points.point("and pods have their weights again", done);
    Ok(())
}

pub(crate) async fn test(program: &Path, points: &mut Points) -> Result<()> {
    let (relay, other) = (Card::find(0)?, Card::find(1)?);
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let mut heavy = Pod::make(HEAVY, &format!("kubepods/burstable/pod{HEAVY}"))?;
    let slice = format!("kubepods-pod{}.slice", LIGHT.replace('-', "_"));
    let mut light = Pod::make(LIGHT, &format!("kubepods.slice/{slice}"))?;

    let mut plugin = start(program, folder)?;
    let mut session = Session::begin(Kubelet::start(folder, false)?).await?;
    registration(&mut session, points, [&relay, &other]).await?;
    allocation(&mut session, points, &relay, &other).await?;
    weights(
        &mut session,
        points,
        [&relay, &other],
        &mut heavy,
        &mut light,
    )
    .await?;
    binding(&mut session, points, &relay, &heavy, &light).await?;

    drop(session);
    let mut session = Session::begin(Kubelet::start(folder, false)?).await?;
    let devices = next(&mut session.lists).await?;
    points.holds(
        "the plugin registers with the next kubelet",
        devices.len() == 2 * SHARES,
        devices,
    );
    fs::remove_file(folder.join(&session.request.endpoint))?;
    let mut session = Session::begin(session.kubelet).await?;
    let done = next(&mut session.lists).await;
    points.point(
        "the plugin registers anew when its socket is removed",
        done.map(drop),
    );
    let done = timeout(LIMIT, quarantine(&other, &mut session.lists)).await;
    points.point(
        "shares of a card that has lost an engine are not healthy",
        done.context("still healthy").and_then(|done| done),
    );
    plugin.terminate()?;
    let (code, _) = plugin.end().await?;
    points.holds("a signal ends the plugin", code == Some(0), code);
    drop((plugin, session));

    let _kubelet = Kubelet::start(folder, true)?;
    let mut plugin = start(program, folder)?;
    let ended = plugin.end().await?;
    let is_told = ended.0 == Some(1) && ended.1.contains("the resource name is not mine");
    points.holds(
        "a plugin that the kubelet refuses ends, and says why",
        is_told,
        ended,
    );
    Ok(())
}
