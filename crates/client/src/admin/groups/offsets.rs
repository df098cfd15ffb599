//! The offsets a group has committed: read, set from outside, forget.

use super::coordinator::{GroupAdmin, check, check_group};
use crate::error::ClientError;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_delete::{OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;

/// From the next version on topics have ids instead of names.
const NAMED_VERSION_MAX: i16 = 9;
/// The coordinator takes so many partitions in one commit from a tool.
const COMMIT_PARTITIONS_MAX: usize = 10_000;

/// One partition's committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The record to be read next.
    pub offset: i64,
    /// The epoch of the record before it.
    pub leader_epoch: Option<i32>,
    /// What the client had kept beside it.
    pub metadata: Text,
}

impl GroupAdmin<'_> {
    /// Every offset the group has committed; none where nobody knows the group.
    ///
    /// # Errors
    /// The coordinator's.
    pub fn committed(&mut self, id: &Text) -> Result<BTreeMap<(Text, i32), CommittedOffset>, ClientError> {
        // The fields of both layouts, of which each version sends its own.
        let group = OffsetFetchRequestGroup { group_id: id.clone(), topics: None, ..Default::default() };
        let request =
            OffsetFetchRequest { group_id: id.clone(), topics: None, groups: vec![group], ..Default::default() };
        self.at_coordinator(id, |cluster, coordinator| {
            let response = cluster.ask_at(&coordinator.address(), &request, NAMED_VERSION_MAX)?;
            let code = response.groups.first().map_or(response.error_code, |group| group.error_code);
            match code {
                ErrorCode::GROUP_ID_NOT_FOUND => Ok(BTreeMap::new()),
                code => check(format!("cannot read the offsets of group '{id}'"), code, None)
                    .and_then(|()| read(id, response)),
            }
        })
    }

    /// Sets offsets of a group without members.
    ///
    /// # Errors
    /// The first partition's that was refused; others may have been set.
    pub fn commit(&mut self, id: &Text, offsets: &BTreeMap<(Text, i32), i64>) -> Result<(), ClientError> {
        let offsets: Vec<(&(Text, i32), &i64)> = offsets.iter().collect();
        for some in offsets.chunks(COMMIT_PARTITIONS_MAX) {
            let request = OffsetCommitRequest { group_id: id.clone(), topics: to_commit(some), ..Default::default() };
            self.at_coordinator(id, |cluster, coordinator| {
                let response = cluster.ask_at(&coordinator.address(), &request, NAMED_VERSION_MAX)?;
                for topic in &response.topics {
                    for partition in topic.partitions.iter().filter(|partition| partition.error_code.is_err()) {
                        let action = format!("set the offset of {}-{} for", topic.name, partition.partition_index);
                        check_group(id, &action, partition.error_code, None)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Forgets offsets; the outcome of each partition.
    ///
    /// # Errors
    /// The coordinator's for the whole group.
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
            let response = cluster.ask_at(&coordinator.address(), &request, i16::MAX)?;
            check_group(id, "delete offsets of", response.error_code, None)?;
            let partitions = response.topics.into_iter().flat_map(|topic| {
                let name = topic.name;
                topic.partitions.into_iter().map(move |found| ((name.clone(), found.partition_index), found.error_code))
            });
            Ok(partitions.collect())
        })
    }
}

fn read(id: &Text, response: OffsetFetchResponse) -> Result<BTreeMap<(Text, i32), CommittedOffset>, ClientError> {
    let mut rows: Vec<(Text, i32, CommittedOffset, ErrorCode)> = Vec::new();
    let epoch = |epoch: i32| (epoch >= 0).then_some(epoch);
    for topic in response.groups.into_iter().flat_map(|group| group.topics) {
        rows.extend(topic.partitions.into_iter().map(|found| {
            let leader_epoch = epoch(found.committed_leader_epoch);
            let metadata = found.metadata.unwrap_or_default();
            let committed = CommittedOffset { offset: found.committed_offset, leader_epoch, metadata };
            (topic.name.clone(), found.partition_index, committed, found.error_code)
        }));
    }
    for topic in response.topics {
        rows.extend(topic.partitions.into_iter().map(|found| {
            let leader_epoch = epoch(found.committed_leader_epoch);
            let metadata = found.metadata.unwrap_or_default();
            let committed = CommittedOffset { offset: found.committed_offset, leader_epoch, metadata };
            (topic.name.clone(), found.partition_index, committed, found.error_code)
        }));
    }
    let mut offsets = BTreeMap::new();
    for (topic, partition, committed, code) in rows {
        check(format!("cannot read the offset of {topic}-{partition} of group '{id}'"), code, None)?;
        if committed.offset >= 0 {
            offsets.insert((topic, partition), committed);
        }
    }
    Ok(offsets)
}

fn to_commit(offsets: &[(&(Text, i32), &i64)]) -> Vec<OffsetCommitRequestTopic> {
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
