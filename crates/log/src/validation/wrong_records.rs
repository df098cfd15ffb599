//! Reports each record that causes the refusal of its batch (KIP-467). Such a record lacks a key in a compacted topic,
//! or its timestamp is outside the topic's range.
//!
//! If the records of a batch cannot be read, none of them are reported. Invariant: the number of records in a response
//! is limited.

use super::destination::Destination;
use super::refused::{RefusedBatch, of_batch};
use fullbore_wire::apis::produce::BatchIndexAndErrorMessage;
use fullbore_wire::batch::{BatchView, RawRecord, RawRecords};
use fullbore_wire::{ErrorCode, Text};

/// Maximum number of records that are reported one by one, both for a batch and in a response.
pub const REPORTED_RECORDS_MAX: usize = 1000;

/// Refuses a batch if one of its records has no key. `payload` has the decompressed records.
pub fn check_keys(batch: &BatchView<'_>, payload: &[u8], to: Destination<'_>) -> Result<(), RefusedBatch> {
    let (topic, partition) = (to.topic, to.partition);
    let why = format!("Compacted topic cannot accept message without key in topic partition {topic}-{partition}.");
    let (count, records) = rejected(batch, payload, |record| record.key.is_none().then(|| why.clone()))?;
    if count == 0 {
        return Ok(());
    }
    let message = format!("{count} of the batch's records have no key. {why}");
    Err(RefusedBatch { records, ..RefusedBatch::new(ErrorCode::INVALID_RECORD, message) })
}

/// Refuses a batch if the timestamp of one of its records is outside the topic's range.
pub fn check_timestamps(batch: &BatchView<'_>, payload: &[u8], to: Destination<'_>) -> Result<(), RefusedBatch> {
    let (config, now_ms) = (to.config, to.now_ms);
    let (before, after) = (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms);
    let (first, last) = (now_ms.saturating_sub(before), now_ms.saturating_add(after));
    let (count, records) = rejected(batch, payload, |record| {
        let timestamp = record.timestamp(batch);
        let is_wrong = !config.allows_timestamp(timestamp, now_ms);
        is_wrong.then(|| format!("Timestamp {timestamp} is out of range: it should be within [{first}, {last}]."))
    })?;
    if count == 0 {
        return Ok(());
    }
    let message = format!("{count} of the batch's records have a timestamp out of the range [{first}, {last}].");
    Err(RefusedBatch { records, ..RefusedBatch::new(ErrorCode::INVALID_TIMESTAMP, message) })
}

/// Returns how many records `wrong` rejects, and its messages for at most [`REPORTED_RECORDS_MAX`] of them.
fn rejected(
    batch: &BatchView<'_>,
    payload: &[u8],
    wrong: impl Fn(&RawRecord<'_>) -> Option<String>,
) -> Result<(usize, Vec<BatchIndexAndErrorMessage>), RefusedBatch> {
    let (mut count, mut reported) = (0, Vec::new());
    for record in RawRecords::new(batch, payload) {
        let record = record.map_err(of_batch)?;
        let Some(message) = wrong(&record) else { continue };
        count += 1;
        if reported.len() < REPORTED_RECORDS_MAX {
            reported.push(BatchIndexAndErrorMessage {
                batch_index: record.offset_delta,
                batch_index_error_message: Some(Text::from(message)),
                ..Default::default()
            });
        }
    }
    Ok((count, reported))
}
