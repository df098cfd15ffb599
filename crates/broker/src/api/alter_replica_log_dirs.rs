//! AlterReplicaLogDirs 1-2. A broker has one data folder: its replicas are in it already, and there is no other to move them to.

use super::call::{Call, Fault, Reply};
use super::describe_log_dirs;
use crate::control::Image;
use crate::node::Node;
use fullbore_wire::apis::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::BTreeMap;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: AlterReplicaLogDirsRequest = call.body(reply.version)?;
    let image = call.broker.control.image();
    let folder = describe_log_dirs::folder(call.broker);
    // A partition that is there more than once goes to the last folder named, as by Kafka.
    let mut wanted: BTreeMap<Text, BTreeMap<i32, bool>> = BTreeMap::new();
    for dir in request.dirs {
        let is_here = dir.path == folder;
        for topic in dir.topics {
            let partitions = topic.partitions.into_iter().map(|index| (index, is_here));
            wanted.entry(topic.name).or_default().extend(partitions);
        }
    }
    let results = wanted.into_iter().map(|(topic_name, partitions)| {
        let moved = |(partition_index, is_here)| AlterReplicaLogDirPartitionResult {
            partition_index,
            error_code: outcome(call.broker, &image, (&topic_name, partition_index), is_here),
            ..Default::default()
        };
        let partitions = partitions.into_iter().map(moved).collect();
        AlterReplicaLogDirTopicResult { topic_name: topic_name.clone(), partitions, ..Default::default() }
    });
    let response = AlterReplicaLogDirsResponse { results: results.collect(), ..Default::default() };
    reply.frame::<AlterReplicaLogDirsRequest>(&response)
}

fn outcome(broker: &Node, image: &Image, (topic, index): (&Text, i32), is_here: bool) -> ErrorCode {
    if !is_here {
        return ErrorCode::LOG_DIR_NOT_FOUND;
    }
    match image.topic(topic).and_then(|topic| topic.partition(index)) {
        None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        Some(partition) if !partition.replicas.contains(&broker.config.node_id) => ErrorCode::REPLICA_NOT_AVAILABLE,
        Some(_) => ErrorCode::NONE,
    }
}
