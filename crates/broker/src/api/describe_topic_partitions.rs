//! DescribeTopicPartitions 0 (KIP-966): lists topics in the order of their names, one page per request.

use super::call::{Call, Fault, Reply, once};
use super::operations;
use super::shown::Viewer;
use crate::node::MetadataServices;
use fullbore_control::{Image, Topic, check_name, is_internal};
use fullbore_wire::apis::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::BTreeSet;

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeTopicPartitionsRequest = call.body(reply.version)?;
    let image = metadata.control.image();
    if request.cursor.as_ref().is_some_and(|cursor| !is_of(cursor, &request)) {
        return reply.frame::<DescribeTopicPartitionsRequest>(&refused(request));
    }
    let names = names(&request, &image);
    let viewer = Viewer::of(call, metadata, &image);
    let mut left = request.response_partition_limit.clamp(1, metadata.config.api.described_partitions_max);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let from = match &request.cursor {
            Some(cursor) if cursor.topic_name == *name => cursor.partition_index,
            _ => 0,
        };
        if left == 0 {
            response.next_cursor = Some(cursor(name, from));
            break;
        }
        let Some(topic) = image.topic(&name) else {
            response.topics.push(unknown(name, image.stands_down()));
            continue;
        };
        let until = topic.partition_count().min(from.saturating_add(left));
        response.topics.push(describe(&viewer, topic, from..until));
        left -= (until - from).max(0);
        if until < topic.partition_count() {
            response.next_cursor = Some(cursor(name, until));
            break;
        }
    }
    reply.frame::<DescribeTopicPartitionsRequest>(&response)
}

/// Returns true if the cursor names a partition of a requested topic, or of any topic if the request names none.
fn is_of(cursor: &Cursor, request: &DescribeTopicPartitionsRequest) -> bool {
    let is_named = request.topics.is_empty() || request.topics.iter().any(|topic| topic.name == cursor.topic_name);
    is_named && cursor.partition_index >= 0
}

/// Returns the response to an invalid cursor (Kafka's `DescribeTopicPartitionsRequest.getErrorResponse`).
fn refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse {
    let of_topic = |name| DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::INVALID_REQUEST,
        name: Some(name),
        ..Default::default()
    };
    let topics = once(request.topics, |topic| topic.name.clone());
    let topics = topics.into_iter().map(|topic| of_topic(topic.name)).collect();
    DescribeTopicPartitionsResponse { topics, ..Default::default() }
}

/// Returns the names of the requested topics (or of all topics) in order, beginning at the cursor.
fn names(request: &DescribeTopicPartitionsRequest, image: &Image) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = if request.topics.is_empty() {
        image.topics().map(|topic| topic.name.clone()).collect()
    } else {
        request.topics.iter().map(|topic| topic.name.to_string()).collect()
    };
    if let Some(cursor) = &request.cursor {
        names = names.split_off(cursor.topic_name.as_str());
    }
    names
}

fn cursor(topic_name: String, partition_index: i32) -> Cursor {
    Cursor { topic_name: Text::from(topic_name), partition_index, ..Default::default() }
}

/// Returns the response about a topic that the metadata lack. If this broker stands down, newer metadata may have the
/// topic.
fn unknown(name: String, stands_down: bool) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code: match check_name(&name) {
            Err(_) => ErrorCode::INVALID_TOPIC_EXCEPTION,
            Ok(_) if stands_down => ErrorCode::LEADER_NOT_AVAILABLE,
            Ok(_) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        },
        is_internal: is_internal(&name),
        name: Some(Text::from(name)),
        topic_authorized_operations: operations::OF_A_TOPIC,
        ..Default::default()
    }
}

fn describe(viewer: &Viewer<'_>, topic: &Topic, range: std::ops::Range<i32>) -> DescribeTopicPartitionsResponseTopic {
    let partition = |partition_index| {
        let shown = viewer.partition(topic, partition_index)?;
        Some(DescribeTopicPartitionsResponsePartition {
            error_code: shown.error_code,
            partition_index,
            leader_id: shown.leader_id,
            leader_epoch: shown.leader_epoch,
            replica_nodes: shown.replicas,
            isr_nodes: shown.isr,
            // The protocol allows null for `eligible_leader_replicas`, but the Java client fails on it.
            eligible_leader_replicas: Some(shown.eligible),
            last_known_elr: Some(shown.lost),
            offline_replicas: shown.offline,
            ..Default::default()
        })
    };
    DescribeTopicPartitionsResponseTopic {
        name: Some(Text::from(topic.name.as_str())),
        topic_id: topic.id,
        is_internal: is_internal(&topic.name),
        partitions: range.filter_map(partition).collect(),
        // Unlike Metadata, this request cannot leave out the authorized operations, so they are always returned.
        topic_authorized_operations: operations::OF_A_TOPIC,
        ..Default::default()
    }
}
