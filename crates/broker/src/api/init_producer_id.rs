//! InitProducerId 0-6, for idempotent producers. Transactions are not served yet.

use super::call::{Call, Fault, Reply};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::{ErrorCode, Frame};

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: InitProducerIdRequest = call.body(reply.version)?;
    let refused =
        |error_code| InitProducerIdResponse { error_code, producer_id: -1, producer_epoch: -1, ..Default::default() };
    let response = if request.transactional_id.is_some() {
        // For who did not ask FindCoordinator, which says why. There is no message here, and librdkafka would ask again
        // after most other errors.
        refused(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    } else {
        match call.broker.control.init_producer_id().await {
            Ok(producer_id) => InitProducerIdResponse { producer_id, producer_epoch: 0, ..Default::default() },
            Err(refusal) => refused(refusal.code),
        }
    };
    reply.frame::<InitProducerIdRequest>(&response)
}
