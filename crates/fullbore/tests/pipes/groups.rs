//! Tests of `fullbore consume --group`. Members share partitions, die, join again, and continue at the group's offsets.

use super::{Broker, complaints, create, freeze, produce, run, signal, start, until};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long any wait in these tests may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The flags of members with each kind of assignor and group protocol.
const WAYS: [&[&str]; 4] = [
    &[],
    &["-X", "partition.assignment.strategy=roundrobin"],
    &["-X", "partition.assignment.strategy=cooperative-sticky"],
    &["--group-protocol", "consumer"],
];

/// Starts a broker whose members notice changes quickly and whose sessions are long.
fn quick_broker() -> Broker {
    quick_broker_with("group.consumer.session.timeout.ms=45000")
}

fn quick_broker_with(setting: &str) -> Broker {
    Broker::start(&[
        setting,
        "group.min.session.timeout.ms=100",
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.min.session.timeout.ms=100",
        "group.consumer.min.heartbeat.interval.ms=100",
        "group.consumer.heartbeat.interval.ms=200",
    ])
}

#[test]
fn standard_output_is_closed_no_record_is_read_or_committed() {
    let broker = quick_broker();
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"one\ntwo\n").good();
    let consumed = |redirection: &str| {
        let script =
            format!("exec \"$0\" consume -t t -G g --from-beginning -e --bootstrap-server \"$1\" {redirection}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_fullbore"), broker.address()]).stdin(Stdio::null());
        let output = shell.output().expect("there is a shell");
        (output.status.code(), complaints(&String::from_utf8_lossy(&output.stderr)))
    };
    let (status, stderr) = consumed(">&-");
    assert!(status == Some(1) && stderr.starts_with("fullbore: standard output is closed, so records"), "{stderr}");
    let groups = run(&broker, &["groups", "list"], b"").text();
    assert_eq!(groups, "", "the group was not even joined");
    assert_eq!(consumed(">/dev/null"), (Some(0), String::new()), "that is open, and the user's choice");
    assert_eq!(run(&broker, &["groups", "list"], b"").text(), "g\n");
}

const QUICK: [&str; 4] = ["-X", "heartbeat.interval.ms=200", "-X", "auto.commit.interval.ms=200"];

/// The lines that all members have printed.
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

    /// Waits until each of these lines was printed. Returns how many lines were printed in total.
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

/// Waits until the group has `members` members and each has partitions.
fn wait_for_members(broker: &Broker, members: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reported = run(broker, &["groups", "describe", "--members", "--group", "g"], b"");
        let table = String::from_utf8_lossy(&reported.stdout).into_owned();
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("g ")).collect();
        let has_some = |row: &&&str| row.split_whitespace().last().is_some_and(|count| count != "0");
        if rows.len() == members && rows.iter().filter(has_some).count() == members {
            return;
        }
        assert!(Instant::now() < deadline, "not {members} members with partitions: {table}{}", reported.stderr);
    }
}

fn ends_well(mut child: Child) {
    signal(&child, "TERM");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!((child.wait().expect("it ends").code(), complaints(&stderr).as_str()), (Some(0), ""));
}

fn numbers(from: u32, to: u32) -> BTreeSet<String> {
    (from..to).map(|n| n.to_string()).collect()
}

fn send(broker: &Broker, from: u32, to: u32) {
    let lines: String = (from..to).map(|n| format!("{n}\n")).collect();
    // Each batch has one record, so that the producer distributes the records over all partitions.
    produce(broker, &["-t", "t", "-X", "batch.size=0"], lines.as_bytes()).good();
}

#[test]
fn a_group_goes_on_exactly_at_its_offset() {
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
fn two_members_take_over_the_partitions_of_a_killed_third() {
    for way in WAYS {
        // With this timeout, the session of the killed member ends soon.
        let broker = quick_broker_with("group.consumer.session.timeout.ms=4000");
        let way = &[way, &["-X", "session.timeout.ms=4000"]].concat()[..];
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
        // The member has left the group, so the group does not wait for it.
        send(&broker, 900, 1000);
        seen.all(&numbers(0, 1000));
        ends_well(second);
        let flags = [&["consume", "-t", "t", "-G", "g", "-e"], &QUICK[..], way].concat();
        assert_eq!(run(&broker, &flags, b"").text(), "", "everything was committed: {way:?}");
    }
}

/// Returns how many connections to the broker are open at both ends (ESTABLISHED in /proc/net/tcp).
fn open_to(broker: &Broker) -> usize {
    let port: u16 = broker.address().rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let remote = format!(":{port:04X} 01 ");
    table.lines().filter(|line| line.contains(&remote)).count()
}

#[test]
fn a_member_commits_after_the_broker_has_closed_idle_connections() {
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
fn a_member_in_a_rebalance_leaves_without_waiting_for_a_silent_one() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    let stays = ["consume", "-t", "t", "-G", "g", "-X", "session.timeout.ms=120000", "-X", "heartbeat.interval.ms=200"];
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
fn a_member_with_a_slow_reader_stays_in_the_group() {
    for way in WAYS {
        let broker = quick_broker_with("group.consumer.session.timeout.ms=5000");
        let way = &[way, &["-X", "session.timeout.ms=5000"]].concat()[..];
        create(&broker, "t", "1");
        let line = "x".repeat(999) + "\n";
        produce(&broker, &["-t", "t"], line.repeat(30_000).as_bytes()).good();
        let flags = ["consume", "-t", "t", "-G", "g", "--from-beginning", "-e", "--debug", "protocol"];
        let mut child = start(&broker, &[&flags[..], &QUICK, way].concat());
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut read = String::new();
        stdout.read_line(&mut read).expect("a line");
        // Thirty heartbeats take longer than the session timeout.
        let (mut heartbeats, mut log) = (0, String::new());
        while heartbeats < 30 {
            log.clear();
            assert!(stderr.read_line(&mut log).expect("read") > 0, "it ended");
            heartbeats += usize::from(log.contains("Heartbeat") && log.contains("rtt_us"));
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
fn refusals_of_a_group_are_reported() {
    let broker = quick_broker();
    create(&broker, "t", "1");
    send(&broker, 0, 1);
    let of = |flags: &[&str]| run(&broker, &[&["consume", "-t", "t", "-e", "-G", "g"], flags].concat(), b"");
    let reported = of(&["-X", "auto.offset.reset=none"]).failure();
    assert!(
        reported.contains("no offset of partition 0 of topic 't'; choose the start with --from-beginning"),
        "{reported}"
    );
    let reported = of(&["-X", "session.timeout.ms=99999999"]).failure();
    assert!(reported.contains("cannot join group 'g': ") && reported.contains("session timeout"), "{reported}");
    for (flag, expected) in [
        ("group.protocol=x", "group.protocol=x: must be classic or consumer"),
        ("partition.assignment.strategy=best", "must be range, roundrobin or cooperative-sticky"),
        ("session.timeout.ms=0", "session.timeout.ms=0: must be a number of milliseconds above 0"),
    ] {
        let reported = of(&["-X", flag]).failure();
        assert!(reported.contains(expected), "{reported}");
    }
    let reported = of(&["-o", "5"]);
    assert!(reported.status == Some(2) && reported.stderr.contains("cannot be used with"), "{}", reported.stderr);
}

/// Sends lines of 10,000 bytes. Each begins with a number; the first is `from`, and the last is `to` - 1.
fn send_long(broker: &Broker, partition: &str, from: u32, to: u32) {
    let lines: String = (from..to).map(|n| format!("{n:<9999}\n")).collect();
    produce(broker, &["-t", "t", "-p", partition], lines.as_bytes()).good();
}

/// Reads lines into `seen` until `goes_on` returns false. Returns false if the output ends first.
fn read_while(lines: &mut impl BufRead, seen: &mut BTreeSet<String>, mut goes_on: impl FnMut() -> bool) -> bool {
    let mut line = String::new();
    while goes_on() {
        line.clear();
        if lines.read_line(&mut line).expect("UTF-8") == 0 {
            return false;
        }
        seen.insert(line.trim().to_owned());
    }
    true
}

/// Returns how many of the group's members have partitions.
fn members_with_partitions(broker: &Broker) -> usize {
    let reported = run(broker, &["groups", "describe", "--members", "--group", "g"], b"").stdout;
    let table = String::from_utf8_lossy(&reported).into_owned();
    let has_some = |row: &&str| row.split_whitespace().last().is_some_and(|count| count != "0");
    table.lines().filter(|line| line.starts_with("g ")).filter(has_some).count()
}

/// Counts the heartbeats of a member that runs with `--debug protocol`.
struct Heartbeats(Arc<AtomicUsize>);

impl Heartbeats {
    fn of(child: &mut Child) -> Heartbeats {
        let log = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let heartbeats = Arc::new(AtomicUsize::new(0));
        let counted = heartbeats.clone();
        std::thread::spawn(move || {
            for _ in log.filter(|line| line.contains("Heartbeat") && line.contains("rtt_us")) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Heartbeats(heartbeats)
    }

    /// Waits for more heartbeats, so that the member has received the group's state and has reacted to it.
    fn wait_for_more(&self) {
        let before = self.0.load(Ordering::Relaxed);
        until("it sends heartbeats", || self.0.load(Ordering::Relaxed) >= before + 5);
    }
}

#[test]
fn a_rebalance_does_not_end_a_member_that_reads_to_the_end() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    send_long(&broker, "0", 0, 1500);
    send_long(&broker, "1", 1500, 3000);
    let flags = ["consume", "-t", "t", "-G", "g", "-e", "--from-beginning", "--debug", "protocol"];
    let mut first = start(&broker, &[&flags[..], &QUICK].concat());
    let heartbeats = Heartbeats::of(&mut first);
    let mut lines = BufReader::new(first.stdout.take().expect("piped"));
    let mut seen = BTreeSet::new();
    let mut once = 0..1;
    assert!(read_while(&mut lines, &mut seen, || once.next().is_some()));
    let others = Seen::default();
    let second = member(&broker, &[], &others);
    // If the test reads no output, the first member is blocked in a write and does not give up partitions. The test
    // therefore reads 20 lines before each check of the group.
    let mut count = 0;
    let goes_on = read_while(&mut lines, &mut seen, || {
        count += 1;
        count % 20 != 0 || members_with_partitions(&broker) < 2
    });
    assert!(goes_on, "it ended after {} lines", seen.len());
    ends_well(second);
    heartbeats.wait_for_more();
    assert!(!read_while(&mut lines, &mut seen, || true));
    assert_eq!(first.wait().expect("it ends").code(), Some(0));
    seen.extend(others.0.0.lock().expect("no panic").iter().map(|line| line.trim().to_owned()));
    let missing: Vec<_> = numbers(0, 3000).difference(&seen).take(20).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_member_without_partitions_ends_with_exit() {
    for way in [WAYS[0], WAYS[2], WAYS[3]] {
        let broker = quick_broker();
        create(&broker, "t", "1");
        let of = |id| {
            let flags = ["consume", "-t", "t", "-G", "g", "-X", "max.poll.interval.ms=3000", "--group-instance-id", id];
            [&flags[..], &QUICK, way].concat()
        };
        let first = start(&broker, &of("a"));
        wait_for_members(&broker, 1);
        let mut second = start(&broker, &[&of("b")[..], &["-e"]].concat());
        let deadline = Instant::now() + PATIENCE;
        while second.try_wait().expect("our child").is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        second.kill().expect("our child");
        let ended = second.wait_with_output().expect("it ends");
        let complaints = complaints(&String::from_utf8_lossy(&ended.stderr));
        assert_eq!((ended.status.code(), ended.stdout, complaints.as_str()), (Some(0), vec![], ""), "{way:?}");
        ends_well(first);
    }
}

#[test]
fn a_member_with_exit_gets_partitions_that_another_gives_up_first() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    for partition in ["0", "1"] {
        produce(&broker, &["-t", "t", "-p", partition], b"line\n").good();
    }
    let first = member(&broker, &[WAYS[3], &["-X", "enable.auto.commit=false"]].concat(), &Seen::default());
    wait_for_members(&broker, 1);
    let flags = [&["consume", "-t", "t", "-G", "g", "-e", "--from-beginning"], &QUICK[..]].concat();
    let half = run(&broker, &flags, b"");
    assert_eq!((half.status, half.stdout), (Some(0), b"line\n".to_vec()), "its half");
    assert!(half.stderr.contains("1 of 2 partitions belong to other members of the group"), "{}", half.stderr);
    ends_well(first);
}

/// The second member has no partition until the session of the killed member expires. Its many heartbeats until then
/// must not make it treat its empty assignment as final.
#[test]
fn a_member_with_exit_waits_for_the_end_of_a_killed_members_session() {
    let broker = Broker::start(&[
        "group.consumer.min.session.timeout.ms=100",
        "group.consumer.session.timeout.ms=3000",
        "group.consumer.min.heartbeat.interval.ms=50",
        "group.consumer.heartbeat.interval.ms=500",
        "fullbore.group.consumer.unsettled.heartbeat.interval.ms=50",
    ]);
    create(&broker, "t", "1");
    send(&broker, 0, 10);
    let seen = Seen::default();
    let mut first = member(&broker, &[WAYS[3], &["-X", "enable.auto.commit=false"]].concat(), &seen);
    seen.all(&numbers(0, 10));
    first.kill().and_then(|()| first.wait()).expect("killed");
    let flags = [&["consume", "-t", "t", "-G", "g", "-e", "--from-beginning"], WAYS[3]].concat();
    assert_eq!(run(&broker, &flags, b"").text().lines().count(), 10);
}

#[test]
fn a_member_with_exit_waits_for_another_with_a_blocked_output() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    send_long(&broker, "0", 0, 1500);
    send_long(&broker, "1", 1500, 3000);
    let flags = ["consume", "-t", "t", "-G", "g", "--from-beginning"];
    let mut first = start(&broker, &[&flags[..], &QUICK, WAYS[2]].concat());
    let mut unread = BufReader::new(first.stdout.take().expect("piped"));
    unread.read_line(&mut String::new()).expect("a line");
    let mut second = start(&broker, &[&flags[..], &["-e", "--debug", "protocol"], &QUICK, WAYS[2]].concat());
    let heartbeats = Heartbeats::of(&mut second);
    let seen = Seen::default();
    seen.follow(&mut second);
    let mut ended = || second.try_wait().expect("our child").is_some();
    let deadline = Instant::now() + PATIENCE;
    while heartbeats.0.load(Ordering::Relaxed) < 15 && !ended() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!ended(), "the first has not let go of anything yet");
    let reading = std::thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
    assert_eq!(second.wait().expect("it ends").code(), Some(0));
    ends_well(first);
    reading.join().expect("no panic").expect("read");
    assert!(!seen.0.0.lock().expect("no panic").is_empty(), "it was given its half");
}

#[test]
fn a_rebalance_does_not_end_a_member_with_records_by_its_timeout() {
    let broker = quick_broker();
    create(&broker, "t", "2");
    let mut producer = start(&broker, &["produce", "-t", "t", "-X", "batch.size=0"]);
    let mut lines = producer.stdin.take().expect("piped");
    let sending = std::thread::spawn(move || {
        // A record is sent every 50 ms until the test is over. The second member joins after the first one has received
        // records for longer than its own --timeout-ms.
        (0_u32..).take_while(|n| writeln!(lines, "{n}").is_ok()).for_each(|_| {
            std::thread::sleep(Duration::from_millis(50));
        });
    });
    let flags = [&["consume", "-t", "t", "-G", "g", "--from-beginning", "--timeout-ms", "4000"], &QUICK[..]].concat();
    let mut first = start(&broker, &flags);
    let seen = Seen::default();
    seen.follow(&mut first);
    seen.all(&numbers(0, 120));
    let second = member(&broker, &[], &Seen::default());
    wait_for_members(&broker, 2);
    assert_eq!(first.try_wait().expect("our child"), None, "it has ended");
    ends_well(first);
    ends_well(second);
    producer.kill().and_then(|()| producer.wait()).expect("killed");
    sending.join().expect("no panic");
}

#[test]
fn records_dropped_in_a_rebalance_are_read_again_up_to_the_number() {
    let broker = quick_broker();
    create(&broker, "t", "100");
    create(&broker, "other", "1");
    // The output of a partition is shorter than a chunk. When the rebalance closes its outlet, the first member may
    // therefore have read many records that it has not written.
    let line =
        |partition: i32, n: i32| format!("{{\"partition\":{partition},\"value\":\"{:<999}\"}}\n", partition * 100 + n);
    let lines: String = (0..100).flat_map(|partition| (0..100).map(move |n| line(partition, n))).collect();
    produce(&broker, &["-t", "t", "--json"], lines.as_bytes()).good();
    let flags = ["consume", "-t", "t", "-G", "g", "-c", "9000", "--from-beginning", "--debug", "protocol"];
    let mut child = start(&broker, &[&flags[..], &QUICK].concat());
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let heartbeats = Heartbeats::of(&mut child);
    let mut read = String::new();
    stdout.read_line(&mut read).expect("a line");
    let another = ["consume", "-t", "other", "-G", "g"];
    let other = start(&broker, &[&another[..], &QUICK].concat());
    let state = || run(&broker, &["groups", "describe", "--state", "--group", "g"], b"").stdout;
    until("the other is waited for", || String::from_utf8_lossy(&state()).contains("PreparingRebalance"));
    heartbeats.wait_for_more();
    stdout.read_to_string(&mut read).expect("the rest");
    assert_eq!((child.wait().expect("it ends").code(), read.lines().count()), (Some(0), 9000));
    ends_well(other);
}

/// `timeout` of coreutils signals the command and also the command's process group. In an earlier version, the second
/// signal ended the program before the member had left its group.
#[test]
fn a_repeated_signal_lets_a_joining_member_leave() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=10000"]);
    create(&broker, "t", "1");
    let members = || {
        let described = run(&broker, &["groups", "describe", "--group", "g", "--members", "--json"], b"").stdout;
        String::from_utf8_lossy(&described).matches("\"client_id\"").count()
    };
    let mut child = start(&broker, &["consume", "-t", "t", "-G", "g"]);
    until("it joins", || members() == 1);
    // The broker is frozen, so that the member cannot leave before the last signal. The kernel may merge simultaneous
    // signals, but of five at least two arrive separately. One shell sends all five within a quarter of a second, after
    // which a second signal would end the command. Separate processes might be too slow on a busy machine.
    broker.freeze();
    let signals = format!("for _ in 1 2 3 4 5; do kill -TERM {}; done", child.id());
    assert!(Command::new("sh").args(["-c", &signals]).status().expect("a shell").success());
    broker.thaw();
    child.wait().expect("it ends");
    until("nobody is left", || members() == 0);
}
