//! Interprets the errors of PostgreSQL.
//!
//! Invariant: no error text contains a password. The server's messages do not contain one, and the URL is never quoted.

use std::error::Error;
use std::io;

use tokio_postgres::error::{Severity, SqlState};

use crate::{CommitError, Outage, StoreError};

/// Errors of the system that may end by themselves. NotFound is the error of a Unix socket whose server does not run.
const TRANSIENT: [io::ErrorKind; 11] = [
    io::ErrorKind::AddrNotAvailable,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkDown,
    io::ErrorKind::NetworkUnreachable,
    io::ErrorKind::NotFound,
    io::ErrorKind::TimedOut,
    io::ErrorKind::UnexpectedEof,
];
/// The beginning of the standard library's text for a host name without an address. The reason follows.
pub(super) const NO_ADDRESS: &str = "failed to lookup address information: ";
/// Texts of errors that may end by themselves but have no kind. Kubernetes and compose may create the name of a host
/// later than the broker. The second text is the client's during a failover to another host.
const TRANSIENT_TEXTS: [&str; 2] = [NO_ADDRESS, "database does not allow writes"];

/// The reason why a request to the database failed.
#[derive(Debug, Clone)]
pub struct QueryError {
    /// The message of the server, or the reason why the connection failed.
    pub words: String,
    /// The server's error code, or `None` if it sent none. A response that takes too long counts as QUERY_CANCELED.
    pub code: Option<SqlState>,
    /// True if the statements certainly had no effect, and will not have one later.
    pub is_certain: bool,
    /// True if the same request may succeed a little later, without a change by a person.
    pub is_transient: bool,
}

impl QueryError {
    /// Creates the error for a broken connection.
    pub fn lost(words: impl Into<String>) -> Self {
        Self { words: words.into(), code: None, is_certain: false, is_transient: true }
    }

    /// Creates the error for a response that takes too long. The caller should not reconnect, since a new connection
    /// would probably be as slow.
    pub fn slow(words: impl Into<String>) -> Self {
        Self { code: Some(SqlState::QUERY_CANCELED), ..Self::lost(words) }
    }

    /// Creates the error for statements that were not sent.
    pub fn not_requested(words: impl Into<String>) -> Self {
        Self { is_certain: true, ..Self::lost(words) }
    }

    /// Creates the error for a connection that the settings, or files that they name, do not allow.
    pub fn unusable(words: impl Into<String>) -> Self {
        Self { is_transient: false, ..Self::not_requested(words) }
    }

    /// Returns true if the connection has ended, so that a new connection may help.
    pub fn is_of_connection(&self) -> bool {
        let is_fatal = |code: &SqlState| ["57P", "08"].iter().any(|class| code.code().starts_with(class));
        match &self.code {
            None => true,
            Some(code) => is_fatal(code) || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        }
    }

    /// Converts the error into one of the store.
    pub fn failed(self) -> StoreError {
        StoreError::Away(self.outage())
    }

    /// Converts the error into the reason why the database cannot be used.
    pub fn outage(self) -> Outage {
        Outage { words: self.words, is_transient: self.is_transient }
    }

    /// Converts the error into the error of a commit, whose outcome may be unknown.
    pub fn not_committed(self) -> CommitError {
        match self.is_certain {
            true => CommitError::Refused(self.failed()),
            false => CommitError::Unknown(self.words),
        }
    }
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(db_error) = error.as_db_error() {
            // An error that ends the session leaves the outcome of its statement unknown.
            let is_certain = db_error.parsed_severity() == Some(Severity::Error);
            let (code, words) = (db_error.code().clone(), db_error.message().to_owned());
            let is_transient = is_code_transient(&code) || words.contains(POOLER_WAITS);
            return Self { words, is_certain, is_transient, code: Some(code) };
        }
        let mut is_transient = error.is_closed();
        let mut deepest: &dyn Error = &error;
        loop {
            let of_socket = deepest.downcast_ref::<io::Error>().map(io::Error::kind);
            if of_socket == Some(io::ErrorKind::UnexpectedEof) {
                return Self::lost("the server closed the connection");
            }
            is_transient |= of_socket.is_some_and(|kind| TRANSIENT.contains(&kind));
            match deepest.source() {
                Some(source) => deepest = source,
                None => break,
            }
        }
        let words = deepest.to_string();
        is_transient |= TRANSIENT_TEXTS.iter().any(|text| words.contains(text));
        Self { is_transient, ..Self::lost(words) }
    }
}

/// The text of PgBouncer while it waits before it connects to the server again. Its code is that of a wrong password.
const POOLER_WAITS: &str = "server_login_retry";

/// Returns true if an error with this code may end by itself. The server is starting, stopping, busy, short of disk or
/// memory, or a standby, or the statement was too slow. A pooler also reports a wrong password as a protocol violation.
fn is_code_transient(code: &SqlState) -> bool {
    let codes = [
        SqlState::QUERY_CANCELED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
    ];
    let is_of_class = ["57P", "08", "53"].iter().any(|class| code.code().starts_with(class));
    let is_lasting = [SqlState::DATABASE_DROPPED, SqlState::PROTOCOL_VIOLATION].contains(code);
    codes.contains(code) || is_of_class && !is_lasting
}

/// Creates the error for contents that cannot be right.
pub fn damaged(reason: impl Into<String>) -> StoreError {
    StoreError::Damaged(reason.into())
}
