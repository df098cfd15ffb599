//! Estimates responses that are much larger than their requests. Such a response lists everything, or its entries are
//! much longer than the names in the request. Making the response takes many times the memory of its encoded form, so
//! both the memory and the encoded size are estimated.
//!
//! If the size of a request limits that of its response, the response is not estimated here, since [`super::wide`]
//! measures the request. An estimate may be too high, for example if a filter in the request leaves out most entries. A
//! name that a request repeats counts once, because the response contains it once. Invariant: the estimates are never
//! much too low, and `tests/wide_memory.rs` compares them with the allocator's count.

use super::call::{Call, once};
use super::wide::ENTRY_BYTES;
use super::{describe_configs, describe_producers};
use crate::groups::GroupOffsets;
use crate::node::Node;
use fullbore_config::Resource;
use fullbore_control::Topic;
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

/// The size that is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The maximum memory in use while the response is made, both decoded and encoded.
    Memory,
    /// The maximum size of the encoded response.
    Encoded,
}

/// Estimated maximum sizes of the elements of a response, in bytes.
struct Costs {
    measure: Measure,
    /// A topic without its partitions.
    topic: usize,
    /// How many copies of a topic's name the response contains. Their bytes are added to `topic`.
    names: usize,
    /// A partition in Metadata and DescribeTopicPartitions, without its replicas.
    partition: usize,
    /// A replica of a partition. The response contains its id in up to four lists.
    replica: usize,
    /// Any other entry, such as an offset or a transaction.
    entry: usize,
    /// A producer in DescribeProducers. For [`Measure::Memory`], this includes the partition's description of it, which
    /// is copied into the response.
    producer: usize,
    /// How many copies of the bytes that clients have stored, such as the metadata of offsets, exist in the response.
    copies: usize,
    /// How many times the response may repeat the bytes of the request, such as names of topics that do not exist.
    request: usize,
}

impl Costs {
    fn of(measure: Measure) -> Self {
        match measure {
            Measure::Memory => Costs {
                measure,
                topic: 768,
                names: 0,
                partition: 640,
                replica: 64,
                entry: ENTRY_BYTES,
                producer: 256,
                copies: 2,
                request: 0,
            },
            Measure::Encoded => Costs {
                measure,
                topic: 64,
                names: 1,
                partition: 32,
                replica: 16,
                entry: 64,
                producer: 40,
                copies: 1,
                request: 4,
            },
        }
    }

    fn topic(&self, name: &str) -> usize {
        self.topic + self.names * name.len()
    }

    fn topic_with_partitions(&self, topic: &Topic) -> usize {
        self.topic(&topic.name) + topic.partitions.len() * self.partition(replicas(topic))
    }

    fn partition(&self, replicas: usize) -> usize {
        self.partition + self.replica * replicas
    }
}

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

/// Returns true if the response of this API is made only after all earlier responses of the connection were sent. All
/// other estimated responses are made during admission.
pub(super) fn is_made_later(api: ApiKey) -> bool {
    api == ApiKey::OffsetFetch
}

/// Returns the estimated size of a response. A response whose size the request limits counts as 0 bytes. A request that
/// cannot be decoded also counts as 0 bytes, because it gets no response. With [`Measure::Encoded`], copies of the
/// request's names are added.
pub(super) fn of(node: &Node, call: &Call<'_>, api: ApiKey, version: Version, measure: Measure) -> usize {
    let costs = &Costs::of(measure);
    let response = match api {
        ApiKey::Metadata => of_request(call, version, |request| metadata(node, request, version, costs)),
        ApiKey::DescribeTopicPartitions => of_request(call, version, |request| topic_partitions(node, request, costs)),
        ApiKey::DescribeConfigs => of_request(call, version, |request: &DescribeConfigsRequest| {
            describe_configs::room(&node.observation, request, costs.measure)
        }),
        ApiKey::DescribeGroups => {
            of_request(call, version, |request: &DescribeGroupsRequest| groups(node, &request.groups, costs))
        }
        ApiKey::ConsumerGroupDescribe => {
            of_request(call, version, |request: &ConsumerGroupDescribeRequest| groups(node, &request.group_ids, costs))
        }
        ApiKey::ListGroups => of_request(call, version, |_: &ListGroupsRequest| {
            node.coordinators.groups.ids().iter().map(|id| costs.entry + id.len()).sum()
        }),
        ApiKey::OffsetFetch => of_request(call, version, |request| offsets(node, request, costs)),
        ApiKey::DescribeProducers => of_request(call, version, |request: &DescribeProducersRequest| {
            costs.producer * describe_producers::count(&node.metadata, &node.partitions, request)
        }),
        ApiKey::DescribeTransactions => of_request(call, version, |request| transactions(node, request, costs)),
        ApiKey::ListTransactions => {
            let (count, bytes) = node.coordinators.transactions.ids_size();
            costs.entry * count + bytes
        }
        ApiKey::DescribeLogDirs => of_request(call, version, |request: &DescribeLogDirsRequest| {
            let is_all = request.topics.is_none();
            if is_all { costs.entry * node.metadata.control.image().partition_count() } else { 0 }
        }),
        ApiKey::ListConfigResources => {
            let image = node.metadata.control.image();
            let configured = [Resource::Group, Resource::ClientMetrics];
            let names = configured.into_iter().flat_map(|resource| image.resource_names(resource));
            let topics: usize = image.topics().map(|topic| costs.topic(&topic.name)).sum();
            topics + names.map(|name| costs.entry + costs.copies * name.len()).sum::<usize>()
        }
        _ => 0,
    };
    response + costs.request * call.reader.remaining()
}

fn of_request<R: Request>(call: &Call<'_>, version: Version, estimate: impl FnOnce(&R) -> usize) -> usize {
    decode_request(&mut call.reader.clone(), version).map_or(0, |request| estimate(&request))
}

fn metadata(node: &Node, request: &MetadataRequest, version: Version, costs: &Costs) -> usize {
    let image = node.metadata.control.image();
    match &request.topics {
        Some(topics) if version.number > 0 || !topics.is_empty() => {
            let topics = once(topics.iter().collect(), |topic| (&topic.name, topic.topic_id));
            let named = topics.into_iter().filter_map(|requested| match &requested.name {
                Some(name) if requested.topic_id.is_zero() => image.topic(name),
                _ => image.topic_by_id(requested.topic_id),
            });
            named.map(|topic| costs.topic_with_partitions(topic)).sum()
        }
        _ => image.topics().map(|topic| costs.topic_with_partitions(topic)).sum(),
    }
}

/// Returns the number of replicas of a topic's first partition.
fn replicas(topic: &Topic) -> usize {
    topic.partitions.front().map_or(1, |partition| partition.replicas.len())
}

fn topic_partitions(node: &Node, request: &DescribeTopicPartitionsRequest, costs: &Costs) -> usize {
    let image = node.metadata.control.image();
    let limit = request.response_partition_limit.clamp(1, node.metadata.config.api.described_partitions_max);
    let limit = usize::try_from(limit).unwrap_or(0);
    let size = |topics: usize, partitions: usize, replicas: Option<usize>| {
        topics + limit.min(partitions) * costs.partition(replicas.unwrap_or(1))
    };
    if request.topics.is_empty() {
        // All topics are in memory while they are sorted by name. The encoded page contains only the topics of its
        // partitions.
        let topics = image.topics().map(|topic| costs.topic(&topic.name));
        let topics: usize = match costs.measure {
            Measure::Memory => topics.sum(),
            Measure::Encoded => topics.take(limit).sum(),
        };
        return size(topics, image.partition_count(), image.topics().map(|topic| replicas(topic)).max());
    }
    let names = once(request.topics.iter().map(|topic| &topic.name).collect(), |name| *name);
    let named: Vec<_> = names.iter().filter_map(|name| image.topic(name)).collect();
    let partitions = named.iter().map(|topic| topic.partitions.len()).sum();
    let topics = names.iter().map(|name| costs.topic(name)).sum();
    size(topics, partitions, named.iter().map(|topic| replicas(topic)).max())
}

/// Estimates the descriptions of groups, for which the members are copied and then encoded.
fn groups(node: &Node, ids: &[Text], costs: &Costs) -> usize {
    let size = |bytes| costs.entry + costs.copies * bytes;
    let of_group = |id: &Text| node.coordinators.groups.peek(id, Group::bytes).map_or(0, size);
    once(ids.iter().collect(), |id| *id).into_iter().map(of_group).sum()
}

/// Estimates the entries of committed offsets, including the metadata that clients have stored with them.
fn offsets(node: &Node, request: &OffsetFetchRequest, costs: &Costs) -> usize {
    let offsets = node.coordinators.groups.offsets();
    let all = |group: &Text| {
        let count = |held: &GroupOffsets| held.values().map(|topic| topic.partitions.len()).sum();
        offsets.read(group, |held| held.map_or(0, count))
    };
    // In versions before 8, the only group is in fields of the request itself and not in `groups`.
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
    costs.entry * entries + costs.copies * metadata
}

/// Returns the number of different partitions in `topics`. Each topic is given by its name, its id and the partition
/// numbers.
fn distinct<'r>(topics: impl Iterator<Item = (&'r Text, Uuid, &'r Vec<i32>)>) -> usize {
    let partitions = topics.flat_map(|(name, id, indexes)| indexes.iter().map(move |index| (name, id, *index)));
    once(partitions.collect(), |partition| *partition).len()
}

fn transactions(node: &Node, request: &DescribeTransactionsRequest, costs: &Costs) -> usize {
    let partitions = |found: &TransactionMetadata| found.partitions.len();
    let of_id = |id: &Text| {
        let found = node.coordinators.transactions.inspect(id, |transaction| transaction.describe().map(partitions));
        costs.entry * found.unwrap_or(0)
    };
    once(request.transactional_ids.iter().collect(), |id| *id).into_iter().map(of_id).sum()
}
