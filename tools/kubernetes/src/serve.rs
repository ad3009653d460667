// SPDX-License-Identifier: GPL-2.0-or-later
//! The plugin's socket, and its registration with each kubelet that comes.

use crate::cards::{self, Cards};
use crate::options::Options;
use crate::plugin::{Plugin, OPTIONS};
use crate::socket;
use anyhow::{bail, Context as _, Result};
use fermata_kubernetes::deviceplugin::{
    device_plugin_server::DevicePluginServer, registration_client::RegistrationClient,
    RegisterRequest,
};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::{Endpoint, Server};
use tonic::Code;

/// The version of the interface that the plugin serves.
const VERSION: &str = "v1beta1";
const SOCKET: &str = "fermata.sock";
const KUBELET: &str = "kubelet.sock";
/// How often sockets are looked at: a kubelet that starts removes those of all plugins.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a kubelet may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Serves shares of all cards until a signal comes.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn plugin(options: Options) -> Result<()> {
    socket::for_root_only();
    let (cards, following) = cards::follow();
    let plugin = Plugin {
        options: options.into(),
        cards: cards.clone(),
    };
    tokio::select! {
        done = serve(&plugin) => done,
        () = keep_weights(&plugin, cards) => Ok(()),
        done = following => done.context("the cards"),
        done = socket::signal_comes() => done,
    }
}

/// Gives pods their weights on each card that comes, also when the plugin starts.
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
async fn serve(plugin: &Plugin) -> Result<()> {
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

/// Registers the plugin. Returns whether the kubelet has answered; one that refuses the plugin is an
/// error.
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
        // The kubelet has left its socket, or is about to end or to begin.
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
