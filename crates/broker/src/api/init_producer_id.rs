//! InitProducerId 0-5: gives a producer its id and epoch. For a transactional producer, this also ends the open
//! transaction of its predecessor.
//!
//! Version 6 adds two-phase commit, which Kafka has not finished (KIP-939). The broker does not serve this version.

use super::call::{Call, Fault, Reply};
use super::end_txn::{as_known, check_id};
use crate::transactions::WAIT_MS;
use fullbore_rules::transaction::{InitProducerId, ProducerIdAndEpoch, TransactionAnswer};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::{ErrorCode, Frame};

/// First version whose client knows PRODUCER_FENCED.
const FENCED_FROM: i16 = 4;
/// The client sends this id if it has no producer id yet.
const NONE: i64 = -1;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: InitProducerIdRequest = call.body(reply.version)?;
    let inited = match (current(&request), request.transactional_id.as_deref()) {
        (Ok(current), Some(id)) => transactional(call, &request, id, current).await,
        (Ok(_), None) => match call.broker.control.init_producer_id().await {
            Ok(id) => Ok(ProducerIdAndEpoch { id, epoch: 0 }),
            Err(refusal) => Err(refusal.code),
        },
        (Err(code), _) => Err(code),
    };
    let response = match inited {
        Ok(producer) => {
            InitProducerIdResponse { producer_id: producer.id, producer_epoch: producer.epoch, ..Default::default() }
        }
        Err(code) => InitProducerIdResponse {
            error_code: as_known(code, reply.version.number >= FENCED_FROM),
            producer_id: NONE,
            producer_epoch: -1,
            ..Default::default()
        },
    };
    reply.frame::<InitProducerIdRequest>(&response)
}

/// Returns the producer id and epoch that the client already has, or `None` if it has none.
///
/// # Errors
/// Fails with INVALID_REQUEST if there is an id without an epoch, or an epoch without an id.
fn current(request: &InitProducerIdRequest) -> Result<Option<ProducerIdAndEpoch>, ErrorCode> {
    match (request.producer_id, request.producer_epoch) {
        (NONE, -1) => Ok(None),
        (NONE, _) | (_, -1) => Err(ErrorCode::INVALID_REQUEST),
        (id, epoch) => Ok(Some(ProducerIdAndEpoch { id, epoch })),
    }
}

async fn transactional(
    call: &Call<'_>,
    request: &InitProducerIdRequest,
    id: &str,
    current: Option<ProducerIdAndEpoch>,
) -> Result<ProducerIdAndEpoch, ErrorCode> {
    check_id(id)?;
    let transactions = &call.broker.transactions;
    transactions.prepare(true, [id]).await?;
    let wait_until = transactions.wait_until(id, WAIT_MS);
    let init = InitProducerId { current, timeout_ms: request.transaction_timeout_ms, wait_until };
    let pending =
        transactions.put_to(id, None, |machine, ticket, turn| machine.init_producer_id(init, ticket, turn))?;
    match pending.answer().await? {
        TransactionAnswer::InitProducerId(inited) => inited,
        _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
    }
}
