//! `fullbore consume --group`: members that share, die, come back and go on where the group was.

use super::{Broker, create, freeze, produce, run, signal, start, until};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every way to be a member.
const WAYS: [&[&str]; 4] = [
    &[],
    &["-X", "partition.assignment.strategy=roundrobin"],
    &["-X", "partition.assignment.strategy=cooperative-sticky"],
    &["--group-protocol", "consumer"],
];

/// A broker that misses a member soon.
fn quick_broker() -> Broker {
    quick_broker_with("connections.max.idle.ms=600000")
}

fn quick_broker_with(setting: &str) -> Broker {
    Broker::start(&[
        setting,
        "group.min.session.timeout.ms=100",
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.min.session.timeout.ms=100",
        "group.consumer.session.timeout.ms=2000",
        "group.consumer.min.heartbeat.interval.ms=100",
        "group.consumer.heartbeat.interval.ms=200",
    ])
}

const QUICK: [&str; 6] =
    ["-X", "session.timeout.ms=2000", "-X", "heartbeat.interval.ms=200", "-X", "auto.commit.interval.ms=200"];

/// The lines that members have printed, whoever it was.
#[derive(Clone, Default)]
struct Seen(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Seen {
    fn follow(&self, child: &mut Child) {
        let (stdout, seen) = (child.stdout.take().expect("piped"), self.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                seen.0.0.lock().expect("no panic").push(line);
                seen.0.1.notify_all();
            }
        });
    }

    /// Waits until every one of these was seen; how often any was.
    fn all(&self, wanted: &BTreeSet<String>) -> usize {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().expect("no panic");
        loop {
            let seen: BTreeSet<String> = lines.iter().cloned().collect();
            if wanted.is_subset(&seen) {
                return lines.len();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "missing: {:?}", wanted.difference(&seen).take(20).collect::<Vec<_>>());
            lines = self.0.1.wait_timeout(lines, left).expect("no panic").0;
        }
    }
}

fn member(broker: &Broker, way: &[&str], seen: &Seen) -> Child {
    let flags = [&["consume", "-t", "t", "--group", "g", "--from-beginning"], &QUICK[..], way].concat();
    let mut child = start(broker, &flags);
    seen.follow(&mut child);
    child
}

/// Waits until the group has so many members and each of them has partitions.
fn wait_for_members(broker: &Broker, members: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = run(broker, &["groups", "describe", "--members", "--group", "g"], b"");
        let table = String::from_utf8_lossy(&told.stdout).into_owned();
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("g ")).collect();
        let has_some = |row: &&&str| row.split_whitespace().last().is_some_and(|count| count != "0");
        if rows.len() == members && rows.iter().filter(has_some).count() == members {
            return;
        }
        assert!(Instant::now() < deadline, "not {members} members with partitions: {table}{}", told.stderr);
    }
}

fn ends_well(mut child: Child) {
    signal(&child, "TERM");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!((child.wait().expect("it ends").code(), stderr.as_str()), (Some(0), ""));
}

fn numbers(from: u32, to: u32) -> BTreeSet<String> {
    (from..to).map(|n| n.to_string()).collect()
}

fn send(broker: &Broker, from: u32, to: u32) {
    let lines: String = (from..to).map(|n| format!("{n}\n")).collect();
    // Batches of one record spread over all partitions.
    produce(broker, &["-t", "t", "-X", "batch.size=0"], lines.as_bytes()).good();
}

#[test]
fn a_group_goes_on_exactly_where_it_was() {
    for way in WAYS {
        let broker = quick_broker();
        create(&broker, "t", "1");
        send(&broker, 0, 100);
        let read = |more: &[&str]| {
            let flags = [&["consume", "-t", "t", "-G", "g", "--from-beginning"], &QUICK[..], way, more].concat();
            run(&broker, &flags, b"").text()
        };
        let lines = |from: u32, to: u32| (from..to).map(|n| format!("{n}\n")).collect::<String>();
        assert_eq!(read(&["-c", "30"]), lines(0, 30), "{way:?}");
        assert_eq!(read(&["-c", "1"]), lines(30, 31), "{way:?}");
        assert_eq!(read(&["-e"]), lines(31, 100), "{way:?}");
        assert_eq!(read(&["-e"]), "", "{way:?}");
        send(&broker, 100, 110);
        assert_eq!(read(&["-e", "-X", "enable.auto.commit=false"]), lines(100, 110), "{way:?}");
        assert_eq!(read(&["-e"]), lines(100, 110), "nothing was committed: {way:?}");
    }
}

#[test]
fn three_members_share_and_two_take_over_from_one_that_is_killed() {
    for way in WAYS {
        let broker = quick_broker();
        create(&broker, "t", "6");
        let seen = Seen::default();
        let (first, second) = (member(&broker, way, &seen), member(&broker, way, &seen));
        send(&broker, 0, 300);
        seen.all(&numbers(0, 300));
        let mut third = member(&broker, way, &seen);
        wait_for_members(&broker, 3);
        send(&broker, 300, 600);
        seen.all(&numbers(0, 600));
        third.kill().and_then(|()| third.wait()).expect("killed");
        send(&broker, 600, 900);
        seen.all(&numbers(0, 900));
        ends_well(first);
        // The one that left is not waited for.
        send(&broker, 900, 1000);
        seen.all(&numbers(0, 1000));
        ends_well(second);
        let flags = [&["consume", "-t", "t", "-G", "g", "-e"], &QUICK[..], way].concat();
        assert_eq!(run(&broker, &flags, b"").text(), "", "everything was committed: {way:?}");
    }
}

/// Connections to the broker that neither end has closed: ESTABLISHED in proc(5)'s tcp table.
fn open_to(broker: &Broker) -> usize {
    let port: u16 = broker.address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let remote = format!(":{port:04X} 01 ");
    table.lines().filter(|line| line.contains(&remote)).count()
}

#[test]
fn a_member_commits_after_the_broker_has_closed_what_was_idle() {
    for way in [WAYS[0], WAYS[3]] {
        let broker = quick_broker_with("connections.max.idle.ms=1500");
        create(&broker, "t", "1");
        let seen = Seen::default();
        let member = member(&broker, way, &seen);
        send(&broker, 0, 10);
        seen.all(&numbers(0, 10));
        until("only heartbeats and fetches are left", || open_to(&broker) == 2);
        send(&broker, 10, 20);
        seen.all(&numbers(0, 20));
        ends_well(member);
        let flags = [&["consume", "-t", "t", "-G", "g", "-e"], &QUICK[..], way].concat();
        assert_eq!(run(&broker, &flags, b"").text(), "", "everything was committed: {way:?}");
    }
}

#[test]
fn a_member_that_waits_for_others_to_join_ends_without_them() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    let stays = ["consume", "-t", "t", "-G", "g", "-X", "session.timeout.ms=20000", "-X", "heartbeat.interval.ms=200"];
    let describe = |what| run(&broker, &["groups", "describe", what, "--group", "g"], b"").stdout;
    let has = |what, text: &str| String::from_utf8_lossy(&describe(what)).contains(text);
    let mut silent = start(&broker, &stays);
    wait_for_members(&broker, 1);
    freeze(&silent);
    let second = start(&broker, &stays);
    until("the second waits for the first", || has("--state", "PreparingRebalance"));
    ends_well(second);
    assert!(has("--members", "fullbore-consume"), "the first is a member still: it was not waited for");
    silent.kill().and_then(|()| silent.wait()).expect("killed");
}

#[test]
fn a_member_whose_reader_is_slow_stays_in_the_group() {
    for way in WAYS {
        let broker = quick_broker();
        create(&broker, "t", "1");
        let line = "x".repeat(999) + "\n";
        produce(&broker, &["-t", "t"], line.repeat(30_000).as_bytes()).good();
        let flags = ["consume", "-t", "t", "-G", "g", "--from-beginning", "-e", "--debug", "protocol"];
        let mut child = start(&broker, &[&flags[..], &QUICK, way].concat());
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut read = String::new();
        stdout.read_line(&mut read).expect("a line");
        // Twenty heartbeats are twice its session.
        let (mut beats, mut log) = (0, String::new());
        while beats < 20 {
            log.clear();
            assert!(stderr.read_line(&mut log).expect("read") > 0, "it ended");
            beats += usize::from(log.contains("Heartbeat") && log.contains("rtt_us"));
        }
        let rest = std::thread::spawn(move || stderr.read_to_string(&mut String::new()));
        stdout.read_to_string(&mut read).expect("the rest");
        assert!(read == line.repeat(30_000), "every line once: {way:?}");
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        rest.join().expect("no panic").expect("read");
        let flags = ["consume", "-t", "t", "-G", "g", "-e"];
        assert_eq!(
            run(&broker, &[&flags[..], &QUICK, way].concat(), b"").text(),
            "",
            "all of it was committed: {way:?}"
        );
    }
}

#[test]
fn what_a_group_refuses_is_told() {
    let broker = quick_broker();
    create(&broker, "t", "1");
    send(&broker, 0, 1);
    let of = |flags: &[&str]| run(&broker, &[&["consume", "-t", "t", "-e", "-G", "g"], flags].concat(), b"");
    let told = of(&["-X", "auto.offset.reset=none"]).failure();
    assert!(told.contains("no offset of partition 0 of topic 't'; say where to begin with --from-beginning"), "{told}");
    let told = of(&["-X", "session.timeout.ms=99999999"]).failure();
    assert!(told.contains("cannot join group 'g': ") && told.contains("session timeout"), "{told}");
    for (flag, says) in [
        ("group.protocol=x", "group.protocol=x: must be classic or consumer"),
        ("partition.assignment.strategy=best", "must be range, roundrobin or cooperative-sticky"),
        ("session.timeout.ms=0", "session.timeout.ms=0: must be a number of milliseconds above 0"),
    ] {
        let told = of(&["-X", flag]).failure();
        assert!(told.contains(says), "{told}");
    }
    let told = of(&["-o", "5"]);
    assert!(told.status == Some(2) && told.stderr.contains("cannot be used with"), "{}", told.stderr);
}
