//! DescribeLogDirs and DescribeProducers: the sizes of partitions and their producers.

use fullbore_tests::{Batch, Broker, Client, NO_RETENTION, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
};
use fullbore_wire::apis::describe_producers::{
    DescribeProducersRequest, PartitionResponse, ProducerState, TopicRequest,
};
use std::process::Command;
use std::time::Duration;

fn log_dirs(client: &mut Client, requested: Option<&[(&str, &[i32])]>, version: i16) -> DescribeLogDirsResponse {
    let topic = |(name, partitions): &(&str, &[i32])| DescribableLogDirTopic {
        topic: (*name).into(),
        partitions: partitions.to_vec(),
        ..Default::default()
    };
    let topics = requested.map(|requested| requested.iter().map(topic).collect());
    client.call(&DescribeLogDirsRequest { topics, ..Default::default() }, version)
}

/// Returns the topic, partition and size of each log in the result.
fn sizes(result: &DescribeLogDirsResult) -> Vec<(String, i32, i64)> {
    let mut sizes = Vec::new();
    for topic in &result.topics {
        for partition in &topic.partitions {
            assert_eq!((partition.offset_lag, partition.is_future_key), (0, false));
            sizes.push((topic.name.to_string(), partition.partition_index, partition.partition_size));
        }
    }
    sizes.sort();
    sizes
}

#[test]
fn sizes_match_the_files_before_and_after_a_restart() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("a", 2, &[]);
    client.create_topic("b", 1, &[]);
    let batch = Batch::of(&["x".repeat(1000)]);
    for _ in 0..3 {
        client.produced("a", 1, &batch);
    }
    let size = i64::try_from(3 * batch.bytes().len()).expect("small");
    let all = [("a".to_owned(), 0, 0), ("a".to_owned(), 1, size), ("b".to_owned(), 0, 0)];
    for version in 1..=5 {
        let response = log_dirs(&mut client, None, version);
        assert_eq!((response.error_code, response.results.len()), (ErrorCode::NONE, 1));
        let result = &response.results[0];
        assert_eq!(result.error_code, ErrorCode::NONE);
        assert_eq!(result.log_dir.as_str(), broker.data_dir().to_str().expect("text"));
        assert_eq!(sizes(result), all, "version {version}");
        let (total, usable) = (result.total_bytes, result.usable_bytes);
        match version {
            4.. => assert!(0 < usable && usable <= total, "{usable} of {total}"),
            _ => assert_eq!((total, usable), (-1, -1)),
        }
        assert!(!result.is_cordoned);
    }
    let requested: &[(&str, &[i32])] = &[("a", &[1, 7]), ("nowhere", &[0]), ("b", &[])];
    assert_eq!(sizes(&log_dirs(&mut client, Some(requested), 4).results[0]), [("a".to_owned(), 1, size)]);
    assert!(sizes(&log_dirs(&mut client, Some(&[]), 4).results[0]).is_empty());
    broker.stop();
    broker.restart();
    let descriptors = broker.descriptors();
    let mut client = broker.client();
    assert_eq!(sizes(&log_dirs(&mut client, None, 5).results[0]), all);
    assert!(broker.descriptors() <= descriptors + 1, "no log is opened for its size");
}

/// Returns the output of `fullbore topics describe` for the topic "t".
fn described(broker: &Broker, flags: &[&str]) -> String {
    let mut command = Command::new(fullbore_tests::binary());
    command.args(["topics", "describe", "--topic", "t", "--bootstrap-server", &broker.addr().to_string()]).args(flags);
    String::from_utf8(command.output().expect("it runs").stdout).expect("text")
}

#[test]
fn files_set_aside_after_a_power_loss_are_counted_and_described() {
    let mut broker = Broker::start(&["fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic("t", 2, &[]);
    client.produced("t", 1, &Batch::of(&["x"]));
    broker.stop();
    let beside = broker.partition_dir("t", 1).join(format!("{:020}.log.aside-1", 5));
    std::fs::write(&beside, "12345").expect("written");
    broker.restart();
    let metrics = |broker: &Broker| {
        let page = broker.admin_page("/metrics");
        let of = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        (of("fullbore_set_aside_files "), of("fullbore_set_aside_bytes "))
    };
    let (one, none) = ((Some("1".to_owned()), Some("5".to_owned())), (Some("0".to_owned()), Some("0".to_owned())));
    wait_until("it is found", Duration::from_secs(30), || metrics(&broker) == one);
    let mut client = broker.client();
    for version in 1..=5 {
        let result = log_dirs(&mut client, None, version).results.remove(0);
        let topic = result.topics.iter().find(|topic| topic.name == "t").expect("there");
        let reported: Vec<_> = topic.partitions.iter().map(|one| (one.set_aside_files, one.set_aside_bytes)).collect();
        let expected = if version < 2 { [(0, 0), (0, 0)] } else { [(0, 0), (1, 5)] };
        assert_eq!(reported, expected, "version {version}");
    }
    let describe = |flags: &[&str]| described(&broker, flags);
    let shown = describe(&[]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.len() == 3 && !lines[1].contains("SetAside"), "{shown}");
    assert!(lines[2].ends_with("\tSetAside: 1 file, 5 bytes"), "{shown}");
    let json = describe(&["--json"]);
    assert!(json.contains(r#""set_aside":{"files":1,"bytes":5}"#) && json.matches("set_aside").count() == 1, "{json}");
    std::fs::remove_file(beside).expect("ours");
    assert_eq!(metrics(&broker), none);
    assert!(!describe(&[]).contains("SetAside"));
}

#[test]
fn refused_partition_is_described_and_found_as_unavailable() {
    let mut broker = Broker::start(&["fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic("t", 2, &[]);
    client.produced("t", 1, &Batch::of(&["flushed by the stop"]));
    broker.stop();
    let log = broker.partition_dir("t", 1).join(format!("{:020}.log", 0));
    let mut bytes = std::fs::read(&log).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, &bytes).expect("damaged");
    broker.restart();
    broker.kill();
    broker.restart();
    let refused = |page: String| page.lines().any(|line| line == "fullbore_partitions_refused 1");
    wait_until("it is found", Duration::from_secs(30), || refused(broker.admin_page("/metrics")));
    let describe = |flags: &[&str]| described(&broker, flags);
    let shown = describe(&["--unavailable-partitions"]);
    assert!(shown.lines().count() == 1 && shown.ends_with("\tRefused: damaged\n"), "{shown}");
    assert!(shown.contains("Partition: 1\t"), "{shown}");
    assert_eq!(describe(&["--json"]).matches(r#""refused":true"#).count(), 1);
    assert_eq!(std::fs::read(&log).expect("there"), bytes, "nothing of it is cut off");
}

#[test]
fn partition_without_its_topic_id_is_refused_until_the_named_lines_are_written() {
    let mut broker = Broker::start(&["fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    (0..3).for_each(|n| assert_eq!(client.produced("t", 0, &Batch::of(&["one"])), n));
    let file = broker.partition_dir("t", 0).join("partition.metadata");
    let whole = std::fs::read_to_string(&file).expect("there");
    let id = whole.lines().nth(1).expect("a second line");
    broker.stop();
    std::fs::write(&file, "").expect("emptied");
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.produce("t", 0, &Batch::of(&["x"])).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(client.fetch("t", 0, 0).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr("cannot open a partition");
    let reported = broker.stderr();
    assert!(
        reported.contains("partition.metadata: the file is empty") && reported.contains(&format!("`{id}`")),
        "{reported}"
    );
    assert!(described(&broker, &["--unavailable-partitions"]).ends_with("\tRefused: damaged\n"));
    let ready = broker.admin_page("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("ok\ncannot serve 1 damaged partitions: "), "{ready}");
    broker.stop();
    std::fs::write(&file, &whole).expect("written");
    broker.restart();
    assert_eq!(broker.client().produced("t", 0, &Batch::of(&["x"])), 3);
    assert!(broker.admin_page("/readyz").ends_with("\r\n\r\nok\n"));
}

#[test]
fn unreadable_data_directory_is_a_storage_error() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.produced("t", 0, &Batch::of(&["x"]));
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    // The partition's directory is moved away, and a file takes its name.
    let directory = broker.partition_dir("t", 0);
    std::fs::rename(&directory, directory.with_extension("aside")).expect("moved");
    std::fs::write(&directory, "in the way").expect("written");
    let result = log_dirs(&mut client, None, 5).results.remove(0);
    assert_eq!((result.error_code, result.topics.len()), (ErrorCode::KAFKA_STORAGE_ERROR, 0));
}

fn producers(client: &mut Client, topic: &str, partition: i32) -> PartitionResponse {
    let topic = TopicRequest { name: topic.into(), partition_indexes: vec![partition], ..Default::default() };
    let request = DescribeProducersRequest { topics: vec![topic], ..Default::default() };
    client.call(&request, 0).topics.remove(0).partitions.remove(0)
}

#[test]
fn producers_are_described_with_their_last_sequence_and_time() {
    let mut broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 2, &[("message.timestamp.before.max.ms", "9223372036854775807")]);
    let (one, two) = (client.init_producer_id(), client.init_producer_id());
    client.produced("t", 0, &Batch::at(1000, &["a", "b", "c"]).from_producer(one, 0, 0));
    client.produced("t", 0, &Batch::at(3000, &["d"]).from_producer(two, 4, 0));
    client.produced("t", 0, &Batch::at(2000, &["e"]).from_producer(one, 0, 3));
    client.produced("t", 0, &Batch::of(&["of nobody"]));
    let state = |producer_id, producer_epoch, last_sequence, last_timestamp| ProducerState {
        producer_id,
        producer_epoch,
        last_sequence,
        last_timestamp,
        coordinator_epoch: -1,
        ..Default::default()
    };
    for restarted in [false, true] {
        if restarted {
            broker.kill();
            broker.restart();
            client = broker.client();
        }
        let mut described = producers(&mut client, "t", 0);
        described.active_producers.sort_by_key(|producer| producer.producer_id);
        assert_eq!(described.error_code, ErrorCode::NONE);
        assert_eq!(described.active_producers, [state(one, 0, 3, 2000), state(two, 4, 0, 3000)]);
        assert_eq!(described.active_producers[0].current_txn_start_offset, -1);
        let idle = producers(&mut client, "t", 1);
        assert_eq!((idle.error_code, idle.active_producers.len()), (ErrorCode::NONE, 0));
    }
    for (topic, partition) in [("nowhere", 0), ("t", 2)] {
        let unknown = producers(&mut client, topic, partition);
        assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        assert!(unknown.error_message.is_some());
    }
}
