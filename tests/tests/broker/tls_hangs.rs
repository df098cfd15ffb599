//! Fullbore's tools connect to a peer that accepts connections but never completes a TLS handshake. They must end at a
//! signal, and within their own time limits.

use fullbore_tests::pki::{Authority, write};
use fullbore_tests::{binary, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a command may run before it is considered hung. The client's own limits are shorter: 10 s for a handshake,
/// and max.block.ms for a record.
const LONG: Duration = Duration::from_secs(50);

/// How a peer keeps a handshake from completing.
#[derive(Clone, Copy, Debug)]
enum Peer {
    /// The peer sends nothing.
    Silent,
    /// The peer sends one byte at a time, with pauses, and never a complete handshake.
    Slow,
}

/// Starts a peer. Returns its address and a channel that receives each connection.
fn start(peer: Peer) -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let (reports, reported) = channel();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let other = socket.try_clone().expect("a descriptor is free");
            if matches!(peer, Peer::Slow) {
                std::thread::spawn(move || {
                    // The peer sends the header of a handshake record and then its content byte by byte.
                    let mut sent = socket.write_all(&[22, 3, 3, 0x3f, 0xff, 2, 0, 0x3f, 0xf0]);
                    while sent.is_ok() {
                        std::thread::sleep(Duration::from_millis(500));
                        sent = socket.write_all(&[3]);
                    }
                });
            }
            if reports.send(other).is_err() {
                return;
            }
        }
    });
    (address, reported)
}

fn spawn(command: &str, address: &str, directory: &Path) -> Child {
    let config = directory.join("client.properties");
    let mut child = Command::new(binary());
    child.args(command.split_whitespace()).args(["--bootstrap-server", address, "--command-config"]).arg(config);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits until the command ends. Returns its exit status and standard error.
fn ended(mut child: Child, what: &str) -> (Option<i32>, String) {
    let mut status = None;
    wait_until(&format!("the end of {what}"), LONG, || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    let mut complaint = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut complaint).expect("text");
    (status.and_then(|status| status.code()), complaint)
}

const COMMANDS: [&str; 7] = [
    "consume -t t -e",
    "consume -t t -e -G g",
    "groups list",
    "topics list",
    "produce -t t -X max.block.ms=15000",
    "perf consume --topic t --num-records 1",
    "perf produce --topic t --num-records 1 --record-size 1 --throughput -1 --command-property max.block.ms=15000",
];

fn secured() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), "ca.pem", &Authority::new("ca").pem());
    let properties = format!("security.protocol=SSL\nssl.truststore.location={}/ca.pem\n", directory.path().display());
    write(directory.path(), "client.properties", &properties);
    directory
}

/// Calls `end` for every command and every peer. The calls run in parallel, because each waits for seconds.
fn with_each(end: impl Fn(&str, Peer, &Path) + Sync) {
    let directory = secured();
    std::thread::scope(|scope| {
        for peer in [Peer::Silent, Peer::Slow] {
            for command in COMMANDS {
                let (end, directory) = (&end, directory.path());
                scope.spawn(move || end(command, peer, directory));
            }
        }
    });
}

#[test]
fn tool_in_a_stalled_handshake_ends_at_a_signal() {
    with_each(|command, peer, directory| {
        let (address, connections) = start(peer);
        let child = spawn(command, &address, directory);
        let _connection = connections.recv_timeout(LONG).expect("it connects");
        kill_process(Pid::from_child(&child), Signal::INT).expect("our child");
        let (status, complaint) = ended(child, command);
        assert_ne!(status, Some(0), "{command}, {peer:?}: {complaint}");
    });
}

#[test]
fn tool_in_a_stalled_handshake_ends_in_time_with_the_reason() {
    with_each(|command, peer, directory| {
        let (address, _connections) = start(peer);
        let (status, complaint) = ended(spawn(command, &address, directory), command);
        assert_eq!(status, Some(1), "{command}, {peer:?}: {complaint}");
        assert!(complaint.contains("TLS handshake"), "{command}, {peer:?}: {complaint}");
    });
}
