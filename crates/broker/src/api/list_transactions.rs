//! ListTransactions 0-2: lists the transactional ids that this broker coordinates (KIP-664, KIP-994, KIP-1152).

use super::call::{Call, Fault, Reply};
use super::wide::ENTRIES_SHORT_MAX;
use crate::groups::TopicRegex;
use crate::node::CoordinatorServices;
use crate::transactions::Transactions;
use fullbore_host::wide_work::{Listing, WideWork};
use fullbore_rules::transaction::{TransactionFilter, TransactionState};
use fullbore_wire::apis::list_transactions::{
    ListTransactionsRequest, ListTransactionsResponse, ServedPartition, TransactionState as Listed,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::sync::Arc;

pub async fn handle(
    call: &mut Call<'_>,
    services: &CoordinatorServices,
    wide: &WideWork,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: ListTransactionsRequest = call.body(reply.version)?;
    let _ = services.transactions.prepare(false, []).await;
    let transactions = Arc::clone(&services.transactions);
    // Only one large request runs at a time, because a list of many ids takes much memory until it is encoded.
    let is_large = transactions.ids_size().0 > ENTRIES_SHORT_MAX;
    let turn = if is_large { Some(wide.listing_turn(Listing::Transactions).await) } else { None };
    let listed = move || {
        let listed = listed(&transactions, &request).unwrap_or_else(|error_code| ListTransactionsResponse {
            error_code,
            unknown_state_filters: unknown(&request),
            ..Default::default()
        });
        (listed, turn)
    };
    // Runs on a blocking thread, because there may be a million ids and the client chooses the pattern.
    let failed = |_| {
        let error_code = ErrorCode::UNKNOWN_SERVER_ERROR;
        (ListTransactionsResponse { error_code, ..Default::default() }, None)
    };
    let (response, _turn) = tokio::task::spawn_blocking(listed).await.unwrap_or_else(failed);
    reply.frame::<ListTransactionsRequest>(&response)
}

fn listed(
    transactions: &Transactions,
    request: &ListTransactionsRequest,
) -> Result<ListTransactionsResponse, ErrorCode> {
    let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
    let pattern = pattern.map(TopicRegex::compile).transpose();
    let pattern = pattern.map_err(|_| ErrorCode::INVALID_REGULAR_EXPRESSION)?;
    let states: Vec<_> = request.state_filters.iter().filter_map(|name| TransactionState::from_name(name)).collect();
    let unknown_state_filters = unknown(request);
    if states.is_empty() && !request.state_filters.is_empty() {
        return Ok(ListTransactionsResponse { unknown_state_filters, ..Default::default() });
    }
    let filter = TransactionFilter {
        states: &states,
        producer_ids: &request.producer_id_filters,
        duration_ms: request.duration_filter,
    };
    let matches = |id: &str| pattern.as_ref().is_none_or(|pattern| pattern.is_match(id));
    let served = if request.names_served { transactions.served() } else { Vec::new() };
    let found = transactions.list(&filter, matches)?.into_iter();
    // The response names the partitions of `__transaction_state` that were served both before and after the listing.
    // The list has all ids of these partitions, but may lack ids of others.
    let still = if served.is_empty() { Vec::new() } else { transactions.served() };
    let served = served.into_iter().filter(|before| still.contains(before));
    let served = served.map(|(partition_index, leader_epoch)| ServedPartition {
        partition_index,
        leader_epoch,
        ..Default::default()
    });
    let served = served.collect();
    let transaction_states = found.map(|found| Listed {
        transactional_id: found.transactional_id,
        producer_id: found.producer_id,
        transaction_state: Text::from_static(found.state.name()),
        ..Default::default()
    });
    let transaction_states = transaction_states.collect();
    Ok(ListTransactionsResponse { unknown_state_filters, transaction_states, served, ..Default::default() })
}

/// Returns the names in the state filter that are not states of a transaction.
fn unknown(request: &ListTransactionsRequest) -> Vec<Text> {
    let names = request.state_filters.iter();
    names.filter(|name| TransactionState::from_name(name).is_none()).cloned().collect()
}
