//! Errors of the producer. Each answers two questions: may another attempt succeed, and may the record have been
//! written?

mod transaction;

pub(crate) use transaction::NO_TRANSACTIONAL_ID;
pub use transaction::TransactionError;

use fullbore_wire::ErrorCode;
use std::time::Duration;

/// Reason why a record was refused; the record was certainly not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// buffer.memory is full. Only `try_send` returns this; `send` waits.
    #[error("buffer.memory is full")]
    Full,
    /// The topic is not known yet. Only `try_send` returns this; `send` waits.
    #[error("the topic's metadata is not known yet")]
    NoMetadata,
    /// max.block.ms passed.
    #[error("no {what} in {} (max.block.ms){}", shown(*waited), because(why))]
    Timeout {
        /// Missing resource.
        what: &'static str,
        /// Duration of the wait.
        waited: Duration,
        /// Obstacle, or empty.
        why: String,
    },
    /// The record does not fit the largest request or batch.
    #[error("the record takes {size} bytes with its batch's header, more than max.request.size={max}")]
    RecordTooLarge {
        /// Size of the record in a batch of its own.
        size: usize,
        /// max.request.size.
        max: usize,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has no partition {partition}")]
    NoPartition {
        /// The topic.
        topic: String,
        /// Requested partition.
        partition: i32,
    },
    /// The broker does not permit use of the topic.
    #[error("topic {topic}: {}", answer(*code, ""))]
    Topic {
        /// The topic.
        topic: String,
        /// Error of the topic.
        code: ErrorCode,
    },
    /// The producer has a transactional.id, and the record was sent outside of a transaction.
    #[error("a producer with a transactional.id takes records only within a transaction")]
    NoTransaction,
    /// The transaction can only be aborted.
    #[error("the transaction has failed: {0}")]
    TransactionFailed(
        /// The first failure of the transaction.
        String,
    ),
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
}

impl SendError {
    /// Returns true if the record may be accepted when it is sent again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::NoMetadata | Self::Timeout { .. })
    }

    /// Returns false, since a record that was refused was not sent.
    pub fn may_have_been_written(&self) -> bool {
        false
    }
}

/// Reason why an accepted record is not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The broker refused its batch.
    #[error("the broker answered {}", answer(*code, message))]
    Broker {
        /// Error code of the response.
        code: ErrorCode,
        /// Message of the broker, or empty.
        message: String,
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
    /// delivery.timeout.ms passed, or retries ran out.
    #[error("not acknowledged in {}: {last}", shown(*waited))]
    Timeout {
        /// Time since `send`.
        waited: Duration,
        /// Last error of the batch, or the obstacle of its partition.
        last: String,
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
    /// The response was lost, and the broker no longer knows the sequence: the batch may be in the log or not.
    #[error("the response was lost and the broker no longer knows the sequence: {0}")]
    Unresolved(ErrorCode),
    /// The record's transaction was aborted before the record was acknowledged. Readers with read_committed never see
    /// the record.
    #[error("the transaction of the record was aborted")]
    Aborted {
        /// True if an attempt may be in a log, as a record of the aborted transaction.
        possibly_written: bool,
    },
    /// The producer was closed before the record was acknowledged.
    #[error("the producer was closed before the record was acknowledged")]
    Closed {
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
}

/// Returns a code with the broker's message. Without a message, returns the code's meaning.
pub(crate) fn answer(code: ErrorCode, message: &str) -> String {
    format!("{code}: {}", if message.is_empty() { code.message() } else { message })
}

pub(crate) fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

/// Returns a time for people, rounded.
pub(crate) fn shown(time: Duration) -> String {
    match time.as_millis() {
        ms @ ..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

impl ProduceError {
    /// Returns true if the record may be written when it is sent again, as a new record. It may then be in the log
    /// twice if [`ProduceError::may_have_been_written`] returns true.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Broker { code, .. } => code.is_retriable(),
            Self::Timeout { .. } | Self::Unresolved(_) | Self::Aborted { .. } => true,
            Self::Closed { .. } => false,
        }
    }

    /// Returns true if the record may be in the log, or may still come into it.
    pub fn may_have_been_written(&self) -> bool {
        match self {
            Self::Broker { possibly_written, .. }
            | Self::Timeout { possibly_written, .. }
            | Self::Aborted { possibly_written }
            | Self::Closed { possibly_written } => *possibly_written,
            Self::Unresolved(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded() {
        assert_eq!(shown(Duration::from_micros(3_010_526)), "3.0 s");
        assert_eq!(shown(Duration::from_nanos(20_000_001)), "20 ms");
    }

    #[test]
    fn codes_are_explained_unless_the_broker_does() {
        let topic = SendError::Topic { topic: "a b".to_owned(), code: ErrorCode::INVALID_TOPIC_EXCEPTION };
        let sentence = "topic a b: INVALID_TOPIC_EXCEPTION: The topic name is not valid, or not allowed.";
        assert_eq!(topic.to_string(), sentence);
        assert_eq!(answer(ErrorCode::INVALID_RECORD, "no key"), "INVALID_RECORD: no key");
    }
}
