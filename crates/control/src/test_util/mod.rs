//! Control planes with a store in memory, for the tests of this crate and of other crates. Several brokers can share
//! the store, and tests can break its connections.

mod memory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fullbore_rules::cluster::PreviousShutdown;
use fullbore_wire::{Text, Uuid};

use super::Control;
use super::change::{Change, Version};
use super::command::{CreateTopic, CreateTopics, Refusal};
use super::error::OpenError;
use super::identity::Identity;
use super::image::{Image, Topic};
use super::node::Endpoint;
use super::startup::RegistrationInfo;
use super::store::{Store, Transaction};
use super::writer::MetadataWriter;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::random_id;
use fullbore_host::start_retries::{StartRetries, StartStop};

pub use memory::{Fault, Memory};

impl RegistrationInfo {
    /// Creates the registration of a broker without addresses. The broker's previous process was killed, but the logs
    /// lost nothing. The start does not retry.
    pub fn nowhere() -> Self {
        let retries = StartRetries::new(Duration::ZERO, StartStop::default());
        Self {
            endpoints: BTreeMap::new(),
            ended: PreviousShutdown::Killed,
            is_same_boot: true,
            retries,
            changes: Arc::default(),
        }
    }
}

impl Control {
    /// Opens a control plane with a store in memory. Several brokers can share the store.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the settings contradict those in the store.
    pub fn open_in_memory(
        broker: Arc<BrokerConfig>,
        arrival: RegistrationInfo,
        memory: &Memory,
        directory: Uuid,
    ) -> Result<Self, OpenError> {
        let (memory, store) = (memory.clone(), PathBuf::from("memory").into());
        let identity = Identity { cluster_id: Uuid([1; 16]), directory, used: None, store };
        Control::start(broker, arrival, move || Ok((memory, identity)))
    }

    /// Blocks until the writer has carried out all commands that were queued before.
    pub fn settle(&self) {
        self.queue().expect("it is open").act(|_| ());
    }

    /// Changes the image and publishes it, as if another broker had committed the change.
    pub fn publish(&self, change: impl FnOnce(&mut Image)) {
        let queue = self.queue().expect("it is open");
        let ((give, at_hand), (back, next)) = (mpsc::sync_channel(1), mpsc::sync_channel::<Image>(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                queue.act(move |publisher| {
                    give.send(Image::clone(publisher.image())).expect("it is waited for");
                    publisher.publish(next.recv().expect("it comes"));
                });
            });
            let mut image = at_hand.recv().expect("the owner serves");
            change(&mut image);
            back.send(image).expect("it is waited for");
        });
    }
}

/// Returns a broker's configuration with these properties.
pub fn broker(text: &str) -> Arc<BrokerConfig> {
    Arc::new(BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0)
}

/// Returns a request for a topic with two partitions.
pub fn wanted(name: &str) -> CreateTopic {
    CreateTopic { name: name.into(), num_partitions: 2, replication_factor: -1, ..CreateTopic::default() }
}

/// Creates topics, and returns the outcome for each.
pub async fn create(control: &Control, topics: Vec<CreateTopic>) -> Vec<Result<Arc<Topic>, Refusal>> {
    control.create_topics(CreateTopics { topics, validate_only: false }).await
}

/// Opens the control plane of a broker that shares a store with other brokers. The broker's data directory has the id
/// `directory`, and the broker has a single listener, on this machine.
///
/// # Errors
/// Returns [`OpenError`] if the settings contradict those in the store.
pub fn member(memory: &Memory, id: i32, directory: u128, listener: &str, port: u16) -> Result<Control, OpenError> {
    let (memory, cluster_id) = (memory.clone(), random_id());
    let directory = Uuid(directory.to_be_bytes());
    let identity = Identity { cluster_id, directory, used: None, store: PathBuf::from("memory").into() };
    let at = Endpoint { host: Text::from("127.0.0.1"), port };
    let arrival = RegistrationInfo { endpoints: [(listener.to_owned(), at)].into(), ..RegistrationInfo::nowhere() };
    Control::start(broker(&format!("node.id={id}")), arrival, move || Ok((memory, identity)))
}

/// Fences a broker without deciding about its partitions, as if the fencing process had then ended.
pub fn fence_alone(memory: &Memory, id: i32) {
    let (mut owner, images) = MetadataWriter::new(memory.clone(), broker(""), Box::new(random_id)).expect("valid");
    owner.catch_up();
    let image = Arc::clone(&images.borrow());
    let mut node = image.node(id).expect("registered").clone();
    node.registration.is_fenced = true;
    let change = Change::BrokerRegistered { id, node };
    commit_beside(&mut owner.store, image.version(), change);
}

/// Commits `change` as the version after `newest`, for another broker.
pub fn commit_beside(store: &mut impl Store, newest: Option<Version>, change: Change) {
    let number = newest.map_or(0, |newest| newest.number) + 1;
    let (transaction, _) = store.begin(newest).expect("begun");
    transaction.commit(&[change], Version { number, nonce: number }).expect("committed");
}
