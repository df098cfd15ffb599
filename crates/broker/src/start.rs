//! Starts and stops the broker, and puts its parts together.
//!
//! When it starts, the broker binds its ports, locks the data directory, and opens the control plane, the diskless
//! store and the partitions. Then it accepts connections. The ports are bound first. If one of them is taken, the start
//! fails before it has changed anything. The ports open once the broker is registered. Until then, which takes long
//! without the cluster's database, clients are refused and move on to other brokers.
//!
//! When it stops, the broker accepts no more connections and answers the requests that were admitted. It refuses parked
//! batches and waiting group members. Then it closes the control plane, so that no more decisions are made. It closes
//! the partitions last, because they carry out these decisions. The data directory stays locked until the end.
//!
//! No connection is accepted before all parts that its requests need are open. The control plane and the partitions are
//! closed only after all admitted requests were answered, or after [`STOP_MAX`].

use crate::admin;
use crate::api;
use crate::error::StartError;
use crate::fetch_sessions::Sessions;
use crate::follow_image;
use crate::groups::Groups;
use crate::log_end_reports;
use crate::loggers::Loggers;
use crate::membership::cut_off::CutOff;
use crate::membership::{self, HangUp, Membership, OwnDisk, ReplacedBy};
use crate::net::{self, Bound, Clients, Listening};
use crate::node::{CoordinatorServices, FetchServices, MetadataServices, Node, ObservationServices, ProduceServices};
use crate::partitions::append::AppendServices;
use crate::partitions::{Origin, Partitions, ReorderBuffer};
use crate::replication::{self, Replication};
use crate::telemetry::Telemetry;
use crate::transactions::{Transactions, Unsettled};
use fullbore_config::{BrokerConfig, Listener};
use fullbore_control::{
    Control, DirectoryLock, Endpoint, OpenError, PendingJoin, RegistrationInfo, Urgent, identity_of,
};
use fullbore_db::postgres::known_changes::KnownChanges;
use fullbore_diskless::{Diskless, OpenDisklessError, StoreUse, may_have_older_index};
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::fault_point;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use fullbore_host::start_retries::{StartRetries, StartStop};
use fullbore_host::task::{self, Apart};
use fullbore_host::wide_work::WideWork;
use fullbore_log::boot::{Boots, previous_shutdown};
use fullbore_log::validation::Decompression;
use fullbore_wire::Text;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Maximum time that a stopping broker waits until its clients have read their responses.
const STOP_MAX: Duration = Duration::from_secs(10);

/// A running broker.
pub struct Broker {
    node: Arc<Node>,
    addrs: Vec<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    serving: JoinHandle<()>,
    admin: Option<JoinHandle<()>>,
    ended: Arc<ReplacedBy>,
    _apart: Apart,
    _lock: DirectoryLock,
}

/// A broker that is registered, but whose store and partitions are not open yet.
struct Registered {
    config: Arc<BrokerConfig>,
    loggers: Loggers,
    metrics: Metrics,
    listeners: Vec<Listening>,
    admin_listener: Option<admin::Bound>,
    lock: DirectoryLock,
    space: Arc<DiskSpace>,
    control: Control,
    changes: Arc<KnownChanges>,
    unsettled: Unsettled,
}

/// An open control plane. In a cluster, also the registration of the broker, which is still pending.
type Opened = (Control, Option<PendingJoin>);

/// The future of a start. It is boxed, so that it is compiled only in this crate, and not again in every program and
/// test that starts a broker.
pub type Starting = Pin<Box<dyn Future<Output = Result<Broker, StartError>> + Send>>;

/// The future of a stop.
pub type Stopping = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Broker {
    /// Starts a broker. When this returns, clients can connect.
    ///
    /// # Errors
    /// Returns a [`StartError`] if the broker cannot start. By then, everything that was started has been stopped.
    pub fn start(config: BrokerConfig) -> Starting {
        Broker::start_with(config, Loggers::default())
    }

    /// Starts a broker whose clients may change log levels. When this returns, clients can connect.
    ///
    /// # Errors
    /// Returns a [`StartError`] if the broker cannot start. By then, everything that was started has been stopped.
    pub fn start_with(config: BrokerConfig, loggers: Loggers) -> Starting {
        Broker::start_until(config, loggers, StartStop::default())
    }

    /// Starts a broker like [`Broker::start_with`]. After `stop` is requested, failed calls to the cluster's database
    /// are no longer retried, and a broker that is not registered yet is not registered any more.
    ///
    /// # Errors
    /// Returns a [`StartError`] if the broker cannot start. Nothing is left running then.
    pub fn start_until(config: BrokerConfig, loggers: Loggers, stop: StartStop) -> Starting {
        Box::pin(Broker::assemble(config, loggers, stop, Control::open))
    }

    /// Starts a broker with another control plane than the one in its data directory.
    #[cfg(test)]
    pub(crate) fn start_on(
        config: BrokerConfig,
        open: impl FnOnce(Arc<BrokerConfig>, RegistrationInfo) -> Result<Control, OpenError> + Send + 'static,
    ) -> Starting {
        let open = |config, _: &DirectoryLock, _, arrival| Ok((open(config, arrival)?, None));
        Box::pin(Broker::assemble(config, Loggers::default(), StartStop::default(), open))
    }

    async fn assemble(
        config: BrokerConfig,
        loggers: Loggers,
        stop: StartStop,
        open: impl FnOnce(Arc<BrokerConfig>, &DirectoryLock, Arc<DiskSpace>, RegistrationInfo) -> Result<Opened, OpenError>,
    ) -> Result<Broker, StartError> {
        raise_descriptor_limit();
        if let Some(step) = fault_point::arm().map_err(StartError::FaultPoint)? {
            tracing::warn!(
                step,
                "{} is set: the broker will end or hang on purpose when it reaches this step",
                fault_point::VARIABLE
            );
        }
        let config = Arc::new(config);
        let listeners = bind(&config).await?;
        let admin_listener = admin::bind(&config).await?;
        let lock = DirectoryLock::take(&config.node.data_dir)?;
        let space = Arc::new(DiskSpace::open(&config.node.data_dir, config.storage.disk_reserve_bytes));
        let (ended, boots) = (previous_shutdown(&config.node.data_dir), Boots::look(&config.node.data_dir));
        let unsettled = Unsettled::open(&config.node.data_dir, ended);
        let endpoints = endpoints(&config, &listeners);
        let limit = Duration::from_millis(config.membership.registration_timeout_ms);
        let retries = StartRetries::new(limit, stop);
        let changes = Arc::<KnownChanges>::default();
        let is_same_boot = boots.are_the_same();
        let (of_control, of_check) = (Arc::clone(&changes), Arc::clone(&changes));
        let arrival =
            RegistrationInfo { endpoints, ended, is_same_boot, retries: retries.clone(), changes: of_control };
        let checked = Arc::clone(&config);
        // Reads the version from the file `cluster` now, before the control plane writes a newer version to it.
        let seen = identity_of(&config.node.data_dir).ok().flatten().and_then(|known| known.seen_number());
        if may_have_older_index(&config.node.data_dir) {
            unsettled.note_older_index();
        }
        let check = tokio::task::spawn_blocking(move || check_index(&checked, &of_check, &retries));
        check.await.map_err(|error| OpenError::Thread(error.into()))??;
        let (control, join) = open(Arc::clone(&config), &lock, Arc::clone(&space), arrival)?;
        // The note is on the disk before the directory records a newer version of the metadata.
        if follow_image::is_copy_new(&control.image(), seen) {
            unsettled.note_older_index();
        }
        let listeners = enter(&config, &control, listeners, join).await?;
        let registered = Registered {
            config,
            loggers,
            metrics: Metrics::default(),
            listeners,
            admin_listener,
            lock,
            space,
            control: control.clone(),
            changes,
            unsettled,
        };
        let started = Broker::start_registered(registered).await;
        if started.is_err() {
            // Without this, the cluster would send clients to this broker and place replicas on it until its session
            // expires.
            membership::leave(&control).await;
            close(control).await;
        }
        started
    }

    async fn start_registered(registered: Registered) -> Result<Broker, StartError> {
        let Registered {
            config,
            loggers,
            metrics,
            listeners,
            admin_listener,
            lock,
            space,
            control,
            changes,
            unsettled,
        } = registered;
        let apart = Apart::start().map_err(OpenError::Thread)?;
        // Opens the store before the partitions. If the start is refused, the usual reason is a wrong object store, and
        // the partitions are then still unchanged.
        let diskless = match config.diskless.is_served {
            true => {
                let (cluster_id, space) = (control.cluster_id(), Arc::clone(&space));
                Some(Diskless::open(&config, cluster_id, changes, space, metrics.clone()).await?)
            }
            false => None,
        };
        let partitions = Partitions::open_with(&config.node.data_dir, &config, Arc::clone(&space))?;
        if let Some(diskless) = diskless {
            partitions.serve_diskless(diskless);
        }
        follow_image::finish_deletions(&partitions, &config, control.take_deleted());
        if control.heartbeats().is_some() {
            let deleted = follow_image::deleted_meanwhile(&partitions, &control.image());
            follow_image::finish_deletions(&partitions, &config, deleted);
        }
        follow_image::keep_records(&partitions, &control.image());
        follow_image::set_unknown_aside(&partitions, &control.image()).map_err(StartError::SetAside)?;
        follow_images(&control, &partitions, &config);
        partitions.note_all_registered();
        warn_of_strays(&partitions);
        let (addrs, stop) = (listeners.iter().map(|bound| bound.addr).collect(), watch::channel(false).0);
        let groups = Groups::new(&config, control.clone(), Arc::clone(&partitions), metrics.clone());
        groups.start(&config, &stop);
        let shared = (control.clone(), Arc::clone(&partitions), metrics.clone());
        let transactions = Transactions::new(&config, shared, groups.clone(), unsettled);
        transactions.start(&stop);
        let replication = Replication::start(&config, &control, &partitions, &metrics, stop.subscribe());
        let shared = SharedParts { config, control, partitions, metrics, stop };
        let node = Arc::new(node(shared, replication, (groups, transactions), (loggers, space), &listeners));
        let (space, admin_addr) = (Arc::clone(&node.space), admin_listener.as_ref().map(|bound| bound.addr));
        apart.spawn(async move { space.watch_writes().await });
        let admin = admin_listener.map(|bound| admin::start(bound, &node, &apart));
        task::spawn(forget_deleted(node.metadata.control.clone(), Arc::clone(&node.partitions), node.stopping()));
        let (ended, clients) = (Arc::new(ReplacedBy::new(None)), Arc::<Clients>::default());
        if let Some(heartbeats) = node.metadata.control.heartbeats() {
            task::spawn(cut_off(&node).run(heartbeats.clone(), node.stopping()));
            apart.spawn(member(&node, &clients).run(heartbeats, node.stopping(), Arc::clone(&ended)));
            task::spawn(log_end_reports::run(
                node.metadata.control.clone(),
                Arc::clone(&node.partitions),
                node.stopping(),
            ));
            if let Some(interval) = node.metadata.config.replication.balance_interval {
                let (control, node_id) = (node.metadata.control.clone(), node.metadata.config.node.id);
                task::spawn(membership::balance::run(control, node_id, interval, node.stopping()));
            }
        }
        let serving = task::spawn(net::run(Arc::clone(&node), listeners, clients, node.stopping()));
        Ok(Broker { node, addrs, admin_addr, serving, admin, ended, _apart: apart, _lock: lock })
    }

    /// Returns the state that all connections share.
    #[cfg(test)]
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the address of the first listener.
    pub fn addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    /// Returns the addresses of the listeners, in the order of `listeners`.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns the host and port that clients of the first listener get.
    pub fn advertised(&self) -> (String, i32) {
        let (host, port) = self.node.metadata.endpoint(0);
        (host.to_string(), port)
    }

    /// Returns every listener with its name, true if it uses TLS, and the host and port that its clients get.
    pub fn listeners(&self) -> Vec<(&str, bool, (String, i32))> {
        let configured = self.node.metadata.config.network.listeners.iter();
        let reached = |index| {
            let (host, port) = self.node.metadata.endpoint(index);
            (host.to_string(), port)
        };
        configured.enumerate().map(|(index, of)| (of.name.as_str(), of.tls.is_some(), reached(index))).collect()
    }

    /// Returns the address of the admin page, or `None` if it is turned off.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// Returns the cluster's id.
    pub fn cluster_id(&self) -> &str {
        &self.node.metadata.cluster_id
    }

    /// Returns the counts of requests to the object store.
    pub fn store_use(&self) -> StoreUse {
        self.node.partitions.diskless().map(Diskless::store_use).unwrap_or_default()
    }

    /// Waits until another process replaces this broker, and returns the reason. The caller must then stop the broker.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }

    /// Waits until a write to the disk hangs. All threads that serve clients may then hang as well, so the caller
    /// should add threads.
    pub async fn disk_hangs(&self) {
        self.node.space.until_it_hangs().await;
    }

    /// Stops the broker cleanly: hands over its leaderships, answers the admitted requests, and flushes the appended
    /// records.
    pub fn shutdown(self) -> Stopping {
        Box::pin(self.stop())
    }

    async fn stop(self) {
        if let Some(mut heartbeats) = self.node.metadata.control.heartbeats().filter(|_| self.ended.borrow().is_none())
        {
            membership::hand_over(&self.node.metadata.control, &mut heartbeats, self.node.partitions.in_use().into())
                .await;
        }
        self.node.stop.send_replace(true);
        self.node.produce.reordering.close();
        self.node.coordinators.groups.close();
        self.node.partitions.dismiss_waiting();
        if timeout(STOP_MAX, self.serving).await.is_err() {
            tracing::warn!("some clients have not read their responses in time: their connections are closed");
        }
        if let Some(admin) = self.admin {
            admin.abort();
        }
        if self.node.metadata.control.heartbeats().is_some() && self.ended.borrow().is_none() {
            membership::leave(&self.node.metadata.control).await;
        }
        let node = Arc::clone(&self.node);
        let closing = move || {
            // First closes the control plane, so that it makes no more decisions. The partitions have then carried out
            // all decisions when they are closed.
            node.metadata.control.close();
            node.partitions.close();
        };
        if let Err(error) = tokio::task::spawn_blocking(closing).await {
            tracing::error!(%error, "cannot close the logs: the next start recovers them");
        }
    }
}

/// The parts of the broker that most groups of APIs use.
struct SharedParts {
    config: Arc<BrokerConfig>,
    control: Control,
    partitions: Arc<Partitions>,
    metrics: Metrics,
    stop: watch::Sender<bool>,
}

/// Gives each group of APIs its parts.
fn node(
    shared: SharedParts,
    replication: Replication,
    (groups, transactions): (Arc<Groups>, Arc<Transactions>),
    (loggers, space): (Loggers, Arc<DiskSpace>),
    listeners: &[Listening],
) -> Node {
    let SharedParts { config, control, partitions, metrics, stop } = shared;
    let (wide, long_work) = (Arc::<WideWork>::default(), Arc::<LongWork>::default());
    let endpoint = |bound: &Listening| (Text::from(bound.advertised.0.as_str()), i32::from(bound.advertised.1));
    let metadata = Arc::new(MetadataServices {
        cluster_id: Text::from(control.cluster_id().to_string()),
        served: api::SERVED,
        endpoints: listeners.iter().map(endpoint).collect(),
        config: Arc::clone(&config),
        control,
    });
    let append = AppendServices {
        decompression: Decompression::default(),
        long_work: Arc::clone(&long_work),
        metrics: metrics.clone(),
        transactions: Box::new(Arc::clone(&transactions)),
    };
    Node {
        produce: Arc::new(ProduceServices {
            metadata: Arc::clone(&metadata),
            partitions: Arc::clone(&partitions),
            append,
            reordering: ReorderBuffer::new(&config.reorder, metrics.clone()),
        }),
        fetch: Arc::new(FetchServices {
            metadata: Arc::clone(&metadata),
            partitions: Arc::clone(&partitions),
            sessions: Sessions::new(config.api.fetch_sessions_max),
            isr: Arc::clone(replication.isr()),
            wide: Arc::clone(&wide),
            metrics: metrics.clone(),
            stopping: stop.subscribe(),
        }),
        coordinators: Arc::new(CoordinatorServices {
            metadata: Arc::clone(&metadata),
            groups,
            transactions,
            metrics: metrics.clone(),
        }),
        observation: ObservationServices {
            metadata: Arc::clone(&metadata),
            telemetry: Telemetry::new(metrics.clone()),
            loggers,
            metrics: metrics.clone(),
        },
        metadata,
        partitions,
        replication,
        space,
        long_work,
        wide,
        unread: Arc::default(),
        metrics,
        stop,
    }
}

async fn close(control: Control) {
    let _ = tokio::task::spawn_blocking(move || control.close()).await;
}

fn member(node: &Node, clients: &Arc<Clients>) -> Membership {
    let config = &node.metadata.config;
    let listener =
        config.network.listeners.get(config.replication.listener).map_or("", |listener| listener.name.as_str());
    let session_timeout_ms = i64::try_from(config.membership.session_timeout_ms).unwrap_or(i64::MAX);
    let partitions = Arc::clone(&node.partitions);
    let in_use = Arc::new(move || Urgent::from(partitions.in_use()));
    let space = Arc::clone(&node.space);
    let clients = Arc::clone(clients);
    let (disk, hang_up): (OwnDisk, HangUp) = (Box::new(move || space.room()), Box::new(move || clients.hang_up()));
    let member = Membership::new(
        node.metadata.control.clone(),
        config.node.id,
        session_timeout_ms,
        listener,
        in_use,
        disk,
        hang_up,
    );
    match node.partitions.diskless() {
        Some(diskless) => member.with_store(Arc::clone(diskless.health())),
        None => member,
    }
}

fn cut_off(node: &Node) -> CutOff {
    let MetadataServices { config, control, .. } = &*node.metadata;
    CutOff::new(config, control.clone(), replication::client(config))
}

/// Returns the addresses that this broker announces, by the names of their listeners.
fn endpoints(config: &BrokerConfig, listeners: &[Bound]) -> BTreeMap<String, Endpoint> {
    let endpoint = |bound: &Bound| {
        let (host, port) = &bound.advertised;
        Endpoint { host: Text::from(host.as_str()), port: *port }
    };
    config.network.listeners.iter().zip(listeners).map(|(of, bound)| (of.name.clone(), endpoint(bound))).collect()
}

async fn bind(config: &BrokerConfig) -> Result<Vec<Bound>, StartError> {
    let mut listeners = Vec::with_capacity(config.network.listeners.len());
    for listener in &config.network.listeners {
        let bound = net::bind(listener, net::Certificates::load(listener)?, &config.network).await;
        let (host, port) = (&listener.host, listener.port);
        listeners.push(bound.map_err(|error| StartError::Bind { host: host.clone(), port, error })?);
    }
    Ok(listeners)
}

/// Opens the ports of a registered broker, and completes the registration in a cluster. After a failure, the control
/// plane is closed.
///
/// The ports open first. Otherwise another broker that probes them before the first heartbeat would soon consider this
/// broker failed (`membership/watch.rs`).
async fn enter(
    config: &BrokerConfig,
    control: &Control,
    bound: Vec<Bound>,
    join: Option<PendingJoin>,
) -> Result<Vec<Listening>, StartError> {
    let is_member = join.is_some();
    let entered = listen(config, bound).and_then(|listeners| {
        join.map_or(Ok(()), |join| control.join_cluster(join))?;
        Ok(listeners)
    });
    if entered.is_err() {
        if is_member {
            // Fences the broker, even if no other broker runs. If this start has not written the file `cluster`, the
            // next start chooses another directory id. That start would be refused while the present registration, with
            // its different directory id, is not fenced.
            membership::fence(control).await;
        }
        close(control.clone()).await;
    }
    entered
}

fn listen(config: &BrokerConfig, bound: Vec<Bound>) -> Result<Vec<Listening>, StartError> {
    let open = |(of, bound): (&Listener, Bound)| {
        let (host, port) = (&of.host, bound.addr.port());
        bound.listen(&config.network).map_err(|error| StartError::Bind { host: host.clone(), port, error })
    };
    config.network.listeners.iter().zip(bound).map(open).collect()
}

/// Raises the limit of open files, as the JVM does for Kafka. Every connection and every open segment needs a
/// descriptor, and shells often allow only 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, ?limit, "cannot raise the limit on open files");
    }
}

/// Applies the present image to the partitions, and then each new one.
fn follow_images(control: &Control, partitions: &Arc<Partitions>, config: &Arc<BrokerConfig>) {
    let (partitions, config) = (Arc::clone(partitions), Arc::clone(config));
    let mut origin = Origin::Kept;
    control.follow(Box::new(move |before, after| {
        follow_image::follow(&partitions, &config, before, after, origin);
        origin = Origin::New;
    }));
}

/// Removes a deleted topic from the metadata once its directories are renamed and the diskless index has no more rows
/// of it. If this fails, the next start of the broker tries again.
async fn forget_deleted(control: Control, partitions: Arc<Partitions>, mut stopping: watch::Receiver<bool>) {
    loop {
        let gone = tokio::select! {
            gone = partitions.gone() => gone,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if let Err(refusal) = control.forget_deleted(gone).await {
            tracing::debug!(%refusal, "cannot forget deleted topics: they stay in the metadata until the next start");
        }
    }
}

fn warn_of_strays(partitions: &Partitions) {
    if let Ok(strays) = partitions.strays()
        && let Some(first) = strays.first()
    {
        let count = strays.len();
        tracing::warn!(%first, count, "the data directory has partitions of topics that the metadata lacks: this broker does not serve these partitions; check whether control.db or the cluster's database was lost or replaced");
    }
}
/// Checks that the index of diskless topics in the cluster's database is not an older copy. Without a readable identity
/// there is nothing to compare: either the directory is new, or the control plane will refuse it.
fn check_index(config: &BrokerConfig, changes: &KnownChanges, retries: &StartRetries) -> Result<(), OpenDisklessError> {
    match identity_of(&config.node.data_dir) {
        Ok(Some(known)) => fullbore_diskless::check_index(config, known.cluster_id, changes, retries),
        _ => Ok(()),
    }
}
