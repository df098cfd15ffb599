//! Checks that the processes of a cluster respond. It is not enough that they run: a process may be frozen, and a
//! broker may have lost its database.
//!
//! Invariant: one time limit covers the whole check, whatever the processes do.

use super::broker::{self, BrokerFile};
use super::postgres::OwnPostgres;
use super::process::{Daemon, LOOK_EVERY};
use crate::client_id;
use crate::patience::Patience;
use crate::waiting::Wait;
use fullbore_client::ClientError;
use fullbore_client::blocking::Connection;
use fullbore_client::security::Security;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// A name that no topic may have. A request to create it changes nothing.
const NO_TOPIC: &str = ".";
/// The newest version of CreateTopics whose fields this module sets.
const CREATE_TOPICS: i16 = 7;

/// The condition of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The process responds. A broker also reaches its database.
    Running,
    /// The process does not run.
    Stopped,
    /// The process runs, but does not respond in time.
    Silent,
    /// The broker responds, but does not reach its database in time.
    WithoutDatabase,
}

/// A report of a check that runs on its own thread.
struct Report {
    /// The position of the broker. `None` for PostgreSQL.
    whom: Option<usize>,
    condition: Condition,
    /// True if no further report follows.
    is_last: bool,
}

impl Condition {
    /// Returns the condition as words for the user.
    pub fn words(self) -> &'static str {
        match self {
            Condition::Running => "running",
            Condition::Stopped => "stopped",
            Condition::Silent => "does not answer",
            Condition::WithoutDatabase => "has no database",
        }
    }
}

/// The conditions of a cluster's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The conditions of the brokers, in the order of their files.
    pub brokers: Vec<Condition>,
    /// The condition of the cluster's own PostgreSQL. `None` if the cluster has no own PostgreSQL.
    pub postgres: Option<Condition>,
}

impl Conditions {
    /// Looks at all processes at the same time, each on a thread of its own. All answers together may take as long as
    /// `patience`. A long wait is reported.
    pub fn of(directory: &Path, brokers: &[BrokerFile], patience: Patience) -> Conditions {
        let (postgres, within) = (OwnPostgres::of(directory), patience.duration());
        let began = Instant::now();
        let (sender, receiver) = channel();
        let runs = |daemon: &Daemon| if daemon.pid().is_some() { Condition::Silent } else { Condition::Stopped };
        let mut seen: Vec<Condition> = brokers.iter().map(|file| runs(&broker::daemon(directory, file.id))).collect();
        let mut of_postgres = postgres.is_there().then(|| runs(&postgres.daemon));
        let mut awaited = BTreeSet::new();
        for (at, file) in brokers.iter().enumerate().filter(|(at, _)| seen[*at] == Condition::Silent) {
            let address = file.address().unwrap_or_default();
            if look(&sender, Some(at), move |report| of_broker(&address, within, report)) {
                awaited.insert(Some(at));
            }
        }
        if of_postgres == Some(Condition::Silent) {
            let ask = move |_: &dyn Fn(Condition)| match postgres.answers_within(within) {
                true => Condition::Running,
                false => Condition::Silent,
            };
            if look(&sender, None, ask) {
                awaited.insert(None);
            }
        }
        let mut wait = Wait::begin();
        // If a thread is late, the process has the condition of its last report. Without a report, it is silent.
        while !awaited.is_empty() && began.elapsed() < within {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(Report { whom, condition, is_last }) => {
                    if is_last {
                        awaited.remove(&whom);
                    }
                    match whom {
                        Some(at) => seen[at] = condition,
                        None => of_postgres = Some(condition),
                    }
                }
                Err(_) => wait.observe(|| {
                    let whom = names(awaited.iter().map(|whom| whom.map(|at| brokers[at].id)));
                    format!("no answer from {whom}; --timeout ends this after {within:?}")
                }),
            }
        }
        Conditions { brokers: seen, postgres: of_postgres }
    }
}

/// Returns the names of brokers and of PostgreSQL, which has no id.
fn names(of: impl Iterator<Item = Option<u32>>) -> String {
    let name = |id: Option<u32>| id.map_or_else(|| "PostgreSQL".to_owned(), |id| format!("broker {id}"));
    of.map(name).collect::<Vec<_>>().join(", ")
}

/// Starts a thread that sends the result of `request` for the broker at position `whom`, or for PostgreSQL. `request`
/// may report other conditions before. Returns false if the system refuses the thread.
fn look(
    sender: &Sender<Report>,
    whom: Option<usize>,
    request: impl FnOnce(&dyn Fn(Condition)) -> Condition + Send + 'static,
) -> bool {
    let sender = sender.clone();
    let look = move || {
        let report = |condition, is_last| {
            // The send fails if `request` took too long and the check has ended without its result.
            let _ = sender.send(Report { whom, condition, is_last });
        };
        let condition = request(&|condition| report(condition, false));
        report(condition, true);
    };
    std::thread::Builder::new().name("ask".to_owned()).spawn(look).is_ok()
}

/// Requests a broker's metadata, and then a change that it can only refuse after it has read its database. Between the
/// two requests, reports that the broker responds.
fn of_broker(address: &str, within: Duration, report: &dyn Fn(Condition)) -> Condition {
    let connected = || -> Result<Connection, ClientError> {
        let security = Security::default();
        let mut connection = Connection::connect_within(address, client_id::CLUSTER, &security, within)?;
        connection.call(&MetadataRequest { topics: Some(Vec::new()), ..Default::default() })?;
        Ok(connection)
    };
    let Ok(mut connection) = connected() else { return Condition::Silent };
    report(Condition::WithoutDatabase);
    let topic = CreatableTopic {
        name: Text::from_static(NO_TOPIC),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let timeout_ms = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms, validate_only: true, ..Default::default() };
    let away = [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::KAFKA_STORAGE_ERROR];
    match connection.call_up_to(&request, CREATE_TOPICS) {
        Ok(answer) if !answer.topics.iter().any(|topic| away.contains(&topic.error_code)) => Condition::Running,
        _ => Condition::WithoutDatabase,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties};
    use fullbore_tests::{Link, Relay};
    use std::process::Command;

    const WITHIN_MS: u64 = 1_000;

    /// Regression: each of four answers could take the whole time of `--timeout`.
    #[test]
    fn answers_that_are_late_only_together_are_not_awaited() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set("log.dirs", directory.path().join("data").display().to_string());
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        properties.set("fullbore.admin.listener", "");
        let config = BrokerConfig::from_properties(&properties).expect("valid").0;
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let broker = runtime.block_on(fullbore_broker::Broker::start(config)).expect("started");
        let relay = Relay::to(broker.addr());
        properties.set("listeners", format!("PLAINTEXT://{}", relay.address));
        let file = BrokerFile { id: 1, properties };
        // The process only has the command line of the broker.
        let daemon = broker::daemon(directory.path(), 1);
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do sleep 0.05; done"]).args(&daemon.words);
        let mut started = daemon.start(command).expect("there is a shell");
        std::fs::write(&daemon.pid_file, started.child.id().to_string()).expect("written");
        while daemon.pid().is_none() {
            std::thread::sleep(LOOK_EVERY);
        }
        let condition = |within_ms| {
            let found = Conditions::of(directory.path(), std::slice::from_ref(&file), Patience::of_ms(within_ms));
            found.brokers[0]
        };
        assert_eq!(condition(120_000), Condition::Running);
        // The first two answers take longer than the whole time.
        relay.set(None, Link::Slow(Duration::from_millis(WITHIN_MS * 3 / 4)));
        assert_eq!(condition(WITHIN_MS), Condition::Silent);
        started.child.kill().expect("ours");
        started.child.wait().expect("ended");
        runtime.block_on(broker.shutdown());
    }
}
