//! The broker as a whole: what it is made of, how it starts and how it stops.
//!
//! Start: bind the ports, lock the data folder, open the control plane, open the logs, accept. Ports come first because
//! a start that finds one taken should leave nothing behind; whoever connects before the logs are open waits in the
//! system's backlog. Stop: accept no more, answer what was admitted (batches parked and members of groups that wait as refused), close the
//! control plane, and then the logs, which carry out what it has decided. Invariant: nothing is accepted before everything it needs
//! is open; what is closed has answered everything, or refuses what comes after [`STOP_MAX`]; and the folder is locked until then.

use crate::admin;
use crate::api::{Decompression, Sessions};
use crate::config::BrokerConfig;
use crate::control::{self, Control, Endpoint, FolderLock};
use crate::follow_image;
use crate::groups::{Groups, TakeOverError};
use crate::loggers::Loggers;
use crate::long_work::LongWork;
use crate::metrics::Metrics;
use crate::net::{self, Bound, Limits};
use crate::partitions::{self, Origin, Partitions, Reordering};
use crate::space::Space;
use crate::telemetry::Telemetry;
use fullbore_wire::{Text, host_port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a stop waits for clients to take the answers they are owed.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Why a broker does not start, one line each.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder or its database.
    #[error("{0}")]
    Control(#[from] control::OpenError),
    /// The logs.
    #[error("{0}")]
    Partitions(#[from] partitions::OpenError),
    /// What older versions kept of groups.
    #[error("{0}")]
    Groups(#[from] TakeOverError),
    /// The key or certificates of an SSL listener.
    #[error("{0}")]
    Certificates(#[from] fullbore_tls::MaterialError),
    /// A listener.
    #[error("cannot listen on {}: {}", host_port(host, port), of_bind(error))]
    Bind {
        /// As configured.
        host: String,
        /// As configured.
        port: u16,
        /// What the system says.
        error: io::Error,
    },
    /// The admin page's port.
    #[error("fullbore.admin.listener={}: {}; set another or leave it empty", host_port(host, port), of_bind(error))]
    BindAdmin {
        /// As configured.
        host: String,
        /// As configured.
        port: u16,
        /// What the system says.
        error: io::Error,
    },
}

fn of_bind(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is taken".to_owned(),
        io::ErrorKind::PermissionDenied => "no permission for this port".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        _ => error.to_string(),
    }
}

/// What every connection shares.
pub struct Shared {
    /// The settings.
    pub config: Arc<BrokerConfig>,
    /// The control plane.
    pub control: Control,
    /// The classic logs.
    pub logs: Arc<Partitions>,
    /// Room on the disk.
    pub space: Arc<Space>,
    /// What is held of batches that came before their turn.
    pub reordering: Arc<Reordering>,
    /// Consumer groups.
    pub groups: Arc<Groups>,
    /// Fetch sessions.
    pub sessions: Sessions,
    /// Clients that push their own metrics.
    pub telemetry: Telemetry,
    /// Counters.
    pub metrics: Metrics,
    /// The levels of the log.
    pub loggers: Loggers,
    /// Where what takes long is done.
    pub long_work: LongWork,
    /// Bounds the memory of batches that are decompressed.
    pub decompression: Decompression,
    /// What one connection may use.
    pub limits: Limits,
    /// The cluster's id as clients see it.
    pub cluster_id: Text,
    endpoints: Vec<(Text, i32)>,
    stop: watch::Sender<bool>,
}

impl Shared {
    /// Host and port at which a client of this listener reaches the broker.
    pub fn endpoint(&self, listener: usize) -> (Text, i32) {
        self.endpoints[listener].clone()
    }

    /// The wall clock in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    /// Becomes true when the broker stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// A running broker.
pub struct Broker {
    shared: Arc<Shared>,
    addrs: Vec<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    serving: JoinHandle<()>,
    admin: Option<JoinHandle<()>>,
    _lock: FolderLock,
}

impl Broker {
    /// Starts a broker; when this returns, clients can connect.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub async fn start(config: BrokerConfig) -> Result<Broker, StartError> {
        Broker::start_with(config, Loggers::default()).await
    }

    /// Starts a broker whose clients may change the levels of a log; when this returns, they can connect.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub async fn start_with(config: BrokerConfig, loggers: Loggers) -> Result<Broker, StartError> {
        raise_descriptor_limit();
        let config = Arc::new(config);
        let listeners = bind(&config).await?;
        let admin_listener = admin::bind(&config).await?;
        let lock = FolderLock::take(&config.data_dir)?;
        let space = Arc::new(Space::open(&config.data_dir, config.disk_reserve_bytes));
        let control = Control::open(Arc::clone(&config), &lock, Arc::clone(&space), endpoints(&config, &listeners))?;
        let logs = Partitions::open_with(&config.data_dir, config.as_ref().into(), Arc::clone(&space))?;
        follow_image::finish_deletions(&logs, &config, control.take_deleted());
        follow_images(&control, &logs, &config);
        logs.all_told();
        warn_of_strays(&logs);
        let addrs = listeners.iter().map(|bound| bound.addr).collect();
        let metrics = Metrics::default();
        let stop = watch::channel(false).0;
        let groups = Groups::new(&config, control.clone(), Arc::clone(&logs), metrics.clone());
        groups.start(&config, &stop).await?;
        let shared = Arc::new(Shared {
            limits: limits(&config),
            loggers,
            long_work: LongWork::default(),
            decompression: Decompression::default(),
            sessions: Sessions::new(config.fetch_session_cache_slots),
            reordering: Reordering::new(&config, metrics.clone()),
            groups,
            telemetry: Telemetry::new(metrics.clone()),
            metrics,
            cluster_id: Text::from(control.cluster_id().to_string()),
            endpoints: listeners
                .iter()
                .map(|bound| (Text::from(bound.advertised.0.as_str()), i32::from(bound.advertised.1)))
                .collect(),
            stop,
            config,
            control,
            logs,
            space,
        });
        let admin_addr = admin_listener.as_ref().map(|bound| bound.addr);
        let admin = admin_listener.map(|bound| admin::start(bound, &shared));
        tokio::spawn(forget_deleted(shared.control.clone(), Arc::clone(&shared.logs), shared.stopping()));
        let serving = tokio::spawn(net::run(Arc::clone(&shared), listeners, shared.stopping()));
        Ok(Broker { shared, addrs, admin_addr, serving, admin, _lock: lock })
    }

    /// What every connection shares.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where the first listener accepts clients.
    pub fn addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    /// Host and port at which clients of the first listener reach the broker.
    pub fn advertised(&self) -> (String, i32) {
        let (host, port) = self.shared.endpoint(0);
        (host.to_string(), port)
    }

    /// Every listener with its name, whether it is TLS, and host and port at which its clients reach the broker.
    pub fn listeners(&self) -> Vec<(&str, bool, (String, i32))> {
        let configured = self.shared.config.listeners.iter();
        let reached = |index| {
            let (host, port) = self.shared.endpoint(index);
            (host.to_string(), port)
        };
        configured.enumerate().map(|(index, of)| (of.name.as_str(), of.tls.is_some(), reached(index))).collect()
    }

    /// Where the admin page is, unless it is off.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// The cluster's id.
    pub fn cluster_id(&self) -> &str {
        &self.shared.cluster_id
    }

    /// Stops cleanly: what was admitted is answered, what was appended is on disk.
    pub async fn shutdown(self) {
        self.shared.stop.send_replace(true);
        self.shared.reordering.close();
        self.shared.groups.close();
        self.shared.logs.dismiss_waiting();
        if timeout(STOP_MAX, self.serving).await.is_err() {
            tracing::warn!("some clients did not take their answers in time");
        }
        if let Some(admin) = self.admin {
            admin.abort();
        }
        let shared = Arc::clone(&self.shared);
        let closing = move || {
            // What was decided is carried out by the logs, and nothing is decided after that.
            shared.control.close();
            shared.logs.close();
        };
        if let Err(error) = tokio::task::spawn_blocking(closing).await {
            tracing::error!(%error, "the logs did not close; the next start recovers them");
        }
    }
}

/// Where clients reach this broker, by the name of the listener.
fn endpoints(config: &BrokerConfig, listeners: &[Bound]) -> BTreeMap<String, Endpoint> {
    let endpoint = |bound: &Bound| {
        let (host, port) = &bound.advertised;
        Endpoint { host: Text::from(host.as_str()), port: *port }
    };
    config.listeners.iter().zip(listeners).map(|(of, bound)| (of.name.clone(), endpoint(bound))).collect()
}

async fn bind(config: &BrokerConfig) -> Result<Vec<Bound>, StartError> {
    let mut listeners = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        let bound = net::bind(listener, net::Certificates::load(listener)?, config).await;
        let (host, port) = (&listener.host, listener.port);
        listeners.push(bound.map_err(|error| StartError::Bind { host: host.clone(), port, error })?);
    }
    Ok(listeners)
}

/// As the JVM does for Kafka: every connection and every segment in use is a descriptor, and shells give out 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, ?limit, "the limit on open files stays as it is");
    }
}

/// Has the logs follow the metadata, from what there is now on.
fn follow_images(control: &Control, logs: &Arc<Partitions>, config: &Arc<BrokerConfig>) {
    let (logs, config) = (Arc::clone(logs), Arc::clone(config));
    let mut origin = Origin::Kept;
    control.follow(Box::new(move |before, after| {
        follow_image::follow(&logs, &config, before, after, origin);
        origin = Origin::New;
    }));
}

/// Has the control plane forget deleted topics once nothing is left of them. What it could not write down is found gone by the
/// next start.
async fn forget_deleted(control: Control, logs: Arc<Partitions>, mut stopping: watch::Receiver<bool>) {
    loop {
        let gone = tokio::select! {
            gone = logs.gone() => gone,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if let Err(refusal) = control.forget_deleted(gone).await {
            tracing::debug!(%refusal, "deleted topics stay in control.db until the next start");
        }
    }
}

fn warn_of_strays(logs: &Partitions) {
    if let Ok(strays) = logs.strays()
        && let Some(first) = strays.first()
    {
        let count = strays.len();
        tracing::warn!(%first, count, "the data folder has partitions of topics that control.db does not know; was that file lost or replaced?");
    }
}

fn limits(config: &BrokerConfig) -> Limits {
    Limits {
        request_bytes_max: config.socket_request_max_bytes,
        requests_max: config.connection_requests_max,
        bytes_max: config.connection_bytes_max,
        idle_max: config.connections_max_idle_ms.map(Duration::from_millis),
    }
}
