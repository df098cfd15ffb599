//! Tests of `perf link`, which runs as a process between a broker and its clients until a signal ends it.

use fullbore_tests::{complaints, stable_ports};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const RTT_MS: f64 = 40.0;

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // `kill` fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fullbore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = fullbore(arguments).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), complaints(&text(&output.stderr)))
}

/// Starts a command and reads its first line.
fn start(arguments: &[&str]) -> (Running, BufReader<std::process::ChildStdout>, String) {
    let mut child = fullbore(arguments).stderr(Stdio::inherit()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("it says something");
    (Running(child), lines, first)
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Returns the address that follows `words` in a line.
fn address<'a>(line: &'a str, words: &str) -> &'a str {
    let rest = line.split(words).nth(1).unwrap_or_else(|| panic!("{line}"));
    rest.split(',').next().expect("split gives one")
}

#[test]
fn a_broker_behind_a_relay_has_the_round_trip_of_the_flag() {
    let broker = format!("127.0.0.1:{}", stable_ports(1)[0]);
    let link = ["perf", "link", "--listen", "127.0.0.1:0", "--to", &broker, "--rtt", "40ms"];
    let (mut relay, mut counts, first) = start(&link);
    let at = address(&first, "Relay listening on ");
    assert!(first.contains(&format!(", to {broker}; 40 ms there and back, as fast as it goes")), "{first}");
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let advertised = format!("advertised.listeners=PLAINTEXT://{at}");
    let serve = ["serve", "--listen", &broker, "--data-dir", &data, "--set", "fullbore.admin.listener="];
    let (_broker, _lines, _) = start(&[&serve[..], &["--set", &advertised]].concat());
    let server = ["--bootstrap-server", at];
    assert_eq!(run(&[&["topics", "create", "--topic", "t"], &server[..]].concat()).0, Some(0));
    let produce =
        ["perf", "produce", "--topic", "t", "--num-records", "20", "--record-size", "100", "--throughput", "-1"];
    let (status, stdout, stderr) = run(&[&produce[..], &server].concat());
    assert_eq!(status, Some(0), "{stderr}");
    let p50 = stdout.split(" ms 50th").next().and_then(|before| before.rsplit(' ').next()).expect("a summary");
    assert!(p50.parse::<f64>().expect("a number") >= RTT_MS, "the clients went around the relay: {stdout}");
    signal(&relay.0, "INT");
    assert_eq!(relay.0.wait().expect("it ends").code(), Some(0));
    let mut output = String::new();
    counts.read_to_string(&mut output).expect("read");
    let there: u64 = output
        .split(" bytes to the server")
        .next()
        .and_then(|before| before.rsplit(' ').next())
        .and_then(|bytes| bytes.replace(',', "").parse().ok())
        .unwrap_or_else(|| panic!("{output}"));
    assert!(there > 20 * 100, "the records crossed: {output}");
}

#[test]
fn a_member_over_a_distance_commits_at_ctrl_c() {
    let broker = format!("127.0.0.1:{}", stable_ports(1)[0]);
    let link = ["perf", "link", "--listen", "127.0.0.1:0", "--to", &broker, "--rtt", "400ms"];
    let (_relay, _counts, first) = start(&link);
    let at = address(&first, "Relay listening on ");
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let advertised = format!("advertised.listeners=PLAINTEXT://{at}");
    let serve = ["serve", "--listen", &broker, "--data-dir", &data, "--set", "fullbore.admin.listener="];
    let at_once = ["--set", "group.initial.rebalance.delay.ms=0", "--set", &advertised];
    let (_broker, _lines, _) = start(&[&serve[..], &at_once].concat());
    let server = ["--bootstrap-server", at];
    let create = ["topics", "create", "--topic", "t"];
    assert_eq!(run(&[&create[..], &server].concat()).0, Some(0));
    let file = directory.path().join("records");
    std::fs::write(&file, "one\n").expect("written");
    let produced = run(&[&["produce", "-t", "t", &file.display().to_string()][..], &server].concat());
    assert_eq!(produced.0, Some(0), "{produced:?}");
    for protocol in ["classic", "consumer"] {
        let flags = ["consume", "-t", "t", "--from-beginning", "-G", protocol, "--group-protocol", protocol];
        // With this interval, the command commits only at its end.
        let interval = ["-X", "auto.commit.interval.ms=600000"];
        let mut member = fullbore(&[&flags[..], &interval, &server].concat()).spawn().map(Running).expect("it starts");
        let mut line = String::new();
        BufReader::new(member.0.stdout.take().expect("piped")).read_line(&mut line).expect("UTF-8");
        assert_eq!(line, "one\n", "{protocol}");
        signal(&member.0, "INT");
        let mut reported = String::new();
        member.0.stderr.take().expect("piped").read_to_string(&mut reported).expect("UTF-8");
        assert_eq!(member.0.wait().expect("it ends").code(), Some(0), "{protocol}: {reported}");
        assert_eq!(complaints(&reported), "", "{protocol}");
    }
}

#[test]
fn a_bypassed_relay_is_reported_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", &data, "--set", "fullbore.admin.listener="];
    let (_broker, _lines, greeting) = start(&serve);
    let broker = address(&greeting, "listening on ");
    let link = ["perf", "link", "--listen", "127.0.0.1:0", "--to", broker, "--rtt", "1"];
    let mut relay = fullbore(&link).spawn().map(Running).expect("it starts");
    let (mut first, mut output) = (String::new(), BufReader::new(relay.0.stdout.take().expect("piped")));
    output.read_line(&mut first).expect("it says something");
    assert!(first.contains("; 1 ms there and back"), "a number alone is milliseconds: {first}");
    let at = address(&first, "Relay listening on ");
    for _ in 0..2 {
        assert_eq!(run(&["topics", "list", "--bootstrap-server", at]).0, Some(0));
    }
    let mut reported = String::new();
    let mut lines = BufReader::new(relay.0.stderr.take().expect("piped"));
    lines.read_line(&mut reported).expect("it says something");
    let expected =
        format!("clients go around this relay, which then measures nothing: brokers send them to {broker}; ");
    assert!(reported.starts_with(&expected) && reported.contains(&format!("PLAINTEXT://{at}")), "{reported}");
    signal(&relay.0, "INT");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "");
}

#[test]
fn a_demo_over_a_distance_measures_its_latency() {
    let temp = tempfile::tempdir().expect("a directory");
    let small = ["demo", "--records", "300", "--record-size", "100"];
    let demo = |rtt: &str| fullbore(&[&small[..], &["--rtt", rtt]].concat()).env("TMPDIR", temp.path()).output();
    let output = demo("40").expect("it starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.contains("each: 40 ms there and back, 200 mbit/s"), "{stdout}");
    assert!(stdout.contains("A plain TCP stream carries "), "{stdout}");
    let rows: Vec<Vec<&str>> = stdout.lines().map(|row| row.split_whitespace().collect()).collect();
    let acknowledged: Vec<f64> = rows
        .iter()
        .filter(|row| row.first() == Some(&"acknowledged"))
        .map(|row| row[3].parse().expect("the median"))
        .collect();
    assert!(acknowledged.len() == 3 && acknowledged.iter().all(|p50| *p50 >= RTT_MS), "{stdout}");
    assert_eq!(std::fs::read_dir(temp.path()).expect("readable").count(), 0);
    let output = demo("40x").expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("150ms"), "{output:?}");
}

#[test]
fn an_unreachable_far_end_is_reported_once() {
    let nobody = "127.0.0.1:1";
    let link = ["perf", "link", "--listen", "127.0.0.1:0", "--to", nobody, "--rtt", "1ms", "--json"];
    let mut relay = fullbore(&link).spawn().map(Running).expect("it starts");
    let mut first = String::new();
    let mut lines = BufReader::new(relay.0.stdout.take().expect("piped"));
    lines.read_line(&mut first).expect("it says something");
    let listening =
        first.split("{\"kind\":\"listening\",\"address\":\"").nth(1).and_then(|rest| rest.split('"').next());
    for _ in 0..3 {
        let mut client = std::net::TcpStream::connect(listening.expect("an address")).expect("it listens");
        // The relay cannot connect, so the client's connection is closed or reset.
        let _ = client.read(&mut [0]);
    }
    signal(&relay.0, "INT");
    let mut reported = String::new();
    relay.0.stderr.take().expect("piped").read_to_string(&mut reported).expect("read");
    let expected = format!(
        "{{\"note\":\"cannot connect to {nobody}: Connection refused (os error 111); connections are refused until"
    );
    assert!(reported.starts_with(&expected) && reported.lines().count() == 1, "{reported}");
    let mut totals = String::new();
    lines.read_to_string(&mut totals).expect("read");
    assert!(totals.starts_with("{\"kind\":\"totals\",\"connections\":3,\"refused\":3,"), "{totals}");
}

#[test]
fn an_address_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = taken.local_addr().expect("bound").to_string();
    let (status, _, stderr) = run(&["perf", "link", "--listen", &at, "--to", "127.0.0.1:1", "--rtt", "1ms"]);
    assert_eq!(status, Some(1));
    let expected = format!("fullbore: cannot listen on {at}: the port is taken; stop the program that has it");
    assert!(stderr.starts_with(&expected), "{stderr}");
}

/// Returns the reason why this machine cannot create network namespaces, or `None` if it can.
fn hindrance() -> Option<&'static str> {
    let ip =
        |arguments: &[&str]| Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success());
    if !Path::new("/dev/net/tun").exists() {
        Some("there is no /dev/net/tun")
    } else if !ip(&["-V"]) {
        Some("there is no `ip`")
    } else if !Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n") {
        Some("not root")
    } else {
        None
    }
}

fn skipped() -> bool {
    if let Some(hindrance) = hindrance() {
        println!("skipped: {hindrance}");
    }
    hindrance().is_some()
}

/// Returns two unused names of namespaces, and the files that `ip netns` will create for them.
fn namespaces(test: &str) -> (String, [PathBuf; 2]) {
    let names = ["a", "b"].map(|end| format!("fblc{}{test}{end}", std::process::id()));
    (names.join(","), names.map(|name| Path::new("/run/netns").join(name)))
}

#[test]
fn namespaces_are_removed_at_the_end_or_at_the_next_start_after_a_kill() {
    if skipped() {
        return;
    }
    let (names, paths) = namespaces("kill");
    let link = ["perf", "link", "--namespaces", &names, "--rtt", "10ms"];
    let (mut killed, _, first) = start(&link);
    assert!(first.contains("(10.77.0.1) to ") && first.contains("; 10 ms there and back"), "{first}");
    killed.0.kill().and_then(|()| killed.0.wait()).expect("it ends");
    assert!(paths.iter().all(|path| path.exists()), "a kill leaves them behind");
    let (mut link, mut counts, first) = start(&link);
    assert!(first.starts_with("Link from "), "{first}");
    signal(&link.0, "TERM");
    assert_eq!(link.0.wait().expect("it ends").code(), Some(0));
    let mut output = String::new();
    counts.read_to_string(&mut output).expect("read");
    assert_eq!(output.matches(" lost, 0 dropped").count(), 2, "{output}");
    assert!(paths.iter().all(|path| !path.exists()), "they stayed behind");
}

#[test]
fn a_foreign_namespace_is_not_removed() {
    if skipped() {
        return;
    }
    let (names, paths) = namespaces("own");
    let other = paths[1].file_name().and_then(|name| name.to_str()).expect("UTF-8");
    assert!(Command::new("ip").args(["netns", "add", other]).status().expect("ip runs").success());
    let (status, _, stderr) = run(&["perf", "link", "--namespaces", &names, "--rtt", "10ms"]);
    let still_there = paths[1].exists();
    assert!(Command::new("ip").args(["netns", "del", other]).status().expect("ip runs").success());
    assert_eq!(status, Some(1));
    assert!(stderr.contains(&format!("namespace '{other}' exists, but this tool has not created it")), "{stderr}");
    assert!(still_there && !paths[0].exists());
}

#[test]
fn a_link_without_root_is_refused_with_the_advice_of_a_relay() {
    let mut command = fullbore(&["perf", "link", "--namespaces", "a,b", "--rtt", "10ms"]);
    if hindrance() != Some("not root") {
        command.uid(65_534);
    }
    match command.output() {
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(
                stderr.contains("need root") && stderr.contains("--listen") && stderr.lines().count() == 1,
                "{stderr}"
            );
        }
        Err(error) => println!("skipped: another user cannot run the program: {error}"),
    }
}
