//! DescribeQuorum 0-2: answers like Kafka nodes in combined mode, although the metadata is in a database and not in a
//! Raft log.
//!
//! Each serving broker is a voter without lag. The voter with the lowest id is the leader, so that all brokers give the
//! same response. The epoch is that of the leader's registration, and the offset is the version of the metadata.

use super::call::{Call, Fault, Reply};
use super::nodes;
use crate::node::MetadataServices;
use fullbore_control::{Endpoint, Image, RegisteredBroker};
use fullbore_host::files::now_ms;
use fullbore_wire::apis::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node as QuorumNode, PartitionData, PartitionRequest,
    ReplicaState, TopicData, TopicRequest,
};
use fullbore_wire::{ErrorCode, Frame, Text};

/// The name of the topic that is Kafka's metadata log.
const TOPIC: &str = "__cluster_metadata";
/// The only partition of that topic.
const PARTITION: i32 = 0;

type Voter<'i> = (i32, &'i RegisteredBroker, &'i Endpoint);

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeQuorumRequest = call.body(reply.version)?;
    let mut response = DescribeQuorumResponse::default();
    let is_whole = matches!(&request.topics[..], [topic] if topic.topic_name == *TOPIC
        && matches!(topic.partitions[..], [PartitionRequest { partition_index: PARTITION, .. }]));
    if is_whole {
        let image = metadata.control.image();
        let voters: Vec<_> = nodes::reached(metadata, &image, call.listener).collect();
        let partitions = vec![partition(&image, &voters)];
        response.topics = vec![TopicData { topic_name: Text::from_static(TOPIC), partitions, ..Default::default() }];
        let name = Text::from(metadata.config.network.listeners[call.listener].name.as_str());
        response.nodes = voters.iter().map(|voter| node(&name, voter)).collect();
    } else {
        response.topics = request.topics.into_iter().map(unknown).collect();
    }
    reply.frame::<DescribeQuorumRequest>(&response)
}

fn partition(image: &Image, voters: &[Voter<'_>]) -> PartitionData {
    let now_ms = now_ms();
    let end = i64::try_from(image.epoch()).unwrap_or(i64::MAX);
    let state = |(replica_id, ..): &Voter<'_>| ReplicaState {
        replica_id: *replica_id,
        log_end_offset: end,
        last_fetch_timestamp: now_ms,
        last_caught_up_timestamp: now_ms,
        ..Default::default()
    };
    let (leader_id, epoch) =
        voters.first().map_or((nodes::NO_LEADER, 0), |(id, node, _)| (*id, node.registration.epoch));
    PartitionData {
        partition_index: PARTITION,
        leader_id,
        leader_epoch: i32::try_from(epoch).unwrap_or(i32::MAX),
        high_watermark: end,
        current_voters: voters.iter().map(state).collect(),
        ..Default::default()
    }
}

fn node(listener: &Text, (node_id, _, at): &Voter<'_>) -> QuorumNode {
    let listeners =
        vec![Listener { name: listener.clone(), host: at.host.clone(), port: at.port, ..Default::default() }];
    QuorumNode { node_id: *node_id, listeners, ..Default::default() }
}

fn unknown(requested: TopicRequest) -> TopicData {
    let partition = |requested: &PartitionRequest| PartitionData {
        partition_index: requested.partition_index,
        error_code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ..Default::default()
    };
    let partitions = requested.partitions.iter().map(partition).collect();
    TopicData { topic_name: requested.topic_name, partitions, ..Default::default() }
}
