//! Tests of `fullbore produce` and `fullbore consume` as processes: pipes, exit status and messages.
//! `tests/clients/fullbore.sh` compares their formats with kcat's.

mod frozen;
mod gone;
mod groups;
mod hangs;
mod rounds;
mod unread;

use fullbore_tests::{Broker, complaints};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The result of a command that has ended.
struct Ended {
    status: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Ended {
    /// Returns standard output. Panics unless the command has succeeded, with no lines on standard error except reports
    /// of waits.
    fn good(self) -> Vec<u8> {
        assert_eq!((self.status, complaints(&self.stderr).as_str()), (Some(0), ""));
        self.stdout
    }

    fn text(self) -> String {
        String::from_utf8(self.good()).expect("UTF-8")
    }

    /// Returns the error message. Panics unless the command has failed.
    fn failure(self) -> String {
        assert_eq!(self.status, Some(1), "{}", self.stderr);
        complaints(&self.stderr)
    }
}

fn start(broker: &Broker, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments).args(["--bootstrap-server", broker.address()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// Runs a command with this input and returns its result.
fn run(broker: &Broker, arguments: &[&str], input: &[u8]) -> Ended {
    let mut child = start(broker, arguments);
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_vec());
    // The write fails if the command ends before it has read all of the input.
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    writing.join().expect("no panic");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ended { status: output.status.code(), stdout: output.stdout, stderr }
}

fn produce(broker: &Broker, flags: &[&str], input: &[u8]) -> Ended {
    run(broker, &[&["produce"], flags].concat(), input)
}

fn consume(broker: &Broker, flags: &[&str]) -> Ended {
    run(broker, &[&["consume"], flags].concat(), b"")
}

fn create(broker: &Broker, topic: &str, partitions: &str) {
    run(broker, &["topics", "create", "--topic", topic, "--partitions", partitions], b"").good();
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Suspends the process, as if its machine hung. Waits until every thread has stopped: one thread handles SIGSTOP, and
/// until then the others continue to run.
fn freeze(child: &Child) {
    signal(child, "STOP");
    let tasks = format!("/proc/{}/task", child.id());
    // A thread that has ended in the meantime counts as suspended.
    let stands =
        |task: DirEntry| fs::read_to_string(task.path().join("stat")).map_or(true, |stat| stat.contains(") T "));
    until("all its threads stand still", || fs::read_dir(&tasks).expect("our child").flatten().all(stands));
}

/// Waits until `is_so` returns true. Fails after two minutes.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "not within two minutes: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Waits until a write to the pipe would block. Does not assume a size of the pipe, because a user with many pipes gets
/// pipes of one page.
fn until_full(pipe: &impl AsFd) {
    // This opens the writing end once more. It must be closed before the reader continues, because otherwise the reader
    // would never reach the end of the pipe.
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    let end = fs::OpenOptions::new().write(true).open(path).expect("a pipe of ours");
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let takes_more = || poll(&mut [PollFd::new(&end, PollFlags::OUT)], Some(&now)).expect("a pipe") > 0;
    until("the pipe is full", || !takes_more());
}

#[test]
fn lines_are_produced_and_consumed() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"one\n\ntwo").good();
    assert_eq!(consume(&broker, &["-t", "t", "-e"]).text(), "one\n\ntwo\n");
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-o", "-1"]).text(), "two\n");
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-o", "1", "-D", "|"]).text(), "|two|");
    assert_eq!(consume(&broker, &["-t", "t", "--from-beginning", "-c", "2"]).text(), "one\n\n");
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-o", "end"]).text(), "");
    assert_eq!(consume(&broker, &["--include", "[s-u]", "-e", "-c", "1"]).text(), "one\n");
}

#[test]
fn a_pattern_matches_internal_topics_only_on_request() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2"]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"one").good();
    for protocol in ["classic", "consumer"] {
        let member = ["--include", ".*", "-G", "g", "--group-protocol", protocol, "--from-beginning", "-c", "1"];
        assert_eq!(
            consume(&broker, &[&member[..], &["-f", "%t\n"]].concat()).text(),
            "t\n",
            "its group makes the topic"
        );
        run(&broker, &["groups", "delete", "--group", "g"], b"").good();
    }
    let topics = |flags: &[&str]| -> Vec<String> {
        let read = consume(&broker, &[&["--include", ".*", "-e", "-f", "%t\n"], flags].concat()).text();
        let mut topics: Vec<String> = read.lines().map(str::to_owned).collect();
        topics.sort();
        topics.dedup();
        topics
    };
    assert_eq!(topics(&[]), ["t"]);
    assert_eq!(topics(&["-X", "exclude.internal.topics=false"]), ["__consumer_offsets", "t"]);
    let perf = ["perf", "consume", "--include", ".*", "--num-records", "1", "--timeout", "60000", "--json"];
    run(&broker, &perf, b"").good();
    assert!(!consume(&broker, &["-t", "__consumer_offsets", "-e"]).good().is_empty(), "by its name it is read");
}

#[test]
fn binary_data_is_unchanged_in_every_framing() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let all: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    produce(&broker, &["-t", "t", "--whole"], &all).good();
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-f", "%s"]).good(), all);
    let framed = [&[0, 0, 0, 3][..], b"a\nb", &[0, 0, 0, 0], &[0, 0, 0, 2], b"\0\xff"].concat();
    create(&broker, "framed", "1");
    produce(&broker, &["-t", "framed", "--framed"], &framed).good();
    assert_eq!(consume(&broker, &["-t", "framed", "-e", "-f", "%R%s"]).good(), framed);
    run(&broker, &["topics", "create", "--topic", "copy", "--partitions", "1"], b"").good();
    produce(&broker, &["-t", "framed", "-Z"], b"\n").good();
    let copied = consume(&broker, &["-t", "framed", "-e", "-f", "%R%s"]).good();
    assert!(copied.ends_with(&[0xFF; 4]), "a null");
    produce(&broker, &["-t", "copy", "--framed"], &copied).good();
    assert!(consume(&broker, &["-t", "copy", "-e", "-f", "%S%s,"]).good().ends_with(b",-1,"));
    produce(&broker, &["-t", "framed", "-D", "\\0"], b"x\0y\0").good();
    assert_eq!(consume(&broker, &["-t", "framed", "-e", "-o", "-2", "-D", "\\0"]).good(), b"x\0y\0");
}

#[test]
fn keys_headers_nulls_partitions_and_timestamps_are_kept() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "3");
    let flags = ["-t", "t", "-K", ":", "-Z", "-p", "2", "--timestamp", "1234", "-H", "a=1", "-H", "b", "--headers"];
    produce(&broker, &flags, b"h:v,n:\tk:v\n\t:no key\n\ttomb:\nplain\n").good();
    let format = ["-t", "t", "-e", "-f", "%t|%p|%o|%T|%K|%k|%S|%s|%h\n"];
    let expected = "t|2|0|1234|1|k|1|v|a=1,b=NULL,h=v,n=NULL\n\
                    t|2|1|1234|-1||6|no key|a=1,b=NULL\n\
                    t|2|2|1234|4|tomb|-1||a=1,b=NULL\n\
                    t|2|3|1234|-1||5|plain|a=1,b=NULL\n";
    assert_eq!(consume(&broker, &format).text(), expected);
    produce(&broker, &["-t", "t", "-K", ":", "-p", "1"], b":\n").good();
    assert_eq!(consume(&broker, &[&format[..], &["-p", "1"]].concat()).text().split('|').nth(4), Some("0"));
    let kafkas = ["-t", "t", "-p", "0", "--property", "parse.key=true", "--property", "key.separator=="];
    assert!(
        produce(&broker, &kafkas, b"a=b\nab\n")
            .failure()
            .contains(r#"line 2: no "=" after its key; 1 record was written"#)
    );
    let columns = ["-t", "t", "-e", "-p", "2", "--print-timestamp", "--print-key", "--print-headers", "-Z", "-c", "2"];
    let expected = "CreateTime:1234\ta:1,b:NULL,h:v,n:NULL\tk\tv\nCreateTime:1234\ta:1,b:NULL\tNULL\tno key\n";
    assert_eq!(consume(&broker, &columns).text(), expected);
}

#[test]
fn json_out_into_json_in_is_an_identical_topic() {
    let broker = Broker::start(&[]);
    create(&broker, "a", "2");
    create(&broker, "b", "2");
    let framed = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let binary = [framed(b"\xff\xfe\0"), framed("é\"\\\n\u{1}".as_bytes()), framed(b"")].concat();
    produce(&broker, &["-t", "a", "--framed", "-p", "0", "-H", "x=é", "-H", "n", "-k", "key"], &binary).good();
    produce(&broker, &["-t", "a", "-Z", "-p", "1", "--timestamp", "99", "-z", "zstd"], b"\nv\n").good();
    let json = consume(&broker, &["-t", "a", "-e", "--json"]).good();
    let answers = produce(&broker, &["-t", "b", "--json", "-O"], &json).text();
    assert!(answers.starts_with(r#"{"line":1,"topic":"b","partition":"#), "{answers}");
    let records = |topic: &str| {
        let lines = consume(&broker, &["-t", topic, "-e", "--json"]).text().replace(r#""topic":"b""#, r#""topic":"a""#);
        let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let found = records("b");
    assert_eq!((found.len(), &found), (5, &records("a")));
    assert!(found[0].contains(r#""value_base64":"//4A""#) && found[2].contains(r#""value":"""#), "{found:?}");
    assert!(found[3].ends_with(r#""timestamp":99,"timestamp_type":"create","key":null,"value":null}"#), "{found:?}");
    let by_name =
        produce(&broker, &["--json", "-O"], b"{\"topic\":\"b\",\"partition\":1,\"value\":{\"n\": 1}}\n").text();
    assert!(by_name.contains(r#""topic":"b","partition":1,"offset":2,"#), "{by_name}");
    assert_eq!(consume(&broker, &["-t", "b", "-p", "1", "-o", "2", "-e"]).text(), "{\"n\": 1}\n");
}

#[test]
fn headers_with_binary_keys_pass_the_pipe() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let record = r#"{"topic":"t","headers":[{"key_base64":"/w==","value":"1"},{"key":"a","value":null}],"value":"v"}"#;
    produce(&broker, &["--json"], record.as_bytes()).good();
    produce(&broker, &["-t", "t"], b"next").good();
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-f", "%h %s;"]).good(), b"\xff=1,a=NULL v; next;");
    let json = consume(&broker, &["-t", "t", "-e", "--json"]).text();
    assert!(json.contains(r#""headers":[{"key_base64":"/w==","value":"1"},{"key":"a","value":null}],"#), "{json}");
    produce(&broker, &["--json"], json.as_bytes()).good();
    assert_eq!(consume(&broker, &["-t", "t", "-e", "-f", "%h;"]).good(), b"\xff=1,a=NULL;;\xff=1,a=NULL;;");
}

#[test]
fn a_million_lines_pass_the_pipe() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let lines: String = (0..1_000_000).map(|n| format!("{n}\n")).collect();
    let answers = produce(&broker, &["-t", "t", "-O"], lines.as_bytes()).text();
    assert_eq!((answers.lines().count(), answers.lines().last()), (1_000_000, Some("t\t0\t999999")));
    assert!(consume(&broker, &["-t", "t", "-e"]).text() == lines, "every line, in order");
}

#[test]
fn a_slow_reader_gets_all_and_a_lost_one_ends_the_command() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let line = "x".repeat(999) + "\n";
    produce(&broker, &["-t", "t"], line.repeat(30_000).as_bytes()).good();
    let mut child = start(&broker, &["consume", "-t", "t", "-e"]);
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut read = String::new();
    stdout.read_line(&mut read).expect("a line");
    // The pipe is full. The broker has more records than fit into the pipe and the queue, so the command can only
    // continue as fast as the test reads.
    until_full(stdout.get_ref());
    stdout.read_to_string(&mut read).expect("the rest");
    assert!(read == line.repeat(30_000), "every line");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let mut child = start(&broker, &["consume", "-t", "t", "-o", "beginning"]);
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout.read_line(&mut read).expect("a line");
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!(
        (child.wait().expect("it ends").code(), complaints(&stderr).as_str()),
        (Some(0), ""),
        "a broken pipe is a quiet end"
    );
}

#[test]
fn the_time_of_a_slow_reader_does_not_count_as_silence() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let line = "x".repeat(999) + "\n";
    produce(&broker, &["-t", "t"], line.repeat(30_000).as_bytes()).good();
    // A broker is late after fetch.max.wait.ms plus a second, which is 5 s here. The test runs the command with a
    // --timeout-ms slightly below 5 s, and with one above. Both are long enough for a busy machine.
    let mut readers = ["4900", "7000"].map(|ms| {
        let flags = ["consume", "-t", "t", "-e", "-X", "fetch.max.wait.ms=4000", "--timeout-ms", ms];
        let mut child = start(&broker, &flags);
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut String::new()).expect("a line");
        (child, stdout)
    });
    for (_, stdout) in &readers {
        until_full(stdout.get_ref());
    }
    std::thread::sleep(Duration::from_secs(10));
    for (child, stdout) in &mut readers {
        let count = stdout.lines().map_while(Result::ok).count();
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
        assert_eq!((child.wait().expect("it ends").code(), complaints(&stderr).as_str(), count), (Some(0), "", 29_999));
    }
}

#[test]
fn a_signal_ends_a_consumer_that_has_no_end() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    produce(&broker, &["-t", "t"], b"a\n").good();
    for (name, flags, status) in [("INT", &[][..], 0), ("TERM", &[], 0), ("HUP", &[], 0), ("INT", &["-c", "5"], 130)] {
        let flags = [&["consume", "-t", "t", "-o", "beginning"], flags].concat();
        let mut child = start(&broker, &flags);
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut String::new()).expect("a line");
        signal(&child, name);
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
        assert_eq!(child.wait().expect("it ends").code(), Some(status), "{stderr}");
        assert_eq!(complaints(&stderr).is_empty(), status == 0, "{stderr}");
    }
}

#[test]
fn a_signal_ends_a_producer_after_the_records_it_has_read() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    // The record lingers, so it is written only because the command flushes it at its end. When the signal arrives, the
    // command may not know the topic's metadata yet.
    let mut child = start(&broker, &["produce", "-t", "t", "-X", "linger.ms=60000"]);
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"typed\n").expect("it reads");
    until("it has read the line", || rustix::io::ioctl_fionread(&stdin).expect("a pipe") == 0);
    signal(&child, "TERM");
    let mut output = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut output).expect("read");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{output}");
    assert!(output.contains("fullbore: interrupted; 1 record was written"), "{output}");
    assert_eq!(consume(&broker, &["-t", "t", "-e"]).text(), "typed\n");
}

#[test]
fn a_producer_without_a_reader_of_its_answers_writes_all_records() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let mut child = start(&broker, &["produce", "-t", "t", "-O"]);
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdin.write_all(b"0\n").expect("it reads");
    stdout.read_line(&mut String::new()).expect("an answer");
    drop(stdout);
    // The command may fail to print the first record's acknowledgement or the second one's.
    let lines: String = (1..100_000).map(|n| format!("{n}\n")).collect();
    for part in lines.as_bytes().chunks(lines.len() / 3) {
        stdin.write_all(part).expect("it reads on");
        until("it has read them", || rustix::io::ioctl_fionread(&stdin).expect("a pipe") == 0);
    }
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    assert_eq!(consume(&broker, &["-t", "t", "-e"]).text(), "0\n".to_owned() + &lines);
}

#[test]
fn a_new_partition_of_the_topic_accepts_records() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let mut child = start(&broker, &["produce", "--json", "-t", "t", "-O"]);
    let (mut stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut answers = BufReader::new(stdout).lines();
    for partition in [0, 2] {
        writeln!(stdin, "{{\"partition\":{partition},\"value\":\"v\"}}").expect("it reads");
        let answer = answers.next().expect("an answer").expect("UTF-8");
        assert!(answer.contains(&format!("\"partition\":{partition},\"offset\":0")), "{answer}");
        if partition == 0 {
            run(&broker, &["topics", "alter", "--topic", "t", "--partitions", "3"], b"").good();
        }
    }
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_too_large_record_is_refused_with_size_limit_and_remedy() {
    let broker = Broker::start(&["message.max.bytes=2000"]);
    create(&broker, "t", "1");
    // Returns the words of the command that a message suggests between backquotes.
    let typed = |reported: &str| -> Vec<String> {
        let command = reported.split('`').nth(1).and_then(|command| command.strip_prefix("fullbore "));
        command.unwrap_or_else(|| panic!("{reported}")).split(' ').map(str::to_owned).collect()
    };
    for (codec, size, noise) in [("none", 5000, false), ("gzip", 40_000, true)] {
        // Random bytes, which do not compress.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b'!' + (state >> 58) as u8
        };
        let value: Vec<u8> = (0..size).map(|_| if noise { next() } else { b'x' }).collect();
        let lines = [b"ok\n".to_vec(), value, b"\nlater\n".to_vec()].concat();
        let reported = produce(&broker, &["-t", "t", "-z", codec], &lines).failure();
        let start = "fullbore: 1 record failed: line 2: the broker answered MESSAGE_TOO_LARGE: The batch of ";
        assert!(
            reported.starts_with(start) && reported.lines().count() == 1,
            "one error, and no notice beside it: {reported}"
        );
        assert!(
            reported.contains("; raise it with `fullbore configs alter --topic t --add-config max.message.bytes="),
            "{reported}"
        );
        assert!(
            reported.contains(", and topic t has max.message.bytes=") && reported.contains("takes up to "),
            "{reported}"
        );
        let command = typed(&reported);
        run(&broker, &command[..command.len() - 2].iter().map(String::as_str).collect::<Vec<_>>(), b"").good();
        assert_eq!(command[command.len() - 2..], ["--bootstrap-server".to_owned(), broker.address().to_owned()]);
        produce(&broker, &["-t", "t", "-z", codec], &lines).good();
    }
    let small = ["-X", "max.request.size=1500", "-X", "batch.size=1000"];
    for (bytes, expected) in [
        (5000, "line 2: 5000 bytes are too many for max.request.size=1500; raise it with"),
        (1490, " more than max.request.size=1500; raise it with --producer-property max.request.size=2048"),
    ] {
        let lines = [b"ok\n".to_vec(), vec![b'x'; bytes], b"\n".to_vec()].concat();
        let reported = produce(&broker, &[&["-t", "t"], &small[..]].concat(), &lines).failure();
        assert!(reported.starts_with("fullbore: line 2: ") && reported.contains(expected), "{reported}");
        let property =
            reported.split("--producer-property ").nth(1).and_then(|rest| rest.split(';').next()).expect(&reported);
        produce(&broker, &["-t", "t", "-X", "batch.size=1000", "-X", property], &lines).good();
    }
}

#[test]
fn a_failed_record_is_reported_with_its_line() {
    let broker = Broker::start(&["auto.create.topics.enable=false", "message.max.bytes=2000"]);
    create(&broker, "t", "1");
    let long = [b"ok\n".to_vec(), vec![b'x'; 5000], b"\nlater\n".to_vec()].concat();
    let reported = produce(&broker, &["-t", "t", "-X", "batch.size=0"], &long).failure();
    assert!(
        reported.starts_with("fullbore: 1 record failed: line 2: the broker answered MESSAGE_TOO_LARGE"),
        "{reported}"
    );
    assert!(reported.ends_with("; 2 records were written\n"), "{reported}");
    let reported = produce(&broker, &["-t", "t", "-p", "7"], b"a\n").failure();
    assert!(reported.starts_with("fullbore: line 1: topic t has no partition 7"), "{reported}");
    let reported = produce(&broker, &["--json"], b"{\"topic\":\"t\",\"value\":\"a\"}\n\n{\"value\":1}\n").failure();
    assert!(
        reported.starts_with(r#"{"error":"line 3: names no topic; name one with --topic; 1 record was written"#),
        "{reported}"
    );
    let reported = produce(&broker, &["-t", "none", "-X", "max.block.ms=4000"], b"a\n").failure();
    assert!(reported.contains("line 1: ") && reported.contains("fullbore topics describe --topic none"), "{reported}");
    let reported = produce(&broker, &["-t", "t", "/no/such/file"], b"").failure();
    assert!(reported.starts_with("fullbore: cannot read /no/such/file: "), "{reported}");
    assert!(consume(&broker, &["-t", "none", "-e"]).failure().starts_with("fullbore: topic 'none' does not exist"));
    assert!(consume(&broker, &["-t", "t", "-p", "3", "-e"]).failure().contains("no partition 3; it has 0 to 0"));
    for end in [&["-c", "1"][..], &["-e"]] {
        assert!(consume(&broker, &[&["-t", "t", "-o", "99"], end].concat()).failure().contains("no offset 99"));
    }
    let from = |reset| consume(&broker, &["-t", "t", "-o", "99", "-e", "-X", reset]).text();
    assert_eq!(from("auto.offset.reset=earliest"), "ok\nlater\na\n");
    assert_eq!(from("auto.offset.reset=latest"), "");
    assert!(consume(&broker, &["--include", "a["]).failure().contains("--include a[ is not a regular expression"));
    let reset = ["-t", "t", "-o", "99", "-c", "1", "-X", "auto.offset.reset=earliest"];
    assert_eq!(consume(&broker, &reset).text(), "ok\n");
    let wrong = consume(&broker, &["-t", "t", "-f", "ab%q"]);
    assert!(wrong.status == Some(2) && wrong.stderr.contains("at byte 3 of the format"), "{}", wrong.stderr);
}
