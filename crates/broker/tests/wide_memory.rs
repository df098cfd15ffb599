//! Checks that a wide request takes no more memory than was reserved for it. The memory reserved for a large response
//! must be at least the response's size, and not much more.
//!
//! The test is a separate binary, because its allocator counts every allocation of the process.

use fullbore_broker::Broker;
use fullbore_broker::api::room_of;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::unread_responses::LARGEST_ROOM;
use fullbore_host::wide_work::LARGEST_POLL;
use fullbore_wire::api::{Request, RequestHeader, encode_request, measure_request, request_reader};
use fullbore_wire::apis::consumer_group_describe::ConsumerGroupDescribeRequest;
use fullbore_wire::apis::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::describe_groups::DescribeGroupsRequest;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest};
use fullbore_wire::apis::describe_topic_partitions::DescribeTopicPartitionsRequest;
use fullbore_wire::apis::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::{Part, Text};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of entries in a request.
const MANY: i32 = 50_000;
/// How many bytes the broker may allocate for other purposes during the request, such as for the buffers of the
/// connection.
const OTHERS_MAX: usize = 512 << 10;
/// How many times larger than a response the memory that is reserved for it may be.
const ROOM_FACTOR_MAX: usize = 3;
/// The number of topics in the requests whose responses list topics.
const TOPICS: usize = 400;
/// The name of a topic that does not exist.
const TOPIC: Text = Text::from_static("t");

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call to the system's allocator unchanged; the counters neither allocate nor drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A client of the broker. It allocates nothing while it waits for a response.
struct Requesting {
    client: TcpStream,
    scratch: Vec<u8>,
    failures: Vec<String>,
}

impl Requesting {
    /// Sends a wide request. Compares the memory that it takes with the memory that is reserved for it.
    fn request<R: Request>(&mut self, request: &R, version: i16) {
        let bytes = encoded(request, version);
        let mut reader = request_reader(bytes[4..].to_vec().into());
        let header = RequestHeader::decode(&mut reader).expect("our own header");
        let (api, v) = header.api().expect("an API of ours");
        let size = measure_request(api, &reader, v, None).expect("our own request");
        let room = room_of(size, reader.remaining()).expect("it is wide");
        drop((reader, header));
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        self.client.write_all(&bytes).expect("the broker reads");
        self.skip_answer();
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        let line = format!("{api:?}: {taken} of {room} bytes, {} for an entry", taken / size.elements);
        println!("{line}");
        if taken > room + OTHERS_MAX {
            self.failures.push(line);
        }
    }

    /// Sends a short request with a large response. Compares the memory that both take with the memory that is reserved
    /// for them.
    fn request_much<R: Request>(&mut self, request: &R, version: i16) {
        let bytes = encoded(request, version);
        LARGEST_POLL.store(0, Ordering::SeqCst);
        LARGEST_ROOM.store(0, Ordering::SeqCst);
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        self.client.write_all(&bytes).expect("the broker reads");
        let response_bytes = self.skip_answer();
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        let room = LARGEST_POLL.load(Ordering::SeqCst);
        let response_room = LARGEST_ROOM.load(Ordering::SeqCst);
        let line = format!("{:?}: {taken} of {room} bytes, the response {response_bytes} of {response_room}", R::KEY);
        println!("{line}");
        // The estimated description of a group includes the metadata of its members. The real description of an
        // unstable group does not. So `response_room` may also be as large as half of `room`.
        let rooms = response_bytes..=(ROOM_FACTOR_MAX * response_bytes).max(room / 2);
        if room == 0 || taken > room + OTHERS_MAX || !rooms.contains(&response_room) {
            self.failures.push(line);
        }
    }

    /// Reads a response and returns its length.
    fn skip_answer(&mut self) -> usize {
        let mut prefix = [0; 4];
        self.client.read_exact(&mut prefix).expect("an answer");
        let len = u32::from_be_bytes(prefix) as usize;
        let mut left = len;
        while left > 0 {
            let some = left.min(self.scratch.len());
            left -= self.client.read(&mut self.scratch[..some]).expect("the rest of it");
        }
        len
    }
}

fn encoded<R: Request>(request: &R, version: i16) -> Vec<u8> {
    let frame = encode_request(request, version, 1, None).expect("a request");
    let mut bytes = Vec::new();
    for part in &frame.parts {
        let Part::Bytes(part) = part else { panic!("requests are in memory") };
        bytes.extend_from_slice(part);
    }
    bytes
}

fn names() -> impl Iterator<Item = Text> {
    (0..MANY).map(|index| Text::from(format!("unknown-{index}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_many_entries_take_no_more_memory_than_reserved() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let text = format!(
        "log.dirs={}\nlisteners=PLAINTEXT://127.0.0.1:0\nfullbore.admin.listener=\nauto.create.topics.enable=false\n\
         group.initial.rebalance.delay.ms=0\n",
        directory.path().display()
    );
    let (config, _) = BrokerConfig::from_properties(&Properties::parse(&text).expect("valid")).expect("valid");
    let broker = Broker::start(config).await.expect("started");
    let client = TcpStream::connect(broker.addr()).expect("connected");
    let requesting = Requesting { client, scratch: vec![0; 64 << 10], failures: Vec::new() };
    let failures = tokio::task::spawn_blocking(move || request_all(requesting)).await.expect("asked");
    assert!(failures.is_empty(), "{failures:#?}");
}

fn request_all(mut requesting: Requesting) -> Vec<String> {
    let all = || (0..MANY).collect::<Vec<i32>>();
    let partition_data = all().into_iter().map(|index| PartitionProduceData { index, ..Default::default() }).collect();
    let topic_data = vec![TopicProduceData { name: TOPIC, partition_data, ..Default::default() }];
    requesting.request(&ProduceRequest { acks: 1, topic_data, ..Default::default() }, 9);
    let partition = |partition_index| ListOffsetsPartition { partition_index, ..Default::default() };
    let partitions = all().into_iter().map(partition).collect();
    let topics = vec![ListOffsetsTopic { name: TOPIC, partitions, ..Default::default() }];
    requesting.request(&ListOffsetsRequest { topics, ..Default::default() }, 6);
    let topic = |name| MetadataRequestTopic { name: Some(name), ..Default::default() };
    requesting.request(&MetadataRequest { topics: Some(names().map(topic).collect()), ..Default::default() }, 9);
    requesting
        .request(&DeleteTopicsRequest { topic_names: names().collect(), timeout_ms: 1000, ..Default::default() }, 3);
    let topics = vec![TopicPartitions { topic: TOPIC, partitions: all(), ..Default::default() }];
    requesting.request(&ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() }, 1);
    let topic = |topic| TopicPartitions { topic, partitions: vec![0], ..Default::default() };
    requesting.request(
        &ElectLeadersRequest { topic_partitions: Some(names().map(topic).collect()), ..Default::default() },
        1,
    );
    let topics = vec![TopicRequest { name: TOPIC, partition_indexes: all(), ..Default::default() }];
    requesting.request(&DescribeProducersRequest { topics, ..Default::default() }, 0);
    requesting.request(&DescribeGroupsRequest { groups: names().collect(), ..Default::default() }, 3);
    requesting.request(&ConsumerGroupDescribeRequest { group_ids: names().collect(), ..Default::default() }, 0);
    let topic = |name| CreatableTopic { name, num_partitions: 1, replication_factor: 1, ..Default::default() };
    requesting.request(&CreateTopicsRequest { topics: names().map(topic).collect(), ..Default::default() }, 4);
    let topic = |name| CreatePartitionsTopic { name, count: 2, ..Default::default() };
    requesting.request(&CreatePartitionsRequest { topics: names().map(topic).collect(), ..Default::default() }, 1);
    let configs = || vec![AlterableConfig { name: "a".into(), value: Some("b".into()), ..Default::default() }];
    let of_topic = 2;
    let resource = |resource_name| AlterConfigsResource {
        resource_type: of_topic,
        resource_name,
        configs: configs(),
        ..Default::default()
    };
    let resources = names().map(resource).collect();
    requesting.request(&IncrementalAlterConfigsRequest { resources, ..Default::default() }, 0);
    let resource =
        |resource_name| DescribeConfigsResource { resource_type: of_topic, resource_name, ..Default::default() };
    requesting.request(&DescribeConfigsRequest { resources: names().map(resource).collect(), ..Default::default() }, 1);
    request_lists(&mut requesting);
    requesting.failures
}

/// Sends short requests with large responses, about topics with many settings and partitions and about a large group.
fn request_lists(requesting: &mut Requesting) {
    let names = || (0..TOPICS).map(|index| Text::from(format!("topic-{index}")));
    let topic = |name| CreatableTopic { name, num_partitions: 20, replication_factor: 1, ..Default::default() };
    let created =
        CreateTopicsRequest { topics: names().map(topic).collect(), timeout_ms: 60_000, ..Default::default() };
    requesting.client.write_all(&encoded(&created, 4)).expect("the broker reads");
    requesting.skip_answer();
    for in_full in [false, true] {
        let resource =
            |resource_name| DescribeConfigsResource { resource_type: 2, resource_name, ..Default::default() };
        let request = DescribeConfigsRequest {
            resources: names().map(resource).collect(),
            include_synonyms: in_full,
            include_documentation: in_full,
            ..Default::default()
        };
        requesting.request_much(&request, 4);
    }
    requesting.request_much(&MetadataRequest { topics: None, ..Default::default() }, 12);
    requesting.request_much(&DescribeLogDirsRequest { topics: None, ..Default::default() }, 4);
    let request = DescribeTopicPartitionsRequest { response_partition_limit: 2_000, ..Default::default() };
    requesting.request_much(&request, 0);
    let protocol = |name| JoinGroupRequestProtocol { name, metadata: vec![0; 400_000].into(), ..Default::default() };
    let joining = JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".into(),
        protocols: ["a", "b", "c"].map(|name| protocol(name.into())).to_vec(),
        ..Default::default()
    };
    requesting.client.write_all(&encoded(&joining, 3)).expect("the broker reads");
    requesting.skip_answer();
    requesting.request_much(&DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() }, 3);
}
