//! Records of a compacted topic must have keys (Kafka's `LogValidator`).

use super::validate::Destination;
use super::{Refused, of_batch};
use fullbore_wire::apis::produce::BatchIndexAndErrorMessage;
use fullbore_wire::batch::{BatchView, RawRecords};
use fullbore_wire::{ErrorCode, Text};

/// Records without a key that are told one by one.
const TOLD_MAX: usize = 1000;

/// Refuses a batch with a record that has no key; `payload` is its records without compression.
pub fn check(batch: &BatchView<'_>, payload: &[u8], to: Destination<'_>) -> Result<(), Refused> {
    let (topic, partition) = (&to.topic.name, to.partition);
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
