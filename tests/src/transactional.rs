//! Transactions of a raw client: its requests, a producer that counts sequences, and a reader of committed records.
//!
//! This is not a client library. There are no retries, and every response must be a success, except in functions named
//! `try_`. The reader follows Kafka's `CompletedFetch` and uses no code of the product's reader, so that it reveals
//! mistakes there.

use crate::{Batch, Client, FetchFrom, Record, fetch_request, produce_request};
use bytes::Bytes;
use fullbore_wire::apis::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, PartitionResponse, TopicRequest};
use fullbore_wire::apis::describe_transactions::{DescribeTransactionsRequest, TransactionState};
use fullbore_wire::apis::end_txn::{EndTxnRequest, EndTxnResponse};
use fullbore_wire::apis::fetch::{FetchRequest, PartitionData};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsTopic,
};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const FETCH: i16 = 12;
const LIST_OFFSETS: i16 = 9;
const READ_COMMITTED: i8 = 1;
/// How long the broker may take to complete the previous transaction.
const SOON: Duration = Duration::from_secs(60);

/// Error codes after which a client repeats its request.
pub const TRANSIENT: [ErrorCode; 4] = [
    ErrorCode::CONCURRENT_TRANSACTIONS,
    ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode::COORDINATOR_NOT_AVAILABLE,
    ErrorCode::NOT_COORDINATOR,
];

/// The transaction protocol that a client follows (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Transaction version 1. The client adds partitions itself, and the epoch stays the same.
    Old,
    /// Transaction version 2. Produce adds partitions, and the epoch increases at each end of a transaction.
    New,
}

impl Protocol {
    /// Both protocols.
    pub const BOTH: [Protocol; 2] = [Protocol::Old, Protocol::New];

    /// Returns the version of Produce that clients of this protocol send.
    pub fn produce(self) -> i16 {
        if self == Protocol::Old { 11 } else { 12 }
    }

    /// Returns the version of EndTxn that clients of this protocol send.
    pub fn end_txn(self) -> i16 {
        if self == Protocol::Old { 4 } else { 5 }
    }

    pub(crate) fn init_producer_id(self) -> i16 {
        if self == Protocol::Old { 4 } else { 5 }
    }
}

/// Returns a produce request with one batch of a transaction and acks=all.
pub fn transactional_request(id: &str, topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    ProduceRequest { transactional_id: Some(Text::from(id)), ..produce_request(topic, partition, records) }
}

/// A transactional producer. It keeps its id and epoch, and counts the sequences of its partitions.
#[derive(Clone, Debug)]
pub struct Transactional {
    pub transactional_id: String,
    pub id: i64,
    pub epoch: i16,
    pub protocol: Protocol,
    /// The next sequence of each partition.
    sequences: BTreeMap<(String, i32), i32>,
    /// The partitions that this producer has added to its open transaction.
    added: BTreeSet<(String, i32)>,
}

impl Transactional {
    /// Starts a producer with a transactional id. This fences the former producer of the id.
    pub fn begin(client: &mut Client, transactional_id: &str, protocol: Protocol) -> Transactional {
        Transactional::with_timeout(client, transactional_id, protocol, 60_000)
    }

    /// Starts a producer with the given transaction timeout.
    pub fn with_timeout(
        client: &mut Client,
        transactional_id: &str,
        protocol: Protocol,
        timeout_ms: i32,
    ) -> Transactional {
        Transactional::try_begin(client, transactional_id, protocol, timeout_ms).expect("the broker answers")
    }

    /// Starts a producer at a broker that may have ended. `None` if it has.
    pub fn try_begin(
        client: &mut Client,
        transactional_id: &str,
        protocol: Protocol,
        timeout_ms: i32,
    ) -> Option<Transactional> {
        let request = init_request(transactional_id, timeout_ms, None);
        let mut response = client.try_call(&request, protocol.init_producer_id())?;
        let started = Instant::now();
        while TRANSIENT.contains(&response.error_code) && started.elapsed() < SOON {
            // Apache Kafka creates `__transaction_state` at the first FindCoordinator, so this request precedes the
            // retry.
            let coordinator_keys = vec![Text::from(transactional_id)];
            client.try_call(&FindCoordinatorRequest { key_type: 1, coordinator_keys, ..Default::default() }, 4)?;
            response = client.try_call(&request, protocol.init_producer_id())?;
        }
        assert_eq!(response.error_code, ErrorCode::NONE, "{transactional_id}");
        Some(Transactional::resume(transactional_id, protocol, response.producer_id, response.producer_epoch))
    }

    /// Creates a producer from the id and epoch of one that was started elsewhere and has no open transaction.
    pub fn resume(transactional_id: &str, protocol: Protocol, id: i64, epoch: i16) -> Transactional {
        Transactional {
            transactional_id: transactional_id.to_owned(),
            id,
            epoch,
            protocol,
            sequences: BTreeMap::new(),
            added: BTreeSet::new(),
        }
    }

    /// Returns the producer id and epoch.
    pub fn producer(&self) -> (i64, i16) {
        (self.id, self.epoch)
    }

    /// Returns the next batch for a partition and advances the partition's sequence.
    pub fn batch<V: AsRef<[u8]>>(&mut self, topic: &str, partition: i32, values: &[V]) -> Batch {
        let next = self.sequences.entry((topic.to_owned(), partition)).or_insert(0);
        let first = *next;
        *next += i32::try_from(values.len()).expect("few records");
        Batch::of(values).from_producer(self.id, self.epoch, first).transactional()
    }

    /// Adds partitions to the transaction. A client of the old protocol does so before it writes to them.
    pub fn add(&mut self, client: &mut Client, topic: &str, partitions: &[i32]) {
        let mut codes = client.add_partitions(&self.transactional_id, self.producer(), topic, partitions, 3);
        let started = Instant::now();
        // The broker may still be completing the former transaction.
        while codes.iter().any(|code| TRANSIENT.contains(code)) && started.elapsed() < SOON {
            codes = client.add_partitions(&self.transactional_id, self.producer(), topic, partitions, 3);
        }
        assert!(codes.iter().all(|code| *code == ErrorCode::NONE), "{codes:?}");
        self.added.extend(partitions.iter().map(|&partition| (topic.to_owned(), partition)));
    }

    /// Writes one batch of these values. Returns the offset of its first record.
    pub fn write<V: AsRef<[u8]>>(&mut self, client: &mut Client, topic: &str, partition: i32, values: &[V]) -> i64 {
        if self.protocol == Protocol::Old && !self.added.contains(&(topic.to_owned(), partition)) {
            self.add(client, topic, &[partition]);
        }
        let batch = self.batch(topic, partition, values);
        let mut response = self.send(client, topic, partition, &batch);
        let started = Instant::now();
        // The broker may still be completing the former transaction.
        while response.error_code == ErrorCode::NOT_ENOUGH_REPLICAS && started.elapsed() < SOON {
            response = self.send(client, topic, partition, &batch);
        }
        assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
        response.base_offset
    }

    /// Sends a batch as it is, without counting its sequence.
    pub fn send(&self, client: &mut Client, topic: &str, partition: i32, batch: &Batch) -> PartitionProduceResponse {
        let request = transactional_request(&self.transactional_id, topic, partition, batch.bytes());
        client.call(&request, self.protocol.produce()).responses.remove(0).partition_responses.remove(0)
    }

    /// Commits or aborts the transaction.
    pub fn end(&mut self, client: &mut Client, is_commit: bool) {
        let response = self.try_end(client, is_commit);
        assert_eq!(response.error_code, ErrorCode::NONE, "{}", self.transactional_id);
        self.ended(&response);
    }

    /// Sends EndTxn and returns the response, which may be an error.
    pub fn try_end(&self, client: &mut Client, is_commit: bool) -> EndTxnResponse {
        client.end_txn(&self.transactional_id, self.producer(), is_commit, self.protocol.end_txn())
    }

    /// Returns an EndTxn request of this producer.
    pub fn end_request(&self, is_commit: bool) -> EndTxnRequest {
        end_request(&self.transactional_id, self.producer(), is_commit)
    }

    /// Sets the producer id and epoch to those in the response to an EndTxn.
    pub fn ended(&mut self, response: &EndTxnResponse) {
        self.added.clear();
        if self.protocol == Protocol::Old {
            return;
        }
        assert!(response.producer_id >= 0, "a client of the new protocol is given its next producer");
        (self.id, self.epoch) = (response.producer_id, response.producer_epoch);
        self.sequences.clear();
    }
}

/// Returns an InitProducerId request. `current` is the client's present producer id and epoch, if it has one.
pub fn init_request(id: &str, transaction_timeout_ms: i32, current: Option<(i64, i16)>) -> InitProducerIdRequest {
    let (producer_id, producer_epoch) = current.unwrap_or((-1, -1));
    let transactional_id = Some(Text::from(id));
    InitProducerIdRequest {
        transactional_id,
        transaction_timeout_ms,
        producer_id,
        producer_epoch,
        ..Default::default()
    }
}

fn add_request(
    transactional_id: &str,
    (id, epoch): (i64, i16),
    topic: &str,
    partitions: &[i32],
) -> AddPartitionsToTxnRequest {
    let topic =
        AddPartitionsToTxnTopic { name: Text::from(topic), partitions: partitions.to_vec(), ..Default::default() };
    AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: Text::from(transactional_id),
        v3_and_below_producer_id: id,
        v3_and_below_producer_epoch: epoch,
        v3_and_below_topics: vec![topic],
        ..Default::default()
    }
}

fn end_request(id: &str, (producer_id, producer_epoch): (i64, i16), committed: bool) -> EndTxnRequest {
    EndTxnRequest { transactional_id: Text::from(id), producer_id, producer_epoch, committed, ..Default::default() }
}

impl Client {
    /// Sends InitProducerId. `current` is the client's present producer id and epoch, if it has one.
    pub fn init_transactional(
        &mut self,
        transactional_id: &str,
        transaction_timeout_ms: i32,
        current: Option<(i64, i16)>,
        version: i16,
    ) -> InitProducerIdResponse {
        self.call(&init_request(transactional_id, transaction_timeout_ms, current), version)
    }

    /// Sends AddPartitionsToTxn in the version that clients use. Returns the error code of each partition.
    pub fn add_partitions(
        &mut self,
        transactional_id: &str,
        (id, epoch): (i64, i16),
        topic: &str,
        partitions: &[i32],
        version: i16,
    ) -> Vec<ErrorCode> {
        let request = add_request(transactional_id, (id, epoch), topic, partitions);
        let mut response = self.call(&request, version);
        let results = response.results_by_topic_v3_and_below.remove(0).results_by_partition;
        results.into_iter().map(|result| result.partition_error_code).collect()
    }

    /// Adds one partition at a broker that may have ended. `None` if it has.
    pub fn try_add_partition(
        &mut self,
        transactional_id: &str,
        producer: (i64, i16),
        topic: &str,
        partition: i32,
    ) -> Option<ErrorCode> {
        let response = self.try_call(&add_request(transactional_id, producer, topic, &[partition]), 3)?;
        Some(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    }

    /// Sends EndTxn.
    pub fn end_txn(
        &mut self,
        transactional_id: &str,
        (producer_id, producer_epoch): (i64, i16),
        committed: bool,
        version: i16,
    ) -> EndTxnResponse {
        self.call(&end_request(transactional_id, (producer_id, producer_epoch), committed), version)
    }

    /// Sends DescribeTransactions for one id.
    pub fn describe_transaction(&mut self, transactional_id: &str) -> TransactionState {
        let transactional_ids = vec![Text::from(transactional_id)];
        let request = DescribeTransactionsRequest { transactional_ids, ..Default::default() };
        self.call(&request, 0).transaction_states.remove(0)
    }

    /// Sends DescribeProducers for one partition.
    pub fn describe_producers(&mut self, topic: &str, partition: i32) -> PartitionResponse {
        let topic = TopicRequest { name: Text::from(topic), partition_indexes: vec![partition], ..Default::default() };
        let request = DescribeProducersRequest { topics: vec![topic], ..Default::default() };
        self.call(&request, 0).topics.remove(0).partitions.remove(0)
    }

    /// Fetches at `offset` with read_committed. The broker responds at once even if there are no records.
    pub fn fetch_committed(&mut self, topic: &str, partition: i32, offset: i64) -> PartitionData {
        loop {
            self.send_committed_poll(topic, partition, offset, 0, 0);
            let data = self.receive_long_poll();
            // The log may still be opening after a crash.
            if data.error_code.is_err() || data.high_watermark != -1 {
                return data;
            }
        }
    }

    /// Sends a fetch with read_committed that waits at the broker. [`Client::receive_long_poll`] receives the response.
    pub fn send_committed_poll(&mut self, topic: &str, partition: i32, offset: i64, min_bytes: i32, max_wait_ms: i32) {
        let from = [FetchFrom { topic, partition, offset }];
        let request = FetchRequest { isolation_level: READ_COMMITTED, ..fetch_request(&from, min_bytes, max_wait_ms) };
        self.send(&request, FETCH);
    }

    /// Sends ListOffsets with read_committed.
    pub fn list_stable(&mut self, topic: &str, partition: i32, timestamp: i64) -> ListOffsetsPartitionResponse {
        let requested = ListOffsetsPartition { partition_index: partition, timestamp, ..Default::default() };
        let topic = ListOffsetsTopic { name: Text::from(topic), partitions: vec![requested], ..Default::default() };
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: READ_COMMITTED,
            topics: vec![topic],
            ..Default::default()
        };
        self.call(&request, LIST_OFFSETS).topics.remove(0).partitions.remove(0)
    }

    /// Returns the last stable offset.
    pub fn stable(&mut self, topic: &str, partition: i32) -> i64 {
        let listed = self.list_stable(topic, partition, crate::requests::LATEST);
        assert_eq!(listed.error_code, ErrorCode::NONE);
        listed.offset
    }

    /// Returns every record that a read_committed consumer gets, from the log start to the last stable offset.
    pub fn committed_records(&mut self, topic: &str, partition: i32) -> Vec<Record> {
        let mut offset = self.earliest(topic, partition);
        let mut committed = Vec::new();
        loop {
            let data = self.fetch_committed(topic, partition, offset);
            assert_eq!(data.error_code, ErrorCode::NONE);
            assert!(data.last_stable_offset <= data.high_watermark, "{data:?}");
            let records = data.records.unwrap_or_default();
            let batches = Batch::parse_all(records.memory().expect("read from a socket"));
            let Some(last) = batches.last() else {
                assert!(offset >= data.last_stable_offset, "nothing at {offset} before {}", data.last_stable_offset);
                return committed;
            };
            let next = last.last_offset() + 1;
            assert!(next <= data.last_stable_offset, "offset {next} is past {}", data.last_stable_offset);
            let aborted = data.aborted_transactions.unwrap_or_default();
            let aborted: Vec<(i64, i64)> =
                aborted.iter().map(|entry| (entry.producer_id, entry.first_offset)).collect();
            committed.extend(committed_of(batches, &aborted, offset));
            offset = next;
        }
    }

    /// Returns the values of [`Client::committed_records`] as text.
    pub fn committed_texts(&mut self, topic: &str, partition: i32) -> Vec<String> {
        self.committed_records(topic, partition).iter().map(Record::text).collect()
    }
}

/// Returns the records from `offset` on. Leaves out markers and the records of aborted transactions.
fn committed_of(batches: Vec<Batch>, aborted: &[(i64, i64)], offset: i64) -> Vec<Record> {
    let mut waiting: Vec<(i64, i64)> = aborted.to_vec();
    waiting.sort_by_key(|&(_, first_offset)| first_offset);
    let mut waiting = waiting.into_iter().peekable();
    let mut aborting = BTreeSet::new();
    let mut committed = Vec::new();
    for batch in batches {
        while let Some((producer_id, _)) = waiting.next_if(|&(_, first)| first <= batch.last_offset()) {
            aborting.insert(producer_id);
        }
        match batch.marker {
            Some(marker) if !marker.is_commit => _ = aborting.remove(&batch.producer_id),
            Some(_) => {}
            None if batch.is_transactional() && aborting.contains(&batch.producer_id) => {}
            None => committed.extend(batch.records.into_iter().filter(|record| record.offset >= offset)),
        }
    }
    committed
}
