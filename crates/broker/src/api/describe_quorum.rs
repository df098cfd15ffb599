//! DescribeQuorum 0-2. The metadata of one machine is a database and not a Raft log; what is told is what Kafka tells
//! of a node that is broker and controller at once: it leads, has the only vote and lags behind nobody. Its epoch is
//! the number of starts, its offset the number of changes.

use super::call::{Call, Fault, Reply};
use crate::node::Node;
use fullbore_wire::apis::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node as QuorumNode, PartitionData, PartitionRequest,
    ReplicaState, TopicData, TopicRequest,
};
use fullbore_wire::{ErrorCode, Frame, Text};

/// The topic and partition of Kafka's metadata log.
const TOPIC: &str = "__cluster_metadata";
const PARTITION: i32 = 0;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeQuorumRequest = call.body(reply.version)?;
    let mut response = DescribeQuorumResponse::default();
    let is_whole = matches!(&request.topics[..], [topic] if topic.topic_name == *TOPIC
        && matches!(topic.partitions[..], [PartitionRequest { partition_index: PARTITION, .. }]));
    if is_whole {
        let partitions = vec![leader(call.broker)];
        response.topics = vec![TopicData { topic_name: Text::from_static(TOPIC), partitions, ..Default::default() }];
        response.nodes = vec![node(call.broker, call.listener)];
    } else {
        response.topics = request.topics.into_iter().map(unknown).collect();
    }
    reply.frame::<DescribeQuorumRequest>(&response)
}

fn leader(broker: &Node) -> PartitionData {
    let now_ms = broker.now_ms();
    let end = i64::try_from(broker.control.image().epoch()).unwrap_or(i64::MAX);
    let voter = ReplicaState {
        replica_id: broker.config.node_id,
        log_end_offset: end,
        last_fetch_timestamp: now_ms,
        last_caught_up_timestamp: now_ms,
        ..Default::default()
    };
    PartitionData {
        partition_index: PARTITION,
        leader_id: broker.config.node_id,
        leader_epoch: i32::try_from(broker.control.broker_epoch()).unwrap_or(i32::MAX),
        high_watermark: end,
        current_voters: vec![voter],
        ..Default::default()
    }
}

fn node(broker: &Node, listener: usize) -> QuorumNode {
    let (host, port) = broker.endpoint(listener);
    let name = Text::from(broker.config.listeners[listener].name.as_str());
    let port = u16::try_from(port).expect("a listener's port is one");
    let listeners = vec![Listener { name, host, port, ..Default::default() }];
    QuorumNode { node_id: broker.config.node_id, listeners, ..Default::default() }
}

fn unknown(asked: TopicRequest) -> TopicData {
    let partition = |asked: &PartitionRequest| PartitionData {
        partition_index: asked.partition_index,
        error_code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ..Default::default()
    };
    let partitions = asked.partitions.iter().map(partition).collect();
    TopicData { topic_name: asked.topic_name, partitions, ..Default::default() }
}
