//! Errors of PostgreSQL, and their meaning.
//!
//! Invariant: no text contains a password. The server's messages have none, and a URL is never quoted.

use std::error::Error;
use std::io;

use tokio_postgres::error::{Severity, SqlState};

use crate::{CommitError, StoreError};

/// Failure of a request to the database.
#[derive(Debug, Clone)]
pub struct AskError {
    /// Message of the server or of the connection.
    pub words: String,
    /// Error code of the server; `None` if the server sent no code.
    pub code: Option<SqlState>,
    /// True if the statements certainly had no effect, and will have none.
    pub is_certain: bool,
}

impl AskError {
    /// Returns the error of a broken connection.
    pub fn lost(words: impl Into<String>) -> Self {
        Self { words: words.into(), code: None, is_certain: false }
    }

    /// Returns the error of a late answer. The caller does not reconnect, since another connection would hardly be
    /// faster.
    pub fn slow(words: impl Into<String>) -> Self {
        Self { code: Some(SqlState::QUERY_CANCELED), ..Self::lost(words) }
    }

    /// Returns the error of a statement that was not sent.
    pub fn not_asked(words: impl Into<String>) -> Self {
        Self { is_certain: true, ..Self::lost(words) }
    }

    /// Returns true if the connection has ended: a new connection may succeed.
    pub fn is_of_connection(&self) -> bool {
        let is_fatal = |code: &SqlState| ["57P", "08"].iter().any(|class| code.code().starts_with(class));
        match &self.code {
            None => true,
            Some(code) => is_fatal(code) || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        }
    }

    /// Returns the error for the caller of the store.
    pub fn failed(self) -> StoreError {
        StoreError::Away(self.words)
    }

    /// Returns the error of a commit that was not made, or whose outcome is unknown.
    pub fn not_committed(self) -> CommitError {
        match self.is_certain {
            true => CommitError::Refused(self.failed()),
            false => CommitError::Unknown(self.words),
        }
    }
}

impl From<tokio_postgres::Error> for AskError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(said) = error.as_db_error() {
            // An error that ends the session leaves the outcome of its statement unknown.
            let is_certain = said.parsed_severity() == Some(Severity::Error);
            return Self { words: said.message().to_owned(), code: Some(said.code().clone()), is_certain };
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

/// Returns the error of contents that cannot be right.
pub fn damaged(reason: impl Into<String>) -> StoreError {
    StoreError::Damaged(reason.into())
}
