//! Validates a client's batch, and compresses it with the topic's codec if necessary.
//!
//! The log checks the batch's sequence number later. If the batch already has the right codec, it is decompressed chunk
//! by chunk, just for the check. With `fullbore.produce.validation=header` it is not decompressed at all, unless the
//! topic is compacted.
//!
//! Invariant: after a batch was decompressed or rewritten here, its records are readable, complete and in order, and
//! their timestamps are in the topic's range. No batch is larger than `max.message.bytes`.

use super::decompression::{Decompressing, Invalid, decompressed_max};
use super::destination::Destination;
use super::refused::{RefusedBatch, of_batch};
use super::valid::{ValidBatch, check_size};
use super::wrong_records;
use bytes::BytesMut;
use fullbore_config::{ProduceValidation, StoredAs, TimestampType, TopicConfig};
use fullbore_wire::batch::{
    BatchView, CheckedRecords, Compression, Timestamps, check_records, recompress, set_max_timestamp,
};
use fullbore_wire::{ErrorCode, Records};

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
/// Returns usize::MAX if the batch must be decompressed and compressed again. If the batch is only checked, the
/// estimate is based on its compressed size. `Decompressing` limits the work if the batch decompresses to much more.
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
        // A batch that is stored uncompressed must not exceed max.message.bytes, so there is no need to decompress more
        // than that.
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
        // The log writes the time of the append into the header later.
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

#[cfg(test)]
mod tests {
    use super::super::decompression::{Decompression, DecompressionBudget, LargeBatchPermit};
    use super::*;
    use bytes::Bytes;
    use fullbore_config::{BrokerConfig, CleanupPolicy, Properties};
    use fullbore_wire::batch::{BatchBuilder, Stamp, crc32c, decompress};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    const PRODUCER: Option<StoredAs> = None;

    const ANY: Sender = Sender { may_zstd: true, is_transactional: false };

    fn topic(compression: Option<StoredAs>, compact: bool) -> TopicConfig {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let cleanup = CleanupPolicy { delete: !compact, compact };
        TopicConfig { compression, cleanup, ..broker.topics.defaults.clone() }
    }

    fn to(config: &TopicConfig) -> Destination<'_> {
        Destination { topic: "t", partition: 3, config, now_ms: 1000 }
    }

    fn sent(bytes: &[u8]) -> Records {
        Records::Memory(Bytes::copy_from_slice(bytes))
    }

    fn stored_as(codec: Compression) -> Option<StoredAs> {
        Some(StoredAs { codec, level: None })
    }

    fn sealed(codec: Compression, keys: &[Option<&[u8]>], value: &[u8]) -> BytesMut {
        let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
        keys.iter().for_each(|key| builder.append(7, *key, Some(value), &[]));
        builder.seal(Stamp::NONE).expect("sealed").0
    }

    /// Returns the bytes to append, and true if they are the bytes that the client sent.
    fn validated(bytes: &[u8], topic: &TopicConfig) -> Result<(BytesMut, bool), RefusedBatch> {
        let records = sent(bytes);
        let decompression = Decompression::default();
        let permit = poll_once(decompression.permit()).expect("nobody else wants it");
        let mut outcome = in_budget(&records, topic, &decompression, None, DecompressionBudget::long());
        if matches!(outcome, Err(Invalid::Large)) {
            outcome = in_budget(&records, topic, &decompression, Some(&permit), DecompressionBudget::long());
        }
        match outcome {
            Ok(valid) => Ok((BytesMut::from(valid.view().bytes()), valid.is_as_sent())),
            Err(Invalid::Refused(why)) => Err(why),
            Err(Invalid::Large | Invalid::Long) => panic!("it has the permit, and no time limit"),
        }
    }

    fn in_budget<'r>(
        records: &'r Records,
        topic: &TopicConfig,
        decompression: &Decompression,
        permit: Option<&LargeBatchPermit<'_>>,
        mut budget: DecompressionBudget,
    ) -> Result<ValidBatch<'r>, Invalid> {
        validate(Some(records), ANY, to(topic), Decompressing { decompression, permit, budget: &mut budget })
    }

    fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_batch_is_rewritten_if_its_codec_is_not_its_topics() {
        for from in CODECS {
            let bytes = sealed(from, &[Some(b"a"), None], b"value");
            assert!(validated(&bytes, &topic(PRODUCER, false)).is_ok_and(|(kept, as_sent)| as_sent && kept == bytes));
            for to in CODECS {
                let Ok((kept, as_sent)) = validated(&bytes, &topic(stored_as(to), false)) else { panic!("refused") };
                assert_eq!(as_sent, from == to);
                let [sent, kept] = [&bytes, &kept].map(|bytes| {
                    let batch = BatchView::first(bytes).expect("a batch");
                    let codec = batch.compression().expect("a codec");
                    (codec, decompress(codec, batch.payload(), 1 << 20).expect("opens"))
                });
                assert_eq!((kept.0, kept.1), (to, sent.1));
            }
        }
    }

    #[test]
    fn each_record_without_a_key_is_reported_compressed_or_not() {
        for codec in CODECS {
            for stored in [PRODUCER, stored_as(Compression::Lz4)] {
                let compacted = topic(stored, true);
                assert!(validated(&sealed(codec, &[Some(b"a"), Some(b"")], b"v"), &compacted).is_ok());
                let keyless = sealed(codec, &[Some(b"a"), None, Some(b"b"), None], b"v");
                let why = validated(&keyless, &compacted).expect_err("refused");
                let reported: Vec<_> = why.records.iter().map(|record| record.batch_index).collect();
                assert_eq!((why.code, reported), (ErrorCode::INVALID_RECORD, vec![1, 3]));
                assert!(why.message.starts_with("2 of the batch's records have no key."), "{}", why.message);
            }
        }
        let many = sealed(Compression::Zstd, &[None; 5000], b"");
        assert_eq!(validated(&many, &topic(PRODUCER, true)).expect_err("refused").records.len(), 1000);
    }

    #[test]
    fn each_record_out_of_the_range_of_times_is_reported() {
        let hour_ms = 3_600_000;
        for codec in CODECS {
            let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
            for timestamp in [7, 1001 + hour_ms, -1, 1000 + hour_ms, 2000 + hour_ms] {
                builder.append(timestamp, None, None, &[]);
            }
            let bytes = builder.seal(Stamp::NONE).expect("sealed").0;
            let stored = if codec == Compression::None { PRODUCER } else { stored_as(Compression::None) };
            let why = validated(&bytes, &topic(stored, false)).expect_err("refused");
            let reported: Vec<_> = why.records.iter().map(|record| record.batch_index).collect();
            assert_eq!((why.code, reported), (ErrorCode::INVALID_TIMESTAMP, vec![1, 4]));
            let words = why.records[0].batch_index_error_message.as_deref().unwrap_or_default();
            assert!(words.starts_with("Timestamp 3601001 is out of range"), "{words}");
        }
    }

    #[test]
    fn a_few_bytes_that_claim_gigabytes_are_refused() {
        let bomb = sealed(Compression::Zstd, &[Some(&b"k"[..]); 66], &vec![0; 1 << 20]);
        for topic in [topic(PRODUCER, true), topic(stored_as(Compression::Lz4), false)] {
            assert_eq!(validated(&bomb, &topic).expect_err("refused").code, ErrorCode::MESSAGE_TOO_LARGE);
        }
    }

    #[test]
    fn a_batch_that_becomes_large_waits_for_its_permit_and_others_do_not() {
        let to_gzip = topic(stored_as(Compression::Gzip), false);
        let sealed = |mib| sealed(Compression::Zstd, &vec![Some(&b"k"[..]); mib], &vec![0; 1 << 20]);
        let (small, large) = (sealed(3), sealed(20));
        let (small, large) = (sent(&small), sent(&large));
        let decompression = Decompression::default();
        let validate =
            |records, permit| in_budget(records, &to_gzip, &decompression, permit, DecompressionBudget::long());
        assert!(validate(&small, None).is_ok());
        assert!(matches!(validate(&large, None), Err(Invalid::Large)));
        let permit = poll_once(decompression.permit()).expect("nobody has it");
        assert!(poll_once(decompression.permit()).is_none());
        assert!(validate(&large, Some(&permit)).is_ok());
        drop(permit);
        assert!(poll_once(decompression.permit()).is_some());
    }

    #[test]
    fn size_counts_as_it_is_stored() {
        let small = sealed(Compression::Gzip, &[None], &vec![0; 2 << 20]);
        let why = validated(&small, &topic(stored_as(Compression::None), false)).expect_err("refused");
        assert_eq!(why.code, ErrorCode::MESSAGE_TOO_LARGE);
        assert!(validated(&small, &topic(stored_as(Compression::Snappy), false)).is_ok());
    }

    #[test]
    fn work_counts_recompressed_and_checked_bytes() {
        let believing = TopicConfig { produce_validation: ProduceValidation::Header, ..topic(PRODUCER, false) };
        let kept = [topic(PRODUCER, false), topic(stored_as(Compression::Zstd), false), topic(PRODUCER, true)];
        let [zstd, gzip] = [Compression::Zstd, Compression::Gzip].map(|codec| sealed(codec, &[Some(b"a")], b"v"));
        let plain = sealed(Compression::None, &[Some(b"a")], &[0; 1000]);
        for topic in &kept {
            assert_eq!(work_of(&zstd, topic), zstd.len());
        }
        assert_eq!(work_of(&gzip, &kept[0]), gzip.len() * GUNZIP);
        assert_eq!(work_of(&zstd, &believing), 0);
        assert_eq!(work_of(&zstd, &topic(stored_as(Compression::None), false)), usize::MAX);
        assert_eq!(work_of(&plain, &topic(PRODUCER, true)), 0);
        assert_eq!(work_of(&plain, &kept[1]), plain.len());
        let slow = Some(StoredAs { codec: Compression::Zstd, level: Some(19) });
        assert_eq!(work_of(&plain, &topic(slow, false)), plain.len() * SLOW);
        assert_eq!(work_of(b"no batch", &kept[1]), 0);
    }

    /// Returns the batch with a changed record count in its header.
    fn counting(mut bytes: BytesMut, count: i32) -> BytesMut {
        bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        let crc = crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    #[test]
    fn a_count_that_the_records_do_not_bear_out_is_refused_unless_headers_are_believed() {
        let believing = TopicConfig { produce_validation: ProduceValidation::Header, ..topic(PRODUCER, false) };
        for codec in CODECS {
            let bytes = counting(sealed(codec, &[Some(b"a")], b"value"), i32::MAX);
            let why = validated(&bytes, &topic(PRODUCER, false)).expect_err("refused");
            assert_eq!(why.code, ErrorCode::INVALID_RECORD, "{codec:?}");
            assert_eq!(validated(&bytes, &believing).is_ok(), codec != Compression::None, "{codec:?}");
            let both = TopicConfig { produce_validation: ProduceValidation::Header, ..topic(PRODUCER, true) };
            assert!(validated(&bytes, &both).is_err(), "{codec:?} of a compacted topic");
        }
    }

    #[test]
    fn a_compressed_batch_with_a_wrong_largest_timestamp_gets_that_of_its_records() {
        for codec in CODECS {
            let mut bytes = sealed(codec, &[Some(b"a")], b"value");
            set_max_timestamp(&mut bytes, 900);
            let (kept, as_sent) =
                validated(&bytes, &topic(PRODUCER, false)).unwrap_or_else(|why| panic!("{}", why.message));
            let view = BatchView::first(&kept).expect("a batch");
            assert_eq!((view.max_timestamp(), as_sent, view.check_crc()), (7, false, Ok(())), "{codec:?}");
        }
    }

    #[test]
    fn a_batch_past_the_budget_of_a_serving_thread_is_long_and_so_is_each_later_one() {
        let topic = topic(PRODUCER, false);
        let sealed = |kib| sealed(Compression::Lz4, &vec![Some(&b"k"[..]); kib], &vec![0; 1 << 10]);
        let (small, large) = (sealed(200), sealed(600));
        let (small, large) = (sent(&small), sent(&large));
        let decompression = Decompression::default();
        let mut budget = DecompressionBudget::short();
        let mut validate = |records| {
            let decompressing = Decompressing { decompression: &decompression, permit: None, budget: &mut budget };
            validate(Some(records), ANY, to(&topic), decompressing).map(|_| ())
        };
        assert!(validate(&small).is_ok() && validate(&small).is_ok());
        assert!(matches!(validate(&small), Err(Invalid::Long)), "the third in one request");
        assert!(matches!(validate(&large), Err(Invalid::Long)));
        assert!(in_budget(&large, &topic, &decompression, None, DecompressionBudget::long()).is_ok());
    }
}
