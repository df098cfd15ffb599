//! Estimates the memory of responses that are large for their requests: lists of everything, and entries that are much
//! longer than their names.
//!
//! A response whose size is limited by that of its request is not estimated here, since [`super::wide`] measures the
//! request. The estimates are made before the response, so they may be too high, for example if a filter applies. A
//! name that a request repeats counts once, as the response has it once.
//! Invariant: they are never much too low, and `tests/wide_memory.rs` compares them with the allocator's count.

use super::call::{Call, once};
use super::wide::ENTRY_BYTES;
use super::{describe_configs, describe_producers};
use crate::groups::GroupOffsets;
use crate::node::Node;
use fullbore_config::Resource;
use fullbore_control::{Image, Topic};
use fullbore_rules::group::Group;
use fullbore_rules::transaction::TransactionMetadata;
use fullbore_wire::api::{ApiKey, Request, decode_request};
use fullbore_wire::apis::consumer_group_describe::ConsumerGroupDescribeRequest;
use fullbore_wire::apis::describe_configs::DescribeConfigsRequest;
use fullbore_wire::apis::describe_groups::DescribeGroupsRequest;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_producers::DescribeProducersRequest;
use fullbore_wire::apis::describe_topic_partitions::DescribeTopicPartitionsRequest;
use fullbore_wire::apis::describe_transactions::DescribeTransactionsRequest;
use fullbore_wire::apis::list_groups::ListGroupsRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup};
use fullbore_wire::{Text, Uuid, Version};

/// About how much memory a topic's entry takes at most without its partitions: decoded and encoded, each with its name.
const TOPIC_BYTES: usize = 768;
/// About how much memory a partition takes at most in Metadata and DescribeTopicPartitions, without its replicas.
const PARTITION_BYTES: usize = 640;
/// About how much memory the id of a replica takes, in up to four lists of a partition.
const REPLICA_BYTES: usize = 64;

/// Returns true if [`of`] estimates the responses of this API.
pub(super) fn is_estimated(api: ApiKey) -> bool {
    use ApiKey::*;
    matches!(
        api,
        Metadata
            | DescribeTopicPartitions
            | DescribeConfigs
            | DescribeGroups
            | ConsumerGroupDescribe
            | ListGroups
            | OffsetFetch
            | DescribeProducers
            | DescribeTransactions
            | ListTransactions
            | DescribeLogDirs
            | ListConfigResources
    )
}

/// Returns true if the response of this API is made after the admission of the request, when its turn to be sent comes.
pub(super) fn is_made_later(api: ApiKey) -> bool {
    api == ApiKey::OffsetFetch
}

/// Returns about how much memory the response takes, or 0 if the request limits its size. A request that cannot be
/// decoded gets no response.
pub(super) fn of(node: &Node, call: &Call<'_>, api: ApiKey, version: Version) -> usize {
    match api {
        ApiKey::Metadata => of_request(call, version, |request| metadata(node, request, version)),
        ApiKey::DescribeTopicPartitions => of_request(call, version, |request| topic_partitions(node, request)),
        ApiKey::DescribeConfigs => of_request(call, version, |request: &DescribeConfigsRequest| {
            describe_configs::room(&node.observation, request)
        }),
        ApiKey::DescribeGroups => {
            of_request(call, version, |request: &DescribeGroupsRequest| groups(node, &request.groups))
        }
        ApiKey::ConsumerGroupDescribe => {
            of_request(call, version, |request: &ConsumerGroupDescribeRequest| groups(node, &request.group_ids))
        }
        ApiKey::ListGroups => of_request(call, version, |_: &ListGroupsRequest| {
            node.coordinators.groups.ids().iter().map(|id| ENTRY_BYTES + id.len()).sum()
        }),
        ApiKey::OffsetFetch => of_request(call, version, |request| offsets(node, request)),
        ApiKey::DescribeProducers => of_request(call, version, |request: &DescribeProducersRequest| {
            describe_producers::room(&node.metadata, &node.partitions, request)
        }),
        ApiKey::DescribeTransactions => of_request(call, version, |request| transactions(node, request)),
        ApiKey::ListTransactions => {
            let (count, bytes) = node.coordinators.transactions.ids_size();
            ENTRY_BYTES * count + bytes
        }
        ApiKey::DescribeLogDirs => of_request(call, version, |request: &DescribeLogDirsRequest| {
            let is_all = request.topics.is_none();
            if is_all { ENTRY_BYTES * node.metadata.control.image().partition_count() } else { 0 }
        }),
        ApiKey::ListConfigResources => {
            let image = node.metadata.control.image();
            let configured = [Resource::Group, Resource::ClientMetrics];
            let names = configured.into_iter().flat_map(|resource| image.resource_names(resource));
            TOPIC_BYTES * image.topics().len() + names.map(|name| ENTRY_BYTES + 2 * name.len()).sum::<usize>()
        }
        _ => 0,
    }
}

fn of_request<R: Request>(call: &Call<'_>, version: Version, estimate: impl FnOnce(&R) -> usize) -> usize {
    decode_request(&mut call.reader.clone(), version).map_or(0, |request| estimate(&request))
}

fn metadata(node: &Node, request: &MetadataRequest, version: Version) -> usize {
    let image = node.metadata.control.image();
    match &request.topics {
        Some(topics) if version.number > 0 || !topics.is_empty() => {
            let topics = once(topics.iter().collect(), |topic| (&topic.name, topic.topic_id));
            let named = topics.into_iter().filter_map(|requested| match &requested.name {
                Some(name) if requested.topic_id.is_zero() => image.topic(name),
                _ => image.topic_by_id(requested.topic_id),
            });
            named.map(|topic| of_topic(topic)).sum()
        }
        _ => all_topics(&image),
    }
}

fn all_topics(image: &Image) -> usize {
    image.topics().map(|topic| of_topic(topic)).sum()
}

fn of_topic(topic: &Topic) -> usize {
    let replicas = topic.partitions.front().map_or(1, |partition| partition.replicas.len());
    TOPIC_BYTES + topic.partitions.len() * (PARTITION_BYTES + REPLICA_BYTES * replicas)
}

fn topic_partitions(node: &Node, request: &DescribeTopicPartitionsRequest) -> usize {
    let image = node.metadata.control.image();
    let limit = request.response_partition_limit.clamp(1, node.metadata.config.api.described_partitions_max);
    let limit = usize::try_from(limit).unwrap_or(0);
    let size = |names: usize, partitions: usize, replicas: Option<usize>| {
        TOPIC_BYTES * names + limit.min(partitions) * (PARTITION_BYTES + REPLICA_BYTES * replicas.unwrap_or(1))
    };
    let replicas = |topic: &Topic| topic.partitions.front().map_or(1, |first| first.replicas.len());
    if request.topics.is_empty() {
        // The names of all topics are sorted before the page is chosen.
        return size(image.topics().len(), image.partition_count(), image.topics().map(|topic| replicas(topic)).max());
    }
    let names = once(request.topics.iter().map(|topic| &topic.name).collect(), |name| *name);
    let named: Vec<_> = names.iter().filter_map(|name| image.topic(name)).collect();
    let partitions = named.iter().map(|topic| topic.partitions.len()).sum();
    size(names.len(), partitions, named.iter().map(|topic| replicas(topic)).max())
}

/// Estimates the descriptions of groups: their members are copied and then encoded.
fn groups(node: &Node, ids: &[Text]) -> usize {
    let of_group =
        |id: &Text| node.coordinators.groups.peek(id, Group::bytes).map_or(0, |bytes| ENTRY_BYTES + 2 * bytes);
    once(ids.iter().collect(), |id| *id).into_iter().map(of_group).sum()
}

/// Estimates the offsets of groups, with their metadata.
fn offsets(node: &Node, request: &OffsetFetchRequest) -> usize {
    let offsets = node.coordinators.groups.offsets();
    let all = |group: &Text| {
        let count = |held: &GroupOffsets| held.values().map(|topic| topic.partitions.len()).sum();
        offsets.read(group, |held| held.map_or(0, count))
    };
    // Versions before 8 have one group, which is not in the list.
    let of_one = match &request.topics {
        None => all(&request.group_id),
        Some(topics) => distinct(topics.iter().map(|topic| (&topic.name, Uuid::ZERO, &topic.partition_indexes))),
    };
    let of_group = |group: &OffsetFetchRequestGroup| match &group.topics {
        None => all(&group.group_id),
        Some(topics) => distinct(topics.iter().map(|topic| (&topic.name, topic.topic_id, &topic.partition_indexes))),
    };
    let groups = once(request.groups.iter().collect(), |group| &group.group_id);
    let entries = of_one + groups.into_iter().map(of_group).sum::<usize>();
    let metadata =
        node.metadata.config.groups.offsets.metadata_max_bytes.saturating_mul(entries).min(offsets.metadata_bytes());
    ENTRY_BYTES * entries + 2 * metadata
}

/// Returns the number of different partitions in these topics, each with its name, id and partitions.
fn distinct<'r>(topics: impl Iterator<Item = (&'r Text, Uuid, &'r Vec<i32>)>) -> usize {
    let partitions = topics.flat_map(|(name, id, indexes)| indexes.iter().map(move |index| (name, id, *index)));
    once(partitions.collect(), |partition| *partition).len()
}

fn transactions(node: &Node, request: &DescribeTransactionsRequest) -> usize {
    let partitions = |found: &TransactionMetadata| found.partitions.len();
    let of_id = |id: &Text| {
        let found = node.coordinators.transactions.inspect(id, |transaction| transaction.describe().map(partitions));
        ENTRY_BYTES * found.unwrap_or(0)
    };
    once(request.transactional_ids.iter().collect(), |id| *id).into_iter().map(of_id).sum()
}
