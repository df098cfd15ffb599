//! The control plane manages the cluster's metadata: topics, settings, brokers, producer ids and the cluster's id. It
//! does not contain partition logs or consumer groups. The logs follow the metadata image, and an internal topic stores
//! the groups.
//!
//! A caller sends a command with a method of [`Control`] (see `topics`, `configs`, `partitions` and `brokers`). The
//! command waits in the `queue` for the `writer` thread, which locks the `store` and reads the commits of other
//! brokers. `decide` turns the command into changes, and the store commits them. `sqlite` is the store of a standalone
//! broker, and `postgres` that of a cluster. The writer then publishes a new [`Image`]. Readers use the published
//! image, so they never wait.
//!
//! Invariant: when a command succeeds, its change is committed, and every later image shows the change. A queued
//! command is carried out even if its caller no longer waits for the response.

mod brokers;
mod change;
mod command;
mod configs;
mod decide;
mod error;
mod features;
mod heartbeat;
mod identity;
mod image;
mod internal;
mod lock;
mod node;
mod notes;
mod partitions;
mod pending;
mod pieces;
mod plane;
mod postgres;
mod queue;
mod reporting;
mod resources;
mod sqlite;
mod startup;
mod store;
mod takeover;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
#[cfg(test)]
mod tests;
mod topics;
mod writer;

use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_rules::cluster::lease::heartbeat_interval_ms;
use fullbore_rules::replica::BrokerState;
use fullbore_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use fullbore_config::BrokerConfig;
use fullbore_db::calls::{CountedCalls, PlaneCalls, PlaneConnection};
use fullbore_db::postgres::Server;
use fullbore_host::disk_space::DiskSpace;
use identity::{ClusterDirectory, Identity};
use pending::CommandKind;
use postgres::Heartbeats;
use queue::Queue;
use startup::{Started, started};
use store::Store;
use writer::QueuedCommand;

pub use change::{CopyAcceptance, DeletedTopic};
pub use command::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterIsr, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, BrokerChange, BrokerScope, ChangeBroker, ConfigChange, CreatePartitions, CreateTopic,
    CreateTopics, ElectLeaders, ElectionKind, FeatureUpdate, GrowTopic, Refusal, RegisterBroker, Resigned, TopicRef,
    UpdateFeatures, UpgradeType, Urgent,
};
pub use decide::{
    CONFIGURED_RESOURCES_MAX, OnlyComplete, PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX, check_name,
    check_replicas, first_unsettled,
};
pub use error::OpenError;
pub use features::{FEATURES, Feature, TRANSACTION_VERSION};
pub use heartbeat::{HeartbeatAnswer, PeerHeartbeat};
pub use image::{Image, Inapplicable, Topic};
pub use internal::{CONSUMER_OFFSETS, TRANSACTION_STATE, is_internal, may_be_auto_created};
pub use lock::DirectoryLock;
pub use node::{Endpoint, RegisteredBroker};
pub use postgres::{
    AcceptedCopy, BrokerFound, Finding, Migrated, UnusableDatabase, accept_copy, check, find_offline, migrate,
};
pub use postgres::{DirectoryInDatabase, RegisteredDirectory, identity_of, look_up_directory};
pub use reporting::{CHANGES, shown};
pub use resources::ConfiguredResource;
pub use sqlite::FILE as SINGLE_BROKERS_FILE;
pub use startup::RegistrationInfo;
pub use writer::ImageListener;

/// A handle for using the control plane, which is cheap to clone. [`Control::close`] finishes the queued commands and
/// closes the database. A drop of the last handle does the same.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    /// The client that sends the commands, for the log. `None` if this broker itself sends them.
    by: Option<Arc<str>>,
}

struct Shared {
    cluster_id: Uuid,
    node_id: i32,
    broker_epoch: i64,
    process: Uuid,
    image: watch::Receiver<Arc<Image>>,
    /// Counts the calls to the database. Set only on a broker of a cluster.
    plane_calls: OnceLock<Arc<PlaneCalls>>,
    /// The database's responses to this broker's heartbeats. Set only on a broker of a cluster.
    heartbeats: OnceLock<watch::Receiver<HeartbeatAnswer>>,
    deleted: Mutex<Vec<DeletedTopic>>,
    /// The queue of commands; `None` once it is closed.
    queue: Mutex<Option<Queue>>,
    /// The writer thread, and the thread that records the newest metadata version in the data directory. Empty once
    /// both have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The thread that sends heartbeats. `None` on a standalone broker, and after [`Control::close`].
    heartbeat_thread: Mutex<Option<Heartbeats>>,
}

/// The data with which [`Control::join_cluster`] completes a broker's registration.
pub struct PendingJoin {
    directory: PathBuf,
    of_directory: ClusterDirectory,
    of_heartbeats: Arc<Server>,
    /// The interval between two heartbeats.
    every: Duration,
}

impl Control {
    /// Opens the metadata store and registers this broker there. A standalone broker uses the file `control.db` in its
    /// data directory, and creates the file at its first start. A broker of a cluster uses the configured database, and
    /// the caller must then call [`Control::join_cluster`]. While the database cannot be used, calls are retried as
    /// long as `arrival` allows. The store may use the disk reserve if the disk is full. Blocks.
    pub fn open(
        broker: Arc<BrokerConfig>,
        directory: &DirectoryLock,
        space: Arc<DiskSpace>,
        arrival: RegistrationInfo,
    ) -> Result<(Self, Option<PendingJoin>), OpenError> {
        let (directory, config) = (directory.directory().to_owned(), Arc::clone(&broker));
        match &broker.membership.control_plane {
            None => {
                let open = move || plane::on_one_machine(&directory, &config, space);
                Ok((Control::start(broker, arrival, open)?, None))
            }
            Some(settings) => {
                let server = plane::server(settings, broker.node.id)?;
                let calls: Arc<PlaneCalls> = Arc::default();
                let over = |connection| {
                    let counted = CountedCalls::new(Arc::clone(&calls), connection);
                    Arc::new(server.clone().counted(counted).knowing(Arc::clone(&arrival.changes)))
                };
                let servers = PlaneConnection::ALL.map(over);
                let (control, place) = Control::open_of_cluster(broker, directory, servers, arrival)?;
                let _ = control.shared.plane_calls.set(calls);
                Ok((control, Some(place)))
            }
        }
    }

    fn open_of_cluster(
        broker: Arc<BrokerConfig>,
        directory: PathBuf,
        [of_metadata, of_heartbeats]: [Arc<Server>; PlaneConnection::ALL.len()],
        arrival: RegistrationInfo,
    ) -> Result<(Self, PendingJoin), OpenError> {
        let id = broker.node.id;
        let every = Duration::from_millis(heartbeat_interval_ms(
            broker.membership.heartbeat_interval_ms,
            broker.membership.session_timeout_ms,
        ));
        let (sender, receiver) = mpsc::sync_channel(1);
        let path = directory.clone();
        let retries = arrival.retries.clone();
        let control = Control::start(broker, arrival, move || {
            let open = || plane::of_cluster(&path, id, Arc::clone(&of_metadata));
            let (store, identity, of_directory) = retries.run(OpenError::is_transient, open)?;
            let _ = sender.send(of_directory);
            Ok((store, identity))
        })?;
        let of_directory = receiver.recv().expect("it is opened");
        Ok((control, PendingJoin { directory, of_directory, of_heartbeats, every }))
    }

    /// Completes the registration of a broker in a cluster. Writes the file `cluster` at the first start, and starts
    /// the heartbeats. After a failure the broker is still registered, and the caller should fence it.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the file `cluster` cannot be written, or if a thread cannot be started.
    pub fn join_cluster(&self, join: PendingJoin) -> Result<(), OpenError> {
        let PendingJoin { directory, of_directory, of_heartbeats, every } = join;
        let shared = &self.shared;
        if of_directory.seen.is_none() {
            // Write the file only after the registration. If the registration is refused, the directory must not
            // change.
            let unusable = |source| OpenError::DirectoryIdentity { file: directory.join(identity::FILE), source };
            of_directory.used_by(shared.process).write(&directory).map_err(unusable)?;
        }
        let (seen, notes) = of_directory.follow(&directory, shared.image.clone()).map_err(OpenError::Thread)?;
        shared.threads.lock().push(seen);
        let known = shared.image.clone();
        let queue = self.queue().map(|queue| queue.downgrade()).expect("it is open");
        let heartbeats = Heartbeats::start(
            of_heartbeats,
            shared.node_id,
            shared.process,
            every,
            notes,
            move || known.borrow().version(),
            move |version| queue.catch_up_to(version),
        );
        let heartbeats = heartbeats.map_err(OpenError::Thread)?;
        let _ = shared.heartbeats.set(heartbeats.received());
        *shared.heartbeat_thread.lock() = Some(heartbeats);
        Ok(())
    }

    /// Starts the writer thread, which opens the store and then serves the commands.
    fn start<S: Store>(
        broker: Arc<BrokerConfig>,
        arrival: RegistrationInfo,
        open: impl FnOnce() -> Result<(S, Identity), OpenError> + Send + 'static,
    ) -> Result<Self, OpenError> {
        let id = broker.node.id;
        let (queue, served) = queue::queue();
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = move || match started(broker, arrival, open) {
            Ok((owner, started)) => {
                let _ = sender.send(Ok(started));
                served.run(owner);
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(work).map_err(OpenError::Thread)?;
        let ended = |_| Err(OpenError::Thread(std::io::Error::other("it has panicked")));
        let Started { identity, images, process } = match receiver.recv().unwrap_or_else(ended) {
            Ok(started) => started,
            Err(error) => {
                // Wait for the thread, so that the store is closed when this function returns.
                let _ = thread.join();
                return Err(error);
            }
        };
        let image = Arc::clone(&images.borrow());
        let shared = Shared {
            cluster_id: identity.cluster_id,
            node_id: id,
            process,
            broker_epoch: image.node(id).map_or(0, |node| node.registration.epoch),
            deleted: Mutex::new(image.deleted().values().cloned().collect()),
            image: images,
            plane_calls: OnceLock::new(),
            heartbeats: OnceLock::new(),
            queue: Mutex::new(Some(queue)),
            threads: Mutex::new(vec![thread]),
            heartbeat_thread: Mutex::new(None),
        };
        Ok(Self { shared: Arc::new(shared), by: None })
    }

    /// Returns a handle whose commands are logged with `who` as their sender.
    pub fn requested_by(&self, who: &str) -> Control {
        Control { shared: Arc::clone(&self.shared), by: Some(Arc::from(who)) }
    }

    /// Returns true while the writer thread runs. After it has ended, the metadata cannot change until the broker
    /// restarts.
    pub fn is_serving(&self) -> bool {
        self.shared.queue.lock().as_ref().is_some_and(|queue| !queue.is_stopped())
    }

    /// Returns the cluster's id, which never changes.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.cluster_id
    }

    /// Returns this broker's epoch, which increases with each start.
    pub fn broker_epoch(&self) -> i64 {
        self.shared.broker_epoch
    }

    /// Returns the random id of this process. If another process replaces this one, the metadata contains the id of
    /// that process instead.
    pub fn process(&self) -> Uuid {
        self.shared.process
    }

    /// Returns this broker's id and the epoch in which this process was registered.
    pub fn broker_state(&self) -> BrokerState {
        BrokerState { broker_id: self.shared.node_id, broker_epoch: self.shared.broker_epoch }
    }

    /// Returns the published metadata. This is cheap, since it only increments a reference count.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.shared.image.borrow())
    }

    /// Returns the counts of calls to the cluster's database, or `None` on a standalone broker.
    pub fn plane_calls(&self) -> Option<&Arc<PlaneCalls>> {
        self.shared.plane_calls.get()
    }

    /// Returns the database's responses to this broker's heartbeats, or `None` on a standalone broker.
    pub fn heartbeats(&self) -> Option<watch::Receiver<HeartbeatAnswer>> {
        self.shared.heartbeats.get().cloned()
    }

    /// Registers `listener` for changes of the image. First calls it with the empty image and the current one, and
    /// returns after that call. Later the listener receives each image together with the next one, before readers see
    /// the next one. The listener must not block.
    pub fn follow(&self, listener: ImageListener) {
        if let Some(queue) = self.queue() {
            queue.act(move |publisher| publisher.follow(listener));
        }
    }

    /// Wakes the writer thread to read and publish the commits of other brokers. Returns at once.
    pub fn catch_up(&self) {
        if let Some(queue) = self.queue() {
            queue.catch_up();
        }
    }

    /// Makes this broker stand down ([`Image::stands_down`]) until the writer reads the store again. Does nothing if
    /// the image has reached `version`, in which a peer has fenced this broker. Blocks until the writer has published
    /// that.
    pub fn stand_down(&self, version: u64) {
        if let Some(queue) = self.queue() {
            queue.act(move |publisher| publisher.stand_down(version));
        }
    }

    fn queue(&self) -> Option<Queue> {
        self.shared.queue.lock().clone()
    }

    /// Returns a receiver of new images. It may skip images, but always gets the newest one.
    pub fn watch(&self) -> watch::Receiver<Arc<Image>> {
        self.shared.image.clone()
    }

    /// Returns the topics that were already deleted at the start, but whose files or rows may still exist. Returns them
    /// only once; later calls return an empty list.
    pub fn take_deleted(&self) -> Vec<DeletedTopic> {
        std::mem::take(&mut self.shared.deleted.lock())
    }

    /// Finishes the queued commands and refuses new ones. Blocks until the last command is finished. Afterwards nothing
    /// is written to the store.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Sends a command to the writer thread and waits for the response.
    async fn submit<K: CommandKind>(&self, command: K) -> K::Answer {
        let Some(queue) = self.queue() else { return command.refused(&stopped()) };
        let lost = command.refused(&lost());
        let (reply, answer) = oneshot::channel();
        let queued = QueuedCommand { command: command.pending(reply), by: self.by.clone(), at: Instant::now() };
        if let Err(queued) = queue.enter(queued).await {
            queued.command.refuse(&stopped());
        }
        // Drop the queue's sender. Otherwise the queue could not be closed while a caller waits for its response.
        drop(queue);
        answer.await.unwrap_or(lost)
    }
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, "The control thread has stopped.")
}

/// Returns the refusal of a command whose response is lost because the writer has panicked.
fn lost() -> Refusal {
    let message = "It is not known whether the change was made, since the control thread has panicked; restart the \
         broker.";
    Refusal::new(ErrorCode::REQUEST_TIMED_OUT, message)
}

impl Shared {
    fn close(&self) {
        // Without the queue's sender, the writer thread ends as soon as the queue is empty.
        self.queue.lock().take();
        self.heartbeat_thread.lock().take();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!(
                    "the thread that records the newest metadata version in the data directory has panicked"
                );
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}
