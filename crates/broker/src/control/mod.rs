//! The control plane of one machine: topics, configurations, producer ids, the cluster's identity.
//!
//! Commands go to the one owner of the database, which gathers them into transactions; reads never wait for it, they take
//! the published [`Image`] and [`Offsets`]. Not here: partitions' logs, which follow the image.
//!
//! Invariant: what a caller was told is on disk (of groups: with the operating system), and every image from then on shows it.

mod asker;
mod command;
mod decide;
mod error;
mod image;
mod internal;
mod lock;
mod offsets;
mod owner;
mod queue;
mod resources;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::JoinHandle;

use fullbore_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;
use tokio::sync::{SemaphorePermit, oneshot, watch};

use crate::config::BrokerConfig;
use crate::space::Space;
use owner::{Asked, Owner, ProducerIds, random_id, refuse_all};
use queue::Queue;
use store::Store;

pub use asker::Asker;
pub use command::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, BrokerScope, Command, CommitOffset, CommitOffsets, ConfigChange, CreatePartitions, CreateTopic,
    CreateTopics, DeleteGroup, DeleteOffset, DeleteOffsets, DeletedTopic, GrowTopic, Outcome, Refusal, StoredGroup,
    TopicRef,
};
pub use decide::{
    CONFIGURED_RESOURCES_MAX, PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX, check_name,
    check_replicas,
};
pub use error::OpenError;
pub use image::{Image, Topic};
pub use internal::{is_internal, may_be_auto_created};
pub use lock::FolderLock;
pub use offsets::{Committed, GroupOffsets, Offsets};
pub use resources::ConfiguredResource;

/// What an image means for others, given the one before.
pub type Follower = Box<dyn FnMut(&Image, &Image) + Send>;

/// A handle on the control plane, cheap to clone. When the last one is dropped, as with [`Control::close`], the thread finishes
/// what it was asked; then the database is closed, and the drop returns.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    cluster_id: Uuid,
    broker_epoch: i64,
    image: watch::Receiver<Arc<Image>>,
    offsets: Arc<Offsets>,
    /// As they were at the start, until they are taken.
    groups: Mutex<Vec<StoredGroup>>,
    deleted: Mutex<Vec<DeletedTopic>>,
    queue: Arc<Queue>,
    /// `None` once it has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Opens `control.db` in the locked folder, or creates it with a new cluster id. On a full disk the reserve is for this.
    pub fn open(broker: Arc<BrokerConfig>, folder: &FolderLock, space: Arc<Space>) -> Result<Self, OpenError> {
        let open = || Store::open(folder.folder(), &broker, random_id());
        let (store, loaded) = space.freeing(|error: &OpenError| error.is_full(&space), open)?;
        let (published, image) = watch::channel(Arc::new(loaded.image));
        let producer_ids = ProducerIds::starting_at(loaded.next_producer_id);
        let offsets = Arc::new(loaded.offsets);
        let offsets_held = Arc::clone(&offsets);
        let owner = Owner { store, space, broker, published, follower: None, offsets: offsets_held, producer_ids };
        let queue = Arc::new(Queue::new(owner));
        let served = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || served.run())
            .map_err(OpenError::Thread)?;
        let shared = Shared {
            cluster_id: loaded.cluster_id,
            broker_epoch: loaded.broker_epoch,
            image,
            offsets,
            groups: Mutex::new(loaded.groups),
            deleted: Mutex::new(loaded.deleted),
            queue,
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether the control thread lives. Once it ended, nothing can be changed until the next start.
    pub fn is_serving(&self) -> bool {
        !self.shared.queue.is_stopped()
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
        self.shared.queue.with_owner(|owner| {
            follower(&Image::default(), &owner.published.borrow());
            owner.follower = Some(follower);
        });
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

    /// What groups committed. Whoever was answered a commit sees it, or a newer one.
    pub fn offsets(&self) -> &Arc<Offsets> {
        &self.shared.offsets
    }

    /// The groups' snapshots as they were at the start. The second call has none.
    pub fn take_groups(&self) -> Vec<StoredGroup> {
        std::mem::take(&mut self.shared.groups.lock())
    }

    /// Deleted topics of which something may be left, as they were at the start. The second call has none.
    pub fn take_deleted(&self) -> Vec<DeletedTopic> {
        std::mem::take(&mut self.shared.deleted.lock())
    }

    /// Nothing is left of these deleted topics.
    pub async fn forget_deleted(&self, topics: Vec<Uuid>) -> Result<(), Refusal> {
        match self.ask(Command::ForgetDeleted(topics)).await {
            Outcome::Done(done) => done,
            _ => unreachable!("to forget is answered with whether it was done"),
        }
    }

    /// Does what was asked, and refuses what is asked from now on. Nothing is written any more when it returns. Blocks.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Waits for a place in the queue. Whoever must ask in a fixed order, under a lock of their own, enters first.
    pub async fn enter(&self) -> Result<Place<'_>, Refusal> {
        Place::of(&self.shared.queue, None).await
    }

    /// Of a new connection.
    pub fn asker(&self) -> Asker {
        Asker::new(Arc::clone(&self.shared.queue))
    }

    async fn ask_topics(&self, command: Command) -> Vec<Result<Arc<Topic>, Refusal>> {
        match self.ask(command).await {
            Outcome::Topics(topics) => topics,
            _ => unreachable!("a command on topics is answered with topics"),
        }
    }

    async fn ask(&self, command: Command) -> Outcome {
        match self.enter().await {
            Ok(place) => place.ask(command).outcome().await,
            Err(refusal) => refuse_all(&command, &refusal),
        }
    }
}

/// A place in the queue.
pub struct Place<'a> {
    queue: &'a Arc<Queue>,
    permit: SemaphorePermit<'a>,
    /// Whose place it is, where those are counted.
    own: Option<asker::Own<'a>>,
}

impl<'a> Place<'a> {
    async fn of(queue: &'a Arc<Queue>, own: Option<asker::Own<'a>>) -> Result<Self, Refusal> {
        let permit = queue.enter().await;
        if queue.is_stopped() { Err(stopped()) } else { Ok(Place { queue, permit, own }) }
    }

    /// Takes the place, without waiting. Commands are served in the order in which this was called.
    pub fn ask(self, command: Command) -> Pending {
        let gone = refuse_all(&command, &stopped());
        let queue = command.is_of_groups().then(|| Arc::clone(self.queue));
        let (answer, outcome) = oneshot::channel();
        let own = self.own.map(asker::Own::taken);
        self.queue.push(self.permit, own, Asked { command, answer });
        Pending { queue, gone: Some(gone), outcome }
    }
}

/// A command under way. Dropping it does not take the command back.
pub struct Pending {
    /// Until somebody is sure to serve the command.
    queue: Option<Arc<Queue>>,
    /// The outcome when nobody is left to serve it.
    gone: Option<Outcome>,
    outcome: oneshot::Receiver<Outcome>,
}

impl Pending {
    pub async fn outcome(mut self) -> Outcome {
        if self.queue.is_some() {
            if let Some(outcome) = self.served() {
                return outcome;
            }
            // Others that are ready now ask first, and share the transaction.
            tokio::task::yield_now().await;
            if let Some(outcome) = self.served() {
                return outcome;
            }
        }
        if let Some(queue) = self.queue.take() {
            queue.serve_of_groups();
        }
        match (&mut self.outcome).await {
            Ok(outcome) => outcome,
            Err(_) => self.gone.take().expect("taken once"),
        }
    }

    /// The outcome, where somebody has served the command together with another.
    fn served(&mut self) -> Option<Outcome> {
        let outcome = self.outcome.try_recv().ok()?;
        self.queue = None;
        Some(outcome)
    }

    /// Of a command on a group other than a commit.
    pub async fn done(self) -> Result<(), Refusal> {
        match self.outcome().await {
            Outcome::Done(done) => done,
            _ => unreachable!("a command on a group is answered with whether it was done"),
        }
    }

    /// Of [`Command::CommitOffsets`]: what was not committed, as index and reason.
    pub async fn committed(self) -> Result<Vec<(usize, ErrorCode)>, Refusal> {
        match self.outcome().await {
            Outcome::Committed(committed) => committed,
            _ => unreachable!("a commit is answered with what was not committed"),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.wake_thread();
        }
    }
}

fn stopped() -> Refusal {
    Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, "The control thread has stopped.")
}

impl Shared {
    fn close(&self) {
        self.queue.close();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control thread panicked");
        }
        // Who asks for changes of groups may be serving them.
        self.queue.with_owner(|_| ());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}
