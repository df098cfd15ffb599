//! Reads, sets and deletes the committed offsets of groups.

use super::coordinator::{CoordinatorAnswer, GroupAdmin, GroupOutcomes, check, check_group};
use crate::blocking::{BrokerAddress, Cluster};
use crate::error::ClientError;
use fullbore_wire::apis::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
};
use fullbore_wire::apis::offset_delete::{OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse, OffsetFetchResponseGroup,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, BTreeSet};

/// The last version of OffsetCommit and of OffsetFetch that identifies topics by name. Later versions use ids.
const NAMED_VERSION_MAX: i16 = 9;
/// Maximum number of partitions that a tool commits at once.
const COMMIT_PARTITIONS_MAX: usize = 10_000;
/// The first version of OffsetFetch that supports several groups.
const FETCH_SEVERAL_VERSION: i16 = 8;
/// Maximum number of groups in one OffsetFetch.
const FETCH_GROUPS_MAX: usize = 100;
/// The fixed part of the weight of an OffsetCommit request. Each of its partitions adds 1.
const COMMIT_WEIGHT: usize = 31;
/// Maximum total weight of the OffsetCommit requests in flight. A request weighs [`COMMIT_WEIGHT`], plus 1 for each
/// partition, so 32 requests of one partition may be in flight. Without a limit, client and broker could deadlock. The
/// client would block in writing requests and read no responses, and the broker would block in writing responses.
const COMMITS_WEIGHT_MAX: usize = 1024;

/// The committed offset of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The offset of the next record to read.
    pub offset: i64,
    /// The leader epoch of the record before that offset.
    pub leader_epoch: Option<i32>,
    /// The metadata that the client committed with the offset.
    pub metadata: Text,
}

/// The offsets to commit for a group, by topic and partition.
pub type OffsetsToCommit = BTreeMap<(Text, i32), i64>;
/// A partition and its new offset.
type NewOffset<'a> = (&'a (Text, i32), &'a i64);
/// The committed offsets of a group, by topic and partition.
pub type CommittedOffsets = BTreeMap<(Text, i32), CommittedOffset>;

impl GroupAdmin<'_> {
    /// Returns every offset that the group has committed. If the group does not exist, the result is empty.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the coordinator refuses, or cannot be found or reached.
    pub fn committed(&mut self, id: &Text) -> Result<CommittedOffsets, ClientError> {
        self.committed_each(std::slice::from_ref(id)).take(id)
    }

    /// Returns every committed offset of each of these groups. A request to a coordinator has up to
    /// [`FETCH_GROUPS_MAX`] groups.
    pub fn committed_each(&mut self, ids: &[Text]) -> GroupOutcomes<CommittedOffsets> {
        self.at_coordinators(ids, committed_at)
    }

    /// Commits offsets of groups that have no members.
    ///
    /// If one partition of a group was refused, the group's outcome is an error, although the offsets of its other
    /// partitions may have been committed.
    pub fn commit_each(&mut self, groups: &BTreeMap<Text, OffsetsToCommit>) -> GroupOutcomes<()> {
        let ids: Vec<Text> = groups.keys().cloned().collect();
        self.at_coordinators(&ids, |cluster, coordinator, ids| {
            let offsets = ids.iter().filter_map(|id| Some((id, groups.get(id)?)));
            commit_at(cluster, coordinator, &offsets.collect::<Vec<_>>())
        })
    }

    /// Deletes committed offsets and returns the outcome of each partition.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the coordinator refuses the whole group, or cannot be found or reached.
    pub fn delete_offsets(
        &mut self,
        id: &Text,
        of: &[(Text, i32)],
    ) -> Result<BTreeMap<(Text, i32), ErrorCode>, ClientError> {
        let mut topics: BTreeMap<Text, Vec<OffsetDeleteRequestPartition>> = BTreeMap::new();
        for (topic, partition_index) in of {
            let partition = OffsetDeleteRequestPartition { partition_index: *partition_index, ..Default::default() };
            topics.entry(topic.clone()).or_default().push(partition);
        }
        let topic = |(name, partitions)| OffsetDeleteRequestTopic { name, partitions, ..Default::default() };
        let request = OffsetDeleteRequest {
            group_id: id.clone(),
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        };
        self.at_coordinator(id, |cluster, coordinator| {
            let response = cluster.call_at(&coordinator.address(), &request, i16::MAX)?;
            check_group(id, "delete offsets of", response.error_code, None)?;
            let partitions = response.topics.into_iter().flat_map(|topic| {
                let name = topic.name;
                topic.partitions.into_iter().map(move |found| ((name.clone(), found.partition_index), found.error_code))
            });
            Ok(partitions.collect())
        })
    }
}

/// Reads the committed offsets of groups from their coordinator.
fn committed_at(
    cluster: &mut Cluster,
    coordinator: &BrokerAddress,
    ids: &[Text],
) -> CoordinatorAnswer<CommittedOffsets> {
    let address = coordinator.address();
    let mut answer = CoordinatorAnswer { of_groups: Vec::with_capacity(ids.len()), broken: None };
    let at_once = match cluster.version_at::<OffsetFetchRequest>(&address) {
        Ok(version) if version < FETCH_SEVERAL_VERSION => 1,
        Ok(_) => FETCH_GROUPS_MAX,
        Err(error) => return CoordinatorAnswer { broken: Some(error), ..answer },
    };
    for ids in ids.chunks(at_once) {
        // The request sets both the fields for one group (older versions) and the list of groups (newer versions). The
        // encoder skips the fields that a version does not have.
        let group = |id: &Text| OffsetFetchRequestGroup { group_id: id.clone(), topics: None, ..Default::default() };
        let (group_id, groups) = (ids[0].clone(), ids.iter().map(group).collect());
        let request = OffsetFetchRequest { group_id, topics: None, groups, ..Default::default() };
        match cluster.call_at(&address, &request, NAMED_VERSION_MAX) {
            Ok(response) => answer.of_groups.extend(read(&ids[0], response)),
            Err(error) => return CoordinatorAnswer { broken: Some(error), ..answer },
        }
    }
    answer
}

/// Commits the offsets of groups at their coordinator.
fn commit_at(
    cluster: &mut Cluster,
    coordinator: &BrokerAddress,
    groups: &[(&Text, &OffsetsToCommit)],
) -> CoordinatorAnswer<()> {
    let mut parts: Vec<(&Text, Vec<NewOffset<'_>>)> = Vec::new();
    for (id, offsets) in groups {
        let offsets: Vec<NewOffset<'_>> = offsets.iter().collect();
        parts.extend(offsets.chunks(COMMIT_PARTITIONS_MAX).map(|some| (*id, some.to_vec())));
    }
    let request = |(id, some): &(&Text, Vec<NewOffset<'_>>)| {
        let topics = to_commit(some);
        (COMMIT_WEIGHT + some.len(), OffsetCommitRequest { group_id: (*id).clone(), topics, ..Default::default() })
    };
    let requests = parts.iter().map(request);
    let (answers, broken) =
        cluster.call_each_at(&coordinator.address(), requests, NAMED_VERSION_MAX, COMMITS_WEIGHT_MAX);
    let unanswered: BTreeSet<&Text> = parts[answers.len()..].iter().map(|(id, _)| *id).collect();
    let mut of_groups: BTreeMap<&Text, Result<(), ClientError>> = groups.iter().map(|(id, _)| (*id, Ok(()))).collect();
    for ((id, _), answer) in parts.iter().zip(&answers) {
        let before = of_groups.insert(id, Ok(())).unwrap_or(Ok(()));
        of_groups.insert(id, before.and_then(|()| check_committed(id, answer)));
    }
    let answered = of_groups.into_iter().filter(|(id, _)| !unanswered.contains(id));
    CoordinatorAnswer { of_groups: answered.map(|(id, outcome)| (id.clone(), outcome)).collect(), broken }
}

/// Checks the error codes of all partitions and returns the first error.
fn check_committed(id: &Text, answer: &OffsetCommitResponse) -> Result<(), ClientError> {
    for topic in &answer.topics {
        for partition in topic.partitions.iter().filter(|partition| partition.error_code.is_err()) {
            let action = format!("set the offset of {}-{} for", topic.name, partition.partition_index);
            check_group(id, &action, partition.error_code, None)?;
        }
    }
    Ok(())
}

/// Returns the offsets of each group in a response. A response of an older version does not name a group, and contains
/// the offsets of group `id`.
fn read(id: &Text, response: OffsetFetchResponse) -> Vec<(Text, Result<CommittedOffsets, ClientError>)> {
    if response.groups.is_empty() {
        let partitions = response.topics.into_iter().flat_map(|topic| {
            let name = topic.name;
            topic.partitions.into_iter().map(move |found| {
                let epoch = found.committed_leader_epoch;
                (name.clone(), found.partition_index, found.committed_offset, epoch, found.metadata, found.error_code)
            })
        });
        return vec![(id.clone(), read_group(id, response.error_code, partitions))];
    }
    let of_group = |group: OffsetFetchResponseGroup| {
        let partitions = group.topics.into_iter().flat_map(|topic| {
            let name = topic.name;
            topic.partitions.into_iter().map(move |found| {
                let epoch = found.committed_leader_epoch;
                (name.clone(), found.partition_index, found.committed_offset, epoch, found.metadata, found.error_code)
            })
        });
        let outcome = read_group(&group.group_id, group.error_code, partitions);
        (group.group_id, outcome)
    };
    response.groups.into_iter().map(of_group).collect()
}

fn read_group(
    id: &Text,
    code: ErrorCode,
    partitions: impl Iterator<Item = (Text, i32, i64, i32, Option<Text>, ErrorCode)>,
) -> Result<CommittedOffsets, ClientError> {
    if code == ErrorCode::GROUP_ID_NOT_FOUND {
        return Ok(BTreeMap::new());
    }
    check(format!("cannot read the offsets of group '{id}'"), code, None)?;
    let mut offsets = BTreeMap::new();
    for (topic, partition, offset, epoch, metadata, code) in partitions {
        check(format!("cannot read the offset of {topic}-{partition} of group '{id}'"), code, None)?;
        if offset >= 0 {
            let leader_epoch = (epoch >= 0).then_some(epoch);
            let metadata = metadata.unwrap_or_default();
            offsets.insert((topic, partition), CommittedOffset { offset, leader_epoch, metadata });
        }
    }
    Ok(offsets)
}

fn to_commit(offsets: &[NewOffset<'_>]) -> Vec<OffsetCommitRequestTopic> {
    let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
    for ((topic, partition_index), offset) in offsets {
        if topics.last().is_none_or(|last| last.name != *topic) {
            topics.push(OffsetCommitRequestTopic { name: topic.clone(), ..Default::default() });
        }
        let partition = OffsetCommitRequestPartition {
            partition_index: *partition_index,
            committed_offset: **offset,
            committed_metadata: Some(Text::default()),
            ..Default::default()
        };
        topics.last_mut().expect("just pushed").partitions.push(partition);
    }
    topics
}
