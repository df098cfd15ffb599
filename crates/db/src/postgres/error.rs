//! Errors of PostgreSQL, and their meaning.
//!
//! Invariant: no text of them has a password. A server's messages have none, and a URL is never quoted.

use std::error::Error;
use std::io;

use tokio_postgres::error::{Severity, SqlState};

use crate::{CommitError, StoreError};

/// Why the database did not do what it was asked for.
#[derive(Debug, Clone)]
pub struct AskError {
    /// In the server's words, or those of the connection.
    pub words: String,
    /// Kept where the server said it.
    pub code: Option<SqlState>,
    /// True if what was asked for was not done, and will not be.
    pub is_certain: bool,
}

impl AskError {
    /// The connection broke.
    pub fn lost(words: impl Into<String>) -> Self {
        Self { words: words.into(), code: None, is_certain: false }
    }

    /// Returns the error of an answer that did not come in time, where another connection would hardly do better.
    pub fn slow(words: impl Into<String>) -> Self {
        Self { code: Some(SqlState::QUERY_CANCELED), ..Self::lost(words) }
    }

    /// Returns the error of a statement that was not sent.
    pub fn not_asked(words: impl Into<String>) -> Self {
        Self { is_certain: true, ..Self::lost(words) }
    }

    /// Returns true if the connection ended, so that another may do.
    pub fn is_of_connection(&self) -> bool {
        let is_fatal = |code: &SqlState| ["57P", "08"].iter().any(|class| code.code().starts_with(class));
        match &self.code {
            None => true,
            Some(code) => is_fatal(code) || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        }
    }

    /// Why something was not done, to who asked for it.
    pub fn failed(self) -> StoreError {
        StoreError::Away(self.words)
    }

    /// Why a commit was not made, or what is known of it.
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
            // Who ends a session does not say what became of what it was doing.
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

/// Returns the error of a row that cannot be right.
pub fn damaged(reason: impl Into<String>) -> StoreError {
    StoreError::Damaged(reason.into())
}
