//! Builds the response of a fetch, with the partitions in the order in which they were read.
//!
//! The response has an entry for each run of neighbouring partitions of one topic, with at most
//! [`TOPIC_PARTITIONS_MAX`] partitions. A longer run gets several entries. Only one entry at a time is in memory in
//! decoded form, even if the response has a million partitions.

use crate::api::call::{Fault, Reply};
use crate::api::{nodes, topics};
use crate::fetch_sessions::{Fetched, PartitionOutcome};
use crate::node::MetadataServices;
use fullbore_wire::apis::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use fullbore_wire::{Codec, ErrorCode, Frame};
use std::collections::BTreeSet;
use std::sync::Arc;

const UNKNOWN: i64 = PartitionOutcome::UNKNOWN;
/// Maximum number of partitions in an entry of the response.
const TOPIC_PARTITIONS_MAX: usize = 1000;

/// Builds the response of a fetch that was carried out.
pub fn of(metadata: &MetadataServices, session_id: i32, shown: Vec<Fetched>, reply: Reply) -> Result<Frame, Fault> {
    let groups = groups(&shown);
    let mut response = FetchResponse { session_id, ..Default::default() };
    let mut leaders = BTreeSet::new();
    let mut shown = shown.into_iter();
    reply.frame_with::<FetchRequest>(|w| {
        response.encode_start(groups.len(), w, reply.version)?;
        for len in groups {
            let mut topic = FetchableTopicResponse { partitions: Vec::with_capacity(len), ..Default::default() };
            for fetched in shown.by_ref().take(len) {
                if topic.partitions.is_empty() {
                    (topic.topic, topic.topic_id) = (fetched.topic.name.clone(), fetched.topic.id);
                }
                let data = data(metadata, fetched, reply);
                if data.current_leader.leader_id >= 0 {
                    leaders.insert(data.current_leader.leader_id);
                }
                topic.partitions.push(data);
            }
            topic.encode(w, reply.version)?;
        }
        if !leaders.is_empty() {
            response.node_endpoints = nodes::endpoints(metadata, &metadata.control.image(), reply.listener, &leaders);
        }
        response.encode_end(w, reply.version)
    })
}

/// Groups neighbouring partitions of the same topic, and returns the size of each group.
fn groups(shown: &[Fetched]) -> Vec<usize> {
    let mut groups = Vec::new();
    for (at, fetched) in shown.iter().enumerate() {
        match groups.last_mut() {
            Some(len) if *len < TOPIC_PARTITIONS_MAX && is_of_topic(fetched, &shown[at - 1]) => *len += 1,
            _ => groups.push(1),
        }
    }
    groups
}

fn is_of_topic(fetched: &Fetched, other: &Fetched) -> bool {
    Arc::ptr_eq(&fetched.topic, &other.topic) || fetched.topic == other.topic
}

/// Turns the outcome of one partition into its entry of the response. If another broker leads the partition, the entry
/// names the leader.
fn data(metadata: &MetadataServices, fetched: Fetched, reply: Reply) -> PartitionData {
    let Fetched { topic, index, outcome } = fetched;
    let (code, from_offset, next_offset) = match outcome {
        PartitionOutcome::Read(data) => return *data,
        PartitionOutcome::Elsewhere(preferred_read_replica) => {
            return PartitionData { preferred_read_replica, ..nothing(index) };
        }
        PartitionOutcome::Failed { code, from_offset, next_offset } => (code, from_offset, next_offset),
    };
    let mut data = PartitionData { error_code: code, from_offset, next_offset, ..nothing(index) };
    if matches!(code, ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) {
        let image = metadata.control.image();
        let topic = topics::find(&image, &topic.name, topic.id).ok();
        if let Some(leader) = topic.and_then(|of| nodes::leader_elsewhere(metadata, &image, reply.listener, of, index))
        {
            data.current_leader = leader;
        }
    }
    data
}

/// Returns an entry without records, in which all offsets are unknown.
pub(super) fn nothing(partition_index: i32) -> PartitionData {
    PartitionData {
        partition_index,
        high_watermark: UNKNOWN,
        last_stable_offset: UNKNOWN,
        log_start_offset: UNKNOWN,
        aborted_transactions: None,
        records: Some(Default::default()),
        ..Default::default()
    }
}

/// Builds the response of a fetch that failed as a whole.
pub fn error(error_code: ErrorCode, session_id: i32, reply: Reply) -> Result<Frame, Fault> {
    reply.frame::<FetchRequest>(&FetchResponse { error_code, session_id, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch_sessions::{FetchedTopic, TopicKey};
    use fullbore_wire::{Text, Uuid};

    #[test]
    fn topic_with_thousands_of_partitions_is_encoded_in_groups() {
        let topic = |name| Arc::new(FetchedTopic::new(TopicKey { name: Text::from_static(name), id: Uuid::ZERO }));
        let of = |topic: &Arc<FetchedTopic>, count| {
            (0..count)
                .map(|index| Fetched { topic: Arc::clone(topic), index, outcome: PartitionOutcome::Elsewhere(2) })
                .collect()
        };
        let shown: Vec<Vec<Fetched>> =
            vec![of(&topic("a"), 2), of(&topic("a"), 1), of(&topic("b"), 1), of(&topic("c"), 2_500)];
        assert_eq!(groups(&shown.into_iter().flatten().collect::<Vec<_>>()), [3, 1, 1_000, 1_000, 500]);
        assert_eq!(groups(&[]), Vec::<usize>::new());
    }
}
