//! Validates a client's batch, and compresses it with the topic's codec if necessary. Only this file makes a
//! [`ValidBatch`]. The log checks the batch's sequence number later.
//!
//! If a batch already has the topic's codec, it is decompressed chunk by chunk, just for the check. With
//! `fullbore.produce.validation=header` such a batch is not decompressed at all, unless the topic is compacted.
//!
//! Invariant: after a batch was decompressed or rewritten here, its records are readable, complete and in order, and
//! their timestamps are in the topic's range. No batch is larger than `max.message.bytes`.

use super::decompression::{BATCH_BYTES_MAX, Decompressing, Invalid, decompressed_max};
use super::destination::Destination;
use super::refused::{RefusedBatch, of_batch};
use super::wrong_records;
use bytes::{Bytes, BytesMut};
use fullbore_config::{ProduceValidation, StoredAs, TimestampType, TopicConfig};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::batch::{
    BatchView, CheckedRecords, Compression, Timestamps, check_records, recompress, set_max_timestamp,
};
use fullbore_wire::{ErrorCode, Records};
use std::fmt;

/// How many bytes a worker may compress before it serves its connections again. With a fast codec this takes less than
/// a millisecond.
pub const SHORT_MAX: usize = 128 << 10;
/// Compressing a byte with gzip takes as long as this many bytes with a fast codec.
const GZIP: usize = 8;
/// Compressing a byte with a slow level of any codec takes as long as this many bytes with a fast codec.
const SLOW: usize = 64;
/// Decompressing a byte of gzip takes as long as this many bytes with a fast codec.
const GUNZIP: usize = 3;

/// Estimates the work to validate a batch, as the number of bytes that a fast codec compresses in the same time.
/// Returns usize::MAX if the batch must be decompressed and compressed again. If the batch is only decompressed for the
/// check, the estimate is based on its compressed size. Should it decompress to much more, `Decompressing` limits the
/// work.
pub fn work_of(bytes: &[u8], config: &TopicConfig) -> usize {
    let Ok(batch) = BatchView::first(bytes) else { return 0 };
    let Ok(codec) = batch.compression() else { return 0 };
    let a_byte = match (codec, target(codec, config)) {
        (Compression::None, None) => 0,
        (Compression::None, Some(StoredAs { codec, level })) => match (codec, level) {
            (Compression::None | Compression::Snappy, _) | (Compression::Lz4, None | Some(9)) => 1,
            (Compression::Zstd, level) if level.is_none_or(|level| level <= 3) => 1,
            (Compression::Gzip, level) if level.is_none_or(|level| level <= 6) => GZIP,
            _ => SLOW,
        },
        (_, None) if believes_header(config) => 0,
        (Compression::Gzip, None) => GUNZIP,
        (_, None) => 1,
        _ => return usize::MAX,
    };
    bytes.len().saturating_mul(a_byte)
}

/// Facts about the request that are needed to validate its batches.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// True if the version of the request allows zstd (KIP-110).
    pub may_zstd: bool,
    /// True if the request has a transactional id.
    pub is_transactional: bool,
}

/// Checks the records that a client sent for a partition, and returns the batch to append.
///
/// # Errors
/// Returns [`Invalid`] if the batch is refused or must first wait for a permit. Nothing has changed in either case.
pub fn validate<'r>(
    records: Option<&'r Records>,
    from: Sender,
    to: Destination<'_>,
    mut decompressing: Decompressing<'_>,
) -> Result<ValidBatch<'r>, Invalid> {
    let batch = one_batch(records, from, to.config)?;
    let codec = batch.compression().map_err(of_batch)?;
    let target = target(codec, to.config);
    if codec == Compression::None {
        return Ok(of_records(batch, batch.payload(), target, to)?);
    }
    if target.is_none() {
        if believes_header(to.config) {
            return Ok(ValidBatch::of(batch, to.config, to.now_ms)?);
        }
        let checked = decompressing.check(&batch, codec, decompressed_max(to.config))?;
        // If records are wrong, decompress the whole batch, so that each of them can be reported.
        if let Some(checked) = checked.filter(|checked| !has_wrong_record(checked, to)) {
            return Ok(as_sent(batch, latest(&batch, &checked, to.config), to)?);
        }
    }
    let most = match target {
        // If the batch will be stored uncompressed, its records must not exceed max.message.bytes. Stop decompressing
        // there.
        Some(StoredAs { codec: Compression::None, .. }) => decompressed_max(to.config).min(to.config.max_message_bytes),
        _ => decompressed_max(to.config),
    };
    let records = decompressing.decompress(&batch, codec, most)?;
    Ok(of_records(batch, &records, target, to)?)
}

/// Returns true if batches that already have the topic's codec are not decompressed.
fn believes_header(config: &TopicConfig) -> bool {
    config.produce_validation == ProduceValidation::Header && !config.cleanup.compact
}

/// Returns the batch in a partition's records. There must be exactly one, and it must be of a kind that clients may
/// send. Its records are not checked yet.
fn one_batch<'r>(
    records: Option<&'r Records>,
    from: Sender,
    config: &TopicConfig,
) -> Result<BatchView<'r>, RefusedBatch> {
    let invalid = |message| RefusedBatch::new(ErrorCode::INVALID_RECORD, message);
    let none = || invalid("A partition's records must be one batch.");
    let bytes = records.ok_or_else(none)?.memory().ok_or(ErrorCode::INVALID_RECORD)?;
    if bytes.is_empty() {
        return Err(none());
    }
    let batch = BatchView::first(bytes).map_err(of_batch)?;
    if batch.size() != bytes.len() {
        return Err(invalid("A partition's records must be exactly one batch."));
    }
    check_size(batch.size(), config)?;
    batch.check_crc().map_err(of_batch)?;
    if batch.is_control() {
        return Err(invalid("Clients may not write control batches."));
    }
    if batch.is_transactional() && !from.is_transactional {
        let message = "A transactional batch needs a request that names the transactional id.";
        return Err(RefusedBatch::new(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message));
    }
    if batch.compression().map_err(of_batch)? == Compression::Zstd && !from.may_zstd {
        return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
    }
    check_counts(batch)?;
    Ok(batch)
}

/// Checks that the counts, the offset delta and the sequence number are consistent.
fn check_counts(batch: BatchView<'_>) -> Result<(), RefusedBatch> {
    let invalid = |message: &'static str| Err(RefusedBatch::new(ErrorCode::INVALID_RECORD, message));
    let count = batch.record_count();
    if count <= 0 || batch.last_offset_delta() != count - 1 {
        return invalid("The record count and the last offset delta of the batch do not agree.");
    }
    if batch.is_transactional() && batch.producer_id() < 0 {
        return invalid("A transactional batch needs a producer id.");
    }
    if batch.producer_id() >= 0 && (batch.producer_epoch() < 0 || batch.base_sequence() < 0) {
        return invalid("An idempotent batch needs a producer epoch and a sequence number.");
    }
    Ok(())
}

/// Returns the topic's codec if a batch with `codec` must be stored with another one; `None` otherwise.
fn target(codec: Compression, config: &TopicConfig) -> Option<StoredAs> {
    config.compression.filter(|stored| stored.codec != codec)
}

/// Validates a batch like [`validate`]. `records` are its decompressed records.
fn of_records<'r>(
    batch: BatchView<'r>,
    records: &[u8],
    target: Option<StoredAs>,
    to: Destination<'_>,
) -> Result<ValidBatch<'r>, RefusedBatch> {
    let config = to.config;
    let checked = check_records(&batch, records).map_err(of_batch)?;
    if config.cleanup.compact && checked.has_null_key {
        wrong_records::check_keys(&batch, records, to)?;
    }
    if has_wrong_record(&checked, to) {
        wrong_records::check_timestamps(&batch, records, to)?;
    }
    let max_timestamp = latest(&batch, &checked, config);
    let Some(StoredAs { codec, level }) = target else { return as_sent(batch, max_timestamp, to) };
    let bytes = recompress(&batch, records, max_timestamp, codec, level).map_err(of_batch)?;
    Ok(ValidBatch::rewritten(bytes.freeze(), config, to.now_ms)?)
}

/// Returns true if a record has no key although the topic requires it, or if its timestamp is outside the topic's
/// range.
fn has_wrong_record(checked: &CheckedRecords, to: Destination<'_>) -> bool {
    let Timestamps { earliest, latest } = checked.timestamps;
    let is_wrong = |timestamp| !to.config.allows_timestamp(timestamp, to.now_ms);
    let is_producers = to.config.message_timestamp_type == TimestampType::CreateTime;
    to.config.cleanup.compact && checked.has_null_key || is_producers && (is_wrong(earliest) || is_wrong(latest))
}

/// Returns the largest timestamp, which the header should have.
fn latest(batch: &BatchView<'_>, checked: &CheckedRecords, config: &TopicConfig) -> i64 {
    match config.message_timestamp_type {
        // The header's value does not matter, because the log will replace it by the time of the append.
        TimestampType::LogAppendTime => batch.max_timestamp(),
        TimestampType::CreateTime => checked.timestamps.latest,
    }
}

/// Returns the batch as it was sent. Only a wrong largest timestamp is corrected, because retention and lookups by time
/// rely on it.
fn as_sent<'r>(batch: BatchView<'r>, max_timestamp: i64, to: Destination<'_>) -> Result<ValidBatch<'r>, RefusedBatch> {
    if max_timestamp == batch.max_timestamp() {
        return Ok(ValidBatch::of(batch, to.config, to.now_ms)?);
    }
    let mut bytes = BytesMut::from(batch.bytes());
    set_max_timestamp(&mut bytes, max_timestamp);
    Ok(ValidBatch::rewritten(bytes.freeze(), to.config, to.now_ms)?)
}

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

/// A batch that a leader may append. It can only be created by the checks in this file.
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
    /// Owned bytes: a batch that was rewritten or copied.
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
    fn rewritten(bytes: Bytes, config: &TopicConfig, now_ms: i64) -> Result<ValidBatch<'a>, InvalidBatch> {
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
    fn is_as_sent(&self) -> bool {
        matches!(self.batch, ValidBytes::Sent(_))
    }
}

impl fmt::Debug for ValidBatch<'_> {
    /// Shows the stamp, but not the bytes of the batch.
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
fn check_size(size: usize, config: &TopicConfig) -> Result<(), InvalidBatch> {
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
mod tests;
