//! Databases of the control plane and of the index of diskless topics: sessions, rows and errors.
//!
//! Not here: tables, except the schema that control plane and index share in PostgreSQL. Invariant: the error of a
//! change that was not made differs from that of a change that may have been made.

pub mod calls;
pub mod postgres;
pub mod sqlite;

/// Failure of a call that changed nothing in the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the disk is full")]
    Full,
    /// Contents of the store that cannot be right.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
    /// Database that cannot be reached or used at the moment.
    #[error("{0}")]
    Away(String),
    #[error("the database does not know version {0}: it was set back to an older state, or it is another database")]
    WentBack(u64),
}

/// Outcome of a commit that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// The store has changed nothing.
    Refused(StoreError),
    /// The connection broke before the answer: the change may have been made, or may still be made.
    Unknown(String),
}

impl From<CommitError> for StoreError {
    /// Keeps only the reason, for callers that treat both outcomes alike.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(error) => error,
            CommitError::Unknown(why) => Self::Away(why),
        }
    }
}
