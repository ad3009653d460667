// SPDX-License-Identifier: GPL-2.0-or-later
//! The objects of an API server that the driver uses: a node, slices and claims, as Kubernetes 1.34 has their
//! types.

use anyhow::Result;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

pub(crate) const NODE: &str = "n1";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

#[derive(Default)]
struct Objects {
    slices: BTreeMap<String, ResourceSlice>,
    /// By the path.
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

/// Reads a slice, in which every word must be a field.
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
