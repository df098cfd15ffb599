//! Tests of topics that are deleted while they are read, alone or with others, and of recreated topics.

use crate::hangs::{ended, lines, next, spawn};
use crate::{create, freeze, produce, run, signal};
use fullbore_tests::{Broker, complaints};
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a wait may take before it counts as hung. It is long, because no speed is tested.
const LONG: Duration = Duration::from_secs(60);
/// Settings with which members quickly notice changes and readers quickly find new topics.
const QUICK: [&str; 4] = ["-X", "heartbeat.interval.ms=100", "-X", "auto.commit.interval.ms=100"];
const LOOKS: [&str; 2] = ["-X", "metadata.max.age.ms=100"];

fn broker() -> Broker {
    Broker::start(&[
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.min.heartbeat.interval.ms=100",
        "group.consumer.heartbeat.interval.ms=200",
    ])
}

/// Returns a receiver of the lines of standard error while the command runs. [`ended`] does not return these lines
/// again.
fn complaint_lines(child: &mut Child) -> Receiver<String> {
    let (reports, reported) = channel();
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let lines = stderr.lines().map_while(Result::ok).filter(|line| !complaints(line).is_empty());
    std::thread::spawn(move || { lines }.try_for_each(|line| reports.send(line)));
    reported
}

fn delete(broker: &Broker, topic: &str) {
    run(broker, &["topics", "delete", "--topic", topic], b"").good();
}

fn status(mut child: Child) -> Option<i32> {
    drop(child.stdin.take());
    let deadline = std::time::Instant::now() + LONG;
    while std::time::Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().and_then(|()| child.wait()).expect("killed");
    panic!("it does not end");
}

/// Waits for the report that the topic was deleted, which must be the first line.
fn deletion(complaints: &Receiver<String>, topic: &str) {
    let reported = complaints.recv_timeout(LONG).expect("it is told");
    assert_eq!(reported, format!("topic '{topic}' was deleted while it was read"));
}

#[test]
fn a_deletion_beside_other_topics_is_reported_and_the_others_are_read_on() {
    let ways: [&[&str]; 4] =
        [&["-X", "auto.offset.reset=earliest"], &[], &["-G", "g"], &["-G", "h", "--group-protocol", "consumer"]];
    for way in ways {
        let broker = broker();
        for topic in ["a", "b", "c"] {
            create(&broker, topic, "2");
            produce(&broker, &["-t", topic], format!("{topic}\n").as_bytes()).good();
        }
        let flags = ["consume", "-t", "a", "-t", "b", "-t", "c", "--from-beginning"];
        let quick = if way.contains(&"-G") { &QUICK[..] } else { &[] };
        let mut child = spawn(&[&flags[..], way, quick].concat(), broker.address());
        let (read, reported) = (lines(&mut child), complaint_lines(&mut child));
        let mut first = next(&read, 3);
        first.sort();
        assert_eq!(first, ["a", "b", "c"]);
        delete(&broker, "a");
        deletion(&reported, "a");
        for topic in ["b", "c"] {
            produce(&broker, &["-t", topic], format!("{topic}, later\n").as_bytes()).good();
            assert_eq!(next(&read, 1), [format!("{topic}, later")], "{way:?}");
        }
        delete(&broker, "b");
        deletion(&reported, "b");
        produce(&broker, &["-t", "c"], b"c alone\n").good();
        assert_eq!(next(&read, 1), ["c alone"], "{way:?}");
        signal(&child, "TERM");
        assert_eq!(status(child), Some(0), "{way:?}");
        assert_eq!(reported.iter().collect::<Vec<_>>(), Vec::<String>::new(), "{way:?}");
    }
}

#[test]
fn the_deletion_of_the_only_topic_ends_the_reading() {
    for way in [
        &["consume"][..],
        &["consume", "-X", "auto.offset.reset=earliest"],
        &["consume", "-p", "0"],
        &["consume", "-G", "g"],
        &["consume", "-G", "h", "--group-protocol", "consumer"],
        &["perf", "consume", "--num-records", "9", "--timeout", "60000"],
    ] {
        let broker = broker();
        create(&broker, "t", "1");
        produce(&broker, &["-t", "t"], b"1\n").good();
        let own = match way[0] {
            "perf" => &["--topic", "t", "--show-detailed-stats", "--hide-header", "--reporting-interval", "1"][..],
            _ => &["-t", "t", "--from-beginning"],
        };
        let mut child = spawn(&[way, own].concat(), broker.address());
        let read = lines(&mut child);
        next(&read, 1);
        delete(&broker, "t");
        let (status, reported) = ended(child, &format!("{way:?}"));
        let gone = "fullbore: topic 't' was deleted while it was read\n";
        assert_eq!((status, complaints(&reported).as_str()), (Some(1), gone), "{way:?}");
    }
}

#[test]
fn a_deletion_does_not_stop_another_topic_from_being_read_to_its_end() {
    let broker = broker();
    create(&broker, "a", "1");
    create(&broker, "b", "1");
    let line = "x".repeat(999) + "\n";
    produce(&broker, &["-t", "a"], line.repeat(30_000).as_bytes()).good();
    produce(&broker, &["-t", "b"], line.repeat(30_000).as_bytes()).good();
    // The test does not read the output, so the command has read only a part of each topic when one of them is deleted.
    let mut child = spawn(&["consume", "-t", "a", "-t", "b", "-e", "-f", "%t%s\n"], broker.address());
    let reported = complaint_lines(&mut child);
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("a line");
    delete(&broker, "a");
    let of_b = first.starts_with('b') as usize
        + stdout.lines().map_while(Result::ok).filter(|line| line.starts_with('b')).count();
    assert_eq!((of_b, status(child)), (30_000, Some(0)));
    assert!(reported.iter().all(|line| line == "topic 'a' was deleted while it was read"));
}

#[test]
fn a_pattern_finds_new_matches_and_reads_recreated_topics() {
    let broker = broker();
    create(&broker, "match-1", "1");
    create(&broker, "other", "1");
    produce(&broker, &["-t", "match-1"], b"1\n2\n").good();
    let flags = ["consume", "--include", "match-.*", "--from-beginning"];
    let mut child = spawn(&[&flags[..], &LOOKS].concat(), broker.address());
    let (read, reported) = (lines(&mut child), complaint_lines(&mut child));
    assert_eq!(next(&read, 2), ["1", "2"]);
    for _ in 0..2 {
        delete(&broker, "match-1");
        deletion(&reported, "match-1");
        for topic in ["match-1", "match-2"] {
            create(&broker, topic, "1");
            produce(&broker, &["-t", topic], format!("new {topic}\n").as_bytes()).good();
            assert_eq!(next(&read, 1), [format!("new {topic}")]);
        }
        delete(&broker, "match-2");
        deletion(&reported, "match-2");
    }
    signal(&child, "INT");
    assert_eq!(status(child), Some(0));
}

#[test]
fn perf_consume_reads_the_remaining_topics_of_a_pattern() {
    let broker = broker();
    for topic in ["match-1", "match-2"] {
        create(&broker, topic, "1");
        produce(&broker, &["-t", topic], b"1\n").good();
    }
    let flags = ["perf", "consume", "--include", "match-.*", "--num-records", "3", "--timeout", "60000"];
    let stats = ["--show-detailed-stats", "--hide-header", "--reporting-interval", "1"];
    let mut child = spawn(&[&flags[..], &stats].concat(), broker.address());
    let (read, reported) = (lines(&mut child), complaint_lines(&mut child));
    next(&read, 1);
    delete(&broker, "match-1");
    deletion(&reported, "match-1");
    produce(&broker, &["-t", "match-2"], b"2\n").good();
    assert_eq!(status(child), Some(0));
}

/// Returns the offsets that a group has committed for a topic, as `groups describe` prints them.
fn committed(broker: &Broker, group: &str, topic: &str) -> Vec<i64> {
    let reported = run(broker, &["groups", "describe", "--group", group], b"");
    let table = String::from_utf8_lossy(&reported.stdout).into_owned();
    let rows = table.lines().filter(|row| row.split_whitespace().nth(1) == Some(topic));
    rows.filter_map(|row| row.split_whitespace().nth(3)?.parse().ok()).collect()
}

#[test]
fn offsets_of_a_deleted_topic_are_not_committed_for_a_recreated_one() {
    for protocol in ["classic", "consumer"] {
        let broker = broker();
        create(&broker, "t", "1");
        create(&broker, "kept", "1");
        produce(&broker, &["-t", "t"], b"1\n2\n3\n4\n5\n").good();
        produce(&broker, &["-t", "kept"], b"k\n").good();
        // With this interval, the command commits only at its end, after the topic was recreated.
        let flags = ["consume", "-t", "t", "-t", "kept", "-G", "g", "--from-beginning", "--group-protocol", protocol];
        let interval = ["-X", "auto.commit.interval.ms=600000"];
        let mut child = spawn(&[&flags[..], &interval].concat(), broker.address());
        let read = lines(&mut child);
        next(&read, 6);
        freeze(&child);
        delete(&broker, "t");
        create(&broker, "t", "1");
        produce(&broker, &["-t", "t"], b"6\n7\n8\n").good();
        signal(&child, "TERM");
        signal(&child, "CONT");
        let (status, reported) = ended(child, protocol);
        assert_eq!(status, Some(0), "{reported}");
        assert_eq!(committed(&broker, "g", "kept"), [1], "{protocol}");
        // The member might already have read the three records of the recreated topic. A larger offset would be a
        // position in the deleted topic.
        let of_new = committed(&broker, "g", "t");
        assert!(of_new.iter().all(|offset| *offset <= 3), "{protocol}: {of_new:?}");
    }
}
