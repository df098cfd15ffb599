//! A batch that may be appended, and the checks of its header.

use super::decompression::BATCH_BYTES_MAX;
use bytes::Bytes;
use fullbore_config::{TimestampType, TopicConfig};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::BatchView;
use std::fmt;

/// The reason why a batch's header is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBatch {
    /// The batch is larger than max.message.bytes.
    #[error("The batch of {size} bytes is larger than max.message.bytes={max}.")]
    TooLarge {
        /// The size of the batch.
        size: usize,
        /// The topic's limit.
        max: usize,
    },
    /// The batch is larger than segment.bytes.
    #[error("The batch is larger than a segment.")]
    LargerThanSegment,
    /// A timestamp is too far before or after the broker's clock.
    #[error("A timestamp is out of the allowed range.")]
    Timestamp,
    /// The header has values that a client's batch cannot have.
    #[error("The batch header is not valid.")]
    Header,
}

impl InvalidBatch {
    /// Returns Kafka's error code.
    pub fn code(self) -> ErrorCode {
        match self {
            InvalidBatch::TooLarge { .. } => ErrorCode::MESSAGE_TOO_LARGE,
            InvalidBatch::LargerThanSegment => ErrorCode::RECORD_LIST_TOO_LARGE,
            InvalidBatch::Timestamp => ErrorCode::INVALID_TIMESTAMP,
            InvalidBatch::Header => ErrorCode::INVALID_RECORD,
        }
    }
}

/// A batch that a leader may append. It can only be created by the checks in this module.
#[derive(Clone)]
pub struct ValidBatch<'a> {
    batch: ValidBytes<'a>,
    stamp: Stamp,
    /// True if a coordinator made the batch. Its producer then has no sequence numbers.
    is_unsequenced: bool,
}

#[derive(Clone)]
enum ValidBytes<'a> {
    /// The bytes as the client sent them.
    Sent(BatchView<'a>),
    /// Bytes that replace the client's bytes, or a copy of the client's bytes.
    Own(Bytes),
}

impl<'a> ValidBatch<'a> {
    /// Creates a valid batch after checking its header. The caller must be sure that the records and the checksum are
    /// correct, because they were checked before or this broker made the batch.
    ///
    /// # Errors
    /// Returns [`InvalidBatch`] if the size, a timestamp or a count in the header is wrong.
    pub fn of(batch: BatchView<'a>, config: &TopicConfig, now_ms: i64) -> Result<ValidBatch<'a>, InvalidBatch> {
        let stamp = check_header(&batch, config, now_ms)?;
        Ok(ValidBatch { batch: ValidBytes::Sent(batch), stamp, is_unsequenced: false })
    }

    /// Creates a valid batch with a group's offsets that belong to a transaction. Such a batch has a producer
    /// but no sequence number. Only a coordinator may create one, and a client's is refused.
    ///
    /// # Errors
    /// Returns [`InvalidBatch`] as [`ValidBatch::of`] does, and if the batch is of a different kind.
    pub fn of_offsets(batch: BatchView<'a>, config: &TopicConfig, now_ms: i64) -> Result<ValidBatch<'a>, InvalidBatch> {
        let is_of_offsets = batch.is_transactional() && batch.producer_id() >= 0 && batch.base_sequence() < 0;
        let mut valid = ValidBatch::of(batch, config, now_ms)?;
        valid.is_unsequenced = true;
        if is_of_offsets { Ok(valid) } else { Err(InvalidBatch::Header) }
    }

    /// Creates a valid batch from bytes that replace those of the client.
    pub(super) fn rewritten(bytes: Bytes, config: &TopicConfig, now_ms: i64) -> Result<ValidBatch<'a>, InvalidBatch> {
        let stamp = check_header(&view(&bytes), config, now_ms)?;
        Ok(ValidBatch { batch: ValidBytes::Own(bytes), stamp, is_unsequenced: false })
    }

    /// Returns a copy that does not borrow anything.
    pub fn to_owned(&self) -> ValidBatch<'static> {
        ValidBatch { batch: ValidBytes::Own(Bytes::copy_from_slice(self.view().bytes())), ..*self }
    }

    /// Returns the batch.
    pub fn view(&self) -> BatchView<'_> {
        match &self.batch {
            ValidBytes::Sent(batch) => *batch,
            ValidBytes::Own(bytes) => view(bytes),
        }
    }

    /// Returns the producer, its epoch and the sequence number.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Returns true if the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.view().is_transactional()
    }

    /// Returns true if the batch was made by [`ValidBatch::of_offsets`].
    pub fn is_unsequenced(&self) -> bool {
        self.is_unsequenced
    }

    /// Creates a valid batch without any check.
    #[cfg(any(test, feature = "test-util"))]
    pub fn unchecked(bytes: &'a [u8]) -> ValidBatch<'a> {
        let batch = BatchView::first(bytes).expect("a batch");
        let stamp = stamp_of(&batch).expect("a header of a client's");
        ValidBatch { batch: ValidBytes::Sent(batch), stamp, is_unsequenced: false }
    }

    /// Returns true if the batch is stored as it was sent.
    #[cfg(test)]
    pub(super) fn is_as_sent(&self) -> bool {
        matches!(self.batch, ValidBytes::Sent(_))
    }
}

impl fmt::Debug for ValidBatch<'_> {
    /// Shows no contents.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ValidBatch").field("stamp", &self.stamp).finish_non_exhaustive()
    }
}

fn view(bytes: &Bytes) -> BatchView<'_> {
    BatchView::first(bytes).expect("it is one whole batch, which was written or checked here")
}

/// Checks the size, the timestamps and the counts. Returns the stamp.
fn check_header(batch: &BatchView<'_>, config: &TopicConfig, now_ms: i64) -> Result<Stamp, InvalidBatch> {
    check_size(batch.size(), config)?;
    if batch.size() as u64 > config.segment_bytes {
        return Err(InvalidBatch::LargerThanSegment);
    }
    check_timestamps(batch, config, now_ms)?;
    stamp_of(batch)
}

/// Checks a batch's size. As in Kafka, this is done when the batch arrives, and again if it was compressed with another
/// codec.
pub(super) fn check_size(size: usize, config: &TopicConfig) -> Result<(), InvalidBatch> {
    let max = config.max_message_bytes.min(BATCH_BYTES_MAX);
    if size <= max { Ok(()) } else { Err(InvalidBatch::TooLarge { size, max }) }
}

/// Checks the first and the largest timestamp in the header. The timestamps of the records are checked together with
/// the records.
fn check_timestamps(batch: &BatchView<'_>, config: &TopicConfig, now_ms: i64) -> Result<(), InvalidBatch> {
    let is_allowed = |timestamp| {
        config.message_timestamp_type == TimestampType::LogAppendTime || config.allows_timestamp(timestamp, now_ms)
    };
    if is_allowed(batch.base_timestamp()) && is_allowed(batch.max_timestamp()) {
        Ok(())
    } else {
        Err(InvalidBatch::Timestamp)
    }
}

/// Returns the stamp from the header of the first batch in `bytes`; `None` if there is no batch. Nothing else is
/// checked.
pub fn claimed_stamp(bytes: &[u8]) -> Option<Stamp> {
    stamp_of(&BatchView::first(bytes).ok()?).ok()
}

fn stamp_of(batch: &BatchView<'_>) -> Result<Stamp, InvalidBatch> {
    let (producer_id, epoch, sequence) = (batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
    let stamp = Stamp::from_client(producer_id, epoch, sequence, batch.record_count(), batch.last_offset_delta());
    stamp.map_err(|_: SequenceRefusal| InvalidBatch::Header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties};

    #[test]
    fn batch_larger_than_the_cleaner_reads_is_refused_whatever_the_topic_allows() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let of = |max_message_bytes| TopicConfig { max_message_bytes, ..broker.topics.defaults.clone() };
        let checked = |size, max| check_size(size, &of(max));
        assert_eq!(checked(BATCH_BYTES_MAX, usize::MAX), Ok(()));
        let (size, max) = (BATCH_BYTES_MAX + 1, BATCH_BYTES_MAX);
        assert_eq!(checked(size, usize::MAX), Err(InvalidBatch::TooLarge { size, max }));
        assert_eq!(checked(101, 100), Err(InvalidBatch::TooLarge { size: 101, max: 100 }));
    }
}
