//! Tests of commands whose broker hangs: the operating system still accepts connections, but the broker does not
//! respond.

use crate::hangs::{ended, spawn};
use crate::{create, signal, start, until};
use fullbore_tests::Broker;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

const PERF: [&str; 5] = ["perf", "--num-records", "1", "--topic", "t"];

/// Returns one command line for every client command. Commands that need a topic use `t`.
fn commands() -> Vec<Vec<&'static str>> {
    let [perf, flags @ ..] = PERF;
    let mut all: Vec<Vec<&str>> = [
        "topics list",
        "topics create --topic u",
        "topics describe --topic t",
        "topics alter --topic t --partitions 2",
        "topics delete --topic t",
        "configs describe --topic t",
        "configs alter --topic t --add-config retention.ms=1",
        "groups list",
        "groups describe --group g",
        "groups delete --group g",
        "groups reset-offsets --group g --topic t --to-earliest --execute",
        "groups delete-offsets --group g --topic t",
        "produce --topic t",
        "consume --topic t",
        "consume --topic t --group g",
    ]
    .map(|line| line.split(' ').collect())
    .to_vec();
    all.push([&[perf, "produce", "--record-size", "1", "--throughput", "-1"], &flags[..]].concat());
    all.push([&[perf, "consume"], &flags[..]].concat());
    all
}

#[test]
fn every_command_at_a_hung_broker_ends_at_its_timeout() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    broker.freeze();
    for command in commands() {
        let child = spawn(&[&command[..], &["--timeout", "1000"]].concat(), broker.address());
        let (status, reported) = ended(child, &format!("{command:?}"));
        assert_eq!(status, Some(1), "{command:?}: {reported}");
        assert!(reported.contains("gave no answer in 1s"), "{command:?}: {reported}");
    }
}

/// Reads the first line of standard error. The caller can read the remaining lines.
fn first_line(child: &mut Child) -> (String, BufReader<std::process::ChildStderr>) {
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("UTF-8");
    (line, stderr)
}

/// Starts a command with a long timeout, because on a busy machine the test needs some time to send signals to all
/// commands.
fn waiting(command: &[&str], address: &str) -> Child {
    spawn(&[command, &["--timeout", "60000"]].concat(), address)
}

#[test]
fn a_command_at_a_hung_broker_reports_its_wait_and_ends_at_ctrl_c() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    broker.freeze();
    let mut children: Vec<(Vec<&str>, Child)> =
        commands().into_iter().map(|command| (command.clone(), waiting(&command, broker.address()))).collect();
    for (command, child) in &mut children {
        let (line, mut rest) = first_line(child);
        let reported = format!("waiting: no answer from {} for 2 s; --timeout ends this after 60s\n", broker.address());
        assert_eq!(line, reported, "{command:?}");
        signal(child, "INT");
        let mut complaint = String::new();
        rest.read_to_string(&mut complaint).expect("UTF-8");
        assert!(!complaint.contains("gave no answer"), "{command:?} ends before its timeout: {complaint}");
        assert!(!child.wait().expect("it ends").success(), "{command:?}");
    }
}

#[test]
fn ctrl_c_at_a_hung_broker_reports_the_number_of_unsure_records() {
    let broker = Broker::start(&[]);
    create(&broker, "t", "1");
    let mut child = start(&broker, &["produce", "-t", "t", "-O"]);
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    std::io::Write::write_all(&mut stdin, b"one\n").expect("it reads");
    stdout.read_line(&mut String::new()).expect("its offset");
    broker.freeze();
    std::io::Write::write_all(&mut stdin, b"two\n").expect("it reads");
    until("it has read the line", || rustix::io::ioctl_fionread(&stdin).expect("a pipe") == 0);
    signal(&child, "INT");
    let (status, reported) = ended(child, "producing");
    assert_eq!(status, Some(130), "{reported}");
    let unsure = "interrupted; 1 record was written; 1 record may or may not have been written";
    assert!(reported.contains(unsure) || reported.contains("interrupted while waiting"), "{reported}");
}

#[test]
fn an_idle_command_at_a_terminal_reports_its_wait() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    create(&broker, "t", "1");
    for (command, reported) in [
        ("produce -t t", "waiting: standard input has no line yet; each is a record, and Ctrl-D ends"),
        ("consume -t t", "waiting: no record of t came since the start; --from-beginning reads older records"),
        ("consume -t t --from-beginning", "waiting: no record of t yet; Ctrl-C ends"),
        ("consume -t t -G g", "waiting: no record of t yet; Ctrl-C ends"),
    ] {
        let line = format!("{} {command} -b {}", env!("CARGO_BIN_EXE_fullbore"), broker.address());
        // `script` gives the command a terminal. The test never closes or writes the input of `script`, so the command
        // waits for input.
        let mut script = Command::new("script");
        script.args(["-qefc", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = script.spawn() else {
            println!("skipped: there is no `script`");
            return;
        };
        let typing = child.stdin.take();
        let mut output = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut output).expect("UTF-8");
        assert!(output.starts_with(reported), "{command}: {output}");
        signal(&child, "TERM");
        drop(typing);
        child.wait().expect("it ends");
    }
}
