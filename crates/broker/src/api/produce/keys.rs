//! Records of a compacted topic must have keys (Kafka's `LogValidator`).
//!
//! Compressed batches are opened for that, and what they hold is checked as that of others is: what the cleaner could
//! not read later must not get in. Invariant: a batch opens to no more than a limit, whatever it claims.

use super::{Refused, of_batch};
use crate::classic::OPENED_MAX;
use crate::config::TopicConfig;
use fullbore_wire::apis::produce::BatchIndexAndErrorMessage;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RawRecords, decompress};
use fullbore_wire::{ErrorCode, Text};

/// What any batch may take when it is opened, in bytes.
const OPENED_LEAST: usize = 64 << 20;
/// Records without a key that are told one by one.
const TOLD_MAX: usize = 1000;

/// Refuses a batch with a record that has no key; `partition` names it in the message.
pub fn check(batch: &BatchView<'_>, config: &TopicConfig, topic: &str, partition: i32) -> Result<(), Refused> {
    let opened;
    let payload = match batch.compression().map_err(of_batch)? {
        Compression::None => batch.payload(),
        codec => {
            let most = config.max_message_bytes.saturating_mul(2).clamp(OPENED_LEAST, OPENED_MAX);
            opened = decompress(codec, batch.payload(), most).map_err(of_opening)?;
            &opened[..]
        }
    };
    let message =
        || format!("Compacted topic cannot accept message without key in topic partition {topic}-{partition}.");
    let (mut count, mut told) = (0, Vec::new());
    for record in RawRecords::new(batch, payload) {
        let record = record.map_err(of_batch)?;
        if record.key.is_some() {
            continue;
        }
        count += 1;
        if told.len() < TOLD_MAX {
            let batch_index_error_message = Some(Text::from(message()));
            told.push(BatchIndexAndErrorMessage {
                batch_index: record.offset_delta,
                batch_index_error_message,
                ..Default::default()
            });
        }
    }
    if count == 0 {
        return Ok(());
    }
    let why = format!("{count} of the batch's records have no key. {}", message());
    Err(Refused { records: told, ..Refused::new(ErrorCode::INVALID_RECORD, why) })
}

fn of_opening(error: BatchError) -> Refused {
    match error {
        BatchError::TooLarge(_) => Refused::new(ErrorCode::MESSAGE_TOO_LARGE, error.to_string()),
        error => of_batch(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BrokerConfig, Properties};
    use bytes::BytesMut;
    use fullbore_wire::batch::{BatchBuilder, Stamp};

    fn refused(codec: Compression, keys: &[Option<&[u8]>], value: &[u8]) -> Option<Refused> {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
        keys.iter().for_each(|key| builder.append(0, *key, Some(value), &[]));
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        check(&BatchView::first(&bytes).expect("a batch"), &broker.topic_defaults, "t", 3).err()
    }

    #[test]
    fn each_record_without_a_key_is_told_compressed_or_not() {
        for codec in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            assert!(refused(codec, &[Some(b"a"), Some(b"")], b"v").is_none());
            let why = refused(codec, &[Some(b"a"), None, Some(b"b"), None], b"v").expect("refused");
            let told: Vec<_> = why.records.iter().map(|record| record.batch_index).collect();
            assert_eq!((why.code, told), (ErrorCode::INVALID_RECORD, vec![1, 3]));
            assert!(why.message.starts_with("2 of the batch's records have no key."), "{}", why.message);
        }
        let many = refused(Compression::Zstd, &[None; 5000], b"").expect("refused");
        assert_eq!(many.records.len(), TOLD_MAX);
    }

    #[test]
    fn a_few_bytes_that_claim_gigabytes_are_refused() {
        let why = refused(Compression::Zstd, &[Some(&b"k"[..]); 66], &vec![0; 1 << 20]).expect("refused");
        assert_eq!(why.code, ErrorCode::MESSAGE_TOO_LARGE);
    }
}
