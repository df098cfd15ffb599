//! The records of transactional ids in `__transaction_state`, as Kafka writes them.

use crate::coordinator::KeyValue;
use bytes::Bytes;
use fullbore_rules::transaction::{
    NO_PRODUCER_EPOCH, TopicPartition, TransactionMetadata, TransactionState, TransactionVersion, shifted_time,
};
use fullbore_wire::coordinator::{PartitionsSchema, TransactionLogKey, TransactionLogRecord, TransactionLogValue};
use fullbore_wire::{DecodeError, EncodeError, Text};

/// A record in `__transaction_state`.
#[derive(Debug, PartialEq)]
pub(super) enum IdRecord {
    /// The state of an id. `None` if the id was removed.
    Id(Text, Option<TransactionMetadata>),
    /// A record or a state that this version does not know.
    Other,
}

/// Returns the record of an id's state, or its tombstone if `state` is `None`. The times in the record are those of the
/// system's clock, which is `ahead_ms` ahead of the coordinator's clock.
///
/// # Errors
/// Returns an error if a name is longer than a record allows.
pub(super) fn encode(
    id: &str,
    state: Option<&TransactionMetadata>,
    ahead_ms: i64,
    server_version: TransactionVersion,
) -> Result<KeyValue, EncodeError> {
    let key = TransactionLogKey { transactional_id: Text::from(id), ..Default::default() };
    let version = TransactionLogValue::version_at(server_version.level());
    TransactionLogRecord::Transaction(key, state.map(|state| value(state, ahead_ms))).encode(version)
}

/// Reads a record. The times in the result are those of the system's clock. The result shares no memory with `key` and
/// `value`.
///
/// # Errors
/// Returns an error if the bytes are not a record of Kafka.
pub(super) fn decode(key: Bytes, value: Option<Bytes>) -> Result<IdRecord, DecodeError> {
    let TransactionLogRecord::Transaction(key, value) = TransactionLogRecord::decode(key, value)? else {
        return Ok(IdRecord::Other);
    };
    let id = Text::from(key.transactional_id.as_str());
    let Some(value) = value else { return Ok(IdRecord::Id(id, None)) };
    Ok(metadata(value).map_or(IdRecord::Other, |state| IdRecord::Id(id, Some(state))))
}

fn value(state: &TransactionMetadata, ahead_ms: i64) -> TransactionLogValue {
    let topics = TopicPartition::by_topic(state.partitions.iter().cloned()).into_iter();
    let topics = topics.map(|(topic, partition_ids)| PartitionsSchema { topic, partition_ids, ..Default::default() });
    TransactionLogValue {
        producer_id: state.producer_id,
        previous_producer_id: state.previous_producer_id,
        next_producer_id: state.next_producer_id,
        producer_epoch: state.producer_epoch,
        transaction_timeout_ms: state.timeout_ms,
        transaction_status: state.state.id(),
        transaction_partitions: (state.state != TransactionState::Empty).then(|| topics.collect()),
        transaction_last_update_timestamp_ms: shifted_time(state.last_update_ms, ahead_ms),
        transaction_start_timestamp_ms: shifted_time(state.start_ms, ahead_ms),
        client_transaction_version: state.client_version.level(),
        ..Default::default()
    }
}

/// Returns the state, or `None` if this version does not know it.
fn metadata(value: TransactionLogValue) -> Option<TransactionMetadata> {
    let mut partitions = std::collections::BTreeSet::new();
    for topic in value.transaction_partitions.unwrap_or_default() {
        partitions.extend(TopicPartition::each_of(&Text::from(topic.topic.as_str()), &topic.partition_ids));
    }
    Some(TransactionMetadata {
        producer_id: value.producer_id,
        previous_producer_id: value.previous_producer_id,
        next_producer_id: value.next_producer_id,
        producer_epoch: value.producer_epoch,
        last_producer_epoch: NO_PRODUCER_EPOCH,
        timeout_ms: value.transaction_timeout_ms,
        state: TransactionState::from_id(value.transaction_status)?,
        partitions,
        start_ms: value.transaction_start_timestamp_ms,
        last_update_ms: value.transaction_last_update_timestamp_ms,
        client_version: TransactionVersion::from_level(value.client_transaction_version)?,
    })
}
