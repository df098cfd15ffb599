//! Tests of a broker whose standard error is not read, as after Ctrl-S in a terminal.

use crate::hangs::ended;
use crate::{signal, until_full};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a broker that logs everything, and returns it with its address. Its standard error is a pipe.
fn chatty_broker(directory: &std::path::Path) -> (Child, String) {
    broker_of(Command::new(env!("CARGO_BIN_EXE_fullbore")), directory)
}

fn broker_of(mut command: Command, directory: &std::path::Path) -> (Child, String) {
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--log", "trace", "--set", "fullbore.admin.listener=", "--data-dir"])
        .arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut broker = command.spawn().expect("it starts");
    let mut first = String::new();
    BufReader::new(broker.stdout.take().expect("piped")).read_line(&mut first).expect("UTF-8");
    let address = first.split(" is listening on ").nth(1).and_then(|rest| rest.split(',').next());
    (broker, address.expect("an address").to_owned())
}

fn topics(address: &str, arguments: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.arg("topics").args(arguments).args(["--bootstrap-server", address, "--timeout", "30000"]);
    command.stdout(Stdio::null()).status().expect("it runs").code()
}

#[test]
fn broker_with_a_full_pipe_for_its_log_serves_and_stops() {
    let directory = tempfile::tempdir().expect("a directory");
    let (broker, address) = chatty_broker(&directory.path().join("data"));
    for topic in 0..200 {
        assert_eq!(topics(&address, &["create", &format!("t{topic}")]), Some(0));
    }
    until_full(broker.stderr.as_ref().expect("piped"));
    assert_eq!(topics(&address, &["create", "last"]), Some(0));
    signal(&broker, "TERM");
    let (status, _) = ended(broker, "a broker whose log is not read");
    assert_eq!(status, Some(0));
}

#[test]
fn broker_ends_in_order_when_its_terminal_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let (broker, address) = chatty_broker(&data);
    assert_eq!(topics(&address, &["create", "t"]), Some(0));
    signal(&broker, "HUP");
    let (status, log) = ended(broker, "a broker whose terminal is closed");
    assert_eq!(status, Some(0), "{log}");
    assert!(data.join(".kafka_cleanshutdown").exists(), "{log}");
}

#[test]
fn broker_under_nohup_goes_on_when_its_terminal_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_fullbore")]);
    let (broker, address) = broker_of(nohup, &directory.path().join("data"));
    signal(&broker, "HUP");
    assert_eq!(topics(&address, &["create", "t"]), Some(0));
    signal(&broker, "TERM");
    let (status, log) = ended(broker, "a broker under nohup");
    assert_eq!(status, Some(0), "{log}");
}
