//! The admin page: metrics and health over HTTP, on loopback unless told otherwise. It reads and changes nothing.
//!
//! Invariant: whatever is done to this port, clients of the broker do not notice (see `server` for the limits).

mod health;
mod server;

use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::exposition::{Gauges, page};
use crate::node::Node;
use crate::task;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use health::{Unhealthy, health, life};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// What the text of `/metrics` is.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The admin page's port, taken and not accepting yet.
pub struct Bound {
    listener: TcpListener,
    /// The address taken.
    pub addr: SocketAddr,
}

/// Binds `fullbore.admin.listener`. `None` when it is off.
///
/// # Errors
/// [`StartError::BindAdmin`].
pub async fn bind(config: &BrokerConfig) -> Result<Option<Bound>, StartError> {
    let Some((host, port)) = &config.admin_listener else { return Ok(None) };
    let bound = server::bind(host, *port).await;
    let (listener, addr) = bound.map_err(|error| StartError::BindAdmin { host: host.clone(), port: *port, error })?;
    Ok(Some(Bound { listener, addr }))
}

/// Serves the admin page until the task is aborted.
pub fn start(bound: Bound, broker: &Arc<Node>) -> JoinHandle<()> {
    task::spawn(server::run(bound.listener, routes(Arc::clone(broker)), server::CONNECTION_MAX))
}

fn routes(broker: Arc<Node>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(readyz))
        .route("/readyz", get(readyz))
        .route("/livez", get(livez))
        .with_state(broker)
}

async fn index(State(broker): State<Arc<Node>>) -> String {
    let (version, node_id) = (env!("CARGO_PKG_VERSION"), broker.config.node_id);
    format!(
        "Fullbore {version}, broker {node_id} of cluster {}\n\n\
         /metrics  counters, for Prometheus (docs/metrics.md)\n\
         /readyz   200 while the broker takes records, else 503 and why; /healthz is the same\n\
         /livez    200 unless only a new start would help\n",
        broker.cluster_id
    )
}

async fn metrics(State(broker): State<Arc<Node>>) -> Response {
    // Counting descriptors reads a folder, which is no work for a thread that serves clients.
    match spawn_blocking(move || page(&broker.metrics, Gauges::read(&broker))).await {
        Ok(text) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn readyz(State(broker): State<Arc<Node>>) -> (StatusCode, String) {
    told(spawn_blocking(move || health(&broker)).await)
}

async fn livez(State(broker): State<Arc<Node>>) -> (StatusCode, String) {
    told(Ok(life(&broker).map(|()| None)))
}

/// `ok` and a note, or what is wrong.
fn told(found: Result<Result<Option<String>, Unhealthy>, JoinError>) -> (StatusCode, String) {
    match found {
        Ok(Ok(None)) => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Ok(Some(note))) => (StatusCode::OK, format!("ok\n{note}\n")),
        Ok(Err(unhealthy)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{unhealthy}\n")),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}
