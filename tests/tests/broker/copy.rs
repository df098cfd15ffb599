//! `fullbore copy`. Whichever process is killed, the target gets each record of the source once, and the group's
//! offsets match the records.
//!
//! `FULLBORE_COPY_ROUNDS` sets how often a copier is killed (by default 4, in `make soak` 60).

use fullbore_tests::{Broker, Copied, CopyProcess, Random, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);
const PARTITIONS: usize = 3;
const SETS: &[&str] = &[
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=100",
    "group.consumer.min.session.timeout.ms=100",
    "group.consumer.session.timeout.ms=1000",
    "group.consumer.min.heartbeat.interval.ms=50",
    "group.consumer.heartbeat.interval.ms=100",
    "max.idempotence.batches.to.retain=64",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=100",
    // The records of these tests have timestamps in 2023. Retention would delete them 30 s after the start, when it
    // first checks for expired segments.
    "log.retention.ms=-1",
];
/// A short session timeout, so that a killed member soon leaves the group.
const SHORT_SESSION: [&str; 4] = ["-X", "session.timeout.ms=1000", "-X", "heartbeat.interval.ms=100"];

fn started(to_partitions: i32) -> (Broker, String) {
    // The broker has a fixed port, because copiers reconnect to it after a kill.
    let listens = format!("listeners=PLAINTEXT://127.0.0.1:{}", fullbore_tests::stable_ports(1)[0]);
    let broker = Broker::start(&[SETS, &[&listens]].concat());
    let mut client = broker.client();
    client.create_topic("a", PARTITIONS as i32, &[]);
    client.create_topic("b", to_partitions, &[]);
    let bootstrap = broker.addr().to_string();
    (broker, bootstrap)
}

#[test]
fn topic_copied_to_its_end_has_the_same_records_and_a_second_copy_adds_none() {
    let (_broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    copied.fill(2_000, 1);
    let copy = |more: &[&str]| {
        let flags = [&["--group", "g", "--exit"][..], more].concat();
        CopyProcess::start(&bootstrap, ("a", "b"), &flags).finish()
    };
    let reported = copy(&["--transaction-records", "100"]);
    assert!(reported.contains("copied 2000 records in "), "{reported}");
    copied.check("g");
    copied.fill(500, 2);
    let reported = copy(&["--json"]);
    assert!(reported.contains("\"records\":500"), "{reported}");
    copied.check("g");
    assert!(copy(&[]).contains("copied 0 records"));
}

#[test]
fn copier_killed_at_random_points_leaves_each_record_once() {
    let rounds = fullbore_tests::rounds("FULLBORE_COPY_ROUNDS", 4, 60);
    let (broker, bootstrap) = started(PARTITIONS as i32);
    let mut random = Random::new(std::process::id().into());
    for (protocol, target) in [("classic", "b"), ("consumer", "c")] {
        if target == "c" {
            broker.client().create_topic("c", PARTITIONS as i32, &[]);
        }
        let copied = Copied::new(&bootstrap, "a", target, PARTITIONS);
        let group = format!("killed-{protocol}");
        let flags = ["--group", &group, "--group-protocol", protocol];
        let of_classic = if protocol == "classic" { &SHORT_SESSION[..] } else { &[] };
        let flags = [&flags[..], of_classic].concat();
        for round in 0..rounds.div_ceil(2) {
            copied.fill(3_000, round as u64);
            let records = (1 + random.below(30)).to_string();
            let flags = [&flags[..], &["--transaction-records", &records]].concat();
            let copier = CopyProcess::start(&bootstrap, ("a", target), &flags);
            copied.goes_on(1 + random.below(1_500));
            copier.kill();
        }
        CopyProcess::start(&bootstrap, ("a", target), &[&flags[..], &["--exit"]].concat()).finish();
        copied.check(&group);
    }
}

#[test]
fn broker_killed_under_a_copy_at_any_window_and_connections_leaves_each_record_once() {
    let (mut broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    for (round, (window, connections)) in [("5", "1"), ("64", "1"), ("5", "4"), ("64", "4")].into_iter().enumerate() {
        copied.fill(3_000, round as u64);
        let window = format!("max.in.flight.requests.per.connection={window}");
        let connections = format!("connections.per.broker={connections}");
        let flags =
            ["--group", "under-kills", "--transaction-records", "20", "-X", "batch.size=200", "-X", "linger.ms=0"];
        let flags = [&flags[..], &["-X", &window, "-X", &connections]].concat();
        let copier = CopyProcess::start(&bootstrap, ("a", "b"), &flags);
        copied.goes_on(300);
        broker.kill();
        broker.restart();
        wait_until("everything is copied", SOON, || copied.count() >= 3_000 * (round + 1));
        let reported = copier.terminate();
        assert!(reported.contains("copied 3000 records"), "{window} {connections}: {reported}");
        copied.check("under-kills");
    }
}

#[test]
fn copiers_that_come_and_go_share_the_partitions_and_copy_each_record_once() {
    let (_broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    // The open transactions of a killed copier block the other copiers until this timeout aborts them.
    let flags = ["--group", "shared", "--transaction-records", "10", "-X", "transaction.timeout.ms=2000"];
    let flags = [&flags[..], &SHORT_SESSION].concat();
    let start = |strategy: &'static str| {
        let flags = [&flags[..], &["-X", strategy]].concat();
        CopyProcess::start(&bootstrap, ("a", "b"), &flags)
    };
    const COOPERATIVE: &str = "partition.assignment.strategy=cooperative-sticky";
    copied.fill(4_000, 0);
    let first = start(COOPERATIVE);
    copied.goes_on(200);
    let second = start(COOPERATIVE);
    copied.goes_on(200);
    copied.fill(4_000, 1);
    first.terminate();
    copied.goes_on(200);
    let third = start(COOPERATIVE);
    copied.goes_on(200);
    second.kill();
    copied.fill(4_000, 2);
    copied.has(12_000, "shared");
    third.terminate();
    copied.check("shared");
}

#[test]
fn copier_frozen_past_its_session_and_its_transaction_writes_nothing_twice_and_goes_on() {
    let (_broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    copied.fill(6_000, 0);
    let flags = ["--group", "frozen", "--transaction-records", "5", "-X", "transaction.timeout.ms=1500"];
    let flags = [&flags[..], &SHORT_SESSION].concat();
    let start = || CopyProcess::start(&bootstrap, ("a", "b"), &flags);
    let frozen = start();
    copied.goes_on(300);
    frozen.freeze();
    let other = start();
    wait_until("the other one copies everything", SOON, || copied.count() >= 6_000);
    frozen.thaw();
    copied.fill(3_000, 1);
    wait_until("both copy what is new", SOON, || copied.count() >= 9_000);
    other.terminate();
    copied.fill(1_000, 2);
    wait_until("the one that was frozen copies alone", SOON, || copied.count() >= 10_000);
    frozen.terminate();
    copied.check("frozen");
}

#[test]
fn records_deleted_between_copies_are_listed_and_fail_one_copy() {
    let (broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    let copy = |flags: &[&str]| CopyProcess::start(&bootstrap, ("a", "b"), &[&["--exit"][..], flags].concat());
    let mut client = broker.client();
    copied.fill(300, 0);
    assert!(copy(&["--group", "g"]).finish().contains("copied 300 records"));
    let before = [0, 1].map(|partition| client.latest("a", partition));
    copied.fill(300, 1);
    // Of the new records, the first seven of partition 0 and all of partition 1 are deleted before the next copy.
    let starts = [before[0] + 7, client.latest("a", 1)];
    for (partition, start) in [0, 1].into_iter().zip(starts) {
        client.delete_records("a", partition, start);
    }
    let deleted = 7 + starts[1] - before[1];
    let reported = copy(&["--group", "g", "--json"]).fails();
    let line = |partition: usize, count: i64| {
        let (first, last) = (before[partition], starts[partition] - 1);
        format!(
            "skipped {count} offsets, {first} to {last}, of partition {partition} of topic 'a': its records were deleted"
        )
    };
    assert!(reported.contains(&line(0, 7)) && reported.contains(&line(1, starts[1] - before[1])), "{reported}");
    assert!(reported.contains(&format!("\"records\":{},", 300 - deleted)), "{reported}");
    assert!(reported.contains(&format!("\"deleted\":{deleted}")), "{reported}");
    assert!(
        reported.contains(&format!("records at {deleted} offsets of topic 'a' were deleted before they were copied"))
    );
    // The group's offset of partition 1 is past the deleted records, although no record follows them.
    assert!(copy(&["--group", "g"]).finish().contains("copied 0 records"));
}

#[test]
fn deleted_records_with_an_explicit_offset_reset_follow_the_reset() {
    let (broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    let mut client = broker.client();
    copied.fill(300, 0);
    let groups = ["g-none", "g-earliest"];
    for group in groups {
        CopyProcess::start(&bootstrap, ("a", "b"), &["--group", group, "--exit"]).finish();
    }
    copied.fill(300, 1);
    let end = client.latest("a", 0);
    client.delete_records("a", 0, end);
    let copy = |group: &str, reset: &str| {
        let reset = format!("auto.offset.reset={reset}");
        CopyProcess::start(&bootstrap, ("a", "b"), &["--group", group, "--exit", "-X", &reset])
    };
    let reported = copy(groups[0], "none").fails();
    assert!(reported.contains("cannot go on copying: partition 0 of topic 'a' has no offset "), "{reported}");
    let reported = copy(groups[1], "earliest").finish();
    assert!(
        reported.contains(" of partition 0 of topic 'a': its records were deleted before they were read"),
        "{reported}"
    );
}

#[test]
fn target_with_fewer_partitions_is_partitioned_by_key() {
    let (_broker, bootstrap) = started(1);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    copied.fill(1_000, 1);
    let reported = CopyProcess::start(&bootstrap, ("a", "b"), &["--group", "g", "--exit"]).finish();
    assert!(reported.contains("the key of each record chooses its partition"), "{reported}");
    copied.check_unordered();
}

#[test]
fn copy_that_cannot_begin_prints_the_remedy() {
    let (_broker, bootstrap) = started(1);
    let refused = |(from, to), more: &[&str]| {
        CopyProcess::start(&bootstrap, (from, to), &[&["--group", "g", "--exit"][..], more].concat()).fails()
    };
    let reported = refused(("a", "missing"), &[]);
    assert!(reported.contains("topics create --topic missing --partitions 3"), "{reported}");
    assert!(refused(("missing", "b"), &[]).contains("topic 'missing' does not exist"));
    assert!(refused(("a", "a"), &[]).contains("to itself"));
    let reported = refused(("a", "b"), &["-X", "transaction.timeout.ms=2000000000"]);
    assert!(
        reported.contains("cannot get a producer id: ") && reported.contains("transaction.max.timeout.ms"),
        "{reported}"
    );
}

#[test]
fn copier_whose_transactional_id_is_taken_fails_with_the_reason() {
    let (_broker, bootstrap) = started(PARTITIONS as i32);
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    copied.fill(100, 0);
    let flags = ["--group", "g", "--transactional-id", "same"];
    let first = CopyProcess::start(&bootstrap, ("a", "b"), &flags);
    wait_until("the first one copies", SOON, || copied.count() == 100);
    let second = CopyProcess::start(&bootstrap, ("a", "b"), &["--group", "other", "--transactional-id", "same"]);
    wait_until("the second one copies", SOON, || copied.count() == 200);
    copied.fill(100, 1);
    let reported = first.fails();
    assert!(reported.contains("cannot go on copying: ") && reported.contains("--transactional-id"), "{reported}");
    second.terminate();
}
