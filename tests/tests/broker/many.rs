//! A thousand topics of ten partitions. All must be available after a restart, with limited memory and descriptors.

use fullbore_tests::{Batch, Broker, topic_data};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::io::Write;

const TOPICS: usize = 1000;
const PARTITIONS: i32 = 10;
const MIB: u64 = 1 << 20;

fn name(n: usize) -> String {
    format!("topic-{n:04}")
}

#[test]
fn ten_thousand_partitions_survive_restarts_with_bounded_memory_and_descriptors() {
    // The broker raises its limit of open files to the hard limit that is checked here. Each partition keeps a
    // descriptor open for a while after a write.
    if open_files_max() < 12_000 {
        let _ = writeln!(std::io::stderr(), "skipped: 12,000 open files are not permitted here");
        return;
    }
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    for first in (0..TOPICS).step_by(100) {
        let topic = |n| CreatableTopic {
            name: name(n).into(),
            num_partitions: PARTITIONS,
            replication_factor: 1,
            ..Default::default()
        };
        let topics = (first..first + 100).map(topic).collect();
        let created = client.call(&CreateTopicsRequest { topics, ..Default::default() }, 7);
        assert!(created.topics.iter().all(|topic| !topic.error_code.is_err()));
    }
    write_everywhere(&broker, 0);
    for end in [Broker::kill, Broker::stop] {
        end(&mut broker);
        broker.restart();
        let (rss, descriptors) = (broker.rss() / MIB, broker.descriptors());
        assert!(rss < 200, "{rss} MiB after the start");
        assert!(descriptors < 200, "{descriptors} descriptors after the start");
        let mut client = broker.client();
        let all = client.call(&MetadataRequest { topics: None, ..Default::default() }, 9);
        assert_eq!(all.topics.len(), TOPICS);
        assert!(all.topics.iter().all(|topic| topic.partitions.len() == 10));
        for n in [0, TOPICS / 2, TOPICS - 1] {
            assert_eq!(client.fetch_records(&name(n), 9)[0].text(), format!("{n}"));
        }
    }
    write_everywhere(&broker, 1);
    assert!(broker.descriptors() < 2 * TOPICS * 10, "{} descriptors", broker.descriptors());
}

/// Writes one batch to each partition, with one request per topic and all requests in flight at once. Each batch must
/// get the offset `offset`.
fn write_everywhere(broker: &Broker, offset: i64) {
    let mut reader = broker.client();
    let mut writer = reader.split();
    let writing = std::thread::spawn(move || {
        for n in 0..TOPICS {
            let batch = Batch::of(&[format!("{n}")]).bytes();
            let partitions: Vec<_> = (0..PARTITIONS).map(|partition| (partition, batch.clone())).collect();
            let topic_data = vec![topic_data(&name(n), &partitions)];
            writer.send(&ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() }, 9);
        }
    });
    for _ in 0..TOPICS {
        let (_, response) = reader.receive::<ProduceRequest>(9);
        for partition in &response.responses[0].partition_responses {
            assert_eq!(partition.base_offset, offset, "{partition:?}");
        }
    }
    writing.join().expect("the writer does not fail");
}

fn open_files_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.maximum.unwrap_or(u64::MAX)
}
