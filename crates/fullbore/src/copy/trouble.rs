//! Classifies failures of a copier's transactions by the next step.
//!
//! Invariant: only an error that no retry can change ends the command.

use fullbore_producer::{ProduceError, SendError, TransactionError};
use fullbore_wire::ErrorCode;
use std::time::Duration;

/// The failure of a copy. After it, no record is written until the member has read its positions from the group again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyError {
    /// The transaction is aborted, and the same producer copies its records again.
    Again {
        /// The reason, as part of a sentence.
        why: String,
        /// True if a broker has refused a request. Retries are then limited, because the broker may refuse each of them
        /// as well.
        is_refusal: bool,
    },
    /// The transaction is aborted, and a new producer copies its records again.
    Renew {
        /// The reason, as part of a sentence.
        why: String,
        /// True if a broker may refuse each new producer as well.
        is_refusal: bool,
    },
    /// The command ends with this sentence.
    Fatal(String),
}

impl CopyError {
    /// Creates a failure that is not a broker's refusal.
    pub(super) fn again(why: &str) -> Self {
        CopyError::Again { why: why.to_owned(), is_refusal: false }
    }

    /// Creates the failure that ends the command because `action` cannot be done.
    pub(super) fn fatal(action: &str, error: &TransactionError) -> Self {
        let reason = error.to_string();
        let reason = reason.strip_prefix(&format!("cannot {action}: ")).unwrap_or(&reason);
        CopyError::Fatal(format!("cannot {action}: {reason}; nothing was copied{}", advice(error)))
    }

    /// Creates the failure that ends the command because the producer refused a record.
    pub(super) fn of_record(record: &str, to: &str, error: &SendError) -> Self {
        let advice = match error {
            SendError::RecordTooLarge { size, .. } => format!("; raise the limit with -X max.request.size={size}"),
            SendError::NoPartition { .. } => "; let the key choose the partition with --by-key".to_owned(),
            _ => String::new(),
        };
        CopyError::Fatal(format!("cannot write {record} to topic '{to}': {error}{advice}"))
    }
}

/// Classifies the failure of a transaction that was open for `age`. The coordinator aborts a transaction after
/// `timeout`.
pub(super) fn after_failure(error: &TransactionError, age: Option<Duration>, timeout: Duration) -> CopyError {
    let why = error.to_string();
    let code = match error {
        TransactionError::Coordinator { code, .. } | TransactionError::Record(ProduceError::Broker { code, .. }) => {
            Some(*code)
        }
        _ => None,
    };
    // A producer may get these codes if its transaction has timed out and the coordinator has aborted it.
    let may_be_timeout = |code| {
        matches!(code, ErrorCode::PRODUCER_FENCED | ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::INVALID_TXN_STATE)
    };
    match code {
        // The coordinator has forgotten the transactional id. The next producer registers it again.
        Some(ErrorCode::INVALID_PRODUCER_ID_MAPPING) => CopyError::Renew { why, is_refusal: false },
        Some(code) if may_be_timeout(code) && age.is_some_and(|age| age >= timeout) => {
            CopyError::Renew { why, is_refusal: false }
        }
        // A former coordinator may have got a part of the transaction. The group's offsets show if the transaction was
        // committed, and the new producer ends it before they are read.
        Some(ErrorCode::INVALID_TXN_STATE) if error.is_fatal() => CopyError::Renew { why, is_refusal: true },
        Some(code) if is_permanent(code) => CopyError::Fatal(format!("cannot go on copying: {why}{}", advice(error))),
        _ if error.is_fatal() => CopyError::Fatal(format!("cannot go on copying: {why}{}", advice(error))),
        code => CopyError::Again { why, is_refusal: code.is_some() },
    }
}

/// Returns true if a retry of the same records by the same member can never succeed.
fn is_permanent(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::MESSAGE_TOO_LARGE
            | ErrorCode::RECORD_LIST_TOO_LARGE
            | ErrorCode::INVALID_RECORD
            | ErrorCode::INVALID_TIMESTAMP
            | ErrorCode::INVALID_TOPIC_EXCEPTION
            | ErrorCode::POLICY_VIOLATION
            | ErrorCode::UNSUPPORTED_COMPRESSION_TYPE
            | ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT
            | ErrorCode::UNSUPPORTED_VERSION
            | ErrorCode::TOPIC_AUTHORIZATION_FAILED
            | ErrorCode::GROUP_AUTHORIZATION_FAILED
            | ErrorCode::CLUSTER_AUTHORIZATION_FAILED
            | ErrorCode::FENCED_INSTANCE_ID
            | ErrorCode::INVALID_COMMIT_OFFSET_SIZE
    )
}

/// Returns advice for an error that ends the command, as the rest of a sentence.
fn advice(error: &TransactionError) -> &'static str {
    let (TransactionError::Coordinator { code, .. } | TransactionError::Record(ProduceError::Broker { code, .. })) =
        error
    else {
        return "";
    };
    match *code {
        ErrorCode::PRODUCER_FENCED | ErrorCode::INVALID_PRODUCER_EPOCH => {
            "; another producer has taken over the transactional id of this copier: give each copier its own with \
             --transactional-id"
        }
        ErrorCode::FENCED_INSTANCE_ID => {
            "; another copier has taken the place of this one in the group: give each copier its own \
             --group-instance-id"
        }
        ErrorCode::INVALID_TRANSACTION_TIMEOUT => {
            "; lower it with -X transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms"
        }
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => "; raise max.message.bytes of the target",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn coordinator(code: ErrorCode) -> TransactionError {
        TransactionError::Coordinator {
            action: "commit offsets",
            code,
            message: String::new(),
            possibly_committed: false,
        }
    }

    fn of_record(code: ErrorCode) -> TransactionError {
        TransactionError::Record(ProduceError::Broker { code, message: String::new(), possibly_written: false })
    }

    fn judge(error: &TransactionError, age_s: u64) -> CopyError {
        after_failure(error, Some(Duration::from_secs(age_s)), TIMEOUT)
    }

    #[test]
    fn a_lost_generation_and_a_failed_batch_are_copied_again() {
        for code in [ErrorCode::ILLEGAL_GENERATION, ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::STALE_MEMBER_EPOCH] {
            assert!(matches!(judge(&coordinator(code), 0), CopyError::Again { is_refusal: true, .. }), "{code}");
        }
        assert!(matches!(judge(&of_record(ErrorCode::INVALID_PRODUCER_EPOCH), 0), CopyError::Again { .. }));
        let timeout = ProduceError::Timeout { waited: TIMEOUT, last: String::new(), possibly_written: true };
        let judged = judge(&TransactionError::Record(timeout), 0);
        assert!(matches!(judged, CopyError::Again { is_refusal: false, .. }), "{judged:?}");
    }

    #[test]
    fn a_fenced_producer_ends_the_copy_unless_its_transaction_has_timed_out() {
        let fenced = coordinator(ErrorCode::PRODUCER_FENCED);
        let CopyError::Fatal(sentence) = judge(&fenced, 1) else { panic!("not fatal") };
        assert!(
            sentence.starts_with("cannot go on copying: ") && sentence.contains("--transactional-id"),
            "{sentence}"
        );
        for code in [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_EPOCH, ErrorCode::INVALID_TXN_STATE] {
            assert!(matches!(judge(&coordinator(code), 10), CopyError::Renew { is_refusal: false, .. }), "{code}");
        }
        for code in [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_EPOCH] {
            assert!(matches!(judge(&coordinator(code), 9), CopyError::Fatal(_)), "{code}");
        }
        let forgotten = judge(&coordinator(ErrorCode::INVALID_PRODUCER_ID_MAPPING), 0);
        assert!(matches!(forgotten, CopyError::Renew { is_refusal: false, .. }), "{forgotten:?}");
    }

    /// A coordinator that is cut off from the database may have got a part of the transaction.
    #[test]
    fn a_transaction_that_the_coordinator_does_not_know_is_copied_again_by_a_new_producer() {
        let judged = judge(&coordinator(ErrorCode::INVALID_TXN_STATE), 0);
        assert!(matches!(judged, CopyError::Renew { is_refusal: true, .. }), "{judged:?}");
    }

    #[test]
    fn a_record_that_no_attempt_can_write_ends_the_copy() {
        let CopyError::Fatal(sentence) = judge(&of_record(ErrorCode::MESSAGE_TOO_LARGE), 0) else {
            panic!("not fatal")
        };
        assert!(sentence.contains("max.message.bytes"), "{sentence}");
        let too_large = SendError::RecordTooLarge { size: 2_000_000, max: 1_000_000 };
        let CopyError::Fatal(sentence) = CopyError::of_record("a record", "b", &too_large) else { panic!("not fatal") };
        assert!(sentence.contains("-X max.request.size=2000000"), "{sentence}");
    }
}
