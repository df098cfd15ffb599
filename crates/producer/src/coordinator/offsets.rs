//! Commits a group's offsets as part of a transaction. The offsets go to the group's coordinator. Before
//! `transaction.version` 2, AddOffsetsToTxn is first sent to the coordinator of the transaction.

use super::TransactionTask;
use super::call::{Coordinator, Refusal, worst};
use crate::ledger::{GroupMetadata, OffsetsRequest, TransactionOffset};
use crate::scope::{TransactionScope, Wish};
use fullbore_client::tokio::CoordinatorKind;
use fullbore_wire::Text;
use fullbore_wire::apis::add_offsets_to_txn::AddOffsetsToTxnRequest;
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

/// The newest version of AddOffsetsToTxn.
const ADD_OFFSETS_MAX: i16 = 4;
/// The newest version of TxnOffsetCommit that needs a preceding AddOffsetsToTxn.
const KNOWS_GROUP_MAX: i16 = 4;
/// The newest version of TxnOffsetCommit that this producer sends.
const COMMIT_MAX: i16 = 5;

impl TransactionTask {
    /// Adds the offsets of a group to a transaction.
    pub(super) async fn commit_offsets(
        &mut self,
        scope: &TransactionScope,
        request: &OffsetsRequest,
    ) -> Result<(), Refusal> {
        let gives_up = || scope.has_failed() || scope.wish() == Some(Wish::Abort);
        let group_id = Text::from(request.group.group_id.as_str());
        let (producer_id, producer_epoch) = (self.identity.producer_id, self.identity.epoch);
        if !self.adds_partitions {
            let request = AddOffsetsToTxnRequest {
                transactional_id: self.ledger.id.clone(),
                producer_id,
                producer_epoch,
                group_id: group_id.clone(),
                ..Default::default()
            };
            self.coordinator.call(&request, ADD_OFFSETS_MAX, gives_up, |answer| answer.error_code).await?;
        }
        scope.start();
        let GroupMetadata { generation_id, member_id, group_instance_id, .. } = &request.group;
        let commit = TxnOffsetCommitRequest {
            transactional_id: self.ledger.id.clone(),
            group_id: group_id.clone(),
            producer_id,
            producer_epoch,
            generation_id: *generation_id,
            member_id: Text::from(member_id.as_str()),
            group_instance_id: group_instance_id.as_deref().map(Text::from),
            topics: topics(&request.offsets),
            ..Default::default()
        };
        let max = if self.adds_partitions { COMMIT_MAX } else { KNOWS_GROUP_MAX };
        let coordinator = self.coordinator_of(&group_id);
        if let Some(address) = &request.group.coordinator {
            coordinator.turn_to(address);
        }
        let requested = coordinator.call(&commit, max, gives_up, |answer| {
            worst(answer.topics.iter().flat_map(|topic| &topic.partitions).map(|of| of.error_code))
        });
        requested.await.map(drop)
    }

    /// Returns the coordinator of a group. Reuses the one of the last call, with its connection, if the group is the
    /// same.
    fn coordinator_of(&mut self, group: &Text) -> &mut Coordinator {
        let known = self.group.take().filter(|known| known.key == *group);
        let new = || Coordinator::new(self.core.clone(), self.ledger.clone(), CoordinatorKind::Group, group);
        self.group.insert(known.unwrap_or_else(new))
    }
}

/// Groups offsets by topic.
fn topics(offsets: &[TransactionOffset]) -> Vec<TxnOffsetCommitRequestTopic> {
    let mut topics: Vec<TxnOffsetCommitRequestTopic> = Vec::new();
    for of in offsets {
        let partition = TxnOffsetCommitRequestPartition {
            partition_index: of.partition,
            committed_offset: of.offset,
            committed_leader_epoch: of.leader_epoch,
            committed_metadata: of.metadata.as_deref().map(Text::from),
            ..Default::default()
        };
        match topics.iter_mut().find(|topic| topic.name == *of.topic.as_str()) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(TxnOffsetCommitRequestTopic {
                name: Text::from(of.topic.as_str()),
                partitions: vec![partition],
                ..Default::default()
            }),
        }
    }
    topics
}
