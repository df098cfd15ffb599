//! OffsetFetch 1-10: returns the committed offsets of groups, for the requested partitions or for all partitions that
//! have one.
//!
//! A partition that the request names twice is returned once. Otherwise a short request could return the same long
//! metadata a million times. With `require_stable` (KIP-447), a partition whose offset an open transaction may change
//! gets UNSTABLE_OFFSET_COMMIT.

use super::call::{Call, Completion, Fault, Reply, joined, once};
use crate::groups::{GroupOffsets, Missing, OffsetAndMetadata, OffsetsView, TopicOffsets};
use crate::node::CoordinatorServices;
use fullbore_control::{Image, Topic};
use fullbore_rules::group::Group;
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponse,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// First version whose request names several groups.
const GROUPS: i16 = 8;
/// First version that has topic ids instead of names.
const TOPIC_IDS: i16 = 10;
/// The offset of a partition that has no commit.
const NONE: i64 = -1;

/// Admits a fetch of offsets. The offsets are read only when the response is the next to be sent. By then, all earlier
/// commits of this connection have been written, even if the client did not wait for them.
pub async fn admit(
    call: &mut Call<'_>,
    services: &Arc<CoordinatorServices>,
    reply: Reply,
) -> Result<Completion, Fault> {
    let request: OffsetFetchRequest = call.body(reply.version)?;
    // Waits until the groups are loaded. The result can be ignored: if `__consumer_offsets` is missing, no group has
    // offsets.
    let mut requested = vec![&request.group_id];
    requested.extend(request.groups.iter().map(|group| &group.group_id));
    let _ = services.groups.prepare(Missing::Refuse(ErrorCode::NONE), requested).await;
    let services = Arc::clone(services);
    Ok(Completion::Later(Box::pin(async move { fetch(&services, request, reply).await })))
}

/// The parts of a request that apply to all of its groups.
#[derive(Clone, Copy)]
struct FetchTerms {
    version: i16,
    /// True if the client must not get an offset that an open transaction may replace.
    require_stable: bool,
}

async fn fetch(services: &CoordinatorServices, request: OffsetFetchRequest, reply: Reply) -> Result<Frame, Fault> {
    let terms = FetchTerms { version: reply.version.number, require_stable: request.require_stable };
    let response = if terms.version >= GROUPS {
        let mut groups = Vec::with_capacity(request.groups.len());
        for group in once(request.groups, |group| group.group_id.clone()) {
            groups.push(answer(services, terms, group).await);
        }
        OffsetFetchResponse { groups, ..Default::default() }
    } else {
        of_one(answer(services, terms, one_group(request)).await)
    };
    reply.frame::<OffsetFetchRequest>(&response)
}

/// Converts a request of a version before 8, which has one group, into the form of later versions.
fn one_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let topics = request.topics.map(|topics| {
        let topic = |topic: fullbore_wire::apis::offset_fetch::OffsetFetchRequestTopic| OffsetFetchRequestTopics {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
            ..Default::default()
        };
        topics.into_iter().map(topic).collect()
    });
    OffsetFetchRequestGroup { group_id: request.group_id, member_epoch: -1, topics, ..Default::default() }
}

/// Converts the response of one group into the form of versions before 8.
fn of_one(group: OffsetFetchResponseGroup) -> OffsetFetchResponse {
    let partition = |partition: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
        ..Default::default()
    };
    let topic = |topic: OffsetFetchResponseTopics| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
        ..Default::default()
    };
    OffsetFetchResponse {
        topics: group.topics.into_iter().map(topic).collect(),
        error_code: group.error_code,
        ..Default::default()
    }
}

async fn answer(
    services: &CoordinatorServices,
    terms: FetchTerms,
    requested: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup {
    let mut group = OffsetFetchResponseGroup { group_id: requested.group_id, ..Default::default() };
    let member = requested.member_id.as_deref();
    let allows = |group: &Group| group.check_fetch(member, requested.member_epoch);
    let topics = requested.topics.map(|topics| {
        let join = |topic: &mut OffsetFetchRequestTopics, again: OffsetFetchRequestTopics| {
            topic.partition_indexes.extend(again.partition_indexes)
        };
        joined(topics, |topic| (topic.name.clone(), topic.topic_id), join)
    });
    let stable = if terms.require_stable { services.groups.await_commits(&group.group_id).await } else { Ok(()) };
    let image = services.metadata.control.image();
    let found = stable.and_then(|()| match &topics {
        None => services.groups.committed(&group.group_id, allows, |view| all(&image, terms, view)),
        Some(topics) => {
            // The lock also delays commits of other groups, and the request may name a million partitions. So the
            // offsets are only copied under the lock.
            let held =
                services.groups.committed(&group.group_id, allows, |view| of_topics(&image, terms, topics, view));
            held.map(|held| topics.iter().map(|topic| of_topic(&image, terms.version, topic, &held)).collect())
        }
    });
    match found {
        Ok(found) => group.topics = found,
        Err(code) => {
            group.error_code = code;
            group.topics = refused(topics, code);
        }
    }
    group
}

/// Returns the requested topics with the error at each partition. Older versions have no other field for an error of a
/// group.
fn refused(topics: Option<Vec<OffsetFetchRequestTopics>>, error_code: ErrorCode) -> Vec<OffsetFetchResponseTopics> {
    let of_topic = |topic: OffsetFetchRequestTopics| {
        let of_partition = |index| OffsetFetchResponsePartitions { error_code, ..partition(index, None) };
        let partitions = once(topic.partition_indexes, |index| *index).into_iter().map(of_partition).collect();
        OffsetFetchResponseTopics { name: topic.name, topic_id: topic.topic_id, partitions, ..Default::default() }
    };
    topics.unwrap_or_default().into_iter().map(of_topic).collect()
}

/// The offsets of a group that were found for the topics of a request.
#[derive(Default)]
struct FoundOffsets {
    committed: GroupOffsets,
    /// The partitions, as topic id and number, whose offset an open transaction may change.
    unstable: BTreeSet<(Uuid, i32)>,
}

/// Returns the group's offsets for these topics.
fn of_topics(
    image: &Image,
    terms: FetchTerms,
    requested: &[OffsetFetchRequestTopics],
    view: OffsetsView<'_>,
) -> FoundOffsets {
    let mut found = FoundOffsets::default();
    for requested in requested {
        let Some(topic) = find(image, terms.version, requested) else { continue };
        let committed = view.committed.and_then(|committed| committed.get(&topic.id));
        found.committed.extend(committed.map(|of_topic| (topic.id, of_topic.clone())));
        if terms.require_stable && view.pending.is_some() {
            let unstable = requested.partition_indexes.iter().filter(|&&index| view.is_pending(topic.id, index));
            found.unstable.extend(unstable.map(|&index| (topic.id, index)));
        }
    }
    found
}

fn find<'i>(image: &'i Image, version: i16, requested: &OffsetFetchRequestTopics) -> Option<&'i Arc<Topic>> {
    if version >= TOPIC_IDS { image.topic_by_id(requested.topic_id) } else { image.topic(&requested.name) }
}

fn of_topic(
    image: &Image,
    version: i16,
    requested: &OffsetFetchRequestTopics,
    held: &FoundOffsets,
) -> OffsetFetchResponseTopics {
    let found = find(image, version, requested);
    // An unknown topic id is an error. An unknown topic name is none: its partitions are returned like those without a
    // commit.
    let is_unknown = version >= TOPIC_IDS && found.is_none();
    let error_code = if is_unknown { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::NONE };
    let of_topic = found.and_then(|topic| held.committed.get(&topic.id));
    let is_unstable = |index| found.is_some_and(|topic| held.unstable.contains(&(topic.id, index)));
    let partition = |index: i32| match is_unstable(index) {
        true => unstable(index),
        false => OffsetFetchResponsePartitions {
            error_code,
            ..partition(index, of_topic.and_then(|of_topic| of_topic.partitions.get(&index)))
        },
    };
    let partitions = once(requested.partition_indexes.clone(), |index| *index).into_iter().map(partition).collect();
    OffsetFetchResponseTopics {
        name: requested.name.clone(),
        topic_id: requested.topic_id,
        partitions,
        ..Default::default()
    }
}

fn all(image: &Image, terms: FetchTerms, view: OffsetsView<'_>) -> Vec<OffsetFetchResponseTopics> {
    let topic = |(id, of_topic): (&_, &TopicOffsets)| {
        // A topic that is being deleted is left out.
        let topic = image.topic_by_id(*id)?;
        let name = if terms.version >= TOPIC_IDS { Text::default() } else { Text::from(topic.name.as_str()) };
        let partition = |(&index, committed): (&i32, _)| match terms.require_stable && view.is_pending(*id, index) {
            true => unstable(index),
            false => partition(index, Some(committed)),
        };
        let partitions = of_topic.partitions.iter().map(partition).collect();
        Some(OffsetFetchResponseTopics { name, topic_id: *id, partitions, ..Default::default() })
    };
    view.committed.into_iter().flatten().filter_map(topic).collect()
}

/// Returns the entry of a partition whose offset an open transaction may change. The client will repeat its request.
fn unstable(index: i32) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions { error_code: ErrorCode::UNSTABLE_OFFSET_COMMIT, ..partition(index, None) }
}

fn partition(partition_index: i32, committed: Option<&OffsetAndMetadata>) -> OffsetFetchResponsePartitions {
    let none = || OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: NONE,
        metadata: Some(Text::default()),
        ..Default::default()
    };
    committed.map_or_else(none, |committed| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: committed.offset,
        committed_leader_epoch: committed.leader_epoch,
        metadata: Some(Text::from(&*committed.metadata)),
        ..Default::default()
    })
}
