//! Older records of diskless topics, which the broker must fetch from the store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::ErrorCode;

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);

/// Returns the value of the record at `offset`. Retries until the record is there.
fn read(client: &mut Client, offset: i64) -> String {
    let mut found = None;
    wait_until("it is read", SOON, || {
        let answer = client.fetch(TOPIC, 0, offset);
        assert_eq!(answer.error_code, ErrorCode::NONE);
        let records = answer.records.unwrap_or_default();
        found = Batch::parse_all(records.memory().expect("read from a socket"))
            .first()
            .map(|first| first.records[0].text());
        found.is_some()
    });
    found.expect("read")
}

/// Returns the largest file in a directory or below it.
fn largest(directory: &Path) -> PathBuf {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files.into_iter().max_by_key(|file| file.metadata().expect("there").len()).expect("a file")
}

#[test]
fn batches_larger_than_the_whole_cache_are_read() {
    let mut broker = Broker::start(&["diskless.consume.cache.max.bytes=0", "message.max.bytes=40000000"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let text = |at: u8| char::from(b'a' + at).to_string().repeat(17 << 20);
    for at in 0..2 {
        client.produced(TOPIC, 0, &Batch::of(&[text(at)]));
    }
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    for at in 0..2 {
        assert!(read(&mut client, i64::from(at)) == text(at), "the record {at}");
    }
}

#[test]
fn truncated_object_is_an_error_until_it_is_whole_again() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let text = "text ".repeat(100_000);
    client.produced(TOPIC, 0, &Batch::of(&[text.as_str()]));
    broker.kill();
    let object = largest(&broker.data_dir().join("diskless"));
    let whole = std::fs::read(&object).expect("an object");
    std::fs::write(&object, &whole[..whole.len() - 1]).expect("written");
    broker.restart();
    let mut client = broker.client();
    wait_until("it is an error", SOON, || client.fetch(TOPIC, 0, 0).error_code == ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr("cannot read records of a diskless topic");
    std::fs::write(&object, &whole).expect("written");
    wait_until("it is none", SOON, || client.fetch(TOPIC, 0, 0).error_code == ErrorCode::NONE);
    assert!(read(&mut client, 0) == text);
}
