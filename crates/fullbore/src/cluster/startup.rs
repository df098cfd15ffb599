//! Starts a cluster for `cluster up`. It starts the processes and waits until all respond. If one does not, it stops
//! what it has started and restores the files.
//!
//! Invariant: processes that were running before this command keep running, even if the command fails.

use super::broker::{self, BrokerFile};
use super::plan::PlannedBroker;
use super::postgres::{FAST_SHUTDOWN, OwnPostgres};
use super::process::{Daemon, LOOK_EVERY, StartedProcess, is_stopped, wait_until_ended};
use crate::client_id;
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::waiting::Wait;
use fullbore_client::ClientError;
use fullbore_client::blocking::Cluster;
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a process may take to end if the startup fails.
pub const END_WITHIN: Duration = Duration::from_secs(30);
/// The interval between two requests to a broker that is not ready.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How many lines of its log the error has for a broker that does not respond in time.
const LINES_OF_SILENT: usize = 3;

/// The startup of a cluster.
pub struct Startup<'a> {
    directory: &'a Path,
    /// How long brokers may take to respond.
    patience: Duration,
    /// The program that runs brokers.
    program: PathBuf,
    pub postgres: OwnPostgres,
    started_postgres: Option<StartedProcess>,
    started: Vec<StartedProcess>,
    /// The files that this command has created.
    made: Vec<PathBuf>,
    /// The ids of brokers whose files this command has changed, with the texts before the change.
    changed: Vec<(u32, String)>,
}

/// The result of polling a broker that is starting.
struct Readiness {
    id: u32,
    /// True if the broker responded. As long as one broker does not respond, the others cannot become ready either.
    answers: bool,
    /// The reason why the broker is not ready. `None` once it responds and its metadata have all brokers.
    missing: Option<String>,
}

impl<'a> Startup<'a> {
    /// Creates a startup that has not started any process.
    pub fn new(directory: &'a Path, program: PathBuf, patience: Duration) -> Self {
        let postgres = OwnPostgres::of(directory);
        let (started_postgres, started, made, changed) = Default::default();
        Startup { directory, patience, program, postgres, started_postgres, started, made, changed }
    }

    /// Starts the directory's own PostgreSQL, unless it runs.
    ///
    /// # Errors
    /// Returns [`Failure`] if [`OwnPostgres::up`] returns one.
    pub fn start_postgres(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.postgres.up(stop, &mut self.started_postgres)
    }

    /// Writes the broker's file if the plan changes it, and starts the broker unless it runs.
    ///
    /// # Errors
    /// Returns the system's error if a file cannot be written, or if the broker cannot be started.
    pub fn start_broker(&mut self, planned: &PlannedBroker) -> Result<(), Failure> {
        let id = planned.file.id;
        if planned.runs {
            return Ok(());
        }
        if planned.is_changed {
            match planned.is_new {
                true => self.made.push(broker::path(self.directory, id)),
                false => self.changed.push((id, broker::text(self.directory, id)?)),
            }
            planned.file.write(self.directory)?;
        }
        let command = broker::command(&self.program, self.directory, id);
        self.started.push(broker::daemon(self.directory, id).start_noted(command)?);
        Ok(())
    }

    /// Waits until every broker responds, and its metadata have all brokers.
    ///
    /// # Errors
    /// Fails if a broker ends (the sentence has the last lines of its log), if one is not ready in time, or if a signal
    /// interrupts the wait.
    pub fn wait(&mut self, brokers: &[PlannedBroker], stop: &Stop) -> Result<(), Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let outcome = self.wait_for(&request(brokers, &over), brokers, stop);
        over.store(true, Ordering::Relaxed);
        outcome
    }

    fn wait_for(
        &mut self,
        receiver: &Receiver<Readiness>,
        brokers: &[PlannedBroker],
        stop: &Stop,
    ) -> Result<(), Failure> {
        let until = Instant::now() + self.patience;
        let mut wait = Wait::begin();
        let silent = |of: &PlannedBroker| Readiness {
            id: of.file.id,
            answers: false,
            missing: Some("it does not respond".to_owned()),
        };
        let mut missing: Vec<Readiness> = brokers.iter().map(silent).collect();
        loop {
            while let Ok(readiness) = receiver.try_recv() {
                missing.retain(|other| other.id != readiness.id);
                missing.extend(readiness.missing.is_some().then_some(readiness));
            }
            let Some(first) = to_blame(&missing) else { return Ok(()) };
            for started in &mut self.started {
                if let Some(ended) = started.ended()? {
                    return Err(Failure::new(ended));
                }
            }
            if stop.is_signalled() {
                return Err(Failure::interrupted("interrupted while the brokers started"));
            }
            if Instant::now() > until {
                return Err(self.not_ready(first));
            }
            let (left, all) = (missing.len(), brokers.len());
            let what = first.missing.as_deref().unwrap_or_default();
            wait.observe(|| format!("{left} of {all} brokers are not ready; broker {}: {what}", first.id));
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns the error for a broker that is not ready in time. If it does not respond, the error has the last lines
    /// of its log, which contain for example that the database is down.
    fn not_ready(&self, broker: &Readiness) -> Failure {
        let daemon = broker::daemon(self.directory, broker.id);
        let of_it = self.started.iter().find(|started| started.daemon == daemon && !broker.answers);
        let lines = of_it.map(|started| started.last_lines(LINES_OF_SILENT)).unwrap_or_default();
        let (id, within, log) = (broker.id, self.patience, daemon.log.display());
        let what = broker.missing.as_deref().unwrap_or_default();
        let end = if lines.is_empty() { String::new() } else { format!("; its last lines:\n{}", lines.join("\n")) };
        Failure::new(format!(
            "broker {id} is not ready after {within:?}: {what}; read its log {log}, or wait longer with --timeout{end}"
        ))
    }

    /// Ends the processes that were started, removes created files, and restores changed ones. Does not read pid files,
    /// since PostgreSQL may not have written its own yet.
    pub fn undo(mut self) {
        let are_gone = end(&mut self.started, Signal::TERM);
        for started in &mut self.started {
            if started.pid().is_none() {
                forget(&started.daemon);
            }
        }
        if are_gone {
            end(self.started_postgres.as_mut_slice(), FAST_SHUTDOWN);
        }
        for (id, text) in &self.changed {
            if let Err(failure) = broker::write(self.directory, *id, text) {
                output::remark(failure);
            }
        }
        // If a file cannot be removed, the next `cluster up` uses it.
        self.made.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Ends processes that this command has started. Reports those that do not end in time, and returns true if there are
/// none.
fn end(started: &mut [StartedProcess], signal: Signal) -> bool {
    started.iter_mut().for_each(|of| of.signal(signal));
    let left = wait_until_ended(started, END_WITHIN);
    let are_gone = left.is_empty();
    for of in left {
        let pid = of.pid();
        output::remark(still_runs(&of.daemon, pid, END_WITHIN));
    }
    are_gone
}

/// Returns the broker to name in the error message, or `None` if all are ready. This is the first broker that does not
/// respond, or else the first one that is not ready.
fn to_blame(missing: &[Readiness]) -> Option<&Readiness> {
    missing.iter().min_by_key(|readiness| (readiness.answers, readiness.id))
}

/// Returns a sentence about a process with this pid that has not ended within the time `within`.
pub fn still_runs(daemon: &Daemon, pid: Option<Pid>, within: Duration) -> String {
    let is_stopped = pid.is_some_and(is_stopped);
    let pid = pid.map(|pid| pid.as_raw_nonzero().to_string()).unwrap_or_default();
    let (name, log) = (&daemon.name, daemon.log.display());
    if is_stopped {
        return format!(
            "{name} (pid {pid}) has not ended within {within:?}, because a signal has stopped it; `kill -CONT {pid}` \
             lets it end, and `kill -9 {pid}` ends it at once"
        );
    }
    format!("{name} (pid {pid}) has not ended within {within:?}; its log is {log}, and `kill -9 {pid}` ends it")
}

/// Removes the pid file of a broker that has ended.
pub fn forget(daemon: &Daemon) {
    // If the file cannot be removed, later commands recognise that it is stale.
    let _ = fs::remove_file(&daemon.pid_file);
}

/// Polls each broker until it is ready or until `over` is set. Each broker has its own thread, so that a broker that
/// does not respond delays no other one.
fn request(brokers: &[PlannedBroker], over: &Arc<AtomicBool>) -> Receiver<Readiness> {
    let (sender, receiver) = channel();
    for broker in brokers {
        let (file, count, over, sender) = (broker.file.clone(), brokers.len(), over.clone(), sender.clone());
        let requesting = move || {
            while !over.load(Ordering::Relaxed) {
                let (answers, missing) = match missing(&file, count) {
                    Ok(missing) => (true, missing),
                    Err(error) => (false, Some(error.to_string())),
                };
                let is_ready = missing.is_none();
                if sender.send(Readiness { id: file.id, answers, missing }).is_err() || is_ready {
                    return;
                }
                std::thread::sleep(ASK_EVERY);
            }
        };
        // If the thread cannot be started, the broker counts as not ready, and the startup times out.
        let _ = std::thread::Builder::new().name("ask".to_owned()).spawn(requesting);
    }
    receiver
}

/// Returns the reason why a broker that responds is not ready, or `None` if its metadata have all `count` brokers.
fn missing(file: &BrokerFile, count: usize) -> Result<Option<String>, ClientError> {
    let address = file.address().unwrap_or_default();
    let known = Cluster::new(&address, client_id::CLUSTER)?.brokers()?.len();
    Ok((known < count).then(|| format!("it knows {known} of {count} brokers")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::Properties;
    use std::os::unix::fs::PermissionsExt;

    /// Creates a script that serves as the program of brokers. Its `$3` is the broker's file.
    fn program(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("program");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        path
    }

    fn planned(id: u32, address: &str) -> PlannedBroker {
        let mut properties = Properties::default();
        properties.set("listeners", format!("PLAINTEXT://{address}"));
        PlannedBroker { file: BrokerFile { id, properties }, is_new: true, is_changed: true, runs: false }
    }

    #[test]
    fn a_silent_broker_is_named_before_those_that_miss_it() {
        let reported = |id, answers| Readiness { id, answers, missing: Some("something".to_owned()) };
        let named = |all: &[Readiness]| to_blame(all).map(|reported| reported.id);
        assert_eq!(named(&[reported(1, true), reported(3, false), reported(2, false)]), Some(2));
        assert_eq!(named(&[reported(3, true), reported(1, true)]), Some(1));
        assert_eq!(named(&[]), None);
    }

    const PATIENCE: Duration = Duration::from_secs(30);
    /// An address on which no program listens.
    const NO_LISTENER: &str = "127.0.0.1:1";

    #[test]
    fn a_broker_that_ends_is_reported_with_its_last_lines_and_the_others_are_stopped() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "case $3 in */broker-2.properties) echo start; echo 'fullbore: no such thing' >&2; exit 1;; esac\n\
                      trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let mut running = Startup::new(directory.path(), program(directory.path(), script), PATIENCE);
        let brokers = [planned(1, NO_LISTENER), planned(2, NO_LISTENER)];
        brokers.iter().for_each(|broker| running.start_broker(broker).expect("started"));
        let first = broker::daemon(directory.path(), 1);
        let reported = running.wait(&brokers, &Stop::new()).expect_err("one has ended").to_string();
        let log = directory.path().join("broker-2.log");
        let log = log.display();
        assert_eq!(reported, format!("broker 2 ended with status 1; {log}:\n  start\n  fullbore: no such thing"));
        assert!(first.pid().is_some());
        running.undo();
        assert_eq!(first.pid(), None);
        assert!(!first.pid_file.exists() && !broker::path(directory.path(), 1).exists() && first.log.exists());
    }

    /// Regression: a broker waits for a database that is down, and the error did not name the database.
    #[test]
    fn broker_does_not_respond_in_time_the_error_has_its_last_lines() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "for line in one two three 'the database is down'; do echo $line; done\n\
                      trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let mut running = Startup::new(directory.path(), program(directory.path(), script), Duration::ZERO);
        let brokers = [planned(1, NO_LISTENER)];
        running.start_broker(&brokers[0]).expect("started");
        while running.started[0].last_lines(4).len() < 4 {
            assert_eq!(running.started[0].ended().expect("ours"), None);
            std::thread::sleep(LOOK_EVERY);
        }
        let reported = running.wait(&brokers, &Stop::new()).expect_err("it does not respond").to_string();
        assert!(reported.starts_with("broker 1 is not ready after 0ns: "), "{reported}");
        let end = "wait longer with --timeout; its last lines:\n  two\n  three\n  the database is down";
        assert!(reported.ends_with(end), "{reported}");
        running.undo();
    }

    #[test]
    fn a_failed_start_restores_the_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut running = Startup::new(directory.path(), program(directory.path(), "exit 1"), PATIENCE);
        let mut broker = PlannedBroker { is_new: false, ..planned(1, NO_LISTENER) };
        let path = broker::path(directory.path(), 1);
        fs::write(&path, "# mine\nlisteners=PLAINTEXT://127.0.0.1:9\n").expect("written");
        let before = fs::read_to_string(&path).expect("there");
        broker.file.properties.set("a", "2");
        running.start_broker(&broker).expect("started");
        assert!(fs::read_to_string(&path).expect("there").contains("a=2"));
        running.wait(&[broker], &Stop::new()).expect_err("it has ended");
        running.undo();
        assert_eq!(fs::read_to_string(&path).expect("there"), before);
    }

    #[test]
    fn a_signal_ends_the_wait_for_brokers() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
        let mut running = Startup::new(directory.path(), program(directory.path(), script), PATIENCE);
        let brokers = [planned(1, NO_LISTENER)];
        running.start_broker(&brokers[0]).expect("started");
        let stop = Stop::new();
        stop.request();
        let reported = running.wait(&brokers, &stop).expect_err("asked to stop");
        assert_eq!(reported.status, crate::failure::INTERRUPTED);
        running.undo();
    }

    #[test]
    fn broker_whose_pid_file_cannot_be_written_is_never_started() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut running = Startup::new(directory.path(), program(directory.path(), "echo started"), PATIENCE);
        // A directory with the name of the pid file fails the write, as a full disk does.
        let pid_file = broker::daemon(directory.path(), 1).pid_file;
        fs::create_dir(&pid_file).expect("made");
        let reported = running.start_broker(&planned(1, NO_LISTENER)).expect_err("a directory").to_string();
        assert!(reported.starts_with(&format!("cannot write {}: ", pid_file.display())), "{reported}");
        assert!(running.started.is_empty() && !broker::daemon(directory.path(), 1).log.exists());
        running.undo();
    }

    /// Regression: `cluster up` wrote the pid file after the start, so a kill in between left a broker that no later
    /// command knew.
    #[test]
    fn broker_runs_its_program_its_pid_file_is_written_already() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "echo $$ $(cat ${3%.properties}.pid)";
        let mut running = Startup::new(directory.path(), program(directory.path(), script), PATIENCE);
        running.start_broker(&planned(1, NO_LISTENER)).expect("started");
        let mut started = running.started.remove(0);
        started.child.wait().expect("ended");
        let pid = started.child.id();
        assert_eq!(started.last_lines(2), [format!("  {pid} {pid}")]);
    }

    #[test]
    fn program_cannot_be_started_no_pid_file_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut running = Startup::new(directory.path(), directory.path().join("missing"), PATIENCE);
        let reported = running.start_broker(&planned(1, NO_LISTENER)).expect_err("there is no program").to_string();
        assert!(reported.starts_with("cannot start broker 1: "), "{reported}");
        assert!(!broker::daemon(directory.path(), 1).pid_file.exists());
    }

    #[test]
    fn postgres_without_a_pid_file_is_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut running = Startup::new(directory.path(), PathBuf::new(), PATIENCE);
        // The handler is set because the test may run in the background, where programs ignore SIGINT.
        let script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('up', flush=True)\n\
                      while True: signal.pause()";
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]);
        let started = running.postgres.daemon.start(command).expect("Python is there, as for the clients' tests");
        let started = running.started_postgres.insert(started);
        while started.last_lines(1).is_empty() {
            assert_eq!(started.ended().expect("ours"), None);
            std::thread::sleep(LOOK_EVERY);
        }
        let pid = started.pid().expect("it runs");
        assert_eq!(running.postgres.daemon.pid(), None);
        running.undo();
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_broker_that_does_not_know_all_others_is_not_ready() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set("log.dirs", directory.path().join("data").display().to_string());
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        properties.set("fullbore.admin.listener", "");
        let config = fullbore_config::BrokerConfig::from_properties(&properties).expect("valid").0;
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let broker = runtime.block_on(fullbore_broker::Broker::start(config)).expect("started");
        let file = planned(1, &broker.addr().to_string()).file;
        assert_eq!(missing(&file, 1).expect("it answers"), None);
        assert_eq!(missing(&file, 3).expect("it answers").as_deref(), Some("it knows 1 of 3 brokers"));
        runtime.block_on(broker.shutdown());
        missing(&file, 1).expect_err("nobody listens");
    }
}
