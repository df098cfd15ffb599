//! The admin page serves metrics and health over HTTP, by default on loopback only. It changes nothing.
//!
//! Load on this port must not slow down the broker's clients, so `server` limits it. The page has a runtime of its own
//! and is served even while the client threads hang in a disk write. Checks that may hang have a time limit
//! (`hanging_check`).

mod hanging_check;
mod health;
mod server;

use crate::error::StartError;
use crate::exposition::{Gauges, SlowGauges, page};
use crate::node::Node;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fullbore_config::BrokerConfig;
use fullbore_host::task::Apart;
use hanging_check::HangingCheck;
use health::{Unhealthy, data_directory, health, life, of_directory};
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Content type of `/metrics`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The port of the admin page, which is bound but not served yet.
pub struct Bound {
    listener: TcpListener,
    /// The address that was bound, with the actual port.
    pub addr: SocketAddr,
}

/// Binds `fullbore.admin.listener`. Returns `None` if the admin page is turned off.
///
/// # Errors
/// Returns [`StartError::BindAdmin`] if the port cannot be bound.
pub async fn bind(config: &BrokerConfig) -> Result<Option<Bound>, StartError> {
    let Some((host, port)) = &config.network.admin_listener else { return Ok(None) };
    let bound = server::bind(host, *port).await;
    let (listener, addr) = bound.map_err(|error| StartError::BindAdmin { host: host.clone(), port: *port, error })?;
    Ok(Some(Bound { listener, addr }))
}

/// Serves the admin page on the runtime `apart` until the returned task is aborted.
pub(crate) fn start(bound: Bound, broker: &Arc<Node>, apart: &Apart) -> JoinHandle<()> {
    let routes = routes(Admin { node: Arc::clone(broker), checks: Arc::default() });
    apart.spawn(async move {
        // A socket belongs to the runtime that registers it, so it is registered in this task.
        match tokio::net::TcpListener::from_std(bound.listener) {
            Ok(listener) => server::run(listener, routes, server::CONNECTION_MAX).await,
            Err(error) => {
                tracing::error!(%error, "cannot serve the admin page: no probe is answered until the next start")
            }
        }
    })
}

/// The state that all routes share.
#[derive(Clone)]
struct Admin {
    node: Arc<Node>,
    checks: Arc<DiskChecks>,
}

/// Checks that hang if the disk hangs. A check that hangs does not delay checks of another kind.
#[derive(Default)]
struct DiskChecks {
    directory: HangingCheck<io::Result<()>>,
    gauges: HangingCheck<SlowGauges>,
    /// The values of the last successful read of the slow gauges, which the page shows while a newer read hangs.
    last_gauges: Mutex<SlowGauges>,
}

fn routes(admin: Admin) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(readyz))
        .route("/readyz", get(readyz))
        .route("/livez", get(livez))
        .with_state(admin)
}

async fn index(State(Admin { node: broker, .. }): State<Admin>) -> String {
    let (version, node_id) = (env!("CARGO_PKG_VERSION"), broker.metadata.config.node.id);
    format!(
        "Fullbore {version}, broker {node_id} of cluster {}\n\n\
         /metrics  counters, for Prometheus (docs/metrics.md)\n\
         /readyz   200 while the broker takes records, else 503 and why; /healthz is the same\n\
         /livez    200 unless only a new start would help\n",
        broker.metadata.cluster_id
    )
}

async fn metrics(State(Admin { node, checks }): State<Admin>) -> Response {
    let read_from = Arc::clone(&node);
    if let Some(read) = checks.gauges.run(move || SlowGauges::read(&read_from)).await {
        *checks.last_gauges.lock() = read;
    }
    let slow = checks.last_gauges.lock().clone();
    // Counting file descriptors takes long, so it runs on a blocking thread and does not delay probes.
    match spawn_blocking(move || page(&node.metrics, Gauges::read(&node, slow))).await {
        Ok(text) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn readyz(State(Admin { node, checks }): State<Admin>) -> (StatusCode, String) {
    let found = match health(&node) {
        // `Unwritable` means that files cannot be created, but not why. If `data_directory` finds the reason, the
        // response contains that fault instead.
        found @ (Ok(_) | Err(Unhealthy::Unwritable(_))) => {
            let (space, directory) = (Arc::clone(&node.space), node.metadata.config.node.data_dir.clone());
            let checked = checks.directory.run(move || data_directory(&space, &directory)).await;
            of_directory(checked, &node.metadata.config.node.data_dir).and(found)
        }
        unhealthy => unhealthy,
    };
    response_of(found)
}

async fn livez(State(Admin { node, .. }): State<Admin>) -> (StatusCode, String) {
    response_of(life(&node).map(|()| None))
}

/// Turns the outcome of a check into an HTTP status and a text. The text is `ok` with the note, or the fault.
fn response_of(found: Result<Option<String>, Unhealthy>) -> (StatusCode, String) {
    match found {
        Ok(None) => (StatusCode::OK, "ok\n".to_owned()),
        Ok(Some(note)) => (StatusCode::OK, format!("ok\n{note}\n")),
        Err(unhealthy) => (StatusCode::SERVICE_UNAVAILABLE, format!("{unhealthy}\n")),
    }
}
