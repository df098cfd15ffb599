//! The partitions of this broker, by topic id.
//!
//! Reads do not block. Only the thread that applies metadata images changes the registry, in the order of the images. A
//! request therefore cannot bring back an older state.
//!
//! Locks: `topics` is locked only during a lookup or a change in memory. Meanwhile the thread takes no other lock.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::Uuid;
use parking_lot::RwLock;

use crate::replica::data_dir::LogDir;
use crate::replica::{Before, Replica};
use fullbore_config::TopicConfig;

/// All partitions of one data directory.
#[derive(Debug)]
pub struct Registry {
    log_dir: Arc<LogDir>,
    topics: RwLock<HashMap<Uuid, RegisteredTopic>>,
}

#[derive(Debug, Clone)]
struct RegisteredTopic {
    name: Arc<str>,
    /// The partitions in the order of their numbers.
    partitions: Vec<Arc<Replica>>,
}

/// The origin of a topic, which decides whether its partitions may already have records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A topic that existed before this process started. An earlier run may have written to it.
    Kept,
    /// A new topic, which has no records yet.
    New,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new(log_dir: Arc<LogDir>) -> Registry {
        Registry { log_dir, topics: RwLock::default() }
    }

    /// Returns the data directory that the partitions share.
    pub fn log_dir(&self) -> &Arc<LogDir> {
        &self.log_dir
    }

    /// Returns the partition if it exists. Does not block.
    pub fn find(&self, topic_id: &Uuid, index: i32) -> Option<Arc<Replica>> {
        let topics = self.topics.read();
        topics.get(topic_id)?.partitions.get(usize::try_from(index).ok()?).cloned()
    }

    /// Returns all registered partitions.
    pub fn partitions(&self) -> Vec<Arc<Replica>> {
        let topics = self.topics.read();
        topics.values().flat_map(|topic| topic.partitions.iter().cloned()).collect()
    }

    /// Creates or updates the partitions of a topic, without blocking. Queues the opening of partitions that a crash
    /// may have damaged, or that inherit the producer state of a deleted topic. `before` returns the deleted
    /// predecessor of a new partition. Only one thread at a time may call this function.
    pub fn put_topic<'a>(
        &self,
        name: &str,
        id: Uuid,
        partitions: impl IntoIterator<Item = &'a Arc<PartitionRegistration>>,
        config: &Arc<TopicConfig>,
        origin: Origin,
        before: impl Fn(&Arc<str>, i32) -> Before,
    ) {
        let known = self.topics.read().get(&id).cloned();
        let mut topic = known.unwrap_or_else(|| RegisteredTopic { name: name.into(), partitions: Vec::new() });
        for (index, registered) in (0..).zip(partitions) {
            if let Some(partition) = usize::try_from(index).ok().and_then(|index: usize| topic.partitions.get(index)) {
                partition.follow(registered, config);
                continue;
            }
            let known = match origin {
                Origin::Kept => Some(self.log_dir.checkpoints.known(&(name.to_owned(), index))),
                Origin::New => None,
            };
            let before = before(&topic.name, index);
            let key = (topic.name.clone(), id, index);
            let registration = (config.clone(), registered.clone());
            let partition = Replica::new(key, self.log_dir.clone(), registration, known, before);
            let partition = Arc::new(partition);
            if known.map_or(partition.is_preceded, |known| !known.clean) {
                self.log_dir.opener.request_in_time(&partition);
            }
            topic.partitions.push(partition);
        }
        // Take the lock for writing only now, because the loop above may create thousands of partitions.
        self.topics.write().insert(id, topic);
    }

    /// Removes a topic and returns its partitions.
    pub fn remove_topic(&self, id: Uuid) -> Vec<Arc<Replica>> {
        self.topics.write().remove(&id).map_or_else(Vec::new, |topic| topic.partitions)
    }
}
