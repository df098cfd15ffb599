//! EndTxn 0-5: commits or aborts a transaction. When the client gets the response, the decision is stored. By then,
//! this broker has also tried to append the markers to the partitions that it leads.

use super::call::{Call, Fault, Reply};
use crate::node::CoordinatorServices;
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_rules::transaction::{EndTxn, ProducerIdAndEpoch, TransactionAnswer, TransactionVersion};
use fullbore_wire::apis::end_txn::{EndTxnRequest, EndTxnResponse};
use fullbore_wire::{ErrorCode, Frame};

/// First version of EndTxn, AddPartitionsToTxn and AddOffsetsToTxn whose client knows PRODUCER_FENCED.
pub const FENCED_FROM: i16 = 2;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: EndTxnRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let response = match end(call, services, &request, version).await {
        Ok(Some(next)) => EndTxnResponse { producer_id: next.id, producer_epoch: next.epoch, ..Default::default() },
        Ok(None) => EndTxnResponse::default(),
        Err(code) => EndTxnResponse { error_code: as_known(code, version >= FENCED_FROM), ..Default::default() },
    };
    reply.frame::<EndTxnRequest>(&response)
}

async fn end(
    call: &Call<'_>,
    services: &CoordinatorServices,
    request: &EndTxnRequest,
    version: i16,
) -> Result<Option<ProducerIdAndEpoch>, ErrorCode> {
    let transactions = &services.transactions;
    let end = EndTxn {
        producer: ProducerIdAndEpoch { id: request.producer_id, epoch: request.producer_epoch },
        is_commit: request.committed,
        version: TransactionVersion::of_end_txn(version),
    };
    let id = request.transactional_id.as_str();
    check_id(id)?;
    transactions.prepare(false, [id]).await?;
    let behind = Some(&*call.client.unwritten);
    let pending =
        transactions.put_to(id, behind, |transaction, ticket, turn| transaction.end_txn(end, ticket, turn))?;
    match pending.answer().await? {
        TransactionAnswer::EndTxn(ended) => {
            if ended.is_ok() {
                fault_point::reached(FaultPoint::Answer);
            }
            ended
        }
        _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
    }
}

/// Checks that a request names a transactional id.
///
/// # Errors
/// Returns INVALID_REQUEST if the id is empty.
pub fn check_id(transactional_id: &str) -> Result<(), ErrorCode> {
    if transactional_id.is_empty() { Err(ErrorCode::INVALID_REQUEST) } else { Ok(()) }
}

/// Returns the error in a form that the client knows. Older clients get INVALID_PRODUCER_EPOCH instead of
/// PRODUCER_FENCED.
pub fn as_known(code: ErrorCode, knows_fenced: bool) -> ErrorCode {
    match code {
        ErrorCode::PRODUCER_FENCED if !knows_fenced => ErrorCode::INVALID_PRODUCER_EPOCH,
        code => code,
    }
}
