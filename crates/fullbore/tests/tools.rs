//! Tests of the tools as processes. They check the exit status and the output, but not the measured values.

use fullbore_tests::{Broker, NO_LISTENER, complaints, stable_ports};
use std::fs::File;
use std::io::{BufRead, BufReader, PipeWriter, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn fullbore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    output_of(fullbore(arguments).output().expect("it starts"))
}

fn output_of(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), complaints(&text(&output.stderr)))
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

const PRODUCE: [&str; 9] =
    ["perf", "produce", "--topic", "t", "--record-size", "100", "--throughput", "-1", "--num-records"];

#[test]
fn no_tool_sends_secrets_in_clear() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("client.properties");
    std::fs::write(&file, "security.protocol=SASL_SSL\nsasl.jaas.config=secret\n").expect("written");
    let secure = ["--command-config", file.to_str().expect("UTF-8"), "--bootstrap-server", NO_LISTENER];
    let consume = ["perf", "consume", "--topic", "t", "--num-records", "1"];
    for tool in [&[&PRODUCE[..], &["1"]].concat()[..], &consume, &["topics", "list"], &["topics", "--list"]] {
        let (status, _, stderr) = run(&[tool, &secure].concat());
        let reported = "fullbore: security.protocol=SASL_SSL: must be PLAINTEXT or SSL; SASL is not offered yet\n";
        assert_eq!((status, stderr.as_str()), (Some(1), reported), "{tool:?}");
    }
}

/// Returns the writing end of a pipe that has no reader.
fn unread() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

#[test]
fn a_failing_standard_error_changes_no_exit_status() {
    let full = || File::options().write(true).open("/dev/full").expect("Linux has it");
    for (arguments, status) in [
        (&["topics", "list", "--bootstrap-server", NO_LISTENER][..], 1),
        (&["topics", "list", "--json", "--bootstrap-server", NO_LISTENER], 1),
        (&["topics", "list", "--nope"], 2),
        (&["serve", "--set", "typo=1", "--listen", "192.0.2.1:9092"], 1),
    ] {
        let status_with = |stderr: Stdio| fullbore(arguments).stderr(stderr).status().expect("it starts").code();
        assert_eq!(status_with(unread().into()), Some(status), "{arguments:?}");
        assert_eq!(status_with(full().into()), Some(status), "{arguments:?}");
    }
}

/// Runs a shell script, in which `$0` is the tested binary.
fn shell(script: &str) -> (Option<i32>, String, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_fullbore")]).stdin(Stdio::null());
    output_of(shell.output().expect("there is a shell"))
}

#[test]
fn a_command_fails_if_standard_output_fails() {
    let broker = Broker::start(&[]);
    let at = format!("--bootstrap-server {}", broker.address());
    for line in [
        format!("topics create --topic t {at}"),
        format!("topics list {at}"),
        format!("topics list --json {at}"),
        format!("configs describe --topic t {at}"),
        format!("info {at}"),
        format!("{} 10 {at}", PRODUCE.join(" ")),
        "completions bash".to_owned(),
        "man".to_owned(),
        "--version".to_owned(),
        "topics --help".to_owned(),
    ] {
        for (topic, redirection, reason) in
            [("t", ">&-", "Bad file descriptor"), ("u", ">/dev/full", "No space left on device")]
        {
            let line = line.replace("create --topic t", &format!("create --topic {topic}"));
            let (status, _, stderr) = shell(&format!("\"$0\" {line} {redirection}"));
            let reported = complaints(&stderr);
            assert_eq!(status, Some(1), "{line} {redirection}: {reported}");
            assert!(
                reported.contains("cannot write to standard output: ") && reported.contains(reason),
                "{line}: {reported}"
            );
        }
        let line = line.replace("create --topic t", "create --topic v");
        let (_, _, stderr) = shell(&format!("{{ \"$0\" {line}; echo status $? >&2; }} | true"));
        assert_eq!(complaints(&stderr).trim_end(), "status 0", "{line}: a reader may go away");
    }
}

#[test]
fn a_broker_without_standard_output_serves_and_stops() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("UTF-8");
    // In the script, `$!` is the pid of the broker. The broker is ready when its log contains "listening".
    let script = format!(
        ": >{data}/log; \"$0\" serve --listen 127.0.0.1:0 --data-dir {data}/data >&- 2>>{data}/log & \
         until grep -q listening {data}/log; do kill -0 $! || exit 9; done; kill -TERM $!; wait $!"
    );
    let (status, _, stderr) = shell(&script);
    let log = std::fs::read_to_string(directory.path().join("log")).expect("the broker's log");
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{log}");
}

#[test]
fn a_broker_whose_log_has_lost_its_reader_serves_and_stops() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut serve = fullbore(&["serve", "--listen", "127.0.0.1:0", "--set", "fullbore.admin.listener=", "--data-dir"]);
    let mut broker = serve.arg(directory.path()).stderr(unread()).spawn().expect("it starts");
    let mut greeting = String::new();
    let mut stdout = BufReader::new(broker.stdout.take().expect("piped"));
    stdout.read_line(&mut greeting).expect("it greets");
    let address = greeting.split("listening on ").nth(1).and_then(|rest| rest.split(',').next()).expect("its address");
    for topic in ["a", "b"] {
        let (status, _, stderr) = run(&["topics", "create", "--topic", topic, "--bootstrap-server", address]);
        assert_eq!((status, stderr.as_str()), (Some(0), ""), "{topic}");
    }
    signal(&broker, "TERM");
    assert_eq!(broker.wait().expect("it ends").code(), Some(0));
}

#[test]
fn every_command_reports_typos_in_a_clients_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("client.properties");
    std::fs::write(&file, "security.protocl=SSL\nclient.id=x\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    for (tool, flag) in [
        ("topics list", "--command-config"),
        ("topics describe", "--command-config"),
        ("configs describe --entity-type topics --all", "--command-config"),
        ("groups list", "--command-config"),
        ("produce --topic t", "--producer.config"),
        ("consume --topic t", "--consumer.config"),
        ("perf produce --topic t --record-size 1 --throughput -1 --num-records 1", "--producer.config"),
        ("perf consume --topic t --num-records 1", "--consumer.config"),
    ] {
        let tool: Vec<&str> = tool.split(' ').collect();
        let (status, _, stderr) = run(&[&tool[..], &[flag, path, "--bootstrap-server", NO_LISTENER]].concat());
        let first = stderr.lines().next().unwrap_or_default();
        assert_eq!(status, Some(1), "{tool:?}: {stderr}");
        assert!(first.starts_with("security.protocl: ") && first.contains(" has no effect"), "{tool:?}: {stderr}");
        assert!(first.ends_with("; did you mean security.protocol?"), "{tool:?}: {stderr}");
        assert_eq!(stderr.matches("security.protocl").count(), 1, "{tool:?}: {stderr}");
    }
}

#[test]
fn a_broker_on_an_ipv6_address_is_reached_by_every_tool() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let broker = Broker::start(&["listeners=PLAINTEXT://[::1]:0"]);
    let at = ["--bootstrap-server", broker.address()];
    let ran = |tool: &str| {
        let tool: Vec<&str> = tool.split(' ').collect();
        let (status, stdout, stderr) = run(&[&tool[..], &at].concat());
        assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{tool:?}");
        stdout
    };
    assert!(broker.address().starts_with("[::1]:"), "{}", broker.address());
    ran("topics create --topic t --partitions 2");
    ran("perf produce --topic t --record-size 10 --throughput -1 --num-records 100");
    ran("perf consume --topic t --num-records 100");
    assert_eq!(ran("consume --topic t -e --group g --from-beginning").lines().count(), 100);
    assert!(ran("topics describe --topic t").contains("PartitionCount: 2"));
    let (_, stdout, _) = run(&[&["groups", "describe", "--group", "g", "--state"], &at[..]].concat());
    assert!(stdout.contains(&format!(" {}  (1)", broker.address())), "the coordinator has brackets: {stdout}");
    let (_, _, stderr) = output_of(fullbore(&["serve", "--listen", broker.address()]).output().expect("it starts"));
    let expected = format!(
        "cannot listen on {}: the port is taken; stop the program that has it, or set another",
        broker.address()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    let (_, _, stderr) = run(&["topics", "list", "--bootstrap-server", "::1:9092"]);
    assert!(stderr.contains("is not host:port ([::1]:port of IPv6)"), "{stderr}");
    let mut relay = fullbore(&["perf", "link", "--rtt", "1ms", "--listen", "[::1]:0", "--to", broker.address()])
        .spawn()
        .expect("it starts");
    let mut reported = String::new();
    BufReader::new(relay.stdout.take().expect("piped")).read_line(&mut reported).expect("a line");
    assert!(reported.contains("on [::1]:") && reported.contains(&format!(", to {}", broker.address())), "{reported}");
    let through = reported.split_whitespace().find(|word| word.starts_with("[::1]:")).expect("its address");
    assert_eq!(run(&["topics", "list", "--bootstrap-server", through.trim_end_matches(',')]).0, Some(0));
    relay.kill().and_then(|()| relay.wait()).expect("it ends");
}

#[test]
fn both_perf_tools_name_an_unreachable_leader() {
    let listener = |key: &str, address: &str| format!("{key}=PLAINTEXT://{address}");
    let somebody = format!("127.0.0.1:{}", stable_ports(1)[0]);
    let sets = [listener("listeners", &somebody), listener("advertised.listeners", NO_LISTENER)];
    let _broker = Broker::start(&[&sets[0], &sets[1]]);
    let at = ["--bootstrap-server", somebody.as_str()];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"][..], &at].concat()).0, Some(0));
    // The command prints the warning after a second, which is long before its end, even on a busy machine.
    let short =
        ["--command-property", "delivery.timeout.ms=6000", "request.timeout.ms=4000", "linger.m=5", "client.id=x"];
    let (status, stdout, stderr) = run(&[&PRODUCE[..], &["10", "--print-metrics"], &at, &short].concat());
    let cause = format!("cannot connect to {NO_LISTENER}: ");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.starts_with("linger.m: is not a producer setting and has no effect; did you mean linger.ms?\n"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("nothing gets through: ").count(), 1, "{stderr}");
    let waited_s = stderr.split("10 records failed; the first: not acknowledged in ").nth(1);
    let waited_s = waited_s.and_then(|rest| rest.split(' ').next()).and_then(|seconds| seconds.parse::<f64>().ok());
    assert!(waited_s.is_some_and(|seconds| (6.0..60.0).contains(&seconds)), "{stderr}");
    assert_eq!(stderr.matches(&cause).count(), 2, "the warning and the end name it: {stderr}");
    assert!(stdout.contains("{client-id=x}") && !stdout.contains("records sent"), "{stdout}");
    let consume = ["perf", "consume", "--topic", "t", "--num-records", "1", "--timeout", "5000"];
    let (status, _, stderr) = run(&[&consume[..], &at].concat());
    assert_eq!(status, Some(1));
    let reported = complaints(&stderr);
    assert!(reported.starts_with("fullbore: no record came in 5000 ms: ") && reported.contains(&cause), "{stderr}");
}

#[test]
fn an_empty_topic_gives_kafkas_warning() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"][..], &at].concat()).0, Some(0));
    let consume = ["perf", "consume", "--topic", "t", "--num-records", "1", "--timeout", "3000"];
    let (status, stdout, stderr) = run(&[&consume[..], &at].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""));
    assert!(stdout.contains("WARNING: Exiting before consuming the expected number of records"), "{stdout}");
}

#[test]
fn perf_consume_of_zero_records_ends_at_once() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"][..], &at].concat()).0, Some(0));
    let consume = ["perf", "consume", "--topic", "t", "--num-records", "0", "--timeout", "60000"];
    let began = Instant::now();
    let (status, stdout, stderr) = run(&[&consume[..], &at].concat());
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""));
    assert!(!stdout.contains("WARNING"), "{stdout}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn a_demo_that_loses_its_reader_leaves_no_data() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut child = fullbore(&["demo"]).env("TMPDIR", temp.path()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::with_capacity(1, child.stdout.take().expect("piped")).read_line(&mut line).expect("it says something");
    assert!(line.starts_with("Broker on "), "{line}");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!((child.wait().expect("it ends").code(), complaints(&stderr).as_str()), (Some(0), ""));
    assert_eq!(std::fs::read_dir(temp.path()).expect("readable").count(), 0);
}

#[test]
fn an_interrupted_demo_ends_at_once_and_leaves_no_data() {
    for what in
        [&["--records", "1000000000"][..], &["--diskless", "--put", "60s"], &["--rtt", "20", "--records", "1000000000"]]
    {
        let temp = tempfile::tempdir().expect("a directory");
        let mut child = fullbore(&[&["demo"], what].concat()).env("TMPDIR", temp.path()).spawn().expect("it starts");
        let mut stdout = BufReader::with_capacity(1, child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("Streaming ") {
            line.clear();
            assert!(stdout.read_line(&mut line).expect("it says what it does") > 0, "{what:?}");
        }
        signal(&child, "INT");
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
        let status = child.wait().expect("it ends").code();
        assert_eq!((status, complaints(&stderr).lines().count()), (Some(130), 1), "{what:?}: {stderr}");
        assert!(stderr.contains("interrupted"), "{what:?}: {stderr}");
        assert_eq!(std::fs::read_dir(temp.path()).expect("readable").count(), 0, "{what:?}");
    }
}

#[test]
fn a_demo_without_a_temporary_directory_reports_the_remedy() {
    let output = fullbore(&["demo"]).env("TMPDIR", "/no/such/directory").output().expect("it starts");
    let (status, _, stderr) = output_of(output);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("/no/such/directory") && stderr.contains("set TMPDIR"), "{stderr}");
}

#[test]
fn an_interrupted_perf_tool_prints_its_figures() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"][..], &at].concat()).0, Some(0));
    let paced = ["perf", "produce", "--topic", "t", "--record-size", "100", "--throughput", "1000"];
    let endless = ["--num-records", "100000000", "--reporting-interval", "100"];
    let (status, stdout, stderr) = interrupted(&[&paced[..], &endless, &at].concat());
    assert_eq!(status, Some(130), "{stderr}");
    let summary = stdout.lines().last().unwrap_or_default();
    assert!(summary.contains(" ms 99.9th."), "{stdout}");
    assert!(stderr.starts_with("fullbore: interrupted before all of 100000000 records"), "{stderr}");
    let consume = ["perf", "consume", "--topic", "t", "--num-records", "100000000"];
    let (status, stdout, stderr) = interrupted(&[&consume[..], &at].concat());
    assert_eq!(status, Some(130), "{stderr}");
    assert!(stdout.lines().count() == 2 && !stdout.contains("WARNING"), "the header and the figures: {stdout}");
}

#[test]
fn a_signal_ends_a_perf_tool_between_two_distant_records() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"][..], &at].concat()).0, Some(0));
    // At this rate, the second record is due more than a minute later.
    let slow = ["--topic", "t", "--record-size", "100", "--throughput", "0.01", "--num-records", "5"];
    let tool = [&["perf", "produce", "--debug", "protocol"][..], &slow, &at].concat();
    let mut child = fullbore(&tool).spawn().expect("it starts");
    let mut reported = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(reported.any(|line| line.contains("Produce") && line.contains("rtt_us")), "the first is answered");
    // When this other command has read the record, the tool has also had time to process the broker's response.
    let consume = ["consume", "--topic", "t", "--from-beginning", "--max-messages", "1"];
    assert_eq!(run(&[&consume[..], &at].concat()).0, Some(0));
    signal(&child, "INT");
    let stderr: Vec<String> = reported.collect();
    let (status, stdout, _) = output_of(child.wait_with_output().expect("it ends"));
    assert_eq!(status, Some(130), "{stderr:?}");
    assert!(stdout.starts_with("1 records sent") && stdout.contains(" ms 99.9th."), "{stdout}");
    let last = stderr.last().expect("it says why");
    assert!(last.starts_with("fullbore: interrupted before all of 5 records"), "{stderr:?}");
}

/// Waits until the tool has printed its first line, and then interrupts it.
fn interrupted(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut child = fullbore(arguments).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let (mut stdout, mut stderr) = (String::new(), String::new());
    lines.read_line(&mut stdout).expect("a line");
    signal(&child, "INT");
    lines.read_to_string(&mut stdout).expect("read");
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    (child.wait().expect("it ends").code(), stdout, complaints(&stderr))
}

#[test]
fn the_configured_client_id_is_sent() {
    for tool in [&[&PRODUCE[..], &["1"]].concat()[..], &["perf", "consume", "--topic", "t", "--num-records", "1"]] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let set = ["--bootstrap-server", &address, "--command-property", "client.id=me"];
        let mut child = fullbore(&[tool, &set].concat()).spawn().expect("it starts");
        let (mut socket, _) = listener.accept().expect("it connects");
        // The header has the length, API key, version and correlation id. The client id follows, whose length has two
        // bytes.
        let mut start = [0; 4 + 2 + 2 + 4 + 2 + 2];
        socket.read_exact(&mut start).expect("a request");
        assert_eq!(&start[12..], b"\0\x02me", "{tool:?}");
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }
}

#[test]
fn a_too_large_record_is_refused_with_the_limit() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    let large =
        ["perf", "produce", "--topic", "t", "--num-records", "1", "--record-size", "1048576", "--throughput", "-1"];
    let (status, _, stderr) = run(&[&large[..], &at].concat());
    assert_eq!(status, Some(1));
    assert!(stderr.contains("max.request.size=1048576") && !stderr.contains("describe"), "{stderr}");
    let bad = ["perf", "produce", "--topic", "a b", "--num-records", "1", "--record-size", "1", "--throughput", "-1"];
    let (_, _, stderr) = run(&[&bad[..], &at].concat());
    assert!(stderr.contains("The topic name is not valid"), "{stderr}");
}

#[test]
fn topics_are_described_by_id_and_by_state() {
    let broker = Broker::start(&[]);
    let at = ["--bootstrap-server", broker.address()];
    let topics = |arguments: &[&str]| run(&[&["topics"], arguments, &at].concat());
    assert_eq!(topics(&["--create", "--topic", "a", "--partitions", "2"]).0, Some(0));
    assert_eq!(topics(&["--create", "--topic", "b", "--config", "retention.ms=1"]).0, Some(0));
    let (_, described, _) = topics(&["--describe", "--topic", "a"]);
    let id = described.split("TopicId: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an id");
    let (_, found, requests) =
        topics(&["--describe", "--topic", "a", "--partition-size-limit-per-response", "1", "--debug", "protocol"]);
    let pages =
        requests.lines().filter(|line| line.contains("request ") && line.contains("DescribeTopicPartitions")).count();
    assert!(found == described && pages == 2, "two partitions, one at a time: {found}{requests}");
    let by_id = topics(&["--describe", "--topic-id", id]);
    assert_eq!((by_id.0, by_id.1), (Some(0), described.clone()));
    let (status, _, stderr) = topics(&["--describe", "--topic-id", "4L6g3nShT-eMCtK--X86sw"]);
    assert!(status == Some(1) && stderr.contains("does not exist"), "{stderr}");
    let (status, found, _) = topics(&["--describe", "--unavailable-partitions", "--under-min-isr-partitions"]);
    assert_eq!((status, found.as_str()), (Some(0), ""));
    let (_, found, _) = topics(&["--describe", "--at-min-isr-partitions", "--topic", "a"]);
    assert_eq!(found.lines().count(), 2, "one replica is what min.insync.replicas=1 asks for: {found}");
    let (_, found, _) = topics(&["--describe", "--topics-with-overrides"]);
    assert!(found.contains("Topic: b\t") && !found.contains("Partition: "), "{found}");
}

#[test]
fn a_greeting_has_the_listener_and_another_advertised_address() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", &data, "--set", "fullbore.admin.listener="];
    let advertised = ["--set", "advertised.listeners=PLAINTEXT://broker.invalid:1234"];
    let mut broker = fullbore(&[&serve[..], &advertised].concat()).spawn().expect("it starts");
    let mut lines = BufReader::new(broker.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let greeting: Vec<String> = lines.by_ref().take(2).collect();
    broker.kill().expect("it runs");
    broker.wait().expect("it ends");
    assert!(greeting[0].contains(" is listening on 127.0.0.1:"), "{greeting:?}");
    assert_eq!(greeting[1], "  clients  are sent to broker.invalid:1234 (advertised.listeners)");
}
