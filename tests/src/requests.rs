//! Requests that most tests send. Their versions identify topics by name.
//!
//! The functions do not set every field. A test that needs a special field builds its own request.

use crate::process::peer;
use crate::{Batch, Client, Record, wait_until};
use bytes::Bytes;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
};
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsTopic,
};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use fullbore_wire::apis::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
};
use fullbore_wire::{ErrorCode, Records, Text, Uuid};
use std::time::Duration;

/// A version of Produce that has topic names and errors of single records.
const PRODUCE: i16 = 9;
const API_VERSIONS: i16 = 2;
/// A version of Fetch that has topic names and sessions.
const FETCH: i16 = 12;
const LIST_OFFSETS: i16 = 9;
const METADATA: i16 = 12;
const CREATE_TOPICS: i16 = 7;
const DELETE_TOPICS: i16 = 5;
const DELETE_RECORDS: i16 = 2;
const INIT_PRODUCER_ID: i16 = 4;
const ALTER_CONFIGS: i16 = 1;
/// How long a peer may take to carry out a change.
const SOON: Duration = Duration::from_secs(30);
pub(crate) const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Returns the part of a produce request that belongs to one topic.
pub fn topic_data(topic: &str, partitions: &[(i32, Bytes)]) -> TopicProduceData {
    let partition = |(index, records): &(i32, Bytes)| PartitionProduceData {
        index: *index,
        records: Some(Records::Memory(records.clone())),
        ..Default::default()
    };
    TopicProduceData {
        name: Text::from(topic),
        partition_data: partitions.iter().map(partition).collect(),
        ..Default::default()
    }
}

/// Returns a produce request with one batch and acks=all.
pub fn produce_request(topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![topic_data(topic, &[(partition, records)])],
        ..Default::default()
    }
}

/// The partition and offset at which a fetch begins.
#[derive(Clone, Copy)]
pub struct FetchFrom<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
}

/// Returns a fetch of any number of partitions, with at most 1 MiB of each. The fetch belongs to no session.
pub fn fetch_request(from: &[FetchFrom<'_>], min_bytes: i32, max_wait_ms: i32) -> FetchRequest {
    let topic = |from: &FetchFrom<'_>| FetchTopic {
        topic: Text::from(from.topic),
        partitions: vec![FetchPartition {
            partition: from.partition,
            fetch_offset: from.offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        }],
        ..Default::default()
    };
    FetchRequest { max_wait_ms, min_bytes, topics: from.iter().map(topic).collect(), ..Default::default() }
}

/// Returns the changes to the resource that its `ConfigResource.Type` and name identify. Each change is a key, an
/// `AlterConfigOp` and a value.
pub fn alter_resource(kind: i8, name: &str, changes: &[(&str, i8, Option<&str>)]) -> AlterConfigsResource {
    let change = |(name, config_operation, value): &(&str, i8, Option<&str>)| AlterableConfig {
        name: Text::from(*name),
        config_operation: *config_operation,
        value: value.map(Text::from),
        ..Default::default()
    };
    AlterConfigsResource {
        resource_type: kind,
        resource_name: Text::from(name),
        configs: changes.iter().map(change).collect(),
        ..Default::default()
    }
}

impl Client {
    /// Returns the APIs that the broker offers.
    pub fn offered(&mut self) -> Vec<ApiKey> {
        let response = self.call(&ApiVersionsRequest::default(), API_VERSIONS);
        let key = |code| ApiKey::from_code(code).expect("an API the wire knows");
        response.api_keys.iter().map(|api| key(api.api_key)).collect()
    }

    /// Sends IncrementalAlterConfigs.
    pub fn alter(
        &mut self,
        resources: Vec<AlterConfigsResource>,
        validate_only: bool,
    ) -> Vec<AlterConfigsResourceResponse> {
        let request = IncrementalAlterConfigsRequest { resources, validate_only, ..Default::default() };
        self.call(&request, ALTER_CONFIGS).responses
    }

    /// Sets a configuration of a topic (2) or a broker (4), and fails if the broker refuses.
    pub fn set_config(&mut self, kind: i8, name: &str, key: &str, value: &str) {
        let altered = self.alter(vec![alter_resource(kind, name, &[(key, 0, Some(value))])], false).remove(0);
        assert_eq!(altered.error_code, ErrorCode::NONE, "{:?}", altered.error_message);
    }

    /// Creates a topic with the given settings. Returns its id.
    pub fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Uuid {
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: Text::from(*name),
            value: Some(Text::from(*value)),
            ..Default::default()
        };
        let topic = CreatableTopic {
            name: Text::from(name),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.iter().map(config).collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let created = self.call(&request, CREATE_TOPICS).topics.remove(0);
        assert_eq!(created.error_code, ErrorCode::NONE, "{:?}", created.error_message);
        if peer().is_some() {
            self.wait_for_leaders(name, partitions);
        }
        created.topic_id
    }

    /// Deletes a topic that exists.
    pub fn delete_topic(&mut self, name: &str) {
        let request =
            DeleteTopicsRequest { topic_names: vec![Text::from(name)], timeout_ms: 30_000, ..Default::default() };
        assert_eq!(self.call(&request, DELETE_TOPICS).responses[0].error_code, ErrorCode::NONE);
    }

    /// Deletes the records before `offset`. The deletion must succeed.
    pub fn delete_records(&mut self, topic: &str, partition_index: i32, offset: i64) {
        let partition = DeleteRecordsPartition { partition_index, offset, ..Default::default() };
        let topic = DeleteRecordsTopic { name: Text::from(topic), partitions: vec![partition], ..Default::default() };
        let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let deleted = self.call(&request, DELETE_RECORDS).topics.remove(0).partitions.remove(0);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, offset));
    }

    /// Waits until the topic of a peer has leaders. Kafka responds before a new topic can be used, while Fullbore must
    /// respond only afterwards.
    fn wait_for_leaders(&mut self, topic: &str, partitions: i32) {
        wait_until("the topic has leaders", SOON, || {
            (0..partitions).all(|partition| !self.list_offset(topic, partition, LATEST).error_code.is_err())
        });
    }

    /// Deletes every topic except Kafka's internal ones.
    pub(crate) fn delete_all_topics(&mut self) {
        wait_until("the topics are deleted", SOON, || {
            let all = self.call(&MetadataRequest { topics: None, ..Default::default() }, METADATA);
            let ours = all.topics.into_iter().filter(|topic| !topic.is_internal);
            let topic_names: Vec<Text> = ours.map(|topic| topic.name.expect("known by name")).collect();
            let none = topic_names.is_empty();
            self.call(&DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() }, DELETE_TOPICS);
            none
        });
    }

    /// Returns the metadata of the brokers and the given topics. Never creates a topic.
    pub fn metadata(&mut self, topics: &[&str]) -> MetadataResponse {
        let named = |name: &&str| MetadataRequestTopic { name: Some(Text::from(*name)), ..Default::default() };
        let topics = Some(topics.iter().map(named).collect());
        let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
        self.call(&request, METADATA)
    }

    /// Returns a new producer id.
    pub fn init_producer_id(&mut self) -> i64 {
        let request = InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() };
        let response = self.call(&request, INIT_PRODUCER_ID);
        assert_eq!((response.error_code, response.producer_epoch), (ErrorCode::NONE, 0));
        response.producer_id
    }

    /// Produces one batch with acks=all and returns the response, which may be an error.
    pub fn produce(&mut self, topic: &str, partition: i32, batch: &Batch) -> PartitionProduceResponse {
        let response = self.call(&produce_request(topic, partition, batch.bytes()), PRODUCE);
        only_partition(response)
    }

    /// Produces a batch with acks=all, which must succeed. Returns its base offset.
    pub fn produced(&mut self, topic: &str, partition: i32, batch: &Batch) -> i64 {
        let response = self.produce(topic, partition, batch);
        assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
        response.base_offset
    }

    /// Sends a produce request with one batch and acks=all. Returns its correlation id.
    pub fn send_produce(&mut self, topic: &str, partition: i32, batch: &Batch) -> i32 {
        self.send(&produce_request(topic, partition, batch.bytes()), PRODUCE)
    }

    /// Waits for the response to [`Client::send_produce`].
    pub fn receive_produced(&mut self) -> PartitionProduceResponse {
        only_partition(self.receive::<ProduceRequest>(PRODUCE).1)
    }

    /// Waits for the response to [`Client::send_produce`]. `None` if the broker has ended.
    pub fn try_receive_produced(&mut self) -> Option<PartitionProduceResponse> {
        self.try_receive::<ProduceRequest>(PRODUCE).map(|(_, response)| only_partition(response))
    }

    /// Fetches at `offset`. The broker responds at once even if there are no records.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> PartitionData {
        let request = fetch_request(&[FetchFrom { topic, partition, offset }], 0, 0);
        loop {
            let mut response = self.call(&request, FETCH);
            assert_eq!(response.error_code, ErrorCode::NONE);
            let data = response.responses.remove(0).partitions.remove(0);
            // On a busy machine, the log may still be opening after a crash, or the store may not have returned the
            // records yet. The fetch is then repeated.
            let is_awaited = data.high_watermark == -1
                || data.high_watermark > offset && data.records.as_ref().is_none_or(|records| records.is_empty());
            if data.error_code.is_err() || !is_awaited {
                return data;
            }
        }
    }

    /// Sends a fetch at `offset` that waits up to 30 s at the broker for records.
    pub fn send_long_poll(&mut self, topic: &str, partition: i32, offset: i64) -> i32 {
        self.send(&fetch_request(&[FetchFrom { topic, partition, offset }], 1, 30_000), FETCH)
    }

    /// Waits for the response to [`Client::send_long_poll`].
    pub fn receive_long_poll(&mut self) -> PartitionData {
        self.receive::<FetchRequest>(FETCH).1.responses.remove(0).partitions.remove(0)
    }

    /// Returns every batch of a partition from its log start offset to its high watermark.
    pub fn fetch_batches(&mut self, topic: &str, partition: i32) -> Vec<Batch> {
        let mut offset = self.earliest(topic, partition);
        let mut all = Vec::new();
        loop {
            let data = self.fetch(topic, partition, offset);
            assert_eq!(data.error_code, ErrorCode::NONE);
            if offset >= data.high_watermark {
                return all;
            }
            let records = data.records.unwrap_or_default();
            let batches = Batch::parse_all(records.memory().expect("read from a socket"));
            let last = batches.last().expect("at least one batch below the high watermark");
            offset = last.base_offset + i64::from(last.last_offset_delta.expect("parsed")) + 1;
            all.extend(batches);
        }
    }

    /// Returns every record of a partition, and checks that the offsets have no gap.
    pub fn fetch_records(&mut self, topic: &str, partition: i32) -> Vec<Record> {
        let batches = self.fetch_batches(topic, partition);
        let records: Vec<Record> = batches.into_iter().flat_map(|batch| batch.records).collect();
        for pair in records.windows(2) {
            assert_eq!(pair[0].offset + 1, pair[1].offset, "offsets are dense");
        }
        records
    }

    /// Sends ListOffsets for one partition.
    pub fn list_offset(&mut self, topic: &str, partition: i32, timestamp: i64) -> ListOffsetsPartitionResponse {
        let requested = ListOffsetsPartition { partition_index: partition, timestamp, ..Default::default() };
        let topic = ListOffsetsTopic { name: Text::from(topic), partitions: vec![requested], ..Default::default() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        self.call(&request, LIST_OFFSETS).topics.remove(0).partitions.remove(0)
    }

    /// Returns the offset that the next record gets.
    pub fn latest(&mut self, topic: &str, partition: i32) -> i64 {
        self.listed(topic, partition, LATEST)
    }

    /// Returns the log start offset.
    pub fn earliest(&mut self, topic: &str, partition: i32) -> i64 {
        self.listed(topic, partition, EARLIEST)
    }

    fn listed(&mut self, topic: &str, partition: i32, timestamp: i64) -> i64 {
        let found = self.list_offset(topic, partition, timestamp);
        assert_eq!(found.error_code, ErrorCode::NONE);
        found.offset
    }
}

fn only_partition(mut response: ProduceResponse) -> PartitionProduceResponse {
    response.responses.remove(0).partition_responses.remove(0)
}
