//! Interprets the errors of PostgreSQL.
//!
//! Invariant: no error text contains a password. The server's messages do not contain one, and the URL is never quoted.

use std::error::Error;
use std::io;

use tokio_postgres::error::{Severity, SqlState};

use crate::{CommitError, StoreError};

/// The reason why a request to the database failed.
#[derive(Debug, Clone)]
pub struct QueryError {
    /// The message of the server, or the reason why the connection failed.
    pub words: String,
    /// The server's error code, or `None` if it sent none. A response that takes too long counts as QUERY_CANCELED.
    pub code: Option<SqlState>,
    /// True if the statements certainly had no effect, and will not have one later.
    pub is_certain: bool,
}

impl QueryError {
    /// Creates the error for a broken connection.
    pub fn lost(words: impl Into<String>) -> Self {
        Self { words: words.into(), code: None, is_certain: false }
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

    /// Returns true if the connection has ended. In that case a new connection may succeed.
    pub fn is_of_connection(&self) -> bool {
        let is_fatal = |code: &SqlState| ["57P", "08"].iter().any(|class| code.code().starts_with(class));
        match &self.code {
            None => true,
            Some(code) => is_fatal(code) || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        }
    }

    /// Converts the error into one of the store.
    pub fn failed(self) -> StoreError {
        StoreError::Away(self.words)
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
            return Self { words: db_error.message().to_owned(), code: Some(db_error.code().clone()), is_certain };
        }
        let mut deepest: &dyn Error = &error;
        loop {
            let of_socket = deepest.downcast_ref::<io::Error>().map(io::Error::kind);
            if of_socket == Some(io::ErrorKind::UnexpectedEof) {
                return Self::lost("the server closed the connection");
            }
            match deepest.source() {
                Some(source) => deepest = source,
                None => return Self::lost(deepest.to_string()),
            }
        }
    }
}

/// Creates the error for invalid data in the database.
pub fn damaged(reason: impl Into<String>) -> StoreError {
    StoreError::Damaged(reason.into())
}
