//! Log lines that one cause could repeat with every request. The broker writes at most one a minute, with the number of
//! lines that it left out.

use crate::disk_full::SmallDisk;
use crate::groups::Member;
use fullbore_tests::{Batch, Broker, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use std::time::{Duration, Instant};

const TOPIC: &str = "seldom";
/// How often each cause occurs.
const TIMES: usize = 300;
const HANGS: Duration = Duration::from_secs(120);

/// Checks that `words` is in a line, and in at most one line for each minute since `since`.
pub fn assert_seldom(broker: &Broker, words: &str, since: Instant) {
    broker.wait_for_stderr(words);
    let stderr = broker.stderr();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains(words)).collect();
    let minutes = since.elapsed().as_secs() as usize / 60;
    assert!(lines.len() <= 1 + minutes, "{} lines: {:?}", lines.len(), &lines[..3]);
    assert!(lines.iter().all(|line| line.contains("left_out")), "{lines:?}");
}

#[test]
fn hundreds_of_logs_without_a_descriptor_are_one_line() {
    const PARTITIONS: i32 = 10;
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[]);
    for partition in 0..PARTITIONS {
        client.produced(TOPIC, partition, &Batch::of(&["x"]));
    }
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    client.offered();
    broker.refuse_descriptors();
    let since = Instant::now();
    let from: Vec<FetchFrom<'_>> =
        (0..PARTITIONS).map(|partition| FetchFrom { topic: TOPIC, partition, offset: 0 }).collect();
    let mut refused = 0;
    while refused < TIMES {
        let fetched = client.call::<FetchRequest>(&fetch_request(&from, 1, 0), 12);
        let codes = fetched.responses[0].partitions.iter().map(|found| found.error_code);
        // Partitions whose logs are still being opened have no error yet.
        refused += codes.filter(|code| *code == ErrorCode::KAFKA_STORAGE_ERROR).count();
    }
    assert_seldom(&broker, "cannot open a partition", since);
    broker.allow_descriptors();
    assert_eq!(client.fetch_records(TOPIC, 0).len(), 1);
}

/// Regression: each of these appends logged a line, thousands a second.
#[test]
fn hundreds_of_appends_without_a_descriptor_are_one_line() {
    const PARTITIONS: i32 = 10;
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]);
    let batch = |size: usize| Batch::of(&[vec![b'.'; size]]);
    for partition in 0..PARTITIONS {
        client.produced(TOPIC, partition, &batch(1_000_000));
    }
    broker.refuse_descriptors();
    let since = Instant::now();
    for number in 0..TIMES as i32 {
        // The batch needs a new segment, but the broker cannot open its files.
        let refused = client.produce(TOPIC, number % PARTITIONS, &batch(100_000));
        assert_ne!(refused.error_code, ErrorCode::NONE);
    }
    assert_seldom(&broker, "cannot append to the log", since);
    broker.allow_descriptors();
    wait_until("all partitions take records again", HANGS, || {
        (0..PARTITIONS).all(|at| client.produce(TOPIC, at, &batch(100_000)).error_code == ErrorCode::NONE)
    });
}

#[test]
fn hundreds_of_groups_that_cannot_be_written_are_one_line() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let broker = Broker::start_in(&disk.path().join("data"), &["group.initial.rebalance.delay.ms=0"]);
    let mut members: Vec<Member> = (0..TIMES).map(|number| Member::new(&broker, &format!("g{number}"))).collect();
    // The topic of the groups must exist before the disk is full.
    let group = FindCoordinatorRequest { key: "g0".into(), ..Default::default() };
    assert_eq!(broker.client().call(&group, 3).error_code, ErrorCode::NONE);
    assert!(std::fs::write(disk.path().join("ballast"), vec![0; 16 << 20]).is_err(), "8 MiB hold less than 16");
    let since = Instant::now();
    for member in &mut members {
        member.send_join();
        let joined = member.joined();
        // A group is written to its log after its leader has assigned partitions.
        assert_eq!(joined.error_code, ErrorCode::NONE);
        member.send_sync();
        assert_eq!(member.synced().error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    assert_seldom(&broker, "cannot write the records of a group's members", since);
}

#[test]
fn hundreds_of_groups_beyond_the_limit_are_one_line() {
    let broker = Broker::start(&["fullbore.groups.max=1", "fullbore.groups.bytes.max=1048576"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let since = Instant::now();
    for number in 0..TIMES {
        let partitions = vec![OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() }];
        let topics = vec![OffsetCommitRequestTopic { name: TOPIC.into(), partitions, ..Default::default() }];
        let request = OffsetCommitRequest { group_id: format!("g{number}").into(), topics, ..Default::default() };
        let code = client.call(&request, 8).topics[0].partitions[0].error_code;
        assert_eq!(code == ErrorCode::NONE, number == 0, "{code:?}");
    }
    assert_seldom(&broker, "fullbore.groups.max", since);
    let mut large = Member::new(&broker, "g0").request();
    large.protocols[0].metadata = vec![0; 2 << 20].into();
    for _ in 0..TIMES {
        assert_eq!(client.call(&large, 3).error_code, ErrorCode::GROUP_MAX_SIZE_REACHED);
    }
    assert_seldom(&broker, "fullbore.groups.bytes.max", since);
}
