//! Broker process: `fullbore serve` on a free port, in a directory of its own.
//!
//! The binary is built once per test program, or named by `FULLBORE_BIN`. With `FULLBORE_TEST_PEER=host:port` the tests
//! use the broker at that address instead, to compare with a real Kafka. The tests then run one at a time, and each
//! first deletes every topic; tests that kill or configure the broker fail. Invariant: no process outlives its
//! `Broker`.

use crate::{Client, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// Longest duration of a start or stop before it counts as hung.
const START_STOP_MAX: Duration = Duration::from_secs(60);

/// Broker under test.
pub struct Broker {
    addr: SocketAddr,
    folder: Arc<Folder>,
    sets: Vec<String>,
    /// Process; None after a kill or stop, and for a peer.
    process: Option<Running>,
}

/// Data directory of a broker. Removed with the last broker that uses it, unless the test owns it.
enum Folder {
    Temporary(TempDir),
    Given(PathBuf),
}

struct Running {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// Output of a process so far. A thread reads it, so that the process never blocks on a full pipe.
#[derive(Clone, Default)]
pub(crate) struct Output(Arc<Mutex<Printed>>);

#[derive(Default)]
struct Printed {
    text: String,
    lines: usize,
    is_all: bool,
}

impl Output {
    pub(crate) fn of(pipe: impl Read + Send + 'static) -> Output {
        let output = Output::default();
        let shared = output.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let mut printed = shared.0.lock().expect("no holder panics");
                printed.text.push_str(&String::from_utf8_lossy(&line));
                printed.text.push('\n');
                printed.lines += 1;
            }
            shared.0.lock().expect("no holder panics").is_all = true;
        });
        output
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().expect("no holder panics").text.clone()
    }

    pub(crate) fn lines(&self) -> usize {
        self.0.lock().expect("no holder panics").lines
    }

    /// Returns the whole output of a process that has ended.
    pub(crate) fn all(&self) -> String {
        wait_until("its output ends", START_STOP_MAX, || self.0.lock().expect("no holder panics").is_all);
        self.text()
    }
}

/// Result of a failed start.
pub struct Refused {
    pub status: ExitStatus,
    pub stderr: String,
}

impl Broker {
    /// Starts a broker in a new directory, with `key=value` settings, `--flags` and `env:NAME=VALUE`. Returns once it
    /// accepts connections.
    pub fn start(sets: &[&str]) -> Broker {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Broker::with_folder(Folder::Temporary(folder), sets)
    }

    /// Starts a broker in a directory that is not removed.
    pub fn start_in(folder: &Path, sets: &[&str]) -> Broker {
        Broker::with_folder(Folder::Given(folder.to_owned()), sets)
    }

    fn with_folder(folder: Folder, sets: &[&str]) -> Broker {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut broker = Broker { addr, folder: Arc::new(folder), sets, process: None };
        match peer() {
            Some(addr) => {
                broker.addr = addr;
                broker.client().delete_all_topics();
            }
            None => broker.restart(),
        }
        broker
    }

    /// Starts the broker again after [`Broker::kill`] or [`Broker::stop`], with the same data and settings.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "the broker still runs");
        let mut child = serve(self.data_dir(), &self.sets).spawn().expect("the binary starts");
        let stdout = Output::of(child.stdout.take().expect("piped"));
        let stderr = Output::of(child.stderr.take().expect("piped"));
        let mut running = Running { child, stdout, stderr };
        wait_until("the broker tells where it listens", START_STOP_MAX, || {
            let ended = running.child.try_wait().expect("our child");
            assert!(ended.is_none(), "the broker ended instead of starting: {}", running.stderr.text());
            address_in(&running.stdout.text()).is_some_and(|addr| {
                self.addr = addr;
                true
            })
        });
        self.process = Some(running);
    }

    /// Starts the broker again with other settings.
    pub fn restart_with(&mut self, sets: &[&str]) {
        self.sets = sets.iter().map(|set| (*set).to_owned()).collect();
        self.restart();
    }

    /// Kills the process (kill -9). Panics if the process has ended by itself.
    pub fn kill(&mut self) {
        let mut running = self.process.take().expect("the broker runs");
        let ended = running.child.try_wait().expect("our child");
        assert!(ended.is_none(), "the broker has ended: {ended:?}, {}", running.stderr.text());
        running.child.kill().expect("our child");
        running.child.wait().expect("our child");
    }

    /// Suspends the process (SIGSTOP), as on a machine that hangs. Returns once all its threads are suspended.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("our child");
        let tasks = format!("/proc/{}/task", self.pid());
        // A thread that has ended in the meantime counts as suspended.
        let stands = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("stat")).map_or(true, |stat| stat.contains(") T "))
        };
        wait_until("all its threads stand still", START_STOP_MAX, || {
            std::fs::read_dir(&tasks).expect("our child").flatten().all(stands)
        });
    }

    /// Resumes the process.
    pub fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).expect("our child");
    }

    /// Returns true if the broker runs: it was started, and not killed or stopped after that.
    pub fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Sets the data directory from the next start on.
    pub fn move_to(&mut self, folder: &Path) {
        self.folder = Arc::new(Folder::Given(folder.to_owned()));
    }

    /// Sends SIGTERM, without waiting.
    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("our child");
    }

    /// Sends SIGTERM and waits for exit code 0.
    pub fn stop(&mut self) {
        self.terminate();
        let status = self.wait_for_end();
        assert_eq!(status.code(), Some(0), "SIGTERM ends the broker with code 0");
    }

    /// Returns true if the process has ended by itself and the test has not collected its exit status.
    pub fn has_ended(&mut self) -> bool {
        let ended = |running: &mut Running| running.child.try_wait().expect("our child").is_some();
        self.process.as_mut().is_some_and(ended)
    }

    /// Returns true if the process is suspended.
    pub fn is_frozen(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("our child");
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    }

    /// Waits until the process ends by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut running = self.process.take().expect("the broker runs");
        wait_for(&mut running.child)
    }

    /// Opens a connection.
    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Returns the address of the first listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address of another listener, by its name.
    pub fn addr_of(&self, listener: &str) -> SocketAddr {
        let mut found = None;
        wait_until("the broker tells of every listener", START_STOP_MAX, || {
            let stdout = self.stdout();
            // The last line may be incomplete.
            let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
            let line = whole.lines().find(|line| line.trim_start().split(' ').next() == Some(listener));
            found = line.and_then(|line| address_in(&format!("{line}\n")));
            found.is_some()
        });
        found.expect("waited for it")
    }

    /// Returns the data directory.
    pub fn data_dir(&self) -> &Path {
        match &*self.folder {
            Folder::Temporary(folder) => folder.path(),
            Folder::Given(folder) => folder,
        }
    }

    /// Returns the directory of one partition.
    pub fn partition_dir(&self, topic: &str, index: i32) -> PathBuf {
        self.data_dir().join(format!("{topic}-{index}"))
    }

    /// Returns the files of one partition with this extension, sorted by name.
    pub fn partition_files(&self, topic: &str, index: i32, extension: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.partition_dir(topic, index)).expect("the partition's folder");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
        files.retain(|file| file.extension().is_some_and(|found| found == extension));
        files.sort();
        files
    }

    /// Returns the memory in use, in bytes.
    pub fn rss(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of memory in use, in bytes.
    pub fn rss_peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("our child");
        let line = status.lines().find_map(|found| found.strip_prefix(line)).expect("Linux tells it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Returns the processor time used, in ticks of a hundredth of a second: fields 14 and 15 of proc(5)'s stat.
    pub fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("our child");
        let fields = stat.rsplit(')').next().expect("the name is in brackets").split_whitespace().skip(11);
        fields.take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }

    /// Returns the number of bytes read from disks so far.
    pub fn read_from_disks(&self) -> usize {
        self.io("read_bytes: ")
    }

    /// Returns the number of bytes read so far, from disks or the page cache.
    pub fn bytes_read(&self) -> usize {
        self.io("rchar: ")
    }

    /// Returns the value of a line of proc(5)'s io.
    fn io(&self, line: &str) -> usize {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid())).expect("our child");
        let read = io.lines().find_map(|found| found.strip_prefix(line)).expect("Linux tells it");
        read.parse().expect("a number")
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child").count()
    }

    /// Returns the bytes on the disk of files that are deleted but still open.
    pub fn bytes_of_removed_files(&self) -> u64 {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child");
        // A descriptor that the broker has closed in the meantime has no entry.
        let files = entries.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
        files.filter(|file| file.is_file() && file.nlink() == 0).map(|file| file.blocks() * 512).sum()
    }

    /// Forbids further descriptors until [`Broker::allow_descriptors`].
    pub fn refuse_descriptors(&self) {
        self.leave_descriptors(0);
    }

    /// Allows `count` further descriptors until [`Broker::allow_descriptors`].
    pub fn leave_descriptors(&self, count: usize) {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u64>().ok();
        let open: std::collections::BTreeSet<u64> = entries.filter_map(name).collect();
        // The system limits the numbers of descriptors, and assigns the smallest free number.
        let free = (0..).filter(|number| !open.contains(number)).nth(count);
        self.limit_descriptors(free);
    }

    /// Allows as many descriptors as this process may have.
    pub fn allow_descriptors(&self) {
        self.limit_descriptors(getrlimit(Resource::Nofile).maximum);
    }

    fn limit_descriptors(&self, current: Option<u64>) {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(Some(self.pid()), Resource::Nofile, limit).expect("our child");
    }

    /// Returns the text that the broker has printed to standard error since its last start.
    pub fn stderr(&self) -> String {
        self.running().stderr.text()
    }

    /// Returns the admin page's response at `path`, from the status line on. Needs
    /// `fullbore.admin.listener=127.0.0.1:0`.
    pub fn admin_page(&self, path: &str) -> String {
        wait_until("it tells where its metrics are", START_STOP_MAX, || self.stdout().contains("/metrics"));
        let said = self.stdout();
        let (_, rest) = said.split_once("http://").expect("it is told");
        let (address, _) = rest.split_once('/').expect("a path");
        let mut page = std::net::TcpStream::connect(address).expect("it listens");
        page.set_read_timeout(Some(START_STOP_MAX)).expect("a socket");
        let request = format!("GET {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n");
        page.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        page.read_to_string(&mut answer).expect("answered");
        answer
    }

    /// Waits until standard error contains `text`, because a line may arrive after the response.
    pub fn wait_for_stderr(&self, text: &str) {
        let what = format!("{text} on standard error");
        wait_until(&what, Duration::from_secs(30), || self.stderr().contains(text));
    }

    /// Returns the text that the broker has printed to standard output since its last start.
    pub fn stdout(&self) -> String {
        self.running().stdout.text()
    }

    fn running(&self) -> &Running {
        self.process.as_ref().expect("the broker runs")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.running().child)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let Some(mut running) = self.process.take() else { return };
        // Errors are ignored, since the test has its result already.
        let _ = running.child.kill();
        let _ = running.child.wait();
        if std::thread::panicking() {
            eprintln!("the broker's standard error:\n{}", running.stderr.text());
        }
    }
}

/// Returns the address of the broker to test instead of ours; None if the variable is not set.
pub(crate) fn peer() -> Option<SocketAddr> {
    let peer = std::env::var("FULLBORE_TEST_PEER").ok()?;
    Some(peer.parse().expect("FULLBORE_TEST_PEER is an address and a port"))
}

/// Starts a broker whose start must fail. Returns its exit status and output.
pub fn serve_refused(folder: &Path, sets: &[&str]) -> Refused {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let mut child = serve(folder, &sets).spawn().expect("the binary starts");
    let mut pipe = child.stderr.take().expect("piped");
    let status = wait_for(&mut child);
    let mut stderr = String::new();
    pipe.read_to_string(&mut stderr).expect("text");
    Refused { status, stderr }
}

fn serve(folder: &Path, sets: &[String]) -> Command {
    let mut command = Command::new(binary());
    command.arg("serve").arg("--data-dir").arg(folder);
    if !sets.iter().any(|set| set.starts_with("listeners=")) {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(["--set", "fullbore.admin.listener="]);
    // Settings for all brokers of a run of tests, such as `log.diskless.enable=true`.
    let all = std::env::var("FULLBORE_TEST_SETS").unwrap_or_default();
    for set in all.split_whitespace().map(str::to_owned).chain(sets.iter().cloned()) {
        let set = set.as_str();
        match set.strip_prefix("env:").and_then(|variable| variable.split_once('=')) {
            Some((name, value)) => command.env(name, value),
            None if set.starts_with("--") => command.arg(set),
            None => command.args(["--set", set]),
        };
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait_for(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the broker ends", START_STOP_MAX, || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    status.expect("waited for it")
}

/// Returns the first loopback address with a port in the complete lines of `text`; None if there is none.
fn address_in(text: &str) -> Option<SocketAddr> {
    let whole_lines = &text[..text.rfind('\n')?];
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut ports = whole_lines.split("127.0.0.1:").skip(1).filter_map(|rest| digits(rest).parse::<u16>().ok());
    ports.find(|port| *port != 0).map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Returns the `fullbore` binary named by `FULLBORE_BIN`. Without that variable, builds the binary in the profile of
/// these tests.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("FULLBORE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    // The path is target/<profile>/deps/<this test>.
    let test = std::env::current_exe().expect("this program has a path");
    let profile = test.parent().and_then(Path::parent).expect("cargo's layout");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "fullbore"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // Decides by the name of the profile. Debug assertions would mislead: `tests/checked` enables them for tests, but
    // not for the binary.
    if profile.ends_with("release") {
        command.arg("--release");
    }
    assert!(command.status().expect("cargo runs").success(), "the binary does not build");
    profile.join("fullbore")
}
