//! Tests the admin page of a running broker over a real socket.

use bytes::{Bytes, BytesMut};
use fullbore_broker::{Broker, StartError};
use fullbore_config::{BrokerConfig, Properties};
use fullbore_wire::api::{Request, decode_response, encode_request};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use fullbore_wire::{ErrorCode, Frame, Part, Records, Text};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(120);

fn config(directory: &Path, admin: &str) -> BrokerConfig {
    let directory = directory.display();
    let typed = format!(
        "log.dirs={directory}\nnode.id=3\nlisteners=PLAINTEXT://127.0.0.1:0\nfullbore.admin.listener={admin}\n"
    );
    let typed = Properties::parse(&typed).expect("properties");
    BrokerConfig::from_properties(&typed).expect("a config").0
}

async fn get(addr: SocketAddr, path: &str) -> String {
    let requesting = async {
        let mut stream = TcpStream::connect(addr).await.expect("the admin page listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the broker reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("the broker answers");
        answer
    };
    timeout(PATIENCE, requesting).await.expect("an answer in time")
}

async fn send(stream: &mut TcpStream, frame: &Frame) {
    for part in &frame.parts {
        let Part::Bytes(bytes) = part else { panic!("requests are in memory") };
        stream.write_all(bytes).await.expect("the broker reads");
    }
}

async fn request<R: Request>(stream: &mut TcpStream, request: &R, version: i16) -> R::Response {
    send(stream, &encode_request(request, version, 1, None).expect("a request")).await;
    let len = stream.read_u32().await.expect("a length");
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer).await.expect("a whole frame");
    decode_response::<R>(answer.into(), version).expect("a response").1
}

/// Returns a produce request with this batch for partition 0 of a topic.
fn produce(topic: &'static str, acks: i16, batch: &Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: 0, records: Some(Records::Memory(batch.clone())), ..Default::default() };
    let name = Text::from_static(topic);
    let topic_data = vec![TopicProduceData { name, partition_data: vec![data], ..Default::default() }];
    ProduceRequest { acks, timeout_ms: 1000, topic_data, ..Default::default() }
}

fn two_records() -> Bytes {
    let mut batch = BatchBuilder::new(BytesMut::with_capacity(1024), Compression::None, None);
    batch.append(1, None, Some(b"one"), &[]);
    batch.append(2, None, Some(b"two"), &[]);
    batch.seal(Stamp::NONE).expect("nothing to compress").0.freeze()
}

fn fetch(topic: &'static str, offset: i64) -> FetchRequest {
    let partition = FetchPartition { fetch_offset: offset, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = Text::from_static(topic);
    let topics = vec![FetchTopic { topic, partitions: vec![partition], ..Default::default() }];
    FetchRequest { topics, max_bytes: 1 << 20, min_bytes: 1, max_wait_ms: 0, ..Default::default() }
}

/// Sends ApiVersions v0 and reads the response.
async fn api_versions(stream: &mut TcpStream) {
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xFF, 0xFF];
    stream.write_all(&request).await.expect("the broker reads");
    let len = stream.read_u32().await.expect("a length");
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer).await.expect("a whole frame");
}

#[tokio::test]
async fn metrics_page_shows_connections_and_requests() {
    let directory = tempfile::tempdir().expect("a directory");
    let broker = Broker::start(config(directory.path(), "127.0.0.1:0")).await.expect("starts");
    let admin = broker.admin_addr().expect("the page is on");
    let mut client = TcpStream::connect(broker.addr()).await.expect("the broker listens");
    api_versions(&mut client).await;
    api_versions(&mut client).await;

    let page = get(admin, "/metrics").await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(page.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    assert!(page.contains(&format!("cluster_id=\"{}\",node_id=\"3\"", broker.cluster_id())), "{page}");
    for line in [
        "fullbore_connections_open 1",
        "fullbore_connections_accepted_total 1",
        "fullbore_topics 0",
        "fullbore_partitions 0",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
    }
    // The broker may count a response after the client has read it. So two responses are counted as one or two.
    let count = page
        .lines()
        .find_map(|line| line.strip_prefix("fullbore_request_duration_seconds_count{api=\"ApiVersions\"} "))
        .expect("ApiVersions is counted");
    assert!(matches!(count, "1" | "2"), "{count}");
    broker.shutdown().await;
}

#[tokio::test]
async fn counts_records_errors_and_refusals() {
    let directory = tempfile::tempdir().expect("a directory");
    let broker = Broker::start(config(directory.path(), "127.0.0.1:0\nmax.connections=1")).await.expect("starts");
    let admin = broker.admin_addr().expect("the page is on");
    let mut client = TcpStream::connect(broker.addr()).await.expect("the broker listens");
    let name = Text::from_static("t");
    let topic = CreatableTopic { name, num_partitions: 2, replication_factor: 1, ..Default::default() };
    let created = request(&mut client, &CreateTopicsRequest { topics: vec![topic], ..Default::default() }, 7).await;
    assert_eq!(created.topics[0].error_code, ErrorCode::NONE);

    let batch = two_records();
    // The request with acks=0 is sent first. Once a later response on this connection arrives, that request was
    // processed as well.
    send(&mut client, &encode_request(&produce("t", 0, &batch), 9, 1, None).expect("a request")).await;
    let taken = request(&mut client, &produce("t", 1, &batch), 9).await;
    assert_eq!(taken.responses[0].partition_responses[0].base_offset, 2);
    let refused = request(&mut client, &produce("nowhere", 1, &batch), 9).await;
    assert_eq!(refused.responses[0].partition_responses[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let fetched = request(&mut client, &fetch("t", 0), 12).await;
    let records = fetched.responses[0].partitions[0].records.as_ref().expect("records");
    assert_eq!(records.len(), 2 * batch.len());
    let past = request(&mut client, &fetch("t", 99), 12).await;
    assert_eq!(past.responses[0].partitions[0].error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    let mut second = TcpStream::connect(broker.addr()).await.expect("the system accepts");
    assert!(timeout(PATIENCE, second.read_u8()).await.expect("closed in time").is_err());

    let page = get(admin, "/metrics").await;
    let bytes = 2 * batch.len();
    for line in [
        "fullbore_connections_open 1",
        "fullbore_connections_refused_total 1",
        "fullbore_topics 1",
        "fullbore_partitions 2",
        "fullbore_produce_batches_total 2",
        "fullbore_produce_records_total 4",
        &format!("fullbore_produce_bytes_total {bytes}"),
        "fullbore_produce_unanswered_total 1",
        "fullbore_produce_errors_total{code=\"UNKNOWN_TOPIC_OR_PARTITION\"} 1",
        &format!("fullbore_fetch_bytes_total {bytes}"),
        "fullbore_fetch_errors_total{code=\"OFFSET_OUT_OF_RANGE\"} 1",
        "fullbore_request_duration_seconds_count{api=\"CreateTopics\"} 1",
        "fullbore_request_duration_seconds_count{api=\"Produce\"} 2",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn health_and_index_pages_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a data directory");
    let broker = Broker::start(config(&data, "127.0.0.1:0")).await.expect("starts");
    let admin = broker.admin_addr().expect("the page is on");
    let index = get(admin, "/").await;
    assert!(
        index.contains("broker 3 of cluster") && index.contains("/metrics") && index.contains("/healthz"),
        "{index}"
    );
    for path in ["/healthz", "/readyz", "/livez"] {
        let healthy = get(admin, path).await;
        assert!(healthy.starts_with("HTTP/1.1 200 ") && healthy.ends_with("\r\n\r\nok\n"), "{healthy}");
    }
    let page = get(admin, "/metrics").await;
    assert!(!page.contains("\nfullbore_control_plane"), "there is no database on one machine: {page}");

    std::fs::rename(&data, directory.path().join("gone")).expect("the directory moves");
    let unhealthy = get(admin, "/healthz").await;
    assert!(unhealthy.starts_with("HTTP/1.1 503 ") && unhealthy.contains("the data directory"), "{unhealthy}");
    assert_eq!(get(admin, "/readyz").await.lines().last(), unhealthy.lines().last());
    assert!(get(admin, "/livez").await.starts_with("HTTP/1.1 200 "), "a new start finds no directory either");
    std::fs::rename(directory.path().join("gone"), &data).expect("the directory moves back");
    let healthy = get(admin, "/healthz").await;
    assert!(healthy.starts_with("HTTP/1.1 200 "), "{healthy}");
    broker.shutdown().await;
    assert!(TcpStream::connect(admin).await.is_err(), "the page is gone with the broker");
}

#[tokio::test]
async fn admin_page_is_off_without_a_listener() {
    let directory = tempfile::tempdir().expect("a directory");
    let broker = Broker::start(config(directory.path(), "")).await.expect("starts");
    assert_eq!(broker.admin_addr(), None);
    broker.shutdown().await;
}

#[tokio::test]
async fn taken_port_is_named_in_the_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = taken.local_addr().expect("an address");
    match Broker::start(config(directory.path(), &addr.to_string())).await {
        Err(error @ StartError::BindAdmin { .. }) => {
            let expected = format!(
                "fullbore.admin.listener={addr}: the port is taken; set another address, or leave the key empty"
            );
            assert_eq!(error.to_string(), expected);
            assert_eq!(directory.path().read_dir().expect("listed").count(), 0, "nothing is left in the directory");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("started on a taken port"),
    }
}
