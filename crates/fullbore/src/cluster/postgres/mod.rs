//! A cluster's own PostgreSQL. This module creates, starts and stops a server with the installed PostgreSQL programs.
//!
//! - `programs`: finds the installed programs.
//! - `account`: chooses the user that runs them.
//!
//! Invariants: clients can reach the server only over a Unix socket, and only the server's user and root can enter the
//! socket's directory. The server therefore needs no passwords. The data in `data` are always complete, because they
//! are created in another directory that is then renamed.

mod account;
mod programs;

use super::process::{Daemon, LOOK_EVERY, StartedProcess};
use crate::failure::Failure;
use crate::stop::Stop;
use crate::waiting::Wait;
use account::Account;
use programs::Programs;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The superuser of the cluster's PostgreSQL server.
const ROLE: &str = "fullbore";
/// The database that the brokers use. `initdb` creates it in every new server.
const DATABASE: &str = "postgres";
/// The port, which is part of the socket's name.
const PORT: u16 = 5432;
/// Maximum length of a socket's path, in bytes. `sockaddr_un` has 108 bytes, the last of which is a zero.
const SOCKET_PATH_MAX: usize = 107;
/// How long a start may take, including recovery after a crash.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// How long to wait until the child processes of a killed server have ended. They end soon after they notice its death.
const OUTLIVED_FOR: Duration = Duration::from_secs(10);
/// PostgreSQL's request for TLS. A server answers it with one byte, before any authentication.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The signal for a fast shutdown, in which the server disconnects its clients.
pub const FAST_SHUTDOWN: Signal = Signal::INT;
/// The settings of a small server, so that most of the machine's memory remains free for the brokers.
const SETTINGS: [&str; 11] = [
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "max_connections=200",
    "shared_buffers=32MB",
    "min_wal_size=32MB",
    "max_wal_size=256MB",
    "max_wal_senders=0",
    "wal_level=minimal",
    "max_logical_replication_workers=0",
    "logging_collector=off",
    "log_line_prefix=%m [%p] ",
];

/// A cluster's own PostgreSQL.
pub struct OwnPostgres {
    /// The directory that contains `data` and `socket`.
    directory: PathBuf,
    socket: PathBuf,
    pub daemon: Daemon,
}

impl OwnPostgres {
    /// Returns the PostgreSQL of a cluster's directory, which need not exist.
    pub fn of(cluster: &Path) -> Self {
        let directory = cluster.join("postgres");
        let data = directory.join("data");
        let daemon = Daemon {
            name: "PostgreSQL".to_owned(),
            pid_file: data.join("postmaster.pid"),
            words: vec!["-D".into(), data.into()],
            log: cluster.join("postgres.log"),
        };
        OwnPostgres { socket: socket_directory(&directory), directory, daemon }
    }

    /// Returns true if the server's data have been created.
    pub fn is_there(&self) -> bool {
        self.data().exists()
    }

    /// Returns the URL through which brokers reach the server.
    pub fn url(&self) -> String {
        let host: String = self
            .socket
            .to_string_lossy()
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
                other => format!("%{other:02X}"),
            })
            .collect();
        format!("postgres://{ROLE}@{host}:{PORT}/{DATABASE}")
    }

    /// Creates the server's data if they are missing, starts the server unless it runs, and waits until it accepts
    /// connections. If it starts a process, stores it in `started`, even if the server does not become ready.
    ///
    /// # Errors
    /// Returns a sentence for the user about the cause, such as a missing program or a directory that the server's user
    /// cannot enter. The sentence names the server's log if the log has details.
    pub fn up(&self, stop: &Stop, started: &mut Option<StartedProcess>) -> Result<(), Failure> {
        if self.daemon.pid().is_some() {
            return Ok(());
        }
        let programs = Programs::find(version_of(&self.data()))?;
        let owner = fs::metadata(&self.directory).ok().map(|meta| (meta.uid(), meta.gid()));
        let account = Account::for_data(owner)?;
        if let Some((account, closed)) =
            account.as_ref().and_then(|found| Some((found, found.kept_out_of(&self.directory)?)))
        {
            return Err(Failure::new(format!(
                "PostgreSQL runs as user {}, because this program is root, and that user cannot enter {}; give \
                 another directory with --data-dir, such as --data-dir /var/lib/fullbore-cluster",
                account.name,
                closed.display()
            )));
        }
        own(&self.directory, account.as_ref())?;
        own(&self.socket, account.as_ref())?;
        self.forget_lock(OUTLIVED_FOR);
        if version_of(&self.data()).is_none() {
            self.make(&programs, account.as_ref(), stop)?;
        }
        let mut command = self.command(&programs, "postgres", account.as_ref());
        command.arg("-D").arg(self.data());
        let socket = format!("unix_socket_directories={}", quoted(&self.socket.to_string_lossy()));
        let port = format!("port={PORT}");
        for setting in SETTINGS.iter().copied().chain([socket.as_str(), port.as_str()]) {
            command.args(["-c", setting]);
        }
        let begun = self.daemon.start(command).map_err(|error| cannot_start("postgres", account.as_ref(), &error))?;
        self.wait_until_ready(started.insert(begun), stop)
    }

    /// Sends the signal for a fast shutdown. Returns true if the server was running.
    pub fn end(&self) -> bool {
        self.daemon.signal(FAST_SHUTDOWN)
    }

    /// Returns true if the server answers a request, and no read or write takes longer than `patience`. Also returns
    /// true if this user has no permission to use the socket.
    pub fn answers_within(&self, patience: Duration) -> bool {
        let asked = || -> io::Result<()> {
            let mut socket = UnixStream::connect(self.socket.join(format!(".s.PGSQL.{PORT}")))?;
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
            socket.write_all(&SSL_REQUEST)?;
            socket.read_exact(&mut [0])
        };
        asked().map_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied, |()| true)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Removes the locks that a killed server has left. PostgreSQL itself does not remove them if another process or a
    /// zombie has the pid in the lock. The caller has checked that the server does not run. Child processes may outlive
    /// a killed server for a moment. This therefore waits, for at most `outlived_for`, until no process has the data
    /// directory as its working directory.
    fn forget_lock(&self, outlived_for: Duration) {
        let Ok(data) = fs::canonicalize(self.data()) else { return };
        let until = Instant::now() + outlived_for;
        while has_process_in(&data) {
            if Instant::now() >= until {
                // Keep the locks. If the remaining processes prevent the start, PostgreSQL will report that.
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let locks = [self.daemon.pid_file.clone(), self.socket.join(format!(".s.PGSQL.{PORT}.lock"))];
        // If a lock cannot be removed, PostgreSQL will report it.
        locks.iter().for_each(|lock| drop(fs::remove_file(lock)));
    }

    /// Builds the command of a PostgreSQL program. Removes PostgreSQL's environment variables (`PG...`), which concern
    /// other servers.
    fn command(&self, programs: &Programs, name: &str, account: Option<&Account>) -> Command {
        let mut command = Command::new(programs.program(name));
        let others = std::env::vars_os().map(|(key, _)| key).filter(|key| key.to_string_lossy().starts_with("PG"));
        for key in others {
            command.env_remove(key);
        }
        command.env("LC_ALL", "C").current_dir(&self.directory);
        if let Some(account) = account {
            account.run(&mut command);
        }
        command
    }

    /// Creates the data in a temporary directory and renames it. If this command is killed, no incomplete data are
    /// left.
    fn make(&self, programs: &Programs, account: Option<&Account>, stop: &Stop) -> Result<(), Failure> {
        let log = &self.daemon.log;
        let new = self.directory.join("data.new");
        let of_directory =
            |error: io::Error| Failure::new(format!("cannot make PostgreSQL's {}: {error}", new.display()));
        if new.exists() {
            fs::remove_dir_all(&new).map_err(of_directory)?;
        }
        let mut command = self.command(programs, "initdb", account);
        command.arg("-D").arg(&new).args(["-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--data-checksums"]);
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = command.spawn().map_err(|error| cannot_start("initdb", account, &error))?;
        let mut wait = Wait::begin();
        let status = loop {
            wait.observe(|| "PostgreSQL's data are made".to_owned());
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if stop.is_signalled()
                && let Some(pid) = Pid::from_raw(child.id().cast_signed())
            {
                // On this signal initdb removes its files. If initdb has just ended, the signal cannot reach another
                // process, because the pid is not reused before `try_wait`.
                let _ = kill_process(pid, Signal::INT);
            }
            std::thread::sleep(LOOK_EVERY);
        };
        if stop.is_signalled() {
            return Err(Failure::interrupted("interrupted while PostgreSQL's data were made"));
        }
        if !status.success() {
            return Err(Failure::new(format!("PostgreSQL's initdb has failed: see {}", log.display())));
        }
        fs::rename(&new, self.data()).map_err(of_directory)
    }

    fn wait_until_ready(&self, started: &mut StartedProcess, stop: &Stop) -> Result<(), Failure> {
        let until = Instant::now() + UP_WITHIN;
        let mut wait = Wait::begin();
        loop {
            wait.observe(|| "PostgreSQL does not take connections yet".to_owned());
            if self.is_ready(started.child.id()) {
                return Ok(());
            }
            if let Some(ended) = started.ended()? {
                return Err(Failure::new(ended));
            }
            if stop.is_signalled() {
                return Err(Failure::interrupted("interrupted while PostgreSQL started"));
            }
            if Instant::now() > until {
                let (seconds, log) = (UP_WITHIN.as_secs(), self.daemon.log.display());
                return Err(Failure::new(format!(
                    "PostgreSQL takes no connections after {seconds} s; its log is {log}"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns true if the server is ready. Like pg_ctl, this reads the eighth line of the server's pid file.
    fn is_ready(&self, pid: u32) -> bool {
        let text = fs::read_to_string(&self.daemon.pid_file).unwrap_or_default();
        let mut lines = text.lines();
        lines.next() == Some(pid.to_string().as_str()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }
}

/// Returns true if any process has this working directory.
fn has_process_in(directory: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut places = processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok());
    places.any(|place| place == directory)
}

/// Returns the major version that created the data, or `None` if there are no data.
fn version_of(data: &Path) -> Option<u32> {
    fs::read_to_string(data.join("PG_VERSION")).ok()?.trim().split('.').next()?.parse().ok()
}

/// Returns the directory of the socket, which is beside the data. If the path of the socket would be too long, returns
/// a directory in /tmp whose name has a hash of `directory`.
fn socket_directory(directory: &Path) -> PathBuf {
    let beside = directory.join("socket");
    if beside.join(format!(".s.PGSQL.{PORT}")).as_os_str().len() <= SOCKET_PATH_MAX {
        return beside;
    }
    // FNV-1a is used, because the hash must be the same in every version of this program.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = directory.as_os_str().as_encoded_bytes().iter().copied().fold(0xcbf2_9ce4_8422_2325, step);
    PathBuf::from(format!("/tmp/fullbore-{hash:016x}"))
}

/// Creates a directory that only its user and root can enter, or checks an existing one.
fn own(directory: &Path, account: Option<&Account>) -> Result<(), Failure> {
    let shown = directory.display();
    let me = rustix::process::geteuid().as_raw();
    let made = match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    };
    let checked = made.and_then(|()| fs::symlink_metadata(directory)).and_then(|meta| {
        // Another user may have created this path in /tmp, so it is refused unless it is a directory of the right user.
        let is_ours = meta.is_dir() && (meta.uid() == me || account.is_some_and(|account| account.uid == meta.uid()));
        match (is_ours, account) {
            (false, _) => Err(io::Error::other("it is not a directory of this user")),
            (true, Some(account)) if meta.uid() != account.uid => {
                chown(directory, Some(account.uid), Some(account.gid))
            }
            (true, _) => Ok(()),
        }
    });
    let closed = checked.and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o700)));
    closed.map_err(|error| Failure::new(format!("cannot make PostgreSQL's directory {shown}: {error}")))
}

/// Quotes a text as the only element of a PostgreSQL list setting.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn cannot_start(name: &str, account: Option<&Account>, error: &io::Error) -> Failure {
    let who = account.map(|account| format!(" as user {}", account.name)).unwrap_or_default();
    Failure::new(format!(
        "cannot start PostgreSQL's {name}{who}: {error}; --control-plane takes the URL of another PostgreSQL"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_beside_the_data_unless_its_path_is_too_long() {
        assert_eq!(
            OwnPostgres::of(Path::new("/a b")).url(),
            "postgres://fullbore@%2Fa%20b%2Fpostgres%2Fsocket:5432/postgres"
        );
        let long = |len: usize| PathBuf::from(format!("/{}", "x".repeat(len)));
        let fits = long(SOCKET_PATH_MAX - 1 - "/socket/.s.PGSQL.5432".len());
        assert_eq!(socket_directory(&fits), fits.join("socket"));
        let short = socket_directory(&long(90));
        assert!(
            short.starts_with("/tmp/") && short != socket_directory(&long(91)) && short == socket_directory(&long(90))
        );
        assert!(short.as_os_str().len() < 40);
    }

    #[test]
    fn a_lock_is_kept_while_a_process_works_in_the_data() {
        let cluster = tempfile::tempdir().expect("a directory");
        let postgres = OwnPostgres::of(cluster.path());
        fs::create_dir_all(postgres.data()).expect("made");
        fs::create_dir_all(&postgres.socket).expect("made");
        assert!(postgres.is_there());
        let locks = [postgres.daemon.pid_file.clone(), postgres.socket.join(".s.PGSQL.5432.lock")];
        // The locks contain the pid of the test's own process, as if the pid of a killed server had been reused.
        locks.iter().for_each(|lock| fs::write(lock, format!("{}\n", std::process::id())).expect("written"));
        let mut left = Command::new("sleep").arg("1000").current_dir(postgres.data()).spawn().expect("there");
        postgres.forget_lock(Duration::ZERO);
        assert!(locks.iter().all(|lock| lock.exists()));
        let waiting = std::thread::spawn(move || postgres.forget_lock(OUTLIVED_FOR));
        left.kill().expect("ours");
        left.wait().expect("ended");
        waiting.join().expect("no panic");
        assert!(locks.iter().all(|lock| !lock.exists()));
    }

    #[test]
    fn a_directory_admits_its_user_only_and_a_link_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        for _ in 0..2 {
            own(&socket, None).expect("ours");
            assert_eq!(fs::metadata(&socket).expect("there").mode() & 0o777, 0o700);
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&socket, &link).expect("linked");
        let reported = own(&link, None).expect_err("a link").to_string();
        assert!(reported.contains("it is not a directory of this user"), "{reported}");
    }
}
