//! Verifies offsets that a group commits in a transaction (KIP-447, KIP-890).
//!
//! If a client sends TxnOffsetCommit 5 or later, the broker adds the group's partition to the transaction. Older
//! clients add that partition themselves before they commit.

use super::Transactions;
use super::verify::CoordinatorAnswer;
use crate::partitions::append::BeginningTransaction;
use fullbore_control::CONSUMER_OFFSETS;
use fullbore_rules::transaction::ProducerIdAndEpoch;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;

/// First version of TxnOffsetCommit in which the broker adds the partition (KIP-890 part 2).
const ADDS_FROM: i16 = 5;
/// First version of TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 4;

impl Transactions {
    /// Adds `partition` of `__consumer_offsets` to a transaction. For older versions of TxnOffsetCommit, only checks
    /// that the client has added the partition.
    ///
    /// Returns the leader epoch of the transaction's coordinator. `None` if verification is turned off or the
    /// coordinator did not send its epoch.
    ///
    /// # Errors
    /// Returns the coordinator's error, translated to a code that clients of `version` know.
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

/// Translates an error into one for the response to a commit, as Kafka's `AddPartitionsToTxnManager` and
/// `CoordinatorOperationExceptionHelper` do.
fn as_commit_error(code: ErrorCode, version: i16) -> ErrorCode {
    match code {
        ErrorCode::TRANSACTION_ABORTABLE if version < ABORTABLE_FROM => ErrorCode::INVALID_TXN_STATE,
        ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
        // After this code, the client retries at the present coordinator of its group. It does not search for another.
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
