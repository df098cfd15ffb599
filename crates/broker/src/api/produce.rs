//! Produce 3-14 (0-2 are advertised for librdkafka's sake, KAFKA-18659, and not served).
//!
//! Admission appends: when `admit` returns, the batches have their offsets, and the order is fixed. What may come
//! later is only the fsync a topic asks for. Invariant: an acknowledged batch is in the log exactly once.

use super::topics;
use super::{Completion, Fault, Reply};
use crate::broker::Shared;
use crate::classic::{Appended, FlushTicket};
use crate::config::{TimestampType, TopicConfig};
use crate::control::{Image, Topic};
use crate::metrics::Metrics;
use fullbore_wire::apis::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use fullbore_wire::batch::{BatchError, BatchView, Compression, Timestamps, check_records, set_max_timestamp};
use fullbore_wire::{ErrorCode, Records, Text};
use std::sync::Arc;

/// The first Produce version that may carry zstd (KIP-110).
const ZSTD_FROM: i16 = 7;
const ALL: i16 = -1;
/// What Produce 14 says of a topic whose settings are not known.
const NOT_SAID: i32 = -1;

/// Why a partition's batch was not taken.
struct Refused {
    code: ErrorCode,
    message: String,
}

impl Refused {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Refused { code, message: message.into() }
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Refused::new(code, code.message())
    }
}

/// Checks and appends every batch. `None` with acks=0.
///
/// # Errors
/// With acks=0, when anything failed: closing the connection is the only way to tell.
pub fn admit(broker: &Shared, request: ProduceRequest, reply: Reply) -> Result<Option<Completion>, Fault> {
    let mut appending = Appending {
        broker,
        image: broker.control.image(),
        version: reply.version.number,
        acks: request.acks,
        transactional: request.transactional_id.is_some(),
        tickets: Vec::new(),
        failed: ErrorCode::NONE,
    };
    let max_idempotence_batches_to_retain = appending.image.batches_to_retain();
    let topics = request.topic_data.into_iter().enumerate();
    let responses = topics.map(|(at, topic)| appending.topic(at, topic)).collect();
    let response = ProduceResponse { responses, max_idempotence_batches_to_retain, ..Default::default() };
    let Appending { tickets, failed, .. } = appending;
    if request.acks == 0 {
        return if failed.is_err() { Err(Fault::Unacknowledged(failed)) } else { Ok(None) };
    }
    if tickets.is_empty() {
        return Ok(Some(Completion::Ready(reply.frame::<ProduceRequest>(&response)?)));
    }
    let metrics = broker.metrics.clone();
    Ok(Some(Completion::Later(Box::pin(after_flush(response, tickets, reply, metrics)))))
}

/// Where in the response a batch is whose fsync is still to come.
struct Unflushed {
    topic: usize,
    partition: usize,
    ticket: FlushTicket,
}

/// Waits for the group commits, then answers.
async fn after_flush(
    mut response: ProduceResponse,
    tickets: Vec<Unflushed>,
    reply: Reply,
    metrics: Metrics,
) -> Result<fullbore_wire::Frame, Fault> {
    for Unflushed { topic, partition, ticket } in tickets {
        if let Err(error) = ticket.wait().await {
            metrics.produce_failed(ErrorCode::KAFKA_STORAGE_ERROR);
            let at = &mut response.responses[topic].partition_responses[partition];
            *at = refused(at.index, Refused::new(ErrorCode::KAFKA_STORAGE_ERROR, error.to_string()));
        }
    }
    reply.frame::<ProduceRequest>(&response)
}

/// One request on its way through its partitions.
struct Appending<'a> {
    broker: &'a Shared,
    image: Arc<Image>,
    version: i16,
    acks: i16,
    transactional: bool,
    tickets: Vec<Unflushed>,
    /// The last error, for acks=0.
    failed: ErrorCode,
}

impl Appending<'_> {
    fn topic(&mut self, at: usize, data: TopicProduceData) -> TopicProduceResponse {
        let image = Arc::clone(&self.image);
        let found = topics::find(&image, &data.name, data.topic_id);
        // The least that any of its partitions had set: they learn of a change one after the other.
        let mut retained = found.map(|topic| topic.config.producer_state_batches_to_retain).ok();
        let mut partition_responses = Vec::with_capacity(data.partition_data.len());
        for partition in data.partition_data {
            let index = partition.index;
            let outcome = found.map_err(Refused::from).and_then(|topic| self.partition(topic, partition));
            partition_responses.push(match outcome {
                Ok(appended) => {
                    retained = retained.min(Some(appended.batches_retained));
                    self.appended(index, appended, (at, partition_responses.len()))
                }
                Err(why) => {
                    self.broker.metrics.produce_failed(why.code);
                    self.failed = why.code;
                    refused(index, why)
                }
            });
        }
        let retained = retained.and_then(|batches| i32::try_from(batches).ok());
        TopicProduceResponse {
            name: data.name,
            topic_id: data.topic_id,
            partition_responses,
            producer_state_batches_to_retain: retained.unwrap_or(NOT_SAID),
            ..Default::default()
        }
    }

    fn partition(&mut self, topic: &Topic, data: PartitionProduceData) -> Result<Appended, Refused> {
        if !matches!(self.acks, 0 | 1 | ALL) {
            return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
        }
        let partition = topics::partition(self.broker, topic, data.index)?;
        if self.acks == ALL && topic.config.min_insync_replicas > 1 {
            return Err(ErrorCode::NOT_ENOUGH_REPLICAS.into());
        }
        let records = data.records.unwrap_or_default();
        let batch = self.check_batch(&records, &topic.config)?;
        let now_ms = self.broker.now_ms();
        let corrected = check_records_of(&batch, &topic.config, now_ms)?;
        let batch = match &corrected {
            Some(bytes) => BatchView::first(bytes).map_err(of_batch)?,
            None => batch,
        };
        let appended =
            partition.append(batch, now_ms).map_err(|error| Refused::new(error.code(), error.to_string()))?;
        self.broker.metrics.appended(batch.size(), batch.record_count());
        Ok(appended)
    }

    /// The one batch of a partition's records, if it may be appended (Kafka's `ProduceRequest.validateRecords` and
    /// `LogValidator`).
    fn check_batch<'r>(&self, records: &'r Records, config: &TopicConfig) -> Result<BatchView<'r>, Refused> {
        let bytes = records.memory().ok_or(ErrorCode::INVALID_RECORD)?;
        if bytes.is_empty() {
            return Err(Refused::new(ErrorCode::INVALID_RECORD, "A partition's records must be one batch."));
        }
        let batch = BatchView::first(bytes).map_err(of_batch)?;
        if batch.size() != bytes.len() {
            return Err(Refused::new(ErrorCode::INVALID_RECORD, "A partition's records must be exactly one batch."));
        }
        if batch.size() > config.max_message_bytes {
            let (size, max) = (batch.size(), config.max_message_bytes);
            return Err(Refused::new(
                ErrorCode::MESSAGE_TOO_LARGE,
                format!("The batch of {size} bytes is larger than max.message.bytes={max}."),
            ));
        }
        batch.check_crc().map_err(of_batch)?;
        if batch.is_control() {
            return Err(Refused::new(ErrorCode::INVALID_RECORD, "Clients may not write control batches."));
        }
        if self.transactional || batch.is_transactional() {
            return Err(Refused::new(ErrorCode::INVALID_TXN_STATE, "Transactions are not served."));
        }
        let compression = batch.compression().map_err(of_batch)?;
        if compression == Compression::Zstd && self.version < ZSTD_FROM {
            return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE.into());
        }
        check_counts(batch)?;
        Ok(batch)
    }

    fn appended(&mut self, index: i32, appended: Appended, at: (usize, usize)) -> PartitionProduceResponse {
        if let Some(ticket) = appended.durable {
            self.tickets.push(Unflushed { topic: at.0, partition: at.1, ticket });
        }
        PartitionProduceResponse {
            index,
            base_offset: appended.base_offset,
            log_append_time_ms: appended.log_append_time_ms,
            log_start_offset: appended.log_start_offset,
            ..Default::default()
        }
    }
}

/// Counts, deltas and sequence must agree.
fn check_counts(batch: BatchView<'_>) -> Result<(), Refused> {
    let invalid = |message: &str| Err(Refused::new(ErrorCode::INVALID_RECORD, message));
    let count = batch.record_count();
    if count <= 0 || batch.last_offset_delta() != count - 1 {
        return invalid("The record count and the last offset delta of the batch do not agree.");
    }
    if batch.producer_id() >= 0 && (batch.producer_epoch() < 0 || batch.base_sequence() < 0) {
        return invalid("An idempotent batch needs a producer epoch and a sequence number.");
    }
    Ok(())
}

/// Walks records that are not compressed; those that are pass through unopened, and their header is believed. Each
/// record's timestamp must be in the topic's range. The corrected bytes where the header's max timestamp is not that
/// of the records: retention and lookups by time go by it, and Kafka corrects it, too.
fn check_records_of(batch: &BatchView<'_>, config: &TopicConfig, now_ms: i64) -> Result<Option<Vec<u8>>, Refused> {
    if batch.compression().map_err(of_batch)? != Compression::None {
        return Ok(None);
    }
    let Timestamps { earliest, latest } = check_records(batch).map_err(of_batch)?;
    if config.message_timestamp_type == TimestampType::LogAppendTime {
        return Ok(None);
    }
    if !(config.allows_timestamp(earliest, now_ms) && config.allows_timestamp(latest, now_ms)) {
        let message = format!("A record's timestamp is out of range: {earliest} to {latest}, it is {now_ms}.");
        return Err(Refused::new(ErrorCode::INVALID_TIMESTAMP, message));
    }
    Ok((latest != batch.max_timestamp()).then(|| {
        let mut bytes = batch.bytes().to_vec();
        set_max_timestamp(&mut bytes, latest);
        bytes
    }))
}

fn of_batch(error: BatchError) -> Refused {
    let code = match error {
        BatchError::Magic(0 | 1) => ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT,
        BatchError::Compression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        BatchError::Record(_) => ErrorCode::INVALID_RECORD,
        _ => ErrorCode::CORRUPT_MESSAGE,
    };
    Refused::new(code, error.to_string())
}

fn refused(index: i32, why: Refused) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: why.code,
        error_message: Some(Text::from(why.message)),
        ..Default::default()
    }
}
