//! Verification of offsets that a group commits in a transaction (KIP-447, KIP-890).
//!
//! For clients that send TxnOffsetCommit 5, the broker adds the group's partition to the transaction. Other clients
//! have added it before.

use super::Transactions;
use super::verify::CoordinatorAnswer;
use crate::partitions::append::BeginningTransaction;
use fullbore_control::CONSUMER_OFFSETS;
use fullbore_rules::transaction::ProducerIdAndEpoch;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;

/// First TxnOffsetCommit version whose client lets the broker add the partition (KIP-890 part 2).
const ADDS_FROM: i16 = 5;
/// First TxnOffsetCommit version whose client knows TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 4;

impl Transactions {
    /// Adds `partition` of `__consumer_offsets` to a transaction or, for older versions of TxnOffsetCommit, checks that
    /// the transaction includes it. Returns the leader epoch of the transaction's coordinator; `None` if verification
    /// is off, or the coordinator did not send the epoch.
    ///
    /// # Errors
    /// Refusal by the coordinator, as a code that a client of `version` knows.
    pub async fn begin_offsets(
        self: &Arc<Self>,
        transactional_id: &str,
        producer: ProducerIdAndEpoch,
        partition: i32,
        version: i16,
    ) -> Result<Option<i32>, ErrorCode> {
        let beginning = BeginningTransaction {
            transactional_id: Text::from(transactional_id),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            produce_version: version,
            partitions: vec![(Text::from_static(CONSUMER_OFFSETS), partition)],
        };
        let verified = match version {
            ADDS_FROM.. => self.add(&beginning).await,
            _ if !self.verifies_partitions() => return Ok(None),
            _ => self.find(&beginning).await,
        };
        let CoordinatorAnswer { codes, coordinator_epoch } = verified.map_err(|code| as_commit_error(code, version))?;
        let refused = codes.into_iter().find(|code| code.is_err());
        refused.map_or(Ok(coordinator_epoch), |code| Err(as_commit_error(code, version)))
    }
}

/// Returns the error of a commit (`AddPartitionsToTxnManager`, `CoordinatorOperationExceptionHelper` of Kafka).
fn as_commit_error(code: ErrorCode, version: i16) -> ErrorCode {
    match code {
        ErrorCode::TRANSACTION_ABORTABLE if version < ABORTABLE_FROM => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        // The client retries at this coordinator, without searching for it again.
        ErrorCode::NETWORK_EXCEPTION => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abortable_error_for_an_old_client_is_translated() {
        let codes = [3, 4].map(|version| as_commit_error(ErrorCode::TRANSACTION_ABORTABLE, version));
        assert_eq!(codes, [ErrorCode::INVALID_TXN_STATE, ErrorCode::TRANSACTION_ABORTABLE]);
        assert_eq!(as_commit_error(ErrorCode::PRODUCER_FENCED, 5), ErrorCode::INVALID_PRODUCER_EPOCH);
        assert_eq!(as_commit_error(ErrorCode::CONCURRENT_TRANSACTIONS, 5), ErrorCode::CONCURRENT_TRANSACTIONS);
    }
}
