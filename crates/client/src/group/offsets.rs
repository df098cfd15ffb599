//! Builds requests for committed offsets and reads the offsets in their responses.
//!
//! Invariant: if the broker identifies topics by id, the offsets of a topic are those of the requested id.

use super::assign::TopicPartition;
use super::config::GroupConfig;
use super::shared::{CommittedOffset, MemberIdentity};
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics, OffsetFetchResponse,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, HashMap};

/// The last version of both OffsetCommit and OffsetFetch that names topics. Later versions use ids.
const NAMED_VERSION_MAX: i16 = 9;
/// The first version of OffsetFetch that supports several groups.
const FETCH_SEVERAL_VERSION: i16 = 8;

/// Returns the newest version that can identify these topics. Versions with ids require that all ids are known.
pub(super) fn version_max(mut ids: impl Iterator<Item = Uuid>) -> i16 {
    if ids.any(|id| id.is_zero()) { NAMED_VERSION_MAX } else { i16::MAX }
}

/// The first version of OffsetFetch that can wait for open transactions.
pub(super) const STABLE_VERSION: i16 = 7;

/// A request for offsets.
pub(super) struct OffsetsQuestion {
    pub(super) request: OffsetFetchRequest,
    /// The newest version in which the request may be sent.
    pub(super) version_max: i16,
    names: HashMap<Uuid, Text>,
}

impl OffsetsQuestion {
    /// Builds the request for the offsets of these partitions in the layout of `version`. The group and
    /// `require_stable` come from `config`. `member` is set only under the protocol of KIP-848, where the coordinator
    /// checks the member's epoch.
    pub(super) fn new(
        config: &GroupConfig,
        member: Option<MemberIdentity>,
        of: &[(TopicPartition, Uuid)],
        version: i16,
    ) -> OffsetsQuestion {
        let mut topics: BTreeMap<(&Text, Uuid), Vec<i32>> = BTreeMap::new();
        of.iter().for_each(|((topic, partition), id)| topics.entry((topic, *id)).or_default().push(*partition));
        let older = |((name, _), partitions): (&(&Text, Uuid), &Vec<i32>)| OffsetFetchRequestTopic {
            name: (*name).clone(),
            partition_indexes: partitions.clone(),
            ..Default::default()
        };
        let newer = |((name, topic_id), partitions): (&(&Text, Uuid), &Vec<i32>)| OffsetFetchRequestTopics {
            name: (*name).clone(),
            topic_id: *topic_id,
            partition_indexes: partitions.clone(),
            ..Default::default()
        };
        let (group_id, require_stable) = (config.group.clone(), config.require_stable && version >= STABLE_VERSION);
        let request = if version >= FETCH_SEVERAL_VERSION {
            let member_epoch = member.as_ref().map_or(-1, |member| member.generation);
            let (member_id, topics) = (member.map(|member| member.member_id), Some(topics.iter().map(newer).collect()));
            let group = OffsetFetchRequestGroup { group_id, member_id, member_epoch, topics, ..Default::default() };
            OffsetFetchRequest { groups: vec![group], require_stable, ..Default::default() }
        } else {
            let topics = Some(topics.iter().map(older).collect());
            OffsetFetchRequest { group_id, topics, require_stable, ..Default::default() }
        };
        let names = topics.keys().map(|(name, id)| (*id, (*name).clone())).collect();
        OffsetsQuestion { request, version_max: version_max(of.iter().map(|(_, id)| *id)), names }
    }

    /// Returns the error code of the response and its offsets. The error of the group takes precedence over those of
    /// partitions, and a deleted topic does not count as an error. Partitions without a committed offset are left out.
    pub(super) fn answered(
        &self,
        answer: &OffsetFetchResponse,
    ) -> (ErrorCode, HashMap<TopicPartition, CommittedOffset>) {
        let mut code = answer.error_code;
        let mut found = HashMap::new();
        let mut take = |topic: &Text, partition: i32, offset: i64, leader_epoch: i32, of_partition: ErrorCode| {
            let is_gone = of_partition == ErrorCode::UNKNOWN_TOPIC_ID;
            code = if of_partition.is_err() && !is_gone { of_partition } else { code };
            let committed = CommittedOffset::of_response(offset, leader_epoch);
            found.extend(committed.map(|committed| ((topic.clone(), partition), committed)));
        };
        for topic in &answer.topics {
            for of in &topic.partitions {
                take(&topic.name, of.partition_index, of.committed_offset, of.committed_leader_epoch, of.error_code);
            }
        }
        for topic in answer.groups.iter().flat_map(|group| &group.topics) {
            let name = self.names.get(&topic.topic_id).filter(|_| topic.name.is_empty()).unwrap_or(&topic.name);
            for of in &topic.partitions {
                take(name, of.partition_index, of.committed_offset, of.committed_leader_epoch, of.error_code);
            }
        }
        let of_group = answer.groups.first().map_or(ErrorCode::NONE, |group| group.error_code);
        (if of_group.is_err() { of_group } else { code }, found)
    }
}
