//! Tests the client with several scripted brokers. A request that only one broker can answer must be sent to that
//! broker. A leader or coordinator that has moved is found again.

use fullbore_client::admin::{GroupAdmin, PARTITIONS_PER_ANSWER, describe_topics, log_damage};
use fullbore_client::blocking::{Cluster, LATEST};
use fullbore_wire::api::{ApiKey, Request, RequestHeader, decode_request, encode_response, request_reader};
use fullbore_wire::apis::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
};
use fullbore_wire::apis::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use fullbore_wire::apis::describe_topic_partitions::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use fullbore_wire::apis::list_groups::{ListGroupsRequest, ListGroupsResponse, ListedGroup};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame, Part, Text, Version};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A request that a scripted broker has received.
pub struct ReceivedRequest {
    header: RequestHeader,
    version: Version,
    body: bytes::Bytes,
}

impl ReceivedRequest {
    pub fn answer<R: Request>(&self, answer: impl FnOnce(R) -> R::Response) -> Frame {
        let mut reader = request_reader(self.body.clone());
        RequestHeader::decode(&mut reader).expect("a header");
        let request = decode_request::<R>(&mut reader, self.version).expect("a request");
        encode_response::<R>(&answer(request), self.version, self.header.correlation_id).expect("fits")
    }
}

/// Answers the requests of every connection with the script. If the script returns `None`, closes the connection.
pub fn serve(
    listener: TcpListener,
    script: impl Fn(ApiKey, &ReceivedRequest) -> Option<Frame> + Send + Sync + 'static,
) {
    serve_unless(listener, Arc::default(), script);
}

/// Answers requests like [`serve`]. While `is_down` is true, closes a connection as soon as a request arrives on it.
pub fn serve_unless(
    listener: TcpListener,
    is_down: Arc<AtomicBool>,
    script: impl Fn(ApiKey, &ReceivedRequest) -> Option<Frame> + Send + Sync + 'static,
) {
    let script = Arc::new(script);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, script, is_down) = (socket.expect("a client"), script.clone(), is_down.clone());
            std::thread::spawn(move || converse(socket, &is_down, &*script));
        }
    });
}

fn converse(mut socket: TcpStream, is_down: &AtomicBool, script: &dyn Fn(ApiKey, &ReceivedRequest) -> Option<Frame>) {
    loop {
        let mut prefix = [0; 4];
        if socket.read_exact(&mut prefix).is_err() {
            return;
        }
        let mut body = vec![0; u32::from_be_bytes(prefix) as usize];
        socket.read_exact(&mut body).expect("a whole request");
        if is_down.load(SeqCst) {
            return;
        }
        let body = bytes::Bytes::from(body);
        let header = RequestHeader::decode(&mut request_reader(body.clone())).expect("a header");
        let (key, version) = header.api().expect("known");
        let requested = ReceivedRequest { header, version, body };
        let answer = match key {
            ApiKey::ApiVersions => Some(requested.answer::<ApiVersionsRequest>(|_| versions())),
            key => script(key, &requested),
        };
        let Some(frame) = answer else { return };
        for part in &frame.parts {
            let Part::Bytes(bytes) = part else { panic!("only memory") };
            socket.write_all(bytes).expect("it reads");
        }
    }
}

fn versions() -> ApiVersionsResponse {
    let api = |key: &ApiKey| {
        let (min_version, max_version) = key.versions().into_inner();
        ApiVersion { api_key: key.code(), min_version, max_version, ..Default::default() }
    };
    ApiVersionsResponse { api_keys: ApiKey::ALL.iter().map(api).collect(), ..Default::default() }
}

pub fn listeners<const N: usize>() -> ([TcpListener; N], Vec<u16>) {
    let listeners = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has free ports"));
    let ports = listeners.iter().map(|listener| listener.local_addr().expect("bound").port()).collect();
    (listeners, ports)
}

/// Returns metadata with brokers 1, 2, ... at these ports, and a topic whose only partition has this leader.
pub fn metadata(ports: &[u16], leader_id: i32) -> MetadataResponse {
    let broker = |(node_id, port): (i32, &u16)| MetadataResponseBroker {
        node_id,
        host: "127.0.0.1".into(),
        port: i32::from(*port),
        ..Default::default()
    };
    let partition = MetadataResponsePartition { leader_id, ..Default::default() };
    let topic = MetadataResponseTopic { name: Some("t".into()), partitions: vec![partition], ..Default::default() };
    MetadataResponse { brokers: (1..).zip(ports).map(broker).collect(), topics: vec![topic], ..Default::default() }
}

pub fn cluster(port: u16) -> Cluster {
    Cluster::new(&format!("127.0.0.1:{port}"), "test").expect("valid")
}

fn offsets(error_code: ErrorCode, offset: i64) -> ListOffsetsResponse {
    let partition = ListOffsetsPartitionResponse { error_code, offset, ..Default::default() };
    let topic = ListOffsetsTopicResponse { name: "t".into(), partitions: vec![partition], ..Default::default() };
    ListOffsetsResponse { topics: vec![topic], ..Default::default() }
}

#[test]
fn a_leader_that_has_moved_or_died_is_found_again() {
    let ([first, second], mut ports) = listeners();
    // No broker listens on this port.
    ports.push(1);
    let looks = Arc::new(AtomicUsize::new(0));
    let known = ports.clone();
    serve(first, move |key, requested| match key {
        ApiKey::Metadata => {
            // The broker first names itself as the leader, although it no longer leads. Then it names a dead broker,
            // and then the leader.
            let leader = [1, 3, 2][looks.fetch_add(1, SeqCst).min(2)];
            Some(requested.answer::<MetadataRequest>(|_| metadata(&known, leader)))
        }
        _ => Some(requested.answer::<ListOffsetsRequest>(|_| offsets(ErrorCode::NOT_LEADER_OR_FOLLOWER, -1))),
    });
    serve(second, |_, requested| Some(requested.answer::<ListOffsetsRequest>(|_| offsets(ErrorCode::NONE, 42))));
    let of = [(Text::from("t"), 0)];
    let found = cluster(ports[0]).offsets_at(&of, LATEST).expect("the third look tells");
    assert_eq!(found, BTreeMap::from([(of[0].clone(), 42)]));
}

#[test]
fn partitions_refused_for_good_or_without_leader_are_left_out_at_once() {
    for leader in [1, -1] {
        let ([first], ports) = listeners();
        let known = ports.clone();
        serve(first, move |key, requested| match key {
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&known, leader))),
            _ => Some(requested.answer::<ListOffsetsRequest>(|_| offsets(ErrorCode::TOPIC_AUTHORIZATION_FAILED, -1))),
        });
        let found = cluster(ports[0]).offsets_at(&[("t".into(), 0)], LATEST).expect("answered");
        assert!(found.is_empty());
    }
}

/// If a record of a diskless topic is lost for good, retries cannot help, so the client must soon give up.
#[test]
fn a_leader_that_cannot_read_its_records_is_retried_for_a_short_time() {
    let ([first], ports) = listeners();
    let known = ports.clone();
    serve(first, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))),
        _ => Some(requested.answer::<ListOffsetsRequest>(|_| offsets(ErrorCode::KAFKA_STORAGE_ERROR, -1))),
    });
    let (of, began) = ((Text::from("t"), 0), Instant::now());
    let found = cluster(ports[0]).offsets_found_at(std::slice::from_ref(&of), 1_767_225_600_000);
    assert!(found.offsets.is_empty() && found.unreached.is_none());
    assert!(found.refused[&of].to_string().contains("partition 0 of topic 't': KAFKA_STORAGE_ERROR"), "{found:?}");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// Returns a broker's response about its own logs.
fn log_dirs(set_aside_files: i64, is_refused: bool) -> DescribeLogDirsResponse {
    let partition = DescribeLogDirsPartition { set_aside_files, is_refused, ..Default::default() };
    let topic = DescribeLogDirsTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    let result = DescribeLogDirsResult { topics: vec![topic], ..Default::default() };
    DescribeLogDirsResponse { results: vec![result], ..Default::default() }
}

#[test]
fn damage_is_collected_from_every_live_broker() {
    let ([first, second, third], mut ports) = listeners();
    ports.push(1);
    for (listener, aside, refused) in [(first, 0, false), (second, 2, false), (third, 0, true)] {
        let known = ports.clone();
        serve(listener, move |key, requested| match key {
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))),
            _ => Some(requested.answer::<DescribeLogDirsRequest>(|_| log_dirs(aside, refused))),
        });
    }
    let damage = log_damage(&mut cluster(ports[0]), &[("t".into(), 1)]).expect("answered");
    let reported: Vec<(i32, i64, bool)> = damage[&("t".into(), 0)]
        .iter()
        .map(|(broker, damage)| (*broker, damage.set_aside.map_or(0, |aside| aside.files), damage.is_refused))
        .collect();
    assert_eq!((damage.len(), reported), (1, vec![(2, 2, false), (3, 0, true)]));
}

#[test]
fn groups_are_listed_from_the_remaining_brokers() {
    let ([first, second], mut ports) = listeners();
    ports.push(1);
    let looks = Arc::new(AtomicUsize::new(0));
    for (listener, group) in [(first, "a"), (second, "b")] {
        let (known, looks) = (ports.clone(), looks.clone());
        serve(listener, move |key, requested| match key {
            ApiKey::Metadata => {
                let alive = if looks.fetch_add(1, SeqCst) == 0 { &known[..] } else { &known[..2] };
                Some(requested.answer::<MetadataRequest>(|_| metadata(alive, 1)))
            }
            _ => Some(requested.answer::<ListGroupsRequest>(|_| {
                let group = ListedGroup { group_id: group.into(), group_type: "classic".into(), ..Default::default() };
                ListGroupsResponse { groups: vec![group], ..Default::default() }
            })),
        });
    }
    let mut cluster = cluster(ports[0]);
    let mut groups = GroupAdmin::of(&mut cluster, Duration::from_secs(10)).expect("it answers");
    let found: Vec<String> =
        groups.list(&[], &[]).expect("two are left").iter().map(|group| group.id.to_string()).collect();
    assert_eq!(found, ["a", "b"]);
}

#[test]
fn brokers_of_the_metadata_are_tried_when_the_bootstrap_list_is_dead() {
    let ([second], ports) = listeners();
    let known = ports.clone();
    serve(second, move |_, requested| Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))));
    // The first broker answers one connection, on which it names the other broker. Then the first broker ends.
    let first = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let listed = first.local_addr().expect("bound").port();
    let first = std::thread::spawn(move || {
        let (socket, _) = first.accept().expect("a client");
        drop(first);
        let answered = AtomicUsize::new(0);
        converse(socket, &AtomicBool::new(false), &|_, requested| match answered.fetch_add(1, SeqCst) {
            0 => Some(requested.answer::<MetadataRequest>(|_| metadata(&[ports[0], listed], 1))),
            _ => None,
        });
    });
    let mut requesting = cluster(listed);
    let mut detached = requesting.detached();
    assert_eq!(requesting.brokers().expect("the first tells").len(), 2);
    assert_eq!(requesting.brokers().expect("the second").len(), 1);
    first.join().expect("it closed");
    assert_eq!(detached.brokers().expect("the second").len(), 1);
}

#[test]
fn broker_that_did_not_answer_is_tried_last() {
    // The system accepts connections to this listener, but no broker responds.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let ([answering], ports) = listeners();
    let known = ports.clone();
    serve(answering, move |_, requested| Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))));
    let listed = format!("{},127.0.0.1:{}", silent.local_addr().expect("bound"), ports[0]);
    let mut cluster = Cluster::new(&listed, "test").expect("valid");
    // Each search begins with another address of the list.
    for _ in 0..6 {
        cluster.brokers().expect("one answers");
        cluster = cluster.detached();
    }
    silent.set_nonblocking(true).expect("set");
    // Without the memory of the first search, each second one would begin with it.
    assert!(std::iter::from_fn(|| silent.accept().ok()).count() < 3);
}

#[test]
fn a_dead_leader_is_described_as_none() {
    let ([first], ports) = listeners();
    let known = ports.clone();
    serve(first, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))),
        ApiKey::DescribeConfigs => Some(requested.answer::<DescribeConfigsRequest>(|_| Default::default())),
        _ => Some(requested.answer::<DescribeTopicPartitionsRequest>(|_| {
            let partition = |partition_index, leader_id, offline: &[i32]| DescribeTopicPartitionsResponsePartition {
                partition_index,
                leader_id,
                replica_nodes: vec![1, 2],
                isr_nodes: vec![2],
                eligible_leader_replicas: Some(vec![1]),
                last_known_elr: None,
                offline_replicas: offline.to_vec(),
                ..Default::default()
            };
            let topic = DescribeTopicPartitionsResponseTopic {
                name: Some("t".into()),
                partitions: vec![partition(1, 2, &[2]), partition(0, 1, &[]), partition(2, -1, &[2])],
                ..Default::default()
            };
            DescribeTopicPartitionsResponse { topics: vec![topic], ..Default::default() }
        })),
    });
    let topics = describe_topics(&mut cluster(ports[0]), &["t".into()], PARTITIONS_PER_ANSWER).expect("described");
    let reported: Vec<_> =
        topics[0].partitions.iter().map(|of| (of.partition, of.leader, of.offline.clone())).collect();
    assert_eq!(reported, [(0, Some(1), vec![]), (1, None, vec![2]), (2, None, vec![2])]);
    let first = &topics[0].partitions[0];
    assert_eq!((first.eligible.clone(), first.last_known_eligible.clone()), (Some(vec![1]), None));
}

/// Brokers limit the size of a response, so the client must split a request about many topics.
#[test]
fn settings_of_many_topics_are_requested_a_thousand_at_a_time() {
    let ([first], ports) = listeners();
    let known = ports.clone();
    serve(first, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&known, 1))),
        ApiKey::DescribeConfigs => Some(requested.answer::<DescribeConfigsRequest>(|request| {
            let is_too_much = request.resources.len() > 1_000;
            let error_code = if is_too_much { ErrorCode::POLICY_VIOLATION } else { ErrorCode::NONE };
            let config = DescribeConfigsResourceResult {
                name: "min.insync.replicas".into(),
                value: Some("2".into()),
                ..Default::default()
            };
            let results = request.resources.into_iter().map(|resource| DescribeConfigsResult {
                error_code,
                resource_name: resource.resource_name,
                configs: vec![config.clone()],
                ..Default::default()
            });
            DescribeConfigsResponse { results: results.collect(), ..Default::default() }
        })),
        _ => Some(requested.answer::<DescribeTopicPartitionsRequest>(|request| {
            let topics = request
                .topics
                .into_iter()
                .map(|topic| DescribeTopicPartitionsResponseTopic { name: Some(topic.name), ..Default::default() });
            DescribeTopicPartitionsResponse { topics: topics.collect(), ..Default::default() }
        })),
    });
    let names: Vec<Text> = (0..2_500).map(|number| format!("t{number}").into()).collect();
    let topics = describe_topics(&mut cluster(ports[0]), &names, PARTITIONS_PER_ANSWER).expect("described");
    assert_eq!(topics.iter().filter(|topic| topic.min_in_sync == Some(2)).count(), 2_500);
}
