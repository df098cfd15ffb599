//! Runs the installed PostgreSQL for a test program.
//!
//! Invariant: the server ends with the test program and leaves no file behind, even if the program is killed.

use crate::pki::Authority;
use crate::stable_ports_in_a_row;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use tempfile::TempDir;

/// A database for one test.
pub struct Database {
    server: &'static PostgresServer,
    name: String,
}

impl Database {
    /// Creates a database on the server that the tests of this program share.
    pub fn create() -> Self {
        let server = PostgresServer::shared();
        Self { server, name: server.database() }
    }

    /// Returns the database `name` after deleting its contents. Reuse is quicker for tests that need many databases in
    /// sequence.
    pub fn emptied(name: &'static str) -> Self {
        static KNOWN: Mutex<BTreeMap<&str, String>> = Mutex::new(BTreeMap::new());
        let server = PostgresServer::shared();
        let mut known = KNOWN.lock().expect("no panic");
        let name = known.entry(name).or_insert_with(|| server.database()).clone();
        let database = Self { server, name };
        database.run("DROP SCHEMA IF EXISTS fullbore CASCADE");
        database
    }

    /// Returns the server of the database.
    pub fn server(&self) -> &'static PostgresServer {
        self.server
    }

    /// Returns the name of the database on its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL of the database over TCP.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Runs SQL statements as the superuser. Returns the rows without headings.
    pub fn run(&self, statements: &str) -> String {
        self.server.run(&self.name, statements)
    }
}

/// A running server. Over TCP, the role `secretive` needs a password, and the role `encrypted` needs a password and
/// TLS. All other roles need neither.
pub struct PostgresServer {
    directory: PathBuf,
    port: u16,
    authority: String,
    shell: Mutex<Shell>,
}

struct Shell {
    child: Child,
    /// A pipe to the script that runs the server. Closing it stops the server.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Returns the directory of PostgreSQL's programs, which on Debian and other systems is not in `PATH`.
fn programs() -> PathBuf {
    let is_there = |directory: &PathBuf| ["initdb", "pg_ctl", "psql"].iter().all(|name| directory.join(name).exists());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|directories| directories.flatten().map(|directory| directory.path().join("bin")).collect())
        .unwrap_or_default();
    versions.sort();
    let found = std::env::split_paths(&path).chain(versions.into_iter().rev()).find(is_there);
    found.expect("PostgreSQL's programs: apt install postgresql, or tests/clients/install")
}

impl PostgresServer {
    /// Returns the server that all tests of this program share. Each test creates its own databases on it.
    pub fn shared() -> &'static PostgresServer {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(PostgresServer::start)
    }

    /// Starts a separate server, for a test that stops or changes it.
    pub fn start() -> PostgresServer {
        // `keep` prevents the removal of the directory here. The script removes it after the server has stopped.
        let directory = TempDir::with_prefix("fullbore-postgres-").expect("a directory").keep();
        let authority = Authority::new("the database's authority");
        let shown = authority.broker(&["localhost", "127.0.0.1"]);
        std::fs::write(directory.join("server.pem"), &shown.chain).expect("written");
        std::fs::write(directory.join("server.key"), &shown.key).expect("written");
        let port = stable_ports_in_a_row(1);
        let mut child = Command::new("bash")
            .args(["-c", include_str!("postgres.sh"), "postgres"])
            .args([programs().as_os_str(), directory.as_os_str()])
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .current_dir("/")
            .spawn()
            .expect("bash");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Shell { child, orders, answers };
        let answer = shell.answer();
        if answer != "started" {
            let lines: Vec<String> = shell.answers.lines().map_while(Result::ok).collect();
            panic!("PostgreSQL does not start: {answer} {}", lines.join("\n"));
        }
        PostgresServer { directory, port, authority: authority.pem(), shell: Mutex::new(shell) }
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the certificate of the authority that has signed the server's certificate, in PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the directory of the server's Unix socket.
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// Creates a database. Returns its name.
    pub fn database(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.run("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Returns the URL of a database over TCP.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Runs SQL statements one by one as the superuser. Returns the rows without headings.
    pub fn run(&self, database: &str, statements: &str) -> String {
        let mut command = Command::new(programs().join("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-h"]);
        command.arg(&self.directory).args(["-p", &self.port.to_string(), "-f", "-"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("psql");
        child.stdin.take().expect("piped").write_all(statements.as_bytes()).expect("psql reads");
        let output = child.wait_with_output().expect("psql ends");
        assert!(output.status.success(), "{statements}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Stops the server at once, as a power loss does.
    pub fn stop(&self) {
        self.order("stop");
    }

    /// Starts the server again.
    pub fn start_again(&self) {
        self.order("start");
    }

    /// Suspends all processes of the server (SIGSTOP).
    pub fn freeze(&self) {
        self.order("freeze");
    }

    /// Resumes all processes of the server.
    pub fn thaw(&self) {
        self.order("thaw");
    }

    /// Stops the server, copies its data directory, and starts the server again.
    pub fn copy(&self) {
        ["stop", "copy", "start"].iter().for_each(|order| self.order(order));
    }

    /// Stops the server, exchanges its data directory with the copy, and starts the server again.
    pub fn swap(&self) {
        ["stop", "swap", "start"].iter().for_each(|order| self.order(order));
    }

    fn order(&self, order: &str) {
        let mut shell = self.shell.lock().expect("not poisoned");
        writeln!(shell.orders.as_mut().expect("it was not dropped"), "{order}").expect("the shell lives");
        shell.answer();
    }
}

impl Shell {
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line.trim().to_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(shell.orders.take());
        let _ = shell.child.wait();
    }
}

/// An open session of the superuser.
pub struct SuperSession {
    child: Child,
    statements: ChildStdin,
    rows: BufReader<ChildStdout>,
}

impl PostgresServer {
    /// Opens a session of the superuser. Dropping the returned value ends the session.
    pub fn session(&self, database: &str) -> SuperSession {
        let mut command = Command::new(programs().join("psql"));
        command.args(["-X", "-q", "-A", "-t", "-U", "postgres", "-d", database, "-p", &self.port.to_string(), "-h"]);
        let mut child =
            command.arg(&self.directory).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("psql");
        let statements = child.stdin.take().expect("piped");
        let rows = BufReader::new(child.stdout.take().expect("piped"));
        SuperSession { child, statements, rows }
    }
}

impl SuperSession {
    /// Runs a statement and waits until it is done.
    pub fn query(&mut self, statement: &str) {
        writeln!(self.statements, "{statement};\n\\echo done").expect("psql reads");
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(self.rows.read_line(&mut line).expect("psql answers") > 0, "it has ended");
        }
    }
}

impl Drop for SuperSession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
