//! The admin page of a running broker, over a real socket.

use fullbore_broker::config::{BrokerConfig, Properties};
use fullbore_broker::{Broker, StartError};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

fn config(folder: &Path, admin: &str) -> BrokerConfig {
    let folder = folder.display();
    let typed =
        format!("log.dirs={folder}\nnode.id=3\nlisteners=PLAINTEXT://127.0.0.1:0\nfullbore.admin.listener={admin}\n");
    let typed = Properties::parse(&typed).expect("properties");
    BrokerConfig::from_properties(&typed).expect("a config").0
}

async fn get(addr: SocketAddr, path: &str) -> String {
    let asking = async {
        let mut stream = TcpStream::connect(addr).await.expect("the admin page listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the broker reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("the broker answers");
        answer
    };
    timeout(PATIENCE, asking).await.expect("an answer in time")
}

/// ApiVersions v0, asked and answered.
async fn api_versions(stream: &mut TcpStream) {
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xFF, 0xFF];
    stream.write_all(&request).await.expect("the broker reads");
    let len = stream.read_u32().await.expect("a length");
    let mut answer = vec![0; len as usize];
    stream.read_exact(&mut answer).await.expect("a whole frame");
}

#[tokio::test]
async fn shows_what_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(config(folder.path(), "127.0.0.1:0")).await.expect("starts");
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
    // The second answer may be with us before it is counted; the first is.
    let count = page
        .lines()
        .find_map(|line| line.strip_prefix("fullbore_request_duration_seconds_count{api=\"ApiVersions\"} "))
        .expect("ApiVersions is counted");
    assert!(matches!(count, "1" | "2"), "{count}");
    broker.shutdown().await;
}

#[tokio::test]
async fn health_and_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a data folder");
    let broker = Broker::start(config(&data, "127.0.0.1:0")).await.expect("starts");
    let admin = broker.admin_addr().expect("the page is on");
    let index = get(admin, "/").await;
    assert!(
        index.contains("broker 3 of cluster") && index.contains("/metrics") && index.contains("/healthz"),
        "{index}"
    );
    let healthy = get(admin, "/healthz").await;
    assert!(healthy.starts_with("HTTP/1.1 200 ") && healthy.ends_with("\r\n\r\nok\n"), "{healthy}");

    std::fs::rename(&data, folder.path().join("gone")).expect("the folder moves");
    let unhealthy = get(admin, "/healthz").await;
    assert!(unhealthy.starts_with("HTTP/1.1 503 ") && unhealthy.contains("the data folder"), "{unhealthy}");
    std::fs::rename(folder.path().join("gone"), &data).expect("the folder moves back");
    let healthy = get(admin, "/healthz").await;
    assert!(healthy.starts_with("HTTP/1.1 200 "), "{healthy}");
    broker.shutdown().await;
    assert!(TcpStream::connect(admin).await.is_err(), "the page is gone with the broker");
}

#[tokio::test]
async fn off_when_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(config(folder.path(), "")).await.expect("starts");
    assert_eq!(broker.admin_addr(), None);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = taken.local_addr().expect("an address");
    match Broker::start(config(folder.path(), &addr.to_string())).await {
        Err(error @ StartError::Bind { .. }) => {
            assert_eq!(error.to_string(), format!("cannot listen on {addr}: the port is taken by another program"));
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("started on a taken port"),
    }
}
