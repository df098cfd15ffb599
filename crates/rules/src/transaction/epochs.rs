//! Decides on requests: the epoch after an InitProducerId or EndTxn, and the errors for late, repeated or fenced
//! requests (KIP-360, KIP-890).
//!
//! These are pure functions of the state in force. They follow the methods of `TransactionCoordinator` in Kafka 4.3 one
//! by one.

use super::metadata::{LAST_CLIENT_EPOCH, NO_PRODUCER_EPOCH, ProducerIdAndEpoch, TransactionMetadata};
use super::requests::{AddPartitions, EndTxn, InitProducerId};
use super::settings::TransactionSettings;
use super::state::{TransactionState, TransactionVersion};
use crate::sequence::NO_PRODUCER_ID;
use fullbore_wire::ErrorCode;

/// The consequence of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// Refuse the request with this error and change nothing.
    Refuse(ErrorCode),
    /// Respond with success and change nothing, because the request was already carried out.
    Done,
    /// Allocate a producer id, and then decide on the request again.
    NeedProducerId,
    /// Write this state, and then build the response to the request from the state.
    Persist(Box<TransactionMetadata>),
}

fn persist(next: TransactionMetadata) -> Decision {
    Decision::Persist(Box::new(next))
}

/// Decides on an InitProducerId (`handleInitProducerId`, `prepareInitProducerIdTransit`). `id` is a new producer id, if
/// one was allocated. If the result is a [`Decision::Persist`] in state PrepareAbort, it fences the former producer.
/// The request must then be decided again after the abort.
///
/// Two responses differ from Kafka's. While a transaction is ongoing, a producer with another epoch gets
/// PRODUCER_FENCED at once. Kafka aborts the transaction first and fences only the repeated request, so a zombie could
/// end its successor's transaction. The other case is the retry of a request that has raised the epoch to the last one
/// that a client can get. The retry gets this epoch again, but from Kafka it gets UNKNOWN_SERVER_ERROR.
pub(super) fn init(
    state: Option<&TransactionMetadata>,
    request: &InitProducerId,
    id: Option<i64>,
    settings: &TransactionSettings,
    now: i64,
) -> Decision {
    if !request.has_valid_timeout(settings) {
        return Decision::Refuse(ErrorCode::INVALID_TRANSACTION_TIMEOUT);
    }
    let Some(state) = state else {
        // The id has expired or never existed, so the producer in the request is ignored.
        let Some(id) = id else { return Decision::NeedProducerId };
        let first = ProducerIdAndEpoch { id, epoch: 0 };
        let created = TransactionMetadata::created(id, request.timeout_ms, now);
        return persist(created.initialized(first, NO_PRODUCER_EPOCH, request.timeout_ms, now));
    };
    if request.current.is_some_and(|current| !is_known(state, current)) {
        return Decision::Refuse(ErrorCode::PRODUCER_FENCED);
    }
    match state.state {
        TransactionState::Empty | TransactionState::CompleteCommit | TransactionState::CompleteAbort => {
            next_epoch(state, request, id, now)
        }
        TransactionState::Ongoing if request.current.is_some_and(|current| current != state.producer()) => {
            Decision::Refuse(ErrorCode::PRODUCER_FENCED)
        }
        TransactionState::Ongoing => fence(state, id, settings.server_version, now),
        _ => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
    }
}

/// Returns true if `current`, the producer in an InitProducerId, has the producer id of `state`. Also returns true for
/// the former producer id with its last epoch, because a retry of the request that led to the new id has them.
fn is_known(state: &TransactionMetadata, current: ProducerIdAndEpoch) -> bool {
    current.id == state.producer_id || state.had_producer_id(current.id) && current.epoch >= LAST_CLIENT_EPOCH
}

/// Decides on an InitProducerId while no transaction is ongoing (`prepareProducerIdRotation`,
/// `prepareIncrementProducerEpoch`).
fn next_epoch(state: &TransactionMetadata, request: &InitProducerId, id: Option<i64>, now: i64) -> Decision {
    let timeout_ms = request.timeout_ms;
    let last_epoch = match request.current {
        None => NO_PRODUCER_EPOCH,
        Some(current) if current.epoch == state.producer_epoch => state.producer_epoch,
        // This is a retry. No other client has sent a request in between, because that request would have set the last
        // epoch to -1.
        Some(current) if current.epoch >= 0 && current.epoch == state.last_producer_epoch => {
            let same = state.initialized(state.producer(), state.last_producer_epoch, timeout_ms, now);
            // The former id stays in the state for the next retry.
            return persist(TransactionMetadata { previous_producer_id: state.previous_producer_id, ..same });
        }
        Some(_) => return Decision::Refuse(ErrorCode::PRODUCER_FENCED),
    };
    let next = match id {
        _ if !state.is_epoch_exhausted() => {
            ProducerIdAndEpoch { id: state.producer_id, epoch: state.producer_epoch.saturating_add(1) }
        }
        Some(id) => ProducerIdAndEpoch { id, epoch: 0 },
        None => return Decision::NeedProducerId,
    };
    persist(state.initialized(next, last_epoch, timeout_ms, now))
}

/// Decides how the coordinator itself aborts an ongoing transaction, after a timeout or because of an InitProducerId
/// (`abortTimedOutTransactions`, `endTransaction` with `isFromClient` false).
///
/// If the append of the abort fails, nothing is decided: the old epoch stays in force even with TV1, and the next
/// attempt raises it to the same epoch. Kafka would keep the raised epoch in memory.
pub(super) fn fence(state: &TransactionMetadata, id: Option<i64>, version: TransactionVersion, now: i64) -> Decision {
    match next_producer_id(state, version, id) {
        Some(next_producer_id) => persist(state.fenced(version, next_producer_id, now)),
        None => Decision::NeedProducerId,
    }
}

/// Returns the producer id of the next transaction if the epochs are used up, and -1 if they are not. Returns None if a
/// new id must be allocated first.
fn next_producer_id(state: &TransactionMetadata, version: TransactionVersion, id: Option<i64>) -> Option<i64> {
    if version.supports_epoch_bump() && state.is_epoch_exhausted() { id } else { Some(NO_PRODUCER_ID) }
}

/// Checks the producer of a verify-only AddPartitionsToTxn, and that no markers are being written
/// (`handleVerifyPartitionsInTransaction`).
///
/// # Errors
/// Fails with INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED if the producer is not the current one, and with
/// CONCURRENT_TRANSACTIONS while markers are written.
pub(super) fn verify(state: Option<&TransactionMetadata>, producer: ProducerIdAndEpoch) -> Result<(), ErrorCode> {
    let state = state.ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING)?;
    if state.producer_id != producer.id {
        Err(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
    } else if state.producer_epoch != producer.epoch {
        Err(ErrorCode::PRODUCER_FENCED)
    } else if state.state.is_prepared() {
        Err(ErrorCode::CONCURRENT_TRANSACTIONS)
    } else {
        Ok(())
    }
}

/// Decides on a request to add partitions, while no transition is pending (`handleAddPartitionsToTransaction`).
///
/// If a client of TV1 adds partitions that the transaction already has, the state is written again. Kafka responds at
/// once. But this coordinator might have been replaced without noticing, and then the write fails. If it confirmed a
/// partition at once, a record of the client's next transaction could get into one that the new coordinator has already
/// decided. Both transactions have the same epoch.
pub(super) fn add(
    state: Option<&TransactionMetadata>,
    request: &AddPartitions,
    settings: &TransactionSettings,
    now: i64,
) -> Decision {
    if let Err(code) = verify(state, request.producer) {
        return Decision::Refuse(code);
    }
    let Some(state) = state else { return Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING) };
    let is_added = || request.partitions.iter().all(|partition| state.partitions.contains(partition));
    if state.state == TransactionState::Ongoing && request.version.supports_epoch_bump() && is_added() {
        return Decision::Done;
    }
    let next = state.added(request.owned(), request.version, now);
    if next.partitions.len() > settings.partitions_max {
        return Decision::Refuse(request.too_many());
    }
    persist(next)
}

/// Decides on an EndTxn (`endTransaction`, `endTransactionWithTV1`). `is_pending` is true during a transition, which
/// includes the markers of a Prepare state.
pub(super) fn end(
    state: Option<&TransactionMetadata>,
    request: &EndTxn,
    is_pending: bool,
    id: Option<i64>,
    now: i64,
) -> Decision {
    match state {
        None if is_pending => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
        None => Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
        Some(state) if request.version.supports_epoch_bump() => end_v2(state, request, is_pending, id, now),
        Some(state) => end_v1(state, request, is_pending, now),
    }
}

/// Decides on an EndTxn of TV1. The epoch stays the same, so only the state shows that a request is repeated.
fn end_v1(state: &TransactionMetadata, request: &EndTxn, is_pending: bool, now: i64) -> Decision {
    use TransactionState::*;
    match (state.state, request.is_commit) {
        _ if state.producer_id != request.producer.id => Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
        _ if state.producer_epoch != request.producer.epoch => Decision::Refuse(ErrorCode::PRODUCER_FENCED),
        _ if is_pending => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
        (Ongoing, is_commit) => persist(state.decided(is_commit, TransactionVersion::V0, NO_PRODUCER_ID, now)),
        (CompleteCommit, true) | (CompleteAbort, false) => Decision::Done,
        (PrepareCommit, true) | (PrepareAbort, false) => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
        _ => Decision::Refuse(ErrorCode::INVALID_TXN_STATE),
    }
}

/// Decides on an EndTxn of TV2. A repeated EndTxn has the previous epoch, or the former producer id with its last
/// epoch.
fn end_v2(state: &TransactionMetadata, request: &EndTxn, is_pending: bool, id: Option<i64>, now: i64) -> Decision {
    use TransactionState::*;
    let ProducerIdAndEpoch { id: producer_id, epoch } = request.producer;
    let is_retry_with_old_id =
        state.had_producer_id(producer_id) && epoch == LAST_CLIENT_EPOCH && state.producer_epoch == 0;
    let is_retry_with_last_epoch = epoch >= 0 && epoch.checked_add(1) == Some(state.producer_epoch);
    let is_retry = is_retry_with_old_id || is_retry_with_last_epoch;
    let is_current = epoch == state.producer_epoch;
    let is_valid_epoch = match state.state {
        PrepareCommit | PrepareAbort => is_retry_with_last_epoch,
        CompleteCommit | CompleteAbort => is_current || is_retry,
        Empty | Ongoing | Dead | PrepareEpochFence => is_current,
    };
    let decide = |is_commit| match next_producer_id(state, request.version, id) {
        Some(next) => persist(state.decided(is_commit, request.version, next, now)),
        None => Decision::NeedProducerId,
    };
    match (state.state, request.is_commit) {
        _ if is_pending => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
        _ if state.producer_id != producer_id && !is_retry_with_old_id => {
            Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
        }
        _ if !is_valid_epoch => Decision::Refuse(ErrorCode::PRODUCER_FENCED),
        (Ongoing, is_commit) => decide(is_commit),
        (CompleteCommit, true) | (CompleteAbort, false) if is_retry => Decision::Done,
        (PrepareCommit, true) | (PrepareAbort, false) => Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS),
        // The client aborts a transaction to which no partition was added, perhaps because it lost the response to an
        // AddPartitions.
        (Empty, false) => decide(false),
        (CompleteCommit | CompleteAbort, false) if !is_retry => decide(false),
        _ => Decision::Refuse(ErrorCode::INVALID_TXN_STATE),
    }
}
