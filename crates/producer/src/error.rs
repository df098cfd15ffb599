//! Errors of the producer. Each answers two questions: may another attempt succeed, and may the record have been
//! written?

mod transaction;

pub(crate) use transaction::NO_TRANSACTIONAL_ID;
pub use transaction::TransactionError;

use fullbore_wire::ErrorCode;
use std::time::Duration;

/// The reason why a record was refused. A refused record was certainly not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no memory for the record (buffer.memory, or the partition's share of it). Only `try_send` returns this
    /// error, since `send` waits for memory.
    #[error("buffer.memory is full")]
    Full,
    /// The topic is not known yet. Only `try_send` returns this error, since `send` waits for metadata.
    #[error("the topic's metadata is not known yet")]
    NoMetadata,
    /// The call waited for max.block.ms without success.
    #[error("no {what} in {} (max.block.ms){}", shown(*waited), because(why))]
    Timeout {
        /// The resource that was missing.
        what: &'static str,
        /// How long the call waited.
        waited: Duration,
        /// The reason for the wait, or empty.
        why: String,
    },
    /// The record alone is larger than the largest request or batch.
    #[error("the record takes {size} bytes with the header of its batch, more than max.request.size={max}")]
    RecordTooLarge {
        /// The size of a batch with only this record, in bytes.
        size: usize,
        /// max.request.size.
        max: usize,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has no partition {partition}")]
    NoPartition {
        /// The topic.
        topic: String,
        /// The requested partition.
        partition: i32,
    },
    /// The metadata has an error for the topic that no retry can repair, such as a missing authorization.
    #[error("topic {topic}: {}", answer(*code, ""))]
    Topic {
        /// The topic.
        topic: String,
        /// The broker's error.
        code: ErrorCode,
    },
    /// The producer has a transactional.id, but the record was sent outside of a transaction.
    #[error("a producer with a transactional.id takes records only within a transaction")]
    NoTransaction,
    /// The transaction has failed and can only be aborted.
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
    /// Returns true if the same record may be accepted later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::NoMetadata | Self::Timeout { .. })
    }

    /// Returns false, because a refused record was not sent.
    pub fn may_have_been_written(&self) -> bool {
        false
    }
}

/// The reason why an accepted record was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The broker refused the record's batch.
    #[error("the broker answered {}", answer(*code, message))]
    Broker {
        /// The error code of the response.
        code: ErrorCode,
        /// The broker's message, or empty.
        message: String,
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
    /// delivery.timeout.ms passed, or there were no retries left.
    #[error("not acknowledged in {}: {last}", shown(*waited))]
    Timeout {
        /// The time since `send`.
        waited: Duration,
        /// The last error of the batch, or the reason why its partition could not send it.
        last: String,
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
    /// The response was lost, and the broker can no longer recognise a retry of the batch. The batch may or may not be
    /// in the log.
    #[error(
        "the response was lost, and the broker no longer knows the batch's sequence number, so the record may or may \
         not be written: {0}"
    )]
    Unresolved(ErrorCode),
    /// The record's transaction was aborted before the record was acknowledged. Readers with read_committed never see
    /// the record.
    #[error("the transaction of the record was aborted")]
    Aborted {
        /// True if the record may be in the log, where only readers with read_uncommitted see it.
        possibly_written: bool,
    },
    /// The producer was closed before the record was acknowledged.
    #[error("the producer was closed before the record was acknowledged")]
    Closed {
        /// True if an attempt may have been written.
        possibly_written: bool,
    },
}

/// Returns a code with the broker's message, or with the meaning of the code if there is no message.
pub(crate) fn answer(code: ErrorCode, message: &str) -> String {
    format!("{code}: {}", if message.is_empty() { code.message() } else { message })
}

pub(crate) fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

/// Formats a duration for people, rounded.
pub(crate) fn shown(time: Duration) -> String {
    match time.as_millis() {
        ms @ ..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

impl ProduceError {
    /// Returns true if the application may succeed by sending the record again, as a new record. If
    /// [`ProduceError::may_have_been_written`] returns true, the log may then have the record twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Broker { code, .. } => code.is_retriable(),
            Self::Timeout { .. } | Self::Unresolved(_) | Self::Aborted { .. } => true,
            Self::Closed { .. } => false,
        }
    }

    /// Returns true if the record is in the log, or may still be written to it.
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
