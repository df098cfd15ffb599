//! Explains failed transactions to the user: the cause behind an error code, and the next step. Also checks the flags
//! that transactional commands share.

use crate::failure::Failure;
use fullbore_producer::{ProduceError, ProducerConfig, TransactionError};
use fullbore_wire::ErrorCode;
use std::time::Duration;

/// The name of the property with the transactional id.
pub const TRANSACTIONAL_ID: &str = "transactional.id";

/// Checks that the flag and a property of a command line do not name different transactional ids. The id decides which
/// producer is fenced, so neither may silently override the other. Properties of a file are not checked, because a flag
/// overrides them.
///
/// # Errors
/// Returns [`Failure`] if the flag and the properties name different ids.
pub fn check_ids(flag: Option<&str>, properties: &[(String, String)]) -> Result<(), Failure> {
    let property = properties.iter().rev().find(|(key, _)| key == TRANSACTIONAL_ID).map(|(_, value)| value.as_str());
    match (flag, property) {
        (Some(flag), Some(property)) if flag != property => Err(Failure::usage(format!(
            "two transactional ids: --transactional-id {flag} and the property {TRANSACTIONAL_ID}={property}; give one of them"
        ))),
        _ => Ok(()),
    }
}

/// Parses a number of records, which is at least 1.
///
/// # Errors
/// Returns a text with the allowed range if `text` is not a number within it.
pub fn record_count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "must be a whole number, 1 or more".to_owned())
}

/// The settings of a transactional producer that appear in messages to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionSettings {
    id: String,
    timeout: Duration,
    /// The command's flag for shorter transactions.
    sooner: &'static str,
}

impl TransactionSettings {
    /// Returns the settings of a producer, or `None` without a transactional id. `sooner` is the command's flag for
    /// shorter transactions.
    pub fn of(config: &ProducerConfig, sooner: &'static str) -> Option<Self> {
        let id = config.transactional_id.clone()?;
        Some(TransactionSettings { id, timeout: config.transaction_timeout, sooner })
    }

    /// Returns the value of transaction.timeout.ms.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the explanation of an error. If there is none, returns the error's text.
    pub fn cause(&self, error: &TransactionError, open_for: Duration) -> String {
        self.explanation(error, open_for).unwrap_or_else(|| error.to_string())
    }

    /// Returns the cause of an error in plain words, or `None` if the error's text is clear enough. `open_for` is the
    /// time since the transaction began, or 0 if none could begin.
    ///
    /// A coordinator returns the same codes if a transaction has timed out and if the producer is fenced. `open_for`
    /// shows which of the two has happened.
    pub fn explanation(&self, error: &TransactionError, open_for: Duration) -> Option<String> {
        let (id, timeout_ms) = (&self.id, self.timeout.as_millis());
        match code(error)? {
            ErrorCode::INVALID_TRANSACTION_TIMEOUT => Some(format!(
                "transaction.timeout.ms={timeout_ms}: must be above 0 and at most the broker's \
                 transaction.max.timeout.ms, which `fullbore configs describe --entity-type brokers --all` shows"
            )),
            ErrorCode::PRODUCER_FENCED | ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::INVALID_TXN_STATE
                if open_for >= self.timeout && !error.may_have_been_written() =>
            {
                let (seconds, sooner) = (open_for.as_secs_f64(), self.sooner);
                Some(format!(
                    "the transaction was open for {seconds:.1} s, longer than transaction.timeout.ms={timeout_ms} \
                     allows; commit sooner with {sooner}, or raise the timeout"
                ))
            }
            ErrorCode::PRODUCER_FENCED | ErrorCode::INVALID_PRODUCER_EPOCH => Some(format!(
                "another producer has started with transactional id '{id}', or `fullbore transactions` has fenced \
                 this producer; give each producer its own id"
            )),
            _ => None,
        }
    }
}

/// Returns the broker's error code behind a failure, if there is one.
fn code(error: &TransactionError) -> Option<ErrorCode> {
    match error {
        TransactionError::Coordinator { code, .. } | TransactionError::Record(ProduceError::Broker { code, .. }) => {
            Some(*code)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> TransactionSettings {
        let timeout = Duration::from_millis(2000);
        TransactionSettings { id: "import".to_owned(), timeout, sooner: "--transaction-records" }
    }

    fn refused(code: ErrorCode, possibly_committed: bool) -> TransactionError {
        TransactionError::Coordinator {
            action: "commit the transaction",
            code,
            message: String::new(),
            possibly_committed,
        }
    }

    #[test]
    fn two_ids_by_flag_and_property_are_refused() {
        let check = |flag, properties: &[&str]| {
            let property = |id: &&str| (TRANSACTIONAL_ID.to_owned(), (*id).to_owned());
            let properties: Vec<_> = properties.iter().map(property).collect();
            check_ids(flag, &properties).map_err(|failure| (failure.status, failure.to_string()))
        };
        for (flag, properties) in [(Some("a"), &[][..]), (None, &["b"]), (Some("b"), &["a", "b"])] {
            assert_eq!(check(flag, properties), Ok(()));
        }
        let (status, refusal) = check(Some("a"), &["b"]).expect_err("two ids");
        assert_eq!(status, 2);
        assert!(refusal.contains("--transactional-id a and the property transactional.id=b"), "{refusal}");
    }

    #[test]
    fn a_count_that_is_not_above_zero_is_refused_without_a_bound_of_twenty_digits() {
        assert_eq!(record_count("1"), Ok(1));
        for text in ["0", "-3", "x", "18446744073709551616"] {
            assert_eq!(record_count(text), Err("must be a whole number, 1 or more".to_owned()));
        }
    }

    #[test]
    fn a_transaction_open_for_too_long_has_the_timeout_as_its_cause() {
        let record = ProduceError::Broker {
            code: ErrorCode::INVALID_PRODUCER_EPOCH,
            message: String::new(),
            possibly_written: false,
        };
        for error in [
            TransactionError::Record(record),
            refused(ErrorCode::INVALID_TXN_STATE, false),
            refused(ErrorCode::PRODUCER_FENCED, false),
        ] {
            let cause = settings().cause(&error, Duration::from_secs(16));
            assert!(
                cause
                    .starts_with("the transaction was open for 16.0 s, longer than transaction.timeout.ms=2000 allows"),
                "{cause}"
            );
            assert!(cause.contains("--transaction-records"), "{cause}");
        }
    }

    #[test]
    fn a_producer_fenced_in_time_has_another_producer_as_its_cause() {
        for code in [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_EPOCH] {
            let cause = settings().cause(&refused(code, false), Duration::from_secs(1));
            assert!(cause.starts_with("another producer has started with transactional id 'import'"), "{cause}");
        }
    }

    #[test]
    fn an_error_without_known_cause_is_unchanged() {
        for (error, open_for) in [
            (refused(ErrorCode::INVALID_TXN_STATE, false), 1),
            (refused(ErrorCode::INVALID_TXN_STATE, true), 16),
            (refused(ErrorCode::UNKNOWN_SERVER_ERROR, false), 16),
            (TransactionError::Closed { possibly_committed: false }, 16),
        ] {
            assert_eq!(settings().cause(&error, Duration::from_secs(open_for)), error.to_string());
        }
    }

    #[test]
    fn a_timeout_out_of_range_names_both_settings() {
        let cause = settings().cause(&refused(ErrorCode::INVALID_TRANSACTION_TIMEOUT, false), Duration::ZERO);
        assert!(cause.starts_with("transaction.timeout.ms=2000: must be above 0"), "{cause}");
        assert!(cause.contains("transaction.max.timeout.ms"), "{cause}");
    }
}
