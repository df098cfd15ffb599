//! Tests of brokers that accept connections and never respond, and of topics that are recreated while they are read.

use crate::{create, freeze, produce, run, signal};
use fullbore_tests::{Broker, NO_LISTENER, complaints, stable_ports};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a wait may take before it counts as hung. No speed is tested. The limit is below the 30 s after which
/// clients give up a broker that does not respond.
const LONG: Duration = Duration::from_secs(25);

/// Accepts connections and never responds to them. Passes each connection to the returned channel.
fn hang(listener: TcpListener) -> Receiver<TcpStream> {
    let (reports, reported) = channel();
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(|socket| reports.send(socket)));
    reported
}

fn hanging() -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    (listener.local_addr().expect("bound").to_string(), hang(listener))
}

pub fn spawn(arguments: &[&str], servers: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments).args(["--bootstrap-server", servers]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits until a command ends. Returns its exit status and its standard error.
pub fn ended(mut child: Child, what: &str) -> (Option<i32>, String) {
    let deadline = Instant::now() + LONG;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            child.kill().and_then(|()| child.wait()).expect("killed");
            panic!("{what} takes more than {LONG:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it ended");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn lines(child: &mut Child) -> Receiver<String> {
    let (reports, reported) = channel();
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| reports.send(line)));
    reported
}

pub fn next(lines: &Receiver<String>, count: usize) -> Vec<String> {
    (0..count)
        .map(|at| lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("line {at} of {count} never comes")))
        .collect()
}

#[test]
fn a_command_at_a_hung_broker_ends_at_a_signal() {
    let perf = ["--num-records", "1", "--topic", "t"];
    for command in [
        &["produce", "-t", "t"][..],
        &["consume", "-t", "t"],
        &["consume", "-t", "t", "-G", "g"],
        &["copy", "--from", "t", "--to", "u", "-G", "g"],
        &[&["perf", "produce", "--record-size", "1", "--throughput", "-1"][..], &perf].concat(),
        &[&["perf", "consume"][..], &perf].concat(),
    ] {
        let (address, connections) = hanging();
        let child = spawn(command, &address);
        let _connection = connections.recv_timeout(LONG).expect("it connects");
        signal(&child, "INT");
        let (status, complaint) = ended(child, &format!("{command:?} after a signal"));
        assert_eq!(status, Some(130), "{command:?}: {complaint}");
        assert!(complaint.contains("interrupted while waiting for an answer"), "{command:?}: {complaint}");
    }
}

#[test]
fn hung_bootstrap_servers_do_not_hide_a_live_one() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let ((first, _first), (second, _second)) = (hanging(), hanging());
    let servers = format!("{first},{second},{}", broker.address());
    let perf = ["--num-records", "5", "--topic", "t"];
    for command in [
        &[&["perf", "produce", "--record-size", "9", "--throughput", "-1"][..], &perf].concat()[..],
        &[&["perf", "consume"][..], &perf].concat(),
        &["produce", "-t", "t"],
        &["consume", "-t", "t", "-e"],
        &["consume", "-t", "t", "-e", "-G", "g"],
        &["groups", "list"],
    ] {
        let (status, complaint) = ended(spawn(command, &servers), &format!("{command:?}"));
        assert_eq!((status, complaints(&complaint).as_str()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn dead_bootstrap_servers_do_not_hide_a_live_one() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"one\n").good();
    // No program listens on the first two addresses.
    let servers = format!("{NO_LISTENER},127.0.0.1:2,{}", broker.address());
    for command in [
        &["consume", "-t", "t", "-e", "--from-beginning"][..],
        &["consume", "-t", "t", "-c", "1", "--from-beginning", "-G", "g"],
        &["consume", "-t", "t", "-c", "1", "--from-beginning", "-G", "h", "--group-protocol", "consumer"],
        &["groups", "list"],
        &["groups", "describe", "--group", "g"],
        &["groups", "delete", "--group", "h"],
        &["topics", "list"],
        &["produce", "-t", "t"],
    ] {
        let (status, complaint) = ended(spawn(command, &servers), &format!("{command:?}"));
        // A command that succeeds may still print a remark to standard error, for example that the group has no
        // members.
        assert_eq!(status, Some(0), "{command:?}: {complaint}");
    }
}

#[test]
fn a_reader_at_a_broker_that_returns_hung_ends_at_a_signal_and_its_timeout() {
    for (flags, status) in [(&["--timeout-ms", "5000"][..], 1), (&[], 0)] {
        let broker = Broker::start(&[&format!("listeners=PLAINTEXT://127.0.0.1:{}", stable_ports(1)[0])]);
        create(&broker, "t", "1");
        produce(&broker, &["-t", "t"], b"one\n").good();
        let mut child = spawn(&[&["consume", "-t", "t", "--from-beginning"], flags].concat(), broker.address());
        let read = lines(&mut child);
        assert_eq!(next(&read, 1), ["one"]);
        let address = broker.address().to_owned();
        drop(broker);
        let listener = TcpListener::bind(&address).expect("its port is free again");
        let connections = hang(listener);
        let _connection = connections.recv_timeout(LONG).expect("it connects again");
        if flags.is_empty() {
            signal(&child, "INT");
        }
        let (ended, complaint) = ended(child, &format!("{flags:?}"));
        assert_eq!(ended, Some(status), "{complaint}");
    }
}

#[test]
fn a_member_at_a_hung_coordinator_ends_at_a_signal() {
    for protocol in ["classic", "consumer"] {
        let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
        create(&broker, "t", "1");
        produce(&broker, &["-t", "t"], b"one\n").good();
        let flags = ["consume", "-t", "t", "--from-beginning", "-G", "g", "--group-protocol", protocol];
        // With this interval, the command commits only at its end.
        let interval = ["-X", "auto.commit.interval.ms=600000"];
        let mut child = spawn(&[&flags[..], &interval].concat(), broker.address());
        let read = lines(&mut child);
        assert_eq!(next(&read, 1), ["one"]);
        broker.freeze();
        signal(&child, "INT");
        let (status, complaint) = ended(child, protocol);
        assert_eq!(status, Some(1), "{complaint}");
        let reported = "cannot confirm the commit of the last records: the group may read these records again";
        assert!(complaint.contains(reported), "{complaint}");
    }
}

#[test]
fn new_partitions_of_a_topic_are_read_from_their_start() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"0\n").good();
    let flags = ["consume", "-t", "t", "--from-beginning", "-X", "metadata.max.age.ms=100"];
    let mut child = spawn(&flags, broker.address());
    let read = lines(&mut child);
    assert_eq!(next(&read, 1), ["0"]);
    run(&broker, &["topics", "alter", "--topic", "t", "--partitions", "3"], b"").good();
    for partition in ["1", "2", "0"] {
        produce(&broker, &["-t", "t", "-p", partition], format!("{partition}\n").as_bytes()).good();
    }
    let mut found = next(&read, 3);
    found.sort();
    assert_eq!(found, ["0", "1", "2"]);
    signal(&child, "INT");
    let (status, complaint) = ended(child, "reading");
    assert_eq!((status, complaints(&complaint).as_str()), (Some(0), ""));
}

#[test]
fn a_recreated_topic_is_read_from_its_start_or_ends_the_reading() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let quick = ["-X", "heartbeat.interval.ms=100", "-X", "auto.commit.interval.ms=100"];
    let consumer = [&["-G", "b", "--group-protocol", "consumer"][..], &quick].concat();
    let resets = ["-X", "auto.offset.reset=earliest"];
    // Without auto.offset.reset, the read ends with an error.
    for (topic, flags) in
        [("s", &[][..]), ("t", &resets), ("u", &[&["-G", "a"][..], &quick].concat()), ("v", &consumer)]
    {
        create(&broker, topic, "1");
        produce(&broker, &["-t", topic], b"1\n2\n3\n4\n5\n").good();
        let mut child = spawn(&[&["consume", "-t", topic, "--from-beginning"], flags].concat(), broker.address());
        let read = lines(&mut child);
        assert_eq!(next(&read, 5), ["1", "2", "3", "4", "5"]);
        // The reader is frozen until the topic is created again, so that it never notices that the topic was missing.
        freeze(&child);
        run(&broker, &["topics", "delete", "--topic", topic], b"").good();
        create(&broker, topic, "1");
        for value in ["6\n7\n", "8\n9\n10\n11\n12\n"] {
            produce(&broker, &["-t", topic], value.as_bytes()).good();
        }
        signal(&child, "CONT");
        if flags.is_empty() {
            let (status, complaint) = ended(child, topic);
            assert_eq!(status, Some(1));
            assert!(complaint.contains("topic 's' was deleted and recreated while it was read"), "{complaint}");
            continue;
        }
        assert_eq!(next(&read, 7), ["6", "7", "8", "9", "10", "11", "12"], "{flags:?}");
        signal(&child, "TERM");
        let (status, complaint) = ended(child, topic);
        assert_eq!(status, Some(0), "{complaint}");
    }
}

#[test]
fn a_member_of_a_deleted_topic_does_not_commit_its_offsets() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"1\n2\n3\n4\n5\n").good();
    // With this interval, the command could commit only at its end. The protocol log would show such a commit.
    let flags = ["consume", "-t", "t", "-G", "g", "--from-beginning", "-X", "auto.commit.interval.ms=600000"];
    let mut child = spawn(&[&flags[..], &["--debug", "protocol"]].concat(), broker.address());
    let read = lines(&mut child);
    assert_eq!(next(&read, 5), ["1", "2", "3", "4", "5"]);
    run(&broker, &["topics", "delete", "--topic", "t"], b"").good();
    let (status, reported) = ended(child, "a member whose topic is gone");
    assert_eq!(status, Some(1), "{reported}");
    assert!(reported.contains("topic 't' was deleted while it was read"), "{reported}");
    assert!(reported.contains("OffsetFetch") && !reported.contains("OffsetCommit"), "{reported}");
}
