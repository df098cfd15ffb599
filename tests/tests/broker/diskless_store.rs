//! Diskless topics whose store has faults. It is an S3 store with injected faults, or a directory whose disk is full or
//! read-only.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, serve_refused, wait_until};
use fullbore_wire::ErrorCode;

use super::disk_full::{SmallDisk, ballast};

const TOPIC: &str = "diskless";
const CLASSIC: &str = "classic";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);
/// Length of a record, which is enough for a connection to break in the middle of it.
const LEN: usize = 40_000;

fn on(s3: &S3, more: &[&str]) -> Vec<String> {
    s3.sets().into_iter().chain(more.iter().map(|set| (*set).to_owned())).collect()
}

fn start(sets: &[String]) -> Broker {
    Broker::start(&sets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Sends the batch with this sequence until it is accepted.
fn produce(client: &mut Client, id: i64, sequence: i32) {
    let mut refused = 0;
    wait_until("the batch is taken", SOON, || {
        let answer = client.produce(TOPIC, 0, &Batch::numbered(id, sequence, LEN));
        let error = answer.error_code;
        let is_retriable = [ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::REQUEST_TIMED_OUT].contains(&error);
        assert!(error == ErrorCode::NONE || is_retriable, "{error:?}");
        refused += usize::from(error.is_err());
        error == ErrorCode::NONE && answer.base_offset == i64::from(sequence)
    });
}

fn assert_reads(broker: &Broker, count: i32) {
    let mut client = broker.client();
    for sequence in 0..count {
        let mut found = None;
        wait_until("it is read", SOON, || {
            let answer = client.fetch(TOPIC, 0, i64::from(sequence));
            let records = answer.records.unwrap_or_default();
            let batches = Batch::parse_all(records.memory().expect("read from a socket"));
            found = batches.into_iter().next().map(|mut batch| batch.records.remove(0).value);
            found.is_some()
        });
        assert!(found == Some(Batch::numbered(-1, sequence, LEN).records.remove(0).value), "the record {sequence}");
    }
    assert_eq!(client.latest(TOPIC, 0), i64::from(count));
}

#[test]
fn failed_store_is_named_by_readyz_until_it_responds() {
    let s3 = S3::start();
    let broker = start(&on(&s3, &["fullbore.admin.listener=127.0.0.1:0"]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    produce(&mut client, id, 0);
    let ready = || broker.admin_page("/readyz");
    assert!(ready().ends_with("\nok\n"), "{}", ready());
    s3.every("PUT", S3Fault::Status(503, "SlowDown"));
    client.send_produce(TOPIC, 0, &Batch::numbered(id, 1, LEN));
    wait_until("it is told", SOON, || ready().contains("ok\nrequests to the object store have failed for "));
    assert!(ready().starts_with("HTTP/1.1 200"), "{}", ready());
    s3.heal();
    client.receive_produced();
    produce(&mut client, id, 1);
    assert!(ready().ends_with("\nok\n"), "{}", ready());
}

/// Returns how long the store has failed, as `/readyz` reports it.
fn failing_seconds(broker: &Broker) -> Option<u64> {
    let ready = broker.admin_page("/readyz");
    let (_, rest) = ready.split_once("requests to the object store have failed for ")?;
    rest.split(' ').next()?.parse().ok()
}

#[test]
fn uploads_fail_for_another_reason_within_a_minute_it_is_logged() {
    let s3 = S3::start();
    let broker = start(&on(&s3, &["diskless.produce.max.upload.attempts=1"]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    for (status, code) in [(403, "AccessDenied"), (503, "SlowDown"), (507, "InsufficientStorage")] {
        s3.every("PUT", S3Fault::Status(status, code));
        assert_eq!(client.produce(TOPIC, 0, &Batch::numbered(-1, 0, LEN)).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        wait_until(code, SOON, || {
            broker.stderr().lines().any(|line| line.contains("cannot upload an object") && line.contains(code))
        });
    }
}

#[test]
fn bucket_keeps_acknowledged_records_through_kills_and_faults() {
    let s3 = S3::start();
    let mut broker = start(&on(&s3, &["diskless.consume.cache.max.bytes=0"]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    let mut next = 0;
    let faults = [
        S3Fault::Status(500, "InternalError"),
        S3Fault::Status(503, "SlowDown"),
        S3Fault::Reset,
        S3Fault::AnswerLost,
        S3Fault::Hang,
        S3Fault::Delay(Duration::from_millis(300)),
        S3Fault::Flip,
    ];
    for fault in faults {
        for _ in 0..10 {
            // The broker measures these PUTs to learn their usual duration. Later it hedges PUTs that take much longer.
            produce(&mut client, id, next);
            next += 1;
        }
        s3.next("PUT", fault);
        s3.next("PUT", fault);
        produce(&mut client, id, next);
        next += 1;
    }
    broker.kill();
    broker.restart();
    for fault in faults {
        s3.next("GET", fault);
    }
    s3.next("GET", S3Fault::Stall);
    s3.next("GET", S3Fault::Status(404, "NoSuchKey"));
    assert_reads(&broker, next);
    let mut client = broker.client();
    assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, next - 1, LEN)), i64::from(next - 1), "sent again");
    assert!(broker.data_dir().join("diskless").read_dir().is_err(), "nothing is on the disk");
}

#[test]
fn store_outage_is_a_retriable_error_and_other_topics_are_served() {
    let s3 = S3::start();
    let broker = start(&on(&s3, &[]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    client.create_topic(CLASSIC, 1, &[]);
    let id = client.init_producer_id();
    produce(&mut client, id, 0);
    for method in ["PUT", "GET", "DELETE"] {
        s3.every(method, S3Fault::Status(503, "SlowDown"));
    }
    for sequence in 0..5 {
        let refused = client.produce(TOPIC, 0, &Batch::numbered(id, 1, LEN));
        assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!(client.produced(CLASSIC, 0, &Batch::of(&["a"])), sequence);
    }
    broker.wait_for_stderr("SlowDown: It is a test.");
    s3.heal();
    for sequence in 1..5 {
        produce(&mut client, id, sequence);
    }
    assert_reads(&broker, 5);
}

#[test]
fn fetch_before_its_records_arrive_returns_the_bounds_of_the_partition() {
    let s3 = S3::start();
    let mut broker = start(&on(&s3, &[]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    (0..5).for_each(|sequence| produce(&mut client, id, sequence));
    client.delete_records(TOPIC, 0, 2);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.latest(TOPIC, 0), 5);
    s3.every("GET", S3Fault::Hang);
    let request = fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset: 3 }], 1, 0);
    let data = client.call(&request, 12).responses.remove(0).partitions.remove(0);
    assert_eq!((data.error_code, data.records.map_or(0, |records| records.len())), (ErrorCode::NONE, 0));
    assert_eq!((data.log_start_offset, data.high_watermark, data.last_stable_offset), (2, 5, 5));
    s3.heal();
}

#[test]
fn start_waits_for_an_unavailable_store() {
    let s3 = S3::start();
    for method in ["PUT", "GET", "DELETE"] {
        s3.every(method, S3Fault::Reset);
    }
    let broker = start(&on(&s3, &[]));
    broker.wait_for_stderr("cannot open the object store");
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    client.create_topic(CLASSIC, 1, &[]);
    let id = client.init_producer_id();
    assert_eq!(client.produced(CLASSIC, 0, &Batch::of(&["a"])), 0);
    assert_eq!(client.produce(TOPIC, 0, &Batch::numbered(id, 0, LEN)).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    s3.heal();
    produce(&mut client, id, 0);
    assert_reads(&broker, 1);
}

/// Regression: if the store did not respond while the broker started, the broker served no request for ten seconds.
#[test]
fn silent_store_at_the_start_does_not_delay_other_topics() {
    let s3 = S3::start();
    let mut broker = start(&on(&s3, &[]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    client.create_topic(CLASSIC, 1, &[]);
    let id = client.init_producer_id();
    produce(&mut client, id, 0);
    broker.stop();
    ["GET", "PUT", "DELETE"].iter().for_each(|method| s3.every(method, S3Fault::Hang));
    broker.restart();
    broker.wait_for_stderr("cannot open the object store: this broker's diskless topics accept no records");
    broker.wait_for_stderr("no answer within 1 s");
    let mut client = broker.client();
    assert_eq!(client.produce(CLASSIC, 0, &Batch::of(&["a"])).error_code, ErrorCode::NONE);
    assert_eq!(client.produce(TOPIC, 0, &Batch::numbered(id, 1, LEN)).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    s3.heal();
    produce(&mut client, id, 1);
    assert_reads(&broker, 2);
}

#[test]
fn refusal_of_the_store_ends_the_start_with_its_message_and_without_the_secret() {
    let s3 = S3::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let refused = |sets: &[String]| {
        let sets: Vec<_> = sets.iter().map(String::as_str).collect();
        serve_refused(directory.path(), &sets).stderr
    };
    let wrong = "diskless.storage.aws.secret.access.key=TOPSECRET";
    let refusal = refused(&on(&s3, &[wrong]));
    assert!(
        refusal.contains("diskless.storage=s3://objects/prefix: the object store refuses: SignatureDoesNotMatch"),
        "{refusal}"
    );
    assert!(!refusal.contains("TOPSECRET") && refusal.lines().count() == 1, "{refusal}");
    drop(start(&on(&s3, &[])));
    let refusal = refused(&on(&s3, &[]));
    assert!(
        refusal.contains("diskless.storage=s3://objects/prefix: the store has objects of the cluster "),
        "{refusal}"
    );
}

#[test]
fn idle_broker_sends_no_put() {
    let s3 = S3::start();
    let broker = start(&on(&s3, &[]));
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    produce(&mut client, -1, 0);
    let before = s3.requests("PUT");
    // All these requests last for many commit intervals. A broker that sends PUTs without new batches would send some
    // meanwhile.
    for _ in 0..20 {
        assert_eq!(client.latest(TOPIC, 0), 1);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(s3.requests("PUT"), before);
}

#[test]
fn full_store_is_an_error_until_space_is_free() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let storage = format!("diskless.storage={}", disk.path().join("objects").display());
    let broker = Broker::start(&[&storage, "fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    let ballast = ballast(&disk, 4 << 20);
    let mut next = 0;
    let refused = loop {
        let answer = client.produce(TOPIC, 0, &Batch::numbered(id, next, LEN));
        if answer.error_code.is_err() {
            break answer.error_code;
        }
        next += 1;
        assert!(next < 1000, "8 MiB hold more than 100 MB");
    };
    assert_eq!(refused, ErrorCode::KAFKA_STORAGE_ERROR);
    // On the full disk, objects can still be read and deleted, so the broker's probes of the store succeed.
    wait_until("/readyz has the time since the first refusal", SOON, || {
        assert_eq!(
            client.produce(TOPIC, 0, &Batch::numbered(id, next, LEN)).error_code,
            ErrorCode::KAFKA_STORAGE_ERROR
        );
        failing_seconds(&broker) > Some(6)
    });
    std::fs::remove_file(ballast).expect("deleted");
    produce(&mut client, id, next);
    assert_reads(&broker, next + 1);
}

/// Starts a service that issues the credentials of the store. Returns its URL, and the heads of its requests.
fn credential_service() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let url = format!("http://{}/get", listener.local_addr().expect("bound"));
    let (heads, received) = channel();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).expect("a request");
                head.extend(byte);
            }
            let (id, secret) = (S3::KEY_ID, S3::SECRET);
            let body = format!(
                r#"{{"AccessKeyId":"{id}","SecretAccessKey":"{secret}","Token":"t","Expiration":"2099-01-01T00:00:00Z"}}"#
            );
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            socket.write_all(answer.as_bytes()).expect("it reads");
            // The send fails if the test is over.
            drop(heads.send(String::from_utf8_lossy(&head).to_lowercase()));
        }
    });
    (url, received)
}

/// Returns the settings of a broker that gets its credentials from a service in the container.
fn in_container(s3: &S3, url: &str, more: &[&str]) -> Vec<String> {
    let service = format!("env:AWS_CONTAINER_CREDENTIALS_FULL_URI={url}");
    let sets = on(s3, &[&[service.as_str(), "env:HOME=/none"], more].concat());
    sets.into_iter().filter(|set| !set.contains("access.key")).collect()
}

#[test]
fn container_service_needs_no_token_file_its_credentials_are_used() {
    for (more, header) in [(&[][..], None), (&["env:AWS_CONTAINER_AUTHORIZATION_TOKEN=secret\n"], Some("secret"))] {
        let (s3, (url, heads)) = (S3::start(), credential_service());
        let broker = start(&in_container(&s3, &url, more));
        let mut client = broker.client();
        client.create_topic(TOPIC, 1, CONFIGS);
        let id = client.init_producer_id();
        produce(&mut client, id, 0);
        let head = heads.recv_timeout(SOON).expect("it was asked");
        let sent = head.lines().find_map(|line| line.strip_prefix("authorization: "));
        assert_eq!(sent, header, "{head}");
    }
}

#[test]
fn container_service_is_far_and_has_no_token_file_the_start_is_refused() {
    let (s3, directory) = (S3::start(), tempfile::tempdir().expect("a directory"));
    let sets = in_container(&s3, "http://vault.example/get", &[]);
    let refused = serve_refused(directory.path(), &sets.iter().map(String::as_str).collect::<Vec<_>>());
    let reported = "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://vault.example/get: must begin with https://";
    assert!(!refused.status.success() && refused.stderr.contains(reported), "{}", refused.stderr);
}
