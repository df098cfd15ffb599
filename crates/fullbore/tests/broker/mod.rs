//! Broker for the tests of the tools.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Address without a listener, which the system never assigns as a free port.
pub const NO_LISTENER: &str = "127.0.0.1:1";

/// Returns the complaints of a command. A wait is none: a broker of a busy machine may take a second to respond.
pub fn complaints(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.starts_with("waiting: ")).collect()
}

/// Broker process in a directory of its own; killed when dropped.
pub struct Broker {
    pub child: Child,
    pub address: String,
    _folder: tempfile::TempDir,
}

impl Broker {
    pub fn start(sets: &[&str]) -> Broker {
        Broker::start_telling(sets, Stdio::inherit())
    }

    /// Starts a broker whose log goes to `stderr`.
    pub fn start_telling(sets: &[&str], stderr: impl Into<Stdio>) -> Broker {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data").display().to_string();
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
        // Reads the rest, too, so that the broker never waits for a reader.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Broker { child, address, _folder: folder }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // `kill` fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
