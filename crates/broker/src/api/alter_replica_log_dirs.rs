//! AlterReplicaLogDirs 1-2. A broker has one data directory and one object store, so a replica cannot move. Only a
//! request for the replica's present location succeeds.

use super::call::{Call, Fault, Reply};
use super::describe_log_dirs;
use crate::node::MetadataServices;
use fullbore_control::Image;
use fullbore_wire::apis::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::BTreeMap;

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: AlterReplicaLogDirsRequest = call.body(reply.version)?;
    let image = metadata.control.image();
    let (directory, store) = (describe_log_dirs::directory(metadata), describe_log_dirs::store(metadata));
    // If a request names a partition more than once, the last directory counts, as in Kafka.
    let mut wanted: BTreeMap<Text, BTreeMap<i32, Option<Place>>> = BTreeMap::new();
    for dir in request.dirs {
        let place = match dir.path {
            path if path == directory => Some(Place::Directory),
            path if path == store => Some(Place::Store),
            _ => None,
        };
        for topic in dir.topics {
            let partitions = topic.partitions.into_iter().map(|index| (index, place));
            wanted.entry(topic.name).or_default().extend(partitions);
        }
    }
    let results = wanted.into_iter().map(|(topic_name, partitions)| {
        let moved = |(partition_index, place)| AlterReplicaLogDirPartitionResult {
            partition_index,
            error_code: outcome(metadata, &image, &topic_name, partition_index, place),
            ..Default::default()
        };
        let partitions = partitions.into_iter().map(moved).collect();
        AlterReplicaLogDirTopicResult { topic_name: topic_name.clone(), partitions, ..Default::default() }
    });
    let response = AlterReplicaLogDirsResponse { results: results.collect(), ..Default::default() };
    reply.frame::<AlterReplicaLogDirsRequest>(&response)
}

/// A location that a request names: the data directory or the object store.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Directory,
    Store,
}

fn outcome(metadata: &MetadataServices, image: &Image, topic: &Text, index: i32, place: Option<Place>) -> ErrorCode {
    let Some(place) = place else { return ErrorCode::LOG_DIR_NOT_FOUND };
    let Some(topic) = image.topic(topic) else { return ErrorCode::UNKNOWN_TOPIC_OR_PARTITION };
    let its_own = if topic.config.diskless { Place::Store } else { Place::Directory };
    match topic.partition(index) {
        None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        // The registered replicas of a diskless partition do not matter, because other brokers serve it too.
        Some(partition) if its_own == Place::Directory && !partition.replicas.contains(&metadata.config.node.id) => {
            ErrorCode::REPLICA_NOT_AVAILABLE
        }
        Some(_) if place != its_own => ErrorCode::LOG_DIR_NOT_FOUND,
        Some(_) => ErrorCode::NONE,
    }
}
