// SPDX-License-Identifier: GPL-2.0-or-later
//! The DRA driver: its sockets, its registration, and the node's slice of resources.

use crate::cards::{self, Cards};
use crate::driver::Driver;
use crate::options::DraOptions;
use crate::slice::{self, Capacity, Node, DRIVER};
use crate::socket;
use anyhow::{bail, Context as _, Result};
use fermata_kubernetes::dra::dra_plugin_server::DraPluginServer;
use fermata_kubernetes::health::dra_resource_health_server::DraResourceHealthServer;
use fermata_kubernetes::registration::{
    registration_server::{Registration, RegistrationServer},
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The services of the driver, as the kubelet names them.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
/// How long after a failure the slice is written again.
const RETRY: Duration = Duration::from_secs(5);
/// How long the answer to a refusal takes at most.
const ANSWER: Duration = Duration::from_secs(1);
/// How often the slice is compared.
const PERIOD: Duration = Duration::from_secs(60);
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

/// Waits for a refusal, and until the kubelet has the answer to it.
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
            // A refusal that is there already suffices.
            let _ = self.refusal.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Keeps the node's slice in the API server as the cards are.
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
            // A kubelet without a driver for some time removes the slice.
            Ok(()) => {
                if let Ok(Err(_)) = timeout(PERIOD, cards.changed()).await {
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

/// Writes the node's slice if the API server has another one.
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
