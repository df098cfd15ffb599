//! AddOffsetsToTxn 0-4: announces that a transaction will commit offsets of a group. The group's partition of
//! `__consumer_offsets` becomes part of the transaction.

use super::call::{Call, Fault, Reply};
use super::end_txn::{FENCED_FROM, as_known, check_id};
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use crate::transactions::WAIT_MS;
use fullbore_rules::transaction::{AddPartitions, ProducerIdAndEpoch};
use fullbore_wire::apis::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use fullbore_wire::{ErrorCode, Frame};

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: AddOffsetsToTxnRequest = call.body(reply.version)?;
    let added = add(services, &request).await;
    let error_code =
        added.map_or_else(|code| as_known(code, reply.version.number >= FENCED_FROM), |()| ErrorCode::NONE);
    reply.frame::<AddOffsetsToTxnRequest>(&AddOffsetsToTxnResponse { error_code, ..Default::default() })
}

async fn add(services: &CoordinatorServices, request: &AddOffsetsToTxnRequest) -> Result<(), ErrorCode> {
    let (groups, transactions) = (&services.groups, &services.transactions);
    let id = request.transactional_id.as_str();
    check_id(id)?;
    // This broker only computes the number of the group's partition, so it need not be the group's coordinator.
    groups.prepare(Missing::Create, [&request.group_id]).await?;
    let partition = groups.partition_of(&request.group_id).ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
    transactions.prepare(false, [id]).await?;
    let producer = ProducerIdAndEpoch { id: request.producer_id, epoch: request.producer_epoch };
    let wait_until = transactions.wait_until(id, WAIT_MS);
    transactions.add_partitions(id, AddPartitions::offsets(producer, partition, wait_until)).await
}
