//! Starts a broker for the tests of the tools.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An address on which nothing listens. The system never assigns this port.
pub const NO_LISTENER: &str = "127.0.0.1:1";

/// Removes reports of waits from standard error. On a busy machine, a broker may take a second to respond.
pub fn complaints(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.starts_with("waiting: ")).collect()
}

/// A broker process with its own directory. Dropping it kills the process.
pub struct Broker {
    pub child: Child,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Broker {
    pub fn start(sets: &[&str]) -> Broker {
        Broker::start_reporting(sets, Stdio::inherit())
    }

    /// Starts a broker whose log is written to `stderr`.
    pub fn start_reporting(sets: &[&str], stderr: impl Into<Stdio>) -> Broker {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path().join("data").display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["serve", "--data-dir", &data]);
        if !sets.iter().any(|set| set.starts_with("listeners=")) {
            command.args(["--listen", "PLAINTEXT://127.0.0.1:0"]);
        }
        command.args(["--set", "fullbore.admin.listener="]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        let mut child = command.stderr(stderr).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut greeting = String::new();
        lines.read_line(&mut greeting).expect("it greets");
        let address = greeting.split("listening on ").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("{greeting}")).to_owned();
        // The rest of the output is read too, because the broker would otherwise block when the pipe is full.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Broker { child, address, _directory: directory }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // `kill` fails if the broker has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
