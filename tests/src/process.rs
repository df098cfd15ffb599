//! A broker process: `fullbore serve` on a free port and in its own directory.
//!
//! Each test program builds the binary once, unless `FULLBORE_BIN` names one. To compare with a real Kafka,
//! `FULLBORE_TEST_PEER=host:port` makes the tests use the broker at that address. The tests then run one at a time and
//! delete every topic first. Tests that kill or configure the broker fail against a peer. Invariant: no process
//! outlives its `Broker`.

use crate::{Client, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// How long a start or stop may take before it is considered hung.
const START_STOP_MAX: Duration = Duration::from_secs(60);

/// The broker under test.
pub struct Broker {
    addr: SocketAddr,
    /// The address `addr` as text.
    address: String,
    directory: Arc<Directory>,
    sets: Vec<String>,
    /// The running process. `None` after a kill or stop, and if the broker is a peer.
    process: Option<Running>,
}

/// The data directory of a broker. A temporary one is removed with the last broker that uses it.
enum Directory {
    Temporary(TempDir),
    Given(PathBuf),
}

struct Running {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// Everything that a process has printed so far. A thread reads the pipe all the time, because the process would block
/// on a full one.
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

    /// Waits until the output of an ended process is complete, and returns it.
    pub(crate) fn all(&self) -> String {
        wait_until("its output ends", START_STOP_MAX, || self.0.lock().expect("no holder panics").is_all);
        self.text()
    }
}

/// The exit status and output of a broker that refused to start.
pub struct Refused {
    pub status: ExitStatus,
    pub stderr: String,
}

impl Broker {
    /// Starts a broker in a new directory. `sets` has `key=value` settings, `--flags` and `env:NAME=VALUE`. Returns
    /// once the broker accepts connections.
    pub fn start(sets: &[&str]) -> Broker {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Broker::with_directory(Directory::Temporary(directory), sets)
    }

    /// Starts a broker in a directory that the test owns.
    pub fn start_in(directory: &Path, sets: &[&str]) -> Broker {
        Broker::with_directory(Directory::Given(directory.to_owned()), sets)
    }

    fn with_directory(directory: Directory, sets: &[&str]) -> Broker {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = addr.to_string();
        let mut broker = Broker { addr, address, directory: Arc::new(directory), sets, process: None };
        match peer() {
            Some(addr) => {
                (broker.addr, broker.address) = (addr, addr.to_string());
                broker.client().delete_all_topics();
            }
            None => broker.restart(),
        }
        broker
    }

    /// Starts the broker again after a [`Broker::kill`] or [`Broker::stop`], with the same data and settings.
    pub fn restart(&mut self) {
        self.begin_restart();
        self.wait_for_start();
    }

    /// Starts the broker again like [`Broker::restart`], but does not wait until it accepts connections.
    pub fn begin_restart(&mut self) {
        assert!(self.process.is_none(), "the broker still runs");
        let mut child = serve(self.data_dir(), &self.sets).spawn().expect("the binary starts");
        let stdout = Output::of(child.stdout.take().expect("piped"));
        let stderr = Output::of(child.stderr.take().expect("piped"));
        self.process = Some(Running { child, stdout, stderr });
    }

    /// Waits until the broker accepts connections.
    pub fn wait_for_start(&mut self) {
        let mut found = None;
        wait_until("the broker tells where it listens", START_STOP_MAX, || {
            assert!(!self.has_ended(), "the broker ended instead of starting: {}", self.stderr());
            found = address_in(&self.stdout());
            found.is_some()
        });
        let addr = found.expect("waited for it");
        (self.addr, self.address) = (addr, addr.to_string());
    }

    /// Starts the broker again with the same data and other settings.
    pub fn restart_with(&mut self, sets: &[&str]) {
        self.sets = sets.iter().map(|set| (*set).to_owned()).collect();
        self.restart();
    }

    /// Kills the process with SIGKILL. Panics if it has already ended by itself.
    pub fn kill(&mut self) {
        let mut running = self.process.take().expect("the broker runs");
        let ended = running.child.try_wait().expect("our child");
        assert!(ended.is_none(), "the broker has ended: {ended:?}, {}", running.stderr.text());
        running.child.kill().expect("our child");
        running.child.wait().expect("our child");
    }

    /// Suspends the process (SIGSTOP), as if its machine hung. Returns once all its threads are suspended.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("our child");
        let tasks = format!("/proc/{}/task", self.pid());
        // A thread that has ended meanwhile counts as suspended.
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

    /// Returns true if the test has started the broker and has not killed or stopped it since.
    pub fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Sets the data directory that the next start uses.
    pub fn move_to(&mut self, directory: &Path) {
        self.directory = Arc::new(Directory::Given(directory.to_owned()));
    }

    /// Sends SIGTERM and does not wait.
    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("our child");
    }

    /// Sends SIGTERM and waits until the process ends, which must be with exit code 0.
    pub fn stop(&mut self) {
        self.terminate();
        let status = self.wait_for_end();
        assert_eq!(status.code(), Some(0), "SIGTERM ends the broker with code 0");
    }

    /// Returns true if the process has ended by itself and the test has not yet collected its exit status.
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

    /// Returns the address of the first listener as text.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address of the listener with the name `listener`.
    pub fn addr_of(&self, listener: &str) -> SocketAddr {
        let mut found = None;
        wait_until("the broker tells of every listener", START_STOP_MAX, || {
            let stdout = self.stdout();
            // The broker may still be writing the last line, so an incomplete line is ignored.
            let whole = stdout.rfind('\n').map_or("", |end| &stdout[..end]);
            let line = whole.lines().find(|line| line.trim_start().split(' ').next() == Some(listener));
            found = line.and_then(|line| address_in(&format!("{line}\n")));
            found.is_some()
        });
        found.expect("waited for it")
    }

    /// Returns the data directory.
    pub fn data_dir(&self) -> &Path {
        match &*self.directory {
            Directory::Temporary(directory) => directory.path(),
            Directory::Given(directory) => directory,
        }
    }

    /// Returns the directory of a partition.
    pub fn partition_dir(&self, topic: &str, index: i32) -> PathBuf {
        self.data_dir().join(format!("{topic}-{index}"))
    }

    /// Returns the files of a partition that have this extension, sorted by name.
    pub fn partition_files(&self, topic: &str, index: i32, extension: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.partition_dir(topic, index)).expect("the partition's directory");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
        files.retain(|file| file.extension().is_some_and(|found| found == extension));
        files.sort();
        files
    }

    /// Returns how much memory the process uses, in bytes.
    pub fn rss(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the most memory that the process has used, in bytes.
    pub fn rss_peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("our child");
        let line = status.lines().find_map(|found| found.strip_prefix(line)).expect("Linux tells it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Returns the processor time used so far in hundredths of a second, from fields 14 and 15 of proc(5)'s stat.
    pub fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("our child");
        let fields = stat.rsplit(')').next().expect("the name is in brackets").split_whitespace().skip(11);
        fields.take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
    }

    /// Returns how many bytes the process has read from disks so far.
    pub fn read_from_disks(&self) -> usize {
        self.io("read_bytes: ")
    }

    /// Returns how many bytes the process has read so far, from disks or the page cache.
    pub fn bytes_read(&self) -> usize {
        self.io("rchar: ")
    }

    /// Returns the value of the given line of proc(5)'s io.
    fn io(&self, line: &str) -> usize {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid())).expect("our child");
        let read = io.lines().find_map(|found| found.strip_prefix(line)).expect("Linux tells it");
        read.parse().expect("a number")
    }

    /// Returns how many file descriptors the process has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child").count()
    }

    /// Returns how much disk space is taken by files that are deleted and still open.
    pub fn bytes_of_removed_files(&self) -> u64 {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child");
        // The broker may have closed a descriptor meanwhile, whose entry is then gone.
        let files = entries.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
        files.filter(|file| file.is_file() && file.nlink() == 0).map(|file| file.blocks() * 512).sum()
    }

    /// Prevents the broker from opening any more descriptors until [`Broker::allow_descriptors`].
    pub fn refuse_descriptors(&self) {
        self.leave_descriptors(0);
    }

    /// Lets the broker open `count` more descriptors until [`Broker::allow_descriptors`].
    pub fn leave_descriptors(&self, count: usize) {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("our child");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u64>().ok();
        let open: std::collections::BTreeSet<u64> = entries.filter_map(name).collect();
        // The system assigns the smallest free number, which must be below the limit. `count` numbers below the new
        // limit are therefore free.
        let free = (0..).filter(|number| !open.contains(number)).nth(count);
        self.limit_descriptors(free);
    }

    /// Allows the broker as many descriptors as this process may have.
    pub fn allow_descriptors(&self) {
        self.limit_descriptors(getrlimit(Resource::Nofile).maximum);
    }

    fn limit_descriptors(&self, current: Option<u64>) {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(Some(self.pid()), Resource::Nofile, limit).expect("our child");
    }

    /// Returns everything that the broker has printed to standard error since its last start.
    pub fn stderr(&self) -> String {
        self.running().stderr.text()
    }

    /// Returns the admin page's response for `path`, including the status line. The broker needs
    /// `fullbore.admin.listener=127.0.0.1:0`.
    pub fn admin_page(&self, path: &str) -> String {
        wait_until("it tells where its metrics are", START_STOP_MAX, || self.stdout().contains("/metrics"));
        let stdout = self.stdout();
        let (_, rest) = stdout.split_once("http://").expect("it is told");
        let (address, _) = rest.split_once('/').expect("a path");
        let mut page = std::net::TcpStream::connect(address).expect("it listens");
        page.set_read_timeout(Some(START_STOP_MAX)).expect("a socket");
        let request = format!("GET {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n");
        page.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        page.read_to_string(&mut answer).expect("answered");
        answer
    }

    /// Waits until standard error contains `text`. The broker may print a line only after it has sent the response.
    pub fn wait_for_stderr(&self, text: &str) {
        let what = format!("{text} on standard error");
        wait_until(&what, Duration::from_secs(120), || self.stderr().contains(text));
    }

    /// Returns everything that the broker has printed to standard output since its last start.
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
        // An error of the kill does not matter, because the test is over.
        let _ = running.child.kill();
        let _ = running.child.wait();
        if std::thread::panicking() {
            eprintln!("the broker's standard error:\n{}", running.stderr.text());
        }
    }
}

/// Returns the address of the peer to test instead of our own broker. `None` if the variable is not set.
pub(crate) fn peer() -> Option<SocketAddr> {
    let peer = std::env::var("FULLBORE_TEST_PEER").ok()?;
    Some(peer.parse().expect("FULLBORE_TEST_PEER is an address and a port"))
}

/// Starts a broker whose start must fail. Returns its exit status and output.
pub fn serve_refused(directory: &Path, sets: &[&str]) -> Refused {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let mut child = serve(directory, &sets).spawn().expect("the binary starts");
    let mut pipe = child.stderr.take().expect("piped");
    let status = wait_for(&mut child);
    let mut stderr = String::new();
    pipe.read_to_string(&mut stderr).expect("text");
    Refused { status, stderr }
}

fn serve(directory: &Path, sets: &[String]) -> Command {
    let mut command = Command::new(binary());
    command.arg("serve").arg("--data-dir").arg(directory);
    if !sets.iter().any(|set| set.starts_with("listeners=")) {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(["--set", "fullbore.admin.listener="]);
    // `FULLBORE_TEST_SETS` has settings for all brokers of a run, such as `log.diskless.enable=true`.
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

/// Finds the first loopback address with a port in `text`. Ignores a last line that is incomplete. `None` if there is
/// no address.
fn address_in(text: &str) -> Option<SocketAddr> {
    let whole_lines = &text[..text.rfind('\n')?];
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let at = |host: &str, ip: IpAddr| {
        let mut ports = whole_lines.split(host).skip(1).filter_map(|rest| digits(rest).parse::<u16>().ok());
        ports.find(|port| *port != 0).map(|port| SocketAddr::from((ip, port)))
    };
    at("127.0.0.1:", Ipv4Addr::LOCALHOST.into()).or_else(|| at("[::1]:", Ipv6Addr::LOCALHOST.into()))
}

/// An address on which nothing listens. The system never assigns this port.
pub const NO_LISTENER: &str = "127.0.0.1:1";

/// A setting of a broker that never deletes records because of their age. A broker applies retention 30 s after its
/// start, so a slow test whose records have old timestamps needs this setting.
pub const NO_RETENTION: &str = "log.retention.ms=-1";

/// Removes the lines in which a command reports a wait, because on a busy machine a broker may take a second to
/// respond.
pub fn complaints(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.starts_with("waiting: ")).collect()
}

/// Returns the path of the `fullbore` binary. `FULLBORE_BIN` may name it. For tests of the crate `fullbore`, cargo has
/// built it. For all other tests, this function builds it in their profile.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let named = || ["FULLBORE_BIN", "CARGO_BIN_EXE_fullbore"].into_iter().find_map(std::env::var_os);
    BINARY.get_or_init(|| match named() {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    // The path of this program is target/<profile>/deps/<this test>.
    let test = std::env::current_exe().expect("this program has a path");
    let profile = test.parent().and_then(Path::parent).expect("cargo's layout");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "fullbore"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // The name of the profile shows whether this is a release build. Debug assertions do not show that, because
    // `tests/checked` enables them for tests but not for the binary.
    if profile.ends_with("release") {
        command.arg("--release");
    }
    assert!(command.status().expect("cargo runs").success(), "the binary does not build");
    profile.join("fullbore")
}
