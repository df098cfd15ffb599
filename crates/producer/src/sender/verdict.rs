//! Defines in a table what the error codes of a broker mean for a batch.
//!
//! Invariant: an error code means "certainly not written" only if brokers return it only before they append the batch.
//! With acks=all, a leader may append the batch, wait for replicas, and then answer NOT_LEADER_OR_FOLLOWER or
//! REQUEST_TIMED_OUT.

use crate::window::Setback;
use fullbore_wire::ErrorCode;

/// The number of attempts after which a leader without enough replicas may be a former leader.
const DOUBTED_FROM: u32 = 2;

/// The consequence of an error for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The batch is in the log.
    Written,
    /// The batch must be sent again.
    SetBack(Setback),
    /// The batch must be split and sent again.
    TooLarge,
    /// An earlier attempt may be in the log, and the broker can no longer recognise it.
    Unresolved,
    /// The batch has failed. `maybe` is true if this attempt may still be in the log.
    Failed { maybe: bool },
}

/// Returns the consequence of `code`. `ambiguous` is true if an earlier attempt may be in the log.
pub(crate) fn of(code: ErrorCode, ambiguous: bool) -> Verdict {
    match code {
        ErrorCode::NONE | ErrorCode::DUPLICATE_SEQUENCE_NUMBER => Verdict::Written,
        // An earlier attempt may be in the log: it was written before the limit was lowered, or by another leader. The
        // batch must not be split, because the broker would not recognise its parts as already written.
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE if ambiguous => Verdict::Unresolved,
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => Verdict::TooLarge,
        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER => Verdict::SetBack(Setback::OutOfOrder),
        // The broker has forgotten the producer, or knows a newer epoch. In both cases the broker cannot recognise a
        // retry.
        ErrorCode::UNKNOWN_PRODUCER_ID | ErrorCode::INVALID_PRODUCER_EPOCH if ambiguous => Verdict::Unresolved,
        ErrorCode::UNKNOWN_PRODUCER_ID | ErrorCode::INVALID_PRODUCER_EPOCH => Verdict::SetBack(Setback::Fenced),
        // Brokers return each code of this arm only before they append. CONCURRENT_TRANSACTIONS means that the previous
        // transaction is still being completed.
        ErrorCode::CONCURRENT_TRANSACTIONS
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::CORRUPT_MESSAGE
        | ErrorCode::UNKNOWN_TOPIC_ID => Verdict::SetBack(Setback::Retry { maybe: false }),
        code if code.is_retriable() => Verdict::SetBack(Setback::Retry { maybe: true }),
        ErrorCode::UNKNOWN_SERVER_ERROR => Verdict::Failed { maybe: true },
        code => Verdict::Failed { maybe: code.name().is_none() },
    }
}

/// Returns true if the error means that leaders or topic ids have changed.
pub(crate) fn is_stale_metadata(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::LEADER_NOT_AVAILABLE
            | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode::UNKNOWN_TOPIC_ID
            | ErrorCode::INCONSISTENT_TOPIC_ID
            | ErrorCode::FENCED_LEADER_EPOCH
            | ErrorCode::UNKNOWN_LEADER_EPOCH
            | ErrorCode::KAFKA_STORAGE_ERROR
            | ErrorCode::REPLICA_NOT_AVAILABLE
    )
}

/// Returns true if a deposed leader that does not know of its successor may return this error, after this number of
/// earlier attempts. Such a leader has no followers any more, and may look up an old epoch of a transactional producer.
pub(crate) fn may_be_of_former_leader(code: ErrorCode, attempts: u32) -> bool {
    match code {
        ErrorCode::INVALID_PRODUCER_EPOCH => true,
        ErrorCode::NOT_ENOUGH_REPLICAS | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND | ErrorCode::REQUEST_TIMED_OUT => {
            attempts >= DOUBTED_FROM
        }
        _ => false,
    }
}

/// Returns true if the error means that the topic has another id, or did not exist.
pub(crate) fn is_stale_topic(code: ErrorCode) -> bool {
    let codes = [ErrorCode::UNKNOWN_TOPIC_ID, ErrorCode::INCONSISTENT_TOPIC_ID, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION];
    codes.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_after_the_append_leave_doubt() {
        for code in [
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::REQUEST_TIMED_OUT,
            ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode::KAFKA_STORAGE_ERROR,
        ] {
            assert_eq!(of(code, false), Verdict::SetBack(Setback::Retry { maybe: true }), "{code}");
        }
        assert_eq!(of(ErrorCode::UNKNOWN_SERVER_ERROR, false), Verdict::Failed { maybe: true });
        assert_eq!(of(ErrorCode(9999), false), Verdict::Failed { maybe: true });
    }

    #[test]
    fn a_forgotten_producer_is_unresolved_only_after_a_lost_response() {
        for code in [ErrorCode::UNKNOWN_PRODUCER_ID, ErrorCode::INVALID_PRODUCER_EPOCH] {
            assert_eq!(of(code, true), Verdict::Unresolved);
            assert_eq!(of(code, false), Verdict::SetBack(Setback::Fenced));
        }
    }

    #[test]
    fn a_batch_too_large_is_split_only_if_it_is_surely_not_written_whole() {
        for code in [ErrorCode::MESSAGE_TOO_LARGE, ErrorCode::RECORD_LIST_TOO_LARGE] {
            assert_eq!(of(code, true), Verdict::Unresolved);
            assert_eq!(of(code, false), Verdict::TooLarge);
        }
    }

    #[test]
    fn leader_without_replicas_is_doubted_after_several_attempts() {
        let codes = [ErrorCode::NOT_ENOUGH_REPLICAS, ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND];
        for code in codes {
            assert!(!may_be_of_former_leader(code, 0) && may_be_of_former_leader(code, DOUBTED_FROM), "{code}");
        }
        assert!(!may_be_of_former_leader(ErrorCode::MESSAGE_TOO_LARGE, DOUBTED_FROM));
    }

    #[test]
    fn refusals_fail_the_batch_for_certain() {
        for code in [ErrorCode::TOPIC_AUTHORIZATION_FAILED, ErrorCode::INVALID_RECORD, ErrorCode::INVALID_TIMESTAMP] {
            assert_eq!(of(code, false), Verdict::Failed { maybe: false });
        }
    }
}
