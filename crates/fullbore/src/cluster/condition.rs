//! Checks that the processes of a cluster respond. It is not enough that they run: a process may be frozen, and a
//! broker may have lost its database.
//!
//! Invariant: the check ends within [`LOOKED_WITHIN`], whatever the processes do.

use super::broker::{self, BrokerFile};
use super::postgres::OwnPostgres;
use super::process::Daemon;
use crate::client_id;
use fullbore_client::ClientError;
use fullbore_client::blocking::Connection;
use fullbore_client::security::Security;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Text};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long a process may take to answer one request.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long the check of all processes may take. Each process gets at most three requests, and all are checked in
/// parallel.
const LOOKED_WITHIN: Duration = ANSWER_WITHIN.saturating_mul(4);
/// A name that no topic may have, so that a broker refuses to create this topic.
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
    /// The process runs, but does not respond within [`ANSWER_WITHIN`].
    Silent,
    /// The broker responds, but cannot reach its database.
    WithoutDatabase,
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
    /// Checks all processes in parallel, each on its own thread.
    pub fn of(directory: &Path, brokers: &[BrokerFile]) -> Conditions {
        let postgres = OwnPostgres::of(directory);
        let until = Instant::now() + LOOKED_WITHIN;
        let (sender, receiver) = channel();
        let runs = |daemon: &Daemon| if daemon.pid().is_some() { Condition::Silent } else { Condition::Stopped };
        let mut seen: Vec<Condition> = brokers.iter().map(|file| runs(&broker::daemon(directory, file.id))).collect();
        let mut of_postgres = postgres.is_there().then(|| runs(&postgres.daemon));
        let mut awaited = 0;
        for (at, file) in brokers.iter().enumerate().filter(|(at, _)| seen[*at] == Condition::Silent) {
            let address = file.address().unwrap_or_default();
            awaited += usize::from(look(&sender, Some(at), move || of_broker(&address)));
        }
        if of_postgres == Some(Condition::Silent) {
            let ask =
                move || if postgres.answers_within(ANSWER_WITHIN) { Condition::Running } else { Condition::Silent };
            awaited += usize::from(look(&sender, None, ask));
        }
        for _ in 0..awaited {
            // If a thread sends no result in time, the condition of its process remains `Silent`.
            let Ok((whom, condition)) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                break;
            };
            match whom {
                Some(at) => seen[at] = condition,
                None => of_postgres = Some(condition),
            }
        }
        Conditions { brokers: seen, postgres: of_postgres }
    }
}

/// Starts a thread that calls `request` and sends the returned condition to `sender`. `whom` is the position of a
/// broker, or `None` for PostgreSQL. Returns false if the system refuses the thread.
fn look(
    sender: &Sender<(Option<usize>, Condition)>,
    whom: Option<usize>,
    request: impl FnOnce() -> Condition + Send + 'static,
) -> bool {
    let sender = sender.clone();
    let look = move || {
        // The send fails if `request` took too long and the check has ended without its result.
        let _ = sender.send((whom, request()));
    };
    std::thread::Builder::new().name("ask".to_owned()).spawn(look).is_ok()
}

/// Requests a broker's metadata, and then an invalid change. The broker must read its database before it can refuse the
/// change.
fn of_broker(address: &str) -> Condition {
    let connected = || -> Result<Connection, ClientError> {
        let security = Security::default();
        let mut connection = Connection::connect_within(address, client_id::CLUSTER, &security, ANSWER_WITHIN)?;
        connection.call(&MetadataRequest { topics: Some(Vec::new()), ..Default::default() })?;
        Ok(connection)
    };
    let Ok(mut connection) = connected() else { return Condition::Silent };
    let topic = CreatableTopic {
        name: Text::from_static(NO_TOPIC),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let timeout_ms = i32::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(i32::MAX);
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms, validate_only: true, ..Default::default() };
    let away = [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::KAFKA_STORAGE_ERROR];
    match connection.call_up_to(&request, CREATE_TOPICS) {
        Ok(answer) if !answer.topics.iter().any(|topic| away.contains(&topic.error_code)) => Condition::Running,
        _ => Condition::WithoutDatabase,
    }
}
