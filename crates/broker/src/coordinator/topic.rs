//! The shards of one internal topic.

use super::{Shard, Status};
use crate::partitions::Partitions;
use fullbore_wire::batch::Compression;
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Uuid};
use std::sync::Arc;

/// An internal topic with one shard per partition. Keys are spread over the partitions that the topic had when this
/// broker first saw it. Partitions that are added later get no shards.
pub struct InternalTopic {
    id: Uuid,
    shards: Vec<Arc<Shard>>,
}

impl InternalTopic {
    /// Creates the shards of the topic's partitions, which write their batches with `compression`. Those that this
    /// broker leads must still be loaded.
    pub fn new(id: Uuid, partitions: i32, compression: Compression, logs: &Partitions) -> InternalTopic {
        let found = (0..partitions).filter_map(|index| logs.find(&id, index));
        InternalTopic { id, shards: found.map(|partition| Shard::new(partition, compression)).collect() }
    }

    /// Returns true if each partition still has the role for which its shard was created.
    pub fn keeps_its_roles(&self) -> bool {
        self.shards.iter().all(|shard| shard.keeps_its_role())
    }

    /// Returns the topic with a new shard for each partition whose role has changed. Also returns the shards that were
    /// replaced.
    pub fn with_roles(&self) -> (InternalTopic, Vec<Arc<Shard>>) {
        let mut left = Vec::new();
        let shard = |shard: &Arc<Shard>| {
            if shard.keeps_its_role() {
                return Arc::clone(shard);
            }
            left.push(Arc::clone(shard));
            Shard::successor_of(shard)
        };
        (InternalTopic { id: self.id, shards: self.shards.iter().map(shard).collect() }, left)
    }

    /// Returns the topic's id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the shards in the order of their partitions.
    pub fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Returns true if any shard is loading.
    pub fn is_loading(&self) -> bool {
        self.shards.iter().any(|shard| shard.status() == Status::Loading)
    }

    /// Returns the shard that a key belongs to, if it is serving.
    ///
    /// # Errors
    /// Fails with COORDINATOR_LOAD_IN_PROGRESS while the shard is loading, and with NOT_COORDINATOR if another broker
    /// leads it. Fails with COORDINATOR_NOT_AVAILABLE if the shard's log could not be read, or if the shard is no
    /// longer used.
    pub fn serving(&self, key: &str) -> Result<&Arc<Shard>, ErrorCode> {
        InternalTopic::check_serving(self.shard(key))
    }

    /// Returns the shard of a partition, if it is serving.
    ///
    /// # Errors
    /// Fails as [`InternalTopic::serving`] does.
    pub fn serving_partition(&self, partition: i32) -> Result<&Arc<Shard>, ErrorCode> {
        InternalTopic::check_serving(usize::try_from(partition).ok().and_then(|index| self.shards.get(index)))
    }

    fn check_serving(shard: Option<&Arc<Shard>>) -> Result<&Arc<Shard>, ErrorCode> {
        let shard = shard.ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        match shard.status() {
            Status::Serving => Ok(shard),
            Status::Loading => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Status::Elsewhere => Err(ErrorCode::NOT_COORDINATOR),
            Status::Failed | Status::Gone => Err(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        }
    }

    /// Returns the shard that a key belongs to, even if it is not serving. `None` if the topic has no shards.
    pub fn shard(&self, key: &str) -> Option<&Arc<Shard>> {
        let count = i32::try_from(self.shards.len()).ok().filter(|count| *count > 0)?;
        self.shards.get(usize::try_from(partition_for(key, count)).ok()?)
    }
}
