//! DescribeTransactions 0: describes the transactions of the requested ids (KIP-664).

use super::call::{Call, Fault, Reply, once};
use super::end_txn::check_id;
use crate::node::CoordinatorServices;
use fullbore_rules::transaction::{TopicPartition, TransactionMetadata, TransactionState};
use fullbore_wire::apis::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, TopicData, TransactionState as Described,
};
use fullbore_wire::{ErrorCode, Frame, Text};

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeTransactionsRequest = call.body(reply.version)?;
    let transactions = &services.transactions;
    let prepared = transactions.prepare(false, request.transactional_ids.iter().map(Text::as_str)).await;
    let describe = |id: &Text| prepared.and_then(|()| check_id(id)).and_then(|()| transactions.describe(id));
    let described = |id: Text| match describe(&id) {
        Ok(state) => described(id, state),
        Err(error_code) => Described { error_code: as_unknown(error_code), transactional_id: id, ..Default::default() },
    };
    let transaction_states = once(request.transactional_ids, Text::clone).into_iter().map(described).collect();
    let response = DescribeTransactionsResponse { transaction_states, ..Default::default() };
    reply.frame::<DescribeTransactionsRequest>(&response)
}

/// Returns the error for an id. COORDINATOR_NOT_AVAILABLE means that `__transaction_state` does not exist, so no id
/// exists.
fn as_unknown(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::COORDINATOR_NOT_AVAILABLE => ErrorCode::TRANSACTIONAL_ID_NOT_FOUND,
        code => code,
    }
}

fn described(transactional_id: Text, state: TransactionMetadata) -> Described {
    let topics = TopicPartition::by_topic(state.partitions).into_iter();
    let topics = topics.map(|(topic, partitions)| TopicData { topic, partitions, ..Default::default() });
    Described {
        transactional_id,
        transaction_state: Text::from_static(TransactionState::name(state.state)),
        transaction_timeout_ms: state.timeout_ms,
        transaction_start_time_ms: state.start_ms,
        producer_id: state.producer_id,
        producer_epoch: state.producer_epoch,
        topics: topics.collect(),
        ..Default::default()
    }
}
