//! Responses about partitions that another broker leads, or that have no leader.

use crate::partitions::FromLeader;
use crate::start::Broker;
use bytes::Bytes;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_control::{CreateTopic, CreateTopics, Endpoint, RegisteredBroker, Topic};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_tests::Batch;
use fullbore_wire::api::{Request, decode_response, encode_request};
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest as ProducersTopic};
use fullbore_wire::apis::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataResponsePartition};
use fullbore_wire::apis::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use fullbore_wire::apis::produce::{NodeEndpoint, PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::batch::Stamp;

use fullbore_wire::{ErrorCode, Part, Records, Text};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

pub(super) const TOPIC: &str = "t";
const OTHER: i32 = 2;

/// A broker with one topic, and a client of it. Tests can register a second broker, which does not run.
pub(super) struct Opened {
    pub(super) broker: Broker,
    client: TcpStream,
    /// The timeout in produce requests and in requests to delete records.
    pub(super) timeout_ms: i32,
    _directory: tempfile::TempDir,
}

impl Opened {
    async fn new() -> Opened {
        let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
        Self::with("", topic).await
    }

    /// Starts a broker with these settings and this topic.
    pub(super) async fn with(settings: &str, topic: CreateTopic) -> Opened {
        let directory = tempfile::tempdir().expect("temporary directory");
        let text = format!(
            "log.dirs={}\nlisteners=PLAINTEXT://127.0.0.1:0\nfullbore.admin.listener=\n{settings}",
            directory.path().display()
        );
        let (config, _) = BrokerConfig::from_properties(&Properties::parse(&text).expect("valid")).expect("valid");
        let broker = Broker::start(config).await.expect("started");
        let requested = CreateTopics { topics: vec![topic], validate_only: false };
        broker.node().metadata.control.create_topics(requested).await.remove(0).expect("created");
        let client = TcpStream::connect(broker.addr()).expect("connected");
        Opened { broker, client, timeout_ms: 50, _directory: directory }
    }

    /// Registers a second broker, then replaces the partition's registration.
    fn register(&self, change: impl FnOnce(&mut PartitionRegistration)) {
        self.register_at("PLAINTEXT", change);
    }

    /// Registers a second broker with a listener of this name, then replaces the partition's registration.
    fn register_at(&self, listener: &str, change: impl FnOnce(&mut PartitionRegistration)) {
        self.broker.node().metadata.control.publish(|image| {
            let at = Endpoint { host: Text::from("other"), port: 9093 };
            let endpoints = [(listener.to_owned(), at)].into();
            image.put_node(OTHER, RegisteredBroker { endpoints, ..RegisteredBroker::default() });
            let topic = Arc::clone(image.topic(TOPIC).expect("there"));
            let mut registered = PartitionRegistration::clone(&topic.partitions[0]);
            change(&mut registered);
            registered.partition_epoch += 1;
            image.put(Arc::new(Topic {
                partitions: [Arc::new(registered)].into_iter().collect(),
                ..Topic::clone(&topic)
            }));
        });
    }

    fn lead(&self, leader: Option<i32>) {
        self.register(|registered| {
            registered.replicas = vec![1, OTHER];
            registered.leader = leader;
            registered.leader_epoch += 1;
        });
    }

    pub(super) fn call<R: Request>(&mut self, request: &R, version: i16) -> R::Response {
        self.call_as(None, request, version)
    }

    /// Sends a request as a client with this id.
    pub(super) fn call_as<R: Request>(&mut self, client_id: Option<&str>, request: &R, version: i16) -> R::Response {
        let client_id = client_id.map(Text::from);
        let frame = encode_request(request, version, 7, client_id.as_ref()).expect("a request of this version");
        for part in &frame.parts {
            let Part::Bytes(bytes) = part else { panic!("a request has no file") };
            self.client.write_all(bytes).expect("the broker reads");
        }
        let mut prefix = [0; 4];
        self.client.read_exact(&mut prefix).expect("an answer");
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(prefix)).expect("a length")];
        self.client.read_exact(&mut answer).expect("an answer");
        decode_response::<R>(Bytes::from(answer), version).expect("a response of this version").1
    }

    fn fetch(&mut self, current_leader_epoch: i32) -> (PartitionData, Vec<NodeEndpoint>) {
        let partition = FetchPartition { current_leader_epoch, partition_max_bytes: 1000, ..Default::default() };
        let topic_id = self.broker.node().metadata.control.image().topic(TOPIC).expect("there").id;
        let topics = vec![FetchTopic { topic_id, partitions: vec![partition], ..Default::default() }];
        let request = FetchRequest { topics, max_bytes: 1000, min_bytes: 0, session_epoch: -1, ..Default::default() };
        let mut response = self.call(&request, 17);
        (response.responses.remove(0).partitions.remove(0), response.node_endpoints)
    }

    /// Fetches in a session that reads ahead. Returns the id of the session with the partition.
    fn fetch_in(&mut self, session_id: i32, session_epoch: i32, partition: FetchPartition) -> (i32, PartitionData) {
        let partition = FetchPartition { partition_max_bytes: 1000, ..partition };
        let topic_id = self.broker.node().metadata.control.image().topic(TOPIC).expect("there").id;
        let topics = vec![FetchTopic { topic_id, partitions: vec![partition], ..Default::default() }];
        let request = FetchRequest { topics, max_bytes: 1000, session_id, session_epoch, ..Default::default() };
        let mut response = self.call(&FetchRequest { read_ahead: true, ..request }, 18);
        (response.session_id, response.responses.remove(0).partitions.remove(0))
    }

    /// Returns the end offset at which the log diverges from that of a consumer at this position, or -1.
    fn diverging_end(&mut self, fetch_offset: i64, last_fetched_epoch: i32) -> (ErrorCode, i64) {
        let data = self.fetch_in(0, 0, FetchPartition { fetch_offset, last_fetched_epoch, ..Default::default() }).1;
        (data.error_code, data.diverging_epoch.end_offset)
    }

    /// Returns the end of a leader epoch as the epoch and the end offset.
    fn epoch_end(&mut self, leader_epoch: i32) -> (ErrorCode, (i32, i64)) {
        let partitions = vec![OffsetForLeaderPartition { leader_epoch, ..Default::default() }];
        let topics = vec![OffsetForLeaderTopic { topic: Text::from(TOPIC), partitions, ..Default::default() }];
        let mut response = self.call(&OffsetForLeaderEpochRequest { topics, ..Default::default() }, 4);
        let end = response.topics.remove(0).partitions.remove(0);
        (end.error_code, (end.leader_epoch, end.end_offset))
    }

    pub(super) fn produced(&mut self, acks: i16) -> (ErrorCode, (i32, i32), Vec<NodeEndpoint>) {
        self.produced_by(Stamp::NONE, acks)
    }

    pub(super) fn produced_by(&mut self, stamp: Stamp, acks: i16) -> (ErrorCode, (i32, i32), Vec<NodeEndpoint>) {
        let records = Some(Records::Memory(Batch::at(0, &["v"]).stamped(stamp).bytes()));
        let partition_data = vec![PartitionProduceData { index: 0, records, ..Default::default() }];
        let topic_data = vec![TopicProduceData { name: Text::from(TOPIC), partition_data, ..Default::default() }];
        let mut response =
            self.call(&ProduceRequest { acks, timeout_ms: self.timeout_ms, topic_data, ..Default::default() }, 12);
        let partition = response.responses.remove(0).partition_responses.remove(0);
        let leader = (partition.current_leader.leader_id, partition.current_leader.leader_epoch);
        (partition.error_code, leader, response.node_endpoints)
    }

    pub(super) fn latest(&mut self) -> ErrorCode {
        let partitions = vec![ListOffsetsPartition { timestamp: -1, current_leader_epoch: -1, ..Default::default() }];
        let topics = vec![ListOffsetsTopic { name: Text::from(TOPIC), partitions, ..Default::default() }];
        self.call(&ListOffsetsRequest { topics, ..Default::default() }, 7).topics[0].partitions[0].error_code
    }

    pub(super) fn deleted(&mut self) -> ErrorCode {
        let partitions = vec![DeleteRecordsPartition { offset: 0, ..Default::default() }];
        let topics = vec![DeleteRecordsTopic { name: Text::from(TOPIC), partitions, ..Default::default() }];
        self.call(&DeleteRecordsRequest { topics, timeout_ms: self.timeout_ms, ..Default::default() }, 2).topics[0]
            .partitions[0]
            .error_code
    }

    fn described(&mut self) -> (Vec<i32>, MetadataResponsePartition) {
        let mut response = self.call(&MetadataRequest { topics: None, ..Default::default() }, 12);
        let brokers = response.brokers.iter().map(|broker| broker.node_id).collect();
        (brokers, response.topics.remove(0).partitions.remove(0))
    }
}

fn has_records(data: &PartitionData) -> bool {
    data.records.as_ref().is_some_and(|records| !records.is_empty())
}

fn endpoint() -> Vec<NodeEndpoint> {
    vec![NodeEndpoint { node_id: OTHER, host: Text::from("other"), port: 9093, ..Default::default() }]
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_a_former_leader_returns_the_new_leader_and_its_endpoint() {
    let mut opened = Opened::new().await;
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    opened.lead(Some(OTHER));
    let not_leader = ErrorCode::NOT_LEADER_OR_FOLLOWER;
    for acks in [1, -1] {
        assert_eq!(opened.produced(acks), (not_leader, (OTHER, 1), endpoint()));
    }
    let (data, endpoints) = opened.fetch(1);
    assert_eq!((data.error_code, data.current_leader.leader_id, endpoints), (not_leader, OTHER, endpoint()));
    let (data, _) = opened.fetch(0);
    assert_eq!((data.error_code, data.current_leader.leader_epoch), (ErrorCode::FENCED_LEADER_EPOCH, 1));
    assert_eq!((opened.latest(), opened.deleted()), (not_leader, not_leader));
    let (brokers, partition) = opened.described();
    assert_eq!((brokers, partition.leader_id, partition.leader_epoch), (vec![1, OTHER], OTHER, 1));
    assert_eq!((partition.replica_nodes, partition.isr_nodes), (vec![1, OTHER], vec![1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_describes_the_producers_that_it_knows() {
    let mut opened = Opened::new().await;
    let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 0 };
    assert_eq!(opened.produced_by(stamp, -1).0, ErrorCode::NONE);
    opened.lead(Some(OTHER));
    let topics = vec![ProducersTopic { name: Text::from(TOPIC), partition_indexes: vec![0], ..Default::default() }];
    let request = DescribeProducersRequest { topics, ..Default::default() };
    let response = opened.call(&request, 0);
    let described = &response.topics[0].partitions[0];
    let producers: Vec<_> = described.active_producers.iter().map(|of| (of.producer_id, of.producer_epoch)).collect();
    assert_eq!((described.error_code, producers), (ErrorCode::NONE, vec![(7, 3)]));
    opened.register(|registered| (registered.replicas, registered.isr) = (vec![OTHER], vec![OTHER]));
    let response = opened.call(&request, 0);
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER, "no replica is here");
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_of_a_new_epoch_accepts_records_and_refuses_other_epochs() {
    let mut opened = Opened::new().await;
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    opened.lead(Some(OTHER));
    opened.lead(Some(1));
    assert_eq!(opened.produced(-1), (ErrorCode::NONE, (-1, -1), vec![]));
    let (data, _) = opened.fetch(2);
    assert_eq!((data.error_code, data.high_watermark), (ErrorCode::NONE, 2));
    assert_eq!(opened.fetch(1).0.error_code, ErrorCode::FENCED_LEADER_EPOCH);
    assert_eq!(opened.fetch(3).0.error_code, ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!((opened.latest(), opened.deleted()), (ErrorCode::NONE, ErrorCode::NONE));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_lacks_the_records_of_a_consumer_fetch_returns_where_they_diverge() {
    let mut opened = Opened::new().await;
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    // The records of epoch 1 are lost with the other broker.
    opened.lead(Some(OTHER));
    opened.lead(Some(1));
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    let mut fetch = |fetch_offset, last_fetched_epoch| {
        let data = opened.fetch_in(0, 0, FetchPartition { fetch_offset, last_fetched_epoch, ..Default::default() }).1;
        (data.error_code, (data.diverging_epoch.epoch, data.diverging_epoch.end_offset), has_records(&data))
    };
    for (position, diverging) in [((5, 1), (0, 1)), ((1, 1), (0, 1)), ((2, 0), (0, 1)), ((9, 2), (2, 2))] {
        assert_eq!(fetch(position.0, position.1), (ErrorCode::NONE, diverging, false), "{position:?}");
    }
    for (offset, last_epoch) in [(0, -1), (1, -1), (1, 0)] {
        assert_eq!(fetch(offset, last_epoch), (ErrorCode::NONE, (-1, -1), true), "{offset}, epoch {last_epoch}");
    }
    assert_eq!(fetch(2, 2), (ErrorCode::NONE, (-1, -1), false));
    assert_eq!(fetch(5, -1).0, ErrorCode::OFFSET_OUT_OF_RANGE);
    assert_eq!(fetch(0, 3).0, ErrorCode::UNKNOWN_LEADER_EPOCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_is_in_an_epoch_before_the_first_a_position_after_the_first_batch_diverges() {
    let mut opened = Opened::new().await;
    opened.lead(Some(OTHER));
    opened.lead(Some(1));
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    for (fetch_offset, end_offset) in [(0, -1), (1, 0), (2, 0)] {
        assert_eq!(opened.diverging_end(fetch_offset, 1), (ErrorCode::NONE, end_offset), "{fetch_offset}");
    }
}

/// The log begins at offset 0, but its leader had compacted the records before offset 500. If the first epoch began at
/// the log start, consumers in an earlier epoch would go back to offset 0.
#[tokio::test(flavor = "multi_thread")]
async fn first_batch_is_after_the_log_start_earlier_epochs_end_at_the_batch() {
    let mut opened = Opened::new().await;
    opened.lead(Some(OTHER));
    let node = Arc::clone(opened.broker.node());
    let topic = node.metadata.control.image().topic(TOPIC).expect("there").id;
    let replica = node.partitions.find(&topic, 0).expect("there");
    let records = Batch { base_offset: 500, leader_epoch: 1, ..Batch::at(0, &["v"]) }.bytes();
    let from = FromLeader { leader_epoch: 1, from: 0, records: &records, high_watermark: 501, log_start: 0 };
    replica.append_from_leader(from).expect("appended");
    opened.lead(Some(1));
    assert_eq!(replica.offsets().expect("open").log_start, 0);
    for (epoch, end) in [(0, (0, 500)), (1, (1, 501)), (2, (2, 501)), (3, (-1, -1))] {
        assert_eq!(opened.epoch_end(epoch), (ErrorCode::NONE, end), "epoch {epoch}");
    }
    for (fetch_offset, end_offset) in [(0, -1), (400, -1), (500, -1), (501, 500), (600, 500)] {
        assert_eq!(opened.diverging_end(fetch_offset, 0), (ErrorCode::NONE, end_offset), "{fetch_offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_reads_ahead_over_a_new_leader_epoch_its_client_must_compare_again() {
    let mut opened = Opened::new().await;
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    let (session, data) = opened.fetch_in(0, 0, FetchPartition::default());
    assert!(session != 0 && has_records(&data) && data.in_epoch == -1, "{data:?}");
    opened.lead(Some(OTHER));
    opened.lead(Some(1));
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    let on = FetchPartition { read_on: true, ..Default::default() };
    let (_, data) = opened.fetch_in(session, 1, on);
    assert_eq!((data.error_code, has_records(&data)), (ErrorCode::FENCED_LEADER_EPOCH, false));
    let named = FetchPartition { fetch_offset: 1, last_fetched_epoch: 0, ..Default::default() };
    let (_, data) = opened.fetch_in(session, 2, named);
    assert_eq!((data.error_code, has_records(&data)), (ErrorCode::NONE, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_all_without_a_fetching_replica_times_out() {
    let mut opened = Opened::new().await;
    opened.register(|registered| {
        registered.replicas = vec![1, OTHER];
        registered.isr = vec![1, OTHER];
    });
    assert_eq!(opened.produced(-1).0, ErrorCode::REQUEST_TIMED_OUT);
    assert_eq!(opened.produced(1).0, ErrorCode::NONE);
    let (data, _) = opened.fetch(0);
    assert_eq!((data.error_code, data.high_watermark), (ErrorCode::NONE, 0), "nobody reads what is on one broker");
    opened.register(|registered| {
        registered.isr = vec![1];
        registered.leader_epoch += 1;
    });
    assert_eq!(opened.fetch(1).0.high_watermark, 2);
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn partition_without_a_leader_is_reported_to_clients() {
    let mut opened = Opened::new().await;
    opened.register(|registered| {
        registered.leader = None;
        registered.leader_epoch += 1;
        registered.elr = vec![OTHER];
    });
    assert_eq!(opened.produced(1), (ErrorCode::NOT_LEADER_OR_FOLLOWER, (-1, -1), vec![]));
    let (_, partition) = opened.described();
    assert_eq!((partition.error_code, partition.leader_id), (ErrorCode::LEADER_NOT_AVAILABLE, -1));
    let topics = vec![TopicRequest { name: Text::from(TOPIC), ..Default::default() }];
    let request = DescribeTopicPartitionsRequest { topics, response_partition_limit: 9, ..Default::default() };
    let reported = opened.call(&request, 0).topics.remove(0).partitions.remove(0);
    assert_eq!((reported.error_code, reported.leader_id), (ErrorCode::LEADER_NOT_AVAILABLE, -1));
    assert_eq!(reported.eligible_leader_replicas, Some(vec![OTHER]));
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_out_of_reach_of_the_listener_is_not_reported() {
    let mut opened = Opened::new().await;
    opened.register_at("INTERNAL", |registered| {
        registered.replicas = vec![1, OTHER];
        registered.leader = Some(OTHER);
        registered.leader_epoch += 1;
    });
    let (brokers, partition) = opened.described();
    assert_eq!((brokers, partition.leader_id), (vec![1], -1), "clients look the leader up among the brokers");
    assert_eq!(partition.error_code, ErrorCode::LEADER_NOT_AVAILABLE);
    let topics = vec![TopicRequest { name: Text::from(TOPIC), ..Default::default() }];
    let request = DescribeTopicPartitionsRequest { topics, response_partition_limit: 9, ..Default::default() };
    let reported = opened.call(&request, 0).topics.remove(0).partitions.remove(0);
    assert_eq!((reported.error_code, reported.leader_id), (ErrorCode::LEADER_NOT_AVAILABLE, -1));
    assert_eq!(opened.produced(1), (ErrorCode::NOT_LEADER_OR_FOLLOWER, (-1, -1), vec![]));
}
