//! The errors of transactions. Each answers four questions. May the same call succeed later? May another transaction
//! succeed? Is the error fatal for the producer? May the transaction have been committed?

use super::{ProduceError, answer, because, shown};
use fullbore_wire::ErrorCode;
use std::time::Duration;

/// The rule that is broken if a producer without a transactional.id gets a call about transactions.
pub(crate) const NO_TRANSACTIONAL_ID: &str = "transactions need a transactional.id";

/// The reason why a transaction, or a call about it, has failed.
///
/// Exactly one of [`TransactionError::is_retriable`], [`TransactionError::is_abortable`] and
/// [`TransactionError::is_fatal`] is true.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The call is not allowed in the producer's present state. It had no effect.
    #[error("{0}")]
    State(
        /// The rule that the call broke.
        &'static str,
    ),
    /// A queue of the producer was full. The call had no effect.
    #[error("{0}")]
    Full(
        /// The limit of the queue.
        &'static str,
    ),
    /// The call waited for max.block.ms. The producer still tries to carry out the call.
    #[error("cannot {action} in {} (max.block.ms){}", shown(*waited), because(why))]
    Timeout {
        /// The attempted action, as a verb.
        action: &'static str,
        /// How long the call waited.
        waited: Duration,
        /// The last problem that delayed the call, or empty.
        why: String,
        /// True if the records of the transaction may already be committed.
        possibly_committed: bool,
    },
    /// A coordinator refused the request.
    #[error("cannot {action}: {}", answer(*code, message))]
    Coordinator {
        /// The attempted action, as a verb.
        action: &'static str,
        /// Kafka's error.
        code: ErrorCode,
        /// The broker's message, or empty.
        message: String,
        /// True if the records of the transaction may already be committed.
        possibly_committed: bool,
    },
    /// A record of the transaction was not written.
    #[error("a record of the transaction failed: {0}")]
    Record(
        /// The first such failure.
        ProduceError,
    ),
    /// The commit of the previous transaction failed after this transaction had begun.
    #[error("the transaction before this one was not committed: {0}")]
    Previous(
        /// The error of the previous transaction, as text.
        String,
    ),
    /// The producer was closed before the transaction ended.
    #[error("the producer was closed before the transaction had ended")]
    Closed {
        /// True if the records of the transaction may already be committed.
        possibly_committed: bool,
    },
}

impl TransactionError {
    /// Returns true if the same call may succeed later, because the producer is still trying.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Full(_))
    }

    /// Returns true if only this transaction has failed. The producer aborts it, and the next one may succeed.
    pub fn is_abortable(&self) -> bool {
        !self.is_retriable() && !self.is_fatal()
    }

    /// Returns true if this producer cannot send any more. For example, another producer with the same transactional.id
    /// may have fenced it.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::State(rule) => *rule == NO_TRANSACTIONAL_ID,
            Self::Closed { .. } => true,
            Self::Coordinator { code, .. } => is_fatal(*code),
            Self::Record(ProduceError::Broker { code, .. }) => is_fatal_of_record(*code),
            Self::Timeout { .. } | Self::Full(_) | Self::Record(_) | Self::Previous(_) => false,
        }
    }

    /// Returns the error with `possibly_committed` set to `possibly`.
    pub(crate) fn with_possibly_committed(self, possibly: bool) -> Self {
        match self {
            Self::Coordinator { action, code, message, .. } => {
                Self::Coordinator { action, code, message, possibly_committed: possibly }
            }
            Self::Closed { .. } => Self::Closed { possibly_committed: possibly },
            other => other,
        }
    }

    /// Returns true if readers with read_committed may see the records of the transaction, now or later.
    pub fn may_have_been_written(&self) -> bool {
        match self {
            Self::Timeout { possibly_committed, .. }
            | Self::Coordinator { possibly_committed, .. }
            | Self::Closed { possibly_committed } => *possibly_committed,
            Self::State(_) | Self::Full(_) | Self::Record(_) | Self::Previous(_) => false,
        }
    }
}

/// Returns true if a coordinator's error is fatal for the producer, as in Kafka 4.3's `TransactionManager`. Unexpected
/// errors are fatal too.
fn is_fatal(code: ErrorCode) -> bool {
    !matches!(
        code,
        ErrorCode::TRANSACTION_ABORTABLE
            | ErrorCode::UNKNOWN_PRODUCER_ID
            | ErrorCode::OPERATION_NOT_ATTEMPTED
            | ErrorCode::TOPIC_AUTHORIZATION_FAILED
            | ErrorCode::GROUP_AUTHORIZATION_FAILED
            | ErrorCode::FENCED_INSTANCE_ID
            | ErrorCode::UNKNOWN_MEMBER_ID
            | ErrorCode::ILLEGAL_GENERATION
            | ErrorCode::STALE_MEMBER_EPOCH
            | ErrorCode::OFFSET_METADATA_TOO_LARGE
            | ErrorCode::INVALID_COMMIT_OFFSET_SIZE
    )
}

/// Returns true if an error of Produce is fatal for the producer, as in Kafka's
/// `TransactionManager.maybeTransitionToErrorState`.
fn is_fatal_of_record(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED
            | ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            | ErrorCode::PRODUCER_FENCED
            | ErrorCode::UNSUPPORTED_VERSION
            | ErrorCode::INVALID_PRODUCER_ID_MAPPING
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ErrorCode) -> TransactionError {
        TransactionError::Coordinator { action: "commit", code, message: String::new(), possibly_committed: false }
    }

    fn of_record(code: ErrorCode) -> TransactionError {
        TransactionError::Record(ProduceError::Broker { code, message: String::new(), possibly_written: false })
    }

    #[test]
    fn error_of_any_kind_has_exactly_one_class() {
        let timeout = TransactionError::Timeout {
            action: "commit",
            waited: Duration::ZERO,
            why: String::new(),
            possibly_committed: true,
        };
        let codes = [ErrorCode::PRODUCER_FENCED, ErrorCode::TRANSACTION_ABORTABLE, ErrorCode::INVALID_TXN_STATE];
        let mut errors: Vec<_> = codes.into_iter().flat_map(|code| [refused(code), of_record(code)]).collect();
        errors.extend([timeout, TransactionError::State("no"), TransactionError::Previous(String::new())]);
        errors.extend([TransactionError::State(NO_TRANSACTIONAL_ID), TransactionError::Full("no")]);
        for error in errors {
            let classes = [error.is_retriable(), error.is_abortable(), error.is_fatal()];
            assert_eq!(classes.iter().filter(|is| **is).count(), 1, "{error}");
        }
    }

    #[test]
    fn call_had_no_effect_error_is_fatal_only_without_an_id() {
        assert!(TransactionError::State("a transaction is open").is_abortable());
        assert!(TransactionError::Full("64 calls wait").is_retriable());
        assert!(TransactionError::State(NO_TRANSACTIONAL_ID).is_fatal());
    }

    #[test]
    fn fenced_epoch_is_fatal_at_the_coordinator_and_abortable_at_a_partition() {
        assert!(refused(ErrorCode::INVALID_PRODUCER_EPOCH).is_fatal());
        assert!(of_record(ErrorCode::INVALID_PRODUCER_EPOCH).is_abortable());
        assert!(of_record(ErrorCode::INVALID_TXN_STATE).is_abortable());
        assert!(refused(ErrorCode::INVALID_TXN_STATE).is_fatal());
    }
}
