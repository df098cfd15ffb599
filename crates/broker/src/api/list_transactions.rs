//! ListTransactions 0-2. There are none, since transactions are not served yet; filters that are none are told.

use super::call::{Call, Fault, Reply};
use crate::groups::TopicRegex;
use fullbore_wire::apis::list_transactions::{ListTransactionsRequest, ListTransactionsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

/// Kafka's `TransactionState`.
const STATES: [&str; 8] = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
];

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: ListTransactionsRequest = call.body(reply.version)?;
    let pattern = request.transactional_id_pattern.filter(|pattern| !pattern.is_empty());
    let response = if pattern.is_some_and(|pattern| TopicRegex::compile(&pattern).is_err()) {
        ListTransactionsResponse { error_code: ErrorCode::INVALID_REGULAR_EXPRESSION, ..Default::default() }
    } else {
        let is_unknown = |state: &Text| !STATES.contains(&state.as_str());
        let unknown_state_filters = request.state_filters.into_iter().filter(is_unknown).collect();
        ListTransactionsResponse { unknown_state_filters, ..Default::default() }
    };
    reply.frame::<ListTransactionsRequest>(&response)
}
