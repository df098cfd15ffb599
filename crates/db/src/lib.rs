//! Databases as the control plane and the index of diskless topics use them: sessions, rows and errors.
//!
//! Not here: the tables, except the schema that both share in PostgreSQL. Invariant: a change that was not made and one
//! that may have been made are different errors.

pub mod calls;
pub mod postgres;
pub mod sqlite;

/// Failure of a store that changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the disk is full")]
    Full,
    /// Suspect contents.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
    /// Database that cannot be reached or used now.
    #[error("{0}")]
    Away(String),
    #[error("it does not know version {0}: it went back to an older state, or is another one")]
    WentBack(u64),
}

/// Outcome of a commit that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// The store has changed nothing.
    Refused(StoreError),
    /// The change may have been made, or may still be: the connection broke before the answer.
    Unknown(String),
}

impl From<CommitError> for StoreError {
    /// Keeps the reason alone, for callers that cannot go on either way.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(error) => error,
            CommitError::Unknown(why) => Self::Away(why),
        }
    }
}
