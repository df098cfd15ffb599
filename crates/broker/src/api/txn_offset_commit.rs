//! TxnOffsetCommit 0-5 (KIP-98, KIP-447): commits offsets of a group in a transaction. Checks the topics and
//! partitions, the group's id, the transaction and the committer.
//!
//! From version 5 on, the broker adds the group to the transaction itself (KIP-890). Older clients send AddOffsetsToTxn
//! first, and the broker only verifies that they have done so.

use super::call::{Call, Completion, Fault, Reply};
use super::end_txn::check_id;
use super::offset_commit::{self, ValidCommit};
use crate::coordinator::VerifiedProducer;
use crate::groups::{CommitOffset, Missing, PendingCommit};
use crate::node::CoordinatorServices;
use crate::partitions::VerificationTime;
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_host::metrics::Metrics;
use fullbore_rules::group::Committer;
use fullbore_rules::transaction::ProducerIdAndEpoch;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestTopic, TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame};

/// First version whose client knows COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
const LOADING_FROM: i16 = 2;
/// The last version of OffsetCommit that has topic names.
const WITH_NAMES: i16 = 9;

/// Admits a commit. When this returns, the commit is queued and its order among the group's commits is fixed, as for
/// OffsetCommit.
pub async fn admit(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Completion, Fault> {
    let request_bytes = call.reader.remaining();
    let request: TxnOffsetCommitRequest = call.body(reply.version)?;
    let mut wanted = offset_commit::check(services, WITH_NAMES, &as_commit(&request));
    let metrics = services.metrics.clone();
    let answer = move |commit: &ValidCommit| answer(commit, &metrics, reply);
    if !wanted.is_any_known() {
        return answer(&wanted).map(Completion::Ready);
    }
    let offsets = std::mem::take(&mut wanted.offsets);
    let requested = begin(call, services, &request, reply.version.number, offsets).await;
    let at_the_end = move |commit: &ValidCommit| {
        fault_point::reached(FaultPoint::Offsets);
        answer(commit)
    };
    offset_commit::complete(wanted, requested, request_bytes, at_the_end)
}

async fn begin(
    call: &Call<'_>,
    services: &CoordinatorServices,
    request: &TxnOffsetCommitRequest,
    version: i16,
    offsets: Vec<CommitOffset>,
) -> Result<PendingCommit, ErrorCode> {
    let (groups, group) = (&services.groups, &request.group_id);
    if group.is_empty() {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    check_id(&request.transactional_id)?;
    groups.prepare(Missing::Create, [group]).await?;
    let (partition, seen, at) = groups.markers_seen(group, request.producer_id)?;
    let producer = ProducerIdAndEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let transactions = &services.transactions;
    let coordinator_epoch = transactions.begin_offsets(&request.transactional_id, producer, partition, version).await?;
    let committer = Committer {
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id,
        version,
        is_transactional: true,
    };
    let at = VerificationTime { coordinator_epoch, ..at };
    let verified = VerifiedProducer { producer, seen, at };
    groups.commit(group, &committer, Some(verified), offsets, &call.client.unwritten)
}

/// Converts a request into an OffsetCommit request, which has the same checks.
fn as_commit(request: &TxnOffsetCommitRequest) -> OffsetCommitRequest {
    let topic = |topic: &TxnOffsetCommitRequestTopic| OffsetCommitRequestTopic {
        name: topic.name.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| OffsetCommitRequestPartition {
                partition_index: partition.partition_index,
                committed_offset: partition.committed_offset,
                committed_leader_epoch: partition.committed_leader_epoch,
                committed_metadata: partition.committed_metadata.clone(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    OffsetCommitRequest { topics: request.topics.iter().map(topic).collect(), ..Default::default() }
}

fn answer(commit: &ValidCommit, metrics: &Metrics, reply: Reply) -> Result<Frame, Fault> {
    commit.count(metrics);
    let knows_loading = reply.version.number >= LOADING_FROM;
    let error_code = |code| match code {
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS if !knows_loading => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        code => code,
    };
    let topics = commit.response.topics.iter().map(|topic| TxnOffsetCommitResponseTopic {
        name: topic.name.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| TxnOffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: error_code(partition.error_code),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    let response = TxnOffsetCommitResponse { topics: topics.collect(), ..Default::default() };
    reply.frame::<TxnOffsetCommitRequest>(&response)
}
