//! The control plane of one machine: topics, configurations, producer ids, the cluster's identity.
//!
//! Commands go to the one owner of the database, which gathers them into transactions; reads never wait for it, they take
//! the published [`Image`]. Not here: partitions' logs, which follow the image, and groups, which are in a topic.
//!
//! Invariant: what a caller was told is on disk, and every image from then on shows it.

mod command;
mod decide;
mod error;
mod image;
mod internal;
mod lock;
mod node;
mod owner;
mod queue;
mod resources;
mod sqlite;

mod telling;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use fullbore_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::config::BrokerConfig;
use crate::space::Space;
use owner::{Asked, Owner, ProducerIds, random_id, refuse_all};
use queue::Queue;
use sqlite::Store;

pub use command::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, BrokerScope, Command, ConfigChange, CreatePartitions, CreateTopic, CreateTopics, DeletedTopic,
    GrowTopic, Outcome, Refusal, TopicRef,
};
pub use decide::{
    CONFIGURED_RESOURCES_MAX, PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX, check_name,
    check_replicas,
};
pub use error::OpenError;
pub use image::{Image, Topic};
pub use internal::{CONSUMER_OFFSETS, is_internal, may_be_auto_created};
pub use lock::FolderLock;
pub use node::{Endpoint, Node};
pub use resources::ConfiguredResource;
#[cfg(test)]
pub(crate) use sqlite::older;
pub use sqlite::{KeptInDatabase, KeptOffset, StoredGroup};
pub(crate) use telling::{CHANGES, shown};

/// What an image means for others, given the one before.
pub type Follower = Box<dyn FnMut(&Image, &Image) + Send>;

/// A handle on the control plane, cheap to clone. When the last one is dropped, as with [`Control::close`], the thread finishes
/// what it was asked; then the database is closed, and the drop returns.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    /// Who asks, as the log tells it; `None` is this broker itself.
    by: Option<Arc<str>>,
}

struct Shared {
    cluster_id: Uuid,
    broker_epoch: i64,
    image: watch::Receiver<Arc<Image>>,
    /// As it was at the start, until it is taken.
    kept: Mutex<Option<KeptInDatabase>>,
    deleted: Mutex<Vec<DeletedTopic>>,
    owner: Arc<Mutex<Owner>>,
    /// `None` once it is closed.
    queue: Mutex<Option<Queue>>,
    /// `None` once it has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Opens `control.db` in the locked folder, or creates it with a new cluster id. On a full disk the reserve is for this.
    /// `endpoints` is where clients reach this broker, by the name of the listener.
    pub fn open(
        broker: Arc<BrokerConfig>,
        folder: &FolderLock,
        space: Arc<Space>,
        endpoints: BTreeMap<String, Endpoint>,
    ) -> Result<Self, OpenError> {
        let open = || Store::open(folder.folder(), &broker, random_id());
        let (store, mut loaded) = space.freeing(|error: &OpenError| error.is_full(&space), open)?;
        loaded.image.set_endpoints(broker.node_id, endpoints);
        let (published, image) = watch::channel(Arc::new(loaded.image));
        let producer_ids = ProducerIds::starting_at(loaded.next_producer_id);
        let owner = Owner { store, space, broker, published, follower: None, producer_ids };
        let owner = Arc::new(Mutex::new(owner));
        let (queue, served) = queue::queue(Arc::clone(&owner));
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || served.run())
            .map_err(OpenError::Thread)?;
        let shared = Shared {
            cluster_id: loaded.cluster_id,
            broker_epoch: loaded.broker_epoch,
            image,
            kept: Mutex::new(loaded.kept),
            deleted: Mutex::new(loaded.deleted),
            owner,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { shared: Arc::new(shared), by: None })
    }

    /// The same, for somebody whom the log names with what is changed.
    pub fn asked_by(&self, who: &str) -> Control {
        Control { shared: Arc::clone(&self.shared), by: Some(Arc::from(who)) }
    }

    /// Whether the control thread lives. Once it ended, nothing can be changed until the next start.
    pub fn is_serving(&self) -> bool {
        self.shared.queue.lock().as_ref().is_some_and(|queue| !queue.is_stopped())
    }

    /// The same for ever; its text is 22 characters.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.cluster_id
    }

    /// One more at each start; counts from 1.
    pub fn broker_epoch(&self) -> i64 {
        self.shared.broker_epoch
    }

    /// The metadata now. Costs a reference count.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.shared.image.borrow())
    }

    /// Has somebody follow the images: at once from the empty one to that of now, then from each to the next, before anybody
    /// can read it. It must not wait for anything.
    pub fn follow(&self, mut follower: Follower) {
        let mut owner = self.shared.owner.lock();
        follower(&Image::default(), &owner.published.borrow());
        owner.follower = Some(follower);
    }

    /// Publishes an image as another broker of a cluster would have it changed.
    #[cfg(test)]
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Image)) {
        let mut owner = self.shared.owner.lock();
        let before = Arc::clone(&owner.published.borrow());
        let mut after = Image::clone(&before);
        change(&mut after);
        if let Some(follower) = &mut owner.follower {
            follower(&before, &after);
        }
        owner.published.send_replace(Arc::new(after));
    }

    /// Wakes on each new image. Images may be skipped, the newest never is.
    pub fn watch(&self) -> watch::Receiver<Arc<Image>> {
        self.shared.image.clone()
    }

    /// The topics created, in the order asked.
    pub async fn create_topics(&self, topics: CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.ask_topics(Command::CreateTopics(topics)).await
    }

    /// The topics with their new partitions, in the order asked.
    pub async fn create_partitions(&self, topics: CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.ask_topics(Command::CreatePartitions(topics)).await
    }

    /// The topics deleted, as they were, in the order asked.
    pub async fn delete_topics(&self, topics: Vec<TopicRef>) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.ask_topics(Command::DeleteTopics(topics)).await
    }

    /// The topics with their new configuration, in the order asked.
    pub async fn alter_topic_configs(&self, topics: AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.ask_topics(Command::AlterTopicConfigs(topics)).await
    }

    /// An id no producer ever had.
    pub async fn init_producer_id(&self) -> Result<i64, Refusal> {
        match self.ask(Command::InitProducerId).await {
            Outcome::ProducerId(id) => id,
            _ => unreachable!("InitProducerId is answered with an id"),
        }
    }

    /// Whether each change was made, in the order asked; from then on the image shows it.
    pub async fn alter_broker_configs(&self, brokers: AlterBrokerConfigs) -> Vec<Result<(), Refusal>> {
        self.ask_configs(Command::AlterBrokerConfigs(brokers)).await
    }

    /// Whether each change was made, in the order asked; from then on the image shows it.
    pub async fn alter_resource_configs(&self, resources: AlterResourceConfigs) -> Vec<Result<(), Refusal>> {
        self.ask_configs(Command::AlterResourceConfigs(resources)).await
    }

    async fn ask_configs(&self, command: Command) -> Vec<Result<(), Refusal>> {
        match self.ask(command).await {
            Outcome::Configured(each) => each,
            _ => unreachable!("a command on configurations is answered for each"),
        }
    }

    /// What brokers of an older version kept of groups in the database. The second call has none.
    pub fn take_kept_in_database(&self) -> Option<KeptInDatabase> {
        self.shared.kept.lock().take()
    }

    /// Removes it there.
    pub async fn forget_kept_in_database(&self) -> Result<(), Refusal> {
        self.ask_to_forget(Command::ForgetKept).await
    }

    /// Deleted topics of which something may be left, as they were at the start. The second call has none.
    pub fn take_deleted(&self) -> Vec<DeletedTopic> {
        std::mem::take(&mut self.shared.deleted.lock())
    }

    /// Nothing is left of these deleted topics.
    pub async fn forget_deleted(&self, topics: Vec<Uuid>) -> Result<(), Refusal> {
        self.ask_to_forget(Command::ForgetDeleted(topics)).await
    }

    async fn ask_to_forget(&self, command: Command) -> Result<(), Refusal> {
        match self.ask(command).await {
            Outcome::Done(done) => done,
            _ => unreachable!("to forget is answered with whether it was done"),
        }
    }

    /// Does what was asked, and refuses what is asked from now on. Nothing is written any more when it returns. Blocks.
    pub fn close(&self) {
        self.shared.close();
    }

    async fn ask_topics(&self, command: Command) -> Vec<Result<Arc<Topic>, Refusal>> {
        match self.ask(command).await {
            Outcome::Topics(topics) => topics,
            _ => unreachable!("a command on topics is answered with topics"),
        }
    }

    async fn ask(&self, command: Command) -> Outcome {
        let gone = refuse_all(&command, &stopped());
        let queue = self.shared.queue.lock().clone();
        let Some(queue) = queue else { return gone };
        let (answer, outcome) = oneshot::channel();
        match queue.enter().await {
            Some(place) => place.send(Asked { command, by: self.by.clone(), answer }),
            None => return gone,
        }
        // Who only waits for an answer does not keep the queue open.
        drop(queue);
        outcome.await.unwrap_or(gone)
    }
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, "The control thread has stopped.")
}

impl Shared {
    fn close(&self) {
        // The thread ends once it has served what waits.
        self.queue.lock().take();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control thread panicked");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}
